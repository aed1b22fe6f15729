"""When memory runs out at any one point of a value's way to a VM and back, that call ends with an error, and the next
one is as good as ever. `value_allocations.py` says what is tried, `failing.c` how an allocation fails.
"""

import ast
import os
import subprocess
import sys

import pytest

from tests.hosts import ROOT


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.stress), 5])
def test_allocations_of_cpython_fail_while_values_cross(failing, step):
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", "tests.faults.value_allocations", str(step)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "LD_PRELOAD": str(failing), "VMHOST_FAILING": str(failing)},
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"at {lines[-1:]}:\n{done.stderr[-3000:]}"
    ends = ast.literal_eval(lines[-1].removeprefix("ends "))
    assert ends["error"] * step > 500 and ends["operations"] == 17, ends
