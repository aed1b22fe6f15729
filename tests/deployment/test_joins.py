"""Devices that ask to join: an admin approves or refuses each, by the code that the device shows."""

import json

import pytest

from tests.deployment.platforms import agent_for, nothing_left, platform_in
from vmhost.access import AccessDeniedError
from vmhost.cli import main
from vmhost.deployment.cloud import joins
from vmhost.deployment.cloud.server import serving
from vmhost.deployment.errors import MissingError, RefusedError
from vmhost.deployment.identifiers import join_code

SECRET, OTHER = "s" * 40, "o" * 40
FACTS = {"facts": {"python": "3.14"}}


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    """The server's threads grow with what it is asked; they are looked at when it ends."""
    yield


@pytest.fixture
def platform(tmp_path):
    with nothing_left(), platform_in(tmp_path / "cloud") as platform:
        yield platform


@pytest.fixture
def ask(platform):
    """ask(device, secret=SECRET, token=a token with which devices ask) -> whether it joined."""
    shared = platform.access.add_token("fleet", "test", scopes=["join"])

    def ask(device, secret=SECRET, token=shared):
        return platform.enrol(platform.access.identify(token), device, secret, "10.0.0.1")

    ask.token = shared
    return ask


def states(platform):
    return [(each["device"], each["code"], each["state"]) for each in platform.joins.list()]


def test_a_device_waits_until_an_admin_approves_it(platform, ask):
    assert ask("kitchen-1") is False and ask("kitchen-1") is False  # it repeats itself
    assert states(platform) == [("kitchen-1", join_code(SECRET), "waiting")]
    with pytest.raises(AccessDeniedError, match="not enrolled"):
        platform.check("kitchen-1", SECRET, FACTS)
    platform.joins.approve("kitchen-1", join_code(SECRET), "admin")
    assert ask("kitchen-1") is True and states(platform) == []
    assert platform.check("kitchen-1", SECRET, FACTS)["wanted"] == {}
    noted = [(each["who"], each["action"]) for each in platform.access.audit(subject="kitchen-1")]
    assert noted == [("admin", "device approved"), ("fleet", "device asks to join")]


def test_a_refused_device_is_told_so_until_it_is_approved(platform, ask):
    ask("kitchen-1")
    platform.joins.refuse("kitchen-1", join_code(SECRET), "admin")
    with pytest.raises(AccessDeniedError, match="an admin refused"):
        ask("kitchen-1")
    assert states(platform) == [("kitchen-1", join_code(SECRET), "refused")]
    platform.joins.approve("kitchen-1", join_code(SECRET), "admin")
    assert ask("kitchen-1") is True


def test_who_asks_first_under_a_name_is_not_taken_for_its_owner(platform, ask):
    ask("kitchen-1", OTHER)  # whoever has the token can ask
    ask("kitchen-1")
    with pytest.raises(MissingError, match="no such device asks to join"):
        platform.joins.approve("kitchen-1", join_code("x" * 40), "admin")
    platform.joins.approve("kitchen-1", join_code(SECRET), "admin")
    assert platform.check("kitchen-1", SECRET, FACTS)["wanted"] == {}
    with pytest.raises(AccessDeniedError):
        platform.check("kitchen-1", OTHER, FACTS)
    for refused in (
        lambda: ask("kitchen-1", OTHER),
        lambda: platform.joins.approve("kitchen-1", join_code(OTHER), "admin"),
    ):
        with pytest.raises(RefusedError, match="another device has this name"):
            refused()
    assert platform.check("kitchen-1", SECRET, FACTS)["wanted"] == {}


def test_a_blocked_device_neither_asks_nor_is_approved(platform, ask):
    ask("stolen")
    platform.devices.block("stolen", "it was stolen", "admin")
    for refused in (lambda: ask("stolen"), lambda: platform.joins.approve("stolen", join_code(SECRET), "admin")):
        with pytest.raises(AccessDeniedError, match="is blocked"):
            refused()
    with pytest.raises(MissingError):
        platform.devices.get("stolen")


