"""Fleet views: reports of devices count once, and for assigned versions only; alerts begin, end and are sent."""

import http.server
import json
import threading

import pytest

from tests.deployment.platforms import Clock, WorkingCopy, add_version, agent_for, platform_in
from vmhost.deployment.cloud.alerts import MAX_TRIES, read_rules
from vmhost.deployment.cloud.fleet import BUCKET_MS, KEPT_MS, MAX_CRASHES_OF_DEVICE
from vmhost.deployment.cloud.plan import Plan
from vmhost.deployment.cloud.server import serving
from vmhost.deployment.device.fleet_report import FleetFile, FleetReport
from vmhost.deployment.device.memory import Memory
from vmhost.deployment.device.transfers import AnswerError, Transfers
from vmhost.deployment.errors import MissingError, RefusedError

TASK, SECRET = "shop/rank", "s" * 40
PLAN = {"steps": [{"percent": 100, "min_reports": 99}]}


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    """The server's threads grow with what it is asked."""
    yield


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def platform(tmp_path, clock):
    """With rank 1 released to the devices a and b, of which a is in the cohort canary."""
    with platform_in(tmp_path / "cloud", clock=clock) as opened:
        add_version(opened, TASK, "1")
        opened.releases.start(TASK, "1", Plan.of(PLAN), "ann", "")
        opened.devices.set_cohort("canary", ["a"])
        for device in "ab":
            opened.devices.enrol(device, SECRET)
            opened.check(device, SECRET, {"facts": {"python": "3.14"}, "epoch": "1"})
        yield opened


def report(number, ok=0, failed=0, task=TASK, version="1", breaker="closed", **more):
    counts = {"call:OK": ok, "call:TASK_ERROR": failed, "wall:10": ok + failed} | more
    each = {"task": task, "version": version, "counts": counts, "breaker": breaker}
    return {"epoch": "e", "number": number, "tasks": [each]}


def crash(identity, fingerprint="ab" * 16, **more):
    record = {"id": identity, "fingerprint": fingerprint, "title": "SIGSEGV in rank 1", "task": TASK, "version": "1"}
    return record | more


def calls(platform, **more):
    return {each["cohort"]: (each["calls"], each["failures"]) for each in platform.fleet.sums(1, **more)}


def test_reports_are_summed_once_by_version_and_cohort(platform):
    platform.take_report("a", SECRET, report(1, ok=90, failed=10, denied=3))
    platform.take_report("a", SECRET, report(1, ok=90, failed=10, denied=3))  # its answer was lost
    platform.take_report("b", SECRET, report(1, ok=100))
    assert calls(platform) == {"": (200, 10), "canary": (100, 10)}
    [everybody, canary] = platform.fleet.sums(1)
    assert everybody["share"] == 0.05 and canary["errors"] == {"TASK_ERROR": 10} and canary["denied"] == 3
    assert 0 < everybody["p50_s"] == everybody["p99_s"] < 0.001
    platform.take_report("a", SECRET, report(1, ok=1) | {"epoch": "new"})  # the device was set up anew
    assert calls(platform)[""] == (201, 10)
    platform.devices.forget("a")
    assert platform.fleet.sums(1)[0]["calls"] == 201


def test_reports_of_many_devices_at_once_are_each_counted_once(platform):
    """Each report is sent twice; one in ten is about a version that the device was not assigned."""
    devices = [f"device-{number}" for number in range(8)]
    for device in devices:
        platform.devices.enrol(device, SECRET)
        platform.check(device, SECRET, {"facts": {"python": "3.14"}, "epoch": "1"})
    refused = []

    def send(device):
        for number in range(1, 21):
            for _ in range(2):
                try:
                    platform.take_report(device, SECRET, report(number, ok=1, version="1" if number % 10 else "7"))
                except RefusedError as error:
                    refused.append(str(error))
            platform.take_crash(device, SECRET, crash(f"{number % 3}-1"))

    threads = [threading.Thread(target=send, args=(device,)) for device in devices]
    for thread in threads:
        thread.start()
    for number in range(1, 51):
        platform.take_report("b", SECRET, report(number, ok=1))
        assert calls(platform)[""][0] >= number  # it is there once the call returns
    for thread in threads:
        thread.join()
    assert len(refused) == 8 * 2 * 2 and all("was never assigned" in each for each in refused)
    assert calls(platform) == {"": (8 * 18 + 50, 0)}
    assert platform.fleet.sums(1)[0]["crashes"] == 8 * 3


