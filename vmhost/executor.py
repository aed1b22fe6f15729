"""VMExecutor: a `concurrent.futures.Executor` whose workers are VMs.

    with vmhost.VMExecutor(max_workers=2) as pool:
        list(pool.map(function, items))

Functions are called by name, in VMs that find their modules' bytecode in one growing code store; arguments and results
cross as values. It is a Service with one lane, so VMs, calls, futures and closing are those of a Host.
"""

import atexit
import concurrent.futures
import functools
import itertools
import logging
import operator
import os
import sys
import time
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from vmhost.bytecode.errors import BytecodeError
from vmhost.bytecode.fields import (
    EVERYTHING,
    GRANTS,
    MAX_GRANT_CHARS,
    PATH,
    is_unicode,
    matches,
    shown,
)
from vmhost.bytecode.format import Manifest, Module
from vmhost.bytecode.task_kinds import LIMITS
from vmhost.errors import (
    ClosedError,
    ConfigurationError,
    CrossingError,
    Kind,
    TaskError,
    VMHostError,
    VMLostError,
    advise_executor,
    from_core,
    read_report,
)
from vmhost.future import TaskFuture, is_asyncio
from vmhost.grants import in_ascii
from vmhost.host import start_service
from vmhost.isolation import vm as isolation
from vmhost.limits import MAX_QUEUE, BreakerPolicy, Limits, Policy, TaskPolicy
from vmhost.runtime import made_functions, native_threads, program_packages, travel
from vmhost.runtime.codec import Codec
from vmhost.runtime.host_functions import FunctionThreads
from vmhost.runtime.kept_luggage import Luggage
from vmhost.runtime.luggage import later_luggage
from vmhost.runtime.working_folder import absolute
from vmhost.task import end_after, until_done

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from vmhost.host import Types
    from vmhost.statistics import HostStatistics

_log = logging.getLogger("vmhost")
_GUEST = "vmhost.guest.executor"  # the module in each VM that runs the calls
_CONVERSIONS = "__vmhost_conversions__"  # a module in its VMs, see vmhost.guest.codec
_BATCH = 256  # calls of one map() that are queued under one lock
_workers_alive = weakref.WeakSet()


class BrokenVMExecutor(concurrent.futures.BrokenExecutor):
    """The initializer of the executor failed in a VM; it accepts no more calls."""


@functools.cache
def _recording_executor():
    """The class of executors in a program whose texts are recorded."""
    from vmhost.recording_executor import Recording  # only such a program needs it

    return type("RecordingExecutor", (Recording, VMExecutor), {})


