"""A pipeline: takes events, stores them, triggers tasks in VMs of a host of its own, and keeps what they make.

with Pipeline("data", ["build/ipv.vmb"]) as pipeline:
    pipeline.append(Event("page_enter", 1_790_000_000_000, "item", "visit-1"))
    pipeline.table("ipv").read()
"""

import logging
import queue
import threading
import time
from pathlib import Path

import msgspec

from vmhost import ConfigurationError, Host
from vmhost.pipeline.events import PAGE_EXIT, Event
from vmhost.pipeline.execution import Call, StreamTask
from vmhost.pipeline.forgetting import forget
from vmhost.pipeline.intake import Intake
from vmhost.pipeline.sequences import PageLevel
from vmhost.pipeline.store import EventStore
from vmhost.pipeline.tables import Column, Tables, quoted
from vmhost.pipeline.triggers import TriggerEngine
from vmhost.stores import Database, StoreError

STORE_NAME = "pipeline.sqlite"
TICK_S = 0.5
MAX_VISIT_EVENTS = 2_000  # of one visit that are held in memory; the calls of longer ones read the store
_log = logging.getLogger("vmhost.pipeline")


class PipelineError(ConfigurationError):
    """A pipeline cannot be made of what was given, or takes nothing more; the message says what to do."""


