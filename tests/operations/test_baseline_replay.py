"""`vmhost replay`: what is the same, different, slower, larger, new errors, injected faults, reports and exit codes."""

import json
import xml.etree.ElementTree as ElementTree

import numpy
import pytest

import vmhost
from tests.operations.hosts_at_work import bundle as compiled
from tests.operations.recordings import recorded
from vmhost.baseline import BaselineError, Foreign, Recorded
from vmhost.cli import main
from vmhost.operations import replay, replay_reports
from vmhost.operations.comparison import Tolerance, differences

SOURCE = """
from vmhost.guest import host

def run(value):
    if value == "price":
        try:
            return host.price(1)
        except Exception as error:
            return str(error)
    return {"value": value, "near": 1.0}
"""
# The new version's outcome for each value.
CHANGED = """
import time
from vmhost.guest import host

def run(value):
    if value == "price":
        try:
            return host.price(1)
        except Exception as error:
            return str(error)
    if value == "error":
        raise KeyError("gone")
    if value == "different":
        value = "changed"
    if value == "slower":
        time.sleep(0.3)
    if value == "larger":
        bytearray(30_000_000)
    if value == "asks more":
        host.price("more")
    return {"value": value, "near": 1.0 + 1e-14}
"""
VALUES = ["same", "error", "different", "slower", "larger", "price"]


def changed_bundle(folder, source=CHANGED, name="task"):
    """The path of a bundle of version 1.1.0 that may ask for the price."""
    folder.mkdir(exist_ok=True)
    task = folder / "source"
    task.mkdir()
    (task / "main.py").write_text(source)
    (task / "task.yaml").write_text(
        f'name: {name}\nversion: 1.1.0\nentry: main:run\npython: "3.14"\npermissions: {{host: [price]}}\n'
    )
    from vmhost.compiler import compile_folder

    path = folder / "new.vmb"
    path.write_bytes(compile_folder(task).to_bytes(None))
    return path


def replay_of(tmp_path, values, source=CHANGED, **options):
    baseline = recorded(tmp_path / "baseline", values, SOURCE)
    report = replay.replay(baseline, changed_bundle(tmp_path, source), allow_unsigned=True, **options)
    return {call.recorded.value: call for call in report.outcomes}, report


def test_each_kind_of_change_is_told(tmp_path):
    calls, report = replay_of(tmp_path, VALUES)
    assert {value: call.status for value, call in calls.items()} == {
        "same": "same",
        "error": "error",
        "different": "different",
        "slower": "slower",
        "larger": "larger",
        "price": "same",
    }
    assert calls["error"].why == "KeyError: 'gone'"
    assert [str(one) for one in calls["different"].differences] == ["$.value: 'different' -> 'changed'"]
    assert "30,000,0" in calls["larger"].why and "ms" in calls["slower"].why
    assert report.counts == {"same": 2, "different": 1, "error": 1, "slower": 1, "larger": 1, "skipped": 0}
    assert report.failed() and not report.failed(("skipped",))


def test_what_host_functions_are_asked_is_compared(tmp_path):
    calls, _ = replay_of(tmp_path, ["asks more"])
    assert calls["asks more"].status == "error", "the record has no answer for it"
    assert "the record has no answer of price" in calls["asks more"].why
    assert calls["asks more"].beyond == {"host.price": 1}
    other = SOURCE.replace("host.price(1)", "host.price(2)")
    calls, _ = replay_of(tmp_path / "second", ["price"], other)
    assert calls["price"].why == "host functions[0][1]: 1 -> 2"


def test_a_call_that_used_files_is_not_compared(tmp_path):
    data = tmp_path / "data"
    data.write_text("x")
    source = f"def run(value):\n    return open({str(data)!r}).read()\n"
    permissions = {"read": [str(data)]}
    baseline = recorded(tmp_path / "baseline", [1], source, permissions=permissions)
    report = replay.replay(baseline, changed_bundle(tmp_path), allow_unsigned=True)
    assert [(call.status, call.why) for call in report.outcomes] == [("skipped", "it used files")]


