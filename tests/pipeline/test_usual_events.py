"""Events that intake processes in C in one pass are taken as they would be one by one."""

from contextlib import closing

from hypothesis import given, settings
from hypothesis import strategies as some

from vmhost.pipeline import passes
from vmhost.pipeline.events import CLICK, PAGE_ENTER, PAGE_EXIT, Event
from vmhost.pipeline.intake import Intake
from vmhost.pipeline.store import EventStore
from vmhost.stores import Database

T = 1_000_000_000
EVENTS = some.lists(
    some.builds(
        Event,
        name=some.sampled_from([PAGE_ENTER, CLICK, CLICK, CLICK, PAGE_EXIT]),
        time_ms=some.integers(T, T + 40)
        | some.integers(T, T + 4_000)
        | some.sampled_from([T + 10**6, -(1 << 63), (1 << 63) - 1]),
        page=some.sampled_from(["", "p"]),
        visit=some.sampled_from(["", "v", "w", "x"]),
        id=some.none() | some.sampled_from(["1", "2"]),
        key=some.sampled_from(["", "ann"]),
    ),
    max_size=40,
)


def taken(path, batches, **options):
    with closing(Database(path)) as database:
        store = EventStore(database, batch_ms=None)
        intake = Intake(
            store, clock=lambda: T / 1000 + 5, lateness_ms=1000, visit_timeout_ms=2000, ahead_ms=10_000, **options
        )
        stored = [[(one.position, one.event) for one in intake.take(list(batch))] for batch in batches]
        visits = {name: visit.last_ms for name, visit in intake._open.items()}
        return stored, visits, intake.statistics(), intake.late_events()


@given(some.lists(EVENTS, max_size=4), some.sampled_from(["none", "covered", "page", "key"]))
@settings(max_examples=150, deadline=None)
def test_the_same_events_one_by_one(tmp_path_factory, batches, enter_closes):
    folder = tmp_path_factory.mktemp("intake")
    together = taken(folder / "together.db", batches, enter_closes=enter_closes)
    usual = passes.usual
    try:
        passes.usual = lambda events, begin, visits, latest_ms, *limits: (begin, latest_ms)
        assert taken(folder / "singly.db", batches, enter_closes=enter_closes) == together
    finally:
        passes.usual = usual


def test_most_events_are_usual():
    class Visit:
        last_ms = 0

    visit = Visit()
    events = [Event(CLICK, T + n, "p", "v") for n in range(10)] + [Event(PAGE_EXIT, T + 10, "p", "v")]
    assert passes.usual(events, 0, {"v": visit}, T, 1000, T + 10_000, T + 10_000) == (10, T + 9)
    assert visit.last_ms == T + 9
    assert passes.usual(events, 0, {}, T, 1000, T + 10_000, T + 10_000) == (0, T), "its visit is not open"
    assert passes.usual(events, 0, {"v": visit}, T, 1000, T + 5, T + 10_000) == (6, T + 5), "ahead of the clock"
    assert passes.usual(events, 0, {"v": visit}, T, 1000, T + 10_000, T + 7) == (7, T + 6), "a visit is to be closed"
    assert passes.usual(events, 0, {"v": visit}, T + 1002, 1000, T + 10_000, T + 10_000) == (0, T + 1002), "late"
