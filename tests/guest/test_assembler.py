"""Functions written from recipes: the same instructions as the running Python's compiler writes."""

import dataclasses
import dis
import inspect
import keyword
import string

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vmhost.guest import assembler
from vmhost.guest.texts import NoCompilerError
from vmhost.isolation import vm as isolation

native = isolation.core()


def seen(code):
    """All of a code object but its columns, the order of its constants and how its names are numbered."""
    # The compiler loses track of variables after the 64th, and checks parameters that are always there.
    instructions = [
        ("LOAD_FAST_BORROW" if one.opname == "LOAD_FAST_CHECK" else one.opname, one.argval, one.line_number)
        for one in dis.get_instructions(code)
    ]
    return {
        "instructions": instructions,
        "stack": code.co_stacksize,
        "flags": code.co_flags,
        "variables": code.co_varnames,
        "free": code.co_freevars,
        "cells": code.co_cellvars,
        "arguments": (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount),
        "names": (code.co_name, code.co_qualname, code.co_filename, code.co_firstlineno),
        "exceptions": code.co_exceptiontable,
        "lines": list(lines_by_offset(code)),
    }


def lines_by_offset(code):
    for start, end, line in code.co_lines():
        yield from ((offset, line) for offset in range(start, end, 2))


class Recording(dataclasses._FuncBuilder):
    """dataclasses' own builder; keeps its arguments."""

    kept = []

    def __init__(self, globals):
        super().__init__(globals)
        self.parts = []

    def add_fn(self, name, args, body, *, locals=None, decorator=None, **options):
        self.parts.append((name, args, body, decorator))
        super().add_fn(name, args, body, locals=locals, decorator=decorator, **options)

    def add_fns_to_class(self, cls):
        text = (
            f"def __create_fn__({','.join(self.locals)}):\n"
            + "\n".join(self.src)
            + f"\n return ({','.join(self.names)},)"
        )
        self.kept.append((text, dict(self.locals), self.parts))
        super().add_fns_to_class(cls)


def functions_of(*arguments, **options):
    """(compiled functions, assembled functions) of a dataclass."""
    kept = Recording.kept = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(dataclasses, "_FuncBuilder", Recording)
        dataclasses.make_dataclass("C", *arguments, **options)
    ((text, variables, definitions),) = kept
    namespace = {}
    exec(compile(text, "<string>", "exec"), namespace)
    return namespace["__create_fn__"](**variables), assembler.dataclass_functions(
        native, namespace, variables, definitions
    )


def assert_same(compiled, assembled):
    compiled, assembled = inspect.unwrap(compiled), inspect.unwrap(assembled)
    expected, found = seen(compiled.__code__), seen(assembled.__code__)
    for what in expected:
        assert found[what] == expected[what], (compiled.__name__, what)
    for what in ("__name__", "__defaults__", "__kwdefaults__", "__module__", "__doc__", "__annotations__"):
        assert getattr(assembled, what) == getattr(compiled, what), what
    contents = [[cell.cell_contents for cell in function.__closure__ or ()] for function in (compiled, assembled)]
    assert contents[0] == contents[1]


names = st.text(string.ascii_lowercase + "_", min_size=1, max_size=6).filter(
    lambda name: (
        name.isidentifier()
        and not name.startswith("__")
        and name not in ("super", "_", "_cls")
        and not keyword.iskeyword(name)
    )
)
options = st.fixed_dictionaries(
    {}, optional={name: st.booleans() for name in ("init", "repr", "compare", "kw_only", "hash")}
)


@st.composite
def fields(draw, max_count=12):
    """Fields of a dataclass, those without a default first."""
    drawn = []
    for name in draw(st.lists(names, max_size=max_count, unique=True)):
        kind = draw(st.sampled_from(["plain", "default", "factory", "variable"]))
        given_options = draw(options)
        if kind == "plain":
            drawn.append((0, (name, int, dataclasses.field(**given_options))))
        elif kind == "factory":
            drawn.append((1, (name, list, dataclasses.field(default_factory=list, **given_options))))
        elif kind == "default":
            drawn.append((1, (name, int, dataclasses.field(default=5, **given_options))))
        else:
            drawn.append((1, (name, dataclasses.InitVar[int], 3)))
    return [field for _, field in sorted(drawn, key=lambda each: each[0])]


