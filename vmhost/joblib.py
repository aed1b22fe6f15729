"""VMs as joblib's workers.

    import vmhost.joblib

    with joblib.parallel_config("vmhost", n_jobs=4):
        joblib.Parallel()(joblib.delayed(function)(row) for row in rows)

Functions go as `VMExecutor.submit` sends them; those that cannot, as scikit-learn's own, run in threads. Further
arguments of `parallel_config` are those of VMExecutor (`limits`, `permissions`, `types`, `initializer`).
"""

from joblib import cpu_count, register_parallel_backend
from joblib._parallel_backends import AutoBatchingMixin, FallbackToBackend, ParallelBackendBase, SequentialBackend
from joblib.parallel import BatchedCalls

from vmhost.vm_or_thread import VMOrThread, all_of


class VMBackend(AutoBatchingMixin, ParallelBackendBase):
    """joblib's interface of a backend. Its VMs stay from one `Parallel` to the next, until it is dropped."""

    supports_retrieve_callback = True
    supports_inner_max_num_threads = False
    _workers, _count = None, 0

    def effective_n_jobs(self, n_jobs):
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is None:
            return 1
        return n_jobs if n_jobs > 0 else max(cpu_count() + 1 + n_jobs, 1)

    # joblib's other arguments are of arrays in files, which processes share.
    def configure(self, n_jobs=1, parallel=None, prefer=None, require=None, **_):
        n_jobs = self.effective_n_jobs(n_jobs)
        if n_jobs == 1:
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        if self._workers is None or self._count != n_jobs:
            self._end()
            self._workers, self._count = VMOrThread(n_jobs, "joblib", **self.backend_kwargs), n_jobs
        self.parallel = parallel
        return n_jobs

    def submit(self, func, callback=None):
        """The Future of a batch. Its calls go one by one: a VM takes a call faster than a batch could be divided."""
        nested = func._backend, func._n_jobs

        def in_thread(item):
            return lambda: BatchedCalls([item], nested)()[0]

        future = all_of([self._workers.submit(*item, in_thread=in_thread(item)) for item in func.items])
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, future):
        return future.result()

    def terminate(self):
        self.reset_batch_stats()

    def abort_everything(self, ensure_ready=True):
        self._end()
        if ensure_ready:
            self.configure(n_jobs=self.parallel.n_jobs, parallel=self.parallel)

    def _end(self):
        if self._workers is not None:
            self._workers.end_now()
            self._workers = None


register_parallel_backend("vmhost", VMBackend)
