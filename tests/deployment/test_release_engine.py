"""Releases: which devices get which version when, and the effect of reports."""

import contextlib

import pytest

from tests.deployment.platforms import Clock, add_version, platform_in
from tests.hosts import until
from vmhost.cohorts import cohort_of
from vmhost.deployment.cloud import platform as platform_module
from vmhost.deployment.cloud import release_states
from vmhost.deployment.cloud.plan import Plan
from vmhost.deployment.errors import MissingError, RefusedError

TASK = "shop/rank"
FACTS = {"python": "3.14", "os": "linux"}


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def platform(tmp_path, clock):
    with platform_in(tmp_path / "cloud", clock=clock) as platform:
        yield platform


def start(platform, version, plain=None, task=TASK, **more):
    if not any(each.version == version and each.task == task for each in platform.releases.versions.values()):
        add_version(platform, task, version)
    return platform.releases.start(
        task, version, Plan.of(plain or {"steps": [{"percent": 100}]}), "ann", "test", **more
    )


def gets(platform, device, facts=FACTS, named=frozenset(), task=TASK):
    """The version that the device should have, or None."""
    release, _ = platform.releases.choose(device, facts, named).get(task, (None, None))
    return release and release.version.version


def prove(platform, release, *devices):
    for device in devices:
        gets(platform, device)
        assert platform.releases.report(device, release.id, "proven")


def finished(platform, version):
    release = start(platform, version)
    prove(platform, release, "first")
    assert release.state == "done"
    return release


@pytest.mark.parametrize(
    "counted, state",
    [
        ({"calls": 20, "failures": 1, "wall_s": 1.9, "peak_bytes": 47 << 20}, "proven"),
        ({"calls": 20, "failures": 2, "wall_s": 1.9, "peak_bytes": 47 << 20}, "failed"),
        ({"calls": 20, "failures": 1, "wall_s": 2.1, "peak_bytes": 47 << 20}, "failed"),
        ({"calls": 20, "failures": 1, "wall_s": 1.9, "peak_bytes": 49 << 20}, "failed"),
        ({"calls": 20, "failures": 1, "wall_s": 1.9, "peak_bytes": 47 << 20, "slow": 2}, "proven"),
        ({"calls": 20, "failures": 1, "wall_s": 1.9, "peak_bytes": 47 << 20, "slow": 3}, "failed"),
        (None, "offered"),  # the plan asks for calls
        ({"calls": -1}, "offered"),
        ({"calls": float("nan"), "wall_s": "x"}, "offered"),
        ("nonsense", "offered"),
    ],
)
def test_what_a_device_calls_proven_is_held_against_the_releases_bounds(platform, counted, state):
    proof = {"calls": 20, "max_error": "5 %", "max_time": "100 ms", "max_memory": "48 MiB"}
    proof["slow"] = {"over": "150 ms", "max": "10 %"}
    release = start(platform, "1", {"steps": [{"percent": 100, "min_reports": 9}], "max_error": 1, "proof": proof})
    assert gets(platform, "a") == "1"
    assert platform.releases.report("a", release.id, "proven", "fine", counted) == (state != "offered")
    [row] = platform.releases.devices_of(release.id)
    assert row["state"] == state and ("says that it is proven, but" in row["reason"]) == (state == "failed")


def test_what_a_device_has_proven_before_needs_no_calls_again(platform):
    first = start(platform, "1")
    prove(platform, first, "a")
    asks = {"steps": [{"percent": 100, "min_reports": 9}], "proof": {"calls": 20}}
    again = platform.releases.start("shop/rank", "1", Plan.of(asks), "ann", "")
    assert gets(platform, "a") == gets(platform, "b") == "1"
    assert platform.releases.report("a", again.id, "proven") and not platform.releases.report("b", again.id, "proven")


