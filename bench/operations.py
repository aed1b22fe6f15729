"""The cost of observing tasks. Functions take `quick` and yield Results."""

import contextlib
import itertools
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import vmhost
from bench.measure import Figure, Result
from vmhost.baseline import FOREIGN, Baseline
from vmhost.bytecode.compiler import compile_sources
from vmhost.cli import demonstration
from vmhost.deployment.cloud.plan import Plan
from vmhost.deployment.cloud.platform import Platform
from vmhost.deployment.cloud.releases import Version
from vmhost.operations import Dashboard, metrics, replay

TASKS = 300
CALLS_PER_S = 10_000
ECHO = "def run(value):\n    return value\n"
COUNTING = (
    "from vmhost.guest import metrics\ncalls = metrics.counter('calls')\n\ndef run(value):\n    calls.add()\n"
    "    return value\n"
)

ALLOCATING = """
import json
import vmhost.engine.numpy as np

TEXT = json.dumps([{"n": i, "of": [i] * 5} for i in range(200)])

def run(what):
    if what == "arrays":
        a = np.ones(8)
        for _ in range(20000):
            a + a
    else:
        for _ in range(20):
            json.loads(TEXT)
"""


def _bundle(name="echo", source=ECHO):
    return compile_sources(
        {"main": (source, f"{name}@1.0.0/main.py", False)}, entry="main:run", name=name, version="1.0.0"
    )


def _mean_us(call, count):
    began = time.perf_counter_ns()
    for _ in itertools.repeat(None, count):
        call(1)
    return (time.perf_counter_ns() - began) / count / 1000


def cost(quick):
    """How much longer `task(x)` takes, in alternating rounds; each is compared with the plain call of its round."""
    rounds, count = (3, 500) if quick else (41, 4000)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())

        def task(source=ECHO, **policy):
            host = stack.enter_context(vmhost.Host(allow_unsigned=True, policy=vmhost.Policy(**policy)))
            return host, host.load(_bundle(source=source))

        _, plain = task()
        _, again = task()
        _, counting = task(COUNTING)
        _, recording = task(task=vmhost.TaskPolicy(record=vmhost.RecordPolicy(folder, share=0.01)))
        scraped_host, scraped = task()
        dashboard = stack.enter_context(Dashboard(scraped_host, "127.0.0.1:0", token=False))

        def with_scrapes():
            with urllib.request.urlopen(f"{dashboard.url}metrics") as answer:  # every 20 ms; real scrapers: 15 s
                answer.read()
            return _mean_us(scraped, count)

        ways = {
            "nothing on": lambda: _mean_us(plain, count),
            "nothing on, again": lambda: _mean_us(again, count),
            "metrics scraped": with_scrapes,
            "task counts itself": lambda: _mean_us(counting, count),
            "recording 1 %": lambda: _mean_us(recording, count),
        }
        values = {name: [] for name in ways}
        for number in range(rounds + 1):
            names = list(ways)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                value = ways[name]()
                if number:
                    values[name].append(value)
    base = values["nothing on"]
    more = {name: statistics.median(b - a for a, b in zip(base, found)) for name, found in values.items()}
    plain_figure = Figure(tuple(base), "us", "less")
    spread = plain_figure.high - plain_figure.low
    off, scrapes, records = (more[name] for name in ("nothing on, again", "metrics scraped", "recording 1 %"))
    yield Result(
        "operations: cost on task(x)",
        {name: Figure(tuple(found), "us", "less") for name, found in values.items()},
        promises=(
            (f"off: within the spread, {spread * 1000:.0f} ns: {off * 1000:+.0f} ns", abs(off) <= spread),
            (f"metrics on: under 100 ns: {scrapes * 1000:+.0f} ns", scrapes < 0.1),
            (f"recording 1 %: under 1 us: {records:+.2f} us", records < 1),
        ),
        note=f"medians of differences in {rounds} rounds of {count:,} calls; an addition of a task's own counter: "
        f"{more['task counts itself'] * 1000:+.0f} ns",
    )


def profiles(quick):
    """Calls with and without a profiler that samples 100 times a second, in alternating rounds."""
    rounds, count = (2, 2000) if quick else (15, 200_000)
    with vmhost.Host(allow_unsigned=True) as host:
        task = host.load(_bundle())
        figures = {"without": [], "with": []}
        for _ in range(rounds):
            figures["without"].append(_mean_us(task, count))
            with host.profile(hz=100):
                figures["with"].append(_mean_us(task, count))
    more = statistics.median(b / a - 1 for a, b in zip(figures["without"], figures["with"]))
    yield Result(
        "operations: task(x) while a profile is taken at 100 Hz",
        {name: Figure(tuple(found), "us", "less") for name, found in figures.items()},
        promises=((f"under 1 %: {100 * more:+.2f} %", more < 0.01),),
        note=f"median of {rounds} rounds of {count:,} calls",
    )


