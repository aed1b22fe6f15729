"""VMExecutor as a user of concurrent.futures would use it: submit, map, futures, errors, asyncio."""

import asyncio
import concurrent.futures
import functools
import itertools
import multiprocessing
import os
import socket
import threading
import traceback
import weakref

import pytest

import vmhost
from tests.vmhost import functions

LONG_S = 60  # longer than any test takes: such a wait means an error


@pytest.fixture(scope="module")
def pool():
    with vmhost.VMExecutor(2) as executor:
        yield executor


@pytest.fixture
def gate(tmp_path, pool):
    """A file that a call waits for, as (path, open); opened at the end at the latest."""
    path = tmp_path / "gate"
    yield str(path), path.touch
    path.touch()


def wait_until_running(future):
    while not future.running():
        assert not future.done()


# -- submit ----------------------------------------------------------------------------------------------------------


def test_submit_gives_a_future_of_the_result(pool):
    future = pool.submit(functions.add, 1, 2, 3, scale=10)
    assert isinstance(future, concurrent.futures.Future)
    assert future.result() == 60
    assert future.done() and not future.cancelled() and not future.running()
    assert future.exception() is None


def test_arguments_of_submit_may_have_the_names_of_its_own(pool):
    with pytest.raises(TypeError):
        pool.submit(arg=1)
    assert pool.submit(dict, fn=1, self=2).result() == {"fn": 1, "self": 2}


def test_values_cross_as_they_are(pool):
    values = [None, True, 2**70, -1.5, 1j, "käse", b"\0\1", [1, [2]], (1, (2,)), {"a": {1: None}}, {1, 2}]
    assert list(pool.map(functions.echo, values)) == values
    assert [type(value) for value in pool.map(functions.echo, values)] == [type(value) for value in values]


def test_what_cannot_cross_is_said_at_submit(pool):
    with pytest.raises(vmhost.CrossingError, match="object"):
        pool.submit(functions.echo, object())
    with pytest.raises(TypeError, match="result"):
        pool.submit(functions.return_object).result()
    assert pool.submit(functions.add, 1, 1).result() == 2


def test_functions_see_the_globals_of_their_own_module_not_the_hosts(pool, monkeypatch):
    monkeypatch.setattr(functions, "OFFSET", 5)
    assert pool.submit(functions.shifted, 1).result() == 101


def test_submitting_from_several_threads(pool):
    def submit(start):
        futures = [pool.submit(functions.add, start, i) for i in range(50)]
        return [future.result() for future in futures]

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        for start, results in enumerate(threads.map(submit, range(8))):
            assert results == [start + i for i in range(50)]


def test_workers_run_at_the_same_time(pool, tmp_path):
    results = pool.map(functions.meet, [str(tmp_path)] * 2, range(2), [2] * 2)
    assert list(results) == [0, 1]


def test_no_more_vms_boot_than_there_is_work_for():
    with vmhost.VMExecutor(8) as executor:
        for i in range(20):
            assert executor.submit(functions.echo, i).result() == i
        assert executor.statistics().booted == 1
    assert executor.statistics().ended == 1


def test_at_most_max_workers_vms(tmp_path):
    with vmhost.VMExecutor(2) as executor:
        futures = [executor.submit(functions.nap, 0.001) for _ in range(40)]
        concurrent.futures.wait(futures)
        assert executor.statistics().booted == 2


@pytest.mark.parametrize("number", [0, -1])
def test_max_workers_is_a_count(number):
    with pytest.raises(ValueError, match="max_workers must be greater than 0"):
        vmhost.VMExecutor(max_workers=number)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"mp_context": multiprocessing.get_context("spawn")}, "VMExecutor takes no mp_context: .* leave it out"),
        (
            {"thread_name_prefix": multiprocessing.get_context("spawn")},
            "VMExecutor takes no mp_context: .* leave it out",
        ),
        ({"max_tasks_per_child": 3}, "VMExecutor takes no max_tasks_per_child: .* leave it out"),
        ({"thread_name_prefix": 3}, "thread_name_prefix: expected a str, got 3"),
        ({"max_workers": 1.5}, "max_workers: expected a whole number or None, got 1.5"),
    ],
)
def test_what_only_process_pools_take_is_refused_with_the_reason(arguments, message):
    with pytest.raises(TypeError, match=message):
        vmhost.VMExecutor(**arguments)


