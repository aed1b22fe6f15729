"""The inside of one host: its state, its lock, and the thread that handles native events.

    native core --events--> service thread --> pool, scheduler, breakers, futures, logs, host functions

The thread sleeps in `events.wait` with the GIL released; an idle host uses no CPU. A call on the fast path never comes
through here. User code that may block (callbacks of futures, log handlers) runs on a second thread, and host functions
on a few of their own, so that neither delays scheduling. The service has no strong reference to the Host object: a host
that is dropped is cleaned up, as described in `owned_by`.
"""

import _thread
import collections
import errno
import functools
import logging
import os
import queue
import time
import weakref
from types import MappingProxyType

from vmhost import memory_lines, statistics
from vmhost.errors import ClosedError, Kind, from_core
from vmhost.runtime import guest_log, native_threads
from vmhost.runtime.codec import Codec
from vmhost.runtime.host_functions import FunctionThreads
from vmhost.runtime.pool import Pool
from vmhost.runtime.scheduler import Scheduler
from vmhost.runtime.system_bundle import abandoned_threads
from vmhost.task import Version

_log = logging.getLogger("vmhost")
# Events that create no new demand for a VM.
_NO_DEAL = frozenset(("done", "log", "host_call", "failed_call"))
# Outcomes of calls that never ran, or were cancelled.
_NOT_CALLED = frozenset((Kind.CLOSED, Kind.CANCELLED, Kind.QUEUE_FULL))
_NOT_FAILED = _NOT_CALLED | {Kind.OK}  # OK: a slow call
_KIND_NAMES = tuple(kind.name for kind in Kind)
_RETRY_AFTER_FAULT_S = 1.0
# Quarantined VMs keep their memory until the process exits: after this many of one task, its queued calls fail.
_MAX_GIVEN_UP = 3
# How long a close waits for host functions that still run; as long as for a VM that ends.
_FUNCTIONS_END_S = 2.0
_MAX_MESSAGE_CHARS = 16384  # characters of an error message passed to a guest


