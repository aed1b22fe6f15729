"""The dashboard's pages over HTTP: their contents, and who may see them."""

import dataclasses
import json
import logging
import re
import time

import numpy as np
import pytest

import vmhost
from tests.operations.hosts_at_work import ask, bundle, host
from vmhost.operations import Dashboard
from vmhost.operations.history import History, Series
from vmhost.operations.log_tail import MAX_LINES, LogTail
from vmhost.operations.settings import settings
from vmhost.settings.host import read_host_yaml

PAGES = (
    "/",
    "/vms",
    "/log",
    "/settings",
    "/tasks/worker",
    "/part/overview",
    "/part/vms",
    "/part/log",
    "/part/tasks/worker",
)


@pytest.fixture(scope="module")
def working(tmp_path_factory):
    """A host with the task `worker`, and its dashboard."""
    with host(warm=1, idle_s=7.0) as running, Dashboard(running, "127.0.0.1:0") as dashboard:
        work = running.load(bundle(tmp_path_factory.mktemp("worker")))
        work("<script>alert(1)</script>")
        with pytest.raises(vmhost.TaskError):
            work("fail")
        yield running, dashboard


def wait_for(text, dashboard, path):
    """The page at `path` once it has `text`; log lines come a moment after the call."""
    for _ in range(2000):
        page = ask(dashboard, path, dashboard.token)[2]
        if text in page:
            return page
    raise AssertionError(f"{text!r} did not come: {page}")


@pytest.mark.parametrize("path", PAGES)
def test_each_page_is_whole_html(working, path):
    status, headers, text = ask(working[1], path, working[1].token)
    assert status == 200 and headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in headers["content-security-policy"]
    opened = re.findall(r"<(/?)(html|main|table|tbody|ul|ol|dl|form)\b", text)
    for tag in {tag for _, tag in opened}:
        assert sum(1 if end == "" else -1 for end, name in opened if name == tag) == 0, tag
    assert " on" not in re.sub(r"[^<]*(<[^>]*>)[^<]*", r"\1", text), "scripts in attributes"


def test_pages_show_what_ran(working):
    dashboard = working[1]
    overview = ask(dashboard, "/", dashboard.token)[2]
    assert 'href="/tasks/worker"' in overview
    report = ask(dashboard, "/tasks/worker", dashboard.token)[2]
    assert "ended with TASK_ERROR" in report and "ran, p99.99" in report
    assert "idle_s" in (settings := ask(dashboard, "/settings", dashboard.token)[2])
    assert '<tr class="set"><th>idle_s</th><td>7.0</td><td>program</td></tr>' in settings
    assert "<tr><th>quantum_s</th><td>0.25</td><td>default</td></tr>" in settings


def test_long_calls_have_the_size_of_their_input(tmp_path):
    source = (
        "import time\n\n\ndef run(value):\n    time.sleep(0.5 if len(value) > 1000 else 0)\n    return len(value)\n"
    )
    with host() as running, Dashboard(running, "127.0.0.1:0") as dashboard:
        work = running.load(bundle(tmp_path, source=source))
        for number in range(40):
            work(b"a" * (200_000 if number == 7 else number))
        calls = running.longest_calls("worker")
        [longest] = [call for call in calls if call.input_bytes >= 100]  # a busy machine may hold another up for longer
        assert longest.wall_s > 0.5 and 200_000 <= longest.input_bytes < 200_100
        assert (longest.version, longest.outcome) == ("1.0.0", "OK") and abs(longest.ended - time.time()) < 60
        assert [call.wall_s for call in calls] == sorted((call.wall_s for call in calls), reverse=True)
        assert len(calls) == 10
        page = ask(dashboard, "/tasks/worker", dashboard.token)[2]
        assert '<td class="n">195.3 KiB</td><td>OK</td>' in page
        with pytest.raises(KeyError, match="no such task"):
            running.longest_calls("nobody")


def test_arrays_count_as_input(tmp_path):
    with host() as running:
        work = running.load(bundle(tmp_path, source="def run(value):\n    return len(value)\n"))
        work(np.zeros(100_000))
        [call] = running.longest_calls(work)
        assert call.input_bytes >= 800_000
        assert running.statistics().tasks["worker"].counters["input_bytes"] == call.input_bytes


