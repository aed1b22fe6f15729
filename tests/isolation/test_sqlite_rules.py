"""A task's SQLite connections: what is refused, by whichever way the rules get there; that their queries can be
stopped; that threads share one; that the host's stay free."""

import json

import pytest

from tests.hosts import in_a_process

SCRIPT = '''
    import json
    GUEST = """
    import itertools, sqlite3, threading

    REFUSED = ["attach ':memory:' as other", "vacuum", "vacuum into 'other'", "pragma temp_store=file",
               "PRAGMA Mmap_Size=1000000", "pragma temp_store_directory='x'", "pragma soft_heap_limit=1",
               "pragma hard_heap_limit=1", "pragma writable_schema=1", "pragma data_store_directory='x'",
               "select load_extension('x')", "select FTS3_tokenizer('simple')"]

    def is_refused(connection, statement):
        try:
            connection.execute(statement).fetchall()
        except sqlite3.DatabaseError as error:
            return ("not authorized" in str(error)
                    or str(error) in ("authorization denied", "cannot VACUUM from within a transaction"))
        return False

    class Own(sqlite3.Connection):
        pass

    def rules(value):
        connections = {"plain": sqlite3.connect(":memory:"),
                       "autocommit": sqlite3.connect(":memory:", autocommit=False),
                       "subclass": sqlite3.connect(":memory:", factory=Own), "again": sqlite3.connect(":memory:")}
        connections["again"].__init__(":memory:")
        connections["asked"], connections["cleared"] = sqlite3.connect(":memory:"), sqlite3.connect(":memory:")
        connections["asked"].set_authorizer(lambda *about: sqlite3.SQLITE_OK)
        connections["cleared"].set_authorizer(lambda *about: sqlite3.SQLITE_OK)
        connections["cleared"].set_authorizer(None)
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

    def own_authorizer(value):
        connection, other, about, said = sqlite3.connect(":memory:"), sqlite3.connect(":memory:"), [], []
        connection.executescript("create table t (a, b); insert into t values (1, 2)")
        def tried(statement, on=connection):
            try:
                return [list(row) for row in on.execute(statement)]
            except sqlite3.DatabaseError as error:
                return str(error)
        def answer(*asked):
            about.append(asked)
            return sqlite3.SQLITE_DENY if asked[2] == "b" else sqlite3.SQLITE_OK
        connection.set_authorizer(answer)
        found = [tried("select a from t"), tried("select b from t"), about[1]]
        connection.set_authorizer(lambda *asked: 1 / 0)
        found.append(tried("select a from t"))
        def uses(*asked):       # the connection in whose authorizer this is, at once and by way of another
            said.append(tried("drop table t"))
            for way in (lambda: connection.cursor().execute("select 1"),
                        lambda: setattr(connection, "isolation_level", None), connection.commit, connection.close):
                try:
                    way()
                    said.append("done")
                except sqlite3.ProgrammingError as error:
                    said.append(str(error))
            said.append(tried("select 1", other))
            return sqlite3.SQLITE_OK
        other.set_authorizer(lambda *asked: said.append(tried("drop table t")) or sqlite3.SQLITE_OK)
        connection.set_authorizer(uses)
        found += [tried("select a from t"), sorted({str(one).partition(":")[0] for one in said})]
        connection.set_authorizer(None)
        return found + [tried("select b from t")]

    def backups(value):
        # what backups told, and what came of wrong arguments
        source, target, told, wrong = sqlite3.connect(":memory:"), sqlite3.connect(":memory:"), [], []
        source.executescript("create table t (n); insert into t values (7)")
        source.backup(target, pages=1, progress=lambda *about: told.append(about))
        source.backup(target=target)
        told.append(target.execute("select n from t").fetchone())
        def refuses(*about):
            raise KeyError("enough")
        for positional, options in [((), {}), ((target, 1), {}), ((target,), {"progress": 7}),
                                    ((target,), {"sleep": "x"}), ((target,), {"more": 1}),
                                    ((target,), {"pages": 0, "sleep": -1}), ((target,), {"progress": refuses}),
                                    ((source,), {}), ((7,), {}), ((target,), dict.fromkeys(map(str, range(23))))]:
            try:
                wrong.append(source.backup(*positional, **options))
            except Exception as error:
                wrong.append(f"{type(error).__name__}: {error}")
        source.execute("begin immediate")
        def lets_go(status, *about):
            told.append(status)
            source.rollback()
        source.backup(target, progress=lets_go, sleep=0.001)
        return told, wrong

    def runaway(value):
        # what a task does with its connection first, and the statement that then never ends
        endless = "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n"
        connection = sqlite3.connect(":memory:")
        if value == "none":
            connection.set_progress_handler(None, 0)
        elif value == "off":
            connection.set_progress_handler(lambda: 0, -1)
        elif value == "rare":
            connection.set_progress_handler(lambda: 0, 2_000_000_000)
        elif value == "native":
            connection.set_progress_handler(int, 1000)
        elif value == "trace":
            connection.set_progress_handler(None, 0)
            connection.set_trace_callback(print)
            connection.set_trace_callback(None)
        elif value == "opened again":
            connection.__init__(":memory:")
            connection.set_progress_handler(None, 0)
        elif value == "collations":
            connection.set_progress_handler(None, 0)
            connection.create_collation("vmhost", lambda a, b: 0)
            connection.create_collation("vmhost", None)
        elif value == "many":
            connection.set_progress_handler(None, 0)
            connection.execute("create table t (n)")
            connection.executemany("insert or replace into t (rowid, n) values (1, ?)",
                                   # hardly ever within a statement
                                   itertools.islice(itertools.repeat((1,)), 0, None, 100_000))
        elif value == "cursor":
            connection.set_progress_handler(None, 0)
            cursor = connection.cursor()
            del connection
            cursor.execute(endless)
        elif value.startswith("backup"):        # of a database that its own connection has locked
            options = {"backup": {}, "backup asleep": {"sleep": 1e6},
                       "backup with a function": {"progress": max, "sleep": 0.0}}[value]
            connection.execute("create table t (n)")
            connection.execute("insert into t values (1)")
            connection.backup(sqlite3.connect(":memory:"), **options)
        elif value == "closed":
            others = [sqlite3.connect(":memory:") for _ in range(5)]
            for other in others[::2]:
                other.close()
            del others, other
        connection.execute(endless)

    def threads(value):
        connection = sqlite3.connect(":memory:", check_same_thread=False)
        found = []
        count = "with recursive n(i) as (select 1 union all select i + 1 from n limit 2000) select count(*) from n"
        def use():
            # a statement of the cache that two threads use at once gives nonsense in CPython too
            own = f" -- {threading.get_ident()}"
            for number in range(150):
                found.extend(connection.execute((count if number % 30 == 0 else "select 1") + own).fetchone())
        all_ = [threading.Thread(target=use) for _ in range(8)]
        for thread in all_:
            thread.start()
        for thread in all_:
            thread.join()
        return len(found), sum(found)

    def run(asked):
        name, _, value = asked.partition(" ")
        return globals()[name](value)
    """
    def stopped(ways):
        # way -> how the call ended, and whether its VM did
        ends = {}
        with vmhost.Host(allow_unsigned=True,
                         policy=Policy(grace_s=3, task=TaskPolicy(breaker=BreakerPolicy(enabled=False)))) as host:
            task = host.load(bundle(GUEST, limits={"concurrency": 1}))
            for way in ways:
                try:
                    ends[way] = repr(task("runaway " + way, timeout_s=0.1))
                except vmhost.VMHostError as error:
                    ends[way] = type(error).__name__
            lost = host.close()
        return ends, len(lost)

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
LOOKUPS = {
    "native": "",
    "after the host emptied SQLite's list": (
        "import ctypes, _sqlite3; vmhost.Host(allow_unsigned=True).close()\n"
        "    ctypes.CDLL(_sqlite3.__file__).sqlite3_reset_auto_extension()"
    ),
    "where SQLite hides its functions": (
        "import importlib.util\n    of, importlib.util.find_spec = importlib.util.find_spec, "
        "lambda name: type('Spec', (), {'origin': '/none'}) if name == '_sqlite3' else of(name)\n"
        "    import vmhost.isolation._core; importlib.util.find_spec = of"
    ),
}


def answers(before, after):
    done = in_a_process(f"    {before}\n{SCRIPT}\n    {after}\n")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("found", LOOKUPS)
def test_the_rules_are_the_same_by_every_way(found):
    rules, handler, authorizer = answers(
        LOOKUPS[found], "print(json.dumps(ask('rules') + ask('own_handler') + ask('own_authorizer')))"
    )
    opened, settings = rules
    assert opened == {"plain": [], "autocommit": [], "subclass": [], "again": [], "asked": [], "cleared": []}
    assert settings == [[0, True, False]] * 6
    assert handler == [1, 1, 1, "interrupted", 100_000, 0]
    assert authorizer == [
        [[1]],
        "access to t.b is prohibited",
        [20, "t", "a", "main", None],
        "not authorized",
        [[1]],
        ["[[1]]", "the connection asks its authorizer", "the connection is in use"],
        [[2]],
    ]


RUNAWAYS = [
    "usual",
    "none",
    "off",
    "rare",
    "native",
    "trace",
    "opened again",
    "collations",
    "many",
    "cursor",
    "closed",
    "backup",
    "backup asleep",
    "backup with a function",
]


@pytest.mark.parametrize("found", LOOKUPS)
def test_a_query_that_never_ends_is_stopped_whatever_the_task_did_with_its_progress_handler(found):
    ends, lost = answers(LOOKUPS[found], f"print(json.dumps(stopped({RUNAWAYS})))")
    assert ends == dict.fromkeys(RUNAWAYS, "TimeLimitError")
    assert lost == 0


def test_a_backup_tells_and_refuses_what_it_does_elsewhere():
    after = (
        "plain = {}; exec(__import__('textwrap').dedent(GUEST), plain); print(json.dumps([ask('backups')[0],"
        " plain['backups']('')]))"
    )
    here, elsewhere = answers("", after)
    assert here == elsewhere
    expected, wrong = here
    assert expected == [[0, 1, 2], [101, 0, 2], [7], 5, 101] and len(wrong) == 10


def test_threads_that_share_a_connection_get_through():
    # 5 of the 150 queries of each thread are long enough for the progress handler
    assert answers("", "print(json.dumps(ask('threads', 8)))") == [[1200, 8 * (5 * 2000 + 145)]] * 8


def test_the_hosts_own_connections_stay_free():
    after = (
        "import sqlite3; ask('rules'); mine = sqlite3.connect(':memory:'); mine.execute(\"attach ':memory:' as"
        " other\"); print(mine.execute('pragma database_list').fetchall()[1][1] == 'other' and 1)"
    )
    assert answers("", after) == 1
