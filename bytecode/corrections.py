"""Where plain Python source crashes CPython by what its compiler makes of it: the same code with other instructions.

Instructions are exchanged for others of the same size, so that no jump and no table changes. The verifier refuses the
originals.
"""

from types import CodeType

from .opcodes import table
from .verifier.instructions import Instructions
from .verifier.layout import slot_names


def compile_corrected(source, filename, optimize=0):
    """The code object of the module `source` (bytes, str or syntax tree): what CPython makes of it, `corrected`."""
    return corrected(compile(source, filename, "exec", dont_inherit=True, optimize=optimize))


def corrected(code):
    """`code`, and what it holds, as it should have been compiled; itself where nothing is to be done."""
    constants = tuple(corrected(each) if isinstance(each, CodeType) else each for each in code.co_consts)
    if any(new is not old for new, old in zip(constants, code.co_consts)):
        code = code.replace(co_consts=constants)
    return _reads_its_own_cell(code)


def _reads_its_own_cell(code):
    """Within a class body, 3.14 looks for the type parameters of a generic class in the body's namespace first, under a
    name that no source can spell, and takes what it finds for a tuple. A namespace of `__prepare__` can hold anything.
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
