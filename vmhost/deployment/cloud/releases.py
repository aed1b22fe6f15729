"""The release engine: which version of each task a device should have, and what its reports do to a release.

The state is in the database; what decisions need is cached in memory, and read again after a failed transaction. Every
change joins a transaction of the database, so an answer to a device and the state that it was decided by are durable
together. A crash between two transactions loses nothing: `tick` continues from the stored state.

Of a task's releases, newest first, a device gets the first one that is for it: it is in the audience, a step has
reached it (once reached, always reached), and it did not fail it. A version that was rolled back is bad, and nobody
gets it until it is forgiven; the release before it is then the first, so the fleet goes back at once.
"""

import contextlib
import itertools
import json
import logging
import time
from dataclasses import dataclass, field

from vmhost.cohorts import cohort_of
from vmhost.deployment.bounds import Counted, case_outside, memory_outside, why_outside
from vmhost.deployment.cloud import release_states as states
from vmhost.deployment.cloud.audience import Facts
from vmhost.deployment.cloud.plan import Plan
from vmhost.deployment.cloud.release_states import CallCounts, Counts
from vmhost.deployment.errors import MissingError, RefusedError

PLATFORM = "platform"  # the actor where no person acts
_MAX_REASON = 2000
_MAX_CALLS = 1 << 40
_log = logging.getLogger("vmhost.deployment")
_MAX_HISTORY = 100_000  # rows that are looked through for those of some repositories


@dataclass
class Version:
    """A version of a task: `bundles` maps Python targets to (digest, size); `bad` says why it must not run, or is None.
    `took_s` and `peak_bytes`: seconds of each case in the simulation, and the VM's peak memory there. `functions`: host
    functions that the task asks for; `stream`: whether it is a pipeline's task."""

    id: int
    task: str
    version: str
    commit: str
    who: str
    time_ms: int
    bad: str | None
    proof: dict | None
    bundles: dict = field(default_factory=dict)
    took_s: dict = field(default_factory=dict)
    peak_bytes: int = 0
    functions: list = field(default_factory=list)
    stream: bool = False

    @classmethod
    def of_row(cls, row):
        """From a row of the table: id, task, version, commit, who, time_ms, bad, proof, report."""
        *fields, proof, report = row
        report = json.loads(report)
        version = cls(*fields, json.loads(proof) if proof else None)
        version.took_s, version.peak_bytes = report.get("took_s", {}), report.get("peak_bytes", 0)
        version.functions, version.stream = report.get("functions", []), report.get("stream", False)
        return version


@dataclass
class Release:
    """A release. `counts`: of all its devices; `by_step`: of those that each step reached; `excused`: failures before
    it was resumed by hand."""

    id: int
    version: Version
    state: str
    step: int
    since_ms: int
    plan: Plan
    priority: int
    who: str
    why: str
    time_ms: int
    excused: int = 0
    counts: Counts = field(default_factory=Counts)
    by_step: dict = field(default_factory=dict)
    called: CallCounts = field(default_factory=CallCounts)
    minute: tuple = (0, 0)  # (minute, devices that were offered it in that minute)

    @property
    def task(self):
        return self.version.task

    @property
    def depends_on_time(self):
        """Whether it may become due for a device by time alone."""
        return self.plan.hours is not None or any(step.per_minute is not None for step in self.plan.steps)

    @property
    def waits_for_first_step(self):
        """Whether its first step is begun by hand, and was not yet."""
        return self.state == "paused" and self.step == 0 and self.plan.steps[0].manual and not self.counts.reached

    def of_step(self, step):
        return self.by_step.setdefault(step, Counts())

    def plain(self):
        """The release as the API shows it."""
        step = self.plan.steps[self.step]
        return {
            "id": self.id,
            "task": self.task,
            "version": self.version.version,
            "state": self.state,
            "step": self.step + 1,
            "steps": len(self.plan.steps),
            "since_ms": self.since_ms,
            "calls": vars(self.called),
            "devices": vars(self.counts) | {"reached": self.counts.reached},
            "this_step": vars(self.of_step(self.step))
            | {name: getattr(step, name) for name in ("min_reports", "min_proven", "min_calls", "soak_s")},
            "plan": self.plan.plain,
            "priority": self.priority,
            "who": self.who,
            "why": self.why,
            "time_ms": self.time_ms,
        }