class Service:
    """State of a host under `policy`. `native`: the native core; `system`: the code store that VMs boot from.

    `state` is a StateFolder or None. `functions()` returns the host functions by name (called with no lock held).
    """

    def __init__(self, policy, native, system, state, functions, *, codec=None, clock=time.monotonic, wall=time.time):
        self.policy = policy
        self.native = native
        self.events = native.Events()
        self.lock = native_threads.RLock()
        # These two are held where a garbage collection may run a finalizer that uses a future: so they are reentrant.
        self.future_lock = native_threads.RLock()
        self._codec = codec or Codec()
        self._functions = functions
        self._function_threads = FunctionThreads(policy.function_threads)
        self._recorders, self.record_folders = [], set()  # weak references; folders of all that were ever made
        self._state = state
        self._clock = clock
        self._wall = wall
        self._pool = Pool(policy, native, system, self.events, clock)
        self._scheduler = Scheduler(policy, self._pool, clock)
        self._current = {}  # task name -> Version for new calls
        self._by_lane = {}  # native lane -> Version, including draining ones
        self._replaced = {}  # task name -> final TaskStatistics of the previous version
        self._handles = weakref.WeakValueDictionary()  # task name -> Task
        self._watched = {}  # native call -> functions to run after its end
        self._watch_lock = native_threads.RLock()
        self._gone = False  # the thread no longer serves watchers
        self._aside = None  # queue of the second thread
        self._aside_thread = None
        self._logging = set()  # ids of VMs whose lines are about to be logged
        self._idle_at = None  # when to look for idle VMs next
        self._closing = False  # no more loads or calls
        self._asked = collections.deque()  # requests of `ask_to_close`: drain queued calls?
        self._owner = None  # weak; when it is gone, the service closes itself
        self._drains = False  # whether queued calls still run then
        self._abandoned = False
        self._finished_at_all = False
        self.shows_output = False  # what guests print is shown on stderr, unless the program logs it
        self._masked = None  # (policy, its Masking), made for the first error
        native.set_error_factory(from_core)
        self._to_serve = [self]  # whoever removes the item serves it, or makes sure that no one does
        self._thread = _ServiceThread(self._to_serve)
        self._begun = False

    def owned_by(self, owner, drain=False):
        """Close when `owner` is gone; queued calls still run if `drain`.

        The weak reference's callback is a C function: a Ctrl-C while Python runs a finalizer aborts the finalizer for
        good, and this service would never be closed.
        """
        self._drains = drain
        self._owner = weakref.ref(owner, self.events.wake)

    def start(self):
        """Start serving. A caller that is interrupted in here, or gets an exception, must call `abandon`."""
        # No other thread knows this service yet. So no lock is taken, which an interruption might leave locked.
        self._scheduler.deal()
        self._thread.start()
        self._begun = True

    # -- loading and unloading ------------------------------------------------------------------------------------

    def load(self, manifest, digest, store, limits, policy, make_handle, permissions=None):
        """Return a handle to the task. Its new calls go to this version, and the previous version drains.

        `make_handle(version)` creates the handle if none exists. `permissions`: for its VMs, instead of the manifest's.
        Loading the very same bundle again, with the same settings, changes nothing.
        """
        with self.lock:
            self._check_open()
            old = self._current.get(manifest.name)
            again = old is not None and old.digest == digest
            if again and old.has(limits, policy, permissions):
                version = old
            else:
                version = self._new_version(manifest, digest, store, limits, policy, permissions)
                if again and (state := old.breaker.saved()) is not None:
                    version.breaker.restore(state)
            handle = self._handles.get(manifest.name)
            if handle is None:
                handle = self._handles[manifest.name] = make_handle(version)
            else:
                handle._move(version)
            if old is not None and old is not version:
                self._close_version(old, True, f"replaced by {version.version}")
            self._deal_here()
            return handle

    def _new_version(self, manifest, digest, store, limits, policy, permissions):
        version = Version(
            self, manifest, digest, limits, policy, clock=self._clock, wall=self._wall, permissions=permissions
        )
        version.lane = self.native.Lane(
            version.name,
            version.version,
            store,
            version.entry,
            self.events,
            wall_s=_span(limits.wall_s),
            cpu_s=_span(limits.cpu_s),
            capacity=policy.queue,
            calls_per_vm=1 if version.fresh else 0,
            slow_s=_span(policy.breaker.slow_s),
            caller_errors="\n".join(("", *policy.breaker.caller_errors, "")),
            pack=self._codec.pack,
            unpack=self._codec.unpack,
            coverage=policy.coverage,
            memory_lines=policy.memory_lines,
        )
        if policy.record is not None:
            self._begin_recording(version, policy.record)
        self._current[version.name] = version
        self._by_lane[version.lane] = version
        self._scheduler.add(version)
        if self._state is not None:
            if (saved := self._state.breaker(version.key)) is not None:
                version.breaker.restore(saved)
            if (crash := self._state.take_crash(version.name, version.version)) is not None:
                version.breaker.trip(crash)
        return version

    # -- recording ------------------------------------------------------------------------------------------------

    def record(self, name, policy):
        """Record the calls of the loaded task `name` under `policy`, a RecordPolicy, from now on; None: stop recording.
        KeyError, ConfigurationError."""
        with self.lock:
            self._check_open()
            version = self._current[name]
            before, version.recorder = version.recorder, None
            try:
                if policy is not None:
                    self._begin_recording(version, policy)
            finally:
                self._move_handle(version)
        if before is not None:
            before.close("recording was switched")

    def _begin_recording(self, version, policy):
        from vmhost.runtime.recorder import Recorder  # imported late: few hosts record

        version.recorder = recorder = Recorder(version, policy, self._codec, self)
        self._recorders = [one for one in self._recorders if one() is not None] + [weakref.ref(recorder)]
        self.record_folders.add(os.path.abspath(policy.folder))

    def forget_calls(self, marks, timeout_s=10.0):
        """Removes the calls that contain one of `marks` (bytes) from the files that are being recorded, also calls that
        have ended and are not written yet. OSError."""
        ended = native_threads.SimpleQueue()

        def act():
            try:
                for recorder in self._recorders:
                    if (recorder := recorder()) is not None:
                        recorder.forget(marks)
                ended.put(None)
            except BaseException as error:
                ended.put(error)

        if self._recorders:
            self.put_aside(act)
            try:
                error = ended.get(timeout=timeout_s)
            except queue.Empty:
                raise OSError(errno.ETIMEDOUT, "recorded calls wait to be written") from None
            if error is not None:
                raise error

    @property
    def codec(self):
        """The codec for values beyond the builtin ones."""
        return self._codec

    def reroute(self, version):
        """Route the calls of `version` anew: its recorder has ended."""
        with self.lock:
            self._move_handle(version)

    def handle(self, name, make_handle):
        """The handle of the loaded task `name`. KeyError."""
        with self.lock:
            version = self._current[name]
            handle = self._handles.get(name)
            if handle is None:
                handle = self._handles[name] = make_handle(version)
            return handle

    def names(self):
        """Names of the loaded tasks."""
        with self.lock:
            return tuple(self._current)

    def unload(self, name, drain):
        """Unload the task `name`. KeyError. Queued calls still run if `drain`, else all its calls end now."""
        with self.lock:
            version = self._current.pop(name)
            self._replaced.pop(name, None)
            version.closed_because = "was unloaded; load it again"
            self._move_handle(version)
            self._close_version(version, drain, "unloaded")
            self._deal_here()

    def _close_version(self, version, drain, why):
        """Accept no more calls for `version`; queued ones still run if `drain`."""
        version.draining = True
        _log.debug("%s %s: %s", version.name, version.version, why)
        version.lane.close(drain)
        if not drain:
            version.lane.stop_running()
        if version.recorder is not None:
            version.recorder.close()

    def _move_handle(self, version):
        handle = self._handles.get(version.name)
        if handle is not None and (handle._current is version or self._current.get(version.name) is version):
            handle._move(version)

    def _check_open(self):
        if self._closing:
            raise ClosedError("the host is closed; make a new one")

    # -- closing --------------------------------------------------------------------------------------------------

    def let_go(self):
        """Make this thread release the lock fully. For a caller that was interrupted while it created the service:
        Ctrl-C may come after `with` has taken the lock, and before it would release it."""
        try:
            while True:
                self.lock.release()
        except RuntimeError:  # fully released
            pass

    def begin_close(self, drain):
        """Start to close: `drain` lets queued calls run, else all end now. Can be repeated, also without `drain`."""
        with self.lock:
            if not self._closing:
                self._closing = True
                for version in list(self._current.values()):
                    version.closed_because = "the host is closed"
                    self._move_handle(version)
            for version in list(self._by_lane.values()):
                if not version.draining or not drain:
                    self._close_version(version, drain, "the host closes")
            self._deal()
        self.events.wake()

    def ask_to_close(self, drain):
        """Call `begin_close` on the service's own thread, soon; for a caller that waits for the end anyway.

        Ctrl-C can come between any two steps of the main thread, also while it holds a lock: this takes none.
        """
        self._asked.append(drain)
        self.events.wake()

    def wait_closed(self, timeout_s=None):
        """Wait until the close is complete. False after `timeout_s`, and at once on a thread that the close waits
        for."""
        if self.is_waited_for(native_threads.get_ident()):
            return self._finished_at_all
        return self._thread.join(timeout_s)

    def is_waited_for(self, ident):
        """Whether the service cannot end before the thread with this get_ident() continues: it serves, or runs a
        function for a guest."""
        return self._thread.is_it(ident) or self._function_threads.has(ident)

    def wait_functions(self):
        """After `wait_closed`: wait a bounded time for host functions whose guests have given up. Those that still run
        are logged."""
        running = self._function_threads.wait(_FUNCTIONS_END_S)
        if running:
            _log.error(
                "host functions still run %s s after the host has closed: %s; their threads end when they return",
                _FUNCTIONS_END_S,
                ", ".join(running),
            )

    def abandon(self):
        """The owner could not be created."""
        self._abandoned = True
        self.events.wake()
        if self._begun:
            return  # its thread does the rest as soon as it runs
        try:
            self._to_serve.pop()
        except IndexError:
            return  # the thread has taken it, and does the rest
        self._finished_at_all = True
        if self._state is not None:
            self._state.close()

    @property
    def abandoned(self):
        """The owner is gone, and the service ends by itself."""
        return self._abandoned or self._owner is not None and self._owner() is None

    @property
    def finished(self):
        """The close is complete."""
        return self._finished_at_all

    def holds(self, folder):
        """Whether `folder` is the state folder of this host."""
        return self._state is not None and os.path.realpath(self._state.path) == os.path.realpath(folder)

    @property
    def quarantined(self):
        with self.lock:
            return tuple(self._pool.quarantined)

    # -- the thread -----------------------------------------------------------------------------------------------

    def _run(self):
        look_at = None  # time of the scheduler's next check without an event
        while not self._finished_at_all:
            try:
                events = self.events.wait(None if look_at is None else max(0.0, look_at - self._clock()))
                if not self._closing and self.abandoned:
                    self.begin_close(self._drains and not self._abandoned)
            except Exception:  # such as MemoryError; without this thread no call would ever be answered
                _log.exception("vmhost: events could not be read; the host continues")
                events = []
            self._close_as_asked()
            after = []  # actions that run without the lock, since user code may block them
            with self.lock:
                for event in events:
                    try:
                        self._handle(event, after)
                    except Exception:
                        _log.exception("vmhost: event %r could not be handled; the host continues", event[0])
                if (
                    not events
                    or look_at is not None
                    and self._clock() >= look_at
                    or any(event[0] not in _NO_DEAL for event in events)
                ):
                    try:
                        again_s = self._deal()
                    except Exception:
                        _log.exception("vmhost: VMs could not be assigned; the host continues")
                        again_s = _RETRY_AFTER_FAULT_S
                    look_at = None if again_s is None else self._clock() + again_s
            for act in after:
                try:
                    act()
                except Exception:
                    _log.exception("vmhost: an action after an event failed; the host continues")
            events = event = after = act = None  # keep nothing alive during the wait, above all no failed host call
        self._serve_late_watchers()
        if self._aside is not None:
            self._aside.put(None)
        self._function_threads.close()
        if self._state is not None:
            self._state.close()

    def _close_as_asked(self):
        while self._asked:
            try:
                self.begin_close(self._asked[0])
            except Exception:  # such as MemoryError; the requesting thread is waiting
                _log.exception("vmhost: the host could not begin to close; it tries again")
                self.events.wake()
                return
            self._asked.popleft()

    def _deal_here(self):
        """Deal on a user's thread. The service thread, woken to schedule the next check, deals again."""
        if self._deal() is not None:
            self.events.wake()

    def _deal(self):
        """Give out VMs and take back unneeded ones. Returns seconds until the next check; None: on the next event."""
        for version in list(self._by_lane.values()):
            if version.draining and not version.lane.queued:
                self._pool.retire_all(version)
                if self._pool.is_free_of(version) and not version.lane.unfinished:
                    self._scheduler.remove(version)
                    del self._by_lane[version.lane]
                    if version.name in self._current:
                        self._replaced[version.name] = self._task_statistics(version, {})
        if self._closing and not self._by_lane:
            self._pool.close()
            if not len(self._pool):
                self._finished_at_all = True
                self.events.wake()
                return None
        again = self._scheduler.deal()
        if self._pool.cannot_boot is not None:
            reason, self._pool.cannot_boot = self._pool.cannot_boot, None
            _log.warning("a VM could not be booted: %s", reason)
            self._fail_waiting(reason)
            again = self.policy.quantum_s  # no event would trigger another try
        now = self._clock()
        if self._pool.changed or self._idle_at is not None and now >= self._idle_at or self._pool.under_pressure():
            self._pool.changed = False
            idle = self._pool.retire_idle(self._keep)
            self._idle_at = None if idle is None else now + idle
        idle = None if self._idle_at is None else max(0.0, self._idle_at - now)
        return min((s for s in (again, idle) if s is not None), default=None)

    @staticmethod
    def _keep(version):
        return 0 if version.draining else version.policy.ready

    def _handle(self, event, after):
        kind = event[0]
        pool = self._pool
        if kind == "done":
            after.extend(self._take_watchers(event[1]))
        elif kind == "ready":
            pool.on_ready(event[1])
        elif kind == "failed":
            _log.warning("a VM could not be booted: %s", event[2])
            if pool.on_failed(event[1]):
                self._fail_waiting(event[2])
        elif kind == "stopped":
            pool.on_stopped(event[1])
        elif kind == "ended":
            owner = pool.on_ended(event[1])
            self._log_lines(event[1], owner, after)
        elif kind == "quarantined":
            owner = pool.on_quarantined(event[1])
            self._log_lines(event[1], owner, after)
            where = f"{owner.name} {owner.version}" if owner else "no task"
            _log.error("VM %s of %s is quarantined: it did not unwind (%s)", event[1].id, where, event[2])
            if owner is not None:
                owner.breaker.trip(f"a VM wedged ({event[2]})")
                owner.given_up += 1
                if owner.given_up >= _MAX_GIVEN_UP and owner.breaker.policy.enabled:
                    owner.breaker.forgive(
                        owner.lane.fail(
                            f"{owner.given_up} VMs of the task were quarantined before, and keep their memory"
                        )
                    )
        elif kind == "failed_call":
            version = self._by_lane.get(event[1])
            if version is not None:
                if event[2] not in _NOT_FAILED:
                    version.last_errors.add(event[2], event[3], self._wall(), self._masking())
                version.observe()
                version.last_errors.log_once(version.breaker.trips)
                if event[2] == Kind.MEMORY_LIMIT and (held := version.lane.held()) is not None:
                    waiting = memory_lines.read(held, version.name, version.version)
                    _log.warning("%s %s: met its memory limit; %s", version.name, version.version, waiting.sentence())
        elif kind == "log":
            owned = pool.owned(event[1])
            self._log_lines(event[1], owned and owned.owner, after)
        elif kind == "host_call":
            after.append(lambda: self._host_call(event[1]))
        elif kind != "starved":  # starved: handled by the deal after all events
            _log.warning("the native core reports %r, which this version does not know", kind)

    def _fail_waiting(self, reason):
        """No VM can be booted: calls that wait for their task's first VM end as lost."""
        for version in list(self._by_lane.values()):
            if version.lane.queued and not self._pool.held_by(version):
                lost = version.lane.fail(f"no VM could be booted for it: {reason}; see `vmhost doctor`")
                version.breaker.forgive(lost)
                version.mute(False)  # the next call must be reported

    def _masking(self):
        """The Masking of `policy`, which `Host.reload` may replace."""
        if self._masked is None or self._masked[0] is not self.policy:
            self._masked = self.policy, self.policy.masking()
        return self._masked[1]

    # -- breakers -------------------------------------------------------------------------------------------------

    def breaker_changed(self, version):
        """The breaker of `version` changed its state: reroute its calls, and save the state."""
        with self.lock:
            reason = f" ({version.breaker.reason})" if version.breaker.reason else ""
            _log.info("%s %s: breaker %s%s", version.name, version.version, version.breaker.state, reason)
            if self._current.get(version.name) is version:
                self._move_handle(version)
            if self._state is not None:
                try:
                    self._state.save_breaker(version.key, version.breaker.saved())
                except OSError as error:
                    _log.error(
                        "%s: the breaker of %s %s cannot be saved, a restart will not know of it: %s",
                        self._state.path,
                        version.name,
                        version.version,
                        error,
                    )

    # -- calls that someone watches -------------------------------------------------------------------------------

    def watch(self, call, act):
        """Run `act` on the service thread, with no lock held, after the native `call` has ended."""
        with self._watch_lock:
            gone = self._gone
            if not gone:
                self._watched.setdefault(call, []).append(act)
        if gone:
            act()  # the thread has ended, so every call has ended
        else:
            call.watch()

    def _serve_late_watchers(self):
        """The thread ends: serve calls that were watched until now; later ones are served at once."""
        with self._watch_lock:
            self._gone = True
            late = [act for acts in self._watched.values() for act in acts]
            self._watched.clear()
        for act in late:
            try:
                act()
            except Exception:
                _log.exception("vmhost: an action after a call's end failed")

    def _take_watchers(self, call):
        with self._watch_lock:
            return self._watched.pop(call, ())

    # -- user code that may block ---------------------------------------------------------------------------------

    def run_callbacks(self, act):
        """Run `act`, which calls user code: on the second thread if this is the service thread, else here."""
        if self._thread.is_it(native_threads.get_ident()):
            self.put_aside(act)
        else:
            act()

    def wait_callbacks(self):
        """After `wait_closed`: wait until all callbacks and log handlers have run. Returns at once in one of them."""
        thread = self._aside_thread
        if thread is not None and thread.ident != native_threads.get_ident():
            thread.join()

    def put_aside(self, act):
        """Run `act`, which may block, on the second thread; here where the machine has no room for one."""
        if self._aside is None:
            aside = native_threads.SimpleQueue()
            thread = native_threads.new_thread(_work_off, "vmhost-callbacks", (aside,))
            try:
                thread.start()
            except RuntimeError:
                act()
                return
            self._aside, self._aside_thread = aside, thread
        self._aside.put(act)

    def _log_lines(self, native, owner, after):
        """Log the lines of a VM, on the second thread.

        Until they are taken, the core limits how many it keeps.
        """
        if native.id in self._logging:
            return
        self._logging.add(native.id)
        name, version = (owner.name, owner.version) if owner else (None, None)

        def write():
            self._logging.discard(native.id)
            guest_log.write(name, version, native.id, native.take_logs(), self.shows_output)

        after.append(lambda: self.put_aside(write))

    def _host_call(self, request):
        if not self._function_threads.run(request.name, lambda: self._answer(request)):
            request.fail("the host is closing")

    def _answer(self, request):
        """Run the host function that a guest called."""
        with self.lock:
            version = next(
                (
                    v
                    for v in self._by_lane.values()
                    if v.name == request.lane_name and v.version == request.lane_version
                ),
                None,
            )
        function = self._functions().get(request.name)
        if version is None or request.name not in version.functions:
            request.fail(
                f"PermissionDenied: host function {request.name!r} is not granted; name it in "
                "permissions.host of task.yaml"
            )
        elif function is None:
            request.fail(
                f"LookupError: this host has no function {request.name!r}; name it in `functions` of host.yaml"
            )
        else:
            try:
                request.reply(function(request.value))
            except BaseException as error:  # SystemExit too: the guest waits for an answer
                request.fail(_error_text(error))
                if isinstance(error, KeyboardInterrupt):
                    # meant for the main thread, whichever thread it was raised on
                    _thread.interrupt_main()

    # -- statistics -----------------------------------------------------------------------------------------------

    def numbers(self, first, step, steps):
        """The current HostNumbers; the buckets are those of `statistics.reached`."""
        with self.lock:
            vms, memory_bytes = self._pool.snapshot()
            by_id = {vm.id: vm for vm in vms}
            versions = [
                self._version_numbers(version, by_id, version.lane.numbers(first, step, steps))
                for version in self._by_lane.values()
            ]
            return statistics.HostNumbers(self._whole(vms, memory_bytes), versions)

    def _version_numbers(self, version, vms, native):
        ends, queued, running, denied, input_bytes, walls, waits = native
        totals = version.totals
        if ids := self._pool.ids_of(version):
            totals = totals.with_vms([vms[number] for number in ids if number in vms])
        metrics, left_out = statistics.of_metrics(version.lane.metrics())
        return statistics.VersionNumbers(
            sum(ends) - sum([ends[kind] for kind in _NOT_CALLED]),
            version.name,
            version.version,
            ends,
            queued,
            running,
            len(self._pool.held_by(version)) if ids else 0,
            totals.cpu_s,
            totals.stops,
            denied,
            input_bytes,
            version.breaker.state,
            version.breaker.trips,
            version.breaker.refused,
            walls,
            waits,
            metrics,
            left_out,
        )

    def statistics(self):
        """The current HostStatistics."""
        with self.lock:
            vms, memory_bytes = self._pool.snapshot()
            by_id = {vm.id: vm for vm in vms}
            tasks = {name: self._task_statistics(version, by_id) for name, version in self._current.items()}
            draining = tuple(
                self._task_statistics(version, by_id) for version in self._by_lane.values() if version.draining
            )
            return self._whole(vms, memory_bytes, tasks, draining, tuple(self._replaced.values()))

    def _whole(self, vms, memory_bytes, tasks=MappingProxyType({}), draining=(), replaced=()):
        return statistics.HostStatistics(
            tasks=tasks,
            draining=draining,
            replaced=replaced,
            vms=vms,
            quarantined=tuple(self._pool.quarantined),
            totals=self._pool.totals.with_vms(vms),
            functions=self._function_threads.running,
            warm=self._pool.warm,
            booting=self._pool.booting,
            booted=self._pool.booted,
            boot_failures=self._pool.boot_failures,
            ended=self._pool.ended,
            starved=self._scheduler.starved,
            memory_bytes=memory_bytes,
            sqlite_counted=self.native.sqlite_counted(),
            abandoned_threads=abandoned_threads(),
        )

    def longest_calls(self, name):
        """LongCalls of all versions of a task, slowest first. KeyError if it is not loaded."""
        with self.lock:
            self._current[name]
            versions = [version for version in self._by_lane.values() if version.name == name]
            found = [(version.version, version.lane.tails()) for version in versions]
        now = time.time()
        calls = [
            statistics.LongCall(version, now - ago_s, wall_s, wait_s, size, _KIND_NAMES[kind])
            for version, tails in found
            for ago_s, wall_s, wait_s, size, kind in tails
        ]
        return tuple(sorted(calls, key=lambda call: call.wall_s, reverse=True))

    def _task_statistics(self, version, vms):
        own = [vms[number] for number in self._pool.ids_of(version) if number in vms]
        counters = version.lane.statistics()
        ends = counters.pop("ends")
        walls, waits = version.lane.durations()
        metrics, counters["metrics_left_out"] = statistics.of_metrics(version.lane.metrics())
        calls = sum(ends) - sum([ends[kind] for kind in _NOT_CALLED])
        breaker = version.breaker
        held = version.lane.held() if ends[Kind.MEMORY_LIMIT] else None
        return statistics.TaskStatistics(
            name=version.name,
            version=version.version,
            draining=version.draining,
            queued=version.lane.queued,
            running=version.lane.running,
            vms=len(self._pool.held_by(version)),
            calls=calls,
            failures=calls - ends[Kind.OK],
            totals=version.totals.with_vms(own),
            ended={name: count for name, count in zip(_KIND_NAMES, ends) if count},
            breaker=statistics.BreakerStatistics(breaker.state, breaker.reason, breaker.trips, breaker.refused),
            walls=statistics.Histogram(walls, counters["wall_s"]),
            waits=statistics.Histogram(waits, counters["wait_s"]),
            counters=counters,
            metrics=metrics,
            memory_lines=None if held is None else memory_lines.read(held, version.name, version.version),
            last_errors=version.last_errors.newest_first(self._masking),
        )


