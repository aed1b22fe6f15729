"""Rows of `pipeline`: the whole path from an event to a stored feature: events per second, latency, the cost of an
event that triggers nothing, and the size of the results relative to raw events.

The peers of the first row do the same work with the same function: hold the events of open visits, call the function of
the visit's page at its exit, and store events and rows in SQLite (WAL, `synchronous=FULL`, one transaction per 2,000
events, as ours).
"""

import asyncio
import gzip
import json
import shutil
import sqlite3
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec

from bench import visit_summary
from bench.measure import Figure, Result, interleaved, per_second
from tasks.ipv import sessions
from vmhost.compiler import compile_folder
from vmhost.pipeline.events import PAGE_ENTER, PAGE_EXIT, Event
from vmhost.pipeline.pipeline import Pipeline
from vmhost.pipeline.store import EventStore
from vmhost.pipeline.waiting import WaitingCalls
from vmhost.stores import Database

ROOT = Path(__file__).resolve().parents[1]
REAL = ROOT / "tests" / "tasks" / "real_events.jsonl.gz"
TASKS, VISIT, BATCH, COMMIT = 20, 20, 100, 2000
BEGIN_MS = 1_790_000_000_000
PHONE_MS, CLOUD_MS = 44.16, 33_730.0  # from events to a stored feature, according to the paper
YAML = """\
name: page{number}
version: 1.0.0
entry: main:run
python: "3.14"
limits: {{memory: 32 MiB, wall_time: 10 s, concurrency: 2}}
trigger: {{on: ["page:item{number}", "*", page_exit], queue: 100000}}
table:
  columns:
    {{visit: text, events: integer, dwell_ms: integer, depth: integer, exposures: integer, clicked: integer}}
"""
COLUMNS = ("visit", "events", "dwell_ms", "depth", "exposures", "clicked")


def _visits(count):
    """The events of visits, five at a time, each of one of 20 pages."""
    events, time_ms = [], BEGIN_MS
    for begin in range(0, count, 5):
        for step in range(VISIT):
            for visit in range(begin, begin + 5):
                time_ms += 7
                name = {0: PAGE_ENTER, VISIT - 1: PAGE_EXIT}.get(step, ("page_scroll", "exposure", "click")[step % 3])
                contents = {"item": f"item-{step:04}", "depth": step * 100, "title": "a title of some length " * 30}
                page, key = f"item{visit % TASKS}", f"user-{visit % 7}"
                events.append(Event(name, time_ms, page, f"visit-{visit}", contents, None, key))
    return events


def _bundles(folder):
    for number in range(TASKS):
        task = folder / f"page{number}"
        task.mkdir()
        shutil.copy(visit_summary.__file__, task / "main.py")
        (task / "task.yaml").write_text(YAML.format(number=number))
        yield compile_folder(task).to_bytes()


def _in_batches(events):
    return [events[begin : begin + BATCH] for begin in range(0, len(events), BATCH)]


def _ours(bundles, batches, count):
    with tempfile.TemporaryDirectory() as folder, Pipeline(folder, bundles, allow_unsigned=True) as pipeline:
        pipeline.append_many(_warm())
        pipeline.wait()

        def work():
            for batch in batches:
                pipeline.append_many(batch)
            pipeline.wait()
            pipeline.flush()

        return per_second(work, count)


def _warm():
    """A visit of each page, so that each task has a booted VM."""
    return [
        Event(name, BEGIN_MS - 1000, f"item{n}", f"warm-{n}", {"item": "", "depth": 0})
        for n in range(TASKS)
        for name in (PAGE_ENTER, PAGE_EXIT)
    ]


class _Plain:
    """Events and rows in SQLite, as written without a pipeline."""

    def __init__(self, path):
        self.connection = sqlite3.connect(path, isolation_level=None)
        for statement in (
            "PRAGMA journal_mode = WAL",
            "PRAGMA synchronous = FULL",
            "CREATE TABLE events (name, time_ms, page, visit, key, contents)",
            f"CREATE TABLE rows ({', '.join(COLUMNS)})",
        ):
            self.connection.execute(statement)
        self.events, self.rows = [], []

    def add(self, event):
        self.events.append((event.name, event.time_ms, event.page, event.visit, event.key, json.dumps(event.contents)))
        if len(self.events) >= COMMIT:
            self.flush()

    def flush(self):
        self.connection.execute("BEGIN")
        self.connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", self.events)
        self.connection.executemany(
            "INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?)", [tuple(row[name] for name in COLUMNS) for row in self.rows]
        )
        self.connection.execute("COMMIT")
        self.events, self.rows = [], []

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.connection.close()


@contextmanager
def _plain():
    with tempfile.TemporaryDirectory() as folder, _Plain(Path(folder) / "plain.db") as plain:
        yield plain


def _value(event, events):
    return {"visit": event.visit, "key": event.key, "events": [msgspec.structs.asdict(each) for each in events]}


