"""Code objects that the native core writes from recipes: the verifier accepts each, and a recipe that makes no sense is
refused."""

import functools
import importlib
import inspect
import itertools
import random
import types

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.batches import each
from tests.hosts import bundle
from vmhost import Host
from vmhost.bytecode.corrections import compile_corrected
from vmhost.bytecode.verifier import verify
from vmhost.isolation import vm as isolation

native = isolation.core()

# Any identifier, the names that the code itself uses among them; a small choice, so that some meet.
names = st.sampled_from(
    [
        "a",
        "b",
        "self",
        "other",
        "name",
        "value",
        "_cls",
        "type",
        "super",
        "hash",
        "_tuple_new",
        "__class__",
        "é",
        "변수",
        "NotImplemented",
        "FrozenInstanceError",
        "__dataclass_HAS_DEFAULT_FACTORY__",
        "__dataclass_builtins_object__",
    ]
)
distinct = st.lists(st.one_of(names, st.integers(0, 999).map("f{}".format)), min_size=1, max_size=40, unique=True).map(
    tuple
)
texts = st.one_of(names, st.text(max_size=5), st.just("a\0b"), st.just("\udc80"))
lines = st.sampled_from([1, 2, 63, 64, 5000, 1 << 24])
METHODS = ["__repr__", "__eq__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__", "__setattr__", "__delattr__"]


@st.composite
def init_details(draw):
    parameters = draw(distinct)
    own = st.sampled_from(parameters)
    around = names.filter(lambda name: name not in parameters)
    value = st.one_of(
        st.tuples(st.just("parameter"), own),
        st.tuples(st.just("variable"), around),
        st.tuples(st.just("factory"), around),
        st.tuples(st.just("given"), own, around),
    )
    step = st.one_of(
        st.just(("pass",)),
        st.tuples(st.just("field"), names, value).map(lambda each: (*each[:2], *each[2])),
        st.tuples(st.just("frozen"), texts, value).map(lambda each: (*each[:2], *each[2])),
    )
    steps = draw(st.lists(step, min_size=1, max_size=30).map(tuple))
    if draw(st.booleans()):
        steps += (("post_init", draw(st.lists(own, max_size=20).map(tuple))),)
    if {"__dataclass_HAS_DEFAULT_FACTORY__", "__dataclass_builtins_object__"} & set(parameters):
        steps = tuple(one for one in steps if one[0] != "frozen" and "given" not in one) or (("pass",),)
    return parameters, draw(st.integers(1, len(parameters))), steps


def accepted(code):
    verify(code, closure=True)
    return code


@settings(max_examples=120)
@given(init_details(), lines, lines)
def test_the_verifier_accepts_every_init(details, first, body):
    first, body = sorted((first, body))
    code = accepted(native.method_code("__init__", first, body, *details))
    assert code.co_varnames == details[0] and code.co_argcount == details[1]


@settings(max_examples=150)
@given(st.sampled_from(METHODS), st.lists(names, max_size=40).map(tuple), lines)
@example("__eq__", ("a",) * 2000, 1)
@example("__lt__", ("a",) * 2000, 1)
@example("__repr__", tuple(f"f{index}" for index in range(2000)), 1)
def test_the_verifier_accepts_every_other_method(name, fields, line):
    accepted(native.method_code(name, line, line, fields, *([fields] if name == "__repr__" else [])))


@settings(max_examples=100)
@given(distinct)
def test_the_verifier_accepts_every_named_tuple(fields):
    fields = tuple(field for field in fields if field != "_cls")
    accepted(native.namedtuple_code(fields))


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 255, 256, 257])
def test_the_verifier_accepts_operands_of_each_width(count):
    fields = tuple(f"f{index}" for index in range(count))
    accepted(native.namedtuple_code(fields))
    for name in METHODS:
        accepted(native.method_code(name, 1, 2, fields, *([fields] if name == "__repr__" else [])))
    steps = tuple(("field", field, "given", field, f"make_{field}") for field in fields) or (("pass",),)
    code = accepted(native.method_code("__init__", 1, 2, ("self", *fields), 1, steps))
    assert len(code.co_freevars) == (count + 1 if count else 0)


def test_as_many_fields_as_there_can_be():
    fields = tuple(f"f{index}" for index in range(65535))
    new = types.FunctionType(native.namedtuple_code(fields), {"_tuple_new": lambda cls, values: values})
    assert new(tuple, *range(65535)) == tuple(range(65535))
    owner = types.SimpleNamespace(**dict.fromkeys(fields, 1))
    equal = types.FunctionType(native.method_code("__eq__", 1, 1, fields), {})
    assert equal(owner, types.SimpleNamespace(**dict.fromkeys(fields, 1)))
    assert not equal(owner, types.SimpleNamespace(**dict.fromkeys(fields[:-1], 1), f65534=2))