def test_settings_tell_the_line_of_host_yaml_that_each_comes_from(tmp_path):
    (tmp_path / "worker.vmb").write_bytes(bundle(tmp_path))
    path = tmp_path / "host.yaml"
    path.write_text(
        "allow_unsigned: true\nload: [worker.vmb]\nvms:\n  max: 7\n  warm: 1\nlimits:\n  memory: 32 MiB\n"
        "queue: 50\nbreaker:\n  window: 20 s\ntasks:\n  worker:\n    weight: 2\n    breaker:\n      consecutive: 9\n"
        "    limits:\n      concurrency: 3\n"
    )
    with vmhost.Host.from_file(path) as running:
        found = {(title, row.name): row for title, rows in settings(running) for row in rows}
        for group, name, value, origin in (
            ("All tasks", "max_vms", "7", f"{path}:4"),
            ("All tasks", "idle_s", "60.0", "default"),
            ("Each task", "queue", "50", f"{path}:8"),
            ("Its breaker", "window_s", "20.0", f"{path}:10"),
            ("Task worker", "weight", "2.0", f"{path}:13"),
            ("Task worker", "consecutive", "9", f"{path}:15"),
            ("Limits of worker 1.0.0", "memory_bytes", str(32 << 20), f"{path}:7"),
            ("Limits of worker 1.0.0", "concurrency", "3", f"{path}:17"),
            ("Limits of worker 1.0.0", "stack_bytes", str(1 << 20), "default"),
        ):
            row = found[group, name]
            assert (row.value, row.origin) == (value, origin), (group, name)
        changed = dataclasses.replace(running.policy, max_vms=9)
        assert changed.origins == running.policy.origins and changed != running.policy


def test_a_policy_that_a_program_changed_does_not_name_the_file(tmp_path):
    path = tmp_path / "host.yaml"
    path.write_text("vms: {max: 7, idle_time: 3 s}\nlimits: {memory: 32 MiB}\n")
    policy = dataclasses.replace(read_host_yaml(path).policy, max_vms=9)
    with vmhost.Host(allow_unsigned=True, policy=policy) as running:
        running.load(bundle(tmp_path))
        found = {(title, row.name): row.origin for title, rows in settings(running) for row in rows}
        assert found["All tasks", "max_vms"] == "program"
        assert found["All tasks", "idle_s"] == f"{path}:1"
        assert found["Limits of worker 1.0.0", "memory_bytes"] == f"{path}:2"
        assert found["Limits of worker 1.0.0", "wall_s"] == "default"


def test_a_limit_of_the_bundle_is_the_bundles(tmp_path):
    made = bundle(tmp_path, more="limits: {memory: 16 MiB, wall_time: 5 s}\n")
    with host(limits={"wall_time": "2 s"}) as running:
        running.load(made)
        found = {row.name: (row.value, row.origin) for row in settings(running)[-1][1]}
        assert found["memory_bytes"] == (str(16 << 20), "task.yaml")
        assert found["wall_s"] == ("2.0", "program")


def test_what_tasks_say_is_text_and_not_html(working):
    page = wait_for("called with", working[1], "/log")
    assert "<script>alert" not in page and "&lt;script&gt;alert(1)" in page


def test_the_log_is_filtered(working):
    _, dashboard = working
    wait_for("called with", dashboard, "/part/log?task=worker")
    assert "called with" not in ask(dashboard, "/part/log?level=error", dashboard.token)[2]
    assert "called with" not in ask(dashboard, "/part/log?text=nobody+says+this", dashboard.token)[2]
    assert "called with" in ask(dashboard, "/part/log?text=CALLED&level=nonsense", dashboard.token)[2]


def test_ranks_and_nonsense_in_the_query(working):
    for query in ("by=p99", "by=errors", "by=name", "by=%00", "by=<b>", "level=1&text=%ff"):
        assert ask(working[1], f"/part/overview?{query}", working[1].token)[0] == 200


def test_a_task_that_is_not_there(working):
    assert ask(working[1], "/tasks/nobody", working[1].token)[0] == 404
    assert json.loads(ask(working[1], "/series?task=nobody", working[1].token)[2])["calls"] == []


def test_metrics_in_the_format_that_is_asked_for(working):
    dashboard = working[1]
    status, headers, text = ask(dashboard, "/metrics", dashboard.token)
    assert status == 200 and headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert 'vmhost_calls_total{task="worker",version="1.0.0",outcome="ok"} 1\n' in text
    accept = "application/openmetrics-text; version=1.0.0; charset=utf-8;q=0.5,text/plain;q=0.1"
    _, headers, text = ask(dashboard, "/metrics", dashboard.token, Accept=accept)
    assert headers["content-type"].startswith("application/openmetrics-text") and text.endswith("# EOF\n")


def test_only_who_has_the_token_sees_pages(working):
    dashboard = working[1]
    for path in (*PAGES, "/metrics", "/series", "/static/dashboard.js"):
        assert ask(dashboard, path)[0] == 401
        assert ask(dashboard, path, "wrong")[0] == 401
        assert ask(dashboard, path, Cookie=f"vmhost_dashboard_{dashboard.port}=wrong; \x01=;")[0] == 401
    assert ask(dashboard, "/?token=wrong")[0] == 401
    assert ask(dashboard, "/healthz")[0] == ask(dashboard, "/readyz")[0] == 200


def test_a_browser_keeps_the_token_as_a_cookie(working):
    dashboard = working[1]
    status, headers, _ = ask(dashboard, f"/log?level=error&token={dashboard.token}")
    assert (status, headers["location"]) == (303, "/log?level=error")
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie
    assert ask(dashboard, "/", Cookie=cookie.partition(";")[0])[0] == 200


