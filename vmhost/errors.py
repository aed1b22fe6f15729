"""The errors that callers see, and how the end of a native call becomes one of them.

Every error of this package is a `VMHostError`. A message says what happened, where, what was expected and found, and
the remedy. The native core calls `from_core` (`set_error_factory`) on the thread that asks for a result.
"""

import concurrent.futures
import itertools
import os
from enum import IntEnum

from vmhost import memory_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from vmhost.memory_lines import MemoryLines


class Kind(IntEnum):
    """How a call ended. The numbers are those of `vmhost/isolation/lanes/vm.h`."""

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

    `task` and `version` name the task, None if no task is involved.
    """

    task: str | None
    version: str | None

    def __init__(self, message: str, *, task: str | None = None, version: str | None = None) -> None:
        super().__init__(message)
        self.task = task
        self.version = version


class ConfigurationError(VMHostError):
    """A `host.yaml`, a limit, a state folder or an argument of `Host` that cannot be used."""


class BundleError(VMHostError):
    """A bundle that is unsigned, altered, malformed, made for another Python, or asks for more than is granted."""


class TaskError(VMHostError):
    """The task raised, or could not be imported.

    `type_name` is the guest's exception type ("ValueError", "shop.prices.Unknown"), `guest_message` its text,
    `guest_traceback` its traceback with the task's own file names and lines, `report` the guest's whole report.
    `__cause__` is the exception itself if its class is registered with the host.
    """

    type_name: str | None = None
    guest_message: str | None = None
    guest_traceback: str | None = None
    report: "dict[str, Any] | None" = None


class TimeLimitError(VMHostError, TimeoutError):
    """The call exceeded its time limit.

    `resource` is "wall" or "cpu"; `guest_traceback` says where it was stopped, if known.
    """

    resource: str = "wall"
    guest_traceback: str | None = None


class MemoryLimitError(VMHostError, MemoryError):
    """The task needed more memory than its limit. `guest_traceback` says where it was stopped, if known; `memory_lines`
    which of its lines held the memory then, with TaskPolicy.memory_lines."""

    guest_traceback: str | None = None
    memory_lines: "MemoryLines | None" = None


class PermissionDenied(VMHostError):
    """The task did something outside its permissions and did not catch the PermissionError.

    Attributes as in TaskError.
    """

    type_name: str | None = None
    guest_message: str | None = None
    guest_traceback: str | None = None
    report: "dict[str, Any] | None" = None


class CrossingError(VMHostError, TypeError):
    """An argument or a result that cannot cross the wall of a VM; the message says which part, and why."""

    def _render_traceback_(self) -> list[str]:
        """What IPython prints: the caller's line and the message, since the frames inside vmhost say nothing."""
        own, step, place = os.path.dirname(__file__) + os.sep, self.__traceback__, ""
        while step is not None:
            code = step.tb_frame.f_code
            if not code.co_filename.startswith(own):
                place = f"{code.co_filename}, line {step.tb_lineno}, in {code.co_name}"
            step = step.tb_next
        return [*([place] if place else []), f"{type(self).__name__}: {self}"]


class BreakerOpenError(VMHostError):
    """The breaker of this task version is open. `retry_in_s` is the time until calls are allowed again."""

    retry_in_s: float = 0.0


class QueueFullError(VMHostError):
    """The bounded queue of the task is full; nothing was submitted."""


class VMLostError(VMHostError):
    """The VM wedged, crashed or could not be booted; it has been, or will be, replaced."""

    guest_traceback: str | None = None


class ClosedError(VMHostError, RuntimeError):
    """The host or the task was closed before the call could end, or before it was submitted."""

    guest_traceback: str | None = None


# Limits on a guest's report: characters of a text and of a note; number of notes, steps of a chain, arguments. The
# guest runtime sends less.
_MAX_TEXT_CHARS, _MAX_NOTE_CHARS, _MAX_NOTES, _MAX_CHAIN, _MAX_ARGS = 1 << 17, 4096, 20, 20, 100


def read_report(payload):
    """A guest's report of an exception, `payload`, as a dict of str and plain values, of bounded size.

    A task can forge it, so every part is checked.
    """
    given = payload if type(payload) is dict else {"message": payload}
    report = {key: _text(given.get(key)) for key in ("type", "module", "message", "traceback")}
    report["type"] = report["type"] or "Exception"
    report["builtin"] = given.get("builtin") is True
    args = given.get("args")
    report["args"] = args if type(args) is list and len(args) <= _MAX_ARGS and all(map(_is_plain, args)) else None
    attributes = _of_type(dict, given.get("attributes"))
    report["attributes"] = {
        key: attributes[key]
        for key in ("filename", "filename2", "name", "path")
        if key in attributes and _is_plain(attributes[key])
    }
    report["state"] = {
        key: value
        for key, value in itertools.islice(_of_type(dict, given.get("state")).items(), _MAX_ARGS)
        if type(key) is str and _is_plain(value)
    }
    report["whole"] = given.get("whole") is True
    report["notes"] = [
        note[:_MAX_NOTE_CHARS] for note in _of_type(list, given.get("notes"))[:_MAX_NOTES] if type(note) is str
    ]
    report["chain"] = [
        {key: _text(step.get(key))[:_MAX_NOTE_CHARS] for key in ("relation", "type", "module", "message")}
        for step in _of_type(list, given.get("chain"))[:_MAX_CHAIN]
        if type(step) is dict
    ]
    # decoded by the host's codec, of a class that it knows, or missing
    report["error"] = given["error"] if isinstance(given.get("error"), Exception) else None
    return report


def _of_type(kind, value):
    return value if type(value) is kind else kind()


def _text(value):
    return _of_type(str, value)[:_MAX_TEXT_CHARS]


