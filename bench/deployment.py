"""The deployment platform: releases to simulated fleets, comparison of profiles, deltas. Functions yield Results."""

import asyncio
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from bench.measure import Figure, Result
from vmhost.deployment import delta
from vmhost.deployment.cloud.fleet_simulation import Day, simulate
from vmhost.deployment.cloud.middleware import Profiles, TaskProfiles
from vmhost.deployment.cloud.plan import Plan
from vmhost.deployment.profile import REQUEST_HEADER, header_value

DEVICES = 22_000_000
STEPS = {
    "steps": [
        {"count": 1000, "min_reports": 500},
        {"percent": 1, "min_reports": 2000},
        {"percent": 10, "min_reports": 10_000},
        {"percent": 100, "min_reports": 100_000},
    ],
    "max_error": "1 %",
    "on_failure": "halt",
}
TASKS = 300


def fleet(quick):
    """Minutes until a release runs on 99 % of the devices online, and on 99 % of all."""
    plan = Plan.of(STEPS)
    runs = [simulate(plan, seed=seed, ask_every_s=60) for seed in range(1 if quick else 5)]
    online = Figure(tuple(run.online_covered_s / 60 for run in runs), "min", "less")
    everyone = Figure(tuple(run.all_covered_s / 60 for run in runs), "min", "less")
    cost_s = statistics.median(_check_times(1, 20 if quick else 200))
    most = max(run.requests_per_s for run in runs)
    rate = (
        f"each asks every 60 s: {most:,.0f} requests/s at most, {most * cost_s:,.0f} cores at the "
        f"{cost_s * 1e6:.0f} us that the platform takes here for one, HTTP apart"
    )
    note = f"22 M devices, 7 M online, 0.7 M more a minute, {rate}"
    yield Result(
        "deployment: as many devices as were online",
        {"vmhost": online, "Walle (paper)": Figure((7.0,), "min", "less")},
        promises=((f"the paper's 7 min or less: {online.median:.1f}", online.median <= 7),),
        note=note,
    )
    yield Result(
        "deployment: 99 % of all devices",
        {"vmhost": everyone, "Walle (paper)": Figure((22.0,), "min", "less")},
        promises=((f"the paper's 22 min or less: {everyone.median:.1f}", everyone.median <= 22),),
        note=note,
    )
    days = {
        f"at {hour:.0f}:00": simulate(plan, day=Day(begins=hour), step_s=10.0, until_s=48 * 3600)
        for hour in (4.0, 12.0, 20.0)
    }
    yield Result(
        "deployment: 99 % of all devices, which come and go by the hour",
        {when: Figure((run.all_covered_s / 60,), "min", "less") for when, run in days.items()},
        note="5 % of 22 M online at 4:00, 40 % at 16:00, each for 10 min; as many as were online at the start have it "
        "after " + ", ".join(f"{run.online_covered_s / 60:.1f}" for run in days.values()) + " min",
    )
    rounds = 20 if quick else 400
    bad = [simulate(plan, seed=seed, failing=0.05, until_s=1800, step_s=2.0).reached for seed in range(rounds // 4)]
    good = sum(
        simulate(plan, seed=seed, failing=0.002, until_s=240, step_s=2.0).state == "halted" for seed in range(rounds)
    )
    yield Result(
        "deployment: devices that a release reaches which fails on 5 %",
        {"vmhost": Figure(tuple(map(float, bad)), "devices", "less")},
        promises=((f"at most 2,000; the worst of {len(bad)}: {max(bad):,}", max(bad) <= 2000),),
    )
    yield Result(
        "deployment: good releases (0.2 % errors) that are halted",
        {"vmhost": Figure((100 * good / rounds,), "%", "less")},
        promises=((f"under 1 % of {rounds} runs", good < rounds / 100),),
    )


def profiles(quick):
    """Comparisons of profiles per second: a header against a JSON manifest, 300 tasks, 95 % of devices unchanged."""
    tasks = {f"shop/task{number}": {"version": "1.0.0", "digest": os.urandom(32).hex()} for number in range(TASKS)}
    known = Profiles(lambda: 7)
    values = [header_value(f"device-{number}", {}, [number]).encode() for number in range(2000)]
    for number, value in enumerate(values):
        if number % 20:
            known.remember(value, 7)
    manifest = json.dumps(tasks).encode()
    header_bytes = len(REQUEST_HEADER) + len(": ") + max(map(len, values))
    ours, theirs = [], []
    for _ in range(3 if quick else 15):
        began = time.perf_counter()
        for value in values:
            known.is_current(value)
        ours.append(len(values) / (time.perf_counter() - began))
        began = time.perf_counter()
        for _ in range(50):
            assert json.loads(manifest) == tasks
        theirs.append(50 / (time.perf_counter() - began))
    yield Result(
        "deployment: comparisons of profiles",
        {"header": Figure(tuple(ours), "1/s", "more"), "JSON manifest": Figure(tuple(theirs), "1/s", "more")},
        promises=(
            (f"50,000/s: {sorted(ours)[len(ours) // 2]:,.0f}", sorted(ours)[len(ours) // 2] >= 50_000),
            (f"under 64 bytes when nothing changed: {header_bytes}", header_bytes < 64),
        ),
        note=f"{TASKS} tasks, 95 % unchanged; HTTP apart: next row; manifest: {len(manifest):,} bytes",
    )


def middleware(quick):
    """The time that the middleware adds to a Starlette request, without HTTP."""
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    async def buy(request):
        return PlainTextResponse("bought")

    app = Starlette(routes=[Route("/buy", buy)])
    known = Profiles(lambda: 1)
    value = header_value("device-1", {}, {}).encode()
    known.remember(value, 1)
    wrapped = TaskProfiles(app, known)
    headers = [(b"host", b"shop.example"), (b"accept", b"*/*"), (b"vmhost-tasks", value)]
    scope = {"type": "http", "method": "GET", "path": "/buy", "query_string": b"", "headers": headers}

    async def receive():
        return {"type": "http.request", "body": b""}

    async def send(message):
        pass

    async def many(application, number):
        began = time.perf_counter()
        for _ in range(number):
            await application(dict(scope), receive, send)
        return (time.perf_counter() - began) / number * 1e6

    async def rounds():
        found = [], []
        for _ in range(3 if quick else 15):
            for application, times in zip((wrapped, app), found):
                times.append(await many(application, 500))
        return found

    with_it, without = asyncio.run(rounds())
    added = sorted(a - b for a, b in zip(with_it, without))[len(with_it) // 2]
    yield Result(
        "deployment: a Starlette request with the middleware",
        {"with": Figure(tuple(with_it), "us", "less"), "without": Figure(tuple(without), "us", "less")},
        promises=((f"under 30 us added: {added:.2f}", added < 30),),
    )


def deltas(quick):
    """Bytes pulled by a device for a bundle of 40 modules and 1.2 MB, two of which were edited."""
    from vmhost.bytecode import signing
    from vmhost.bytecode.compiler import compile_task

    key = signing.generate_key()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "task.yaml").write_text('name: big\nversion: 1.0.0\nentry: main:run\npython: "3.14"\n')
        words = [os.urandom(4).hex() for _ in range(4000)]
        for number in range(40):
            lines = [f"w_{word}_{number} = {index * 7919 + number!r}" for index, word in enumerate(words[:1100])]
            (folder / f"part{number}.py").write_text("\n".join(lines) + "\n")
        imports = "\n".join(f"import part{number}" for number in range(40))
        (folder / "main.py").write_text(f"{imports}\ndef run(value):\n    return value\n")
        old = compile_task(folder).to_bytes(key)
        for number in (3, 30):
            with open(folder / f"part{number}.py", "a") as file:
                file.write("edited = True\n")
        (folder / "task.yaml").write_text('name: big\nversion: 1.0.1\nentry: main:run\npython: "3.14"\n')
        new = compile_task(folder).to_bytes(key)
    patch = delta.make(old, new)
    assert delta.apply(old, patch, len(new)) == new
    yield Result(
        "deployment: bytes pulled, 2 of 40 modules edited",
        {
            "delta": Figure((float(len(patch)),), "bytes", "less"),
            "whole, compressed": Figure((float(len(delta.make(b"", new))),), "bytes", "less"),
            "whole": Figure((float(len(new)),), "bytes", "less"),
        },
        promises=((f"under 1 KB: {len(patch):,} bytes", len(patch) < 1000),),
        note=f"signed metadata apart: {_metadata_bytes():,} bytes, 20 tasks of 10 versions",
    )


def _metadata_bytes():
    """Bytes of signed metadata pulled after a release: timestamp, snapshot, and the repository's role."""
    from vmhost.deployment.cloud.platform import Platform
    from vmhost.deployment.cloud.releases import Version

    with tempfile.TemporaryDirectory() as folder:
        Platform.make(folder)
        with Platform(folder) as platform:
            platform.add_repository("shop", "bench")
            for number in range(200):
                bundle = {"3.14": (os.urandom(32).hex(), 30_000)}
                task, version = f"shop/task{number % 20}", f"1.{number // 20}.0"
                platform.releases.versions[number] = Version(
                    number, task, version, "", "bench", 0, None, {"digest": os.urandom(32).hex(), "size": 500}, bundle
                )
            platform.releases.generation += 1
            platform.sync_metadata()
            newest = [
                max(Path(folder, "metadata").glob(f"*.{role}.json"), key=os.path.getmtime)
                for role in ("snapshot", "role-shop")
            ]
            return sum(path.stat().st_size for path in (Path(folder, "metadata", "timestamp.json"), *newest))


def checks(quick):
    """A device's complete request on the platform when it is up to date; HTTP is not counted."""
    number = 10 if quick else 100
    yield Result(
        "deployment: a device's whole request, everything as it should be",
        {
            f"{tasks} task{'s' * (tasks > 1)}": Figure(
                tuple(took_s * 1e3 for took_s in _check_times(tasks, number)), "ms", "less"
            )
            for tasks in (1, TASKS)
        }
        | {
            "300 tasks, by digest": Figure(
                tuple(took_s * 1e3 for took_s in _check_times(TASKS, number, True)), "ms", "less"
            )
        },
    )


def _check_times(number, rounds, by_digest=False):
    """Seconds that the platform needs for `rounds` requests of a device with `number` tasks; `by_digest`: for the short
    request of an up-to-date device."""
    from vmhost.deployment.cloud.platform import Platform
    from vmhost.deployment.cloud.releases import Version

    with tempfile.TemporaryDirectory() as folder:
        Platform.make(folder)
        with Platform(folder) as platform:
            engine = platform.releases
            with engine.change() as connection:
                for index in range(number):
                    task = f"shop/task{index}"
                    identity = connection.execute(
                        'INSERT INTO deploy_versions (task, version, "commit", tag, state, who, time_ms, report) '
                        "VALUES (?, '1', '', '1', 'ready', 'bench', 0, '{}')",
                        (task,),
                    ).lastrowid
                    bundle = ("0" * 64, 1)
                    engine.versions[identity] = Version(
                        identity, task, "1", "", "bench", 0, None, None, {"3.14": bundle}
                    )
                    engine.start(task, "1", Plan.of({}), "bench", "")
            platform.devices.enrol("device-1", "s" * 40)
            tasks = {f"shop/task{index}": {"version": "1", "digest": "0" * 64} for index in range(number)}
            request = {"facts": {"python": "3.14"}, "tasks": tasks, "epoch": "1"}
            platform.check("device-1", "s" * 40, request)
            if by_digest:
                request = {"profile": "device-1 x"}
                platform.profiles.remember(b"device-1 x", platform.releases.generation)
            times = []
            for _ in range(rounds):
                began = time.perf_counter()
                platform.check("device-1", "s" * 40, request)
                times.append(time.perf_counter() - began)
    return times


ROWS = (profiles, middleware, deltas, checks, fleet)