def test_tokens_for_joining_at_once_are_as_before_and_each_request_is_a_use(platform, ask):
    assert ask("at-once", token=platform.access.add_token("fleet", "test", scopes=["enrol"])) is True
    assert ask("at-once-2", token=platform.access.add_token("fleet", "test")) is True
    once = platform.access.add_token("fleet", "test", scopes=["join"], uses=1)
    assert ask("first", token=once) is False and ask("first", token=once) is False
    with pytest.raises(AccessDeniedError, match="used as often as it may be"):
        ask("second", token=once)
    assert [device for device, *_ in states(platform)] == ["first"]
    with pytest.raises(AccessDeniedError, match="this needs join"):
        ask("third", token=platform.access.add_token("ann", "test"))


def test_requests_go_with_the_token_they_were_made_with(platform, ask):
    ask("first")
    leaked = platform.access.add_token("fleet", "test", scopes=["join"])
    ask("second", token=leaked)
    platform.revoke_token(leaked.split("_")[1], "admin")
    assert [device for device, *_ in states(platform)] == ["first"]


def test_requests_are_bounded_and_refused_ones_make_room(platform, ask, monkeypatch):
    monkeypatch.setattr(joins, "MAX_JOINS", 2)
    ask("first")
    ask("second")
    with pytest.raises(RefusedError, match="2 devices wait for an admin"):
        ask("third")
    platform.joins.refuse("first", join_code(SECRET), "admin")
    ask("third")
    assert [device for device, *_ in states(platform)] == ["second", "third"]


def test_one_token_does_not_take_all_places(platform, ask, monkeypatch):
    monkeypatch.setattr(joins, "MAX_OF_TOKEN", 2)
    leaked = platform.access.add_token("fleet", "test", scopes=["join"])
    ask("first", token=leaked)
    ask("second", token=leaked)
    with pytest.raises(RefusedError, match="2 devices that asked with this token wait"):
        ask("third", token=leaked)
    ask("fourth")
    platform.joins.refuse("first", join_code(SECRET), "admin")
    ask("third", token=leaked)
    assert {device for device, *_ in states(platform)} == {"first", "second", "third", "fourth"}


def test_requests_outlive_the_platform(tmp_path):
    with platform_in(tmp_path / "cloud") as platform:
        token = platform.access.add_token("fleet", "test", scopes=["join"])
        platform.enrol(platform.access.identify(token), "kitchen-1", SECRET)
    with platform_in(tmp_path / "cloud") as platform:
        platform.joins.approve("kitchen-1", join_code(SECRET), "admin")
    with platform_in(tmp_path / "cloud") as platform:
        assert platform.enrol(platform.access.identify(token), "kitchen-1", SECRET)


def test_the_commands_and_an_agent(platform, ask, tmp_path, capfd, monkeypatch):
    def vmhost(*arguments, code=0):
        capfd.readouterr()
        assert main([*map(str, arguments)]) == code, capfd.readouterr().err
        return capfd.readouterr().out

    with serving(platform) as address:
        monkeypatch.setenv("VMHOST_PLATFORM", address)
        monkeypatch.setenv("VMHOST_TOKEN", platform.access.add_token("admin", "test"))
        with agent_for(platform, address, tmp_path / "device", token=ask.token, poll_s=7.0) as agent:
            for _ in range(3):  # it goes on asking as often as it does otherwise: the platform answers
                assert 5 <= agent.step() <= 9 and agent.failed
            code = join_code(agent.memory.value("secret"))
            assert agent._problem == f"waits until an admin approves it: vmhost cloud approve kitchen-1 {code}"
            [asking] = json.loads(vmhost("cloud", "joins", "--json"))["joins"]
            assert (asking["device"], asking["code"], asking["state"]) == ("kitchen-1", code, "waiting")
            assert asking["network"] == "127.0.0.1" and asking["who"] == "fleet"
            vmhost("cloud", "refuse", "kitchen-1", code)
            agent.step()
            assert "an admin refused" in agent._problem and "refused" in vmhost("cloud", "joins")
            assert "joins with its next request" in vmhost("cloud", "approve", "kitchen-1", code)
            agent.step()
            assert not agent.failed
            assert platform.devices.get("kitchen-1")["device"] == "kitchen-1"
