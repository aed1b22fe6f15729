"""Ages of stored data: clocks that jump drop nothing and keep nothing."""

import shutil

import pytest

from vmhost.stores import Database, Outbox
from vmhost.stores.ages import Ages, machine_time
from vmhost.tunnel import Rule
from vmhost.tunnel.device_store import DeviceStore
from vmhost.tunnel.pushes import Pushes

DAY_MS = 86_400_000
DAY_S = 86_400


class Machine:
    """A machine with a clock that may be wrong."""

    def __init__(self):
        self.boot, self.boot_ms, self.clock_s = 1, 5000, 1_790_000_000.0

    def clock(self):
        return self.clock_s

    def running(self):
        return str(self.boot), self.boot_ms

    def waits(self, ms):
        self.boot_ms += ms
        self.clock_s += ms / 1000

    def reboots(self, clock_s):
        self.boot, self.boot_ms, self.clock_s = self.boot + 1, 20, clock_s


@pytest.fixture
def machine():
    return Machine()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.sqlite"


def bodies(outbox):
    return [entry.body for entry in outbox.take(limit=1000)]


def test_a_jump_of_the_clock_drops_nothing_that_is_young(path, machine):
    with Database(path) as database:
        outbox = Outbox(database, max_age_ms=DAY_MS, clock=machine.clock, running=machine.running)
        for n in range(100):
            outbox.put(f"{n}", "c", b"%d" % n)
        machine.clock_s += 3650 * DAY_S  # a wrong clock is set right
        outbox.put("after", "c", b"after")
        assert len(outbox) == 101
        machine.waits(DAY_MS + 1)
        outbox.put("next", "c", b"next")
        assert bodies(outbox) == [b"next"], "what is old goes"


def test_entries_of_the_future_do_not_keep_older_ones(path, machine):
    with Database(path) as database:
        outbox = Outbox(database, max_age_ms=DAY_MS, clock=machine.clock, running=machine.running)
        machine.clock_s += 3650 * DAY_S
        outbox.put("future", "c", b"future")
        machine.clock_s -= 3650 * DAY_S
        outbox.put("old", "c", b"old")
        machine.waits(DAY_MS + 1)
        outbox.put("new", "c", b"new")
        assert bodies(outbox) == [b"new"]


def test_the_count_goes_on_over_restarts_and_reboots(path, machine):
    def put(name):
        with Database(path) as database:
            outbox = Outbox(database, max_age_ms=10_000, clock=machine.clock, running=machine.running)
            outbox.put(name, "c", name.encode())
            return bodies(outbox)

    put("a")
    machine.waits(6000)  # no process had the store open
    assert put("b") == [b"a", b"b"]
    machine.reboots(0.0)  # in 1970
    assert put("c") == [b"a", b"b", b"c"]
    machine.waits(4500)
    assert put("d") == [b"b", b"c", b"d"]
    machine.reboots(2e9)
    machine.waits(6000)  # of which nobody knows how long it was after the reboot
    assert put("e") == [b"b", b"c", b"d", b"e"]


def test_a_copied_store_counts_on_from_where_it_was(path, tmp_path, machine):
    with Database(path) as database:
        ages = Ages(database, machine.running)
        with database.transaction() as connection:
            assert ages.advance(connection) == 0
        machine.waits(7000)
        with database.transaction() as connection:
            assert ages.advance(connection) == 7000
    shutil.copyfile(path, copy := tmp_path / "copy.sqlite")
    machine.reboots(0.0)
    for each in (path, copy):
        with Database(each) as database, database.transaction() as connection:
            assert Ages(database, machine.running).advance(connection) == 7000


def test_rules_and_pushes_go_by_the_count(path, tmp_path, machine):
    store = DeviceStore(path, rules={"c": Rule(max_age_s=10)}, clock=machine.clock, running=machine.running)
    with Database(tmp_path / "cloud.sqlite", shared=True) as database:
        pushes = Pushes(database, clock=machine.clock, running=machine.running)
        store.put("c", [b"1"])
        pushes.put("ann", "c", b"1", ttl_s=10)
        machine.clock_s += 3650 * DAY_S
        pushes.expire()
        store.put("c", [b"2"])
        assert [body for _, _, body in pushes.take("ann", "c")[1]] == [b"1"]
        assert [entry.body for entry in store.take("c", 0)[1]] == [b"1", b"2"]
        machine.waits(10_001)
        store.put("c", [b"3"])
        assert [entry.body for entry in store.take("c", 0)[1]] == [b"3"]
        assert pushes.take("ann", "c") is None
        pushes.expire()
        assert not pushes.waiting()
    store.close()


def test_the_machines_own_time_goes_on():
    boot, first = machine_time()
    again, second = machine_time()
    assert boot == again and 0 < first <= second


def test_stores_from_before_the_count(path, tmp_path, machine):
    with Database(path, shared=True) as database:
        pushes = Pushes(database, clock=machine.clock)
        pushes.put("ann", "c", b"1", ttl_s=10)
        outbox = Outbox(database, clock=machine.clock)
        outbox.put("a", "c", b"a")
        with database.transaction() as connection:  # as the version before had them
            connection.execute("DROP TABLE store_age")
            connection.execute("ALTER TABLE outbox_entries DROP COLUMN age_ms")
            connection.execute("UPDATE tunnel_pushes SET expires_ms = time_ms + 10000")
            connection.execute("DELETE FROM store_versions WHERE name = 'ages'")
            connection.execute(
                "UPDATE store_versions SET version = version - 1 WHERE name IN ('outbox', 'tunnel.pushes')"
            )
    with Database(path, shared=True) as database:
        pushes = Pushes(database, clock=machine.clock, running=machine.running)
        outbox = Outbox(database, max_age_ms=5000, clock=machine.clock, running=machine.running)
        pushes.expire()
        assert pushes.take("ann", "c")[1][0][2] == b"1" and bodies(outbox) == [b"a"]
        machine.waits(10_001)
        pushes.expire()
        outbox.put("b", "c", b"b")
        assert not pushes.waiting() and bodies(outbox) == [b"b"]
