"""ClusterExecutor: a VMExecutor whose VMs are on the nodes of a Ray cluster.

    submit --> queue --> a window of calls for each node --give--> actor with VMs
                              results <--take--

The program compiles functions, checks values and puts errors into words as VMExecutor does; only the native lane is
replaced: by one queue here, from which each node takes what it can do within a short time. A call is out on one node at
a time, and ends once: with what the node sends, or with the node.
"""

import atexit
import contextlib
import heapq
import itertools
import math
import os
import pickle
import re
import socket
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from vmhost.bytecode.fields import shown
from vmhost.bytecode.task_kinds import LIMITS
from vmhost.errors import ConfigurationError, CrossingError, Kind, VMHostError, from_core
from vmhost.executor import VMExecutor, _conversions_luggage, _Functions, _limits, _permissions
from vmhost.ray import values
from vmhost.ray.node import GROUPS, NodeHost
from vmhost.runtime.codec import Codec
from vmhost.runtime.host_functions import FunctionThreads
from vmhost.task import end_after

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from vmhost.host import Types
    from vmhost.limits import Limits

_WINDOW_S = 0.25  # a node gets what it has done in so long a time
_MIN_CALLS_PER_CORE, _MAX_CALLS = 4, 16384  # calls out on one node, at least (for each core) and at most
_MESSAGE_CALLS, _MESSAGE_BYTES = 2048, 8 << 20  # calls in one message, and their bytes, at most
_ATTEMPTS = 3  # nodes that an idempotent call may lose
_PLACE_S = 30  # until the nodes have free cores
_REJOIN_S = 30  # calls wait so long for a node where there is none
_CONNECT_S = 5
_LOOK_S = 1  # how often it is seen whether this process is still connected with Ray
_SILENCE_S = 5  # a call whose time is over ends here if its node has not ended it within so long
_LEFT = "this process has left the Ray cluster (ray.shutdown()); make a new executor"
_CHUNKS_PER_CORE, _MAX_CHUNK = 8, 1000  # of map() without a chunksize


class NodeLostError(VMHostError):
    """The node was lost while it had the call, which may have run: in part, as a whole, or not at all.

    `node`: Ray's id of the node. `call`: the function's name. With `idempotent=True` such calls are repeated on other
    nodes, up to three times.
    """

    node: str = ""
    call: str = ""


@dataclass(frozen=True, slots=True)
class NodeStatistics:
    """One node of a ClusterExecutor.

    `node`: Ray's id of it; empty while there is none. `cores`: those taken, with as many VMs. `calls_out`: calls that
    it has now. `window`: how many it may have. `ended`: calls that it has ended. `lost`: how often the node was lost.
    """

    node: str
    cores: int
    calls_out: int
    window: int
    ended: int
    lost: int


@dataclass(frozen=True, slots=True)
class ClusterStatistics:
    """`queued`: calls that wait in the program; `nodes`: a NodeStatistics for each."""

    queued: int
    nodes: tuple[NodeStatistics, ...]


