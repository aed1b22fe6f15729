"""Malloc interposition near the end of a VM's stack. The library that allocates may hold a lock of the whole process,
so a thread that overflows its stack there must not be parked."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = '''
import ctypes, json, sys
import vmhost
from vmhost.bytecode.compiler import compile_sources

TASK = """
import hashlib, sqlite3
def run(value):
    return sqlite3.connect(":memory:").execute("select 7").fetchone()[0]
"""
import _hashlib, _sqlite3
near, sqlite = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(getattr(_sqlite3, "__file__", None))
number, most = (ctypes.c_long.in_dll(near, name) for name in ("near_number", "near_most"))
with vmhost.Host(allow_unsigned=True) as host:
    task = host.load(compile_sources({"main": (TASK, "main.py", False)}, entry="main:run", name="near", version="1"))
    told = []
    USE
    ends = [task()]
    told.append(sqlite.sqlite3_auto_extension(near.near_the_end))
    number.value = 0
    while number.value < most.value:
        ends.append(task())
print(json.dumps([told, sorted(set(ends)), len(ends) - most.value]))
'''
SQLITE = """GETMALLOC = 5
    told += [sqlite.sqlite3_shutdown(), sqlite.sqlite3_config(GETMALLOC, near.near_methods),
             sqlite.sqlite3_initialize()]"""
OPENSSL = """openssl = ctypes.CDLL(_hashlib.__file__)
    functions = (ctypes.c_void_p * 3).in_dll(near, "near_openssl")
    functions[:] = [ctypes.cast(getattr(openssl, name), ctypes.c_void_p).value
                    for name in ("CRYPTO_malloc", "CRYPTO_free", "CRYPTO_realloc")]
    near.near_use_openssl()"""


@pytest.mark.parametrize("use", [SQLITE, OPENSSL], ids=["sqlite", "openssl"])
def test_no_thread_is_parked_in_what_a_library_calls(tmp_path, use):
    library = tmp_path / "near_the_end.so"
    compiler = os.environ.get("CC") or shutil.which("gcc") or "cc"
    subprocess.run(
        [
            compiler,
            "-std=c11",
            "-O1",
            "-fPIC",
            "-shared",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-o",
            library,
            Path(__file__).with_name("near_the_end.c"),
        ],
        check=True,
    )
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("USE", use), library], capture_output=True, text=True, timeout=120
    )
    expected = [0] * (4 if use == SQLITE else 1)
    assert (done.stdout, done.stderr) == (f"[{expected}, [7], 1]\n", "")
