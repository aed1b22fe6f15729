"""`trigger` and `table` of task.yaml: valid contents, and their form in a bundle."""

import pytest

from vmhost.bytecode.compiler import compile_task
from vmhost.bytecode.errors import BundleError, TaskSpecError
from vmhost.bytecode.format import Manifest, Module, read_bundle, write_bundle
from vmhost.bytecode.spec import read_task
from vmhost.bytecode.stream_task import MAX_SPAN_MS, Column, FieldError, Table, Trigger

PLAIN = """\
name: sample
version: 1.2.0
entry: main:run
python: "3.14"
"""
STREAM = (
    PLAIN
    + """\
trigger:
  on: ["page:item", "*", page_exit]
  within: 30 min
  state: true
  overload: coalesce
  queue: 10
  retries: 3
table:
  columns:
    item: {type: text, index: true}
    dwell_ms: integer
    encoding: {type: bytes, leaves: true}
  key: item
  retention: 30 d
"""
)


def test_all_that_can_be_written_is_read(write_task):
    spec = read_task(write_task(spec=STREAM))
    assert spec.trigger == Trigger(
        on=(("page:item", "*", "page_exit"),),
        level="page",
        within_ms=1_800_000,
        events="visit",
        state=True,
        overload="coalesce",
        queue=10,
        retries=3,
    )
    assert spec.table == Table(
        {"item": Column("text", index=True), "dwell_ms": Column("integer"), "encoding": Column("bytes", leaves=True)},
        "item",
        30 * 86_400_000,
    )
    assert list(spec.table.columns) == ["item", "dwell_ms", "encoding"]


def test_what_is_not_written_is_the_usual(write_task):
    assert read_task(write_task()).trigger is None
    assert read_task(write_task()).table is None
    page = read_task(write_task(spec=PLAIN + "trigger: {on: [click]}\n")).trigger
    assert page == Trigger(on=(("click",),), level="page", events="visit")
    time = read_task(write_task(spec=PLAIN + "trigger: {on: [[click], [a, b]], level: time}\n")).trigger
    assert time == Trigger(on=(("click",), ("a", "b")), level="time", events="match")


def test_they_travel_in_the_manifest(write_task):
    compiled = compile_task(write_task(spec=STREAM))
    manifest = read_bundle(compiled.to_bytes(), allow_unsigned=True).manifest
    assert (manifest.trigger, manifest.table) == (compiled.manifest.trigger, compiled.manifest.table)
    assert list(manifest.table.columns) == ["item", "dwell_ms", "encoding"]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("state: true", "states: true", "task.yaml:8: trigger.states: unknown key; did you mean 'state'?"),
        ("state: true", "state: 1", "task.yaml:8: trigger.state: expected true"),
        ("  within: 30 min", "  within: 30 moons", 'task.yaml:7: trigger.within: expected a time such as "30 min"'),
        ("  within: 30 min", "  within: 9000 d", "task.yaml:7: trigger.within: expected a time from 1 ms to 10 years"),
        ("  within: 30 min", "  within: 1 us", "task.yaml:7: trigger.within: expected whole milliseconds, got '1 us'"),
        ('on: ["page:item", "*", page_exit]', "on: []", "task.yaml:6: trigger.on: expected a list of ids"),
        ('on: ["page:item", "*", page_exit]', 'on: ["*"]', "task.yaml:6: trigger.on: expected an id beside `*`"),
        ('on: ["page:item", "*", page_exit]', 'on: ["page:"]', "task.yaml:6: trigger.on: expected an event's name"),
        (
            'on: ["page:item", "*", page_exit]',
            "level: page",
            "task.yaml:5: trigger.on: is missing; expected a list of ids",
        ),
        ("overload: coalesce", "overload: drop", "task.yaml:9: trigger.overload: expected newest, oldest or coalesce"),
        ("queue: 10", "queue: 0", "task.yaml:10: trigger.queue: expected a whole number from 1 to 100000, got 0"),
        ("dwell_ms: integer", "dwell_ms: int", "task.yaml:15: table.columns.dwell_ms: expected text, integer"),
        ("dwell_ms: integer", "rowid: integer", "task.yaml:13: table.columns: expected names of letters"),
        ("dwell_ms: integer", "ITEM: integer", "task.yaml:15: table.columns.ITEM: expected names that differ"),
        ("key: item", "key: items", "task.yaml:17: table.key: expected one of the columns item, dwell_ms, encoding"),
        ("retention: 30 d", "retention: 0 d", "task.yaml:18: table.retention: expected a time from 1 ms"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(write_task, before, after, message):
    assert before in STREAM
    with pytest.raises(TaskSpecError) as caught:
        read_task(write_task(spec=STREAM.replace(before, after)))
    assert any(message in problem for problem in caught.value.problems), caught.value.problems


class _Raw:
    """A fake Trigger or Table with the plain form that it was made with."""

    def __init__(self, found):
        self._found = found

    def fields(self):
        return self._found


@pytest.mark.parametrize(
    ("name", "found", "message"),
    [
        ("trigger", [], "trigger: expected dict"),
        ("trigger", {}, "trigger.on: expected it to be there"),
        ("trigger", {"on": [["click"]], "x": 1}, "trigger.x: expected one of the keys on, level"),
        ("trigger", {"on": ["click"]}, "trigger.on: expected sequences of 1 to 64 ids, got 'click'"),
        ("trigger", {"on": [[]]}, "trigger.on: expected sequences"),
        ("trigger", {"on": [["a"]] * 65}, "trigger.on: expected 1 to 64 sequences"),
        ("trigger", {"on": [["a"] * 65]}, "trigger.on: expected sequences of 1 to 64"),
        ("trigger", {"on": [["a\0"]]}, "trigger.on: expected an event's name"),
        ("trigger", {"on": [["a" * 256]]}, "trigger.on: expected an event's name"),
        ("trigger", {"on": [["a"]], "level": []}, "trigger.level: expected page or time"),
        ("trigger", {"on": [["a"]], "within_ms": True}, "trigger.within_ms: expected int or NoneType"),
        ("trigger", {"on": [["a"]], "within_ms": MAX_SPAN_MS + 1}, "trigger.within_ms: expected a time"),
        ("trigger", {"on": [["a"]], "queue": 1 << 40}, "trigger.queue: expected a whole number"),
        ("table", {"columns": {}}, "table.columns: expected 1 to 256 columns"),
        ("table", {"columns": {'a"b': "text"}}, "table.columns: expected names of letters"),
        ("table", {"columns": {"a": 1}}, "table.columns.a: expected a mapping, got 1"),
        ("table", {"columns": {"a": {"type": "text", "index": 1}}}, "table.columns.a.index: expected bool"),
        ("table", {"columns": {"a": "text"}, "key": "b"}, "table.key: expected one of the columns a"),
    ],
)
def test_a_manifest_that_says_what_none_may_is_refused(name, found, message):
    manifest = Manifest("sample", "1.0", entry="main:run", **{name: _Raw(found)})
    with pytest.raises(BundleError, match="manifest.msgpack: ") as caught:
        write_bundle(manifest, {"main": Module(False, b"")})
    assert message in str(caught.value)


@pytest.mark.parametrize("kind", [Trigger, Table])
def test_junk_is_one_error(kind):
    for junk in (None, 1, "x", [], {"on": 1, "columns": 1}, {1: 2}, {"on": [["a"]], "columns": {1: "text"}, "key": []}):
        with pytest.raises(FieldError):
            kind.from_fields(junk)
