"""Events and conditions for the trigger engine, drawn with a seed."""

import random

NAMES = 200
LENGTHS = (3, 4, 5)


def names():
    return [f"event_{number:03}" for number in range(NAMES)]


def conditions(count, relaxed, seed=1):
    """`count` different sequences of 3 to 5 names, with `*` between them where they are `relaxed`."""
    draw, found = random.Random(seed), {}
    while len(found) < count:
        found[tuple(draw.choices(names(), k=draw.choice(LENGTHS)))] = None
    return {
        f"condition-{number}": [one for name in ids for one in (name, "*")][:-1] if relaxed else list(ids)
        for number, ids in enumerate(found)
    }


def events(count, visits_at_once, visit_length=20, seed=2):
    """(name, page, visit, time_ms, position): `visits_at_once` visits of about `visit_length` events take turns."""
    draw, known, open_visits, begun = random.Random(seed), names(), [], 0
    rows = []
    for position in range(count):
        while len(open_visits) < visits_at_once:
            begun += 1
            open_visits.append(f"visit-{begun:08}")
        place = draw.randrange(visits_at_once)
        rows.append((draw.choice(known), "home", open_visits[place], position, position))
        if draw.random() < 1 / visit_length:
            del open_visits[place]
    return rows