def scrape(quick):
    """300 tasks, all called between two scrapes: the time of a scrape, and the memory of metrics."""
    with vmhost.Host(allow_unsigned=True, policy=vmhost.Policy(max_vms=8)) as host:
        tasks = [host.load(_bundle(f"task{number}")) for number in range(TASKS)]
        times = []
        for _ in range(5 if quick else 30):
            for task in tasks:
                task(1)
            statistics_s = time.perf_counter()
            text = metrics.scrape(host)
            times.append((time.perf_counter() - statistics_s) * 1000)
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        metrics.scrape(host)
        kept = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
    figure = Figure(tuple(times), "ms", "less")
    # two histograms of each version, and its longest calls: isolation/lanes/histogram.h, tails.h
    native = TASKS * (2 * 264 * 8 + 2 * 10 * 40)
    yield Result(
        "operations: a scrape of 300 tasks",
        {"vmhost": figure},
        promises=((f"under 5 ms: {figure.median:.2f} ms", figure.median < 5),),
        note=f"{len(text) / 1000:,.0f} kB of text",
    )
    memory = Figure(((native + max(kept, 0)) / 1e6,), "MB", "less")
    yield Result(
        "operations: memory of the metrics of 300 tasks",
        {"vmhost": memory},
        promises=((f"under 2 MB: {memory.median:.2f} MB", memory.median < 2),),
        note=f"{native / 1e6:.2f} MB of histograms and longest calls, {kept / 1000:,.0f} kB kept between scrapes",
    )