class Pipeline:
    """The pipeline whose store lies in `folder` (made where there is none), with the stream tasks in `bundles`.

    Events, rows and positions are durable with `flush()`, after `batch_ms`, or, with `durability="each"`, when
    `append` returns. `max_age_ms`, `max_count` and `max_bytes` bound the stored events (EventStore), with None nothing
    does. `lateness_ms`, `visit_timeout_ms` and what `intake` names are Intake's options; `trust`, `allow_unsigned` and
    what `host` names are Host's (`policy`, `state`, `functions`, `types`); a policy's limits hold for all tasks.
    PipelineError, StoreError, BundleError. Threads may share it.
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
        clock=time.time,
    ):
        self.folder = Path(folder)
        self._lock = threading.RLock()
        self._idle = threading.Condition(self._lock)
        self._results = queue.SimpleQueue()
        self._tasks, self._visits, self._fed = {}, {}, 0
        self._closing = threading.Event()
        self._closed = False
        self.final = None  # `statistics()` as they were at the end
        self.store_error = None  # why the store could not be written at the last try; None after one that worked
        self._visit_timeout_ms = visit_timeout_ms
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PipelineError(f"{self.folder}: the folder cannot be made: {error.strerror}") from error
        # the host first: what tasks allocate in SQLite is counted only where it was not in use before
        self._trust, self._allow_unsigned = trust, allow_unsigned
        host = dict(host or {})
        functions = {**(host.pop("functions", None) or {}), "table_rows": self._table_rows}
        self._host = Host(trust=trust, allow_unsigned=allow_unsigned, functions=functions, **host)
        try:
            self._database = Database(self.folder / STORE_NAME)
        except BaseException:
            self._host.close(drain=False)
            raise
        try:
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
            self._intake = Intake(self._store, **times, **(intake or {}))
            self._tables = Tables(self._database, buffer_ms=batch_ms, clock=clock)
            self._engine = TriggerEngine()
            for bundle in bundles:
                self._load(bundle)
            self._workers = [
                threading.Thread(target=work, name=f"vmhost-pipeline-{work.__name__.strip('_')}", daemon=True)
                for work in (self._keep_results, self._tick)
            ]
            with self._lock:
                self._recover()
            for worker in self._workers:
                worker.start()
        except BaseException:
            self._host.close(drain=False)
            self._database.close()
            raise

    def _load(self, bundle):
        task = self._host.load(bundle)
        for part in ("trigger", "table"):
            if getattr(task, part) is None:
                raise PipelineError(
                    f"{task.name} is no stream task: its task.yaml has no `{part}`; add one (docs/pipeline.md)"
                )
        if task.name in self._tasks:
            raise PipelineError(f"there are two stream tasks {task.name}; give one of them another name")
        trigger, described = task.trigger, task.table
        before = [each for each in self._tables.generations() if each["task"] == task.name]
        table = self._tables.declare(
            task.name,
            task.version,
            {name: Column(each.type, each.index, each.leaves) for name, each in described.columns.items()},
            key=described.key,
            retention_ms=described.retention_ms,
        )
        if not before:
            table.complete_until(self._store.position)  # a new task sees what comes from now on
        elif table.generation > max(each["generation"] for each in before):
            table.complete_until(max(each["position"] for each in before))  # a new table goes on where the old one ends
        self._engine.add(task.name, [list(ids) for ids in trigger.on], level=trigger.level, within_ms=trigger.within_ms)
        self._tasks[task.name] = StreamTask(task, table, self._tables, self._call_ended)

    def _recover(self):
        """Looks at stored events again: those that were not counted, and those that matches under way began with."""
        if not self._tasks or not self._store.position:
            return
        since = min(each.table.position for each in self._tasks.values())
        first = next(iter(self._store.read(after=max(since - 1, 0), limit=1)), None)
        spans = [each.trigger.within_ms or 0 for each in self._tasks.values()]
        earliest_ms = first.event.time_ms - max(self._visit_timeout_ms, *spans) if first is not None else 0
        for stored in self._store.read(until=self._store.position):
            if stored.position > since or stored.event.time_ms >= earliest_ms:
                self._feed_one(stored)

    # ---- tasks, while events flow

    def load(self, bundle, *, from_stored=False):
        """Takes up the stream task in `bundle`, one that is not loaded.

        A task that the store does not know sees the events to come; with `from_stored`, all that are stored first. One
        that the store knows goes on where it ended. Returns at once: while a task looks at stored events, as fast as
        its queue takes them, `explain` says how many it has before it. PipelineError, BundleError, StoreError: nothing
        has changed then.
        """
        with self._lock:
            self._load(bundle)

    def change(self, bundle):
        """Puts the version of a loaded task that is in `bundle` in the place of the present one.

        Calls that run end in the old version, and their rows go to its table; those that wait go to the new one. Where
        the trigger's ids, level or time have changed, the task's matches under way begin anew. Other tasks do not
        notice. PipelineError, BundleError, StoreError: the old version stays then.
        """
        raise NotImplementedError

    def withdraw(self, name, *, drain=True):
        """Takes out a loaded task. Nothing triggers it from now on; its calls end first. Without `drain` they are cut
        off, and triggered again when the task is loaded again. Its table stays in the store. PipelineError for a name
        that is not loaded."""
        raise NotImplementedError

    def forget(self, key):
        """Removes what is of `key`: events, visits, calls, state, rows, outbox entries, dead letters. On return its
        bytes are in none of the store's files, and no call that ran when it began will store anything.

        Returns how many went of each, as `vmhost.pipeline.forgetting.forget`, and "calls". Events wait until it is
        done, which takes as long as writing the whole store. StoreError: try again.
        """
        with self._lock:
            return forget(self._database, key)

    def explain(self, name):
        """What the task `name` waits for, and what became of its calls: a dict of "task", "version", "trigger" (as
        `TriggerEngine.explain`), "counts", "waiting", "running", "position" (calls for events up to here have ended)
        and "behind" (stored events that it has not looked at yet). PipelineError for a name that is not loaded."""
        with self._lock:
            task = self._tasks[name]
            return {
                "task": name,
                "version": task.task.version,
                "trigger": self._engine.explain(name),
                "counts": dict(task.counts),
                "waiting": task.waiting,
                "running": task.running,
                "position": task.table.position,
                "behind": 0,
            }

    # ---- events

    def append(self, event):
        """Takes one Event."""
        self.append_many((event,))

    def append_many(self, events):
        """Takes Events in their order, all or none of them. Raises as `EventStore.append_many`; PipelineError after
        `close`."""
        with self._lock:
            if self._closed:
                raise PipelineError(f"{self.folder}: the pipeline is closed; make a new one")
            for stored in self._intake.take(events):
                self._feed_one(stored)

    def append_line(self, line):
        """Takes an event as a line of JSON with the fields of Event. ValueError says what is wrong with it."""
        self.append(msgspec.json.decode(line, type=Event))

    def _feed_one(self, stored):
        event = stored.event
        visit = event.visit
        if visit:
            held = self._visits.setdefault(visit, [])
            if held is not None:
                held.append(stored)
                if len(held) > MAX_VISIT_EVENTS:
                    self._visits[visit] = None
        self._fed = stored.position
        for name, start in self._engine.feed(event.name, event.page, visit, event.time_ms, stored.position):
            task = self._tasks[name]
            if not task.table.done(stored.position, event.key if task.trigger.state else ""):
                task.offer(Call(stored.position, event.key, self._value(task.trigger, stored, start)))
        if visit and event.name == PAGE_EXIT:
            self._engine.end_visit(visit)
            del self._visits[visit]

    def _value(self, trigger, stored, start):
        event = stored.event
        return {
            "position": stored.position,
            "key": event.key,
            "page": event.page,
            "visit": event.visit,
            "time_ms": event.time_ms,
            "events": [msgspec.structs.asdict(each.event) for each in self._events(trigger, stored, start)],
        }

    def _events(self, trigger, stored, start):
        """The StoredEvents that a call gets."""
        if trigger.events == "none":
            return ()
        visit = stored.event.visit
        if trigger.level == "time" and trigger.events == "match":
            return self._store.read(after=start - 1, until=stored.position)
        if not visit:
            return (stored,)
        held = self._visits[visit]
        if held is None:
            held = PageLevel(self._store, visit, until=stored.position)
        return held if trigger.events == "visit" else [each for each in held if each.position >= start]

    # ---- calls

    def _call_ended(self, task, call, future):
        self._results.put((task, call, future))

    def _keep_results(self):
        while (ended := self._results.get()) is not None:
            task, call, future = ended
            way = None
            while True:
                try:
                    way = task.store(call, future)
                    self.store_error = None
                    break
                except StoreError as error:  # a full disk, say: the result waits
                    if self.store_error is None:
                        _log.error("%s: results wait until the store can be written: %s", self.folder, error)
                    self.store_error = error
                    if self._closing.wait(TICK_S):
                        break  # a restart triggers the call again
            with self._idle:
                task.returned(call)
                task.settled(call, way, self._fed)
                self._idle.notify_all()

    def _tick(self):
        while not self._closing.wait(TICK_S):
            try:
                with self._lock:
                    for stored in self._intake.tick():
                        self._feed_one(stored)
                    if self._intake.event_time_ms is not None:
                        self._engine.advance(self._intake.event_time_ms)
                    for task in self._tasks.values():
                        task.move_on(self._fed)
                        task.pump()
            except StoreError as error:
                _log.error("%s: %s", self.folder, error)

    def wait(self, timeout_s=None):
        """Waits until no call is unfinished. False after `timeout_s`."""
        with self._idle:
            return self._idle.wait_for(lambda: not any(task.unfinished for task in self._tasks.values()), timeout_s)

    # ---- what there is

    def table(self, name):
        """The Table of the stream task `name`; KeyError."""
        return self._tasks[name].table

    def dead_letters(self, name=None):
        """The calls that were given up, of all tasks or of the task `name`: `tables.DeadLetter`s, oldest first."""
        return self._tables.dead_letters(name)

    def _table_rows(self, request):
        """For tasks, as the host function `table_rows`: rows of a key, the latest first."""
        name, key, limit = request["table"], request.get("key"), request.get("limit")
        if name not in self._tasks:
            raise KeyError(f"there is no table {name!r}; there are {', '.join(self._tasks)}")
        return self.table(name).read(key=key, order="_id DESC", limit=limit)

    def flush(self):
        """All that was taken so far is durable on return. StoreError."""
        self._database.flush()

    def statistics(self):
        """A dict: `position`, `intake` (counters), `triggers`, and of each task what became of its calls."""
        with self._lock:
            return {
                "position": self._store.position,
                "intake": self._intake.statistics(),
                "triggers": self._engine.statistics(),
                "tasks": {
                    name: {**task.counts, "unfinished": task.unfinished, "position": task.table.position}
                    for name, task in self._tasks.items()
                },
            }

    # ---- the end

    def close(self, drain=True, keep_visits=None):
        """Ends the pipeline. `drain`: open visits are closed, and calls run to their end; else both are left for a
        restart, which triggers what was cut off again. `keep_visits`: visits stay open although calls are drained."""
        keep_visits = not drain if keep_visits is None else keep_visits
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for stored in self._intake.close(keep_visits):
                self._feed_one(stored)
        if drain:
            self.wait()
        self._closing.set()
        self._host.close(drain=drain)
        self._results.put(None)
        for worker in self._workers:
            worker.join()
        try:
            with self._lock:
                for task in self._tasks.values():
                    task.move_on(self._fed)
                self.final = self.statistics()
            self._tables.close()
        finally:
            self._database.close()

    def __enter__(self):
        return self

    def __exit__(self, error_type, error, traceback):
        self.close(drain=error_type is None)


def rows_in(folder, name, limit):
    """(names of columns, rows) of the newest table of the stream task `name` in the store in `folder`, latest first; a
    pipeline may be at work there. KeyError with a message; StoreError."""
    path = Path(folder) / STORE_NAME
    with Database(path, read_only=True) as database, database.reader() as connection:
        tasks = dict(connection.execute("SELECT task, sql_name FROM task_tables ORDER BY generation"))
        if name not in tasks:
            raise KeyError(f"{path}: there is no table {name!r}; there are {', '.join(tasks) or 'none'}")
        found = connection.execute(f"SELECT * FROM {quoted(tasks[name])} ORDER BY _id DESC LIMIT ?", (limit,))
        names = [column[0] for column in found.description]
        kept = [index for index, column in enumerate(names) if not column.startswith("_")]
        return [names[index] for index in kept], [[row[index] for index in kept] for row in found]
