"""Remote debugging of a host: only what was signed and consented to, and all of it is in the audit."""

import base64
import json
import logging
import os
import sqlite3
import threading
import time

import pytest

import vmhost
from tests import warm
from tests.operations.debugged_hosts import (
    ALL,
    Clock,
    Session,
    debugged,
    link_of,
    new_key,
    offered,
    session,
    until,
)
from vmhost.bytecode import signing
from vmhost.operations.debugging import DebugError, Debugging, Ledger, desk, ledger, runs


@pytest.fixture
def host(tmp_path):
    with debugged(tmp_path) as (host, debugging):
        yield host, debugging


def actions(debugging, session=None):
    return [line["action"] for line in debugging.ledger.audit(session=session)][::-1]


# ---- links and consent


def test_hosts_allow_none_by_themselves(tmp_path):
    with vmhost.Host(allow_unsigned=True, state=tmp_path) as host:
        with pytest.raises(vmhost.ConfigurationError, match="debugging: ask"):
            Debugging(host)
    policy = vmhost.Policy(debugging=vmhost.DebugPolicy("ask"))
    with vmhost.Host(allow_unsigned=True, policy=policy) as host:
        with pytest.raises(vmhost.ConfigurationError, match="state folder"):
            Debugging(host)
    with pytest.raises(vmhost.ConfigurationError, match="expected never or ask"):
        vmhost.DebugPolicy("always")


def test_nothing_is_told_before_somebody_consents(host):
    debugging = host[1]
    asking = Session(debugging, offered(debugging))
    assert asking.opened["state"] == "waiting" and asking.opened["asked"] == list(ALL)
    for do, what in (("config", {}), ("logs", {}), ("reports", {}), ("fetch", {"name": "metrics.txt"}), ("tasks", {})):
        assert asking.refused(do, **what) == ("consent", "nobody at the device has consented yet"), do
    assert asking.refused("run", task="worker", value=1)[0] == "consent"
    debugging.decide(asking.id, False)
    assert asking.ask("state")["state"] == "denied"
    assert asking.refused("config")[0] == "ended"
    assert actions(debugging, asking.id) == ["asked for a session", "denied"]


def test_only_what_was_consented_to_is_done(host):
    debugging = host[1]
    asking = Session(debugging, offered(debugging))
    debugging.decide(asking.id, True, scopes=("config",))
    assert asking.ask("state")["granted"] == ["config"]
    assert asking.ask("config")["tasks"][0]["name"] == "worker"
    for do, what in (("logs", {}), ("reports", {}), ("run", {"task": "worker"}), ("tasks", {})):
        assert asking.refused(do, **what)[0] == "scope", do
    assert asking.refused("fetch", name="metrics.txt")[0] == "scope"


def test_a_link_grants_no_more_than_its_scopes(host):
    asking = session(host[1], ("logs",))
    assert asking.refused("config")[0] == "scope"
    with pytest.raises(DebugError, match="none of these scopes"):
        other = Session(host[1], offered(host[1], ("logs",)))
        host[1].decide(other.id, True, scopes=("run",))


def test_the_hosts_policy_bounds_scopes_and_time(tmp_path):
    with debugged(tmp_path, scopes=("config",), longest_s=60) as (_, debugging):
        asking = Session(debugging, link_of(debugging.ledger.key(), debugging.ledger.host()))
        assert asking.opened["asked"] == ["config"] and asking.opened["expires_s"] <= 60
        link = link_of(debugging.ledger.key(), debugging.ledger.host(), ("run",))
        assert "grants config only" in Session(debugging, link).opened["error"]["message"]


def test_a_link_opens_one_session(host):
    debugging = host[1]
    link = offered(debugging)
    first, second = Session(debugging, link), Session(debugging, link)
    assert "used already" in second.opened["error"]["message"] and second.opened["error"]["kind"] == "link"
    debugging.end(first.id)
    assert "used already" in Session(debugging, link).opened["error"]["message"]


