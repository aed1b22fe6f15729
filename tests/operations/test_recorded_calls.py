"""Recording of calls: what a baseline holds, what a replay gets from it, what is hidden, and truncated files."""

import asyncio
import dataclasses
import datetime
import decimal
import os
import signal
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path

import msgpack
import numpy
import pytest

import vmhost
from tests.hosts import ROOT, stopped_by_its_deadline, until
from tests.operations.recordings import SOURCE, baseline_in, host, recorded, replayed, task_bundle
from vmhost.baseline import Baseline, BaselineError, Foreign, pack_value, unpack_value
from vmhost.errors import Kind
from vmhost.guest import kinds


def test_a_replay_answers_clocks_randomness_and_host_functions_from_the_record(tmp_path):
    baseline = recorded(tmp_path, [1, "fail", {"a": (1, 2)}, 4])
    calls = list(baseline)
    assert [call.outcome for call in calls] == ["OK", "TASK_ERROR", "OK", "OK"]
    assert baseline.header.task == "task" and baseline.header.version == "1.0.0"
    again = replayed(baseline, SOURCE)
    for before, now in zip(calls, again, strict=True):
        assert now.result == before.result
        assert now.error == before.error
        assert not now.observed["beyond"], "the record was not asked for more than it has"
    assert calls[0].result["clocks"] != calls[3].result["clocks"], "clocks went on while it was recorded"
    assert calls[0].result["price"] == ["is", 1]


def test_without_a_recording_clocks_and_generators_are_real(tmp_path):
    with host() as running:
        task = running.load(task_bundle())
        running.record(task, vmhost.RecordPolicy(tmp_path, share=1.0))
        first = task(1)
        running.record(task, None)
        second = task(1)
    assert first["ids"] != second["ids"] and first["random"] != second["random"]
    assert second["clocks"][0] > first["clocks"][0]
    assert len(baseline_in(tmp_path)) == 1


def test_every_way_of_calling_is_recorded_and_none_when_it_is_off(tmp_path):
    source = "def run(value):\n    return value\ndef other(value):\n    return [value]\n"
    with host() as running:
        task = running.load(task_bundle(source, permissions={}))
        task(0)
        running.record("task", vmhost.RecordPolicy(tmp_path, share=1.0))
        assert task(1) == 1
        assert task.submit(2).result() == 2
        assert asyncio.run(task.run(3)) == 3
        assert list(task.map([4, 5, 6])) == [4, 5, 6]
        assert task(7, entry="main:other") == [7]
        running.record(task, None)
        task(8)
    calls = list(baseline_in(tmp_path))
    assert sorted(call.value for call in calls) == [1, 2, 3, 4, 5, 6, 7]
    assert {call.value: call.entry for call in calls}[7] == "main:other"


def test_a_share_of_the_calls_is_recorded(tmp_path):
    with host() as running:
        task = running.load(task_bundle("def run(value):\n    return value\n", permissions={}))
        running.record(task, vmhost.RecordPolicy(tmp_path, share=0.2))
        for value in range(1000):
            task(value)
        list(task.map(range(1000)))
        recorder = task._current.recorder
    count = len(baseline_in(tmp_path)) + recorder.left_out  # calls that came faster than they could be written
    assert 300 < count < 500, "2,000 calls, a fifth of them, and six standard deviations (18 each)"


def test_what_used_files_sockets_or_databases_is_marked(tmp_path):
    data = tmp_path / "data.txt"
    data.write_text("x")
    source = f"""
        import socket, sqlite3
        def run(value):
            if value == "file":
                return open({str(data)!r}).read()
            if value == "socket":
                try:
                    socket.create_connection(("127.0.0.1", 9), timeout=0.01)
                except OSError:
                    return "no"
            if value == "database":
                return sqlite3.connect(":memory:").execute("select 1").fetchone()
            return value
    """
    permissions = {"read": [str(data)], "net": ["127.0.0.1:9"]}
    baseline = recorded(tmp_path / "made", ["none", "file", "none", "socket", "none"], source, permissions=permissions)
    assert [call.unfit for call in baseline] == [None, "it used files", None, "it used sockets", "it used sockets"]
    (tmp_path / "made").rename(tmp_path / "first")
    baseline = recorded(tmp_path / "made", ["none", "database", "none"], source, permissions=permissions)
    assert [call.unfit for call in baseline] == [None, "it used sqlite", "it used sqlite"]


