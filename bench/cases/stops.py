"""Stopping endless calls: a loop, a sleep, a wait for a lock. None of the pools can do it."""

import random
import time
from concurrent.futures import CancelledError

import vmhost
from bench import contenders, handover
from bench.measure import Figure, Result, interleaved

_SPAN_S = 0.02  # how long a call runs before it is stopped: by then its VM's successor has booted
_REACH_MS = 2.0
_GRACE_S = 0.03
_CHEWS = 8_000_000  # a call into C several times as long as deadline and grace
_ANSWER_MS = 50.0


def _stop_ms(task, entry):
    """Milliseconds from the deadline of a running call until its caller gets the error."""
    task(None)  # boots a VM, so that the deadline does not pass in the queue
    began = time.perf_counter()
    try:
        task(None, timeout_s=_SPAN_S, entry=entry)
    except vmhost.VMHostError:
        return (time.perf_counter() - began - _SPAN_S) * 1000
    raise AssertionError(f"{entry} has returned")


def _tail(figure):
    late = sum(value > _REACH_MS for value in figure.values)
    return (
        f"p50 {figure.median:.2f}, p99 {figure.percentile(99):.2f}, worst {max(figure.values):.1f} ms, "
        f"{late} of {len(figure.values)} above {_REACH_MS:g} ms"
    )


def _stops(task, what, entry, alone, count):
    spins = entry == "main:spin"
    figures = interleaved(
        {"deadline to error": lambda: _stop_ms(task, entry), "machine alone": lambda: alone(_SPAN_S, spins) * 1000},
        count,
        "ms",
        "less",
    )
    ours, control = figures.values()
    return Result(
        f"stop of {what}",
        figures,
        promises=((f"{_tail(ours)} (reach p99 {_REACH_MS:g} ms)", ours.percentile(99) < _REACH_MS),),
        note=f"a deadline through three plain processes: {_tail(control)}",
    )


def _answer_ms(task):
    """Milliseconds from deadline plus grace of a call stuck in C until its caller gets the error."""
    task(None)
    began = time.perf_counter()
    try:
        task(_CHEWS, timeout_s=_SPAN_S, entry="main:chew")
    except vmhost.VMHostError:
        late_s = time.perf_counter() - began - _SPAN_S - _GRACE_S
    else:
        raise AssertionError("the call into C was over before its caller was answered; raise _CHEWS")
    time.sleep(10 * (_SPAN_S + _GRACE_S))  # until the machine is idle again: the VM returns from C, and ends
    return late_s * 1000


def _answers(count):
    with contenders.host(grace_s=_GRACE_S) as host:
        task = host.load(contenders.empty_bundle())
        ours = Figure(tuple(_answer_ms(task) for _ in range(count)), "ms", "less")
    return Result(
        "answer to the caller of a call stuck in C",
        {"deadline plus grace to error": ours},
        promises=(
            (
                (
                    f"p50 {ours.median:.2f}, p99 {ours.percentile(99):.2f}, worst {max(ours.values):.1f} ms (reach p99"
                    f" {_ANSWER_MS:g} ms)"
                ),
                ours.percentile(99) < _ANSWER_MS,
            ),
        ),
    )


def _late(task, count):
    """Calls of 1 ms that are stopped at about the time they end, each followed by one that must not be affected.

    Returns the number of affected calls, and of stops that arrived in time.
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
        except vmhost.VMHostError, CancelledError:
            stopped += 1
        try:
            following.result()
        except vmhost.VMHostError, CancelledError:
            hit += 1
    return hit, stopped


def run(quick):
    count = 20 if quick else 500
    with contenders.host() as host, handover.chain() as alone:
        task = host.load(contenders.empty_bundle())
        results = [
            _stops(task, what, entry, alone, count)
            for what, entry in (("a loop", "main:spin"), ("a sleep", "main:sleep"), ("a lock", "main:wait"))
        ]
        tries = 200 if quick else 10_000
        hit, stopped = _late(task, tries)
        results.append(
            Result(
                f"stops aimed at a call's end, {tries:,} tries",
                {"next calls hit": Figure((float(hit),), "calls", "less")},
                promises=(("0", hit == 0),),
                note=f"{stopped:,} arrived in time to stop the call that they were meant for",
            )
        )
    results.append(_answers(20 if quick else 200))
    return results