def test_a_link_that_many_open_at_once_opens_one_session(host):
    debugging = host[1]
    link, made, start = offered(debugging), [], threading.Barrier(8)

    def opens():
        start.wait()
        made.append(Session(debugging, link))

    threads = [threading.Thread(target=opens) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(bool(each.who) for each in made) == [False] * 7 + [True]


def test_links_of_strangers_and_of_other_hosts_are_refused(tmp_path):
    ann, ben = new_key(tmp_path / "keys", "ann"), signing.generate_key()
    with debugged(tmp_path, keys=tmp_path / "keys") as (_, debugging):
        name = debugging.ledger.host()
        assert "does not trust" in Session(debugging, link_of(ben, name)).opened["error"]["message"]
        assert "is for the host kitchen-2" in Session(debugging, link_of(ann, "kitchen-2")).opened["error"]["message"]
        assert Session(debugging, link_of(ann, name)).opened["state"] == "waiting"
        refused = [line for line in debugging.ledger.audit() if line["action"] == "refused"]
        assert len(refused) == 2 and refused[0]["who"] == "somebody by a test"


def test_a_link_that_expired_or_was_revoked_is_refused(tmp_path):
    clock = Clock()
    with debugged(tmp_path, clock=clock) as (_, debugging):
        link, revoked = offered(debugging, valid_s=60), offered(debugging)
        clock.ahead_s = 61
        assert "expired at" in Session(debugging, link).opened["error"]["message"]
        debugging.ledger.revoke(revoked.id, "a test")
        assert "revoked" in Session(debugging, revoked).opened["error"]["message"]
        clock.ahead_s = 0
        early = link_of(debugging.ledger.key(), debugging.ledger.host(), now_s=time.time() + 3600)
        assert "set the clock right" in Session(debugging, early).opened["error"]["message"]


def test_a_clock_that_is_set_back_brings_no_link_back(tmp_path):
    clock = Clock()
    with debugged(tmp_path, clock=clock) as (_, debugging):
        link = offered(debugging, valid_s=60)
        clock.ahead_s = 3600
        debugging.ledger.note("a test", "looks at the clock")
        clock.ahead_s = 0
        error = Session(debugging, link).opened["error"]
        assert error["kind"] == "link" and "stood at" in error["message"] and "vmhost debug clock" in error["message"]
        debugging.ledger.accept_clock("a test")
        assert Session(debugging, offered(debugging)).opened["state"] == "waiting"


def test_a_session_ends_on_time_though_the_clock_is_set_back(tmp_path, monkeypatch):
    clock, now = Clock(), [0.0]
    with debugged(tmp_path, clock=clock) as (_, debugging):
        asking = session(debugging, valid_s=60)
        clock.ahead_s = -50_000
        real = time.monotonic
        monkeypatch.setattr(desk.time, "monotonic", lambda: real() + now[0])
        assert asking.ask("config")["tasks"]
        now[0] = 61.0
        assert "time ran out" in asking.refused("config")[1]
        monkeypatch.undo()


def test_a_session_ends_in_the_middle_when_its_time_is_over(host):
    asking = session(host[1])
    run = asking.ask("run", task="worker", value="sleep")["run"]
    running = asking.debugging._sessions[asking.id].run
    asking.debugging._sessions[asking.id]._end = time.monotonic()
    until(lambda: "is over" in asking.ask("config").get("error", {}).get("message", ""))
    assert running.ended.wait(30) and running.outcome == "cancelled" and run == 1
    assert until(lambda: "ended" in actions(host[1], asking.id))
    assert asking.refused("result", run=1)[0] == "ended"


def test_secrets_of_sessions_are_not_guessed(host):
    asking = session(host[1])
    for who in (
        {"session": asking.id, "secret": "guess"},
        {"session": "0" * 12, "secret": asking.who["secret"]},
        {"session": None, "secret": None},
        {"session": asking.id, "secret": "\ud800"},
        {},
    ):
        assert host[1].answer({"do": "config", **who}, "a test")["error"]["kind"] == "link"
    stored = sqlite3.connect(host[1].ledger.path)
    assert asking.who["secret"] not in str(stored.execute("SELECT * FROM debug_sessions").fetchall())
    stored.close()
    assert os.stat(host[1].ledger.path).st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "request_", [None, [], "config", {}, {"do": "shell"}, {"do": ["open"]}, {"do": "open", "link": 3}]
)
def test_what_is_no_request_is_told_so(host, request_):
    assert host[1].answer(request_, "a test")["error"]["kind"] in ("input", "link")