def _with_processes(pool, events):
    async def work(plain):
        loop, visits, calls = asyncio.get_running_loop(), {}, set()
        for number, event in enumerate(events):
            plain.add(event)
            visits.setdefault(event.visit, []).append(event)
            if event.name == PAGE_EXIT:
                call = loop.run_in_executor(pool, visit_summary.run, _value(event, visits.pop(event.visit)))
                calls.add(call)
                call.add_done_callback(lambda call: (calls.discard(call), plain.rows.append(call.result())))
            if number % BATCH == BATCH - 1:
                await asyncio.sleep(0)
        while calls:
            await asyncio.wait(list(calls))
        plain.flush()

    with _plain() as plain:
        return per_second(lambda: asyncio.run(work(plain)), len(events))


def _with_streamz(events):
    from streamz import Stream

    def collect(visits, event):
        visits.setdefault(event.visit, []).append(event)
        return visits, (event, visits.pop(event.visit) if event.name == PAGE_EXIT else None)

    with _plain() as plain:
        source = Stream()
        source.sink(plain.add)
        ended = source.accumulate(collect, returns_state=True, start={}).filter(lambda pair: pair[1] is not None)
        for number in range(TASKS):
            of_page = ended.filter(lambda pair, page=f"item{number}": pair[0].page == page)
            of_page.map(lambda pair: visit_summary.run(_value(*pair))).sink(lambda row: plain.rows.append(row))

        def work():
            for event in events:
                source.emit(event)
            plain.flush()

        return per_second(work, len(events))


def throughput(quick):
    """20 stream tasks, one call for each visit of 20 events of 0.75 KB."""
    events = _visits(200 if quick else 4000)
    batches, note = _in_batches(events), ""
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(2) as pool:
        bundles = list(_bundles(Path(folder)))
        peers = {"asyncio, 2 processes": lambda: _with_processes(pool, events)}
        try:
            import streamz  # noqa: F401

            peers["streamz, no isolation"] = lambda: _with_streamz(events)
        except ImportError:
            note = "streamz is not installed: make bench-peers"
        figures = interleaved(
            {"vmhost": lambda: _ours(bundles, batches, len(events)), **peers}, 1 if quick else 5, "events/s", "more"
        )
    ratios = {name: figures["vmhost"].advantage_over(figure) for name, figure in figures.items() if name != "vmhost"}
    promises = tuple((f"{ratio:.1f}x {name} (reach 3x)", ratio >= 3) for name, ratio in ratios.items())
    yield Result(f"whole pipeline, {TASKS} stream tasks", figures, promises, note)


def latency(quick):
    """From appending an item page's exit, alone, to its feature in the table `ipv`, encoded by the ONNX model."""
    bundle = compile_folder(ROOT / "tasks" / "ipv").to_bytes()
    events = [Event(**each) for each in sessions.events(sessions.Options(seed=5, visits=60 if quick else 600))]
    for durability in ("batch", "each"):
        with (
            tempfile.TemporaryDirectory() as folder,
            Pipeline(folder, [bundle], allow_unsigned=True, durability=durability) as pipeline,
        ):
            times = []
            for event in events:
                began = time.perf_counter()
                pipeline.append(event)
                if event.name == PAGE_EXIT and event.page == "item":
                    pipeline.wait()
                    times.append((time.perf_counter() - began) * 1e3)
            times = Figure(tuple(times[20:]), "ms", "less")
        figures = {
            "p50": Figure((times.median,), "ms", "less"),
            "p99": Figure((times.percentile(99),), "ms", "less"),
        }
        promises = ()
        if durability == "batch":
            promises = (
                (f"p50 {times.median:.2f} ms (reach 1.5 ms)", times.median < 1.5),
                (f"p99 {times.percentile(99):.2f} ms (reach 5 ms)", times.percentile(99) < 5),
            )
        note = (
            f"Walle, OSDI '22, on a phone: {PHONE_MS} ms, {PHONE_MS / times.median:.0f}x as long; "
            f"through the cloud: {CLOUD_MS / 1e3} s, {CLOUD_MS / times.median:,.0f}x"
        )
        name = f"event appended to feature in the table, in a VM, durability: {durability}"
        yield Result(name, figures, promises, note)


