"""`make package-tests`: how it judges, and that what it holds is whole."""

import re
import tomllib

from tests.packages.calls.__main__ import HERE, LOCK, judge

CASES = sorted((HERE / "cases").glob("*_call.py"))


def test_a_call_is_right_if_it_is_equal_or_filed_and_told():
    told = ["absent regex._regex: a VM can't load it"]
    assert judge([1], [1], [], None) is None
    assert judge([1], [2], [], None) == "expected [1], got [2]"
    assert judge([1], [1], told, "can't load it") == "it passes; remove it from filed.toml"
    assert judge([1], "TaskError: a VM can't load it", told, "can't load it") is None
    assert judge([1], "TaskError: a VM can't load it", [], "can't load it").startswith("the compiler did not tell")
    assert judge([1], "TaskError: other", told, "can't load it").startswith("expected an error with")


def test_each_case_names_what_it_requires_and_that_is_locked():
    locked = set(re.findall(r"^([a-z0-9.-]+)==", LOCK.read_text(), re.MULTILINE))
    for case in CASES:
        first = case.read_text().partition("\n")[0]
        names = {re.sub(r"[-_.]+", "-", name).lower() for name in first.removeprefix("# requires: ").split()}
        assert first.startswith("# requires: ") and names <= locked, case.name
    assert len(CASES) >= 40
    filed = tomllib.loads((HERE / "filed.toml").read_text())
    assert filed.keys() <= {case.stem.removesuffix("_call") for case in CASES}
