"""The platform's API and page over HTTP: who may what, what is wrong is said, limits."""

import contextlib
import http.client
import json
import urllib.parse

import pytest

from tests.deployment.platforms import add_version, nothing_left, platform_in
from vmhost.deployment.cloud.server import serving


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
    status, told = ask("POST", f"/api/v1/releases/{number}/pause", {})
    assert status == 409 and "is paused; it can halt, resume, roll_back, not pause" in told["error"]
    assert ask("POST", f"/api/v1/releases/{number}/roll_back", {"why": "wrong"})[1]["state"] == "rolled_back"
    status, told = ask("POST", "/api/v1/releases", {"task": "shop/rank", "version": "1"})
    assert status == 409 and "rolled back (wrong)" in told["error"]
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
    ("path", "raw", "told"),
    [
        ("/api/v1/releases", "{", "not JSON"),
        ("/api/v1/releases", "[]", "expected a JSON object"),
        ("/api/v1/releases", "[" * 5000, "not JSON"),
        ("/api/v1/releases", "x" * (2 << 20), "more than 1,048,576 bytes"),
        ("/api/v1/releases", '{"task": "shop/rank", "version": "9"}', "no such version; there are 1, 2, 3"),
        ("/api/v1/releases", '{"task": 7, "version": "9"}', "no such version"),
        ("/api/v1/releases", '{"task": "shop/rank", "version": "2", "plan": {"steps": []}}', "plan: steps: expected"),
        (
            "/api/v1/releases",
            '{"task": "shop/rank", "version": "2", "plan": {"stepps": []}}',
            "'stepps': expected one of",
        ),
        ("/api/v1/ask", '{"audience": {"os": 7}}', "audience: os: expected a name"),
        ("/api/v1/ask", '{"audience": {"memory": ">=lots"}}', "expected a number or a size"),
    ],
)
def test_what_is_wrong_with_a_request_is_said(ask, path, raw, told):
    status, answer = ask("POST", path, raw=raw)
    assert status in (404, 409) and told in answer["error"], answer


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
    told = ask("GET", "/api/v1/devices/odd", who="vic")[1]["releases"]
    assert "step 1 of 1 has not reached it" in told[0]["why_not"]
    stuck = ask("GET", "/api/v1/stuck", who="vic")[1]["devices"]
    assert any(each["device"] == "odd" and each["reason"] == "the disk has no room" for each in stuck)
    platform.releases.act(release.id, "halt", "ann")


def _plan(plain):
    from vmhost.deployment.cloud.plan import Plan

    return Plan.of(plain)


def test_the_page_is_served_with_a_strict_policy(cloud, ask):
    for path, begins in (("/", b"<!doctype html>"), ("/page.js", b"//"), ("/page.css", b"body")):
        status, data = ask("GET", path)
        assert status == 200 and data.startswith(begins)


def test_too_many_requests_are_told_to_wait(tmp_path):
    import asyncio

    from vmhost.deployment.cloud.web import application

    with platform_in(tmp_path / "cloud") as platform:
        token = platform.access.add_token("ann", "test")
        app = application(platform, requests_per_s=0.001, burst=2)
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/api/v1/whoami",
            "query_string": b"",
            "headers": [(b"authorization", f"Bearer {token}".encode())],
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
        assert [each for each, _ in answers] == [200, 200, 429]
        assert int(answers[2][1][b"retry-after"]) > 0
