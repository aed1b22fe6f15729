"""Ways of calling a task: blocking, futures, await, map.

On the fake core, so that the test decides when each thing happens.
"""

import asyncio
import concurrent.futures
import itertools
import threading

import pytest

import vmhost
from tests.vmhost import fake_core
from tests.vmhost.fake_core import Ends, FakeCore
from vmhost.limits import BreakerPolicy, Policy, TaskPolicy


def raising(kind, payload=None):
    def guest(value, entry):
        raise Ends(kind, payload)

    return guest


def manual(fake_host, bundle, **settings):
    """A host with one loaded task whose calls run until the test ends them: (host, core, task)."""
    host, core = fake_host(FakeCore(guest=None), **settings)
    return host, core, host.load(bundle())


def the_running(core):
    return [vm.call for vm in core.in_state("serving") if vm.call]


def test_call_submit_run_and_map_give_the_result(fake_host, bundle):
    host, _ = fake_host(FakeCore(lambda value, entry: (value, entry)))
    task = host.load(bundle())
    assert task(1) == (1, None)
    assert task(1, entry="main:other") == (1, "main:other")
    assert task.submit(2).result() == (2, None)
    assert asyncio.run(task.run(3)) == (3, None)
    assert list(task.map([4, 5])) == [(4, None), (5, None)]


REPORT = {
    "type": "ValueError",
    "module": "builtins",
    "builtin": True,
    "message": "no such pixel",
    "args": ("no such pixel",),
    "traceback": "Traceback (most recent call last):\n"
    '  File "echo@1.0.0/main.py", line 3, in run\nValueError: no such pixel\n',
}


def test_a_task_error_tells_what_the_guest_raised_and_where(fake_host, bundle):
    host, _ = fake_host(FakeCore(raising(fake_core.TASK_ERROR, REPORT)))
    with pytest.raises(vmhost.TaskError) as caught:
        host.load(bundle())(1)
    error = caught.value
    assert str(error) == "echo 1.0.0: ValueError: no such pixel"
    assert (error.task, error.version) == ("echo", "1.0.0")
    assert (error.type_name, error.guest_message) == ("ValueError", "no such pixel")
    assert 'File "echo@1.0.0/main.py", line 3' in error.__notes__[0]


@pytest.mark.parametrize(
    "kind, expected",
    [
        (fake_core.TIME_LIMIT, vmhost.TimeLimitError),
        (fake_core.CPU_LIMIT, vmhost.TimeLimitError),
        (fake_core.MEMORY_LIMIT, vmhost.MemoryLimitError),
        (fake_core.VM_LOST, vmhost.VMLostError),
        (fake_core.VALUE, vmhost.CrossingError),
        (fake_core.LOAD_ERROR, vmhost.TaskError),
        (fake_core.CLOSED, vmhost.ClosedError),
        (fake_core.CANCELLED, concurrent.futures.CancelledError),
    ],
)
def test_each_end_has_its_error(fake_host, bundle, kind, expected):
    policy = Policy(task=TaskPolicy(breaker=BreakerPolicy(enabled=False)))
    host, _ = fake_host(FakeCore(raising(kind)), policy=policy)
    task = host.load(bundle())
    with pytest.raises(expected, match=r"echo 1\.0\.0"):
        task(1)
    with pytest.raises(expected):
        task.submit(1).result()
    with pytest.raises(expected):
        asyncio.run(task.run(1))


def test_a_permission_error_that_the_guest_did_not_catch_is_permission_denied(fake_host, bundle):
    report = {"type": "PermissionDenied", "module": "vmhost.guest", "message": "net: example.org:443 is not granted"}
    host, _ = fake_host(FakeCore(raising(fake_core.TASK_ERROR, report)))
    with pytest.raises(vmhost.PermissionDenied, match="net: example.org:443 is not granted"):
        host.load(bundle())(1)


def test_time_limits_are_timeouts_and_say_which_resource(fake_host, bundle):
    host, _ = fake_host(FakeCore(raising(fake_core.CPU_LIMIT)))
    with pytest.raises(TimeoutError) as caught:
        host.load(bundle())(1)
    assert caught.value.resource == "cpu"


def test_a_full_queue_refuses_and_takes_calls_again_later(fake_host, bundle):
    host, core, task = manual(fake_host, bundle, policy=Policy(max_vms=1, task=TaskPolicy(queue=2)))
    first = task.submit(0)
    host._service.events.settle()
    waiting = [task.submit(i) for i in (1, 2)]
    with pytest.raises(vmhost.QueueFullError, match="raise `queue`"):
        task.submit(3)
    core.guest = lambda value, entry: value
    the_running(core)[0].end(0)
    assert [f.result(60) for f in [first, *waiting]] == [0, 1, 2]
    assert task(4) == 4


