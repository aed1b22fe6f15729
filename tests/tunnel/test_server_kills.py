"""Server processes killed with SIGKILL while messages come in, for real."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm
from tests.tunnel.conftest import WAIT_S, bodies, until
from vmhost.tunnel.status import of_processes

ROOT = Path(__file__).resolve().parents[2]


class Served:
    """`vmhost tunnel serve` in a process of its own."""

    def __init__(self, store, keys, *options, listen="localhost:0"):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "vmhost", "tunnel", "serve", store, "--keys", keys, "--listen", listen, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
        )
        line = self.process.stdout.readline()
        assert line.startswith("listening on "), line
        self.address = line.split()[2].rstrip(";")

    def end(self, number):
        self.process.send_signal(number)
        code = self.process.wait(WAIT_S)
        self.process.stdout.close()
        return code


def kill_and_start_again(make_device, keys, tmp_path, times):
    """Messages go on being sent; each server dies while it takes some."""
    store, sent = tmp_path / "cloud.sqlite", 0
    served = Served(store, keys)
    with make_device(served.address) as device:
        for _ in range(times):
            device.wait_connected(WAIT_S)
            before = device.statistics()["counts"]["acknowledged"]
            for _ in range(15):
                device.send_many("c", [b"%d" % number for number in range(sent, sent + 10)])
                sent += 10
            until(lambda: device.statistics()["counts"]["acknowledged"] > before)
            served.end(signal.SIGKILL)
            served = Served(store, keys, listen=served.address)
        assert device.wait_sent(WAIT_S)
    assert served.end(signal.SIGTERM) == 0
    assert [body for (body,) in bodies(store)] == [b"%d" % number for number in range(sent)]


def test_a_killed_server_loses_nothing_and_takes_nothing_twice(make_device, keys, tmp_path):
    kill_and_start_again(make_device, keys, tmp_path, 3)


@pytest.mark.stress
def test_many_killed_servers(make_device, keys, tmp_path):
    kill_and_start_again(make_device, keys, tmp_path, 24)


def test_processes_share_a_port_and_one_that_dies_is_replaced(make_device, keys, tmp_path):
    store = tmp_path / "cloud.sqlite"
    served = Served(store, keys, "--processes", "2")
    try:
        until(lambda: len(of_processes(store)) == 2)
        with make_device(served.address) as device:
            sent = 0
            for _ in range(3):
                device.send("c", b"%d" % sent)
                sent += 1
                assert device.wait_sent(WAIT_S)
                busy = [each for each in of_processes(store) if each["devices"] == ["ann"]]
                os.kill(busy[0]["process"], signal.SIGKILL)
                device.send("c", b"%d" % sent)
                sent += 1
                assert device.wait_sent(WAIT_S)
            counts = device.statistics()["counts"]
            assert counts["resumed"] == counts["connections"] - 1 >= 3, "each process knows the sessions of the others"
            until(lambda: len(of_processes(store)) == 2)
    finally:
        assert served.end(signal.SIGINT) == 0
    assert [body for (body,) in bodies(store)] == [b"%d" % number for number in range(sent)]
    assert [path for path in Path(f"{store}-processes").iterdir() if path.suffix == ".push" and _alive(path)] == []


def _alive(path):
    return Path(f"/proc/{path.name.partition('.')[0]}").exists()


def test_any_process_pushes_to_a_device_of_any_other(make_device, keys, tmp_path):
    """`vmhost tunnel push` runs beside the server; the device may be connected to either of its processes."""
    store, came = tmp_path / "cloud.sqlite", []
    served = Served(store, keys, "--processes", "2")
    try:
        devices = []
        for name in ("ann", "bob", "cyd"):
            device = make_device(served.address, name=name)
            device.on("news", lambda message, name=name: came.append((name, message.body)))
            device.start()
            devices.append(device)
        for device in devices:
            device.wait_connected(WAIT_S)
        for name in ("ann", "bob", "cyd"):
            warm.run("-m", "vmhost", "tunnel", "push", store, name, "news", f"hello {name}").check_returncode()
        until(lambda: len(came) == 3)
        for device in devices:
            device.close()
    finally:
        served.end(signal.SIGTERM)
    assert sorted(came) == [(name, f"hello {name}".encode()) for name in ("ann", "bob", "cyd")]
