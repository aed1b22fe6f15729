"""The table of host.yaml: what is generated from it, and that its schema, its reader and policies accept the same."""

import dataclasses
import json
import re

import jsonschema
import pytest

import vmhost
from tests.strict_schema import validator
from vmhost.bytecode import either, kinds
from vmhost.bytecode.reading import read
from vmhost.cli import main
from vmhost.deployment.cloud.written import Share
from vmhost.limits import RecordPolicy
from vmhost.pipeline import configuration
from vmhost.pipeline.reach import settings as reach_settings
from vmhost.settings import pages
from vmhost.settings.files import Problems
from vmhost.settings.host import HOST, read_host_yaml


@pytest.mark.parametrize("name", pages.TABLES)
def test_the_shipped_schema_and_page_are_the_table_s(name):
    written, table = "run `python -m vmhost.settings.pages`", pages.TABLES[name]
    if table.schema is not None:
        assert table.schema.read_text(encoding="utf-8") == pages.schema_text(name), written
    assert table.page.read_text(encoding="utf-8") == pages.page_text(name), written
    jsonschema.Draft202012Validator.check_schema(json.loads(pages.schema_text(name)))


NEEDED = {
    "tables": {"dim": 4}, "filter": {"filter_freq": 1}, "storage": {"folder": "f", "memory": 1, "quota": 1},
    "record": {"folder": "f"}, "tunnel": {"address": "a:1", "to": "a:1", "keys": "k"}, "cap": {"count": 1, "per": 1},
    "quiet": {"from": "22:00", "to": "08:00"},
    "slow": {"over": "1 s"}, "control": {"percent": 1},
    "rules": {"name": "a"}, "errors": {"over": 0, "within": "1 s"}, "crashes": {"over": 0, "within": "1 s"},
    "adoption": {"under": 0, "after": "1 s"}, "trigger": {"on": ["a"]}, "table": {"columns": {"a": "text"}},
}  # fmt: skip
NEEDED_OF_ALL = {
    "task.yaml": {"name": "a", "version": "1.0.0", "entry": "main:run", "python": "3.14"}, "host.yaml": {},
    "agent.yaml": {"device": "a", "platform": "http://a", "folder": "f", "keys": "k"},
    "pipeline.yaml": {"folder": "f", "bundles": []}, "release.yaml": {}, "alerts": {},
    "features.yaml": {"features": {}},
}  # fmt: skip


def leaves(section, around=lambda value: value, key=""):
    """(key, Setting, function that makes a file's values of its value) of each setting without settings below."""
    for each in section.settings.values():
        needed = {
            name: needed for name, needed in NEEDED.get(key.rpartition(".")[2], {}).items() if name in section.settings
        }

        def made(value, name=each.key, needed=needed, around=around):
            return around(needed | {name: value})

        inner, place = each.kind, f"{key}.{each.key}".strip(".")
        if isinstance(inner, either.Either):
            inner = inner.of({})
        if isinstance(inner, kinds.Named):
            inner, named = inner.item, made

            def made(value, named=named):
                return named({"some": value})

        if isinstance(inner, kinds.Items) and isinstance(inner.item, kinds.Section):
            inner, listed = inner.item, made

            def made(value, listed=listed):
                return listed([value])

        if isinstance(inner, kinds.Section):
            yield from leaves(inner, made, place)
        else:
            yield place, each, made


LEAVES = {
    f"{name}: {key}": (name, setting, made)
    for name, table in pages.TABLES.items()
    if table.schema is not None
    for key, setting, made in leaves(table.section, lambda values, needed=NEEDED_OF_ALL[name]: needed | values)
}
ENDLESS = [10**9, 2**63 - 1, 2**63]
VALUES = [
    *ENDLESS,
    None, True, False, 0, 1, 2, -1, -101, 0.5, 1.5, 95, 1024, 1025, 65537, 100_000_001, "", " ", "x",
    "a\0b", "\ud800", "5 s", "500 us", "5 S", "1 d", "64 MiB", "64mib", "5 parsecs", "0 s", "measured", "math:sqrt",
    "never", "ask", [], {}, ["read"], ["read", "read"], ["logs"], ["error", "x"], ["/a"], ["a"], [""], ["ValueError"],
    ["*"], ["example.org:443"], ["items:read"], [1], {"a": 1},
]  # fmt: skip


def accepted(section, values, tmp_path):
    problems = Problems(tmp_path / "settings.yaml", {})
    read(section, values, problems)
    return not problems._found


@pytest.mark.parametrize("key", LEAVES)
def test_the_schema_accepts_what_the_reader_accepts(key, tmp_path, monkeypatch):
    for name in ("existing", "read_token"):  # what is on a disk, a schema cannot say
        monkeypatch.setattr(configuration, name, lambda path, *_: path)
    monkeypatch.setattr(reach_settings, "ZoneInfo", str)
    name, setting, made = LEAVES[key]
    section, schema = pages.TABLES[name].section, validator(pages.TABLES[name].schema)
    for value in VALUES:
        # how much a text with a unit is, a schema cannot say
        has_unit = (
            isinstance(setting.kind, kinds.Time | kinds.Size | Share)
            and isinstance(value, str)
            and re.search(r"\d", value)
        )
        has_unit = has_unit or setting.key == "window" and isinstance(value, str)
        if not has_unit and not (setting.key == "mask_patterns" and value == ["*"]):  # no regular expression
            values = made(value)
            assert accepted(section, values, tmp_path) == schema.is_valid(values), value


