"""Named tuples and dataclasses in a process without a compiler: for a user the same as CPython's."""

import ast
from pathlib import Path

import pytest

CLASSES = Path(__file__).parent / "programs" / "classes.py"
COUNTS = "\nimport vmhost.guest.texts as texts\nprint(texts.counts)\n"


def lines(text):
    return text.splitlines()


def test_classes_that_exist_only_at_run_time_are_the_same(programs):
    plain, sealed = programs.plain(CLASSES), programs.sealed(CLASSES)
    assert len(lines(plain)) > 4000
    assert lines(sealed) == lines(plain)


def test_classes_whose_texts_were_compiled_beforehand_are_the_same(programs):
    texts = programs.texts(CLASSES)
    assert len(texts) > 100
    assert lines(programs.sealed(CLASSES, texts)) == lines(programs.plain(CLASSES))


PROGRAM = """
from collections import namedtuple
from dataclasses import dataclass
from typing import NamedTuple

Pair = namedtuple("Pair", "left right")

class Named(NamedTuple):
    name: str
    size: int = 0

@dataclass(order=True, frozen=True)
class Item:
    key: int
    value: str = ""

assert Pair(1, right=2).right == 2 and Named("x").size == 0 and Item(1) < Item(2)
"""


def counts_of(programs, texts):
    return ast.literal_eval(programs.sealed(PROGRAM + COUNTS, texts))


def test_each_way_is_counted(programs):
    texts = programs.texts(PROGRAM)
    own = [text for _, text in texts]
    assert any("left, right" in text for text in own) and any("def __lt__" in text for text in own)
    beforehand, now = counts_of(programs, texts), counts_of(programs, ())
    assert beforehand["precompiled"] >= 3 and beforehand["assembled"] == beforehand["evaluated"] == 0
    assert now == {"precompiled": 0, "assembled": beforehand["precompiled"], "evaluated": 0}


@pytest.mark.parametrize(
    "source", ["eval('1+1')", "exec('x = 1')", "compile('1', '', 'eval')", "(lambda: 0).__code__.replace(co_flags=0)"]
)
def test_the_stand_in_is_sealed(programs, source):
    """The other tests of this folder are valid only if this one passes."""
    assert "PermissionError: sealed: " in programs.sealed_error(source)


def test_a_function_of_unknown_shape_says_what_to_write_instead(programs):
    error = programs.sealed_error(
        "import dataclasses\n"
        "builder = dataclasses._FuncBuilder({})\n"
        "builder.add_fn('__eq__', ('self', 'other'), ['  return [x for x in self]'])\n"
        "builder.add_fns_to_class(type('C', (), {}))\n"
    )
    assert error.startswith("vmhost.guest.texts.NoCompilerError: dataclasses asks for a __eq__ of an unknown shape")
    assert "return [x for x in self]" in error and "define the class in the task's sources" in error


def test_without_the_native_helper_the_error_says_so(programs):
    error = programs.sealed_error(
        "import vmhost.guest.texts as texts\n"
        "texts.install(lambda digest: None, None)\n"
        "import collections\n"
        "collections.namedtuple('P', 'x')\n"
    )
    assert "namedtuple: the guest runtime is not installed in this interpreter" in error
