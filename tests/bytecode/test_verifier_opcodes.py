"""Opcode by opcode: code that violates an assertion or assumption of CPython 3.14's interpreter is refused.

The rows follow `Python/bytecodes.c` and `Python/intrinsics.c`: operand domains, depth of the stack, kinds of values,
NULL markers, cells, lifetimes of borrowed references, what lies where an exception is handled. No compiled code is
changed here: every body is written out, so that what is refused is that one thing.
"""

import opcode
import re
import struct

import pytest

from tests.batches import each
from vmhost.bytecode import opcodes_3_14 as facts
from vmhost.bytecode.verifier import VerifyError, load, verify

OPTIMIZED, GENERATOR, ASYNC_GENERATOR, VARKEYWORDS, VARARGS = 3, 0x20, 0x200, 0x8, 0x4


def assembled(
    body,
    *,
    argcount=2,
    kwonly=0,
    slots="a b c",
    cells="",
    free="",
    names="n m",
    consts=(None,),
    flags=OPTIMIZED,
    stack=12,
    prologue="",
    handlers="",
    name="f",
):
    """A code object. `body` is instructions, one a line or between `;`, with `label:` before and `@label` as operand.

    It begins with `prologue` and RESUME 0. A handler is `first past target depth [lasti]`, with labels.
    """
    lines = [line.strip() for line in re.split(r"[;\n]", f"{prologue}\nRESUME 0\n{body}") if line.strip()]
    parsed, offsets = [], {}
    for line in lines:
        label, _, rest = line.rpartition(":")
        op, _, operand = rest.strip().partition(" ")
        parsed.append((label.strip(), op, operand.strip()))
    sizes = []
    for _, op, operand in parsed:
        wide = not operand.startswith("@") and int(operand or 0) > 255
        sizes.append(1 + wide + sum(opcode._cache_format.get(op, {}).values()))
    unit = 0
    for (label, _, _), size in zip(parsed, sizes):
        if label:
            offsets[label] = unit
        unit += size
    offsets.setdefault("end", unit)
    data, unit = bytearray(), 0
    for (_, op, operand), size in zip(parsed, sizes):
        if operand.startswith("@"):
            value = abs(offsets[operand[1:]] - (unit + size))
        else:
            value = int(operand or 0)
        if value > 255:
            data += bytes((opcode.EXTENDED_ARG, value >> 8))
        caches = sum(opcode._cache_format.get(op, {}).values())
        data += bytes((opcode.opmap[op], value & 255)) + bytes(2 * caches)
        unit += size
    table = bytearray()
    for handler in filter(None, re.split(r"[;\n]", handlers)):
        first, past, target, depth, *lasti = handler.split()
        numbers = (offsets[first], offsets[past] - offsets[first], offsets[target], int(depth) << 1 | bool(lasti))
        assert max(numbers) < 64
        table += bytes((0x80 | numbers[0], *numbers[1:]))
    lines = b"".join(bytes((0xF8 | min(8, unit - start) - 1,)) for start in range(0, unit, 8))
    local = tuple(slots.split())
    return (lambda: None).__code__.replace(
        co_code=bytes(data),
        co_argcount=argcount,
        co_kwonlyargcount=kwonly,
        co_nlocals=len(local),
        co_varnames=local,
        co_cellvars=tuple(cells.split()),
        co_freevars=tuple(free.split()),
        co_names=tuple(names.split()),
        co_consts=tuple(consts),
        co_flags=flags,
        co_stacksize=stack,
        co_exceptiontable=bytes(table),
        co_linetable=lines,
        co_name=name,
        co_qualname=name,
    )


def within(*inner, body=None):
    """A module around functions, like most code; by default each becomes a function without free variables."""
    if body is None:
        body = "".join(f"LOAD_CONST {index + 1}; MAKE_FUNCTION; POP_TOP;" for index in range(len(inner)))
        body += "LOAD_CONST 0; RETURN_VALUE"
    return assembled(body, argcount=0, slots="", consts=(None, *inner), flags=0, name="<module>")


def refusal(code):
    with pytest.raises(VerifyError) as caught:
        verify(code)
    return str(caught.value)


RETURN = "LOAD_CONST 0; RETURN_VALUE"
INNER = assembled(
    "LOAD_DEREF 0; RETURN_VALUE", argcount=0, slots="", free="a", prologue="COPY_FREE_VARS 1", name="inner"
)
PLAIN = assembled(RETURN, argcount=0, slots="", name="plain")
GENERATES = dict(flags=OPTIMIZED | GENERATOR, prologue="RETURN_GENERATOR; POP_TOP")
CELL = dict(cells="a", prologue="MAKE_CELL 0")

# -- how many slots an instruction takes: with one fewer, the slot below the stack is a local variable, or nothing

TAKES = {
    "POP_TOP": 1, "END_FOR": 2, "POP_ITER": 1, "END_SEND": 2, "UNARY_NEGATIVE": 1, "UNARY_NOT": 1, "TO_BOOL": 1,
    "UNARY_INVERT": 1, "BINARY_OP 0": 2, "BINARY_SLICE": 3, "STORE_SLICE": 4, "LIST_APPEND 1": 2, "SET_ADD 1": 2,
    "STORE_SUBSCR": 3, "DELETE_SUBSCR": 2, "CALL_INTRINSIC_1 1": 1, "CALL_INTRINSIC_2 5": 2, "RAISE_VARARGS 1": 1,
    "RAISE_VARARGS 2": 2, "RETURN_VALUE": 1, "GET_AITER": 1, "GET_ANEXT": 1, "GET_AWAITABLE 0": 1, "SEND @end": 2,
    "POP_EXCEPT": 1, "RERAISE 0": 1, "END_ASYNC_FOR @top": 2, "CLEANUP_THROW": 3, "STORE_NAME 0": 1,
    "UNPACK_SEQUENCE 2": 1,
    "UNPACK_EX 1": 1, "STORE_ATTR 0": 2, "DELETE_ATTR 0": 1, "STORE_GLOBAL 0": 1, "LOAD_FROM_DICT_OR_GLOBALS 0": 1,
    "STORE_FAST 0": 1, "STORE_FAST_LOAD_FAST 0": 1, "STORE_FAST_STORE_FAST 1": 2, "BUILD_STRING 2": 2,
    "BUILD_INTERPOLATION 2": 2, "BUILD_INTERPOLATION 3": 3, "BUILD_TEMPLATE": 2, "BUILD_TUPLE 2": 2, "BUILD_LIST 2": 2,
    "LIST_EXTEND 1": 2, "SET_UPDATE 1": 2, "BUILD_SET 2": 2, "BUILD_MAP 2": 4, "DICT_UPDATE 1": 2, "DICT_MERGE 1": 5,
    "MAP_ADD 1": 3, "LOAD_SUPER_ATTR 0": 3, "LOAD_ATTR 0": 1, "COMPARE_OP 2": 2, "IS_OP 0": 2, "CONTAINS_OP 0": 2,
    "CHECK_EG_MATCH": 2, "CHECK_EXC_MATCH": 2, "IMPORT_NAME 0": 2, "IMPORT_FROM 0": 1, "POP_JUMP_IF_FALSE 0": 1,
    "POP_JUMP_IF_TRUE 0": 1, "POP_JUMP_IF_NONE 0": 1, "POP_JUMP_IF_NOT_NONE 0": 1, "GET_LEN": 1, "MATCH_CLASS 0": 3,
    "MATCH_MAPPING": 1, "MATCH_SEQUENCE": 1, "MATCH_KEYS": 2, "GET_ITER": 1, "GET_YIELD_FROM_ITER": 1,
    "FOR_ITER @end": 1,
    "LOAD_SPECIAL 0": 1, "WITH_EXCEPT_START": 5, "PUSH_EXC_INFO": 1, "CALL 1": 3, "CALL_KW 1": 4, "CALL_FUNCTION_EX": 4,
    "MAKE_FUNCTION": 1, "SET_FUNCTION_ATTRIBUTE 1": 2, "YIELD_VALUE 0": 1, "BUILD_SLICE 2": 2, "BUILD_SLICE 3": 3,
    "CONVERT_VALUE 1": 1, "FORMAT_SIMPLE": 1, "FORMAT_WITH_SPEC": 2, "COPY 2": 2, "SWAP 2": 2,
    "STORE_DEREF 0": 1, "LOAD_FROM_DICT_OR_DEREF 0": 1,
}  # fmt: skip