def test_what_process_pools_take_may_be_none():
    vmhost.VMExecutor(1, mp_context=None, max_tasks_per_child=None).shutdown()


def test_a_vm_keeps_its_modules_between_calls():
    with vmhost.VMExecutor(1) as executor:
        executor.submit(functions.remember, "kept").result()
        assert executor.submit(functions.recall).result() == ["kept"]
    assert functions.seen == []


def test_limits_are_those_of_a_task():
    with vmhost.VMExecutor(1, limits={"wall_time": "1 s"}) as executor:
        with pytest.raises(vmhost.TimeLimitError):
            executor.submit(functions.nap, LONG_S).result()
    with vmhost.VMExecutor(1, limits={"memory": "32 MiB"}) as executor:
        with pytest.raises(vmhost.MemoryLimitError):
            executor.submit(bytes, 1 << 28).result()


def test_without_limits_a_call_may_use_much_memory(pool):
    assert pool.submit(functions.echo, 0).result() == 0
    assert pool.submit(bytes, 80 << 20).result() == bytes(80 << 20)


def test_permissions_are_the_hosts_own_unless_given(pool, tmp_path):
    file = tmp_path / "lines"
    pool.submit(functions.append_line, str(file), "hello").result()
    assert file.read_text() == "hello\n"
    assert pool.submit(functions.environment, "PATH").result() == os.environ["PATH"]
    assert pool.submit(functions.listen, "127.0.0.1").result() > 0
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert pool.submit(functions.connect, *server.getsockname()).result() is True
        with vmhost.VMExecutor(1, permissions={"write": [tmp_path / "other"]}) as executor:
            for call in ((functions.append_line, str(file), "again"), (functions.connect, *server.getsockname())):
                with pytest.raises(vmhost.PermissionDenied, match="not granted"):
                    executor.submit(*call).result()
            assert executor.submit(functions.environment, "PATH").result() is None
            (tmp_path / "other").mkdir()
            executor.submit(functions.append_line, str(tmp_path / "other" / "lines"), "granted").result()
    assert file.read_text() == "hello\n"


@pytest.mark.parametrize(
    "settings",
    [
        {"permissions": {"read": "/data"}},
        {"permissions": {"rad": []}},
        {"limits": {"memry": 1}},
        {"limits": {"memory": "a lot"}},
    ],
)
def test_wrong_settings_are_said(settings):
    with pytest.raises(vmhost.ConfigurationError, match="permissions|limit"):
        vmhost.VMExecutor(1, **settings)


# -- map -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunksize", [1, 2, 7, 100])
def test_map_gives_what_map_gives(pool, chunksize):
    assert list(pool.map(pow, range(10), range(10), chunksize=chunksize)) == list(map(pow, range(10), range(10)))
    assert list(pool.map(functions.add, range(5), itertools.count(), chunksize=chunksize)) == [0, 2, 4, 6, 8]
    assert list(pool.map(functions.echo, [], chunksize=chunksize)) == []


@pytest.mark.parametrize("chunksize", [1, 3])
def test_map_gives_the_results_before_an_error_then_the_error(pool, chunksize):
    results = pool.map(divmod, [1, 1, 1, 1, 1], [1, 1, 1, 0, 1], chunksize=chunksize)
    assert [next(results) for _ in range(3)] == [(1, 0)] * 3
    with pytest.raises(ZeroDivisionError) as caught:
        next(results)
    assert isinstance(caught.value.__cause__, vmhost.TaskError)
    with pytest.raises(StopIteration):
        next(results)


def test_map_raises_timeout_error(pool, gate):
    path, _ = gate
    for timeout_s in (0.05, 1, 20):  # a slow machine may need more for the first
        results = pool.map(functions.wait_for_file, [__file__, path], timeout=timeout_s)
        try:
            assert next(results) == __file__
            break
        except TimeoutError:
            pass
    with pytest.raises(TimeoutError):
        next(results)


def test_map_starts_before_it_is_iterated(pool, tmp_path):
    file = tmp_path / "lines"
    results = pool.map(functions.append_line, [str(file)], ["here"])
    pool.submit(functions.wait_for_file, str(file)).result(LONG_S)
    assert list(results) == [None]


@pytest.mark.parametrize(
    "chunksize, buffersize, error",
    [(0, None, ValueError), (-1, None, ValueError), (1, 0, ValueError), (1, "2", TypeError)],
)
def test_map_refuses_wrong_sizes(pool, chunksize, buffersize, error):
    with pytest.raises(error, match="chunksize|buffersize"):
        pool.map(functions.echo, [1], chunksize=chunksize, buffersize=buffersize)


