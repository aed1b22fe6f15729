"""Stores that were restored from a copy, copied, lost, or written by the version before: nothing new is taken for
known, and what was sent already comes once."""

import shutil
from collections import Counter

import msgpack
import pytest

from tests.pipeline.stream_tasks import ROWS, open_pipeline, stream_task
from tests.tunnel.conftest import WAIT_S, bodies, rows, until
from tests.tunnel.proxy import Proxy
from tests.tunnel.test_ends import Heard
from vmhost.pipeline.configuration import TunnelSettings
from vmhost.pipeline.events import Event
from vmhost.pipeline.pipeline import STORE_NAME
from vmhost.stores import Database
from vmhost.stores.outbox import SENT_EPOCHS
from vmhost.tunnel import Transactional
from vmhost.tunnel.device_store import DeviceStore
from vmhost.tunnel.inbox import Arrival, Inbox, Table
from vmhost.tunnel.limits import MAX_EPOCHS
from vmhost.tunnel.pushes import Pushes
from vmhost.tunnel.status import of_store


def put_back(copy, store):
    """The files of a store become those of the copy."""
    for side in ("-wal", "-shm", "-lock", "-turns"):
        store.with_name(store.name + side).unlink(missing_ok=True)
    shutil.copyfile(copy, store)


@pytest.fixture
def counting(make_server):
    """A server whose consumer writes each message that it gets: only numbers keep one from coming twice."""
    server = make_server(table=None)

    def write(connection, messages):
        connection.executemany("INSERT INTO came (body) VALUES (?)", [(each.body,) for each in messages])

    schema = "came", ("CREATE TABLE came (n INTEGER PRIMARY KEY, body BLOB)",)
    server.consume("*", Transactional(write, schema))
    return server


def came(tmp_path):
    return [body for (body,) in rows(tmp_path / "cloud.sqlite", "SELECT body FROM came ORDER BY n")]


def test_what_is_sent_offline_from_a_restored_device_arrives(counting, make_device, tmp_path):
    """Its numbers are used again before it hears that the cloud knows them."""
    store, copy = tmp_path / "ann.sqlite", tmp_path / "copy"
    with counting.running() as address:
        with make_device(address) as device:
            device.send("c", b"before")
            assert device.wait_sent(WAIT_S)
        shutil.copyfile(store, copy)
        with make_device(address) as device:
            device.send_many("c", [b"since %d" % n for n in range(5)])
            assert device.wait_sent(WAIT_S)
        put_back(copy, store)
        with make_device("localhost:1") as device:
            device.send_many("c", [b"offline %d" % n for n in range(8)])
        with make_device(address) as device:
            assert device.wait_sent(WAIT_S)
    assert came(tmp_path) == [b"before", *(b"since %d" % n for n in range(5)), *(b"offline %d" % n for n in range(8))]


def test_two_copies_of_a_store_send_what_they_share_once(counting, make_device, tmp_path):
    store, copy = tmp_path / "ann.sqlite", tmp_path / "copy"
    with make_device("localhost:1") as device:
        device.send_many("c", [b"shared 0", b"shared 1"])
    shutil.copyfile(store, copy)
    for each in (store, copy):
        with make_device("localhost:1", each) as device:
            device.send("c", each.name.encode())
    with counting.running() as address:
        for each in (store, copy):
            with make_device(address, each) as device:
                assert device.wait_sent(WAIT_S)
    assert came(tmp_path) == [b"shared 0", b"shared 1", b"ann.sqlite", b"copy"]


def test_messages_of_more_openings_than_a_receiver_remembers(counting, make_device, tmp_path):
    """Through cuts: what was stored and not acknowledged is recognized, in whichever opening it was put."""
    wanted = []
    for opening in range(MAX_EPOCHS + 2 * SENT_EPOCHS):
        store = DeviceStore(tmp_path / "ann.sqlite")
        wanted += [b"%d, %d" % (opening, n) for n in range(3)]
        store.put("c", wanted[-3:])
        assert len(store.outbox.epochs()) == opening + 1
        store.close()
    with counting.running() as address, Proxy(address, cut_after=(3_000, 4_000)) as proxy:
        with make_device(proxy.address) as device:
            assert device.wait_sent(WAIT_S)
            assert device.statistics()["counts"]["cuts"]
            device.send("c", b"last")
            assert device.wait_sent(WAIT_S)
            assert len(device.store.outbox.epochs()) == 1, "epochs of entries that are gone are kept"
    assert came(tmp_path) == [*wanted, b"last"]