# -- futures ----------------------------------------------------------------------------------------------------------


def test_a_future_that_only_gives_its_result_makes_no_machinery(fake_host, bundle):
    host, _ = fake_host()
    future = host.load(bundle()).submit(7)
    assert (future.result(), future.result(timeout=1), future.exception(), future.done()) == (7, 7, None, True)
    assert "_condition" not in vars(future)
    assert host._service._watched == {}


def test_a_future_is_a_standard_one(fake_host, bundle):
    host, core, task = manual(fake_host, bundle, policy=Policy(max_vms=1))
    futures = [task.submit(i) for i in range(3)]
    host._service.events.settle()
    assert isinstance(futures[0], concurrent.futures.Future)
    assert [f.running() for f in futures] == [True, False, False]
    called = [threading.Event() for _ in futures]
    for future, event in zip(futures, called):
        future.add_done_callback(lambda f, event=event: event.set())
    core.guest = lambda value, entry: value
    the_running(core)[0].end(0)
    done, not_done = concurrent.futures.wait(futures, timeout=60)
    assert (len(done), len(not_done)) == (3, 0)
    assert sorted(f.result() for f in concurrent.futures.as_completed(futures, timeout=60)) == [0, 1, 2]
    assert all(event.wait(60) for event in called)
    assert "returned int" in repr(futures[0])


def test_who_wants_to_hear_of_the_end_alone_makes_no_machinery(fake_host, bundle):
    host, core, task = manual(fake_host, bundle, policy=Policy(max_vms=1))
    futures, called = [task.submit(i) for i in range(2)], [threading.Event(), threading.Event()]
    host._service.events.settle()
    for future, event in zip(futures, called):
        future.when_ended(event.set)
    futures[1].stop()
    assert called[1].wait(60) and futures[1].cancelled() and not called[0].is_set()
    core.guest = lambda value, entry: "ended"
    the_running(core)[0].end("ended")
    assert called[0].wait(60) and futures[0].result(0) == "ended"
    assert "_condition" not in vars(futures[0])


def test_result_times_out_and_the_call_goes_on(fake_host, bundle):
    host, core, task = manual(fake_host, bundle)
    future = task.submit(1)
    with pytest.raises(TimeoutError, match="it continues"):
        future.result(timeout=0)
    with pytest.raises(TimeoutError):
        future.exception(timeout=0)
    host._service.events.settle()
    the_running(core)[0].end("late")
    assert future.result(60) == "late"


@pytest.mark.parametrize("watched", [False, True])
def test_cancel_takes_a_waiting_call_out_and_leaves_a_running_one(fake_host, bundle, watched):
    host, core, task = manual(fake_host, bundle, policy=Policy(max_vms=1))
    running, waiting = task.submit(1), task.submit(2)
    host._service.events.settle()
    seen = []
    if watched:
        waiting.add_done_callback(seen.append)
    assert not running.cancel()
    assert waiting.cancel() and waiting.cancel() and waiting.cancelled() and waiting.done()
    assert seen == ([waiting] if watched else [])
    with pytest.raises(concurrent.futures.CancelledError):
        waiting.result()
    with pytest.raises(concurrent.futures.CancelledError):
        waiting.exception()
    assert concurrent.futures.wait([waiting], timeout=60).done == {waiting}
    running.stop()
    assert running.cancelled()
    assert concurrent.futures.wait([running], timeout=60).done == {running}


def test_the_error_of_a_watched_future_reaches_its_waiters(fake_host, bundle):
    host, core, task = manual(fake_host, bundle)
    future = task.submit(1)
    failed = concurrent.futures.wait([future], timeout=0).not_done
    assert failed == {future}
    host._service.events.settle()
    the_running(core)[0].end(kind=fake_core.TASK_ERROR, payload=REPORT)
    assert concurrent.futures.wait([future], timeout=60, return_when="FIRST_EXCEPTION").done == {future}
    assert isinstance(future.exception(), vmhost.TaskError)


