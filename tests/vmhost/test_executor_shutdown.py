"""How a VMExecutor ends, in every order, and what becomes of submitted calls."""

import concurrent.futures
import gc
import os
import textwrap
import threading
import time
import weakref
from pathlib import Path

import pytest

import vmhost
from tests import warm
from tests.hosts import in_a_process, until
from tests.vmhost import functions
from vmhost.runtime import service

ROOT = Path(__file__).parents[2]
LONG_S = 60


def run_script(tmp_path, text, status=0):
    """Run `text` as a script in a process of its own; gives what it printed."""
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(text))
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = warm.run("-W", "error", script, timeout=240, env=environment, cwd=tmp_path)
    assert done.returncode == status, done.stderr
    if status == 0:
        assert done.stderr == ""
    return done.stdout


@pytest.fixture
def gate(tmp_path):
    path = tmp_path / "gate"
    yield path
    path.touch()


def running_call(executor, gate):
    future = executor.submit(functions.wait_for_file, str(gate))
    while not future.running():
        pass
    return future


def test_submit_and_map_after_shutdown_raise_runtime_error():
    executor = vmhost.VMExecutor(1)
    executor.shutdown()
    with pytest.raises(RuntimeError, match="^cannot schedule new futures after shutdown$"):
        executor.submit(functions.echo)
    with pytest.raises(RuntimeError, match="^cannot schedule new futures after shutdown$"):
        executor.map(functions.echo, [1])


def test_shutdown_may_be_repeated_and_leaves_no_thread_behind():
    with vmhost.VMExecutor(1) as first:
        first.submit(functions.echo).result()  # the core's own thread stays
    before = threading.active_count(), len(os.listdir("/proc/self/task"))
    executor = vmhost.VMExecutor(2)
    assert sorted(executor.map(functions.echo, range(4))) == [0, 1, 2, 3]
    for _ in range(3):
        executor.shutdown()
    executor.shutdown(wait=False, cancel_futures=True)
    assert threading.active_count() <= before[0]
    end = time.monotonic() + 60  # the kernel lists a thread a moment longer than the thread runs
    while len(os.listdir("/proc/self/task")) > before[1]:
        assert time.monotonic() < end, "a thread of the executor still runs"
        time.sleep(0.001)


def test_leaving_with_waits_for_what_was_submitted(tmp_path):
    with vmhost.VMExecutor(2) as executor:
        futures = [executor.submit(functions.append_line, str(tmp_path / "lines"), i) for i in range(20)]
    assert all(future.done() for future in futures)
    assert len((tmp_path / "lines").read_text().split()) == 20


def test_leaving_with_through_an_error_waits_too():
    with pytest.raises(KeyError):
        with vmhost.VMExecutor(2) as executor:
            futures = [executor.submit(functions.echo, i) for i in range(20)]
            raise KeyError
    assert [future.result() for future in futures] == list(range(20))


def test_shutdown_without_wait_lets_what_was_submitted_run(gate):
    executor = vmhost.VMExecutor(1)
    futures = [running_call(executor, gate), *(executor.submit(functions.echo, i) for i in range(5))]
    executor.shutdown(wait=False)
    with pytest.raises(RuntimeError):
        executor.submit(functions.echo)
    assert not any(future.done() for future in futures)
    gate.touch()
    assert [future.result(LONG_S) for future in futures] == [str(gate), *range(5)]
    executor.shutdown()


def test_shutdown_can_cancel_what_waits_but_not_what_runs(gate):
    executor = vmhost.VMExecutor(1)
    running = running_call(executor, gate)
    waiting = [executor.submit(functions.echo, i) for i in range(20)]
    got = []
    waiting[0].add_done_callback(lambda future: got.append(future.cancelled()))
    executor.shutdown(wait=False, cancel_futures=True)
    assert all(future.cancelled() for future in waiting)
    with pytest.raises(concurrent.futures.CancelledError):
        waiting[3].result()
    with pytest.raises(concurrent.futures.CancelledError):
        waiting[3].exception()
    assert concurrent.futures.wait(waiting, timeout=LONG_S).not_done == set()
    assert not running.done()
    gate.touch()
    assert running.result(LONG_S) == str(gate)
    executor.shutdown()
    assert got == [True]


def test_cancelling_after_a_shutdown_that_drains(gate):
    executor = vmhost.VMExecutor(1)
    running = running_call(executor, gate)
    waiting = executor.submit(functions.echo)
    executor.shutdown(wait=False)
    assert not waiting.done()
    executor.shutdown(wait=False, cancel_futures=True)
    assert waiting.cancelled()
    gate.touch()
    executor.shutdown()
    assert running.result() == str(gate)


