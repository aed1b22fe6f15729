"""The shipped rules of a shop: each fires for the events beside it, and does not for those that nearly match."""

import json

import pytest

from tests.hosts import until
from tests.pipeline.stream_tasks import WAIT_S, open_pipeline
from vmhost.cli import main
from vmhost.pipeline.complex_events import read_rule_file
from vmhost.pipeline.feed import decoded
from vmhost.pipeline.patterns import SHOP, PatternEngine

FIRE = {
    "hesitates": {"look": (1,), "again": (3, 6)},
    "leaves_cart": {"cart": (1,)},
    "compares_three": {"one": (1,), "two": (3,), "three": (5,)},
    "searches_in_vain": {"first": (1,), "second": (2,), "third": (4,), "fourth": (5,)},
    "returns": {"look": (1,), "exit": (2,), "enter": (4,)},
}
RULES = {rule.name: rule for rule in read_rule_file(SHOP / "rules.yaml")}


def test_the_files_are_those_of_the_rules():
    streams = {f"{name}.{kind}.jsonl" for name in RULES for kind in ("fires", "nearly")}
    assert RULES.keys() == FIRE.keys() and {path.name for path in SHOP.iterdir()} == streams | {"rules.yaml"}
    assert all(rule.message and rule.data["about"] for rule in RULES.values())


def matches(name, kind):
    """A rule's result for the events in its file."""
    engine = PatternEngine()
    engine.add(name, RULES[name].data)
    found = []
    for position, line in enumerate((SHOP / f"{name}.{kind}.jsonl").read_bytes().splitlines(), 1):
        event = decoded(line)
        found += [*engine.advance(event.time_ms - 1), *engine.feed(event, position)]
    return [dict(match.steps) for match in found if not match.timed_out]


@pytest.mark.parametrize("name", FIRE)
def test_a_rule_fires_for_its_events_and_not_for_those_that_nearly_make_it(name):
    assert matches(name, "fires") == [FIRE[name]]
    assert matches(name, "nearly") == []


def test_the_command_shows_it(capfd):
    arguments = ["--name", "leaves_cart", "--events", str(SHOP / "leaves_cart.fires.jsonl")]
    assert main(["pipeline", "explain-rule", str(SHOP / "rules.yaml"), *arguments]) == 0
    shown = capfd.readouterr().out
    assert "leaves_cart, within 7,200,000 ms, by key" in shown and "match: cart 1" in shown


def test_all_of_them_reach_somebody(tmp_path, capfd):
    sent, events = [], []
    rules = [rule.data | {"then": ["shop"]} for rule in RULES.values()]
    for name in RULES:  # each stream has people of its own
        for line in (SHOP / f"{name}.fires.jsonl").read_bytes().splitlines():
            event = json.loads(line)
            events.append(decoded(json.dumps(event | {"key": f"{event['key']} who {name}"})))
    events.sort(key=lambda event: event.time_ms)
    options = {"clock": lambda: events[-1].time_ms / 1000 + 100_000, "channels": {"shop": sent.append}}
    with open_pipeline(tmp_path, rules=rules, **options) as pipeline:
        pipeline.append_many(events)
        wanted = {(name, f"ann who {name}") for name in RULES}  # some when the clock says that the time is over
        until(lambda: {(message["rule"], message["key"]) for message in sent} >= wanted)
        assert pipeline.reach.wait(WAIT_S)
    assert all(message["message"]["title"] for message in sent)
    assert main(["reach", "audit", str(tmp_path / "data"), "--limit", "1"]) == 0
    shown = capfd.readouterr().out
    assert "sent" in shown and "taken" in shown
    assert main(["reach", "queue", str(tmp_path / "data")]) == 0
    assert "no message waits" in capfd.readouterr().out
