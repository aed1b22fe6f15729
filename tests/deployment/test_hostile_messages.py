"""Hostile bodies of every message: each gets an answer that is no internal error, and harms nobody else's rows."""

import asyncio
import base64
import contextlib
import copy
import hashlib
import io
import json
import random
import re
from types import SimpleNamespace

import pytest
from dulwich.object_format import DEFAULT_OBJECT_FORMAT
from dulwich.objects import Blob, Commit, Tree
from dulwich.pack import write_pack_objects

from tests.deployment.platforms import add_version, nothing_left, platform_in
from vmhost.deployment import stated_facts, strict_json
from vmhost.deployment.cloud import openapi
from vmhost.deployment.cloud.plan import WHOLE_FLEET, Plan
from vmhost.deployment.cloud.tunnel_calls import TunnelCalls
from vmhost.deployment.cloud.web import application
from vmhost.deployment.device.facts import facts

SECRET = "s" * 40
TASK = "shop/rank"
BODIES = 200
SOME_OR_MORE = pytest.mark.parametrize("count", [60, pytest.param(10 * BODIES, marks=pytest.mark.stress)])
DEVICE_MESSAGES = {
    "check": {
        "facts": {"python": "3.14", "os": "linux", "memory": 1 << 30, "isa": ["avx2"]},
        "tasks": {
            TASK: {"version": "1", "digest": "ab" * 32, "release": 1, "state": "proven", "files": {"a": "cd" * 32}}
        },
        "epoch": "1",
        "reports": [[1, {"release": 1, "state": "proven", "reason": "", "counted": {"calls": 1, "failures": 0}}]],
        "health": {TASK: [1, 5, 0]},
        "profile": "bad x",
        "base": "bad y",
        "gone": {"facts": ["a"], "tasks": ["b"]},
    },
    "report": {
        "epoch": "1",
        "number": 1,
        "tasks": [{"task": TASK, "version": "1", "counts": {"call:OK": 1, "wall:3": 1}, "breaker": "closed"}],
    },
    "crash": {"id": "1", "fingerprint": "ab" * 16, "task": TASK, "version": "1", "title": "SIGSEGV", "log": ["a"]},
}
# Other forms of these messages, and a device that joins under the name of another one.
FORMS = {name: [(f"/api/v1/device/{name}", SECRET, message)] for name, message in DEVICE_MESSAGES.items()}
FORMS["check"] += [("/api/v1/device/check", SECRET, {"profile": "bad x"})]
FORMS["enrol"] = [("/api/v1/device/enrol", None, {"device": name, "secret": "t" * 40}) for name in ("good", "new")]
VALUES = {"string": "x", "integer": 1, "number": 1, "array": [], "object": {}, "boolean": True}
JUNK = (
    *(
        "null",
        "true",
        "0",
        "-1",
        "1.0",
        "1e3",
        "NaN",
        "Infinity",
        "-Infinity",
        "1e400",
        "-1e400",
        str(2**63),
        "9" * 5000,
    ),
    *(str(-(2**63) - 1), '""', '"x"', '"\\u0000"', '"\\ud800"', '"\\udfff\\ud800"', f'"{"x" * 70000}"', "[]", "[[]]"),
    *(
        "{}",
        '{"": {}}',
        '{"a": 1, "a": 2}',
        "[" * 5000 + "]" * 5000,
        '{"a":' * 5000 + "1" + "}" * 5000,
        "[1, [2, [3]]]",
    ),
    *(
        '{"\\ud800": 1}',
        "[NaN]",
        '{"a": Infinity}',
        '[["x"], {"y": [null]}]',
        str(2**53 + 1),
        '"../../etc"',
        '"%s"',
        '"\'--"',
    ),
)


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    """The threads that answer are looked at when the platform closes."""
    yield


