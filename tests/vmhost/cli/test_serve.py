"""`vmhost serve` as a process, plain and supervised: how signals end it, what SIGHUP reads again, and that each line
has one answer, whatever it says."""

import collections
import contextlib
import fcntl
import json
import os
import signal
import struct
import subprocess
import sys
import termios
import threading

import pytest

from tests.hosts import ROOT, bundle, until
from vmhost.bytecode.format import write_bundle
from vmhost.lines import exit_codes

# Waits for the file that its value names.
WAITS = """
import time
def run(path):
    while True:
        try:
            with open(path): return path
        except FileNotFoundError:
            time.sleep(0.01)
"""


@pytest.fixture
def folder(tmp_path):
    """A folder with the tasks `double`, and `waits`, of which two calls run at once."""
    path = tmp_path / "served"
    path.mkdir()
    put(path, bundle("def run(value): return value * 2", name="double"))
    permissions = {"read": [str(tmp_path)]}
    put(path, bundle(WAITS, name="waits", permissions=permissions, limits={"concurrency": 2}))
    return path


def put(folder, data):
    unfinished = folder.parent / "unfinished"
    unfinished.write_bytes(write_bundle(data.manifest, data.modules, data.files, data.texts))
    os.replace(unfinished, folder / f"{data.manifest.name}.vmb")


class Server:
    """A `vmhost serve`, whose answers and log lines threads collect."""

    def __init__(self, folder, *options, **settings):
        command = [sys.executable, "-m", "vmhost", "serve", str(folder), *map(str, options)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, **pipes | settings)
        self.lines, self.log = [], []  # of stdout and stderr
        self._readers = [
            threading.Thread(target=_collect, args=(self.process.stdout, self.lines)),
            threading.Thread(target=_collect, args=(self.process.stderr, self.log)),
        ]
        for reader in self._readers:
            reader.start()

    def send(self, *calls):
        for call in calls:
            line = call if isinstance(call, bytes) else json.dumps(call).encode()
            self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    @property
    def answers(self):
        return [json.loads(line) for line in self.lines]

    def logged(self, text):
        return any(text in line for line in self.log)

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self):
        code = self.process.wait(timeout=120)
        for reader in self._readers:
            reader.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(BrokenPipeError):
                pipe and pipe.close()
        return code

    def end(self):
        self.process.kill()
        self.wait()


def _collect(pipe, lines):
    for line in pipe or ():
        lines.append(line.decode())


@pytest.fixture(params=["plain", "supervised"])
def serve(request, folder, tmp_path):
    """Starts a Server of the folder with options, in this way."""
    with contextlib.ExitStack() as stack:

        def start(*options, **settings):
            own = ["--supervise"] if request.param == "supervised" else []
            if "--settings" not in options:
                own += ["--allow-unsigned", *(["--state", tmp_path / "state"] if own else [])]
            server = Server(folder, *own, *options, **settings)
            stack.callback(server.end)
            return server

        yield start


def _begun(server, gate, number=20):
    """Sends `number` calls that wait for the file `gate`; returns when the server has them all."""
    server.send(*({"id": each, "task": "waits", "input": str(gate)} for each in range(number)))
    server.send({"id": "mark", "task": "double", "input": 1})  # read after them
    until(lambda: server.answers)
    assert server.answers == [{"id": "mark", "result": 2}]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_when_its_calls_are_answered(serve, tmp_path, number):
    gate = tmp_path / "gate"
    server = serve()
    _begun(server, gate)
    server.signal(number)
    until(lambda: server.logged("no new calls"))
    server.send({"id": "late", "task": "double", "input": 1})
    until(lambda: len(server.answers) == 2)
    gate.touch()
    assert server.wait() == (exit_codes.DONE if number == signal.SIGTERM else exit_codes.INTERRUPTED)
    _, late, *others = server.answers
    assert late["id"] == "late" and late["error"]["type"] == "ClosedError"
    assert sorted((answer["id"], answer["result"]) for answer in others) == [(each, str(gate)) for each in range(20)]
    assert not server.logged("Traceback") and not server.logged("crash")