def test_hidden_fields_and_patterns_are_nowhere_in_the_file(tmp_path):
    source = """
        from vmhost.guest import host
        def run(value):
            if value.get("fail"):
                raise ValueError(f"no such user: {value['user']['email']}")
            return {"greeting": f"Dear {value['user']['email']}", "card": value["text"], "asked": host.price(value)}
    """
    secret = {
        "user": {"email": "ann@example.org", "age": 41, "Phone": "+49 30 901820"},
        "text": "paid with 4111 1111 1111 1111, order 4111 1111 1111 1112",
        "blob": b"kept",
    }
    baseline = recorded(
        tmp_path,
        [secret, {**secret, "fail": 1}],
        source,
        mask_fields=("email", "user.age", "ph*"),
        mask_patterns=("card",),
    )
    content = Path(baseline.path).read_bytes()
    for hidden in (b"ann@", b"901820", b"4111 1111 1111 1111"):
        assert hidden not in content
    assert b"4111 1111 1111 1112" in content, "a number without the check digit of a card is none"
    call, failed = baseline
    assert call.value["user"]["age"] == 0 and call.value["blob"] == b"kept" and call.hidden == 3
    assert call.result["greeting"] == f"Dear {call.value['user']['email']}", "a text has one pseudonym"
    assert call.value["user"]["email"] in failed.error["message"]
    assert baseline.header.masked == ("email", "user.age", "ph*", "card")
    assert replayed(baseline, source)[0].result == call.result


def test_calls_beyond_the_bounds_are_left_out(tmp_path):
    with host() as running:
        task = running.load(task_bundle("def run(value):\n    return value\n", permissions={}))
        running.record(task, vmhost.RecordPolicy(tmp_path, share=1.0, max_calls=3, max_value_bytes=1000))
        assert task("x" * 2000) == "x" * 2000
        for value in range(10):
            assert task(value) == value
    assert [call.value for call in baseline_in(tmp_path)] == [0, 1, 2]


def test_a_version_that_replaces_another_gets_a_file_of_its_own(tmp_path):
    record = vmhost.RecordPolicy(tmp_path, share=1.0)
    with host(policy=vmhost.Policy(task=vmhost.TaskPolicy(record=record))) as running:
        task = running.load(task_bundle("def run(value):\n    return 1\n", permissions={}))
        task(0)
        running.load(task_bundle("def run(value):\n    return 2\n", "2.0.0", permissions={}))
        task(0)
    made = {baseline.header.version: baseline for baseline in map(Baseline.read, tmp_path.glob("*.baseline"))}
    assert {version: [call.result for call in baseline] for version, baseline in made.items()} == {
        "1.0.0": [1],
        "2.0.0": [2],
    }


def test_stopped_calls_are_recorded_with_their_error(tmp_path):
    source = "def run(value):\n    while True:\n        pass\n"
    with host() as running:
        task = running.load(task_bundle(source, permissions={}))
        running.record(task, vmhost.RecordPolicy(tmp_path, share=1.0))
        stopped_by_its_deadline(task, 1, "run", lambda error: "main.py" in (error.guest_traceback or ""))
    *_, call = baseline_in(tmp_path)
    assert call.outcome == Kind.TIME_LIMIT.name and call.error["type_name"] == "TimeLimitError"


@pytest.mark.parametrize(
    "made_up",
    ["None", "5", "{}", "{'answers': 5}", "{'answers': {}, 'functions': [5], 'random': None, 'used': []}", "1 / 0"],
)
def test_what_a_task_makes_up_about_itself_is_left_out(tmp_path, made_up):
    source = f"""
        import sys
        from vmhost.guest import recording
        def run(value):
            recording._Recorder.record = lambda self, used: {made_up}
            return value
    """
    baseline = recorded(tmp_path, [1, 2], source, permissions={})
    calls = list(baseline)
    assert [call.result for call in calls] == [1, 2]
    assert all(call.unfit == "its VM could not report what it did" for call in calls)


def test_host_yaml_switches_it_on(tmp_path):
    (tmp_path / "host.yaml").write_text(
        "allow_unsigned: true\n"
        "record: {folder: all, share: 0.5, mask_fields: [email]}\n"
        "tasks:\n  task: {record: {folder: own, share: 1, max_value: 4 KiB}}\n  quiet: {record: {enabled: false}}\n"
    )
    with vmhost.Host.from_file(tmp_path / "host.yaml") as running:
        assert running.policy.task.record == vmhost.RecordPolicy(
            str(tmp_path / "all"), share=0.5, mask_fields=("email",)
        )
        assert running.policy.for_task("quiet").record is None
        running.load(task_bundle("def run(value):\n    return value\n", permissions={}))(1)
    assert len(baseline_in(tmp_path / "own")) == 1


@pytest.mark.parametrize(
    "text, message",
    [
        ("record: {share: 0.5}", "folder"),
        ("record: {folder: a, share: 2}", "share"),
        ("record: {folder: a, mask_patterns: ['(']}", "neither one of email"),
        ("record: {folder: a, color: red}", "color"),
    ],
)
def test_wrong_settings_are_told(tmp_path, text, message):
    (tmp_path / "host.yaml").write_text(text)
    with pytest.raises(vmhost.ConfigurationError, match=message) as caught:
        vmhost.Host.from_file(tmp_path / "host.yaml")
    assert "host.yaml" in str(caught.value)


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with host() as running:
        task = running.load(task_bundle("def run(value):\n    return value\n", permissions={}))
        with pytest.raises(vmhost.ConfigurationError, match="cannot be used"):
            running.record(task, vmhost.RecordPolicy(tmp_path / "file" / "below"))
        assert task(1) == 1


@dataclasses.dataclass
class Order:
    number: int
    email: str


