"""When memory runs out at any one point of an operation on arrays, it gives MemoryError: no crash, nothing charged any
more, and the next operation is as good as ever.

`array_allocations.py` says what is tried, `failing.c` how an allocation fails.
"""

import ast
import os
import subprocess
import sys

import pytest

from tests.hosts import ROOT


def ends_of(failing, mode, step):
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", "tests.faults.array_allocations", mode, str(step)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "LD_PRELOAD": str(failing), "VMHOST_FAILING": str(failing)},
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"{mode}, at {lines[-1:]}:\n{done.stderr[-3000:]}"
    ends = ast.literal_eval(lines[-1].removeprefix("ends "))
    print(mode, ends)
    return ends


@pytest.mark.parametrize("mode", ["account", "engine"])
def test_each_allocation_of_the_engine_fails_once(failing, mode):
    ends = ends_of(failing, mode, 1)
    assert ends["MemoryError"] > 100 and ends["MemoryError"] > 20 * ends.get("result", 0)


def test_some_allocations_of_cpython_fail_in_operations_on_arrays(failing):
    assert ends_of(failing, "python", 7)["MemoryError"] > 100


@pytest.mark.stress
def test_each_allocation_of_cpython_fails_once_in_operations_on_arrays(failing):
    assert ends_of(failing, "python", 1)["MemoryError"] > 1000
