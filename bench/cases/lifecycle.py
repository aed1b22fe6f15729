"""Booting, lending and ending VMs; the memory of an idle one; many cycles without growth."""

import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import InterpreterPoolExecutor, ProcessPoolExecutor
from pathlib import Path

import psutil

from bench.functions import import_all
from bench.measure import Result, interleaved, seconds
from vmhost.bytecode.compiler import compile_sources
from vmhost.host import system_code_store
from vmhost.isolation.vm import code_store_of, core

IMPORTS = {
    "bare": [],
    "json, re, dataclasses, functools, typing": ["json", "re", "dataclasses", "functools", "typing"],
    "… and asyncio, sqlite3": ["json", "re", "dataclasses", "functools", "typing", "asyncio", "sqlite3"],
}
SOURCE = b"def run(names):\n    for name in names:\n        __import__(name)\n    return len(names)\n"


class Bench:
    """Native VMs without a host, as a pool uses them."""

    def __init__(self):
        self.native = core()
        self.system = system_code_store(self.native)
        self.store = code_store_of(
            compile_sources(
                {"main": (SOURCE, "imports/main.py", False)}, entry="main:run", name="imports", version="1"
            ),
            self.native,
        )

    def boot(self):
        """A booted VM, and its events."""
        events = self.native.Events()
        vm = self.native.VM(self.system, events, end_s=30)
        self.until(events, "ready")
        return vm, events

    def lane(self, events):
        return self.native.Lane("imports", "1", self.store, "main:run", events)

    def until(self, events, kind):
        while True:
            for event in events.wait(60):
                if event[0] == kind:
                    return
                if event[0] in ("failed", "quarantined"):
                    raise RuntimeError(f"a VM {event[0]}: {event[2]}")

    def end(self, vm, events):
        vm.retire()
        self.until(events, "ended")


def _boot(rounds):
    """The end of each VM is not timed, as for the workers beside it; a round inherits what the one before left."""
    bench = Bench()

    def boot_ms():
        began = time.perf_counter()
        vm, events = bench.boot()
        taken = time.perf_counter() - began
        bench.end(vm, events)
        return taken * 1000

    def lend_us():
        vm, events = bench.boot()
        lane = bench.lane(events)
        began = time.perf_counter()
        vm.attach(lane)
        lane.call([])
        taken = time.perf_counter() - began
        bench.end(vm, events)
        return taken * 1e6

    def pool_ms(pool):
        with pool(max_workers=1) as one:
            return seconds(lambda: one.submit(os.getpid).result()) * 1000

    def process_ms():
        return seconds(lambda: subprocess.run([sys.executable, "-I", "-S", "-c", ""], check=True)) * 1000

    boots = interleaved(
        {
            "VM, booted and sealed": boot_ms,
            "interpreter pool worker": lambda: pool_ms(InterpreterPoolExecutor),
            "process pool worker": lambda: pool_ms(ProcessPoolExecutor),
            "python -I -S": process_ms,
        },
        rounds,
        "ms",
        "less",
    )
    lends = interleaved({"warm VM: attach and first call": lend_us}, rounds, "us", "less")
    return [
        Result("boot", boots, promises=(("VM under 5 ms", boots["VM, booted and sealed"].median < 5),)),
        Result(
            "lending a warm VM",
            lends,
            promises=(("under 200 us", lends["warm VM: attach and first call"].median < 200),),
        ),
    ]


def _per_second(rounds, count):
    bench = Bench()

    def cycles():
        left = [count]
        lock = threading.Lock()

        def work():
            while True:
                with lock:
                    if left[0] == 0:
                        return
                    left[0] -= 1
                bench.end(*bench.boot())

        threads = [threading.Thread(target=work) for _ in range(4)]
        taken = seconds(lambda: ([t.start() for t in threads], [t.join() for t in threads]))
        return count / taken

    figures = interleaved({"VMs booted and ended": cycles}, rounds, "VMs/s", "more")
    return Result(
        "boot and end, four at a time", figures, promises=(("200/s", figures["VMs booted and ended"].median >= 200),)
    )


def _private_bytes(pid=None):
    return psutil.Process(pid).memory_full_info().uss


