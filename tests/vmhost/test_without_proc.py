"""A machine without /proc: functions that need it say that it is missing, and all others work."""

import os
import subprocess
import sys
import textwrap

import pytest

from tests.hosts import PROLOGUE, ROOT

SCRIPT = """
    import numpy
    folder, state = sys.argv[1:]
    assert not os.path.exists("/proc/self")
    SOURCE = '''
        import os, sqlite3
        import vmhost.engine.numpy as np
        import vmhost.guest

        CALLS = {
            "open": lambda path: open(path).read(),
            "write": lambda path: open(path + ".new", "w").close(),
            "stat": lambda path: os.stat(path).st_size,
            "listdir": lambda path: os.listdir(os.path.dirname(path)),
            "rename": lambda path: os.rename(path, path + ".old"),
            "connect": lambda path: sqlite3.connect(path).execute("select 1"),
            "double": lambda value: np.asarray(value) * 2,
            "spin": lambda value: spin(),
            "pipe": lambda value: os.read(os.pipe()[0], 1),
            "memory": lambda value: bytearray(1 << 30),
        }

        def spin():
            while True:
                pass

        def run(asked):
            name, value = asked
            try:
                return CALLS[name](value)
            except vmhost.guest.PermissionDenied as error:
                return str(error)
    '''
    with vmhost.Host(allow_unsigned=True, state=state) as host:
        permissions = {"read": [folder], "write": [folder]}
        task = host.load(bundle(SOURCE, permissions=permissions, limits={"memory": "64 MiB"}))
        for name in ("open", "write", "stat", "listdir", "rename", "connect"):
            print(task((name, folder + "/file")))
        print(numpy.asarray(task(("double", numpy.arange(3.0)))).tolist())
        for name in ("spin", "pipe", "memory"):
            try:
                task((name, 0), timeout_s=20 if name == "memory" else 0.5)
            except vmhost.VMHostError as error:
                print(type(error).__name__)
    print(os.listdir(folder))
"""


@pytest.fixture
def without_proc():
    """run(script, *arguments) in a mount namespace of its own, where /proc is empty."""
    namespace = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    hide = "mount -t tmpfs -o size=4k none /proc"
    if subprocess.run([*namespace, "sh", "-c", hide], capture_output=True).returncode != 0:
        pytest.skip("this user may mount nothing, not even in a namespace of its own")

    def run(script, *arguments):
        command = [
            *namespace,
            "sh",
            "-c",
            f'{hide} && exec "$@"',
            "sh",
            sys.executable,
            "-c",
            PROLOGUE + textwrap.dedent(script),
            *map(str, arguments),
        ]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)

    return run


def test_paths_are_refused_with_what_is_missing_and_all_else_works(without_proc, tmp_path):
    (tmp_path / "granted").mkdir()
    (tmp_path / "granted" / "file").write_text("content")
    done = without_proc(SCRIPT, tmp_path / "granted", tmp_path / "state")
    assert (done.returncode, done.stderr) == (0, "")
    *paths, doubled, spin, pipe, memory, left = done.stdout.splitlines()
    missing = "paths are checked through /proc/self/fd, which can't be read here: mount /proc"
    assert len(paths) == 6 and all(f"('{tmp_path}/granted" in line and line.endswith(missing) for line in paths), paths
    assert (doubled, left) == ("[0.0, 2.0, 4.0]", "['file']")
    assert (spin, pipe, memory) == ("TimeLimitError", "TimeLimitError", "MemoryLimitError")
