"""Session groups: several sessions of one published network, each with a thread, cores and prepared weights of its own,
over one set of embedding tables.

A call reads its rows and takes its network at one moment, so one version answers it; then it runs without a lock. An
update prepares networks and reads files while calls run; calls wait only while changed rows are put into the tables."""

import contextlib
import itertools
import math
import os
import queue
import threading
import time
from concurrent.futures import Future
from typing import NamedTuple

from vmhost import ClosedError
from vmhost.engine import _array
from vmhost.engine.embedding import EmbeddingVariable
from vmhost.engine.embedding.lookups import COMBINERS, bags_of, read_bags
from vmhost.engine.models import opened
from vmhost.serving import exports
from vmhost.serving.errors import ExportError

POLICIES = ("shortest_queue", "round_robin", "modulo")
DIRECT_S = 200e-6  # calls that take less may run in their callers' threads: a hand-over takes some 25 us
BRIEF_S = 50e-6  # the limit after a crowd: callers that never sleep keep others from the CPUs for 3 ms, a time slice
CROWDED_S = 0.01  # how long after as many simultaneous calls as sessions BRIEF_S is the limit
REST_AFTER_S = 10e-3  # of a session's answers, after which the next caller that computes one itself sleeps (`_rest`)
REST_S = 1e-6  # the kernel's timer slack makes it some 55 us
STAGED = 8  # numbers of examples whose pinned memory a session on a GPU keeps at hand
_END = object()


class Statistics(NamedTuple):
    """Of a group: the answering version, calls of each session, updates, the longest time in seconds for which an
    update blocked calls, networks that were prepared, and how many of those had a known graph, so that the choice of
    algorithms was reused."""

    version: int
    calls: tuple
    updates: int
    longest_wait_s: float
    prepared: int
    kept: int


