"""Texts compiled ahead are exactly those that CPython compiles when the classes are defined."""

import collections
import dataclasses
import marshal
import sys
import types

import pytest

from tests.batches import each
from vmhost.bytecode.texts import collect_texts, text_digest

HEAD = """
from collections import namedtuple as nt
import collections, dataclasses, typing
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar
from dataclasses import dataclass, field, InitVar, KW_ONLY
"""


@pytest.fixture
def compiled_by_cpython(monkeypatch):
    """compiled_by_cpython(source) runs a module and gives the digests of all texts that its classes compiled."""

    def run(source):
        seen = set()

        def listening(mode, function):
            def call(text, *arguments):
                seen.add(text_digest(mode, text))
                return function(text, *arguments)

            return call

        monkeypatch.setattr(collections, "eval", listening("eval", eval), raising=False)
        monkeypatch.setattr(dataclasses, "exec", listening("exec", exec), raising=False)
        module = types.ModuleType("defines_classes")
        monkeypatch.setitem(sys.modules, "defines_classes", module)
        exec(compile(source, "defines_classes.py", "exec"), module.__dict__)
        return seen

    return run


@each(
    "source",
    [
        "A = nt('A', 'x y z')",
        "A = nt('A', 'x, y')",
        "A = collections.namedtuple('A', ['q'], defaults=[1])",
        "A = nt('A', 'a def a _b', rename=True)",
        "A = nt('A', ())",
        "A = nt(typename='A', field_names=('p', 'q'))",
        "class A(NamedTuple):\n    x: int\n    y: float = 2.0\n    def area(self): return 1",
        "class A(typing.NamedTuple, Generic[TypeVar('T')]):\n    x: int",
        "A = NamedTuple('A', [('i', int), ('j', str)])",
        (
            "@dataclass\nclass A:\n    a: int\n    b: str = 'x'\n    c: list = field(default_factory=list)\n    k: "
            "ClassVar[int] = 3"
        ),
        "@dataclass\nclass A:\n    i: InitVar[int] = 4\n    def __post_init__(self, i): pass",
        (
            "@dataclass(frozen=True, order=True, slots=True)\nclass A:\n    a: int\n    _: KW_ONLY\n    b:"
            " 'ClassVar[int]' = 4"
        ),
        (
            "@dataclass\nclass A:\n    c: Any = dataclasses.field(default=None, repr=False, compare=False, hash=True, "
            "kw_only=True)"
        ),
        "@dataclass\nclass B:\n    b: int\n@dataclass\nclass A(B):\n    a: int = 0\n    __hash__ = None",
        (
            "@dataclasses.dataclass(eq=False, kw_only=True, weakref_slot=True, slots=True)\nclass"
            " A(Generic[TypeVar('T')]):\n    v: int\n    def __repr__(self): return ''"
        ),
        "@dataclass(init=False, repr=False, unsafe_hash=True)\nclass A:\n    v: int\n    class In: pass",
        "@dataclass(match_args=False)\nclass A: pass",
        (
            "@dataclass()\nclass A:\n    v: int\n    def __eq__(self, other): return True\n    def __hash__(self):"
            " return 1"
        ),
        "def f():\n    @dataclass\n    class A:\n        v: int\n    return A\nf()",
        "class Outer:\n    @dataclass\n    class A:\n        v: 'list[int]'\n        w: 'typing.ClassVar' = 1",
    ],
)
def test_same_texts_as_cpython(compiled_by_cpython, source):
    wanted = compiled_by_cpython(HEAD + source)
    assert wanted
    assert set(collect_texts((HEAD + source).encode())) == wanted


@pytest.mark.parametrize(
    "source",
    [
        "names = 'a b'\ndef f(): return nt('A', names)",
        "def f(): nt('A', 'class')",
        "def f(): nt('A', '1x y')",
        "def f(): nt('A', 7)",
        "def f(o):\n    @dataclass(order=o)\n    class A:\n        a: int",
        "def f(o):\n    @dataclass(**o)\n    class A:\n        a: int",
        "def f(o):\n    @dataclass\n    class A:\n        a: int = field(**o)",
        "def f():\n    @dataclass\n    class A:\n        a: int = 0\n        b: int",
        "x = 'dataclass namedtuple'",
        "def f(): nt()",
        "def f(): NamedTuple('A', a=1)",
    ],
)
def test_what_is_only_known_at_run_time_is_left_to_the_guest(source):
    assert collect_texts((HEAD + source).encode()) == {}


def test_a_text_is_code_that_runs():
    ((digest, code),) = collect_texts(b"from collections import namedtuple\nnamedtuple('A', 'x y')").items()
    assert digest == text_digest("eval", "lambda _cls, x, y: _tuple_new(_cls, (x, y))")
    assert eval(marshal.loads(code), {"_tuple_new": tuple.__new__})(tuple, 1, y=2) == (1, 2)


def test_the_real_dataclasses_module_is_left_alone():
    before = dict(vars(dataclasses))
    collect_texts((HEAD + "@dataclass\nclass A:\n    a: int").encode())
    assert dict(vars(dataclasses)) == before