def test_buffersize_bounds_what_map_takes_ahead(pool):
    source = itertools.count()
    results = pool.map(functions.echo, source, buffersize=3)
    assert next(source) == 3
    assert next(results) == 0
    assert next(source) == 5
    assert list(itertools.islice(results, 5)) == [1, 2, 4, 6, 7]
    results.close()


def test_a_map_that_is_left_cancels_what_waits(tmp_path):
    gate, file = tmp_path / "gate", tmp_path / "lines"
    with vmhost.VMExecutor(1) as executor:
        results = executor.map(functions.wait_for_file, [__file__] + [str(gate)] * 50)
        assert next(results) == __file__
        results.close()
        gate.touch()
        executor.submit(functions.append_line, str(file), "x").result()
        assert executor.statistics().tasks["executor"].ended["CANCELLED"] >= 49


def test_a_map_that_nobody_iterates_runs(tmp_path):
    with vmhost.VMExecutor(1) as executor:
        executor.map(functions.append_line, [str(tmp_path / "lines")] * 5, range(5))
    assert (tmp_path / "lines").read_text() == "0\n1\n2\n3\n4\n"


def test_map_of_a_partial(pool):
    function = functools.partial(functions.add, 1, scale=2)
    assert list(pool.map(function, [1, 2, 3])) == [4, 6, 8]
    assert list(pool.map(function, [1, 2, 3], chunksize=2)) == [4, 6, 8]


def test_map_ends_with_what_does_not_cross(pool):
    with pytest.raises(vmhost.CrossingError):
        pool.map(functions.echo, [1, object()])


# -- futures ---------------------------------------------------------------------------------------------------------


def test_cancel_takes_a_waiting_call_out_and_leaves_a_running_one(tmp_path):
    gate = tmp_path / "gate"
    with vmhost.VMExecutor(1) as executor:
        running = executor.submit(functions.wait_for_file, str(gate))
        wait_until_running(running)
        waiting = executor.submit(functions.append_line, str(tmp_path / "ran"), "x")
        assert not running.cancel() and not running.cancelled()
        assert waiting.cancel() and waiting.cancelled() and waiting.done()
        assert waiting.cancel()
        with pytest.raises(concurrent.futures.CancelledError):
            waiting.result()
        with pytest.raises(concurrent.futures.CancelledError):
            waiting.exception()
        gate.touch()
        assert running.result() == str(gate)
        assert not running.cancel()
    assert not (tmp_path / "ran").exists()


def test_stop_ends_a_running_call():
    with vmhost.VMExecutor(1) as executor:
        future = executor.submit(functions.nap, LONG_S)
        wait_until_running(future)
        future.stop()
        with pytest.raises(concurrent.futures.CancelledError):
            future.result(LONG_S)
        assert future.cancelled()
        assert executor.submit(functions.echo, 1).result() == 1


def test_a_future_gives_the_same_objects_each_time(pool):
    future = pool.submit(functions.echo, [1])
    assert future.result() is future.result()
    failed = pool.submit(functions.inverse, 0)
    assert failed.exception() is failed.exception()
    with pytest.raises(ZeroDivisionError) as caught:
        failed.result()
    assert caught.value is failed.exception()


def test_result_and_exception_time_out(pool, gate):
    path, open_gate = gate
    future = pool.submit(functions.wait_for_file, path)
    with pytest.raises(TimeoutError):
        future.result(timeout=0)
    with pytest.raises(TimeoutError):
        future.exception(timeout=0.001)
    open_gate()
    assert future.result() == path


def test_callbacks_get_the_future_once_it_is_done(pool, gate):
    path, open_gate = gate
    future = pool.submit(functions.wait_for_file, path)
    called, order = threading.Event(), []
    future.add_done_callback(lambda done: order.append(("first", done, done.result())))
    future.add_done_callback(lambda done: called.set())
    assert not order
    open_gate()
    assert called.wait(LONG_S)
    assert order == [("first", future, path)]


def test_a_callback_on_a_done_future_is_called_at_once(pool):
    future = pool.submit(functions.inverse, 0)
    assert isinstance(future.exception(), ZeroDivisionError)
    got = []
    future.add_done_callback(got.append)
    assert got == [future]


