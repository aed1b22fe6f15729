"""The executor of CPython's and loky's tests: VMExecutor with the parameters and attributes that they expect of any.
Copied beside the tests by executors.py; VMs do not import it."""

from types import SimpleNamespace

import executor_under_test
import pytest

import vmhost

executor_under_test.pytest = pytest
executor_under_test.BrokenProcessPool = executor_under_test.TerminatedWorkerError = vmhost.BrokenVMExecutor
executor_under_test._RemoteTraceback = vmhost.TaskError


class VMExecutor(vmhost.VMExecutor):
    types = (executor_under_test.FileEvent,)

    def __init__(self, max_workers=None, *arguments, context=None, mp_context=None, **keywords):
        super().__init__(max_workers, *arguments, types=self.types, **keywords)

    _broken = property(lambda self: self._workers._broken)
    _flags = property(lambda self: SimpleNamespace(broken=self._broken, shutdown=self._workers.closed))

    def shutdown(self, wait=True, *, cancel_futures=False, kill_workers=False):
        if kill_workers:
            self.terminate_workers()
        super().shutdown(wait, cancel_futures=cancel_futures)


def sending(*plain):
    """VMExecutor, whose values of these classes cross too."""
    return type("VMExecutor", (VMExecutor,), {"types": (*VMExecutor.types, *plain)})
