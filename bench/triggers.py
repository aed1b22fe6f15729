"""Rows of `pipeline`: how fast the conditions completed by events are found, the memory of conditions and matches, and
the cost of a change. All single-threaded, in CPU time, which other load does not affect."""

import gc
import random
import time

from bench import trigger_streams
from bench.measure import Figure, Result, interleaved
from vmhost.pipeline.triggers import TriggerEngine

COUNTS = (10, 1_000, 100_000)
REACH = {1_000: 3e6, 100_000: 1.5e6}  # events a second
EKUIPER_BYTES = 400_000  # of one rule, the smaller of its makers' figures
UNIT = "M events/s"
VISITS = 100


def per_second(function, count):
    """`count`, in millions, divided by the seconds of CPU time that `function` takes."""
    began = time.thread_time()
    function()
    return count / (time.thread_time() - began) / 1e6


class Ours:
    """An engine with the conditions, which gets the same events repeatedly."""

    def __init__(self, conditions, rows, level):
        self.engine = TriggerEngine(max_bytes=256 << 20)
        for key, ids in conditions.items():
            self.engine.add(key, [ids], level)
        self.conditions, self.rows, self.rounds, self.fired = conditions, rows, 0, 0

    def _next(self):
        self.rounds += 1
        self.fired = 0
        return trigger_streams.later(self.rows, self.rounds * 2 * len(self.rows))

    def singly(self):
        rows, feed, end_visit = self._next(), self.engine.feed, self.engine.end_visit

        def run():
            count = 0
            for name, page, visit, time_ms, position, last in rows:
                fired = feed(name, page, visit, time_ms, position)
                if fired:
                    count += len(fired)
                if last:
                    end_visit(visit)
            self.fired = count

        return per_second(run, len(rows))

    def at_once(self):
        columns = list(zip(*self._next()))[:5]

        def run():
            self.fired = sum(len(fired) for _, fired in self.engine.feed_columns(*columns))

        return per_second(run, len(columns[0]))


def _automaton(conditions, rows):
    """pyahocorasick's two methods, on letters that stand for the names; mapping names to letters is not timed."""
    import ahocorasick

    letters = {name: chr(0x4E00 + number) for number, name in enumerate(trigger_streams.names())}
    automaton = ahocorasick.Automaton()
    for key, ids in conditions.items():
        automaton.add_word("".join(map(letters.__getitem__, ids)), key)
    automaton.make_automaton()
    text = [letters[row[0]] for row in rows]
    whole = "".join(text)

    def singly():
        def run():
            count = 0
            matches = automaton.iter("")
            for letter in text:
                matches.set(letter)
                for _ in matches:
                    count += 1

        return per_second(run, len(text))

    def at_once():
        return per_second(lambda: sum(1 for _ in automaton.iter(whole)), len(text))

    return {"pyahocorasick, event by event": singly, "pyahocorasick, all at once": at_once}


def strict(quick):
    """Adjacent ids over one sequence of events."""
    rows = trigger_streams.events(20_000 if quick else 200_000, 1)
    for count in COUNTS:
        conditions = trigger_streams.conditions(count, relaxed=False)
        ours = Ours(conditions, rows, "time")
        peers, note = {}, ""
        try:
            peers = _automaton(conditions, rows)
        except ImportError:
            note = "pyahocorasick is not installed: make bench-peers"
        figures = interleaved(
            {"feed, event by event": ours.singly, "feed_columns, all at once": ours.at_once, **peers},
            2 if quick else 7,
            UNIT,
            "more",
        )
        promises = ()
        if peers:
            ratio = figures["feed, event by event"].advantage_over(figures["pyahocorasick, event by event"])
            promises = ((f"{ratio:.2f}x pyahocorasick, event by event (reach 1x)", ratio >= 1),)
        yield Result(f"triggers: {count:,} strict conditions, one sequence", figures, promises, note)


def strict_in_visits(quick):
    """Adjacent ids in the events of 100 interleaved visits."""
    rows = trigger_streams.events(20_000 if quick else 200_000, VISITS)
    for count in COUNTS:
        ours = Ours(trigger_streams.conditions(count, relaxed=False), rows, "page")
        figures = interleaved(
            {"feed, event by event": ours.singly, "feed_columns, all at once": ours.at_once},
            2 if quick else 7,
            UNIT,
            "more",
        )
        promises = ()
        if reach := REACH.get(count):
            best = figures["feed, event by event"].best
            promises = ((f"{best:.2f} M/s in the best round (reach {reach / 1e6} M/s)", best * 1e6 >= reach),)
        yield Result(f"triggers: {count:,} strict conditions, {VISITS} visits", figures, promises)