def test_a_callback_may_call_tasks(fake_host, bundle):
    host, core, task = manual(fake_host, bundle, policy=Policy(max_vms=2))
    other = host.load(bundle("other"))  # it has no VM yet: the service thread must be free to give it one
    answers = []
    called = threading.Event()

    def call_again(future):
        answers.append(other(future.result() + 1))
        called.set()

    future = task.submit(1)
    future.add_done_callback(call_again)
    host._service.events.settle()
    core.guest = lambda value, entry: value
    the_running(core)[0].end(1)
    assert called.wait(60)
    assert answers == [2]


def test_wrap_future_works(fake_host, bundle):
    host, core, task = manual(fake_host, bundle)

    async def main():
        wrapped = asyncio.wrap_future(task.submit(1))
        await asyncio.to_thread(host._service.events.settle)
        the_running(core)[0].end("one")
        return await asyncio.wait_for(wrapped, 10)

    assert asyncio.run(main()) == "one"


# -- await ------------------------------------------------------------------------------------------------------------


def test_cancelling_run_stops_the_call(fake_host, bundle):
    host, core, task = manual(fake_host, bundle)

    async def main():
        running = asyncio.ensure_future(task.run(1))
        await asyncio.sleep(0)
        await asyncio.to_thread(host._service.events.settle)
        call = the_running(core)[0]
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return call

    assert asyncio.run(main()).kind == fake_core.CANCELLED


def test_many_runs_are_under_way_at_once(fake_host, bundle):
    host, core, task = manual(fake_host, bundle, policy=Policy(max_vms=4, max_warm=4))

    async def main():
        runs = [asyncio.ensure_future(task.run(i)) for i in range(10)]
        await asyncio.sleep(0)
        core.guest = lambda value, entry: value
        await asyncio.to_thread(host._service.events.settle)
        for call in the_running(core):
            call.end(call.value)
        return await asyncio.wait_for(asyncio.gather(*runs), 10)

    assert asyncio.run(main()) == list(range(10))


def test_an_event_loop_that_closed_meanwhile_hurts_nobody(fake_host, bundle):
    host, core, task = manual(fake_host, bundle)
    loop = asyncio.new_event_loop()
    run = loop.create_task(task.run(1))
    loop.run_until_complete(asyncio.sleep(0))
    host._service.events.settle()
    call = the_running(core)[0]
    run.cancel()
    loop.run_until_complete(asyncio.gather(run, return_exceptions=True))
    loop.close()
    assert call.kind == fake_core.CANCELLED
    core.guest = lambda value, entry: value
    assert task(2) == 2


# -- map --------------------------------------------------------------------------------------------------------------


def test_map_is_lazy_over_endless_values(fake_host, bundle):
    host, core = fake_host()
    task = host.load(bundle())
    taken = []
    values = (taken.append(i) or i for i in itertools.count())
    results = task.map(values, window=8)
    assert list(itertools.islice(results, 20)) == list(range(20))
    assert len(taken) < 20 + 2 * 8
    results.close()


def test_map_raises_an_error_at_its_place_and_cancels_what_waits(fake_host, bundle):
    def guest(value, entry):
        if value == 3:
            raise Ends(fake_core.TASK_ERROR, REPORT)
        return value

    host, core = fake_host(FakeCore(guest))
    results = host.load(bundle()).map(range(10))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(vmhost.TaskError):
        next(results)
    assert list(results) == []


def test_a_dropped_map_cancels_what_waits(fake_host, bundle):
    host, core, task = manual(fake_host, bundle, policy=Policy(max_vms=1))
    results = task.map(range(5))
    host._service.events.settle()
    assert core.lanes[0].queued == 4
    core.guest = lambda value, entry: value
    next_result = threading.Thread(target=next, args=(results,))
    core.guest = None
    next_result.start()
    the_running(core)[0].end(0)
    next_result.join(60)
    results.close()
    assert core.lanes[0].queued == 0


def test_map_gets_through_a_queue_that_is_smaller_than_its_window(fake_host, bundle):
    host, core = fake_host(policy=Policy(max_vms=1, task=TaskPolicy(queue=3)))
    assert list(host.load(bundle()).map(range(100), window=50)) == list(range(100))


def test_the_timeout_of_a_map_is_that_of_all_its_items(fake_host, bundle):
    host, core, task = manual(fake_host, bundle)
    results = task.map([1, 2], timeout_s=30)
    host._service.events.settle()
    assert all(0 < call.timeout_s <= 30 for call in the_running(core))
    for call in the_running(core):
        call.end(kind=fake_core.TIME_LIMIT)
    with pytest.raises(TimeoutError):
        next(results)


def test_map_of_nothing(fake_host, bundle):
    host, _ = fake_host()
    assert list(host.load(bundle()).map([])) == []
