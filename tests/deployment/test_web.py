"""The platform's API and page over HTTP: permissions, error messages, limits."""

import asyncio
import base64
import contextlib
import http.client
import json
import logging
import secrets
import urllib.parse

import pytest

from tests.deployment.platforms import add_version, nothing_left, platform_in
from vmhost.deployment.cloud import openapi
from vmhost.deployment.cloud.server import serving
from vmhost.deployment.cloud.web import application
from vmhost.deployment.errors import DeploymentError


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    """The server's threads grow with what it is asked; they are looked at when it ends."""
    yield


@pytest.fixture(scope="module")
def cloud(tmp_path_factory):
    with nothing_left(), platform_in(tmp_path_factory.mktemp("web")) as platform, serving(platform) as address:
        for version in ("1", "2", "3"):
            add_version(platform, "shop/rank", version)
        platform.access.add_account("vic", "viewer", "test")
        yield platform, address


@pytest.fixture
def ask(cloud):
    platform, address = cloud
    tokens = {name: platform.access.add_token(name, "test") for name in ("admin", "ann", "vic", "fleet")}
    host = urllib.parse.urlsplit(address).netloc

    def ask(method, path, body=None, who="ann", raw=None):
        with contextlib.closing(http.client.HTTPConnection(host, timeout=60)) as connection:
            data = raw if raw is not None else None if body is None else json.dumps(body)
            connection.request(method, path, data, {"authorization": f"Bearer {tokens.get(who, who)}"})
            response = connection.getresponse()
            answer = response.read()
        kind = response.headers["content-type"]
        return response.status, json.loads(answer) if kind.startswith("application/json") else answer

    return ask


def test_a_release_is_started_watched_and_taken_back_over_the_api(ask):
    status, release = ask("POST", "/api/v1/releases", {"task": "shop/rank", "version": "1", "why": "new"})
    assert (status, release["state"]) == (200, "running")
    number = release["id"]
    assert ask("GET", "/api/v1/overview", who="vic")[1]["releases"][0]["id"] == number
    assert ask("POST", f"/api/v1/releases/{number}/pause", {"why": "lunch"})[1]["state"] == "paused"
    status, answer = ask("POST", f"/api/v1/releases/{number}/pause", {})
    assert status == 409 and "is paused; it can halt, resume, roll_back, not pause" in answer["error"]
    assert ask("POST", f"/api/v1/releases/{number}/roll_back", {"why": "wrong"})[1]["state"] == "rolled_back"
    status, answer = ask("POST", "/api/v1/releases", {"task": "shop/rank", "version": "1"})
    assert status == 409 and "rolled back (wrong)" in answer["error"]
    assert ask("POST", "/api/v1/forgive", {"task": "shop/rank", "version": "1", "why": "right"})[0] == 200
    history = ask("GET", "/api/v1/history?task=shop/rank", who="vic")[1]["history"]
    assert [(each["event"], each["who"]) for each in history[:2]] == [("forgiven", "ann"), ("roll_back", "ann")]
    audit = ask("GET", "/api/v1/audit", who="admin")[1]["audit"]
    assert any(each["action"] == "roll_back" and each["who"] == "ann" for each in audit)


@pytest.mark.parametrize(
    ("who", "method", "path", "status"),
    [
        ("vic", "POST", "/api/v1/releases", 403),
        ("vic", "POST", "/api/v1/releases/1/halt", 403),
        ("ann", "POST", "/api/v1/accounts", 403),
        ("ann", "GET", "/api/v1/audit", 403),
        ("fleet", "GET", "/api/v1/releases", 403),
        ("nobody", "GET", "/api/v1/releases", 401),
        ("", "GET", "/api/v1/overview", 401),
        ("nobody", "POST", "/api/v1/device/check", 401),
        ("vic", "POST", "/api/v1/device/enrol", 403),
        ("ann", "POST", "/api/v1/releases/99/halt", 404),
        ("ann", "POST", "/api/v1/releases/1/explode", 404),
        ("ann", "GET", "/api/v1/devices/none", 404),
        ("ann", "GET", "/files/ab/" + "0" * 64, 404),
        ("ann", "GET", "/files/ab/..%2f..%2fplatform.db", 404),
        ("ann", "GET", "/metadata/..%2fplatform.db", 404),
        ("ann", "GET", "/git/shop/../../platform.db", 404),
    ],
)
def test_who_may_not_is_told_so_and_gets_nothing(ask, who, method, path, status):
    assert ask(method, path, {} if method == "POST" else None, who)[0] == status


