"""A host's life on the fake core: loading, newer versions, closing in every way, breakers, logs, host functions."""

import concurrent.futures
import gc
import logging
import threading
import weakref

import msgpack
import pytest

import vmhost
from tests.hosts import until
from tests.vmhost import fake_core
from tests.vmhost.fake_core import Ends, FakeCore
from vmhost.limits import BreakerPolicy, Policy, TaskPolicy
from vmhost.runtime.state import StateFolder
from vmhost.statistics import VMTotals


def settle(host):
    host._service.events.settle()


def the_running(core, version=None):
    return [vm.call for vm in core.in_state("serving") if vm.call and version in (None, vm.lane.version)]


def failing(kind=fake_core.TASK_ERROR):
    def guest(value, entry):
        if value == "good":
            return value
        raise Ends(kind, {"type": "ValueError", "builtin": True, "message": "bad"})

    return guest


# -- versions ---------------------------------------------------------------------------------------------------------


def test_a_missing_file_and_one_that_is_no_bundle_are_one_error_each(fake_host, tmp_path):
    host, _ = fake_host()
    (tmp_path / "notes.txt").write_text("# notes")
    for name, message in (("missing.vmb", "missing.vmb: no such bundle; "), ("notes.txt", "notes.txt: not a bundle: ")):
        with pytest.raises(vmhost.BundleError, match=message) as caught:
            host.load(tmp_path / name)
        assert caught.value.__cause__ is None


def test_the_handle_moves_to_a_newer_version_and_the_old_one_drains(fake_host, bundle):
    host, core = fake_host(FakeCore(guest=None), policy=Policy(max_vms=4, warm=2, max_warm=4))
    task = host.load(bundle(limits={"concurrency": 1}))
    running, waiting = task.submit("a"), task.submit("b")
    settle(host)
    assert host.load(bundle(version="2.0.0")) is task
    assert task.version == "2.0.0"
    newer = task.submit("c")
    settle(host)
    assert [v.version for v in host.statistics().draining] == ["1.0.0"]
    for _ in range(2):
        the_running(core, "1.0.0")[0].end("old")
        settle(host)
    the_running(core, "2.0.0")[0].end("new")
    assert (running.result(60), waiting.result(60), newer.result(60)) == ("old", "old", "new")
    settle(host)
    assert host.statistics().draining == ()
    assert [vm for vm in core.vms if vm.lane and vm.lane.version == "1.0.0" and vm.state != "ended"] == []


def test_an_old_version_is_freed_when_it_has_drained(fake_host, bundle):
    host, core = fake_host()
    task = host.load(bundle())
    task(1)
    old = weakref.ref(task._current)
    gc.disable()
    try:
        host.load(bundle(version="2.0.0"))
        settle(host)
        core.lanes.clear()
        settle(host)
        assert old() is None
    finally:
        gc.enable()


def test_a_call_that_meets_the_closed_lane_of_an_old_version_goes_to_the_new_one(fake_host, bundle):
    host, core = fake_host()
    task = host.load(bundle())
    stale = task._call, task._submit, task._submit_many
    host.load(bundle(version="2.0.0"))
    fresh = task._call, task._submit, task._submit_many

    class Racing:
        """The version changes between reading the handle's function and calling it."""

        def __init__(self, old, new, name):
            self.old, self.new, self.name = old, new, name

        def __call__(self, *args):
            setattr(task, self.name, self.new)
            return self.old(*args)

    task._call, task._submit, task._submit_many = (
        Racing(*pair) for pair in zip(stale, fresh, ("_call", "_submit", "_submit_many"))
    )
    assert task(1) == 1
    assert task.submit(2).result(60) == 2
    assert list(task.map([3])) == [3]


def test_the_same_bundle_again_changes_nothing(fake_host, bundle):
    host, core = fake_host()
    task = host.load(bundle())
    assert host.load(bundle()) is task
    assert len(core.lanes) == 1


