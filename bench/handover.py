"""The cost of a stop on this machine without vmhost: a deadline passed through plain processes, as a stop is passed
through threads.

    caller --deadline--> timer --a byte--> runner (spins, or sleeps) --a byte--> caller

The caller's delay is what the kernel, the hypervisor and other load add to any such chain."""

import contextlib
import multiprocessing
import time


def _timer(orders, flag, runner):
    while (deadline := orders.recv()) is not None:
        time.sleep(max(0.0, deadline - time.perf_counter()))
        flag.value = 1
        runner.send_bytes(b"x")


def _runner(orders, flag, timer, caller):
    while (spins := orders.recv()) is not None:
        while spins and not flag.value:
            pass
        timer.recv_bytes()
        flag.value = 0
        caller.send_bytes(b"x")


@contextlib.contextmanager
def chain():
    """A function (span_s, spins) that returns the seconds from a deadline in `span_s` until its caller knows."""
    processes = multiprocessing.get_context("spawn")
    timer_in, timer_out = processes.Pipe(duplex=False)
    runner_in, runner_out = processes.Pipe(duplex=False)
    due_in, due_out = processes.Pipe(duplex=False)
    known_in, known_out = processes.Pipe(duplex=False)
    flag = processes.Value("b", 0, lock=False)
    workers = [
        processes.Process(target=_timer, args=(timer_in, flag, due_out)),
        processes.Process(target=_runner, args=(runner_in, flag, due_in, known_out)),
    ]
    for worker in workers:
        worker.start()

    def lateness_s(span_s, spins):
        runner_out.send(spins)
        deadline = time.perf_counter() + span_s
        timer_out.send(deadline)
        known_in.recv_bytes()
        return time.perf_counter() - deadline

    try:
        lateness_s(0.0, False)  # makes sure that both have started
        yield lateness_s
    finally:
        timer_out.send(None)
        runner_out.send(None)
        for worker in workers:
            worker.join()
        for end in (timer_in, timer_out, runner_in, runner_out, due_in, due_out, known_in, known_out):
            end.close()