@pytest.mark.parametrize("right", [True, False])
def test_a_device_proves_only_what_it_has(platform, right):
    release = start(platform, "1", {"steps": [{"percent": 100, "min_reports": 9}], "max_error": 1})
    platform.devices.enrol("a", "s" * 40)
    digest = release.version.bundles["3.14"][0] if right else "ab" * 32
    has = {"version": "1", "digest": digest, "release": release.id, "state": "proven", "files": {}}

    def check(**more):
        platform.check("a", "s" * 40, {"facts": {"python": "3.14"}, "tasks": {"shop/rank": has}, "epoch": "e"} | more)
        [row] = platform.releases.devices_of(release.id)
        return row["state"]

    assert check() == check() == "offered"  # what it states is no proof
    assert check(reports=[[1, {"release": release.id, "state": "proven"}]]) == ("proven" if right else "failed")


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_time": 5},
        {"slow": {}},
        {"slow": {"over": "1 s", "max": "many"}},
        {"slow": 5},
        {"max_memory": "much"},
        {"max_memory": -1},
        {"max_time": "fast"},
    ],
)
def test_bounds_that_cannot_be_are_refused_with_their_place(wrong):
    with pytest.raises(RefusedError, match=f"plan: proof.{[*wrong][0]}.*: expected|slow: over is missing"):
        Plan.of({"proof": wrong}, "plan")


def test_cohorts_are_stable_prefixes_and_differ_between_tasks():
    devices = [f"device-{number}" for number in range(5000)]
    five = {device for device in devices if cohort_of(TASK, device) <= 50}
    ten = {device for device in devices if cohort_of(TASK, device) <= 100}
    other = {device for device in devices if cohort_of("shop/search", device) <= 50}
    assert five < ten and 150 < len(five) < 350
    assert len(five & other) < len(five) / 2
    assert cohort_of(TASK, "device-1") == 258  # must never change: devices would change cohorts


def test_steps_reach_more_and_more_devices_and_never_fewer(platform):
    release = start(
        platform, "1", {"steps": [{"devices": ["beta"]}, {"percent": 10}, {"percent": 100, "start": "manual"}]}
    )
    devices = [f"device-{number}" for number in range(300)]
    tenth = {device for device in devices if cohort_of(TASK, device) <= 100}
    assert gets(platform, "beta") == "1"
    assert {device for device in devices if gets(platform, device)} == set()
    prove(platform, release, "beta")
    assert release.step == 1
    assert {device for device in devices if gets(platform, device)} == tenth
    prove(platform, release, *list(tenth)[:5])
    assert release.step == 1  # the next step waits for a person
    platform.releases.act(release.id, "next", "ann")
    assert {device for device in devices if gets(platform, device)} == set(devices)


@pytest.mark.parametrize("event", ["next", "resume"])
def test_a_first_step_that_is_started_by_hand_waits(platform, event):
    release = start(platform, "1", {"steps": [{"percent": 100, "start": "manual"}]})
    platform.releases.tick()
    assert (release.state, gets(platform, "a")) == ("paused", None)
    assert f"vmhost cloud next {release.id}" in platform.releases.history(TASK)[0]["why"]
    platform.releases.act(release.id, event, "ann")
    assert (release.state, release.step, gets(platform, "a")) == ("running", 0, "1")


def test_a_step_waits_for_its_reports_and_its_soak_time(platform, clock):
    release = start(platform, "1", {"steps": [{"percent": 100, "min_reports": 2, "soak": "10 min"}]})
    prove(platform, release, "a")
    clock.now_s += 601
    platform.releases.tick()
    assert release.state == "running"
    prove(platform, release, "b")
    assert release.state == "done"


def test_a_step_waits_for_its_share_of_devices_and_for_calls(platform):
    steps = [{"devices": [*"abcd"], "min_proven": "75 %", "min_calls": 50}, {"percent": 100, "min_reports": 9}]
    release = start(platform, "1", {"steps": steps})
    for device in "abcd":
        assert gets(platform, device) == "1"
    prove(platform, release, "a", "b")
    release.called.calls = 50
    platform.releases.tick()
    assert release.step == 0  # two of four
    release.called.calls = 49
    prove(platform, release, "c")
    assert release.step == 0
    release.called.calls = 50
    platform.releases.tick()
    assert release.step == 1


def test_soak_time_counts_though_nobody_reports(platform, clock):
    release = start(platform, "1", {"steps": [{"percent": 100, "soak": "10 min"}]})
    prove(platform, release, "a")
    assert release.state == "running"
    clock.now_s += 601
    platform.releases.tick()
    assert release.state == "done"