class SessionGroup:
    """Answers `group(columns)` with the outputs of the last version in a folder of exports.

    folder: of exports (vmhost.serving.exports).
    sessions: their number. threads: of one run; more than one use the process's pool, on any core.
    cores: the CPUs of each, a list of sets of numbers. None: those of the process, distributed evenly if there are
        enough. Then a free session runs a call shorter than 200 us in its caller's thread, on any core, if the caller
        waits for it and fewer calls wait or run than there are sessions: a hand-over to the session's thread would take
        25 us. If there were as many calls as sessions in the last 10 ms, the call must be shorter than 50 us.
    policy: which session takes a call: "shortest_queue": the one with the fewest calls that wait or run, so that a
        session whose cores have other work gets fewer; "round_robin"; or "modulo": the call's `key` mod sessions, so
        that calls of one key are answered in order by one session.
    trust: the keys that must sign exports: a TrustStore, or its path; None: no signature is needed.
    quota: bytes for each table. queue: calls that may wait for a session; beyond it queue.Full is raised.
    warmup: numbers of examples that sessions are prepared for.
    device: where the networks run: "cpu", or "cuda" or "cuda:NUMBER" (docs/gpu.md). DeviceError: no GPU, or no library.
    device_options: with a GPU, a vmhost.engine.cuda.Options.
    device_memory: a bound in bytes of the GPU's memory; 0: all of it.
    device_tables: the tables are in the GPU's memory too.

    Every accepted call ends in exactly one answer or error, even if the group is closed or updated meanwhile.
    Close it, or use it in a `with` block. ExportError."""

    def __init__(self, folder, *, sessions=2, cores=None, threads=1, policy="shortest_queue", trust=None, quota=None,
                 queue=10_000, warmup=(), device="cpu", device_options=None, device_memory=0,
                 device_tables=False):  # fmt: skip
        if type(sessions) is not int or sessions < 1:
            raise ValueError(f"sessions: expected 1 or more, got {sessions!r}")
        if policy not in POLICIES:
            raise ValueError(f"policy: expected {' or '.join(POLICIES)}, got {policy!r}")
        self.policy, self._folder, self._trust, self._quota, self._threads = policy, folder, trust, quota, threads
        self._device = {"device": device, "device_options": device_options, "device_memory": device_memory}
        self._gpu, self._warmup = None, tuple(warmup)
        if device_tables:
            if device == "cpu":
                raise ValueError("device_tables: expected device='cuda' beside it")
            from vmhost.engine.cuda import gpu

            self._gpu = gpu(device, memory=device_memory)
        direct, cores = cores is None and device == "cpu", _cores(sessions, cores)
        self._turn = itertools.count()
        self._crowded_at = -math.inf  # the last time that a call found as many calls as sessions
        self._updating, self._lock = threading.Lock(), threading.Lock()
        self._export = exports.read(folder, trust=trust)
        self._tables = self._export.tables(quota, self._gpu)
        self._updates, self._longest, self._prepared, self._kept, self._closed = 0, 0.0, 0, 0, False
        networks = self._networks(self._export, sessions, self._tables)
        self._sessions = [_Session(number, *one, queue, direct) for number, one in enumerate(zip(cores, networks))]
        self._hand_out(self._export, self._tables, networks)
        for one in self._sessions:
            one.on_gpu = self._gpu is not None
            one.start()

    # ---- calls
    def submit(self, columns, key=None):
        """A Future of the result of `group(columns)`."""
        return self._session_for(key).submit(columns)

    def _session_for(self, key):
        if self.policy == "modulo":
            if type(key) is not int:
                raise TypeError(f"key: expected a whole number, which decides the session, got {key!r}")
            return self._sessions[key % len(self._sessions)]
        turn = next(self._turn) % len(self._sessions)
        if self.policy == "round_robin":
            return self._sessions[turn]
        return min(self._sessions[turn:] + self._sessions[:turn], key=_Session.pending)

    def __call__(self, columns, key=None):
        """The network's outputs by name, for columns by name as the version's FeatureSpec takes them, or for its Inputs
        (`group.spec.transform`)."""
        session, now = self._session_for(key), time.monotonic()
        if sum(map(_Session.pending, self._sessions)) >= len(self._sessions):
            self._crowded_at, limit_s = now, 0
        else:
            limit_s = DIRECT_S if now - self._crowded_at > CROWDED_S else BRIEF_S
        if self._updating.locked():
            limit_s = 0  # calls in their callers' threads would keep the update from the GIL
        return session.ask(columns, limit_s)

    @property
    def functions(self):
        """For a Host's `functions`: `predict(columns)`, with which tasks that are granted it call the group; with the
        policy "modulo" `predict([key, columns])`."""
        if self.policy == "modulo":
            return {"predict": lambda asked: self(asked[1], asked[0])}
        return {"predict": self}

    # ---- versions
    @property
    def version(self):
        """The number of the answering version."""
        return self._export.number

    @property
    def spec(self):
        """The FeatureSpec of the answering version."""
        return self._export.spec

    def update(self):
        """Switches to the folder's last version while calls go on; returns whether it was a new one.

        If its tables continue those being served, only changed rows are read. A network with the same bytes is kept.
        ExportError: the version is incomplete, or not signed; MemoryError: a table's quota. The version before stays
        then."""
        with self._updating:
            was = self._export
            if self._closed or exports.latest(self._folder) in (None, was.number):
                return False
            export = exports.read(self._folder, trust=self._trust, checked=was.saves)
            same = export.digest == was.digest
            networks = None if same else self._networks(export, len(self._sessions), self._tables, was)
            if export.saves[: len(was.saves)] == was.saves and _same_rows(export.first, was.first):
                with self._calls_paused():
                    try:
                        export.fill(self._tables, begin=len(was.saves))
                    except BaseException:  # some rows are changed already: read those of the old version again
                        self._tables = was.tables(self._quota, self._gpu)
                        self._bind([one.network for one in self._sessions], was, self._tables)
                        self._hand_out(was, self._tables, None)
                        raise
                    self._hand_out(export, self._tables, networks)
            else:
                tables = export.tables(self._quota, self._gpu)
                if networks is not None:
                    self._bind(networks, export, tables)
                with self._calls_paused():
                    if networks is None:
                        self._bind([one.network for one in self._sessions], export, tables)
                    self._hand_out(export, tables, networks)
                self._tables = tables
            self._export = export
            self._updates += 1
            return True

    def _networks(self, export, count, tables, was=None):
        """Prepared networks, one for each session; on a GPU they read the tables in its memory."""
        fed = {"numbers", *(one.input for one in export.lookups)}
        made = []
        for number in range(count):
            like = None
            if was is not None and was.graph == export.graph:
                like = self._sessions[number].network
                self._kept += 1
            network = opened(export.name, export.network, threads=self._threads, like=like, **self._device)
            self._prepared += 1
            self._bind([network], export, tables)
            for size in self._warmup:
                network.warmup({"batch": size})
            if was is not None:
                network.warmup({"batch": self._sessions[number].examples})
            made.append(network)
        if unknown := {port.name for port in made[0].inputs} - fed:
            raise ExportError(f"version {export.number}: nothing feeds the input {', '.join(sorted(unknown))}")
        return made

    def _bind(self, networks, export, tables):
        """Lets networks read tables in the memory of their GPU."""
        if self._gpu is None:
            return
        lookups = {
            one.input: (
                tables[one.table],
                COMBINERS.index(one.combiner),
                -1 if one.default_id is None else one.default_id,
            )
            for one in export.lookups
        }
        for network in networks:
            network.bind(lookups)

    @contextlib.contextmanager
    def _calls_paused(self):
        """Within the block no session reads rows or takes its network."""
        begun = time.perf_counter()
        with contextlib.ExitStack() as held:
            for one in self._sessions:
                held.enter_context(one.gate)  # so that no further call gets ahead
                held.enter_context(one.lock)
            yield
        self._longest = max(self._longest, time.perf_counter() - begun)

    def _hand_out(self, export, tables, networks):
        reader = _Reader(export, tables)
        for number, one in enumerate(self._sessions):
            one.served = reader
            if networks is not None:
                one.network = networks[number]

    def statistics(self):
        """A Statistics: what the group has done since it was made."""
        calls = tuple(one.calls for one in self._sessions)
        return Statistics(self.version, calls, self._updates, self._longest, self._prepared, self._kept)

    # ---- closing
    def close(self):
        """Answers accepted calls, then ends the sessions; later calls raise ClosedError."""
        with self._updating:
            self._closed = True
            for one in self._sessions:
                one.end()
            for one in self._sessions:
                one.join()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class _Call:
    """A call whose caller blocks on it; a Future costs several times as much."""

    __slots__ = ("answer", "columns", "done", "error")

    def __init__(self, columns):
        self.columns, self.answer, self.error = columns, None, None
        self.done = threading.Lock()  # locked until there is an answer or an error
        self.done.acquire()

    def set_running_or_notify_cancel(self):
        return True

    def set_result(self, answer):
        self.answer = answer
        self.done.release()

    def set_exception(self, error):
        self.error = error
        self.done.release()

    def result(self):
        self.done.acquire()
        try:
            if self.error is not None:
                raise self.error
            return self.answer
        finally:
            self.error = None  # breaks the cycle through its traceback