def test_a_generator_function_becomes_awaitable_and_nothing_else_does():
    def generator(value, *rest, **more):
        held = value
        got = yield from (lambda: [held, *[each for each in rest], more])()
        return got

    code = accepted(native.coroutine_code(generator.__code__))
    assert code == generator.__code__.replace(co_flags=generator.__code__.co_flags | 0x100)
    function = types.FunctionType(code, globals(), "made", None, generator.__closure__)

    async def awaits():
        return await function(1)

    with pytest.raises(StopIteration):
        running = awaits()
        for _ in range(10):
            running.send(None)

    async def stream():
        yield 1

    for other in (awaits, stream, test_operators_are_counted):
        with pytest.raises(ValueError, match="is no generator function"):
            native.coroutine_code(other.__code__)
    for junk in (None, generator, b"", type("Fake", (), {"co_flags": 0x20})()):
        with pytest.raises(TypeError):
            native.coroutine_code(junk)


def test_operators_are_counted():
    """The stack that the code asks for is what its instructions need: the verifier refuses less, and the compiler asks
    for no more."""
    for count in (0, 1, 5, 20):
        fields = tuple(f"f{index}" for index in range(count))
        text = "lambda self: hash((" + "".join(f"self.{field}," for field in fields) + "))"
        assert native.method_code("__hash__", 1, 1, fields).co_stacksize == eval(text).__code__.co_stacksize


class Text(str):
    """Says something else each time."""

    looks = itertools.count()

    def __hash__(self):
        return next(self.looks)

    def __eq__(self, other):
        return next(self.looks) % 2


class Items(tuple):
    def __iter__(self):
        raise AssertionError("asked")

    __len__ = __getitem__ = __iter__


class Number(int):
    def __index__(self):
        raise AssertionError("asked")


SELF = ("self", "a")
REFUSED = {
    "a list": lambda: native.namedtuple_code(["a"]),
    "a tuple of another type": lambda: native.namedtuple_code(Items(["a"])),
    "a text of another type": lambda: native.namedtuple_code((Text("a"),)),
    "bytes": lambda: native.namedtuple_code((b"a",)),
    "no identifier": lambda: native.namedtuple_code(("a b",)),
    "a name that only the compiler can write": lambda: native.namedtuple_code((".defaults",)),
    "a name with a NUL": lambda: native.namedtuple_code(("a\0",)),
    "a surrogate": lambda: native.namedtuple_code(("\udc80",)),
    "a name twice": lambda: native.namedtuple_code(("a", "a")),
    "the class's own parameter": lambda: native.namedtuple_code(("_cls",)),
    "too many fields": lambda: native.namedtuple_code(tuple(f"f{index}" for index in range(65536))),
    "an unknown method": lambda: native.method_code("__call__", 1, 1, ()),
    "a method's name of another type": lambda: native.method_code(Text("__eq__"), 1, 1, ()),
    "nothing at all": lambda: native.method_code(),
    "details missing": lambda: native.method_code("__init__", 1, 1, SELF),
    "details too many": lambda: native.method_code("__eq__", 1, 1, (), ()),
    "keywords": lambda: native.method_code(name="__eq__"),
    "line 0": lambda: native.method_code("__eq__", 0, 0, ()),
    "a line below zero": lambda: native.method_code("__eq__", 1, -5, ()),
    "a line that goes back": lambda: native.method_code("__eq__", 5, 4, ()),
    "a line beyond": lambda: native.method_code("__eq__", 1, (1 << 24) + 1, ()),
    "a line far beyond": lambda: native.method_code("__eq__", 1, 1 << 80, ()),
    "a line of another type": lambda: native.method_code("__eq__", Number(1), 1, ()),
    "a line that is a bool": lambda: native.method_code("__eq__", True, 1, ()),
    "fields not shown": lambda: native.method_code("__repr__", 1, 1, ("a",), ()),
    "fields shown as no text": lambda: native.method_code("__repr__", 1, 1, ("a",), (1,)),
    "a frozen field of another type": lambda: native.method_code("__setattr__", 1, 1, (Text("a"),)),
    "no parameters": lambda: native.method_code("__init__", 1, 1, (), 0, (("pass",),)),
    "no parameter by position": lambda: native.method_code("__init__", 1, 1, SELF, 0, (("pass",),)),
    "more by position than there are": lambda: native.method_code("__init__", 1, 1, SELF, 3, (("pass",),)),
    "a count of another type": lambda: native.method_code("__init__", 1, 1, SELF, Number(1), (("pass",),)),
    "a count beyond": lambda: native.method_code("__init__", 1, 1, SELF, 1 << 70, (("pass",),)),
    "no body": lambda: native.method_code("__init__", 1, 1, SELF, 1, ()),
    "a __post_init__ in the midst": lambda: native.method_code(
        "__init__", 1, 1, SELF, 1, (("post_init", ()), ("pass",))
    ),
    "a body that is a list": lambda: native.method_code("__init__", 1, 1, SELF, 1, [("pass",)]),
    **{
        f"the step {step!r}": lambda step=step: native.method_code("__init__", 1, 1, SELF, 1, (step,))
        for step in [
            None,
            (),
            "pass",
            ["pass"],
            ("pass", 1),
            ("jump",),
            (1,),
            (b"pass",),
            (Text("pass"),),
            Items(("pass",)),
            ("post_init",),
            ("post_init", ["a"]),
            ("post_init", ("b",)),
            ("post_init", (1,)),
            ("post_init", ("a",), 1),
            ("post_init", (Text("a"),)),
            ("field",),
            ("field", "a"),
            ("field", "a", "parameter"),
            ("field", "a", "parameter", "b"),
            ("field", "a", "parameter", "a", "a"),
            ("field", "a", "parameter", Text("a")),
            ("field", "a", "parameter", ["a"]),
            ("field", "a", "variable", "a"),
            ("field", "a", "variable", 1),
            ("field", "a", "factory", "a"),
            ("field", "a", "factory", ".x"),
            ("field", "a", "other", "a"),
            ("field", "a", Text("parameter"), "a"),
            ("field", "a b", "parameter", "a"),
            ("field", ".x", "parameter", "a"),
            ("field", 5, "parameter", "a"),
            ("field", "a", "given", "a"),
            ("field", "a", "given", "b", "make"),
            ("field", "a", "given", "a", "a"),
            ("field", "a", "given", "a", None),
            ("field", "a", "given", "a", "make", 1),
            ("frozen", b"a", "parameter", "a"),
            ("frozen", Text("a"), "parameter", "a"),
            ("frozen", "a"),
        ]
    },
}