def test_late_joiners_get_what_was_released_fully(platform):
    finished(platform, "1")
    assert gets(platform, "late") == "1"


@pytest.mark.parametrize(
    ("on_failure", "state"), [("roll_back", "rolled_back"), ("halt", "halted"), ("pause", "paused")]
)
def test_too_many_failures_do_what_the_release_says(platform, on_failure, state):
    finished(platform, "1")
    steps = [{"percent": 100, "min_reports": 4}]
    release = start(platform, "2", {"steps": steps, "on_failure": on_failure, "max_error": "25 %"})
    assert [gets(platform, device) for device in "abcd"] == ["2"] * 4
    platform.releases.report("a", release.id, "failed", "ValueError: no")
    assert release.state == "running"  # one of the four that it waits for
    platform.releases.report("b", release.id, "failed", "ValueError: no")
    assert release.state == state
    # devices that have it keep it, unless it was taken back; no other device gets it
    assert [gets(platform, device) for device in "cd"] == ["1" if state == "rolled_back" else "2"] * 2
    assert gets(platform, "a") == "1"
    assert gets(platform, "new") == "1"
    [event] = [each for each in platform.releases.history(TASK) if each["event"] == on_failure]
    assert event["who"] == "platform" and "2 of 2" in event["why"] and "ValueError: no" in event["why"]


def test_few_good_reports_before_do_not_hide_failures_of_a_step(platform):
    release = start(
        platform,
        "1",
        {
            "steps": [{"devices": ["x", *"abcdefgh"], "min_reports": 8}, {"percent": 100, "min_reports": 2}],
            "max_error": "40 %",
        },
    )
    prove(platform, release, *"abcdefgh")
    assert release.step == 1
    assert gets(platform, "y") == "1"
    platform.releases.report("y", release.id, "failed", "no")
    assert release.state == "rolled_back"  # one of the two that this step waits for


def test_a_device_that_took_it_and_fell_silent_has_failed_and_may_come_back(platform, clock):
    release = start(platform, "1", {"steps": [{"percent": 100, "min_reports": 2}], "max_error": 1.0, "silence": "1 h"})
    assert gets(platform, "a") == "1"
    platform.releases.report("a", release.id, "taken")
    clock.now_s += 3590
    platform.releases.tick()
    assert release.counts.silent == 0
    clock.now_s += 20
    platform.releases.tick()
    assert (release.counts.silent, release.counts.bad) == (1, 1)
    platform.releases.report("a", release.id, "proven")
    assert (release.counts.silent, release.counts.proven) == (0, 1)


def test_devices_are_not_silent_while_the_platform_does_not_run(tmp_path, platform, clock):
    release = start(platform, "1", {"steps": [{"percent": 100, "min_reports": 2}], "silence": "1 h"})
    for device, state in (("a", "taken"), ("b", "running")):
        gets(platform, device)
        platform.releases.report(device, release.id, state)
    platform.close()
    clock.now_s += 1e6
    with platform_in(tmp_path / "cloud", clock=clock) as again:
        for later_s, silent in ((0, 0), (3599, 0), (2, 2)):
            clock.now_s += later_s
            again.releases.tick()
            assert again.releases.release(release.id).counts.silent == silent


def test_who_was_offered_it_and_never_came_is_no_failure(platform, clock):
    release = start(platform, "1", {"steps": [{"percent": 100, "min_reports": 2}]})
    gets(platform, "a")
    clock.now_s += 1e7
    platform.releases.tick()
    assert release.counts.bad == 0 and release.state == "running"


def test_a_device_that_failed_gets_the_version_before_and_no_other_release_of_the_same(platform):
    finished(platform, "1")
    release = start(platform, "2", {"steps": [{"percent": 100, "min_reports": 9}], "max_error": 1.0})
    assert gets(platform, "a") == "2"
    platform.releases.report("a", release.id, "failed")
    assert gets(platform, "a") == "1"
    platform.releases.retry("a", release.id, "ann")
    assert gets(platform, "a") == "2"


