"""Debugging a device from the platform, over the tunnel: what the platform permits, and what it logs."""

import json
import threading
import time
import urllib.error
import urllib.request

import pytest

from tests.deployment.platforms import nothing_left, platform_in
from tests.operations.debugged_hosts import debugged, until
from vmhost import ConfigurationError, DebugPolicy, debug_links
from vmhost.bytecode import signing
from vmhost.cli.cloud import device_asker
from vmhost.deployment.cloud.server import serving
from vmhost.deployment.device.settings import read
from vmhost.deployment.tunnel_channel import DEBUG_CHANNEL
from vmhost.operations.debugging import DebugError
from vmhost.operations.debugging.client import Client
from vmhost.tunnel import Device, Server
from vmhost.tunnel.tls import make_certificates

ALL = ("config", "logs", "run", "reports")


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    """The server's threads grow with what it is asked; they are looked at when it ends."""
    yield


@pytest.fixture
def cloud(tmp_path):
    """(platform, its address, Debugging of the device kitchen-1, its tunnel Device)"""
    make_certificates(tmp_path / "keys", ["kitchen-1"])
    keys = tmp_path / "keys"
    with nothing_left(), platform_in(tmp_path / "cloud") as platform, serving(platform) as address:
        server = Server(
            tmp_path / "tunnel.db", certificate=keys / "server.pem", key=keys / "server.key", client_ca=keys / "ca.pem"
        )
        platform.debugging.ask = device_asker(server)
        (tmp_path / "debug.pub").write_text(platform.debugging.public)
        with (
            server.running() as where,
            debugged(tmp_path, keys=tmp_path / "debug.pub") as (_, debugging),
        ):
            debugging._names.add("kitchen-1")
            device = Device(
                where.replace("127.0.0.1", "localhost"),
                tmp_path / "device.sqlite",
                ca=keys / "ca.pem",
                certificate=keys / "kitchen-1.pem",
                key=keys / "kitchen-1.key",
            )
            device.answer(DEBUG_CHANNEL, lambda text: json.dumps(debugging.answer(json.loads(text), "the platform")))
            with device:
                device.wait_connected(15)
                yield platform, address, debugging, device


def made(cloud, scopes=ALL, valid_s=600):
    return cloud[0].debugging.make("ann", "kitchen-1", scopes, valid_s, cloud[1])


def opened(cloud, scopes=ALL):
    client = Client.open(made(cloud, scopes).text)
    cloud[2].decide(client.session, True)
    assert client.wait_for_consent(20) == scopes
    return client


def audit(platform):
    return [line["action"] for line in platform.access.audit(subject="kitchen-1")][::-1]


def test_a_session_by_the_tunnel(cloud):
    platform, _, debugging, _ = cloud
    client = Client.open(made(cloud).text)
    with pytest.raises(DebugError, match="nobody at the device has consented"):
        client.config()
    debugging.decide(client.session, True)
    client.wait_for_consent(20)
    assert client.config()["tasks"][0]["name"] == "worker"
    answer = client.run("worker", "work", profile=True, trace=True)
    assert answer["result"] == "spun" and client.fetch("run-1/profile.svg").startswith(b"<svg")
    big = client.run("worker", "large")
    assert len(client.fetch(big["files"][-1])) > 300_000, "in pieces"
    assert [line for line in client.log(follow=False) if "debugging:" in line[5]]
    client.end()
    assert audit(platform)[:5] == ["debug link made", "debug link opened", "debug config", "debug config", "debug run"]
    assert {"debug result", "debug fetch", "debug logs", "debug end"} <= set(audit(platform))
    device = [line["action"] for line in debugging.ledger.audit(session=client.session)]
    assert {"asked for a session", "consented", "runs a task", "read a result", "ended"} <= set(device)
    [session] = debugging.ledger.sessions()
    assert (session["signer"], session["via"]) == ("platform", "the platform")


def test_the_platform_passes_on_only_what_it_made(cloud):
    platform, address, debugging, _ = cloud
    stranger = debug_links.signed(signing.generate_key(), address, "kitchen-1", ALL, 600, time.time())
    with pytest.raises(DebugError, match="does not trust"):
        Client.open(stranger.text)
    unknown = debug_links.signed(platform.debugging._key, address, "kitchen-1", ALL, 600, time.time())
    with pytest.raises(DebugError, match="made no such link"):
        Client.open(unknown.text)
    own = debugging.offer(ALL, 600, address=address)
    with pytest.raises(DebugError, match="does not trust"):
        Client.open(own.text)
    client = opened(cloud)
    for who in (
        {"session": client.session, "secret": "guess", "device": "kitchen-1"},
        {"session": client.session, "secret": client._who["secret"], "device": "kitchen-2"},
        {"session": client.session, "secret": client._who["secret"]},
        {"session": "0" * 12, "secret": "", "device": "kitchen-1"},
    ):
        with pytest.raises(DebugError, match="no such session"):
            Client(address, who).ask("config")
    link = made(cloud)
    Client.open(link.text)
    with pytest.raises(DebugError, match="used already"):
        Client.open(link.text)


def test_a_link_that_is_revoked_in_the_middle_ends_its_session(cloud):
    platform, _, debugging, _ = cloud
    client = opened(cloud)
    [link] = platform.debugging.links()
    client.ask("run", task="worker", value="hang")
    run = debugging._sessions[client.session].run
    platform.debugging.revoke(link["id"], "ann")
    with pytest.raises(DebugError, match="revoked"):
        client.config()
    until(lambda: debugging.ledger.session(client.session)["state"] == "ended")
    assert run.ended.wait(30)


