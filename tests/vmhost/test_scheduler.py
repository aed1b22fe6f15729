"""How many VMs each task gets: `shares` on its own, then hosts on the fake core with too few VMs for all."""

from hypothesis import given
from hypothesis import strategies as st

from tests.hosts import until
from tests.vmhost.fake_core import Call, FakeCore
from vmhost.limits import Policy, TaskPolicy
from vmhost.runtime.scheduler import Claim, shares


def test_nobody_gets_more_than_it_can_use_and_the_rest_goes_evenly():
    assert shares({"a": Claim(1), "b": Claim(9), "c": Claim(9)}, 7) == {"a": 1, "b": 3, "c": 3}


def test_weights_divide_what_is_scarce():
    assert shares({"a": Claim(9, weight=3), "b": Claim(9)}, 8) == {"a": 6, "b": 2}


def test_higher_priority_first_but_nobody_is_left_without():
    assert shares({"a": Claim(9, priority=1), "b": Claim(9)}, 4) == {"a": 3, "b": 1}


def test_with_fewer_vms_than_tasks_those_served_least_are_next():
    assert shares({"a": Claim(1, used=5), "b": Claim(1, used=2), "c": Claim(1)}, 2) == {"a": 0, "b": 1, "c": 1}


def test_an_odd_vm_stays_where_it_is():
    assert shares({"a": Claim(9, held=1), "b": Claim(9, held=2, used=7)}, 3) == {"a": 1, "b": 2}
    assert shares({"a": Claim(9, held=2), "b": Claim(9, held=1)}, 3) == {"a": 2, "b": 1}


claims = st.dictionaries(
    st.integers(0, 20),
    st.builds(
        Claim,
        demand=st.integers(0, 12),
        weight=st.sampled_from((0.5, 1, 2, 4)),
        priority=st.integers(-1, 1),
        used=st.integers(0, 9),
        held=st.integers(0, 3),
    ),
    max_size=8,
)


@given(claims, st.integers(0, 24))
def test_shares_are_complete_bounded_and_fair(claims, capacity):
    given_out = shares(claims, capacity)
    assert sum(given_out.values()) == min(capacity, sum(claim.demand for claim in claims.values()))
    for a, mine in claims.items():
        assert 0 <= given_out[a] <= mine.demand
        for b, other in claims.items():
            if given_out[a] < mine.demand and mine.priority >= other.priority:
                # beyond its first VM no task of the same or a lower rank has more for its weight, but for rounding
                assert given_out[b] <= 1 or given_out[b] / other.weight <= (given_out[a] + 1) / mine.weight


def idle_core():
    return FakeCore(guest=None)


def running(core, lane_name):
    return [vm for vm in core.vms if vm.state == "serving" and vm.lane.name == lane_name]


def test_a_second_task_gets_half_of_the_vms_as_calls_of_the_first_end(fake_host, bundle):
    host, core = fake_host(idle_core(), policy=Policy(max_vms=4, warm=1, quantum_s=0.0001))
    a, b = host.load(bundle("a")), host.load(bundle("b"))
    first = [a.submit(i) for i in range(8)]
    host._service.events.settle()
    assert len(running(core, "a")) == 4
    others = [b.submit(i) for i in range(8)]
    for _ in range(2):  # it gives them up one by one, each when its call ends
        host._service.events.settle()
        next(vm for vm in running(core, "a") if vm.retired).call.end("done")
    host._service.events.settle()
    assert len(running(core, "a")) == 2
    assert len(running(core, "b")) == 2
    core.guest = lambda value, entry: value
    for vm in core.in_state("serving"):
        if vm.call:
            vm.call.end("done")
    for future in first + others:
        future.result(60)


def test_an_idle_vm_of_another_task_makes_room_at_once(fake_host, bundle):
    host, core = fake_host(idle_core(), policy=Policy(max_vms=1, warm=1))
    a, b = host.load(bundle("a")), host.load(bundle("b"))
    one = a.submit(1)
    host._service.events.settle()
    core.now += 5
    running(core, "a")[0].call.end("one")
    core.now += 5
    two = b.submit(2)
    host._service.events.settle()
    host._service.events.settle()
    assert running(core, "a") == []
    running(core, "b")[0].call.end("two")
    assert (one.result(), two.result(60)) == ("one", "two")


def test_of_idle_vms_the_one_idle_longest_makes_room(fake_host, bundle):
    host, core = fake_host(FakeCore(), policy=Policy(max_vms=2, warm=1))
    tasks = {name: host.load(bundle(name)) for name in "bac"}
    core.now = 10
    tasks["a"](1)
    core.now = 20
    tasks["b"](1)
    core.now = 30
    tasks["c"](1)
    host._service.events.settle()
    assert [vm.lane.name for vm in core.vms if vm.lane and vm.state == "ended"] == ["a"]


def test_a_holder_gives_way_after_its_quantum_without_any_event(fake_host, bundle):
    host, core = fake_host(idle_core(), policy=Policy(max_vms=1, warm=1, quantum_s=0.001))
    a, b = host.load(bundle("a")), host.load(bundle("b"))
    first = a.submit(1)
    host._service.events.settle()
    second = b.submit(2)
    [holder] = running(core, "a")
    assert holder.retiring.wait(60)
    core.guest = lambda value, entry: value
    holder.call.end("first")
    assert (first.result(60), second.result(60)) == ("first", 2)


