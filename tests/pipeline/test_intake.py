"""The rules of intake, one test for each: docs/pipeline-events.md says them in words."""

import random

import pytest

from vmhost.pipeline.events import CLICK, PAGE_ENTER, PAGE_EXIT, Event
from vmhost.pipeline.intake import Intake
from vmhost.pipeline.store import EventStore
from vmhost.stores import Database, StoreError

T = 1_000_000_000


@pytest.fixture
def clock():
    return [T / 1000 + 100]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "events.db"


@pytest.fixture
def make(path, clock):
    opened = []

    def make(**options):
        database = Database(path)
        opened.append(database)
        store = EventStore(database, batch_ms=None)
        options = dict(lateness_ms=1000, visit_timeout_ms=10_000, idle_ms=500) | options
        return Intake(store, clock=lambda: clock[0], **options)

    yield make
    for database in opened:
        database.close()


def enter(visit, at, key="u", page="item"):
    return Event(PAGE_ENTER, T + at, page, visit, key=key)


def leave(visit, at, key="u", page="item"):
    return Event(PAGE_EXIT, T + at, page, visit, key=key)


def click(visit, at, key="u", page="item", id=None):
    return Event(CLICK, T + at, page, visit, key=key, id=id)


def summary(stored):
    """(name, visit, time, why closed)"""
    events = [one.event for one in stored]
    return [(e.name, e.visit, e.time_ms - T, (e.contents or {}).get("closed_by")) for e in events]


def test_events_are_stored_in_their_order(make):
    intake = make()
    stored = intake.take([enter("v", 0), click("v", 5), click("", 6), leave("v", 9)])
    assert [one.position for one in stored] == [1, 2, 3, 4]
    assert [one.event for one in intake.store.read()] == [one.event for one in stored] and intake.open_visits == ()
    assert intake.event_time_ms == T + 9


def test_a_late_event_goes_to_its_table_and_is_counted(make):
    intake = make()
    stored = intake.take([click("a", 5000), click("b", 4000), click("c", 3999)])
    assert [one.event.visit for one in stored] == ["a", "b"]
    assert [(why, event) for why, _, event in intake.late_events()] == [("late", click("c", 3999))]
    assert intake.statistics()["late"] == 1 and intake.open_visits == ("a", "b")


@pytest.mark.parametrize("flushed", [True, False])
def test_late_events_are_bounded_oldest_first(make, flushed):
    intake = make(max_late=3)
    intake.take([click("a", 5000)])
    for n in range(5):
        intake.take([click("", n)])
        if flushed:
            intake.store.flush()
    assert [event.time_ms - T for _, _, event in intake.late_events()] == [2, 3, 4]
    assert intake.statistics()["late"] == 5 and intake.statistics()["late_dropped"] == 2


def test_an_id_that_is_seen_again_is_dropped_also_after_a_restart(make, path):
    intake = make()
    assert len(intake.take([click("", 1, id="a"), click("", 2, id="a"), click("", 3, id="b"), click("", 4)])) == 3
    assert intake.take([click("", 4, id="b")]) == []
    intake.store.database.close()
    again = make()
    assert len(again.take([click("", 5, id="a"), click("", 5, id="c")])) == 1
    assert again.statistics()["duplicates"] == 3


def test_ids_are_known_for_the_stated_time_and_number(make):
    intake = make(ids_ms=1000, max_ids=10, lateness_ms=1 << 40, visit_timeout_ms=1 << 40)
    intake.take([click("", 0, id="a")])
    assert intake.take([click("", 999), click("", 1000, id="a")])[1:] == []
    intake.take([click("", 3000), click("", 3000, id="x"), click("", 6000), click("", 6000, id="y")])
    assert len(intake.take([click("", 6000, id="a")])) == 1
    assert [len(intake.take([click("", 6000, id=f"{n}")])) for n in range(20)] == [1] * 20
    assert len(intake._ids) + len(intake._old_ids) <= 10
    assert intake.take([click("", 6000, id="19")]) == []
    assert intake.statistics()["ids_dropped"] > 0


