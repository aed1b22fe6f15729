"""What a host must do in every environment, as a program: python -m tests.environments.probe REPORT VMS.

It writes a line into the file REPORT for each thing that went right ("answers", "stop", ...), or "refused: MESSAGE" if
the host refused to start with one clear error. Whatever else happens is an exception, and the exit status tells."""

import os
import signal
import sys
import time

TASK = """
import threading

def run(value):
    import json
    import vmhost.engine.numpy as np
    return [json.loads("[1, 2]"), float((np.arange(value) * 0.5).sum()), value / 3]

def loop(value):
    while True:
        pass

def threads(value):
    for _ in range(3):
        threading.Thread(target=loop, args=(value,), daemon=True).start()
    loop(value)

def hog(value):
    kept = []
    while True:
        kept.append([0] * 10_000)

def overflow(value):
    nested = iter([1])
    for _ in range(200_000):
        nested = map(int, nested)
    next(nested)

def sleep(value):
    threading.Event().wait(value)
"""
ANSWER = [[1, 2], 2475.0, 100 / 3]


def bundle(name="task"):
    from vmhost.bytecode.compiler import compile_sources

    return compile_sources(
        {"main": (TASK, "main.py", False)}, entry="main:run", name=name, version="1", limits={"memory_bytes": 48 << 20}
    )


def fails_with(error, call, *args, **options):
    try:
        value = call(*args, **options)
    except error:
        return
    raise AssertionError(f"{options}: expected {error.__name__}, got {value!r}")


def answers(host):
    tasks = [host.load(bundle(f"task{number}")) for number in range(3)]
    for future in [task.submit(100) for task in tasks for _ in range(5)]:
        assert future.result() == ANSWER, future.result()


def stop(host):
    import vmhost

    task = host.load(bundle("stopped"))
    for entry in ("main:loop", "main:threads", "main:sleep"):
        begun = time.monotonic()
        fails_with(vmhost.TimeLimitError, task, 100, timeout_s=1, entry=entry)
        assert time.monotonic() - begun < 20
    assert task(100) == ANSWER


def memory_limit(host):
    import vmhost

    task = host.load(bundle("greedy"))
    fails_with(vmhost.MemoryLimitError, task, None, entry="main:hog")
    assert task(100) == ANSWER


def stack_overflow(host):
    import vmhost

    task = host.load(bundle("deep"))
    fails_with((vmhost.VMLostError, vmhost.TaskError), task, None, entry="main:overflow")
    assert host.load(bundle("after"))(100) == ANSWER


def many(vms):
    """Boots and ends that many VMs, a few at a time."""
    import vmhost

    done = 0
    while done < vms:
        count = min(4, vms - done)
        with vmhost.Host(allow_unsigned=True) as host:
            futures = [host.load(bundle(f"task{number}")).submit(100) for number in range(count)]
            assert all(future.result() == ANSWER for future in futures)
        done += count


def ctrl_c(host):
    """KeyboardInterrupt where the call is waited for; the host goes on."""
    task = host.load(bundle("waited"))
    future = task.submit(600, entry="main:sleep", timeout_s=2)
    presses = os.posix_spawn("/bin/sh", ["sh", "-c", f"sleep 0.3; kill -INT {os.getpid()}"], os.environ)
    fails_with(KeyboardInterrupt, future.result)
    os.waitpid(presses, 0)
    assert host.load(bundle("afterwards"))(100) == ANSWER


def takes_ctrl_c():
    return (
        signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )


def probe(told, vms):
    """Does all that; `told(line)` for each thing that went right."""
    import vmhost

    try:
        host = vmhost.Host(allow_unsigned=True)
    except vmhost.VMHostError as error:
        told(f"refused: {error}")
        return
    with host:
        for part in (answers, stop, memory_limit, stack_overflow):
            part(host)
            told(part.__name__)
        if takes_ctrl_c():
            ctrl_c(host)
            told("ctrl_c")
    many(vms)
    told("many")


def reporter(path):
    """A function that appends a line to the file at `path`."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    return lambda line: os.write(file, f"{line}\n".encode())


def main(report, vms):
    told = reporter(report)
    probe(told, int(vms))
    told("end")


if __name__ == "__main__":
    main(*sys.argv[1:])
