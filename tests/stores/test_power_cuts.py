"""A process of a workload that hangs ends by itself, and says where."""

import subprocess
import sys
from pathlib import Path

from tests.stores import power_cuts

HANGS = """
import threading
from tests.stores.power_cuts import end_if_hung

def the_wait_that_never_ends():
    threading.Event().wait()

end_if_hung(0.2)
the_wait_that_never_ends()
"""


def test_a_process_that_hangs_says_where():
    done = subprocess.run(
        [sys.executable, "-c", HANGS],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        timeout=power_cuts.CHILD_S,
    )
    assert done.returncode == 1 and "the_wait_that_never_ends" in done.stderr
