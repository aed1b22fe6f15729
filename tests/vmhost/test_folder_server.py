"""A folder of bundles is served: calls and answers are lines of JSON; bundles come, are replaced and go; the host refuses the wrong ones."""

import io
import json
import logging
import os
import threading

import pytest

import vmhost
from tests.hosts import bundle, until
from vmhost import folder_server
from vmhost.cli import failures, main
from vmhost.errors import ConfigurationError
from vmhost.folder_server import FolderServer


def put(folder, name, source, version="1.0.0"):
    """Puts a bundle there at once, as a careful user would."""
    from bytecode.format import write_bundle

    made = bundle(source, name=name, version=version)
    unfinished = folder.parent / f"{name}.unfinished"
    unfinished.write_bytes(write_bundle(made.manifest, made.modules, made.files, made.texts))
    os.replace(unfinished, folder / f"{name}.vmb")


@pytest.fixture
def folder(tmp_path):
    """A folder with a task `double`."""
    made = tmp_path / "served"
    made.mkdir()
    put(made, "double", "def run(value): return value * 2")
    return made


class Served:
    """A FolderServer on a thread of its own, which is asked line by line."""

    def __init__(self, folder, monkeypatch, **options):
        monkeypatch.setattr(folder_server, "LOOK_EVERY_S", 0.01)
        self.host = vmhost.Host(allow_unsigned=True)
        self.out = io.StringIO()
        self._reads, self._writes = os.pipe()
        server = FolderServer(self.host, folder, self.out)
        self._thread = threading.Thread(target=lambda: server.run(self._reads, **options))
        self._thread.start()

    def say(self, text):
        os.write(self._writes, text.encode())

    def ask(self, **asked):
        before = len(self.answers())
        self.say(json.dumps(asked) + "\n")
        until(lambda: len(self.answers()) > before)
        return self.answers()[-1]

    def answers(self):
        return [json.loads(line) for line in self.out.getvalue().splitlines()]

    def end(self):
        os.close(self._writes)
        self._thread.join()
        os.close(self._reads)
        self.host.close()


@pytest.fixture
def served(folder, monkeypatch):
    """The folder, served."""
    server = Served(folder, monkeypatch)
    yield server
    server.end()


def test_calls_are_answered_with_their_id(served):
    assert served.ask(id=7, task="double", input=21) == {"id": 7, "result": 42}
    assert served.ask(id={"a": 1}, task="double", input={"$tuple": [1]}) == {"id": {"a": 1}, "result": {"$tuple": [1, 1]}}


def test_a_task_that_raises_is_an_answer_with_its_traceback(served):
    error = served.ask(id=1, task="double", input={})["error"]
    assert error["type"] == "TaskError" and "TypeError" in error["message"] and "main.py" in error["traceback"]


@pytest.mark.parametrize(("line", "says"), [
    ("{", "not JSON: Expecting property name"),
    ("[" * 100_000, "nested too deeply: '[[["),
    ("[1]", "expected an object such as"),
    ("\udcff", "surrogates not allowed"),
    ('{"task": "triple"}', "no task 'triple'; loaded are: double"),
    ('{"task": "double", "inputs": 1}', "unknown keys ['inputs']"),
    ('{"task": "double", "timeout_s": 0}', "expected seconds above zero"),
    ('{"task": "double", "input": {"$set": [[]]}}', "set"),
])
def test_a_wrong_line_is_an_answer_and_not_the_end(served, line, says):
    if line == "\udcff":
        os.write(served._writes, b"\xff\n")
        says = "can't decode byte 0xff"
    else:
        served.say(line + "\n")
    until(served.answers)
    error = served.answers()[0]["error"]
    assert error["type"] == "InputError" and says in error["message"]
    assert served.ask(task="double", input=1)["result"] == 2


def test_the_answer_to_an_incomplete_call_has_its_id(served):
    answer = served.ask(id=7, taks="double")
    assert answer["id"] == 7 and answer["error"]["message"].endswith("""got '{"id": 7, "taks": "double"}'""")


def test_bundles_come_are_replaced_and_go(served, folder):
    put(folder, "one", "def run(value): return 1")
    until(lambda: "one" in served.host.tasks)
    assert served.ask(task="one")["result"] == 1
    put(folder, "one", "def run(value): return 2", version="1.1.0")
    until(lambda: served.host.task("one").version == "1.1.0")
    assert served.ask(task="one")["result"] == 2
    (folder / "one.vmb").unlink()
    until(lambda: "one" not in served.host.tasks)
    assert "no task 'one'" in served.ask(task="one")["error"]["message"]


def test_a_wrong_bundle_is_logged_once_and_the_old_one_serves_on(served, folder, caplog):
    with caplog.at_level(logging.ERROR, "vmhost"):
        (folder / "double.vmb").write_bytes(b"no bundle")
        until(lambda: caplog.records)
        assert served.ask(task="double", input=2)["result"] == 4
        put(folder, "seen", "def run(value): pass")
        until(lambda: "seen" in served.host.tasks)
    assert ["double.vmb" in record.getMessage() for record in caplog.records] == [True]


def test_the_end_of_the_input_leaves_no_call_without_answer(folder, monkeypatch):
    server = Served(folder, monkeypatch)
    server.say("".join(f'{{"id": {number}, "task": "double", "input": {number}}}\n' for number in range(50)) + '{"id": 50, "task": "double", "input": 50}')
    server.end()
    assert sorted((answer["id"], answer["result"]) for answer in server.answers()) == [(number, 2 * number) for number in range(51)]


def test_idle_is_told_while_nothing_comes_and_nothing_runs(folder, monkeypatch):
    told, looks, look = [], [], FolderServer._look
    monkeypatch.setattr(FolderServer, "_look", lambda self: (looks.append(1), look(self))[1])
    put(folder, "waits", "import time\ndef run(value): time.sleep(60)")
    server = Served(folder, monkeypatch, when_idle=lambda: told.append(1))
    until(lambda: told)
    server.say('{"task": "waits"}\n')
    until(lambda: server.host.statistics().tasks["waits"].running)
    before, seen = len(told), len(looks)
    until(lambda: len(looks) > seen + 3)
    assert len(told) == before
    server.host.unload("waits", drain=False)
    until(lambda: len(told) > before)
    server.end()


def test_no_folder_is_one_clear_error(tmp_path, capsys):
    with vmhost.Host() as host, pytest.raises(ConfigurationError, match="nowhere: expected a folder of bundles, got No such file"):
        FolderServer(host, tmp_path / "nowhere", io.StringIO())
    assert main(["serve", str(tmp_path / "nowhere"), "--allow-unsigned"]) != failures.DONE
    assert "expected a folder of bundles" in capsys.readouterr().err
