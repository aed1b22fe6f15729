"""A fixture of the fault tests: the library that makes allocations fail, built once."""

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def failing(tmp_path_factory):
    """The file to preload: failing.c."""
    library = tmp_path_factory.mktemp("failing") / "failing.so"
    compiler = os.environ.get("CC") or shutil.which("gcc") or "cc"
    subprocess.run(
        [
            compiler,
            "-std=c11",
            "-O2",
            "-fPIC",
            "-shared",
            "-Wall",
            "-Wextra",
            "-Werror",
            f"-I{sysconfig.get_path('include')}",
            "-o",
            library,
            Path(__file__).with_name("failing.c"),
        ],
        check=True,
    )
    return library