def test_a_call_cancelled_right_before_the_end():
    executor = vmhost.VMExecutor(1)
    executor.submit(int).result()
    executor.submit(int).cancel()
    executor.shutdown()


def test_cancelling_when_no_vm_has_booted_yet():
    executor = vmhost.VMExecutor(1)
    futures = [executor.submit(functions.nap, 0.001) for _ in range(50)]
    executor.shutdown(cancel_futures=True)
    assert all(future.cancelled() or future.result() == 0.001 for future in futures)


def test_a_map_outlives_its_executor():
    executor = vmhost.VMExecutor(2)
    dropped, closed = executor.map(functions.echo, range(20)), executor.map(functions.echo, range(20), chunksize=3)
    executor.shutdown(wait=False)
    del executor
    gc.collect()
    assert list(dropped) == list(closed) == list(range(20))


def test_a_map_whose_executor_cancels_raises_cancelled_error(gate):
    executor = vmhost.VMExecutor(1)
    running_call(executor, gate)
    results = executor.map(functions.echo, range(5))
    executor.shutdown(wait=False, cancel_futures=True)
    with pytest.raises(concurrent.futures.CancelledError):
        next(results)
    gate.touch()
    executor.shutdown()


def test_an_executor_that_only_a_callback_holds_ends(gate):
    executor = vmhost.VMExecutor(1)
    future, heard = running_call(executor, gate), threading.Event()
    future.add_done_callback(lambda done, held=executor: heard.set())
    gate.touch()
    heard.wait()
    dropped = weakref.ref(executor)
    del executor, future

    def is_gone():
        gc.collect()
        return dropped() is None

    until(is_gone)


def test_shutdown_from_a_callback():
    executor = vmhost.VMExecutor(2)
    closed = threading.Event()

    def close(future):
        executor.shutdown()
        closed.set()

    executor.submit(functions.echo).add_done_callback(close)
    others = [executor.submit(functions.echo, i) for i in range(10)] if not closed.is_set() else []
    assert closed.wait(LONG_S)
    assert [future.result(LONG_S) for future in others] == list(range(len(others)))
    executor.shutdown()


def test_shutdown_from_several_threads(gate):
    executor = vmhost.VMExecutor(2)
    futures = [executor.submit(functions.echo, i) for i in range(50)]
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda cancel: executor.shutdown(cancel_futures=cancel), [False, False, True, False]))
    assert all(future.done() for future in futures)
    assert all(future.cancelled() or future.result() == i for i, future in enumerate(futures))


def test_submitting_while_another_thread_shuts_down():
    for _ in range(10):
        executor = vmhost.VMExecutor(1)
        executor.submit(functions.echo).result()
        futures, refused = [], threading.Event()

        def submit():
            try:
                while True:
                    futures.append(executor.submit(functions.echo, len(futures)))
            except RuntimeError:
                refused.set()

        thread = threading.Thread(target=submit)
        thread.start()
        executor.shutdown()
        thread.join()
        assert refused.is_set()
        assert [future.result(LONG_S) for future in futures] == list(range(len(futures)))


def test_an_executor_that_is_dropped_runs_what_was_submitted(tmp_path):
    executor = vmhost.VMExecutor(2)
    futures = [executor.submit(functions.echo, i) for i in range(20)]
    executor.submit(functions.append_line, str(tmp_path / "lines"), "ran")
    own = executor._workers._service
    del executor
    gc.collect()
    assert [future.result(LONG_S) for future in futures] == list(range(20))
    assert own.wait_closed(LONG_S)
    assert (tmp_path / "lines").read_text() == "ran\n"


def test_an_executor_that_is_dropped_before_its_thread_had_a_turn_runs_what_was_submitted(monkeypatch):
    turn, serve = threading.Event(), service._serve

    def later(to_serve):
        turn.wait(LONG_S)
        serve(to_serve)

    monkeypatch.setattr(service, "_serve", later)
    executor = vmhost.VMExecutor(1)
    future, own = executor.submit(functions.echo, 1), executor._workers._service
    del executor
    gc.collect()
    assert own.abandoned
    turn.set()
    assert future.result(LONG_S) == 1
    assert own.wait_closed(LONG_S)


