"""CPython 3.14's instructions as the verifier sees them: operand domain, stack effect with kinds, and whether one can
raise.

One row per instruction that 3.14's compiler emits; an opcode without a row is refused. The rows follow
`Python/bytecodes.c` of the 3.14 branch: where the interpreter trusts its input (a NULL marker, a list, a tagged
integer), the row has a kind; where it checks the input itself, plain `obj`.

Effects read `inputs -- outputs`, deepest slot first. `obj*oparg` repeats a slot, `=0` leaves input 0 as it was (with
what it borrows), `a|b` allows either kind. A row with a `rule` has an effect that depends on more than the operand;
`vmhost.bytecode.verifier.flow` has a function of that name, and the text gives the minimum popped and pushed."""

from collections import namedtuple

VERSION = (3, 14)


class Row(namedtuple("Row", ("effect", "operand", "rule", "raises"), defaults=("none", "", True))):
    """One instruction. `operand` names a domain (see `vmhost.bytecode.verifier.operands`); a range is (first, last)."""

    __slots__ = ()


_COMPARISONS = {  # operator index -> the mask of outcomes that the compiler stores with it (pycore_opcode_utils.h)
    0: 0b0010,
    1: 0b1010,
    2: 0b1000,
    3: 0b0111,
    4: 0b0100,
    5: 0b1100,
}
COMPARE_OPERANDS = frozenset(index << 5 | mask | flag for index, mask in _COMPARISONS.items() for flag in (0, 16))
INTERPOLATION_OPERANDS = frozenset(conversion << 2 | 2 | spec for conversion in range(4) for spec in range(2))

