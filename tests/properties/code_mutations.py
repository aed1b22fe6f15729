"""Ways to damage a code object, and the modules whose code is damaged.

Each way is a function `kind(draft, chance)` that gives the fields to replace; a draft has the attributes of a code
object, `chance` is a `random.Random`. `mutant` makes one mutant of a module from a seed and an index, always the same.
"""

import dis
import marshal
import os
import random
import types
from pathlib import Path

from vmhost.bytecode.corrections import compile_corrected

SPECIMENS = Path(__file__).with_name("specimens")
# modules of the standard library that touch nothing but their arguments
LIBRARY = tuple(
    "heapq bisect colorsys textwrap graphlib reprlib json.decoder json.scanner html string copy keyword types "
    "_weakrefset statistics fractions shlex operator".split()
)
LIBRARY_SHARE = 0.02  # of all mutants: these modules are large, and verifying them takes most of the time


def code_objects(code):
    """(path, code object) of `code` and all within; a path is the places in co_consts that lead there."""
    found = [((), code)]
    for path, one in found:
        for index, constant in enumerate(one.co_consts):
            if type(constant) is types.CodeType:
                found.append((path + (index,), constant))
    return found


def replaced(code, path, new):
    """`code` with the code object at `path` exchanged for `new`."""
    if not path:
        return new
    constants = list(code.co_consts)
    constants[path[0]] = replaced(constants[path[0]], path[1:], new)
    return code.replace(co_consts=tuple(constants))


class Layout:
    """Where the instructions of a code object are: (first byte of opcode, opcode, bytes up to the next instruction)."""

    def __init__(self, code):

        self.found = []
        offset, data = 0, code.co_code
        while offset < len(data):
            op = data[offset]
            width = 2 + 2 * dis._inline_cache_entries.get(dis.opname[op], 0)
            self.found.append((offset, op, width))
            offset += width

    def pick(self, chance, names=None):

        fitting = [each for each in self.found if names is None or dis.opname[each[1]] in names]
        return chance.choice(fitting) if fitting else None


def _op(name):

    return dis.opmap[name]


def _near(chance, value):
    return (
        chance.choice(
            (value - 1, value + 1, value ^ 1, value + 2, 0, chance.randrange(256), value ^ 1 << chance.randrange(8))
        )
        & 0xFF
    )


def flip_code_bit(code, chance):
    data = bytearray(code.co_code)
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return {"co_code": bytes(data)}


def change_operand(code, chance):
    data = bytearray(code.co_code)
    offset, _, _ = Layout(code).pick(chance)
    data[offset + 1] = _near(chance, data[offset + 1])
    return {"co_code": bytes(data)}


def change_opcode(code, chance):

    data = bytearray(code.co_code)
    offset, op, width = Layout(code).pick(chance)
    alike = [
        number
        for number in dis.opmap.values()
        if number < 255 and 2 + 2 * dis._inline_cache_entries.get(dis.opname[number], 0) == width
    ]
    data[offset] = chance.choice(alike)
    return {"co_code": bytes(data)}