@pytest.mark.parametrize(
    ("path", "raw", "message"),
    [
        ("/api/v1/releases", "{", "not JSON"),
        ("/api/v1/releases", "[]", "expected a JSON object"),
        ("/api/v1/releases", "[" * 5000, "not JSON"),
        ("/api/v1/releases", "x" * (2 << 20), "more than 1,048,576 bytes"),
        ("/api/v1/releases", '{"task": "shop/rank", "version": "9"}', "no such version; there are 1, 2, 3"),
        ("/api/v1/releases", '{"task": 7, "version": "9"}', 'task: expected type "string", got 7'),
        ("/api/v1/releases", '{"task": "shop/rank"}', "'version' is a required property"),
        ("/api/v1/releases", '{"task": "shop/rank", "version": "2", "plan": {"steps": []}}', "plan: steps: expected"),
        (
            "/api/v1/releases",
            '{"task": "shop/rank", "version": "2", "plan": {"stepps": []}}',
            "stepps: unknown key; did you mean 'steps'?",
        ),
        ("/api/v1/ask", '{"audience": {"os": 7}}', "audience: os: expected a name"),
        ("/api/v1/ask", '{"audience": {"memory": ">=lots"}}', "memory: expected a comparison"),
    ],
)
def test_what_is_wrong_with_a_request_is_said(ask, path, raw, message):
    status, answer = ask("POST", path, raw=raw)
    assert status in (400, 404, 409) and message in answer["error"], answer


def test_a_role_that_there_is_not_is_answered_with_those_that_there_are():
    check = openapi.checker("POST", "/accounts")
    check({"name": "bob", "role": "viewer"})
    with pytest.raises(DeploymentError, match='role: expected one of admin, debugger, .*; got "boss"'):
        check({"name": "bob", "role": "boss"})


def test_a_token_of_one_repository_is_worth_nothing_for_another(cloud, ask):
    platform, _ = cloud
    platform.add_repository("other", "test")
    add_version(platform, "other/find", "1")
    token = platform.access.add_token("ann", "test", scopes=["read", "release:other"])
    refused = [
        ask("POST", "/api/v1/releases", {"task": "shop/rank", "version": "2"}, token),
        ask("POST", "/api/v1/forgive", {"task": "shop/rank", "version": "2"}, token),
        ask("POST", "/api/v1/files?task=shop/rank&name=a", None, token, b"words"),
        ask("PUT", "/api/v1/cohorts/staff", {"devices": []}, token),
    ]
    status, mine = ask("POST", "/api/v1/releases", {"task": "shop/rank", "version": "2"})
    assert status == 200
    platform.devices.enrol("hall-7", "s" * 40)
    platform.check("hall-7", "s" * 40, {"facts": {"python": "3.14"}, "epoch": "1"})
    platform.releases.report("hall-7", mine["id"], "declined")
    status, file = ask("POST", "/api/v1/files?task=shop/rank&name=a", None, raw=b"words")
    assert status == 200
    refused += [
        ask("POST", f"/api/v1/releases/{mine['id']}/halt", {}, token),
        ask("POST", f"/api/v1/releases/{mine['id']}/retry", {"device": "hall-7"}, token),
        ask("DELETE", f"/api/v1/files/{file['id']}", None, token),
    ]
    assert [(status, "this needs release" in answer["error"]) for status, answer in refused] == [(403, True)] * 7
    status, theirs = ask("POST", "/api/v1/releases", {"task": "other/find", "version": "1"}, token)
    assert (status, theirs["state"]) == (200, "running")
    assert ask("POST", f"/api/v1/releases/{theirs['id']}/roll_back", {}, token)[0] == 200
    assert ask("POST", f"/api/v1/releases/{mine['id']}/roll_back", {})[0] == 200


