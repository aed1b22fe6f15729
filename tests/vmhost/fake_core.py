"""A fake of `vmhost.isolation._core` without native threads: the test decides each step.

`FakeCore()` has the classes of the native module. With `boots` True a VM is ready at once, else `boot(vm)` or
`fail_boot(vm)` says when. `guest` is what runs for a call: a function of (value, entry) that returns the result or
raises `Ends`. With `guest` None a call that got a VM stays running until the test calls `call.end(...)`.
"""

import collections
import errno
import itertools
import threading

OK, TASK_ERROR, TIME_LIMIT, CPU_LIMIT, MEMORY_LIMIT, VM_LOST, CLOSED, CANCELLED = range(8)
QUEUE_FULL, VALUE, LOAD_ERROR = range(8, 11)


class Ends(Exception):
    """Raised by a test's guest: the call ends as `kind` with `payload`."""

    def __init__(self, kind, payload=None):
        super().__init__(kind)
        self.kind, self.payload = kind, payload


class FakeCore:
    def __init__(self, guest=lambda value, entry: value, boots=True):
        self.guest = guest
        self.boots = boots
        self.lock = threading.RLock()
        self.factory = None
        self.vms = []  # all that were made, ended ones too
        self.lanes = []
        self.boots_to_fail = 0
        self.threads_left = 10**9  # below one, a VM cannot even begin to boot
        self.ids = itertools.count(1)
        self.lingers = False  # a stopped VM reports the stop at once, and ends when the test calls its leave()
        self.crashes = []  # the results of crash_open()
        self.now = 0.0  # seconds, for idle times
        bind = lambda cls: lambda *args, **kwargs: cls(self, *args, **kwargs)
        self.CodeStore, self.Events, self.VM, self.Lane = bind(CodeStore), bind(Events), bind(VM), bind(Lane)

    def set_error_factory(self, factory):
        self.factory = factory

    def crash_open(self, path):
        crashes, self.crashes = self.crashes, []
        return crashes, 0

    def crash_dump_to(self, path):
        return errno.EEXIST  # another host of the process has its own

    def clock(self):
        return self.now

    def memory_refusal(self):
        return None

    def sqlite_counted(self):
        return True

    def in_state(self, state):
        return [vm for vm in self.vms if vm.state == state]


class CodeStore:
    def __init__(self, core):
        self.modules, self.texts, self.files = {}, {}, {}

    def add_module(self, name, is_package, code):
        self.modules[name] = (is_package, code)

    def add_text(self, digest, code):
        self.texts[digest] = code

    def add_file(self, path, data):
        self.files[path] = data


class Events:
    def __init__(self, core):
        self._changed = threading.Condition()
        self._queue = []
        self._woken = False
        self.waits = 0  # how often someone began to wait
        self.timeouts = []  # with what timeouts

    def wait(self, timeout_s=None):
        with self._changed:
            self.waits += 1
            self.timeouts.append(timeout_s)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._queue or self._woken, timeout_s)
            taken, self._queue, self._woken = self._queue, [], False
            return taken

    def wake(self, *_):
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def post(self, *event):
        with self._changed:
            self._queue.append(event)
            self._changed.notify_all()

    def settle(self):
        """Wait until everything posted so far was handled and the service waits again."""
        with self._changed:
            seen = self.waits
            self._woken = True
            self._changed.notify_all()
            settled = self._changed.wait_for(lambda: self.waits > seen and not self._queue, 60)
            assert settled, "the service thread is stuck"