ROWS: dict[str, Row] = {
    # only the operand matters
    "NOP": Row("--", raises=False),
    "NOT_TAKEN": Row("--", raises=False),
    "RESUME": Row("--", frozenset({0, 1, 2, 3, 5, 6, 7}), rule="resume"),
    "COPY_FREE_VARS": Row("--", "free count", rule="prologue_only", raises=False),
    "RETURN_GENERATOR": Row("-- obj", rule="prologue_only"),
    "SETUP_ANNOTATIONS": Row("--"),
    # constants and names
    "LOAD_CONST": Row("-- obj", "constant", rule="load_const", raises=False),
    "LOAD_SMALL_INT": Row("-- obj", (0, 256), raises=False),
    "LOAD_COMMON_CONSTANT": Row("-- obj", (0, 4), raises=False),
    "LOAD_BUILD_CLASS": Row("-- obj"),
    "LOAD_LOCALS": Row("-- obj"),
    "LOAD_NAME": Row("-- obj", "name", rule="load_name"),
    "LOAD_GLOBAL": Row("-- obj", "name>>1", rule="load_global"),
    "LOAD_FROM_DICT_OR_GLOBALS": Row("obj -- obj", "name"),
    "STORE_NAME": Row("obj --", "name"),
    "STORE_GLOBAL": Row("obj --", "name"),
    "DELETE_NAME": Row("--", "name"),
    "DELETE_GLOBAL": Row("--", "name"),
    "IMPORT_NAME": Row("obj obj -- obj", "name"),
    "IMPORT_FROM": Row("obj -- =0 obj", "name"),
    # locals and cells
    "LOAD_FAST": Row("-- obj", "local", rule="load_fast", raises=False),
    "LOAD_FAST_BORROW": Row("-- obj", "local", rule="load_fast_borrow", raises=False),
    "LOAD_FAST_CHECK": Row("-- obj", "local", rule="load_fast_check"),
    "LOAD_FAST_AND_CLEAR": Row("-- any", "local", rule="load_fast_and_clear", raises=False),
    "LOAD_FAST_LOAD_FAST": Row("-- obj obj", "two locals", rule="load_fast_load_fast", raises=False),
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW": Row("-- obj obj", "two locals", rule="load_fast_borrow_twice", raises=False),
    "STORE_FAST": Row("obj|null --", "local", rule="store_fast", raises=False),
    "STORE_FAST_LOAD_FAST": Row("obj|null -- obj", "two locals", rule="store_fast_load_fast", raises=False),
    "STORE_FAST_STORE_FAST": Row("obj|null obj|null --", "two locals", rule="store_fast_store_fast", raises=False),
    "DELETE_FAST": Row("--", "local", rule="delete_fast"),
    "MAKE_CELL": Row("--", "local", rule="make_cell", raises=False),  # MemoryError apart; see flow
    "LOAD_DEREF": Row("-- obj", "local", rule="load_deref"),
    "STORE_DEREF": Row("obj --", "local", rule="store_deref", raises=False),
    "DELETE_DEREF": Row("--", "local", rule="deref"),
    "LOAD_FROM_DICT_OR_DEREF": Row("obj -- obj", "local", rule="deref"),
    # the stack itself
    "POP_TOP": Row("poppable --", raises=False),
    "PUSH_NULL": Row("-- null", raises=False),
    "COPY": Row("--", "depth>=1", rule="copy", raises=False),
    "SWAP": Row("--", "depth>=2", rule="swap", raises=False),
    # operators
    "BINARY_OP": Row("obj obj -- obj", (0, 26)),
    "BINARY_SLICE": Row("obj obj obj -- obj"),
    "STORE_SLICE": Row("obj obj obj obj --"),
    "STORE_SUBSCR": Row("obj obj obj --"),
    "DELETE_SUBSCR": Row("obj obj --"),
    "UNARY_INVERT": Row("obj -- obj"),
    "UNARY_NEGATIVE": Row("obj -- obj"),
    "UNARY_NOT": Row("bool|compared -- bool", raises=False),
    "TO_BOOL": Row("obj -- bool"),
    "COMPARE_OP": Row("obj obj -- obj", COMPARE_OPERANDS, rule="compare"),
    "CONTAINS_OP": Row("obj obj -- bool", (0, 1)),
    "IS_OP": Row("obj obj -- bool", (0, 1), raises=False),
    "GET_LEN": Row("obj -- =0 obj"),
    "LOAD_ATTR": Row("obj -- obj", "name>>1", rule="load_attr"),
    "STORE_ATTR": Row("obj obj --", "name"),
    "DELETE_ATTR": Row("obj --", "name"),
    "LOAD_SUPER_ATTR": Row("obj obj obj -- obj", "name>>2", rule="load_super_attr"),
    "LOAD_SPECIAL": Row("obj -- obj obj|null", (0, 3), rule="load_special"),
    "UNPACK_SEQUENCE": Row("obj -- obj*oparg", "count"),
    "UNPACK_EX": Row("obj -- obj*unpack", "unpack"),
    # containers and strings
    "BUILD_TUPLE": Row("obj*oparg -- sized", "count>=1", rule="build_tuple"),  # the empty tuple is immortal
    "BUILD_LIST": Row("obj*oparg -- list", "count", rule="build_list"),
    "BUILD_SET": Row("obj*oparg -- set", "count"),
    "BUILD_MAP": Row("obj*2*oparg -- dict", "count"),
    "BUILD_SLICE": Row("obj*oparg -- obj", (2, 3)),
    "BUILD_STRING": Row("obj*oparg -- str", "count"),
    "BUILD_INTERPOLATION": Row("obj str str*oparg&1 -- interpolation", INTERPOLATION_OPERANDS),
    "BUILD_TEMPLATE": Row("sized sized -- obj", rule="build_template"),
    "CONVERT_VALUE": Row("obj -- str", (1, 3)),
    "FORMAT_SIMPLE": Row("obj -- str", rule="format_simple"),
    "FORMAT_WITH_SPEC": Row("obj obj -- str"),
    "LIST_APPEND": Row("obj --", "depth>=1", rule="list_append"),
    "LIST_EXTEND": Row("obj --", "depth>=1", rule="list_extend"),
    "SET_ADD": Row("obj --", "depth>=1", rule="into_set"),
    "SET_UPDATE": Row("obj --", "depth>=1", rule="into_set"),
    "MAP_ADD": Row("obj obj --", "depth>=1", rule="into_dict"),
    "DICT_UPDATE": Row("obj --", "depth>=1", rule="into_dict"),
    "DICT_MERGE": Row("obj --", "depth>=1", rule="dict_merge"),
    # calls and functions
    "CALL": Row("obj|bare_func obj|null obj*oparg -- obj", "count", rule="call"),
    "CALL_KW": Row("obj obj|null obj*oparg tuple -- obj", "count", rule="call_kw"),
    "CALL_FUNCTION_EX": Row("obj null obj dict|null -- obj"),
    "CALL_INTRINSIC_1": Row("see INTRINSIC_1", (1, 11), rule="intrinsic_1"),
    "CALL_INTRINSIC_2": Row("see INTRINSIC_2", (1, 5)),
    "MAKE_FUNCTION": Row("code -- func", rule="make_function"),
    "SET_FUNCTION_ATTRIBUTE": Row(
        "obj func|bare_func -- func", frozenset({1, 2, 4, 8, 16}), rule="set_function_attribute"
    ),
    "RETURN_VALUE": Row("obj --", rule="return_value", raises=False),
    # jumps and loops; the operand counts code units from the end of the instruction
    "JUMP_FORWARD": Row("--", "forward", rule="jump", raises=False),
    "JUMP_BACKWARD": Row("--", "backward", rule="jump"),
    "JUMP_BACKWARD_NO_INTERRUPT": Row("--", "backward", rule="jump", raises=False),
    "POP_JUMP_IF_FALSE": Row("bool|compared --", "forward", rule="branch", raises=False),
    "POP_JUMP_IF_TRUE": Row("bool|compared --", "forward", rule="branch", raises=False),
    "POP_JUMP_IF_NONE": Row("obj --", "forward", rule="branch_none", raises=False),
    "POP_JUMP_IF_NOT_NONE": Row("obj --", "forward", rule="branch_not_none", raises=False),
    "GET_ITER": Row("obj -- obj"),
    "FOR_ITER": Row("obj -- =0 obj", "forward", rule="for_iter"),
    "END_FOR": Row("obj obj -- =0", raises=False),  # under a trace function it checks whether a generator is below
    "POP_ITER": Row("obj --", raises=False),
    # generators and coroutines
    "YIELD_VALUE": Row("obj -- obj", (0, 1), rule="yield_value", raises=False),  # throw() raises after it; see the rule
    "GET_YIELD_FROM_ITER": Row("obj -- obj", rule="pass_borrow"),
    "GET_AWAITABLE": Row("obj -- obj", (0, 2)),
    "GET_AITER": Row("obj -- obj"),
    "GET_ANEXT": Row("obj -- =0 obj"),
    "SEND": Row("obj obj -- =0 obj", "forward", rule="send"),
    "END_SEND": Row("obj obj -- =1", raises=False),
    "END_ASYNC_FOR": Row("obj exc --", "backward", rule="end_async_for"),
    "CLEANUP_THROW": Row("obj obj exc -- obj obj", rule="generator_only"),
    # exceptions
    "PUSH_EXC_INFO": Row("exc -- exc_or_none exc", raises=False),
    "POP_EXCEPT": Row("exc|exc_or_none --", raises=False),
    "CHECK_EXC_MATCH": Row("exc obj -- =0 bool"),
    "CHECK_EG_MATCH": Row("exc|exc_or_none obj -- exc_or_none exc_or_none"),
    "WITH_EXCEPT_START": Row("obj obj|null lasti any exc -- =0 =1 =2 =3 =4 obj"),
    "RAISE_VARARGS": Row("obj*oparg --", (0, 2), rule="leave"),
    "RERAISE": Row("exc --", (0, 2), rule="reraise"),
    # pattern matching
    "MATCH_MAPPING": Row("obj -- =0 bool", raises=False),
    "MATCH_SEQUENCE": Row("obj -- =0 bool", raises=False),
    "MATCH_KEYS": Row("obj tuple -- =0 =1 obj"),
    "MATCH_CLASS": Row("obj obj tuple -- obj", "count", rule="match_class"),
}

