"""Host: loads bundles and returns their task handles; owns the VMs and everything around them.

The Host object is a thin front: the state is in a Service, which a thread keeps alive. When the Host is dropped without
`close()`, or the process exits, the service closes itself: calls that still run end with ClosedError.
"""

import atexit
import contextlib
import errno
import functools
import logging
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import vmhost.bytecode.errors
from vmhost.bytecode.fields import shown
from vmhost.bytecode.format import Bundle, read_bundle
from vmhost.bytecode.signing import TrustStore
from vmhost.coverage import Coverage
from vmhost.errors import BundleError, ClosedError, ConfigurationError
from vmhost.grants import in_ascii, settle
from vmhost.isolation import vm as isolation
from vmhost.limits import Limits, Policy, RecordPolicy
from vmhost.profile import Profiling
from vmhost.runtime import native_threads
from vmhost.runtime.codec import Codec
from vmhost.runtime.service import Service
from vmhost.runtime.system_bundle import IN_CHECKOUT, add_model, boot_code_store, kept_models
from vmhost.statistics import Crash
from vmhost.task import Task, end_after

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any, Self

    from vmhost.runtime.codec import Conversion
    from vmhost.statistics import HostNumbers, HostStatistics, LongCall, VMStatistics

    # Any: a dict of a class and a Conversion, named before it is passed, is a dict[str, object] for checkers
    type Types = Iterable[type | Conversion] | Mapping[str, Any]

_log = logging.getLogger("vmhost")
_services = weakref.WeakSet()
_system_code_stores = {}  # native core -> its code store of the system, shared by all hosts of the process
_system_lock = threading.RLock()  # reading the bundle may run finalizers


_MAX_SIGNED = 64 << 20  # bytes of a file whose signature is checked