def test_callbacks_have_run_when_the_executor_was_left():
    got = []

    def take(future):
        threading.Event().wait(0.01)  # longer than the VMs take to end
        got.append(future.result())

    with vmhost.VMExecutor(2) as executor:
        for i in range(20):
            executor.submit(functions.echo, i).add_done_callback(take)
    assert sorted(got) == list(range(20))


def test_a_callback_that_raises_is_logged_and_hurts_nobody(pool, caplog, gate):
    path, open_gate = gate
    future = pool.submit(functions.wait_for_file, path)
    called = threading.Event()
    future.add_done_callback(lambda done: 1 / 0)
    future.add_done_callback(lambda done: called.set())
    open_gate()
    assert called.wait(LONG_S)
    assert "exception calling callback" in caplog.text and "ZeroDivisionError" in caplog.text


def calls_back_after(pool, folder, callback):
    """Whether callbacks run after `callback` ran on their thread."""
    called, paths = threading.Event(), [folder / "first", folder / "second"]
    first, second = (pool.submit(functions.wait_for_file, str(path)) for path in paths)
    first.add_done_callback(callback)
    second.add_done_callback(lambda done: called.set())
    try:
        paths[0].touch()
        first.result()
    finally:
        paths[1].touch()
    return called.wait(LONG_S)


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit()])
def test_callbacks_run_on_after_one_that_would_end_its_thread(pool, tmp_path, caplog, error):
    def leave(_):
        raise error

    assert calls_back_after(pool, tmp_path, leave)
    assert "a callback failed" in caplog.text


def test_ctrl_c_that_arrives_in_a_callback_is_raised_on_the_main_thread(pool, tmp_path):
    def interrupt(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calls_back_after(pool, tmp_path, interrupt)
        threading.Event().wait(LONG_S)
    (tmp_path / "again").mkdir()
    assert calls_back_after(pool, tmp_path / "again", lambda done: None)


def test_a_callback_may_submit(pool):
    ended = threading.Event()
    results = []

    def again(future):
        results.append(future.result())
        if len(results) < 5:
            pool.submit(functions.add, results[-1], 1).add_done_callback(again)
        else:
            ended.set()

    pool.submit(functions.add, 0, 1).add_done_callback(again)
    assert ended.wait(LONG_S)
    assert results == [1, 2, 3, 4, 5]


def test_callback_of_a_cancelled_future(tmp_path):
    gate = tmp_path / "gate"
    got = []
    with vmhost.VMExecutor(1) as executor:
        running = executor.submit(functions.wait_for_file, str(gate))
        waiting = executor.submit(functions.echo)
        waiting.add_done_callback(lambda future: got.append(future.cancelled()))
        assert waiting.cancel()
        assert got == [True]
        gate.touch()
        running.result()


def test_as_completed_gives_futures_as_they_end(pool, gate):
    path, open_gate = gate
    late, early = pool.submit(functions.wait_for_file, path), pool.submit(functions.add, 1, 1)
    ended = concurrent.futures.as_completed([late, early, early], timeout=LONG_S)
    assert next(ended) is early
    open_gate()
    assert next(ended) is late
    assert list(ended) == []


def test_as_completed_gives_a_future_once(pool):
    future = pool.submit(functions.echo)
    assert list(concurrent.futures.as_completed(itertools.repeat(future, 3))) == [future]


def test_as_completed_with_no_time_gives_what_is_done(pool, gate):
    path, open_gate = gate
    done, late = pool.submit(functions.echo), pool.submit(functions.wait_for_file, path)
    done.result()
    got = []
    with pytest.raises(TimeoutError):
        for future in concurrent.futures.as_completed([done, late], timeout=0):
            got.append(future)
    assert got == [done]
    open_gate()


def test_wait_for_first_completed_first_exception_and_all(pool, gate):
    path, open_gate = gate
    late, early = pool.submit(functions.wait_for_file, path), pool.submit(functions.echo)
    done, not_done = concurrent.futures.wait([late, early], return_when=concurrent.futures.FIRST_COMPLETED)
    assert (done, not_done) == ({early}, {late})
    failing = pool.submit(functions.inverse, 0)
    done, not_done = concurrent.futures.wait([late, failing], return_when=concurrent.futures.FIRST_EXCEPTION)
    assert (done, not_done) == ({failing}, {late})
    assert concurrent.futures.wait([late, early], timeout=0) == ({early}, {late})
    open_gate()
    assert concurrent.futures.wait([late, early, failing]) == ({late, early, failing}, set())


def test_many_futures_waited_for_from_many_threads(pool):
    futures = [pool.submit(functions.echo, i) for i in range(300)]

    def collect(_):
        return sorted(future.result() for future in concurrent.futures.as_completed(futures))

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        assert list(threads.map(collect, range(4))) == [list(range(300))] * 4


def test_a_future_does_not_keep_what_it_was_called_with(pool):
    class Kept(list):
        pass

    argument = Kept([1])
    gone = weakref.ref(argument)
    future = pool.submit(functions.echo, [1])
    del argument
    assert future.result() == [1] and gone() is None


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad", 3),
        KeyError("x"),
        ZeroDivisionError(),
        OSError(2, "No such file"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "why"),
        TimeoutError("late"),
        StopIteration(4),
    ],
)
def test_builtin_exceptions_come_back_as_themselves(pool, error):
    future = pool.submit(functions.raise_error, type(error).__name__, *error.args)
    raised = future.exception()
    assert type(raised) is type(error) and raised.args == error.args and str(raised) == str(error)
    assert isinstance(raised.__cause__, vmhost.TaskError)
    with pytest.raises(type(error)):
        future.result()


