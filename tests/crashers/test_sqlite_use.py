"""Connections and blobs that are closed by a callback, or by another thread meanwhile: plain CPython 3.14 crashes
over many of these, or waits forever; a VM answers with ProgrammingError."""

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

    def __index__(self):
        return self()

    def __buffer__(self, flags):
        self()
        return memoryview(b"")

    def blob(self, connection):
        return connection.blobopen("t", "x", 1)

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

def isolation_level(db, closes):
    db.set_trace_callback(closes)
    db.isolation_level = None           # commits

def autocommit(db, closes):
    db.commit()
    db.set_trace_callback(closes)
    db.autocommit = False               # begins

def with_block(db, closes):
    with db:
        db.set_trace_callback(closes)

def blob_read(db, closes):
    closes.blob(db).read(closes)

def blob_write(db, closes):
    closes.blob(db).write(closes)

def blob_get(db, closes):
    closes.blob(db)[closes]

def blob_set(db, closes):
    closes.blob(db)[closes] = 7

def blob_of_blob(db, closes):
    closes.connection = blob = closes.blob(db)
    blob.read(closes), blob[closes]
    with blob:
        blob.write(closes)


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

CASES = [
    "trace",
    "function",
    "one_by_one",
    "aggregates",
    "window",
    "collation",
    "progress",
    "adapted",
    "sequence",
    "mapping",
    "many",
    "made_again",
    "backup",
    "rows",
    "other_thread",
    "isolation_level",
    "autocommit",
    "with_block",
    "blob_read",
    "blob_write",
    "blob_get",
    "blob_set",
    "blob_of_blob",
]


def test_a_connection_in_use_cannot_be_closed():
    done = in_a_process("""
        from tests.crashers.test_sqlite_use import CASES, TASK
        with vmhost.Host(allow_unsigned=True) as host:
            task = host.load(bundle(TASK))
            for case in CASES:
                print(case, task(case), flush=True)
    """)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [
        f"{case} ['the {'blob' if case == 'blob_of_blob' else 'connection'} is in use']" for case in CASES
    ]


THREADS = """
import sqlite3, threading

data = b"y" * 300_000

def use(blob, started):
    try:
        for _ in range(50):
            blob.seek(0)
            blob.write(data)
            started.set()
            blob.seek(0)
            blob.read()
    except sqlite3.ProgrammingError:
        started.set()

def run(rounds):
    for number in range(rounds):
        db = sqlite3.connect(":memory:", check_same_thread=False)
        db.execute("create table t (x)")
        db.execute("insert into t values (?)", (data,))
        db.commit()
        blobs = [db.blobopen("t", "x", 1) for _ in range(4)]
        started = threading.Event()
        threads = [threading.Thread(target=use, args=(blob, started)) for blob in blobs]
        for thread in threads:
            thread.start()
        started.wait()
        for thing in [db] if number % 2 else [*blobs, db]:
            try:
                thing.close()
            except sqlite3.ProgrammingError:
                pass
        for thread in threads:
            thread.join()
        db.close()
    return rounds
"""


def test_blobs_that_other_threads_close_meanwhile():
    """Each thread does its work or gets an error of sqlite3; plain CPython soon waits for the lock of a database that
    is gone."""
    done = in_a_process("""
        from tests.crashers.test_sqlite_use import THREADS
        with vmhost.Host(allow_unsigned=True) as host:
            print(host.load(bundle(THREADS))(30, timeout_s=100))
    """)
    assert (done.returncode, done.stdout) == (0, "30\n"), done.stderr
