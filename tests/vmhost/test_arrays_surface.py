"""The whole surface of `engine.numpy` inside a sealed VM: every expression of the host's table gives the same there."""

import pytest

import engine.numpy as np
import vmhost
from tests.engine.test_arrays_against_numpy import outcome
from tests.engine.test_array_expressions import CASES, VALUES, evaluated
from tests.hosts import bundle

TASK = """
    import engine.numpy as np

    def fill(np, array, value, wrap=False):
        np.fill_diagonal(array, value, wrap)
        return array

    def flat(array, key, value):
        array.flat[key] = value
        return array

    def part(np, array, kth, axis=-1):
        made, places = np.partition(array, kth, axis), np.argpartition(array, kth, axis)
        ordered = np.sort(array, axis)
        for found in (made, np.take_along_axis(array if axis is not None else array.ravel(), places, -1 if axis is None else axis)):
            found, wanted = (np.moveaxis(one, -1 if axis is None else axis, -1) for one in (found, ordered))
            assert np.array_equal(np.sort(found, -1), wanted, equal_nan=True)
            for k in [kth] if isinstance(kth, int) else kth:
                k %= found.shape[-1]
                assert np.array_equal(found[..., k], wanted[..., k], equal_nan=True)
                assert np.array_equal(np.sort(found[..., :k], -1), wanted[..., :k], equal_nan=True)
        copied = array.copy()
        if axis is not None:
            copied.partition(kth, axis)
            assert np.array_equal(np.sort(copied, axis), ordered, equal_nan=True)
        return np.take(ordered, kth, -1 if axis is None else axis)

    def pads(row, widths, axis, options):
        row[:widths[0]] = 5
        row[len(row) - widths[1]:] = 7

    def plain(value):
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        if isinstance(value, (np.ndarray, int, float, str)):
            return value
        return repr(value)

    def run(values):
        results = []
        for expression in ({expressions}):
            try:
                results.append(plain(expression(*(np.array(value) for value in values))))
            except Exception as error:
                results.append(type(error).__name__)
        return results
"""


def plain(value):
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Exception):
        return type(value).__name__
    return value if isinstance(value, (np.ndarray, int, float, str)) else repr(value)


def same(one, other):
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    return one == other or one != one and other != other


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_expression_gives_in_a_vm_what_it_gives_in_the_host():
    expressions = [expression for _, expression in CASES]
    source = TASK.format(expressions=", ".join(f"lambda {', '.join(VALUES)}: {expression}" for expression in expressions))
    with vmhost.Host(allow_unsigned=True) as host:
        task = host.load(bundle(source, name="surface", limits={"memory": "256 MiB", "wall_time": "60 s"}))
        found = task(list(VALUES.values()))
    for expression, got in zip(expressions, found, strict=True):
        wanted = plain(outcome(np, lambda np, *arrays: evaluated(np, expression, arrays), VALUES.values()))
        assert same(wanted, got), (expression, wanted, got)