def test_errors_about_files_name_the_file(pool, tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        pool.submit(functions.append_line, str(tmp_path / "none" / "lines"), "x").result()
    assert caught.value.filename == str(tmp_path / "none" / "lines") and caught.value.errno == 2


def test_the_traceback_shows_the_functions_own_file_and_lines(pool):
    with pytest.raises(ZeroDivisionError) as caught:
        pool.submit(functions.inverse, 0).result()
    text = "".join(traceback.format_exception(caught.value))
    line = functions.inverse.__code__.co_firstlineno + 1
    assert f'File "{functions.__file__}", line {line}, in inverse' in text


def test_the_traceback_of_a_chunk_is_that_of_the_function(pool):
    with pytest.raises(ZeroDivisionError) as caught:
        list(pool.map(functions.inverse, [1, 0], chunksize=2))
    text = "".join(traceback.format_exception(caught.value))
    assert f'File "{functions.__file__}"' in text and "call_rows" not in text


def test_the_chain_of_an_exception_is_in_the_traceback(pool):
    with pytest.raises(KeyError, match="outer") as caught:
        pool.submit(functions.raise_from_cause).result()
    text = "".join(traceback.format_exception(caught.value))
    assert "ZeroDivisionError" in text and "direct cause" in text


def test_notes_come_back(pool):
    assert pool.submit(functions.raise_noted).exception().__notes__ == ["a note"]


def test_exceptions_of_the_module_come_as_themselves_and_others_as_task_error(pool):
    error = pool.submit(functions.raise_unheard).exception()
    assert type(error) is functions.Unheard and error.args == ("of",)
    cause = error.__cause__
    assert cause.type_name == "tests.vmhost.functions.Unheard" and cause.guest_message == "of"
    assert type(pool.submit(functions.raise_with_object).exception()) is vmhost.TaskError


def test_exit_of_a_function_is_no_exit_of_the_host(pool):
    with pytest.raises(vmhost.TaskError, match="SystemExit"):
        pool.submit(functions.raise_error, "SystemExit", 3).result()


def test_wrong_arguments_are_a_type_error(pool):
    with pytest.raises(TypeError, match="make_closure"):
        pool.submit(functions.make_closure).result()


# -- asyncio ---------------------------------------------------------------------------------------------------------


def test_run_in_executor(pool):
    async def main():
        loop = asyncio.get_running_loop()
        results = await asyncio.gather(*(loop.run_in_executor(pool, functions.add, i, 1) for i in range(20)))
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(pool, functions.inverse, 0)
        return results

    assert asyncio.run(main()) == list(range(1, 21))


def test_cancelling_run_in_executor_cancels_what_waits(tmp_path):
    gate = tmp_path / "gate"

    async def main(executor):
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(executor, functions.wait_for_file, str(gate))
        waiting = loop.run_in_executor(executor, functions.append_line, str(tmp_path / "ran"), "x")
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        gate.touch()
        return await running

    with vmhost.VMExecutor(1) as executor:
        assert asyncio.run(main(executor)) == str(gate)
    assert not (tmp_path / "ran").exists()


def test_async_functions_run_to_their_end(pool):
    assert pool.submit(functions.later, 2).result() == 10
    assert list(pool.map(functions.later, [1, 2, 3], chunksize=2)) == [5, 10, 15]
