"""Item page views through intake, store and triggers: each visit that is stored gets its feature, when it ends, and no
feature differs from the reference, which looks at the whole store, or at the stream itself where nothing was lost."""

import collections
import gzip
import json
from pathlib import Path

import pytest

from tasks.ipv import reference, sessions
from tasks.training import ipv
from vmhost.bytecode.spec import read_task
from vmhost.pipeline.events import Event
from vmhost.pipeline.intake import Intake
from vmhost.pipeline.store import EventStore
from vmhost.pipeline.triggers import TriggerEngine
from vmhost.stores import Database

FIELDS = ("name", "time_ms", "page", "visit", "contents", "id", "key")
ROOT = Path(__file__).resolve().parents[2]
REAL, TASKS = ROOT / "tests/tasks/real_events.jsonl.gz", ROOT / "tasks"


def rough():
    return list(
        sessions.events(
            sessions.Options(
                seed=9, visits=400, missing_exits=0.1, nested=0.3, bots=0.02, duplicates=0.1, late=0.05, clock_jumps=0.2
            )
        )
    )


def without_losses():
    kept = sessions.CLEAN | {"missing_exits": 0.1, "duplicates": 0.1}
    return list(sessions.events(sessions.Options(seed=8, visits=300, **kept)))


def real():
    with gzip.open(REAL, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


class Day:
    """A stream's way through the pipeline up to the calls: `features` of each visit, in the order of the calls."""

    def __init__(self, folder, log):
        self.features, self._events, self._now_s = {}, {}, 0.0
        self._engine = TriggerEngine()
        self._engine.add("ipv", read_task(TASKS / "ipv").trigger.on)
        with Database(folder / "events.sqlite") as database:
            store = EventStore(database)
            self.intake = Intake(store, lateness_ms=30_000, visit_timeout_ms=900_000, clock=lambda: self._now_s)
            for event in log:
                self._now_s = max(self._now_s, event["time_ms"] / 1000)
                self._trigger(self.intake.take([Event(**event)]))
            self._now_s += 3600
            self._trigger(self.intake.tick(int(self._now_s * 1000)))
            self._trigger(self.intake.close())
            self.stored = [{name: getattr(one.event, name) for name in FIELDS} for one in store.read()]

    def _trigger(self, taken):
        for stored in taken:
            event = stored.event
            visit = self._events.setdefault(event.visit, [])
            visit.append({name: getattr(event, name) for name in FIELDS})
            for _ in self._engine.feed(event.name, event.page, event.visit, event.time_ms, stored.position):
                self.features.setdefault(event.visit, []).append(ipv.features.feature(list(visit)))


def before_their_visits_end(stored):
    """Without the events that came late, after their visit had ended: it does not trigger again for them."""
    ended, found = set(), []
    for event in stored:
        if event["visit"] not in ended:
            found.append(event)
        if event["name"] == "page_exit":
            ended.add(event["visit"])
    return found


@pytest.mark.parametrize("log", [rough, without_losses, real])
def test_each_visit_that_is_stored_gets_its_feature_once(log, tmp_path):
    log = log()
    day = Day(tmp_path, log)
    stored = before_their_visits_end(day.stored)
    counts = collections.Counter(event["visit"] for event in stored)  # an exit whose enter came too late ends nothing
    wanted = {visit: made for visit, made in reference.features(stored).items() if counts[visit] > 1}
    assert {visit: made for visit, [made] in day.features.items() if made is not None} == wanted
    assert len(wanted) >= 12


def test_no_visit_is_lost_or_altered_on_the_way(tmp_path):
    """Exits that never come and events that come twice change nothing."""
    log = without_losses()
    day = Day(tmp_path, log)
    assert {visit: made for visit, [made] in day.features.items()} == reference.features(log)