class Host:
    """Runs tasks in VMs.

    `trust`: keys of accepted bundles: a TrustStore, or the path of a file or folder of public keys. `allow_unsigned`:
    also load unsigned bundles (for development). `policy`: a Policy. `state`: a folder for state that survives a
    restart (breakers, prepared models). `functions`: host functions by name, for tasks whose `permissions.host` names
    them; each takes one value and returns one, on threads of the host. `types`: classes whose values cross as
    themselves (dataclasses, namedtuples, enums, exceptions, or Conversions): a list, or a mapping from the names that
    tasks use for them, "main:Order". `tables`: EmbeddingVariables by name (vmhost.engine.embedding), for tasks whose
    `permissions.tables` names them to read or train; the host provides their memory and saves them.

    `crashes` lists the tasks in which the last process with this state folder crashed (a tuple of Crash); their
    breakers start open. A context manager: leaving it drains, leaving it through an exception cancels."""

    crashes: tuple[Crash, ...]

    def __init__(
        self,
        *,
        trust: TrustStore | str | os.PathLike[str] | None = None,
        allow_unsigned: bool = False,
        policy: Policy | None = None,
        state: str | os.PathLike[str] | None = None,
        functions: Mapping[str, Callable[["Any"], "Any"]] | None = None,
        types: "Types | None" = None,
        tables: Mapping[str, "Any"] | None = None,
    ) -> None:
        self._closed = False
        self._process = os.getpid()
        self._file = self._settings = None  # of `from_file`
        self._from_file = {}  # path of a bundle in its `load` -> name of the task
        _check_arguments(allow_unsigned, policy, state, functions)
        self._trust = _trust_store(trust)
        self._allow_unsigned = allow_unsigned
        self._policy = policy if policy is not None else Policy()
        self._functions = dict(functions or {})
        self._tables = _checked_tables(tables)
        codec = Codec(types)
        native = isolation.core()
        # The service must not keep this object alive, nor the functions, which may refer to it.
        self_ref = weakref.ref(self)

        def functions_now():
            host = self_ref()
            return host._functions if host is not None else {}

        self._service = folder = None
        # Ctrl-C may come between any two steps and must leave no thread, VM or lock on the folder behind.
        try:
            folder = _state_folder(state) if state is not None else None
            self._state = folder.path if folder is not None else None
            self._keeps_models, self._kept_models = (
                folder is not None,
                None,
            )  # the second is made with the first model; if that fails, none is kept
            self.crashes = _crashes_before(native, folder, self) if folder is not None else ()
            start_service(self._policy, native, folder, functions_now, self._own, codec)
        except BaseException:
            if self._service is not None:
                self._service.let_go()
                self._service.abandon()  # also releases the folder
            elif folder is not None:
                folder.close()
            raise

    def _own(self, service):
        self._service = service
        service.owned_by(self)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], *, types: "Types | None" = None) -> "Self":
        """The host described by the `host.yaml` at `path`, with its bundles loaded; `types` as for Host.

        ConfigurationError names file, line and key.
        """
        from vmhost.settings.host import read_host_yaml  # here: only this needs schema and YAML

        settings = read_host_yaml(_path(path, "host.yaml"))
        host = cls(
            trust=settings.trust,
            allow_unsigned=settings.allow_unsigned,
            policy=settings.policy,
            state=settings.state,
            functions=settings.functions,
            types=types,
            tables=settings.tables,
        )
        host._file, host._settings = path, settings
        try:
            for bundle in settings.load:
                host._from_file[bundle] = host.load(bundle).name
        except BaseException:
            host.close(drain=False)
            raise
        return host

    def reload(self) -> tuple[str, ...]:
        """Reads the file of `from_file` again. Trusted keys, permissions, limits, functions and the settings of tasks
        apply from now on: a loaded task whose settings changed continues as a new version, and calls that run end under
        the old ones. Bundles in `load` are loaded and unloaded.

        Returns the changed keys that need a restart, each as "FILE:LINE: KEY". ConfigurationError: the file is wrong,
        and nothing has changed. BundleError: the bundles after that in `load` were not looked at.
        """
        from vmhost.settings.host import reread_host_yaml

        if self._settings is None:
            raise ConfigurationError("reload: this host was not made from a file")
        settings, waiting = reread_host_yaml(self._file, self._settings)
        self._trust = _trust_store(settings.trust)
        self._allow_unsigned, self._policy, self._settings = settings.allow_unsigned, settings.policy, settings
        self._functions, self._service.policy = dict(settings.functions), settings.policy
        if self._state is not None and (notes := _crash_notes()) is not None:
            notes.mask_again()
        for bundle in self._from_file.keys() - set(settings.load):
            with contextlib.suppress(KeyError):
                self.unload(self._from_file.pop(bundle))
        for bundle in settings.load:
            self._from_file[bundle] = self.load(bundle).name
        return waiting

    @property
    def tables(self) -> dict[str, "Any"]:
        """The embedding tables by name, as a copy."""
        return dict(self._tables)

    # -- tasks ----------------------------------------------------------------------------------------------------

    def load(self, bundle: str | os.PathLike[str] | bytes | Bundle) -> Task:
        """Checks and loads `bundle`: a path, the bytes of a .vmb, or a Bundle in memory (unsigned). Returns a Task.

        A new version of a loaded task replaces the old one: running calls end in the old one; existing Task objects
        call the new one. BundleError, ClosedError.
        """
        own = not isinstance(bundle, Bundle)  # read here, so nobody else refers to its bytes
        bundle = self.check(bundle)
        manifest = bundle.manifest
        where = f"{bundle.where}: {manifest.name} {manifest.version}"
        policy = self._policy.for_task(manifest.name)
        permissions = self._check_permissions(manifest, policy, where)
        limits = Limits.read(manifest.limits, where).capped_by(self._policy.limits).capped_by(policy.limits)
        store = isolation.code_store_of(bundle, self._service.native)
        for name, data in getattr(bundle, "models", {}).items():
            try:
                kept = self._kept_model(manifest.files[f"models/{name}"].sha256)
                add_model(store, name, data, self._policy.search, kept, own and not memoryview(data).readonly)
            except ValueError as error:
                raise BundleError(f"{where}: model {name}: {error}") from error
        for name in manifest.permissions.get("tables", ()):
            table, _, right = name.rpartition(":")
            store.add_table(table, self._tables[table].handle, right == "write")
        if self._state is not None and (notes := _crash_notes()) is not None:
            notes.loaded(manifest.name, manifest.version, manifest, limits)
        return self._service.load(manifest, bundle.digest, store, limits, policy, self._make_handle, permissions)

    def check(self, bundle: str | os.PathLike[str] | bytes | Bundle) -> Bundle:
        """Checks the signature, digests and structure of a task's `bundle`, as `load` does, without loading it.

        Returns it as a Bundle in memory, which `load` accepts; its `manifest` describes it (`name`, `version`,
        `limits`, `permissions`, `trigger`, `table`). BundleError."""
        bundle = self._read(bundle)
        if bundle.manifest.kind != "task":
            raise BundleError(f"{bundle.where}: expected the bundle of a task, got a {bundle.manifest.kind} bundle")
        return bundle

    def signed_content(self, path: "str | os.PathLike[str]") -> bytes:
        """The content of a file signed by a key that this host trusts (`vmhost keys sign FILE` makes FILE.sig).
        BundleError."""
        path = os.fspath(path)
        found = []
        for name in (path, f"{path}.sig"):
            try:
                with open(name, "rb") as file:
                    found.append(file.read(_MAX_SIGNED + 1))
            except OSError as error:
                advice = "; sign the file with `vmhost keys sign`" if name != path else ""
                raise BundleError(f"{name}: {error.strerror}{advice}") from error
        if max(map(len, found)) > _MAX_SIGNED:
            raise BundleError(f"{path}: expected at most {_MAX_SIGNED >> 20} MiB")
        try:
            (TrustStore({}) if self._trust is None else self._trust).verify_file(*found, path)
        except vmhost.bytecode.errors.BundleError as error:
            raise BundleError(str(error)) from error
        return found[0]

    def _kept_model(self, digest):
        """The path for the prepared form of the model file with this SHA-256; None if none are kept."""
        if self._keeps_models and self._kept_models is None:
            self._kept_models = kept_models(self._state, self._policy.search)
            self._keeps_models = self._kept_models is not None
        return self._kept_models.path_of(digest) if self._keeps_models else None

    def _make_handle(self, version):
        return Task(self, self._service, version)

    def _read(self, bundle):
        try:
            if isinstance(bundle, Bundle):
                if not self._allow_unsigned and bundle.signed_by is None:
                    raise BundleError(f"{bundle.where}: not signed by a trusted key; this host does not allow that")
            else:
                bundle = read_bundle(bundle, self._trust, self._allow_unsigned)
            bundle.verify()
        except vmhost.bytecode.errors.BundleError as error:
            raise BundleError(str(error)) from error.__cause__  # it says all that the inner one says
        return bundle

    def _check_permissions(self, manifest, policy, where):
        """The grants for VMs. BundleError for requests that the host does not allow."""
        for kind, names in manifest.permissions.items():
            if names and kind not in self._policy.allow:
                raise BundleError(
                    f"{where}: asks for permissions.{kind} {list(names)}, which this host does not allow; take them "
                    f"out of task.yaml, or add {kind} to `allow` in host.yaml"
                )
        for name in manifest.permissions.get("host", ()):
            if name not in self._functions:
                known = ", ".join(sorted(self._functions)) or "none"
                raise BundleError(
                    f"{where}: asks for the host function {name!r}; this host has {known}; name it in "
                    "`functions` of host.yaml"
                )
        for name in manifest.permissions.get("tables", ()):
            if name.rpartition(":")[0] not in self._tables:
                known = ", ".join(sorted(self._tables)) or "none"
                raise BundleError(
                    f"{where}: asks for the embedding table {name!r}; this host has {known}; name it in `tables` of"
                    " host.yaml"
                )
        caps = [cap for cap in (self._policy.permissions, policy.permissions) if cap is not None]
        try:
            if not caps:
                return in_ascii(manifest.permissions)
            given, outside = settle(manifest.permissions, caps)
        except ConfigurationError as error:
            raise BundleError(f"{where}: {error}") from error
        if outside:
            asked = "\n".join(
                f"permissions.{kind} {name!r}{'' if checked == name else f' ({checked!r} on this machine)'}: "
                f"the host allows {', '.join(most) or 'none'}"
                for kind, name, checked, most in outside
            )
            raise BundleError(
                f"{where}: asks for more than this host allows; take it out of task.yaml, or add it to `permissions` "
                f"in host.yaml, for all and for tasks.{manifest.name} where they have any:\n{asked}"
            )
        return given

    def task(self, name: str) -> Task:
        """The Task of the loaded task `name`. KeyError lists the loaded ones."""
        try:
            return self._service.handle(name, self._make_handle)
        except KeyError:
            raise KeyError(f"{name}: no such task is loaded; there are {', '.join(self.tasks) or 'none'}") from None

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the loaded tasks."""
        return self._service.names()

    def unload(self, task: Task | str, *, drain: bool = True) -> None:
        """Unloads a task (a Task or a name).

        `drain`: its waiting calls still run; else all its calls end with ClosedError.
        """
        if not isinstance(task, (str, Task)):
            raise TypeError(f"unload: expected a Task or the name of one, got {shown(task)}")
        name = task if isinstance(task, str) else task.name
        try:
            self._service.unload(name, drain)
        except KeyError:
            raise KeyError(f"{name}: no such task is loaded; there are {', '.join(self.tasks) or 'none'}") from None

    def record(self, task: Task | str, policy: RecordPolicy | None) -> None:
        """Records calls of the loaded `task` (a Task or a name) by `policy` from now on; None stops recording.

        Versions loaded later follow the host's own policy. KeyError, ConfigurationError."""
        if policy is not None and not isinstance(policy, RecordPolicy):
            raise ConfigurationError(f"record: expected a RecordPolicy or None, got {shown(policy)}")
        name = task if isinstance(task, str) else task.name
        try:
            self._service.record(name, policy)
        except KeyError:
            raise KeyError(f"{name}: no such task is loaded; there are {', '.join(self.tasks) or 'none'}") from None

    @property
    def record_folders(self) -> tuple[str, ...]:
        """The folders in which calls have been recorded."""
        return tuple(sorted(self._service.record_folders))

    def forget(self, marks: "Iterable[bytes]") -> None:
        """Removes what contains one of `marks` from the files that are being recorded, and from the log lines that a
        crash report would show. OSError."""
        marks = tuple(marks)
        self._service.forget_calls(marks)
        if (notes := _crash_notes()) is not None:
            notes.forget(marks)

    # -- statistics and the end -----------------------------------------------------------------------------------

    def statistics(self) -> "HostStatistics":
        """HostStatistics: a frozen snapshot of all counters."""
        tables = {name: table.statistics() for name, table in self.tables.items()}
        return replace(self._service.statistics(), tables=tables)

    def numbers(self, first: int, step: int, steps: int) -> "HostNumbers":
        """The part of `statistics()` that a scrape needs, faster. Durations are in buckets with `steps` upper bounds:
        the ends of the first `first` fine buckets, of `step` more, and so on."""
        numbers = self._service.numbers(first, step, steps)
        tables = {name: table.statistics() for name, table in self.tables.items()}
        return replace(numbers, whole=replace(numbers.whole, tables=tables))

    def longest_calls(self, task: Task | str) -> "tuple[LongCall, ...]":
        """The longest calls of the loaded `task` (a Task or a name) in the last five to ten minutes, up to 20 of each
        version, longest first, with the sizes of their inputs. KeyError."""
        name = task if isinstance(task, str) else task.name
        try:
            return self._service.longest_calls(name)
        except KeyError:
            raise KeyError(f"{name}: no such task is loaded; there are {', '.join(self.tasks) or 'none'}") from None

    def profile(self, hz: float = 100) -> Profiling:
        """Starts a sampling profile of all VMs of this process, `hz` times a second on average (fewer where sampling
        would take more than a hundredth of a core): `with host.profile() as profiling: ...`, then `profiling.profile`.
        ValueError for an `hz` outside 0.1 to 10,000; RuntimeError if another profile is being taken in this process."""
        return Profiling(isolation.core().Profile(hz))

    def trace_engine(self) -> None:
        """Records from now on, in all hosts of the process, when calls run models (TaskFuture.engine_runs)."""
        isolation.core().trace_engine()

    def coverage(self) -> Coverage:
        """The lines and branches of tasks that ran in this process so far, in the share of calls that
        TaskPolicy.coverage selects."""
        return Coverage.taken(isolation.core().coverage())

    @property
    def policy(self) -> Policy:
        """The Policy that this host was made with."""
        return self._policy

    @property
    def state(self) -> "Path | None":
        """The state folder."""
        return self._state

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self, *, drain: bool = True, timeout_s: float | None = None) -> "tuple[VMStatistics, ...]":
        """Ends all calls and VMs; returns the VMStatistics of VMs that had to be quarantined. May be repeated.

        `drain`: submitted calls still run, for at most `timeout_s` seconds; after that, or without `drain`, they end
        with ClosedError. New calls get ClosedError at once. Host functions whose callers gave up on them get two
        seconds; those that still run then are logged, and are in `statistics().functions`. Called from a host function,
        this starts closing and does not wait."""
        if isinstance(timeout_s, (int, float)):
            timeout_s = max(timeout_s, 0)  # already over
        end_after(timeout_s)  # raises for invalid ones
        if timeout_s is not None and timeout_s > threading.TIMEOUT_MAX:
            timeout_s = None
        self._closed = True
        if os.getpid() != self._process:
            return ()  # a forked child: the VMs and their threads are the parent's
        service = self._service
        if service.is_waited_for(native_threads.get_ident()):
            service.begin_close(drain)
            return service.quarantined
        service.ask_to_close(drain)
        if not service.wait_closed(timeout_s if drain else None):
            service.ask_to_close(False)
            service.wait_closed()
        service.wait_callbacks()
        service.wait_functions()
        return service.quarantined

    def __enter__(self) -> "Self":
        if self._closed:
            raise ClosedError("the host is closed; make a new one")
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: object, traceback: object) -> None:
        self.close(drain=exc_type is None)

    def __repr__(self):
        return f"<vmhost.Host {'closed' if self._closed else ', '.join(self.tasks) or 'no tasks'}>"


