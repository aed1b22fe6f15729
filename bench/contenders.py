"""The contenders: vmhost, and what a user would pick instead, each with the same number of workers."""

import contextlib
import multiprocessing
import os
import tempfile
from concurrent.futures import InterpreterPoolExecutor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import vmhost
from bench.functions import ROOT
from vmhost.compiler import compile_folder

THREADS, INTERPRETERS, PROCESSES = "threads", "interpreter pool", "process pool"
EXECUTORS = {THREADS: ThreadPoolExecutor, INTERPRETERS: InterpreterPoolExecutor, PROCESSES: ProcessPoolExecutor}


@contextlib.contextmanager
def host(**limits):
    """A Host for unsigned bundles; `limits` are keyword arguments of Policy. No breaker, since runaways are measured
    too."""
    policy = vmhost.Policy(task=vmhost.TaskPolicy(breaker=vmhost.BreakerPolicy(enabled=False)), **limits)
    with vmhost.Host(allow_unsigned=True, policy=policy) as running:
        yield running


def bundle(name, folder=None):
    """The path of a freshly compiled bundle of `tasks/name` (or of `folder`)."""
    target = Path(tempfile.gettempdir()) / f"vmhost-bench-{os.getpid()}-{name}.vmb"
    if not target.exists():
        target.write_bytes(compile_folder(folder or ROOT / "tasks" / name).to_bytes())
    return target


def empty_bundle():
    return bundle("empty", ROOT / "bench" / "tasks" / "empty")


def remove_bundles():
    for path in Path(tempfile.gettempdir()).glob(f"vmhost-bench-{os.getpid()}-*.vmb"):
        path.unlink()


@contextlib.contextmanager
def executors(workers, names=tuple(EXECUTORS), in_processes=None):
    """{name: executor} with `workers` started workers each. Process workers call `in_processes` first."""
    with contextlib.ExitStack() as stack:
        yield {
            name: stack.enter_context(
                EXECUTORS[name](max_workers=workers, initializer=in_processes if name == PROCESSES else None)
            )
            for name in names
        }


def _plain(function, orders, first):
    if first is not None:
        first()
    while (values := orders.recv()) is not None:
        for value in values:
            function(value)
        orders.send(None)


@contextlib.contextmanager
def plain_processes(function, count, in_processes=None):
    """A function (values, number) that lets `number` of `count` processes run `function` over all `values` at once.

    Without any framework: the machine's own limit for so many workers. `function` must be importable by pools. Each
    process calls `in_processes` first."""
    processes = multiprocessing.get_context("spawn")
    pairs = [processes.Pipe() for _ in range(count)]
    workers = [processes.Process(target=_plain, args=(function, theirs, in_processes)) for _, theirs in pairs]
    for worker in workers:
        worker.start()

    def run(values, number):
        for ours, _ in pairs[:number]:
            ours.send(values)
        for ours, _ in pairs[:number]:
            ours.recv()

    try:
        yield run
    finally:
        for ours, _ in pairs:
            ours.send(None)
        for worker in workers:
            worker.join()
        for pair in pairs:
            for end in pair:
                end.close()


@contextlib.contextmanager
def one_core():
    """Within the block, this process and its children run on one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