def test_calls_that_take_longer_than_the_grace_time_have_one_error_each(serve, tmp_path):
    server = serve("--grace", "200 ms")
    _begun(server, tmp_path / "never")
    server.signal(signal.SIGTERM)
    assert server.wait() == exit_codes.DONE
    _, *others = server.answers
    assert sorted(answer["id"] for answer in others) == list(range(20))
    problems = {(answer["error"]["type"], answer["error"]["message"]) for answer in others}
    assert problems == {("ClosedError", "SIGTERM ended the server, and the call had not ended in time")}


def test_a_second_ctrl_c_ends_the_calls(serve, tmp_path):
    server = serve("--grace", "1 h")
    _begun(server, tmp_path / "never")
    server.signal(signal.SIGINT)
    until(lambda: server.logged("a second Ctrl-C"))
    server.signal(signal.SIGINT)
    assert server.wait() == exit_codes.INTERRUPTED
    assert sorted(answer["id"] for answer in server.answers if "error" in answer) == list(range(20))


def test_answers_that_nobody_reads_do_not_keep_the_server(folder):
    server = Server(folder, "--allow-unsigned", "--grace", "100 ms", stdout=(pipe := os.pipe())[1])
    try:
        os.close(pipe[1])
        server.send(*({"id": "x" * 5000, "task": "double", "input": each} for each in range(24)))
        until(lambda: _waiting_bytes(pipe[0]) > 50_000)
        server.signal(signal.SIGTERM)
        assert server.wait() == exit_codes.HOST_FAILED and server.logged("answers could not be written")
    finally:
        server.end()
        os.close(pipe[0])


SIGNALS_ELSEWHERE = """
import signal, sys, threading
from vmhost.lines import signals

signals._MARGIN_S = 0.1
never = threading.Lock()
never.acquire()
with signals.Signals(0.0) as found:
    found.begin()
    # Python's own handler runs on the main thread, which waits and is not woken
    threading.Timer(0.5, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM)).start()
    never.acquire()
"""


def test_a_signal_that_does_not_wake_the_main_thread_ends_the_process_all_the_same():
    done = subprocess.run(
        [sys.executable, "-c", SIGNALS_ELSEWHERE], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (
        exit_codes.HOST_FAILED,
        "error: answers could not be written within 0.1 s; the process ends without them\n",
    )


def _waiting_bytes(descriptor):
    return struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))[0]


def test_hangup_without_a_file_is_one_line_and_no_end(serve):
    server = serve()
    server.send({"id": 1, "task": "double", "input": 1})
    until(lambda: server.answers)
    server.signal(signal.SIGHUP)
    until(lambda: server.logged("SIGHUP"))
    server.send({"id": 2, "task": "double", "input": 2})
    until(lambda: len(server.answers) == 2)
    server.process.stdin.close()
    assert server.wait() == exit_codes.DONE
    assert server.answers[1] == {"id": 2, "result": 4} and len([line for line in server.log if "SIGHUP" in line]) == 1


def test_hangup_reads_the_settings_again_and_names_what_needs_a_restart(serve, tmp_path):
    settings = tmp_path / "host.yaml"
    settings.write_text("allow_unsigned: true\nstate: state\ntasks: {double: {limits: {memory: 32 MiB}}}\n")
    server = serve("--settings", settings)

    def read_again(text):
        settings.write_text(text)
        server.log.clear()
        server.signal(signal.SIGHUP)
        until(lambda: server.logged("host.yaml"))

    server.send({"id": 1, "task": "double", "input": 1})
    until(lambda: server.answers)
    read_again("allow_unsigned: true\nstate: other\nvms: {max: 7}\nlimits: {wall_time: 50 ms}\n")
    assert server.logged(f"changes that need a restart: {settings}:3: vms, {settings}:2: state")
    server.send({"id": 2, "task": "waits", "input": str(tmp_path / "never")})
    until(lambda: len(server.answers) == 2)
    assert server.answers[1]["error"]["type"] == "TimeLimitError"
    read_again("allow_unsigned: maybe\n")
    assert server.logged("allow_unsigned: expected")
    read_again("allow_unsigned: false\nstate: state\n")
    put(tmp_path / "served", bundle("def run(value): return 0", name="unsigned"))
    until(lambda: server.logged("unsigned.vmb"))
    server.send({"id": 3, "task": "double", "input": 3})
    until(lambda: len(server.answers) == 3)
    assert server.answers[2] == {"id": 3, "result": 6}


