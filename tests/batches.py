"""Tables of cases as one test: a test of pytest's own costs several milliseconds, a case often a tenth of that.

    @each("text", ["1 + 1", "2 * 3"])
    def test_expressions(backend, text): ...

replaces `@pytest.mark.parametrize`: it takes the same arguments and may be stacked. All cases run, each failure is
reported with its case; the cases of a batch share fixtures. A batch is skipped if all its cases are.
`pytest --case TEXT` runs the cases whose name has TEXT in it."""

import functools
import inspect
import itertools
import traceback

import pytest

TOLD_WHOLE = 3  # failures printed with a traceback; the others get one line
chosen = ""  # --case; tests/conftest.py sets it


def each(names, values, ids=None):
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    values = list(values)
    if ids is not None and not callable(ids):
        ids = [str(text) for text in itertools.islice(ids, len(values))]
    cases = [_case(names, number, value, ids) for number, value in enumerate(values)]

    def decorate(test):
        return _batch(*getattr(test, "batch", (test, ())), cases)

    return decorate


def _batch(test, tables, cases):
    """The function that pytest collects; a further table is added to its `batch`."""
    tables = (*tables, cases)
    parameters = inspect.signature(test).parameters
    own = {name for table in tables for name in table[0][1]}

    @functools.wraps(test)
    def run_all(**fixtures):
        failures, skips, count = [], [], 0
        for picked in itertools.product(*tables):
            case = "-".join(text for text, _ in reversed(picked))
            if chosen not in case:
                continue
            count += 1
            try:
                test(**fixtures, **{name: value for _, given in picked for name, value in given.items()})
            except pytest.skip.Exception as skipped:
                skips.append(skipped)
            except (Exception, pytest.fail.Exception) as error:
                failures.append((case, error))
        if failures:
            raise AssertionError(_told(failures, count)) from failures[0][1]
        if skips and len(skips) == count:
            raise skips[0]

    run_all.batch = test, tables
    run_all.__signature__ = inspect.Signature([each for name, each in parameters.items() if name not in own])
    return run_all


def _told(failures, count):
    lines = [f"{len(failures)} of {count} cases failed"]
    for number, (case, error) in enumerate(failures):
        text = f"{type(error).__name__}: {error}"
        if number < TOLD_WHOLE:
            traced = error.__traceback__.tb_next  # from the test on
            lines += ["", f"case {case}:", *map(str.rstrip, traceback.format_exception(type(error), error, traced))]
        else:
            lines.append(f"case {case}: {text.splitlines()[0][:200]}")
    return "\n".join(lines)


def _case(names, number, value, ids):
    """(name of the case, {argument: value})."""
    text = getattr(value, "id", None) if type(value) is type(pytest.param()) else None
    if type(value) is type(pytest.param()):
        if value.marks:
            raise TypeError(f"each: marks of single cases are not heeded: {value}")
        value = value.values if len(names) > 1 else value.values[0]
    given = dict(zip(names, value, strict=True)) if len(names) > 1 else {names[0]: value}
    if text is None and ids is not None:
        text = ids[number] if isinstance(ids, list) else "-".join(str(ids(each)) for each in given.values())
    if text is None:
        text = "-".join(_said(name, each, number) for name, each in given.items())
    return text, given


def _said(name, value, number):
    if isinstance(value, (str, int, float, complex, bytes, bool, type(None))):
        return str(value)
    return getattr(value, "__name__", None) or f"{name}{number}"