def idle_bytes(names, count):
    """The memory that each of `count` further idle VMs with imported `names` adds to this process."""
    bench, alive = Bench(), []

    def grow(number):
        for _ in range(number):
            vm, events = bench.boot()
            lane = bench.lane(events)
            vm.attach(lane)
            lane.call(names)
            alive.append((vm, events, lane))

    grow(2)
    before = _private_bytes()
    grow(count)
    added = (_private_bytes() - before) / count
    for vm, events, _ in alive:
        bench.end(vm, events)
    return added


def _memory(count):
    """MB that each further idle VM, or worker, adds. Measured in separate processes, as memory freed by ended VMs would
    be reused."""
    results = []
    for title, names in IMPORTS.items():
        program = f"from bench.cases.lifecycle import idle_bytes\nprint(idle_bytes({names!r}, {count}))"
        measured = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE)
        ours = float(measured.stdout) / 1e6
        with ProcessPoolExecutor(max_workers=1) as pool:
            theirs = _private_bytes(pool.submit(import_all, names).result()) / 1e6
        figures = interleaved(
            {"VM": lambda ours=ours: ours, "process pool worker": lambda theirs=theirs: theirs}, 1, "MB", "less"
        )
        promises = [(f"{theirs / ours:.1f}x less (reach 3x)", theirs >= 3 * ours)]
        if not names:
            promises.insert(0, ("under 2 MB", ours < 2))
        results.append(Result(f"memory of one idle VM, {title}", figures, promises=tuple(promises)))
    return results


def _cycles(count):
    """Resident memory while VMs come and go on eight threads, with various imports."""
    bench = Bench()
    mixes = [["datetime"], ["decimal"], ["sqlite3"], ["json", "re"], ["asyncio"], ["dataclasses", "typing"], []]
    sizes, done, lock = [], [0], threading.Lock()
    process = psutil.Process()

    def work(seed):
        choose = random.Random(seed)
        while True:
            with lock:
                if done[0] >= count:
                    return
                done[0] += 1
                if done[0] % max(1, count // 20) == 0:
                    sizes.append(process.memory_info().rss / 1e6)
            vm, events = bench.boot()
            lane = bench.lane(events)
            vm.attach(lane)
            lane.call(choose.choice(mixes))
            bench.end(vm, events)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    taken = seconds(lambda: ([t.start() for t in threads], [t.join() for t in threads]))
    settled = sizes[len(sizes) // 10 :]
    half = len(settled) // 2
    trend = sum(settled[half:]) / len(settled[half:]) - sum(settled[:half]) / half
    figures = interleaved({"RSS, second half against first": lambda: trend}, 1, "MB", "less")
    return Result(
        f"{count:,} boot-run-end cycles on 8 threads",
        figures,
        promises=(("no trend (within 10 MB)", abs(trend) < 10),),
        note=f"{count / taken:.0f} cycles/s; RSS {min(sizes):.0f} to {max(sizes):.0f} MB",
    )


_FIRST = """\
import time
{imports}
def plus_one(x):
    return x + 1
if __name__ == "__main__":
    from {module} import {pool}
    with {pool}(1) as pool:
        pool.submit(pow, 2, 2).result()
        began = time.perf_counter()
        pool.submit(plus_one, 1).result()
        print((time.perf_counter() - began) * 1000)
"""


def _first_submits(rounds):
    """The first call of a script's function, after another one, in a process of its own each time."""

    def first_ms(imports, module, pool):
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "first.py")
            script.write_text(_FIRST.format(imports=imports, module=module, pool=pool))
            return float(subprocess.run([sys.executable, script], check=True, stdout=subprocess.PIPE).stdout)

    ours, theirs = ("vmhost", "VMExecutor"), ("concurrent.futures", "InterpreterPoolExecutor")
    figures = interleaved(
        {
            "VMExecutor": lambda: first_ms("", *ours),
            "VMExecutor, unused import hypothesis": lambda: first_ms("import hypothesis", *ours),
            "interpreter pool": lambda: first_ms("", *theirs),
            "interpreter pool, unused import hypothesis": lambda: first_ms("import hypothesis", *theirs),
        },
        rounds,
        "ms",
        "less",
    )
    unused = figures["VMExecutor, unused import hypothesis"].median
    return Result("first submit of a script's function", figures, promises=(("under 30 ms", unused < 30),))


def run(quick):
    rounds = 5 if quick else 31
    return [
        *_boot(rounds),
        _first_submits(2 if quick else 9),
        _per_second(1 if quick else 5, 40 if quick else 400),
        *_memory(4 if quick else 20),
        _cycles(200 if quick else 10_000),
    ]
