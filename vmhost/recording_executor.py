"""The VMExecutor of a program whose texts are recorded (VMHOST_RECORD=1, `vmhost record`).

It runs functions in threads of plain Python. Every text given to `compile`, `exec` or `eval` meanwhile is written to a
file beside the program's script when it ends. From then on the script's VMs have these texts.
"""

import asyncio
import atexit
import concurrent.futures
import functools
import sys
import types

from vmhost.bytecode import recorder
from vmhost.bytecode.errors import BytecodeError
from vmhost.bytecode.recording import write_record
from vmhost.errors import ConfigurationError, CrossingError
from vmhost.runtime import program_packages, travel

VARIABLE = "VMHOST_RECORD"


class Recording:
    """What a VMExecutor does instead, as a base before it. Accepts its arguments; limits and permissions are not
    enforced."""

    def __init__(self, max_workers=None, thread_name_prefix="", initializer=None, initargs=(), **_):
        _begin()
        self._max_workers = max_workers
        self._threads = concurrent.futures.ThreadPoolExecutor(max_workers, thread_name_prefix, initializer, initargs)

    def submit(self, fn, /, *args, **kwargs):
        function = fn
        while isinstance(function, functools.partial):
            function = function.func
        try:
            travel.place_of(function)  # CrossingError, as with VMs
        except travel.Unreachable as error:
            if not isinstance(function, (types.FunctionType, types.MethodType)):
                raise CrossingError(str(error)) from None
        future = self._threads.submit(_called, fn, args, kwargs)
        future.stop = future.cancel
        return future

    async def run(self, fn, /, *args, timeout_s=None, **kwargs):
        async with asyncio.timeout(timeout_s):
            return await asyncio.wrap_future(self.submit(fn, *args, **kwargs))

    def map(self, fn, *iterables, timeout=None, chunksize=1, buffersize=None):
        return concurrent.futures.Executor.map(self, fn, *iterables, timeout=timeout, buffersize=buffersize)

    def shutdown(self, wait=True, *, cancel_futures=False):
        self._threads.shutdown(wait, cancel_futures=cancel_futures)

    def __exit__(self, *_):
        self.shutdown()
        return False

    def terminate_workers(self):
        self.shutdown(False, cancel_futures=True)

    kill_workers = terminate_workers

    def statistics(self):
        raise RuntimeError(f"there are no VMs while texts are recorded ({VARIABLE})")

    def __repr__(self):
        return "<vmhost.VMExecutor that records texts>"


def _called(fn, args, kwargs):
    result = fn(*args, **kwargs)
    return asyncio.run(result) if asyncio.iscoroutine(result) else result


@functools.cache
def _begin():
    path = program_packages.script()
    if path is None:
        raise ConfigurationError(f"{VARIABLE}: texts are recorded of a script in a file, `python app.py`")
    try:
        folder = program_packages.locked()
    except BytecodeError as error:
        raise ConfigurationError(str(error)) from error
    if folder is not None:
        recorder.add_folders([str(folder)])  # as for VMs
    recorder.listen()
    atexit.register(_end, program_packages.record_path(path))


def _end(path):
    if hasattr(sys, "last_exc"):
        print(f"vmhost: {path}: not written, since the program failed", file=sys.stderr)
        return
    texts = recorder.noted()
    try:
        write_record(path, texts)
    except (OSError, BytecodeError) as error:
        print(f"vmhost: {path}: can't be written: {error}", file=sys.stderr)
    else:
        print(f"vmhost: {path}: {len(set(texts))} texts that were compiled while the program ran", file=sys.stderr)