class VM:
    def __init__(self, core, system, events, *, stack_bytes, soft_bytes, hard_bytes, grace_s):
        core.threads_left -= 1
        if core.threads_left < 0:
            raise OSError(11, "Resource temporarily unavailable")
        self.core, self.events, self.id = core, events, next(core.ids)
        self.stack_bytes, self.soft_bytes, self.hard_bytes = stack_bytes, soft_bytes, hard_bytes
        self.permissions = None
        self.state = "booting"
        self.lane = self.call = None
        self.retired = False
        self.retiring = threading.Event()
        self.live_bytes = 1 << 20
        self.idle_since = None
        self.logs = []
        self.served = 0
        core.vms.append(self)
        if core.boots_to_fail:
            core.boots_to_fail -= 1
            self.fail_boot("no memory")
        elif core.boots:
            self.boot()

    def boot(self):
        self.state = "ready"
        self.events.post("ready", self)
        if self.retired:
            self.leave()

    def fail_boot(self, reason):
        self.state = "failed"
        self.events.post("failed", self, reason)

    def set_limits(self, soft_bytes, hard_bytes, descriptors, output_bytes):
        assert self.lane is None
        self.soft_bytes, self.hard_bytes, self.descriptors = soft_bytes, hard_bytes, descriptors

    def set_permissions(self, permissions):
        assert self.lane is None
        self.permissions = permissions

    def attach(self, lane):
        with self.core.lock:
            assert self.state == "ready" and self.lane is None
            self.state, self.lane = "serving", lane
            self.idle_since = self.core.now
            lane.attached.append(self)
        lane.pump()

    def retire(self):
        with self.core.lock:
            self.retired = True
            self.retiring.set()
            if self.call is None and self.state in ("ready", "serving"):
                self.leave()

    def log(self, level, line):
        self.logs.append((level, line))
        self.events.post("log", self)

    def take_logs(self):
        taken, self.logs = self.logs, []
        return taken

    def statistics(self):
        idle_s = self.core.now - self.idle_since if self.idle_since is not None else 0.0
        return {
            "live_bytes": self.live_bytes,
            "peak_bytes": self.live_bytes,
            "arenas": 1,
            "cpu_s": 0.0,
            "calls": self.served,
            "errors": 0,
            "stops": 0,
            "threads": 0,
            "idle_s": idle_s,
        }

    def quarantine(self, phase):
        """The VM's call is wedged: its caller gets VM_LOST, the VM is quarantined."""
        call, self.call = self.call, None
        self._leave("quarantined")
        if call is not None:
            call.finish(VM_LOST)
        self.events.post("quarantined", self, phase)

    def _leave(self, state):
        self.state = state
        if self.lane is not None and self in self.lane.attached:
            self.lane.attached.remove(self)

    def leave(self):
        self._leave("ended")
        self.events.post("ended", self)


class Lane:
    def __init__(
        self,
        core,
        name,
        version,
        store,
        entry,
        events,
        *,
        wall_s,
        cpu_s,
        capacity,
        calls_per_vm,
        slow_s,
        caller_errors="",
        pack=None,
        unpack=None,
        coverage=0.0,
        memory_lines=False,
    ):
        self.core, self.name, self.version, self.store, self.entry = core, name, version, store, entry
        self.events, self.wall_s, self.cpu_s, self.capacity = events, wall_s, cpu_s, capacity
        self.calls_per_vm = calls_per_vm
        self.attached = []
        self.waiting = collections.deque()
        self.handed_over = 0  # calls that a VM was given and has not begun; a test sets it
        self.closed = False
        self.muted = False
        self.slow_s = slow_s
        self.ends = [0] * 16
        self.excused = [0] * 16
        self.caller_errors = caller_errors
        self.slow = 0
        self.wall_s_total = 0.0
        core.lanes.append(self)

    @property
    def queued(self):
        return len(self.waiting)

    @property
    def running(self):
        return sum(vm.call is not None for vm in self.attached)

    @property
    def unfinished(self):
        return self.queued + self.running + self.handed_over

    @property
    def idle(self):
        return sum(vm.call is None for vm in self.attached)

    @property
    def starved(self):
        return bool(self.waiting) and not self.idle

    def statistics(self):
        return {
            "ends": tuple(self.ends),
            "excused": tuple(self.excused),
            "slow": self.slow,
            "wall_s": self.wall_s_total,
            "wait_s": 0.0,
            "submitted": sum(self.ends) + self.queued + self.running,
        }

    def held(self):
        return None

    def tails(self):
        return []

    def metrics(self):
        return [], 0

    def durations(self):
        return bytes(8 * 264), bytes(8 * 264)

    def call(self, value, timeout_s=None, priority=0, entry=None):
        return self.submit(value, timeout_s, priority, entry).result()

    def submit(self, value, timeout_s=None, priority=0, entry=None, spread=False, record=None):
        return self.submit_many([value], timeout_s, priority, entry)[0]

    def submit_many(self, values, timeout_s=None, priority=0, entry=None):
        with self.core.lock:
            if self.closed:
                raise self.core.factory(CLOSED, self.capacity, self.name, self.version)
            if self.queued + len(values) > self.capacity + self.idle:
                raise self.core.factory(QUEUE_FULL, self.capacity, self.name, self.version)
            calls = [Call(self, value, timeout_s, priority, entry) for value in values]
            self.waiting.extend(calls)
        self.pump()
        return calls

    def pump(self):
        """Hand waiting calls to idle VMs."""
        while True:
            with self.core.lock:
                vm = next((vm for vm in self.attached if vm.call is None), None)
                if vm is None or not self.waiting:
                    if self.starved and not self.muted:
                        self.events.post("starved", self)
                    if self.closed and not self.waiting:
                        for idle in [vm for vm in self.attached if vm.call is None]:
                            idle.leave()
                    return
                call = max(self.waiting, key=lambda c: c.priority)
                self.waiting.remove(call)
                call.vm, vm.call, vm.idle_since = vm, call, None
            if self.core.guest is None:
                continue
            try:
                value = self.core.guest(call.value, call.entry)
            except Ends as ends:
                call.end(kind=ends.kind, payload=ends.payload)
            else:
                call.end(value)

    def mute(self, muted):
        self.muted = muted

    def fail(self, message):
        with self.core.lock:
            calls = list(self.waiting)
            self.waiting.clear()
        for call in calls:
            call.finish(VM_LOST, message)
        return len(calls)

    def close(self, drain):
        with self.core.lock:
            self.closed = True
            dropped = [] if drain else list(self.waiting)
            if not drain:
                self.waiting.clear()
        for call in dropped:
            call.finish(CLOSED)
        self.pump()

    def stop_running(self):
        for call in [vm.call for vm in self.attached if vm.call is not None]:
            call.stop(CLOSED)


