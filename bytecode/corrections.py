"""Corrects CPython's compiled code of valid source where it can crash the interpreter.

The verifier refuses the uncorrected code.
"""

from types import CodeType

from .expansion import expanded
from .opcodes import table
from .verifier.flow import Flow
from .verifier.instructions import Instructions
from .verifier.layout import slot_names
from .verifier.tables import handlers


def compile_corrected(source, filename, optimize=0):
    """The code object of the module `source` (bytes, str or syntax tree), compiled by CPython and then `corrected`."""
    return corrected(compile(source, filename, "exec", dont_inherit=True, optimize=optimize))


def corrected(code):
    """`code` and the code objects in its constants, corrected. Returns `code` itself where nothing needs correcting."""
    constants = tuple(corrected(each) if isinstance(each, CodeType) else each for each in code.co_consts)
    if any(new is not old for new, old in zip(constants, code.co_consts)):
        code = code.replace(co_consts=constants)
    return _counts_on_emptied_locals(_reads_its_own_cell(code))


def _reads_its_own_cell(code):
    """Makes a generic class read its type parameters from its cell. Instructions are replaced by others of the same
    size, so that no jump or table changes.

    Within a class body, 3.14 looks for the type parameters in the body's namespace first, under a name that no source
    can spell, and takes what it finds for a tuple. A namespace from `__prepare__` can hold anything.
    """
    facts = table().facts
    if facts.TUPLE_BY_CELL not in code.co_cellvars:
        return code
    names, data = slot_names(code), bytearray(code.co_code)
    found = Instructions(code, table(), "")
    load, nop = table().number("LOAD_DEREF"), table().number("NOP")
    for index, op in enumerate(found.ops):
        if table().name_of[op] != "LOAD_FROM_DICT_OR_DEREF" or names[found.operands[index]] != facts.TUPLE_BY_CELL:
            continue
        before = index - 1
        if found.ops[before] != load or names[found.operands[before]] != "__classdict__":
            continue
        for unit in range(found.start[before], found.end[before]):
            data[2 * unit : 2 * unit + 2] = bytes((nop, 0))
        data[2 * found.unit[index]] = load
    return code if data == code.co_code else code.replace(co_code=bytes(data))


class _Loads(Flow):
    """Finds the loads that the verifier refuses. After each, the local counts as assigned."""

    def __init__(self, instructions, found):
        super().__init__(instructions, found)
        self.unchecked = set()

    def _value_of(self, local):
        bit = 1 << local
        if self.unassigned & bit:
            self.unchecked.add(self.index)
            self.unassigned &= ~bit
            self.objects |= bit
        return super()._value_of(local)


def _counts_on_emptied_locals(code):
    """Checks loads of locals that an addition may have emptied. Where `text += more` runs out of memory, 3.14 leaves
    `text` unset; a handler that loads it crashes, because the compiler considers it assigned. Such a load becomes
    LOAD_FAST_CHECK, which raises UnboundLocalError. The addition itself stays, and stays fast.
    """
    if not code.co_exceptiontable:
        return code
    number = table().number
    both = {number("LOAD_FAST_LOAD_FAST"), number("LOAD_FAST_BORROW_LOAD_FAST_BORROW")}
    store, check, store_and_load = number("STORE_FAST"), number("LOAD_FAST_CHECK"), number("STORE_FAST_LOAD_FAST")
    while True:  # splitting a store into its own instruction may expose another addition
        found = Instructions(code, table(), "")
        loads = _Loads(found, handlers(code, found))
        if not any(loads.emptied_by(index) for index in range(len(found.ops))):
            return code
        loads.run()
        if not loads.unchecked:
            return code
        replaced = {}
        for index in loads.unchecked:
            op, operand = found.ops[index], found.operands[index]
            if op in both:
                replaced[index] = [(check, operand >> 4), (check, operand & 15)]
            elif op == store_and_load:
                replaced[index] = [(store, operand >> 4), (check, operand & 15)]
            else:
                replaced[index] = [(check, operand)]
        code = expanded(code, found, replaced)
