"""When memory runs out while a code object is made from a recipe, there is a MemoryError and nothing is left behind.
See `recipes.py`."""

import os
import re
import subprocess
import sys

from tests.hosts import ROOT


def test_each_allocation_of_each_recipe_fails_cleanly(failing):
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", "tests.faults.recipes"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "LD_PRELOAD": str(failing), "VMHOST_FAILING": str(failing)},
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    found = re.findall(r"^(.*): (\d+) (\d+) (-?\d+)$", done.stdout, re.MULTILINE)
    assert len(found) == 10, done.stdout
    for name, tried, given, left in found:
        assert int(tried) >= 4 and int(given) < int(tried) / 2 and int(left) <= 0, done.stdout