def test_a_revoked_link_gives_no_answer_that_was_under_way(cloud):
    platform, _, debugging, _ = cloud
    client = opened(cloud)
    for _ in client.log(follow=False):
        pass
    after = debugging._logs.lines(limit=1)[0].number
    failed = []

    def waits():
        try:
            failed.append(client.ask("logs", after=after, wait_s=5))
        except DebugError as error:
            failed.append(str(error))

    thread = threading.Thread(target=waits)
    thread.start()
    time.sleep(0.5)
    platform.debugging.revoke(platform.debugging.links()[0]["id"], "ann")
    debugging._host.task("worker")("hello")
    thread.join(30)
    assert "revoked" in failed[0]


def test_a_device_that_is_away_is_told(cloud):
    platform, address, _, device = cloud
    client = opened(cloud)
    device.close()
    with pytest.raises(DebugError, match="kitchen-1 does not answer"):
        client.config()
    platform.debugging.ask = None
    with pytest.raises(DebugError, match="no tunnel"):
        Client.open(made(cloud).text)


def test_a_device_that_lies_is_told(cloud):
    platform = cloud[0]
    for lie in ("[]", "no json", "", "[" * 100_000, '{"session": 3, "secret": 3}'):
        platform.debugging.ask = lambda device, text, timeout_s, lie=lie: lie
        answer = platform.debugging.answer({"do": "open", "link": made(cloud).text}, "a test")
        assert answer.get("error", {}).get("kind") == "host" or answer["device"] == "kitchen-1"


def test_what_the_platform_cannot_note_does_not_go_through(cloud):
    platform, _, debugging, _ = cloud
    client = opened(cloud)
    database = platform.database
    with database.lock:
        count = database._writer.execute("PRAGMA page_count").fetchone()[0]
        database._writer.execute(f"PRAGMA max_page_count = {count}")
    calls = None
    for _ in range(2000):
        try:
            client.ask("config")
            calls = len(debugging.ledger.audit(session=client.session, limit=10_000))
        except DebugError as error:
            if error.kind == "rate":
                time.sleep(0.05)
                continue
            assert error.kind == "audit"
            break
    else:
        raise AssertionError("the disk never was full")
    assert len(debugging.ledger.audit(session=client.session, limit=10_000)) == calls, "the device was not asked"
    with database.lock:
        database._writer.execute("PRAGMA max_page_count = 1000000")


def ask(address, method, path, token, body=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}/api/v1{path}", data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_who_may_make_links(cloud):
    platform, address, *_ = cloud
    platform.devices.enrol("kitchen-1", "s" * 40)
    platform.access.add_account("dora", "debugger", "test")
    body = {"device": "kitchen-1", "scopes": ["logs"], "valid_s": 60, "address": address}
    ann, dora = (platform.access.add_token(name, "test") for name in ("ann", "dora"))
    assert ask(address, "POST", "/debug/links", ann, body)[0] == 403
    status, answer = ask(address, "POST", "/debug/links", dora, body | {"device": "kitchen-9"})
    assert status == 404 and "no such device" in answer["error"]
    for change in (
        {"scopes": ["shell"]},
        {"scopes": []},
        {"valid_s": 90_000},
        {"address": "kitchen"},
        {"note": "x" * 81},
    ):
        assert ask(address, "POST", "/debug/links", dora, body | change)[0] in (400, 409, 422), change
    status, answer = ask(address, "POST", "/debug/links", dora, body)
    assert status == 200 and debug_links.read(answer["link"]).scopes == ("logs",)
    status, listed = ask(address, "GET", "/debug/links", dora)
    assert listed["links"][0]["who"] == "dora" and answer["link"].rpartition(".")[2] not in json.dumps(listed)
    assert ask(address, "DELETE", f"/debug/links/{answer['id']}", dora)[0] == 200
    assert ask(address, "DELETE", "/debug/links/nothing", dora)[0] == 404
    with pytest.raises(DebugError, match="revoked"):
        Client.open(answer["link"])


def test_the_page_is_served_by_the_platform(cloud):
    with urllib.request.urlopen(f"{cloud[1]}/debug", timeout=30) as response:
        assert "script-src 'self'" in response.headers["content-security-policy"]
        assert b"debug.js" in response.read()
    with urllib.request.urlopen(f"{cloud[1]}/keys/debug.pub", timeout=30) as response:
        assert response.read().decode() == cloud[0].debugging.public


def test_what_agent_yaml_says_of_debugging(tmp_path):
    path = tmp_path / "agent.yaml"
    plain = {"device": "kitchen-1", "platform": "http://127.0.0.1:9", "folder": "state", "keys": "bundles.pub"}
    tunnel = {"tunnel": {"address": "localhost:7443", "keys": "keys"}}

    def of(**more):
        path.write_text(json.dumps(plain | more))
        return read(path).debugging

    assert of() == of(debugging="never") == DebugPolicy()
    assert of(**tunnel, debugging="ask") == DebugPolicy("ask")
    full = {"consent": "ask", "keys": "debug.pub", "scopes": ["logs"], "longest": "10 min"}
    assert of(**tunnel, debugging=full) == DebugPolicy("ask", ("logs",), str(tmp_path / "debug.pub"), 600.0)
    for wrong, message in (
        ("always", "expected never, ask, or a mapping"),
        ({"scope": []}, "debugging.scope: unknown key; did you mean 'scopes'"),
        ({"keys": 3}, "keys: expected the path"),
        ({"longest": "soon"}, "debugging.longest: expected a time"),
        ({"scopes": ["shell"]}, "debugging.scopes.0: expected one of config"),
        (3, "expected never, ask, or a mapping"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            of(**tunnel, debugging=wrong)
    with pytest.raises(ConfigurationError, match="comes by the tunnel"):
        of(debugging="ask")
