"""Expressions read and evaluated without a compiler: the same trees, values and kinds of errors as CPython's."""

import ast
import inspect
import string
import warnings

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from vmhost.guest import expressions
from vmhost.guest.texts import NoCompilerError

NAMES = {
    "a": 3,
    "b": [1, 2, 3],
    "c": {"k": "v", 1: 2},
    "d": "text",
    "e": (1, 2),
    "f": lambda *p, **k: (p, k),
    "g": 2.5,
    "h": True,
    "Optional": __import__("typing").Optional,
    "é": 8,
}


def read(text):
    return expressions.parse(text, "<string>", "eval")


def value_of(text):
    return expressions.evaluate(read(text).body, NAMES, {})


def outcome(function, *arguments):
    try:
        return "value", function(*arguments)
    except Exception as error:
        return "error", type(error), str(error)


atoms = st.one_of(
    st.sampled_from([*NAMES, "int", "None", "True", "...", "missing"]),
    st.integers(0, 10**30).map(str),
    st.integers(0, 255).map(hex),
    st.floats(0, 1e300).map(repr),
    st.floats(0, 9).map(lambda x: f"{x!r}j"),
    st.text(max_size=5).map(repr),
    st.binary(max_size=5).map(repr),
    st.text(string.printable, max_size=4).map(lambda t: ascii(t) + " " + repr(t)),
)


BINARY = [
    "+",
    "-",
    "*",
    "//",
    "/",
    "%",
    "**",
    "<<",
    ">>",
    "|",
    "^",
    "&",
    "@",
    "<",
    "<=",
    ">",
    ">=",
    "==",
    "!=",
    " in ",
    " not in ",
    " is ",
    " is not ",
    " and ",
    " or ",
]
# Each # is an expression of its own.
SHAPES = [
    *(f"#{operator}#" for operator in BINARY),
    "-#",
    "+#",
    "~#",
    "not #",
    "(#)",
    "()",
    "(#,)",
    "(#, #)",
    "#, #",
    "[]",
    "[#]",
    "[#, #]",
    "{#}",
    "{#, #}",
    "{}",
    "{#: #}",
    "{#: #, #: #}",
    "# if # else #",
    "#.real",
    "#[#]",
    "b[#:#]",
    "#[#, ::2, *e]",
    "{**c, 'z': #}",
    "f(#, *e, k=#, **c)",
    "f(#)",
    "[*#, ]",
    "f(*#)",
    "(*#, #)",
]


@st.composite
def sources(draw, depth=3):
    if not depth:
        return draw(atoms)
    return "".join(
        draw(sources(depth=draw(st.integers(0, depth - 1)))) if part == "#" else part
        for part in draw(st.sampled_from(SHAPES))
    )


@settings(max_examples=300, deadline=None)
@given(sources())
@example("a if b else c, *e")
@example("not a == b in c is not d")
@example("-a ** -b ** ~g")
@example('\'a\' \'b\' """c\nd"""')
@example("(\n a # note\n + \\\n 1)\n")
@example("1_000, 0x_f, 0b1, 0o17, 1e3, 1.e-2, .5, 1J, 00")
@example("r'\\n' '\\n\\x41\\u00e9\\N{BULLET}\\101\\q' u'x'")
@example("b'\\xff\\n' rb'\\n'")
@example("Optional['int']")
@example("b[1:2, ::3, :]")
@example("f(a, *b, k=1, **c)")
@example("9 .real")
@example("{**c, 'q': 1}, {*b}, {}")
def test_trees_are_those_of_the_compiler(source):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = outcome(lambda: ast.dump(ast.parse(source, mode="eval")))
    found = outcome(lambda: ast.dump(read(source)))
    if expected[0] == "error":
        assert found[1] is expected[1], (source, found)
    else:
        assert found == expected