def test_a_program_consents_by_its_own_function(tmp_path):
    asked = []

    def consent(request):
        asked.append(request)
        if len(asked) == 3:
            raise RuntimeError("the person closed the window")
        return ("logs",) if len(asked) == 1 else False

    with debugged(tmp_path, consent=consent) as (_, debugging):
        for state, granted in (("active", ["logs"]), ("denied", []), ("denied", [])):
            asking = Session(debugging, offered(debugging), "the lift")
            answer = until(lambda: (s := asking.ask("state"))["state"] != "waiting" and s)
            assert (answer["state"], answer["granted"]) == (state, granted)
        assert asked[0].via == "the lift" and asked[0].scopes == ALL and asked[0].signer == "this host"


def test_consent_is_given_and_withdrawn_by_another_process(host):
    debugging = host[1]
    asking = Session(debugging, offered(debugging))
    command = ("-m", "vmhost", "debug")
    state = str(debugging.ledger.folder)
    warm.run(*command, "consent", state, asking.id, "--yes").check_returncode()
    assert asking.ask("state", wait_s=5)["state"] == "active"
    run = asking.ask("run", task="worker", value="hang")["run"]
    running = debugging._sessions[asking.id].run
    warm.run(*command, "end", state, asking.id).check_returncode()
    assert "consent was withdrawn" in asking.refused("result", run=run)[1]
    assert running.ended.wait(30), "what it ran is stopped"
    lines = debugging.ledger.audit(session=asking.id)
    assert lines[0]["action"] == "ended" and lines[0]["who"].endswith("at the terminal")


def test_two_sessions_at_once_see_nothing_of_each_other(host):
    one, two = session(host[1]), session(host[1], ("config",))
    run = one.ask("run", task="worker", value="work", profile=True)["run"]
    assert two.refused("result", run=run)[0] == "input"
    assert two.ask("config")["groups"]
    answer = one.result(run)
    assert two.refused("fetch", name=answer["files"][0])[0] == "scope"
    two.ask("end")
    assert one.ask("config")["groups"] and two.refused("config")[0] == "ended"


def test_sessions_are_few(host):
    debugging = host[1]
    made = [Session(debugging, offered(debugging)) for _ in range(ledger.MAX_WAITING + 1)]
    assert made[-1].opened["error"]["kind"] == "busy"
    for each in made[: ledger.MAX_ACTIVE]:
        debugging.decide(each.id, True)
    with pytest.raises(DebugError, match="end one first"):
        debugging.decide(made[ledger.MAX_ACTIVE].id, True)


def test_refusals_are_told_apart_and_bounded(host):
    host[1]._refused._clock = lambda: 0.0  # however long they take
    kinds = [Session(host[1], "http://x/debug#forged.link").opened["error"]["kind"] for _ in range(40)]
    assert kinds[0] == "link" and kinds[-1] == "rate"
    assert actions(host[1]).count("refused") <= desk._OPENS_AT_ONCE + 1


def test_requests_are_bounded(host):
    asking = session(host[1])
    host[1]._sessions[asking.id].limit._clock = lambda: 0.0  # however long they take
    kinds = {asking.ask("state").get("error", {}).get("kind") for _ in range(200)}
    assert kinds == {None, "rate"}


# ---- what a session does


def test_the_configuration_says_what_was_set(host):
    found = session(host[1]).ask("config")
    rows = {row["name"]: row for group in found["groups"] for row in group["rows"] if group["title"] == "Debugging"}
    assert rows["consent"] == {"name": "consent", "value": "ask", "from": "program"}
    assert rows["longest_s"]["from"] == "default"
    assert found["tasks"][0]["limits"]["memory_bytes"] == 64 << 20 and found["machine"]["python"]


def test_the_configuration_names_the_line_of_host_yaml(tmp_path):
    path = tmp_path / "host.yaml"
    path.write_text("allow_unsigned: true\nstate: state\nvms:\n  max: 7\ndebugging: ask\n")
    with vmhost.Host.from_file(path) as host, Debugging(host) as debugging:
        rows = {row["name"]: row for group in session(debugging).ask("config")["groups"] for row in group["rows"]}
        assert rows["max_vms"] == {"name": "max_vms", "value": "7", "from": f"{path}:4"}
        assert rows["consent"] == {"name": "consent", "value": "ask", "from": f"{path}:5"}
        assert rows["idle_s"]["from"] == "default"