def _error_text(error):
    """The text for a guest about an error of a host function."""
    try:
        return f"{type(error).__name__}: {error}"[:_MAX_MESSAGE_CHARS]
    except BaseException:
        return f"{type(error).__name__}: str() of the exception failed"


def _span(limit_s):
    """A limit in the core's form: negative means none."""
    return -1.0 if limit_s is None else limit_s


class _ServiceThread:
    """The thread that serves the item of the list `to_serve`; it ends at once if someone has removed the item."""

    def __init__(self, to_serve):
        self._thread = native_threads.Handle()
        self._to_serve = to_serve

    def start(self):
        self._thread.start(functools.partial(_serve, self._to_serve))

    def join(self, timeout_s=None):
        """Wait for its end. True if it has ended, or never began."""
        return self._thread.join(timeout_s)

    def is_alive(self):
        return self._thread.is_alive()

    def is_it(self, ident):
        return ident == self._thread.ident and self._thread.is_alive()


def _serve(to_serve):
    try:
        service = to_serve.pop()
    except IndexError:
        return
    native_threads.current_thread().name = "vmhost-service"
    service._run()


def _work_off(work):
    while (act := work.get()) is not None:
        try:
            act()
        except KeyboardInterrupt:  # meant for the main thread, whichever thread it was raised on
            _thread.interrupt_main()
        except BaseException:  # SystemExit too: without this thread no later callback would run
            _log.exception("vmhost: a callback failed")
        act = None  # keep nothing alive during the wait: a callback may hold the executor whose end stops this thread