# Instructions that run a Python callee in the same C frame. When the callee raises, 3.14 looks up the handler of the
# code unit before the instruction, not of the instruction itself: both handlers must fit.
INLINES_CALLS = frozenset({"BINARY_OP", "CALL", "CALL_FUNCTION_EX", "CALL_KW", "FOR_ITER", "LOAD_ATTR", "SEND"})

# BINARY_OP's operands that the interpreter specialises for appending to a str: `+` and `+=`
ADDITIONS = frozenset({0, 13})

# The interpreter keeps the distance past SEND in 16 bits while it runs a generator. (FOR_ITER too, but one with a far
# target is never specialised to run a generator in the same C frame.)
MAX_RETURN_OFFSET = 0xFFFF

# What CALL_INTRINSIC_1 and _2 trust; indices as in pycore_intrinsics.h.
INTRINSIC_1 = {
    1: "obj -- obj",  # print
    2: "obj -- obj",  # import *
    3: "exc -- exc",  # StopIteration becomes RuntimeError
    4: "obj -- obj",  # wrap the value of an asynchronous generator
    5: "obj -- obj",  # unary plus
    6: "list -- tuple",
    7: "str -- obj",  # TypeVar
    8: "str -- obj",  # ParamSpec
    9: "str -- obj",  # TypeVarTuple
    10: "tuple -- obj",  # Generic[...]
    11: "alias -- obj",  # type X = ...
}
INTRINSIC_2 = {
    1: "exc exceptions -- exc_or_none",  # prepares what except* reraises
    2: "str obj -- obj",  # TypeVar with a bound
    3: "str obj -- obj",  # TypeVar with constraints
    4: "func tuple -- func",  # type parameters of a function
    5: "obj obj -- obj",  # default of a type parameter
}

