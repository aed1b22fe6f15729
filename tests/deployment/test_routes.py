"""Every route of the platform with every scope, for one's own repository and another one; and what a stranger costs."""

import asyncio
import base64
import json
import os
import re

import pytest

from tests.deployment.platforms import add_version, nothing_left, platform_in
from vmhost.access import AccessError, RateLimit, network_of
from vmhost.deployment.cloud.web import MAX_STRANGERS, application

OWN, OTHER = "shop", "bank"
SECRET = "s" * 40
WORDS = ("read", "push", "release", "admin", "enrol", "debug")
OWNED = ("read", "push", "release")

# What each route needs: the scope, and whether it is about one repository ("one"), shows those that the caller may see
# ("some"), or concerns the fleet ("all"). PUBLIC ones need no account: they have nothing secret, or check a device's
# secret, a ticket or a link by themselves.
PUBLIC = {
    ("GET", path)
    for path in (
        "/",
        "/fleet",
        "/page.js",
        "/page_shared.js",
        "/page_fleet.js",
        "/page.css",
        "/files/{start}/{digest}",
        "/exclusive/{digest}",
        "/keys/bundles.pub",
        "/keys/debug.pub",
        "/metadata/{name}",
        "/api/v1/openapi.json",
        "/debug",
        "/debug/{name}",
    )
} | {
    ("POST", "/debug/api"),
    ("POST", "/api/v1/device/check"),
    ("POST", "/api/v1/device/report"),
    ("POST", "/api/v1/device/crash"),
}
NEEDS = {
    ("POST", "/api/v1/device/enrol"): ("enrol", "all"),
    ("GET", "/api/v1/whoami"): (None, "all"),
    ("GET", "/api/v1/overview"): ("read", "some"),
    ("GET", "/api/v1/repositories"): ("read", "some"),
    ("POST", "/api/v1/repositories"): ("admin", "all"),
    ("GET", "/api/v1/repositories/{name}/signing"): ("read", "one"),
    ("POST", "/api/v1/repositories/{name}/signatures"): ("release", "one"),
    ("GET", "/api/v1/versions"): ("read", "some"),
    ("POST", "/api/v1/forgive"): ("release", "one"),
    ("GET", "/api/v1/releases"): ("read", "some"),
    ("POST", "/api/v1/releases"): ("release", "one"),
    ("GET", "/api/v1/releases/{release:id}"): ("read", "one"),
    ("GET", "/api/v1/releases/{release:id}/devices"): ("read", "one"),
    ("POST", "/api/v1/releases/{release:id}/retry"): ("release", "one"),
    ("POST", "/api/v1/releases/{release:id}/{event}"): ("release", "one"),
    ("POST", "/api/v1/ask"): ("read", "all"),
    ("GET", "/api/v1/stuck"): ("read", "some"),
    ("GET", "/api/v1/history"): ("read", "some"),
    ("GET", "/api/v1/files"): ("read", "some"),
    ("POST", "/api/v1/files"): ("release", "one"),
    ("DELETE", "/api/v1/files/{file:id}"): ("release", "one"),
    ("GET", "/api/v1/devices"): ("read", "all"),
    ("GET", "/api/v1/devices/{device}"): ("read", "all"),
    ("DELETE", "/api/v1/devices/{device}"): ("admin", "all"),
    ("PUT", "/api/v1/devices/{device}/block"): ("admin", "all"),
    ("DELETE", "/api/v1/devices/{device}/block"): ("admin", "all"),
    ("GET", "/api/v1/blocked"): ("read", "all"),
    ("GET", "/api/v1/fleet"): ("read", "some"),
    ("GET", "/api/v1/fleet/crashes/{device}/{crash}"): ("read", "one"),
    ("GET", "/api/v1/fleet/alerts"): ("read", "some"),
    ("PUT", "/api/v1/fleet/rules"): ("admin", "all"),
    ("GET", "/api/v1/debug/links"): ("debug", "all"),
    ("POST", "/api/v1/debug/links"): ("debug", "all"),
    ("DELETE", "/api/v1/debug/links/{link}"): ("debug", "all"),
    ("GET", "/api/v1/cohorts"): ("read", "all"),
    ("PUT", "/api/v1/cohorts/{cohort}"): ("release", "all"),
    ("GET", "/api/v1/accounts"): ("admin", "all"),
    ("POST", "/api/v1/accounts"): ("admin", "all"),
    ("PATCH", "/api/v1/accounts/{name}"): ("admin", "all"),
    ("POST", "/api/v1/tokens"): ("admin", "all"),
    ("DELETE", "/api/v1/tokens/{token}"): ("admin", "all"),
    ("GET", "/api/v1/audit"): ("admin", "all"),
}


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    """The threads that answer are looked at when the platform closes."""
    yield


