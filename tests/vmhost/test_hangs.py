"""Orders of events that once caused a wait without end, or would. Each is forced here; waiting threads are joined
with a limit."""

import threading

import pytest

import vmhost
from tests.hosts import bundle, in_a_process
from tests.vmhost import functions
from vmhost import future as future_module

LONG_S = 30


def in_time(act):
    """Runs `act` on a thread of its own, which must not hang; returns its result."""
    results = []
    thread = threading.Thread(target=lambda: results.append(act()), daemon=True)
    thread.start()
    thread.join(LONG_S)
    assert not thread.is_alive(), "it hangs"
    return results[0]


@pytest.fixture
def task():
    with vmhost.Host(allow_unsigned=True) as host:
        yield host.load(bundle("def run(value):\n    return value\n"))


def test_each_who_watches_a_call_is_told_though_another_was_told_before(task):
    """A breaker's probe is watched by the breaker, and then by its awaiter; it may have ended in between."""
    call = task._current.lane.submit(1)
    for _ in range(3):
        notified = threading.Event()
        task._service.watch(call, notified.set)
        assert notified.wait(LONG_S)


@pytest.mark.parametrize("same", [True, False])
def test_a_finalizer_may_ask_for_a_future_while_another_is_made(task, monkeypatch, same):
    """The garbage collector may run anywhere, also while the lock for making futures is held."""
    asked, other = task.submit(1), task.submit(2)
    called = [threading.Event(), threading.Event()]
    make = future_module._Future

    def make_with_a_collection():
        monkeypatch.setattr(future_module, "_Future", make)
        (asked if same else other).add_done_callback(lambda future: called[0].set())
        return make()

    monkeypatch.setattr(future_module, "_Future", make_with_a_collection)
    in_time(lambda: asked.add_done_callback(lambda future: called[1].set()))
    assert all(event.wait(LONG_S) for event in called)


def test_a_finalizer_may_watch_a_call_while_the_watchers_are_locked(task):
    def watch():
        notified = threading.Event()
        with task._service._watch_lock:
            task._service.watch(task._current.lane.submit(1), notified.set)
        return notified.wait(LONG_S)

    assert in_time(watch)


def test_a_finalizer_may_submit_while_a_function_is_packed():
    with vmhost.VMExecutor(1) as executor:

        def submit():
            with executor._workers._lock:
                return executor.submit(functions.echo, 1)

        assert in_time(submit).result() == 1


def test_a_host_with_a_state_folder_does_not_wait_for_an_executor_that_was_dropped(tmp_path):
    gate = tmp_path / "gate"
    executor = vmhost.VMExecutor(1)
    future = executor.submit(functions.wait_for_file, str(gate))
    service = executor._workers._service
    del executor
    try:
        assert service.abandoned
        with in_time(lambda: vmhost.Host(state=tmp_path / "state")):
            assert not future.done()
    finally:
        gate.touch()
    assert future.result(LONG_S) == str(gate)
    assert service.wait_closed(LONG_S)


def test_the_service_outlives_a_failure_to_take_events(task, monkeypatch, caplog):
    events = task._service.events
    failed = threading.Event()

    class Failing:
        def __getattr__(self, name):
            return getattr(events, name)

        def wait(self, timeout_s=None):
            task._service.events = events
            failed.set()
            raise MemoryError

    task._service.events = Failing()
    events.wake()
    assert failed.wait(LONG_S)
    assert in_time(lambda: task.submit(1).result()) == 1
    assert "events could not be read" in caplog.text
    caplog.clear()  # the record's traceback keeps what the thread holds


def test_ctrl_c_that_comes_right_before_the_sleep_is_seen():
    """Then nothing interrupts the sleep: `interrupt_main` does just that, it says that a signal came and wakes
    nobody."""
    done = in_a_process("""
        import _thread
        host = vmhost.Host(allow_unsigned=True)
        task = host.load(bundle("def run(value):\\n    while True: pass\\n"))
        for wait in (lambda: task(1), lambda: task.submit(1).result(), lambda: task.submit(1).result(200),
                     lambda: list(task.map([1]))):
            def interrupt():
                until(lambda: host.statistics().tasks["task"].running)
                time.sleep(0.1)         # into the sleep
                _thread.interrupt_main()
            threading.Thread(target=interrupt).start()
            try:
                wait()
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            host.unload("task", drain=False)
            task = host.load(bundle("def run(value):\\n    while True: pass\\n"))
        host.close(drain=False)
    """)
    assert (done.returncode, done.stdout) == (0, "interrupted\n" * 4), done.stderr


def test_two_threads_that_fork_at_once_do_not_keep_vms_from_booting():
    """The thread that waits for the other's fork reported that nothing was hidden, so no one released the lock."""
    done = in_a_process("""
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)     # CPython's, that a process with threads forks
        from vmhost.isolation import _core
        host = vmhost.Host(allow_unsigned=True, policy=Policy(warm=0, max_warm=0))
        task = host.load(bundle("def run(value):\\n    return value\\n"))
        _core.fork_prepare()                                    # this thread is about to fork, ...
        # ... and so is another, which waits, and gives up waiting
        other = threading.Thread(target=_core.fork_prepare)
        other.start()
        other.join()
        _core.fork_parent()                                     # ... and now has forked
        print(task.submit(1).result(60))
        host.close()
    """)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_a_forked_child_lets_go_of_everything_without_a_lock():
    """A thread that does not exist in the child may have held any of these locks at the fork: the child runs with all
    of them taken."""
    done = in_a_process("""
        import concurrent.futures, gc, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        host = vmhost.Host(allow_unsigned=True)
        task = host.load(bundle("import time\\ndef run(value):\\n    time.sleep(value)\\n    return value\\n"))
        future = task.submit(3600)
        child = os.fork()
        if child == 0:
            for act in (future.result, future.stop, future.cancel):
                try:
                    act()
                except RuntimeError as error:
                    print("forked" in str(error), flush=True)
            host.close()
            os._exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), future.done())
        future.stop()
        try:
            future.result(60)
        except concurrent.futures.CancelledError:
            print("stopped", task(0), host.close())
    """)
    assert (done.returncode, done.stdout) == (0, "True\nTrue\nTrue\n7 False\nstopped 0 ()\n"), done.stderr