def test_an_executor_that_was_never_used():
    vmhost.VMExecutor(2).shutdown()
    with vmhost.VMExecutor():
        pass
    vmhost.VMExecutor(3)
    gc.collect()


PROGRAM = """
    import sys, time, threading
    from vmhost import VMExecutor

    def note(path, line):
        time.sleep(0.05)
        with open(path, "a") as file:
            file.write(f"{line} ")

    if __name__ == "__main__":
        executor = VMExecutor(1)
        futures = [executor.submit(note, %r, i) for i in range(3)]
"""


@pytest.mark.parametrize(
    "end",
    [
        "",
        "executor.shutdown(wait=False)",
        "del executor",
        "del executor, futures",
        "sys.exit(0)",
        "threading.Thread(target=lambda: futures[2].result()).start()",
        "import atexit; atexit.register(executor.shutdown)",
    ],
)
def test_at_exit_what_was_submitted_still_runs(tmp_path, end):
    lines = tmp_path / "lines"
    run_script(tmp_path, PROGRAM % str(lines) + f"        {end}\n")
    assert lines.read_text() == "0 1 2 "


def test_an_uncaught_error_of_the_program_keeps_its_status_and_waits(tmp_path):
    lines = tmp_path / "lines"
    run_script(tmp_path, PROGRAM % str(lines) + "        1 / 0\n", status=1)
    assert lines.read_text() == "0 1 2 "


def test_submitting_at_exit_is_refused_once_the_executor_was_drained(tmp_path):
    out = run_script(
        tmp_path,
        """
        import atexit
        from vmhost import VMExecutor

        def late():
            try:
                executor.submit(abs, -1)
            except RuntimeError as error:
                print(error)

        if __name__ == "__main__":
            atexit.register(late)
            executor = VMExecutor(1)
            print(executor.submit(abs, -1).result())
    """,
    )
    assert out == "1\ncannot schedule new futures after shutdown\n"


def test_an_executor_with_a_call_that_never_ends_can_be_interrupted(tmp_path):
    out = run_script(
        tmp_path,
        """
        import os, signal, threading
        from vmhost import VMExecutor

        def spin():
            while True:
                pass

        if __name__ == "__main__":
            executor = VMExecutor(1)
            future = executor.submit(spin)
            while not future.running():
                pass
            try:
                threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGINT]).start()
                future.result()
            except KeyboardInterrupt:
                print("interrupted")
            future.stop()
    """,
    )
    assert out == "interrupted\n"


@pytest.mark.parametrize(
    "way_out",
    [
        """
            with VMExecutor(1) as executor:
                wait_running(executor.submit(spin))
                os.kill(os.getpid(), signal.SIGINT)
""",
        """
            executor = VMExecutor(1)
            wait_running(executor.submit(spin))
            threading.Thread(target=interrupt_the_shutdown).start()
            executor.shutdown()
""",
    ],
    ids=["leaving with", "waiting in shutdown"],
)
def test_ctrl_c_stops_what_runs_as_it_ends_the_workers_of_a_process_pool(tmp_path, way_out):
    out = run_script(
        tmp_path,
        """
        import os, signal, threading
        from vmhost import VMExecutor

        def spin():
            while True:
                pass

        def wait_running(future):
            executor.submit(abs, -1)        # waits for ever unless it is cancelled
            while not future.running():
                pass

        def interrupt_the_shutdown():
            while not executor._workers.closed:
                pass
            threading.Event().wait(0.1)
            os.kill(os.getpid(), signal.SIGINT)

        def main():
            global executor
"""
        + way_out
        + """
        if __name__ == "__main__":
            try:
                main()
            except KeyboardInterrupt:
                print("interrupted")
    """,
    )
    assert out == "interrupted\n"


def test_ctrl_c_between_any_two_steps_of_shutdown(tmp_path):
    """A lock that was taken in that step, and is never released, would block the second shutdown forever."""
    out = run_script(
        tmp_path,
        """
        import itertools, sys
        from tests.hosts import interrupt_at
        from vmhost import VMExecutor

        def spin():
            while True:
                pass

        def interrupted(number):
            executor = VMExecutor(1)
            future = executor.submit(spin)
            sys.settrace(interrupt_at(number))
            try:
                executor.shutdown(wait=False, cancel_futures=True)
                return False
            except KeyboardInterrupt:
                return True
            finally:
                sys.settrace(None)
                executor.terminate_workers()
                executor.shutdown()
                print(future.cancelled())

        if __name__ == "__main__":
            for number in itertools.count(5, 7):
                if not interrupted(number):
                    break
    """,
    )
    assert set(out.split()) == {"True"} and len(out.split()) > 10