POLICIES = (vmhost.Limits, vmhost.BreakerPolicy, RecordPolicy, vmhost.DebugPolicy, vmhost.TaskPolicy, vmhost.Policy)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_file_and_a_program_have_the_same_range(policy, tmp_path):
    sections = {name: kinds.settings_of(policy, name) for name in ("", "vms")}
    for each in [each for found in sections.values() for each in found]:
        for value in VALUES:
            if (
                value is None
                or value == ["*"]
                or isinstance(value, str | dict)
                or isinstance(each.kind, kinds.Path | kinds.Section)
            ):
                continue
            needed = {"folder": "f"} if policy is RecordPolicy else {}
            try:
                policy(**needed | {each.path[0]: value})
                is_right = True
            except vmhost.ConfigurationError:
                is_right = False
            problems = Problems(tmp_path / "host.yaml", {})
            read(each.kind, value, problems)
            # from 1e9 s on, a time is "without end" in a file
            if not (isinstance(each.kind, kinds.Time) and value in ENDLESS):
                assert is_right == (not problems._found), (each.key, value)


def test_defaults_are_those_of_the_policies():
    assert read_default("vms.idle_time") == "1 min" and read_default("record.max_bytes") == "256 MiB"
    assert read_default("tasks.weight") == "1" and read_default("allow_unsigned") == "false"
    assert read_default("grace_time") == "250 ms" and read_default("limits.memory") == "none"


def read_default(key):
    return pages.default_text(LEAVES[f"host.yaml: {key}"][1])


def test_all_problems_come_with_their_lines(tmp_path):
    path = tmp_path / "host.yaml"
    path.write_text(
        "vms:\n  max: 0\n  idle_time: 0 s\nqueue: 100000001\nallow: [read, read, 7]\n"
        "functions:\n  f: nowhere.at.all:f\n"
        "record: {share: 2}\ntasks:\n  a:\n    weight: -1\n    breaker: {failures: [lost], windo: 3 s}\n"
        "limits: {memory: 1.5}\n"
    )
    with pytest.raises(vmhost.ConfigurationError) as caught:
        read_host_yaml(path)
    assert str(caught.value).replace(str(path), "F").splitlines() == [
        "F:2: vms.max: expected a whole number from 1 to 4096, got 0",
        "F:3: vms.idle_time: expected a quantity above zero such as 500 ms, got '0 s'",
        "F:4: queue: expected a whole number from 1 to 100000000, got 100000001",
        "F:5: allow.2: expected one of read, write, net, listen, env, host, tables, got 7",
        "F:5: allow: expected a list with any of read, write, net, listen, env, host, tables, each once, got"
        " ['read', 'read', 7]",
        "F:7: functions.f: nowhere.at.all:f cannot be imported: No module named 'nowhere'; if it is yours, put the"
        " folder that has it on PYTHONPATH",
        "F:8: record.share: expected a number above 0, up to 1, got 2",
        "F:8: record: folder is missing; expected the path of a folder",
        "F:11: tasks.a.weight: expected a number above 0, got -1",
        "F:12: tasks.a.breaker.failures.0: expected one of error, load, value, time, cpu, memory, got 'lost'",
        "F:12: tasks.a.breaker.windo: unknown key; did you mean 'window'?",
        "F:13: limits.memory: expected 4 MiB to 256 TiB, got 1.5",
    ]


def test_an_origin_has_the_value_there(tmp_path):
    path = tmp_path / "host.yaml"
    path.write_text(
        "state: state\nvms:\n  idle_time: 5 s\nlimits:\n  memory: 64 MiB\nbreaker:\n  slow: 20 ms\nrecord:"
        " {folder: f}\ndebugging: ask\ntasks:\n  a:\n    record: {enabled: false}\n    breaker: {probes: 3}\n"
    )
    policy = read_host_yaml(path).policy
    for name, line, value in (
        ("idle_s", 3, 5.0),
        ("limits", 4, {"memory": "64 MiB"}),
        ("task.breaker.slow_s", 7, 0.02),
        ("task.record", 8, RecordPolicy(str(tmp_path / "f"))),
        ("debugging.consent", 9, "ask"),
        ("tasks.a.record", 12, None),
        ("tasks.a.breaker.probes", 13, 3),
    ):
        assert policy.origins[name] == (f"{path}:{line}", value)
    assert policy.origins["limits.memory_bytes"][0] == f"{path}:5" and "state" not in policy.origins


def test_help_has_the_words_of_each_setting(capsys):
    for policy in POLICIES:
        for each in dataclasses.fields(policy):
            assert each.metadata["words"] and f"`{each.name}`: {each.metadata['words']}" in policy.__doc__
    assert main(["serve", "--help"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    for key, setting in HOST.settings.items():
        assert f"{key} {setting.words}" in output
