"""The verifier accepts the compiler's code and refuses code that would crash the interpreter, saying where and why."""

import dis
import marshal
import opcode
import os
import sys
import types
from pathlib import Path

import pytest

from tests.batches import each
from vmhost.bytecode import opcodes
from vmhost.bytecode.corrections import compile_corrected
from vmhost.bytecode.errors import BundleError
from vmhost.bytecode.format import Manifest, Module, read_bundle, write_bundle
from vmhost.bytecode.signing import TrustStore, generate_key
from vmhost.bytecode.source import compile_source
from vmhost.bytecode.verifier import VerifyError, load, verify

SPECIMENS = sorted((Path(__file__).parents[1] / "properties" / "specimens").glob("*.py"))
LIBRARY = Path(os.__file__).parent  # a frozen module's spec has no path


def compiled(source, level=0):
    return compile_corrected(source, "sample.py", level)


def function(source):
    """The code object of the only function in `source`."""
    return next(constant for constant in compiled(source).co_consts if isinstance(constant, types.CodeType))


def find(code, name, nth=0):
    """The byte offset of the nth instruction called `name`."""
    return [each.offset for each in dis.get_instructions(code) if each.opname == name][nth]


def patched(code, name, operand=None, new=None, nth=0):
    """`code` with the nth instruction called `name` given another operand or opcode."""
    data = bytearray(code.co_code)
    offset = find(code, name, nth)
    if new is not None:
        data[offset] = opcode.opmap[new]
    if operand is not None:
        data[offset + 1] = operand
    return code.replace(co_code=bytes(data))