LINES = [
    b"\xef\xbb\xbf" + b'{"id": 1, "task": "double"}',
    b'{"id": 2, "task": "double", "input": "' + b"x" * (17 << 20) + b'"}',
    b'{"id": {"$set": [2, 1]}, "task": "double", "input": 1}',
    b'{"id": {"$set": [[]]}, "task": "double", "input": 1}',
    b'{"id": {"$nothing": 1}, "task": "double", "input": 1}',
    b'{"id": 1, "id": 2, "task": "double", "input": 1}',
    b'{"id": 1.0, "task": "double", "input": 1}',
    b'{"id": 1e2, "task": "double", "input": 1}',
    b'{"id": "\\ud800", "task": "double", "input": 1}',
    b'{"id": "\xff", "task": "double", "input": 1}',
    b'{"id": NaN, "task": "double", "input": 1}',
    b'{"id": ' + b"9" * 5000 + b', "task": "double", "input": 1}',
    b'{"id": ' + b"[" * 2000 + b"]" * 2000 + b', "task": "double", "input": 1}',
    b'{"id": {"$tuple": [1, {"$bytes": "AA=="}]}, "task": "double", "input": 1}',
    b"\0",
    b"[]",
    b"null",
    b"\x85",
    b"\x1c",
]


def test_each_line_has_one_answer_whatever_it_says(serve):
    server = serve()
    server.send(*LINES, {"id": "last", "task": "double", "input": 1})
    server.process.stdin.write(b'{"id": "unended"')
    server.process.stdin.close()
    assert server.wait() == exit_codes.DONE
    assert len(server.answers) == len(LINES) + 2
    ids = collections.Counter(json.dumps(answer["id"]) for answer in server.answers)
    assert ids['{"$set": [1, 2]}'] == ids['"last"'] == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_supervisor_ends_with_a_process_that_was_ended_and_goes_on_after_one_that_crashed(folder, tmp_path, number):
    server = Server(folder, "--allow-unsigned", "--supervise", "--state", tmp_path / "state")
    try:
        _begun(server, tmp_path / "never", number=3)
        os.kill(_child_of(server.process.pid), number)
        if number == signal.SIGTERM:
            (tmp_path / "never").touch()
            assert server.wait() == exit_codes.DONE  # though stdin is open
            assert [answer["result"] for answer in server.answers[1:]] == [str(tmp_path / "never")] * 3
            return
        until(lambda: len(server.answers) == 4)
        assert {answer["error"]["type"] for answer in server.answers[1:]} == {"VMLostError"}
        server.send({"id": "next", "task": "double", "input": 1})
        until(lambda: len(server.answers) == 5)
        assert server.answers[4] == {"id": "next", "result": 2}
        server.signal(signal.SIGTERM)
        assert server.wait() == exit_codes.DONE
    finally:
        server.end()


def test_a_short_grace_reaches_a_supervised_server(folder, tmp_path):
    server = Server(folder, "--allow-unsigned", "--supervise", "--state", tmp_path / "state", "--grace", "10 us")
    try:
        server.send({"id": 1, "task": "double", "input": 1})
        until(lambda: server.answers)
        assert server.answers == [{"id": 1, "result": 2}]
    finally:
        server.end()


def _child_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return int(file.read().split()[0])


@pytest.mark.parametrize("way", [[], ["--supervise"]])
def test_a_closed_stdin_is_one_clear_line(folder, tmp_path, way):
    command = f'exec "$0" -m vmhost serve "$1" --allow-unsigned --state "$2" {" ".join(way)} <&-'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, folder, tmp_path / "state"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == exit_codes.WRONG_INPUT
    assert done.stderr.splitlines()[-1] == "error: stdin is closed; calls come there, as lines of JSON"
    assert "Traceback" not in done.stderr and not done.stdout
