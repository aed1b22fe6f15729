"""Faults of a device: SIGKILL, a store that is damaged, full, read-only or used twice, a clock that is
wrong."""

import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from tests.tunnel.conftest import WAIT_S, bodies, until
from tests.tunnel.proxy import Proxy
from vmhost.stores import StoreAccessError, StoreDamagedError, StoreForeignError, StoreFullError, StoreInUseError
from vmhost.tunnel import OutboxFullError, Rule
from vmhost.tunnel.device_store import DeviceStore

ROOT = Path(__file__).resolve().parents[2]


def kill_and_send_again(make_server, keys, tmp_path, times, count):
    """`vmhost tunnel send` is killed in the middle, again and again; then it may end."""
    store = tmp_path / "ann.sqlite"
    made = DeviceStore(store)
    for start in range(0, count, 100):
        made.put("c", [b"%d" % number for number in range(start, start + 100)])
    made.close()
    server, kills = make_server(), 0
    with server.running() as address, Proxy(address, cut_after=(20_000, 60_000)) as proxy:
        command = [sys.executable, "-m", "vmhost", "tunnel", "send", store, "--keys", keys, "--device", "ann"]
        for round in range(times + 1):
            before = server.worker.counts["messages"]
            process = subprocess.Popen(
                [*command, "--to", proxy.address], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            if round < times:
                until(lambda: server.worker.counts["messages"] > before or process.poll() is not None)
                process.kill()
                kills += process.wait(WAIT_S) == -signal.SIGKILL
            else:
                assert process.wait(WAIT_S) == 0
    assert kills, "none was killed in the middle"
    assert [body for (body,) in bodies(tmp_path / "cloud.sqlite")] == [b"%d" % number for number in range(count)]


def test_a_killed_device_loses_nothing_and_sends_nothing_twice(make_server, keys, tmp_path):
    kill_and_send_again(make_server, keys, tmp_path, 2, 2000)


@pytest.mark.stress
def test_a_device_is_killed_many_times(make_server, keys, tmp_path):
    kill_and_send_again(make_server, keys, tmp_path, 24, 20_000)


def test_two_devices_on_one_outbox(make_device):
    with make_device("localhost:1"), pytest.raises(StoreInUseError, match="another process has the store open"):
        make_device("localhost:1")


def test_an_outbox_that_is_damaged(make_device, tmp_path):
    store = tmp_path / "ann.sqlite"
    with make_device("localhost:1") as device:
        device.send_many("c", [bytes(1000)] * 50)
    whole = store.read_bytes()
    for damaged in (b"\0" * 4096 + whole[4096:], b"no database at all" * 300, whole[: len(whole) // 3]):
        store.write_bytes(damaged)
        with pytest.raises((StoreDamagedError, StoreForeignError), match="ann.sqlite: ") as caught:
            with make_device("localhost:1") as device:
                device.store.take("c", 0)
                device.send("c", b"x")
        assert "\n" not in str(caught.value)


def test_an_outbox_that_cannot_be_written(make_device, tmp_path):
    """As root no file is read-only, so the folder is a file system's that is."""
    if os.getuid():
        (tmp_path / "closed").mkdir(mode=0o500)
        where = tmp_path / "closed" / "ann.sqlite"
    else:
        where = Path("/proc/ann.sqlite")
    with pytest.raises(StoreAccessError, match="ann.sqlite"):
        make_device("localhost:1", where)


FULL = """
import resource, signal, sys
from vmhost.stores import StoreFullError, StoreError
from vmhost.tunnel.device_store import DeviceStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = DeviceStore(sys.argv[1])
for n in range(20):
    store.put("c", [b"%d" % n])
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
try:
    for n in range(10_000):
        store.put("c", [bytes(5000)])
except StoreError as error:
    print(type(error).__name__, flush=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
store.put("c", [b"after"])
print(store.take("c", 0)[1][0].body, len(store.outbox) > 20, flush=True)
store.close()
"""


def test_an_outbox_on_a_full_disk_says_so_and_goes_on(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FULL, tmp_path / "ann.sqlite"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first in ("StoreFullError", "StoreError") and second == "b'0' True"  # EFBIG is no ENOSPC


def test_a_send_on_a_full_disk_raises_and_what_was_there_is_sent(make_server, make_device, tmp_path, monkeypatch):
    server = make_server()
    with server.running() as address, Proxy("127.0.0.1:1") as proxy, make_device(proxy.address) as device:
        device.send("c", b"before")
        put = device.store.outbox.put_many

        def full(entries):
            raise StoreFullError("ann.sqlite: the disk is full")

        monkeypatch.setattr(device.store.outbox, "put_many", full)
        with pytest.raises(StoreFullError):
            device.send("c", b"during")
        proxy.retarget(address)
        device.wake()
        assert device.wait_sent(WAIT_S)
        monkeypatch.setattr(device.store.outbox, "put_many", put)
        device.send("c", b"after")
        assert device.wait_sent(WAIT_S)
    assert [body for (body,) in bodies(tmp_path / "cloud.sqlite")] == [b"before", b"after"]


@pytest.mark.parametrize("skew_s", [-10 * 365 * 86_400, -3600, 86_400])
def test_a_clock_that_is_wrong(make_server, make_device, monkeypatch, tmp_path, skew_s):
    """Of the cloud, as the device sees it. Tokens tell the device: certificates want a clock that is about right."""
    from vmhost.tunnel import worker

    clock = types.SimpleNamespace(time=lambda: time.time() + skew_s, monotonic=time.monotonic)
    monkeypatch.setattr(worker, "time", clock)
    server = make_server(identify=lambda token: token)
    server.answer("double", lambda request: request.value * 2)
    received = []
    with server.running() as address:
        server.push("dora", "news", b"1", ttl_s=WAIT_S)
        device = make_device(address, store=tmp_path / "dora.sqlite", token="dora", certificate=None, key=None)
        device.on("news", lambda message: received.append(message.body))
        with device:
            device.wait_connected(WAIT_S)
            device.send("c", b"x")
            assert device.wait_sent(WAIT_S)
            assert device.ask("double", 2, timeout_s=WAIT_S) == 4
            until(lambda: received == [b"1"])
            assert abs(device._inner.clock_offset_s - skew_s) < 60
            assert device.statistics()["latencies"]["sent c"]["max_ms"] >= 0


def test_messages_wait_for_days_and_old_ones_go_by_their_rule(tmp_path):
    """In simulated time: a week offline, with a rule of three days for one channel."""
    running = [0]
    store = DeviceStore(
        tmp_path / "ann.sqlite",
        rules={"fresh": Rule(max_age_s=3 * 86_400), "few": Rule(max_count=2, when_full="refuse")},
        running=lambda: ("boot", running[0]),
    )
    for day in range(7):
        store.put("fresh", [b"%d" % day])
        store.put("all", [b"%d" % day])
        running[0] += 86_400_000
    store.put("few", [b"1", b"2"])
    with pytest.raises(OutboxFullError):
        store.put("few", [b"3"])
    assert [entry.body for entry in store.take("all", 0)[1]] == [b"%d" % day for day in range(7)]
    assert [entry.body for entry in store.take("fresh", 0)[1]] == [b"3", b"4", b"5", b"6"]
    store.close()


def test_a_disk_that_is_full_when_the_last_message_was_sent(make_server, make_device, monkeypatch, caplog):
    """No later acknowledgement removes it: it is tried again until the disk has room."""
    server, tried = make_server(), []
    with server.running() as address, make_device(address) as device:
        acknowledged = device.store.acknowledged

        def full(pairs):
            tried.append(pairs)
            if len(tried) == 1:
                raise StoreFullError("the disk is full")
            return acknowledged(pairs)

        device.wait_connected(WAIT_S)
        monkeypatch.setattr(device.store, "acknowledged", full)
        device.send("c", b"1")
        assert device.wait_sent(WAIT_S) and tried == [[("c", 1)]] * 2
    assert "cannot be removed from the outbox yet: the disk is full" in caplog.text