def _is_plain(value):
    """Is it safe among an exception's arguments? They get printed, so large ints, whose text Python refuses, are
    not."""
    if type(value) in (str, bytes):
        return len(value) <= _MAX_TEXT_CHARS
    return value is None or type(value) in (bool, float) or type(value) is int and value.bit_length() <= 256


def _of_task(error_type, report, where, name, version):
    report = read_report(report)
    type_name = report["type"]
    if report["module"] not in ("", "builtins", "__main__") and not report["builtin"]:
        type_name = f"{report['module']}.{type_name}"
    text = report["message"]
    summary = text if error_type is PermissionDenied and text else f"{type_name}: {text}" if text else type_name
    error = error_type(f"{where}: {summary}", task=name, version=version)
    error.type_name = type_name
    error.guest_message = text
    error.report = report
    _add_traceback(error, report, "in the guest")
    raised = report.pop("error")
    if raised is not None:
        error.__cause__ = raised
    return error


def _add_traceback(error, report, where):
    error.guest_traceback = report["traceback"]
    if error.guest_traceback.startswith("  File"):  # of a stopped call: the core reports only frames
        error.guest_traceback = f"Traceback (most recent call last):\n{error.guest_traceback}"
    if error.guest_traceback:
        error.add_note(f"{error.task} {error.version}, {where}:\n{error.guest_traceback.rstrip()}")


def _is_permission_denied(report):
    return type(report) is dict and report.get("type") == "PermissionDenied" and report.get("module") == "vmhost.guest"


_ADVICE = {
    Kind.TIME_LIMIT: (
        TimeLimitError,
        "the call did not end within its time",
        "raise timeout_s or limits.wall_time in task.yaml, or make the task faster",
    ),
    Kind.CPU_LIMIT: (
        TimeLimitError,
        "the call used up its CPU time",
        "raise limits.cpu_time in task.yaml, or make the task faster",
    ),
    Kind.MEMORY_LIMIT: (
        MemoryLimitError,
        "the call needed more memory than the task's limit",
        "raise limits.memory in task.yaml, or make the task smaller",
    ),
    Kind.VM_LOST: (
        VMLostError,
        "the VM was lost while it ran the call",
        "other tasks are not affected; see host.statistics() for what was quarantined",
    ),
    Kind.CLOSED: (ClosedError, "closed before the call ended", "submit to an open host"),
    Kind.QUEUE_FULL: (
        QueueFullError,
        "the queue is full",
        "submit more slowly, or raise `queue` for this task in host.yaml",
    ),
}


# Of a call that never began.
_QUEUE_ADVICE = "raise timeout_s, submit fewer calls at once, or allow more VMs (`vms` in host.yaml)"
_EXECUTOR_QUEUE_ADVICE = "raise timeout_s, submit fewer calls at once, or raise max_workers"

# The same for VMExecutor, which has no task.yaml.
_EXECUTOR_ADVICE = {
    Kind.TIME_LIMIT: "raise timeout_s, or `wall_time` in the executor's limits, or make the function faster",
    Kind.CPU_LIMIT: "raise `cpu_time` in the executor's limits, or make the function faster",
    Kind.MEMORY_LIMIT: "raise `memory` in the executor's limits, or make the function smaller",
    Kind.VM_LOST: "other calls are not affected; see statistics() of the executor for what was quarantined",
}


def advise_executor(error, kind):
    """Replaces the advice in `error`, from from_core for a call that ended as `kind`, by that for VMExecutor."""
    if kind in _EXECUTOR_ADVICE and error.args and isinstance(error.args[0], str):
        text = error.args[0]
        if text.endswith(_QUEUE_ADVICE):
            error.args = (text.removesuffix(_QUEUE_ADVICE) + _EXECUTOR_QUEUE_ADVICE,)
        else:
            error.args = (text.removesuffix(_ADVICE[kind][2]) + _EXECUTOR_ADVICE[kind],)


def from_core(kind, payload, name, version):
    """The exception for a call of task `name` `version` that ended as `kind`.

    `payload` is the guest's report (a dict) for TASK_ERROR and LOAD_ERROR, the queue's size for QUEUE_FULL, the
    nanoseconds that a call waited which never began for TIME_LIMIT, else a sentence with details, or None.
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
        what = read_report(payload)["message"]
        return CrossingError(f"{where}: {what or 'a value cannot cross'}", task=name, version=version)
    error_type, what, advice = _ADVICE[kind]
    held = payload.pop("held", None) if kind is Kind.MEMORY_LIMIT and isinstance(payload, dict) else None
    if held is not None and "payload" in payload:
        payload = payload["payload"]
    if isinstance(payload, str) and payload:
        what = payload
    elif kind is Kind.QUEUE_FULL and isinstance(payload, int):
        what = f"the queue is full ({payload} calls may wait)"
    elif kind is Kind.TIME_LIMIT and isinstance(payload, int):
        what, advice = f"the call waited {payload / 1e9:.3g} s for a VM, all of its time", _QUEUE_ADVICE
    elif kind is Kind.TIME_LIMIT and isinstance(payload, dict) and type(payload.get("waited_ns")) is int:
        what += f", of which it waited {payload['waited_ns'] / 1e9:.3g} s for a VM"
    error = error_type(f"{where}: {what}; {advice}", task=name, version=version)
    if isinstance(payload, dict):
        _add_traceback(error, read_report(payload), "was stopped here")
    if held is not None:
        error.memory_lines = memory_lines.read(held, name, version)
        error.add_note(f"{name} {version}, what held the memory:\n{error.memory_lines.text()}")
    if kind is Kind.CPU_LIMIT:
        error.resource = "cpu"
    return error