class VMExecutor(concurrent.futures.Executor):
    """Runs functions in VMs, which are booted on demand.

    `max_workers`: the number of VMs at most; None: the process's CPU count. `thread_name_prefix`: names the executor in
    logs (`vmhost.task.<name>`). `initializer`: is called once in each VM before its first call. `initargs`: its
    arguments. `permissions`: as in task.yaml; None: everything that the host process may do. `limits`: as in task.yaml;
    None: `max_workers` only. `types`: classes that can cross beside those below, and Conversions, as for Host.
    `mp_context`, `max_tasks_per_child`: parameters of process pools, which must be None; the TypeError says why.

    Dataclasses, namedtuples, enums and exceptions that a submitted function's module defines or imports by name can
    cross. At most 1,024 VMs. ValueError, TypeError, ConfigurationError, CrossingError.
    """

    def __new__(cls, *_, **__):
        if os.environ.get(program_packages.IN_RECORDER):
            raise RuntimeError(
                "a VMExecutor is made while its module is imported, which VMs do too; put this under"
                ' `if __name__ == "__main__":`'
            )
        if os.environ.get("VMHOST_RECORD") and cls is VMExecutor:
            cls = _recording_executor()
        return super().__new__(cls)

    def __init__(
        self,
        max_workers: int | None = None,
        thread_name_prefix: str = "",
        initializer: Callable[..., object] | None = None,
        initargs: Iterable["Any"] = (),
        *,
        permissions: Mapping[str, Iterable[str]] | None = None,
        limits: Mapping[str, "Any"] | Limits | None = None,
        types: "Types | None" = None,
        mp_context: None = None,
        max_tasks_per_child: None = None,
    ) -> None:
        _refuse_what_processes_have(thread_name_prefix, mp_context, max_tasks_per_child)
        try:
            max_workers = operator.index(os.process_cpu_count() or 1 if max_workers is None else max_workers)
            initargs = tuple(initargs)
        except TypeError:
            if not hasattr(max_workers, "__index__"):
                raise TypeError(f"max_workers: expected a whole number or None, got {shown(max_workers)}") from None
            raise TypeError(f"initargs: expected a tuple of arguments, got {shown(initargs)}") from None
        if max_workers <= 0:
            raise ValueError("max_workers must be greater than 0")
        max_workers = min(max_workers, LIMITS["concurrency"].le)
        if initializer is not None and not callable(initializer):
            raise TypeError(f"initializer must be a callable, got {shown(initializer)}")
        self._max_workers = max_workers
        self._workers = _Workers(
            thread_name_prefix or "executor", max_workers, permissions, limits, initializer, initargs, self._own, types
        )

    def _own(self, service):
        # If dropped without shutdown(), submitted calls still run, as with the standard executors.
        service.owned_by(self, drain=True)

    def submit[**P](self, fn: Callable[P, "Any"], /, *args: P.args, **kwargs: P.kwargs) -> TaskFuture:
        """Queues `fn(*args, **kwargs)`; returns a Future that also has `stop()`.

        CrossingError (a TypeError) if `fn` or an argument cannot travel, RuntimeError after shutdown(),
        BrokenVMExecutor after an initializer failed. On the thread of a running event loop a function that is not yet
        compiled is compiled on another thread: then the future raises these.
        """
        if _on_event_loop() and not self._workers.knows(fn):
            return _PreparedFuture(self._workers.prepared(fn), lambda: self._called(fn, args, kwargs))
        return self._called(fn, args, kwargs)

    def _called(self, fn, args, kwargs):
        return _VMFuture(self._submitted(fn, args, kwargs, None), self._workers)

    async def run(
        self, fn: Callable[..., "Any"], /, *args: "Any", timeout_s: float | None = None, **kwargs: "Any"
    ) -> "Any":
        """Awaits `fn(*args, **kwargs)`. Cancelling the asyncio task stops the call and frees its worker.

        `timeout_s` counts from now: TimeLimitError, a TimeoutError. To pass a parameter of this name to a function, use
        `functools.partial`. Other errors as from submit() and its future.
        """
        workers = self._workers
        if not workers.knows(fn):
            from asyncio import wrap_future

            await wrap_future(workers.prepared(fn))
        call = self._submitted(fn, args, kwargs, timeout_s)
        await until_done(workers._service, call)
        return workers.outcome(call)

    def _submitted(self, fn, args, kwargs, timeout_s):
        """The native call of `fn(*args, **kwargs)`."""
        workers = self._workers
        submit = workers.submit
        try:
            entry = workers.entries.get(fn)
        except TypeError:  # unhashable; entry_for() says so
            entry = None
        if entry is None:
            entry, fill, keywords = workers.plan(fn)
            args, kwargs = fill(args), keywords | kwargs
        try:
            return submit((args, kwargs), timeout_s, 0, entry, True)
        except ClosedError:
            # Closed by shutdown(), which raises again, or because a new edition of the code store replaced this one.
            return workers.submit((args, kwargs), timeout_s, 0, entry, True)

    def map[T](
        self,
        fn: Callable[..., T],
        *iterables: Iterable["Any"],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[T]:
        """Calls `fn` on the items of `iterables` in parallel; returns an iterator over the results in order.

        `chunksize` items go to a VM as one call. A result that is not there `timeout` seconds from now raises
        TimeoutError. With `buffersize`, at most that many calls are queued ahead of the results taken.
        """
        if getattr(self.submit, "__func__", None) is not VMExecutor.submit:  # a subclass's own
            return super().map(fn, *iterables, timeout=timeout, chunksize=chunksize, buffersize=buffersize)
        if not isinstance(chunksize, int):
            raise TypeError(f"chunksize must be an integer, got {shown(chunksize)}")
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if buffersize is not None and not isinstance(buffersize, int):
            raise TypeError("buffersize must be an integer or None")
        if buffersize is not None and buffersize < 1:
            raise ValueError("buffersize must be None or > 0")
        end = (
            None
            if timeout is None
            else end_after(max(timeout, 0) if isinstance(timeout, (int, float)) else timeout, "timeout")
        )
        values, entry, sizes = self._map_values(fn, zip(*iterables), chunksize)
        calls = deque()
        try:
            self._feed(calls, values, buffersize, entry)
        except BaseException:
            _cancel(calls)
            raise
        return self._map_results(calls, values, buffersize is not None, entry, sizes, end)

    def _map_values(self, fn, rows, chunksize):
        """(values of the calls, their entry point, a deque that gets each call's number of rows; None: one row
        each)"""
        entry, fill, keywords = self._workers.plan(fn, in_rows=chunksize > 1)
        if fill is not tuple:
            rows = map(fill, rows)
        if chunksize == 1:
            return ((row, keywords) for row in rows), entry, None
        sizes = deque()

        def chunks():
            for chunk in itertools.batched(rows, chunksize):
                sizes.append(len(chunk))
                yield (chunk, keywords), {}

        return chunks(), entry, sizes

    def _feed(self, calls, values, count, entry):
        """Queues the next `count` of `values`, all if None."""
        while batch := list(itertools.islice(values, _BATCH if count is None else min(_BATCH, count))):
            submit_many = self._workers.submit_many
            try:
                calls.extend(submit_many(batch, None, 0, entry, True))
            except ClosedError:  # see _submitted()
                calls.extend(self._workers.submit_many(batch, None, 0, entry, True))
            if count is not None:
                count -= len(batch)
                if count == 0:
                    break

    def _map_results(self, calls, values, refill, entry, sizes, end):
        outcome = self._workers.outcome
        try:
            while calls:
                if end is not None and not calls[0].wait(max(0.0, end - time.monotonic())):
                    raise TimeoutError(f"map: the next result was not there in time; calls left: {len(calls)}")
                if refill:
                    self._feed(calls, values, 1, entry)
                if sizes is None:
                    yield outcome(calls.popleft())  # no reference kept: it may be large
                    continue
                results, report = self._workers.rows_of(outcome(calls.popleft()), sizes.popleft())
                results.reverse()
                while results:
                    yield results.pop()
                if report is not None:
                    self._workers.raise_report(report)
        finally:
            _cancel(calls)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accepts no more calls; submitted ones still run, or, with `cancel_futures`, the waiting ones are cancelled.

        May be repeated. `wait`: return when all calls have ended, their callbacks have run and the VMs are gone. Ctrl-C
        during the wait stops running calls and cancels the others.
        """
        try:
            self._workers.close(cancel_futures)
            if wait:
                self._workers.wait_closed()
        except KeyboardInterrupt:
            self._workers.end_now()
            raise

    def __exit__(self, exc_type: type[BaseException] | None, exc: "Any", traceback: "Any") -> bool | None:
        # Workers of process pools get the terminal's Ctrl-C themselves; a VM that ran on would delay the exit.
        if exc_type is not None and issubclass(exc_type, KeyboardInterrupt):
            self._workers.end_now()
        return super().__exit__(exc_type, exc, traceback)

    def terminate_workers(self) -> None:
        """Stops running calls, cancels waiting ones, and shuts down; all end with CancelledError. Does not wait."""
        self._workers.end_now()
        self._workers.close(True)

    kill_workers = terminate_workers

    def statistics(self) -> "HostStatistics":
        """Current HostStatistics: the executor's calls, its VMs with memory and CPU time."""
        return self._workers._service.statistics()

    # What `help` and editors show: otherwise they take the parameters of __new__.
    __new__.__wrapped__ = __init__  # type: ignore[attr-defined]

    def __repr__(self):
        return f"<vmhost.VMExecutor of {self._max_workers} VMs{', shut down' if self._workers.closed else ''}>"


class _VMFuture(TaskFuture):
    """The Future of one call of a VMExecutor. Builtin errors come as the function raised them."""

    _end = None  # (result, error), kept: a Future returns the same objects each time

    def _outcome(self):
        return _given(*self._ending())

    def _ending(self):
        if self._end is None:
            self._end = self._task.ending(self._call)
        return self._end

    def _was_cancelled(self):
        return self._task.was_cancelled(self._call)


class _PreparedFuture(concurrent.futures.Future):
    """The Future of a call from an event loop whose function is compiled first, on another thread."""

    def __init__(self, prepared, call):
        super().__init__()
        self._inner = None  # the _VMFuture, once the function is compiled
        prepared.add_done_callback(functools.partial(self._begin, call))

    def _begin(self, call, prepared):
        if self.cancelled():
            return
        try:
            prepared.result()
            inner = call()
        except BaseException as error:
            if self.set_running_or_notify_cancel():
                self.set_exception(error)
            return
        self._inner = inner
        if self.cancelled():  # meanwhile
            inner.stop()
        inner.add_done_callback(self._copy)

    def _copy(self, inner):
        if inner.cancelled():
            super().cancel()
        if not self.set_running_or_notify_cancel():
            return
        error = inner.exception()
        if error is not None:
            self.set_exception(error)
        else:
            self.set_result(inner.result())

    def running(self) -> bool:
        return self._inner is not None and self._inner.running()

    def cancel(self) -> bool:
        """As of a TaskFuture: stops a running call if asyncio has wrapped the future."""
        if self._inner is None:
            return super().cancel()
        if not self._inner.cancel() and any(map(is_asyncio, self._done_callbacks)):
            self._inner.stop()
        return self._inner.cancelled()

    def stop(self) -> None:
        """Ends the call, queued or running, as cancelled. Does nothing if it has ended."""
        super().cancel() if self._inner is None else self._inner.stop()


class _Functions:
    """What an executor knows of the functions that it sends, and how their calls end; where they run is left to
    subclasses, which give `_pack`."""

    def __init__(self, name, codec):
        self.closed = False
        self.entries = {}  # function -> entry point
        self._lock = native_threads.RLock()  # of the code store and its index; reentrant: a finalizer may submit
        self._rows = {}  # function -> entry point that takes many rows of arguments
        self._name = name
        self._cancelling = False  # calls that closing ends count as cancelled
        self._broken = None
        self._edition = 0
        self._modules, self._texts, self._files = {}, {}, {}  # contents of the code store
        self._compiling, self._planned = FunctionThreads(1), weakref.WeakSet()  # codes of functions that were prepared
        self._settled = set()  # modules here none of whose functions needs more than what is compiled
        self._later = {}  # top-level module that an import waits for -> `roots` of the Luggage with that import
        self._deferred = {}  # module of a package that VMs may ask for -> the same
        self._unavailable = {}  # module that was asked for -> why there is none
        self._initializer = None
        self._codec = codec
        self._native = isolation.core()

    # -- entry points ---------------------------------------------------------------------------------------------

    def knows(self, fn):
        """Whether plan() of the function takes no time: what it needs is compiled."""
        function = _unfold(fn)[0]
        code = getattr(function, "__code__", None)
        try:
            known = function in self.entries or isinstance(code, types.CodeType) and code in self._planned
        except TypeError:
            return True  # it is refused
        module = getattr(function, "__module__", None)
        return known or module in sys.stdlib_module_names or module in self._settled

    def prepared(self, fn):
        """A Future that ends when the function is compiled, on a thread for that."""
        done = concurrent.futures.Future()

        def prepare():
            try:
                self.plan(fn)
                code = getattr(_unfold(fn)[0], "__code__", None)
                if isinstance(code, types.CodeType):
                    self._planned.add(code)
                done.set_result(None)
            except BaseException as error:
                done.set_exception(error)

        if not self._compiling.run("compile", prepare):
            done.set_exception(RuntimeError("cannot schedule new futures after shutdown"))
        return done

    def plan(self, fn, in_rows=False):
        """(entry point, fill, keywords): calling `fn` is a call of the entry point with `*fill(args)` and the keywords.
        CrossingError."""
        function, fill, keywords = _unfold(fn)
        try:
            return self.entry_for(function, in_rows), fill, keywords
        except travel.Unreachable as error:
            if isinstance(function, types.MethodType) and isinstance(function.__func__, types.FunctionType):
                bound, (entry, fill_inner, _) = function.__self__, self.plan(function.__func__, in_rows)
                if self._can_cross(bound):
                    return entry, lambda args: fill_inner((bound, *fill(args))), keywords
            if not isinstance(function, types.FunctionType):
                raise CrossingError(str(error)) from None
        if travel.is_typed_in(function):
            luggage = travel.compile_module("__main__", None, function)
            self._take([(sys.modules["__main__"], luggage)])
            return self._entry(in_rows, luggage.name, travel.MADE), fill, keywords
        spec, luggage, all_of_it = made_functions.parts_of(function, self._check)
        self._take(all_of_it)
        return self._entry(in_rows, luggage.name, "made", "m"), lambda args: (spec, *fill(args)), keywords

    def _take(self, luggages):
        """Adds the Luggage of each (module here, Luggage) to the code store."""
        with self._lock:
            for module, luggage in luggages:
                self._pack(luggage)
                if luggage.modules:
                    self._codec.add_home(luggage.name, module)
                    if not luggage.later.get(luggage.name) and not luggage.name.startswith(f"{travel.MAIN}_"):
                        self._settled.add(module.__name__)
                for names in luggage.later.values():
                    tops = (module.partition(".")[0] for found in names.values() for module in found.modules)
                    self._later.update(dict.fromkeys(tops, luggage.roots))

    def _add_later(self, name):
        """Adds to the code store what a VM asks for, because an import that waited is used or a function of a package
        imports it; the reason if it cannot."""
        roots = self._deferred.get(name) or self._later.get(name.partition(".")[0])
        if roots is None:
            return f"import {name}: no import of this program waits for it"
        if name in self._unavailable:
            return self._unavailable[name]
        try:
            luggage = later_luggage(name, roots)
        except BytecodeError as error:
            self._unavailable[name] = travel.reason_of(error)
            return self._unavailable[name]
        with self._lock:  # what VMs have stays as it is
            new = {each: module for each, module in luggage.modules.items() if each not in self._modules}
            self._pack(replace(luggage, modules=new))
        return None

    def _entry(self, in_rows, module, path, flags=""):
        flags += ("i" if self._initializer is not None else "") + ("r" if in_rows else "")
        return f"{_GUEST}:{flags} {_target(module, path)}"

    def _check(self, value, what):
        self._native.check_value(value, what, self._codec.pack)

    def _can_cross(self, value):
        try:
            self._check(value, "self")
        except TypeError, ValueError:
            return False
        return True

    def entry_for(self, function, in_rows=False):
        """The entry point for `function`; its module is in the code store from now on. CrossingError."""
        known = self._rows if in_rows else self.entries
        try:
            if function in known:
                return known[function]
        except TypeError:
            raise CrossingError(f"{function!r} cannot travel to a VM: an unhashable object is no function") from None
        module, path, luggage = _luggage(function)
        self._take([(sys.modules[module], luggage)])
        entry = self._entry(in_rows, luggage.name, path)
        if not travel.is_typed_in(function):  # what it uses may change
            known[function] = entry
        return entry

    # -- how calls end --------------------------------------------------------------------------------------------

    def outcome(self, call):
        """The result of the native `call`; raises its error as the standard executors would."""
        return _given(*self.ending(call))

    def ending(self, call):
        """(result, None) or (None, error) of the native `call`, once it has ended. What it raises is not the call's."""
        result, error = call.outcome()
        if isinstance(error, VMHostError):
            standard = self._as_standard(error, call)
            if standard is None:
                advise_executor(error, call.kind)
            else:
                standard.__cause__ = error
                error = standard
        return result, error

    def rows_of(self, answer, size):
        """(results, report or None) of a call of `size` rows. TaskError for anything else: code in the VM was
        tampered with."""
        if type(answer) is tuple and len(answer) == 2:
            results, report = answer
            if type(results) is list and (
                report is None and len(results) == size or type(report) is dict and len(results) < size
            ):
                return results, report
        raise from_core(
            Kind.TASK_ERROR,
            {
                "type": "SystemError",
                "message": f"a VM's answer to {size} rows of map() is not what "
                "vmhost.guest.executor gives: a task has changed that module",
            },
            self._name,
            str(self._edition),
        )

    def raise_report(self, report):
        """Raises the error in a guest's report."""
        error = from_core(Kind.TASK_ERROR, report, self._name, str(self._edition))
        standard = self._raised(error)
        if standard is None:
            raise error
        raise standard from error

    def _as_standard(self, error, call):
        """The exception of the standard executors for `error`; None if they have no equivalent."""
        if isinstance(error, ClosedError) and self._cancelling:
            return concurrent.futures.CancelledError()
        if self._broken is not None and (isinstance(error, VMLostError) or call.kind == Kind.LOAD_ERROR):
            return BrokenVMExecutor(self._broken)
        return self._raised(error)

    def _raised(self, error):
        """The guest's exception in a TaskError; None if its class is not known here, or not all that it holds."""
        if not isinstance(error, TaskError) or error.report is None:
            return None
        raised, error.__cause__ = error.__cause__, None  # the exception will get the TaskError as its cause
        return self._codec.error(error.report) if raised is None else raised

    def was_cancelled(self, call):
        """Was the `call`, which has ended, cancelled?"""
        return call.kind == Kind.CANCELLED or call.kind == Kind.CLOSED and self._cancelling

    def _refuse(self, *_):
        if self._broken is not None:
            raise BrokenVMExecutor(self._broken)
        raise ClosedError("cannot schedule new futures after shutdown", task=self._name)


class _Workers(_Functions):
    """An executor's state, which outlives it while calls run: service, lane, code store, entry points.

    `submit` and `submit_many` are the native lane's until calls are refused.
    """

    def __init__(self, name, max_workers, permissions, limits, initializer, initargs, own, types=None, codec=None):
        super().__init__(name, codec or Codec(types, of_executor=True))
        self._process = os.getpid()
        self._lanes = []
        self._permissions = _permissions(permissions)
        self._permissions["host"] = ["initializer", "initializer failed", "later"]
        self._limits = _limits(limits, max_workers)
        self._task_policy = TaskPolicy(queue=MAX_QUEUE, breaker=BreakerPolicy(enabled=False))
        policy = Policy(
            max_vms=max_workers,
            warm=0,
            max_warm=0,
            idle_s=float("inf"),
            memory_bytes=LIMITS["memory_bytes"].le,
            boots_at_once=max_workers,
            task=self._task_policy,
        )
        self._store = self._native.CodeStore()
        if self._codec.conversions or self._codec.plain:
            self._pack(_conversions_luggage(self._codec, self._pack))
        if initializer is not None:
            self._initializer_entry, fill, self._initkeywords = self.plan(initializer)
            self._initargs, self._initializer = fill(initargs), initializer
            self._check_initargs()
        self._service = None

        def mine(service):
            self._service = service
            service.shows_output = True
            own(service)

        try:
            start_service(
                policy,
                self._native,
                functions=lambda: {
                    "initializer": self._initializer_for,
                    "initializer failed": self._break,
                    "later": self._add_later,
                },
                own=mine,
                codec=self._codec,
            )
            _drain_at_exit()
            _workers_alive.add(self)
            self._load()
        except BaseException:  # Ctrl-C may come between any two steps
            if self._service is not None:
                self._service.let_go()
                self._service.abandon()
            raise

    # -- the code store -------------------------------------------------------------------------------------------

    def _pack(self, luggage):
        """Adds the modules to the code store; if it has another module of the same name, to a new one with new VMs."""
        new = {name: module for name, module in luggage.modules.items() if name not in self._modules}
        texts = {digest: code for digest, code in luggage.texts.items() if digest not in self._texts}
        again = any(self._modules[name] != module for name, module in luggage.modules.items() if name not in new)
        files = {path: data for path, data in luggage.files.items() if path not in self._files}
        self._modules.update(luggage.modules)
        self._deferred.update(dict.fromkeys(luggage.deferred, luggage.roots))
        self._texts.update(texts)
        self._files.update(files)
        if again:
            self._store = self._native.CodeStore()
            self.entries.clear()
            self._rows.clear()
            new, texts, files = self._modules, self._texts, self._files
        for name, module in new.items():
            self._store.add_module(name, module.is_package, module.code)
        for digest, code in texts.items():
            self._store.add_text(digest, code)
        for path, data in files.items():
            self._store.add_file(path, data)
        if again:
            self._load()

    def _load(self):
        """Serves the code store from now on; VMs of the previous edition end after its calls."""
        self._edition += 1
        manifest = Manifest(name=self._name, version=str(self._edition), entry="", permissions=self._permissions)
        digest = str(self._edition).encode()
        try:
            self._service.load(manifest, digest, self._store, self._limits, self._task_policy, self._move)
        except ClosedError:
            self._refuse()

    def _move(self, version):
        """Directs calls to `version` from now on. Called by the service, with its lock held."""
        self._current = version
        if version.lane not in self._lanes:
            self._lanes.append(version.lane)
        if version.closed_because is None and self._broken is None and not self.closed:
            self.submit, self.submit_many = version.lane.submit, version.lane.submit_many
        else:
            self.submit = self.submit_many = self._refuse
        return self

    # -- the initializer ------------------------------------------------------------------------------------------

    def _check_initargs(self):
        """CrossingError if they cannot cross: else every call would fail."""
        for name, value in (("initargs", self._initargs), ("keywords of the initializer", self._initkeywords)):
            try:
                self._check(value, name)
            except (TypeError, ValueError) as error:
                raise CrossingError(str(error)) from error

    def _initializer_for(self, part):
        if part == "target":
            return self._initializer_entry.partition(":")[2]
        return self._initargs, self._initkeywords

    def _break(self, report):
        """The initializer failed in a VM: as with the standard executors, everything ends."""
        self._broken = "A VM initializer failed, the executor is not usable anymore"
        _log.critical("Exception in initializer:\n%s", read_report(report)["traceback"])
        self.submit = self.submit_many = self._refuse
        for lane in self._lanes:
            lane.fail(self._broken)

    # -- the end --------------------------------------------------------------------------------------------------

    def close(self, cancel):
        """Accepts no more calls; waiting ones are cancelled with `cancel`, else they still run. Takes no lock, because
        Ctrl-C may interrupt it."""
        self.closed = True
        if os.getpid() != self._process:
            return  # a forked child: the VMs are the parent's
        self.submit = self.submit_many = self._refuse
        self._compiling.close()
        self._service.ask_to_close(True)
        if cancel:
            self._cancelling = True
            for lane in self._lanes:
                lane.close(False)

    def end_now(self):
        """Ends everything submitted as cancelled, running calls included, soon. Takes no lock: Ctrl-C calls it."""
        self._cancelling = True
        if os.getpid() == self._process:
            self._service.ask_to_close(False)

    def wait_closed(self):
        """Waits until all calls have ended and all VMs are gone."""
        if os.getpid() == self._process:
            self._service.wait_closed()
            self._service.wait_callbacks()
            self._service.wait_functions()
            self._compiling.wait(float("inf"))


def _on_event_loop():
    """Whether this thread runs an event loop of asyncio."""
    events = sys.modules.get("asyncio.events")
    return events is not None and events._get_running_loop() is not None


def _given(result, error):
    """`result`, or `error` raised."""
    if error is None:
        return result
    try:
        raise error
    finally:
        del error  # its traceback has this frame


def _refuse_what_processes_have(thread_name_prefix, mp_context, max_tasks_per_child):
    """TypeError for arguments that only ProcessPoolExecutor has; its second positional one is the mp_context."""
    if mp_context is not None or hasattr(thread_name_prefix, "get_start_method"):
        raise TypeError(
            "VMExecutor takes no mp_context: its workers are VMs in this process, nothing is started; leave it out"
        )
    if not isinstance(thread_name_prefix, str):
        raise TypeError(f"thread_name_prefix: expected a str, got {thread_name_prefix!r:.80}")
    if "\0" in thread_name_prefix or not is_unicode(thread_name_prefix):
        raise ValueError(
            f"thread_name_prefix: expected a name without NUL and surrogates, got {shown(thread_name_prefix)}"
        )
    if max_tasks_per_child is not None:
        raise TypeError(
            "VMExecutor takes no max_tasks_per_child: its VMs serve until the end, and one whose call was stopped "
            "is replaced; leave it out, and bound what a VM may keep with limits={'memory': ...}"
        )


def _limits(limits, max_workers):
    """The Limits from `limits`, a mapping as in task.yaml; unlimited where it has no entry."""
    Limits.read(limits, "limits")  # raises for invalid ones
    none = Limits(
        memory_bytes=LIMITS["memory_bytes"].le,
        stack_bytes=LIMITS["stack_bytes"].le,
        concurrency=max_workers,
        descriptors=LIMITS["descriptors"].le,
        output_bytes=LIMITS["output_bytes"].le,
    )
    if not isinstance(limits, Limits):
        limits = dict(limits or {})
        if not limits.keys() & {"stack", "stack_bytes"}:
            limits["stack"] = Limits().stack_bytes
    return none.capped_by(limits)


def _permissions(permissions):
    """`permissions`, a mapping as in task.yaml, with absolute paths; ConfigurationError."""
    if permissions is None:
        return dict(EVERYTHING)  # functions may do in VMs whatever the host process may
    if not isinstance(permissions, Mapping):
        raise ConfigurationError(
            f"permissions: expected a mapping such as {{'read': ['/data']}}, got {shown(permissions)}"
        )
    granted = {}
    for kind, names in permissions.items():
        if kind not in EVERYTHING:
            raise ConfigurationError(f"permissions: unknown kind {shown(kind)}; expected {', '.join(EVERYTHING)}")
        if not isinstance(names, (list, tuple, set, frozenset)):
            raise ConfigurationError(f"permissions: {kind}: expected a list of names, got {shown(names)}")
        granted[kind] = [_granted(kind, name) for name in names]
    return in_ascii(granted)


def _granted(kind, name):
    pattern, expected = GRANTS[kind]
    if isinstance(name, (str, os.PathLike)):
        text = os.fspath(name)
        if pattern is PATH and isinstance(text, str) and text:
            text = absolute(text)
        if matches(pattern, text, MAX_GRANT_CHARS) or text in EVERYTHING.get(kind, ()):
            return text
    raise ConfigurationError(f"permissions: {kind}: expected {expected}, got {shown(name)}")


def _unfold(function):
    """(function, fill, keywords) of a function or partial: calling it is `function(*fill(args), **keywords, ...)`."""
    if not isinstance(function, functools.partial):
        return function, tuple, {}
    inner, fill_inner, keywords = _unfold(function.func)
    fixed = function.args
    gaps = sum(value is functools.Placeholder for value in fixed)

    def fill(args):
        if len(args) < gaps:
            raise TypeError(
                f"missing positional arguments in 'partial' call; expected at least {gaps}, got {len(args)}"
            )
        left = iter(args)
        return fill_inner((*(next(left) if value is functools.Placeholder else value for value in fixed), *left))

    return inner, fill, keywords | function.keywords


def _target(module, path):
    return f"{module}:{path}".replace(".", "/")


def _luggage(function):
    """(module name, path in it, Luggage) of `function`. CrossingError."""
    module, path = travel.place_of(function)
    return module, path, travel.compile_module(module, path, function)


def _conversions_luggage(codec, pack):
    """The Luggage of a module that gives `vmhost.guest.codec` the conversions and plain classes; passes those of their
    classes and functions to `pack`. CrossingError."""

    def place(part):
        _, path, luggage = _luggage(part)
        pack(luggage)
        return f"{luggage.name}:{path}"

    rows = [(name, *map(place, (each.cls, each.to_plain, each.from_plain))) for name, each in codec.conversions.items()]
    plain = [(name, place(cls)) for name, cls in codec.plain.items()]
    text = f"CONVERSIONS = {rows!r}\nPLAIN = {plain!r}\n".encode()
    from vmhost.bytecode.compiler import code_of  # imported late: most executors have no conversions

    code, texts, _ = code_of(text, f"<{_CONVERSIONS}>")
    return Luggage(_CONVERSIONS, {_CONVERSIONS: Module(False, code)}, texts)


def _cancel(calls):
    for call in calls:
        call.cancel()


@functools.cache
def _drain_at_exit():
    # Registered after the first service, so that it runs before that service's exit handler, which ends running calls.
    atexit.register(_drain_all, os.getpid())


def _drain_all(process):
    """At exit: submitted calls still run, as with the standard executors."""
    if os.getpid() != process:
        return
    alive = list(_workers_alive)
    for workers in alive:
        workers.close(False)
    try:
        for workers in alive:
            workers.wait_closed()
    except KeyboardInterrupt:  # the user no longer waits
        for workers in alive:
            workers.end_now()
        for workers in alive:
            workers.wait_closed()