def test_pushes_of_a_restored_cloud_reach_the_device(make_server, make_device, tmp_path):
    store, copy, heard = tmp_path / "cloud.sqlite", tmp_path / "copy", Heard()

    def serve(count, *pushed):
        server = make_server()
        with server.running() as address:
            device = make_device(address)
            device.on("news", heard)
            with device:
                for body in pushed:
                    server.push("ann", "news", body)
                heard.wait(count)
                until(lambda: not server.worker.pushes.waiting())

    server = make_server()
    server.prepare()
    server.push("ann", "news", b"before")
    shutil.copyfile(store, copy)
    serve(4, *(b"since %d" % n for n in range(3)))
    put_back(copy, store)
    for number in range(3):
        server.push("ann", "news", b"after %d" % number)  # while no server runs
    serve(8, b"after 3")
    assert heard.values == [b"before", *(b"since %d" % n for n in range(3)), *(b"after %d" % n for n in range(4))]


def test_ids_that_are_known_are_counted_and_logged(make_server, make_device, tmp_path, caplog):
    server = make_server()
    with server.running() as address:
        for name in ("ann", "bob"):
            for times in range(2):
                with make_device(address, tmp_path / f"{name}-{times}", name=name) as device:
                    device.send_many("c", [b"%d" % n for n in range(12)], identities=[f"id-{n}" for n in range(12)])
                    device.send("c", b"and one")
                    assert device.wait_sent(WAIT_S)
        assert sorted(of_store(server.worker.database)["known"]) == [("ann", 0, 12), ("bob", 0, 12)]
        assert server.worker.statistics()["counts"]["duplicates"] == 24
    assert "ann: messages with known ids are dropped, 12 so far" in caplog.text
    assert len(bodies(tmp_path / "cloud.sqlite")) == 2 * 14


def test_numbers_that_come_again_are_counted(tmp_path):
    with Database(tmp_path / "cloud") as database:
        inbox, table = Inbox(database), Table("t")
        inbox.prepare([table])
        messages = [(n, f"id-{n}", b"x") for n in range(1, 4)]
        assert inbox.keep([Arrival("ann", b"e", "c", messages, table)]) == 3
        assert inbox.keep([Arrival("ann", b"e", "c", messages, table)]) == 0
        Pushes(database)
        assert of_store(database)["known"] == [("ann", 3, 0)]


def test_a_clock_that_was_fast_makes_no_epoch_outlive_others(tmp_path):
    """Which epochs are the latest is counted, not read from a clock."""
    now = [2_000_000_000.0]
    with Database(tmp_path / "cloud") as database:
        inbox, table = Inbox(database, clock=lambda: now[0]), Table("t")
        inbox.prepare([table])
        for number in range(MAX_EPOCHS + 1):
            inbox.keep([Arrival("ann", b"fast %d" % number, "c", [(1, f"fast {number}", b"")], table)])
        now[0] = 1_000_000_000.0
        for number in range(3):
            inbox.keep([Arrival("ann", b"now %d" % number, "c", [(1, f"now {number}", b"")], table)])
        assert [inbox.received("ann", b"now %d" % number) for number in range(3)] == [{"c": 1}] * 3
        assert inbox.received("ann", b"fast 0") == {}
        assert list(inbox.received_of("ann"))[:3] == [b"now 2", b"now 1", b"now 0"]


def _as_before(path):
    """Makes a store what the version before would have written, with one epoch."""
    with Database(path) as database, database.transaction() as connection:
        connection.execute("DROP TABLE store_epochs")
        connection.execute("DROP TABLE tunnel_known")
        connection.execute("ALTER TABLE tunnel_received DROP COLUMN seen")
        if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'outbox_entries'").fetchone():
            connection.execute("ALTER TABLE outbox_entries DROP COLUMN age_ms")
        connection.execute("CREATE TABLE tunnel_epoch (one INTEGER PRIMARY KEY, epoch BLOB NOT NULL, peer BLOB)")
        connection.execute("INSERT INTO tunnel_epoch VALUES (1, x'0102', x'0304')")
        for name, version in (("store", 1), ("outbox", 2), ("tunnel", 1), ("tunnel.pushes", 1)):
            connection.execute("UPDATE store_versions SET version = ? WHERE name = ?", (version, name))


