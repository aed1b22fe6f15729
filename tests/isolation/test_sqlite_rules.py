"""A task's SQLite connections: what is refused, by whichever way the rules get there; that threads share one; that the host's stay free."""

import json

import pytest

from tests.hosts import in_a_process

SCRIPT = '''
    import json
    GUEST = """
    import sqlite3, threading

    REFUSED = ["attach ':memory:' as other", "vacuum", "vacuum into 'other'", "pragma temp_store=file", "PRAGMA Mmap_Size=1000000",
               "pragma temp_store_directory='x'", "pragma soft_heap_limit=1", "pragma hard_heap_limit=1", "pragma writable_schema=1",
               "pragma data_store_directory='x'", "select load_extension('x')", "select FTS3_tokenizer('simple')"]

    def is_refused(connection, statement):
        try:
            connection.execute(statement).fetchall()
        except sqlite3.DatabaseError as error:
            return "not authorized" in str(error) or str(error) in ("authorization denied", "cannot VACUUM from within a transaction")
        return False

    class Own(sqlite3.Connection):
        pass

    def rules(value):
        connections = {"plain": sqlite3.connect(":memory:"), "autocommit": sqlite3.connect(":memory:", autocommit=False),
                       "subclass": sqlite3.connect(":memory:", factory=Own), "again": sqlite3.connect(":memory:")}
        connections["again"].__init__(":memory:")
        open_ = {name: [s for s in REFUSED if not is_refused(c, s)] for name, c in connections.items()}
        got = [(c.getlimit(sqlite3.SQLITE_LIMIT_ATTACHED), c.getconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE),
                c.getconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_FTS3_TOKENIZER)) for c in connections.values()]
        return open_, got

    def own_handler(value):
        connection, calls = sqlite3.connect(":memory:"), []
        count = "with recursive n(i) as (select 1 union all select i + 1 from n limit 100000) select count(*) from n"
        def handler():
            calls.append(1)
            return len(calls) == 3
        connection.set_progress_handler(handler, 1000)
        try:
            connection.execute(count).fetchall()
        except sqlite3.OperationalError as error:
            calls.append(str(error))
        connection.set_progress_handler(None, 0)
        return [*calls, *connection.execute(count).fetchone(), *connection.execute("pragma user_version").fetchone()]

    def threads(value):
        connection = sqlite3.connect(":memory:", check_same_thread=False)
        found, count = [], "with recursive n(i) as (select 1 union all select i + 1 from n limit 2000) select count(*) from n"
        def use():
            own = f" -- {threading.get_ident()}"    # a statement of the cache that two threads use at once gives nonsense in CPython too
            for number in range(150):
                found.extend(connection.execute((count if number % 30 == 0 else "select 1") + own).fetchone())
        all_ = [threading.Thread(target=use) for _ in range(8)]
        for thread in all_:
            thread.start()
        for thread in all_:
            thread.join()
        return len(found), sum(found)

    def run(asked):
        return globals()[asked](asked)
    """
    def ask(asked, rounds=1):
        answers = []
        with vmhost.Host(allow_unsigned=True) as host:
            task = host.load(bundle(GUEST))
            for _ in range(rounds):
                answers.append(task(asked, timeout_s=30))
            lost = host.close()
        assert not lost, lost
        return answers
'''
WAYS = {
    "native": "",
    "after the host emptied SQLite's list": "import ctypes, _sqlite3; vmhost.Host(allow_unsigned=True).close()\n"
        "    ctypes.CDLL(_sqlite3.__file__).sqlite3_reset_auto_extension()",
    "where SQLite hides its functions": "import importlib.util\n    of, importlib.util.find_spec = importlib.util.find_spec, "
        "lambda name: type('Spec', (), {'origin': '/none'}) if name == '_sqlite3' else of(name)\n"
        "    import vmhost.isolation._core; importlib.util.find_spec = of",
}


def answers(before, after):
    done = in_a_process(f"    {before}\n{SCRIPT}\n    {after}\n")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("way", WAYS)
def test_the_rules_are_the_same_by_every_way(way):
    rules, handler = answers(WAYS[way], "print(json.dumps(ask('rules') + ask('own_handler')))")
    opened, settings = rules
    assert opened == {"plain": [], "autocommit": [], "subclass": [], "again": []}
    assert settings == [[0, True, False]] * 4
    assert handler == [1, 1, 1, "interrupted", 100_000, 0]


def test_threads_that_share_a_connection_get_through():
    # 5 of the 150 queries of each thread are long enough for the progress handler
    assert answers("", "print(json.dumps(ask('threads', 8)))") == [[1200, 8 * (5 * 2000 + 145)]] * 8


def test_the_hosts_own_connections_stay_free():
    after = ("import sqlite3; ask('rules'); mine = sqlite3.connect(':memory:'); mine.execute(\"attach ':memory:' as other\"); "
             "print(mine.execute('pragma database_list').fetchall()[1][1] == 'other' and 1)")
    assert answers("", after) == 1
