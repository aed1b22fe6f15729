"""Sequences: in order of time, exactly, from any point on, and again."""

import random

import pytest

from vmhost.pipeline.events import PAGE_ENTER, PAGE_EXIT, Event
from vmhost.pipeline.sequences import PageLevel, TimeLevel, Visits, point
from vmhost.pipeline.store import EventStore
from vmhost.stores import Database


@pytest.fixture
def store(tmp_path):
    with Database(tmp_path / "events.db") as database:
        yield EventStore(database, batch_ms=None)


@pytest.mark.parametrize("seed", range(5))
def test_time_level_is_sorted_and_can_be_read_from_any_point(store, seed):
    dice = random.Random(seed)
    events = [Event("e", n * 10 + dice.randrange(-500, 500) // 10 * 10, contents=n) for n in range(600)]
    rest = list(events)
    while rest:
        n = dice.randrange(1, 80)
        store.append_many(rest[:n])
        rest = rest[n:]
        if dice.random() < 0.7:
            store.flush()
    expected = [n for _, n in sorted((event.time_ms, n) for n, event in enumerate(events))]
    sequence = TimeLevel(store)
    assert [stored.event.contents for stored in sequence] == expected
    seen = list(sequence)
    assert [stored.event.contents for stored in seen] == expected
    for start in (0, 1, 100, 599):
        assert list(TimeLevel(store, point(seen[start]))) == seen[start + 1 :]
    until = seen[300].event.time_ms
    assert list(TimeLevel(store, until_ms=until)) == [one for one in seen if one.event.time_ms <= until]


def test_page_level_and_visits(store):
    def event(name, at, visit, page="item", key="u"):
        return Event(name, at, page, visit, key=key)

    store.append_many(
        [
            event(PAGE_ENTER, 0, "a"),
            event("click", 3, "a"),
            event(PAGE_ENTER, 4, "b", "cart", "w"),
            event("click", 2, "a"),
            event(PAGE_EXIT, 6, "b", "cart", "w"),
        ]
    )
    store.flush()
    store.append_many([event(PAGE_EXIT, 7, "a"), event(PAGE_ENTER, 8, "c")])
    sequence = PageLevel(store, "a")
    assert [one.event.time_ms for one in sequence] == [one.event.time_ms for one in sequence] == [0, 2, 3, 7]
    assert [one.position for one in PageLevel(store, "a", after=2, until=5)] == [4]
    visits = Visits(store)
    assert [(one.visit, one.page, one.key, one.position) for one in visits] == [
        ("b", "cart", "w", 5),
        ("a", "item", "u", 6),
    ]
    assert [[event.position for event in one.events] for one in visits] == [[3, 5], [1, 4, 2, 6]]
    assert [one.visit for one in Visits(store, after=5)] == ["a"]
    assert [one.visit for one in Visits(store, page="cart")] == [one.visit for one in Visits(store, key="w")] == ["b"]