@each("instruction", TAKES)
def test_refuses_a_stack_that_is_too_short(instruction):
    name = instruction.partition(" ")[0]
    options = CELL if name.endswith("_DEREF") else GENERATES if name == "YIELD_VALUE" else {}
    # kinds that fit where it looks before it takes: what is missing is a slot
    pushed = {
        "LIST_APPEND": "BUILD_LIST 0", "LIST_EXTEND": "BUILD_LIST 0", "SET_ADD": "BUILD_SET 0",
        "SET_UPDATE": "BUILD_SET 0",
        "DICT_UPDATE": "BUILD_MAP 0", "MAP_ADD": "BUILD_MAP 0", "DICT_MERGE": "BUILD_MAP 0",
    }.get(name, "LOAD_CONST 0")  # fmt: skip
    body = "top: NOP;" + f"{pushed};" * (TAKES[instruction] - 1) + f"{instruction}; end: {RETURN}"
    message = refusal(assembled(body, **options))
    assert re.search(r"takes \d slots, and the stack holds|slots down, and the stack holds", message)


def test_every_instruction_that_takes_slots_is_in_the_list():
    listed = {instruction.partition(" ")[0] for instruction in TAKES}
    takes = {name for name, row in facts.ROWS.items() if not row.effect.startswith("--")} | {"COPY", "SWAP"}
    assert takes == listed


# -- NULL where an object is used: all of TAKES, in each place, but where NULL means something

# places from below: no receiver, no self, no keyword arguments; a variable that is unbound again
NULL_MEANS_SOMETHING = {
    "CALL 1": {1}, "CALL_KW 1": {1}, "CALL_FUNCTION_EX": {1, 3}, "WITH_EXCEPT_START": {1, 3}, "POP_TOP": {0},
    "STORE_FAST 0": {0}, "STORE_FAST_LOAD_FAST 0": {0}, "STORE_FAST_STORE_FAST 1": {0, 1}, "COPY 2": {0, 1},
    "SWAP 2": {0, 1},
    "DICT_MERGE 1": {1, 2},
}  # fmt: skip
NULLS = [
    (instruction, position)
    for instruction, count in TAKES.items()
    for position in range(count)
    if position not in NULL_MEANS_SOMETHING.get(instruction, ())
]


@each("instruction, null", NULLS, ids=lambda value: str(value).replace(" ", "_"))
def test_refuses_a_null_marker(instruction, null):
    name = instruction.partition(" ")[0]
    options = CELL if name.endswith("_DEREF") else GENERATES if name == "YIELD_VALUE" else {}
    body = "top: NOP;"
    for position in range(TAKES[instruction]):
        body += "PUSH_NULL;" if position == null else "LOAD_CONST 0;"
    assert "finds " in refusal(assembled(f"{body}{instruction}; end: {RETURN}", **options))


# -- operands

OPERANDS = [
    # (instructions, what is said)
    ("NOP 1", "operand 1, expected 0"),
    ("NOT_TAKEN 1", "operand 1, expected 0"),
    ("RESUME 0", "RESUME 0 inside the body"),
    ("RESUME 1", "does not follow YIELD_VALUE"),
    ("RESUME 4", "is none of"),
    ("COPY_FREE_VARS 0", "belongs before the first RESUME only"),
    ("COPY_FREE_VARS 1", "there are 0 free variables"),
    ("RETURN_GENERATOR", "belongs before the first RESUME only"),
    ("SETUP_ANNOTATIONS 1", "expected 0"),
    ("LOAD_CONST 9", "means constant 9"),
    ("LOAD_SMALL_INT 257", "outside 0..256"),
    ("LOAD_COMMON_CONSTANT 5", "outside 0..4"),
    ("LOAD_BUILD_CLASS 1", "expected 0"),
    ("LOAD_LOCALS 1", "expected 0"),
    ("LOAD_NAME 2", "means name 2"),
    ("LOAD_GLOBAL 4", "means name 2"),
    ("LOAD_CONST 0; LOAD_FROM_DICT_OR_GLOBALS 2", "means name 2"),
    ("LOAD_CONST 0; STORE_NAME 2", "means name 2"),
    ("LOAD_CONST 0; STORE_GLOBAL 2", "means name 2"),
    ("DELETE_NAME 2", "means name 2"),
    ("DELETE_GLOBAL 2", "means name 2"),
    ("LOAD_CONST 0; LOAD_CONST 0; IMPORT_NAME 2", "means name 2"),
    ("LOAD_CONST 0; IMPORT_FROM 2", "means name 2"),
    ("LOAD_CONST 0; LOAD_ATTR 4", "means name 2"),
    ("LOAD_CONST 0; LOAD_CONST 0; STORE_ATTR 2", "means name 2"),
    ("LOAD_CONST 0; DELETE_ATTR 2", "means name 2"),
    ("LOAD_CONST 0; LOAD_CONST 0; LOAD_CONST 0; LOAD_SUPER_ATTR 8", "means name 2"),
    ("LOAD_FAST 3", "means local 3"),
    ("LOAD_FAST_BORROW 3", "means local 3"),
    ("LOAD_FAST_CHECK 3", "means local 3"),
    ("LOAD_FAST_AND_CLEAR 3", "means local 3"),
    ("DELETE_FAST 3", "means local 3"),
    ("MAKE_CELL 3", "means local 3"),
    ("LOAD_DEREF 3", "means local 3"),
    ("DELETE_DEREF 3", "means local 3"),
    ("LOAD_CONST 0; STORE_DEREF 3", "means local 3"),
    ("LOAD_CONST 0; LOAD_FROM_DICT_OR_DEREF 3", "means local 3"),
    ("LOAD_CONST 0; STORE_FAST 3", "means local 3"),
    ("LOAD_FAST_LOAD_FAST 3", "means locals 0 and 3"),
    ("LOAD_FAST_BORROW_LOAD_FAST_BORROW 48", "means locals 3 and 0"),
    ("LOAD_CONST 0; STORE_FAST_LOAD_FAST 48", "means locals 3 and 0"),
    ("LOAD_CONST 0; LOAD_CONST 0; STORE_FAST_STORE_FAST 3", "means locals 0 and 3"),
    ("LOAD_FAST_LOAD_FAST 256", "means locals 16 and 0"),
    ("PUSH_NULL 1", "expected 0"),
    ("COPY 0", "expected 1 or more"),
    ("SWAP 1", "expected 2 or more"),
    ("LOAD_CONST 0; SWAP 0", "expected 2 or more"),
    ("LOAD_CONST 0; LOAD_CONST 0; BINARY_OP 27", "outside 0..26"),
    ("LOAD_CONST 0; LOAD_CONST 0; COMPARE_OP 1", "is none of"),
    ("LOAD_CONST 0; LOAD_CONST 0; COMPARE_OP 200", "is none of"),
    ("LOAD_CONST 0; LOAD_CONST 0; CONTAINS_OP 2", "outside 0..1"),
    ("LOAD_CONST 0; LOAD_CONST 0; IS_OP 2", "outside 0..1"),
    ("LOAD_CONST 0; LOAD_SPECIAL 4", "outside 0..3"),
    ("LOAD_CONST 0; CONVERT_VALUE 0", "outside 1..3"),
    ("LOAD_CONST 0; CONVERT_VALUE 4", "outside 1..3"),
    ("LOAD_CONST 0; CALL_INTRINSIC_1 0", "outside 1..11"),
    ("LOAD_CONST 0; CALL_INTRINSIC_1 12", "outside 1..11"),
    ("LOAD_CONST 0; LOAD_CONST 0; CALL_INTRINSIC_2 0", "outside 1..5"),
    ("LOAD_CONST 0; LOAD_CONST 0; CALL_INTRINSIC_2 6", "outside 1..5"),
    ("LOAD_CONST 0; GET_AWAITABLE 3", "outside 0..2"),
    ("LOAD_CONST 0; LOAD_CONST 0; BUILD_SLICE 1", "outside 2..3"),
    ("LOAD_CONST 0; LOAD_CONST 0; BUILD_SLICE 4", "outside 2..3"),
    ("LOAD_CONST 0; LOAD_CONST 0; BUILD_INTERPOLATION 0", "is none of"),
    ("LOAD_CONST 0; LOAD_CONST 0; BUILD_INTERPOLATION 18", "is none of"),
    ("LOAD_CONST 0; LOAD_CONST 0; SET_FUNCTION_ATTRIBUTE 0", "is none of"),
    ("LOAD_CONST 0; LOAD_CONST 0; SET_FUNCTION_ATTRIBUTE 32", "is none of"),
    ("RAISE_VARARGS 3", "outside 0..2"),
    ("LOAD_CONST 0; RERAISE 3", "outside 0..2"),
    ("LOAD_CONST 0; YIELD_VALUE 2", "outside 0..1"),
    ("LOAD_CONST 0; UNPACK_SEQUENCE 13", "and the stack has 12 slots"),
    ("LOAD_CONST 0; UNPACK_EX 3082", "unpacks more than the stack's 12 slots"),
    ("LOAD_CONST 0; BUILD_TUPLE 13", "and the stack has 12 slots"),
    # its result is taken for an object with a reference count, and the empty tuple is one for the whole process
    ("BUILD_TUPLE 0", "expected 1 or more"),
    ("LOAD_CONST 0; BUILD_LIST 13", "and the stack has 12 slots"),
    ("LOAD_CONST 0; BUILD_SET 13", "and the stack has 12 slots"),
    ("LOAD_CONST 0; BUILD_MAP 13", "and the stack has 12 slots"),
    ("LOAD_CONST 0; BUILD_STRING 13", "and the stack has 12 slots"),
    ("LOAD_CONST 0; CALL 13", "and the stack has 12 slots"),
    ("LOAD_CONST 0; LIST_APPEND 0", "expected 1 or more"),
    ("LOAD_CONST 0; LIST_EXTEND 0", "expected 1 or more"),
    ("LOAD_CONST 0; SET_ADD 0", "expected 1 or more"),
    ("LOAD_CONST 0; SET_UPDATE 0", "expected 1 or more"),
    ("LOAD_CONST 0; MAP_ADD 0", "expected 1 or more"),
    ("LOAD_CONST 0; DICT_UPDATE 0", "expected 1 or more"),
    ("LOAD_CONST 0; DICT_MERGE 0", "expected 1 or more"),
    # a jump: into a cache, beyond the end, to before the body
    ("JUMP_FORWARD 200", "where no instruction starts"),
    ("LOAD_CONST 0; TO_BOOL; POP_JUMP_IF_TRUE 2; LOAD_FAST 0; LOAD_ATTR 0; POP_TOP", "where no instruction starts"),
    ("JUMP_BACKWARD 200", "where no instruction starts"),
    ("JUMP_BACKWARD 3", "to before the first instruction of the body"),
]


