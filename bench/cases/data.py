"""Large data in and out: bytes are copied, arrays are not.

A figure is the median of some calls in a row: the first ones after a contender that moved 64 MB find cold caches and a
sleeping VM. Arrays take microseconds, so they get many calls; a small array beside each large one shows whether size
matters."""

import numpy

from bench import contenders
from bench.contenders import INTERPRETERS, PROCESSES
from bench.functions import empty
from bench.measure import Result, interleaved, per_call_us

CALLS = {"array": 200, "bytes": 5}
SIZES = {"1 MB": 1_000_000, "64 MB": 64_000_000}


def run(quick):
    rounds = 3 if quick else 9
    results = []
    with contenders.host() as host, contenders.executors(1, (INTERPRETERS, PROCESSES)) as pools:
        task = host.load(contenders.empty_bundle())
        task(1)
        small = numpy.zeros(64, dtype=numpy.uint8)
        for title, size in SIZES.items():
            if quick and size > 1_000_000:
                continue
            data, array = bytes(size), numpy.zeros(size, dtype=numpy.uint8)
            measures = {
                "task, array": lambda array=array: per_call_us(lambda: task(array), CALLS["array"]),
                "task, array of 64 B": lambda: per_call_us(lambda: task(small), CALLS["array"]),
                "task, bytes": lambda data=data: per_call_us(lambda: task(data), CALLS["bytes"]),
            }
            # NumPy does not load in the interpreter pool, so it gets bytes
            for name, value in ((f"{PROCESSES}, array", array), (f"{INTERPRETERS}, bytes", data)):
                pool = pools[name.split(",")[0]]
                measures[name] = lambda pool=pool, value=value: per_call_us(
                    lambda: pool.submit(empty, value).result(), CALLS["bytes"]
                )
            figures = interleaved(measures, rounds, "us", "less")
            ratio = figures["task, array of 64 B"].advantage_over(figures["task, array"])
            promises = ((f"array: {ratio:.2f}x the time of 64 B, median of rounds (independent of size)", ratio < 1.5),)
            results.append(Result(f"{title} in and out", figures, promises=promises))
    return results