class ClusterExecutor(VMExecutor):
    """Runs functions in VMs on the nodes of a Ray cluster; one actor on each holds them.

    `address`: "host:port" of the cluster, or "auto"; None: the Ray that is initialised in this process, else a local
    one, which ends with the executor. `nodes`: how many nodes to use, each a different one; None: all that have cores.
    `cores`: how many of each node's cores to take, with as many VMs; None: all. `limits`, `permissions`, `types`: as
    for VMExecutor. `idempotent`: whether calls that were out on a lost node are repeated on others; without it they
    raise NodeLostError.

    ConfigurationError if there is no such cluster, or it has too few nodes with free cores.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        nodes: int | None = None,
        cores: int | None = None,
        limits: "Mapping[str, Any] | Limits | None" = None,
        permissions: Mapping[str, Iterable[str]] | None = None,
        types: "Types | None" = None,
        idempotent: bool = False,
    ) -> None:
        for name, value in (("nodes", nodes), ("cores", cores)):
            if value is not None and (type(value) is not int or value < 1):
                raise ConfigurationError(f"{name}: expected a number from 1 on or None, got {shown(value)}")
        if not isinstance(idempotent, bool):
            raise ConfigurationError(f"idempotent: expected True or False, got {shown(idempotent)}")
        _limits(limits, cores or 1)
        _permissions(permissions)
        self._workers = _Cluster(address, nodes, cores, limits, permissions, types, idempotent)
        self._max_workers = sum(node.cores for node in self._workers.nodes)
        weakref.finalize(self, _let_go, self._workers).atexit = False

    def map[T](
        self,
        fn: Callable[..., T],
        *iterables: Iterable["Any"],
        timeout: float | None = None,
        chunksize: int | None = None,
        buffersize: int | None = None,
    ) -> Iterator[T]:
        """As VMExecutor.map. `chunksize` None: a part of the items that keeps all cores busy, at most 1,000, where
        their number is known; else 1."""
        if chunksize is None:
            sizes = [len(each) for each in iterables if hasattr(each, "__len__")]
            chunksize = 1
            if len(sizes) == len(iterables) and sizes and buffersize is None:
                chunksize = min(max(1, min(sizes) // (self._max_workers * _CHUNKS_PER_CORE)), _MAX_CHUNK)
        return super().map(fn, *iterables, timeout=timeout, chunksize=chunksize, buffersize=buffersize)

    def statistics(self) -> ClusterStatistics:  # type: ignore[override]
        """The calls that wait, and what each node does."""
        return self._workers.statistics()

    def __repr__(self):
        state = ", shut down" if self._workers.closed else ""
        return f"<vmhost.ray.ClusterExecutor of {len(self._workers.nodes)} nodes, {self._max_workers} VMs{state}>"


def _let_go(cluster):
    """The executor was dropped without shutdown(): what was submitted still runs."""
    if not cluster.gone:
        cluster.close(False)


class _Call:
    """One call, as the native one of a VMExecutor. `over`: when its time is over, on the monotonic clock, or None."""

    __slots__ = (
        "_act", "_cluster", "_event", "_times", "attempts", "data", "entry", "kind", "lost", "node", "number", "over",
        "reply", "stopping",
    )  # fmt: skip

    def __init__(self, cluster, number, entry, data, over):
        self._cluster, self.number, self.entry, self.data, self.over = cluster, number, entry, data, over
        self._act = self._event = self.node = self.kind = self.reply = self.lost = None
        self._times = time.monotonic_ns(), 0, 0
        self.attempts, self.stopping = 0, False

    def done(self):
        return self.kind is not None

    def wait(self, timeout_s=None):
        if self.kind is not None:
            return True
        with self._cluster.work:
            if self._event is None and self.kind is None:
                self._event = threading.Event()
            event = self._event
        return self.kind is not None or event.wait(timeout_s)

    @property
    def state(self):
        return "done" if self.kind is not None else "queued" if self.node is None else "running"

    @property
    def timings(self):
        return self._times

    engine_runs = 0, ()

    def cancel(self):
        """Whether it waited here, and is now cancelled."""
        with self._cluster.work:
            if self.kind is not None or self.node is not None:
                return False
            act = self.end(Kind.CANCELLED, None)
        act()
        return True

    def stop(self):
        self.stopping = True  # first: if its node is lost meanwhile, it does not run again
        while not self.cancel() and self.kind is None:
            if (node := self.node) is not None:
                node.stop([self.number], True)
                return

    def outcome(self):
        self.wait()
        return self._cluster.read(self)

    def result(self):
        result, error = self.outcome()
        if error is not None:
            raise error
        return result

    def begin(self, node):
        self.node = node
        self.attempts += 1
        self._times = self._times[0], self._times[1] or time.monotonic_ns(), 0

    def end(self, kind, reply, lost=None):
        """Ends it, under the lock; the function that tells those who watch, to be called without it."""
        self.reply, self.lost, self.data = reply, lost, None
        self._times = *self._times[:2], time.monotonic_ns()
        self.kind = kind
        if self.over is not None:
            self._cluster.watching.drop(self)
        if self._event is not None:
            self._event.set()
        acts, self._act = self._act, None
        self._cluster.left -= 1
        if self._cluster.left == 0:
            self._cluster.work.notify_all()
        return _act_on(acts)

    def watch(self, act):
        with self._cluster.work:
            if self.kind is None:
                self._act = [*(self._act or ()), act]
                return
        act()


def _act_on(acts):
    def act():
        for each in acts or ():
            each()

    return act


class _Watch:
    """The thread that ends calls where no node does: those whose time is over while they wait in the program or while
    their node has not answered for _SILENCE_S, and all when the program leaves the cluster."""

    def __init__(self, cluster):
        self._cluster = cluster
        self._sooner = threading.Condition(cluster.lock)  # the next time has changed; the lock is of all that follows
        self._calls = {}  # number -> call
        self._times = []  # a heap of (when to look, number), also of calls that have ended
        self.thread = threading.Thread(target=self._serve, name="vmhost-ray-watch", daemon=True)

    def add(self, call):
        self._calls[call.number] = call
        self._look_at(call.over, call.number)

    def drop(self, call):
        self._calls.pop(call.number, None)
        if len(self._times) > 2 * len(self._calls) + 1000:
            self._times = [each for each in self._times if each[1] in self._calls]
            heapq.heapify(self._times)

    def _look_at(self, when, number):
        heapq.heappush(self._times, (when, number))
        if self._times[0][1] == number:
            self._sooner.notify()

    def _serve(self):
        while not self._cluster.gone:
            if not self._cluster.is_connected():
                self._cluster.leave()
                return
            with self._cluster.lock:
                act = self._expired()
            if act is not None:
                act()

    def _expired(self):
        """Ends a call whose time is over, or waits for one for a while; what is then to be done without the lock, or
        None."""
        left = self._times[0][0] - time.monotonic() if self._times else _LOOK_S
        if left > 0:
            if not self._cluster.gone:
                self._sooner.wait(min(left, _LOOK_S))
            return None
        when, number = heapq.heappop(self._times)
        call = self._calls.get(number)
        if call is not None and call.node is not None and when <= call.over:
            self._look_at(call.over + _SILENCE_S, number)  # its node ends it
            return None
        return call and self._cluster.expire(call)

    def end(self):
        """The cluster is gone."""
        with self._cluster.lock:
            self._sooner.notify()
        if self.thread.ident is not None:
            self.thread.join()


class _Cluster(_Functions):
    """What a ClusterExecutor has in the place of a VMExecutor's workers and service."""

    def __init__(self, address, nodes, cores, limits, permissions, types, idempotent):
        super().__init__("cluster", Codec(types, of_executor=True))
        self._edition = 1
        self.idempotent = idempotent
        self.lock = threading.RLock()  # of all that follows; a finalizer may submit
        self.work = threading.Condition(self.lock)
        self.future_lock = self.work
        self.queue = deque()
        self.left = 0  # calls that have not ended
        self.gone = False
        self.log = []  # contents of the code store, in the order in which they came
        self.watching = _Watch(self)
        self._closer, self._ended = None, threading.Event()  # the thread that ends the cluster after its last call
        self._process = os.getpid()
        self._numbers = itertools.count()
        self._callbacks = FunctionThreads(1)
        self._service = self  # watch(), run_callbacks() and future_lock of a service
        self._empty_since = None
        if self._codec.conversions or self._codec.plain:
            self._pack(_conversions_luggage(self._codec, self._pack))
        self.nodes, self._group = [], None
        self._connection = _cluster_connection.join(address)
        try:
            sizes = _sizes(nodes, cores)
            self._group = placement_group([{"CPU": size} for size in sizes], strategy="STRICT_SPREAD")
            if not self._group.wait(_PLACE_S):
                raise ConfigurationError(
                    f"cores: {len(sizes)} nodes with {sizes[0]} free cores each were not to be had within {_PLACE_S} s,"
                    f" {ray.available_resources().get('CPU', 0):g} cores are free in all: ask for less by `cores` and"
                    " `nodes`, or end what has them"
                )
            options = limits, permissions
            self.nodes = [_Node(self, at, size, self._group, options) for at, size in enumerate(sizes)]
            for node in self.nodes:
                node.begin()
            self.watching.thread.start()
        except BaseException:
            self._end()
            raise
        atexit.register(self._at_exit)

    # -- calls ----------------------------------------------------------------------------------------------------

    def submit(self, value, timeout_s, priority, entry, spread):
        return self.submit_many([value], timeout_s, priority, entry, spread)[0]

    def submit_many(self, batch, timeout_s, priority, entry, spread):
        over = end_after(timeout_s)
        if over is not None and math.isinf(over):
            over = None
        calls = [_Call(self, next(self._numbers), entry, self._to_bytes(value), over) for value in batch]
        with self.work:
            if self.closed or self._broken is not None:
                self._refuse()
            self.queue.extend(calls)
            self.left += len(calls)
            for call in calls if over is not None else ():
                self.watching.add(call)
            self.work.notify_all()
        return calls

    def _to_bytes(self, value):
        try:
            return values.to_bytes(value, self._codec.pack)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            try:
                self._check(value, "argument")  # says where in it
            except (TypeError, ValueError) as native:
                raise CrossingError(f"{self._name} {self._edition}: {native}", task=self._name) from error
            raise CrossingError(f"{self._name} {self._edition}: argument: {error}", task=self._name) from error

    def expire(self, call):
        """Ends a call whose time is over, under the lock; the function to call without it."""
        if call.node is None:
            payload = time.monotonic_ns() - call.timings[0]
        else:
            payload = f"the call did not end within its time, and its node {call.node.name} does not answer"
            call.node.forget(call)
        return call.end(Kind.TIME_LIMIT, values.to_bytes(payload, self._codec.pack))

    def read(self, call):
        """(result, None) or (None, error) of a call that has ended."""
        if call.lost is not None:
            return None, call.lost
        kind, payload = call.kind, None
        if call.reply is not None:
            try:
                payload = values.from_bytes(call.reply, self._codec.unpack)
            except ValueError as error:
                if kind == Kind.OK:
                    kind, payload = Kind.VALUE, f"result: {error}"
                else:  # an exception of a class unknown here: the rest of the report says enough
                    payload = values.from_bytes(call.reply, lambda *_: None)
                    if type(payload) is dict:
                        payload.pop("error", None)
        if kind == Kind.OK:
            return payload, None
        return None, from_core(kind, payload, self._name, str(self._edition))

    def ending(self, call):
        call.wait()
        return (None, call.lost) if call.lost is not None else super().ending(call)

    def watch(self, call, act):
        call.watch(act)

    def run_callbacks(self, act):
        if not self._callbacks.run("callbacks of a future", act):
            act()

    def _pack(self, luggage):
        with self.work:
            new = (
                {name: each for name, each in luggage.modules.items() if self._modules.get(name) != each},
                {digest: code for digest, code in luggage.texts.items() if digest not in self._texts},
                {path: data for path, data in luggage.files.items() if path not in self._files},
            )
            if any(name in self._modules for name in new[0]):
                self.entries.clear()
                self._rows.clear()
                self._edition += 1
            for known, more in zip((self._modules, self._texts, self._files), new):
                known.update(more)
            self._deferred.update(dict.fromkeys(luggage.deferred, luggage.roots))
            if any(new):
                self.log.append(new)

    def contents_from(self, position):
        """What the log has from `position` on, in the form of a message."""
        return [
            ({name: (each.is_package, each.code) for name, each in modules.items()}, dict(texts), dict(files))
            for modules, texts, files in self.log[position:]
        ]

    # -- the end --------------------------------------------------------------------------------------------------

    def close(self, cancel):
        self.closed = True
        if os.getpid() != self._process:
            return
        if cancel:
            self._cancelling = True
            self._cancel_waiting(False)
        with self.work:
            self.work.notify_all()
            if self._closer is None:
                self._closer = threading.Thread(target=self._end_after_calls, name="vmhost-ray-close", daemon=True)
                self._closer.start()

    def end_now(self):
        self._cancelling = True
        if os.getpid() == self._process:
            self._cancel_waiting(True)

    def _cancel_waiting(self, running):
        with self.work:
            acts = [call.end(Kind.CANCELLED, None) for call in self.queue if call.kind is None]
            self.queue.clear()
        for act in acts:
            act()
        for node in self.nodes:
            node.stop(None, running)

    def is_connected(self):
        """Whether this process still has the connection with Ray that the executor began with. Without one Ray starts
        a cluster of its own as soon as it is called."""
        return self._connection == _cluster_connection.current()

    def wait_for(self, reference, timeout_s=math.inf):
        """The result of a call of an actor; TimeoutError. Not by ray.get(): ray.shutdown() would free Ray's core under
        a thread that is in there."""
        future, end = reference.future(), time.monotonic() + timeout_s
        while not future.done() and (left := end - time.monotonic()) > 0:
            if not self.is_connected():
                raise ConnectionError(_LEFT)
            with contextlib.suppress(TimeoutError):
                future.exception(min(left, _LOOK_S))
        return future.result(0)

    def fail_waiting(self, reason=None):
        """No node is left for the calls that wait."""
        with self.work:
            waiting, self.queue = self.queue, deque()
            acts = [
                call.end(Kind.VM_LOST, None, self.lost_error(call, None, reason))
                for call in waiting
                if call.kind is None
            ]
            self.work.notify_all()
        for act in acts:
            act()

    def leave(self):
        """The program has ended the connection with Ray: so do the calls, and there will be no more."""
        with self.work:
            self._broken = _LEFT
        for node in self.nodes:
            node.lose(ConnectionError(_LEFT))
        self.fail_waiting(_LEFT)

    def lost_error(self, call, node, reason=""):
        name = call.entry.partition(" ")[2].replace("/", ".").replace(":", ".")
        if node is None and reason:
            text = f"{name}: {reason}"
        elif node is None:
            text = f"{name}: no node of the cluster is left, and none came within {_REJOIN_S} s; see `ray status`"
        else:
            text = (
                f"{name}: node {node} was lost while it had the call{reason}; it may have run: submit it again if that"
                " does no harm, or make the executor with idempotent=True"
            )
            if self.idempotent:
                text = f"{name}: node {node} was lost while it had the call{reason}, as {_ATTEMPTS - 1} others before"
        error = NodeLostError(text, task=self._name)
        error.node, error.call = node or "", name
        return error

    def wait_closed(self):
        if os.getpid() != self._process:
            return
        if self._is_own_thread():  # a callback of a future: the end waits for it
            with self.work:
                while self.left:
                    self.work.wait()
        else:
            self._ended.wait()

    def _is_own_thread(self):
        me = threading.current_thread()
        return (
            self._callbacks.has(me.ident)
            or self._compiling.has(me.ident)
            or me is self.watching.thread
            or any(me in node.threads for node in self.nodes)
        )

    def _end_after_calls(self):
        with self.work:
            while self.left:
                self.work.wait()
        self._callbacks.close()
        self._callbacks.wait(float("inf"))
        self._compiling.close()
        self._compiling.wait(float("inf"))
        self._end()

    def _end(self):
        with self.work:
            if self.gone:
                return
            self.gone = True
            self.work.notify_all()
        try:
            self.watching.end()
            for node in self.nodes:
                node.end()
            if self._group is not None and self.is_connected():
                remove_placement_group(self._group)
        finally:
            _cluster_connection.leave(self._connection)
            self._ended.set()
            atexit.unregister(self._at_exit)

    def _at_exit(self):
        if os.getpid() != self._process:
            return
        self.close(False)
        try:
            self.wait_closed()
        except KeyboardInterrupt:  # the user no longer waits
            self.end_now()
            self.wait_closed()

    def statistics(self):
        with self.work:
            queued = sum(call.kind is None for call in self.queue)
            return ClusterStatistics(queued, tuple(node.statistics() for node in self.nodes))