def test_adoption_counts_devices_and_open_breakers(platform):
    platform.check("a", SECRET, {"facts": {"python": "3.14"}, "tasks": {TASK: {"version": "1"}}, "epoch": "1"})
    tasks = {TASK: {"version": "0"}, f"{TASK} before": {"version": "1"}}
    platform.check("b", SECRET, {"facts": {"python": "3.14"}, "tasks": tasks, "epoch": "1"})
    platform.take_report("a", SECRET, report(1, ok=1, breaker="open"))
    [row] = platform.fleet.adoption()
    assert row["devices"] == 2
    assert {each["version"]: (each["share"], each["breakers"]) for each in row["versions"]} == {
        "1": (0.5, 1),
        "0": (0.5, 0),
    }


def test_crashes_are_ranked_by_cause_and_bounded(platform, clock):
    for number in range(3):
        platform.take_crash("a", SECRET, crash(f"1-{number}"))
        platform.take_crash("a", SECRET, crash(f"1-{number}"))
    platform.take_crash("b", SECRET, crash("1-0"))
    platform.take_crash("b", SECRET, crash("2-0", "cd" * 16, title="x" * 1000, log=["last line"]))
    platform.take_crash("b", SECRET, crash("3-0", "ef" * 16, task=None, version=None))
    found = platform.fleet.crashes(1)
    assert [(each["task"], each["count"], each["devices"]) for each in found] == [
        (TASK, 4, 2),
        (TASK, 1, 1),
        ("", 1, 1),
    ]
    assert len(found[1]["title"]) == 300
    assert platform.fleet.crash("b", "2-0")["log"] == ["last line"]
    assert (platform.fleet.task_of_crash("b", "2-0"), platform.fleet.task_of_crash("b", "3-0")) == (TASK, "")
    with pytest.raises(MissingError):
        platform.fleet.crash("b", "4-0")
    assert [each["crashes"] for each in platform.fleet.sums(1) if each["task"] == TASK] == [5, 3]
    for number in range(MAX_CRASHES_OF_DEVICE + 10):
        clock.now_s += 1
        platform.take_crash("a", SECRET, crash(f"9-{number}"))
    assert sum(each["count"] for each in platform.fleet.crashes(1)) == MAX_CRASHES_OF_DEVICE + 3


def test_what_is_old_goes(platform, clock):
    platform.take_report("a", SECRET, report(1, ok=5))
    platform.take_crash("a", SECRET, crash("1"))
    clock.now_s += KEPT_MS / 1000 + BUCKET_MS / 1000
    platform.take_report("b", SECRET, report(1, ok=7))
    platform.fleet.clean()
    with platform.database.reader() as connection:
        assert connection.execute("SELECT DISTINCT number FROM fleet_counts WHERE number > 0").fetchall() == [(7,)]
        assert connection.execute("SELECT count(*) FROM fleet_crashes").fetchone()[0] == 0


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"epoch": "e", "number": 1, "tasks": {}},
        {"epoch": "e", "number": True, "tasks": []},
        {"epoch": "e\ud800", "number": 1, "tasks": []},
        {"epoch": "e", "number": 1, "tasks": [None]},
        {"epoch": "e", "number": 1, "tasks": [{"task": TASK}]},
        {"epoch": "e", "number": 1, "tasks": [{}] * 1000},
        report(1, ok=10**9 + 1),
        report(1, ok=-1),
        report(1, ok=1.5),
        report(1, wall_us=10**14),
        report(1, **{"call:NOTHING": 1}),
        report(1, crash=1),
        report(1, ok=1, breaker=["open"]),
        report(1, ok=1, task="bank/pay"),
        report(1, ok=1, version="2"),
        report(1, ok=1, task="shop/\ud800"),
        report(1, ok=1, version=1),
    ],
)
def test_a_hostile_report_is_refused_and_counts_nothing(platform, body):
    with pytest.raises(RefusedError):
        platform.take_report("a", SECRET, body)
    assert platform.fleet.sums(1) == []


