"""Recording: writes a share of a task's calls to a baseline file (vmhost/baseline.py), as RecordPolicy says.

A Recorder belongs to one version of a task. While it is on, it wraps the lane's call functions; for a call outside of
the share this costs one random number. For a call in the share, the value is packed on the calling thread, since its
caller may change it afterwards; everything else is done on the service's second thread, after the call has ended.
"""

import contextlib
import logging
import os
import platform
import random
import time
from pathlib import Path

from vmhost.baseline import BaselineWriter, Header, Recorded, check_observed, pack_value, unpack_value
from vmhost.errors import ConfigurationError, Kind, VMHostError

_log = logging.getLogger("vmhost")
_BEGIN = {"answers": None}  # tells a VM to record
# Calls that no VM served, or that were cancelled.
_NOT_RECORDED = frozenset((Kind.CLOSED, Kind.CANCELLED, Kind.QUEUE_FULL))
_MAX_PENDING = 256  # calls that have ended and are not yet written


class Recorder:
    """Records calls of `version`, a vmhost.task.Version, under `policy`, a RecordPolicy. ConfigurationError if its
    folder cannot be used."""

    def __init__(self, version, policy, codec, service):
        self.policy = policy
        self._version, self._codec, self._service = version, codec, service
        self._masking = policy.masking()
        self._writer = None
        self._pending = set()  # native calls to be recorded once they have ended
        self._closing = False
        self.left_out = 0  # calls of the share that were too large, or too frequent
        self._full = False
        self.stopped = None  # why recording has stopped
        self._draw = random.Random().random  # our own: seeding `random` must not select the calls
        try:
            Path(policy.folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"record: folder {policy.folder}: cannot be used: {error.strerror or error}; choose another"
            ) from error

    @property
    def path(self):
        """The file; None before the first call."""
        return self._writer.path if self._writer is not None else None

    # -- calling --------------------------------------------------------------------------------------------------

    def before(self, lane):
        """(call, submit, submit_many) of `lane` with a share of the calls recorded."""
        draw, share, recorded = self._draw, self.policy.share, self._recorded
        plain_call, plain_submit, plain_many = lane.call, lane.submit, lane.submit_many

        def call(value, timeout_s=None, priority=0, entry=None):
            if draw() >= share:
                return plain_call(value, timeout_s, priority, entry)
            native = recorded(lane, value, timeout_s, priority, entry)
            try:
                return native.result()
            finally:
                if not native.done():
                    native.stop()  # the calling thread was interrupted

        def submit(value, timeout_s=None, priority=0, entry=None):
            if draw() >= share:
                return plain_submit(value, timeout_s, priority, entry)
            return recorded(lane, value, timeout_s, priority, entry)

        def submit_many(values, timeout_s=None, priority=0, entry=None):
            if values and (1 - share) ** len(values) < draw():
                return _in_parts(values, share, draw, plain_many, submit_one, timeout_s, priority, entry)
            return plain_many(values, timeout_s, priority, entry)

        def submit_one(value, timeout_s, priority, entry):
            return recorded(lane, value, timeout_s, priority, entry)

        return call, submit, submit_many

    def _recorded(self, lane, value, timeout_s, priority, entry):
        """Submit the call; it is recorded when it ends, if possible. Returns the native call."""
        if self.stopped is not None or len(self._pending) >= _MAX_PENDING:
            self.left_out += 1
            return lane.submit(value, timeout_s, priority, entry)
        secrets = {}
        try:
            shown = self._masking.value(value, secrets, self._codec.pack) if self._masking else value
            packed = pack_value(shown, self._codec.pack)
        except TypeError, ValueError, RecursionError, MemoryError:  # the lane reports the error
            packed = None
        if packed is None or len(packed) > self.policy.max_value_bytes:
            self.left_out += 1
            return lane.submit(value, timeout_s, priority, entry)
        at = time.time()
        call = lane.submit(value, timeout_s, priority, entry, False, _BEGIN)
        self._pending.add(call)
        self._service.watch(
            call, lambda: self._service.put_aside(lambda: self._ended(call, at, entry, packed, secrets))
        )
        return call

    # -- on the second thread -------------------------------------------------------------------------------------

    def _ended(self, call, at, entry, packed, secrets):
        try:
            if call.kind not in _NOT_RECORDED and not self._full:
                self._write(call, at, entry, packed, secrets)
        finally:
            self._pending.discard(call)
            if self._closing:
                self.close()

    def _write(self, call, at, entry, packed, secrets):
        try:
            fields = self._fields(call, at, entry, packed, secrets)
        except (TypeError, ValueError, RecursionError, MemoryError) as error:
            _log.debug("%s: a call is not recorded: %s", self._version.name, error)
            self.left_out += 1
            return
        if fields is None:
            self.left_out += 1
            return
        try:
            if self._writer is None:
                self._writer = self._open()
            self._writer.append(fields)
        except ValueError:  # a call that came as it was closed
            self.left_out += 1
            return
        except OSError as error:
            self._stop(f"{error.strerror or error}: {error.filename or self.policy.folder}", logging.ERROR)
            return
        if self._writer.calls >= self.policy.max_calls:
            self._stop(f"{self._writer.calls} calls are recorded, which is `max_calls`")
        elif self._writer.bytes >= self.policy.max_bytes:
            self._stop(f"{self._writer.bytes} bytes are recorded, which is `max_bytes`")

    def _fields(self, call, at, entry, packed, secrets):
        """The fields of the call in a baseline; None if it is too large."""
        result = error = None
        kind = Kind(call.kind)
        try:
            result = self._packed(call.result(), secrets)
        except VMHostError as raised:
            if kind is Kind.OK:  # the host cannot create the result
                kind = Kind.VALUE
            error = _error_fields(raised)
            error["message"] = self._masking.text(error["message"], secrets)
        observed = _observed(call)
        if observed is not None:
            observed = self._packed(observed, secrets)
        submitted, started, ended = call.timings
        if secrets and self._masking:  # those of a later part may be in an earlier one
            again = [each and self._packed(unpack_value(each), secrets) for each in (packed, result)]
            packed, result = again
        most = self.policy.max_value_bytes
        if result is not None and len(result) > most or observed is not None and len(observed) > most:
            return None
        return {
            "at": at,
            "entry": entry,
            "value": packed,
            "outcome": kind.name,
            "result": result,
            "error": error,
            "wall_s": (ended - started) / 1e9 if started else 0.0,
            "wait_s": ((started or ended) - submitted) / 1e9,
            "result_bytes": 0 if result is None else len(result),
            "observed": observed,
            "hidden": len(secrets),
        }

    def _packed(self, value, secrets):
        if self._masking:
            value = self._masking.value(value, secrets, self._codec.pack)
        return pack_value(value, self._codec.pack)

    def _open(self):
        version = self._version
        from vmhost import __version__

        header = Header(
            task=version.name,
            version=version.version,
            digest=version.digest.hex(),
            entry=version.entry,
            python=platform.python_version(),
            vmhost=__version__,
            started=time.time(),
            share=float(self.policy.share),
            masked=self._masking.names,
        )
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        name = f"{version.name}-{version.version}-{stamp}"
        for number in range(1000):
            path = Path(self.policy.folder, f"{name}-{os.getpid()}{f'-{number}' if number else ''}.baseline")
            try:
                return BaselineWriter(path, header)
            except FileExistsError:
                continue
        raise FileExistsError(17, "too many baselines of one second", str(path))

    def _stop(self, why, level=logging.INFO):
        self._full = True
        self.stopped = why
        _log.log(level, "%s %s: no more calls are recorded: %s", self._version.name, self._version.version, why)
        self.close()
        self._service.reroute(self._version)

    def forget(self, marks):
        """Removes recorded calls whose bytes contain one of `marks`. Called on the second thread, after the calls that
        had ended."""
        if self._writer is not None:
            self._writer.forget(marks)

    def close(self, why="closed"):
        """Record no more calls, except calls of the share in progress. Can be repeated."""
        self._closing = True
        self.stopped = self.stopped or why
        if not self._pending and self._writer is not None:
            self._writer.close()


