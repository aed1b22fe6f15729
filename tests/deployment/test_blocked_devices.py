"""Blocked devices, and tokens with which a bounded number of devices join."""

import pytest

from tests.deployment.platforms import platform_in
from tests.hosts import until
from vmhost.access import AccessDeniedError
from vmhost.deployment.errors import MissingError
from vmhost.tunnel import Device, Server
from vmhost.tunnel.tls import make_certificates

SECRET = "s" * 40


@pytest.fixture
def platform(tmp_path):
    with platform_in(tmp_path / "cloud") as platform:
        yield platform


def _enrol(platform, token, device, secret=SECRET):
    platform.enrol(platform.access.identify(token), device, secret)


def test_a_blocked_device_gets_nothing_and_does_not_rejoin(platform):
    token = platform.access.add_token("fleet", "test")
    _enrol(platform, token, "stolen")
    _enrol(platform, token, "other")
    platform.devices.block("stolen", "it was stolen", "ann")
    for refused in (
        lambda: platform.check("stolen", SECRET, {"facts": {}}),
        lambda: platform.check("stolen", SECRET, {"profile": "stolen x"}),
        lambda: _enrol(platform, token, "stolen"),
    ):
        with pytest.raises(AccessDeniedError, match="stolen: is blocked .it was stolen."):
            refused()
    platform.devices.forget("stolen")
    with pytest.raises(AccessDeniedError, match="is blocked"):
        _enrol(platform, token, "stolen", "t" * 40)
    assert platform.check("other", SECRET, {"facts": {"python": "3.14"}})["wanted"] == {}
    assert [(each["device"], each["who"]) for each in platform.devices.blocked()] == [("stolen", "ann")]
    platform.devices.unblock("stolen")
    _enrol(platform, token, "stolen", "t" * 40)
    with pytest.raises(MissingError, match="is not blocked"):
        platform.devices.unblock("stolen")


def test_a_block_outlives_the_platform(tmp_path):
    with platform_in(tmp_path / "cloud") as platform:
        platform.devices.block("stolen", "", "ann")
    with platform_in(tmp_path / "cloud") as platform:
        assert platform.devices.why_blocked("stolen") == "no reason was given"


def test_a_token_with_one_use_lets_one_device_join_even_if_it_repeats_itself(platform):
    token = platform.access.add_token("fleet", "test", uses=1)
    _enrol(platform, token, "first")
    _enrol(platform, token, "first")  # its first answer was lost
    with pytest.raises(AccessDeniedError, match="used as often as it may be"):
        _enrol(platform, token, "second")
    with pytest.raises(MissingError):
        platform.devices.get("second")


def test_the_tunnel_ends_and_refuses_a_blocked_device(platform, tmp_path):
    make_certificates(keys := tmp_path / "keys", ["stolen"])
    server = Server(
        tmp_path / "tunnel.db",
        certificate=keys / "server.pem",
        key=keys / "server.key",
        client_ca=keys / "ca.pem",
        why_blocked=platform.devices.why_blocked,
    )
    server.answer("hello", lambda request: "hi")
    with server.running() as address:
        tls = {"ca": keys / "ca.pem", "certificate": keys / "stolen.pem", "key": keys / "stolen.key"}
        with Device(address, tmp_path / "device.db", **tls) as device:
            assert device.request("hello", 1, 30.0) == "hi"
            platform.devices.block("stolen", "it was stolen", "ann")
            until(lambda: not device.connected)
            refused = server.worker.counts["refused"]
            until(lambda: server.worker.counts["refused"] > refused)
