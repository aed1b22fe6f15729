"""Slow host functions: what a guest gets, and what becomes of them when the host or the process
ends."""

import logging
import os
import subprocess
import sys
import threading

import pytest

import vmhost
from tests.hosts import ROOT, bundle, in_a_process, stopped_by_its_deadline, until
from vmhost.limits import Policy
from vmhost.runtime import service as service_module
from vmhost.runtime.host_functions import FunctionThreads

ASKS = "from vmhost import guest\ndef run(value):\n    return guest.host.price(value)\n"
LONG_S = 120
PATIENT = Policy(grace_s=20)  # on a busy machine a stopped guest may take a while to unwind


def asking(host, **fields):
    return host.load(bundle(ASKS, permissions={"host": ["price"]}, **fields))


@pytest.fixture
def slow():
    """A function that begins, and returns when the test lets it: (function, its events `began` and `end`)."""

    class Slow:
        def __init__(self):
            self.began, self.end = threading.Event(), threading.Event()

        def __call__(self, value):
            self.began.set()
            return self.end.wait(LONG_S)

    function = Slow()
    yield function
    function.end.set()
    until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("vmhost-function")])


def test_threads_are_made_as_they_are_needed_up_to_their_number():
    threads, gate, seen = FunctionThreads(2), threading.Semaphore(0), []

    def act():
        seen.append(threading.current_thread())
        assert gate.acquire(timeout=LONG_S)

    assert threads.run("first", act)
    until(lambda: threads.running == ("first",))
    gate.release()
    until(lambda: threads.running == ())
    for _ in range(5):
        assert threads.run("again", act)
    until(lambda: threads.running == ("again", "again"))
    assert len(set(seen)) <= 2
    threads.close()
    threads.close()
    assert not threads.run("late", act)
    assert threads.wait(0) == ("again", "again")
    gate.release(5)
    assert threads.wait(float("inf")) == ()
    assert len(seen) == 6 and not any(thread.is_alive() for thread in seen)


def test_close_waits_for_a_function_whose_guest_gave_up(slow, caplog, monkeypatch):
    monkeypatch.setattr(service_module, "_FUNCTIONS_END_S", LONG_S)
    with vmhost.Host(allow_unsigned=True, policy=PATIENT, functions={"price": slow}) as host:
        task = asking(host)
        error = stopped_by_its_deadline(task, "apple", "run", lambda error: slow.began.is_set())
        assert "did not end within its time" in str(error) and host.statistics().functions == ("price",)
        threading.Timer(0.2, slow.end.set).start()
    assert slow.end.is_set() and host.statistics().functions == ()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("vmhost-function")]
    assert "still run" not in caplog.text


def test_close_says_what_it_did_not_wait_for_any_longer(slow, caplog, monkeypatch):
    monkeypatch.setattr(service_module, "_FUNCTIONS_END_S", 0.05)
    host = vmhost.Host(allow_unsigned=True, policy=PATIENT, functions={"price": slow})
    future = asking(host).submit("apple")
    assert slow.began.wait(LONG_S)
    with caplog.at_level(logging.ERROR, "vmhost"):
        assert host.close(drain=False) == ()
    with pytest.raises(vmhost.ClosedError):
        future.result(timeout=0)
    assert "host functions still run 0.05 s after the host has closed: price" in caplog.text
    assert host.statistics().functions == ("price",)
    slow.end.set()
    until(lambda: host.statistics().functions == ())


@pytest.mark.parametrize("drain", [True, False])
def test_a_function_may_close_its_own_host(drain):
    def close(value):
        closed.append(host.close(drain=drain))
        return value

    closed = []
    host = vmhost.Host(allow_unsigned=True, policy=PATIENT, functions={"price": close})
    future = asking(host).submit(3)
    if drain:
        assert future.result(LONG_S) == 3
    else:
        assert type(future.exception(LONG_S)) is vmhost.ClosedError
    assert host.close() == () and closed == [()]


def test_a_function_that_exits_answers_with_its_error():
    def leave(value):
        raise SystemExit(value)

    with vmhost.Host(allow_unsigned=True, functions={"price": leave}) as host:
        with pytest.raises(vmhost.TaskError, match="SystemExit: 3"):
            asking(host)(3, timeout_s=LONG_S)


@pytest.mark.parametrize("closes", [True, False])
def test_the_process_leaves_though_a_function_never_returns(closes):
    done = in_a_process(f"""
        import logging
        began = threading.Event()
        host = vmhost.Host(allow_unsigned=True, policy=Policy(grace_s=20), functions={{
            "price": lambda value: began.set() or threading.Event().wait()}})
        task = host.load(bundle({ASKS!r}, permissions={{"host": ["price"]}}))
        future = task.submit(1)
        began.wait()
        if {closes}:
            print(host.close(drain=False), host.statistics().functions, flush=True)
        sys.exit(3)
    """)
    assert (done.returncode, done.stdout) == (3, "() ('price',)\n" if closes else ""), done.stderr


def test_an_initializer_runs_though_its_vm_boots_when_the_program_has_ended(tmp_path):
    """By then CPython's own thread pools refuse work."""
    program = tmp_path / "program.py"
    program.write_text(
        "import vmhost\n"
        "def begin(path):\n    with open(path, 'a') as file: file.write('began ')\n"
        "def note(path):\n    with open(path, 'a') as file: file.write('noted ')\n"
        "if __name__ == '__main__':\n"
        f"    path = {str(tmp_path / 'lines')!r}\n"
        "    executor = vmhost.VMExecutor(1, initializer=begin, initargs=(path,))\n"
        "    future = executor.submit(note, path)\n"
    )
    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        text=True,
        timeout=LONG_S,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "lines").read_text() == "began noted "
