"""Rules of a pipeline: matches become events, which trigger tasks and go to channels, once each, also over restarts."""

import contextlib
import http.server
import json
import subprocess
import sys
import threading

import pytest

from tests.pipeline.stream_tasks import WAIT_S, open_pipeline, stream_task
from vmhost import BundleError, ConfigurationError
from vmhost.cli import main
from vmhost.pipeline.events import Event
from vmhost.pipeline.feed import Feed
from vmhost.pipeline.pipeline import Pipeline
from vmhost.pipeline.replay import Recording, Replay, ReplayClock

BEGIN_MS = 1_790_000_000_000
RULE = {
    "name": "hesitates",
    "pattern": [
        {"name": "view", "event": "page_enter", "where": {"field": "page", "op": "==", "value": "item"}},
        {"name": "cart", "event": "cart", "where": {"field": "item.price", "op": ">", "value": 10}},
        {"name": "leave", "event": "page_exit"},
    ],
    "within_ms": 60_000,
    "then": ["shop"],
}
SOURCE = """
def run(value):
    match = value["events"][-1]["contents"]
    return {"who": value["key"], "price": match["steps"]["cart"][0]["contents"]["item"]["price"]}
"""
TABLE = "columns: {who: text, price: integer}"


def task(folder):
    return stream_task(folder, SOURCE, 'on: ["rule:hesitates"], level: time', "remind", table=TABLE)


def event(name, at_s, key="ann", price=None, page="item"):
    contents = None if price is None else {"item": {"price": price}}
    return Event(name, BEGIN_MS + at_s * 1000, page, f"{key}-1", contents, key=key)


def visit(at_s, key="ann", price=20):
    return [event("page_enter", at_s, key), event("cart", at_s + 1, key, price), event("page_exit", at_s + 2, key)]


def rows(pipeline, *columns):
    return [tuple(row[name] for name in columns) for row in pipeline.table("remind").read(order="_id")]


def test_a_rule_of_three_steps_ends_in_a_channel_and_in_a_task(tmp_path):
    sent = []
    with open_pipeline(tmp_path, task(tmp_path), rules=[RULE], channels={"shop": sent.append}) as pipeline:
        pipeline.append_many(
            [
                event("page_enter", 0, "ann"),
                event("page_enter", 1, "bob"),
                event("cart", 2, "bob", 5),  # too cheap
                event("cart", 3, "ann", 20),
                event("scroll", 4, "ann"),
                event("page_exit", 5, "bob"),
                event("page_exit", 59, "ann"),  # in time
                *visit(100, "eve")[:2],
                event("page_exit", 160, "eve"),  # the window is half-open
            ]
        )
        assert pipeline.wait(WAIT_S)
        assert rows(pipeline, "who", "price") == [("ann", 20)]
    (message,) = sent
    assert (message["rule"], message["key"], message["timed_out"]) == ("hesitates", "ann", False)
    assert message["at_ms"] == BEGIN_MS + 59_000
    assert {step: [one["time_ms"] - BEGIN_MS for one in events_] for step, events_ in message["steps"].items()} == {
        "view": [0],
        "cart": [3000],
        "leave": [59_000],
    }