def test_a_dropped_handle_is_made_anew(fake_host, bundle):
    host, _ = fake_host()
    host.load(bundle())
    gc.collect()
    assert host.task("echo")(1) == 1
    with pytest.raises(KeyError, match="no such task is loaded; there are echo"):
        host.task("ocho")


def test_unload_lets_waiting_calls_run_or_ends_them(fake_host, bundle):
    for drain in (True, False):
        host, core = fake_host(FakeCore(guest=None))
        task = host.load(bundle())
        future = task.submit(1)
        settle(host)
        host.unload(task, drain=drain)
        with pytest.raises(vmhost.ClosedError, match="was unloaded"):
            task(2)
        with pytest.raises(vmhost.ClosedError):
            task.submit(2)
        if drain:
            the_running(core)[0].end("done")
            assert future.result(60) == "done"
        else:
            with pytest.raises(vmhost.ClosedError):
                future.result(60)
        assert host.tasks == ()
        core.guest = lambda value, entry: value
        assert host.load(bundle())(3) == 3


def test_a_bundle_that_asks_for_more_than_the_host_gives_is_refused(fake_host, bundle):
    host, _ = fake_host(policy=Policy(allow=("read",)))
    with pytest.raises(vmhost.BundleError, match="permissions.net .* does not allow"):
        host.load(bundle(permissions={"net": ["example.org:443"]}))
    host, _ = fake_host(functions={"price": len})
    with pytest.raises(vmhost.BundleError, match="host function 'prize'; this host has price"):
        host.load(bundle(permissions={"host": ["prize"]}))


def test_an_unsigned_bundle_is_refused_unless_allowed(fake_host, bundle):
    host, _ = fake_host(allow_unsigned=False)
    with pytest.raises(vmhost.BundleError, match="not signed"):
        host.load(bundle())


def test_limits_of_the_host_cap_those_of_the_bundle(fake_host, bundle):
    host, core = fake_host(policy=Policy(limits={"memory": "32 MiB", "wall_time": "2 s"}))
    host.load(bundle(limits={"memory_bytes": 64 << 20, "wall_time_s": 1.0}))(1)
    vm = next(vm for vm in core.vms if vm.lane)
    assert (vm.soft_bytes, vm.hard_bytes, vm.lane.wall_s) == (32 << 20, 40 << 20, 1.0)


def test_a_vm_is_booted_with_the_permissions_of_its_task(fake_host, bundle):
    host, core = fake_host()
    host.load(bundle("reader", permissions={"read": ["/data"]}))(1)
    host.load(bundle("other"))(1)
    granted = {vm.lane.name: vm.permissions for vm in core.vms if vm.lane}
    assert list(granted["reader"]["read"]) == ["/data"]
    assert not any(granted["other"].values())


# -- the pool ---------------------------------------------------------------------------------------------------------


def test_warm_vms_are_booted_ahead_and_replaced_when_lent(fake_host, bundle):
    host, core = fake_host(policy=Policy(warm=2, max_warm=2))
    settle(host)
    assert (host.statistics().warm, len(core.vms)) == (2, 2)
    host.load(bundle())(1)
    settle(host)
    assert (host.statistics().warm, len(core.vms)) == (2, 3)


def test_a_vm_is_kept_and_used_again_by_its_task_only(fake_host, bundle):
    host, core = fake_host()
    a, b = host.load(bundle("a")), host.load(bundle("b"))
    for _ in range(5):
        a(1), b(1)
    assert sorted(vm.lane.name for vm in core.vms if vm.lane) == ["a", "b"]


def test_fresh_gives_each_call_a_vm_of_its_own(fake_host, bundle):
    host, core = fake_host()
    task = host.load(bundle(fresh=True))
    for _ in range(3):
        task(1)
    settle(host)
    assert sorted(vm.served for vm in core.vms if vm.lane) == [1, 1, 1]
    assert len([vm for vm in core.in_state("ended") if vm.served]) == 3


