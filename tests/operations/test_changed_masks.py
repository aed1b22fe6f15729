"""Rules for masking that a reload of host.yaml brings: they hide what comes from now on, and what is kept already."""

import json
import logging
from dataclasses import asdict
from types import SimpleNamespace

import numpy  # noqa: F401  its threads come with it, and are nothing that a test leaves behind
import pytest

import vmhost
from tests.hosts import until
from tests.operations.hosts_at_work import ask, bundle
from vmhost.masking import CurrentMasking
from vmhost.operations import Dashboard
from vmhost.operations.crash_reports import CrashFolder, CrashReport
from vmhost.operations.otlp import OtlpExporter
from vmhost.runtime import crash_notes

SECRET = "ann@example.com"
SOURCE = """
from vmhost.guest import log

def run(value):
    log.warning("called for %s", value)
    raise ValueError(f"no order of {value}")
"""
FILE = "allow_unsigned: true\nload: [worker.vmb]\nstate: state\n"
MASKS = FILE + "tasks: {other: {record: {folder: records, mask_patterns: [email]}}}\n"


@pytest.fixture
def running(tmp_path):
    (tmp_path / "worker.vmb").write_bytes(bundle(tmp_path, source=SOURCE))
    (tmp_path / "host.yaml").write_text(FILE)
    with vmhost.Host.from_file(tmp_path / "host.yaml") as running:
        yield running


def shown(running, dashboard):
    """All that the dashboard and `vmhost top` show of log and errors, by where."""
    found = {path: ask(dashboard, path)[2] for path in ("/log", "/tasks/worker", "/crashes")}
    (report,) = CrashFolder(running.state, masking=dashboard._logs._masking).reports()
    return found | {"errors": str(running.statistics().tasks["worker"].last_errors), "crash": "\n".join(report.log)}


def test_rules_that_a_reload_brings_hide_what_is_kept_already(running, tmp_path):
    crashes = tmp_path / "state" / "crashes"
    crashes.mkdir(exist_ok=True)
    report = CrashReport("1", "f", 1.0, 1, "SIGSEGV", None, None, None, None, (), (), (), (f"for {SECRET}",), None)
    with Dashboard(running, "127.0.0.1:0", token=False) as dashboard:
        (crashes / "1.json").write_text(json.dumps(asdict(report)))
        fails(running)
        until(lambda: SECRET in ask(dashboard, "/log")[2])
        before = shown(running, dashboard)
        assert all(SECRET in before[where] for where in ("/log", "/tasks/worker", "errors", "crash")), before
        (tmp_path / "host.yaml").write_text(MASKS)
        assert running.reload() == ()
        fails(running)
        until(lambda: ask(dashboard, "/log")[2].count("called for masked-") == 2)
        for where, text in shown(running, dashboard).items():
            assert SECRET not in text, where


def test_lines_that_are_sent_are_hidden_by_the_rules_of_now(running, tmp_path):
    lines = OtlpExporter(running, "http://127.0.0.1:1", logs=logging.INFO)._log
    for content, is_shown in ((FILE, True), (MASKS, False)):
        (tmp_path / "host.yaml").write_text(content)
        running.reload()
        lines.emit(logging.LogRecord("vmhost", logging.INFO, __file__, 1, SECRET, (), None))
        assert (lines.records[-1]["body"]["stringValue"] == SECRET) == is_shown


def test_lines_for_the_case_of_a_crash_are_hidden_by_the_rules_of_now():
    native = SimpleNamespace(crash_note=lambda number, room: None)
    policies = [vmhost.Policy()]
    notes = crash_notes.Notes(native, CurrentMasking(lambda: policies[-1]))
    notes.lines("worker", [(logging.INFO, f"called for {SECRET}")])
    assert SECRET.encode() in bytes(notes._log_room)
    policies.append(vmhost.Policy(task=vmhost.TaskPolicy(record=vmhost.RecordPolicy("f", mask_patterns=["email"]))))
    notes.lines("", [])  # as crash_notes.mask_again
    assert SECRET.encode() not in bytes(notes._log_room) and b"called for masked-" in bytes(notes._log_room)


def fails(running):
    with pytest.raises(vmhost.TaskError):
        running.task("worker")(SECRET)
