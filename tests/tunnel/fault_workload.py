"""One end of a tunnel, for test_faults.py: it may die at any write and be started again, and goes on where it was.

python -m tests.tunnel.fault_workload device ADDRESS STORE KEYS     sends COUNT messages, takes COUNT pushes, and ends
python -m tests.tunnel.fault_workload server ADDRESS STORE KEYS     pushes COUNT times, and serves until SIGTERM

What was sent is counted in the transaction that stores it, so only numbers keep a message from coming twice.
"""

import sys
import time

from tests.stores.power_cuts import end_if_hung
from vmhost.stores import Database, StoreError
from vmhost.tunnel import Device, Server, Transactional, keeper
from vmhost.tunnel.addresses import parse
from vmhost.tunnel.backoff import Backoff
from vmhost.tunnel.pushes import Pushes

COUNT = 5
WAIT_S = 120
SCHEMA = "faults", ("CREATE TABLE came (n INTEGER PRIMARY KEY, body BLOB); CREATE TABLE sent (n INTEGER)",)


def remember(connection, messages):
    connection.executemany("INSERT INTO came (body) VALUES (?)", [(each.body,) for each in messages])


def persistently(act):
    """Goes on after a full disk."""
    end = time.monotonic() + WAIT_S
    while True:
        try:
            return act()
        except StoreError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


def send_all(database, put):
    """`put(number)` for each number that was not sent yet."""

    def send():
        with database.transaction() as connection:
            (sent,) = connection.execute("SELECT count(*) FROM sent").fetchone()
            if sent < COUNT:
                put(sent)
                connection.execute("INSERT INTO sent VALUES (?)", (sent,))
            return sent

    while persistently(send) < COUNT:
        pass


def device(address, store, keys):
    files = {"ca": f"{keys}/ca.pem", "certificate": f"{keys}/ann.pem", "key": f"{keys}/ann.key"}
    with persistently(lambda: Database(store)) as database:
        persistently(lambda: database.migrate(*SCHEMA))
        quick = Backoff(parse(address), first_s=0.01, longest_s=0.05)
        end = persistently(lambda: Device(address, database, backoff=quick, **files))
        end.on("down", Transactional(remember, SCHEMA))
        with end:
            send_all(database, lambda number: end.send("up", b"%d" % number))
            deadline = time.monotonic() + WAIT_S
            while True:
                with database.reader() as connection:
                    (came,) = connection.execute("SELECT count(*) FROM came").fetchone()
                if came >= COUNT and not len(end.store.outbox):
                    return
                if time.monotonic() > deadline:
                    raise SystemExit(f"{came} pushes came, {len(end.store.outbox)} messages wait")
                time.sleep(0.005)


def server(address, store, keys):
    end = Server(store, certificate=f"{keys}/server.pem", key=f"{keys}/server.key", client_ca=f"{keys}/ca.pem")
    end.consume("up", Transactional(remember, SCHEMA))
    persistently(end.prepare)
    with persistently(lambda: Database(store, shared=True)) as database:
        pushes = Pushes(database)
        send_all(database, lambda number: pushes.put("ann", "down", b"%d" % number))
    persistently(lambda: end.run(address, drain_s=0.1, ready=lambda bound: print(bound[0][1], flush=True)))


def main(role, *given):
    end_if_hung()
    keeper.LONGEST_RETRY_S = 0.1  # a disk is full for a number of writes here, not for a time
    {"device": device, "server": server}[role](*given)


if __name__ == "__main__":
    main(*sys.argv[1:])
