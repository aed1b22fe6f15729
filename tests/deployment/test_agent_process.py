"""The agent as a process of its own, without vmhost's command line."""

import json
import signal
import subprocess
import sys

from tests.deployment.platforms import platform_in
from vmhost.deployment.device import heap


def test_it_runs_by_its_module_without_click_and_ends_when_told(tmp_path):
    with platform_in(tmp_path / "cloud") as platform:
        keys = platform.folder / "keys" / "bundles.pub"
        settings = {"device": "kitchen-1", "platform": "http://127.0.0.1:9", "folder": "state", "keys": str(keys)}
        (tmp_path / "agent.yaml").write_text(json.dumps(settings))
        program = (
            "import runpy, sys; sys.argv = ['agent', sys.argv[1]]; "
            "runpy.run_module('vmhost.deployment.device', run_name='__main__'); print('click' in sys.modules)"
        )
        with subprocess.Popen(
            [sys.executable, "-c", program, tmp_path / "agent.yaml"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as agent:
            while "again in" not in (line := agent.stderr.readline()):
                assert line, "it ended"
            agent.send_signal(signal.SIGTERM)
            output, complained = agent.communicate(timeout=60)
        assert (agent.returncode, output) == (0, "False\n"), complained


def test_heaps_that_cannot_be_trimmed_are_left_alone(monkeypatch):
    monkeypatch.setattr(heap, "_trim", None)
    monkeypatch.setitem(sys.modules, "ctypes", None)
    heap.give_back()
    heap.give_back()
    monkeypatch.undo()
    monkeypatch.setattr(heap, "_trim", None)
    heap.give_back()
    assert heap._trim is not int