@pytest.mark.parametrize(
    "more",
    [
        {"task": "bank/pay"},
        {"version": None},
        {"fingerprint": "<script>"},
        {"id": "a\nb"},
        {"title": 7},
        {"title": "\ud800"},
        {"log": ["x" * 100_000]},
        {"time": float("nan")},
    ],
)
def test_a_hostile_crash_is_refused(platform, more):
    with pytest.raises(RefusedError):
        platform.take_crash("a", SECRET, crash("1") | more)
    assert platform.fleet.crashes(1) == []


def test_sums_stay_numbers_whatever_devices_say(platform):
    for number in range(1, 120):
        platform.take_report("a", SECRET, report(number, wall_us=10**13))
    with platform.database.reader() as connection:
        [(most,)] = connection.execute("SELECT max(number) FROM fleet_counts").fetchall()
    assert most == 10**15


class Collector:
    """A webhook: `got` has the received alerts; it fails while `fails`."""

    def __init__(self):
        self.got, self.fails = [], False
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if not collector.fails:
                    collector.got.append(body)
                self.send_response(500 if collector.fails else 200)
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


RULES = """
webhook: {url}
rules:
  - name: errors
    errors: {{over: 0.05, within: 10 min, min_calls: 100}}
    cohort: canary
  - name: crashes
    crashes: {{over: 1, within: 1 h}}
  - name: adoption
    adoption: {{under: 0.9, after: 1 h}}
"""


def test_an_alert_is_told_once_ends_once_and_is_tried_again(platform, clock):
    with Collector() as collector:
        platform.alerts.set_rules(RULES.format(url=collector.url), "ann")
        platform.take_report("a", SECRET, report(1, ok=80, failed=10))
        platform.alerts.evaluate()
        assert platform.alerts.list() == []  # 90 calls are too few
        platform.take_report("a", SECRET, report(2, ok=10))
        for _ in range(3):
            platform.alerts.evaluate()
        [alert] = platform.alerts.list()
        assert alert["rule"] == "errors" and alert["cohort"] == "canary" and alert["told"] == "waiting"
        assert alert["why"] == "10 of 100 calls failed, more than 5.0%"
        collector.fails = True
        platform.alerts.send()
        collector.fails = False
        platform.alerts.send()
        assert collector.got == []  # not before its time
        clock.now_s += 60
        platform.alerts.send()
        platform.alerts.send()
        assert [(each["rule"], each["state"]) for each in collector.got] == [("errors", "firing")]
        clock.now_s += 900
        platform.take_crash("b", SECRET, crash("1"))
        platform.take_crash("b", SECRET, crash("2"))
        platform.alerts.evaluate()
        platform.alerts.send()
        states = {(each["rule"], each["state"]) for each in collector.got[1:]}
        assert states == {("errors", "resolved"), ("crashes", "firing")}
        assert [(each["rule"], each["until_ms"] is None) for each in platform.alerts.list()] == [
            ("crashes", True),
            ("errors", False),
        ]
        collector.fails = True
        platform.alerts.set_rules(f"webhook: {collector.url}", "ann")  # the rule was removed: its alert ends
        platform.alerts.evaluate()
        for _ in range(MAX_TRIES + 1):
            platform.alerts.send()
            clock.now_s += 7200
        assert [each["told"] for each in platform.alerts.list() if each["rule"] == "crashes"] == ["given up"]


