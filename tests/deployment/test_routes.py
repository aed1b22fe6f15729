"""Every route of the platform with every scope, for one's own repository and another one; and what a stranger costs."""

import asyncio
import base64
import json
import os
import re

import pytest

from tests.deployment.platforms import add_version, nothing_left, platform_in
from vmhost.access import ROLES, AccessError, RateLimit, network_of
from vmhost.access.accounts import OWNED
from vmhost.deployment.cloud.git_http import SERVICES
from vmhost.deployment.cloud.routes import ACCOUNT, DEVICE, FLEET, LISTED, PUBLIC
from vmhost.deployment.cloud.web import MAX_STRANGERS, application

OWN, OTHER = "shop", "bank"
SECRET = "s" * 40
WORDS = sorted(set().union(*ROLES.values()))
NOT_ENROLLED = "not enrolled"


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
    sent, waiting = [], [{"type": "http.request", "body": body}]

    async def receive():
        return waiting.pop() if waiting else await asyncio.Event().wait()

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


def _rule(app, method, path):
    """The Rule of a route; None of /git, whose services have theirs."""
    [found] = [
        each for each in app.routes if each.path == path and method in (getattr(each, "methods", None) or {"MOUNT"})
    ]
    return getattr(found, "rule", None)


def _requests(platform, method, path, repository):
    """(path, query, body) of requests to the route about the repository that change nothing where they are refused."""
    task = f"{repository}/rank_{repository}"
    file = next(each["id"] for each in platform.task_files.list() if each["task"] == task)
    values = {"name": repository, "release": _release(platform, repository), "file": file, "device": "a"}
    values |= {"device": "!"} if path.endswith("/block") else {}
    values |= {"crash": f"of-{repository}", "event": "none", "cohort": "c", "token": "x", "link": "x"}
    values |= {"start": "ab", "digest": "ab" * 32} | ({"name": "none"} if not path.startswith("/api/") else {})
    filled = re.sub(r"\{(\w+)(:id)?\}", lambda found: str(values[found[1]]), path)
    body = {"task": task, "version": "9", "name": "!", "device": "!", "devices": ["!"], "role": "viewer"}
    body |= {"keyid": "x", "signature": "0" * 128, "account": "nobody", "text": ":", "scopes": ["logs"]}
    body |= {"valid_s": 60, "address": "x", "secret": SECRET, "code": "none"}
    return filled, f"task={task}&name=!", json.dumps(body).encode()


def _tokens(platform):
    """{(word, owner): token} with this one scope, for each; owner None: the word alone."""
    return {
        (word, owner): _token(platform, word + (f":{owner}" if owner else ""))
        for word in WORDS
        for owner in (None, OWN, OTHER)
    }


def _may(rule, word, owner, repository):
    """Whether a token with the scope `word` or `word:owner` may use the route about the repository."""
    if rule.whose is ACCOUNT:
        return True
    if word != rule.scope and (word, rule.scope) != ("enrol", "join"):
        return False
    if owner is None:
        return True
    return word in OWNED and (rule.whose is LISTED or (rule.whose is not FLEET and owner == repository))


def test_each_route_says_who_may_use_it(platform):
    unsaid = [route.path for route in application(platform).routes if not hasattr(route, "rule")]
    assert unsaid == ["/git"]  # see git_http.SERVICES


def test_no_route_changes_anything_for_those_who_may_only_read(platform):
    changing = [
        (route.rule.method, route.path)
        for route in application(platform).routes[1:]
        if route.rule.scope in ("read", None) and route.rule.method != "GET" and route.rule.whose is not DEVICE
    ]
    assert changing == [("POST", "/debug/api"), ("POST", "/api/v1/ask")]  # a link says who may; and a question


def test_each_route_is_open_to_the_scopes_that_it_needs_and_to_no_other(platform):
    app = application(platform, requests_per_s=1e6, burst=10**6)
    tokens = _tokens(platform)

    async def walk():
        wrong = []
        for method, path in _routes(app):
            rule = _rule(app, method, path)
            if rule is None or rule.whose in (PUBLIC, DEVICE):
                continue
            for (word, owner), token in tokens.items():
                for repository in (OWN, OTHER):
                    filled, query, body = _requests(platform, method, path, repository)
                    filled = (
                        "/api/v1/devices/none" if (method, path) == ("DELETE", "/api/v1/devices/{device}") else filled
                    )
                    may = _may(rule, word, owner, repository)
                    if may and (method, path) == ("DELETE", "/api/v1/files/{file:id}"):
                        continue  # it would remove the file
                    status, text = await _asked(app, method, filled, token, body, query=query)
                    if status >= 500 or (status in (401, 403)) == may:
                        wrong.append(f"{method} {filled} with {word}:{owner}: {status} {text:.80}")
                    if may and rule.whose is LISTED and owner is not None:
                        foreign = OTHER if owner == OWN else OWN
                        _, text = await _asked(app, method, filled, token)
                        if foreign in text or '"problem' in text or "of a" in text or "of b" in text:
                            wrong.append(f"{method} {filled} with {word}:{owner} shows {foreign}: {text:.300}")
                        if owner not in text:
                            wrong.append(f"{method} {filled} with {word}:{owner} does not show {owner}: {text:.200}")
        return wrong

    assert asyncio.run(walk()) == []


def test_routes_of_accounts_and_devices_know_no_strangers_and_public_ones_no_accounts(platform):
    app = application(platform, requests_per_s=1e6, burst=10**6)
    tokens = _tokens(platform)

    async def walk():
        wrong = []
        for method, path in _routes(app):
            rule = _rule(app, method, path)
            if rule is None:
                continue
            filled, query, body = _requests(platform, method, path, OWN)
            bare, _ = await _asked(app, method, filled, "", body, query=query)
            if (bare == 401) == (rule.whose is PUBLIC):
                wrong.append(f"{method} {filled} without a token: {bare}")
            if rule.whose is PUBLIC:
                answers = {
                    (await _asked(app, method, filled, token, body, query=query))[0] for token in tokens.values()
                }
                wrong += [f"{method} {filled}: {answers}, without a token {bare}"] if answers != {bare} else []
            if rule.whose is DEVICE:
                for token in (*tokens.values(), "t" * 40, SECRET.upper()):
                    status, text = await _asked(app, method, filled, token, body, extra=[(b"x-vmhost-device", b"a")])
                    wrong += [f"{method} {filled} as a: {status}"] if status != 401 or NOT_ENROLLED not in text else []
        return wrong

    assert asyncio.run(walk()) == []


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
                    for service, needed in SERVICES.items():
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