def blanked(code, name, nth=0):
    """`code` with NOPs where the nth instruction called `name` was."""
    data = bytearray(code.co_code)
    offset = find(code, name, nth)
    width = 2 + 2 * dis._inline_cache_entries.get(name, 0)
    data[offset : offset + width] = bytes((opcode.opmap["NOP"], 0)) * (width // 2)
    return code.replace(co_code=bytes(data))


def refusal(code, where=""):
    with pytest.raises(VerifyError) as caught:
        verify(code, where=where)
    return str(caught.value)


# -- what the compiler makes


@each("level", [0, 1, 2])
@each("path", SPECIMENS, ids=lambda path: path.stem)
def test_accepts_every_specimen(path, level):
    verify(compile_corrected(path.read_bytes(), path.name, level))


@pytest.mark.parametrize("level", [0, 2])
def test_accepts_the_standard_library(level):
    """Every twelfth module; `python -m tests.properties.verifier_library` takes all of it."""
    paths = [
        path
        for path in sorted(LIBRARY.rglob("*.py"))
        if "bad" not in path.name and not {"lib2to3", "site-packages"} & {*path.parts} and path.exists()
    ]
    assert {LIBRARY / "argparse.py", LIBRARY / "asyncio" / "tasks.py"} <= {*paths}
    for path in paths[level::12]:
        verify(compile_corrected(path.read_bytes(), str(path), level), where=path.name)


def test_accepts_what_went_through_marshal():
    for path in SPECIMENS:
        verify(marshal.loads(marshal.dumps(compiled(path.read_text()))))


def far_jump(code):
    """How far the FOR_ITER of the one function in `code` jumps, in code units."""
    inner = next(each for each in code.co_consts if isinstance(each, types.CodeType))
    return next(each.arg for each in dis.get_instructions(inner) if each.opname == "FOR_ITER")


def test_accepts_large_operands_and_far_jumps():
    names = ", ".join(f"n{i}" for i in range(700))
    body = "\n".join(f"        x = [n{i}, {i + 1000}, 'c{i}', g{i}.a{i}]" for i in range(700))
    verify(compiled(f"def f({names}):\n    while n0:\n{body}\n    return n699, {{n5: n6}}, (lambda: n600)\n"))
    verify(
        compiled(
            "x = [" + ",".join(map(str, range(5000))) + "]\n" + "y = {" + ",".join(f"{i}: a" for i in range(500)) + "}"
        )
    )


# -- what would crash, measured on CPython 3.14.8


def test_operand_domains():
    code = function("def f(a, b): return a + b")
    assert refusal(patched(code, "BINARY_OP", 200), "digits.vmb: main") == (
        f"digits.vmb: main: function f @ offset {find(code, 'BINARY_OP')} (BINARY_OP): operand 200 is outside 0..26; "
        "the bundle is damaged or was not made by CPython's compiler: compile the task again"
    )
    code = function("def f(*a): return [*a], (*a,)")
    assert "(CALL_INTRINSIC_1): operand 200 is outside 1..11" in refusal(patched(code, "CALL_INTRINSIC_1", 200))
    assert "operand 0 is outside 1..11" in refusal(patched(code, "CALL_INTRINSIC_1", 0))


@each(
    "source, name, operand, message",
    [
        ("def f(a): return a < 1", "COMPARE_OP", 255, "is none of"),
        ("def f(a): return 1 in a", "CONTAINS_OP", 2, "outside 0..1"),
        ("def f(a): return f'{a!r}'", "CONVERT_VALUE", 9, "outside 1..3"),
        ("def f(a):\n with a: pass", "LOAD_SPECIAL", 4, "outside 0..3"),
        ("def f(a): assert a", "LOAD_COMMON_CONSTANT", 5, "outside 0..4"),
        ("def f(a): raise a", "RAISE_VARARGS", 3, "outside 0..2"),
        ("def f(a): return a.b", "LOAD_ATTR", 2, "means name 1, and there are 1"),
        ("def f(a): return 'x'", "LOAD_CONST", 7, "means constant 7"),
        ("def f(a): return a", "LOAD_FAST_BORROW", 1, "means local 1, and there are 1"),
        ("def f(a, b): return a + b", "LOAD_FAST_BORROW_LOAD_FAST_BORROW", 0x21, "locals 2 and 1"),
        ("def f(a): return (a, a)", "BUILD_TUPLE", 200, "the stack has"),
        ("def f(a): return [(a, a), (a, a, a)]", "BUILD_TUPLE", 3, "takes 3 slots, and the stack holds 2"),
        ("def f(a): return a(1)", "CALL", 2, "takes 4 slots"),
        ("def f(a):\n if a: return 1\n return 2", "POP_JUMP_IF_FALSE", 40, "where no instruction starts"),
        ("def f(a):\n while a: pass", "JUMP_BACKWARD", 200, "where no instruction starts"),
        ("def f(a): return lambda: a", "SET_FUNCTION_ATTRIBUTE", 3, "is none of"),
        ("def f(a): return -a", "UNARY_NEGATIVE", 1, "expected 0"),
        ("def f(a): return [x for x in a]", "LIST_APPEND", 3, "expected list"),
        ("def f(a): return [x for x in a]", "LIST_APPEND", 9, "reaches 9 slots"),
        ("def f(a): return a[1:2] if a else a", "COPY_FREE_VARS", None, None),
    ],
)
def test_refuses_operands(source, name, operand, message):
    code = function(source)
    if operand is None:
        code = patched(code, "RESUME", new=name)
        assert "it has no RESUME" in refusal(code)
    else:
        assert message in refusal(patched(code, name, operand))


def test_cells_are_made_before_use():
    code = function("def f(a):\n def g(): return a\n return g")
    assert "cells are made for slots [], expected [0]" in refusal(blanked(code, "MAKE_CELL"))
    index, inner = next((at, each) for at, each in enumerate(code.co_consts) if isinstance(each, types.CodeType))
    assert "has free variables a and stands alone" in refusal(inner)
    constants = (*code.co_consts[:index], blanked(inner, "COPY_FREE_VARS"), *code.co_consts[index + 1 :])
    assert "does not begin with COPY_FREE_VARS" in refusal(code.replace(co_consts=constants))
    assert "may not hold a cell" in refusal(
        patched(function("def f(a, b):\n def g(): return a\n return a, b"), "LOAD_DEREF", 1)
    )


def test_locals_are_assigned_before_use():
    code = function("def f():\n x = 1\n y = 2\n return x")
    assert "local 'x' may be unassigned" in refusal(patched(code, "STORE_FAST", 1))
    code = function("def f(a):\n if a: x = 1\n return x")
    assert "local 'x' may be unassigned" in refusal(patched(code, "LOAD_FAST_CHECK", new="LOAD_FAST"))


def test_borrowed_references_do_not_outlive_their_local():
    code = function("def f(x):\n x = g(x, x := 1)\n return x")
    assert "changes while the stack holds a reference borrowed from it" in refusal(
        patched(code, "LOAD_FAST", new="LOAD_FAST_BORROW")
    )
    code = function("def f(x):\n y = x\n return y")
    assert "stores a borrowed reference in local 'y'" in refusal(patched(code, "LOAD_FAST", new="LOAD_FAST_BORROW"))


def test_values_have_the_kind_that_the_interpreter_takes_on_trust():
    code = function("def f(a): return {x for x in a}")
    assert "expected list" in refusal(patched(code, "SET_ADD", new="LIST_APPEND"))
    code = function("def f(a): return a()")
    assert "finds NULL marker" in refusal(
        patched(code, "PUSH_NULL", new="NOP", nth=0).replace(
            co_code=patched(code, "LOAD_FAST_BORROW", new="PUSH_NULL", operand=0).co_code
        )
    )
    code = function("def f(a):\n try: a()\n except E: pass")
    assert "finds exception at depth 1, expected" not in refusal(patched(code, "PUSH_EXC_INFO", new="NOP"))
    assert "expected exception" in refusal(patched(code, "POP_TOP", new="POP_EXCEPT"))
    code = function("def f(a):\n with a: a()")
    assert "expected the saved instruction offset" in refusal(patched(code, "RERAISE", 1))
    code = function("def f(a): return a(b=1)")
    index = code.co_consts.index(("b",))
    for names in (("b", 1), ("b", "c", "d"), ["b"], None, ("b", "b")):
        constants = code.co_consts[:index] + (names,) + code.co_consts[index + 1 :]
        refusal(code.replace(co_consts=constants))


def test_functions_get_the_closure_that_their_code_reads():
    code = function("def f(a, b):\n return lambda: (a, b)")
    assert "does not fit function f.<locals>.<lambda>" in refusal(patched(code, "LOAD_FAST_BORROW", 1))
    code = function("def f(a):\n return lambda: a")
    assert "expected" in refusal(patched(code, "SET_FUNCTION_ATTRIBUTE", new="END_SEND", operand=0))
    code = function("def f(a=1, *b):\n return lambda c=a, *, d=2: c").replace()
    assert "does not fit function" in refusal(patched(code, "SET_FUNCTION_ATTRIBUTE", 1))


def test_hidden_arguments_of_generic_functions_have_their_kind():
    module = compiled("def f[T](x=1, *, k=2): return x\ndef g[T](*, k=2): return k\ndef h[T](x=1): return x")
    verify(module)
    refusal(patched(module, "SWAP", 3, nth=0))
    assert "lacks its closure or its arguments" in refusal(patched(module, "SWAP", new="COPY", operand=1, nth=1))
    indices = [module.co_consts.index(each) for each in module.co_consts if isinstance(each, types.CodeType)]
    constants = list(module.co_consts)
    constants[indices[1]], constants[indices[2]] = constants[indices[2]], constants[indices[1]]
    assert "gives dict for '.defaults' of <generic parameters of h>, expected tuple" in refusal(
        module.replace(co_consts=tuple(constants))
    )
    inner = module.co_consts[indices[2]]
    assert "takes .defaults and stands alone" in refusal(inner)


def test_generators_suspend_only_as_generators():
    code = function("def f(a): yield a")
    assert "several of generator" in refusal(code.replace(co_flags=code.co_flags | 0x80))
    assert "RESUME 0 expected here" in refusal(code.replace(co_flags=code.co_flags & ~0x20))
    assert "RETURN_GENERATOR, POP_TOP are not here" in refusal(blanked(code, "RETURN_GENERATOR"))
    assert "RESUME after a yield" in refusal(blanked(code, "RESUME", nth=1))


def test_every_path_ends():
    code = function("def f(a): return a")
    assert "runs off the end" in refusal(patched(code, "RETURN_VALUE", new="POP_TOP"))
    code = function("def f(a):\n while a: pass")
    data = bytearray(code.co_code)
    offset = find(code, "JUMP_BACKWARD")
    data[offset : offset + 4] = bytes(
        (opcode.opmap["NOP"], 0, opcode.opmap["JUMP_BACKWARD_NO_INTERRUPT"], data[offset + 1])
    )
    assert "never looks at the eval breaker" in refusal(code.replace(co_code=bytes(data)))


def test_stack_depth():
    code = function("def f(a, b, c): return a + b * c")
    assert "its stack grows to 3 slots, and it has 2" in refusal(code.replace(co_stacksize=2))
    assert "slots" in refusal(code.replace(co_stacksize=10_000))
    code = function("def f(a, b):\n while a: x = b")
    assert "is reached with" in refusal(patched(code, "STORE_FAST", new="NOP", operand=0))


# -- opcodes and caches


@pytest.mark.parametrize(
    "name", ["BINARY_OP_ADD_INT", "LOAD_ATTR_SLOT", "LOAD_CONST_IMMORTAL", "CALL_PY_EXACT_ARGS", "RESUME_CHECK"]
)
def test_refuses_specialised_opcodes_that_co_code_hides(name):
    base = next(each for each, members in opcode._specializations.items() if name in members)
    source = {
        "BINARY_OP": "def f(a): return a + a",
        "LOAD_ATTR": "def f(a): return a.b",
        "LOAD_CONST": "def f(a): return 'x'",
        "CALL": "def f(a): return a()",
        "RESUME": "def f(a): return a",
    }[base]
    code = function(source)
    data = bytearray(code.co_code)
    data[find(code, base)] = opcode._specialized_opmap[name]
    damaged = code.replace(co_code=bytes(data))
    assert damaged.co_code == code.co_code
    assert f"{name} is an instruction that the interpreter makes while it runs" in refusal(damaged)


@pytest.mark.parametrize(
    "name", ["CACHE", "RESERVED", "INTERPRETER_EXIT", "ENTER_EXECUTOR", "INSTRUMENTED_CALL", "EXIT_INIT_CHECK"]
)
def test_refuses_internal_opcodes(name):
    assert "is not one that the compiler" in refusal(patched(function("def f(a): return a"), "RETURN_VALUE", new=name))


def test_refuses_filled_caches():
    code = function("def f(a): return a.b")
    data = bytearray(code.co_code)
    data[find(code, "LOAD_ATTR") + 6] = 1
    assert "the inline cache of LOAD_ATTR is not empty" in refusal(code.replace(co_code=bytes(data)))


def test_refuses_code_that_ends_early():
    code = function("def f(a): return a + a")
    assert "ends inside the inline cache of BINARY_OP" in refusal(
        code.replace(co_code=code.co_code[: find(code, "BINARY_OP") + 4])
    )
    assert "no instruction to extend" in refusal(code.replace(co_code=code.co_code + bytes((opcode.EXTENDED_ARG, 1))))


def test_code_that_ran_is_refused_with_the_reason():
    namespace = {}
    exec("def f(a): return a + a", namespace)
    for _ in range(50):
        namespace["f"](1)
    assert "code is verified before it first runs" in refusal(namespace["f"].__code__)


# -- tables


def test_exception_table():
    code = function("def f(a):\n try: a()\n except E: pass")
    table = code.co_exceptiontable
    assert "not a well-formed entry" in refusal(code.replace(co_exceptiontable=table[:-1]))
    assert "not a well-formed entry" in refusal(code.replace(co_exceptiontable=bytes((table[0] & 0x7F,)) + table[1:]))
    assert "begins before" in refusal(code.replace(co_exceptiontable=table + table[:4]))
    assert "and its handler keeps" in refusal(code.replace(co_exceptiontable=table[:3] + bytes((6,)) + table[4:]))
    assert "no instruction starts" in refusal(
        code.replace(co_exceptiontable=table[:1] + bytes((table[1] - 3,)) + table[2:])
    )
    assert "expected one after the range" in refusal(
        code.replace(co_exceptiontable=table[:2] + bytes((1,)) + table[3:])
    )


def test_a_callee_in_the_same_frame_raises_at_the_instruction_before():
    """3.14 looks one code unit early when an inlined call raises: the handler of the instruction before must fit
    too."""
    code = function("def f(a):\n try: a(1, 2)\n except E: pass")
    call = find(code, "CALL") // 2
    first, past, target = (
        code.co_exceptiontable[0] & 0x3F,
        sum(code.co_exceptiontable[:2]) & 0x3F,
        code.co_exceptiontable[2],
    )
    split = (
        bytes((0x80 | first, call - first, target, 0, 0x80 | call, past - call, target, 0)) + code.co_exceptiontable[4:]
    )
    verify(code.replace(co_exceptiontable=split))
    deeper = (
        bytes((0x80 | call - 1, 1, target, 1 << 1, 0x80 | call, past - call, target, 0)) + code.co_exceptiontable[4:]
    )
    assert f"@ offset {2 * call} (CALL): raises with 0 slots on the stack, and its handler keeps 1" in refusal(
        code.replace(co_exceptiontable=deeper)
    )


def test_source_positions():
    code = function("def f(a): return a")
    assert "source positions covers" in refusal(code.replace(co_linetable=code.co_linetable[:-2]))
    assert "not well formed" in refusal(code.replace(co_linetable=b"\x01" + code.co_linetable))
    assert "not well formed" in refusal(code.replace(co_linetable=code.co_linetable[:-1] + b"\xf0\x40\x40"))


# -- layout


def test_flags_counts_and_names():
    code = function("def f(a, *b, c=1, **d):\n 'doc'\n return a")
    verify(code)
    assert "unknown flags" in refusal(code.replace(co_flags=code.co_flags | 0x400))
    assert "promise a docstring" in refusal(code.replace(co_consts=(1,) + code.co_consts[1:]))
    assert "iterable coroutine" in refusal(code.replace(co_flags=code.co_flags | 0x100))


@pytest.mark.parametrize("constant", [[], {}, set(), object(), int, bytearray(b"x"), ("a", []), range(3)])
def test_refuses_constants_that_marshal_does_not_make(constant):
    code = function("def f(a): return 'x'")
    assert "constant of type" in refusal(code.replace(co_consts=code.co_consts + (constant,)))


def nested(depth):
    """Nested tuples, each twice in the outer one: 2**depth paths lead to the innermost."""
    inner = ()
    for _ in range(depth):
        inner = (inner, inner)
    return inner


def test_nested_constants_are_looked_at_once_and_to_a_bound():
    code = function("def f(a): return 'x'")
    verify(code.replace(co_consts=code.co_consts + (nested(15),)))
    deep = ()
    for _ in range(210):
        deep = (deep,)
    assert "nested deeper than 200" in refusal(code.replace(co_consts=code.co_consts + (deep,)))


# -- marshalled bytes, before CPython reads them


def marshalled():
    return marshal.dumps(
        compiled("def f(a, b=(1, 2.5, 'x', b'y', 2 ** 99)):\n return [a, b], {1, 2, 3, 4} - {b}, a[1:2]\n")
    )


def test_load_gives_the_code_object():
    for path in SPECIMENS:
        data = marshal.dumps(compiled(path.read_text()))
        assert load(data) == marshal.loads(data)


def test_a_tuple_that_holds_itself_is_refused_before_it_overflows_the_stack():
    plain = marshal.dumps(compiled("x = (None, 7)"))
    referring = [
        plain.replace(b")\x02N\xe9\x07\0\0\0", b"\xa9\x02Nr" + bytes((number, 0, 0, 0))) for number in (0, 1, 2)
    ]
    assert (None, b"") != load(referring[0]).co_consts[1] != (None, 7)  # object 0 is the bytecode: odd, and harmless
    for damaged in referring[1:]:  # object 1 is the tuple itself, object 2 comes later
        with pytest.raises(VerifyError, match="refers to object [12], which is not there yet"):
            load(damaged)


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda data: data[:-1], "beyond the end"),
        (lambda data: data[:-5], "the data ends too early"),
        (lambda data: data + b"N", "1 bytes follow the code object"),
        (lambda data: b"(" + data[1:], "no code object begins here"),
        (lambda data: b"", "no code object begins here"),
        (lambda data: data.replace(b"g", b"f", 1), "is none that code objects hold"),
        (lambda data: data.replace(b")\x06", b"(\xff\xff\xff\x7f"), "beyond the end"),
        (lambda data: data[:21] + b"s\xff\xff\xff\x7f" + data[26:], "beyond the end"),
        (lambda data: data[:21] + b")\x01" * 600 + data[21:], "nested deeper than 500"),
    ],
)
def test_refuses_damaged_bytes(damage, message):
    with pytest.raises(VerifyError) as caught:
        load(damage(marshalled()), where="t.vmb: main")
    assert message in str(caught.value) and str(caught.value).startswith("t.vmb: main: not marshalled code: byte ")