def test_other_sites_and_other_names_are_refused(working):
    dashboard = working[1]
    token = dashboard.token
    assert ask(dashboard, "/", token, Host="evil.example")[0] == 421
    assert ask(dashboard, "/", token, Host=f"localhost:{dashboard.port}")[0] == 200
    assert ask(dashboard, "/series", token, Sec_Fetch_Site="cross-site")[0] == 403
    assert ask(dashboard, "/series", token, Sec_Fetch_Site="same-origin")[0] == 200
    assert ask(dashboard, "/", token, method="POST")[0] == 405


def test_addresses_that_cannot_be_listened_on():
    with host(warm=0) as running:
        for listen in ("", "9464", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:x", None):
            with pytest.raises(vmhost.ConfigurationError, match="expected an address and a port"):
                Dashboard(running, listen)
        with pytest.raises(vmhost.ConfigurationError, match="loopback"):
            Dashboard(running, "0.0.0.0:0", token=False)
        with (
            Dashboard(running, "127.0.0.1:0") as one,
            pytest.raises(vmhost.ConfigurationError, match="cannot listen"),
        ):
            Dashboard(running, f"127.0.0.1:{one.port}")


def test_a_closed_host_is_not_ready_and_its_pages_say_so():
    running = host(warm=0)
    with Dashboard(running, "127.0.0.1:0", token=False) as dashboard:
        running.close()
        assert ask(dashboard, "/readyz")[0] == 503
        assert ask(dashboard, "/healthz")[0] == 200
        assert "The host is closed." in ask(dashboard, "/")[2]


def test_a_log_line_with_half_a_surrogate_pair_is_shown():
    tail = LogTail()
    tail.emit(logging.LogRecord("vmhost", logging.ERROR, __file__, 1, "odd %s", ("\ud800",), None))
    assert tail.lines(limit=1)[0].text == "odd \\ud800"


def test_the_newest_lines_are_kept_and_the_level_comes_back(monkeypatch):
    logger = logging.getLogger("vmhost")
    monkeypatch.setattr(logger, "level", logging.WARNING)
    logger.manager._clear_cache()
    with LogTail() as tail:
        for number in range(MAX_LINES + 3):
            logger.info("line %d", number)
        tail.handle(
            logging.makeLogRecord({"name": "vmhost", "msg": "%d", "args": ("no number",), "levelno": logging.INFO})
        )
        logger.debug("not kept")
    logger.info("after the end")
    lines = tail.lines(limit=MAX_LINES + 10)
    assert len(lines) == MAX_LINES and lines[0].text == "%d" and lines[1].text == f"line {MAX_LINES + 2}"
    assert logger.level == logging.WARNING and tail not in logger.handlers


def test_rates_are_over_the_last_samples_and_never_below_zero():
    series = Series(("calls", "queued"), 8)
    assert series.rate("calls") == 0 and series.columns()["calls"] == []
    for number, calls in enumerate([0, 10, 30, 60, 100, 150, 210, 280, 360, 450]):
        series.add(float(2 * number), (calls, number))
    assert series.columns()["calls"] == [15, 20, 25, 30, 35, 40, 45]
    assert series.columns()["queued"] == [3, 4, 5, 6, 7, 8, 9]
    assert series.rate("calls") == (450 - 100) / 10
    series.add(20.0, (0, 0))  # a task that was loaded again counts from zero
    assert series.rate("calls") == 0 and series.columns()["calls"][-1] == 0


def test_an_opened_breaker_is_seen_with_its_reason(tmp_path):
    policy = vmhost.TaskPolicy(breaker=vmhost.BreakerPolicy(consecutive=2))
    with host(task=policy) as running:
        work = running.load(bundle(tmp_path))
        history = History(running.statistics)
        history.sample()
        for _ in range(2):
            with pytest.raises(vmhost.TaskError):
                work("fail")
        while running.statistics().tasks["worker"].breaker.state != "open":
            with pytest.raises((vmhost.TaskError, vmhost.BreakerOpenError)):
                work("fail")
        history.sample()
        [change] = history.breaker_changes
        assert (change.task, change.state) == ("worker", "open") and change.reason


def test_the_version_that_was_replaced_stays_beside_the_new_one(tmp_path):
    with host() as running, Dashboard(running, "127.0.0.1:0") as dashboard:
        work = running.load(bundle(tmp_path))
        for number in range(7):
            work(number)
        running.load(bundle(tmp_path, version="2.0.0"))
        work("new")
        while not running.statistics().replaced:
            time.sleep(0.01)
        [old] = running.statistics().replaced
        assert (old.version, old.calls, old.walls.count, old.totals.calls) == ("1.0.0", 7, 7, 7)
        page = wait_for("1.0.0 (replaced)", dashboard, "/tasks/worker")
        assert '<th class="n">2.0.0</th>' in page and '<td class="n">1</td><td class="n">7</td>' in page
        running.unload("worker")
        assert running.statistics().replaced == ()