def test_stores_of_the_version_before(counting, make_device, tmp_path):
    """What they sent keeps its epoch, so that a message whose acknowledgement was lost comes once."""
    heard = Heard()
    counting.prepare()
    store = DeviceStore(tmp_path / "ann.sqlite")
    store.put("c", [b"0", b"1"])
    store.close()
    with Database(tmp_path / "cloud.sqlite") as database:
        Inbox(database).keep([Arrival("ann", b"\1\2", "c", [(1, "x", b"0")], counting.consumers["*"])])
        Pushes(database).put("ann", "news", b"0")
        Pushes(database).put("ann", "news", b"1")
    with Database(tmp_path / "ann.sqlite") as database:
        with database.transaction() as connection:
            connection.execute("INSERT INTO tunnel_received VALUES ('', x'0102', 'news', 1, 0, 0)")
    _as_before(tmp_path / "ann.sqlite")
    _as_before(tmp_path / "cloud.sqlite")
    with counting.running() as address:
        device = make_device(address)
        device.on("news", heard)
        with device:
            device.send("c", b"2")
            assert device.wait_sent(WAIT_S)
            heard.wait(1)
            counting.push("ann", "news", b"2")
            heard.wait(2)
    assert came(tmp_path) == [b"0", b"1", b"2"] and heard.values == [b"1", b"2"]


def test_a_store_that_no_tunnel_used_yet(counting, make_device, tmp_path):
    """Its entries, and pushes, get an epoch when it is opened."""
    heard = Heard()
    store = DeviceStore(tmp_path / "ann.sqlite")
    store.put("c", [b"0"])
    store.close()
    counting.prepare()
    counting.push("ann", "news", b"0")
    for name in ("ann.sqlite", "cloud.sqlite"):
        _as_before(tmp_path / name)
        with Database(tmp_path / name) as database, database.transaction() as connection:
            connection.execute("DROP TABLE tunnel_epoch")
            connection.execute("DROP TABLE tunnel_received")
            connection.execute("DROP TABLE tunnel_refused")
            connection.execute("DROP TABLE tunnel_dictionaries")
            connection.execute("DELETE FROM store_versions WHERE name = 'tunnel'")
    with counting.running() as address:
        device = make_device(address)
        device.on("news", heard)
        with device:
            assert device.wait_sent(WAIT_S)
            heard.wait(1)
    assert came(tmp_path) == [b"0"] and heard.values == [b"0"]


def test_a_pipeline_that_is_put_back_sends_what_it_makes_from_then_on(make_server, keys, tmp_path):
    """What it made before the copy arrives once, and what it makes afterwards is new, also at positions used before. Of
    the events that are fed again it counts those that the copy has; of the others it makes rows again."""
    table = "columns: {visit: {type: text, leaves: true}, count: integer}"
    bundle, copy = stream_task(tmp_path, ROWS, table=table), tmp_path / "copy"

    def repeats(address, numbers):
        """Feeds these events; returns how many of them were known."""
        settings = TunnelSettings(f"localhost:{address.rpartition(':')[2]}", keys, "ann")
        with open_pipeline(tmp_path, bundle, tunnel=settings) as pipeline:
            events = [Event("click", 1_790_000_000_000 + n, "item", f"v{n}", None, f"id{n}") for n in numbers]
            pipeline.append_many(events)
            assert pipeline.wait(WAIT_S) and (address == "offline:1" or pipeline.tunnel.wait_sent(WAIT_S))
            return pipeline.statistics()["intake"]["duplicates"]

    assert repeats("offline:1", range(6)) == 0
    shutil.copyfile(tmp_path / "data" / STORE_NAME, copy)
    server = make_server()
    with server.running() as address:
        assert repeats(address, range(6, 9)) == 0
        put_back(copy, tmp_path / "data" / STORE_NAME)
        assert repeats(address, range(3, 12)) == 3
    came = Counter(msgpack.unpackb(body)["visit"] for (body,) in bodies(server.store))
    assert came == {f"v{n}": 2 if n in (6, 7, 8) else 1 for n in range(12)}
