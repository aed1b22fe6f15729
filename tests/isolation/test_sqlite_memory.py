"""Tasks' allocations in SQLite are charged, even if the process used SQLite before it made its first host."""

import json
import subprocess
import sys

import pytest

PROGRAM = '''
import json, logging, sys
BEFORE
logging.basicConfig(level=logging.WARNING, format="%(message)s")
import vmhost
from vmhost.bytecode.compiler import compile_sources

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
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("BEFORE", before).replace("AFTER", after)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
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
