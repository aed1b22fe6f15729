"""Connections that are closed by what they call: plain CPython 3.14 crashes over each of these; a VM answers with ProgrammingError."""

from tests.hosts import in_a_process

TASK = '''
import sqlite3, threading

class Closes:
    """Closes when it is called, in whichever way sqlite3 calls it, and notes what came of it."""

    def __init__(self, connection):
        self.connection, self.said = connection, set()

    def __call__(self, *arguments):
        try:
            self.connection.close()
            self.said.add("closed")
        except sqlite3.ProgrammingError as error:
            self.said.add(str(error).partition(":")[0])
        return 0

    def __conform__(self, protocol):
        return str(self())

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return str(self())

    def rows(self):
        yield "a",
        self()
        yield "b",


class Missing(dict):
    def __missing__(self, name):
        return str(self.closes())


def aggregate(closes):
    return type("Aggregate", (), {"step": closes, "finalize": closes, "inverse": closes, "value": closes})


def trace(db, closes):
    db.set_trace_callback(closes)
    db.execute("select x from t").fetchall()

def function(db, closes):
    db.create_function("f", 0, closes)
    db.execute("select f() from t").fetchall()

def one_by_one(db, closes):
    db.create_function("f", 1, lambda x: closes() if x > "3" else 1)
    rows = db.execute("select f(x) from t")
    next(rows), rows.fetchone(), rows.fetchmany(10), list(rows)

def aggregates(db, closes):
    db.create_aggregate("f", 1, aggregate(closes))
    db.execute("select f(x) from t").fetchall()

def window(db, closes):
    db.create_window_function("f", 1, aggregate(closes))
    db.execute("select f(x) over (order by x rows between 1 preceding and 1 following) from t").fetchall()

def collation(db, closes):
    db.create_collation("c", closes)
    db.execute("select x from t order by x collate c").fetchall()

def progress(db, closes):
    db.set_progress_handler(closes, 1)
    db.execute("select x from t order by x").fetchall()

def adapted(db, closes):
    db.execute("select ?", (closes,)).fetchall()

def sequence(db, closes):
    db.execute("select ?", closes).fetchall()

def mapping(db, closes):
    Missing.closes = closes
    db.execute("select :a", Missing()).fetchall()

def many(db, closes):
    db.executemany("insert into t values (?)", closes.rows())

def made_again(db, closes):
    def again():
        try:
            db.__init__(":memory:")
        except sqlite3.ProgrammingError:
            closes()
        return 1
    db.create_function("f", 0, again)
    db.execute("select f() from t").fetchall()

def backup(db, closes):
    db.commit()         # or it would wait for that
    db.backup(sqlite3.connect(":memory:"), pages=1, progress=lambda *left: closes())

def rows(db, closes):
    db.row_factory = lambda cursor, row: closes()
    db.execute("select x from t").fetchall()

def other_thread(db, closes):
    def wait(x):
        if not thread.is_alive():
            thread.start()
        thread.join()
        return x
    thread = threading.Thread(target=closes)
    db.create_function("f", 1, wait)
    db.execute("select f(x) from t limit 1").fetchall()


def run(case):
    db = sqlite3.connect(":memory:", check_same_thread=False)
    db.execute("create table t (x text)")
    db.executemany("insert into t values (?)", [(str(number),) for number in range(20)])
    closes = Closes(db)
    try:
        globals()[case](db, closes)
    except sqlite3.Error as error:
        closes.said.add(type(error).__name__)
    db.close()
    try:
        db.execute("select 1")
    except sqlite3.ProgrammingError as error:
        return sorted(closes.said)
'''

CASES = ["trace", "function", "one_by_one", "aggregates", "window", "collation", "progress", "adapted", "sequence", "mapping", "many",
         "made_again", "backup", "rows", "other_thread"]


def test_a_connection_in_use_cannot_be_closed():
    done = in_a_process("""
        from tests.crashers.test_sqlite_use import CASES, TASK
        with vmhost.Host(allow_unsigned=True) as host:
            task = host.load(bundle(TASK))
            for case in CASES:
                print(case, task(case), flush=True)
    """)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [f"{case} ['the connection is in use']" for case in CASES]