def test_a_stopped_vm_is_replaced(fake_host, bundle):
    host, core = fake_host(FakeCore(failing(fake_core.TIME_LIMIT)))
    task = host.load(bundle())
    with pytest.raises(vmhost.TimeLimitError):
        task("bad")
    assert task("good") == "good"
    assert len([vm for vm in core.vms if vm.lane]) == 2


def test_a_stopped_vm_that_takes_its_time_to_end_holds_nobody_up(fake_host, bundle):
    core = FakeCore(failing(fake_core.TIME_LIMIT))
    core.lingers = True
    host, _ = fake_host(core, policy=Policy(max_vms=1))
    task = host.load(bundle(limits={"concurrency": 1}))
    with pytest.raises(vmhost.TimeLimitError):
        task("bad")
    assert task("good") == "good"
    stopped, replacement = [vm for vm in core.vms if vm.lane]
    assert stopped.state == "serving", "it has not ended yet"
    stopped.leave()


def test_boots_that_fail_are_tried_again(fake_host, bundle):
    core = FakeCore()
    core.boots_to_fail = 2
    host, _ = fake_host(core)
    assert host.load(bundle())(1) == 1
    assert host.statistics().boot_failures == 2


def test_when_no_vm_can_be_booted_waiting_calls_get_their_error(fake_host, bundle):
    core = FakeCore()
    core.boots_to_fail = 10**9
    host, _ = fake_host(core)
    task = host.load(bundle())
    with pytest.raises(vmhost.VMLostError, match="no VM could be booted.*no memory"):
        task(1)
    with pytest.raises(vmhost.VMLostError):  # not the task's fault: its breaker stays closed
        task(1)
    settle(host)
    tried = len(core.vms)
    settle(host)
    assert len(core.vms) == tried, "boots go on with nobody waiting"
    core.boots_to_fail = 0
    assert task(2) == 2


def test_when_the_machine_has_no_thread_left_waiting_calls_get_their_error(fake_host, bundle):
    core = FakeCore()
    core.threads_left = 0
    host, _ = fake_host(core)
    task = host.load(bundle())
    with pytest.raises(vmhost.VMLostError, match="Resource temporarily unavailable"):
        task(1)
    core.threads_left = 10
    assert task(2) == 2


def test_when_the_machine_has_no_thread_left_idle_vms_end_first(fake_host, bundle):
    core = FakeCore()
    host, _ = fake_host(core, policy=Policy(warm=0, max_warm=0))
    a = host.load(bundle("a"))
    assert a(1) == 1
    vm = next(vm for vm in core.vms if vm.lane)
    core.now += 1
    core.threads_left = 0
    retire = vm.retire

    def gives_back_its_thread():
        core.threads_left = 1
        retire()

    vm.retire = gives_back_its_thread
    assert host.load(bundle("b"))(2) == 2
    assert vm.state == "ended"


def test_a_fault_in_the_scheduling_does_not_end_the_host(fake_host, bundle, monkeypatch, caplog):
    host, core = fake_host()
    task = host.load(bundle())
    monkeypatch.setattr("vmhost.runtime.service._RETRY_AFTER_FAULT_S", 0.01)
    deal, faults = host._service._scheduler.deal, iter([RuntimeError("a bug")])

    def faulty():
        for fault in faults:
            raise fault
        return deal()

    host._service._scheduler.deal = faulty
    settle(host)
    assert task(1) == 1
    assert "a bug" in caplog.text


def test_idle_vms_go_after_their_time_and_an_idle_host_does_not_wake(fake_host, bundle):
    host, core = fake_host(policy=Policy(idle_s=60, warm=1))
    host.load(bundle())(1)
    settle(host)
    core.now += 61
    host._service._clock = lambda: 10.0**9  # the look that was planned is due
    settle(host)
    settle(host)
    assert [vm.state for vm in core.vms if vm.lane] == ["ended"]
    settle(host)
    assert host._service.events.timeouts[-1] is None


