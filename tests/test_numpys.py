"""How NumPy's own tests are filed: what a run is held against, and what stands in NumPy's place."""

import numpy
import pytest

import vmhost.engine.numpy
from tests.numpys import filing
from tests.numpys.exchange import to_numpy

FILE = "numpy/lib/tests/test_x.py"


def compared(outcomes, lines):
    return filing.compare({name: (outcome, "") for name, outcome in outcomes.items()}, filing.Filed("2", lines), [FILE])


def test_a_run_that_is_as_filed():
    outcomes = {f"{FILE}::test_a": "passed", f"{FILE}::TestB::test_c[1]": "failed", f"{FILE}::TestB::test_d": "failed"}
    assert compared(outcomes, {f"{FILE}::TestB::*": "dates"}) == []


@pytest.mark.parametrize(
    "outcomes, lines, says",
    [
        ({"test_a": "failed"}, {}, "fails and is not filed"),
        ({"test_a": "passed"}, {"test_a": "dates"}, "passes and is filed (dates)"),
        (
            {"TestB::test_c[1]": "failed", "TestB::test_c[2]": "passed"},
            {"TestB::test_c[*": "text"},
            "passes and is filed (text)",
        ),
        ({"test_a": "passed"}, {"test_b": "dates"}, "no test has the name"),
        ({"test_a": "skipped"}, {"test_a": "dates"}, "no test has the name"),
    ],
)
def test_a_run_that_is_not_as_filed(outcomes, lines, says):
    outcomes = {f"{FILE}::{name}": outcome for name, outcome in outcomes.items()}
    (told,) = compared(outcomes, {f"{FILE}::{name}": reason for name, reason in lines.items()})
    assert says in told


def test_failures_are_filed_in_groups_of_one_reason_without_a_pass(tmp_path, monkeypatch):
    monkeypatch.setattr(filing, "_FILED", tmp_path / "filed.txt")
    monkeypatch.setattr(filing, "_FIGURES", tmp_path / "figures.json")
    dates, text = "TypeError: data type 'M8' not understood", "AttributeError: text has no dtype here"
    outcomes = {
        f"{FILE}::TestA::test_a[1]": ("failed", dates),
        f"{FILE}::TestA::test_a[2]": ("failed", dates),
        f"{FILE}::TestA::test_b": ("failed", dates),
        f"{FILE}::TestB::test_c[1]": ("failed", text),
        f"{FILE}::TestB::test_c[2]": ("failed", dates),
        f"{FILE}::TestB::test_d": ("passed", ""),
        f"{FILE}::test_e": ("failed", "AssertionError: 1 != 2"),
    }
    filing.write(outcomes, "2.5")
    filed = filing.read()
    assert filed.version == "2.5"
    assert filed.lines == {
        f"{FILE}::TestA::*": "dates",
        f"{FILE}::TestB::test_c[1]": "text",
        f"{FILE}::TestB::test_c[2]": "dates",
        f"{FILE}::test_e": "open",
    }
    assert filing.compare(outcomes, filed, [FILE]) == []


def test_what_is_filed_has_a_reason_and_an_end():
    known = filing.reasons()
    assert {of["kind"] for of in known.values()} <= set(filing.KINDS)
    assert set(filing.read().lines.values()) <= known.keys() | {"open"}
    assert filing.read().version == numpy.__version__
    assert set(filing.quick()) <= {name.split("::")[0] for name in filing.read().lines} | set(filing.quick())


def test_judges_are_given_numpys_arrays():
    np = vmhost.engine.numpy
    seen = to_numpy([np.ones(2), {"a": np.float32(1.5)}, np.dtype("i4"), 3])
    assert type(seen[0]) is numpy.ndarray and type(seen[1]["a"]) is numpy.float32
    assert seen[2] is numpy.dtype("i4") and seen[3] == 3
