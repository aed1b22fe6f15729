"""Batches: each case runs, each failure is reported by its name, and fixtures are those of pytest."""

import pytest

from tests import batches
from tests.batches import each


def made(fails=(), ids=None):
    seen = []

    @each("right", [10, pytest.param(20, id="twenty")], ids)
    @each(("left", "more"), [(1, "a"), (2, "b")])
    def test(fixture, left, more, right):
        seen.append((fixture, left, more, right))
        assert (left, right) not in fails, f"{left} and {right}"

    return test, seen


def test_all_cases_run_with_the_fixtures_that_are_left():
    test, seen = made()
    test(fixture="f")
    assert seen == [("f", 1, "a", 10), ("f", 1, "a", 20), ("f", 2, "b", 10), ("f", 2, "b", 20)]
    assert str(test.__signature__) == "(fixture)" and test.__name__ == "test"


def test_every_failure_is_told_by_its_case_and_the_others_run():
    test, seen = made(fails=[(1, 10), (2, 20)])
    with pytest.raises(AssertionError) as failed:
        test(fixture=None)
    message = str(failed.value)
    assert message.startswith("2 of 4 cases failed\n") and len(seen) == 4
    assert (
        "case 10-1-a:" in message
        and "case twenty-2-b:" in message
        and "1 and 10" in message
        and "test_batches.py" in message
    )


def test_many_failures_get_a_line_each(monkeypatch):
    monkeypatch.setattr(batches, "TOLD_WHOLE", 0)
    test, _ = made(fails=[(1, 10), (2, 20)])
    with pytest.raises(
        AssertionError, match=r"^2 of 4 cases failed\ncase 10-1-a: AssertionError: 1 and 10\ncase twenty"
    ):
        test(fixture=None)


def test_what_pytest_raises_itself_is_a_failure_and_a_skip_is_none():
    seen = []

    @each("value", [1, 2, 3])
    def test(value):
        seen.append(value)
        {1: pytest.skip, 2: pytest.fail}.get(value, print)("not here")

    with pytest.raises(AssertionError, match="^1 of 3 cases failed\n\ncase 2:"):
        test()
    assert seen == [1, 2, 3]

    @each("value", [1, 2])
    def skipped(value):
        pytest.skip(f"not {value}")

    with pytest.raises(pytest.skip.Exception, match="not 1"):
        skipped()


def test_a_case_is_chosen_by_its_name(monkeypatch):
    monkeypatch.setattr(batches, "chosen", "twenty-1")
    test, seen = made()
    test(fixture=0)
    assert seen == [(0, 1, "a", 20)]


def test_names_of_cases():
    assert [batches._case(["x"], 3, value, None)[0] for value in (1, "a", None, len, [1])] == [
        "1", "a", "None", "len", "x3"
    ]  # fmt: skip
    assert batches._case(["x"], 1, 5, ["one", "other"])[0] == "other" and batches._case(["x"], 0, 5, hex)[0] == "0x5"
    with pytest.raises(TypeError, match="marks"):
        batches._case(["x"], 0, pytest.param(1, marks=pytest.mark.skip), None)
    with pytest.raises(ValueError, match="zip"):
        batches._case(["x", "y"], 0, (1,), None)


@each("value", [1, 2])
@pytest.mark.parametrize("other", [3, 4])
def test_it_goes_with_parametrize_and_fixtures(tmp_path, value, other):
    assert value < other and tmp_path.is_dir()