@each("body, message", OPERANDS, ids=lambda value: value.replace(" ", "_"))
def test_refuses_operands_outside_their_domain(body, message):
    assert message in refusal(assembled(f"{body}; {RETURN}"))


# -- what the interpreter takes on trust; (its assertion, body, options, what is said)

EXC = "top: LOAD_NAME 0; POP_TOP; past: LOAD_CONST 0; RETURN_VALUE; caught: "
TRY = dict(handlers="top past caught 0")
LASTI = dict(handlers="top past caught 0 lasti")
TYPED_INNER = assembled(
    "LOAD_FAST 0; LOAD_CONST 1; MAKE_FUNCTION; SET_FUNCTION_ATTRIBUTE 1; RETURN_VALUE",
    argcount=1, slots=".defaults", consts=(None, PLAIN), name="<generic parameters of g>",
)  # fmt: skip
GENERIC = dict(slots="b", argcount=0, cells=".type_params", prologue="MAKE_CELL 1", name="<generic parameters of C>")
STORED = "LOAD_CONST 0; BUILD_TUPLE 1; STORE_DEREF 1;"
SUBSCRIPT = "LOAD_DEREF 1; CALL_INTRINSIC_1 10; RETURN_VALUE"
TRUSTED = {
    # variables: non-NULL, cells, what an argument may hold
    "LOAD_FAST: assert(!PyStackRef_IsNull(GETLOCAL(oparg)))": (
        "LOAD_FAST 2; RETURN_VALUE", {}, "'c' may be unassigned"),
    "LOAD_FAST_BORROW: likewise": ("LOAD_FAST_BORROW 2; RETURN_VALUE", {}, "'c' may be unassigned"),
    "LOAD_FAST_LOAD_FAST: the second": ("LOAD_FAST_LOAD_FAST 2; RETURN_VALUE", {}, "'c' may be unassigned"),
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW: the first": (
        "LOAD_FAST_BORROW_LOAD_FAST_BORROW 32; RETURN_VALUE", {}, "'c' may be unassigned"),
    "STORE_FAST_LOAD_FAST: what it loads": (
        "LOAD_CONST 0; STORE_FAST_LOAD_FAST 2; RETURN_VALUE", {}, "'c' may be unassigned"),
    "LOAD_FAST after DELETE_FAST": ("DELETE_FAST 0; LOAD_FAST 0; RETURN_VALUE", {}, "'a' may be unassigned"),
    "LOAD_FAST after LOAD_FAST_AND_CLEAR": (
        "LOAD_FAST_AND_CLEAR 0; LOAD_FAST 0; STORE_FAST 1; RETURN_VALUE", {}, "'a' may be unassigned"),
    "LOAD_FAST after a NULL was stored": (
        "PUSH_NULL; STORE_FAST 0; LOAD_FAST 0; RETURN_VALUE", {}, "'a' may be unassigned"),
    "LOAD_FAST where one of two paths assigns": (
        "LOAD_FAST 0; TO_BOOL; POP_JUMP_IF_FALSE @over; LOAD_CONST 0; STORE_FAST 2; over: LOAD_FAST 2; RETURN_VALUE",
        {},
        "'c' may be unassigned"),
    "LOAD_FAST in a handler, deleted before it raised": (
        f"top: DELETE_FAST 0; LOAD_NAME 0; POP_TOP; past: {RETURN}; caught: POP_TOP; LOAD_FAST 0; RETURN_VALUE", TRY,
        "'a' may be unassigned"),
    "BINARY_OP_INPLACE_ADD_UNICODE: empties the local of the STORE_FAST after it where memory runs out": (
        "top: LOAD_FAST 0; LOAD_FAST 1; BINARY_OP 13; STORE_FAST 0; past: LOAD_CONST 0; RETURN_VALUE;"
        "caught: POP_TOP; LOAD_FAST 0; RETURN_VALUE",
        TRY, "'a' may be unassigned"),
    "BINARY_OP_INPLACE_ADD_UNICODE: of `+` too, and another local that may hold the same str": (
        "top: LOAD_FAST 0; LOAD_CONST 0; BINARY_OP 0; STORE_FAST 1; past: LOAD_CONST 0; RETURN_VALUE;"
        "caught: POP_TOP; LOAD_FAST_BORROW 1; RETURN_VALUE",
        TRY, "'b' may be unassigned"),
    "LOAD_DEREF: a cell": ("LOAD_DEREF 0; RETURN_VALUE", {}, "may not hold a cell"),
    "STORE_DEREF: a cell": (f"LOAD_CONST 0; STORE_DEREF 0; {RETURN}", {}, "may not hold a cell"),
    "DELETE_DEREF: a cell": (f"DELETE_DEREF 0; {RETURN}", {}, "may not hold a cell"),
    "LOAD_FROM_DICT_OR_DEREF: a cell": (
        "LOAD_CONST 0; LOAD_FROM_DICT_OR_DEREF 0; RETURN_VALUE", {}, "may not hold a cell"),
    "LOAD_DEREF after LOAD_FAST_AND_CLEAR": (
        "LOAD_FAST_AND_CLEAR 0; LOAD_DEREF 0; RETURN_VALUE", CELL, "may not hold a cell"),
    "super(): assert(PyCell_Check(firstarg)), one path over STORE_FAST": (
        f"LOAD_FAST 1; STORE_FAST 0; {RETURN}", CELL, "stores some object over the cell of 'a'"),
    "super(): over STORE_FAST_LOAD_FAST": (
        "LOAD_FAST 1; STORE_FAST_LOAD_FAST 1; RETURN_VALUE", CELL, "over the cell of 'a'"),
    "super(): over STORE_FAST_STORE_FAST": (
        f"LOAD_FAST 1; COPY 1; STORE_FAST_STORE_FAST 16; {RETURN}", CELL, "over the cell of 'a'"),
    "super(): over DELETE_FAST and STORE_FAST": (
        f"DELETE_FAST 0; LOAD_FAST 1; STORE_FAST 0; {RETURN}", CELL, "deletes the cell of 'a'"),
    "COPY_FREE_VARS: a free variable's cell is deleted": (None, None, "deletes the cell of 'a'"),
    "frame_get_var: assert(PyCell_Check(value)) of a free variable, overwritten": (None, None, "over the cell of 'a'"),
    "MAKE_CELL: not a cell in a cell": (f"MAKE_CELL 0; {RETURN}", CELL, "which has one or is to have none"),
    "MAKE_CELL: of a variable that is to have one": (
        f"MAKE_CELL 1; {RETURN}", CELL, "which has one or is to have none"),
    "MAKE_CELL: once before RESUME": (
        RETURN, dict(cells="a", prologue="MAKE_CELL 0; MAKE_CELL 0"), "a cell inside a cell"),
    "MAKE_CELL: of every cell variable": (RETURN, dict(cells="a"), "cells are made for slots []"),
    "COPY_FREE_VARS: assert(oparg == co->co_nfreevars)": (None, None, "there are 1 free variables"),
    "COPY_FREE_VARS: func_closure is there": (None, None, "has free variables a and stands alone"),
    # borrowed references: their local stays as it is while they live
    "borrowed, then stored over": (
        "LOAD_FAST_BORROW 0; LOAD_CONST 0; STORE_FAST 0; RETURN_VALUE", {}, "a reference borrowed from it"),
    "borrowed, then stored over by STORE_FAST_LOAD_FAST": (
        "LOAD_FAST_BORROW 0; LOAD_CONST 0; STORE_FAST_LOAD_FAST 1; POP_TOP; RETURN_VALUE", {},
        "a reference borrowed from it"),
    "borrowed, then stored over by STORE_FAST_STORE_FAST": (
        "LOAD_FAST_BORROW 0; LOAD_CONST 0; LOAD_CONST 0; STORE_FAST_STORE_FAST 16; RETURN_VALUE", {},
        "a reference borrowed from it"),
    "borrowed, then deleted": ("LOAD_FAST_BORROW 0; DELETE_FAST 0; RETURN_VALUE", {}, "a reference borrowed from it"),
    "borrowed, then cleared": (
        "LOAD_FAST_BORROW 0; LOAD_FAST_AND_CLEAR 0; STORE_FAST 1; RETURN_VALUE", {}, "a reference borrowed from it"),
    "borrowed, then stored elsewhere": (
        f"LOAD_FAST_BORROW 0; STORE_FAST 2; {RETURN}", {}, "stores a borrowed reference in local 'c'"),
    "borrowed twice, then stored over": (
        "LOAD_FAST_BORROW_LOAD_FAST_BORROW 16; POP_TOP; LOAD_CONST 0; STORE_FAST 1; RETURN_VALUE", {},
        "'b' changes while the stack holds a reference borrowed from it"),
    "borrowed, copied, stored over": (
        "LOAD_FAST_BORROW 0; COPY 1; POP_TOP; LOAD_CONST 0; STORE_FAST 0; RETURN_VALUE", {},
        "a reference borrowed from it"),
    "borrowed, swapped, stored over": (
        "LOAD_FAST_BORROW 0; LOAD_CONST 0; SWAP 2; STORE_FAST 2; RETURN_VALUE", {}, "stores a borrowed reference"),
    "borrowed, passed on as self by LOAD_ATTR": (
        "LOAD_FAST_BORROW 0; LOAD_ATTR 1; LOAD_CONST 0; STORE_FAST 0; CALL 0; RETURN_VALUE", {},
        "a reference borrowed from it"),
    "borrowed, passed on as self by LOAD_SPECIAL": (
        "LOAD_FAST_BORROW 0; LOAD_SPECIAL 0; LOAD_CONST 0; STORE_FAST 0; CALL 0; RETURN_VALUE", {},
        "a reference borrowed from it"),
    "borrowed, passed on as self by LOAD_SUPER_ATTR": (
        "LOAD_CONST 0; LOAD_CONST 0; LOAD_FAST_BORROW 0; LOAD_SUPER_ATTR 3; LOAD_CONST 0; STORE_FAST 0; CALL 0;"
        "RETURN_VALUE",
        {}, "a reference borrowed from it"),
    "borrowed, passed on by FORMAT_SIMPLE": (
        f"LOAD_FAST_BORROW 0; FORMAT_SIMPLE; STORE_FAST 2; {RETURN}", {}, "stores a borrowed reference"),
    "borrowed, passed on by GET_YIELD_FROM_ITER": (
        f"LOAD_FAST_BORROW 0; GET_YIELD_FROM_ITER; STORE_FAST 2; {RETURN}", {}, "stores a borrowed reference"),
    "borrowed, passed on by END_SEND": (
        f"LOAD_CONST 0; LOAD_FAST_BORROW 0; END_SEND; STORE_FAST 2; {RETURN}", {}, "stores a borrowed reference"),
    "borrowed, kept below by FOR_ITER": (
        "LOAD_FAST_BORROW 0; top: FOR_ITER @end; STORE_FAST 0; JUMP_BACKWARD @top; end: END_FOR; POP_ITER;"
        + RETURN, {}, "a reference borrowed from it"),
    "borrowed, kept below by IMPORT_FROM": (
        f"LOAD_FAST_BORROW 0; IMPORT_FROM 0; STORE_FAST 0; POP_TOP; {RETURN}", {}, "a reference borrowed from it"),
    "borrowed, kept below by GET_LEN": (
        f"LOAD_FAST_BORROW 0; GET_LEN; STORE_FAST 0; POP_TOP; {RETURN}", {}, "a reference borrowed from it"),
    "borrowed, kept for a handler": (
        f"LOAD_FAST_BORROW 0; top: LOAD_NAME 0; POP_TOP; past: POP_TOP; {RETURN}; caught: STORE_FAST 0; POP_TOP;"
        + RETURN, dict(handlers="top past caught 1"), "a reference borrowed from it"),
    # kinds of values
    "UNARY_NOT: assert(PyStackRef_BoolCheck(value))": ("LOAD_FAST 0; UNARY_NOT; RETURN_VALUE", {}, "expected bool"),
    "POP_JUMP_IF_TRUE: assert(PyStackRef_BoolCheck(cond))": (
        f"LOAD_FAST 0; POP_JUMP_IF_TRUE @end; end: {RETURN}", {}, "expected bool"),
    "POP_JUMP_IF_FALSE: likewise": (f"LOAD_FAST 0; POP_JUMP_IF_FALSE @end; end: {RETURN}", {}, "expected bool"),
    "LIST_APPEND: a list": ("LOAD_FAST 0; LOAD_CONST 0; LIST_APPEND 1; RETURN_VALUE", {}, "expected list"),
    "LIST_EXTEND: a list": ("LOAD_FAST 0; LOAD_CONST 0; LIST_EXTEND 1; RETURN_VALUE", {}, "expected list"),
    "LIST_APPEND: a list that was in a variable": (
        "BUILD_LIST 0; STORE_FAST 0; LOAD_FAST 0; LOAD_CONST 0; LIST_APPEND 1; RETURN_VALUE", {}, "expected list"),
    "SET_ADD: a set": ("BUILD_LIST 0; LOAD_CONST 0; SET_ADD 1; RETURN_VALUE", {}, "expected set"),
    "SET_UPDATE: a set": ("LOAD_FAST 0; LOAD_CONST 0; SET_UPDATE 1; RETURN_VALUE", {}, "expected set"),
    "MAP_ADD: assert(PyDict_CheckExact(dict))": (
        "LOAD_FAST 0; LOAD_CONST 0; LOAD_CONST 0; MAP_ADD 1; RETURN_VALUE", {}, "expected dict"),
    "DICT_UPDATE: a dict": ("LOAD_FAST 0; LOAD_CONST 0; DICT_UPDATE 1; RETURN_VALUE", {}, "expected dict"),
    "DICT_MERGE: a dict": (
        "LOAD_CONST 0; PUSH_NULL; LOAD_CONST 0; LOAD_FAST 0; LOAD_CONST 0; DICT_MERGE 1; CALL_FUNCTION_EX;"
        "RETURN_VALUE", {}, "expected dict"),
    "DICT_MERGE: a callable is below": (
        "PUSH_NULL; PUSH_NULL; LOAD_CONST 0; BUILD_MAP 0; LOAD_CONST 0; DICT_MERGE 1;" + "POP_TOP;" * 4
        + RETURN, {}, "expected callable"),
    "CALL_FUNCTION_EX: assert(kwargs == NULL || PyDict_CheckExact(kwargs))": (
        "LOAD_CONST 0; PUSH_NULL; LOAD_CONST 0; BUILD_TUPLE 1; LOAD_FAST 0; CALL_FUNCTION_EX; RETURN_VALUE", {},
        "expected NULL marker or dict"),
    "CALL_FUNCTION_EX: nobody else holds the dict": (
        "LOAD_CONST 0; PUSH_NULL; LOAD_CONST 0; BUILD_TUPLE 1; BUILD_MAP 0; COPY 1; STORE_FAST 2; CALL_FUNCTION_EX;"
        "RETURN_VALUE", {},
        "expected NULL marker or dict"),
    "CALL_FUNCTION_EX: a method of the dict is given away": (
        "LOAD_CONST 0; PUSH_NULL; LOAD_CONST 1; BUILD_MAP 0; IMPORT_FROM 0; STORE_GLOBAL 0; CALL_FUNCTION_EX;"
        "RETURN_VALUE", dict(consts=(None, ())), "expected NULL marker or dict"),
    "CALL_FUNCTION_EX: a NULL below": (
        "LOAD_CONST 0; LOAD_CONST 0; LOAD_CONST 0; BUILD_TUPLE 1; PUSH_NULL; CALL_FUNCTION_EX; RETURN_VALUE", {},
        "expected NULL marker"),
    "CALL_KW: names are a tuple of str, and no more than arguments": (
        "LOAD_CONST 0; PUSH_NULL; LOAD_CONST 0; LOAD_CONST 1; CALL_KW 1; RETURN_VALUE", dict(consts=(None, ("x", "y"))),
        "keyword names ('x', 'y') for 1 arguments"),
    "CALL_KW: names are str": (
        "LOAD_CONST 0; PUSH_NULL; LOAD_CONST 0; LOAD_CONST 1; CALL_KW 1; RETURN_VALUE", dict(consts=(None, (1,))),
        "keyword names (1,)"),
    "CALL_KW: names come from a constant": (
        "LOAD_CONST 0; PUSH_NULL; LOAD_CONST 0; LOAD_CONST 0; BUILD_TUPLE 1; CALL_KW 1; RETURN_VALUE", {},
        "LOAD_CONST with the keywords' names expected"),
    "MAKE_FUNCTION: a code object": ("LOAD_FAST 0; MAKE_FUNCTION; RETURN_VALUE", {}, "expected code object"),
    "MAKE_FUNCTION: of a constant": (
        "LOAD_CONST 1; COPY 1; POP_TOP; MAKE_FUNCTION; RETURN_VALUE", dict(consts=(None, PLAIN)),
        "LOAD_CONST of a code object"),
    "SET_FUNCTION_ATTRIBUTE: assert(PyFunction_Check(func))": (
        "LOAD_CONST 0; BUILD_TUPLE 1; LOAD_FAST 0; SET_FUNCTION_ATTRIBUTE 1; RETURN_VALUE", {},
        "finds some object at depth 1"),
    "SET_FUNCTION_ATTRIBUTE: defaults are a tuple": (
        "LOAD_FAST 0; LOAD_CONST 1; MAKE_FUNCTION; SET_FUNCTION_ATTRIBUTE 1; RETURN_VALUE", dict(consts=(None, PLAIN)),
        "does not fit function"),
    "SET_FUNCTION_ATTRIBUTE: keyword defaults are a dict": (
        "LOAD_CONST 0; BUILD_TUPLE 1; LOAD_CONST 1; MAKE_FUNCTION; SET_FUNCTION_ATTRIBUTE 2; RETURN_VALUE",
        dict(consts=(None, PLAIN)),
        "does not fit function"),
    "SET_FUNCTION_ATTRIBUTE: annotations come in pairs": (
        "LOAD_CONST 0; BUILD_TUPLE 1; LOAD_CONST 1; MAKE_FUNCTION; SET_FUNCTION_ATTRIBUTE 4; RETURN_VALUE",
        dict(consts=(None, PLAIN)), "does not fit function"),
    "SET_FUNCTION_ATTRIBUTE: the closure holds cells": (
        "LOAD_CONST 0; BUILD_TUPLE 1; LOAD_CONST 1; MAKE_FUNCTION; SET_FUNCTION_ATTRIBUTE 8; RETURN_VALUE",
        dict(consts=(None, INNER)), "does not fit function"),
    "SET_FUNCTION_ATTRIBUTE: the closure has a cell for each free variable": (
        "LOAD_FAST 0; LOAD_FAST 0; BUILD_TUPLE 2; LOAD_CONST 1; MAKE_FUNCTION; SET_FUNCTION_ATTRIBUTE 8; RETURN_VALUE",
        CELL | dict(consts=(None, INNER)), "does not fit function"),
    "SET_FUNCTION_ATTRIBUTE: assert(*ptr == NULL)": (
        "LOAD_CONST 0; BUILD_TUPLE 1; LOAD_CONST 0; BUILD_TUPLE 1; LOAD_CONST 1; MAKE_FUNCTION;"
        "SET_FUNCTION_ATTRIBUTE 1; SET_FUNCTION_ATTRIBUTE 1;"
        "RETURN_VALUE", dict(consts=(None, PLAIN)), "an attribute twice"),
    "a function without its closure is called": (
        "LOAD_CONST 1; MAKE_FUNCTION; PUSH_NULL; CALL 0; RETURN_VALUE", dict(consts=(None, INNER)),
        "SWAP of the function"),
    "a function without its closure is returned": (
        "LOAD_CONST 1; MAKE_FUNCTION; RETURN_VALUE", dict(consts=(None, INNER)), "that lacks its closure"),
    "BUILD_STRING: PyUnicode_Check is its own, a NULL is not": (
        "PUSH_NULL; LOAD_CONST 0; BUILD_STRING 2; RETURN_VALUE", {}, "finds NULL marker"),
    "BUILD_INTERPOLATION: the text is a str": (
        "LOAD_FAST 0; LOAD_FAST 0; BUILD_INTERPOLATION 2; RETURN_VALUE", {}, "expected str"),
    "BUILD_INTERPOLATION: the format is a str": (
        "LOAD_FAST 0; LOAD_CONST 1; LOAD_FAST 0; BUILD_INTERPOLATION 3; RETURN_VALUE", dict(consts=(None, "x")),
        "expected str"),
    "BUILD_TEMPLATE: tuples": ("LOAD_FAST 0; LOAD_FAST 0; BUILD_TEMPLATE; RETURN_VALUE", {}, "expected tuple"),
    "BUILD_TEMPLATE: of strings, one more than interpolations": (
        "LOAD_CONST 1; LOAD_CONST 2; BUILD_TEMPLATE; RETURN_VALUE", dict(consts=(None, ("x", "y"), ())),
        "with one interpolation fewer"),
    "BUILD_TEMPLATE: of interpolations": (
        "LOAD_CONST 1; LOAD_CONST 0; BUILD_TUPLE 1; BUILD_TEMPLATE; RETURN_VALUE", dict(consts=(None, ("x", "y"))),
        "with one interpolation fewer"),
    "MATCH_CLASS: assert(PyTuple_CheckExact(names))": (
        "LOAD_FAST 0; LOAD_FAST 1; LOAD_FAST 0; MATCH_CLASS 0; RETURN_VALUE", {}, "expected tuple"),
    "MATCH_CLASS: assert(PyUnicode_CheckExact(name))": (
        "LOAD_FAST 0; LOAD_FAST 1; LOAD_CONST 1; MATCH_CLASS 0; RETURN_VALUE", dict(consts=(None, (1,))),
        "attributes' names"),
    "MATCH_KEYS: assert(PyTuple_CheckExact(keys))": (
        "LOAD_FAST 0; LOAD_FAST 1; MATCH_KEYS; POP_TOP; POP_TOP; RETURN_VALUE", {}, "expected tuple"),
    # intrinsics
    "import *: writes variables by their names": (
        "LOAD_FAST 0; CALL_INTRINSIC_1 2; RETURN_VALUE", {}, "those of a function have slots"),
    "stopiteration_error: assert(PyExceptionInstance_Check(exc))": (
        "LOAD_FAST 0; CALL_INTRINSIC_1 3; RETURN_VALUE", {}, "expected exception"),
    "list_to_tuple: assert(PyList_Check(v))": ("LOAD_FAST 0; CALL_INTRINSIC_1 6; RETURN_VALUE", {}, "expected list"),
    "make_typevar: assert(PyUnicode_Check(v))": ("LOAD_FAST 0; CALL_INTRINSIC_1 7; RETURN_VALUE", {}, "expected str"),
    "make_paramspec: a str": ("LOAD_FAST 0; CALL_INTRINSIC_1 8; RETURN_VALUE", {}, "expected str"),
    "make_typevartuple: a str": ("LOAD_FAST 0; CALL_INTRINSIC_1 9; RETURN_VALUE", {}, "expected str"),
    "subscript_generic: assert(PyTuple_Check(params))": (
        "LOAD_FAST 0; CALL_INTRINSIC_1 10; RETURN_VALUE", {}, "expected tuple"),
    "make_typealias: assert(PyTuple_GET_SIZE(args) == 3)": (
        "LOAD_CONST 0; BUILD_TUPLE 1; CALL_INTRINSIC_1 11; RETURN_VALUE", {}, "finds tuple at depth 1"),
    "make_typealias: assert(PyUnicode_Check(name))": (
        "LOAD_FAST 0; LOAD_CONST 0; LOAD_FAST 0; BUILD_TUPLE 3; CALL_INTRINSIC_1 11; RETURN_VALUE", {},
        "finds tuple at depth 1"),
    "prep_reraise_star: assert(PyList_Check(excs))": (
        EXC + "LOAD_FAST 0; CALL_INTRINSIC_2 1; RETURN_VALUE", TRY, "finds some object at depth 1"),
    "prep_reraise_star: a list of exceptions": (
        EXC + "LOAD_FAST 0; BUILD_LIST 1; CALL_INTRINSIC_2 1; RETURN_VALUE", TRY, "finds list at depth 1"),
    "prep_reraise_star: the original is an exception": (
        "LOAD_FAST 0; BUILD_LIST 0; CALL_INTRINSIC_2 1; RETURN_VALUE", {}, "expected exception"),
    "prep_reraise_star: a method of the list is given away": (
        EXC + "BUILD_LIST 0; IMPORT_FROM 0; POP_TOP; CALL_INTRINSIC_2 1; RETURN_VALUE", TRY, "finds list at depth 1"),
    "prep_reraise_star: the list was an argument of __exit__": (
        EXC + "LOAD_FAST 0; SWAP 3; BUILD_LIST 0; SWAP 3; LOAD_CONST 0; SWAP 2; WITH_EXCEPT_START;"
        "POP_TOP; SWAP 4; SWAP 3; POP_TOP; POP_TOP; CALL_INTRINSIC_2 1; SWAP 2; POP_TOP; RETURN_VALUE", LASTI,
        "finds list at depth 1"),
    "prep_reraise_star: LIST_EXTEND raises when it has added something": (
        f"BUILD_LIST 0; top: LOAD_FAST 0; LIST_EXTEND 1; past: POP_TOP; {RETURN};"
        "caught: SWAP 2; CALL_INTRINSIC_2 1; RETURN_VALUE", dict(handlers="top past caught 1"),
        "finds list at depth 1"),
    "typevar_with_bound: assert(PyUnicode_Check(name))": (
        "LOAD_FAST 0; LOAD_FAST 0; CALL_INTRINSIC_2 2; RETURN_VALUE", {}, "expected str"),
    "typevar_with_constraints: likewise": (
        "LOAD_FAST 0; LOAD_FAST 0; CALL_INTRINSIC_2 3; RETURN_VALUE", {}, "expected str"),
    "set_function_type_params: assert(PyFunction_Check(func))": (
        "LOAD_FAST 0; LOAD_CONST 0; BUILD_TUPLE 1; CALL_INTRINSIC_2 4; RETURN_VALUE", {}, "expected function"),
    "set_function_type_params: assert(PyTuple_Check(type_params))": (
        "LOAD_CONST 1; MAKE_FUNCTION; LOAD_FAST 0; CALL_INTRINSIC_2 4; RETURN_VALUE", dict(consts=(None, PLAIN)),
        "expected tuple"),
    # exceptions, and what lies below them
    "PUSH_EXC_INFO: assert(PyStackRef_ExceptionInstanceCheck(exc))": (
        f"LOAD_FAST 0; PUSH_EXC_INFO; POP_TOP; POP_TOP; {RETURN}", {}, "expected exception"),
    "POP_EXCEPT: an exception or None": (f"LOAD_FAST 0; POP_EXCEPT; {RETURN}", {}, "expected exception"),
    "RERAISE: assert(PyExceptionInstance_Check(exc))": ("LOAD_FAST 0; RERAISE 0", {}, "expected exception"),
    "RERAISE 1: a saved instruction offset": (EXC + "LOAD_CONST 0; SWAP 2; RERAISE 1", TRY, "expected the saved"),
    "RERAISE 2: likewise, one further down": (
        EXC + "LOAD_CONST 0; SWAP 3; SWAP 2; RERAISE 2", LASTI, "expected the saved"),
    "CHECK_EXC_MATCH: assert(PyExceptionInstance_Check(left))": (
        f"LOAD_FAST 0; LOAD_FAST 0; CHECK_EXC_MATCH; POP_TOP; POP_TOP; {RETURN}", {}, "expected exception"),
    "CHECK_EG_MATCH: an exception or None": (
        f"LOAD_FAST 0; LOAD_FAST 0; CHECK_EG_MATCH; POP_TOP; POP_TOP; {RETURN}", {}, "expected exception"),
    "WITH_EXCEPT_START: assert(val && PyExceptionInstance_Check(val))": (
        "LOAD_FAST 0; PUSH_NULL; PUSH_NULL; LOAD_CONST 0; LOAD_CONST 0; WITH_EXCEPT_START; RETURN_VALUE", {},
        "expected saved instruction offset"),
    "WITH_EXCEPT_START: assert(PyStackRef_IsTaggedInt(lasti))": (
        EXC + "LOAD_CONST 0; PUSH_NULL; LOAD_CONST 0; LOAD_CONST 0; COPY 5; WITH_EXCEPT_START; RETURN_VALUE", TRY,
        "expected saved instruction offset"),
    "END_ASYNC_FOR: assert(PyExceptionInstance_Check(exc))": (
        f"top: LOAD_FAST 0; LOAD_FAST 0; END_ASYNC_FOR @top; {RETURN}", {}, "expected exception"),
    "CLEANUP_THROW: assert(PyExceptionInstance_Check(exc_value))": (
        "LOAD_FAST 0; LOAD_FAST 0; LOAD_FAST 0; CLEANUP_THROW; POP_TOP; RETURN_VALUE", {}, "expected exception"),
    "a saved instruction offset is no object: returned": (
        EXC + "POP_TOP; RETURN_VALUE", LASTI, "finds saved instruction offset"),
    "a saved instruction offset is no object: stored": (
        EXC + f"POP_TOP; STORE_FAST 0; {RETURN}", LASTI, "finds saved instruction offset"),
    "a saved instruction offset is no object: in a tuple": (
        EXC + "BUILD_TUPLE 2; RETURN_VALUE", LASTI, "finds saved instruction offset"),
    "a saved instruction offset is no object: below END_FOR": (
        EXC + f"END_FOR; POP_TOP; {RETURN}", LASTI, "finds saved instruction offset"),
    "exception_unwind: assert(STACK_LEVEL() >= level)": (
        f"top: LOAD_NAME 0; POP_TOP; past: {RETURN}; caught: POP_TOP; POP_TOP; {RETURN}",
        dict(handlers="top past caught 1"),
        "and its handler keeps 1"),
    "exception_unwind: level at an instruction that does not raise itself": (
        f"LOAD_CONST 0; top: POP_TOP; NOP; past: {RETURN}; caught: POP_TOP; POP_TOP; {RETURN}",
        dict(handlers="top past caught 1"), "and its handler keeps 1"),
    "exception_unwind: two ways into a handler keep as much": (
        f"LOAD_CONST 0; top: LOAD_NAME 0; POP_TOP; middle: LOAD_NAME 0; POP_TOP; past: POP_TOP; {RETURN};"
        f"caught: POP_TOP; POP_TOP; {RETURN}",
        dict(handlers="top middle caught 1; middle past caught 0"), "is reached with"),
    "a handler before the body": (
        f"top: LOAD_NAME 0; POP_TOP; past: {RETURN}; caught: POP_TOP; {RETURN}", dict(handlers="top past top 0"),
        "expected one after the range"),
    # leaving, suspending, iterating
    "RETURN_VALUE: assert(STACK_LEVEL() == 0)": ("LOAD_CONST 0; LOAD_CONST 0; RETURN_VALUE", {}, "1 slots are left"),
    "execution runs off the end": ("LOAD_CONST 0; POP_TOP", {}, "runs off the end"),
    "stack: WITHIN_STACK_BOUNDS()": (
        "LOAD_CONST 0; LOAD_CONST 0; POP_TOP; RETURN_VALUE", dict(stack=1), "and it has 1"),
    "slots by the thousand, again and again, which take the verifier minutes": (
        "LOAD_CONST 0;" + "UNPACK_SEQUENCE 9999; BUILD_TUPLE 9999;" * 4 + "RETURN_VALUE", dict(stack=10000),
        "more slots than any could fill"),
    "RETURN_GENERATOR: the flags say so": (
        RETURN, dict(prologue="RETURN_GENERATOR; POP_TOP"), "RESUME 0 expected here"),
    "a generator without RETURN_GENERATOR": (RETURN, dict(flags=OPTIMIZED | GENERATOR), "promise a generator"),
    "YIELD_VALUE: the frame is a generator's": (
        "LOAD_CONST 0; YIELD_VALUE 0; RESUME 5; RETURN_VALUE", {}, "that it is no generator"),
    "CLEANUP_THROW: assert(throwflag)": (
        EXC + "LOAD_CONST 0; COPY 1; SWAP 3; CLEANUP_THROW; POP_TOP; RETURN_VALUE", TRY, "that it is no generator"),
    "stopiteration_error: assert(frame->owner == FRAME_OWNED_BY_GENERATOR)": (
        EXC + "CALL_INTRINSIC_1 3; RERAISE 0", TRY, "that it is no generator"),
    "YIELD_VALUE: RESUME comes next": ("LOAD_CONST 0; YIELD_VALUE 0; RETURN_VALUE", GENERATES, "RESUME after a yield"),
    "YIELD_VALUE 1: the iterator that is delegated to is below": (
        "LOAD_CONST 0; YIELD_VALUE 1; RESUME 2; RETURN_VALUE", GENERATES, "no iterator below"),
    "YIELD_VALUE 1: a NULL below": (
        "PUSH_NULL; LOAD_CONST 0; YIELD_VALUE 1; RESUME 2; RETURN_VALUE", GENERATES, "no iterator below"),
    "YIELD_VALUE 0: the RESUME after it looks at the eval breaker": (
        "LOAD_CONST 0; YIELD_VALUE 0; RESUME 2; RETURN_VALUE", GENERATES, "of the same sort"),
    "YIELD_VALUE 1: the RESUME after it says so": (
        "LOAD_FAST 0; LOAD_CONST 0; YIELD_VALUE 1; RESUME 1; POP_TOP; RETURN_VALUE", GENERATES, "of the same sort"),
    "gen_send_ex2: assert(result == Py_None || !PyAsyncGen_CheckExact(gen))": (
        "LOAD_FAST 0; RETURN_VALUE", dict(flags=OPTIMIZED | ASYNC_GENERATOR, prologue="RETURN_GENERATOR; POP_TOP"),
        "from an asynchronous generator"),
    "FOR_ITER: assert(next_instr[oparg].op.code == END_FOR)": (
        f"LOAD_CONST 0; FOR_ITER @over; POP_TOP; over: POP_TOP; {RETURN}", {}, "does not lead to END_FOR"),
    "INSTRUMENTED_END_FOR: an iterator is below": (f"LOAD_CONST 0; END_FOR; {RETURN}", {}, "takes 2 slots"),
    "INSTRUMENTED_END_FOR: an object is below": (
        f"PUSH_NULL; LOAD_CONST 0; END_FOR; POP_TOP; {RETURN}", {}, "finds NULL marker"),
    "a loop that no stop reaches": (
        f"top: NOP; JUMP_BACKWARD_NO_INTERRUPT @top; {RETURN}", {}, "never looks at the eval breaker"),
    "a loop that no stop reaches once its CALL is one of len": (
        f"top: LOAD_FAST 0; PUSH_NULL; LOAD_FAST 1; CALL 1; POP_TOP; JUMP_BACKWARD_NO_INTERRUPT @top; {RETURN}", {},
        "never looks at the eval breaker"),
    "a loop that says it delegates and does not": (
        f"LOAD_FAST 0; top: LOAD_CONST 0; YIELD_VALUE 1; RESUME 2; POP_TOP; JUMP_BACKWARD_NO_INTERRUPT @top; {RETURN}",
        GENERATES, "never looks at the eval breaker"),
    "a loop that delegates and never yields": (
        "LOAD_FAST 0; LOAD_CONST 0; top: SEND @over; JUMP_BACKWARD_NO_INTERRUPT @top; over: END_SEND; RETURN_VALUE",
        GENERATES, "never looks at the eval breaker"),
    # names that the compiler alone can write
    ".type_params: not stored before": (SUBSCRIPT, GENERIC, "expected tuple"),
    ".type_params: no tuple": (f"LOAD_CONST 0; STORE_DEREF 1; {SUBSCRIPT}", GENERIC, "expected tuple"),
    ".type_params: a call in between, which may hold the cell": (
        f"{STORED} LOAD_NAME 0; PUSH_NULL; CALL 0; POP_TOP; {SUBSCRIPT}", GENERIC, "expected tuple"),
    ".type_params: the cell was given away before": (
        f"LOAD_FAST 1; STORE_GLOBAL 0; {STORED} {SUBSCRIPT}", GENERIC, "expected tuple"),
    ".type_params: two ways lead to the load": (
        f"LOAD_NAME 0; TO_BOOL; POP_JUMP_IF_TRUE @over; {STORED} over: {SUBSCRIPT}", GENERIC, "expected tuple"),
    ".type_params: stored again": (
        f"top: {STORED} LOAD_DEREF 1; CALL_INTRINSIC_1 10; POP_TOP; JUMP_BACKWARD @top", GENERIC, "expected tuple"),
    ".type_params: from a mapping": (
        f"{STORED} LOAD_NAME 0; LOAD_FROM_DICT_OR_DEREF 1; CALL_INTRINSIC_1 10; RETURN_VALUE", GENERIC,
        "expected tuple"),
    ".type_params: an argument of that name": (
        "LOAD_FAST 0; CALL_INTRINSIC_1 10; RETURN_VALUE", dict(slots=".type_params", argcount=1), "expected tuple"),
    ".type_params: of a closure that anyone can make": (None, None, "expected tuple"),
    ".type_params: stored in a closure's cell, which others hold": (None, None, "expected tuple"),
    ".defaults: as **": (None, None, "positional arguments and the only ones"),
    ".defaults: as *": (None, None, "positional arguments and the only ones"),
    ".defaults: by keyword only": (None, None, "positional arguments and the only ones"),
    ".defaults: beside another argument": (None, None, "positional arguments and the only ones"),
    ".defaults: in a cell": (None, None, "in cells, which others can write"),
    ".defaults: of a closure": (None, None, "does not fit function plain"),
    ".defaults: a variable that is no argument": (
        "LOAD_FAST 0; STORE_FAST 2; LOAD_FAST 2; LOAD_CONST 1; MAKE_FUNCTION; SET_FUNCTION_ATTRIBUTE 1; RETURN_VALUE",
        dict(slots="a b .defaults", consts=(None, PLAIN)), "does not fit function plain"),
    ".defaults: stored over": (None, None, "expected tuple"),
    ".defaults: given something else": (None, None, "gives some object for '.defaults'"),
    ".defaults: not given": (None, None, "or with the wrong arguments"),
    ".defaults: the function is kept": (None, None, "that lacks its closure or its arguments"),
}  # fmt: skip


