"""The future of `Task.submit`: a `concurrent.futures.Future` that builds its standard machinery on demand.

`result()` and `done()` go straight to the native call. Callbacks, `concurrent.futures.wait`, `as_completed` and
`asyncio.wrap_future` use the attributes of the standard Future (`_condition`, `_state`, ...); the first access to one
of them makes them all and watches for the end of the call. So a future costs well under a microsecond.
"""

import concurrent.futures
from collections.abc import Callable

from vmhost.errors import Kind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_Future = concurrent.futures.Future
_LAZY = frozenset(("_condition", "_state", "_result", "_exception", "_waiters", "_done_callbacks"))


def is_asyncio(callback):
    """Is it the callback that `asyncio.wrap_future` adds to the future that it wraps?"""
    return getattr(callback, "__module__", None) == "asyncio.futures"


class TaskFuture(_Future["Any"]):
    """One submitted call. All methods of a standard Future, and `stop()`."""

    def __init__(self, call, task):
        # The standard __init__ is deferred; see __getattr__.
        self._call = call
        self._task = task  # keeps the host alive until the call ended

    def __getattr__(self, name):
        if name not in _LAZY:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        service = self._task._service
        with service.future_lock:
            if "_condition" not in self.__dict__:
                future = _Future()
                ended = self._call.done()
                if ended:
                    self._settle(future)
                condition = future.__dict__.pop("_condition")
                if "_condition" not in self.__dict__:  # unless a finalizer that ran meanwhile has made them
                    self.__dict__.update(future.__dict__)
                    self.__dict__["_condition"] = condition  # last: other threads check for it
                    if not ended:
                        service.watch(self._call, self._ended)
        return self.__dict__[name]

    def result(self, timeout: float | None = None) -> "Any":
        """The call's result; raises its error, or TimeoutError after `timeout` seconds, while the call continues."""
        if timeout is not None:
            self._wait(timeout)
        return self._outcome()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The call's error, None if it succeeded. Raises CancelledError, and TimeoutError like `result`."""
        self._wait(timeout)
        if self._call.kind == Kind.OK:
            return None
        _, error = self._ending()
        if not self._was_cancelled():
            return error
        try:
            raise error
        finally:
            del self, error  # the error's traceback has this frame

    def _wait(self, timeout):
        if isinstance(timeout, (int, float)) and timeout < 0:
            timeout = 0  # as Python's futures
        if not self._call.wait(timeout):
            raise TimeoutError(f"the call has not ended within {timeout} s; it continues, see cancel() and stop()")

    def done(self) -> bool:
        return self._call.done()

    def cancelled(self) -> bool:
        return self._call.done() and self._was_cancelled()

    def running(self) -> bool:
        return self._call.state == "running"

    def began(self) -> bool:
        """Did a VM start the call? For a call that has ended; False if it timed out or was cancelled while it
        waited."""
        return self._call.timings[1] != 0

    def timings(self) -> tuple[int, int, int]:
        """When the call was submitted, started and ended, in nanoseconds of `time.monotonic_ns`; 0: never, or not
        yet."""
        return self._call.timings

    def engine_runs(self) -> tuple[int, tuple[tuple[int, int], ...]]:
        """The number of models that the call ran on its VM's own thread, and (begin, end) of the first ones, in
        nanoseconds of `time.monotonic_ns`. After Host.trace_engine(), for a call that has ended."""
        return self._call.engine_runs

    def outcome(self) -> str | None:
        """How the call ended, as a name of vmhost.errors.Kind; None before."""
        kind = self._call.kind
        return None if kind is None else Kind(kind).name

    def cancel(self) -> bool:
        """Removes the call from the queue. False if it already runs or has ended; `stop()` also stops a running one.

        If asyncio has wrapped the future (`run_in_executor`, `wrap_future`), a running call is stopped too: its awaiter
        was cancelled, and nobody else waits for it.
        """
        if not self._call.cancel():
            if any(is_asyncio(callback) for callback in self.__dict__.get("_done_callbacks", ())):
                self._call.stop()
            return self.cancelled()
        if "_condition" in self.__dict__:
            super().cancel()
        return True

    def stop(self) -> None:
        """Ends the call, queued or running, as cancelled. Does nothing if it has ended."""
        self._call.stop()

    def when_ended(self, act: Callable[[], object]) -> None:
        """Runs `act()` when the call has ended, on the service thread that watches calls: it must be quick and may
        neither wait nor submit. A tenth of the cost of `add_done_callback`."""
        self._task._service.watch(self._call, act)

    def _ended(self):
        """The watched call has ended. Runs on the service thread."""
        self._settle(super())

    def _settle(self, future):
        """Sets the standard machinery in `future` to the call's end."""
        if self._was_cancelled():
            future.cancel()
            future.set_running_or_notify_cancel()
            return
        value, error = self._ending()
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)

    def _outcome(self):
        """The call's result, or its error raised; waits for its end."""
        return self._call.result()

    def _ending(self):
        """(result, None) or (None, error) of the call; waits for its end. An exception that it raises is not the
        call's, but such as that of a signal handler."""
        return self._call.outcome()

    def _was_cancelled(self):
        """Did the call end as cancelled?"""
        return self._call.kind == Kind.CANCELLED

    def _invoke_callbacks(self):
        if self._done_callbacks:
            self._task._service.run_callbacks(super()._invoke_callbacks)
