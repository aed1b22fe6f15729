"""Messages wait to be sent together, by time and size: with a clock that the test sets, then on a real loop."""

import pytest

from tests.tunnel.conftest import WAIT_S, bodies, until
from vmhost.tunnel import AsyncDevice
from vmhost.tunnel.connection import Connection


class Loop:
    """Runs due callbacks when the test moves its clock."""

    def __init__(self):
        self.now, self._timers = 0.0, []

    def call_later(self, delay, function):
        timer = Timer(self.now + delay, function)
        self._timers.append(timer)
        return timer

    def call_soon_threadsafe(self, function, *arguments):
        function(*arguments)

    def move(self, seconds):
        self.now = round(self.now + seconds, 6)
        for timer in [timer for timer in self._timers if timer.due <= self.now and not timer.cancelled]:
            timer.cancelled = True
            timer.function()


class Timer:
    def __init__(self, due, function):
        self.due, self.function, self.cancelled = due, function, False

    def cancel(self):
        self.cancelled = True


@pytest.fixture
def batching(settings_of, tmp_path):
    """batching(batch_ms=...) -> (device, loop, [(when, how many messages went)])."""
    made = []

    def make(**settings):
        device = AsyncDevice("localhost:1", tmp_path / "ann.sqlite", **settings, **settings_of("ann"))
        device._loop, sent = Loop(), []
        made.append(device)

        def waiting(positions):
            _, entries = device.store.take("c", sent[-1][2] if sent else 0) or (None, [])
            if entries:
                sent.append((device._loop.now, len(entries), entries[-1].number))

        class Disk:
            def submit(self, function, positions):
                waiting(positions)
                device._pumping = False
                return self

            def add_done_callback(self, function):
                pass

        class Online:
            def is_set(self):
                return True

        class Transport:
            class connection:
                positions = dict

        device._disk, device._online, device._transport = Disk(), Online(), Transport()
        device.store.watch(device._committed)
        return device, device._loop, sent

    yield make
    for device in made:
        device.store.close()


def counts_by_time(sent):
    return [(when, count) for when, count, _ in sent]


def test_without_batching_each_goes_at_once(batching):
    device, loop, sent = batching()
    for _ in range(3):
        device.store.put("c", [b"x"])
        loop.move(0.001)
    assert counts_by_time(sent) == [(0.0, 1), (0.001, 1), (0.002, 1)]


def test_the_first_waits_as_long_as_it_may_and_no_longer(batching):
    device, loop, sent = batching(batch_ms=50)
    for _ in range(12):  # one each 10 ms: later messages do not delay the sending
        device.store.put("c", [b"x"])
        loop.move(0.01)
    loop.move(1.0)
    assert counts_by_time(sent) == [(0.05, 5), (0.1, 5), (1.12, 2)]
    loop.move(1.0)
    assert len(sent) == 3


def test_so_many_bytes_go_at_once(batching):
    device, loop, sent = batching(batch_ms=1000, batch_bytes=1000)
    for size in (999, 1, 400, 400, 200, 5000, 10):
        device.store.put("c", [bytes(size)])
        loop.move(0.01)
    assert counts_by_time(sent) == [(0.01, 2), (0.04, 3), (0.05, 1)]
    loop.move(1.0)
    assert counts_by_time(sent)[3:] == [(1.07, 1)], "the last one waited its time, counted from its own"


def test_a_batch_is_one_frame_and_waiting_for_it_sends_it(make_server, make_device, monkeypatch, tmp_path):
    frames = []
    queue = Connection._queue_messages
    monkeypatch.setattr(
        Connection, "_queue_messages", lambda self, lane, flat: frames.append(len(flat) // 3) or queue(self, lane, flat)
    )
    server = make_server()
    with server.running() as address, make_device(address, batch_ms=3_600_000, batch_bytes=10_000) as device:
        device.wait_connected(WAIT_S)
        until(lambda: not device._inner._pumping)  # what it finds in its outbox when it connects goes at once
        for number in range(7):
            device.send("c", b"%d" % number)
        assert frames == []
        assert device.wait_sent(WAIT_S), "nobody waits an hour for what he asked for"
        assert frames == [7]
    assert [body for (body,) in bodies(tmp_path / "cloud.sqlite")] == [b"%d" % number for number in range(7)]
