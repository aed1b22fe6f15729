"""Messages that a consumer cannot take: they hold up their own channel for some tries, and nobody else."""

import queue
import threading
import time

import pytest

from tests.tunnel.conftest import WAIT_S, rows, until
from vmhost.stores import Database
from vmhost.tunnel import Table, Transactional, inbox, keeper
from vmhost.tunnel.turns import Turns

BAD = b"bad"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(keeper, "FIRST_RETRY_S", 0.002)
    monkeypatch.setattr(keeper, "LONGEST_RETRY_S", 0.02)


class Elsewhere:
    """A consumer with a store of its own."""

    schema = None

    def __init__(self, take):
        self.take, self.lasts = take, {}

    def write(self, connection, messages, time_ms):
        pass

    def keep(self, arrivals):
        lasts, new = dict(self.lasts), []
        for each in arrivals:
            key = each.peer, each.epoch, each.channel
            for number, _, body in each.messages:
                if number > lasts.get(key, 0):
                    lasts[key] = number
                    new.append((each.peer, body))
        for one in new:
            self.take(*one)
        self.lasts = lasts
        return len(new)

    def close(self):
        pass


class Takes:
    """Fails for `bad` bodies; `taken` has the others, (device, body)."""

    def __init__(self, *bad):
        self.bad, self.taken, self.failures = set(bad), [], 0

    def __call__(self, peer, body):
        if body in self.bad:
            self.failures += 1
            raise ValueError(f"{body!r} is no number")
        self.taken.append((peer, body))

    def consumer(self, kind):
        def write(connection, messages):
            for each in messages:
                self(each.peer, each.body)

        if kind == "elsewhere":
            return Elsewhere(self)
        if kind == "transaction":
            return Transactional(write)
        return lambda message: self(message.peer, message.body)

    def of(self, peer):
        """What was taken, each once: a transaction that failed is repeated."""
        return list(dict.fromkeys(body for device, body in self.taken if device == peer))


KINDS = pytest.mark.parametrize("kind", ["transaction", "function", "elsewhere"])


@KINDS
def test_a_message_that_fails_alone_is_put_aside_and_its_channel_goes_on(make_server, make_device, kind):
    takes = Takes(BAD)
    server = make_server(table=None, tries=3)
    server.consume("c", takes.consumer(kind))
    mine = [b"%d" % number for number in range(40)]
    with server.running() as address, make_device(address) as ann, make_device(address, name="bob") as bob:
        ann.wait_connected(WAIT_S)
        bob.wait_connected(WAIT_S)
        ann.send_many("c", [*mine[:25], BAD, *mine[25:]])
        sent = 0
        while len(ann.store.outbox):  # others go on, so that it is the message's own fault
            bob.send("c", b"bob %d" % sent)
            sent += 1
            assert bob.wait_sent(WAIT_S)
    assert takes.of("ann") == mine and takes.of("bob") == [b"bob %d" % number for number in range(sent)]
    assert takes.failures >= 4
    [(peer, channel, why, body)] = rows(server.store, "SELECT peer, channel, why, body FROM tunnel_refused")
    assert (peer, channel, body) == ("ann", "c", BAD) and "b'bad' is no number" in why


@KINDS
def test_while_a_consumer_fails_for_all_nothing_is_put_aside(make_server, make_device, kind):
    first, second = b"1", b"2"
    takes = Takes(first, second)
    server = make_server(table=None, tries=1)
    server.consume("c", takes.consumer(kind))
    with server.running() as address, make_device(address) as ann, make_device(address, name="bob") as bob:
        ann.send_many("c", [first, second])
        bob.send_many("c", [second, first])
        until(lambda: takes.failures > 30)
        assert not rows(server.store, "SELECT * FROM tunnel_refused") and not takes.taken
        takes.bad.clear()
        assert ann.wait_sent(WAIT_S) and bob.wait_sent(WAIT_S)
    assert takes.of("ann") == [first, second] and takes.of("bob") == [second, first]
    assert not rows(server.store, "SELECT * FROM tunnel_refused")


def test_sql_that_refuses_a_devices_data_is_not_trouble_of_the_store(make_server, make_device, caplog):
    def write(connection, messages):
        connection.executemany("INSERT INTO taken VALUES (?, ?)", [(each.peer, each.body) for each in messages])

    schema = "taken", ("CREATE TABLE taken (peer TEXT, body BLOB CHECK (body != x'626164'))",)
    server = make_server(table=None, tries=None)
    server.consume("c", Transactional(write, schema))
    with server.running() as address, make_device(address) as ann, make_device(address, name="bob") as bob:
        ann.send("c", BAD)
        until(lambda: server.worker.statistics()["counts"]["retries"])
        bob.send("c", b"good")
        assert bob.wait_sent(WAIT_S)
        assert len(ann.store.outbox) == 1 and server.worker.statistics()["store_error"] is None
    assert rows(server.store, "SELECT * FROM taken") == [("bob", b"good")]
    assert "the consumer failed" in caplog.text and "until the store can be written" not in caplog.text