class _Node:
    """One bundle of the placement group, with the actor there: two threads serve it, one sends, one receives."""

    def __init__(self, cluster, at, cores, group, options):
        self._cluster, self._at, self.cores, self._group, self._options = cluster, at, cores, group, options
        self._actor = None
        self.name = ""  # Ray's id of the node; empty: there is none now
        self._failure = None  # why this process gave the actor up
        self.process = None  # the actor's
        self._out = {}  # number -> call
        self._answers = deque()
        self._stops = []  # (number, does it also end a call that runs)
        self._position = 0  # in the cluster's log
        self._window = self._least = max(cores * _MIN_CALLS_PER_CORE, _MIN_CALLS_PER_CORE)
        self._ended = self._lost = 0
        self.threads = []

    def begin(self):
        self._start()
        try:
            self._join(math.inf)
        except ray.exceptions.RayError as error:
            raise ConfigurationError(
                f"vmhost.ray: an actor did not start; each node needs vmhost and this Python: {error}"
            ) from error
        self._serve()

    def _start(self):
        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=self._at)
        made = ray.remote(concurrency_groups=GROUPS)(NodeHost).options(
            num_cpus=self.cores, scheduling_strategy=strategy, max_restarts=0
        )
        limits, permissions = self._options
        self._actor = made.remote(min(self.cores, LIMITS["concurrency"].le), limits, permissions)
        self._ready = self._actor.ready.remote()

    def _join(self, timeout_s):
        """Waits until the actor is there; False if it is not within the time."""
        try:
            name, self.process = self._cluster.wait_for(self._ready, timeout_s)
        except TimeoutError:
            return False
        with self._cluster.work:
            self._position, self.name, self._failure = 0, name, None
        return True

    def _serve(self):
        actor = self._actor
        made = [
            threading.Thread(target=act, args=(actor,), name=f"vmhost-ray-{what}-{self._at}", daemon=True)
            for what, act in (("send", self._send), ("receive", self._receive))
        ]
        with self._cluster.work:
            if self._cluster.gone:
                return
            self.threads = [*(each for each in self.threads if each.is_alive()), *made]
            for thread in made:
                thread.start()

    # -- sending --------------------------------------------------------------------------------------------------

    def _send(self, actor):
        try:
            while (message := self._message(actor)) is not None and self._cluster.is_connected():
                self._cluster.wait_for(actor.give.remote(message))
        except Exception as error:  # the thread that receives learns it, too
            with self._cluster.work:
                if actor is self._actor:
                    self._failure = error
            self._kill(actor)

    def _message(self, actor):
        """The next message, when there is something to send; None at the end."""
        cluster = self._cluster
        with cluster.work:
            while True:
                if cluster.gone or actor is not self._actor or not self.name:
                    return None
                calls = self._next_calls()
                if calls or self._answers or self._stops:
                    break
                cluster.work.wait()
            contents = cluster.contents_from(self._position)
            self._position = len(cluster.log)
            answers = list(self._answers)
            self._answers.clear()
            stops, self._stops = self._stops, []
            rows = [(call.number, call.entry, _seconds_left(call), call.data) for call in calls]
        return pickle.dumps((contents, answers, rows, stops), 5)

    def _next_calls(self):
        queue, calls, size = self._cluster.queue, [], 0
        room = min(self._window - len(self._out), _MESSAGE_CALLS)
        while queue and len(calls) < room and size < _MESSAGE_BYTES:
            call = queue.popleft()
            if call.kind is None:
                call.begin(self)
                self._out[call.number] = call
                calls.append(call)
                size += len(call.data)
        return calls

    def forget(self, call):
        """The call has ended here: should the node still have it, it ends there, too."""
        if self._out.pop(call.number, None) is not None:
            self._stops.append((call.number, True))
            self._cluster.work.notify_all()

    def stop(self, numbers, running):
        """Cancels calls that wait there, of `numbers` or all; with `running` stops those that run."""
        with self._cluster.work:
            self._stops += [(number, running) for number in (self._out if numbers is None else numbers)]
            self._cluster.work.notify_all()

    # -- receiving ------------------------------------------------------------------------------------------------

    def _receive(self, actor):
        cluster, began = self._cluster, time.monotonic()
        while not cluster.gone:
            try:
                if not cluster.is_connected():
                    raise ConnectionError(_LEFT)
                ends, asked = pickle.loads(cluster.wait_for(actor.take.remote()))
            except Exception as error:
                self.lose(self._failure or error)
                return
            now = time.monotonic()
            with cluster.work:
                acts = [call.end(kind, data) for number, kind, data in ends if (call := self._out.pop(number, None))]
                self._ended += len(ends)
                self._adapt(len(ends), now - began)
                cluster.work.notify_all()
            began = now
            for act in acts:
                act()
            for name in asked:
                self._answer(name)

    def _adapt(self, number, seconds):
        """A node may have as many calls out as it has lately ended in _WINDOW_S."""
        able = number / max(seconds, 1e-4) * _WINDOW_S
        weight = min(1.0, max(seconds / _WINDOW_S, 0.1))
        wanted = self._window + (able - self._window) * weight
        self._window = int(min(max(wanted, self._least), _MAX_CALLS))

    def _answer(self, name):
        def act():
            reason = self._cluster._add_later(name)
            with self._cluster.work:
                self._answers.append((name, reason))
                self._cluster.work.notify_all()

        self._cluster._compiling.run(f"import {name}", act)

    # -- losing it ------------------------------------------------------------------------------------------------

    def lose(self, error):
        """The node is gone, or its actor: its calls end or go to others, and a new actor is awaited."""
        cluster = self._cluster
        with cluster.work:
            if cluster.gone or not self.name:
                return
            name, self.name = self.name, ""
            self._lost += 1
            self._window = self._least
            self._answers.clear()
            self._stops.clear()
            reason = _reason(error)
            acts, again = [], []
            for call in self._out.values():
                if cluster._cancelling or call.stopping:
                    acts.append(call.end(Kind.CANCELLED, None))
                elif cluster.idempotent and call.attempts < _ATTEMPTS:
                    call.node = None
                    again.append(call)
                else:
                    acts.append(call.end(Kind.VM_LOST, None, cluster.lost_error(call, name, reason)))
            self._out.clear()
            cluster.queue.extendleft(reversed(again))
            cluster.work.notify_all()
        for act in acts:
            act()
        with cluster.work:
            if not cluster.gone and cluster.is_connected():
                joins = threading.Thread(target=self._rejoin, name=f"vmhost-ray-join-{self._at}", daemon=True)
                self.threads = [*self.threads, joins]
                joins.start()

    def _rejoin(self):
        cluster, since = self._cluster, time.monotonic()
        self._kill(self._actor)
        self._start_again()
        while not cluster.gone and cluster.is_connected():
            try:
                joined = self._join(1)
            except Exception:
                joined = False
                time.sleep(1)
                if not cluster.gone:
                    self._start_again()
            if joined:
                self._serve()
                return
            if time.monotonic() - since > _REJOIN_S and not any(node.name for node in cluster.nodes):
                cluster.fail_waiting()

    def _start_again(self):
        try:
            if self._cluster.is_connected():
                self._start()
        except Exception as error:
            warnings.warn(f"vmhost.ray: no new actor for node {self._at}: {error}", RuntimeWarning, stacklevel=2)

    def _kill(self, actor):
        if actor is not None and self._cluster.is_connected():
            try:
                ray.kill(actor)
            except Exception:
                pass  # it is gone

    def end(self):
        """The cluster is gone: ends VMs, actor and threads."""
        if self._actor is not None and self.name and self._cluster.is_connected():
            try:
                self._cluster.wait_for(self._actor.close.remote(), 10)
            except Exception:
                pass  # it is killed in any case
        self._kill(self._actor)
        for thread in self.threads if self._cluster.is_connected() else ():
            thread.join()  # none may use Ray when this process leaves the cluster

    def statistics(self):
        return NodeStatistics(self.name, self.cores, len(self._out), self._window, self._ended, self._lost)


