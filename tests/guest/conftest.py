"""Runs programs in plain CPython and in the sealed process that stands in for a VM (`sealed_python.py`)."""

import marshal
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

HERE = Path(__file__).parent

# Much of what is tested here needs no VM, but its package does: it asks the C core for what it offers to tasks. So
# these tests see the package without its own __init__.
if "vmhost.guest" not in sys.modules:
    package = sys.modules["vmhost.guest"] = types.ModuleType("vmhost.guest")
    package.__path__ = [str(HERE.parent.parent / "vmhost" / "guest")]
SWITCHES = ["-s", "-P", "-S"]  # no site: it would import modules that the sealed process edits


class Programs:
    def __init__(self, folder):
        self.folder = folder

    def _path(self, program):
        if isinstance(program, Path):
            return program
        path = self.folder / "program.py"
        path.write_text(program, encoding="utf-8")
        return path

    def _run(self, *arguments, check=True):
        done = subprocess.run(
            [sys.executable, *SWITCHES, *map(str, arguments)],
            capture_output=True,
            text=True,
            encoding="utf-8",
            env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONUTF8": "1"},
            cwd=self.folder,
            timeout=300,
        )
        if check:
            assert done.returncode == 0, done.stderr[-4000:]
        return done

    def plain(self, program):
        """The program's output in CPython."""
        return self._run(self._path(program)).stdout

    def sealed(self, program, texts=()):
        """Its output in the sealed process; `texts` (mode, text) have been compiled beforehand."""
        file = self.folder / "texts"
        file.write_bytes(marshal.dumps(list(texts)))
        return self._run(HERE / "sealed_python.py", self._path(program), file).stdout

    def sealed_error(self, program):
        """The last line of the traceback with which the program ends in the sealed process."""
        file = self.folder / "texts"
        file.write_bytes(marshal.dumps([]))
        done = self._run(HERE / "sealed_python.py", self._path(program), file, check=False)
        assert done.returncode == 1, done
        return done.stderr.strip().splitlines()[-1]

    def texts(self, program):
        """(mode, text) of all that CPython compiles at run time while it runs the program."""
        out = self.folder / "recorded"
        self._run(HERE / "recorded_python.py", self._path(program), out)
        return marshal.loads(out.read_bytes())


@pytest.fixture
def programs(tmp_path):
    return Programs(tmp_path)