def test_idle_vms_go_when_all_hold_more_than_the_budget(fake_host, bundle):
    host, core = fake_host(policy=Policy(memory_bytes=10 << 20, warm=1, max_warm=1))
    a = host.load(bundle("a"))
    a(1)
    vm = next(vm for vm in core.vms if vm.lane)
    vm.live_bytes = 20 << 20
    core.now += 1
    host.load(bundle("b"))(1)
    settle(host)
    assert vm.state == "ended"
    assert a(2) == 2


def test_memory_pressure_of_the_machine_retires_idle_vms(fake_host, bundle, monkeypatch):
    host, core = fake_host(policy=Policy(warm=0))
    host.load(bundle())(1)
    core.now += 1
    monkeypatch.setattr("vmhost.runtime.pool.machine.memory_used_percent", lambda: 99.0)
    host._service._pool._pressure = (float("-inf"), False)
    host.load(bundle("b"))
    settle(host)
    assert [vm.state for vm in core.vms if vm.lane] == ["ended"]


def test_warm_vms_grow_when_they_are_lacked(fake_host, bundle):
    host, core = fake_host(FakeCore(guest=None), policy=Policy(max_vms=8, warm=1, max_warm=3, boots_at_once=8))
    task = host.load(bundle(limits={"concurrency": 3}))
    futures = [task.submit(i) for i in range(3)]
    settle(host)
    settle(host)
    assert host.statistics().warm > 1
    core.guest = lambda value, entry: value
    for call in the_running(core):
        call.end(None)
    [future.result(60) for future in futures]


# -- breakers ---------------------------------------------------------------------------------------------------------


def test_the_breaker_opens_before_the_next_call_of_the_same_caller(fake_host, bundle):
    policy = Policy(task=TaskPolicy(breaker=BreakerPolicy(consecutive=3, open_s=60)))
    host, core = fake_host(FakeCore(failing()), policy=policy)
    task = host.load(bundle())
    for _ in range(3):
        with pytest.raises(vmhost.TaskError):
            task("bad")
    for call in (task, task.submit, lambda v: list(task.map([v]))):
        with pytest.raises(vmhost.BreakerOpenError, match="3 calls in a row failed; try again in") as caught:
            call("good")
        assert 0 < caught.value.retry_in_s <= 60
    assert host.statistics().tasks["echo"].breaker.state == "open"


def test_futures_that_nobody_looks_at_open_it_too(fake_host, bundle):
    policy = Policy(task=TaskPolicy(breaker=BreakerPolicy(consecutive=3, open_s=60)))
    host, core = fake_host(FakeCore(failing()), policy=policy)
    task = host.load(bundle())
    for _ in range(3):
        task.submit("bad")
    settle(host)
    with pytest.raises(vmhost.BreakerOpenError):
        task("good")


@pytest.mark.parametrize("method", ["call", "submit"])
def test_probes_close_it(fake_host, bundle, method):
    policy = Policy(task=TaskPolicy(breaker=BreakerPolicy(consecutive=2, open_s=1e-9, max_open_s=1e-9, probes=2)))
    host, core = fake_host(FakeCore(failing()), policy=policy)
    task = host.load(bundle())
    for _ in range(3):  # the third is a probe, and fails
        with pytest.raises(vmhost.TaskError):
            task("bad")
    for _ in range(2):
        assert (task("good") if method == "call" else task.submit("good").result(60)) == "good"
        settle(host)
    assert host.statistics().tasks["echo"].breaker.state == "closed"
    assert task._call == core.lanes[0].call