def test_what_cpython_cannot_read_is_a_verify_error():
    data = bytearray(marshalled())
    assert data[21] & 0x7F == ord("s")
    data[21] = ord("a") | data[21] & 0x80  # the bytecode becomes a str
    with pytest.raises(VerifyError, match="CPython can't read it"):
        load(bytes(data))


def test_names_the_innermost_function_and_the_bundle():
    module = compiled("class A:\n def f(self):\n  def g(a): return a + 1\n  return g")

    def damage(code):
        inner = tuple(damage(each) if isinstance(each, types.CodeType) else each for each in code.co_consts)
        code = code.replace(co_consts=inner)
        return patched(code, "BINARY_OP", 99) if code.co_name == "g" else code

    with pytest.raises(VerifyError) as caught:
        verify(damage(module), where="t.vmb: main.py")
    assert str(caught.value).startswith("t.vmb: main.py: function A.f.<locals>.g @ offset ")
    assert caught.value.qualname == "A.f.<locals>.g" and isinstance(caught.value, BundleError)


def test_a_python_without_a_table_is_named(monkeypatch):
    opcodes.table.cache_clear()
    monkeypatch.setattr(sys, "version_info", (3, 99, 0, "final", 0))
    try:
        with pytest.raises(BundleError, match="no verifier table for Python 3.99, only for 3.14"):
            verify(compiled("1"))
    finally:
        opcodes.table.cache_clear()