def test_a_person_who_goes_back_is_respected_and_is_no_failure(platform):
    finished(platform, "1")
    release = start(platform, "2", {"steps": [{"percent": 100, "min_reports": 9}], "max_error": 0})
    gets(platform, "a")
    platform.releases.report("a", release.id, "proven")
    platform.releases.report("a", release.id, "declined", "went back by hand")
    assert gets(platform, "a") == "1"
    assert release.state == "running" and release.counts.declined == 1


def test_a_version_that_was_rolled_back_must_be_forgiven_first(platform):
    finished(platform, "1")
    release = finished(platform, "2")
    platform.releases.act(release.id, "roll_back", "ann", "sells nothing")
    assert gets(platform, "first") == "1"
    with pytest.raises(RefusedError, match="sells nothing.*forgive"):
        start(platform, "2")
    platform.releases.forgive(TASK, "2", "bob", "it was the season")
    again = start(platform, "2")
    assert gets(platform, "first") == "2"
    assert again.id != release.id
    whole = [(each["event"], each["who"], each["why"]) for each in platform.releases.history(TASK)]
    assert ("forgiven", "bob", "it was the season") in whole and ("roll_back", "ann", "sells nothing") in whole


def test_failures_after_the_end_of_a_release_take_it_back_too(platform):
    finished(platform, "1")
    release = finished(platform, "2")
    for number in range(3):
        gets(platform, f"late-{number}")
        platform.releases.report(f"late-{number}", release.id, "failed")
    assert release.state == "rolled_back"


def test_two_releases_of_a_task_follow_each_other_by_priority(platform):
    first = start(platform, "1")
    usual = start(platform, "2")
    urgent = start(platform, "3", priority=5)
    assert (first.state, usual.state, urgent.state) == ("running", "queued", "queued")
    prove(platform, first, "a")
    assert (first.state, usual.state, urgent.state) == ("done", "queued", "running")
    prove(platform, urgent, "a")
    assert usual.state == "running"
    assert gets(platform, "b") == "2"  # the one that started last is the newest


def test_a_halted_release_lets_the_next_one_begin_and_cannot_be_resumed_beside_it(platform):
    first = start(platform, "1")
    gets(platform, "a")
    platform.releases.act(first.id, "halt", "ann")
    second = start(platform, "2")
    assert second.state == "running" and gets(platform, "a") == "2"
    with pytest.raises(RefusedError, match="under way"):
        platform.releases.act(first.id, "resume", "ann")


def test_resuming_excuses_what_failed_before(platform):
    release = start(platform, "1", {"steps": [{"percent": 100, "min_reports": 3}], "on_failure": "pause"})
    for device in "abcd":
        gets(platform, device)
    platform.releases.report("a", release.id, "failed")
    assert release.state == "paused"
    platform.releases.act(release.id, "resume", "ann", "its disk was full")
    platform.releases.tick()
    assert release.state == "running"
    platform.releases.report("b", release.id, "failed")
    assert release.state == "paused"


def test_count_and_rate_bound_how_many_are_offered_it(platform, clock):
    release = start(platform, "1", {"steps": [{"count": 5, "per_minute": 2, "min_reports": 9}]})
    devices = [f"device-{number}" for number in range(20)]
    for reached in (2, 4, 5, 5):
        for device in devices:
            gets(platform, device)
        assert release.counts.reached == reached
        clock.now_s += 60


def test_hours_bound_when_devices_are_offered_it(platform, clock):
    start(platform, "1", {"steps": [{"percent": 100}], "hours": "22-04"})
    clock.now_s = 86400 * 20000 + 12 * 3600.0
    assert gets(platform, "a") is None
    clock.now_s += 11 * 3600
    assert gets(platform, "a") == "1"
    clock.now_s += 12 * 3600
    assert gets(platform, "a") == "1"  # a device that has it keeps it
    assert gets(platform, "b") is None


def test_audiences_and_named_cohorts(platform):
    start(platform, "1", {"audience": {"os": "linux", "deny": ["c"]}, "steps": [{"cohorts": ["staff"]}]})
    assert gets(platform, "a") is None
    assert gets(platform, "a", named=frozenset(["staff"])) == "1"
    assert gets(platform, "b", {"python": "3.14", "os": "android"}, frozenset(["staff"])) is None
    assert gets(platform, "c", named=frozenset(["staff"])) is None