def typed(body, **options):
    """A module that makes and calls, as the compiler does, a function over code that takes `.defaults`."""
    inner = assembled(body, **dict(consts=(None, PLAIN), slots=".defaults", argcount=1, name="g") | options)
    return calling(inner)


def calling(inner, arguments="LOAD_CONST 0; BUILD_TUPLE 1;", call="SWAP 2; CALL 0"):
    body = f"{arguments} LOAD_CONST 1; MAKE_FUNCTION; {call}; POP_TOP; {RETURN}"
    return assembled(body, argcount=0, slots="", consts=(None, inner), flags=0, name="<module>")


def capturing(inner_body, free="a", outer_cells="a", **options):
    """A function that makes, of one cell, the closure of a function with that free variable."""
    given = dict(argcount=0, slots="", free=free, prologue="COPY_FREE_VARS 1", name="inner") | options
    inner = assembled(inner_body, **given)
    return assembled(
        "LOAD_FAST 0; BUILD_TUPLE 1; LOAD_CONST 1; MAKE_FUNCTION; SET_FUNCTION_ATTRIBUTE 8; RETURN_VALUE",
        slots="", argcount=0, cells=outer_cells, prologue="MAKE_CELL 0", consts=(None, inner),
    )  # fmt: skip


TAKE_DEFAULTS = "LOAD_FAST 0; LOAD_CONST 1; MAKE_FUNCTION; SET_FUNCTION_ATTRIBUTE 1; RETURN_VALUE"
BUILT = {  # rows of TRUSTED that take more than one code object
    "COPY_FREE_VARS: a free variable's cell is deleted": capturing(f"DELETE_FAST 0; {RETURN}"),
    "frame_get_var: assert(PyCell_Check(value)) of a free variable, overwritten": capturing(
        f"LOAD_CONST 0; STORE_FAST 0; {RETURN}"
    ),
    "COPY_FREE_VARS: assert(oparg == co->co_nfreevars)": capturing(RETURN, prologue="COPY_FREE_VARS 2"),
    "COPY_FREE_VARS: func_closure is there": INNER,
    ".type_params: of a closure that anyone can make": capturing(
        "LOAD_DEREF 0; CALL_INTRINSIC_1 10; RETURN_VALUE", free=".type_params", outer_cells=".type_params"
    ),
    ".type_params: stored in a closure's cell, which others hold": capturing(
        "LOAD_CONST 0; BUILD_TUPLE 1; STORE_DEREF 0; LOAD_DEREF 0; CALL_INTRINSIC_1 10; RETURN_VALUE",
        free=".type_params", outer_cells=".type_params",
    ),
    ".defaults: as **": typed(TAKE_DEFAULTS, argcount=0, flags=OPTIMIZED | VARKEYWORDS),
    ".defaults: as *": typed(TAKE_DEFAULTS, argcount=0, flags=OPTIMIZED | VARARGS),
    ".defaults: by keyword only": typed(TAKE_DEFAULTS, argcount=0, kwonly=1),
    ".defaults: beside another argument": calling(
        assembled(TAKE_DEFAULTS, argcount=2, slots=".defaults a", consts=(None, PLAIN), name="g"),
        "LOAD_CONST 0; LOAD_CONST 0; BUILD_TUPLE 1;", "SWAP 3; CALL 1",
    ),
    ".defaults: in a cell": typed(TAKE_DEFAULTS, cells=".defaults", prologue="MAKE_CELL 0"),
    ".defaults: of a closure": capturing(
        "LOAD_DEREF 0; LOAD_CONST 1; MAKE_FUNCTION; SET_FUNCTION_ATTRIBUTE 1; RETURN_VALUE",
        free=".defaults", outer_cells=".defaults", consts=(None, PLAIN),
    ),
    ".defaults: stored over": typed(f"LOAD_CONST 0; STORE_FAST 0; {TAKE_DEFAULTS}"),
    ".defaults: given something else": calling(TYPED_INNER, "LOAD_NAME 0;"),
    ".defaults: not given": assembled(
        f"PUSH_NULL; LOAD_CONST 1; MAKE_FUNCTION; SWAP 2; CALL 0; POP_TOP; {RETURN}",
        argcount=0, slots="", consts=(None, TYPED_INNER), flags=0,
    ),
    ".defaults: the function is kept": within(TYPED_INNER, body=f"LOAD_CONST 1; MAKE_FUNCTION; STORE_NAME 0; {RETURN}"),
}  # fmt: skip