def test_the_command_runs_what_a_pipeline_yaml_says(tmp_path):
    (tmp_path / "remind.vmb").write_bytes(task(tmp_path))
    (tmp_path / "rule.json").write_text(json.dumps(RULE))
    (tmp_path / "pipeline.yaml").write_text(
        "folder: data\nbundles: [remind.vmb]\nallow_unsigned: true\nrules: [rule.json]\nchannels: {shop: {log: true}}\n"
    )
    lines = [
        {"name": one.name, "time_ms": one.time_ms, "page": one.page, "visit": one.visit, "key": one.key}
        | ({"contents": one.contents} if one.contents else {})
        for one in visit(0)
    ]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [sys.executable, "-m", "vmhost", "pipeline", "run", tmp_path / "pipeline.yaml", "--json"]
    done = subprocess.run([*command, "--events", tmp_path / "events.jsonl"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert (figures["rules"]["matched"], figures["tasks"]["remind"]["stored"]) == (1, 1)
    assert figures["channels"]["shop"]["sent"] == 1


def test_what_is_under_way_goes_on_after_a_restart_and_no_match_comes_twice(tmp_path):
    bundle, sent = task(tmp_path), []
    options = {"rules": [RULE], "channels": {"shop": sent.append}}
    events = visit(0)
    with open_pipeline(tmp_path, bundle, **options) as pipeline:
        pipeline.append_many(visit(-100, "eve"))  # a match before
        pipeline.append_many(events[:2])
        assert pipeline.wait(WAIT_S)
        pipeline.close(keep_visits=True)
    with open_pipeline(tmp_path, bundle, **options) as pipeline:
        assert pipeline.statistics()["rules"]["matches"] == 1
        pipeline.append(events[2])
        assert pipeline.wait(WAIT_S)
        pipeline.close(keep_visits=True)
    with open_pipeline(tmp_path, bundle, **options) as pipeline:
        assert rows(pipeline, "who") == [("eve",), ("ann",)]
    assert [message["key"] for message in sent] == ["eve", "ann"]


def test_without_the_last_snapshot_events_are_looked_at_again(tmp_path):
    """As after kill -9: the snapshot is older than the events, and their matches were stored."""
    bundle, sent = task(tmp_path), []
    options = {"rules": [RULE], "channels": {"shop": sent.append}}
    with open_pipeline(tmp_path, bundle, **options) as pipeline:
        pipeline.append(event("page_enter", 0))
        pipeline._complex.save(now=True)
        pipeline._complex.save = lambda now=False: None
        pipeline.append_many([*visit(0)[1:], *visit(10, "bob")[:2]])
        assert pipeline.wait(WAIT_S)
        pipeline.close(keep_visits=True)
    with open_pipeline(tmp_path, bundle, **options) as pipeline:
        assert pipeline.statistics()["rules"]["matched"] == 1  # found again
        pipeline.append(visit(10, "bob")[2])
        assert pipeline.wait(WAIT_S)
        assert rows(pipeline, "who") == [("ann",), ("bob",)]
    assert [message["key"] for message in sent] == ["ann", "bob"]


def test_time_outs_come_when_no_event_does(tmp_path):
    sent, arrived, now = [], threading.Event(), [BEGIN_MS / 1000]

    def channel(message):
        sent.append(message)
        arrived.set()

    rule = RULE | {"then": [], "timeout": ["shop"]}
    options = {"rules": [rule], "channels": {"shop": channel}, "lateness_ms": 1000, "intake": {"idle_ms": 1}}
    with open_pipeline(tmp_path, clock=lambda: now[0], batch_ms=1, **options) as pipeline:
        pipeline.append_many(visit(0)[:2])
        now[0] += 120
        assert arrived.wait(WAIT_S)
    (message,) = sent
    assert (message["timed_out"], message["at_ms"], list(message["steps"])) == (
        True,
        BEGIN_MS + 60_000,
        ["view", "cart"],
    )


def test_a_changed_rule_begins_anew_and_others_go_on(tmp_path, caplog):
    other = RULE | {"name": "same"}
    with open_pipeline(tmp_path, rules=[RULE, other], channels={"shop": print}) as pipeline:
        pipeline.append_many(visit(0)[:2])
        pipeline.close(keep_visits=True)
    changed = RULE | {"within_ms": 50_000}
    with open_pipeline(tmp_path, rules=[changed, other], channels={"shop": print}) as pipeline:
        pipeline.append(visit(0)[2])
        counts = pipeline.statistics()["rules"]
        assert (counts["ended"], counts["matched"]) == (1, 1)
    assert "1 matches under way have ended" in caplog.text


@pytest.mark.parametrize("restarts", [False, True])
def test_a_changed_rule_says_that_matches_under_way_go_on(tmp_path, restarts):
    """Matches follow the new rule's conditions and times, whether it comes while events flow or at a start."""
    sent, channels = (
        [],
        {"shop": lambda message: sent.append((message["rule"], message["steps"]["gone"][0]["contents"]))},
    )
    gone, far = {"name": "gone", "event": "gone"}, {"field": "n", "op": ">", "value": 7}
    steps = RULE["pattern"][:-1]
    known, other = RULE | {"pattern": [*steps, gone]}, RULE | {"name": "other"}
    changed = RULE | {"when_changed": "go_on", "pattern": [*steps, gone | {"where": far}]}
    more = other | {"when_changed": "go_on", "pattern": [*steps, gone, {"name": "more", "event": "more"}]}
    with contextlib.ExitStack() as stack:
        pipeline = stack.enter_context(open_pipeline(tmp_path, rules=[known, other], channels=channels))
        pipeline.append_many(visit(0)[:2])
        if restarts:
            pipeline.close(keep_visits=True)
            pipeline = stack.enter_context(open_pipeline(tmp_path, rules=[changed, more], channels=channels))
        else:
            assert pipeline.change_rules([changed, more]) == ["other"]
        assert pipeline.statistics()["rules"]["ended"] == 1  # `more` has other steps
        pipeline.append_many([Event("gone", BEGIN_MS + n * 1000, contents={"n": n}, key="ann") for n in (3, 8)])
        assert pipeline.reach.wait(WAIT_S)
        assert sent == [("hesitates", {"n": 8})] and pipeline.statistics()["rules"]["matched"] == 1


def test_rules_change_while_events_flow(tmp_path):
    sent, matches = {"shop": [], "log": []}, []
    channels = {name: (lambda message, name=name: sent[name].append(message["rule"])) for name in sent}
    with open_pipeline(tmp_path, channels=channels) as pipeline:
        pipeline.append_many(visit(0))
        assert pipeline.change_rules([]) == []
        assert pipeline.change_rules([RULE, RULE | {"name": "same"}, RULE | {"name": "old"}]) == [
            "hesitates",
            "same",
            "old",
        ]
        pipeline.append_many(visit(10)[:2])
        # one rule begins anew, one continues with other channels, one is removed, one is new
        changed, same, new = (
            RULE | {"within_ms": 50_000},
            RULE | {"name": "same", "then": ["log"]},
            RULE | {"name": "new"},
        )
        assert pipeline.change_rules([changed, same, new]) == ["hesitates", "new"]
        pipeline.append(visit(10)[2])
        pipeline.append_many(visit(20))
        assert pipeline.reach.wait(WAIT_S)
        for wrong, reason in (
            ([RULE | {"then": ["nowhere"]}], "there is no channel 'nowhere'"),
            ([RULE, RULE], "there are two rules hesitates"),
            ([{"name": "x", "pattern": []}], "rule x"),
            ([str(tmp_path / "none.yaml")], "none.yaml"),
        ):
            with pytest.raises(ConfigurationError, match=reason):
                pipeline.change_rules(wrong)
        pipeline.append_many(visit(30))
        assert pipeline.reach.wait(WAIT_S)
        matches = {name: sorted(rules) for name, rules in sent.items()}
        assert matches == {"shop": ["hesitates", "hesitates", "new", "new"], "log": ["same", "same", "same"]}
        pipeline.append_many(visit(40)[:2])
    with open_pipeline(tmp_path, rules=[changed, same, new], channels=channels) as pipeline:  # as they were left
        pipeline.append(visit(40)[2])
        assert pipeline.reach.wait(WAIT_S)
        assert sorted(sent["shop"][4:]) == ["hesitates", "new"] and sent["log"][3:] == ["same"]


def test_who_is_forgotten_is_in_no_match(tmp_path):
    with open_pipeline(tmp_path, task(tmp_path), rules=[RULE], channels={"shop": print}) as pipeline:
        pipeline.append_many([*visit(0, "ann-secret")[:2], *visit(1, "bob")[:2]])
        pipeline._complex.save(now=True)
        pipeline.forget("ann-secret")
        pipeline.append_many([event("page_exit", 5, "ann-secret"), event("page_exit", 6, "bob")])
        assert pipeline.wait(WAIT_S)
        assert rows(pipeline, "who") == [("bob",)]
        pipeline.forget("ann-secret")
        pipeline.flush()
        files = [path.read_bytes() for path in (tmp_path / "data").glob("pipeline.sqlite*")]
    assert not any(b"ann-secret" in data for data in files)


@contextlib.contextmanager
def server(answers):
    """A web page that answers with these statuses, one after the other; yields its address and the requests."""
    requests = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            requests.append((self.headers["Idempotency-Key"], json.loads(body)))
            self.send_response(answers.pop(0) if answers else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}/hook", requests
        listening.shutdown()
        thread.join()


def test_a_webhook_that_fails_is_called_again_with_the_same_id(tmp_path):
    with server([500]) as (address, requests):
        options = {"rules": [RULE], "channels": {"shop": {"push": address}}}
        with open_pipeline(tmp_path, **options) as pipeline:
            pipeline.append_many([*visit(0), *visit(10, "bob")])
        assert pipeline.final["channels"]["shop"] == {"sent": 2, "retry": 1, "given_up": 0, "waits": None}
    assert [body["key"] for _, body in requests] == ["ann", "ann", "bob"]
    assert requests[0][0] == requests[1][0] != requests[2][0]


def test_a_message_that_is_refused_does_not_hold_up_the_next(tmp_path):
    with server([400]) as (address, requests):
        options = {"rules": [RULE], "channels": {"shop": {"push": address}}}
        with open_pipeline(tmp_path, **options) as pipeline:
            pipeline.append_many([*visit(0), *visit(10, "bob")])
        counts = pipeline.final["channels"]["shop"]
        assert (counts["sent"], counts["given_up"]) == (1, 1)
    assert [body["key"] for _, body in requests] == ["ann", "bob"]


@pytest.mark.parametrize(
    ("rule", "channels", "message"),
    [
        ({"name": "r"}, {}, "rule r: pattern: expected a list of steps"),
        (RULE | {"within_ms": None}, {"shop": print}, "without it matches under way never end"),
        (RULE, {}, "rule hesitates: there is no channel 'shop'"),
        (RULE, {"shop": {"push": "ftp://x"}}, "channel shop: push: expected an address"),
        (RULE, {"shop": {"native_callback": "f"}}, "channel shop: there is no host function 'f'"),
        (RULE, {"shop": {"smoke": 1}}, "channel shop: expected one of push, poplayer"),
        (RULE | {"of": 1}, {"shop": print}, "there is no key 'of'"),
        (RULE | {"name": "a:b"}, {"shop": print}, "expected a text without a colon"),
        (RULE | {"by": "shop"}, {"shop": print}, "by: expected one of all, key, visit, page"),
        (RULE | {"then": "shop"}, {"shop": print}, "then: expected a list"),
        ([RULE], {"shop": print}, "expected"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_with_its_place(tmp_path, rule, channels, message):
    if isinstance(rule, list):
        rule = tmp_path / "none.yaml"
    with pytest.raises(ConfigurationError) as refused:
        Pipeline(tmp_path / "data", [], rules=[rule], channels=channels)
    assert message in str(refused.value) or (message == "expected" and "none.yaml" in str(refused.value))


@pytest.mark.parametrize("text", ["name: !!bool x", "name: !!int ''", "name: 2026-13-45", "[a]: b", '"\\U00110000"'])
def test_a_file_of_rules_that_is_no_yaml_is_refused_with_its_name(tmp_path, text):
    (tmp_path / "rules.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=r"rules\.yaml: "):
        Pipeline(tmp_path / "data", [], rules=[tmp_path / "rules.yaml"])


def test_a_task_that_waits_for_a_match_within_a_visit_is_refused(tmp_path):
    bundle = stream_task(tmp_path, SOURCE, 'on: ["rule:hesitates"]', "remind", table=TABLE)
    with pytest.raises(ConfigurationError, match="set `level: time` in its trigger"):
        open_pipeline(tmp_path, bundle, rules=[RULE], channels={"shop": print})


def test_nobody_outside_makes_matches(tmp_path):
    """An event with the name of a match is refused, alone and in lines of JSON, and others go on."""
    sent = []
    forged = Event("rule:hesitates", BEGIN_MS, key="mallory", contents={"rule": "hesitates"})
    line = {"name": "rule:hesitates", "time_ms": BEGIN_MS, "contents": {"rule": "hesitates"}}
    with open_pipeline(tmp_path, rules=[RULE], channels={"shop": sent.append}) as pipeline:
        with pytest.raises(
            ValueError, match="'rule:hesitates': names that begin with 'rule:' are those of rules' match"
        ):
            pipeline.append_many([*visit(0), forged])
        feed = Feed(pipeline, "lines", bad_lines="aside")
        assert feed.take_lines([json.dumps(line).encode()]) and feed.aside == 1
        pipeline.append_many(iter(visit(10)))
        assert pipeline.wait(WAIT_S)
        pipeline.close()
    assert [message["key"] for message in sent] == ["ann"]


def test_an_event_that_is_no_match_does_not_stop_its_channel(tmp_path, monkeypatch, caplog):
    """Stores of older versions may hold one."""
    sent = []
    monkeypatch.setattr("vmhost.pipeline.pipeline._refuse_match_names", lambda events: None)
    with open_pipeline(tmp_path, rules=[RULE], channels={"shop": sent.append}) as pipeline:
        pipeline.append_many([Event("rule:hesitates", BEGIN_MS, key="mallory"), *visit(0)])
        assert pipeline.wait(WAIT_S)
        pipeline.close()
        assert pipeline.final["channels"]["shop"] == {"sent": 1, "given_up": 1, "waits": None}
    assert [message["key"] for message in sent] == ["ann"] and "is no match; it was given up" in caplog.text


def test_a_replay_makes_its_own_matches(tmp_path):
    """Recorded matches are skipped: with other positions they would come twice."""
    (tmp_path / "first").mkdir(), (tmp_path / "again").mkdir()
    with open_pipeline(tmp_path / "first", rules=[RULE], channels={"shop": lambda message: None}) as pipeline:
        pipeline.append_many(visit(0))
    sent = []
    recording, clock = Recording.stored(tmp_path / "first" / "data"), ReplayClock()
    with open_pipeline(tmp_path / "again", rules=[RULE], channels={"shop": sent.append}, clock=clock) as pipeline:
        pipeline.append(event("page_enter", -10, "bob"))  # moves the positions
        replay = Replay(recording, Feed(pipeline, "replay"), clock)
        replay.run()
        assert pipeline.wait(WAIT_S)
    assert len(sent) == 1 and (replay.events, replay.done) == (3, recording.total) == (3, 4)


def test_files_of_rules_and_features_must_be_signed_where_that_is_said(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("VMHOST_KEYS", str(tmp_path / "keys"))
    for name in ("ann", "eve"):
        assert main(["keys", "new", name]) == 0
    rules, features = tmp_path / "rules.json", tmp_path / "features.json"
    rules.write_text(json.dumps(RULE))
    features.write_text(json.dumps({"features": {"carts": {"source": "cart", "operator": "count"}}}))
    options = {"trust": tmp_path / "keys" / "keys" / "ann.pub", "channels": {"shop": print}, "signed_files": True}

    def refused(match, **files):
        with pytest.raises(BundleError, match=match):
            Pipeline(tmp_path / "data", [], **options, **files)

    refused("rules.json.sig: No such file or directory; sign the file with `vmhost keys sign`", rules=[rules])
    assert main(["keys", "sign", str(rules), str(features), "--key", "eve"]) == 0
    refused("features.json: signed with the key .*, which this host does not trust", features=[features])
    assert main(["keys", "sign", str(rules), str(features), "--key", "ann"]) == 0
    with Pipeline(tmp_path / "data", [], rules=[rules], features=[features], **options) as pipeline:
        changed = tmp_path / "changed.json"
        changed.write_text(json.dumps(RULE | {"within_ms": 5}))
        changed.with_name("changed.json.sig").write_bytes(rules.with_name("rules.json.sig").read_bytes())
        with pytest.raises(BundleError, match="does not belong to this file"):
            pipeline.change_rules([changed])
        assert pipeline.change_rules([rules]) == []
    rules.with_name("rules.json.sig").write_bytes(b"short")
    refused("expected 96 bytes, got 5", rules=[rules])
    assert main(["keys", "sign", str(tmp_path / "gone"), "--key", "ann"]) == 2