@each("name", REFUSED)
def test_a_recipe_that_makes_no_sense_is_refused(name):
    with pytest.raises((TypeError, ValueError)):
        REFUSED[name]()


def test_random_recipes_are_refused_or_verified():
    """Valid recipes with one item or more replaced by junk."""
    seed = 20261123
    print("seed", seed)
    chance = random.Random(seed)
    junk = [
        None,
        0,
        1,
        -1,
        1 << 40,
        "a",
        "self",
        ".x",
        "",
        "\udc80",
        b"a",
        (),
        ("a",),
        ["a"],
        Text("a"),
        Items("a"),
        Number(1),
        "pass",
        "field",
        "given",
        "parameter",
        ("pass",),
        ("field", "a", "parameter", "a"),
        float("nan"),
        True,
    ]
    steps = (("field", "a", "given", "a", "make"), ("frozen", "b", "variable", "v"), ("pass",), ("post_init", ("a",)))
    accepted = 0
    for _ in range(20000):

        def change(value):
            if chance.random() < 0.06:
                return chance.choice(junk)
            return tuple(map(change, value)) if type(value) is tuple else value

        recipe = chance.choice(
            [
                ("__init__", 2, 3, SELF, 1, steps),
                ("__eq__", 2, 3, SELF),
                ("__setattr__", 2, 3, SELF),
                ("__repr__", 2, 3, SELF, SELF),
            ]
        )
        try:
            code = native.method_code(*map(change, recipe))
        except TypeError, ValueError:
            continue
        accepted += 1
        if accepted % 20 == 0:
            verify(code, closure=True)
    assert 1000 < accepted < 19000


