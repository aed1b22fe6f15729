"""Audiences and hours that would reach others than they say are refused, with the place."""

import json
import sys

import pytest

from tests.deployment.platforms import add_version, platform_in
from vmhost import ConfigurationError
from vmhost.deployment.cloud.alerts import read_rules
from vmhost.deployment.cloud.audience import Audience, Facts
from vmhost.deployment.cloud.plan import Plan
from vmhost.deployment.device import settings
from vmhost.deployment.errors import RefusedError


def has(audience, **facts):
    return Facts("kitchen-1", facts, 1) in Audience(audience)


@pytest.mark.parametrize(
    "text", [">=2.1 <3", "!2.1", "^2.1", "~2.1", "=2.1", "> = 2", ">=", "2.1,", ",", "", "a b", "*"]
)
@pytest.mark.parametrize("key", ["app", "host", "python"])
def test_a_text_that_is_no_comparison_of_versions_is_refused(key, text):
    for given in (text, [">=1", text]):
        with pytest.raises(RefusedError, match=f"^release.yaml: audience.{key}: expected "):
            Plan.of({"audience": {key: given}})


def test_versions_are_compared_as_their_comparisons_say():
    assert has({"app": ">=2.1, <3"}, app="2.10") and not has({"app": ">=2.1,<3"}, app="4.7")
    assert has({"app": "!=2.1"}, app="2.2") and not has({"app": "!=2.1"}, app="2.1.0")
    assert has({"app": ["1.0", ">= 3.0-rc1"]}, app="3.0") and not has({"app": ["1.0", "> 3.0"]}, app="3.0-rc1")


@pytest.mark.parametrize("value", [2.1, 2, True, None, {"a": 1}, [2.1]])
def test_a_version_that_is_no_text_is_refused(value):
    with pytest.raises(RefusedError, match="audience: app: expected text, got .*; put it in quotes"):
        Audience({"app": value})


def test_numbers_may_be_numbers():
    assert has({"cores": 4}, cores=4) and has({"cores": ">=2", "memory": ">= 512 MiB"}, cores=4, memory=1 << 30)
    for wrong in (True, None, {}):
        with pytest.raises(RefusedError, match="cores: expected a comparison"):
            Audience({"cores": wrong})


@pytest.mark.parametrize("hours", ["06-06", "00-00", "24-24", "24-00"])
def test_hours_that_never_open_are_refused(hours):
    with pytest.raises(RefusedError, match=f"release.yaml: hours: {hours} never opens"):
        Plan.of({"hours": hours})
    assert Plan.of({"hours": "00-24"}).open_at(3600) and Plan.of({"hours": "22-06"}).open_at(3600)


def test_a_platform_opens_with_plans_that_were_accepted_before(tmp_path):
    plan = {"audience": {"app": "^2.1"}, "hours": "06-06", "steps": [{"percent": 100, "min_reports": 9}]}
    with platform_in(tmp_path / "cloud") as platform:
        add_version(platform, "shop/rank", "1")
        release = platform.releases.start("shop/rank", "1", Plan.of({}), "ann", "")
        with platform.database.transaction() as connection:
            connection.execute("UPDATE deploy_releases SET plan = ?", (json.dumps(plan),))
            connection.execute(
                "INSERT INTO deploy_files (task, name, kind, digest, size, audience, who, time_ms) "
                "VALUES ('shop/rank', 'a', 'shared', 'x', 1, ?, 'ann', 0)",
                (json.dumps({"app": 2.1}),),
            )
    with platform_in(tmp_path / "cloud") as platform:
        assert platform.releases.release(release.id).plan.plain == plan
        assert platform.task_files.list()[0]["audience"] == {"app": 2.1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("audience: {app: 2.10}", "release.yaml:1: audience.app: expected text, got 2.1; put it in quotes"),
        ("audience: {app: 2024-05-03}", "release.yaml:1: audience.app: .*put it in quotes"),
        ("steps: &a [{percent: 5}]\nx: *a", "release.yaml:2: aliases"),
        ("steps: " + "[" * 50, "release.yaml:1: nested too deeply"),
    ],
)
def test_a_plan_in_yaml_is_read_by_the_rules_of_task_yaml(text, message):
    with pytest.raises(RefusedError, match=message):
        Plan.read(text)


def test_alert_rules_are_read_by_the_rules_of_task_yaml():
    assert read_rules("") == (None, [])
    for text in ("rules: &a [1]\nwebhook: *a", "rules: " + "[" * 5000, "rules: !!python/name:os.system x"):
        with pytest.raises(RefusedError, match="^rules:"):
            read_rules(text)


