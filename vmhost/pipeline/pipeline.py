"""A pipeline: takes events, stores them, triggers tasks in VMs of a host of its own, and keeps their results.

with Pipeline("data", ["build/ipv.vmb"]) as pipeline:
    pipeline.append(Event("page_enter", 1_790_000_000_000, "item", "visit-1"))
    pipeline.table("ipv").read()
"""

import contextlib
import functools
import logging
import queue
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from vmhost import ConfigurationError, Host, VMHostError
from vmhost.pipeline import forgetting, interrupts
from vmhost.pipeline.catching_up import CatchingUp
from vmhost.pipeline.complex_events import PREFIX, ComplexEvents, check_rules, read_rules
from vmhost.pipeline.events import Event
from vmhost.pipeline.execution import DEAD_LETTERS, DROPPED, EXPIRED, FORGOTTEN, STALE, Call, Failed, StreamTask
from vmhost.pipeline.features.serving import features_of
from vmhost.pipeline.intake import Intake
from vmhost.pipeline.matching import Matching
from vmhost.pipeline.reach.reach import Reach
from vmhost.pipeline.store import EventStore
from vmhost.pipeline.tables import Column, TableError, Tables
from vmhost.pipeline.triggers import TriggerError
from vmhost.pipeline.visits import Visits
from vmhost.stores import Database, StoreError

STORE_NAME = "pipeline.sqlite"
TICK_S = 0.5
LOOK_S = 0.1  # how often a wait checks for Ctrl-C
MAX_MISSED = 10_000  # events; a task that missed more catches up on a thread of its own
_OPERATOR_S = 10.0  # time limit of a task that computes a feature; afterwards there is no answer
_SENDING_STEP_S = 0.25  # how often it looks whether the cloud is still there
_SENDING_S = 30.0  # how long `close` waits for channels; what they have not taken is sent after the next start
_RESULTS = 256  # results stored in one batch
_WITH_EVENTS = 1000  # waiting calls of a task that hold their events; later ones read them from the store
_log = logging.getLogger("vmhost.pipeline")


class PipelineError(ConfigurationError):
    """A pipeline cannot be made from these arguments, or takes nothing more; the message says what to do."""


@dataclass(frozen=True)
class Waited:
    """How a wait ended; true if no call is left. By task: `left`, calls that have not ended; `refused`, those of them
    whose task has an open breaker; `lost`, calls that ended meanwhile without a row: as dead letters, or dropped by
    overload."""

    left: dict
    refused: dict
    lost: dict

    def __bool__(self):
        return not self.left


