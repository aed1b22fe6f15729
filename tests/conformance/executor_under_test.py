"""What CPython's and loky's tests of executors import in VMs in place of loky and pytest, and their event. In the host
executor_on_host.py replaces some of it. Copied beside the tests by executors.py."""

import os
import tempfile
import time
from concurrent.futures import Future  # noqa: F401 of loky
from dataclasses import dataclass


def __getattr__(name):
    """What the tests import of loky: nothing but its exceptions is used."""
    if name.startswith(("__", "pytest")):  # pytest asks each module for `pytestmark`
        raise AttributeError(name)
    return None


@dataclass
class FileEvent:
    """An event that all workers see: a file that exists once it is set."""

    path: str

    def set(self):
        with open(self.path, "w"):
            pass

    def clear(self):
        if self.is_set():
            os.unlink(self.path)

    def is_set(self):
        return os.path.exists(self.path)

    def wait(self, timeout=5):
        end = time.monotonic() + timeout
        while not self.is_set() and time.monotonic() < end:
            time.sleep(0.005)
        return self.is_set()


def new_event():
    return FileEvent(tempfile.mktemp(prefix="event-", dir=os.getcwd()))


def get_context(method=None):
    return None


class _Inert:
    """pytest in VMs, where its marks do nothing."""

    def __getattr__(self, name):
        return self

    def __call__(self, *arguments, **_):
        return arguments[0] if arguments and callable(arguments[0]) else self


pytest = _Inert()


class _Never(Exception):
    """An error of loky's that VMExecutor has no equivalent of."""


__version__ = "0"  # of cloudpickle
LokyRecursionError = BrokenProcessPool = TerminatedWorkerError = _RemoteTraceback = _Never
ShutdownExecutorError, TimeoutError = RuntimeError, TimeoutError