AGENT = {"device": "kitchen-1", "platform": "http://localhost:1", "folder": "state", "keys": "keys"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("facts: {app: 2.10}", "facts.app: expected text, got 2.1; put it in quotes"),
        ("facts: {built: 2024-05-03}", "facts.built: expected text, numbers or lists"),
        ("facts: {load: .nan}", "facts.load: expected text, numbers or lists"),
        ("facts: {2: x}", "facts.2: expected a name in quotes"),
        ("facts: [x]", "facts: expected a mapping of names to facts"),
        ("token: 5", "token: expected a text in quotes, of visible ASCII characters, got 5"),
        ('token: "a\\0b"', "token: expected a text in quotes"),
        ("token: €", "token: expected a text in quotes"),
        ("token_file: [x]", "token_file: expected the path of a file"),
        ("token_file: nowhere", "token_file: .*/nowhere: the token cannot be read: No such file"),
        ("root: 2024-05-03", "root: expected the path of a file"),
        ("certificates: {a: b}", "certificates: expected the path of a file"),
        ("permissions: {read: [x]}", "permissions.read.0: expected an absolute path"),
        ("limits: {memory: 1 KiB}", "limits.memory: expected 4 MiB to 256 TiB, got '1 KiB'"),
        ("poll: 2000000000", "poll: expected a time above 0 and below 1e9 s"),
        ("debugging: ask", "debugging: comes by the tunnel"),
    ],
)
def test_agent_yaml_with_wrong_types_is_refused_with_the_place(tmp_path, text, message):
    path = tmp_path / "agent.yaml"
    path.write_text("".join(f"{key}: {value}\n" for key, value in AGENT.items()) + text + "\n")
    with pytest.raises(ConfigurationError, match=f"agent.yaml:5: {message}"):
        settings.read(path)


@pytest.mark.parametrize(
    "held", [b"", b"\n", b"secret one", b"secret\none", b"secret\xff", b"secret\0", b"s" * (1 << 17)]
)
def test_a_token_file_without_one_token_is_told_and_not_shown(tmp_path, held):
    path = tmp_path / "agent.yaml"
    path.write_text(json.dumps(AGENT | {"token_file": "token"}))
    (tmp_path / "token").write_bytes(b" secret+/=\r\n")
    assert settings.read(path).token == "secret+/="
    (tmp_path / "token").write_bytes(held)
    with pytest.raises(ConfigurationError, match="token_file: .*/token: expected one token, ") as failed:
        settings.read(path)
    assert "secret" not in str(failed.value) and "ss" not in str(failed.value)


@pytest.mark.parametrize(
    ("address", "is_one"),
    [
        *((f"https://{rest}", True) for rest in ("p.example/", "p.example:443/a/b", "[::1]:8470", "bücher.example")),
        *(
            (f"http://{rest}", False)
            for rest in ("", "/a", ":80", "p:x", "a\0", "p/\0", "u@p", "[::1", "p/ a", "p/é", "p/?a", "p?a", "p/#a")
        ),
    ],
)
def test_an_address_that_no_request_can_go_to_is_refused_at_once(tmp_path, address, is_one):
    path = tmp_path / "agent.yaml"
    path.write_text(json.dumps(AGENT | {"platform": address}))
    if is_one:
        assert settings.read(path).platform == address.rstrip("/")
    else:
        with pytest.raises(ConfigurationError, match="platform: expected an address such as https://platform.example"):
            settings.read(path)


def test_agent_yaml_names_all_that_is_wrong_also_in_json_and_where_no_yaml_is_read(tmp_path, monkeypatch):
    path = tmp_path / "agent.yaml"
    path.write_text("device: a b\nkeys: k\npoll: soon\nplatform: ftp://x\ncolour: red\nfolder: f\n")
    wrong = [
        "1: device: expected a name of letters, digits and _.:-, at most 128 characters, got 'a b'",
        "3: poll: expected a time such as 500 ms, got 'soon'",
        "4: platform: expected an address such as https://platform.example, got 'ftp://x'",
        "5: colour: unknown key; ",
    ]
    with pytest.raises(ConfigurationError) as failed:
        settings.read(path)
    for line, text in zip(str(failed.value).splitlines(), wrong, strict=True):
        assert line.startswith(f"{path}:{text}")
    path.write_text(json.dumps(AGENT | {"disk": "1 KiB", "poll": 0, "facts": {"a": "😀"}, "root": ""}, indent="\t"))
    monkeypatch.setitem(sys.modules, "yaml", None)
    monkeypatch.setitem(sys.modules, "difflib", None)
    with pytest.raises(ConfigurationError) as failed:
        settings.read(path)
    assert str(failed.value).splitlines() == [
        f"{path}: poll: expected a quantity above zero such as 500 ms, got 0",
        f"{path}: root: expected the path of a file, got ''",
    ]
    twice = json.dumps(AGENT | {"facts": {"a": 1}})[:-2] + ',\n\t"a": 2}}'
    path.write_text(twice)
    with pytest.raises(ConfigurationError, match="agent.yaml: a: written twice; remove one"):
        settings.read(path)
    path.write_text("device: a\n")
    with pytest.raises(ConfigurationError, match="YAML cannot be read here: .*; write it as JSON, or make the image"):
        settings.read(path)
    monkeypatch.undo()
    path.write_text(twice)  # YAML knows no tabs
    with pytest.raises(ConfigurationError, match="agent.yaml:2: facts.a: written twice .first in line 1.; remove one"):
        settings.read(path)