@settings(max_examples=200, deadline=None)
@given(sources())
@example("a < 4 < g")
@example("missing")
@example("int | None")
@example("h and a or b")
def test_values_are_those_of_eval(source):
    assume(
        not any(operator in source for operator in ("<<", "*", " is "))
    )  # too big a result, or about equal constants' identity
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = outcome(eval, source, dict(NAMES))
    found = outcome(value_of, source)
    if expected[0] == "error":
        assert found[:2] == expected[:2], (source, found)
    else:
        assert repr(found) == repr(expected)


@pytest.mark.parametrize(
    "source",
    ["f(**c)", "f(k=1, **{'k': 2})", "f(*e, *b)", "[*e, *b]", "{**c, 'k': 1}", "g ** 2", "a << 2", "a is None"],
)
def test_stars_and_powers_give_what_eval_gives(source):
    assert outcome(value_of, source)[:2] == outcome(eval, source, dict(NAMES))[:2]


@pytest.mark.parametrize(
    "source",
    [
        "",
        " a",
        "a b",
        "a +",
        "(a",
        "a)",
        "[a",
        "{a",
        "a.",
        "a..b",
        "a[",
        "a[]",
        "f(a b)",
        "f(k=1, a)",
        "f(a=1, a=2)",
        "1a",
        "0777",
        "1__0",
        "'a",
        "b'é'",
        "'a' b'b'",
        "class",
        "a = 1",
        "a; b",
        "*a",
        "a if b",
        "lambda",
        "x y z",
        "a, , b",
        "f(,)",
        "{a: b, c}",
        "'\\x4'",
        "'\\N{NO SUCH NAME}'",
        "a\nb",
        "$",
        "(a := 1",
        "is",
        "not",
        "pass",
        "\0",
    ],
)
def test_what_is_no_expression_is_a_syntax_error(source):
    with pytest.raises(SyntaxError):
        compile(source, "<string>", "eval")
    with pytest.raises((SyntaxError, NoCompilerError) if ":=" in source or "lambda" in source else SyntaxError):
        read(source)


@pytest.mark.parametrize(
    ("source", "construct"),
    [
        ("lambda: 1", "a lambda"),
        ("[x for x in a]", "a comprehension"),
        ("f(x for x in a)", "a comprehension"),
        ("(x := 1)", "an assignment"),
        ("f'{a}'", "a f-string"),
        ("t'{a}'", "a t-string"),
        ("rF'{a}'", "a f-string"),
        ("(yield)", "yield"),
        ("await a", "await"),
    ],
)
def test_what_holds_code_names_the_construct_and_the_way_out(source, construct):
    with pytest.raises(NoCompilerError, match="a VM has none; .*write it|a VM has none; write the string") as caught:
        read(source)
    assert construct in str(caught.value) and source in str(caught.value)


def test_a_program_is_refused_with_what_to_do():
    with pytest.raises(NoCompilerError, match='only expressions can be read there, with mode="eval"'):
        expressions.parse("x = 1", "<string>", "exec")


def test_deep_nesting_is_a_syntax_error_and_not_a_crash():
    with pytest.raises(SyntaxError, match="too many nested parentheses"):
        read("(" * 100_000 + ")" * 100_000)
    with pytest.raises(SyntaxError, match="too many nested"):
        read("-" * 100_000 + "1")
    with pytest.raises(SyntaxError, match="too many nested"):
        read("not " * 100_000 + "1")


def test_signatures_of_builtins_are_read_as_the_compiler_reads_them():
    import _io
    import builtins
    import datetime
    import itertools
    import math
    import time

    found = 0
    for module in (
        builtins,
        math,
        itertools,
        time,
        datetime,
        _io,
        __import__("_functools"),
        __import__("_sqlite3"),
        __import__("zlib"),
    ):
        for value in vars(module).values():
            for each in (value, *(vars(value).values() if isinstance(value, type) else ())):
                text = getattr(each, "__text_signature__", None)
                if not isinstance(text, str):
                    continue
                program = f"def foo{inspect._signature_strip_non_python_syntax(text)[0]}: pass"
                expected = outcome(lambda: ast.dump(ast.parse(program)))
                if expected[0] == "value":
                    found += 1
                    assert outcome(lambda: ast.dump(expressions.parse(program))) == expected
    assert found > 300
