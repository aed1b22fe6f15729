"""Code without column numbers still has the line of each instruction; the host's code leaves out words of settings."""

import inspect
import marshal

import pytest

from vmhost.image.host_code import host_code
from vmhost.image.line_tables import without_columns

BACKWARDS = (
    """
def f(a):
    return (
        a +
        sum(x
            for x in a) * [
                lambda: 1][
                    0]())
"""
    + "\n" * 3000
    + "far = 1\n"
)


def codes(code):
    yield code
    for inner in code.co_consts:
        if type(inner) is type(code):
            yield from codes(inner)


@pytest.mark.parametrize(
    "source",
    [BACKWARDS, inspect.getsource(inspect), inspect.getsource(inspect.getmodule(pytest.approx))],
    ids=["odd", "inspect", "approx"],
)
def test_lines_stay_and_columns_go(source):
    before = compile(source, "x.py", "exec")
    after = marshal.loads(without_columns(marshal.dumps(before)))
    for old, new in zip(codes(before), codes(after), strict=True):
        assert [line for line, *_ in new.co_positions()] == [line for line, *_ in old.co_positions()]
        assert list(new.co_lines()) == list(old.co_lines())
        assert {column for *_, column in new.co_positions()} <= {None}
        assert new.co_code == old.co_code and new.co_exceptiontable == old.co_exceptiontable


def test_an_image_has_the_settings_without_their_words():
    code = host_code(agent=True)[0]
    assert b"disk_bytes" in code and b"maximum space for bundles" not in code