# Above 30 values CPython's compiler saves stack by building lists; the assembler writes the short code always.
@settings(max_examples=150, deadline=None)
@given(fields(), st.booleans(), st.booleans(), st.booleans(), st.booleans())
@example([], True, True, True, True)
@example([(f"f{index}", int) for index in range(14)], True, False, True, True)
@example(["self", "other", "value"], True, False, False, True)
def test_dataclasses_are_what_the_compiler_writes(fields, frozen, slots, post_init, kw_only):
    namespace = {"__post_init__": lambda *passed: None} if post_init else {}
    compiled, assembled = functions_of(
        fields, frozen=frozen, slots=slots, order=True, unsafe_hash=True, kw_only=kw_only, namespace=namespace
    )
    assert len(compiled) == len(assembled) >= 8
    for one, other in zip(compiled, assembled, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("count", [15, 16, 17, 100, 255, 256, 300, 1100])
def test_many_fields_need_wide_operands(count):
    """The form of __init__ and __eq__ does not depend on the number of fields, so they stay comparable."""
    compiled, assembled = functions_of([(f"f{index}", int) for index in range(count)])
    for one, other in zip(compiled, assembled, strict=True):
        if one.__name__ != "__repr__":
            assert_same(one, other)


@settings(max_examples=50, deadline=None)
@given(st.lists(names, max_size=20, unique=True))
@example([f"f{index}" for index in range(29)])
def test_named_tuples_are_what_the_compiler_writes(fields):
    arguments = ", ".join(fields) + ("," if len(fields) == 1 else "")
    compiled = eval(f"lambda _cls, {arguments}: _tuple_new(_cls, ({arguments}))").__code__
    assert seen(assembler.namedtuple_new(native, fields)) == seen(compiled)


def test_methods_share_the_cell_of_the_class():
    """dataclass(slots=True) makes a new class and puts it into the one cell that it finds."""
    _, assembled = functions_of(["a"], frozen=True)
    cells = {
        function.__name__: dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
        for function in assembled
    }
    assert cells["__setattr__"]["__class__"] is cells["__delattr__"]["__class__"]


@pytest.mark.parametrize("name", ["class", "a b", "", "1", "a\n", "a=1", "__debug__", "a)", "None"])
def test_what_cannot_be_a_name_is_a_syntax_error(name):
    with pytest.raises(SyntaxError, match="cannot be the name of a field"):
        assembler.namedtuple_new(native, [name])


@pytest.mark.parametrize(
    ("name", "parameters", "body"),
    [
        ("__init__", ["self", "a"], ["  self.a=a+1"]),
        ("__init__", ["self", "a"], ["  import os"]),
        ("__init__", ["self"], ["  self.a.b=c()[0]"]),
        ("__init__", ["self", "a"], ["  self.a=f() if a is MARK else a"]),
        ("__repr__", ["self"], ["  return 'x'"]),
        ("__repr__", ["self", "a"], ['  return f"{self.__class__.__qualname__}()"']),
        ("__eq__", ["self", "other"], ["  return True"]),
        ("__lt__", ["self", "other"], ["  pass"]),
        ("__hash__", ["self"], ["  return 3"]),
        ("__setattr__", ["self", "name", "value"], ["  if x:", "   pass", "  pass"]),
        ("__delattr__", ["self"], ["  pass"] * 3),
        ("__call__", [], []),
    ],
)
def test_an_unknown_shape_is_refused_and_never_guessed(name, parameters, body):
    with pytest.raises((NoCompilerError, SyntaxError)):
        assembler.dataclass_functions(native, {}, {}, [(name, parameters, body, None)])