@each("assertion", TRUSTED)
def test_refuses_what_the_interpreter_takes_on_trust(assertion):
    body, options, message = TRUSTED[assertion]
    code = BUILT[assertion] if body is None else assembled(body, **options)
    if options and options.get("slots", "").startswith(".") or "of that name" in assertion:
        code = within(code)
    assert message in refusal(code)


# -- what looks alike and is right: nothing above is refused for another reason than the one it names

ACCEPTED = {
    "a comprehension over a variable that a closure holds": (
        "LOAD_FAST_AND_CLEAR 0; LOAD_CONST 0; STORE_FAST 0; STORE_FAST 0;" + RETURN, CELL),
    "a comprehension that makes a cell of its own": (
        "LOAD_FAST_AND_CLEAR 0; MAKE_CELL 0; LOAD_CONST 0; STORE_DEREF 0; STORE_FAST 0;" + RETURN, CELL),
    "END_FOR at the end of a loop": (
        "LOAD_FAST 0; GET_ITER; top: FOR_ITER @end; POP_TOP; JUMP_BACKWARD @top; end: END_FOR; POP_ITER;" + RETURN, {}),
    "type parameters of a class": (f"{STORED} LOAD_BUILD_CLASS; PUSH_NULL; {SUBSCRIPT}".replace(
        "RETURN_VALUE", "CALL 1; RETURN_VALUE"), GENERIC),
    "keyword arguments": (
        "LOAD_CONST 0; PUSH_NULL; LOAD_CONST 0; BUILD_TUPLE 1; BUILD_MAP 0; LOAD_FAST 0; DICT_MERGE 1;"
        "CALL_FUNCTION_EX; RETURN_VALUE", {}),
    "a pattern with attributes": (
        "LOAD_FAST 0; LOAD_FAST 1; LOAD_CONST 1; MATCH_CLASS 0; RETURN_VALUE", dict(consts=(None, ("x",)))),
    "a pattern without": (
        "LOAD_FAST 0; LOAD_FAST 1; LOAD_CONST 1; MATCH_CLASS 1; RETURN_VALUE", dict(consts=(None, ()))),
    "borrowed and given back first": ("LOAD_FAST_BORROW 0; POP_TOP; LOAD_CONST 0; STORE_FAST 0;" + RETURN, {}),
    "raised again where it was raised": (EXC + "RERAISE 1", LASTI),
    "a loop that delegates": (
        "LOAD_FAST 0; GET_YIELD_FROM_ITER; LOAD_CONST 0; top: SEND @over; YIELD_VALUE 1; RESUME 2;"
        "JUMP_BACKWARD_NO_INTERRUPT @top; over: END_SEND; RETURN_VALUE", GENERATES),
    "delegation": (
        "LOAD_FAST 0; GET_YIELD_FROM_ITER; LOAD_CONST 0; YIELD_VALUE 1; RESUME 2; POP_TOP; RETURN_VALUE", GENERATES),
}  # fmt: skip