def test_who_has_the_results_of_the_probes_finds_it_closed(fake_host, bundle, monkeypatch):
    """Holds however late the service's thread is scheduled."""
    policy = Policy(task=TaskPolicy(breaker=BreakerPolicy(consecutive=2, open_s=1e-9, probes=2)))
    host, core = fake_host(FakeCore(failing()), policy=policy)
    task = host.load(bundle())
    for _ in range(2):
        with pytest.raises(vmhost.TaskError):
            task("bad")
    late = []
    monkeypatch.setattr(host._service, "watch", lambda call, act: late.append(act))
    probes = [task.submit("good"), task.submit("good")]
    assert [probe.result(60) for probe in probes] == ["good", "good"]
    assert task("good") == "good"
    for act in late:
        act()
    assert host.statistics().tasks["echo"].breaker.state == "closed"


def test_a_wedged_vm_opens_the_breaker_and_is_replaced(fake_host, bundle):
    host, core = fake_host(FakeCore(guest=None))
    task = host.load(bundle())
    future = task.submit(1)
    settle(host)
    next(vm for vm in core.vms if vm.call).quarantine("call")
    with pytest.raises(vmhost.VMLostError):
        future.result(60)
    settle(host)
    with pytest.raises(vmhost.BreakerOpenError):
        task(1)
    quarantined = host.close()
    assert [(vm.task, vm.version, vm.state) for vm in quarantined] == [("echo", "1.0.0", "quarantined")]


def test_a_vm_that_wedges_outside_of_a_call_opens_the_breaker_too(fake_host, bundle):
    host, core = fake_host()
    task = host.load(bundle())
    task(1)
    next(vm for vm in core.vms if vm.lane).quarantine("end")
    settle(host)
    with pytest.raises(vmhost.BreakerOpenError, match="a VM wedged .end."):
        task(1)


def test_a_new_version_starts_with_a_closed_breaker(fake_host, bundle):
    host, core = fake_host()
    task = host.load(bundle())
    host._service._current["echo"].breaker.trip("test")
    with pytest.raises(vmhost.BreakerOpenError):
        task(1)
    host.load(bundle(version="2.0.0"))
    assert task(1) == 1


def test_an_open_breaker_survives_a_restart(fake_host, bundle, tmp_path):
    host, _ = fake_host(state=tmp_path / "state")
    host.load(bundle())
    host._service._current["echo"].breaker.trip("it wedged")
    host.close()
    host, _ = fake_host(state=tmp_path / "state")
    task = host.load(bundle())
    with pytest.raises(vmhost.BreakerOpenError, match="it wedged"):
        task(1)
    assert host.load(bundle("other"))(1) == 1
    host._service._current["echo"].breaker.reset()
    host.close()
    host, _ = fake_host(state=tmp_path / "state")
    assert host.load(bundle())(1) == 1


def test_a_task_that_crashed_the_process_before_starts_with_its_breaker_open(fake_host, bundle, tmp_path):
    core = FakeCore()
    core.crashes = [{"task": "echo", "version": "1.0.0", "phase": "call", "signal": 11, "pid": 4711, "vm": 3}]
    host, _ = fake_host(core, state=tmp_path)
    assert [str(crash) for crash in host.crashes] == ["process 4711 crashed with SIGSEGV while echo 1.0.0 (call) ran"]
    host.close()
    host, _ = fake_host(state=tmp_path)  # the task was not loaded in between
    assert host.crashes == ()
    assert host.load(bundle("other"))(1) == 1
    task = host.load(bundle())
    with pytest.raises(vmhost.BreakerOpenError, match="SIGSEGV while echo"):
        task(1)
    assert host.load(bundle(version="1.0.1"))(1) == 1


def test_a_state_folder_has_one_owner(fake_host, tmp_path):
    host, _ = fake_host(state=tmp_path)
    with pytest.raises(vmhost.ConfigurationError, match="already in use .* of this process; close that host, or"):
        fake_host(state=tmp_path)
    host.close()
    fake_host(state=tmp_path)


def test_the_state_folder_of_a_dropped_host_can_be_taken_up_at_once(monkeypatch, tmp_path):
    from vmhost import host as host_module

    monkeypatch.setattr(host_module, "system_code_store", lambda native: native.CodeStore())
    for _ in range(20):
        core = FakeCore()
        monkeypatch.setattr(host_module.isolation, "core", lambda: core)
        host = host_module.Host(state=tmp_path)
        del host