def test_a_run_has_its_result_profile_and_trace(host):
    asking = session(host[1])
    run = asking.ask("run", task="worker", value="work", profile=True, trace=True)["run"]
    answer = asking.result(run)
    assert answer["outcome"] == "ok" and answer["result"] == "spun" and answer["took_s"] > 0.2
    names = [span["name"] for span in answer["spans"]]
    assert names[:3] == ["task worker", "queue", "run"]
    files = {name: base64.b64decode(asking.ask("fetch", name=name)["data"]) for name in answer["files"]}
    assert sorted(files) == ["run-1/profile.speedscope.json", "run-1/profile.svg", "run-1/trace.json"]
    assert b"spin" in files["run-1/profile.svg"] and files["run-1/profile.svg"].startswith(b"<svg")
    frames = {frame["name"] for frame in json.loads(files["run-1/profile.speedscope.json"])["shared"]["frames"]}
    assert {"worker@1.0.0", "run", "spin"} <= frames
    [resource] = json.loads(files["run-1/trace.json"])["resourceSpans"]
    assert resource["scopeSpans"][0]["spans"] == answer["spans"]


def test_a_profile_shows_no_other_task(host, tmp_path):
    from tests.operations.hosts_at_work import bundle

    other = host[0].load(
        bundle(
            tmp_path,
            "other",
            source="def run(value):\n    while True:\n        hidden()\n\n\ndef hidden():\n    pass\n",
        )
    )
    future = other.submit()
    asking = session(host[1])
    answer = asking.result(asking.ask("run", task="worker", value="work", profile=True)["run"])
    future.stop()
    files = {name: base64.b64decode(asking.ask("fetch", name=name)["data"]) for name in answer["files"]}
    assert b"spin" in files["run-1/profile.svg"]
    for data in files.values():
        assert b"hidden" not in data


def test_a_task_that_hangs_is_stopped_by_its_limit(host):
    asking = session(host[1])
    run = asking.ask("run", task="worker", value="hang", timeout_s=0.5)["run"]
    assert asking.refused("run", task="worker")[0] == "busy", "one at a time"
    answer = asking.result(run)
    assert answer["outcome"] == "time_limit" and answer["took_s"] < 20 and "TimeLimitError" in answer["failure"]
    run = asking.ask("run", task="worker", value="hang")["run"]
    assert asking.ask("stop", run=run) == {"run": run}
    assert asking.result(run)["outcome"] == "cancelled"
    assert asking.ask("run", task="worker", value="fine")["run"] == 3, "the host goes on"


def test_a_run_for_which_nobody_asks_is_stopped(host, monkeypatch):
    monkeypatch.setattr(runs, "UNASKED_S", 0.3)
    asking = session(host[1])
    asking.ask("run", task="worker", value="sleep")
    run = host[1]._sessions[asking.id].run
    assert run.ended.wait(30) and "nobody asked" in run.answer["remarks"][0]


def test_a_session_whose_other_end_is_gone_ends(host, monkeypatch):
    asking = session(host[1])
    monkeypatch.setattr(desk, "IDLE_S", 0.3)
    until(lambda: "ended" in actions(host[1], asking.id))
    assert host[1].ledger.session(asking.id)["why"] == "the other end is gone"


def test_what_is_hidden_in_records_is_hidden_here(host):
    asking = session(host[1])
    value = {"email": "ann@example.org", "raise": True, "card": "4111 1111 1111 1111"}
    answer = asking.result(asking.ask("run", task="worker", value=value, profile=True)["run"])
    assert answer["outcome"] == "task_error" and "no order for masked-" in answer["failure"]
    answer = asking.result(asking.ask("run", task="worker", value=value | {"raise": False})["run"])
    assert answer["result"]["email"].startswith("masked-") and "4111" not in answer["result"]["card"]
    lines = until(lambda: [line for line in asking.ask("logs", after=0)["lines"] if "called with" in line[5]])
    everything = json.dumps([answer, lines, host[1].ledger.audit(), asking.ask("fetch", name="metrics.txt")])
    assert "ann@example" not in everything and "4111" not in everything and answer["result"]["email"] in lines[0][5]
    found = asking.ask("logs", after=0, text="ann@example")["lines"]
    assert found == [], "a filter finds what is shown, and nothing that is hidden"


