"""Rows of `pipeline`: the speed of matching rules of patterns, beside Flink's own automaton, and the cost of many
rules. All single-threaded, in CPU time."""

import json
import random
import shutil
import subprocess
import time
from pathlib import Path

from bench.measure import Figure, Result, interleaved
from vmhost.pipeline.events import Event, StoredEvent
from vmhost.pipeline.patterns import PatternEngine

UNIT = "M events/s"
KEYS, NAMES = 1_000, 10
RULE = {
    "pattern": [{"name": name, "event": name} for name in "abc"],
    "within_ms": 60_000,
}
REACH, RULES_REACH, BYTES_REACH = 10, 300_000, 2_048
FLINK_PER_S = 95_000  # for the same stream on a similar machine, used where Flink is not at hand
FLINK = Path(__file__).resolve().parent.parent / ".python" / "flink"
_MASK = (1 << 64) - 1


def event(number, keys=KEYS, names=NAMES):
    """Event `number` of the stream: (name, time in ms, key); name and key are from a hash of the number
    (splitmix64)."""
    z = (number + 1) * 0x9E3779B97F4A7C15 & _MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
    z ^= z >> 31
    return chr(ord("a") + (z & 0xFFFF) % names), 1 + number, f"k{(z >> 40) % keys}"


def flink(stream):
    """Events per CPU second of Flink's automaton in a plain harness, and its number of matches; None without it."""
    if not FLINK.exists() or shutil.which("javac") is None:
        return None
    from tests.pipeline.flink.__main__ import java

    lines = "".join(f"{name}\t{at}\t{key}\n" for name, at, key in stream)
    command = [*java(FLINK, "Benchmark"), json.dumps(RULE)]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    rounds = [json.loads(line) for line in done.stdout.splitlines()]
    return [one["events_per_cpu_s"] / 1e6 for one in rounds[1:]], rounds[-1]["matches"]  # the first warms up


def simple(quick):
    """Three relaxed steps within 60 s, 1,000 keys, 10 names of events, one event a millisecond."""
    count = 50_000 if quick else 1_000_000
    stream = [event(number) for number in range(count)]
    stored = [StoredEvent(at, Event(name, at, key=key)) for name, at, key in stream]
    found = []

    def singly():
        engine = PatternEngine()
        engine.add("r", RULE)
        matched, feed = 0, engine.feed_raw
        began = time.thread_time()
        for name, at, key in stream:
            results, _, _ = feed(None, name, key, "", "", at, at, False)
            if results:
                for result in results:
                    matched += not result[1]
        took = time.thread_time() - began
        found.append(matched)
        return count / took / 1e6

    def at_once():
        engine = PatternEngine()
        engine.add("r", RULE)
        began, matched = time.thread_time(), 0
        for begin in range(0, count, 1000):
            for matches in engine.feed_many(stored[begin : begin + 1000]).values():
                matched += sum(not match.timed_out for match in matches)
        took = time.thread_time() - began
        found.append(matched)
        return count / took / 1e6

    figures = interleaved({"feed, event by event": singly, "feed_many": at_once}, 1 if quick else 5, UNIT, "more")
    theirs, note = None if quick else flink(stream), f"{found[0]:,} matches"
    if theirs is None:
        ratio = figures["feed, event by event"].median * 1e6 / FLINK_PER_S
        promise = f"{ratio:.1f}x of 95,000/s, Flink's earlier figure (make cep-oracle fetches Flink) (reach {REACH}x)"
    else:
        figures["Flink's NFA"] = Figure(tuple(theirs[0]), UNIT, "more")
        ratio = figures["feed, event by event"].advantage_over(figures["Flink's NFA"])
        promise = f"{ratio:.1f}x Flink's NFA (reach {REACH}x)"
        note += f"; Flink found {theirs[1]:,}"
    yield Result("patterns: a keyed rule of three steps", figures, ((promise, ratio >= REACH),), note)


def many(quick):
    for names in (200, 50):
        yield from _many(quick, names)


def _many(quick, name_count):
    """1,000 rules of three steps over this many names of events, 100 keys."""
    dice = random.Random(5)
    names = [f"event-{number}" for number in range(name_count)]
    engine = PatternEngine(max_bytes=256 << 20)
    before = engine.statistics()["rule_bytes"]
    for number in range(1000):
        steps = [{"name": f"s{at}", "event": name} for at, name in enumerate(dice.sample(names, 3))]
        steps[1]["where"] = {"field": "v", "op": ">", "value": 40}
        engine.add(f"rule-{number}", {"pattern": steps, "within_ms": 2_000, "skip": "past_last"}, timeouts=False)
    statistics = engine.statistics()
    each = (statistics["rule_bytes"] - before) / statistics["rules"]
    count, at = 5_000 if quick else 100_000, 0

    def run():
        nonlocal at
        stream = [
            (dice.choice(names), at + number, f"key-{dice.randrange(100)}", {"v": dice.randrange(100)})
            for number in range(count)
        ]
        feed = engine.feed_raw
        began = time.thread_time()
        for name, time_ms, key, contents in stream:
            feed(contents, name, key, "", "", time_ms, time_ms, False)
        took = time.thread_time() - began
        at += count
        engine.advance(at - 5_000)
        return count / took / 1e6

    figures = interleaved({"1,000 rules": run}, 1 if quick else 5, UNIT, "more")
    best = figures["1,000 rules"].best * 1e6
    statistics = engine.statistics()
    yield Result(
        f"patterns: 1,000 rules at once, {name_count} names of events",
        figures,
        (
            (f"{best:,.0f}/s in the best round (reach {RULES_REACH:,}/s)", best >= RULES_REACH),
            (f"{each:,.0f} bytes a rule (reach {BYTES_REACH:,})", each < BYTES_REACH),
        )
        if name_count == 200
        else (),
        f"{statistics['looked_at'] / statistics['events']:.1f} rules examined per event,"
        f" {statistics['matches']:,} matches under way;"
        " eKuiper, as its makers state: 8,000 rules at 800 messages/s, 400 to 500 KB a rule",
    )


ROWS = (simple, many)
