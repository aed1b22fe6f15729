"""SQL that nests deep makes SQLite call itself, and SQLite knows no end of its stack: `LIKE` with ten thousand stars
ended the process.

Each statement here is answered or refused with an error of the task's, at the top of the stack and at its end, on the
VM's thread and on one of the task's own, and the process lives. Most ended it, if not at the top of a stack of 1 MiB
then nearer to its end."""

import json

from tests.hosts import in_a_process

GUEST = '''
import sqlite3, threading

def nested(count):
    """Statements of one table or none, each with something nested `count` times."""
    yield "select " + "abs(" * count + "1" + ")" * count
    yield "select " + " or ".join(["1=2"] * count)
    yield "select " + "- " * count + "1"
    yield "select " + "not " * count + "1"
    yield "select " + "case when 1 then " * (count // 2) + "1" + " end" * (count // 2)
    yield "select sum(1) over (order by " + "+".join(["x"] * count) + ") from (select 1 as x)"
    yield " except ".join(["select 1"] * (count // 2))
    yield " union all ".join(f"select {n}" for n in range(count // 2))
    yield "select '" + "a" * 20 * count + "' like '" + "%a" * 20 * count + "'"
    yield "select '" + "a" * 20 * count + "' glob '" + "*a" * 20 * count + "'"
    yield "select json('" + "[" * count + "]" * count + "')"
    yield "select json_extract('" + "[" * count + "1" + "]" * count + "', '$" + "[0]" * count + "')"
    yield ("select json_patch('" + '{"a":' * count + "1" + "}" * count + "','" + '{"a":' * count + "2" + "}" * count
           + "')")
    for levels in (count, 8 * count):
        yield ("with t0 as (select 1 as x)" + "".join(f", t{n + 1} as (select x from t{n})" for n in range(levels))
               + f" select * from t{levels}")

def chains(count):
    """Lists of statements: a chain of `count` objects, each of which leads to the next."""
    yield [f"create table g (a0 int{''.join(f', a{n + 1} int as (a{n} + 1)' for n in range(count))})",
           "insert into g (a0) values (1)", f"select a{count} from g"]
    for levels in (count, 3 * count):
        yield ["create view v0 as select 1 as x",
               *(f"create view v{n + 1} as select x from v{n}" for n in range(levels)), f"select * from v{levels}"]
    yield [*(f"create table t{n} (x)" for n in range(count + 1)),
           *(f"create trigger r{n} after insert on t{n} begin insert into t{n + 1} values (1); end"
             for n in range(count)),
           "insert into t0 values (1)"]
    yield ["pragma foreign_keys=on", "create table t0 (id integer primary key)",
           *(f"create table t{n + 1} (id integer primary key references t{n} (id) on delete cascade)"
             for n in range(count)),
           *(f"insert into t{n} values (1)" for n in range(count + 1)), "delete from t0"]

def ask(statements):
    connection = sqlite3.connect(":memory:")
    for category in (sqlite3.SQLITE_LIMIT_COLUMN, sqlite3.SQLITE_LIMIT_EXPR_DEPTH, sqlite3.SQLITE_LIMIT_COMPOUND_SELECT,
                     sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH):
        connection.setlimit(category, 10**6)
        connection.setlimit(category, 0)
    return [connection.execute(statement).fetchall() for statement in statements]

def at_the_end(call):
    """Calls it where the stack is nearly used up, by recursion that CPython counts."""
    try:
        return sorted([0], key=lambda _: at_the_end(call) or 1)
    except RecursionError:
        return call()

def run(value):
    kind, count, where = value
    answers = []
    for statements in [[each] for each in nested(count)] if kind == "nested" else chains(count):
        def tried():
            try:
                ask(statements)
                answers.append("answered")
            except (sqlite3.Error, MemoryError, RecursionError) as error:
                answers.append(type(error).__name__)
            return 1
        if where == "thread":
            thread = threading.Thread(target=tried)
            thread.start()
            thread.join()
        else:
            tried() if where == "top" else at_the_end(tried)
    kinds = ("answered", "OperationalError", "DatabaseError", "MemoryError", "RecursionError")
    return [answers.count(kind) for kind in kinds], len(answers)
'''

SCRIPT = """
    import json
    from tests.crashers.test_sql_stack import GUEST
    host = vmhost.Host(allow_unsigned=True)
    for stack in (640 << 10, 1 << 20):
        task = host.load(bundle(GUEST, f"sql{stack}", limits={"stack_bytes": stack, "memory_bytes": 256 << 20}))
        for where in ("top", "end", "thread"):
            for kind, count in (("nested", 30), ("nested", 990), ("chains", 20), ("chains", 900)):
                print(json.dumps([stack >> 10, where, kind, count, *task([kind, count, where], timeout_s=60)]))
    host.close()
"""


def test_sql_that_nests_deep_ends_no_process():
    done = in_a_process(SCRIPT)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == 24
    for stack, where, kind, count, (answered, *refused), asked in lines:
        assert answered + sum(refused) == asked >= 4, (stack, where, kind, count)
        if where == "end":
            assert refused[-1] == asked, (stack, where, kind, count, answered, refused)
        elif count < 100:
            assert answered == asked, (stack, where, kind, count, refused)  # what is usual is answered


LIMITS = '''
    GUEST = """
    import sqlite3
    def run(columns):
        sqlite3.connect(":memory:").execute("create table wide (" + ", ".join(f"c{n}" for n in range(columns)) + ")")
        return columns
    """
    host = vmhost.Host(allow_unsigned=True)
    # the smallest first: its thread may otherwise get a larger one's stack, which glibc kept
    for stack, columns in ((256 << 10, 1), (1 << 20, 400), (1 << 20, 500)):
        try:
            print("made", host.load(bundle(GUEST, f"wide{stack}", limits={"stack_bytes": stack}))(columns))
        except vmhost.TaskError as error:
            print(str(error).splitlines()[0])
    host.close()
'''


def test_what_passes_a_limit_or_finds_too_little_stack_is_told():
    done = in_a_process(LIMITS)
    assert done.returncode == 0, done.stderr
    small, usual, wide = done.stdout.splitlines()
    assert "sqlite3 wants 512 KiB of the thread's stack" in small and "(limits: stack; threading.stack_size)" in small
    assert usual == "made 400" and "too many columns on wide" in wide
