"""Where vmhost does not run, import and build say so in one line, and what to do instead."""

import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from vmhost import supported

ROOT = Path(__file__).parents[2]
ELSEWHERE = {
    "platform": ("darwin", "this is macOS; run it in a Linux container"),
    "implementation": (SimpleNamespace(name="pypy"), "this is pypy 3.1.*; install CPython 3.14"),
    "version_info": ((3, 13, 9), "this is cpython 3.13; install CPython 3.14"),
    "version_info, newer": ((3, 15, 0), "this is cpython 3.15; install CPython 3.14"),
    "abiflags": ("t", "this is the free-threaded build; take the default build"),
}


@pytest.mark.parametrize("case", ELSEWHERE)
def test_other_pythons_and_systems_are_refused_with_advice(case, monkeypatch):
    (value, told), what = ELSEWHERE[case], case.partition(",")[0]
    assert supported.refusal() is None
    monkeypatch.setattr(sys, what, value)
    with pytest.raises(ImportError, match=told):
        runpy.run_path(str(ROOT / "vmhost" / "__init__.py"))


def test_a_build_elsewhere_ends_with_the_same_line():
    code = "import runpy, sys; sys.platform = 'darwin'; runpy.run_path('setup.py', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1 and "this is macOS" in done.stderr