class _Claim:
    """Whether a call that its caller's thread may answer is counted as pending."""

    __slots__ = ("counted",)

    def __init__(self):
        self.counted = False


class _Session:
    """A network of its own, and a thread on its cores that answers calls in order. If `direct`, a short call whose
    caller waits runs in the caller's thread if no other call waits or runs."""

    def __init__(self, number, cores, network, room, direct):
        self.cores, self.network, self.served, self._direct = cores, network, None, direct
        self.on_gpu = False  # whether its network reads tables in its GPU's memory
        self._staged = None, {}  # a network on a GPU, and its Stagings by number of examples
        self.calls, self.examples = 0, 1  # examples: of the last call
        self.lock = threading.Lock()  # held to read rows and take the network; with tables on a GPU, also to run it
        self.gate = threading.Lock()  # passed before taking the lock; an update that waits for the lock holds it
        self._running = threading.Lock()  # held by the thread that answers a call
        self._least_s = float("inf")  # of an answer; grown by 1 % with each, so that it follows longer calls
        self._unrested_s = 0.0  # of answers since `_rest` slept
        self._waiting, self._room = queue.SimpleQueue(), room
        self._entry, self._ended = threading.Lock(), False
        self._pending = 0  # calls that wait or run; written under the entry lock
        self._idle = threading.Condition(self._entry)  # notified when nothing is pending after the end
        self._thread = threading.Thread(target=self._run, name=f"vmhost-session-{number}", daemon=True)

    def start(self):
        self._thread.start()

    def submit(self, columns):
        future = Future()
        self._accept(columns, future)
        return future

    def ask(self, columns, limit_s):
        """The answer, for a caller that waits. The caller's thread computes it if calls take less than `limit_s` and
        the session is free."""
        claim = _Claim()
        try:
            call = self._accept(columns, claim, limit_s)
            if call is not None:
                return call.result()
            with self._running:
                answer = self._answer(columns)
        finally:  # Ctrl-C can end the call anywhere, in _accept too
            if claim.counted:
                self._finish()
        self._rest()
        return answer

    def _rest(self):
        """Sleeps after 10 ms of answers, so that other Python threads get the GIL. A call releases the GIL for
        microseconds only. A thread that waits for it wakes up too late and waits again, for up to 200 ms."""
        if self._unrested_s > REST_AFTER_S:
            self._unrested_s = 0.0
            time.sleep(REST_S)

    def _accept(self, columns, caller, limit_s=0):
        """Accepts a call and returns what is queued: the `caller`, a Future, or a _Call if the caller has a _Claim and
        waits; None if the call then runs in the caller's thread (`ask`). ClosedError; queue.Full."""
        waits = type(caller) is _Claim
        with self._entry:
            if self._ended:
                raise ClosedError("the session group is closed")
            if self._pending > self._room > 0:  # one runs, the others wait
                raise queue.Full
            if self._least_s < limit_s and self._direct and not self._pending:
                caller.counted = True  # no signal is handled between this and the next line
                self._pending = 1
                return None
            call = _Call(columns) if waits else caller
            self._pending += 1
            self._waiting.put((columns, call))
            return call

    def _finish(self):
        with self._entry:
            self._pending -= 1
            if self._ended and not self._pending:
                self._idle.notify_all()

    def pending(self):
        """The number of calls that wait or run."""
        return self._pending

    def end(self):
        with self._entry:
            if self._ended:
                return
            self._ended = True
        self._waiting.put(_END)

    def join(self):
        self._thread.join()
        with self._idle:
            self._idle.wait_for(lambda: not self._pending)

    def _run(self):
        if self.cores:
            os.sched_setaffinity(0, self.cores)  # of this thread only
        while (asked := self._waiting.get()) is not _END:
            columns, call = asked
            if not call.set_running_or_notify_cancel():
                self._finish()
            else:
                try:
                    with self._running:
                        answer = self._answer(columns)
                except BaseException as error:
                    self._finish()  # before the caller knows, who may then call again
                    call.set_exception(error)
                else:
                    self._finish()
                    call.set_result(answer)
                    del answer
            del asked, columns, call

    def _answer(self, columns):
        begun = time.perf_counter()
        answer = self._answered(columns)
        took_s = time.perf_counter() - begun
        self._least_s = min(1.01 * self._least_s, took_s)
        self._unrested_s += took_s
        return answer

    def _answered(self, columns):
        with self.gate:
            pass
        with self.lock:
            reader, network = self.served, self.network
            inputs = columns if hasattr(columns, "ids") else reader.spec.transform(columns)
            fed = {"numbers": inputs.numbers} if any(port.name == "numbers" for port in network.inputs) else {}
            if self.on_gpu:  # the network reads the rows while it runs
                self.calls, self.examples = self.calls + 1, max(len(inputs), 1)
                return network.run_bags(fed, reader.bags(inputs))
            fed |= reader.rows(inputs)
            if hasattr(network, "staging"):
                fed = self._stage(network, fed, len(inputs))
        self.calls, self.examples = self.calls + 1, max(len(inputs), 1)
        return network(fed)

    def _stage(self, network, fed, examples):
        """The arrays, copied into the pinned memory of a network on a GPU; unchanged if their shapes differ, which the
        network reports."""
        if self._staged[0] is not network:
            self._staged = network, {}
        known = self._staged[1]
        if examples not in known:
            if len(known) == STAGED:
                known.clear()
            known[examples] = network.staging({"batch": examples})
        staged = known[examples]
        if fed.keys() != staged.keys() or any(array.shape != staged[name].shape for name, array in fed.items()):
            return fed
        for name, array in fed.items():
            staged[name][...] = array
        return staged


