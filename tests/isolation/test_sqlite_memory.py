"""What tasks allocate in SQLite counts, whatever the host itself did with SQLite before it made its first host."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = '''
import json, logging, sys
BEFORE
logging.basicConfig(level=logging.WARNING, format="%(message)s")
import vmhost
from bytecode.compiler import compile_sources

GREEDY = """
import sqlite3
def run(value):
    db = sqlite3.connect(":memory:")
    db.execute("create table t(x)")
    for _ in range(200):
        db.execute("insert into t values (zeroblob(500000))")
    return "all"
"""
with vmhost.Host(allow_unsigned=True) as host:
    task = host.load(compile_sources({"main": (GREEDY, "main.py", False)}, entry="main:run", name="greedy", version="1",
                                     limits={"memory_bytes": 32 << 20}))
    try:
        end = task()
    except vmhost.MemoryLimitError:
        end = "stopped"
    counted = host.statistics().sqlite_counted
import sqlite3
mine = sqlite3.connect(":memory:")
mine.execute("create table t(x)")
mine.execute("insert into t values (zeroblob(5000000))")
print(json.dumps([end, counted, mine.execute("select length(x) from t").fetchone()[0]]))
AFTER
'''
UNUSED = {
    "nothing": "",
    "imported": "import sqlite3",
    "used and closed": "import sqlite3; db = sqlite3.connect(':memory:'); db.execute('select 1'); db.close()",
}


def run(before, after=""):
    done = subprocess.run([sys.executable, "-c", PROGRAM.replace("BEFORE", before).replace("AFTER", after)],
                          capture_output=True, text=True, check=True, timeout=60)
    return *json.loads(done.stdout.splitlines()[0]), done.stdout.splitlines()[1:], done.stderr


@pytest.mark.parametrize("before", UNUSED)
def test_it_counts_where_the_host_has_no_connection_open(before):
    assert run(UNUSED[before]) == ("stopped", True, 5_000_000, [], "")


def test_open_connections_are_left_alone_and_the_log_says_what_follows():
    before = "import sqlite3; old = sqlite3.connect(':memory:'); old.execute('create table t as select 7 as x')"
    after = "print(old.execute('select x from t').fetchone()[0])"
    end, counted, _, rest, log = run(before, after)
    assert (end, counted, rest) == ("all", False, ["7"])
    assert "SQLite was in use before the first host was made" in log


NEAR_THE_END = '''
import ctypes, json, sys
import vmhost
from bytecode.compiler import compile_sources

TASK = """
import sqlite3
def run(value):
    return sqlite3.connect(":memory:").execute("select 7").fetchone()[0]
"""
import _sqlite3
near, sqlite = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(getattr(_sqlite3, "__file__", None))
number, most = (ctypes.c_long.in_dll(near, name) for name in ("near_number", "near_most"))
with vmhost.Host(allow_unsigned=True) as host:
    task = host.load(compile_sources({"main": (TASK, "main.py", False)}, entry="main:run", name="near", version="1"))
    GETMALLOC = 5
    told = [sqlite.sqlite3_shutdown(), sqlite.sqlite3_config(GETMALLOC, near.near_methods), sqlite.sqlite3_initialize()]
    ends = [task()]
    told.append(sqlite.sqlite3_auto_extension(near.near_the_end))
    number.value = 0
    while number.value < most.value:
        ends.append(task())
print(json.dumps([told, sorted(set(ends)), len(ends) - most.value]))
'''


def test_a_vm_is_not_parked_with_a_lock_of_sqlites_held(tmp_path):
    """Wherever the end of its stack lies in what SQLite calls of the allocator: no instruction of ours may be where a thread is parked."""
    library = tmp_path / "near_the_end.so"
    compiler = os.environ.get("CC") or shutil.which("gcc") or "cc"
    subprocess.run([compiler, "-std=c11", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-o", library, Path(__file__).with_name("near_the_end.c")], check=True)
    done = subprocess.run([sys.executable, "-c", NEAR_THE_END, library], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("[[0, 0, 0, 0], [7], 1]\n", "")
