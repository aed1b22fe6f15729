"""Whoever passes the platform's answers on, but has none of its keys, can move nothing on a device."""

import copy
import time
from types import SimpleNamespace

import pytest

from tests.deployment.platforms import WorkingCopy, agent_for, nothing_left, platform_in
from vmhost.bytecode.signing import load_key
from vmhost.deployment import orders
from vmhost.deployment.cloud.metadata import SignedMetadata, key_of
from vmhost.deployment.cloud.plan import Plan
from vmhost.deployment.cloud.server import serving
from vmhost.deployment.device import agent as device_agent
from vmhost.deployment.trust import canonical

PLAN = "steps: [{percent: 100, min_reports: 9}]\nmax_error: 100 %\nproof: {calls: 0}\n"


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    """The server's threads grow with what it is asked; they are looked at when it ends."""
    yield


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("built")
    with nothing_left(), platform_in(folder / "cloud") as platform, serving(platform) as address:
        work = WorkingCopy(folder / "work", f"{address}/git/shop", platform.access.add_token("ann", "test"))
        work.release("1.0.0")
        work.release("1.1.0", main="def run(value):\n    return value * 3\n")
        yield platform, address


class Between:
    """Answers that a proxy passes on: it may change what the device says, and what it is told."""

    def __init__(self, platform):
        self._check, self.requests, self.answers = platform.check, [], []
        self.change_request = self.change_answer = lambda given: given

    def __call__(self, device, secret, request):
        self.requests.append(copy.deepcopy(request))
        answer = self._check(device, secret, self.change_request(request))
        self.answers.append(copy.deepcopy(answer))
        return self.change_answer(answer)


@pytest.fixture
def between(built, monkeypatch):
    platform, _ = built
    between = Between(platform)
    monkeypatch.setattr(platform, "check", between)
    return between


@pytest.fixture
def agent(built, between, tmp_path):
    """It runs 1.1.0, which the platform released after 1.0.0."""
    platform, address = built
    with platform.database.transaction() as connection:
        for table in ("releases", "assignments", "devices", "health", "calls"):
            connection.execute(f"DELETE FROM deploy_{table}")
        connection.execute("UPDATE deploy_versions SET bad = NULL")
    platform.releases._load()
    with agent_for(platform, address, tmp_path / "device") as agent:
        first = platform.releases.start("shop/rank", "1.0.0", Plan.read(PLAN), "ann", "test")
        agent.step()
        platform.releases.act(first.id, "next", "ann")
        agent.old = copy.deepcopy(between.answers[0])
        platform.releases.start("shop/rank", "1.1.0", Plan.read(PLAN), "ann", "test")
        agent.step()
        assert agent.host.task("rank")(1) == 3
        yield agent


def moves_nothing(agent):
    agent._settled = None  # it asks in full
    agent.step()
    assert agent.failed and "order: " in agent._problem
    assert agent.host.task("rank")(1) == 3


def test_a_task_is_not_unloaded_by_an_answer_alone(agent, between):
    between.change_answer = lambda answer: answer | {"wanted": {}}
    moves_nothing(agent)
    between.change_answer = lambda answer: {name: each for name, each in answer.items() if name != "order"}
    moves_nothing(agent)
    between.change_answer = lambda answer: answer | {"order": "trust me", "wanted": {}}
    moves_nothing(agent)
    between.change_answer = lambda answer: answer
    agent.step()
    assert not agent.failed


def test_a_device_does_not_go_back_by_an_answer_of_yesterday(agent, between):
    assert agent.old["wanted"]["shop/rank"]["version"] == "1.0.0"
    between.change_answer = lambda answer: agent.old
    moves_nothing(agent)


def test_a_device_goes_by_its_own_facts(built, agent, between):
    platform, _ = built
    between.change_request = lambda request: (
        {name: each for name, each in request.items() if name not in ("base", "gone")}
        | {"facts": {"python": "3.13", "os": "linux"}, "tasks": {}}
    )
    moves_nothing(agent)


def test_a_device_is_not_held_back_for_ever_by_being_told_that_nothing_has_changed(built, agent, between, monkeypatch):
    platform, _ = built

    def version():  # a call would be news, for which it asks in full
        return agent.memory.tasks()["shop/rank"]["current"]["version"]

    now_s = time.monotonic()
    monkeypatch.setattr(device_agent, "time", SimpleNamespace(monotonic=lambda: now_s, time=time.time))
    agent._settled = None
    agent.step()
    between.change_answer = lambda answer: {"unchanged": True, "poll_s": 1} if "wanted" not in answer else answer
    platform.releases.act(max(platform.releases.releases), "roll_back", "ann")
    agent.step()
    assert not agent.failed and version() == "1.1.0"
    now_s += device_agent.MAX_UNSIGNED_S
    agent.step()
    assert not agent.failed and version() == "1.0.0"


def test_reports_are_not_taken_for_received_by_an_answer_alone(built, agent, between):
    platform, _ = built
    platform.releases.act(max(platform.releases.releases), "roll_back", "ann")
    between.change_answer = lambda answer: answer | {"acknowledged": 10**6}
    agent.step()
    assert agent.failed and "order: " in agent._problem
    between.change_answer = lambda answer: answer
    agent.step()
    assert agent.host.task("rank")(1) == 2


def test_a_stolen_key_of_orders_is_replaced(built, agent, between):
    platform, _ = built
    stolen = load_key(platform.folder / "keys" / "releases")
    platform.metadata.rotate("releases")
    agent._settled = None
    agent.step()
    assert not agent.failed

    def unloaded(answer):
        answer, request = answer | {"wanted": {}}, between.requests[-1]
        signed = canonical(orders.signed_part("kitchen-1", request["nonce"], request["profile"], answer))
        return answer | {"order": [{"keyid": key_of(stolen)[0], "sig": stolen.sign(signed)[32:].hex()}]}

    between.change_answer = unloaded
    moves_nothing(agent)


def test_a_platform_from_before_orders_has_them_after_a_rotation(tmp_path, monkeypatch):
    with monkeypatch.context() as before:
        before.setattr(SignedMetadata, "_delegate_releases", lambda self: None)
        platform = platform_in(tmp_path / "cloud")
    with nothing_left(), platform, serving(platform) as address:
        with agent_for(platform, address, tmp_path / "device") as agent:
            agent.step()
            assert not agent.failed and not agent._metadata.delegates("releases")
            platform.metadata.rotate("releases")
            platform.sync_metadata()
            agent._settled = agent._ordered = None
            agent.step()
            assert not agent.failed and agent._metadata.delegates("releases")