def codes_in(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_in(constant)


def test_renamed_code_is_what_the_compiler_makes_of_the_other_names():
    text = """
def outer_1(first_1, *rest_1, key_1=1001):
    held_1 = first_1
    class Inner_1:
        def method_1(self):
            nonlocal held_1
            held_1 = -1001, self.attribute_1, lambda: (held_1, first_1)
            return super().method_1(key_1=held_1, other=1000, **global_1)
    return Inner_1().method_1, ("key_1", (1001, "outer_1.text"))
"""
    renames = {f"{name}_1": f"{name}_2" for name in "outer first rest key held Inner method attribute global".split()}
    code = compile(text, "f", "exec")
    made = accepted(native.renamed_code(code, {**renames, 1001: 2002, -1001: -2002}))
    expected = compile(
        text.replace("_1", "_2").replace("1001", "2002").replace("outer_2.text", "outer_1.text"), "f", "exec"
    )
    assert made == expected
    for mine, theirs in zip(codes_in(made), codes_in(expected), strict=True):
        assert mine == theirs and mine.co_qualname == theirs.co_qualname
        assert mine.co_varnames + mine.co_cellvars + mine.co_freevars == (
            theirs.co_varnames + theirs.co_cellvars + theirs.co_freevars
        )


@pytest.mark.parametrize(
    "renames",
    [
        {"argument": "cell"},
        {"cell": "argument"},
        {"cell": "local"},
        {"local": "cell"},
        {"free": "local"},
        {"argument": "local"},
        {"other": "argument"},
        {"a": "b", "local": "x", "cell": "x"},
    ],
)
def test_no_two_variables_get_one_name(renames):
    def function():
        free = 1

        def inner(argument, other):
            local = cell = argument
            return lambda: (cell, other, free), local

        return inner

    with pytest.raises(ValueError, match="two variables of a function would have one name"):
        native.renamed_code(function().__code__, renames)


@each(
    ("arguments", "error"),
    [
        ((), TypeError),
        ((1, {}), TypeError),
        (((lambda: 1).__code__,), TypeError),
        (((lambda: 1).__code__, []), TypeError),
        (((lambda: 1).__code__, types.MappingProxyType({})), TypeError),
        (((lambda: 1).__code__, type("Fake", (dict,), {})(a="b")), TypeError),
        (((lambda: 1).__code__, {"a": 1}), TypeError),
        (((lambda: 1).__code__, {1: "a"}), TypeError),
        (((lambda: 1).__code__, {"a": b"b"}), TypeError),
        (((lambda: 1).__code__, {"a": type("T", (str,), {})("b")}), TypeError),
        (((lambda: 1).__code__, {5: True}), TypeError),
        (((lambda: 1).__code__, {"a": "b c"}), ValueError),
        (((lambda: 1).__code__, {"a": ".defaults"}), ValueError),
        (((lambda: 1).__code__, {".0": "a"}), ValueError),
        (((lambda: 1).__code__, {"": "a"}), ValueError),
        (((lambda: 1).__code__, {"a": ""}), ValueError),
        (((lambda: 1).__code__, {"a": "__class__"}), ValueError),
        (((lambda: 1).__code__, {"__classdict__": "a"}), ValueError),
        (((lambda: 1).__code__, {"a": "____"}), ValueError),
        (((lambda: 1).__code__, {"__a1__": "__class__"}), ValueError),
    ],
)
def test_other_renames_are_refused(arguments, error):
    with pytest.raises(error):
        native.renamed_code(*arguments)


def test_relocated_code_differs_in_where_it_is_from_alone():
    text = "\n" * 7 + "def outer(x):\n    def inner():\n        return lambda: x\n    return inner\nout = outer(1)\n"
    code = compile(text.lstrip("\n"), "old", "exec")
    made = accepted(native.relocated_code(code, "new", None, None, 7, True))
    expected = compile(text, "new", "exec")
    for mine, theirs in zip(codes_in(made), codes_in(expected), strict=True):
        assert (mine.co_filename, mine.co_name, mine.co_qualname) == ("new", theirs.co_name, theirs.co_qualname)
        assert mine.co_code == theirs.co_code
    assert made.co_consts[0].co_firstlineno == expected.co_consts[0].co_firstlineno == 8
    assert [line for *_, line in made.co_consts[0].co_lines()] == [
        line for *_, line in expected.co_consts[0].co_lines()
    ]
    alone = accepted(native.relocated_code(code, "new", "a block", "in a.block", -1, False))
    assert (alone.co_name, alone.co_qualname, alone.co_firstlineno) == ("a block", "in a.block", 0)
    assert alone.co_consts[0] is code.co_consts[0]
    assert native.relocated_code(code, None, None, None, 0, False) == code


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), TypeError),
        (("code", None, None, None, 0, True), TypeError),
        (((lambda: 1).__code__, b"file", None, None, 0, True), TypeError),
        (((lambda: 1).__code__, None, type("Text", (str,), {})("a"), None, 0, True), TypeError),
        (((lambda: 1).__code__, None, None, None, True, True), TypeError),
        (((lambda: 1).__code__, None, None, None, 0, 1), TypeError),
        (((lambda: 1).__code__, None, None, None, 10**30, True), ValueError),
        (((lambda: 1).__code__, None, None, None, 1 << 24, True), ValueError),
        (((lambda: 1).__code__, None, None, None, -(1 << 24), True), ValueError),
    ],
)
def test_other_places_are_refused(arguments, error):
    with pytest.raises(error):
        native.relocated_code(*arguments)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(("argparse", "asyncio.events", "dataclasses", "typing", "inspect", "json.decoder")), st.randoms()
)
def test_the_verifier_accepts_every_renamed_code(module, chance):
    """Any names of real code become any others, also some that are there already."""
    code = compiled(module)
    all_names = sorted(
        {name for each in codes_in(code) for name in (*each.co_names, *each.co_varnames, *each.co_freevars)}
    )
    fit = [name for name in all_names if name.isidentifier() and not (name[:2] == name[-2:] == "__")]
    old = chance.sample(fit, chance.randint(1, len(fit)))
    new = [chance.choice([name, name + "_2", chance.choice(fit), f"n{chance.randint(0, 10**6)}"]) for name in old]
    numbers = {chance.randint(256, 5000): chance.randint(-(10**30), 10**30) for _ in range(20)}
    try:
        made = native.renamed_code(code, {**dict(zip(old, new)), **numbers})
    except ValueError as error:
        assert "two variables" in str(error)
        return
    verify(made)