class _Reader:
    """Reads the rows of these tables for the lookups of a version."""

    def __init__(self, export, tables):
        self.spec = export.spec
        self._lookups = [
            (
                one.input,
                tables[one.table],
                one.ids.removeprefix("ids."),
                None if one.weights is None else one.weights.removeprefix("weights."),
                one.combiner,
                one.default_id,
            )
            for one in export.lookups
        ]
        self._names = [one.input for one in export.lookups]
        self._natives = None  # (native table, ids, weights, combiner, default) of each, of tables in the host's memory
        if all(type(one) is EmbeddingVariable for one in tables.values()):
            self._natives = [
                (table._table, own, weighed, COMBINERS.index(combiner), -1 if default_id is None else default_id)
                for _, table, own, weighed, combiner, default_id in self._lookups
            ]
        self._anchors = [tables[one.table].anchor for one in export.lookups]

    def _sets(self, inputs):
        ends, ids, weights = {}, inputs.ids, inputs.weights
        return [
            bags_of(table, ids[own], None if weighed is None else weights[weighed], combiner, default_id, ends)
            for _, table, own, weighed, combiner, default_id in self._lookups
        ]

    def _singles(self, ids):
        """The sets for the engine, where all ids are single and unweighted; else None: `bags_of` makes them."""
        ends, sets = {}, []
        for table, own, weighed, combiner, default_id in self._natives:
            found = ids[own]
            if weighed is not None or type(found) is not _array.ndarray or found.ndim != 1:
                return None
            count = len(found)
            if count not in ends:
                ends[count] = _array.arange(count + 1)
            sets.append((table, found, ends[count], None, default_id, combiner))
        return sets

    def bags(self, inputs):
        """{the network's input: (ids, offsets, weights or None)} of each lookup."""
        return {name: (one.ids, one.offsets, one.weights) for name, one in zip(self._names, self._sets(inputs))}

    def rows(self, inputs):
        """{the network's input: the result of its lookup}."""
        if self._natives is not None and (sets := self._singles(inputs.ids)) is not None:
            return dict(zip(self._names, _array._embedding_bags(sets, True)))
        return dict(zip(self._names, read_bags(self._anchors, self._sets(inputs), apart=True)))


def _same_rows(one, other):
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


def _cores(sessions, given):
    """The cores of each session; None: any."""
    allowed = sorted(os.sched_getaffinity(0))
    if given is None:
        each = len(allowed) // sessions
        return [set(allowed[number * each : (number + 1) * each]) or None for number in range(sessions)]
    given = [set(one) for one in given]
    if len(given) != sessions or any(not one or not one <= set(allowed) for one in given):
        raise ValueError(
            f"cores: expected {sessions} sets of CPUs out of {', '.join(map(str, allowed))}, got {given!r:.100}"
        )
    return given
