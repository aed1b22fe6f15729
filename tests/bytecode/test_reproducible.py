"""Same inputs, same bytes: for any hash seed, other imports, place of the folder, umask and time zone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

MAIN = '''\
"""Constants whose order or identity could vary: sets, big numbers, shared strings, tuples, nested functions."""
import enum, functools
from dataclasses import dataclass
from collections import namedtuple

WORDS = {"alpha", "beta", "gamma", "delta", "epsilon"}
BIG = 123456789012345678901234567890
SHARED = ("shared string", "shared string", 1.5, 1.5, BIG, 2j, b"bytes", frozenset({"a", "b", "c"}))
Point = namedtuple("Point", "x y z")

@dataclass(order=True)
class Row:
    alpha: int
    beta: str = "shared string"

class Colour(enum.Enum):
    RED = "red"

class Outer:
    class Inner:
        class Leaf: pass
    def method(self, value):
        if value:
            class Local: "Outer.Inner"
        else:
            class Local: "Outer.Inner"
        return Local, 1234.5

def run(value):
    if value in {"alpha", "beta", "gamma", "delta", "epsilon", 1, 2.5, None, ("x", "y")}:
        return lambda more: (value, more, frozenset(("z", "y", "x")), "shared string")
    if value.get("gamma") in {"alpha", "beta", "gamma", "delta", "epsilon"} or value["alpha":"beta"] == value["beta":]:
        return [item in {"alpha", "beta", "gamma", "delta", "epsilon"} for item in value["alpha":"beta"]]
    match value:
        case {"alpha": 1, "beta": 2}: return 1
    return [Row(item) for item in value if item in {"red", "green", "blue"}]
'''

COMPILE = """
import sys
for name in sys.argv[1].split():
    __import__(name)
from vmhost.bytecode.compiler import compile_task
sys.stdout.buffer.write(compile_task(sys.argv[2]).to_bytes())
"""


LOADED = """
import marshal
from vmhost.bytecode.compiler import compile_task
kept = [marshal.loads(module.code) for module in compile_task(sys.argv[2]).modules.values()]
"""


def compiled(folder, imports="sys", before="", **environment):
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{before}\n{COMPILE}", imports, folder],
        cwd=ROOT,
        check=True,
        capture_output=True,
        env={"PYTHONPATH": str(ROOT), **environment},
    )
    return done.stdout


def test_a_task_gives_the_same_bytes_everywhere(write_task, tmp_path):
    first = write_task({"main.py": MAIN})
    other = write_task({"main.py": MAIN}, name="elsewhere/deeper")
    os.utime(other / "main.py", (0, 0))
    (other / "main.py").chmod(0o700)
    wanted = compiled(first, PYTHONHASHSEED="0")
    assert wanted.startswith(b"PK")
    assert compiled(other, PYTHONHASHSEED="1") == wanted
    assert compiled(first, imports="asyncio json decimal typing unittest.mock", PYTHONHASHSEED="4242") == wanted
    assert (
        compiled(first, imports="enum", PYTHONHASHSEED="random", TZ="Asia/Tokyo", PYTHONDONTWRITEBYTECODE="1") == wanted
    )
    assert compiled(first, PYTHONOPTIMIZE="2") == wanted
    assert compiled(first, before=LOADED) == wanted, "in a process that runs the very same code"


def test_a_python_that_leaves_columns_out_of_code_makes_no_bundle_of_a_task(write_task):
    """Its bytes would differ, and tracebacks would lack the marks below lines."""
    folder = write_task({"main.py": MAIN})
    with pytest.raises(subprocess.CalledProcessError) as failed:
        compiled(folder, PYTHONNODEBUGRANGES="1")
    assert b"CompileError: PYTHONNODEBUGRANGES: makes this Python leave columns out of bundles" in failed.value.stderr


def test_the_library_gives_the_same_bytes_everywhere(tmp_path):
    """It is compared with the bundle that set-up has made, with a random hash seed."""
    out = tmp_path / "stdlib.vmb"
    command = [sys.executable, "-m", "vmhost.stdlib", out]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, env={"PYTHONHASHSEED": "1"})
    made = (ROOT / "vmhost/data/stdlib.vmb").read_bytes()
    assert out.read_bytes() == made, "other bytes, or `make build` has not been run since its sources changed"
