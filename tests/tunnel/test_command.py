"""`vmhost tunnel` as a user meets it: right and wrong input, dictionaries, captures, and tasks that use the tunnel."""

import asyncio
import json

import pytest

from tests.tunnel.conftest import WAIT_S, rows, until
from vmhost import Host
from vmhost.bytecode.compiler import compile_task
from vmhost.cli import main
from vmhost.tunnel import frames, task_functions
from vmhost.tunnel.connection import Connection
from vmhost.tunnel.decoding import lines
from vmhost.tunnel.errors import TunnelConfigurationError
from vmhost.tunnel.server import bind
from vmhost.tunnel.training import train_channel


def run_command(capfd, *arguments):
    """(exit code, stdout, stderr) of `vmhost tunnel ARGUMENTS`."""
    capfd.readouterr()
    code = main(["tunnel", *map(str, arguments)])
    return code, *capfd.readouterr()


def test_certificates_are_made_once(tmp_path, capfd):
    folder = tmp_path / "keys"
    assert run_command(capfd, "certificates", folder, "--device", "ann")[1].endswith("made ca, server, ann\n")
    before = (folder / "ca.pem").read_bytes()
    assert run_command(capfd, "certificates", folder, "--device", "bob")[1].endswith("made bob\n")
    assert run_command(capfd, "certificates", folder)[1].endswith("nothing to make, all files are there\n")
    assert (folder / "ca.pem").read_bytes() == before
    assert all(path.stat().st_mode & 0o77 == 0 for path in folder.glob("*.key"))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["certificates", "keys", "--device", "../x"], "device '../x': expected up to 64 letters"),
        (["certificates", "keys", "--device", "ca"], "other than ca, server"),
        (["serve", "cloud.sqlite"], "the server needs a certificate"),
        (
            ["serve", "cloud.sqlite", "--certificate", "nothing.pem", "--ca", "KEYS/ca.pem"],
            "nothing.pem: the certificate",
        ),
        (["serve", "cloud.sqlite", "--certificate", "nothing.pem"], "give --ca or --tokens"),
        (["serve", "cloud.sqlite", "--keys", "KEYS", "--listen", "here:port"], "expected HOST:PORT"),
        (["serve", "cloud.sqlite", "--keys", "KEYS", "--table", "drop table"], "table 'drop table'"),
        (["serve", "cloud.sqlite", "--keys", "KEYS", "--answer", "x=nothing:f"], "No module named 'nothing'"),
        (["serve", "cloud.sqlite", "--keys", "KEYS", "--answer", "x"], "expected CHANNEL=MODULE:NAME"),
        (["serve", "KEYS/ca.pem", "--keys", "KEYS", "--listen", "localhost:0"], "no SQLite database"),
        (["send", "ann.sqlite"], "the server authenticates devices"),
        (["send", "ann.sqlite", "--token-file", "nothing"], "nothing: the token cannot be read"),
        (["send", "ann.sqlite", "--keys", "KEYS", "--device", "eve"], "eve.pem: the certificate and its key"),
        (["push", "cloud.sqlite", "ann", "news", "hello"], "there is no such store"),
        (["push", "cloud.sqlite", "ann", "news"], "give MESSAGE or --file"),
        (["status", "cloud.sqlite"], "there is no such store"),
        (["train", "cloud.sqlite", "c"], "there is no such store"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_wrong_input_gets_one_error(keys, tmp_path, monkeypatch, capfd, arguments, text):
    monkeypatch.chdir(tmp_path)
    code, out, err = run_command(capfd, *(each.replace("KEYS", str(keys)) for each in arguments))
    assert code != 0 and out == ""
    assert text in err and err.startswith("error: ") and err.count("\n") == 1, err


def test_what_cannot_be_sent_waits(keys, tmp_path, capfd):
    arguments = ["send", tmp_path / "ann.sqlite", "--keys", keys, "--device", "ann", "--to", "localhost:1"]
    code, _, err = run_command(capfd, *arguments, "--message", "hello", "--timeout", "0.3")
    assert code == 5 and "1 message could not be sent within 0.3 s and wait in" in err


def test_send_push_status(make_server, keys, tmp_path, capfd):
    server, store = make_server(), tmp_path / "cloud.sqlite"
    (tmp_path / "lines").write_bytes(b"one\ntwo\r\nthree")
    with server.running("localhost:0") as address:
        to = ["--keys", keys, "--device", "ann", "--to", address.replace("127.0.0.1", "localhost")]
        code, out, _ = run_command(capfd, "send", tmp_path / "a.sqlite", *to, "--lines", tmp_path / "lines", "--json")
        assert code == 0 and json.loads(out)["counts"]["acknowledged"] == 3
        assert run_command(capfd, "push", store, "bob", "news", "hello", "--ttl", "60")[0] == 0
        report = json.loads(run_command(capfd, "status", store, "--json")[1])
        assert report["store"]["pushes"] == [["bob", "news", 1, 5]] and report["store"]["devices"] == 1
        assert report["processes"][0]["counts"]["messages"] == 3
        assert report["processes"][0]["latencies"]["kept messages"]["count"] >= 1
        code, out, _ = run_command(capfd, "status", store)
        assert code == 0 and "1 for bob on news" in out
    assert [body for _, _, _, body in rows(store)] == [b"one", b"two", b"three"]
    assert "serving: 0 processes" in run_command(capfd, "status", store)[1]
    assert run_command(capfd, "status", tmp_path / "a.sqlite")[1] == "the outbox is empty\n"
    code, _, err = run_command(capfd, "push", tmp_path / "a.sqlite", "bob", "news", "hello")
    assert code == 2 and "no server's store" in err, "it would wait there for ever"


# ---- dictionaries


def test_a_dictionary_is_trained_sent_once_and_used(make_server, make_device, tmp_path):
    server, store = make_server(), tmp_path / "cloud.sqlite"

    def feature(number):
        return b'{"item": "lamp-%d", "events": ["page_enter", "click", "page_exit"], "dwell_ms": %d}' % (number, number)

    with server.running() as address:
        with make_device(address) as device:
            device.send_many("features", [feature(number) for number in range(300)])
            assert device.wait_sent(WAIT_S)
        made = train_channel(store, "features")
        assert made["packed_after"] < made["packed_before"] / 2
        server.worker.loop.call_soon_threadsafe(server.worker._polled, [], server.worker.inbox.dictionaries())
        until(lambda: server.worker.compression.numbers == [made["number"]])
        sizes = []
        for _ in range(3):
            with make_device(address) as device:
                device.wait_connected(WAIT_S)
                until(lambda: device.store.inbox.dictionaries())
                before = device.statistics()["counts"]["sent_bytes"]
                device.send("features", feature(12_345))
                assert device.wait_sent(WAIT_S)
                counts = device.statistics()["counts"]
                sizes.append((counts["received_bytes"] > made["bytes"], counts["sent_bytes"] - before))
    assert [got for got, _ in sizes] == [True, False, False], "the dictionary is sent once"
    assert sizes[1][1] < 100, "packed with it, a feature of 88 bytes and its id of 32 take less than half"
    assert len(rows(store)) == 303


def test_few_samples_are_told(make_server, make_device, tmp_path):
    from vmhost.tunnel import TunnelConfigurationError

    with make_server().running() as address, make_device(address) as device:
        device.send("c", b"x")
        assert device.wait_sent(WAIT_S)
    with pytest.raises(TunnelConfigurationError, match="some hundred are wanted"):
        train_channel(tmp_path / "cloud.sqlite", "c")
    with pytest.raises(TunnelConfigurationError, match="there is no table nothing"):
        train_channel(tmp_path / "cloud.sqlite", "c", "nothing")


# ---- captures


def test_a_capture_is_shown(tmp_path, capfd):
    from tests.tunnel.test_hostile import transcript

    capture = transcript()
    (tmp_path / "capture").write_bytes(capture)
    code, out, _ = run_command(capfd, "decode", tmp_path / "capture")
    assert code == 0
    for text in ("CHANNEL    0, 'a', 4", "MESSAGES", "REQUEST    0, a, 2000,", "FRAGMENT", "'id7' 280 bytes", "END"):
        assert text in out
    assert list(lines(capture[:-1]))[-1].startswith("and ") and "not complete" in list(lines(capture[:-1]))[-1]
    (tmp_path / "wrong").write_bytes(frames.encode(frames.PING, 1, 2) + b"\x01\x05")
    code, out, _ = run_command(capfd, "decode", tmp_path / "wrong")
    assert code == 2 and "PING" in out and "not a frame: " in out.splitlines()[-1]


def test_the_greeting_is_the_first_frame_of_a_capture():
    device = Connection(client=True)
    device.hello({"epoch": b"x", "received": {}})
    assert "HELLO" in next(lines(device.data_to_send()))


# ---- tasks in VMs

TASK = """
from vmhost.guest import HostFunctionError, host

def run(value):
    sent = host.tunnel_features({"send": b"from a task", "id": "chosen"})
    answer = host.tunnel_double({"ask": value, "timeout_s": 20})
    try:
        host.tunnel_secrets({"send": b"x"})
        refused = False
    except HostFunctionError as error:
        refused = "not granted" in str(error)
    return {"sent": sent, "answer": answer, "refused": refused}
"""


def test_a_task_reaches_the_channels_that_it_may(make_server, make_device, tmp_path):
    server = make_server()
    server.answer("double", lambda request: request.value * 2)
    folder = tmp_path / "talker"
    folder.mkdir()
    (folder / "main.py").write_text(TASK)
    (folder / "task.yaml").write_text(
        'name: talker\nversion: "1"\nentry: main:run\npython: "3.14"\npermissions: {tunnel: [features, double]}\n'
    )
    bundle = tmp_path / "talker.vmb"
    bundle.write_bytes(compile_task(folder).to_bytes())
    with server.running() as address, make_device(address) as device:
        device.wait_connected(WAIT_S)
        functions = task_functions(device, ["features", "double", "secrets"])
        with Host(allow_unsigned=True, functions=functions) as host:
            answer = host.load(bundle)(21)
        assert answer == {"sent": "chosen", "answer": {"answer": 42}, "refused": True}
        assert device.wait_sent(WAIT_S)
        for wrong in (None, {}, {"send": b"x", "ask": 1}, {"send": b"x", "to": "y"}):
            with pytest.raises(ValueError, match="tunnel_features"):
                functions["tunnel_features"](wrong)
    assert rows(tmp_path / "cloud.sqlite") == [("ann", "features", "chosen", b"from a task")]


def test_an_address_that_another_server_took_meanwhile_is_one_clear_error(make_server):
    """Both had bound it before either listened."""
    server, (other,) = make_server(), bind("127.0.0.1:0")
    address = "{}:{}".format(*other.getsockname())
    own = bind(address)
    other.listen()
    server.prepare()

    async def serve():
        async with server.serving(own):
            pass

    try:
        with pytest.raises(TunnelConfigurationError, match=f"{address}: cannot listen there: Address already in use"):
            asyncio.run(serve())
    finally:
        other.close()
        own[0].close()


def test_times_and_sizes_have_the_syntax_of_all_commands(keys, tmp_path, capfd):
    device = tmp_path / "ann.sqlite"
    arguments = ["send", device, "--to", "127.0.0.1:1", "--keys", keys, "--device", "ann", "--message", "hello"]
    code, _, err = run_command(capfd, *arguments, "--timeout", "200 ms")
    assert code == 5 and "1 message could not be sent within 0.2 s" in err
    for option, value, expected in (
        ("--timeout", "soon", 'expected a time such as "500 ms"'),
        ("--timeout", "0 s", "expected at least 0.1 s"),
    ):
        code, _, err = run_command(capfd, *arguments, option, value)
        assert code == 2 and expected in err, err
    code, _, err = run_command(capfd, "train", device, "c", "--size", "32")
    assert code == 2 and 'expected a size such as "32 KiB"' in err
