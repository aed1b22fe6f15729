"""The tools of the fault tests: a process of a workload that hangs ends by itself, and says where; only writes in the
folder fail."""

import errno
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


ROOT = Path(__file__).resolve().parents[2]
REUSES = """
import os, socket, sys

path = os.path.join(sys.argv[1], "file")
file = os.open(path, os.O_CREAT | os.O_WRONLY)
os.close(file)
ends = socket.socketpair()
assert file in (ends[0].fileno(), ends[1].fileno())
for end in ends:
    os.write(end.fileno(), b"x")
file = os.open(path, os.O_WRONLY)
try:
    os.write(file, b"x")
except OSError as error:
    print(error.errno)
"""


def test_a_socket_with_the_number_of_a_closed_file_is_none_of_the_folders(tmp_path):
    (tmp_path / "all").mkdir()
    library = power_cuts.build(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", REUSES, str(tmp_path / "all")],
        env=power_cuts.environment(library, tmp_path / "all", tmp_path / "log", WRITE_LOG_FAILS=1),
        capture_output=True,
        text=True,
        timeout=power_cuts.CHILD_S,
    )
    assert (done.returncode, done.stdout) == (0, f"{errno.ENOSPC}\n"), done.stderr


def test_a_process_that_hangs_says_where():
    done = subprocess.run(
        [sys.executable, "-c", HANGS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=power_cuts.CHILD_S,
    )
    assert done.returncode == 1 and "the_wait_that_never_ends" in done.stderr
