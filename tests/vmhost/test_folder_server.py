"""A folder of bundles is served: calls and answers are lines of JSON; bundles come, are replaced and go; the host
refuses the wrong ones."""

import errno
import io
import json
import logging
import os
import subprocess
import sys
import threading

import pytest

import vmhost
from tests.hosts import ROOT, bundle, until
from vmhost.bytecode.format import write_bundle
from vmhost.cli import failures, main
from vmhost.errors import ConfigurationError
from vmhost.lines import folder_server, requests
from vmhost.lines.folder_server import FolderServer
from vmhost.lines.stdout import OutputError


def put(folder, name, source, version="1.0.0"):
    """Puts a bundle there atomically, as a careful user would."""
    data = bundle(source, name=name, version=version)
    unfinished = folder.parent / f"{name}.unfinished"
    unfinished.write_bytes(write_bundle(data.manifest, data.modules, data.files, data.texts))
    os.replace(unfinished, folder / f"{name}.vmb")


@pytest.fixture
def folder(tmp_path):
    """A folder with a task `double`."""
    path = tmp_path / "served"
    path.mkdir()
    put(path, "double", "def run(value): return value * 2")
    return path


class Served:
    """A FolderServer on a thread of its own, which gets requests line by line."""

    def __init__(self, folder, monkeypatch, out=None, **options):
        monkeypatch.setattr(folder_server, "LOOK_EVERY_S", 0.01)
        self.host = vmhost.Host(allow_unsigned=True)
        self.out = out or io.StringIO()
        self.looks = 0  # at the folder
        look = FolderServer._scan

        def counted(server):
            changed = look(server)
            self.looks += 1
            return changed

        monkeypatch.setattr(FolderServer, "_scan", counted)
        self._reads, self._writes = os.pipe()
        server = FolderServer(self.host, folder, self.out)
        self._thread = threading.Thread(target=lambda: server.run(self._reads, **options))
        self._thread.start()

    def send(self, text):
        left = text.encode()
        while left:
            left = left[os.write(self._writes, left) :]

    def ask(self, **asked):
        before = len(self.answers())
        self.send(json.dumps(asked) + "\n")
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
    assert served.ask(id={"a": 1}, task="double", input={"$tuple": [1]}) == {
        "id": {"a": 1},
        "result": {"$tuple": [1, 1]},
    }


def test_a_task_that_raises_is_an_answer_with_its_traceback(served):
    error = served.ask(id=1, task="double", input={})["error"]
    assert error["type"] == "TaskError" and "TypeError" in error["message"] and "main.py" in error["traceback"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON: Expecting property name"),
        ("[" * 100_000, "nested too deeply: '[[["),
        ("[1]", "expected an object such as"),
        ("\udcff", "surrogates not allowed"),
        ('{"task": "triple"}', "no task 'triple'; loaded are: double"),
        ('{"task": "double", "inputs": 1}', "unknown keys ['inputs']"),
        ('{"task": "double", "timeout_s": 0}', "expected seconds above zero"),
        ('{"task": "double", "input": {"$set": [[]]}}', "set"),
    ],
)
def test_a_wrong_line_is_an_answer_and_not_the_end(served, line, message):
    if line == "\udcff":
        os.write(served._writes, b"\xff\n")
        message = "not UTF-8: byte 0xff at 0"
    else:
        served.send(line + "\n")
    until(served.answers)
    error = served.answers()[0]["error"]
    assert error["type"] == "InputError" and message in error["message"]
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
    server.send(
        "".join(f'{{"id": {number}, "task": "double", "input": {number}}}\n' for number in range(50))
        + '{"id": 50, "task": "double", "input": 50}'
    )
    server.end()
    assert sorted((answer["id"], answer["result"]) for answer in server.answers()) == [
        (number, 2 * number) for number in range(51)
    ]


