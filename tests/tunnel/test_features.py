"""The path of a feature: a pipeline's outbox, a connection that is cut again and again, a table in the cloud."""

import random

import msgpack
import pytest

from tests.tunnel.conftest import rows
from tests.tunnel.proxy import Proxy
from vmhost.pipeline.events import Event
from vmhost.pipeline.store import EventStore
from vmhost.pipeline.tables import Column, Tables
from vmhost.stores import Database, Outbox

COUNT = 400


def put_features(database, count):
    """What a stream task's table does: writes a row, and its outgoing message, in one transaction."""
    events, tables = EventStore(database), Tables(database)
    table = tables.declare(
        "seen", "1", {"item": "text", "ms": Column("integer", leaves=True), "code": Column("bytes", leaves=True)}
    )
    for number in range(count):
        [position] = events.append_many([Event("click", 1_790_000_000_000 + number, "item")])
        table.add(position, {"item": "lamp", "ms": number, "code": random.randbytes(300)})
        if number % 20 == 19:
            tables.flush()
    tables.flush()


@pytest.mark.parametrize("seed", range(2))
def test_features_arrive_once_and_in_order_through_a_connection_that_is_cut(make_server, make_device, tmp_path, seed):
    server = make_server()
    with server.running() as address, Proxy(address, cut_after=(6_000, 20_000), seed=seed) as proxy:
        with Database(tmp_path / "shop.sqlite") as database:
            with make_device(proxy.address, database) as device:
                put_features(database, COUNT)
                assert device.wait_sent(60), device.statistics()
            assert len(Outbox(database)) == 0
        assert proxy.cuts > 2, "the connection was not cut: nothing was tried"
    found = rows(tmp_path / "cloud.sqlite")
    values = [msgpack.unpackb(body, strict_map_key=False)["ms"] for _, _, _, body in found]
    assert values == list(range(COUNT))
    assert {(device, channel) for device, channel, _, _ in found} == {("ann", "seen")}


def test_a_message_and_its_number_are_one_transaction(make_server, make_device, tmp_path):
    """If the consumer fails after a write, the write is rolled back, and the message comes again."""
    from vmhost.tunnel import Transactional

    failures = []

    def write(connection, messages):
        connection.executemany("INSERT INTO seen VALUES (?)", [(each.body,) for each in messages])
        if len(failures) < 2:
            failures.append(1)
            raise RuntimeError("after writing")

    server = make_server(table=None)
    server.consume("*", Transactional(write, ("seen", ("CREATE TABLE seen (body BLOB)",))))
    with server.running() as address, make_device(address) as device:
        for number in range(20):
            device.send("features", b"%d" % number)
        assert device.wait_sent(30)
    assert len(failures) == 2
    assert rows(tmp_path / "cloud.sqlite", "SELECT body FROM seen") == [(b"%d" % number,) for number in range(20)]
