"""This checkout beside an older one, both built: what calls, models and operations on small arrays cost in each.

    python -m bench.versions OLD [--only OPERATION …] [--starts 8]

Processes of both versions, two of the old one, take turns of 3 ms: noise that lasts longer falls on all. How far the
two of the old version differ is the noise that is left; what a process's layout of memory adds averages out over
several starts. The caller has one core and its VMs another. Needs NumPy and onnx. Ends with 1 if an operation costs
more than 2 % beyond the noise.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TURN_US = 3000
TURNS = 30
SLOWER = 0.02

# Sources of the tasks. They are not imported from the checkout that is measured: both versions run the same ones.
ECHO = "def run(value):\n    return value\n"
MODEL = """
from vmhost import engine
model = None

def setup():
    global model
    model = engine.load("network")

def run(inputs):
    return model(inputs)
"""
ARRAYS = """
import time

import vmhost.engine.numpy as np

f = np.arange(32, dtype="float32")
g, b, i, k = f + 1, f > 10, np.arange(32), np.arange(1000, dtype="float32")
m = np.arange(64, dtype="float64").reshape(8, 8) + np.eye(8) * 100
r = np.random.default_rng(1)
OPERATIONS = {
    "nothing": lambda: None,
    "name": lambda: f,
    "len": lambda: len(f),
    "add": lambda: f + g,
    "add of 1,000": lambda: k + k,
    "times a number": lambda: f * 2.0,
    "sum": lambda: f.sum(),
    "sum of an axis": lambda: m.sum(axis=0),
    "mean": lambda: f.mean(),
    "any": lambda: b.any(),
    "argmax": lambda: f.argmax(),
    "cumsum": lambda: np.cumsum(f),
    "reverse": lambda: f[::-1],
    "index": lambda: f[3],
    "setitem": lambda: f.__setitem__(3, 1.0),
    "take": lambda: f[i],
    "mask": lambda: f[b],
    "compare": lambda: f > g,
    "where": lambda: np.where(b, f, g),
    "clip": lambda: np.clip(f, 1, 10),
    "exp": lambda: np.exp(f),
    "astype": lambda: f.astype("float64"),
    "reshape": lambda: f.reshape(4, 8),
    "transpose": lambda: m.T,
    "concatenate": lambda: np.concatenate((f, g)),
    "stack": lambda: np.stack((f, g)),
    "roll": lambda: np.roll(f, 3),
    "pad": lambda: np.pad(f, 2),
    "sort": lambda: np.sort(f),
    "argsort": lambda: np.argsort(f),
    "unique": lambda: np.unique(i),
    "bincount": lambda: np.bincount(i),
    "interp": lambda: np.interp(f, f, g),
    "matmul": lambda: m @ m,
    "einsum": lambda: np.einsum("ij,jk->ik", m, m),
    "solve": lambda: np.linalg.solve(m, m),
    "fft": lambda: np.fft.fft(f),
    "random": lambda: r.random(32),
    "normal": lambda: r.normal(size=32),
    "zeros": lambda: np.zeros(32),
    "empty": lambda: np.empty(32),
    "empty of 64 KiB": lambda: np.empty(8192),
    "full": lambda: np.full(32, 1.0),
    "arange": lambda: np.arange(32),
    "array": lambda: np.array([1.0, 2.0, 3.0]),
    "asarray": lambda: np.asarray(f),
    "tolist": lambda: f.tolist(),
}

