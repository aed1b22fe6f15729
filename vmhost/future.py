"""The future that `Task.submit` returns: a `concurrent.futures.Future` that makes its machinery when it is asked for.

`result()` and `done()` go straight to the native call. Callbacks, `concurrent.futures.wait`, `as_completed` and
`asyncio.wrap_future` use the attributes that the standard Future keeps (`_condition`, `_state`, ...); the first
access to one of them makes them all and asks the core to tell when the call ends. So a future costs well under a
microsecond.
"""

import concurrent.futures
from collections.abc import Callable

from vmhost.errors import Kind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_Future = concurrent.futures.Future
_LAZY = frozenset(("_condition", "_state", "_result", "_exception", "_waiters", "_done_callbacks"))


def _is_asyncio(callback):
    """Is it what `asyncio.wrap_future` adds to the future that it wraps?"""
    return getattr(callback, "__module__", None) == "asyncio.futures"


class TaskFuture(_Future):
    """One submitted call. All methods of a standard Future, and `stop()`."""

    def __init__(self, call, task):
        # The standard __init__ is what this class puts off; see __getattr__.
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
                if "_condition" not in self.__dict__:  # a finalizer that ran just now may have made it all
                    self.__dict__.update(future.__dict__)
                    self.__dict__["_condition"] = condition  # last: it is what others look for
                    if not ended:
                        service.watch(self._call, self._ended)
        return self.__dict__[name]

    def result(self, timeout: float | None = None) -> "Any":
        """The call's result; raises what went wrong with it, or TimeoutError after `timeout` seconds: the call goes
        on."""
        if timeout is not None and not self._call.wait(timeout):
            raise TimeoutError(f"the call has not ended within {timeout} s; it goes on, see cancel() and stop()")
        return self._outcome()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What went wrong with the call, None if nothing did. Raises CancelledError, and TimeoutError as `result`."""
        call = self._call
        if not call.wait(timeout):
            raise TimeoutError(f"the call has not ended within {timeout} s; it goes on, see cancel() and stop()")
        if call.kind == Kind.OK:
            return None
        try:
            self._outcome()
        except concurrent.futures.CancelledError:
            raise
        except Exception as error:
            return error
        return None

    def done(self) -> bool:
        return self._call.done()

    def cancelled(self) -> bool:
        return self._call.done() and self._was_cancelled()

    def running(self) -> bool:
        return self._call.state == "running"

    def began(self) -> bool:
        """Has a VM begun with the call? Of one that has ended; False where its time was over, or it was cancelled,
        while it waited."""
        return self._call.timings[1] != 0

    def timings(self) -> tuple[int, int, int]:
        """When the call was submitted, began to run and ended, in nanoseconds of `time.monotonic_ns`; 0: it has not, or
        not yet."""
        return self._call.timings

    def engine_runs(self) -> tuple[int, tuple[tuple[int, int], ...]]:
        """How many models the call ran on its VM's own thread, and when the first ones of them began and ended, in
        nanoseconds of `time.monotonic_ns`. After Host.trace_engine(), and once the call has ended."""
        return self._call.engine_runs

    def outcome(self) -> str | None:
        """How the call ended, as a name of vmhost.errors.Kind; None before."""
        kind = self._call.kind
        return None if kind is None else Kind(kind).name

    def cancel(self) -> bool:
        """Take the call out of the queue. False when it already runs or ended; `stop()` stops a running one too.

        Of a future that asyncio has wrapped (`run_in_executor`, `wrap_future`) a running call is stopped as well: who
        awaited it has been cancelled, and nobody else waits for it.
        """
        if not self._call.cancel():
            if any(_is_asyncio(callback) for callback in self.__dict__.get("_done_callbacks", ())):
                self._call.stop()
            return self.cancelled()
        if "_condition" in self.__dict__:
            super().cancel()
        return True

    def stop(self) -> None:
        """End the call, queued or running, as cancelled. Nothing happens when it has ended."""
        self._call.stop()

    def when_ended(self, act: Callable[[], object]) -> None:
        """Run `act()` when the call has ended, on the thread that hears of ends: it must be quick, and may neither wait
        nor submit. Without the standard machinery it costs a tenth of `add_done_callback`."""
        self._task._service.watch(self._call, act)

    def _ended(self):
        """The core says that the watched call ended. Runs on the service thread."""
        self._settle(super())

    def _settle(self, future):
        """Give the standard machinery in `future` the end of the call."""
        if self._was_cancelled():
            future.cancel()
            future.set_running_or_notify_cancel()
            return
        try:
            value = self._outcome()
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(value)

    def _outcome(self):
        """The result of the call, which has ended or is waited for, or its error raised."""
        return self._call.result()

    def _was_cancelled(self):
        """Is that how the call ended?"""
        return self._call.kind == Kind.CANCELLED

    def _invoke_callbacks(self):
        if self._done_callbacks:
            self._task._service.run_callbacks(super()._invoke_callbacks)