def start_service(policy, native, folder=None, functions=dict, own=lambda service: None, codec=None):
    """A started Service on the native core, for Host and VMExecutor; closed at exit at the latest.

    `own(service)` is called before it starts; from then on the owner abandons it if something fails.
    """
    _end_hosts_at_exit()
    if (refusal := native.memory_refusal()) is not None:
        raise ConfigurationError(refusal)
    if not native.sqlite_counted():
        _log.warning(
            "SQLite was in use before the first host was made, so what tasks allocate in it does not count against "
            "their memory limit; make the host before the first connection"
        )
    service = Service(policy, native, system_code_store(native), folder, functions, codec=codec)
    _services.add(service)
    own(service)
    service.start()
    return service


def _check_arguments(allow_unsigned, policy, state, functions):
    """ConfigurationError for the first invalid argument of Host."""
    if not isinstance(allow_unsigned, bool):
        raise ConfigurationError(f"allow_unsigned: expected True or False, got {shown(allow_unsigned)}")
    if policy is not None and not isinstance(policy, Policy):
        raise ConfigurationError(f"policy: expected a Policy, got {shown(policy)}")
    if state is not None:
        _path(state, "state", "the path of a folder")
    if not isinstance(functions, Mapping) and functions is not None:
        raise ConfigurationError(f"functions: expected a mapping of names to functions, got {shown(functions)}")
    for name, function in (functions or {}).items():
        if not isinstance(name, str):
            raise ConfigurationError(f"functions: expected names, got {shown(name)}")
        if not callable(function):
            raise ConfigurationError(f"functions: {name}: expected a callable, got {type(function).__name__}")