def run(asked):
    if asked is None:
        return list(OPERATIONS)
    name, count = asked
    operation = OPERATIONS[name]
    for _ in range(count // 10 + 1):
        operation()
    began = time.perf_counter()
    for _ in range(count):
        operation()
    return (time.perf_counter() - began) / count * 1e6
"""


class Version:
    """A process of one checkout. Used by `with`."""

    def __init__(self, checkout):
        self._process = subprocess.Popen(
            [".venv/bin/python", Path(__file__).resolve(), "--serve"],
            cwd=checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        names = self._process.stdout.readline()
        if not names:
            raise SystemExit(f"{checkout}: its process ended; see above")
        self.names = names.rstrip("\n").split("|")

    def us(self, name, count):
        """The microseconds of one of `count` operations."""
        print(name, count, sep="|", file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._process.stdin.close()
        self._process.wait()


def serve():
    """Answers lines `NAME|COUNT` with microseconds; the first line names all there are."""
    sys.path[0] = os.getcwd()  # the checkout that is measured, which may not have this module
    import numpy
    from onnx import helper

    import vmhost
    from bench import networks
    from vmhost.compiler import compile_folder

    def task(name, source, model=None):
        with tempfile.TemporaryDirectory() as folder:
            settings = f'name: {name}\nversion: "1"\nentry: main:run\npython: "3.14"\n'
            if model is not None:
                Path(folder, "network.onnx").write_bytes(model.SerializeToString())
                settings += "models: {network: network.onnx}\n"
            Path(folder, "main.py").write_text(source)
            Path(folder, "task.yaml").write_text(settings)
            return host.load(compile_folder(Path(folder)).to_bytes(None))

    def inputs_of(model):
        random = numpy.random.default_rng(1)
        for value in model.graph.input:
            dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            shape = tuple(size.dim_value for size in value.type.tensor_type.shape.dim)
            ints = dtype.kind == "i"
            yield value.name, (random.integers(0, 100, shape) if ints else random.random(shape)).astype(dtype)

    with vmhost.Host(allow_unsigned=True, policy=vmhost.Policy(cores=2)) as host:
        echo, arrays = task("echo", ECHO), task("arrays", ARRAYS)
        calls = {"task(x)": (echo, 7), "task(x) of a dict": (echo, {"a": [1, 2.0, "text"], "b": numpy.zeros(16, "f4")})}
        for name, model in (("DIN", networks.din()), ("SqueezeNet", networks.squeezenet1_1(size=64))):
            calls[name] = task(name.lower(), MODEL, model), dict(inputs_of(model))
        names = [*calls, *arrays(None)]
        for function, value in calls.values():
            function(value)
        for thread in os.listdir("/proc/self/task"):  # the caller on one core, all others on the other
            os.sched_setaffinity(int(thread), {0 if int(thread) == os.getpid() else 1})
        print(*names, sep="|", flush=True)
        for line in sys.stdin:
            name, count = line.rstrip("\n").split("|")
            if name not in calls:
                print(arrays((name, int(count))), flush=True)
                continue
            function, value = calls[name]
            function(value)
            began = time.perf_counter()
            for _ in range(int(count)):
                function(value)
            print((time.perf_counter() - began) / int(count) * 1e6, flush=True)


def measured(versions, name):
    """The median of each version, in microseconds."""
    count = max(1, int(TURN_US / versions["old"].us(name, 3)))
    turns = [{which: version.us(name, count) for which, version in _rotated(versions, turn)} for turn in range(TURNS)]
    return {which: statistics.median(turn[which] for turn in turns) for which in versions}


def _rotated(versions, by):
    items = list(versions.items())
    by %= len(items)
    return items[by:] + items[:by]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("old", type=Path, help="the checkout of the older version")
    parser.add_argument("--only", nargs="+", metavar="OPERATION")
    parser.add_argument("--starts", type=int, default=8)
    arguments = parser.parse_args()
    if not (arguments.old / ".venv/bin/python").exists():
        parser.error(f"{arguments.old}: no checkout in which `make build` ran: there is no .venv/bin/python")
    here = Path(__file__).resolve().parents[1]
    found = {}
    for _ in range(arguments.starts):
        with Version(arguments.old) as old, Version(here) as new, Version(arguments.old) as again:
            unknown = sorted(set(arguments.only or ()) - set(new.names))
            if unknown:
                parser.error(f"--only: no {', '.join(unknown)}; there are {', '.join(new.names)}")
            for name in arguments.only or new.names:
                found.setdefault(name, []).append(measured({"old": old, "new": new, "again": again}, name))
    slower = []
    for name, starts in found.items():
        old, new = (statistics.mean(start[which] for start in starts) for which in ("old", "new"))
        more = statistics.mean(start["new"] / statistics.mean((start["old"], start["again"])) - 1 for start in starts)
        noise = max(abs(start["again"] / start["old"] - 1) for start in starts)
        print(f"{name:20} old {old:9.3f} us, new {new:9.3f} us, {more:+7.1%} (old against itself: up to {noise:.1%})")
        if more > SLOWER + noise:
            slower.append(name)
    print(f"slower: {', '.join(slower)}" if slower else "nothing is slower beyond the noise")
    return 1 if slower else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve()
    else:
        sys.exit(main())
