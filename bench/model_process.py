"""A process in which one engine runs one network: `Runner` is the measuring side, `python -m bench.model_process
DESCRIPTOR ENGINE` is the process.

So engines share no threads, allocator or environment, and the memory of the process is the engine's. Only the calls
themselves are timed, inside. Peers write machine ids into the user's home, so they get another one."""

import importlib
import os
import subprocess
import sys
import threading
import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import numpy

ROOT = Path(__file__).resolve().parents[1]
SAMPLES_S = 0.002


class EngineFailed(Exception):
    """The engine's error; its process still runs unless it ended."""


class Runner:
    """A fresh process for the class `engine` of bench/model_engines.py. A context manager: leaving it ends the
    process."""

    def __init__(self, engine, home=None):
        self.engine = engine
        self._ours, theirs = Pipe()
        places = (
            {}
            if home is None
            else {name: str(home) for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")}
        )
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.model_process", str(theirs.fileno()), engine.__name__],
                cwd=ROOT,
                env={**os.environ, **places, **getattr(engine, "ENVIRONMENT", {})},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )  # engines print
        self._stderr = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self):
        for line in self._process.stderr:
            self._stderr.append(line.decode(errors="replace").rstrip())

    def _ask(self, *order):
        try:
            self._ours.send(order)
            done, answer = self._ours.recv()
        except (EOFError, ConnectionError) as error:
            self._process.wait()
            self._listener.join()
            raise EngineFailed(
                f"its process ended with status {self._process.returncode}: {' / '.join(self._stderr[-3:])}"
            ) from error
        if not done:
            raise EngineFailed(answer)
        return answer

    def open(self, folder, threads):
        """Opens the network; returns (ms, the engine's `about`)."""
        return self._ask("open", folder, threads)

    def run(self, inputs):
        """One run: (ms, {name: array})."""
        return self._ask("run", inputs)

    def together(self, inputs, callers, seconds):
        """Runs per second with this many concurrent callers, and the engine's `about` afterwards."""
        return self._ask("together", inputs, callers, seconds)

    def rates(self):
        """Ms for measuring the speed of this machine's cores, which our engine does once per process."""
        return self._ask("rates")

    def memory_mib(self):
        """Memory of the process, with its share of shared pages (PSS)."""
        with open(f"/proc/{self._process.pid}/smaps_rollup") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("Pss:")) / 1024

    def peak_mib(self, work):
        """The peak of `memory_mib` during `work()`, sampled every two milliseconds."""
        peak, done = [self.memory_mib()], threading.Event()

        def look():
            while not done.wait(SAMPLES_S):
                peak.append(max(peak.pop(), self.memory_mib()))

        looking = threading.Thread(target=look)
        looking.start()
        try:
            work()
        finally:
            done.set()
            looking.join()
        return max(peak[0], self.memory_mib())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self._ours.send(None)
            self._process.wait(20)
        except ConnectionError, subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._ours.close()
        self._listener.join()
        self._process.stderr.close()


class _Served:
    def __init__(self, engine):
        self._class, self._engine = engine, None

    def open(self, folder, threads):
        for module in self._class.MODULES:
            importlib.import_module(module)
        began = time.perf_counter()
        self._engine = self._class(folder, threads)
        return 1000 * (time.perf_counter() - began), self._engine.about

    def run(self, inputs):
        began = time.perf_counter()
        outputs = self._engine.run(inputs)
        ms = 1000 * (time.perf_counter() - began)
        return ms, {name: numpy.array(array) for name, array in outputs.items()}

    def together(self, inputs, callers, seconds):
        counts, start, begun = [0] * callers, threading.Barrier(callers + 1), []

        def call(number):
            self._engine.run(inputs[number % len(inputs)])
            start.wait()
            while time.perf_counter() < begun[0] + seconds:
                self._engine.run(inputs[(number + counts[number]) % len(inputs)])
                counts[number] += 1

        threads = [threading.Thread(target=call, args=(number,)) for number in range(callers)]
        for thread in threads:
            thread.start()
        begun.append(time.perf_counter())
        start.wait()
        begun[0] = began = time.perf_counter()
        for thread in threads:
            thread.join()
        return sum(counts) / (time.perf_counter() - began), getattr(self._engine, "vms", callers)

    def rates(self):
        from vmhost.engine import library

        began = time.perf_counter()
        library.measured_rates()
        return 1000 * (time.perf_counter() - began)

    def close(self):
        if hasattr(self._engine, "close"):
            self._engine.close()


def serve(descriptor, name):
    from bench.model_engines import ENGINES

    served = _Served(ENGINES[name])
    with Connection(descriptor) as orders:
        while (order := orders.recv()) is not None:
            try:
                answer = True, getattr(served, order[0])(*order[1:])
            except Exception as error:  # of any engine: the measuring side handles it
                answer = False, f"{type(error).__name__}: {error}"
            orders.send(answer)
        served.close()


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2])