def _simulation_outside(rules, version):
    """The bound that the version's simulation exceeds, in words, or None."""
    slow = [case_outside(rules, name, took_s) for name, took_s in version.took_s.items()]
    return next(filter(None, [*slow, memory_outside(rules, version.peak_bytes)]), None)


def _counted(plain):
    """The Counted of a report; None if it has none, or an invalid one."""
    try:
        found = Counted(**plain)
        return found if all(0 <= each < _MAX_CALLS for each in found) else None
    except TypeError:
        return None


class Releases:
    """The engine over `database`, whose tables (schema.py) exist. `clock`: seconds since 1970."""

    def __init__(self, database, clock=time.time):
        self.database = database
        self.clock = clock
        self.generation = 0  # grows with each change that may matter to a device
        self.why_not_yet = lambda version: None  # why a version cannot be released yet, or None
        self.when_reloaded = None  # called after the cache was read again
        self.plans = {}  # version's id -> its branch's release.yaml, stored, which has not begun
        self._seen = None  # the change number, over all processes, that the cache is as of
        self._depth = self._minute = 0
        self._opened_ms = self.now_ms()
        self._load()

    def now_ms(self):
        return int(self.clock() * 1000)

    def _load(self):
        with self.database.lock, self.database.reader() as connection:
            self.versions, self.releases, self._by_task = {}, {}, {}
            for row in connection.execute(
                'SELECT id, task, version, "commit", who, time_ms, bad, proof, report FROM deploy_versions '
                "WHERE state = 'ready' ORDER BY id"
            ):
                self.versions[row[0]] = Version.of_row(row)
            for version, target, digest, size in connection.execute("SELECT * FROM deploy_bundles"):
                if version in self.versions:
                    self.versions[version].bundles[target] = (digest, size)
            self.plans = dict(
                connection.execute(
                    "SELECT id, plan FROM deploy_versions WHERE state = 'ready' AND plan IS NOT NULL "
                    "AND id NOT IN (SELECT version FROM deploy_releases) ORDER BY id"
                )
            )
            for row in connection.execute(
                "SELECT id, version, state, step, since_ms, plan, priority, who, why, time_ms, excused "
                "FROM deploy_releases ORDER BY started, id"
            ):
                identity, version, state, step, since_ms, plan, *rest = row
                release = Release(
                    identity,
                    self.versions[version],
                    state,
                    step,
                    since_ms,
                    Plan.of(json.loads(plan), is_stored=True),
                    *rest,
                )
                self._remember(release)
            for release, step, state, number in connection.execute(
                "SELECT release, step, state, count(*) FROM deploy_assignments GROUP BY release, step, state"
            ):
                for counts in (self.releases[release].counts, self.releases[release].of_step(step)):
                    setattr(counts, state, getattr(counts, state) + number)
            for release, *counted in connection.execute(
                "SELECT release, calls, failures, control_calls, control_failures FROM deploy_calls"
            ):
                self.releases[release].called = CallCounts(*counted)
        self.generation += 1
        if self.when_reloaded is not None:
            self.when_reloaded()

    def _remember(self, release):
        self.releases[release.id] = release
        self._by_task.setdefault(release.task, []).insert(0, release)

    @contextlib.contextmanager
    def change(self):
        """A transaction; if it fails, the cache is read from the database again. Within it, look releases up anew: the
        cache may have been read again when it began."""
        with self.database.lock:
            self._depth += 1
            try:
                with self.database.transaction() as connection:
                    if self._depth == 1 and self.database.shared:
                        self._catch_up(connection)
                        before = connection.total_changes
                    yield connection
                    if self._depth == 1 and self.database.shared and connection.total_changes != before:
                        connection.execute("UPDATE deploy_changes SET number = number + 1")
                        self._seen += 1
            except BaseException:
                if self._depth == 1:
                    self._seen = None
                    self._load()
                raise
            finally:
                self._depth -= 1

    def _catch_up(self, connection):
        """Reads changes of other processes into the cache."""
        [(number,)] = connection.execute("SELECT number FROM deploy_changes").fetchall()
        if number != self._seen:
            if self._seen is not None or self.when_reloaded is not None:
                self._load()
            self._seen = number

    def refresh(self):
        """Where several processes share the database: brings the cache up to date."""
        if self.database.shared:
            with self.change():
                pass

    def announce(self):
        """Announces a change outside of the releases that may matter to a device."""
        self.generation += 1
        if self.database.shared:
            with self.change() as connection:
                connection.execute("UPDATE deploy_changes SET number = number")

    # ---- versions

    def add_version(self, version, plan):
        """Announces a Version, whose row exists already. `plan`: as in `plans`, or None."""
        with self.change() as connection:
            connection.execute("UPDATE deploy_versions SET state = 'ready' WHERE id = ?", (version.id,))
            self.versions[version.id] = version
            if plan is not None:
                self.plans[version.id] = plan
            self.generation += 1  # the metadata is to list it
            self._record_event(connection, version, None, "built", "ready", version.who, f"commit {version.commit}")

    def version(self, task, name):
        found = [each for each in self.versions.values() if each.task == task and each.version == name]
        if not found:
            known = sorted(each.version for each in self.versions.values() if each.task == task)
            raise MissingError(f"{task} {name}: no such version; there are {', '.join(known) or 'none'}")
        return found[0]

    def forgive(self, task, name, who, why):
        """Lets a version that was rolled back be released again."""
        with self.change() as connection:
            version = self.version(task, name)
            if version.bad is None:
                raise RefusedError(f"{task} {name}: is not bad; there is nothing to forgive")
            version.bad = None
            connection.execute("UPDATE deploy_versions SET bad = NULL WHERE id = ?", (version.id,))
            self._record_event(connection, version, None, "forgiven", "ready", who, why)
            self.generation += 1

    # ---- releases

    def start(self, task, name, plan, who, why, priority=None):
        """Starts a release, or queues it if another one of the task is active; returns the Release. RefusedError,
        MissingError."""
        with self.change() as connection:
            version = self.version(task, name)
            if (reason := self._why_not_started(version, plan)) is not None:
                raise RefusedError(f"{task} {name}: {reason}")
            priority = plan.priority if priority is None else priority
            now_ms = self.now_ms()
            row = (task, version.id, "queued", 0, now_ms, json.dumps(plan.plain), priority, who, why, now_ms)
            identity = connection.execute(
                "INSERT INTO deploy_releases (task, version, state, step, since_ms, plan, priority, who, why, time_ms) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id",
                row,
            ).fetchall()[0][0]
            release = Release(identity, version, "queued", 0, now_ms, plan, priority, who, why, now_ms)
            self._remember(release)
            self.plans.pop(version.id, None)
            self._record_event(connection, version, release, "released", "queued", who, why)
            self._start_queued(connection, task)
            return release

    def _why_not_started(self, version, plan):
        """None if a release of the version can start, else the reason."""
        if version.bad is not None:
            return (
                f"it was rolled back ({version.bad}); release another version, or forgive this one "
                f"first: vmhost cloud forgive {version.task} {version.version} --why REASON"
            )
        if (reason := self.why_not_yet(version)) is not None:
            return reason
        if (reason := _simulation_outside(plan.proof, version)) is not None:
            return f"in the platform's simulation {reason}; make it faster or smaller, or allow more in `proof`"
        for other in self._by_task.get(version.task, ()):
            if other.version is version and other.state in (*states.ACTIVE, "queued"):
                return f"release {other.id} of this version is {other.state} already"
        return None

    def begin_plan(self, version):
        """Begins the version's plan, unless it waits for something. One that is refused is given up for good, which the
        history says. Returns (the Release or None, why there is none or None)."""
        with self.change() as connection:
            if (stored := self.plans.get(version.id)) is None:
                return None, None
            version = self.versions[version.id]
            if (reason := self.why_not_yet(version)) is not None:
                return None, reason
            plan = Plan.of(json.loads(stored), is_stored=True)
            later = [each for each in self._by_task.get(version.task, ()) if each.version.id > version.id]
            if later:
                reason = f"release {later[0].id} of {later[0].version.version}, a later one, has begun since"
            elif (reason := self._why_not_started(version, plan)) is None:
                why = "release.yaml in its branch"
                return self.start(version.task, version.version, plan, version.who, why), None
            connection.execute("UPDATE deploy_versions SET plan = NULL WHERE id = ?", (version.id,))
            del self.plans[version.id]
            self._record_event(connection, version, None, "not released", "ready", PLATFORM, reason[:_MAX_REASON])
            return None, reason

    def begin_plans(self):
        """Begins all plans that wait for nothing any more, the earliest version's first."""
        for identity in sorted(self.plans):
            version = self.versions.get(identity)
            if version is not None and self.why_not_yet(version) is None:
                _, reason = self.begin_plan(version)
                if reason is not None:
                    _log.error("%s %s: not released: %s", version.task, version.version, reason)

    def _start_queued(self, connection, task):
        releases = self._by_task.get(task, ())
        if any(release.state in states.ACTIVE for release in releases):
            return
        queued = [release for release in releases if release.state == "queued"]
        if queued:
            release = max(queued, key=lambda each: (each.priority, -each.id))
            self._move(connection, release, "start", PLATFORM, "no other release of the task is under way")
            # The release that started last is considered first.
            connection.execute(
                "UPDATE deploy_releases SET started = 1 + (SELECT max(started) FROM deploy_releases) WHERE id = ?",
                (release.id,),
            )
            releases.remove(release)
            releases.insert(0, release)
            if release.plan.steps[0].manual:
                why = f"its first step is begun by hand: vmhost cloud next {release.id}"
                self._move(connection, release, "pause", PLATFORM, why)

    def act(self, identity, event, who, why=""):
        """An action by hand: pause, resume, halt, roll_back, next, cancel. RefusedError says what is possible
        instead."""
        with self.change() as connection:
            release = self.release(identity)
            if event == "next" and release.waits_for_first_step:
                event = "resume"
            elif event == "next" and release.step + 1 >= len(release.plan.steps):
                event = "finish"
            if event == "resume":
                others = [each for each in self._by_task[release.task] if each is not release]
                if any(each.state in states.ACTIVE for each in others):
                    raise RefusedError(
                        f"release {identity}: another release of {release.task} is under way; end it first"
                    )
                if release.version.bad is not None:
                    raise RefusedError(
                        f"release {identity}: its version is bad: {release.version.bad}; forgive it first"
                    )
                release.excused = release.counts.bad
                release.called = CallCounts()
                connection.execute("DELETE FROM deploy_calls WHERE release = ?", (identity,))
            self._move(connection, release, event, who, why)
            return release

    def release(self, identity):
        if identity not in self.releases:
            raise MissingError(f"release {identity}: there is no such release")
        return self.releases[identity]

    def of_task(self, task):
        """The task's releases, in the order in which they are considered."""
        return tuple(self._by_task.get(task, ()))

    def _move(self, connection, release, event, who, why):
        release.state = states.after(release.state, event)
        if event == "next":
            release.step += 1
        if event in ("next", "start", "resume"):
            release.since_ms = self.now_ms()
        why = why[:_MAX_REASON]
        if event == "roll_back":
            release.version.bad = why or "rolled back by hand"
            connection.execute(
                "UPDATE deploy_versions SET bad = ? WHERE id = ?", (release.version.bad, release.version.id)
            )
        connection.execute(
            "UPDATE deploy_releases SET state = ?, step = ?, since_ms = ?, excused = ? WHERE id = ?",
            (release.state, release.step, release.since_ms, release.excused, release.id),
        )
        self._record_event(connection, release.version, release, event, release.state, who, why)
        self.generation += 1
        if release.state not in (*states.ACTIVE, "queued"):
            self._start_queued(connection, release.task)

    def _record_event(self, connection, version, release, event, state, who, why):
        connection.execute(
            "INSERT INTO deploy_history (time_ms, task, release, version, event, state, who, why) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (self.now_ms(), version.task, release and release.id, version.version, event, state, who, why),
        )

    # ---- devices

    def choose(self, device, facts, named):
        """{task: (Release, the device's state in it)} that the device should have; records first offers."""
        with self.change() as connection:
            mine = {
                release: (step, state)
                for release, step, state in connection.execute(
                    "SELECT release, step, state FROM deploy_assignments WHERE device = ?", (device,)
                )
            }
            chosen = {}
            for task in self._by_task:
                about = Facts(device, facts, cohort_of(task, device), named)
                for release in self._by_task[task]:
                    state = mine.get(release.id, (0, None))[1]
                    if self.why_not(release, about, state) is None:
                        chosen[task] = (release, state or "offered")
                        if release.id not in mine:
                            self._offer(connection, release, device)
                        break
        return chosen

    def why_not(self, release, about, state):
        """None if the device (Facts; `state`: its state in the release, or None) should have it, else the reason."""
        plan = release.plan
        if release.version.bad is not None:
            return f"the version is bad: {release.version.bad}"
        if release.state in ("queued", "cancelled", "rolled_back"):
            return f"the release is {release.state}"
        if state in states.HAS_NO_MORE:
            return f"the device has {state} it"
        target = about.facts.get("python")
        if not isinstance(target, str) or target not in release.version.bundles:
            return f"it has no bundle for the device's Python ({target})"
        if state is not None:
            return None  # sticky: once reached, always reached
        if (reason := plan.audience.why_not(about)) is not None:
            return reason
        if release.state == "done":
            return None
        if release.state != "running":
            return f"the release is {release.state}, and spreads no further"
        if not plan.open_at(self.clock()):
            return f"it is not offered at this hour ({plan.plain['hours']} UTC)"
        steps = plan.steps[: release.step + 1]
        if plan.control and plan.control.keeps(about) and not any(about.device in step.devices for step in steps):
            return "it is in the control cohort, which keeps the version before until the release is done"
        counted = any(step.count is not None and release.counts.reached < step.count for step in steps)
        if not counted and not any(step.reaches(about) for step in steps):
            return f"step {release.step + 1} of {len(plan.steps)} has not reached it (its cohort is {about.cohort})"
        per_minute = steps[-1].per_minute
        if per_minute is not None and self._this_minute(release) >= per_minute:
            return f"{per_minute} devices were offered it this minute"
        return None

    def _this_minute(self, release):
        minute = self.now_ms() // 60_000
        return release.minute[1] if release.minute[0] == minute else 0

    def _offer(self, connection, release, device):
        release.minute = (self.now_ms() // 60_000, self._this_minute(release) + 1)
        connection.execute(
            "INSERT INTO deploy_assignments (device, release, step, state, since_ms, reason) "
            "VALUES (?, ?, ?, 'offered', ?, '')",
            (device, release.id, release.step, self.now_ms()),
        )
        for counts in (release.counts, release.of_step(release.step)):
            counts.move(None, "offered")

    def report(self, device, identity, state, reason="", counted=None, stated=()):
        """Takes a device's report on a release. A state that cannot follow the known one is late and dropped.
        `counted`: the calls that the device decided by, as plain data. `stated`: digests of what it says it has of the
        release. `proven` with other bundles, or outside of the release's bounds, counts as failed; without the calls
        that the plan asks for it is dropped, unless the device has proven the version before."""
        with self.change() as connection:
            release = self.releases.get(identity)
            if release is None or state not in states.DEVICE:
                return False
            if state == "proven":
                calls, rules = _counted(counted), release.plan.proof
                if calls is None and rules["calls"] and not self._has_proven(connection, device, release.version):
                    return False
                if stated and not stated & {digest for digest, _ in release.version.bundles.values()}:
                    state, reason = "failed", "the device says that it is proven, but it has another bundle"
                elif calls is not None and (outside := why_outside(rules, calls, complete=True)) is not None:
                    state, reason = "failed", f"the device says that it is proven, but {outside}"
            row = connection.execute(
                "SELECT step, state FROM deploy_assignments WHERE device = ? AND release = ?", (device, identity)
            ).fetchone()
            if row is None or state not in states.DEVICE[row[1]]:
                return False
            self._set_state(connection, release, device, *row, state, reason)
            self._judge(connection, release)
        return True

    def _has_proven(self, connection, device, version):
        return bool(
            connection.execute(
                "SELECT 1 FROM deploy_assignments WHERE device = ? AND state = 'proven' "
                "AND release IN (SELECT id FROM deploy_releases WHERE version = ?)",
                (device, version.id),
            ).fetchone()
        )

    def count_calls(self, device, task, identity, calls, failures):
        """Takes a device's counts of calls and failures of its current release, since its process began."""
        with self.change() as connection:
            release = self.releases.get(identity)
            if release is None or release.task != task or not 0 <= failures <= calls <= _MAX_CALLS:
                return
            known = connection.execute(
                "SELECT release, calls, failures FROM deploy_health WHERE device = ? AND task = ?", (device, task)
            ).fetchone()
            if known == (identity, calls, failures):
                return
            connection.execute(
                "INSERT INTO deploy_health VALUES (?, ?, ?, ?, ?) ON CONFLICT (device, task) DO UPDATE SET "
                "release = excluded.release, calls = excluded.calls, failures = excluded.failures",
                (device, task, identity, calls, failures),
            )
            if known and known[0] == identity and known[1] <= calls and known[2] <= failures:
                calls, failures = calls - known[1], failures - known[2]  # else it counts from zero
            self._add_calls(connection, release, calls, failures, 0, 0)
            for other in self._by_task[task]:
                about = Facts(device, {}, cohort_of(task, device))
                if other is not release and other.state in states.ACTIVE and other.plan.control:
                    if other.plan.control.keeps(about):
                        self._add_calls(connection, other, 0, 0, calls, failures)
                        self._judge(connection, other)
            self._judge(connection, release)

    def _add_calls(self, connection, release, *more):
        release.called = CallCounts(*(a + b for a, b in zip(vars(release.called).values(), more)))
        row = (release.id, *vars(release.called).values())
        connection.execute(
            "INSERT INTO deploy_calls VALUES (?, ?, ?, ?, ?) ON CONFLICT (release) DO UPDATE SET "
            "calls = excluded.calls, failures = excluded.failures, control_calls = excluded.control_calls, "
            "control_failures = excluded.control_failures",
            row,
        )

    def _set_state(self, connection, release, device, step, before, state, reason):
        connection.execute(
            "UPDATE deploy_assignments SET state = ?, since_ms = ?, reason = ? WHERE device = ? AND release = ?",
            (state, self.now_ms(), str(reason)[:_MAX_REASON], device, release.id),
        )
        for counts in (release.counts, release.of_step(step)):
            counts.move(before, state)

    def retry(self, device, identity, who):
        """Offers a release again to a device that failed, declined or fell silent."""
        with self.change() as connection:
            release = self.release(identity)
            row = connection.execute(
                "SELECT step, state FROM deploy_assignments WHERE device = ? AND release = ?", (device, identity)
            ).fetchone()
            if row is None or row[1] not in (*states.HAS_NO_MORE, "silent"):
                raise RefusedError(
                    f"{device}: is {row[1] if row else 'not reached'} in release {identity}; nothing to retry"
                )
            connection.execute("DELETE FROM deploy_assignments WHERE device = ? AND release = ?", (device, identity))
            for counts in (release.counts, release.of_step(row[0])):
                setattr(counts, row[1], getattr(counts, row[1]) - 1)
            self.generation += 1
            self._record_event(connection, release.version, release, f"retry of {device}", release.state, who, "")

    # ---- passing of time

    def tick(self):
        """Finds devices that fell silent, and advances each release as far as it may go."""
        self.refresh()
        now_ms = self.now_ms()
        if now_ms // 60_000 != self._minute:
            self._minute = now_ms // 60_000
            if any(each.state == "running" and each.depends_on_time for each in self.releases.values()):
                self.generation += 1  # devices that had to wait a minute may be due now
        for release in list(self.releases.values()):
            if release.state not in ("running", "done"):
                continue
            if release.counts.taken or release.counts.running:
                self._find_silent(release, now_ms)
            with self.change() as connection:
                if (current := self.releases.get(release.id)) is not None:  # else its start has failed meanwhile
                    self._judge(connection, current)

    def _find_silent(self, release, now_ms):
        taken_ms = now_ms - release.plan.silence_s * 1000
        if self._opened_ms > taken_ms:  # nobody could be heard before
            return
        running_ms = taken_ms - release.plan.proof["within_s"] * 1000

        def found(connection):
            return connection.execute(
                "SELECT device, step, state FROM deploy_assignments WHERE release = ? AND "
                "(state = 'taken' AND since_ms < ? OR state = 'running' AND since_ms < ?) LIMIT 10000",
                (release.id, taken_ms, running_ms),
            ).fetchall()

        with self.database.reader() as connection:
            silent = found(connection)
        if silent:
            with self.change() as connection:
                if (release := self.releases.get(release.id)) is None:
                    return
                for device, step, state in found(connection):  # some may have reported meanwhile
                    reason = f"{state}, then silent for {release.plan.silence_s:g} s"
                    self._set_state(connection, release, device, step, state, "silent", reason)

    def _judge(self, connection, release):
        if release.state not in ("running", "done"):
            return
        plan, step = release.plan, release.plan.steps[release.step]
        for counts in (release.of_step(release.step), release.counts):
            judged = Counts(proven=counts.proven, failed=max(0, counts.bad - release.excused))
            if states.has_failed(plan, step, judged):
                why = (
                    f"{judged.bad} of {judged.reports} devices that reported failed, more than {step.max_error:.3g} "
                    f"as a share of at least {step.min_reports}"
                )
                self._move(
                    connection, release, plan.on_failure, PLATFORM, f"{why}: {self._example(connection, release)}"
                )
                return
        if release.state == "done":
            return
        if states.is_worse(plan, step, release.called):
            called = release.called
            why = (
                f"{called.failures:,} of {called.calls:,} calls failed, {called.control_failures:,} of "
                f"{called.control_calls:,} in the control cohort, which keeps the version before"
            )
            self._move(connection, release, plan.on_failure, PLATFORM, why)
            return
        if states.is_over(step, release.of_step(release.step), release.called.calls, release.since_ms, self.now_ms()):
            if release.step + 1 == len(plan.steps):
                self._move(connection, release, "finish", PLATFORM, "the last step is over")
            elif not plan.steps[release.step + 1].manual:
                self._move(connection, release, "next", PLATFORM, f"step {release.step + 1} is over")

    def _example(self, connection, release):
        row = connection.execute(
            "SELECT device, reason FROM deploy_assignments WHERE release = ? AND state IN ('failed', 'silent') "
            "ORDER BY since_ms DESC LIMIT 1",
            (release.id,),
        ).fetchone()
        return f"{row[0]}: {row[1]}"[:500] if row else ""

    # ---- reading

    def history(self, task=None, limit=100, may=lambda task: True):
        """Who did what, when and why, newest first; of tasks that the caller may see."""
        names = ("time_ms", "task", "release", "version", "event", "state", "who", "why")
        with self.database.reader() as connection:
            rows = connection.execute(
                "SELECT time_ms, task, release, version, event, state, who, why FROM deploy_history "
                "WHERE (? IS NULL OR task = ?) ORDER BY number DESC LIMIT ?",
                (task, task, limit if may("") else _MAX_HISTORY),
            )
            return [dict(zip(names, row)) for row in itertools.islice((row for row in rows if may(row[1])), limit)]

    def devices_of(self, identity, state=None, limit=100):
        """The devices of a release, with states and reasons; the latest first."""
        self.release(identity)
        with self.database.reader() as connection:
            rows = connection.execute(
                "SELECT device, state, since_ms, reason, step FROM deploy_assignments "
                "WHERE release = ? AND (? IS NULL OR state = ?) ORDER BY since_ms DESC LIMIT ?",
                (identity, state, state, limit),
            ).fetchall()
        return [dict(zip(("device", "state", "since_ms", "reason", "step"), row)) for row in rows]