def test_slow_adoption_is_an_alert(platform, clock):
    platform.alerts.set_rules("rules: [{name: slow, adoption: {under: 0.9, after: 1 h}}]", "ann")
    platform.check("a", SECRET, {"facts": {"python": "3.14"}, "tasks": {TASK: {"version": "1"}}, "epoch": "1"})
    platform.check("b", SECRET, {"facts": {"python": "3.14"}, "tasks": {TASK: {"version": "0"}}, "epoch": "1"})
    platform.alerts.evaluate()
    assert platform.alerts.list() == []
    clock.now_s += 3601
    platform.alerts.evaluate()
    [alert] = platform.alerts.list()
    assert alert["version"] == "1" and alert["why"] == "50.0% of 2 devices run it, under 90.0%"
    platform.check("b", SECRET, {"facts": {"python": "3.14"}, "tasks": {TASK: {"version": "1"}}, "epoch": "1"})
    platform.alerts.evaluate()
    assert platform.alerts.list()[0]["until_ms"] is not None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a", "rules:1: expected a mapping with any of webhook, rules"),
        ("rules: [", "not YAML"),
        ("webhook: file:///etc/passwd", "webhook: expected an address"),
        ("rules: [{name: a}]", "rules:1: rules.0: expected one of errors"),
        ("rules: [{name: a, crashes: {over: 1}}]", "rules.0.crashes: within is missing"),
        ("rules: [{name: a, crashes: {over: .inf, within: 1 h}}]", "over: expected a whole number"),
        ("rules: [{name: a, errors: {over: 2, within: 1 h}}]", "over: expected a share"),
        ("rules: [{name: a, errors: {over: 0.1, within: 1 year}}]", "within: expected a time"),
        ("rules: [{name: a, errors: {over: 0.1, within: 15 d}}]", "within: expected a time"),
        ("rules: [{name: a, version: 1.0, crashes: {over: 1, within: 1 h}}]", "in quotes"),
        ("rules: [{name: a, cohort: c, adoption: {under: 1, after: 1 h}}]", "adoption is that of the newest"),
        ("rules: [{name: a, typo: c, crashes: {over: 1, within: 1 h}}]", "rules.0.typo: unknown key"),
        (
            "rules: [{name: a, crashes: {over: 1, within: 1 h}}, {name: a, crashes: {over: 1, within: 1 h}}]",
            "rules.1.name: two rules have the name 'a'",
        ),
        ("x" * 100_000, "at most 65,536 characters"),
    ],
)
def test_rules_that_are_wrong_are_refused(text, message):
    with pytest.raises(RefusedError) as raised:
        read_rules(text)
    assert message in str(raised.value)


def test_who_sees_what_over_http(platform):
    platform.add_repository("bank", "test")
    platform.take_report("a", SECRET, report(1, ok=5))
    platform.take_crash("a", SECRET, crash("1"))
    platform.take_crash("a", SECRET, crash("2", task=None))
    with serving(platform) as address:
        all_of, bank, fleet = (
            platform.access.add_token("ann", "test"),
            platform.access.add_token("ann", "test", scopes=["read:bank"]),
            platform.access.add_token("fleet", "test"),
        )
        admin = platform.access.add_token("admin", "test")
        transfers = Transfers(address)

        def ask(token, method, path, body=None):
            try:
                return transfers.ask(method, f"/api/v1{path}", body, {"authorization": f"Bearer {token}"})
            except AnswerError as error:
                return error.status

        assert len(ask(all_of, "GET", "/fleet")["crashes"]) == 2
        found = ask(bank, "GET", "/fleet")
        assert found["sums"] == found["crashes"] == found["adoption"] == []
        assert ask(bank, "GET", "/fleet/crashes/a/1") == ask(bank, "GET", "/fleet/crashes/a/2") == 403
        assert ask(all_of, "GET", "/fleet/crashes/a/1")["title"] == "SIGSEGV in rank 1"
        assert ask(fleet, "GET", "/fleet") == ask(fleet, "GET", "/fleet/alerts") == 403
        assert ask(all_of, "PUT", "/fleet/rules", {"text": ""}) == 403
        assert ask(admin, "PUT", "/fleet/rules", {"text": "rules: {"}) == 409
        assert ask(admin, "PUT", "/fleet/rules", {"text": "webhook: http://secret.example/"}) == {"rules": []}
        assert "rules" not in ask(all_of, "GET", "/fleet/alerts") and "rules" in ask(admin, "GET", "/fleet/alerts")
        assert ask(all_of, "GET", "/fleet?hours=nan") == ask(all_of, "GET", "/fleet?hours=9999") == 409
        assert ask("s" * 40, "POST", "/device/report", report(2, ok=1)) == 401
        transfers.close()


