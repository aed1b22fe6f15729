"""With too little memory a VM ends its call with MemoryLimitError, and never the process.

`allocations.py` says what is tried. CPython itself crashes when some small allocations fail (python/cpython#151763, and
PyType_Ready while a class is made): small requests therefore have a reserve (meter.c), and what fails here is what the
reserve does not cover."""

import ast
import subprocess
import sys

import pytest

from tests.hosts import ROOT

# Bytes: with less, a VM may not get as far as taking the call. 60,000 mostly; on a busy machine it is measured early.
LITTLE = 150_000


def ends_of(first, last, step):
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", "tests.faults.allocations", str(first), str(last), str(step)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return ast.literal_eval(done.stdout)


def check(first, last, step):
    ends = ends_of(first, last, step)
    tries = len(range(first, last, step))
    assert ends["ended"] == tries
    assert ends["bytes left"] == 0
    assert ends.get("untaken", 0) <= LITTLE // step + 1, ends
    assert ends.get("result", 0) + ends.get("MemoryLimitError", 0) + ends.get("untaken", 0) == tries, ends


def test_calls_with_less_and_less_memory_end_as_memory_limits():
    check(0, 3_000_000, 60_017)


@pytest.mark.stress
@pytest.mark.parametrize("first", range(0, 2_400_000, 300_000))
def test_calls_with_less_and_less_memory_end_as_memory_limits_in_small_steps(first):
    check(first, first + 300_000, 1511)
