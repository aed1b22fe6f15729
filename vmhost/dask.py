"""VMs as the pool of dask's scheduler of threads.

    with vmhost.dask.VMPool(4) as pool, dask.config.set(pool=pool, scheduler="threads"):
        dask.compute(*(dask.delayed(function)(row) for row in rows))

The graph stays with dask, and each task's function goes as `VMExecutor.submit` sends it. Tasks that cannot travel, as
those of NumPy's arrays, and dask's own functions (of bags, arrays, dataframes) run in threads.
"""

import concurrent.futures
import copy
import functools

from dask.local import batch_execute_tasks

from vmhost.vm_or_thread import VMOrThread


class VMPool(concurrent.futures.Executor):
    """A pool of `max_workers` VMs. `options`: those of VMExecutor."""

    def __init__(self, max_workers, **options):
        self._max_workers = max_workers  # dask reads it
        self._workers = VMOrThread(max_workers, "dask", **options)

    def submit(self, fn, /, *args, **kwargs):
        """The Future of `fn(*args, **kwargs)`; of dask's batches of tasks, the functions run in VMs."""
        if fn is not batch_execute_tasks:
            return self._workers.submit(fn, args, kwargs, functools.partial(fn, *args, **kwargs))
        return self._workers.in_thread(fn, [self._sent(*row) for row in args[0]])

    def _sent(self, key, task_info, *others):
        """dask's arguments for a task, with the function in a VM."""
        if isinstance(task_info, tuple):  # bytes with the scheduler of processes
            task, data = task_info
            function = getattr(task, "func", None)
            if function is not None and getattr(function, "__module__", "").partition(".")[0] != "dask":
                task = copy.copy(task)
                task.func = functools.partial(self._called, function)
                task_info = task, data
        return key, task_info, *others

    def _called(self, function, /, *args, **kwargs):
        call = self._workers.in_vm(function, args, kwargs)
        return function(*args, **kwargs) if call is None else call.result()

    def shutdown(self, wait=True, *, cancel_futures=False):
        self._workers.shutdown(wait, cancel_futures=cancel_futures)