# -- in a bundle


def test_damage_that_was_signed_is_a_bundle_error():
    """The code was damaged before it was signed: signature and digests fit, and its structure is refused."""
    key = generate_key()
    module = compiled("def run(value):\n return value + 1")
    inner = next(each for each in module.co_consts if isinstance(each, types.CodeType))
    damaged = module.replace(
        co_consts=tuple(patched(each, "BINARY_OP", 99) if each is inner else each for each in module.co_consts)
    )
    manifest = Manifest(name="sample", version="1.0.0", entry="main:run")
    for code, sound in ((module, True), (damaged, False)):
        data = write_bundle(manifest, {"main": Module(False, marshal.dumps(code))}, key=key)
        bundle = read_bundle(data, TrustStore.of(ours=key.public))
        if sound:
            bundle.verify()
            continue
        with pytest.raises(BundleError, match=r"module main: function run @ offset \d+ \(BINARY_OP\): operand 99"):
            bundle.verify()


def test_a_generic_class_within_a_class_reads_its_own_parameters():
    """CPython's code looks into the class's namespace first, assumes a tuple there, and is refused."""
    source = "class M(type):\n __prepare__ = classmethod(lambda *a, **k: {'.type_params': 5})\n"
    source += "class A(metaclass=M):\n class B[T]: pass\n"
    with pytest.raises(VerifyError, match="finds some object at depth 1, expected tuple"):
        verify(compile(source, "sample.py", "exec", dont_inherit=True))
    code = load(compile_source(source.encode(), "sample.py", "sample.py"))
    verify(code)
    namespace = {"__name__": "sample"}
    exec(code, namespace)
    inner = vars(namespace["A"])["B"]
    assert inner.__type_params__ == inner.__parameters__ != ()