def test_a_huge_log_comes_in_bounded_pieces_and_tells_what_is_missing(host):
    asking = session(host[1])
    first = asking.ask("logs", after=0)["next"]
    for number in range(6000):
        logging.getLogger("vmhost").warning("line %s %s", number, "x" * 300)
    numbers, after, missed = [], first, 0
    while True:
        answer = asking.ask("logs", after=after)
        assert len(answer["lines"]) <= desk.MAX_LINES and len(json.dumps(answer)) < 2 * desk.MAX_LOG_BYTES
        missed += answer["missed"]
        if not answer["lines"]:
            break
        numbers += [line[0] for line in answer["lines"]]
        after = answer["next"]
    assert len(numbers) == 2000 and numbers == list(range(numbers[0], numbers[-1] + 1))
    assert missed == numbers[0] - first - 1 > 3000


def test_lines_come_while_somebody_waits(host):
    asking = session(host[1])
    after = asking.ask("logs", after=0)["next"]
    lines = []

    def wait():
        while not lines:  # a call may take longer than one wait
            lines.extend(asking.ask("logs", after=after, wait_s=10)["lines"])

    waiting = threading.Thread(target=wait)
    waiting.start()
    host[0].task("worker")("hello")
    waiting.join()
    assert "called with hello" in lines[-1][5]


def test_large_results_are_files_in_pieces(host):
    asking = session(host[1])
    answer = asking.result(asking.ask("run", task="worker", value="large")["run"])
    assert "result" not in answer and answer["files"] == ["run-1/result.json"]
    data, offset = b"", 0
    while offset is not None:
        piece = asking.ask("fetch", name="run-1/result.json", offset=offset)
        data, offset = data + base64.b64decode(piece["data"]), piece["next"]
    assert json.loads(data) == "x" * 300_000 and piece["size"] == len(data)
    assert asking.refused("fetch", name="../state/debugging.key")[0] == "input"


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ({"task": "nobody"}, "no such task is loaded"),
        ({"task": 3}, "expected the name of a task"),
        ({"task": "worker", "value": {"$bytes": 3}}, "value"),
        ({"task": "worker", "value": "x" * (1 << 20)}, "at most 1,048,576 characters"),
        ({"task": "worker", "timeout_s": 3600}, "timeout_s"),
        ({"task": "worker", "timeout_s": True}, "timeout_s"),
    ],
)
def test_what_cannot_be_run_is_told(host, what, message):
    kind, reply = session(host[1]).refused("run", **what)
    assert kind == "input" and message in reply


# ---- the audit


def test_all_that_both_sides_do_is_in_the_audit(host):
    asking = session(host[1])
    asking.ask("config")
    asking.ask("logs")
    asking.result(asking.ask("run", task="worker", value=3)["run"])
    asking.ask("reports")
    asking.ask("end")
    assert actions(host[1], asking.id) == [
        "asked for a session",
        "consented",
        "read the configuration",
        "read the log",
        "runs a task",
        "read a result",
        "listed reports",
        "ended",
    ]
    assert host[1].ledger.damage() is None


def test_lines_of_the_audit_are_not_changed_unseen(host):
    session(host[1]).ask("config")
    book = host[1].ledger
    with sqlite3.connect(book.path) as other:
        for statement in ("DELETE FROM debug_audit", "UPDATE debug_audit SET who = 'nobody'"):
            with pytest.raises(sqlite3.IntegrityError, match="audit"):
                other.execute(statement)
        other.execute("DROP TRIGGER debug_audit_is_fixed")
        other.execute("DROP TRIGGER debug_audit_stays")
        other.execute("UPDATE debug_audit SET who = 'nobody' WHERE number = 2")
    other.close()
    assert book.damage() == "line 2 was changed"
    with sqlite3.connect(book.path) as other:
        other.execute("DELETE FROM debug_audit WHERE number = 2")
    other.close()
    assert book.damage() == "line 2 is missing"