def dashboard(quick):
    """CPU time of the dashboard's threads while a page is open, with 300 tasks and 10,000 calls per second."""
    seconds = 3 if quick else 15
    with contextlib.ExitStack() as stack:
        host = stack.enter_context(vmhost.Host(allow_unsigned=True, policy=vmhost.Policy(max_vms=8)))
        tasks = [host.load(_bundle(f"task{number}")) for number in range(TASKS)]
        for task in tasks:
            task(1)
        others = set(threading.enumerate())
        pages = stack.enter_context(Dashboard(host, "127.0.0.1:0", token=False))
        over, made = threading.Event(), [0]

        def load():
            values = list(range(CALLS_PER_S // 20))
            while not over.wait(0.05):
                for _ in tasks[0].map(values):
                    made[0] += 1

        thread = threading.Thread(target=load, name="bench-load")
        thread.start()
        try:
            before, calls, began = _cpu_s(others | {thread}), made[0], time.perf_counter()
            for _ in range(max(1, seconds // 2)):
                for part in ("part/overview", "series"):
                    with urllib.request.urlopen(f"{pages.url}{part}") as answer:
                        answer.read()
                time.sleep(2)
            elapsed = time.perf_counter() - began
            used, calls = _cpu_s(others | {thread}) - before, made[0] - calls
        finally:
            over.set()
            thread.join()
    figure = Figure((100 * used / elapsed,), "% of a core", "less")
    yield Result(
        "operations: dashboard with a page open, 300 tasks",
        {"vmhost": figure},
        promises=((f"under 2 %: {figure.median:.2f} %", figure.median < 2),),
        note=f"{calls / elapsed:,.0f} calls/s beside it; CPU of the threads that serve and sample, for {elapsed:.0f} s",
    )


def _cpu_s(without):
    """CPU seconds so far of the process's Python threads, except for these."""
    total = 0
    for thread in threading.enumerate():
        if thread in without or thread.native_id is None:
            continue
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def replays(quick, calls=None):
    """Recorded calls of the shipped tasks: replayed, and made plainly, in rounds of both. Each task is called equally
    often, as long as there is time. `calls`: this number instead, with equal time for each task: the slowest takes
    seconds per call."""
    number, most_s = (50, 5) if quick else (10_000, 25)
    if calls is not None:
        number, most_s = calls, math.inf
    left_out = {name for name, *_ in demonstration.MISBEHAVING}
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        trust, names, asked = demonstration.compiled(Path("tasks"), folder)
        names = [name for name in names if name not in left_out]
        record = vmhost.TaskPolicy(
            record=vmhost.RecordPolicy(folder / "baselines", share=1.0, max_bytes=8 << 30, max_calls=1 << 20)
        )
        with vmhost.Host(trust=trust, policy=vmhost.Policy(task=record)) as host:
            tasks = {name: host.load(folder / f"{name}.vmb") for name in names}
            values = {name: itertools.cycle([value for value, _ in asked[name]]) for name in names}
            end, spent = time.monotonic() + most_s, dict.fromkeys(names, 0.0)
            for made in range(number):  # with `calls`, each task gets as much time as the others, else as many calls
                name = names[made % len(names)] if calls is None else min(spent, key=spent.get)
                began = time.monotonic()
                tasks[name](next(values[name]))
                spent[name] += time.monotonic() - began
                if time.monotonic() > end and made % len(names) == len(names) - 1:
                    break
        baselines = [Baseline.read(path) for path in sorted((folder / "baselines").glob("*.baseline"))]
        counts = Counter()
        rounds = [_replayed_round(folder, baselines, trust, counts) for _ in range(1 if quick else 5)]
    total = sum(counts.values()) // len(rounds)
    ratio = statistics.median(replayed_s / plain_s for plain_s, replayed_s in rounds)
    yield Result(
        "operations: replaying recorded calls of the shipped tasks",
        {
            "replay": Figure(tuple(total / replayed_s for _, replayed_s in rounds), "calls/s", "more"),
            "the tasks themselves": Figure(tuple(total / plain_s for plain_s, _ in rounds), "calls/s", "more"),
        },
        promises=((f"at the tasks' own speed, 1.05x: {ratio:.2f}x", ratio <= 1.05),),
        note=f"{len(names)} tasks, {total:,} calls: "
        + ", ".join(f"{count // len(rounds)} {status}" for status, count in counts.items() if count),
    )


def _replayed_round(folder, baselines, trust, counts):
    """Seconds of the calls of `baselines`, made plainly and replayed; adds to the `counts` of statuses."""
    plain_s = replayed_s = 0.0
    for baseline in baselines:
        bundle = folder / f"{baseline.header.task}.vmb"
        recorded = [call.value for call in baseline]
        with vmhost.Host(trust=trust, types=FOREIGN) as host:
            task = host.load(bundle)
            task(recorded[0])
            began = time.perf_counter()
            with contextlib.suppress(vmhost.VMHostError):
                for _ in task.map(recorded, window=8):
                    pass
            plain_s += time.perf_counter() - began
        report = replay.replay(baseline, bundle, trust=trust)
        replayed_s += report.elapsed_s
        counts.update(report.counts)
    return plain_s, replayed_s


COVERED = """
def sign(n):
    if n > 0:
        return 1
    elif n < 0:
        return -1
    return 0

def collatz(n):
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps

def run(value):
    words = {}
    for n in range(1, 400):
        words.setdefault(collatz(n), []).append(sign(n - 200))
    return sum(len(each) for each in words.values())
"""
PLAIN_COVERAGE = """
import os, sys, time
os.environ["COVERAGE_CORE"] = "sysmon"
import coverage
measuring = coverage.Coverage(data_file=None, branch=True, config_file=False, include=[sys.argv[1]])
measuring.start()
space = {"__name__": "covered"}
exec(compile(open(sys.argv[1]).read(), sys.argv[1], "exec"), space)
times = []
for _ in range(int(sys.argv[2])):
    began = time.perf_counter()
    space["run"](None)
    times.append(time.perf_counter() - began)
measuring.stop()
print(*times)
"""


def covered(quick):
    """A program with recorded lines and branches, in a VM and by coverage.py with sys.monitoring in plain Python."""
    count, rounds = (5, 1) if quick else (100, 5)
    ours, theirs, off = [], [], []
    noted = vmhost.Policy(task=vmhost.TaskPolicy(coverage=1.0))
    with tempfile.TemporaryDirectory() as folder, vmhost.Host(allow_unsigned=True) as plain:
        program = Path(folder) / "covered.py"
        program.write_text(COVERED)
        without = plain.load(_bundle("covered", COVERED))
        with vmhost.Host(allow_unsigned=True, policy=noted) as host:
            task = host.load(_bundle("covered", COVERED))
            for _ in range(rounds):
                for times, called in ((ours, task), (off, without)):
                    called(None)
                    for _ in range(count):
                        began = time.perf_counter()
                        called(None)
                        times.append(1000 * (time.perf_counter() - began))
                command = [sys.executable, "-c", PLAIN_COVERAGE, str(program), str(count)]
                result = subprocess.run(command, capture_output=True, text=True, check=True)
                theirs += [1000 * float(each) for each in result.stdout.split()[1:]]
    figures = {
        "vmhost": Figure(tuple(ours), "ms", "less"),
        "coverage.py, sysmon": Figure(tuple(theirs), "ms", "less"),
        "vmhost, not noted": Figure(tuple(off), "ms", "less"),
    }
    ratio = figures["vmhost"].median / figures["coverage.py, sysmon"].median
    yield Result(
        "operations: a program with coverage of lines and branches",
        figures,
        promises=((f"level with coverage.py: {ratio:.2f}x its time", ratio <= 1.05),),
    )


def fleet_reports(quick):
    """Reports of devices into the deployment platform's SQLite: one after the other, and many at a time."""
    alone, count, threads = (20, 100, 8) if quick else (200, 5000, 40)  # 40: as the web server's
    names = ("call:OK", "call:TASK_ERROR", "wall_us", "denied", *(f"wall:{n}" for n in range(8, 16)))
    with tempfile.TemporaryDirectory() as folder:
        Platform.make(Path(folder) / "cloud")
        with Platform(Path(folder) / "cloud") as platform:
            task = {"task": "shop/rank", "version": "1", "breaker": "closed", "counts": dict.fromkeys(names, 3)}
            _release(platform, task["task"], task["version"])
            devices = [f"device-{number}" for number in range(count)]
            with platform.database.transaction() as connection:
                for device in devices:
                    platform.devices.enrol(device, "s" * 40)
                connection.executemany(
                    "INSERT INTO deploy_assignments VALUES (?, 1, 0, 'succeeded', 0, '')", [(each,) for each in devices]
                )

            def send(device, number):
                platform.take_report(device, "s" * 40, {"epoch": "e", "number": number, "tasks": [task]})

            began = time.perf_counter()
            for device in devices[:alone]:
                send(device, 1)
            alone_s = time.perf_counter() - began
            with ThreadPoolExecutor(threads) as pool:
                began = time.perf_counter()
                list(pool.map(lambda device: send(device, 2), devices))
                together_s = time.perf_counter() - began
            [sums] = platform.fleet.sums(1)
            assert sums["errors"]["TASK_ERROR"] == 3 * (alone + count)
    figures = {
        f"{threads} at a time": Figure((count / together_s,), "reports/s", "more"),
        "one at a time": Figure((alone / alone_s,), "reports/s", "more"),
    }
    yield Result(
        "operations: fleet reports taken, on SQLite, each on the disk before its answer",
        figures,
        note=f"{count:,} reports of {len(names)} counts: {together_s:.1f} s",
    )


def _release(platform, name, version):
    """Adds a version without a build, and releases it to all devices."""
    with platform.releases.change() as connection:
        connection.execute(
            'INSERT INTO deploy_versions (task, version, "commit", tag, state, who, time_ms, report) '
            "VALUES (?, ?, 'c0ffee', ?, 'ready', 'bench', 0, '{}')",
            (name, version, version),
        )
        ready = Version(1, name, version, "c0ffee", "bench", 0, None, None, {"3.14": ("0" * 64, 1)})
        platform.releases.versions[1] = ready
    platform.releases.start(name, version, Plan.of({"steps": [{"percent": 100, "min_reports": 99}]}), "bench", "")


def memory_lines(quick):
    """Tasks that only make objects and arrays, with and without recording which lines hold their memory."""
    rounds = 3 if quick else 21
    ways = ("objects", "arrays")
    figures = {f"{way}, {when}": [] for way in ways for when in ("off", "on", "off, beside one that is on")}
    for _ in range(3):
        with vmhost.Host(allow_unsigned=True) as host:
            _timed(host.load(_bundle(source=ALLOCATING)), ways, figures, "off", rounds)
            recording = vmhost.Policy(task=vmhost.TaskPolicy(memory_lines=True))
            with vmhost.Host(allow_unsigned=True, policy=recording) as other:
                recorded = other.load(_bundle(source=ALLOCATING))
                _timed(recorded, ways, figures, "on", rounds)
                _timed(host.task("echo"), ways, figures, "off, beside one that is on", rounds)
    found = {name: Figure(tuple(values), "ms", "less") for name, values in figures.items()}
    more = {
        f"{way} {when}": found[f"{way}, {when}"].median / found[f"{way}, off"].median - 1
        for way in ways
        for when in ("on", "off, beside one that is on")
    }
    note = "; ".join(f"{name}: {100 * value:+.0f} %" for name, value in more.items())
    yield Result("operations: cost of recording the lines that hold memory", found, note=note)


def _timed(task, ways, figures, when, rounds):
    for way in ways:
        task(way)
        for _ in range(rounds):
            began = time.perf_counter()
            task(way)
            figures[f"{way}, {when}"].append(1000 * (time.perf_counter() - began))


ROWS = (cost, profiles, scrape, dashboard, replays, covered, memory_lines, fleet_reports)