def test_an_agent_sends_what_its_processes_counted_once(tmp_path):
    with platform_in(tmp_path / "cloud") as platform, serving(platform) as address:
        token = platform.access.add_token("ann", "test")
        copy = WorkingCopy(tmp_path / "work", f"{address}/git/shop", token)
        copy.release("1.0.0", main="def run(value):\n    return 10 // value\n", plan="steps: [{percent: 100}]\n")
        with agent_for(platform, address, tmp_path / "device") as agent:
            agent.step()
            for value in (1, 2, 0):
                agent.host.task("rank").submit(value).exception()
            agent._fleet._next = 0.0
            agent.step()
            [found] = platform.fleet.sums(1)
            assert (found["task"], found["version"], found["calls"], found["failures"]) == (TASK, "1.0.0", 3, 1)
            other = FleetFile(tmp_path / "device")
            other.write({"rank": ["1.0.0", {"call:OK": 4}, "closed"]})
            for _ in range(2):
                agent._fleet._next = 0.0
                agent.step()
            assert platform.fleet.sums(1)[0]["calls"] == 7
        with agent_for(platform, address, tmp_path / "device") as agent:  # earlier alerts are not sent again
            agent._fleet._next = 0.0
            agent.step()
            assert platform.fleet.sums(1)[0]["calls"] == 7
            agent.memory.set_value("crashes", [crash("1", version="1.0.0")])
            agent._fleet._next = 0.0
            agent.step()
            assert platform.fleet.crashes(1)[0]["count"] == 1 and agent.memory.value("crashes") == []


def test_a_report_keeps_its_number_until_it_is_confirmed(tmp_path):
    class Host:
        def statistics(self):
            return type("Statistics", (), {"tasks": {}})

    memory = Memory(tmp_path)
    try:
        file = FleetFile(tmp_path)
        reports = FleetReport(memory, tmp_path)
        current = {TASK: {"name": "rank", "version": "1"}}
        file.write({"rank": ["1", {"call:OK": 4}, "closed"]})
        first = reports.next(Host(), current)
        file.write({"rank": ["1", {"call:OK": 9}, "open"]})
        assert FleetReport(memory, tmp_path).next(Host(), current) == first  # after a restart, too
        reports.confirm()
        second = reports.next(Host(), current)
        assert second["number"] == first["number"] + 1
        assert second["tasks"] == [{"task": TASK, "version": "1", "counts": {"call:OK": 5}, "breaker": "open"}]
        reports.confirm()
        assert reports.next(Host(), current) is None
        file.write({"rank": ["1", {"call:OK": 2}, "closed"]})  # its process loaded the task anew
        assert reports.next(Host(), current)["tasks"][0]["counts"] == {"call:OK": 2}
        (tmp_path / "fleet" / "1-x.json").write_text("{")  # damaged: as if missing
        reports.confirm()
        assert reports.next(Host(), current) is None
    finally:
        memory.close()
