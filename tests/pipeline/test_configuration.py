"""pipeline.yaml: every setting reaches the pipeline, and mistakes are named with file, line and key."""

import math

import pytest

from tests.batches import each
from tests.pipeline.stream_tasks import ROWS, WAIT_S, clicks, stream_task
from vmhost import ConfigurationError, Policy
from vmhost.pipeline import Pipeline
from vmhost.pipeline.configuration import SourceSettings, read_pipeline_yaml

FULL = """\
folder: data
bundles: [build/ipv.vmb]
trust: keys
allow_unsigned: true
host: {vms: {max: 3}, functions: {root: "math:sqrt"}}
sources:
  log: {file: events.jsonl, bad_lines: aside, when_full: drop}
  pipe: {file: "-"}
  web:
    http: 127.0.0.1:8400
    token_file: token
    origins: ["http://localhost:3000"]
    max_body: 2 MiB
durability: each
batch_time: 200 ms
retention: {age: 30 d, count: 1000000, size: 512 MiB}
intake:
  lateness: 0 s
  visit_timeout: 10 min
  idle_time: 5
  ahead: 1 h
  ids_time: 2 h
  enter_closes: covered
limits: {open_visits: 50, known_ids: 60, late_events: 70}
keep_visits: true
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "ipv.vmb").write_bytes(b"")
    (tmp_path / "keys").mkdir()
    (tmp_path / "events.jsonl").write_text("")
    (tmp_path / "token").write_text("0123456789abcdef\n")
    return tmp_path


def write(folder, text):
    path = folder / "pipeline.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_everything_it_says_arrives(folder):
    found = read_pipeline_yaml(write(folder, FULL))
    assert (found.folder, found.bundles) == (folder / "data", (folder / "build/ipv.vmb",))
    assert found.keep_visits
    assert found.sources == (
        SourceSettings("log", file=str(folder / "events.jsonl"), bad_lines="aside", when_full="drop"),
        SourceSettings("pipe", file="-"),
        SourceSettings(
            "web",
            http="127.0.0.1:8400",
            token="0123456789abcdef",
            origins=("http://localhost:3000",),
            max_body_bytes=2 << 20,
        ),
    )
    host = found.options.pop("host")
    assert (host["policy"].max_vms, host["functions"], host["state"]) == (3, {"root": math.sqrt}, None)
    assert found.options == {
        "trust": folder / "keys",
        "allow_unsigned": True,
        "durability": "each",
        "batch_ms": 200,
        "max_age_ms": 30 * 86_400_000,
        "max_count": 1_000_000,
        "max_bytes": 512 << 20,
        "lateness_ms": 0,
        "visit_timeout_ms": 600_000,
        "intake": {
            "idle_ms": 5000,
            "ahead_ms": 3_600_000,
            "ids_ms": 7_200_000,
            "enter_closes": "covered",
            "max_visits": 50,
            "max_ids": 60,
            "max_late": 70,
        },
    }


def test_a_short_file_leaves_all_else_as_it_is(folder):
    found = read_pipeline_yaml(write(folder, "folder: data\nbundles: []\n"))
    assert (found.options, found.sources, found.keep_visits) == ({"intake": {}}, (), False)


def test_the_host_may_have_a_file_of_its_own(folder):
    (folder / "host.yaml").write_text("trust: keys\nvms: {max: 7}\n")
    found = read_pipeline_yaml(write(folder, "folder: data\nbundles: []\nhost: host.yaml\n"))
    assert found.options["host"]["policy"] == Policy(max_vms=7)
    assert found.options["trust"] == folder / "keys"
    (folder / "host.yaml").write_text("vms: {mx: 7}\n")
    with pytest.raises(ConfigurationError, match=r"host\.yaml:1: vms\.mx: unknown key; did you mean 'max'\?"):
        read_pipeline_yaml(folder / "pipeline.yaml")


BEGIN = "folder: data\nbundles: []\n"


@each(
    ("text", "expected"),
    [
        ("a: [", "pipeline.yaml:1: not YAML"),
        ("a: !!bool x", "pipeline.yaml:1: not YAML: the text is not of the type that its tag (!!) says"),
        ("a: !!int ''", "pipeline.yaml:1: not YAML: the text is not of the type that its tag (!!) says"),
        (
            "bundles: []\n",
            "pipeline.yaml:1: the file: folder is missing; expected the path of the folder for the store",
        ),
        (BEGIN + "bundels: [x]\n", "pipeline.yaml:3: bundels: unknown key; did you mean 'bundles'?"),
        (
            "folder: d\nbundles: [build/ipw.vmb]\n",
            "pipeline.yaml:2: bundles.0: {}/build/ipw.vmb: no such file; did you",
        ),
        (BEGIN + "durability: both\n", "pipeline.yaml:3: durability: expected batch or each, got 'both'"),
        (
            BEGIN + "retention:\n  age: 3 weeks\n",
            "pipeline.yaml:4: retention.age: expected a time such as 500 ms, 30 min",
        ),
        (BEGIN + "retention: {age: 0 s}\n", "pipeline.yaml:3: retention.age: expected a time above zero"),
        (BEGIN + "retention: {count: 0}\n", "retention.count: expected a whole number from 1 to 1000000000000, got 0"),
        (BEGIN + "intake: {lateness: .inf}\n", "pipeline.yaml:3: intake.lateness: expected a time such as 30 min"),
        (BEGIN + "intake: {enter_close: key}\n", "intake.enter_close: unknown key; did you mean 'enter_closes'?"),
        (BEGIN + "host:\n  vms: {mx: 3}\n", "pipeline.yaml:4: host.vms.mx: unknown key; did you mean 'max'?"),
        (BEGIN + "host: {load: [a.vmb]}\n", "pipeline.yaml:3: host: load: a pipeline loads stream tasks only"),
        (BEGIN + "host: hostt.yaml\n", "pipeline.yaml:3: host: {}/hostt.yaml: no such file"),
        (BEGIN + "sources:\n  a: {}\n", "pipeline.yaml:4: sources.a: expected one of file and http"),
        (BEGIN + "sources: {a: {htp: x}}\n", "sources.a.htp: unknown key; did you mean 'http'?"),
        (
            BEGIN + "sources: {a: {http: 0.0.0.0:80}}\n",
            "sources.a.http: expected an address of this machine's loopback",
        ),
        (BEGIN + "sources: {a: {http: 127.0.0.1:99999}}\n", "sources.a.http: expected an address of this"),
        (BEGIN + "sources: {a: {file: '-', max_body: 1 MiB}}\n", "sources.a.max_body: belongs to sources with http"),
        (BEGIN + "sources: {a: {file: '-'}, b: {file: '-'}}\n", "sources.b.file: stdin is read by a already"),
        (
            BEGIN + "sources: {a b: {file: '-'}}\n",
            "sources.a b: expected a name of letters, digits, - and _, got 'a b'",
        ),
        (
            BEGIN + "sources: {a: {http: '127.0.0.1:0', token_file: events.jsonl}}\n",
            "sources.a.token_file: {}/events.jsonl: expected one token, 16 to 4096 visible ASCII characters",
        ),
    ],
)
def test_what_is_wrong_is_named_with_file_line_and_key(folder, text, expected):
    with pytest.raises(ConfigurationError) as failed:
        read_pipeline_yaml(write(folder, text))
    assert expected.format(folder) in str(failed.value)


def test_all_that_is_wrong_is_named_at_once(folder):
    text = "folder: 3\nbundles: [x.vmb]\nretention: {cnt: 3}\n"
    with pytest.raises(ConfigurationError) as failed:
        read_pipeline_yaml(write(folder, text))
    assert len(str(failed.value).splitlines()) == 3


def test_a_pipeline_is_made_of_it(tmp_path):
    (tmp_path / "clicks.vmb").write_bytes(stream_task(tmp_path, ROWS))
    path = write(tmp_path, "folder: data\nbundles: [clicks.vmb]\nallow_unsigned: true\ndurability: each\n")
    with Pipeline.from_file(path) as pipeline:
        assert pipeline.durability == "each"
        pipeline.append_many(clicks("a"))
        assert pipeline.wait(WAIT_S)
        assert [row["visit"] for row in pipeline.table("clicks").read()] == ["a"]
    assert (tmp_path / "data" / "pipeline.sqlite").exists()