def test_an_audience_is_asked_before_it_is_used(cloud, ask):
    platform, _ = cloud
    for number, os in enumerate(("linux", "linux", "android")):
        platform.devices.enrol(f"asked-{number}", "s" * 40)
        platform.check(f"asked-{number}", "s" * 40, {"facts": {"os": os, "python": "3.14", "memory": number << 30}})
    status, found = ask("POST", "/api/v1/ask", {"audience": {"os": "linux", "memory": ">=512 MiB"}}, who="vic")
    assert status == 200 and found["matching"] == 1 and found["devices"] == ["asked-1"]
    assert found["reasons"]["asked-0"] == "memory: expected >=512 MiB, it has 0"
    assert found["reasons"]["asked-2"] == "os: expected linux, it has android"


def test_a_device_is_explained_and_who_is_stuck_is_listed(cloud, ask):
    platform, _ = cloud
    platform.devices.enrol("odd", "s" * 40)
    facts = {"python": "3.14", "problem": "the disk has no room"}
    platform.check("odd", "s" * 40, {"facts": facts})
    release = platform.releases.start("shop/rank", "3", _plan({"steps": [{"devices": ["other"]}]}), "ann", "")
    answer = ask("GET", "/api/v1/devices/odd", who="vic")[1]["releases"]
    assert "step 1 of 1 has not reached it" in answer[0]["why_not"]
    stuck = ask("GET", "/api/v1/stuck", who="vic")[1]["devices"]
    assert any(each["device"] == "odd" and each["reason"] == "the disk has no room" for each in stuck)
    platform.releases.act(release.id, "halt", "ann")


def _plan(plain):
    from vmhost.deployment.cloud.plan import Plan

    return Plan.of(plain)


def test_the_page_is_served_with_a_strict_policy(cloud, ask):
    for path, begins in (("/", b"<!doctype html>"), ("/page.js", b"//"), ("/page.css", b":root")):
        status, data = ask("GET", path)
        assert status == 200 and data.startswith(begins)


@pytest.mark.parametrize(
    ("path", "token", "expected"),
    [
        ("/api/v1/whoami", "ann", [200, 200, 429]),
        ("/api/v1/whoami", "nobody", [401, 401, 429]),
        ("/git/shop/info/refs", "ann", [200, 200, 429]),
    ],
)
def test_too_many_requests_are_told_to_wait(tmp_path, path, token, expected):
    with platform_in(tmp_path / "cloud") as platform:
        token = platform.access.add_token("ann", "test") if token == "ann" else token
        app = application(platform, requests_per_s=0.001, burst=2)
        given = f"Bearer {token}" if "api" in path else f"Basic {base64.b64encode(f'ann:{token}'.encode()).decode()}"
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "query_string": b"service=git-upload-pack",
            "headers": [(b"authorization", given.encode())],
        }

        async def status():
            sent = []

            async def receive():
                return {"type": "http.request", "body": b""}

            async def send(message):
                sent.append(message)

            await app(dict(scope), receive, send)
            return sent[0]["status"], dict(sent[0]["headers"])

        async def three():
            return [await status() for _ in range(3)]

        answers = asyncio.run(three())
        assert [each for each, _ in answers] == expected
        assert int(answers[2][1][b"retry-after"]) > 0


def test_openapi_names_every_route_and_no_other(ask, cloud):
    status, document = ask("GET", "/api/v1/openapi.json", who="")
    assert status == 200 and document["openapi"].startswith("3.1")
    there = {
        (method, route.path.replace(":id", ""))
        for route in application(cloud[0]).routes
        if route.path.startswith("/api/")
        for method in route.methods - {"HEAD"}
    }
    documented = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert documented == there
    names = [each["operationId"] for methods in document["paths"].values() for each in methods.values()]
    assert len(set(names)) == len(names)