def _checked_tables(tables):
    if tables is None:
        return {}
    from vmhost.host_tables import checked_tables  # here: it needs the engine, which few hosts have loaded

    return checked_tables(tables)


def _path(value, what, expected="a path"):
    """`value` as a valid path for the file system. ConfigurationError naming `what`."""
    try:
        path = os.fspath(value)
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if "\0" not in path and os.fsencode(path):
            return path
    except TypeError, UnicodeEncodeError:
        pass
    raise ConfigurationError(f"{what}: expected {expected}, got {shown(value)}")


def _trust_store(trust):
    if trust is None or isinstance(trust, TrustStore):
        return trust
    trust = _path(trust, "trust", "a TrustStore or the path of a file or folder of public keys")
    try:
        return TrustStore.load(trust)
    except vmhost.bytecode.errors.SigningError as error:
        raise ConfigurationError(str(error)) from error


def _state_folder(path):
    """The StateFolder at `path`.

    Waits for dropped hosts of this process that are about to release that folder.
    """
    from vmhost.runtime.state import StateFolder  # here: few hosts have one

    for service in list(_services):
        if service.abandoned and service.holds(path):
            service.wait_closed()
    return StateFolder(path)


def _crash_notes():
    """vmhost.runtime.crash_notes; None in a device image, which lacks it."""
    try:
        from vmhost.runtime import crash_notes
    except ImportError:
        return None
    return crash_notes


