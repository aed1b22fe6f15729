"""A device says what it has in a header of any request; the answer tells it to ask where it is due something else."""

import asyncio
import contextlib

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from tests.deployment.platforms import add_version, platform_in
from vmhost.deployment.cloud.middleware import Profiles, TaskProfiles
from vmhost.deployment.cloud.plan import Plan
from vmhost.deployment.device.bundle_store import BundleStore
from vmhost.deployment.profile import header_value

SECRET = "s" * 40
FACTS = {"python": "3.14"}


def business(platform, headers):
    """(status, headers) of a request to somebody's own service behind the middleware."""

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
    """A device that runs what it is told to, without bundles."""

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
        assert device.is_told_to_ask()  # nobody knows it yet
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
