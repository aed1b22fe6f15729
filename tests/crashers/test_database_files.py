"""Files of a task's databases that the task itself cuts: SQLite maps none of them for a VM, where a map of a cut file
kills the process (SIGBUS)."""

import sqlite3
from contextlib import closing

from tests.hosts import in_a_process

TASK = """
import os, sqlite3

def cut(path):
    for end in ("-shm", "-wal", ""):
        if os.path.exists(path + end):
            os.truncate(path + end, 0)

def use(path, *pragmas):
    connection = sqlite3.connect(path, isolation_level=None, timeout=0)
    said = []
    for statement in (*pragmas, "pragma journal_mode=wal", "create table if not exists t (x)",
                      "insert into t values (1)", "CUT", "insert into t values (2)", "select count(*) from t"):
        try:
            said.append(cut(path) if statement == "CUT" else connection.execute(statement).fetchall())
        except sqlite3.Error as error:
            said.append(type(error).__name__)
    connection.close()
    return said

def run(asked):
    try:
        return use(*asked)
    except PermissionError as error:
        return [error.args[1]]
"""


def test_a_hidden_sqlite_has_no_write_ahead_logs(tmp_path):
    """If a Python hides SQLite's functions, its files are not watched; a log is refused before it exists."""
    from tests.isolation.test_sqlite_rules import LOOKUPS

    with closing(sqlite3.connect(tmp_path / "log")) as own:
        own.execute("pragma journal_mode=wal")
        own.execute("create table t (x)")
    done = in_a_process(
        f"    {LOOKUPS['where SQLite hides its functions']}\n"
        + """
    from tests.crashers.test_database_files import TASK
    folder = sys.argv[1]
    with vmhost.Host(allow_unsigned=True) as host:
        task = host.load(bundle(TASK, permissions={"read": [folder], "write": [folder]}))
        print(task((folder + "/new",))[:3])
        print("PRAGMA journal_mode=DELETE" in task((folder + "/log",))[0])
    """,
        tmp_path,
    )
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    assert done.stdout.splitlines() == ["['DatabaseError', [], []]", "True"]


def test_a_database_may_be_cut_while_it_is_open(tmp_path):
    with closing(sqlite3.connect(tmp_path / "log")) as own:
        own.execute("pragma journal_mode=wal")
        own.execute("create table t (x)")
    done = in_a_process(
        """
        from tests.crashers.test_database_files import TASK
        folder = sys.argv[1]
        with vmhost.Host(allow_unsigned=True) as host:
            task = host.load(bundle(TASK, permissions={"read": [folder], "write": [folder]}))
            print(task((folder + "/new",))[0])
            print(task((folder + "/exclusive", "pragma locking_mode=exclusive", "pragma mmap_size=1000000"))[:3])
            print(task((folder + "/log",))[0])          # is in that mode: no connection without a lock of its own
            print(task((folder + "/log", "pragma locking_mode=exclusive"))[:4])
            print("alive")
    """,
        tmp_path,
    )
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    assert done.stdout.splitlines() == [
        "[('delete',)]",
        "[[('exclusive',)], 'DatabaseError', [('wal',)]]",
        "OperationalError",
        "[[('exclusive',)], [('wal',)], [], []]",
        "alive",
    ]
