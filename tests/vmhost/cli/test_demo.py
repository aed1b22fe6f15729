"""`vmhost demo`."""

import importlib.util
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading

import pytest

from tests.hosts import ROOT, bundle
from tests.vmhost.cli.command import COMMAND
from vmhost import Host
from vmhost.cli import demonstration, failures


@pytest.fixture
def short_demo(monkeypatch):
    """The demonstration with less work: each way of running each task, seconds in all."""
    monkeypatch.setattr(
        demonstration,
        "WORK",
        (
            ("digits", "light", 500, 50),
            ("digits_cnn", "light", 40, 4),
            ("neighbours", "light", 6, 4),
            ("reranking", "light", 50, 4),
            ("vision", "light", 100, 4),
            ("strokes", "middle", 4, 2),
            ("forest", "heavy", 1, 1),
        ),
    )
    monkeypatch.setattr(demonstration, "ROUNDS", 1)


def test_the_demo_checks_answers_and_stops_what_misbehaves(vmhost, short_demo):
    code, out, _ = vmhost("demo", "--json")
    document = json.loads(out)
    assert (code, document["wrong"]) == (0, [])
    assert {task["name"]: (task["calls"], task["errors"]) for task in document["tasks"]} == {
        "digits": (500, 0),
        "digits_cnn": (40, 0),
        "neighbours": (6, 0),
        "reranking": (50, 0),
        "vision": (100, 0),
        "strokes": (4, 0),
        "forest": (1, 0),
    }
    assert all(task["right"] > 0.9 and task["speed_up"] > 0 and task["vms"] >= 1 for task in document["tasks"])
    assert {stop["name"]: stop["got"] for stop in document["stops"]} == {
        "runaway": "TimeLimitError",
        "hog": "MemoryLimitError",
    }


def test_the_demo_says_what_was_wrong(vmhost, monkeypatch):
    monkeypatch.setattr(demonstration, "WORK", (("digits", "light", 500, 50),))
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 0.0, 0.0))
    monkeypatch.setattr(demonstration, "_load_cases", wrong_truth(demonstration._load_cases))
    code, out, err = vmhost("demo")
    assert code == failures.TASK_FAILED
    assert "error: digits: expected more than 90 % right answers" in err
    assert "busy before the run (load 99.0)" in out
    code, out, err = vmhost("demo", "--json")
    assert (code, err) == (failures.TASK_FAILED, "") and len(json.loads(out)["wrong"]) == 1


def test_without_onnx_the_demo_leaves_out_what_needs_it(vmhost, monkeypatch):
    monkeypatch.setattr(demonstration, "WORK", (("digits", "light", 60, 20), ("digits_cnn", "light", 40, 4)))
    monkeypatch.setattr(demonstration, "ROUNDS", 1)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    code, out, _ = vmhost("demo")
    assert code == failures.DONE
    assert "Left out: digits_cnn; models need the package onnx: pip install 'vmhost[models]'" in " ".join(out.split())


def wrong_truth(load):
    def load_wrong(folder):
        module = load(folder)
        right = module.cases
        module.cases = lambda name: [(value, 11 if name == "digits" else truth) for value, truth in right(name)]
        return module

    return load_wrong


def test_ctrl_c_ends_the_demo_in_the_middle():
    with subprocess.Popen(
        [*COMMAND, "demo"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        try:
            while "All tasks at once" not in running.stderr.readline():
                assert running.poll() is None
            running.send_signal(signal.SIGINT)
            out, err = running.communicate(timeout=60)
        finally:
            running.kill()
    assert (running.returncode, out, err.strip()) == (failures.INTERRUPTED, "", "vmhost: interrupted")


def test_ctrl_c_while_the_load_of_the_dashboard_starts_ends_it(monkeypatch):
    started, start = [], threading.Thread.start

    def interrupted(thread):
        of_load = thread.name.startswith("vmhost-load-")
        if of_load and len(started) == 2:
            raise KeyboardInterrupt
        start(thread)
        if of_load:
            started.append(thread)

    names = ("one", "two", "three")
    with Host(allow_unsigned=True) as host:
        for name in names:
            host.load(bundle("def run(value):\n    return value\n", name))
        monkeypatch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt), demonstration.steady_load(host, {name: [(1, 1)] for name in names}):
            pass
        monkeypatch.undo()
    assert len(started) == 2 and not any(thread.is_alive() for thread in started)


def test_the_demo_on_a_terminal_shows_its_tables_and_leaves_the_screen_tidy(tmp_path):
    script = (
        "import sys; from vmhost.cli import demonstration as demo; from vmhost.cli import main\n"
        "demo.WORK = (('digits', 'light', 500, 50), ('neighbours', 'light', 6, 4))\n"
        "sys.exit(main(['demo']))"
    )
    control, terminal = pty.openpty()
    environment = os.environ | {"COLUMNS": "100", "LINES": "40", "TERM": "xterm"}
    shown = b""
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdout=terminal, stderr=terminal, env=environment
    ) as running:
        os.close(terminal)
        try:
            while True:
                try:
                    shown += os.read(control, 65536)
                except OSError:  # the last writer closed the terminal
                    break
            assert running.wait(timeout=60) == 0, shown.decode()
        finally:
            running.kill()
            os.close(control)
    text = shown.decode()
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h"), "the cursor is shown again"
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    for words in ("calls in", "Stopped", "TimeLimitError", "speed-up", "Every answer was checked"):
        assert words in plain