_FAMILIES = (
    (
        "LOAD_FAST",
        "LOAD_FAST_BORROW",
        "LOAD_FAST_CHECK",
        "LOAD_FAST_AND_CLEAR",
        "STORE_FAST",
        "DELETE_FAST",
        "MAKE_CELL",
        "LOAD_DEREF",
        "STORE_DEREF",
        "DELETE_DEREF",
    ),
    ("LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST"),
    ("LIST_APPEND", "SET_ADD", "LIST_EXTEND", "SET_UPDATE", "DICT_UPDATE", "MAP_ADD", "DICT_MERGE"),
    ("BUILD_LIST", "BUILD_TUPLE", "BUILD_SET", "BUILD_STRING", "BUILD_MAP", "BUILD_SLICE"),
    ("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE"),
    (
        "UNARY_NEGATIVE",
        "UNARY_INVERT",
        "UNARY_NOT",
        "GET_ITER",
        "GET_YIELD_FROM_ITER",
        "GET_AITER",
        "FORMAT_SIMPLE",
        "NOP",
        "GET_LEN",
        "MATCH_MAPPING",
        "MATCH_SEQUENCE",
        "GET_ANEXT",
        "CONVERT_VALUE",
        "CALL_INTRINSIC_1",
    ),
    (
        "POP_TOP",
        "END_FOR",
        "POP_ITER",
        "POP_EXCEPT",
        "RETURN_VALUE",
        "PUSH_NULL",
        "NOT_TAKEN",
        "END_SEND",
        "PUSH_EXC_INFO",
    ),
    ("JUMP_FORWARD", "JUMP_BACKWARD_NO_INTERRUPT"),
    ("FOR_ITER", "SEND"),
    ("CALL", "CALL_KW"),
    ("COPY", "SWAP"),
    ("STORE_NAME", "STORE_GLOBAL", "DELETE_NAME", "DELETE_GLOBAL", "LOAD_NAME"),
    ("LOAD_CONST", "LOAD_SMALL_INT", "LOAD_FAST_BORROW", "LOAD_COMMON_CONSTANT", "PUSH_NULL"),
    ("BINARY_SLICE", "STORE_SLICE"),
    (
        "IS_OP",
        "DELETE_SUBSCR",
        "FORMAT_WITH_SPEC",
        "CALL_INTRINSIC_2",
        "CHECK_EXC_MATCH",
        "CHECK_EG_MATCH",
        "BUILD_TEMPLATE",
    ),
)


def change_within_family(code, chance):
    family = chance.choice(_FAMILIES)
    picked = Layout(code).pick(chance, family)
    if not picked:
        return change_operand(code, chance)
    data = bytearray(code.co_code)
    data[picked[0]] = _op(chance.choice(family))
    return {"co_code": bytes(data)}


def change_local(code, chance):
    """Another local for an instruction that names one: the definite-assignment and borrowing rules."""
    layout = Layout(code)
    picked = layout.pick(chance, _FAMILIES[0]) if chance.random() < 0.6 else layout.pick(chance, _FAMILIES[1])
    if not picked:
        return change_operand(code, chance)
    count = max(1, code.co_nlocals + len(code.co_cellvars) + len(code.co_freevars))
    data = bytearray(code.co_code)
    index = picked[0] + 1
    data[index] = (
        chance.randrange(count)
        if picked[2] == 2 and chance.random() < 0.7
        else chance.randrange(min(count, 16)) << 4 | data[index] & 15
    )
    return {"co_code": bytes(data)}


def swap_operands(code, chance):
    layout = Layout(code)
    first = layout.pick(chance)

    second = layout.pick(chance, {dis.opname[first[1]]} if chance.random() < 0.7 else None)
    data = bytearray(code.co_code)
    a, b = first[0] + 1, second[0] + 1
    data[a], data[b] = data[b], data[a]
    return {"co_code": bytes(data)}