def _in_parts(values, share, draw, plain_many, submit_one, timeout_s, priority, entry):
    """Submit `values`, of which at least one is recorded; those between recorded ones are submitted together."""
    chosen = {at for at in range(len(values)) if draw() < share} or {int(draw() * len(values))}
    calls, begin = [], 0
    try:
        for at in (*sorted(chosen), len(values)):
            if at > begin:
                calls.extend(plain_many(values[begin:at], timeout_s, priority, entry))
            if at < len(values):
                calls.append(submit_one(values[at], timeout_s, priority, entry))
            begin = at + 1
    except BaseException:
        for call in calls:  # all or none, like the lane
            call.cancel()
        raise
    return calls


def _observed(call):
    """What the VM recorded of the native `call`; None if nothing, or if it is forged."""
    observed = call.record
    try:
        return None if observed is None else check_observed(observed)
    except ValueError, KeyError:
        return None


def _error_fields(error):
    """The fields of a call's error in a baseline."""
    text = getattr(error, "guest_message", None)
    return {
        "type_name": getattr(error, "type_name", None) or type(error).__name__,
        "message": str(error).removeprefix(f"{error.task} {error.version}: ") if text is None else text,
    }


def replayed(call, recorded, pack_other):
    """The outcome of the native `call`, a replay of `recorded` that has ended: a Recorded."""
    kind = Kind(call.kind)
    result = error = None
    try:
        result = call.result()
    except VMHostError as raised:
        kind = Kind.VALUE if kind is Kind.OK else kind
        error = _error_fields(raised)
    submitted, started, ended = call.timings
    packed = None
    if kind is Kind.OK:
        with contextlib.suppress(TypeError, ValueError, RecursionError):
            packed = pack_value(result, pack_other)
    return Recorded(
        recorded.number,
        recorded.at,
        recorded.entry,
        recorded.value,
        outcome=kind.name,
        result=result,
        error=error,
        wall_s=(ended - started) / 1e9 if started else 0.0,
        wait_s=((started or ended) - submitted) / 1e9,
        result_bytes=0 if packed is None else len(packed),
        observed=_observed(call),
        packed_result=packed,
    )