def nothing_triggers(quick):
    """CPU time of the appending thread, minus that of storing alone."""
    count = 2_000 if quick else 40_000
    with tempfile.TemporaryDirectory() as folder:
        bundles = list(_bundles(Path(folder)))
        events = [msgspec.structs.replace(event, page="home") for event in _visits(count // VISIT)]
        for size, reach in ((BATCH, 1), (1, 4)):
            batches = [events[begin : begin + size] for begin in range(0, len(events), size)]
            figures = interleaved(
                {
                    "append": lambda batches=batches: _cpu_us(bundles, batches, count),
                    "storing alone": lambda batches=batches: _storing_us(batches, count),
                },
                1 if quick else 5,
                "us",
                "less",
            )
            apart = Figure(
                tuple(a - b for a, b in zip(figures["append"].values, figures["storing alone"].values)), "us", "less"
            )
            text = f"{apart.median:.2f} us (reach {reach} us)"
            yield Result(
                f"CPU per event that triggers nothing, {TASKS} tasks, batches of {size}",
                {"without storing": apart, **figures},
                ((text, apart.median < reach),),
            )


def _cpu_us(bundles, batches, count):
    with (
        tempfile.TemporaryDirectory() as folder,
        Pipeline(folder, bundles, allow_unsigned=True, batch_ms=60_000) as pipeline,
    ):
        return _thread_us(pipeline.append_many, batches, count)


def _storing_us(batches, count):
    with tempfile.TemporaryDirectory() as folder, Database(Path(folder) / "events.db") as database:
        return _thread_us(EventStore(database, batch_ms=60_000).append_many, batches, count)


def _thread_us(take, batches, count):
    began = time.thread_time()
    for batch in batches:
        take(batch)
    return (time.thread_time() - began) / count * 1e6


def sizes(quick):
    """Bytes of item pages' events as JSON, relative to the output of `ipv`."""
    bundle = compile_folder(ROOT / "tasks" / "ipv").to_bytes()
    generated = list(sessions.events(sessions.Options(seed=5, visits=60 if quick else 1000, bots=0)))
    with gzip.open(REAL, "rt", encoding="utf-8") as file:
        real = [json.loads(line) for line in file]
    for name, events in (("generated", generated), ("real", real)):
        with tempfile.TemporaryDirectory() as folder:
            raw, ids = {}, set()
            with Pipeline(folder, [bundle], allow_unsigned=True) as pipeline:
                for event in events:
                    if event.get("id") not in ids:
                        ids.add(event.get("id"))
                        text = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
                        raw[event["visit"]] = raw.get(event["visit"], 0) + len(text.encode())
                    pipeline.append(Event(**event))
                pipeline.wait()
                rows = pipeline.table("ipv").read()
        bytes_of = {
            "raw events": [raw[row["visit"]] for row in rows],
            "feature": [len(json.dumps(row["feature"], separators=(",", ":"))) for row in rows],
            "encoding": [len(row["encoding"]) for row in rows],
        }
        total = {what: sum(values) for what, values in bytes_of.items()}
        yield Result(
            f"bytes of a visit of an item page, {name} stream, {len(rows)} visits",
            {what: Figure((total[what] / len(rows),), "bytes", "less") for what in bytes_of},
            note=", ".join(
                f"{what} -{100 - 100 * total[what] / total['raw events']:.1f} %" for what in list(bytes_of)[1:]
            )
            + " (Walle, OSDI '22: -90 %)",
        )


def waiting(quick):
    """A call arrives while the queue is full, and another is dropped for it; a call is taken."""
    for rule in ("newest", "coalesce", "state"):
        figures = {}
        for queue in (100, 1_000 if quick else 100_000):
            calls = WaitingCalls(one_of_a_key=rule == "state")
            for position in range(queue):
                calls.add(_Call(position, f"user-{position % 1000}"))
            values = [_waiting_us(calls, rule) for _ in range(1 if quick else 5)]
            figures[f"{queue:,} wait"] = Figure(tuple(values), "us", "less")
        yield Result(f"a call into a full queue, and one out, {rule}", figures)


class _Call:
    __slots__ = ("position", "key")

    def __init__(self, position, key):
        self.position, self.key = position, key


def _waiting_us(calls, rule):
    last = max(call.position for call in calls)
    came = [_Call(last + n + 1, f"user-{n * 7 % 1000}") for n in range(5_000)]
    began = time.thread_time()
    for call in came:
        calls.remove((calls.oldest(call.key) if rule == "coalesce" else None) or calls.oldest())
        calls.add(call)
        taken = calls.take()
        calls.free(taken.key)
        calls.add(taken, first=True)
    return (time.thread_time() - began) / len(came) * 1e6


def start(quick):
    """Start of a pipeline on a filled store; visits and ids of the last hour are restored."""
    figures = {}
    for count in (2_000, 20_000) if quick else (10_000, 100_000, 1_000_000):
        with tempfile.TemporaryDirectory() as folder:
            bundles = list(_bundles(Path(folder)))
            with Pipeline(Path(folder) / "data", bundles, allow_unsigned=True) as pipeline:
                for begin in range(0, count, 1000):
                    pipeline.append_many(
                        [
                            Event(
                                ("page_scroll", PAGE_ENTER, PAGE_EXIT)[(n % VISIT < 1) + 2 * (n % VISIT == VISIT - 1)],
                                BEGIN_MS + n * 100,
                                "home",
                                f"v{n // VISIT}",
                                id=f"id-{n}",
                            )
                            for n in range(begin, begin + 1000)
                        ]
                    )
                pipeline.close(keep_visits=True)
            times = []
            for _ in range(1 if quick else 3):
                began = time.perf_counter()
                pipeline = Pipeline(Path(folder) / "data", bundles, allow_unsigned=True)
                times.append((time.perf_counter() - began) * 1e3)
                pipeline.close(keep_visits=True)
            figures[f"{count:,} events"] = Figure(tuple(times), "ms", "less")
    yield Result(f"start of a pipeline with {TASKS} tasks over stored events", figures)


ROWS = (throughput, latency, nothing_triggers, sizes, waiting, start)
