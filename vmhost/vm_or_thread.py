"""Calls for libraries that schedule a program's functions (joblib, dask): in VMs, or in threads where they cannot
travel, as those that use NumPy or scikit-learn. One warning names each such function.
"""

import contextlib
import threading
import warnings
import weakref
from concurrent.futures import Future, ThreadPoolExecutor

from vmhost.errors import CrossingError
from vmhost.executor import VMExecutor
from vmhost.runtime.travel import shown

_MOST_NAMED = 1000  # functions that a warning has named, per VMOrThread


class VMOrThread:
    """A VMExecutor with these options, and as many threads beside it."""

    def __init__(self, max_workers, where, **options):
        self._vms = VMExecutor(max_workers, **options)
        self._threads = ThreadPoolExecutor(max_workers, f"vmhost-{where}")
        self._named, self._lock = set(), threading.Lock()
        self._refused = weakref.WeakSet()  # functions that cannot travel

    def submit(self, function, args, kwargs, in_thread):
        """The Future of `function(*args, **kwargs)` in a VM; of `in_thread()`, in a thread, if it cannot travel."""
        return self.in_vm(function, args, kwargs) or self.in_thread(in_thread)

    def in_vm(self, function, args, kwargs):
        """The Future of the call in a VM; None if it cannot travel, which a warning says."""
        if _is_in(self._refused, function):
            return None
        try:
            return self._vms.submit(function, *args, **kwargs)
        except (TypeError, ValueError) as error:  # nothing of it has run
            self._name(function, error)
        try:
            self._vms._workers.plan(function)
        except CrossingError:  # with any arguments: reading its module each time would cost much
            with contextlib.suppress(TypeError):
                self._refused.add(function)
        return None

    def in_thread(self, function, *args, **kwargs):
        return self._threads.submit(function, *args, **kwargs)

    def _name(self, function, reason):
        place = shown(function)[:300]
        with self._lock:
            if place in self._named or len(self._named) == _MOST_NAMED:
                return
            self._named.add(place)
        message = f"{place} runs in threads, not in VMs: {reason}"
        warnings.warn(message, RuntimeWarning, skip_file_prefixes=_SKIPPED)

    def end_now(self):
        """Stops calls in VMs, and cancels those that wait."""
        self._vms.terminate_workers()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def shutdown(self, wait=True, *, cancel_futures=False):
        """As of an Executor."""
        self._threads.shutdown(wait, cancel_futures=cancel_futures)
        self._vms.shutdown(wait, cancel_futures=cancel_futures)


def _is_in(found, function):
    try:
        return function in found
    except TypeError:  # no weak references, or no hash
        return False


_SKIPPED = (__file__.rpartition("/")[0],)


def all_of(futures):
    """A Future of the list of the futures' results, or of the first error; stops the others then."""
    whole, left, lock = Future(), [len(futures)], threading.Lock()
    whole.set_running_or_notify_cancel()

    def count(done):
        with lock:
            error = done.exception() if not done.cancelled() else None
            if left[0] <= 0:
                return
            left[0] = 0 if error is not None or done.cancelled() else left[0] - 1
            if left[0]:
                return
        if error is None and not done.cancelled():
            whole.set_result([each.result() for each in futures])
            return
        for each in futures:
            (each.stop if hasattr(each, "stop") else each.cancel)()
        whole.set_exception(error or RuntimeError("the call was cancelled"))

    for each in futures:
        each.add_done_callback(count)
    if not futures:
        whole.set_result([])
    return whole