def _crashes_before(native, folder, host):
    """The crashes in the breadcrumbs of the last process with this state folder, which this process now takes over."""
    found, error = native.crash_open(folder.crash_map)
    notes = _crash_notes()
    moved = notes is not None and error != errno.EBUSY and notes.put_aside(folder)
    if error in (errno.EBUSY, errno.EEXIST):  # a process has one breadcrumb file, in the folder of its first host
        _log.info("%s: crashes will not be traced there: %s", folder.crash_map, os.strerror(error))
    elif error:
        _log.warning("%s: crashes will not be traced: %s", folder.crash_map, os.strerror(error))
    elif moved:
        from vmhost.masking import CurrentMasking

        there = weakref.ref(host)  # the notes outlast it
        notes.begin(native, folder, CurrentMasking(lambda: host._policy if (host := there()) is not None else None))
    crashes = []
    for entry in found:
        try:
            name = signal.Signals(entry["signal"]).name
        except ValueError:
            _log.error(
                "%s: damaged, there is no signal %s; what crashed before is not known",
                folder.crash_map,
                entry["signal"],
            )
            continue
        crashes.append(Crash(entry["task"], entry["version"], entry["phase"], name, entry["pid"]))
    for crash in crashes:
        _log.error("%s: %s", folder.path, crash)
        if crash.task:
            folder.add_crash(crash.task, crash.version, str(crash))
    return tuple(crashes)


SYSTEM_BUNDLE = IN_CHECKOUT


def system_code_store(native):
    """The code store from which all VMs boot: the standard library and the guest runtime, as set-up compiled them."""
    store = _system_code_stores.get(native)
    if store is not None:
        return store  # without the lock, which Ctrl-C in the main thread might leave locked
    with _system_lock:
        store = _system_code_stores.get(native)
        if store is None:
            store = _system_code_stores[native] = boot_code_store(native, SYSTEM_BUNDLE)
        return store


@functools.cache
def _end_hosts_at_exit():
    # Registered after the core's own handler, so that it runs first: that one ends all VMs without ending futures.
    atexit.register(_close_all, os.getpid())


def _close_all(process):
    """At exit: ends all remaining hosts, so that no VM's thread outlives the interpreter."""
    if os.getpid() != process:
        return  # a forked child: the VMs and their threads are the parent's
    services = [service for service in _services if not service.finished]
    for service in services:
        service.begin_close(False)
    for service in services:
        service.wait_closed()
        service.wait_functions()