def test_a_device_with_another_python_gets_no_bundle_that_it_cannot_run(platform):
    start(platform, "1")
    assert gets(platform, "a", {"python": "3.15"}) is None
    assert gets(platform, "b", {}) is None


def test_reports_that_cannot_be_change_nothing(platform):
    release = start(platform, "1", {"steps": [{"percent": 100, "min_reports": 3}]})
    assert not platform.releases.report("stranger", release.id, "proven")  # was never offered it
    assert not platform.releases.report("a", 99, "proven")
    gets(platform, "a")
    assert not platform.releases.report("a", release.id, "happy")
    platform.releases.report("a", release.id, "proven")
    assert not platform.releases.report("a", release.id, "taken")  # late
    assert (release.counts.proven, release.counts.reached) == (1, 1)


def test_everything_is_there_after_the_process_was_killed(platform, tmp_path, clock):
    finished(platform, "1")
    release = start(
        platform, "2", {"steps": [{"devices": ["a"]}, {"percent": 100, "min_reports": 3}], "on_failure": "halt"}
    )
    prove(platform, release, "a", "b")
    for device in "cde":
        gets(platform, device)
    platform.releases.report("c", release.id, "failed", "no")
    before = [each.plain() for each in platform.releases.releases.values()]
    platform.database.close()  # nothing else is written
    with platform_in(tmp_path / "cloud", clock=clock) as again:
        assert [each.plain() for each in again.releases.releases.values()] == before
        assert gets(again, "d") == "2" and gets(again, "c") == "1" and gets(again, "new") == "1"


def test_a_transaction_that_fails_leaves_memory_and_database_alike(platform):
    release = start(platform, "1", {"steps": [{"percent": 100, "min_reports": 3}]})
    gets(platform, "a")
    with pytest.raises(RuntimeError), platform.releases.change():
        platform.releases.report("a", release.id, "proven")
        gets(platform, "b")
        raise RuntimeError
    again = platform.releases.release(release.id)
    assert (again.counts.proven, again.counts.offered) == (0, 1)
    assert gets(platform, "b") == "1"


def test_what_cannot_be_done_is_refused_with_what_can(platform):
    release = start(platform, "1")
    with pytest.raises(RefusedError, match="is running; it can finish, halt, next, pause, roll_back, not resume"):
        platform.releases.act(release.id, "resume", "ann")
    with pytest.raises(RefusedError, match="running already"):
        start(platform, "1")
    with pytest.raises(MissingError, match="there are 1"):
        platform.releases.start(TASK, "7", Plan.of({}), "ann", "")
    with pytest.raises(MissingError):
        platform.releases.act(99, "pause", "ann")


def test_every_state_can_be_left_or_is_an_end():
    ends = {"cancelled", "rolled_back"}
    assert {state for state, _ in release_states.RELEASE} == set(release_states.RELEASE_STATES) - ends
    assert set(release_states.RELEASE.values()) <= set(release_states.RELEASE_STATES)
    for after in release_states.DEVICE.values():
        assert set(after) <= set(release_states.DEVICE)


def control_plan(**more):
    steps = [{"percent": 100, "min_reports": 500}]
    return {"steps": steps, "control": {"percent": 20, "max_worse": "2 %", "min_calls": 100}} | more


def sides(platform, release):
    """Two devices that have the release, and two of the control cohort."""
    devices = [f"device-{number}" for number in range(60)]
    has = [device for device in devices if gets(platform, device) == release.version.version]
    keep = [device for device in devices if device not in has]
    assert all(cohort_of(TASK, device) > 800 for device in keep) and all(
        cohort_of(TASK, device) <= 800 for device in has
    )
    return has[:2], keep[:2]


@pytest.mark.parametrize(("failures", "state"), [(3, "running"), (9, "halted")])
def test_a_release_is_measured_against_a_control_cohort_that_keeps_the_version_before(platform, failures, state):
    before = finished(platform, "1")
    release = start(platform, "2", control_plan(on_failure="halt"))
    has, keep = sides(platform, release)
    for device in keep:  # 4 of 100 calls fail there, as before this release
        platform.releases.count_calls(device, TASK, before.id, 50, 2)
    for device in has[:1]:
        platform.releases.count_calls(device, TASK, release.id, 60, failures)
    assert release.state == "running"  # too few calls to decide
    platform.releases.count_calls(has[1], TASK, release.id, 40, 0)
    assert release.state == state
    if state == "halted":
        reason = platform.releases.history(TASK)[0]["why"]
        assert "9 of 100 calls failed, 4 of 100 in the control cohort" in reason