def test_a_clock_that_was_set_back_takes_event_time_along(make, clock):
    intake = make()
    intake.take([enter("v", 90_000)])
    clock[0] -= 50
    stored = intake.take([click("v", 50_000), click("v", 50_001), click("", 49_500)])
    assert len(stored) == 3 and intake.event_time_ms == T + 50_001
    assert intake.statistics()["clock_jumps"] == 1 and intake.statistics()["late"] == 0
    assert intake.open_visits == ("v",)


def test_an_event_far_ahead_of_the_clock_does_not_make_others_late(make):
    intake = make(ahead_ms=1000)
    stored = intake.take([click("", 99_000), click("", 200_000), click("", 99_001)])
    assert len(stored) == 3 and intake.event_time_ms == T + 99_001
    assert intake.statistics()["ahead"] == 1


def test_a_visit_without_an_exit_is_closed_by_time_out(make):
    intake = make()
    intake.take([enter("v", 0), click("v", 100), enter("w", 9000)])
    stored = intake.take([click("", 10_099), click("", 10_100), click("", 10_200)])
    assert summary(stored)[1:3] == [(PAGE_EXIT, "v", 100, "timeout"), (CLICK, "", 10_100, None)]
    assert stored[1].event.page == "item" and stored[1].event.key == "u"
    assert intake.open_visits == ("w",) and intake.statistics()["closed_by_timeout"] == 1


def test_what_comes_after_a_visit_is_over_does_not_open_it_again(make):
    intake = make(lateness_ms=1000)
    intake.take([enter("v", 0), leave("v", 100), click("", 1100)])
    taken = intake.take([click("v", 50), click("v", 101), enter("v", 99), leave("v", 102), click("v", 150)])
    assert [one.event.time_ms - T for one in taken] == [101, 150] and intake.open_visits == ()
    assert [why for why, _, _ in intake.late_events()] == ["late", "late", "after_close"]
    figures = intake.statistics()
    assert (figures["after_exit"], figures["late"], figures["after_close"]) == (2, 2, 1)
    assert len(intake.take([enter("v", 200), click("v", 201)])) == 2  # an enter begins it anew
    assert intake.open_visits == ("v",)


@pytest.mark.parametrize(
    ("rule", "closed"), [("none", []), ("covered", ["a"]), ("page", ["a", "c"]), ("key", ["a", "b", "c"])]
)
def test_the_next_enter_closes(make, rule, closed):
    """Of the visits of "u": nothing happens in `a` since `x` began and ended, something in `b` and `c`."""
    intake = make(enter_closes=rule)
    intake.take([enter("other", 0, key="w")])
    intake._open.clear()
    for name, page in (("a", "item"), ("b", "cart"), ("c", "item")):
        event = Event(CLICK, T, page, name, key="u")
        intake.take([event])
    intake.take([click("x", 10), leave("x", 20), click("b", 21, page="cart"), click("c", 21)])
    stored = intake.take([enter("n", 30), click("n", 31)])
    assert summary(stored)[: len(closed)] == [(PAGE_EXIT, name, 0 if name == "a" else 21, "enter") for name in closed]
    assert summary(stored)[len(closed) :] == [(PAGE_ENTER, "n", 30, None), (CLICK, "n", 31, None)]


def test_visits_within_visits_stay_apart(make):
    intake = make(enter_closes="covered")
    outer, inner = [enter("a", 0), click("a", 1)], [enter("b", 2), click("b", 3), leave("b", 4)]
    stored = intake.take([*outer, *inner, click("a", 5), enter("c", 6), leave("c", 7), leave("a", 8)])
    assert intake.statistics()["closed_by_enter"] == 0 and len(stored) == 9


def test_shutdown_closes_visits(make):
    intake = make()
    intake.take([enter("v", 0), click("v", 7), enter("w", 9)])
    stored = intake.close()
    assert summary(stored) == [(PAGE_EXIT, "v", 7, "shutdown"), (PAGE_EXIT, "w", 9, "shutdown")]
    assert intake.store.durable_position == 5 and intake.close() == []


