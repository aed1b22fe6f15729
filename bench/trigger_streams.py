"""Random events and conditions for the trigger engine, and the loop that users would write instead."""

import random

LENGTHS = (3, 4, 5)
VISIT_LENGTH = 20


def names(count=200):
    return [f"event_{number:03}" for number in range(count)]


def conditions(count, relaxed, known=None, seed=1):
    """{key: ids}: `count` different sequences of 3 to 5 of the `known` names, with `*` in between if they are
    `relaxed`."""
    draw, found, known = random.Random(seed), {}, known or names()
    while len(found) < count:
        found[tuple(draw.choices(known, k=draw.choice(LENGTHS)))] = None
    return {
        f"condition-{number}": [one for name in ids for one in (name, "*")][:-1] if relaxed else list(ids)
        for number, ids in enumerate(found)
    }


def events(count, visits_at_once, known=None, seed=2):
    """[(name, page, visit, time_ms, position, whether it is the visit's last)]: interleaved visits of about
    VISIT_LENGTH events."""
    draw, known, open_visits, begun, rows = random.Random(seed), known or names(), [], 0, []
    for position in range(count):
        while len(open_visits) < visits_at_once:
            begun += 1
            open_visits.append(f"visit-{begun:08}")
        place = draw.randrange(visits_at_once)
        last = draw.random() < 1 / VISIT_LENGTH
        rows.append((draw.choice(known), "home", open_visits[place], position, position, last))
        if last:
            del open_visits[place]
    return rows


def later(rows, by):
    """The same events, shifted by `by` positions."""
    return [
        (name, page, visit, time_ms + by, position + by, last) for name, page, visit, time_ms, position, last in rows
    ]


class Loop:
    """A loop over dicts of lists, for relaxed conditions: the conditions that each visit waits for, by name.

    A condition that already waits for the same name is not added twice."""

    def __init__(self, conditions):
        self.begins, self.visits = {}, {}
        for key, ids in conditions.items():
            ids = [name for name in ids if name != "*"]
            self.begins.setdefault(ids[0], []).append((key, ids))

    def feed(self, name, visit):
        waiting = self.visits.get(visit)
        if waiting is None:
            waiting = self.visits[visit] = {}, set()
        by_name, noted = waiting
        fired, reached = [], []
        for key, ids, place in by_name.get(name, ()):
            if place + 1 == len(ids):
                fired.append(key)
            elif (key, place + 1) not in noted:
                reached.append((key, ids, place + 1))
        for key, ids in self.begins.get(name, ()):
            if (key, 1) not in noted:
                reached.append((key, ids, 1))
        for key, ids, place in reached:
            noted.add((key, place))
            by_name.setdefault(ids[place], []).append((key, ids, place))
        return fired

    def end_visit(self, visit):
        self.visits.pop(visit, None)