def test_faults_are_injected_by_rule(tmp_path):
    failing = replay.Faults(({"function": "price", "fails": "no route", "every": 2},))
    calls, report = replay_of(tmp_path, ["price", "same"], SOURCE, faults=failing)
    assert calls["price"].status == "same", "each second call of the function fails, and this is the first"
    always = replay.Faults(({"function": "*", "fails": "no route"},))
    calls, _ = replay_of(tmp_path / "second", ["price"], SOURCE, faults=always)
    assert calls["price"].why == "$: ['is', 1] -> 'no route'"
    slow = replay.Faults(({"function": "price", "slow_s": 0.2},))
    calls, _ = replay_of(tmp_path / "third", ["price"], SOURCE, faults=slow)
    assert calls["price"].status == "same" and calls["price"].wall_s >= 0.2
    short = replay.Faults(memory_bytes=20 << 20)
    calls, _ = replay_of(tmp_path / "fourth", ["larger", "same"], faults=short)
    assert calls["larger"].why.startswith("MemoryLimitError") and calls["same"].status == "same"


def test_a_bundle_of_another_task_and_a_damaged_baseline_are_told(tmp_path, capsys):
    baseline = recorded(tmp_path / "baseline", ["same"], SOURCE)
    other = changed_bundle(tmp_path, name="other")
    with pytest.raises(BaselineError, match="of the task task, the bundle has other"):
        replay.replay(baseline, other, allow_unsigned=True)
    content = bytearray((tmp_path / "baseline").joinpath(baseline.path).read_bytes())
    content[40] ^= 1
    (tmp_path / "damaged").write_bytes(content)
    assert main(["replay", str(tmp_path / "damaged"), "--bundle", str(other), "--allow-unsigned"]) == 2
    output = capsys.readouterr().err
    assert "damaged at byte" in output and "Traceback" not in output