def test_idle_is_told_while_nothing_comes_and_nothing_runs(folder, monkeypatch):
    calls, looks, look = [], [], FolderServer._scan
    monkeypatch.setattr(FolderServer, "_scan", lambda self: (looks.append(1), look(self))[1])
    put(folder, "waits", "import time\ndef run(value): time.sleep(60)")
    server = Served(folder, monkeypatch, when_idle=lambda: calls.append(1))
    until(lambda: calls)
    server.send('{"task": "waits"}\n')
    until(lambda: server.host.statistics().tasks["waits"].running)
    before, seen = len(calls), len(looks)
    until(lambda: len(looks) > seen + 3)
    assert len(calls) == before
    server.host.unload("waits", drain=False)
    until(lambda: len(calls) > before)
    server.end()


def test_no_folder_is_one_clear_error(tmp_path, capsys):
    with (
        vmhost.Host() as host,
        pytest.raises(ConfigurationError, match="nowhere: expected a folder of bundles, got No such file"),
    ):
        FolderServer(host, tmp_path / "nowhere", io.StringIO())
    assert main(["serve", str(tmp_path / "nowhere"), "--allow-unsigned"]) != failures.DONE
    assert "expected a folder of bundles" in capsys.readouterr().err


HOSTILE = [
    '{"id": 1, "task": "double", "input": {"$complex": [' + "9" * 400 + ", 0]}}",
    '{"id": 1, "task": "double", "input": ' + "7" * 5000 + "}",
    '{"id": ' + "[" * 300 + "]" * 300 + "}",
    '{"id": ' + "[" * 100_000 + "}",
    '{"id": {"$complex": [1e999, 2]}}',
    '{"id": 1, "task": "\\ud800"}',
    '{"id": "\\ud800", "task": "double", "timeout_s": {"$float": "nan"}}',
    '{"id": 1, "task": "double", "timeout_s": "1"}',
    "\0",
    "null",
    "{}",
    '{"task": "' + "x" * 100_000 + '"}',
    '{"id": 1, "id": 2}',
    '{"' + "k" * 100_000 + '": 1, "task": "double"}',
    "\ufeff{}",
    '"' + "x" * 100_000 + '"',
    '{"id": 1, "task": "double", "input": {"$tuple": ' * 400,
]


def test_every_line_gets_one_answer_whatever_it_says(served):
    for line in HOSTILE:
        served.send(line + "\n")
    served.send('{"id": "last", "task": "double", "input": 2}\n')
    until(lambda: len(served.answers()) > len(HOSTILE))
    *answers, last = served.answers()
    assert last == {"id": "last", "result": 4}
    assert [answer["error"]["type"] for answer in answers] == ["InputError"] * len(HOSTILE)
    assert all(len(json.dumps(answer)) < 2000 for answer in answers)


def test_a_bad_input_is_answered_under_its_id(served):
    answer = served.ask(id="mine", task="double", input={"$complex": [1]})
    assert answer["id"] == "mine" and answer["error"]["type"] == "InputError"