class Call:
    def __init__(self, lane, value, timeout_s, priority, entry):
        self.lane, self.value, self.timeout_s, self.priority, self.entry = lane, value, timeout_s, priority, entry
        self.vm = None
        self.kind = None
        self.excused = False
        self.record = None  # the VM's record of it
        self.timings = (0, 0, 0)
        self._over = threading.Event()
        self._watched = False
        self._payload = self._answer = self._error = None

    def end(self, value=None, kind=OK, payload=None):
        """A running call ends; its VM takes the next one, or ends when it was retired."""
        with self.lane.core.lock:
            vm, self.vm = self.vm, None
            if vm is None or vm.call is not self:
                return
            vm.call = None
            vm.served += 1
            vm.idle_since = self.lane.core.now
            stopped = kind in (TIME_LIMIT, CPU_LIMIT, MEMORY_LIMIT, CANCELLED, CLOSED)
            if stopped:
                vm.events.post("stopped", vm)
            if stopped and self.lane.core.lingers:
                self.lane.attached.remove(vm)
            elif vm.retired or stopped or vm.served == self.lane.calls_per_vm:
                vm.leave()
        self._answer = value
        self.finish(kind, payload)
        self.lane.pump()

    def finish(self, kind, payload=None):
        with self.lane.core.lock:
            if self._over.is_set():
                return
            self.kind, self._payload = kind, payload
            self.lane.ends[kind] += 1
            if kind != OK:
                self.lane.events.post("failed_call", self.lane, kind, payload if isinstance(payload, dict) else None)
            self._over.set()
            if self._watched:
                self.lane.events.post("done", self)

    @property
    def state(self):
        return "done" if self.done() else "running" if self.vm is not None else "queued"

    def done(self):
        return self._over.is_set()

    def wait(self, timeout_s=None):
        return self._over.wait(timeout_s)

    def result(self):
        self._over.wait()
        if self.kind == OK:
            return self._answer
        if self._error is None:
            self._error = self.lane.core.factory(self.kind, self._payload, self.lane.name, self.lane.version)
        raise self._error

    def outcome(self):
        try:
            return self.result(), None
        except Exception as error:
            return None, error

    def cancel(self):
        with self.lane.core.lock:
            if self not in self.lane.waiting:
                return False
            self.lane.waiting.remove(self)
        self.finish(CANCELLED)
        return True

    def stop(self, kind=CANCELLED):
        if not self.cancel():
            self.end(kind=kind)

    def watch(self):
        with self.lane.core.lock:
            self._watched = True
            if self._over.is_set():
                self.lane.events.post("done", self)
