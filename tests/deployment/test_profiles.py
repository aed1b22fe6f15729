"""A device states its tasks in a header of any request; the answer tells it to ask if it is assigned others."""

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from tests.deployment.platforms import add_version, agent_for, platform_in
from vmhost.access import AccessDeniedError
from vmhost.deployment.cloud.middleware import Profiles, TaskProfiles
from vmhost.deployment.cloud.plan import Plan
from vmhost.deployment.cloud.server import serving
from vmhost.deployment.device.bundle_store import BundleStore
from vmhost.deployment.errors import RefusedError, TransferError
from vmhost.deployment.profile import changed, changes, header_value

SECRET = "s" * 40
FACTS = {"python": "3.14"}


def business(platform, headers):
    """(status, headers) of a request to an application behind the middleware."""

    async def buy(request):
        return PlainTextResponse("bought")

    app = TaskProfiles(Starlette(routes=[Route("/buy", buy)]), platform.profiles)
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "GET", "path": "/buy", "query_string": b"", "headers": raw}
    sent = []

    async def receive():
        return {"type": "http.request", "body": b""}

    async def send(message):
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], {name.decode(): value.decode() for name, value in sent[0]["headers"]}


class Device:
    """A device that runs the assigned versions, without bundles."""

    def __init__(self, platform, name="kitchen-1"):
        self._platform, self.name = platform, name
        self.tasks, self.reports, self.number = {}, [], 0
        platform.devices.enrol(name, SECRET)

    @property
    def profile(self):
        return header_value(self.name, FACTS, self.tasks)

    def ask(self):
        request = {"facts": FACTS, "tasks": self.tasks, "reports": self.reports, "epoch": "1", "profile": self.profile}
        answer = self._platform.check(self.name, SECRET, request)
        self.reports = []
        for task, wanted in answer["wanted"].items():
            if self.tasks.get(task, {}).get("digest") != wanted["digest"]:
                self.number += 1
                self.reports.append([self.number, {"release": wanted["release"], "state": "proven"}])
            self.tasks[task] = {"digest": wanted["digest"], "version": wanted["version"], "state": "proven"}
        for task in self.tasks.keys() - answer["wanted"].keys():
            del self.tasks[task]

    def is_told_to_ask(self):
        status, headers = business(self._platform, {"vmhost-tasks": self.profile})
        assert status == 200
        return headers.get("vmhost-ask") == "now"


def test_only_a_device_that_is_due_something_is_told_to_ask(tmp_path):
    with platform_in(tmp_path / "cloud") as platform:
        device = Device(platform)
        assert device.is_told_to_ask()  # the platform does not know it yet
        device.ask()
        assert not device.is_told_to_ask()
        add_version(platform, "shop/rank", "1")
        release = platform.releases.start("shop/rank", "1", Plan.of({}), "ann", "")
        assert device.is_told_to_ask()
        device.ask()
        device.ask()  # reports
        assert release.state == "done"
        device.ask()
        assert not device.is_told_to_ask()
        platform.releases.act(release.id, "roll_back", "ann")
        assert device.is_told_to_ask()
        device.ask()
        device.ask()
        assert not device.is_told_to_ask() and device.tasks == {}


def test_a_device_that_waits_for_its_minute_is_told_to_ask_when_it_comes(tmp_path):
    from tests.deployment.platforms import Clock

    clock = Clock()
    with platform_in(tmp_path / "cloud", clock=clock) as platform:
        first, second = Device(platform, "a"), Device(platform, "b")
        add_version(platform, "shop/rank", "1")
        platform.releases.start(
            "shop/rank", "1", Plan.of({"steps": [{"percent": 100, "per_minute": 1, "min_reports": 9}]}), "ann", ""
        )
        first.ask()
        second.ask()
        assert second.tasks == {} and not second.is_told_to_ask()
        clock.now_s += 60
        platform.releases.tick()
        assert second.is_told_to_ask()
        second.ask()
        assert second.tasks


def test_a_request_without_the_header_is_not_touched(tmp_path):
    with platform_in(tmp_path / "cloud") as platform:
        assert "vmhost-ask" not in business(platform, {})[1]


def test_the_header_is_short():
    value = header_value("kitchen-1", FACTS, {f"shop/task{n}": {"digest": "0" * 64} for n in range(300)})
    assert len(f"vmhost-tasks: {value}") < 64
    # the digest always has 12 characters: only the name can grow, to at most 128
    facts = {f"fact{n}": "x" * 1000 for n in range(100)}
    assert len(header_value("d" * 128, facts, {})) == 128 + 1 + 12