def test_visits_that_are_kept_go_on_after_a_restart(make):
    intake = make()
    intake.take([enter("v", 0), click("v", 7), enter("w", 8), leave("w", 9), enter("x", 10)])
    assert intake.close(keep_visits=True) == []
    intake.store.database.close()
    again = make()
    assert again.open_visits == ("v", "x") and again.event_time_ms == T + 10
    assert summary(again.take([click("w", 11)])) == [(CLICK, "w", 11, None)] and again.open_visits == ("v", "x")
    assert summary(again.take([click("v", 12), click("", 10_010)]))[1:] == [
        (PAGE_EXIT, "x", 10, "timeout"),
        (CLICK, "", 10_010, None),
    ]


def test_without_events_the_clock_moves_event_time_on(make, clock):
    intake = make()
    assert intake.tick() == [] and intake.event_time_ms is None
    intake.take([enter("v", 0)])
    clock[0] += 0.499
    assert intake.tick() == [] and intake.event_time_ms == T
    clock[0] += 8
    assert intake.tick() == [] and intake.event_time_ms == T + 8499
    clock[0] -= 60
    assert intake.tick() == [] and intake.event_time_ms == T + 8499
    clock[0] += 2
    assert summary(intake.tick()) == [(PAGE_EXIT, "v", 0, "timeout")]
    assert intake.event_time_ms == T + 10_499


def test_open_visits_are_bounded(make):
    intake = make(max_visits=2)
    stored = intake.take([enter("a", 0), enter("b", 1), click("a", 2), enter("c", 3)])
    assert summary(stored)[3:] == [(PAGE_EXIT, "b", 1, "bound"), (PAGE_ENTER, "c", 3, None)]
    assert set(intake.open_visits) == {"a", "c"}


def test_what_could_not_be_stored_may_come_again(make, monkeypatch):
    intake = make(enter_closes="key", max_visits=3)
    intake.take([enter("a", 0), click("a", 1, id="one"), enter("gone", 2, key="x"), leave("gone", 3, key="x")])
    batch = [
        click("", 5000),
        click("a", 5000, id="two"),
        leave("a", 5001),
        enter("b", 5002),
        enter("c", 5003),
        enter("d", 5004, key="x"),
        enter("e", 5004, key="y"),
        enter("f", 5004, key="z"),
        click("", 2, id="late"),
        click("a", 5005),
    ]
    before = intake.statistics(), intake.open_visits, dict(intake._closed)

    def full(events, notes):
        raise StoreError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(intake.store, "append_stored", full)
        for events in (batch, [click("", 60_000)]):
            with pytest.raises(StoreError, match="no room"):
                intake.take(events)
        with pytest.raises(StoreError, match="no room"):
            intake.close()
    assert (intake.statistics(), intake.open_visits, intake._closed) == before
    assert intake.late_events() == []
    assert len(intake.take(batch)) == 11
    assert intake.statistics()["duplicates"] == 0 and intake.statistics()["late"] == 1
    assert intake.statistics()["after_exit"] == 1


def test_contents_that_cannot_be_stored_raise(make):
    intake = make()
    with pytest.raises(ValueError, match="event 'click': contents"):
        intake.take([click("", 1, id="a"), Event(CLICK, T, contents=object())])
    assert len(intake.take([click("", 1, id="a")])) == 1


def test_a_wrong_rule_is_refused(make):
    with pytest.raises(ValueError, match="enter_closes: expected one of none, covered, page, key, got 'all'"):
        make(enter_closes="all")


def test_a_restart_changes_nothing(make, path):
    """Visits that ended long ago stay ended, and open ones stay open: the same events are stored, however often the
    intake begins anew."""
    dice, events, at = random.Random(4), [], 0
    for n in range(1500):
        at += dice.choice((1, 300, 2500))
        visit = f"v{n // 100 + dice.randrange(4)}"
        events.append(dice.choice((enter, click, click, leave))(visit, at))
    found = []
    for size in (1500, 50, 7):
        path.unlink(missing_ok=True)
        path.with_name(f"{path.name}-lock").unlink(missing_ok=True)
        for begin in range(0, len(events), size):
            intake = make()
            intake.take(events[begin : begin + size])
            intake.close(keep_visits=True)
            stored = list(intake.store.read())
            intake.store.database.close()
        found.append(summary(stored))
    assert found[0] == found[1] == found[2]
    assert {why for *_, why in found[0]} == {None, "timeout"}