def test_values_that_json_can_barely_say_are_answered(served, folder):
    put(
        folder,
        "odd",
        "def run(value):\n    deep = []\n    for _ in range(400): deep = [deep]\n"
        "    return {'int': 10**5000, 'deep': deep, 'surrogate': chr(0xd800), 'nan': float('nan')}[value]\n",
    )
    until(lambda: "odd" in served.host.tasks)
    assert served.ask(id=1, task="odd", input="int") == {"id": 1, "result": {"$int": hex(10**5000)}}
    assert served.ask(id=2, task="odd", input="surrogate") == {"id": 2, "result": "\ud800"}
    assert served.ask(id=3, task="odd", input="nan") == {"id": 3, "result": {"$float": "nan"}}
    assert served.ask(id=4, task="odd", input="deep")["id"] == 4
    assert served.ask(id=5, task="double", input={"$int": hex(10**5000)}) == {
        "id": 5,
        "result": {"$int": hex(2 * 10**5000)},
    }
    assert served.ask(id=6, task="double", input=1, timeout_s=10**400 // 10**392) == {"id": 6, "result": 2}


def test_a_line_without_end_is_refused_once_and_holds_up_nobody(served, folder, monkeypatch):
    monkeypatch.setattr(requests, "MAX_LINE_BYTES", 1 << 20)
    entered, goes_on = threading.Event(), threading.Event()
    served.host._functions["wait"] = lambda _: (entered.set(), goes_on.wait(60))[1]
    waits = bundle(
        "from vmhost import guest\ndef run(value): return guest.host.wait(None)\n",
        name="waits",
        permissions={"host": ["wait"]},
    )
    (folder / "waits.vmb").write_bytes(write_bundle(waits.manifest, waits.modules, waits.files, waits.texts))
    until(lambda: "waits" in served.host.tasks)
    served.send('{"id": "before", "task": "waits"}\n')
    assert entered.wait(60)
    for _ in range(64):
        served.send("x" * (1 << 18))
    goes_on.set()
    until(served.answers)  # while the line goes on
    assert served.answers() == [{"id": "before", "result": True}]
    served.send('\n{"id": "after", "task": "double", "input": 1}\n')
    until(lambda: len(served.answers()) == 3)
    refused, after = served.answers()[1:]
    assert (refused["id"], refused["error"]["message"]) == (
        None,
        "a line of more than 1,048,576 bytes; send less at a time",
    )
    assert after == {"id": "after", "result": 2}


def test_lines_are_cut_in_time_that_grows_with_their_length_and_kept_up_to_a_bound():
    lines, piece = requests.Lines(), b"x" * (1 << 16)
    for _ in range(8 << 10):  # 512 MiB
        assert list(lines.take(piece)) == []
    assert sum(map(len, lines._parts)) <= requests.MAX_LINE_BYTES
    assert list(lines.take(b"\nab\n\nc")) == [None, b"ab"]
    assert list(lines.take(b"")) == [b"c"]
    assert list(lines.take(b"")) == []


def test_a_line_too_long_at_the_end_of_the_input_is_answered_too(folder, monkeypatch):
    monkeypatch.setattr(requests, "MAX_LINE_BYTES", 1000)
    server = Served(folder, monkeypatch)
    server.send("x" * 5000)
    server.end()
    assert [answer["error"]["type"] for answer in server.answers()] == ["InputError"]


class Slow(io.StringIO):
    """A reader that does not read until the test lets it."""

    def __init__(self):
        super().__init__()
        self.reads = threading.Event()

    def write(self, text):
        assert self.reads.wait(60)
        return super().write(text)


def test_a_client_that_does_not_read_holds_up_itself_only(folder, monkeypatch):
    server = Served(folder, monkeypatch, out=Slow())
    sender = threading.Thread(
        target=lambda: [
            server.send(f'{{"id": {number}, "task": "double", "input": {number}}}\n') for number in range(9000)
        ]
    )
    sender.start()
    until(lambda: server.host.statistics().tasks["double"].calls)
    assert server.host.task("double")(4) == 8  # others are served
    sender.join(timeout=1)
    assert sender.is_alive()  # requests are read only as fast as they are answered
    server.out.reads.set()
    sender.join()
    server.end()
    assert sorted((answer["id"], answer["result"]) for answer in server.answers()) == [
        (number, 2 * number) for number in range(9000)
    ]


class Full(io.StringIO):
    def write(self, text):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_answers_that_cannot_be_written_end_the_server_with_the_reason(folder):
    reads, writes = os.pipe()
    with vmhost.Host(allow_unsigned=True) as host:
        server = FolderServer(host, folder, Full())
        os.write(writes, b'{"task": "double", "input": 1}\n' * 3)
        with pytest.raises(OutputError, match="the answers cannot be written: No space left on device"):
            server.run(reads)
    os.close(reads)
    os.close(writes)


def _bundle_of(version):
    data = bundle(f"def run(value): return [value, {version!r}]", name="swapped", version=version)
    return write_bundle(data.manifest, data.modules, data.files, data.texts)


def test_bundles_swapped_cut_and_removed_under_load(folder, monkeypatch, caplog):
    """Each call has one answer, of a version that was whole; while the file is half there the version before serves."""
    contents = {version: _bundle_of(version) for version in ("1.0.0", "2.0.0")}
    path = folder / "swapped.vmb"
    path.write_bytes(contents["1.0.0"])
    server = Served(folder, monkeypatch)
    answered = []

    def ask(number):
        server.send(json.dumps({"id": number, "task": "swapped", "input": number}) + "\n")

    def settle(version):
        until(lambda: server.host.task("swapped").version == version)

    with caplog.at_level(logging.ERROR, "vmhost"):
        for step in range(60):
            for number in range(20):
                ask(step * 20 + number)
            version = ("2.0.0", "1.0.0")[step % 2]
            if step % 3 == 0:  # in place, as cp does it
                with open(path, "wb", buffering=0) as file:
                    half = len(contents[version]) // 2
                    file.write(contents[version][:half])
                    looks = server.looks
                    until(lambda looks=looks: server.looks > looks + 1)
                    assert server.host.task("swapped").version != version
                    file.write(contents[version][half:])
            elif step % 3 == 1:  # at once
                unfinished = folder / "unfinished"
                unfinished.write_bytes(contents[version])
                os.replace(unfinished, path)
            else:  # cut short, then whole
                path.write_bytes(contents[version][:-1])
                path.write_bytes(contents[version])
            settle(version)
    path.unlink()
    until(lambda: "swapped" not in server.host.tasks)
    ask(1200)
    server.end()
    answered = server.answers()
    assert sorted(answer["id"] for answer in answered) == list(range(1201))
    assert [answer for answer in answered if "error" in answer] == [
        {"id": 1200, "error": {"type": "InputError", "message": "no task 'swapped'; loaded are: double"}}
    ]
    assert {tuple(answer["result"]) for answer in answered if "result" in answer} <= {
        (number, version) for number in range(1200) for version in contents
    }
    records = [record.getMessage() for record in caplog.records]
    assert records and all("swapped.vmb: " in message and "Traceback" not in message for message in records)
    assert len(records) <= 2 * 40  # once for each half


def test_the_older_of_two_bundles_of_a_task_serves_again_when_the_newer_goes(served, folder):
    for number, name in enumerate(("first", "second")):
        (folder / f"{name}.vmb").write_bytes(_bundle_of(f"{number + 1}.0.0"))
        until(
            lambda number=number: (
                "swapped" in served.host.tasks and served.host.task("swapped").version == f"{number + 1}.0.0"
            )
        )
    (folder / "second.vmb").unlink()
    until(lambda: served.host.task("swapped").version == "1.0.0")
    assert served.ask(task="swapped", input=1)["result"] == [1, "1.0.0"]


def test_many_servers_and_many_clients_share_one_folder(folder):
    """Three processes serve it, each to four clients that write to one pipe, while a bundle is replaced again and
    again."""
    command = [sys.executable, "-m", "vmhost", "serve", str(folder), "--allow-unsigned"]
    servers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) for _ in range(3)]
    answers = [[] for _ in servers]

    def client(server, first):
        for number in range(first, first + 100):
            os.write(server.stdin.fileno(), f'{{"id": {number}, "task": "double", "input": {number}}}\n'.encode())

    readers = [
        threading.Thread(target=lambda server=server, into=into: into.extend(map(json.loads, server.stdout)))
        for server, into in zip(servers, answers)
    ]
    clients = [
        threading.Thread(target=client, args=(server, 100 * number)) for server in servers for number in range(4)
    ]
    for thread in readers + clients:
        thread.start()
    for number in range(5):
        put(folder, "double", f"def run(value): return value * 2 + {number} * 0", version=f"1.0.{number + 1}")
    for thread in clients:
        thread.join()
    for server in servers:
        server.stdin.close()
    for thread in readers:
        thread.join(60)
    for server, into in zip(servers, answers):
        assert server.wait(60) == 0
        server.stdout.close()
        assert sorted((answer["id"], answer["result"]) for answer in into) == [
            (number, 2 * number) for number in range(400)
        ]