@pytest.mark.parametrize(
    "content", [b"", b"\xc1", msgpack.packb(7), msgpack.packb({"format": 99, "breakers": [], "crashes": []})]
)
def test_a_damaged_state_file_is_put_aside(tmp_path, content):
    (tmp_path / "breakers.msgpack").write_bytes(content)
    folder = StateFolder(tmp_path)
    assert folder.breaker(("echo", "1.0.0", "")) is None
    folder.close()
    assert (tmp_path / "breakers.damaged").read_bytes() == content


# -- logs, host functions, counting -----------------------------------------------------------------------------------


def test_lines_of_a_guest_reach_the_logger_of_its_task(fake_host, bundle, caplog):
    host, core = fake_host()
    host.load(bundle())(1)
    settle(host)
    vm = next(vm for vm in core.vms if vm.lane)
    arrived = threading.Event()

    class Handler(logging.Handler):
        def emit(self, record):
            self.record = record
            arrived.set()

    handler = Handler()
    logger = logging.getLogger("vmhost.task.echo")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        vm.log(logging.INFO, "50 % done")
        assert arrived.wait(60)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    record = handler.record
    assert (record.getMessage(), record.levelno) == ("50 % done", logging.INFO)
    assert (record.version, record.vm) == ("1.0.0", vm.id)


def test_lines_pile_up_in_the_core_where_they_are_bounded_while_a_handler_is_slow(fake_host, bundle):
    host, core = fake_host()
    host.load(bundle())(1)
    vm = next(vm for vm in core.vms if vm.lane)
    entered, release = threading.Event(), threading.Event()

    class Slow(logging.Handler):
        def emit(self, record):
            entered.set()
            release.wait(60)

    handler = Slow()
    logger = logging.getLogger("vmhost.task.echo")
    logger.addHandler(handler)
    try:
        vm.log(logging.WARNING, "first")
        assert entered.wait(60)
        for number in range(10):
            vm.log(logging.WARNING, f"line {number}")
            settle(host)
        assert len(vm.logs) == 10
        assert host._service._aside.qsize() <= 1
        assert host.task("echo")(2) == 2, "a slow handler holds up nobody else"
    finally:
        release.set()
        host.close()
        logger.removeHandler(handler)
    assert vm.logs == []


def test_a_future_that_is_watched_when_the_host_is_gone_already_has_its_end(fake_host, bundle):
    host, core = fake_host(FakeCore(guest=None))
    future = host.load(bundle()).submit(1)
    settle(host)
    watched = future._call.watch
    # the host ends between the two steps of watching
    future._call.watch = lambda: (host.close(drain=False), watched())
    assert concurrent.futures.wait([future], timeout=60).done == {future}
    assert isinstance(future.exception(), vmhost.ClosedError)


def test_callbacks_run_though_the_machine_has_no_room_for_their_thread(fake_host, bundle, monkeypatch):
    host, core = fake_host(FakeCore(guest=None))
    task = host.load(bundle())
    called = []

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        task.submit(1).add_done_callback(called.append)
        settle(host)
        the_running(core)[0].end(1)
        settle(host)
    later = task.submit(2)
    later.add_done_callback(called.append)
    settle(host)
    the_running(core)[0].end(2)
    host.close()
    assert [future.result() for future in called] == [1, 2]


def test_close_waits_for_callbacks_of_the_last_calls(fake_host, bundle):
    host, core = fake_host(FakeCore(guest=None))
    future = host.load(bundle()).submit(1)
    release, called = threading.Event(), []
    future.add_done_callback(lambda f: (release.wait(60), called.append(f)))
    settle(host)
    the_running(core)[0].end(1)
    threading.Timer(0.05, release.set).start()
    host.close()
    assert called == [future]