def test_ctrl_c_at_exit_ends_the_wait_for_what_still_runs_without_a_traceback(tmp_path):
    out = run_script(
        tmp_path,
        """
        import os, signal, sys, threading
        from vmhost import VMExecutor

        def spin():
            while True:
                pass

        if __name__ == "__main__":
            sys.stderr = sys.stdout
            executor = VMExecutor(1)
            future = executor.submit(spin)
            while not future.running():
                pass
            future.add_done_callback(lambda future: print(future.cancelled(), flush=True))
            main = threading.main_thread()

            def interrupt():
                while not executor._workers.closed:     # the wait at exit has begun, or is about to
                    pass
                threading.Event().wait(0.1)
                os.kill(os.getpid(), signal.SIGINT)

            threading.Thread(target=interrupt, daemon=True).start()
    """,
    )
    assert out == "True\n"


def test_ctrl_c_between_any_two_steps_of_making_an_executor_leaves_nothing():
    done = in_a_process("""
        import gc, itertools
        from tests.hosts import interrupt_at
        def nothing_left():
            # the main thread and the core's warden; a service's own ends a moment after its host
            return len(os.listdir("/proc/self/task")) <= 2 and len(os.listdir("/proc/self/fd")) <= descriptors
        for _ in range(2):
            vmhost.VMExecutor(1).shutdown()
        descriptors, interrupted = len(os.listdir("/proc/self/fd")), 0
        until(nothing_left)
        for number in itertools.count(5, 37):
            sys.settrace(interrupt_at(number))
            try:
                executor = vmhost.VMExecutor(1)
                # else it was interrupted in a finalizer, which CPython reports and forgets
                if sys.gettrace() is not None:
                    break
            except KeyboardInterrupt:
                interrupted += 1
            finally:
                sys.settrace(None)
        executor.shutdown()
        gc.collect()
        until(nothing_left)
        print(interrupted > 50)
    """)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_ctrl_c_while_an_executor_is_dropped_leaves_nothing():
    done = in_a_process("""
        from tests.hosts import interrupt_at
        def nothing_left():
            # the main thread and the core's warden; a service's own ends a moment after its host
            return len(os.listdir("/proc/self/task")) <= 2 and len(os.listdir("/proc/self/fd")) <= descriptors
        def drop(make):
            kept = [make()]
            sys.settrace(interrupt_at(number))
            try:
                kept.clear()
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(None)
        vmhost.VMExecutor(1).shutdown()
        vmhost.Host().close()
        descriptors = len(os.listdir("/proc/self/fd"))
        until(nothing_left)
        for number in range(1, 9):
            drop(lambda: vmhost.VMExecutor(1))
            drop(vmhost.Host)
        until(nothing_left)
        print("nothing left")
    """)
    assert (done.returncode, done.stdout) == (0, "nothing left\n"), done.stderr


def test_terminate_workers_ends_what_runs_and_what_waits(gate):
    executor = vmhost.VMExecutor(1)
    running, waiting = running_call(executor, gate), executor.submit(abs, -1)
    executor.terminate_workers()
    for future in running, waiting:
        with pytest.raises(concurrent.futures.CancelledError):
            future.result(timeout=60)
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(abs, -1)
    executor.shutdown()


def test_a_call_that_cannot_be_unwound_holds_up_nobody(tmp_path):
    out = run_script(
        tmp_path,
        """
        import os
        import re
        import threading
        from concurrent.futures import CancelledError
        import vmhost

        def search(path):
            open(path, "w").close()
            return re.match("(a+)+$", "a" * 64 + "b")

        if __name__ == "__main__":
            with vmhost.VMExecutor(1) as executor:
                future = executor.submit(search, os.path.abspath("begun"))
                while not os.path.exists("begun"):
                    pass
                def cpu_s():
                    return max(vm.cpu_s for vm in executor.statistics().vms if vm.task)
                before = cpu_s()
                while cpu_s() < before + 0.1:       # from the file's end into the regular expression
                    threading.Event().wait(0.01)
                future.stop()
                try:
                    future.result()
                # the latter where the machine is so busy that the VM has more time
                except (vmhost.VMLostError, CancelledError):
                    print("answered")
                print(executor.submit(abs, -1).result())
            print(len(executor.statistics().quarantined))
    """,
    )
    assert out == "answered\n1\n1\n"
