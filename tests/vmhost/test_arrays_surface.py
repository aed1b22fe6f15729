"""The whole surface of `vmhost.engine.numpy` inside a sealed VM: every expression of the host's table gives the same
there."""

import inspect
import textwrap

import pytest

import vmhost
import vmhost.engine.numpy as np
from tests.engine.test_array_expressions import CASES, VALUES, evaluated, fill, flat, pads, part, protected, same_array
from tests.engine.test_arrays_against_numpy import outcome
from tests.hosts import bundle

TASK = """
    import vmhost.engine.numpy as np

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
    source = "".join(map(inspect.getsource, (fill, flat, part, pads, protected, same_array))) + textwrap.dedent(
        TASK
    ).format(expressions=", ".join(f"lambda {', '.join(VALUES)}: {expression}" for expression in expressions))
    with vmhost.Host(allow_unsigned=True) as host:
        task = host.load(bundle(source, name="surface", limits={"memory": "256 MiB", "wall_time": "60 s"}))
        found = task(list(VALUES.values()))
    for expression, got in zip(expressions, found, strict=True):
        wanted = plain(outcome(np, lambda np, *arrays: evaluated(np, expression, arrays), VALUES.values()))
        assert same(wanted, got), (expression, wanted, got)