def test_openapi_says_who_may(ask):
    document = ask("GET", "/api/v1/openapi.json")[1]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            scope = operation.get("description", "").removeprefix("needs the scope ")
            path = path.replace("{release}", "1").replace("{file}", "1").replace("{event}", "pause")
            status, _ = ask(method.upper(), path, {}, who="nobody")
            assert status == (200 if path.endswith("openapi.json") else 401), path
            if scope in ("admin", "enrol"):
                assert ask(method.upper(), path, {}, who="ann")[0] == 403, path


JUNK = [
    "null",
    "7",
    '"x"',
    "[]",
    "{}",
    "[[]]",
    '{"a": {}}',
    "-1",
    "1e999",
    "true",
    f'"{"x" * 5000}"',
    '"\\ud800"',
    '"\\u0000"',
]


@pytest.mark.parametrize("junk", JUNK, ids=range(len(JUNK)))
def test_no_route_breaks_on_values_of_any_kind(cloud, junk):
    """Any value of a request's fields gets an answer, never an internal server error."""
    platform, _ = cloud
    junk = json.loads(junk)
    platform.access.add_account(name := f"root{secrets.token_hex(4)}", "admin", "test")
    token = platform.access.add_token(name, "test")
    platform.devices.enrol(device := f"x{secrets.token_hex(4)}", token)

    async def all_of_it():
        found = []
        for path, methods in openapi.document()["paths"].items():
            for method, operation in methods.items():
                content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
                for key in (None, *content.get("schema", {}).get("properties", ())):
                    body = {} if key is None else {"task": "shop/rank", "version": "1", key: junk}
                    where = path.format(
                        release=10**6,
                        file=10**6,
                        device="x",
                        cohort="c",
                        name="x",
                        token="x",
                        event="halt",
                        crash="1",
                        link="0",
                    )
                    found.append((method, where, key, await request(method.upper(), where, body)))
        return found

    async def request(method, path, body):
        statuses, data = [], json.dumps(body).encode()
        headers = [(b"authorization", f"Bearer {token}".encode()), (b"x-vmhost-device", device.encode())]
        scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": headers}
        scope |= {"client": ("test", 1), "root_path": "", "http_version": "1.1", "scheme": "http", "server": ("t", 1)}

        async def receive():
            return {"type": "http.request", "body": data}

        async def send(message):
            statuses.append(message.get("status"))

        await app(scope, receive, send)
        return statuses[0]

    app = application(platform, requests_per_s=1e6, burst=10**6)
    for method, path, key, status in asyncio.run(all_of_it()):
        assert status < 500, f"{method} {path} with {key}={junk!r:.30}: {status}"


def test_secrets_are_in_no_log_no_answer_and_no_file_but_as_digests(ask, cloud, caplog):
    platform, _ = cloud
    caplog.set_level(logging.DEBUG)
    token = ask("POST", "/api/v1/accounts", {"name": "sam", "role": "admin"}, who="admin")[1]["token"]
    secret = "s3cr3t-" + "x" * 40
    fleet = platform.access.add_token("fleet", "test")
    assert ask("POST", "/api/v1/device/enrol", {"device": "secretive", "secret": secret}, who=fleet)[0] == 200
    assert ask("POST", "/api/v1/device/enrol", {"device": "secretive", "secret": secret + "2"}, who=fleet)[0] == 409
    for who in (token, token[:-1] + "x", secret):
        for path in ("/api/v1/accounts", "/api/v1/audit", "/api/v1/devices/secretive", "/api/v1/nothing"):
            answer = json.dumps(str(ask("GET", path, who=who)))
            assert token.split("_", 2)[2] not in answer and secret not in answer
    ask("GET", f"/git/shop/info/refs?service=git-upload-pack&token={token}", who=token)
    ask("POST", "/api/v1/device/check", {"facts": 7}, who=secret)
    platform.devices.flush()
    written = [path for path in platform.folder.rglob("*") if path.is_file() and "keys" not in path.parts]
    for held in (token.split("_", 2)[2], fleet.split("_", 2)[2], secret):
        assert held not in caplog.text
        assert not [path for path in written if held.encode() in path.read_bytes()]