@KINDS
def test_a_device_whose_messages_wait_fills_only_its_own_room(make_server, make_device, kind):
    """Its channels hold more than all devices together may have waiting."""
    takes = Takes(BAD)
    server = make_server(table=None, tries=None, pending_bytes=100_000, device_pending_bytes=60_000)
    server.consume("*", takes.consumer(kind))
    with server.running() as address, make_device(address) as ann, make_device(address, name="bob") as bob:
        ann.wait_connected(WAIT_S)
        bob.wait_connected(WAIT_S)
        large = b"x" * 20_000
        for number in range(10):
            ann.send_many(f"c{number}", [BAD, large])
        until(lambda: server.worker.statistics()["pending_bytes"] > 60_000)
        for number in range(20):
            bob.send("c", large + b"%d" % number)
            assert bob.wait_sent(WAIT_S)
        assert len(takes.of("bob")) == 20
        assert server.worker.statistics()["pending_bytes"] < 200_000
        takes.bad.clear()
        assert ann.wait_sent(WAIT_S), "it is read again"
    assert takes.of("ann").count(BAD) == 1 and len(takes.of("ann")) == 2


def test_slow_functions_of_one_device_leave_threads_to_others(make_server, make_device):
    """A device cannot take all threads for requests, streams or messages."""
    go_on = threading.Event()
    server = make_server(threads=2)
    server.answer("slow", lambda request: go_on.wait(WAIT_S))
    server.answer("quick", lambda request: request.value)
    server.stream("slow", lambda stream: list(stream))
    server.consume("slow", lambda message: go_on.wait(WAIT_S))
    for number in range(8):
        server.consume(f"slow{number}", lambda message: go_on.wait(WAIT_S))
    server.consume("quick", lambda message: None)
    with server.running() as address, make_device(address) as ann, make_device(address, name="bob") as bob:
        ann.wait_connected(WAIT_S)
        bob.wait_connected(WAIT_S)
        asking = [threading.Thread(target=ann.ask, args=("slow", 1)) for _ in range(8)]
        for each in asking:
            each.start()
        streams = [ann.open_stream("slow") for _ in range(8)]
        for number in range(8):
            ann.send(f"slow{number}", b"1")
        until(lambda: server.worker.statistics()["counts"]["messages"] == 8)
        assert bob.ask("quick", 5, timeout_s=WAIT_S) == 5
        bob.send("quick", b"1")
        assert bob.wait_sent(WAIT_S)
        with bob.open_stream("slow") as stream:
            stream.write(b"x")
        go_on.set()
        for each in asking:
            each.join()
        for each in streams:
            each.end()


def test_turns():
    """Keys alternate; one has at most its share; what is cancelled is dropped, and frees what it holds."""
    order, gate = [], threading.Event()
    turns = Turns(1, "test-turns")
    first = turns.submit("a", gate.wait, WAIT_S)
    futures = [turns.submit(key, order.append, (key, number)) for key in "aab" for number in range(2)]
    assert futures[1].cancel() and not first.cancel()
    gate.set()
    for future in futures:
        if not future.cancelled():
            future.result(WAIT_S)
    assert order == [("a", 0), ("b", 0), ("a", 0), ("b", 1), ("a", 1)]
    failing = turns.submit("a", lambda: 1 / 0)
    assert isinstance(failing.exception(WAIT_S), ZeroDivisionError)
    turns.shutdown()

    shared = Turns(4, "test-turns", most=2)
    gate = threading.Event()
    slow = [shared.submit("a", gate.wait, WAIT_S) for _ in range(5)]
    assert shared.submit("b", lambda: 7).result(WAIT_S) == 7
    assert sum(each.running() for each in slow) <= 2
    gate.set()
    assert all(each.result(WAIT_S) for each in slow)
    shared.shutdown()


def test_refused_messages_of_one_device_do_not_push_out_others(make_server, make_device, monkeypatch):
    from vmhost.tunnel import MessageRefused, inbox

    monkeypatch.setattr(inbox, "MAX_REFUSED", 5)

    def refuse(message):
        raise MessageRefused("no")

    server = make_server(table=None)
    server.consume("c", refuse)
    server.consume("d", Table("d"))
    with server.running() as address, make_device(address) as ann, make_device(address, name="bob") as bob:
        bob.send("c", b"bob")
        assert bob.wait_sent(WAIT_S)
        ann.send_many("c", [b"%d" % number for number in range(20)])
        assert ann.wait_sent(WAIT_S)
    found = rows(server.store, "SELECT body FROM tunnel_refused ORDER BY position")
    assert found == [(b"bob",), *((b"%d" % number,) for number in range(15, 20))]


def test_what_comes_between_two_tries_is_written_before_the_next(tmp_path):
    written, is_asked = [], threading.Event()

    def take(connection, messages):
        (peer,) = {each.peer for each in messages} if len(messages) == 1 else ("several",)
        written.append(peer)
        if not is_asked.is_set() and len(storing._held) == 3:  # the first try of one that is held
            while not all(held.due <= time.monotonic() for held in storing._held.values()):
                time.sleep(0.001)
            put("good")
            is_asked.set()
            written.clear()
        if any(each.peer != "good" for each in messages):
            raise ValueError("bad")

    class Ticket:
        closed = False

    def put(peer):
        storing.put(Ticket(), inbox.Arrival(peer, b"epoch", "a", [(1, "1", b"")], consumer))

    consumer, told = Transactional(take), queue.Queue()
    with Database(tmp_path / "store") as database:
        storing = keeper.Keeper(inbox.Inbox(database), None, lambda kept, new: told.put(kept), tries=None)
        try:
            for peer in ("bad 1", "bad 2", "bad 3"):
                put(peer)
            told.get(timeout=WAIT_S)
            assert written[0] == "good"
        finally:
            storing.close()