class Pipeline:
    """Stores events, reads them as sequences, triggers the stream tasks of bundles, and keeps their results in tables.

    `folder`: of the store; created if missing. `bundles`: paths of bundles with stream tasks. `trust`,
    `allow_unsigned`: Host's. `durability`: "batch": events, rows and positions are on the disk after `flush()` or
    `batch_ms`; "each": when `append` returns. `lateness_ms`, `visit_timeout_ms`: how late an event may come, and when a
    visit without an exit ends. `batch_ms`: the time that events and rows stay in memory only. `max_age_ms`,
    `max_count`, `max_bytes`: bounds of the stored events, of which the oldest go first; None: no bound. `intake`:
    further options of Intake, by name. `host`: further options of Host, by name (`policy`, `state`, `functions`,
    `types`); a policy's limits hold for all tasks. `rules`: mappings, or paths of files of them; their matches become
    events and go to `channels` (docs/patterns.md). `features`: features of events as mappings, or paths of files
    (docs/features-of-events.md). `signed_files`: files of rules and features must be signed by a key in `trust`.
    `channels`: a mapping of names to settings or functions. `audiences`, `profile`, `reach`: who gets messages, the
    device's own facts, and where tasks' results go: mappings (docs/reach.md). `tunnel`: TunnelSettings
    (`vmhost.pipeline.configuration`): the pipeline sends its outbox, and tasks use channels. `clock`: returns the time
    in seconds since 1970.

    The attribute `tunnel` is the `vmhost.tunnel.Device`, or None. PipelineError, StoreError, BundleError.
    Thread-safe.
    """

    def __init__(
        self,
        folder,
        bundles,
        *,
        trust=None,
        allow_unsigned=False,
        durability="batch",
        lateness_ms=60_000,
        visit_timeout_ms=30 * 60_000,
        batch_ms=1000,
        max_age_ms=None,
        max_count=None,
        max_bytes=None,
        intake=None,
        host=None,
        rules=(),
        features=(),
        signed_files=False,
        channels=None,
        audiences=None,
        profile=None,
        reach=None,
        tunnel=None,
        clock=time.time,
    ):
        self.folder = Path(folder)
        self._clock = clock
        self._interruptible = interrupts.open()
        self._lock = threading.RLock()  # guards tasks, matches, visits, intake
        self._storing = threading.Lock()  # held while results go into tables; taken after `_lock`, never before
        self._changing = threading.Lock()  # one change of tasks at a time; taken before `_lock`
        self._idle = threading.Condition(self._lock)
        self._results = queue.SimpleQueue()
        self._tasks, self._leaving, self._behind = {}, {}, {}
        self._matchings = []  # the first serves most tasks; a task that caught up has its own for a while
        self._told = set()  # tasks whose open breaker a wait has told of
        self._fed = 0
        self._bounded = True  # calls beyond a queue are dropped
        self._closing = threading.Event()
        self.tunnel = None
        self._ended = False  # nothing more is taken
        self._closed = False
        self.final = None  # `statistics()` as of the end
        self.live = getattr(clock, "live", True)  # whether the clock moves event time on while no events come
        self.store_error = None  # the last write's error; None after a successful write
        with contextlib.ExitStack() as undo:  # undone when a later step fails
            undo.callback(self._close_interrupts)
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise PipelineError(f"{self.folder}: the folder cannot be made: {error.strerror}") from error
            # the host first: SQLite memory of tasks is counted only if SQLite was not in use before
            host = dict(host or {})
            functions = {**(host.pop("functions", None) or {}), "table_rows": self._table_rows}
            functions["features"] = self._read_features
            sending = None
            if tunnel is not None:
                from vmhost.pipeline.sending import Sending  # late: most pipelines have no tunnel

                sending = Sending(tunnel)
                functions |= sending.functions
            self._host = Host(trust=trust, allow_unsigned=allow_unsigned, functions=functions, **host)
            undo.callback(self._host.close, drain=False)
            self._database = Database(self.folder / STORE_NAME)
            undo.callback(self._database.close)
            undo.callback(self._host.close, drain=False)  # closes before the store
            undo.callback(self._closing.set)
            self._store = EventStore(
                self._database,
                durability=durability,
                batch_ms=batch_ms,
                max_age_ms=max_age_ms,
                max_count=max_count,
                max_bytes=max_bytes,
                clock=clock,
            )
            times = {"lateness_ms": lateness_ms, "visit_timeout_ms": visit_timeout_ms, "clock": clock}
            try:
                self._intake = Intake(self._store, **(times | (intake or {})))
            except TypeError as error:
                raise PipelineError(f"intake: {error}") from error
            if not self.live and self._intake.event_time_ms is not None:  # a replay goes on: what is made now is of now
                clock.not_before(self._intake.event_time_ms)
            self._tables = Tables(self._database, buffer_ms=batch_ms, clock=clock)
            forgetting.finish(self._database)
            self._record_folders = None
            self._note_folders()
            self._visits = Visits(self._store)
            self._fed = self._store.position
            self._operators = {}  # tasks that compute features
            self._content_of = self._host.signed_content if signed_files else Path.read_bytes
            self.features = features_of(features, self._store, self._call_operator, self._content_of)
            rules = read_rules(rules, self._content_of)
            self._complex = ComplexEvents.of(rules, self._database, self._store, lateness_ms=self._intake.lateness_ms)
            self._reach = Reach(
                self._database,
                self._store,
                clock,
                rules={} if self._complex is None else self._complex.rules,
                channels=channels,
                audience=audiences,
                profile=profile,
                tasks=reach,
                functions=functions,
                host=self._host,
                folder=self.folder,
            )
            undo.callback(self._reach.close)
            self._matchings.append(Matching(self._fed))
            operators = frozenset() if self.features is None else self.features.tasks
            for bundle in bundles:
                loaded = self._host.load(bundle)
                if loaded.name in operators:
                    self._operators[loaded.name] = loaded
                    if loaded.trigger is None:
                        continue
                try:
                    self._take_up(loaded, starting=True)
                except (TableError, TriggerError) as error:
                    raise self._refused(loaded.name, error) from error
            if missing := operators - self._operators.keys():
                raise PipelineError(f"features: there is no bundle of a task {min(missing)}, which computes one")
            self._workers = [
                threading.Thread(target=work, name=f"vmhost-pipeline-{work.__name__.strip('_')}", daemon=True)
                for work in (self._keep_results, self._tick)
            ]
            with self._lock:
                self._begin()
                if self.features is not None:
                    self.features.fill(self._store)
                if self._complex is not None:
                    self._store_complex(self._complex.begin(self._intake.event_time_ms))
            if sending is not None:
                self.tunnel = sending.start(self._database)
                undo.callback(self.tunnel.close)
            self._reach.start()
            for worker in (*self._workers, *self._behind.values()):
                worker.start()
            undo.pop_all()

    @classmethod
    def from_file(cls, path):
        """The pipeline described by the `pipeline.yaml` at `path`, with its tunnel, but without its sources, which
        `sources.Sources` runs.

        ConfigurationError names file, line and key; other errors as Pipeline.
        """
        from vmhost.pipeline.configuration import read_pipeline_yaml  # late: only this needs schema and YAML

        found = read_pipeline_yaml(path)
        return cls(found.folder, found.bundles, tunnel=found.tunnel, **found.options)

    @property
    def host(self):
        """The Host that runs the tasks, for its statistics. Tasks come and go by `load`, `change` and `withdraw`."""
        return self._host

    @property
    def tasks(self):
        """Names of the loaded stream tasks."""
        with self._lock:
            return tuple(self._tasks)

    @property
    def database(self):
        """The `vmhost.stores.Database` of the store, for senders of its outbox."""
        return self._database

    @property
    def reach(self):
        """The `reach.reach.Reach`: URLs of pages, and waiting messages."""
        return self._reach

    @property
    def durability(self):
        """`batch` or `each`."""
        return self._store.durability

    def _take_up(self, loaded, from_stored=False, starting=False):
        """Makes a StreamTask of a Task that the host has loaded."""
        self._must_be_stream_task(loaded)
        self._note_folders()
        if loaded.name in self._reach.called:
            raise PipelineError(f"{loaded.name}: a channel calls a task of this name; give one of them another name")
        if loaded.name in self._tasks:
            raise PipelineError(f"there are two stream tasks {loaded.name}; give one of them another name")
        known = [each for each in self._tables.generations() if each["task"] == loaded.name]
        table = self._declare(loaded.name, loaded.version, loaded.table)
        with self._lock:
            if not known and not from_stored:
                table.complete_until(self._fed)  # a new task sees events from now on
            elif known and table.generation > max(each["generation"] for each in known):
                table.complete_until(max(each["position"] for each in known))  # continues where the old table ends
            self._tables.gather_calls(table)
            task = StreamTask(loaded, table, self._call_ended)
            if self._reach.targets(loaded.name):
                task.admits = functools.partial(self._reach.admits, loaded.name)
            if self._reach.reaches(loaded.name):
                task.reaching = functools.partial(self._reach.result, loaded.name)
            for position, start in table.open_calls.items():
                self._resume(task, position, start)
            missed = self._fed - table.seen_position
            if missed <= (MAX_MISSED if starting else 0):
                self._matchings[0].add(task.task.name, task.trigger)
                self._tasks[task.task.name] = task
                self._visits.wanted_by(self._tasks.values())
                if not starting:
                    task.pump()
            else:
                self._catch_up(task, starting)

    def _declare(self, name, version, described):
        return self._tables.declare(
            name,
            version,
            {column: Column(each.type, each.index, each.leaves) for column, each in described.columns.items()},
            key=described.key,
            retention_ms=described.retention_ms,
        )

    def _catch_up(self, task, starting=False, after=None):
        name = task.task.name
        self._behind[name] = CatchingUp(self, task, task.table.seen_position if after is None else after)
        self._tasks[name] = task
        self._visits.wanted_by(self._tasks.values())
        if not starting:
            self._behind[name].start()

    @staticmethod
    def _must_be_stream_task(task):
        for part in ("trigger", "table"):
            if getattr(task, part) is None:
                raise PipelineError(
                    f"{task.name} is no stream task: its task.yaml has no `{part}`; add one (docs/pipeline.md)"
                )
        if task.trigger.level == "page" and any(str(one).startswith(PREFIX) for ids in task.trigger.on for one in ids):
            raise PipelineError(f"{task.name}: matches of rules are in no visit; set `level: time` in its trigger")

    def _resume(self, task, position, start):
        """Makes a call again that was open when the pipeline last ended."""
        stored = self._store.at(position)
        if stored is None:
            task.table.end(position, EXPIRED)
        else:
            task.resume(Call(position, start, stored.event.key, self._visits.value(task.trigger, stored, start, True)))

    def _begin(self):
        """Restores the state at the end of the last run: open visits, matches, and events that tasks have not seen.
        Drops no call."""
        for visit in self._intake.open_visits:
            self._visits.read_later(visit)
        live = [task for name, task in self._tasks.items() if name not in self._behind]
        matching = self._matchings[0]
        seen = min((task.table.seen_position for task in live), default=self._fed)
        matching.position = seen
        visits = set(self._intake.open_visits)
        for head in self._store.heads(seen):
            visits.update(head.visits)
        matching.prime(self._store, visits - {""})
        for stored in self._store.read(seen):
            for name, start in matching.feed((stored,)).get(stored.position, ()):
                task = self._tasks[name]
                key = stored.event.key if task.trigger.state else ""
                table, position = task.table, stored.position
                if position > table.seen_position and not table.is_open(position) and not table.done(position, key):
                    value = self._visits.value(task.trigger, stored, start, True)
                    task.offer(Call(stored.position, start, stored.event.key, value), bounded=False)
        matching.knows(self._intake.ended_visits)
        for task in live:
            task.table.complete_until(self._fed)
            task.pump()

    # ---- changing tasks while events flow

    def load(self, bundle, *, from_stored=False):
        """Loads the stream task in `bundle`, one that is not loaded.

        A task new to the store sees events from now on; with `from_stored`, all stored ones first. A task known to the
        store continues where it ended. Returns at once: a task catches up with stored events as fast as its queue takes
        them, and `explain` shows how far it is behind. PipelineError, BundleError, StoreError: nothing has changed.
        """
        with self._changing:
            self._must_be_open()
            bundle = self._checked(bundle)
            name = bundle.manifest.name
            if name in self._tasks or name in self._leaving:
                raise PipelineError(f"there is a stream task {name}; change it, or withdraw it first")
            loaded = self._host.load(bundle)
            try:
                self._take_up(loaded, from_stored)
            except BaseException as error:
                self._host.unload(name, drain=False)
                raise self._refused(name, error) from error

    def change(self, bundle):
        """Replaces a loaded task by the version in `bundle`.

        Running calls end in the old version, and their rows go to its table; waiting calls go to the new one. If the
        trigger's ids, level or time have changed, the task's matches under way begin anew. Other tasks are not
        affected. PipelineError, BundleError, StoreError: the old version stays.
        """
        with self._changing:
            self._must_be_open()
            bundle = self._checked(bundle)
            name = bundle.manifest.name
            with self._lock:
                task = self._task(name)
                task.paused = True  # calls wait for the new version
            try:
                self._change(task, bundle)
            except (TableError, TriggerError) as error:
                raise self._refused(name, error) from error
            finally:
                with self._lock:
                    task.paused = False
                    task.pump()

    def _change(self, task, bundle):
        manifest = bundle.manifest
        with self._matching_of(manifest.name) as matching:
            matching.check(manifest.name, manifest.trigger)
        before = [each for each in self._tables.generations() if each["task"] == manifest.name]
        table = self._declare(manifest.name, manifest.version, manifest.table)
        try:
            self._host.load(bundle)
        except BaseException:
            self._tables.withdraw(table)
            raise
        with self._lock:
            behind = self._behind.get(manifest.name)
            if behind is None:
                task.table.complete_until(self._fed)
            seen = task.table.seen_position
            if table.generation > max(each["generation"] for each in before):
                table.complete_until(seen)
            with self._matching_of(manifest.name) as matching:
                matching.change(manifest.name, manifest.trigger)
            table_seen = table.seen_position
            task.put_in_place(table)
            self._visits.wanted_by(self._tasks.values())
            if table_seen < seen:  # an older version again: its table first catches up
                if behind is not None:
                    behind.stop()
                else:
                    self._matchings_without(manifest.name)
                self._catch_up(task, after=table_seen)

    def change_rules(self, rules):
        """Replaces all rules by these (mappings, or paths of files of them), while events flow. Returns the names of
        rules that begin anew.

        A rule that matches as before keeps its matches under way, and so does a changed one that has `when_changed:
        go_on` and the same steps; others see events from now on. The next start must get the same rules, or their
        matches under way end. ConfigurationError: the old rules stay.
        """
        read = read_rules(rules, self._content_of)
        check_rules(read)
        with self._changing:
            self._must_be_open()
            self._reach.must_have(read)
            with self._lock:
                if self._complex is None and not read:
                    return []
                if self._complex is None:
                    self._complex = ComplexEvents([], self._database, self._store, lateness_ms=self._intake.lateness_ms)
                begun = self._complex.change(read)
                self._reach.change_rules(self._complex.rules)
                return begun

    def withdraw(self, name, *, drain=True):
        """Removes a loaded task. Nothing triggers it from now on; its calls end first. `drain` False: they are cut off,
        and made again when the task is loaded again. Its table stays in the store. PipelineError for a name that is not
        loaded."""
        with self._changing:
            self._must_be_open()
            with self._lock:
                task = self._task(name)
                if (behind := self._behind.pop(name, None)) is not None:
                    behind.stop()
                else:
                    self._matchings_without(name)
                    task.table.complete_until(self._fed)
                del self._tasks[name]
                self._leaving[name] = task
                self._visits.wanted_by(self._tasks.values())
                if not drain:
                    task.paused = True
                    for _, future in task.running.values():
                        future.stop()
                self._wait_until(lambda: self._ended or not (task.unfinished if drain else task.running))
                self._must_be_open()
            if behind is not None:
                behind.join()
            self._host.unload(name, drain=drain)
            with self._lock:
                del self._leaving[name]
            self._tables.withdraw(task.table)

    def _task(self, name):
        try:
            return self._tasks[name]
        except KeyError:
            there = ", ".join(self._tasks) or "none"
            raise PipelineError(f"there is no stream task {name!r}; there are {there}") from None

    def _must_be_open(self):
        if self._ended:
            raise PipelineError(f"{self.folder}: the pipeline is closed; make a new one")

    def _checked(self, bundle):
        """Reads and checks the bundle of a stream task."""
        bundle = self._host.check(bundle)
        self._must_be_stream_task(bundle.manifest)
        return bundle

    @staticmethod
    def _refused(name, error):
        return PipelineError(f"{name}: {error}") if isinstance(error, TableError | TriggerError) else error

    @contextlib.contextmanager
    def _matching_of(self, name):
        """The Matching with the task's condition, moved to one of its own if it was shared."""
        with self._lock:
            if (behind := self._behind.get(name)) is not None:
                with behind.lock:
                    yield behind.matching
            else:
                yield next(each for each in self._matchings if name in each.triggers)

    def _matchings_without(self, name):
        matching = next(each for each in self._matchings if name in each.triggers)
        matching.remove(name)
        if not matching.triggers and matching is not self._matchings[0]:
            self._matchings.remove(matching)

    def forget(self, key):
        """Removes everything of `key`: events, visits, calls, state, rows, outbox entries, dead letters. On return its
        bytes are in none of the store's files, and no call that was running will store anything.

        Returns the number of each, as `vmhost.pipeline.forgetting.forget`, and "calls". Events wait meanwhile, for as
        long as writing the whole store takes. StoreError: try again.
        """
        if not isinstance(key, str) or not key:
            raise ValueError(f"forget: expected the key of a person or thing, got {key!r}; '' is nobody's")
        with self._lock, contextlib.ExitStack() as stack:
            self._must_be_open()
            for behind in self._behind.values():
                stack.enter_context(behind.lock)
            stack.enter_context(self._storing)
            calls = sum(task.forget(key) for task in (*self._tasks.values(), *self._leaving.values()))
            stack.callback(self._pump)
            visits = self._intake.visits_of(key)
            self._note_folders()
            if self._complex is not None:
                self._complex.forget(key, {*visits, *forgetting.visits_of(self._store, key)})
            if self.features is not None:
                self.features.forget(key, visits)
            removed = forgetting.forget(self._database, key, lambda marks: self._settle(key, marks))
            self._visits.forget(key, visits)
            for matching in (*self._matchings, *(behind.matching for behind in self._behind.values())):
                self._forget_matches(matching, visits)
            self._idle.notify_all()
        return {**removed, "calls": calls}

    def _settle(self, key, marks):
        """Called by `forgetting.forget` before files are rewritten: what is on its way into them arrives first."""
        self._reach.settle(key)
        self._host.forget(marks)

    def _note_folders(self):
        folders = self._host.record_folders
        if folders != self._record_folders:
            forgetting.note_folders(self._database, folders, self._host.state)
            self._record_folders = folders

    def _forget_matches(self, matching, visits):
        """Ends matches of these visits; looks for those of the time level anew, in the events still stored."""
        for visit in visits:
            matching.engine.end_visit(visit)
        if any(trigger.level == "time" for trigger in matching.triggers.values()):
            matching.begin_anew(self._store, self._intake.open_visits)

    def explain(self, name):
        """What the task `name` waits for, and how its calls ended: a dict of "task", "version", "trigger" (as
        `TriggerEngine.explain`), "counts", "waiting", "running", "position" (calls for events up to here have ended)
        and "behind" (stored events not looked at yet). PipelineError for a name that is not loaded."""
        with self._lock:
            task = self._task(name)
            with self._matching_of(name) as matching:
                trigger = matching.engine.explain(name)
            return {
                "task": name,
                "version": task.task.version,
                "trigger": trigger,
                "counts": task.counts,
                "waiting": len(task.waiting),
                "running": len(task.running),
                "position": task.table.position,
                "behind": self._missed(name),
            }

    def _missed(self, name):
        return max(0, self._fed - self._tasks[name].table.seen_position) if name in self._behind else 0

    # ---- events

    def append(self, event):
        """Takes one Event."""
        self.append_many((event,))

    def append_many(self, events, *, bounded=True, notes=None):
        """Takes Events in order, all or none of them. Raises as `EventStore.append_many`; ValueError for an event whose
        name is reserved for rules' matches; PipelineError after `close`.

        Calls beyond a task's queue are dropped by its overload rule. `bounded` False: they wait too, and so do the
        calls for visits that time closes later. For callers that wait for room themselves (`wait_for_room`) before they
        append. `notes`: counters of the store, {name: integer}, set in the transaction that makes the events durable.
        """
        self._must_be_open()
        events = events if isinstance(events, (list, tuple)) else list(events)
        _refuse_match_names(events)
        self._store.make_room()  # without the lock, so that results are stored meanwhile
        with self._lock:
            self._must_be_open()
            self._bounded = bounded
            self._feed(self._intake.take(events, notes))
        interrupts.check()

    def append_line(self, line):
        """Takes an event as a line of JSON with the fields of Event. ValueError names the problem."""
        self.append(msgspec.json.decode(line, type=Event))

    def _feed(self, taken):
        """Lets stored events trigger tasks. Raises nothing, as the events are stored already."""
        if not taken:
            return
        fired = self._matchings[0].feed(taken)
        for matching in self._matchings[1:]:
            for position, fires in matching.feed(taken).items():
                fired[position] = (*fired.get(position, ()), *fires)
        after_exit = self._matchings[0].after_exit
        if not fired:
            self._visits.hold(taken, after_exit)
        else:
            begin = 0
            for index, stored in enumerate(taken):
                if (fires := fired.get(stored.position)) is not None:
                    self._visits.hold(taken[begin:index], after_exit)
                    if stored.position not in after_exit:
                        self._visits.hold_last(stored)
                    for name, start in fires:
                        task = self._tasks[name]
                        value = self._visits.value(task.trigger, stored, start, len(task.waiting) >= _WITH_EVENTS)
                        bounded = self._bounded or not task.holds_up
                        task.offer(Call(stored.position, start, stored.event.key, value), bounded)
                    self._visits.leave(stored)
                    begin = index + 1
            self._visits.hold(taken[begin:], after_exit)
        self._fed = taken[-1].position
        if self.features is not None:
            self.features.feed(taken)
        if self._complex is not None:
            self._store_complex(self._complex.feed(taken, self._intake.event_time_ms))

    def _store_complex(self, events):
        """Stores the events of rules' matches, as others. If the store cannot be written, they wait for the next
        call."""
        if not events:
            return
        try:
            taken = self._intake.take(self._complex.timed(events, self._intake.event_time_ms))
        except StoreError as error:
            _log.error("%s: %s; matches of rules wait", self.folder, error)
            return
        self._complex.taken()
        self._feed(taken)
        self._reach.wake()

    # ---- calls

    def _call_ended(self, task, call, future):
        self._results.put((task, call, future))

    def _keep_results(self):
        while (ended := self._results.get()) is not None:
            batch = [ended]
            with contextlib.suppress(queue.Empty):
                while len(batch) < _RESULTS and ended is not None:
                    ended = self._results.get_nowait()
                    batch += [ended] if ended is not None else []
            kept = [(task, call, self._kept(task, call, future)) for task, call, future in batch]
            with self._idle:
                for task, call, way in kept:
                    task.settled(call, way)
                self._idle.notify_all()
            if ended is None:
                return

    def _kept(self, task, call, future):
        """Stores a call's result, as `StreamTask.store`; waits while the store cannot be written."""
        while True:
            try:
                with self._storing:
                    if call.forgotten:
                        return FORGOTTEN
                    if call.stale:
                        return STALE
                    way = task.store(call, future)
                self.store_error = None
                return way
            except StoreError as error:  # such as a full disk: the result waits
                if self.store_error is None:
                    _log.error("%s: results wait until the store can be written: %s", self.folder, error)
                self.store_error = error
                if self._closing.wait(TICK_S):
                    return None  # a restart makes the call again
            except Exception as error:
                _log.exception("%s: the result of a call of %s could not be stored", self.folder, task.task.name)
                call.value, future, call.tries = None, Failed(error), task.trigger.retries

    def _tick(self):
        while not self._closing.wait(TICK_S):
            try:
                with self._idle:
                    if not self._ended and self.live:
                        self._feed(self._intake.tick())
                    self._move_on()
                    self._note_folders()
                    self._pump()
                    released = [table for task in self._tasks.values() for table in task.tables_let_go()]
                for table in released:
                    self._tables.withdraw(table)
                self._tables.sweep()
            except StoreError as error:
                _log.error("%s: %s", self.folder, error)
            except Exception:  # the next tick must come in any case
                _log.exception("%s: periodic work failed", self.folder)

    def _pump(self):
        for task in (*self._tasks.values(), *self._leaving.values()):
            task.pump()

    def _move_on(self):
        """Moves positions on, also for tasks that no event reached, and in a live stream time. Elsewhere time ends
        windows with events alone: an event that was refused may have moved event time, and the moment of a tick must
        decide nothing."""
        time_ms = self._intake.event_time_ms if self.live else None
        if self._complex is not None:
            if time_ms is not None and not self._ended:
                self._store_complex(self._complex.advance(time_ms))
            self._save_complex()
        for matching in list(self._matchings):
            if time_ms is not None:
                matching.engine.advance(time_ms)
            if matching is not self._matchings[0] and not matching.under_way:
                with contextlib.suppress(TriggerError):  # no room there: it stays separate
                    for name, trigger in list(matching.triggers.items()):
                        self._matchings[0].add(name, trigger)
                        del matching.triggers[name]
                    self._matchings.remove(matching)
        for name, task in self._tasks.items():
            if name not in self._behind:
                task.table.complete_until(self._fed)

    def _save_complex(self):
        try:
            self._complex.save(now=self._ended)
        except StoreError as error:  # a start will feed more events again
            _log.error("%s: %s; the state of rules is saved later", self.folder, error)

    def wait(self, timeout_s=None):
        """Waits until no call is open, and no task is behind. Returns a Waited, which is true then, and false after
        `timeout_s`. Where a task's breaker is open, its calls wait for it: a line in the log says so."""
        with self._idle:
            before = self._lost()
            self._wait_until(self._is_idle_or_told, timeout_s)
            left = {task.task.name: task.unfinished for task in self._unfinished()}
            left |= {name: self._missed(name) for name in self._behind if name not in left}
            refused = {task.task.name: task.unfinished for task in self._unfinished() if task.is_refused}
            lost = {name: count - before.get(name, 0) for name, count in self._lost().items()}
            return Waited(left, refused, {name: count for name, count in lost.items() if count})

    def _is_idle_or_told(self):
        refused = {task.task.name: task.unfinished for task in self._unfinished() if task.is_refused}
        for name in refused.keys() - self._told:
            _log.warning(
                "%s: waits for %d calls of %s, whose breaker is open: it refuses calls until one succeeds",
                self.folder,
                refused[name],
                name,
            )
        self._told = refused.keys()
        return self._is_idle()

    def _lost(self):
        return {
            task.task.name: task.counts[DEAD_LETTERS] + task.counts[DROPPED]
            for task in (*self._tasks.values(), *self._leaving.values())
        }

    def drain(self, timeout_s=None):
        """Waits as `wait`, but not for a task whose calls do not begin (StreamTask.is_stuck); the next start makes
        them. False after `timeout_s`."""
        with self._idle:
            return self._wait_until(self._has_drained, timeout_s)

    def _wait_until(self, predicate, timeout_s=None):
        """Whether `predicate()` became true; `_idle` is held. Waits in short steps: Python does not handle a signal
        that arrived just before a wait began."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = LOOK_S if end_s is None else min(LOOK_S, max(0.0, end_s - time.monotonic()))
            if self._idle.wait_for(predicate, left_s):
                return True
            interrupts.check()
            if end_s is not None and time.monotonic() >= end_s:
                return False

    def _is_idle(self):
        if self._behind:
            return False
        return not any(task.unfinished for task in (*self._tasks.values(), *self._leaving.values()))

    def _has_drained(self):
        """Whether all calls have ended, except those that do not begin, which the next start makes."""
        unfinished = self._unfinished()
        return all(task.is_stuck for task in unfinished) and not self._behind.keys() - {
            task.task.name for task in unfinished
        }

    def _unfinished(self):
        return [task for task in (*self._tasks.values(), *self._leaving.values()) if task.unfinished]

    def _log_stuck_tasks(self):
        for task in self._unfinished():
            if task.is_stuck:
                _log.error(
                    "%s: %s: %d calls do not begin (is its breaker open, its wall_time too short?); the next start"
                    " makes them",
                    self.folder,
                    task.task.name,
                    task.unfinished,
                )

    def wait_for_room(self, timeout_s=None):
        """Waits until the queue of each task has room; returns the number of events that may come without a call being
        dropped. 0 after `timeout_s`. PipelineError after `close`. It does not wait for a task whose breaker has been
        open for 30 s: calls beyond its queue are dropped by its overload rule."""
        with self._idle:
            self._wait_until(lambda: self._ended or self._room() > 0, timeout_s)
            self._must_be_open()
            return max(0, self._room())

    def _room(self):
        rooms = (task.room for name, task in self._tasks.items() if name not in self._behind and task.holds_up)
        return min(rooms, default=1 << 20)

    # ---- reading

    def table(self, name):
        """The Table of the stream task `name`; KeyError."""
        return self._tasks[name].table

    def dead_letters(self, name=None):
        """The calls that were given up, of all tasks or of the task `name`, oldest first: objects of
        `tables.DeadLetter`."""
        return self._tables.dead_letters(name)

    def _table_rows(self, request):
        """The host function `table_rows` for tasks: rows of a key, the latest first."""
        name, key, limit = request["table"], request.get("key"), request.get("limit")
        task = self._tasks.get(name)
        if task is None:
            raise KeyError(f"there is no table {name!r}; there are {', '.join(self._tasks)}")
        return task.table.read(key=key, order="_id DESC", limit=limit)

    def _call_operator(self, name, entry, window):
        """The number that a task computes from the fields of a features.Window."""
        return self._operators[name](window, entry=entry, timeout_s=_OPERATOR_S)

    def _read_features(self, request):
        """The host function `features` for tasks: the vector of a view ("*": all) for a key, as of now or of
        `at_ms`."""
        if self.features is None:
            raise KeyError("this pipeline has no features")
        at_ms = request.get("at_ms")
        at_ms = round(self._clock() * 1000) if at_ms is None else at_ms
        return self.features.read(request.get("view", "*"), request["key"], at_ms)

    def flush(self):
        """Makes everything taken so far durable. StoreError."""
        self._database.flush()

    def statistics(self):
        """A dict: `position`, `intake` (counters), `triggers`, and for each task the counters of its calls."""
        with self._lock:
            return {
                "position": self._store.position,
                "intake": self._intake.statistics(),
                "triggers": self._matchings[0].engine.statistics(),
                **({} if self._complex is None else {"rules": self._complex.statistics()}),
                **({} if self.features is None else {"features": self.features.statistics()}),
                **({} if self._reach.queue is None else {"channels": self._reach.statistics()}),
                "tasks": {
                    name: {
                        **task.counts,
                        "unfinished": task.unfinished,
                        "position": task.table.position,
                        "behind": self._missed(name),
                        **({"outside": task.outside} if task.outside else {}),
                    }
                    for name, task in self._tasks.items()
                },
            }

    # ---- closing

    def end(self, keep_visits=False):
        """Takes nothing more. Closes visits without an exit, which may trigger calls, unless `keep_visits`; `wait`
        waits for these, and `close` does the rest. If the stream is not `live`, it has ended: with its visits the
        windows of rules end too."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            self._idle.notify_all()
            try:
                self._bounded = False  # calls for these last events wait; no others come
                self._feed(self._intake.close(keep_visits))
                if self._complex is not None and not (keep_visits or self.live):
                    self._store_complex(self._complex.drain())
            except StoreError as error:
                _log.error("%s: %s; visits stay open for the next start", self.folder, error)

    def close(self, drain=True, keep_visits=None):
        """Ends the pipeline. `drain`: open visits are closed, and calls run to their end; otherwise both are left for a
        restart, which makes interrupted calls again. So are calls that have not begun for 30 s: their task's breaker is
        open, or its `wall_time` too short. `keep_visits`: visits stay open although calls are drained. A
        KeyboardInterrupt while calls run to their end cuts them off, and is raised when everything is closed."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self.end(not drain if keep_visits is None else keep_visits)
            interrupted = None
            if drain:  # if the store cannot be written, results would wait for ever; a restart makes the calls again
                try:
                    self._wait_until(lambda: self._has_drained() or self.store_error is not None)
                except KeyboardInterrupt as error:
                    interrupted = error
                drain = self.store_error is None and interrupted is None
                self._log_stuck_tasks()
        if drain:
            try:
                self._reach.wait(_SENDING_S)
            except StoreError:
                pass  # raised below
            except KeyboardInterrupt as error:
                interrupted = error
        self._closing.set()
        for behind in list(self._behind.values()):
            behind.stop()
        self._host.close(drain=drain)
        self._results.put(None)
        for worker in (*self._workers, *self._behind.values()):
            worker.join()
        self._reach.close()
        try:
            with self._lock:
                self._move_on()
                self._note_folders()
                self.final = self.statistics()
            self._tables.close()
        finally:
            try:
                if self.tunnel is not None:
                    if drain:
                        self._send_rest()
                    self.tunnel.close()
                self._database.close()
            finally:
                self._close_interrupts()
        if interrupted is not None:
            raise interrupted

    def _send_rest(self):
        """Sends the rest of the outbox, if the cloud is reachable; what is left waits for the next start."""
        end = time.monotonic() + _SENDING_S
        with contextlib.suppress(VMHostError, StoreError):  # the device was closed already
            while not self.tunnel.wait_sent(_SENDING_STEP_S):
                if time.monotonic() > end or not self.tunnel.connected:
                    return

    def _close_interrupts(self):
        if self._interruptible:
            self._interruptible = False
            interrupts.close()

    async def __aenter__(self):
        """An `AsyncPipeline` around this one."""
        from vmhost.pipeline.asynchronous import AsyncPipeline

        self._asynchronous = AsyncPipeline.around(self)
        return await self._asynchronous.__aenter__()

    async def __aexit__(self, *error):
        await self._asynchronous.__aexit__(*error)

    def __enter__(self):
        return self

    def __exit__(self, error_type, error, traceback):
        self.close(drain=error_type is None)


def _refuse_match_names(events):
    """ValueError for an event with the name of a rule's match, which channels and tasks would mistake for one."""
    with contextlib.suppress(AttributeError):  # not an Event: the intake refuses it
        for event in events:
            if event.name.startswith(PREFIX):
                raise ValueError(
                    f"event {event.name!r}: names that begin with {PREFIX!r} are those of rules' matches, which the"
                    " pipeline makes itself; give the event another name"
                )