def test_a_task_never_has_more_vms_than_its_concurrency(fake_host, bundle):
    host, core = fake_host(idle_core(), policy=Policy(max_vms=8, warm=4, max_warm=4))
    task = host.load(bundle("a", limits={"concurrency": 2}))
    futures = [task.submit(i) for i in range(10)]
    host._service.events.settle()
    host._service.events.settle()
    assert len(running(core, "a")) == 2
    core.guest = lambda value, entry: value
    for vm in running(core, "a"):
        vm.call.end(None)
    for future in futures:
        future.result(60)


def test_tasks_take_turns_when_there_are_more_of_them_than_vms(fake_host, bundle):
    host, core = fake_host(idle_core(), policy=Policy(max_vms=1, warm=1, quantum_s=0.001))
    tasks = {name: host.load(bundle(name)) for name in "abc"}
    for task in tasks.values():
        for i in range(30):
            task.submit(i)
    served = []
    for _ in range(60):
        host._service.events.settle()
        for vm in core.in_state("serving"):
            if vm.call:
                served.append(vm.lane.name)
                vm.call.end(None)
    assert {name: served.count(name) > 0 for name in "abc"} == {"a": True, "b": True, "c": True}


def test_weights_come_from_the_policy_of_the_task(fake_host, bundle):
    host, core = fake_host(
        idle_core(), policy=Policy(max_vms=4, warm=4, max_warm=4, tasks={"a": TaskPolicy(weight=3.0)})
    )
    with host._service.lock:  # both want VMs before the first is dealt
        a, b = host.load(bundle("a")), host.load(bundle("b"))
        for i in range(8):
            a.submit(i)
            b.submit(i)
    host._service.events.settle()
    host._service.events.settle()
    assert (len(running(core, "a")), len(running(core, "b"))) == (3, 1)


def test_a_lane_that_has_all_its_vms_does_not_wake_the_service_again(fake_host, bundle):
    host, core = fake_host(idle_core(), policy=Policy(max_vms=4, max_warm=4))
    task = host.load(bundle("a", limits={"concurrency": 1}))
    futures = [task.submit(0)]
    host._service.events.settle()
    host._service.events.settle()
    waits = host._service.events.waits
    futures += [task.submit(i) for i in range(50)]
    assert host._service.events.waits == waits
    assert core.lanes[0].muted
    core.guest = lambda value, entry: value
    running(core, "a")[0].call.end(0)
    assert [f.result(60) for f in futures[1:]] == list(range(50))


def test_a_lane_that_lost_its_vm_may_speak_again(fake_host, bundle):
    host, core = fake_host(idle_core(), policy=Policy(max_vms=4))
    task = host.load(bundle("a", limits={"concurrency": 1}))
    task.submit(0)
    host._service.events.settle()
    host._service.events.settle()
    running(core, "a")[0].retire()
    running(core, "a")[0].call.end(0)
    host._service.events.settle()
    assert not core.lanes[0].muted
    core.guest = lambda value, entry: value
    assert task(1) == 1


def test_short_calls_get_no_more_vms_than_cores_and_long_ones_do(fake_host, bundle):
    for seconds, expected in ((0.0001, 2), (0.1, 4)):
        host, core = fake_host(FakeCore(), policy=Policy(max_vms=8, warm=4, max_warm=4, cores=2, quantum_s=60))
        task = host.load(bundle("a"))
        assert [task(i) for i in range(100)] == list(range(100))
        core.lanes[0].wall_s_total = 100 * seconds
        core.guest = None
        futures = [task.submit(i) for i in range(8)]
        host._service.events.settle()
        host._service.events.settle()
        assert len(running(core, "a")) == expected
        core.guest = lambda value, entry: value
        for vm in running(core, "a"):
            vm.call.end(None)
        for future in futures:
            future.result(60)


def test_short_calls_that_do_not_end_get_all_their_vms_after_a_quantum(fake_host, bundle):
    """Calls may wait for each other, or for something only another call does: with fewer VMs they would deadlock."""
    host, core = fake_host(FakeCore(), policy=Policy(max_vms=8, warm=4, max_warm=4, cores=2, quantum_s=0.01))
    task = host.load(bundle("a"))
    assert [task(i) for i in range(100)] == list(range(100))
    core.lanes[0].wall_s_total = 100 * 0.0001
    core.guest = None
    futures = [task.submit(i) for i in range(4)]
    until(lambda: len(running(core, "a")) == 4)
    for vm in running(core, "a"):
        vm.call.end(None)
    for future in futures:
        future.result(60)


def test_a_call_that_its_vm_has_not_begun_yet_counts(fake_host, bundle):
    """Two calls at once: the idle VM gets one, and is still asleep when VMs are dealt for the other."""
    host, core = fake_host(idle_core(), policy=Policy(max_vms=2, warm=0, max_warm=0))
    host.load(bundle("a"))
    [lane] = core.lanes
    with host._service.lock:
        lane.handed_over = 1
        assert host._service._scheduler.demand(host.task("a")._current) == 1
        lane.waiting.append(Call(lane, 1, None, 0, None))
        assert host._service._scheduler.demand(host.task("a")._current) == 2
        lane.waiting.clear()
        lane.handed_over = 0


def test_a_warm_vm_is_not_replaced_where_the_policy_says_so(fake_host, bundle):
    host, core = fake_host(FakeCore(), policy=Policy(warm=1, max_warm=1, replace_warm=False))
    assert host.load(bundle("a"))(1) == 1
    host.close()
    assert len(core.vms) == 1