def _reason(error):
    """The error as " (its first line)"."""
    if isinstance(error, ray.exceptions.RayTaskError):
        error = error.cause  # its text is a traceback of the node
    lines = str(error).strip().splitlines()
    return f" ({lines[0]})" if lines else ""


def _seconds_left(call):
    return None if call.over is None else max(0.0, call.over - time.monotonic())


def _sizes(nodes, cores):
    """The cores to take of each node. ConfigurationError."""
    found = sorted((int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]), reverse=True)
    least = cores or 1
    usable = [size for size in found if size >= least]
    wanted = len(usable) if nodes is None else nodes
    if wanted > len(usable) or not usable:
        raise ConfigurationError(
            f"nodes: {wanted or 1} with {least} cores or more are wanted, the cluster has {len(usable)} such"
            f" (cores of its nodes: {', '.join(map(str, found)) or 'none'})"
        )
    return [cores or size for size in usable[:wanted]]


class _Connection:
    """This process's connection with Ray, which its executors share. The last one ends it if the first one made it."""

    def __init__(self):
        self._lock = threading.Lock()
        self._users = 0
        self._made = None  # the connection that an executor made

    def current(self):
        """What identifies the present connection; None without one."""
        return ray.get_runtime_context().get_worker_id() if ray.is_initialized() else None

    def join(self, address):
        """Connects the process, or uses the connection that there is; what identifies it. ConfigurationError."""
        if address is not None and (
            not isinstance(address, str) or not re.fullmatch(r"auto|[^\s:/]+:\d{1,5}", address)
        ):
            raise ConfigurationError(f'address: expected "host:port", "auto" or None, got {shown(address)}')
        with self._lock:
            if not ray.is_initialized():
                _initialise(address)
                self._made = self.current()
            elif address not in (None, "auto"):
                known = ray.get_runtime_context().gcs_address
                if not _is_same(address, known):
                    raise ConfigurationError(
                        f"address: this process is connected to the cluster at {known}, not {address}"
                    )
            self._users += 1
            return self.current()

    def leave(self, joined):
        """One of those who joined needs it no more."""
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._made is not None:
                if self._made == joined == self.current():
                    ray.shutdown()
                self._made = None


_cluster_connection = _Connection()


def _is_same(address, known):
    """Whether both "host:port" are one place: a name stands for each of its addresses, and those of this machine's
    loopback for all of its own."""
    (host, _, port), (known_host, _, known_port) = address.rpartition(":"), known.rpartition(":")
    if port != known_port:
        return False
    found, there = _addresses_of(host), _addresses_of(known_host)
    own = _addresses_of(ray.util.get_node_ip_address())
    return bool(found & there) or any(each.startswith("127.") for each in found) and bool(there & own)


def _addresses_of(host):
    try:
        return {host, *(found[4][0] for found in socket.getaddrinfo(host, None))}
    except OSError, UnicodeError:
        return {host}


def _initialise(address):
    if address not in (None, "auto"):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), _CONNECT_S).close()
        except (OSError, OverflowError) as error:
            raise ConfigurationError(
                f"address: nothing answers at {address} ({error}): start a cluster there with `ray start --head`, or"
                " leave out the address for one on this machine"
            ) from error
    try:
        ray.init(address=address, **({} if address else {"include_dashboard": False}))
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigurationError(f"address: there is no Ray cluster at {address}: {error}") from error
