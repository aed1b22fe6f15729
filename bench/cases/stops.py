"""Stopping what does not end: a loop, a sleep, a wait for a lock. None of the pools can."""

import random
import time
from concurrent.futures import CancelledError

import vmhost

from bench import contenders
from bench.measure import Figure, Result


def _latencies(task, entry, count):
    """Milliseconds from the deadline until the caller has its error."""
    found = []
    for _ in range(count):
        limit = 0.02
        began = time.perf_counter()
        try:
            task(None, timeout_s=limit, entry=entry)
        except vmhost.TimeLimitError:
            found.append((time.perf_counter() - began - limit) * 1000)
    return found


def _late(task, count):
    """Calls of 1 ms that are asked to stop about when they end, each followed by one that must not be hit.

    Gives the number of those that were hit, and of the stops that arrived in time.
    """
    choose, hit, stopped = random.Random(20261121), 0, 0
    for _ in range(count):
        asked_at = time.perf_counter() + 0.001 * (0.9 + 0.2 * choose.random())
        future = task.submit(0.001, entry="main:last")
        while time.perf_counter() < asked_at:
            pass
        future.stop()
        following = task.submit(2)
        try:
            future.result()
        except (vmhost.VMHostError, CancelledError):
            stopped += 1
        try:
            following.result()
        except (vmhost.VMHostError, CancelledError):
            hit += 1
    return hit, stopped


def run(quick):
    count = 20 if quick else 200
    results = []
    with contenders.host() as host:
        task = host.load(contenders.empty_bundle())
        for what, entry in (("a loop", "main:spin"), ("a sleep", "main:sleep"), ("a lock", "main:wait")):
            found = _latencies(task, entry, count)
            p99 = sorted(found)[int(len(found) * 0.99) - 1]
            figures = {"deadline to error": Figure(tuple(found), "ms", "less")}
            results.append(Result(f"stop of {what}", figures, promises=((f"p99 {p99:.2f} ms (reach 2 ms)", p99 < 2),)))
        tries = 200 if quick else 10_000
        hit, stopped = _late(task, tries)
        results.append(Result(f"stops aimed at a call's end, {tries:,} tries", {
            "next calls hit": Figure((float(hit),), "calls", "less")}, promises=(("0", hit == 0),),
            note=f"{stopped:,} arrived in time to stop the call that they were meant for"))
    return results