@pytest.mark.parametrize("what", ACCEPTED)
def test_accepts_what_is_right(what):
    body, options = ACCEPTED[what]
    verify(assembled(body, **options))


def test_accepts_a_generic_function_as_it_is_called():
    verify(calling(TYPED_INNER))


def test_a_prefix_that_extends_nothing_is_refused():
    """FOR_ITER skips one code unit at its end; that would be the prefix, and END_FOR would pop the iterator."""
    code = assembled(
        f"LOAD_FAST 0; GET_ITER; top: FOR_ITER @end; POP_TOP; JUMP_BACKWARD @top; end: END_FOR; POP_ITER; {RETURN}"
    )
    data = bytearray(code.co_code)
    offset = next(offset for offset in range(0, len(data), 2) if data[offset] == opcode.opmap["END_FOR"])
    data[offset:offset] = bytes((opcode.EXTENDED_ARG, 0))
    lines = b"".join(bytes((0xF8 | min(8, len(data) // 2 - start) - 1,)) for start in range(0, len(data) // 2, 8))
    assert "EXTENDED_ARG extends nothing" in refusal(code.replace(co_code=bytes(data), co_linetable=lines))


# -- the bytes: what CPython takes on trust while it reads them, or when it is asked for names


def marshalled(constants=b")\x01N", slots=b")\x00", kinds=b""):
    """A marshalled function that returns None, with these constants and names of slots (marshalled) and their kinds."""
    code = PLAIN
    bytecode, lines = code.co_code, code.co_linetable
    numbers = (0, 0, 0, code.co_stacksize, code.co_flags)
    return (
        b"c" + struct.pack("<5i", *numbers) + b"s" + struct.pack("<i", len(bytecode)) + bytecode
        + constants + b")\x00" + slots + b"s" + struct.pack("<i", len(kinds)) + kinds + b"z\x01f" * 3
        + struct.pack("<i", 1) + b"s" + struct.pack("<i", len(lines)) + lines + b"s" + struct.pack("<i", 0)
    )  # fmt: skip


def reference(number):
    return b"r" + struct.pack("<i", number)


TUPLE, REFERRED = ord(")"), 0x80
BYTES = {
    # CPython does not number None, so that object 0 is the tuple that is being read
    "a tuple that holds itself, behind a None": (
        dict(constants=b")\x02" + bytes((ord("N") | REFERRED, TUPLE | REFERRED, 1)) + reference(0)),
        "type 0x4e is never referred to"),
    "tuples that double sixty times: each way through them is walked": (
        dict(constants=bytes((TUPLE, 61, TUPLE | REFERRED, 1)) + b"N" + b"".join(
            bytes((TUPLE | REFERRED, 2)) + reference(number) * 2 for number in range(60))),
        "come to more than"),
    "a slot that is local and free: co_freevars has no room for its name": (
        dict(slots=b")\x01z\x01a", kinds=b"\xa0"), "not local, cell or free"),
    "a slot that is cell and free": (dict(slots=b")\x01z\x01a", kinds=b"\xc0"), "not local, cell or free"),
    "a slot that is nothing": (dict(slots=b")\x01z\x01a", kinds=b"\0"), "not local, cell or free"),
    # the first would be made a cell, and the second taken for one
    "two cells of one name": (dict(slots=b")\x02z\x01az\x01a", kinds=b"``"), "co_varnames names a variable twice"),
    "two free variables of one name": (
        dict(slots=b")\x02z\x01az\x01a", kinds=b"\x80\x80"), "co_freevars names a variable twice"),
    "a local of a free variable's name, the free one first": (
        dict(slots=b")\x02z\x01az\x01a", kinds=b"\x80 "), "not in the order locals, cells, free variables"),
    "the same, with the right order somewhere else": (
        dict(constants=b")\x02Ns\x02\0\0\0 \x80", slots=b")\x02z\x01az\x01a", kinds=b"\x80 "),
        "not in the order locals, cells, free variables"),
}  # fmt: skip


@pytest.mark.parametrize("what", BYTES)
def test_refuses_bytes_that_cpython_trips_over(what):
    """Without the check, one of these kills the process or never ends."""
    fields, message = BYTES[what]
    with pytest.raises(VerifyError) as caught:
        verify(load(marshalled(**fields)), closure=True)
    assert message in str(caught.value)


def test_accepts_the_bytes_when_they_are_right():
    shared = dict(constants=bytes((TUPLE, 3, TUPLE | REFERRED, 1)) + b"N" + b"i\x01\0\0\0" + reference(0))
    verify(load(marshalled(slots=b")\x01z\x01a", kinds=b" ", **shared)))


def test_every_row_of_the_table_is_violated_somewhere():
    bodies = " ".join(
        [*TAKES, *(body for body, _ in OPERANDS), *(row[0] or "" for row in TRUSTED.values())]
        + [options.get("prologue", "") for _, options, _ in TRUSTED.values() if options]
    )
    named = set(re.findall(r"[A-Z][A-Z0-9_]+", bodies))
    assert facts.ROWS.keys() - named == set()