@pytest.fixture(scope="module")
def platform(tmp_path_factory):
    with nothing_left(), platform_in(tmp_path_factory.mktemp("routes")) as platform:
        platform.add_repository(OTHER, "test")
        for repository in (OWN, OTHER):
            task = f"{repository}/rank_{repository}"
            add_version(platform, task, "1")
            add_version(platform, task, "2")
            platform.add_file(task, f"file-of-{repository}", "shared", b"words", {}, "ann")
            platform.releases.start(task, "1", _plan(), "ann", "")
        for device in ("a", "b"):
            platform.devices.enrol(device, SECRET)
            platform.check(device, SECRET, {"facts": {"python": "3.14", "problem": f"of {device}"}, "epoch": "1"})
        for repository in (OWN, OTHER):
            task = f"{repository}/rank_{repository}"
            counts = {"task": task, "version": "1", "counts": {"call:OK": 1}, "breaker": "closed"}
            platform.take_report("a", SECRET, {"epoch": repository, "number": 1, "tasks": [counts]})
            crash = {"id": f"of-{repository}", "fingerprint": "ab" * 16, "task": task, "version": "1", "title": "t"}
            platform.take_crash("a", SECRET, crash)
            platform.releases.report("b", _release(platform, repository), "declined", f"by {repository}")
        platform.alerts.set_rules("rules: [{name: c, crashes: {over: 0, within: 1 h}}]", "test")
        platform.alerts.evaluate()
        yield platform


def _plan():
    from vmhost.deployment.cloud.plan import WHOLE_FLEET, Plan

    return Plan.of(WHOLE_FLEET)


def _release(platform, repository):
    return next(each.id for each in platform.releases.releases.values() if each.task.startswith(f"{repository}/"))


def _token(platform, scope):
    """A token with one scope, written past `add_token`'s checks, as another version of the platform may have done."""
    token = platform.access.add_token("admin", "test", scopes=[])
    with platform.database.transaction() as connection:
        connection.execute(
            "UPDATE access_tokens SET scopes = ? WHERE id = ?", (json.dumps([scope]), token.split("_")[1])
        )
    return token


async def _asked(app, method, path, token, body=b"", extra=(), query=""):
    """(status, text) of the application's answer."""
    headers = [(b"authorization", f"Bearer {token}".encode()), (b"content-type", b"application/json"), *extra]
    scope = {"type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": headers}
    scope |= {"client": ("10.0.0.1", 1), "root_path": "", "http_version": "1.1", "scheme": "http", "server": ("t", 1)}
    sent = []

    async def receive():
        return {"type": "http.request", "body": body}

    async def send(message):
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"], b"".join(each.get("body", b"") for each in sent[1:]).decode(errors="replace")


def _routes(app):
    """(method, path) of every route; mounted applications by their prefix."""
    return [
        (method, route.path)
        for route in app.routes
        for method in sorted((getattr(route, "methods", None) or {"MOUNT"}) - {"HEAD"})
    ]


def _requests(platform, method, path, repository):
    """(path, query, body) of requests to the route about the repository that change nothing where they are refused."""
    task = f"{repository}/rank_{repository}"
    file = next(each["id"] for each in platform.task_files.list() if each["task"] == task)
    values = {"name": repository, "release": _release(platform, repository), "file": file, "device": "a"}
    values |= {"device": "!"} if path.endswith("/block") else {}
    values |= {"crash": f"of-{repository}", "event": "none", "cohort": "c", "token": "x", "link": "x"}
    filled = re.sub(r"\{(\w+)(:id)?\}", lambda found: str(values[found[1]]), path)
    body = {"task": task, "version": "9", "name": "!", "device": "!", "devices": ["!"], "role": "viewer"}
    body |= {"keyid": "x", "signature": "0" * 128, "account": "nobody", "text": ":", "scopes": ["logs"]}
    body |= {"valid_s": 60, "address": "x", "secret": SECRET}
    return filled, f"task={task}&name=!", json.dumps(body).encode()


def test_each_route_is_open_to_the_scopes_that_it_needs_and_to_no_other(platform):
    app = application(platform, requests_per_s=1e6, burst=10**6)
    tokens = {
        (word, owner): _token(platform, word + (f":{owner}" if owner else ""))
        for word in WORDS
        for owner in (None, OWN, OTHER)
    }

    async def walk():
        wrong = []
        for method, path in _routes(app):
            if (method, path) in PUBLIC or path == "/git":
                continue
            scope, whose = NEEDS[method, path]
            for (word, owner), token in tokens.items():
                for repository in (OWN, OTHER):
                    filled, query, body = _requests(platform, method, path, repository)
                    filled = (
                        "/api/v1/devices/none" if (method, path) == ("DELETE", "/api/v1/devices/{device}") else filled
                    )
                    if (method, path) == ("DELETE", "/api/v1/files/{file:id}") and word == scope:
                        if owner in (None, repository):
                            continue  # it would remove the file
                    status, text = await _asked(app, method, filled, token, body, query=query)
                    may = scope is None or (
                        word == scope
                        and (
                            owner is None
                            or (word in OWNED and (whose == "some" or (whose == "one" and owner == repository)))
                        )
                    )
                    if status >= 500 or (status in (401, 403)) == may:
                        wrong.append(f"{method} {filled} with {word}:{owner}: {status} {text:.80}")
                    if may and whose == "some" and owner is not None:
                        foreign = OTHER if owner == OWN else OWN
                        query = query if method == "POST" else ""
                        _, text = await _asked(app, method, filled, token, query="")
                        if foreign in text or '"problem' in text or "of a" in text or "of b" in text:
                            wrong.append(f"{method} {filled} with {word}:{owner} shows {foreign}: {text:.300}")
                        if owner not in text:
                            wrong.append(f"{method} {filled} with {word}:{owner} does not show {owner}: {text:.200}")
        return wrong

    assert asyncio.run(walk()) == []


