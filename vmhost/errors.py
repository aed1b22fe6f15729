"""The errors that a caller sees, and how an ended call of the native core becomes one of them.

Every error of this package is a `VMHostError`. A message says what happened, where, what was expected, what was found
and what to do. `from_core` is handed to the native core (`set_error_factory`); it runs on the thread that asks for a
result.
"""

import concurrent.futures
from enum import IntEnum


class Kind(IntEnum):
    """How a call ended. The numbers are those of `vmhost/isolation/vm.h`."""

    OK = 0
    TASK_ERROR = 1
    TIME_LIMIT = 2
    CPU_LIMIT = 3
    MEMORY_LIMIT = 4
    VM_LOST = 5
    CLOSED = 6
    CANCELLED = 7
    QUEUE_FULL = 8
    VALUE = 9
    LOAD_ERROR = 10


class VMHostError(Exception):
    """The base of every error of vmhost.

    `task` and `version` name the task where one is concerned, else they are None.
    """

    def __init__(self, message, *, task=None, version=None):
        super().__init__(message)
        self.task = task
        self.version = version


class ConfigurationError(VMHostError):
    """A `host.yaml`, a limit, a state folder or an argument of `Host` that cannot be used."""


class BundleError(VMHostError):
    """A bundle that is unsigned, altered, malformed, made for another Python, or asks for what is not given here."""


class TaskError(VMHostError):
    """The task raised, or could not be imported.

    `type_name` is the guest's exception type ("ValueError", "shop.prices.Unknown"), `guest_message` its text,
    `guest_traceback` its traceback with the task's own file names and lines, `report` all that the guest told.
    """

    type_name = None
    guest_message = None
    guest_traceback = None
    report = None


class TimeLimitError(VMHostError, TimeoutError):
    """The call took longer than it may.

    `resource` is "wall" or "cpu"; `guest_traceback` says where it was, if that is known.
    """

    resource = "wall"
    guest_traceback = None


class MemoryLimitError(VMHostError):
    """The task needed more memory than its limit. `guest_traceback` says where it was, if that is known."""

    guest_traceback = None


class PermissionDenied(VMHostError):
    """The task did what its permissions do not name and did not catch the PermissionError.

    Attributes as in TaskError.
    """

    type_name = None
    guest_message = None
    guest_traceback = None
    report = None


class CrossingError(VMHostError, TypeError):
    """An argument or a result that cannot cross the wall of a VM; the message says which part of it, and why."""


class BreakerOpenError(VMHostError):
    """The breaker of this task version is open. `retry_in_s` is the time until calls are tried again."""

    retry_in_s = 0.0


class QueueFullError(VMHostError):
    """The bounded queue of the task is full; nothing was submitted."""


class VMLostError(VMHostError):
    """The VM wedged, crashed or could not be booted; it has been, or will be, replaced."""

    guest_traceback = None


class ClosedError(VMHostError, RuntimeError):
    """The host or the task was closed before the call could end, or before it was submitted."""

    guest_traceback = None


def _of_task(error_type, report, where, name, version):
    report = report if isinstance(report, dict) else {"type": "Exception", "message": str(report or "")}
    type_name = report.get("type") or "Exception"
    if report.get("module") not in (None, "", "builtins", "__main__") and not report.get("builtin"):
        type_name = f"{report['module']}.{type_name}"
    text = report.get("message") or ""
    said = text if error_type is PermissionDenied and text else f"{type_name}: {text}" if text else type_name
    error = error_type(f"{where}: {said}", task=name, version=version)
    error.type_name = type_name
    error.guest_message = text
    error.report = report
    _add_traceback(error, report, "in the guest")
    return error


def _add_traceback(error, report, where):
    error.guest_traceback = report.get("traceback") or ""
    if error.guest_traceback.startswith("  File"):      # of a call that was stopped: the core reports frames and no more
        error.guest_traceback = f"Traceback (most recent call last):\n{error.guest_traceback}"
    if error.guest_traceback:
        error.add_note(f"{error.task} {error.version}, {where}:\n{error.guest_traceback.rstrip()}")


def _is_permission_denied(report):
    return (isinstance(report, dict) and report.get("type") == "PermissionDenied"
            and report.get("module") == "vmhost.guest")


_ADVICE = {
    Kind.TIME_LIMIT: (TimeLimitError, "the call did not end within its time",
                      "raise timeout_s or limits.wall_time in task.yaml, or make the task faster"),
    Kind.CPU_LIMIT: (TimeLimitError, "the call used up its CPU time",
                     "raise limits.cpu_time in task.yaml, or make the task faster"),
    Kind.MEMORY_LIMIT: (MemoryLimitError, "the call needed more memory than the task's limit",
                        "raise limits.memory in task.yaml, or make the task smaller"),
    Kind.VM_LOST: (VMLostError, "the VM was lost while the call was with it",
                   "other tasks are not concerned; see host.statistics() for what was quarantined"),
    Kind.CLOSED: (ClosedError, "closed before the call ended", "submit to an open host"),
    Kind.QUEUE_FULL: (QueueFullError, "the queue is full",
                      "submit more slowly, or raise `queue` for this task in host.yaml"),
}


def from_core(kind, payload, name, version):
    """The exception for a call of task `name` `version` that ended as `kind`.

    `payload` is the guest's report (a dict) for TASK_ERROR and LOAD_ERROR, the queue's size for QUEUE_FULL, else a
    sentence with details, or None.
    """
    kind = Kind(kind)
    where = f"{name} {version}"
    if kind is Kind.CANCELLED:
        return concurrent.futures.CancelledError(f"{where}: the call was cancelled")
    if kind in (Kind.TASK_ERROR, Kind.LOAD_ERROR):
        if _is_permission_denied(payload):
            return _of_task(PermissionDenied, payload, where, name, version)
        if kind is Kind.LOAD_ERROR:
            where += ": the entry point could not be loaded"
        return _of_task(TaskError, payload, where, name, version)
    if kind is Kind.VALUE:
        what = payload.get("message") if isinstance(payload, dict) else payload
        return CrossingError(f"{where}: {what or 'a value cannot cross'}", task=name, version=version)
    error_type, what, advice = _ADVICE[kind]
    if isinstance(payload, str) and payload:
        what = payload
    elif kind is Kind.QUEUE_FULL and payload is not None:
        what = f"the queue is full ({payload} calls may wait)"
    error = error_type(f"{where}: {what}; {advice}", task=name, version=version)
    if isinstance(payload, dict):
        _add_traceback(error, payload, "was stopped here")
    if kind is Kind.CPU_LIMIT:
        error.resource = "cpu"
    return error