def test_what_cannot_be_audited_is_not_done(host, monkeypatch):
    asking = session(host[1])
    path = host[1].ledger.path
    pages = host[1].ledger.database
    with pages.lock:  # SQLite's own "disk full": the limit of pages is reached
        count = pages._writer.execute("PRAGMA page_count").fetchone()[0]
        pages._writer.execute(f"PRAGMA max_page_count = {count}")
    refused = None
    for _ in range(3000):
        answer = asking.ask("config")
        if "error" in answer and answer["error"]["kind"] == "rate":
            time.sleep(0.05)
        elif "error" in answer:
            refused = answer["error"]
            break
    assert refused["kind"] == "audit" and "disk is full" in refused["message"] and str(path) in refused["message"]
    calls = host[0].statistics().tasks["worker"].calls
    assert asking.ask("run", task="worker", value=1)["error"]["kind"] == "audit"
    assert host[0].statistics().tasks["worker"].calls == calls, "it was not run"
    assert Session(host[1], offered_by_hand(host[1])).opened["error"]["kind"] == "audit"
    with pages.lock:
        pages._writer.execute("PRAGMA max_page_count = 1000000")
    asking = session(host[1])
    assert asking.ask("config")["tasks"], "it goes on when there is room"


def offered_by_hand(debugging):
    return link_of(debugging.ledger.key(), debugging.ledger.host())


def test_a_full_audit_refuses_and_still_notes_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger, "MAX_LINES", 12)
    monkeypatch.setattr(ledger, "_LAST_LINES", 4)
    with debugged(tmp_path) as (_, debugging):
        asking = session(debugging)
        answers = [asking.ask("config") for _ in range(10)]
        assert answers[-1]["error"]["kind"] == "audit" and "audit is full" in answers[-1]["error"]["message"]
        debugging.end(asking.id)
        assert actions(debugging)[-1] == "ended"


def test_sessions_of_a_host_that_died_end(tmp_path):
    program = (
        "import os, pathlib, sys\n"
        "from tests.operations.debugged_hosts import debugged, session\n"
        "with debugged(pathlib.Path(sys.argv[1])) as (host, debugging):\n"
        "    asking = session(debugging)\n"
        "    asking.ask('config')\n"
        "    print(asking.id, flush=True)\n"
        "    os._exit(9)\n"
    )
    died = warm.run("-c", program, tmp_path)
    assert died.returncode == 9, died.stderr
    with debugged(tmp_path) as (_, debugging):
        kept = debugging.ledger.session(died.stdout.strip())
        assert (kept["state"], kept["why"]) == ("ended", "the host restarted")
        assert "read the configuration" in actions(debugging, kept["id"]) and debugging.ledger.damage() is None


def test_a_ledger_that_is_no_database_is_told(tmp_path):
    (tmp_path / "debugging.sqlite").write_bytes(b"not a database" * 100)
    with pytest.raises(DebugError, match="no SQLite database"):
        Ledger(tmp_path)


def test_host_yaml_says_who_may_debug(tmp_path):
    from vmhost.settings.host import read_host_yaml

    path = tmp_path / "host.yaml"
    path.write_text("state: state\ndebugging: ask\n")
    assert read_host_yaml(path).policy.debugging == vmhost.DebugPolicy("ask")
    path.write_text("state: state\ndebugging: {consent: ask, scopes: [logs], keys: ours, longest: 10 min}\n")
    policy = read_host_yaml(path).policy.debugging
    assert policy == vmhost.DebugPolicy("ask", ("logs",), str(tmp_path / "ours"), 600.0)
    for text, message in (
        ("debugging: ask\n", "host.yaml:1: debugging: needs a state folder"),
        ("state: s\ndebugging: always\n", "host.yaml:2: debugging: expected never, ask, or a mapping"),
        ("state: s\ndebugging: {consent: yes}\n", "debugging.consent: expected never or ask"),
        ("state: s\ndebugging: {scopes: [shell]}\n", "expected one of config, logs, run, reports"),
        ("state: s\ndebugging: {longest: 8 days}\n", "debugging.longest"),
        ("state: s\ndebugging: {scope: [logs]}\n", "did you mean 'scopes'"),
    ):
        path.write_text(text)
        with pytest.raises(vmhost.ConfigurationError, match=message.replace("[", r"\[")):
            read_host_yaml(path)