def test_own_classes_pass_through_a_baseline_and_a_replay(tmp_path):
    source = """
        import dataclasses
        @dataclasses.dataclass
        class Order:
            number: int
            email: str
        def run(order):
            return Order(order.number + 1, order.email)
    """
    baseline = recorded(
        tmp_path,
        [Order(1, "ann@example.org")],
        source,
        types={"main:Order": Order},
        permissions={},
        mask_fields=["email"],
    )
    (call,) = baseline
    assert type(call.value) is Foreign and call.value.detail == "main:Order"
    assert b"ann@" not in Path(baseline.path).read_bytes()
    (now,) = replayed(baseline, source, permissions={})
    assert now.result == call.result


# -- files -----------------------------------------------------------------------------------------------------------

VALUES = [
    None,
    True,
    1 << 90,
    -5,
    1.5,
    2j,
    "ü\ud800",
    b"x",
    [1, (2, {3}, frozenset((4,)))],
    {1: 2, (1, "a"): {"b": []}},
]


def test_values_come_back_as_they_were():
    values = [
        *VALUES,
        datetime.datetime(2026, 1, 2, 3),
        decimal.Decimal("1.20"),
        uuid.UUID(int=5),
        Foreign(99, "a:B", {}),
    ]
    for value in values[:-1]:
        assert unpack_value(pack_value(value, kinds.pack)) == value
        assert type(unpack_value(pack_value(value, kinds.pack))) is type(value)
    array = numpy.arange(6, dtype="float32").reshape(2, 3)
    back = unpack_value(pack_value(array))
    assert back.shape == (2, 3) and (numpy.asarray(back) == array).all()
    with pytest.raises(TypeError, match="cannot be recorded"):
        pack_value(object())


def test_a_damaged_baseline_is_one_clear_error(tmp_path):
    baseline = recorded(tmp_path, list(range(20)), "def run(value):\n    return value\n", permissions={})
    content = bytearray(Path(baseline.path).read_bytes())
    path = tmp_path / "damaged"
    for at in range(7, len(content), 29):  # one byte of each part that a file has
        damaged = bytearray(content)
        damaged[at] ^= 0x55
        path.write_bytes(damaged)
        try:
            read = Baseline.read(path)
        except BaselineError as error:
            assert "damaged at byte" in str(error) or "not what vmhost writes" in str(error)
            assert str(path) in str(error)
        else:
            assert read.torn, "only the last call may be missing"
            assert len(read) == 19


def test_a_baseline_that_ends_anywhere_gives_its_whole_calls(tmp_path):
    baseline = recorded(tmp_path, [1, 2, 3], "def run(value):\n    return value\n", permissions={})
    content = Path(baseline.path).read_bytes()
    path = tmp_path / "torn"
    counts = set()
    for end in range(len(content) + 1):
        path.write_bytes(content[:end])
        try:
            read = Baseline.read(path)
        except BaselineError as error:
            assert "ends before its header" in str(error)
        else:
            counts.add(len(read))
            assert [call.value for call in read] == [1, 2, 3][: len(read)]
    assert counts == {0, 1, 2, 3}


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "ends before its header"),
        (b"PK\x03\x04 something else", "not a baseline"),
        (b"VMHB\x01\n" + bytes(64), "ends before its header"),
    ],
)
def test_what_is_no_baseline_is_told(tmp_path, content, message):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(BaselineError, match=message):
        Baseline.read(tmp_path / "file")
    with pytest.raises(BaselineError, match="cannot be read"):
        Baseline.read(tmp_path / "missing")


def test_calls_that_were_written_survive_kill_9(tmp_path):
    program = """
        import sys
        from pathlib import Path
        import vmhost
        from tests.operations.recordings import host, task_bundle
        with host() as running:
            task = running.load(task_bundle("def run(value):\\n    return value\\n", permissions={}))
            running.record(task, vmhost.RecordPolicy(sys.argv[1], share=1.0))
            recorder = task._current.recorder
            value = left_out = 0
            while True:
                task(value)
                if recorder.left_out > left_out:  # the writer is behind
                    left_out = recorder.left_out
                    print(value, flush=True)
                value += 1
    """
    with (tmp_path / "left out").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)], cwd=ROOT, stdout=output
        )
    try:
        until(lambda: process.poll() or any(path.stat().st_size > 20_000 for path in tmp_path.glob("*.baseline")))
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    left_out = {int(line) for line in (tmp_path / "left out").read_text().split()}
    values = [call.value for call in baseline_in(tmp_path)]
    assert len(values) > 50
    assert values == [value for value in range(values[-1] + 1) if value not in left_out]


def test_a_secret_that_only_the_result_tells_is_hidden_in_the_arguments_too(tmp_path):
    secret = "hunter-two"
    source = 'def run(value):\n    return {"password": value["said"]["body"], "again": value["said"]}\n'
    values = [{"said": {"body": secret}}, {"said": vmhost.Packed(msgpack.packb({"body": secret}))}]
    baseline = recorded(tmp_path, values, source, permissions={}, mask_fields=("password",))
    assert len(baseline) == 2 and secret.encode() not in Path(baseline.path).read_bytes()