def blank_instruction(code, chance):
    """NOPs in place of an instruction: nothing moves, only its effect is missing."""
    data = bytearray(code.co_code)
    offset, _, width = Layout(code).pick(chance)
    data[offset : offset + width] = bytes((_op("NOP"), 0)) * (width // 2)
    return {"co_code": bytes(data)}


def remove_instruction(code, chance):
    data = bytearray(code.co_code)
    offset, _, width = Layout(code).pick(chance)
    del data[offset : offset + width]
    return {"co_code": bytes(data)}


def duplicate_instruction(code, chance):
    data = bytearray(code.co_code)
    offset, _, width = Layout(code).pick(chance)
    data[offset:offset] = data[offset : offset + width]
    return {"co_code": bytes(data)}


def overwrite_instruction(code, chance):
    """One instruction copied over another of the same width."""
    layout = Layout(code)
    source = layout.pick(chance)
    fitting = [each for each in layout.found if each[2] == source[2]]
    target = chance.choice(fitting)
    data = bytearray(code.co_code)
    data[target[0] : target[0] + target[2]] = data[source[0] : source[0] + source[2]]
    return {"co_code": bytes(data)}


def swap_neighbours(code, chance):
    layout = Layout(code)
    index = chance.randrange(len(layout.found))
    if index + 1 == len(layout.found):
        return change_operand(code, chance)
    (a, _, first), (b, _, second) = layout.found[index : index + 2]
    data = bytearray(code.co_code)
    data[a : b + second] = data[b : b + second] + data[a : a + first]
    return {"co_code": bytes(data)}


def change_constants(code, chance):
    constants = list(code.co_consts)
    if not constants:
        return change_operand(code, chance)
    index = chance.randrange(len(constants))
    how = chance.randrange(4)
    if how == 0:
        other = chance.randrange(len(constants))
        constants[index], constants[other] = constants[other], constants[index]
    elif how == 1:
        constants[index] = chance.choice(
            (
                None,
                0,
                -1,
                2**70,
                1.5,
                "text",
                b"x",
                (),
                (1, 2),
                ("a",),
                ("b", "c"),
                True,
                ...,
                frozenset({1}),
                3j,
                slice(1, 2, None),
            )
        )
    elif how == 2:
        constants[index] = chance.choice(([], {}, object(), int, ("a", [1]), bytearray(b"x")))
    else:
        constants.pop(index)
    return {"co_consts": tuple(constants)}


def change_names(code, chance):
    names = list(code.co_names)
    if not names:
        return change_operand(code, chance)
    index, other = chance.randrange(len(names)), chance.randrange(len(names))
    how = chance.randrange(3)
    if how == 0:
        names[index], names[other] = names[other], names[index]
    elif how == 1:
        names[index] = chance.choice(
            ("append", "x", "__class__", "range", "__dict__", "f", "len", "__conditional_annotations__")
        )
    else:
        names.pop(index)
    return {"co_names": tuple(names)}


def change_variables(code, chance):
    field = chance.choice(("co_varnames", "co_cellvars", "co_freevars"))
    names = list(getattr(code, field))
    how = chance.randrange(4)
    if how == 0 and names:
        index, other = chance.randrange(len(names)), chance.randrange(len(names))
        names[index], names[other] = names[other], names[index]
    elif how == 1 and names:
        names[chance.randrange(len(names))] = chance.choice(
            ("x", "other", ".0", ".defaults", ".type_params", "__class__", "self")
        )
    elif how == 2 and names:
        names.pop(chance.randrange(len(names)))
    else:
        names.insert(chance.randrange(len(names) + 1), "added")
    changes = {field: tuple(names)}
    if field == "co_varnames":
        changes["co_nlocals"] = len(names)
    return changes


def change_counts(code, chance):
    field = chance.choice(("co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_nlocals"))
    return {field: max(0, getattr(code, field) + chance.choice((-1, 1, 2)))}


def change_flags(code, chance):
    return {"co_flags": code.co_flags ^ 1 << chance.randrange(28)}


def change_stack_size(code, chance):
    return {"co_stacksize": max(0, code.co_stacksize + chance.choice((-2, -1, 1, 5, 100, 10**4, 10**8)))}


def change_exception_table(code, chance):
    table = bytearray(code.co_exceptiontable)
    if not table:
        table = bytearray(
            (
                0x80 | chance.randrange(8),
                chance.randrange(1, 8),
                chance.randrange(min(64, len(code.co_code) // 2)),
                chance.randrange(6),
            )
        )
        return {"co_exceptiontable": bytes(table)}
    how = chance.randrange(4)
    index = chance.randrange(len(table))
    if how == 0:
        table[index] ^= 1 << chance.randrange(8)
    elif how == 1:
        table[index] = table[index] & 0xC0 | (table[index] + chance.choice((-1, 1, 2, -2))) & 0x3F
    elif how == 2:
        del table[index:]
    else:
        heads = [i for i, byte in enumerate(table) if byte & 0x80] + [len(table)]
        entry = chance.randrange(len(heads) - 1)
        if chance.random() < 0.5:
            del table[heads[entry] : heads[entry + 1]]
        else:
            table[heads[entry] : heads[entry]] = table[heads[entry] : heads[entry + 1]]
    return {"co_exceptiontable": bytes(table)}


def change_line_table(code, chance):
    table = bytearray(code.co_linetable)
    index = chance.randrange(len(table))
    if chance.random() < 0.7:
        table[index] ^= 1 << chance.randrange(8)
    else:
        del table[index:]
    return {"co_linetable": bytes(table)}


MUTATIONS = (
    (flip_code_bit, 10),
    (change_operand, 12),
    (change_opcode, 8),
    (change_within_family, 16),
    (change_local, 14),
    (swap_operands, 8),
    (blank_instruction, 7),
    (remove_instruction, 3),
    (duplicate_instruction, 2),
    (overwrite_instruction, 8),
    (swap_neighbours, 5),
    (change_constants, 6),
    (change_names, 4),
    (change_variables, 5),
    (change_counts, 4),
    (change_flags, 4),
    (change_stack_size, 3),
    (change_exception_table, 10),
    (change_line_table, 3),
)
_KINDS, _WEIGHTS = zip(*MUTATIONS)
_FIELDS = (
    "co_code",
    "co_consts",
    "co_names",
    "co_varnames",
    "co_cellvars",
    "co_freevars",
    "co_argcount",
    "co_posonlyargcount",
    "co_kwonlyargcount",
    "co_nlocals",
    "co_flags",
    "co_stacksize",
    "co_exceptiontable",
    "co_linetable",
)


def load_specimens():
    """[(name, code of the module)]: the small ones, then those of the library."""
    small = [
        (path.stem, compile_corrected(path.read_bytes(), f"specimens/{path.name}", level))
        for path in sorted(SPECIMENS.glob("*.py"))
        for level in (0, 2)
    ]
    library = []
    for name in LIBRARY:
        path = Path(os.__file__).parent.joinpath(*name.split(".")).with_suffix(".py")
        if not path.exists():
            path = path.with_suffix("") / "__init__.py"
        library.append((name, compile_corrected(path.read_bytes(), f"library/{name}", 0)))
    return small, library


def mutant(specimens, seed, index):
    """(name, [what was done], module code or marshalled bytes); None in the last place where a field can't be changed
    so."""
    chance = random.Random(f"{seed}:{index}")
    small, library = specimens
    name, module = chance.choice(library) if chance.random() < LIBRARY_SHARE else chance.choice(small)
    if chance.random() < 0.05:  # damage to the marshalled form, as in a bundle that was signed after it
        data = bytearray(marshal.dumps(module))
        if chance.random() < 0.3:  # another reference: to itself, to what is not there yet, to another kind of object
            offsets = [
                offset
                for offset in range(len(data) - 5)
                if data[offset] == ord("r") and data[offset + 3 : offset + 5] == b"\0\0"
            ]
            data[chance.choice(offsets) + 1] = chance.randrange(64) if chance.random() < 0.7 else chance.randrange(4)
            return name, ["change_marshalled_reference"], bytes(data)
        for _ in range(chance.choice((1, 1, 2))):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        return name, ["flip_marshalled_bit"], bytes(data)
    offsets = code_objects(module)
    path, code = chance.choice(offsets[1:] if len(offsets) > 1 and chance.random() < 0.9 else offsets)
    # A draft, not a code object, between two mutations: reading co_code of one that ends inside an inline cache writes
    # past its buffer (CPython 3.14.8), and here that would be this process's memory.
    draft = types.SimpleNamespace(**{field: getattr(code, field) for field in _FIELDS})
    done, changes = [], {}
    for _ in range(chance.choices((1, 2, 3), (7, 2, 1))[0]):
        kind = chance.choices(_KINDS, _WEIGHTS)[0]
        done.append(kind.__name__)
        try:
            changes |= kind(draft, chance)
        except IndexError, ValueError:
            return name, done, None  # an earlier mutation left nothing to change
        vars(draft).update(changes)
    try:
        return name, done, replaced(module, path, code.replace(**changes))
    except ValueError, TypeError, SystemError, OverflowError:
        return name, done, None  # code.replace refuses