def test_every_route_is_in_one_of_the_tables(platform):
    there = set(_routes(application(platform)))
    assert there == PUBLIC | NEEDS.keys() | {("MOUNT", "/git")}


def test_git_needs_read_to_fetch_and_push_to_push_of_that_repository(platform):
    app = application(platform, requests_per_s=1e6, burst=10**6)

    async def status(word, owner, repository, service):
        scope = word + (f":{owner}" if owner else "")
        given = base64.b64encode(f"admin:{_token(platform, scope)}".encode())
        scope = {
            "type": "http",
            "method": "GET",
            "path": f"/git/{repository}/info/refs",
            "query_string": f"service={service}".encode(),
            "headers": [(b"authorization", b"Basic " + given)],
        }
        sent = []

        async def send(message):
            sent.append(message)

        await app(scope, None, send)
        return sent[0]["status"]

    async def walk():
        for word in WORDS:
            for owner in (None, OWN, OTHER):
                for repository in (OWN, OTHER):
                    for service, needed in (("git-upload-pack", "read"), ("git-receive-pack", "push")):
                        may = word == needed and owner in (None, repository)
                        assert await status(word, owner, repository, service) == (200 if may else 403)

    asyncio.run(walk())


def test_what_a_fetch_may_want_is_bounded(platform):
    app = application(platform)
    given = base64.b64encode(f"admin:{_token(platform, 'read')}".encode())
    headers = [(b"authorization", b"Basic " + given), (b"content-type", b"application/x-git-upload-pack-request")]
    scope = {"type": "http", "method": "POST", "path": "/git/shop/git-upload-pack", "query_string": b""}
    sent, asked = [], []

    async def receive():
        asked.append(1)
        return {"type": "http.request", "body": b"0032want " + b"0" * 40 + b"\n" * 1_000_000, "more_body": True}

    async def send(message):
        sent.append(message)

    asyncio.run(app(scope | {"headers": headers}, receive, send))
    assert (sent[0]["status"], len(asked)) == (413, 3)


@pytest.mark.parametrize("scope", ["admin:shop", "enrol:shop", "debug:shop", "read:none", "read:", "push:shop:bank"])
def test_suffixes_that_mean_nothing_are_refused(platform, scope):
    with pytest.raises(AccessError, match="cannot be given for one owner|expected one of bank, shop"):
        platform.access.add_token("admin", "test", scopes=[scope])


@pytest.mark.parametrize("path", ["/api/v1/files", "/api/v1/releases", "/api/v1/device/enrol", "/api/v1/device/check"])
def test_no_byte_of_a_body_is_read_for_a_stranger(platform, path):
    app = application(platform)

    async def ask():
        async def receive():
            raise AssertionError("the body was asked for")

        sent = []

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"task=shop/rank_shop", "headers": []}
        scope |= {
            "client": ("10.0.0.1", 1),
            "root_path": "",
            "http_version": "1.1",
            "scheme": "http",
            "server": ("t", 1),
        }
        await app(scope, receive, send)
        return sent[0]["status"]

    assert asyncio.run(ask()) == 401


def test_names_that_strangers_make_up_are_not_kept(platform):
    app = application(platform)

    async def ask(number):
        name = (b"%d" % number) + b"x" * 40_000
        path = "/api/v1/device/check"
        status, _ = await _asked(app, "POST", path, "no token", b"{}", extra=[(b"x-vmhost-device", name)])
        assert status in (401, 429)

    async def all_of_them(numbers):
        for number in numbers:
            await ask(number)

    asyncio.run(all_of_them(range(100)))
    before = _resident_bytes()
    asyncio.run(all_of_them(range(100, 2100)))
    assert _resident_bytes() - before < 30 << 20  # the names have 80 MB


def _resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_wrong_tokens_are_counted_for_a_bounded_number_of_addresses():
    limit = RateLimit(1.0, 1.0, lambda: 0.0, max_keys=MAX_STRANGERS)
    for number in range(MAX_STRANGERS):
        assert limit.wait_s(f"10.0.{number >> 8}.{number & 255}") == 0.0
    assert limit.wait_s("10.0.0.0") > 0
    limit.wait_s("one more")
    assert limit.wait_s("10.0.0.1") == 0.0  # the oldest was forgotten


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("kitchen-1", "kitchen-1"),  # a device on the tunnel
    ],
)
def test_a_caller_is_counted_by_what_one_caller_has(address, network):
    assert network_of(address) == network
