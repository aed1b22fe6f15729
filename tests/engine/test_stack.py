"""The shipped library uses at most 16 KiB of its caller's stack: stack.c beside this file, linked with it."""

import os
import shlex
import subprocess
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "engine" / "libvme.so"


SANITIZED = any(name in LIBRARY.read_bytes() for name in (b"__asan_init", b"__tsan_init", b"__ubsan_handle"))


@pytest.mark.skipif(SANITIZED, reason="sanitized code needs more stack")
def test_no_operator_takes_more_than_16_kib_of_its_callers_stack(tmp_path):
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC"))
    program = tmp_path / "test_stack"
    subprocess.run(
        [
            *compiler,
            "-std=c11",
            "-D_GNU_SOURCE=1",
            "-O1",
            "-pthread",
            f"-I{ROOT / 'engine' / 'include'}",
            f"-I{ROOT / 'engine' / 'src'}",
            f"-I{ROOT / 'tests' / 'native'}",
            str(Path(__file__).with_name("stack.c")),
            str(LIBRARY),
            f"-Wl,-rpath,{LIBRARY.parent}",
            "-o",
            str(program),
        ],
        check=True,
    )
    done = subprocess.run([str(program)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
