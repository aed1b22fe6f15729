"""Interleaved timing: contenders take turns within a round, so that drift of the machine affects all of them.

A figure is the median over the rounds; its spread is the interquartile range. Ratios are computed per round.
"""

import math
import statistics
import time
from dataclasses import dataclass, field

IDLE_S = 0.005  # how long all threads must have slept


@dataclass(frozen=True)
class Figure:
    """`median`, `low` and `high` quartile of `values`, in `unit`. `better` is "less" or "more"."""

    values: tuple
    unit: str
    better: str

    @property
    def median(self):
        return statistics.median(self.values)

    @property
    def low(self):
        return statistics.quantiles(self.values, n=4, method="inclusive")[0] if len(self.values) > 1 else self.values[0]

    @property
    def high(self):
        return statistics.quantiles(self.values, n=4, method="inclusive")[2] if len(self.values) > 1 else self.values[0]

    @property
    def best(self):
        return min(self.values) if self.better == "less" else max(self.values)

    def percentile(self, percent):
        """The value that `percent` of all do not exceed."""
        return sorted(self.values)[max(0, math.ceil(len(self.values) * percent / 100) - 1)]

    def advantage_over(self, other):
        """How many times better than `other`, as the median of the ratios round by round."""
        pairs = zip(self.values, other.values)
        return statistics.median(b / a if self.better == "less" else a / b for a, b in pairs)


@dataclass(frozen=True)
class Result:
    """One measurement: a Figure for each contender, ours first, and the ratios that the project promises, if any."""

    name: str
    figures: dict
    promises: tuple = ()  # (text, met)
    note: str = ""
    grid: tuple = ()  # the Cells behind a figure over many cases
    ratios: dict = field(default_factory=dict)  # the peer's time over ours, for JSON


@dataclass(frozen=True)
class Cell:
    """One of many cases: microseconds of ours and of NumPy, the speed of ours relative to NumPy, and NumPy's relative
    to itself."""

    row: str
    column: str
    ours_us: float
    numpy_us: float
    ratio: float
    itself: float


def interleaved(contenders, rounds, unit, better):
    """`contenders` maps names to functions that return one value in `unit`; {name: Figure}. One warm-up round first."""
    values = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, contender in contenders.items():
            value = contender()
            if number:
                values[name].append(value)
    return {name: Figure(tuple(found), unit, better) for name, found in values.items()}


def wait_until_idle():
    """Returns when no thread of this process computes any more. Pools spin after a call on cores that the next
    contender needs: ONNX Runtime's for 34 ms."""
    before = time.process_time()
    while True:
        time.sleep(IDLE_S)
        now = time.process_time()
        if now - before < IDLE_S / 10:
            return
        before = now


def per_call_us(function, count):
    """Median time of one of `count` calls of `function`, in microseconds."""
    clock = time.perf_counter_ns
    times = []
    for _ in range(count):
        began = clock()
        function()
        times.append(clock() - began)
    return statistics.median(times) / 1000


def per_second(function, count):
    """`count` divided by the seconds that `function` takes."""
    began = time.perf_counter()
    function()
    return count / (time.perf_counter() - began)


def seconds(function):
    began = time.perf_counter()
    function()
    return time.perf_counter() - began