def test_the_command_writes_reports_and_fails_as_asked(tmp_path, capsys):
    baseline = recorded(tmp_path / "baseline", VALUES, SOURCE)
    bundle = str(changed_bundle(tmp_path))
    command = ["replay", baseline.path, "--bundle", bundle, "--allow-unsigned"]
    xml, page = tmp_path / "report.xml", tmp_path / "report.html"
    assert main([*command, "--junit", str(xml), "--html", str(page)]) == 1
    output = capsys.readouterr().out
    assert "task 1.0.0 -> 1.1.0: 6 calls" in output and "call 3: different: $.value: 'different' -> 'changed'" in output
    suite = ElementTree.parse(xml).getroot()
    assert suite.get("tests") == "6" and suite.get("failures") == "1" and suite.get("errors") == "1"
    cases = {case.get("name"): case for case in suite}
    assert cases["call 3"].find("failure").get("message") == "$.value: 'different' -> 'changed'"
    assert cases["call 2"].find("error").text == "KeyError: 'gone'"
    assert not list(cases["call 1"])
    text = page.read_text()
    assert "$.value" in text and "KeyError: &#x27;gone&#x27;" in text and "http" not in text
    assert main([*command, "--fail-on", "nothing", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["counts"]["different"] == 1
    assert document["calls"][1]["differences"] == [{"path": "$.value", "before": "'different'", "after": "'changed'"}]
    assert main([*command, "--fail-on", "slower"]) == 1
    assert main([*command, "--fault", "memory=20MiB", "--fail-on", "nothing"]) == 0


@pytest.mark.parametrize(
    "options, message",
    [
        (["--fault", "price"], "--fault"),
        (["--fault", "price=slow"], "--fault"),
        (["--fault", "price/0=fails"], "whole number"),
        (["--fault", "memory=much"], "--fault memory"),
        (["--fail-on", "worse"], "--fail-on"),
        (["--slower", "0.5"], "--slower"),
        (["--tolerance", "nan"], "--tolerance"),
    ],
)
def test_wrong_options_are_told(tmp_path, capsys, options, message):
    (tmp_path / "a.baseline").write_bytes(b"")
    bundle = changed_bundle(tmp_path)
    code = main(["replay", str(tmp_path / "a.baseline"), "--bundle", str(bundle), *options])
    assert code != 0
    assert message in capsys.readouterr().err


def test_pages_show_what_is_hostile_as_text(tmp_path):
    source = "def run(value):\n    raise ValueError('<script>alert(1)</script>\\x00\\x1b' + str(value))\n"
    baseline = recorded(tmp_path / "baseline", ["<b>"], "def run(value):\n    return value\n")
    report = replay.replay(baseline, changed_bundle(tmp_path, source), allow_unsigned=True)
    assert "<script>" not in replay_reports.as_html(report)
    (case,) = ElementTree.fromstring(replay_reports.as_junit(report))
    assert case.find("error").get("message") == "ValueError: <script>alert(1)</script>??<b>"


CLOSE = Tolerance(relative=1e-3)


@pytest.mark.parametrize(
    "before, after, expected",
    [
        ({"a": [1, 2.0]}, {"a": [1, 2.0001]}, []),
        ({"a": [1, 2.0]}, {"a": [1, 2.1]}, ["$.a[1]: 2.0 -> 2.1"]),
        ([1], [1, 2], ["$[1]: nothing -> 2"]),
        ({"a b": 1}, {}, ["$['a b']: 1 -> nothing"]),
        ((1,), [1], ["$: (1,) -> [1]"]),
        (1, 1.0, []),
        (True, 1, ["$: True -> 1"]),
        (float("nan"), float("nan"), []),
        (10**400, 1.0, [f"$: {'1' + '0' * 116}... -> 1.0"]),
        ({1, 2}, {2, 3}, ["${}: 1 -> nothing", "${}: nothing -> 3"]),
        (1 + 1j, 1 + 2j, ["$: (1+1j) -> (1+2j)"]),
        (Foreign(1, "a:B", {"x": 1}), Foreign(1, "a:B", {"x": 2}), ["$.x: 1 -> 2"]),
        (Foreign(1, "a:B", {}), Foreign(1, "a:C", {}), ["$: 'a:B' -> 'a:C'"]),
        ("to masked-0123456789ab!", "to ann!", []),
        ("to masked-0123456789ab!", "by ann!", ["$: 'to masked-0123456789ab!' -> 'by ann!'"]),
        (numpy.arange(4.0), numpy.arange(4.0) * 1.0001, []),
        (numpy.zeros((2, 2)), numpy.array([[0.0, 0], [0, 5]]), ["$[1, 1]: 0.0 -> 5.0"]),
        (numpy.zeros(2), numpy.zeros(3), ["$: array of 2 d -> array of 3 d"]),
        (numpy.zeros(9), numpy.ones(9), ["$[0]: 0.0 -> 1.0", "$[1]: 0.0 -> 1.0", "$[2]: 0.0 -> 1.0"]),
    ],
)
def test_differences(before, after, expected):
    found = [str(one) for one in differences(before, after, CLOSE)]
    assert found[: len(expected)] == expected and (expected or not found)


def test_a_breaker_does_not_stand_in_the_way_of_a_replay(tmp_path):
    calls, report = replay_of(tmp_path, ["error"] * 60)
    assert report.counts["error"] == 60


def test_a_signed_bundle_is_asked_for(tmp_path):
    baseline = recorded(tmp_path / "baseline", ["same"], SOURCE)
    with pytest.raises(vmhost.BundleError, match="signed"):
        replay.replay(baseline, compiled(tmp_path, "task"))


class Alone:
    """A task whose calls take `wall_s` when they run alone; `ran`: how many did."""

    def __init__(self, wall_s):
        self.wall_s, self.ran = wall_s, 0

    def replay(self, recorded):
        return self

    def result(self):
        self.ran += 1
        return self


def slow_outcomes(count, *, now_s):
    recorded = Recorded(1, 0.0, None, None, "OK", wall_s=1.0)
    return [replay.Outcome(recorded, "same", wall_s=now_s) for _ in range(count)]


def test_where_all_calls_look_slower_one_that_is_not_ends_the_looking():
    outcomes, task = slow_outcomes(8, now_s=3.0), Alone(1.0)
    replay._retime_slow_ones(task, outcomes, replay.Rules(), 0.0)
    assert task.ran == 1, "each of them runs again, though the first took no longer than it did"
    assert [outcome.status for outcome in outcomes] == ["same"] * 8


def test_where_all_calls_are_slower_one_of_them_tells():
    outcomes, task = slow_outcomes(8, now_s=3.0), Alone(3.0)
    replay._retime_slow_ones(task, outcomes, replay.Rules(), 0.0)
    assert task.ran == 2
    assert [outcome.status for outcome in outcomes].count("slower") == 1