def test_the_control_cohort_gets_it_once_the_release_is_done(platform):
    finished(platform, "1")
    release = start(platform, "2", control_plan())
    _, keep = sides(platform, release)
    platform.releases.act(release.id, "next", "ann")
    assert release.state == "done" and gets(platform, keep[0]) == "2"


def test_devices_count_from_anew_and_what_they_repeat_counts_once(platform):
    release = start(platform, "1", control_plan())
    [has, *_], _ = sides(platform, release)
    for calls, failures, total in (
        (10, 1, 10),
        (10, 1, 10),
        (25, 1, 25),
        (5, 0, 30),
        (5, 9, 30),
        (-1, 0, 30),
        (1 << 50, 0, 30),
    ):
        platform.releases.count_calls(has, TASK, release.id, calls, failures)
        assert release.called.calls == total
    assert release.called.failures == 1
    platform.releases.count_calls(has, TASK, 99, 5, 0)
    platform.releases.count_calls(has, "shop/other", release.id, 5, 0)
    platform.releases._load()
    assert platform.releases.release(release.id).called.calls == 30


def test_a_resumed_release_is_measured_anew(platform):
    before = finished(platform, "1")
    release = start(platform, "2", control_plan(on_failure="pause"))
    has, keep = sides(platform, release)
    platform.releases.count_calls(keep[0], TASK, before.id, 100, 0)
    platform.releases.count_calls(has[0], TASK, release.id, 100, 50)
    assert release.state == "paused"
    platform.releases.act(release.id, "resume", "ann", "the network was away")
    platform.releases.tick()
    assert release.state == "running" and release.called.calls == 0


def test_control_cohorts_that_cannot_be_are_refused():
    for plain, message in (
        ({"control": {"max_worse": "1 %"}}, "control: percent is missing"),
        ({"control": {"percent": 0}}, "above 0"),
        ({"control": 5}, "control: expected a mapping with percent"),
        ({"steps": [{"percent": 5, "max_worse": "1 %"}]}, "needs a control cohort"),
    ):
        with pytest.raises(RefusedError, match=message):
            Plan.of(plain)


def test_a_device_that_reports_while_the_silent_are_looked_for_is_not_silent(platform, clock, monkeypatch):
    release = start(platform, "1", {"steps": [{"percent": 100, "min_reports": 9}], "silence": "1 h"})
    gets(platform, "a")
    platform.releases.report("a", release.id, "taken")
    clock.now_s += 3601
    change, reports = platform.releases.change, ["proven"]

    def changed():
        if reports:
            platform.releases.report("a", release.id, reports.pop())
        return change()

    monkeypatch.setattr(platform.releases, "change", changed)
    platform.releases.tick()
    assert (release.counts.silent, release.counts.proven) == (0, 1)


def test_a_release_whose_start_fails_during_a_tick_is_left_out(platform, monkeypatch):
    """Another thread starts a release, a tick sees it, and the start's transaction is rolled back."""
    vanishing, staying = start(platform, "1"), start(platform, "1", task="shop/words")
    change = platform.releases.change

    @contextlib.contextmanager
    def changed():
        with change() as connection:
            platform.releases.releases.pop(vanishing.id, None)
            yield connection

    monkeypatch.setattr(platform.releases, "change", changed)
    judged = []
    monkeypatch.setattr(platform.releases, "_judge", lambda connection, release: judged.append(release.id))
    platform.releases.tick()
    assert judged == [staying.id]


def test_a_fault_of_a_tick_does_not_end_the_ticks(platform, monkeypatch, caplog):
    ticks = []

    def tick():
        ticks.append(1)
        raise KeyError(38)

    monkeypatch.setattr(platform_module, "_TICK_S", 0.01)
    monkeypatch.setattr(platform.releases, "tick", tick)
    platform.start_ticking()
    until(lambda: len(ticks) > 2)
    assert "releases are stalled, and it is tried again" in caplog.text