# SET_FUNCTION_ATTRIBUTE: defaults, keyword defaults, annotations, closure, annotate
DEFAULTS, KEYWORD_DEFAULTS, ANNOTATIONS, CLOSURE, ANNOTATE = 1, 2, 4, 8, 16

IMPORT_STAR, STOP_ITERATION_ERROR = 2, 3  # of CALL_INTRINSIC_1

# Arguments that only the compiler can name, in its order, and their types, which the code trusts.
TYPED_ARGUMENTS = {".defaults": "tuple", ".kwdefaults": "dict"}

# The variable in which a generic class's code keeps its type parameters for the class's body. The code reads it back
# for CALL_INTRINSIC_1 10, after only these instructions, none of which runs code that could reach the cell.
TUPLE_BY_CELL = ".type_params"
BUILDS_CLOSURE = frozenset(
    {
        "NOP",
        "LOAD_BUILD_CLASS",
        "PUSH_NULL",
        "LOAD_FAST",
        "LOAD_FAST_BORROW",
        "LOAD_FAST_LOAD_FAST",
        "LOAD_FAST_BORROW_LOAD_FAST_BORROW",
        "BUILD_TUPLE",
        "LOAD_CONST",
        "MAKE_FUNCTION",
        "SET_FUNCTION_ATTRIBUTE",
    }
)

# The only name to whose value the compiler adds with SET_ADD: the interpreter checks it (3.14.8) or trusts it.
SET_BY_NAME = "__conditional_annotations__"

# Instructions that always check the eval breaker, where a stop can land. So does the RESUME after YIELD_VALUE 0. CALL
# does not once it is specialised for `len`, `isinstance` or `list.append`.
STOPPABLE = frozenset({"JUMP_BACKWARD"})

# YIELD_VALUE's operand -> the operands that the RESUME after it may have: after `yield`; after `yield from` or `await`,
# where RESUME does not check the eval breaker, since the delegate does.
RESUME_AFTER = {0: frozenset({1}), 1: frozenset({2, 3})}

# flags of code objects that the compiler sets
OPTIMIZED, NEWLOCALS, VARARGS, VARKEYWORDS, NESTED, GENERATOR = 1, 2, 4, 8, 0x10, 0x20
COROUTINE, ITERABLE_COROUTINE, ASYNC_GENERATOR = 0x80, 0x100, 0x200
FUTURES = 0x20000 | 0x40000 | 0x80000 | 0x100000 | 0x200000 | 0x400000 | 0x800000 | 0x1000000
HAS_DOCSTRING, METHOD = 0x4000000, 0x8000000
KNOWN_FLAGS = (
    OPTIMIZED
    | NEWLOCALS
    | VARARGS
    | VARKEYWORDS
    | NESTED
    | GENERATOR
    | COROUTINE
    | ITERABLE_COROUTINE
    | ASYNC_GENERATOR
    | FUTURES
    | HAS_DOCSTRING
    | METHOD
)

# Instructions that run no Python code while a comprehension moves a free variable's cell out of its slot and back.
QUIET = frozenset({"LOAD_FAST_AND_CLEAR", "MAKE_CELL", "SWAP", "COPY", "NOP", "STORE_FAST", "STORE_FAST_LOAD_FAST"})