class Request:
    def __init__(self, name, value, lane):
        self.name, self.value, self.lane_name, self.lane_version = name, value, lane.name, lane.version
        self.answered = threading.Event()
        self.answer = None

    def reply(self, value):
        self.answer = ("reply", value)
        self.answered.set()

    def fail(self, message):
        self.answer = ("fail", message)
        self.answered.set()


def test_host_functions_answer_those_who_were_granted_them(fake_host, bundle):
    host, core = fake_host(functions={"length": len, "other": repr})
    host.load(bundle(permissions={"host": ["length"]}))
    lane = core.lanes[0]

    def ask(name, value):
        request = Request(name, value, lane)
        host._service.events.post("host_call", request)
        assert request.answered.wait(60)
        return request.answer

    assert ask("length", "four") == ("reply", 4)
    assert ask("length", 4) == ("fail", "TypeError: object of type 'int' has no len()")
    assert ask("other", 1)[0] == "fail"
    assert "not granted" in ask("other", 1)[1]


def test_statistics_count_and_stay_as_they_are(fake_host, bundle):
    host, core = fake_host(FakeCore(failing()))
    task = host.load(bundle())
    task("good")
    with pytest.raises(vmhost.TaskError):
        task("bad")
    task.submit("good").result()
    settle(host)
    before = host.statistics()
    echo = before.tasks["echo"]
    assert (echo.calls, echo.failures, echo.ended) == (3, 1, {"OK": 2, "TASK_ERROR": 1})
    assert (echo.queued, echo.running, echo.vms, echo.draining) == (0, 0, 1, False)
    serving = [vm for vm in before.vms if vm.task == "echo"]
    assert [(vm.version, vm.state, vm.calls) for vm in serving] == [("1.0.0", "serving", 3)]
    task("good")
    assert before.tasks["echo"].calls == 3
    with pytest.raises(AttributeError):
        echo.calls = 0


def test_totals_keep_what_vms_counted_that_are_gone(fake_host, bundle):
    host, core = fake_host(policy=Policy(task=TaskPolicy(fresh=True)))
    echo, other = host.load(bundle()), host.load(bundle("other"))
    for _ in range(20):
        assert (echo(1), other(2)) == (1, 2)
    settle(host)
    now = host.statistics()
    assert now.tasks["echo"].totals == now.tasks["other"].totals == VMTotals(vms=20, calls=20)
    assert not [vm for vm in now.vms if vm.task]
    assert (now.totals.calls, now.totals.vms) == (40, 40 + len(now.vms))
    host.load(bundle(version="2.0.0"))
    assert echo(1) == 1
    settle(host)
    now = host.statistics()
    assert now.tasks["echo"].totals.calls == 1, "as with its other counts, a version begins at none"
    assert now.totals.calls == 41
    host.close()
    assert host.statistics().totals.calls == 41


def test_totals_count_a_vm_once_when_it_is_quarantined(fake_host, bundle):
    host, core = fake_host(FakeCore(guest=None), policy=Policy(max_vms=1, warm=0, max_warm=0))
    host.load(bundle()).submit(1)
    settle(host)
    settle(host)
    [vm] = core.in_state("serving")
    vm.served = 7
    vm.quarantine("call")
    vm.leave()
    settle(host)
    totals = host.statistics().tasks["echo"].totals
    assert (totals.vms, totals.calls) == (1, 7)


# -- closing ----------------------------------------------------------------------------------------------------------


def test_close_drains(fake_host, bundle):
    host, core = fake_host(FakeCore(guest=None), policy=Policy(max_vms=1))
    task = host.load(bundle())
    futures = [task.submit(i) for i in range(3)]
    settle(host)
    closer = threading.Thread(target=host.close)
    closer.start()
    until(lambda: task._current.closed_because)
    with pytest.raises(vmhost.ClosedError, match="host is closed"):
        task(9)
    core.guest = lambda value, entry: value
    the_running(core)[0].end(0)
    closer.join(60)
    assert not closer.is_alive()
    assert [f.result(0) for f in futures] == [0, 1, 2]
    assert all(vm.state == "ended" for vm in core.vms)


