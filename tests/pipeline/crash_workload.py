"""A process that works on a store until it is killed, and checks of the store afterwards.

Event n is at position n and n determines its contents; a table counts events, one row and one state each. So the number
of events determines the whole store, and it must be at least the promised one.

    python tests/pipeline/crash_workload.py work PATH SEED DURABILITY SYNCHRONOUS OPERATIONS
    python tests/pipeline/crash_workload.py kill PATH SEED ROUNDS
"""

import os
import random
import select
import signal
import sys
import time

from vmhost.pipeline.events import Event
from vmhost.pipeline.forgetting import forget
from vmhost.pipeline.store import EPOCHS, EventStore
from vmhost.pipeline.tables import Tables, outbox_id
from vmhost.stores import Database

COLUMNS = {"n": {"type": "integer", "leaves": True}}
DURABILITIES = ("batch", "each")


def event(n):
    """Every 40th event belongs to a person who may be forgotten."""
    key = f"gone{n % 3}" if n % 40 == 0 else "kept"
    return Event("click", 1000 + n, f"p{n % 3}", f"v{n // 7}", {"n": n, "pad": bytes(n * 37 % 900)}, f"id{n}", key)


def opened(path, durability="batch"):
    database = Database(path)
    try:
        store = EventStore(database, durability=durability, batch_ms=None, batch_count=10_000)
        tables = Tables(database, buffer_ms=None, buffer_rows=10_000)
        return database, store, tables.declare("count", "1", COLUMNS)
    except BaseException:
        database.close()
        raise


def compute(store, table):
    """Continues after the table's position, as after a restart: a row for each event, a state that counts them."""
    state = table.state("kept")
    count = state.value["count"] if state else 0
    for stored in store.read(table.position):
        if stored.event.key == "kept" and not table.done(stored.position, "kept"):
            count += 1
            table.add(stored.position, {"n": stored.event.contents["n"]}, key="kept", state={"count": count})
    table.complete_until(store.position)


def work(path, seed, durability, promise, synchronous="FULL", operations=1 << 60):
    """Calls `promise(position of the events, position of the table)` once these are durable."""
    dice = random.Random(seed)
    database, store, table = opened(path, durability)
    with database.transaction() as connection:
        pass
    connection.execute("PRAGMA wal_autocheckpoint = 30")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    compute(store, table)
    for _ in range(operations):
        what, n = dice.random(), store.position + 1
        if what < 0.35:
            store.append(event(n))
        elif what < 0.65:
            store.append_many([event(n + more) for more in range(dice.randrange(1, 60))])
        elif what < 0.8:
            compute(store, table)
        elif what < 0.81:
            forget(database, f"gone{dice.randrange(3)}")
        else:
            store.flush()
            promise(store.position, table.position)
        if durability == "each":
            promise(store.position, 0)
    database.close()


def verify(path, promised, promised_table):
    """AssertionError or StoreError if something promised is missing, or the contents are not consistent."""
    database, store, table = opened(path)
    try:
        database.check()
        last = store.position
        assert last >= promised, f"events up to {promised} were promised, they end at {last}"
        assert promised_table <= table.position <= last, (promised_table, table.position, last)
        found = list(store.read())
        for stored in found:
            assert stored.event == event(stored.position)
        wanted = [n for n in range(1, last + 1) if n % 40]
        assert [stored.position for stored in found if stored.event.key == "kept"] == wanted
        counted = [n for n in wanted if n <= table.position]
        assert [row["n"] for row in table.read()] == counted
        assert [row["_id"] >> 20 for row in table.read(with_ids=True)] == counted
        state = table.state("kept")
        assert (state.value["count"] if state else 0) == len(counted)
        with database.reader() as connection:
            left = [identity for (identity,) in connection.execute("SELECT id FROM outbox_entries ORDER BY number")]
        assert left == [outbox_id(database.epochs(EPOCHS), "count", 1, n << 20) for n in counted]
        return last
    finally:
        database.close()


def kill(path, seed, rounds):
    """Lets children work on one store and kills each at a random moment; prints their progress."""
    dice, promised, promised_table, killed = random.Random(seed), 0, 0, 0
    for _ in range(rounds):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            try:
                work(
                    path,
                    dice.random(),
                    dice.choice(DURABILITIES),
                    lambda *positions: os.write(writing, b"%d %d\n" % positions),
                )
            finally:
                os._exit(1)  # not reached, unless something raised
        os.close(writing)
        dice.random(), dice.choice(DURABILITIES)
        select.select([reading], [], [], 60)  # the first promise
        time.sleep(dice.expovariate(1 / 0.006))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        killed += os.WIFSIGNALED(status)
        with open(reading, "rb") as pipe:
            lines = pipe.read().splitlines()
        for line in lines:
            events, table = map(int, line.split())
            promised, promised_table = max(promised, events), max(promised_table, table)
        verify(path, promised, promised_table)
    assert killed == rounds, f"{rounds - killed} children ended by themselves"
    print(promised)


if __name__ == "__main__":
    if sys.argv[1] == "kill":
        kill(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        path, seed, durability, synchronous, operations = sys.argv[2:]
        said = os.open(f"{path}.promises", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        work(path, int(seed), durability, lambda *two: os.write(said, b"%d %d\n" % two), synchronous, int(operations))