class Exchange:
    """Requests and answers of an agent and the platform, some of them lost."""

    def __init__(self, agent):
        self.sent, self.lose = [], False
        self._post, agent._transfers.post = agent._transfers.post, self

    def __call__(self, path, body, headers):
        answer = self._post(path, body, headers)
        if path.endswith("/check") and "facts" in body:
            self.sent.append((body, answer))
        if self.lose:
            raise TransferError("the answer was lost")
        return answer


def test_a_device_states_what_changed_and_all_where_that_is_not_enough(tmp_path):
    with platform_in(tmp_path / "cloud") as platform, serving(platform) as address:
        facts = {f"fact{number}": "x" * 20 for number in range(50)}
        with agent_for(platform, address, tmp_path / "device", facts=facts) as agent:
            exchange = Exchange(agent)
            agent.step()
            ((first, _),) = exchange.sent
            assert "base" not in first and first["facts"].items() >= facts.items()
            agent.settings.facts["fact7"] = "other"
            del agent.settings.facts["fact8"]
            agent.step()
            body, _ = exchange.sent[-1]
            assert (body["facts"], body["tasks"], body["gone"]) == ({"fact7": "other"}, {}, {"facts": ["fact8"]})
            known = {name: value for name, value in first["facts"].items() if name != "fact8"}
            assert platform.devices.get("kitchen-1")["facts"] == known | {"fact7": "other"}
            # the platform gets it, and its answer is lost: the device states it again, and then everything
            agent.settings.facts["fact9"] = "lost"
            exchange.lose = True
            agent.step()
            exchange.lose = False
            agent.settings.facts["fact9"] = "found"
            agent.step()
            (changes, again), (all_of_it, answer) = exchange.sent[-2:]
            assert "base" in changes and again == {"again": True}
            assert "base" not in all_of_it and "wanted" in answer
            assert platform.devices.get("kitchen-1")["facts"]["fact9"] == "found"
            # the platform lost its data
            with platform.database.transaction() as connection:
                connection.execute("UPDATE deploy_devices SET facts = '{}'")
            agent.settings.facts["fact9"] = "more"
            agent.step()
            assert exchange.sent[-2][1] == {"again": True}
            assert platform.devices.get("kitchen-1")["facts"]["fact9"] == "more"


@given(st.data())
def test_changes_make_the_new_of_the_old(data):
    values = st.dictionaries(st.sampled_from("abcdef"), st.none() | st.integers(0, 3) | st.lists(st.integers(0, 1)))
    old, new = data.draw(values), data.draw(values)
    different, gone = changes(old, new)
    assert changed(old, different, gone) == new
    assert all(old.get(name, ...) != value for name, value in different.items())


@pytest.mark.parametrize("wrong", [{"base": "kitchen-1 x"}, {"base": 5}, {"base": "kitchen-1 x", "gone": 1}])
def test_changes_since_nothing_that_is_known_are_asked_for_again(tmp_path, wrong):
    with platform_in(tmp_path / "cloud") as platform:
        platform.devices.enrol("kitchen-1", "s" * 40)
        request = {"facts": {}, "tasks": {}, "epoch": "1", "profile": "kitchen-1 y", "reports": [[1, {}]]} | wrong
        assert platform.check("kitchen-1", "s" * 40, request) == {"again": True}
        with pytest.raises(AccessDeniedError):
            platform.check("kitchen-1", "t" * 40, request)


@pytest.mark.parametrize("gone", [[], {"facts": "a"}, {"tasks": [1]}, {"facts": None}])
def test_what_is_gone_must_be_names(tmp_path, gone):
    with platform_in(tmp_path / "cloud") as platform:
        platform.devices.enrol("kitchen-1", "s" * 40)
        base = header_value("kitchen-1", {}, {})
        request = {"facts": {}, "tasks": {}, "base": base, "gone": gone}
        with pytest.raises(RefusedError, match="gone: "):
            platform.check("kitchen-1", "s" * 40, request)


def test_known_profiles_are_bounded():
    profiles = Profiles(lambda: 1, max_known=2)
    for value in (b"a", b"b", b"c"):
        profiles.remember(value, 1)
    assert [profiles.is_current(value) for value in (b"a", b"b", b"c")] == [False, True, True]


def test_an_application_beside_the_agent_says_and_hears_it(tmp_path):
    store = BundleStore(tmp_path / "state")
    assert store.headers() == {} and not store.asked()
    store.write_profile("kitchen-1 abc")
    assert store.headers() == {"vmhost-tasks": "kitchen-1 abc"}
    store.answered({"content-type": "text/plain"})
    assert not store.asked()
    with contextlib.suppress(OSError):
        store.answered({"vmhost-ask": "now"})
    assert store.asked() and not store.asked()