@pytest.fixture(scope="module")
def platform(tmp_path_factory):
    with nothing_left(), platform_in(tmp_path_factory.mktemp("hostile")) as platform:
        add_version(platform, TASK, "1")
        platform.releases.start(TASK, "1", Plan.of(WHOLE_FLEET), "ann", "")
        for device in ("good", "bad"):
            platform.devices.enrol(device, SECRET)
            platform.check(device, SECRET, {"facts": {"python": "3.14"}, "epoch": "1"})
        platform.take_report("good", SECRET, DEVICE_MESSAGES["report"])
        platform.take_crash("good", SECRET, DEVICE_MESSAGES["crash"])
        yield platform


def _paths(value, path=()):
    """Paths of all values in plain data."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from _paths(each, (*path, key))


def _hostile(message, rng):
    """The bytes of a body like the message, with something wrong in it."""
    kind = rng.randrange(12)
    text = json.dumps(message)
    if kind == 0:
        return text.encode()[: rng.randrange(len(text))]
    if kind == 1:
        return rng.choice((text.encode("utf-16"), b"\xef\xbb\xbf" + text.encode(), b"\xff" + text.encode(), b""))
    if kind == 2:
        data = bytearray(text.encode())
        for _ in range(rng.randint(1, 5)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        return bytes(data)
    changed = copy.deepcopy(message)
    for number in range(rng.randint(1, 2)):
        *path, last = rng.choice([path for path in _paths(changed) if path] or [("x",)])
        where = changed
        for key in path:
            where = where[key]
        mark = f"@{number}@"
        if rng.randrange(4) == 0 and isinstance(where, dict):
            where[mark] = where.pop(last)  # the junk becomes a name
        else:
            where[last] = mark
    text = json.dumps(changed)
    for number in range(2):
        junk = rng.choice(JUNK)
        text = text.replace(f'"@{number}@":', (junk if junk.startswith('"') else json.dumps(junk)) + ":")
        text = text.replace(f'"@{number}@"', junk)
    return text.encode()


def _each_value(message):
    """The bytes of the message with each of its values replaced by each kind of junk."""
    for path in _paths(message):
        if path:
            changed = copy.deepcopy(message)
            where = changed
            for key in path[:-1]:
                where = where[key]
            where[path[-1]] = "@@"
            text = json.dumps(changed)
            yield from (text.replace('"@@"', junk).encode() for junk in JUNK)


async def _asked(app, method, path, token, device="", body=b"", headers=None):
    headers = headers or [(b"authorization", f"Bearer {token}".encode()), (b"x-vmhost-device", device.encode())]
    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": headers, "root_path": ""}
    scope |= {"client": ("10.0.0.1", 1), "http_version": "1.1", "scheme": "http", "server": ("t", 1)}
    sent = []

    async def receive():
        return {"type": "http.request", "body": body}

    async def send(message):
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"], b"".join(each.get("body", b"") for each in sent[1:])


PAGES = (
    "devices",
    "devices/bad",
    "devices/good",
    "stuck",
    "fleet",
    "overview",
    "releases",
    "releases/1/devices",
    "history",
)


def _rows_of(platform, device):
    """Everything that the platform stores about a device."""
    tables = ("deploy_assignments", "deploy_health", "fleet_epochs", "fleet_versions", "fleet_crashes")
    with platform.database.reader() as connection:
        found = {
            table: connection.execute(f"SELECT * FROM {table} WHERE device = ?", (device,)).fetchall()
            for table in tables
        }
        query = "SELECT id, secret, facts, profile, epoch, reported, problem FROM deploy_devices WHERE id = ?"
        return found | {"deploy_devices": connection.execute(query, (device,)).fetchall()}


def test_each_message_of_devices_has_hostile_forms(platform):
    paths = {route.path for route in application(platform).routes if "/device/" in route.path}
    assert paths == {path for forms in FORMS.values() for path, _, _ in forms}


@SOME_OR_MORE
@pytest.mark.parametrize("name", sorted(FORMS))
def test_a_hostile_device_gets_answers_and_harms_no_other(platform, name, count):
    app, rng = application(platform, requests_per_s=1e6, burst=10**6), random.Random(f"46 {name}")
    before = _rows_of(platform, "good")
    admin = platform.access.add_token("admin", "test")
    joining = platform.access.add_token("fleet", "test")

    async def all_of_them():
        for path, secret, message in FORMS[name]:
            whole = {key: value for key, value in message.items() if key not in ("base", "gone")}
            for body in (*_each_value(whole), *(_hostile(message, rng) for _ in range(count))):
                status, text = await _asked(app, "POST", path, secret or joining, "bad", body)
                assert status in (200, 400, 409), (status, body[:300], text[:300])
        for page in PAGES:
            status, text = await _asked(app, "GET", f"/api/v1/{page}", admin)
            assert status == 200, (page, status, text[:300])
            strict_json.read(text)

    asyncio.run(all_of_them())
    assert _rows_of(platform, "good") == before


@SOME_OR_MORE
def test_hostile_bodies_of_people_get_answers(platform, count):
    app, rng = application(platform, requests_per_s=1e6, burst=10**6), random.Random("46 people")
    platform.access.add_account(f"root{count}", "admin", "test")
    admin = platform.access.add_token(f"root{count}", "test")
    before = _rows_of(platform, "good")

    async def all_of_them():
        for (method, path), (_, _, body, _) in openapi.ROUTES.items():
            if not body or path.startswith("/device/"):
                continue
            filled = path.format(release=1, name="nobody", cohort="c", event="none", device="none")
            kinds = {key: each.get("type", "string") for key, each in body.items()}
            valid = {key: VALUES[kind if isinstance(kind, str) else kind[0]] for key, kind in kinds.items()}
            for _ in range(count):
                data = _hostile(valid, rng)
                status, text = await _asked(app, method, f"/api/v1{filled}", admin, body=data)
                assert status in (200, 400, 404, 409), (method, path, status, data[:300], text[:300])
        for page in PAGES:
            assert (await _asked(app, "GET", f"/api/v1/{page}", admin))[0] == 200

    asyncio.run(all_of_them())
    assert _rows_of(platform, "good") == before


def _push(repository):
    """The body of a push of a branch and a tag, as git sends it, and the offsets of its parts."""
    blobs = {name: Blob.from_string(text) for name, text in ((b"main.py", b"def run(): pass\n"), (b"task.yaml", b"{"))}
    tree = Tree()
    for name, blob in blobs.items():
        tree.add(name, 0o100644, blob.id)
    commit = Commit()
    commit.tree, commit.message, commit.encoding = tree.id, b"one", b"UTF-8"
    commit.author = commit.committer = b"Ann <ann@shop.example>"
    commit.author_time = commit.commit_time = 0
    commit.author_timezone = commit.commit_timezone = 0
    commands = [b"0" * 40 + b" " + commit.id + b" refs/" + each for each in (b"heads/rank", b"tags/1.0.0")]
    commands[0] += b"\0 report-status side-band-64k"
    pack = io.BytesIO()
    write_pack_objects(pack.write, [commit, tree, *blobs.values()], object_format=DEFAULT_OBJECT_FORMAT)
    lines = b"".join(b"%04x" % (len(each) + 4) + each for each in commands)
    return lines + b"0000", pack.getvalue()


def _hostile_push(head, pack, rng):
    """The bytes of a push with something wrong in its commands, in its pack, or between them."""
    kind = rng.randrange(8)
    if kind == 0:
        return (head + pack)[: rng.randrange(len(head) + len(pack))]
    if kind == 1:
        return head + bytes(rng.randrange(256) for _ in range(rng.randrange(200)))
    if kind == 2:
        return rng.choice((b"", b"0000", b"0001", pack, head, head + head + pack, head + pack + pack))
    if kind == 3:  # another name of the same length
        names = (
            b"refs/heads/../x",
            b"refs/heads/ra\0k",
            b"refs/heads/\xff\xfe\xfd\xfc",
            b"refs/tagz/rank.",
            b"HEAD" * 4,
        )
        return head.replace(b"refs/heads/rank", rng.choice(names)[:15].ljust(15, b"~")) + pack
    if kind == 4:  # other objects, such as none, or a blob for a commit
        return re.sub(rb"[0-9a-f]{40} refs", rng.choice((b"0" * 40, b"f" * 40, b"z" * 40)) + b" refs", head) + pack
    data = bytearray(head if kind == 5 else pack)
    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    if kind == 6:  # damaged inside, and with the right sum
        data[-20:] = hashlib.sha1(data[:-20]).digest()
    return bytes(data) + pack if kind == 5 else head + bytes(data)


@SOME_OR_MORE
def test_hostile_pushes_get_answers_and_harm_no_other_repository(platform, count):
    app, rng = application(platform, requests_per_s=1e6, burst=10**6), random.Random("46 pushes")
    head, pack = _push("shop")
    given = base64.b64encode(f"ann:{platform.access.add_token('ann', 'test')}".encode())

    def refs(name):
        with contextlib.closing(platform.open_repository(name)) as repo:
            return repo.get_refs(), {(each, repo.object_store[each].type_name) for each in repo.object_store}

    async def push(repository, body, encoding=b""):
        return await _asked(
            app,
            "POST",
            f"/git/{repository}/git-receive-pack",
            None,
            body=body,
            headers=[
                (b"authorization", b"Basic " + given),
                (b"content-type", b"application/x-git-receive-pack-request"),
                (b"content-encoding", encoding),
            ],
        )

    async def all_of_them():
        assert b"refs/heads/rank" in (await push("others", head + pack))[1]
        before = refs("others")
        for number in range(count):
            body = _hostile_push(head, pack, rng)
            status, text = await push("shop", body, b"gzip" if number % 20 == 0 else b"")
            assert status in (200, 400, 413), (status, body[:300], text[:300])
        assert refs("others") == before and before[1]
        assert b"unpack ok" in (await push("shop", head + pack))[1]

    platform.add_repository("others", "test")
    asyncio.run(all_of_them())


CALLS = (
    ["POST", "/api/v1/device/check", {"authorization": f"Bearer {SECRET}"}, b'{"facts": {"python": "3.14"}}'],
    ["GET", "/metadata/timestamp.json", {"range": "bytes=0-9"}, b""],
    ["GET", f"/files/ab/{'ab' * 32}", {}, b""],
    ["GET", f"/exclusive/{'ab' * 32}?device=bad&until=1&ticket=x", {}, b""],
)
PARTS = (
    *(
        None,
        True,
        -1,
        1.5,
        "",
        b"",
        [],
        {},
        "x" * 70_000,
        "\ud800",
        "\0",
        "\xe4",
        "a\r\nb: c",
        {"a": 1},
        {1: "a"},
        {"a\n": "b"},
    ),
    *(
        {"range": each}
        for each in ("bytes=-5", "bytes=5-1", f"bytes={10**30}-", "bytes=0-0,2-3", "lines=1", "bytes=\u0661-")
    ),
    *({f"h{number}": "" for number in range(count)} for count in (50, 51)),
    *({"authorization": each} for each in ("", "Bearer", "Basic x", f"Bearer {SECRET}x", "Bearer vmh_a_b")),
    *({name: "good"} for name in ("x-vmhost-device", "X-VMHost-Device")),
    *(
        "/files/../keys/bundles",
        "/files/%2e%2e/x",
        "/metadata/../keys/bundles",
        "//",
        "/files/ab/%00",
        "/metadata/1.root.json?%",
    ),
    *(
        "/api/v1/releases",
        "/api/v1/device/",
        "/api/v1/device/../tokens",
        "/git/shop/info/refs",
        "DELETE",
        "get",
        b"\xff",
    ),
)


def test_hostile_calls_by_the_tunnel_get_answers_and_harm_no_other(platform):
    calls, rng = (
        TunnelCalls(application(platform, requests_per_s=1e6, burst=10**6), lambda: 1),
        random.Random("46 calls"),
    )
    before, answers = _rows_of(platform, "good"), []

    async def all_of_them():
        values = [*PARTS, *(call[:3] for call in CALLS), *([*call, b""] for call in CALLS)]
        values += [[*call[:at], part, *call[at + 1 :]] for call in CALLS for at in range(4) for part in PARTS]
        values += [
            [rng.choice(PARTS) if rng.random() < 0.4 else each for each in rng.choice(CALLS)] for _ in range(BODIES)
        ]
        for value in values:
            try:
                status, _, _ = await calls.answer(SimpleNamespace(device="bad", value=value))
            except ValueError:
                status = 0  # the tunnel answers with this error
            assert status < 500, (value, status)
            answers.append(status)

    asyncio.run(all_of_them())
    assert {0, 200, 206, 400, 401, 404} <= set(answers) and _rows_of(platform, "good") == before


@pytest.mark.parametrize("stored", ["NaN", "Infinity", '"\\ud800"', "1e400", "[" * 5000 + "]" * 5000, '{"a": [1]}'])
def test_a_bad_fact_is_shown_as_bad_and_disturbs_nobody(platform, stored):
    """Also one that was stored before facts were checked."""
    app, admin = application(platform), platform.access.add_token("admin", "test")
    with platform.database.transaction() as connection:
        facts = f'{{"os": "linux", "odd": {stored}}}'
        connection.execute("UPDATE deploy_devices SET facts = ? WHERE id = 'bad'", (facts,))

    async def shown():
        for page in PAGES:
            assert (await _asked(app, "GET", f"/api/v1/{page}", admin))[0] == 200, page
        found = strict_json.read((await _asked(app, "GET", "/api/v1/devices/bad", admin))[1])
        assert found["bad_facts"].keys() == {"odd"} if found["facts"] else stored.startswith("[[")

    asyncio.run(shown())


def test_facts_that_a_device_cannot_state_become_its_problem(tmp_path, platform):
    stated = facts(tmp_path, {"app": "2.1", "load": float("nan"), "deep": {"a": 1}})
    assert stated["app"] == "2.1" and "load" not in stated
    assert "load: expected a finite number, got nan; deep: expected a text" in stated["problem"]
    platform.check("bad", SECRET, {"facts": {"python": "3.14", "deep": {"a": [1]}}, "epoch": "1"})
    assert {"device": "bad", "reason": "bad facts: deep"}.items() <= platform.stuck()[0].items()
    assert stated_facts.divided({"n": 2**63, "l": ["x", ["y"]], "ok": None})[0] == {"ok": None}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("NaN", "no number in JSON"),
        ("1e400", "more than a double holds"),
        (str(2**63), "more than 64 bits"),
        ('"\\ud800"', "surrogate"),
        ('{"a": "\\udc00"}', "surrogate"),
        ('{"a": 1, "a": 2}', "'a' is there twice"),
        ("[" * 33 + "]" * 33, "more than 32 levels"),
        ("[" * 100000, "levels"),
    ],
)
def test_json_is_read_strictly(text, message):
    with pytest.raises(ValueError, match=message):
        strict_json.read(text.encode())


def test_json_that_is_right_is_read_and_written():
    value = {"a": [1, -(2**63), 1.5, None, True, "\U0001f600\\", {"b": "ü"}]}
    assert strict_json.read(strict_json.written(value)) == value
    assert strict_json.read(b'"\\ud83d\\ude00"') == "\U0001f600"
    assert strict_json.read(strict_json.written([float("nan"), "\ud800"])) == ["(nan)", "\\ud800"]
    assert strict_json.read(b"[" * 32 + b"]" * 32)