def test_close_without_drain_ends_every_call_with_closed(fake_host, bundle):
    host, core = fake_host(FakeCore(guest=None), policy=Policy(max_vms=1))
    task = host.load(bundle())
    futures = [task.submit(i) for i in range(3)]
    settle(host)
    assert host.close(drain=False) == ()
    for future in futures:
        with pytest.raises(vmhost.ClosedError):
            future.result(0)


def test_close_gives_up_draining_after_its_time(fake_host, bundle):
    host, core = fake_host(FakeCore(guest=None))
    task = host.load(bundle())
    future = task.submit(1)
    settle(host)
    host.close(timeout_s=0)
    with pytest.raises(vmhost.ClosedError):
        future.result(0)


def test_close_is_idempotent_and_may_come_from_many_threads(fake_host, bundle):
    host, core = fake_host()
    host.load(bundle())(1)
    threads = [threading.Thread(target=host.close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert host.close() == host.close() == ()
    assert not host._service._thread.is_alive()
    with pytest.raises(vmhost.ClosedError):
        host.load(bundle("late"))


def test_close_waits_for_vms_that_boot(fake_host):
    core = FakeCore(boots=False)
    host, _ = fake_host(core)
    settle(host)
    closer = threading.Thread(target=host.close)
    closer.start()
    settle(host)
    assert closer.is_alive()
    for vm in core.in_state("booting"):
        vm.boot()
    closer.join(60)
    assert not closer.is_alive()


def test_leaving_the_context_drains_and_an_exception_cancels(fake_host, bundle):
    host, core = fake_host()
    with host:
        future = host.load(bundle()).submit(1)
    assert future.result(0) == 1
    host, core = fake_host(FakeCore(guest=None))
    with pytest.raises(KeyboardInterrupt), host:
        future = host.load(bundle()).submit(1)
        raise KeyboardInterrupt
    with pytest.raises(vmhost.ClosedError):
        future.result(0)
    with pytest.raises(vmhost.ClosedError), host:
        pass


def test_a_closed_host_gives_its_calls_in_the_other_ways_too(fake_host, bundle):
    host, _ = fake_host()
    task = host.load(bundle())
    host.close()
    for call in (task, task.submit, lambda v: list(task.map([v]))):
        with pytest.raises(vmhost.ClosedError, match="echo 1.0.0: the host is closed"):
            call(1)


def test_a_dropped_host_cleans_up_after_itself(monkeypatch, bundle):
    from vmhost import host as host_module

    core = FakeCore()
    monkeypatch.setattr(host_module.isolation, "core", lambda: core)
    monkeypatch.setattr(host_module, "system_code_store", lambda native: native.CodeStore())
    host = host_module.Host(allow_unsigned=True, functions={"me": lambda value: host})  # noqa: F821
    task = host.load(bundle())
    assert task(1) == 1
    service, seen = host._service, weakref.ref(host)
    del host
    gc.collect()
    assert seen() is not None, "a handle keeps its host"
    assert task(2) == 2
    del task
    gc.collect()
    assert seen() is None
    service._thread.join(60)
    assert not service._thread.is_alive()
    assert all(vm.state == "ended" for vm in core.vms)


def test_a_future_keeps_its_host_until_the_call_ended(monkeypatch, bundle):
    from vmhost import host as host_module

    core = FakeCore(guest=None)
    monkeypatch.setattr(host_module.isolation, "core", lambda: core)
    monkeypatch.setattr(host_module, "system_code_store", lambda native: native.CodeStore())
    future = host_module.Host(allow_unsigned=True).load(bundle()).submit(1)
    service = future._task._service
    gc.collect()
    service.events.settle()
    the_running(core)[0].end("one")
    assert future.result(60) == "one"
    del future
    gc.collect()
    service._thread.join(60)
    assert not service._thread.is_alive()