@functools.cache
def compiled(module):
    return compile_corrected(inspect.getsource(importlib.import_module(module)), module)


def test_a_task_cannot_make_code_of_its_own_by_any_of_them():
    """The runtime's own functions take stand-ins, and a task can call the native ones: what comes out is always one of
    the known shapes."""
    source = """
        import _vmhost
        from vmhost.guest import assembler, texts

        class Fake:
            name = qualname = "f"
            positional = keyword_only = deepest = flags = 0
            first_line = line = 1
            locals = names = constants = marks = {}
            free = ()
            pieces = lines = jumps = []
            def __getattr__(self, name):
                return lambda *args, **kwargs: b""

        def tries():
            yield "make_code", lambda: _vmhost.make_code
            yield "_Function", lambda: assembler._Function.code(Fake(), _vmhost.make_code)
            yield "replacement", lambda: _vmhost.coroutine_code(Fake())
            yield "flags", lambda: _vmhost.coroutine_code(run.__code__)
            yield "renamed stand-in", lambda: _vmhost.renamed_code(Fake(), {})
            yield "renamed to what is no name", lambda: _vmhost.renamed_code(run.__code__, {"ends": ".type_params"})
            yield "renamed to Python's own", lambda: _vmhost.renamed_code(run.__code__, {"ends": "__class__"})
            yield "fake fields", lambda: _vmhost.namedtuple_code(Fake())
            yield "template", lambda: _vmhost.namedtuple_code(run.__code__)
            yield "fake steps", lambda: _vmhost.method_code("__init__", 1, 1, ("self",), 1, (Fake(),))
            yield "instructions", lambda: _vmhost.method_code("__init__", 1, 1, ("self",), 1, (b"\\x00\\x00",))
            yield "keywords", lambda: _vmhost.method_code("__eq__", 1, 1, (), co_code=b"")
            yield "replace", lambda: _vmhost.namedtuple_code(("a",)).replace(co_code=b"")

        def run(value):
            ends = {}
            for name, attempt in tries():
                try:
                    ends[name] = repr(attempt())
                except Exception as error:
                    ends[name] = type(error).__name__
            # what it may do: functions of the known shapes, over its own names
            forged = assembler.dataclass_functions(Fake(), {}, {}, [])
            function = type(run)(_vmhost.method_code("__hash__", 1, 1, ("real", "imag")), {"hash": lambda pair: pair})
            return ends, forged, function(3)
    """
    with Host(allow_unsigned=True) as host:
        ends, forged, pair = host.load(bundle(source))(None)
    assert ends == {
        "make_code": "AttributeError",
        "_Function": "AttributeError",
        "replacement": "TypeError",
        "flags": "ValueError",
        "renamed stand-in": "TypeError",
        "renamed to what is no name": "ValueError",
        "renamed to Python's own": "ValueError",
        "fake fields": "TypeError",
        "template": "TypeError",
        "fake steps": "TypeError",
        "instructions": "TypeError",
        "keywords": "TypeError",
        "replace": "PermissionDenied",
    }
    assert forged == [] and tuple(pair) == (3, 0)