def relaxed(quick):
    """Any run of events between the ids, in the events of 100 interleaved visits.

    The fewer names there are, the more conditions wait for each, and the longer the loop takes. With 10 conditions both
    take about as long as Python needs to pass an event on."""
    for count, known, reach in (10, 50, None), (1_000, 200, None), (1_000, 50, 20), (100_000, 50, 20):
        conditions = trigger_streams.conditions(count, relaxed=True, known=trigger_streams.names(known))
        lengths = {10: 200_000, 1_000: 50_000, 100_000: 1_000}
        rows = trigger_streams.events(
            lengths[count] // (10 if quick else 1), VISITS, known=trigger_streams.names(known)
        )
        ours, counts = Ours(conditions, rows, "page"), {}

        def loop():
            plain = trigger_streams.Loop(conditions)

            def run():
                fired = 0
                for name, _, visit, _, _, last in rows:
                    fired += len(plain.feed(name, visit))
                    if last:
                        plain.end_visit(visit)
                counts["loop"] = fired

            return per_second(run, len(rows))

        def singly():
            value = ours.singly()
            for visit in {row[2] for row in rows}:  # open visits of the last round: the loop starts without any
                ours.engine.end_visit(visit)
            counts["ours"] = ours.fired
            return value

        figures = interleaved({"feed, event by event": singly, "loop": loop}, 2 if quick else 5, UNIT, "more")
        ratio = figures["feed, event by event"].advantage_over(figures["loop"])
        text = f"{ratio:.0f}x the loop over dicts of lists"
        promises = [(f"both fire {counts['loop']:,} times in {len(rows):,} events", counts["loop"] == counts["ours"])]
        if reach:
            promises.append((f"{text} (reach {reach}x)", ratio >= reach))
        name = f"triggers: {count:,} relaxed conditions of {known} names, {VISITS} visits"
        yield Result(name, figures, tuple(promises))


def memory(quick):
    """Allocated memory per condition, and per match under way."""
    conditions = trigger_streams.conditions(100_000, relaxed=True)
    each = {}
    for number, relaxed in enumerate((False, True)):
        engine = TriggerEngine(max_bytes=256 << 20)
        for key, ids in trigger_streams.conditions(100_000, relaxed).items():
            engine.add(key, [ids])
        statistics = engine.statistics()
        each["relaxed" if relaxed else "strict"] = statistics["condition_bytes"] / statistics["conditions"]
    engine = TriggerEngine(max_bytes=256 << 20)
    engine.add("page view", [["page:item", "*", "page_exit"]])
    for number in range(100_000):  # the worst case: one match per visit, with ids of 36 characters
        engine.feed("page_enter", "item", f"{number:036}", number, number)
    statistics = engine.statistics()
    one = statistics["match_bytes"] / statistics["matches"]
    engine = TriggerEngine(max_bytes=256 << 20)
    for key, ids in list(conditions.items())[:1_000]:
        engine.add(key, [ids])
    for row in trigger_streams.events(20_000, 1_000):
        engine.feed(*row[:5])
    statistics = engine.statistics()
    many = statistics["match_bytes"] / statistics["matches"]
    yield Result(
        "triggers: bytes for each of 100,000 conditions of 3 to 5 ids",
        {name: Figure((value,), "bytes", "less") for name, value in each.items()},
        ((f"{max(each.values()):.0f} bytes (reach 500)", max(each.values()) < 500),),
        f"eKuiper, as its makers state: 400 to 500 KB a rule, {EKUIPER_BYTES / max(each.values()):,.0f}x as much",
    )
    yield Result(
        "triggers: bytes for each match under way",
        {
            "100,000 visits with one each": Figure((one,), "bytes", "less"),
            f"{statistics['visits']:,} visits with {statistics['matches'] / statistics['visits']:.0f} each": Figure(
                (many,), "bytes", "less"
            ),
        },
        ((f"{max(one, many):.0f} bytes (reach 100)", max(one, many) < 100),),
    )


def changes(quick):
    """One of 100,000 conditions is changed, added or removed between any two events."""
    conditions = trigger_streams.conditions(100_000, relaxed=False)
    keys, sequences = list(conditions), list(conditions.values())
    rows = trigger_streams.events(20_000, VISITS)
    draw, clock = random.Random(3), time.thread_time_ns

    def load():
        began = clock()
        engine = TriggerEngine(max_bytes=256 << 20)
        for key, ids in conditions.items():
            engine.add(key, [ids])
        return engine, (clock() - began) / 1e3

    engine, rebuild_us = load()
    changing, feeding, longest, number = [], [], [], 0
    for _ in range(2 if quick else 7):
        number += 1
        changes_us, events_us = [], []
        gc.disable()
        for row in trigger_streams.later(rows, number * 2 * len(rows)):
            key, ids = draw.choice(keys), [draw.choice(sequences)]
            began = clock()
            engine.change(key, ids)
            changed = clock()
            engine.feed(*row[:5])
            events_us.append((clock() - changed) / 1e3)
            changes_us.append((changed - began) / 1e3)
        gc.enable()
        changing.append(sorted(changes_us)[len(changes_us) // 2])
        feeding.append(sorted(events_us)[len(events_us) // 2])
        longest.append(max(events_us))
    figures = {
        "change": Figure(tuple(changing), "us", "less"),
        "event between changes": Figure(tuple(feeding), "us", "less"),
        "longest event of a round": Figure(tuple(longest), "us", "less"),
        "a rebuild": Figure((rebuild_us,) * len(changing), "us", "less"),
    }
    yield Result(
        "triggers: changing one of 100,000 conditions, an event after each",
        figures,
        (
            (f"change {figures['change'].median:.1f} us (reach 50 us)", figures["change"].median < 50),
            (f"a rebuild takes {rebuild_us / figures['change'].median:,.0f}x as long", True),
            (f"longest event {min(longest):.0f} us in the best round (reach 1,000 us)", min(longest) < 1000),
        ),
    )


ROWS = (strict, strict_in_visits, relaxed, memory, changes)
