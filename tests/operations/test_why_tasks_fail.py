"""Why a task fails, and which calls its breaker refuses: on the pages, in metrics, by `vmhost top` and in the log."""

import asyncio
import dataclasses
import json
import logging
import urllib.request

import pytest
from starlette.applications import Starlette

import vmhost
from tests.hosts import bundle, stopped_by_its_deadline, until
from vmhost.cli import main
from vmhost.limits import BreakerPolicy, Policy, RecordPolicy, TaskPolicy
from vmhost.operations import Dashboard, history, metrics
from vmhost.operations.debugging.pages import other_end
from vmhost.runtime import last_errors

SOURCE = r"""
def run(value):
    if value == "fine":
        return 1
    if value == "odd":
        raise KeyError("\ud800 \x1b[31m red")
    return inner(value)

def inner(value):
    raise ValueError(f"no price for ann@example.org, token=Bearer abcdefghijkl: {value}")
"""


@pytest.fixture
def host(tmp_path):
    """A host whose breakers open after three failures, for long, and whose records hide addresses."""
    record = RecordPolicy(tmp_path / "records", share=1e-9, mask_patterns=("email",))
    breaker = BreakerPolicy(consecutive=3, open_s=3600, caller_errors=())
    with vmhost.Host(allow_unsigned=True, policy=Policy(task=TaskPolicy(breaker=breaker, record=record))) as host:
        yield host


def fails(task, *values):
    for value in values:
        with pytest.raises(vmhost.TaskError):
            task(value)


def _two(task):
    return len(task.last_errors) == 2 and "second" in task.last_errors[0].message


def get(dashboard, path):
    request = urllib.request.Request(f"http://127.0.0.1:{dashboard.port}{path}")
    request.add_header("Authorization", f"Bearer {dashboard.token}")
    with urllib.request.urlopen(request) as answer:
        return answer.read().decode()


def test_the_last_errors_and_refusals_are_shown_everywhere(host, caplog, capsys):
    task = host.load(bundle(SOURCE, name="prices"))
    with Dashboard(host, "127.0.0.1:0") as dashboard, caplog.at_level(logging.INFO, "vmhost"):
        fails(task, "first", "odd", "second")
        found = until(lambda: (now := host.statistics().tasks["prices"]).breaker.state == "open" and _two(now) and now)
        for _ in range(5):
            with pytest.raises(vmhost.BreakerOpenError):
                task("x")
        with pytest.raises(vmhost.BreakerOpenError):
            task.submit("x")
        newest, odd = found.last_errors  # those of `inner` differ in their values only
        assert newest.outcome == odd.outcome == "TASK_ERROR"
        assert (
            newest.message.startswith("prices 1.0.0: ValueError: no price for masked-") and "second" in newest.message
        )
        assert 'prices@1.0.0/main.py", line 10, in inner' in newest.traceback and "prices@" in odd.traceback
        for each in (newest, odd):
            assert "ann@" not in f"{each}" and "abcdefghijkl" not in f"{each}" and "\x1b" not in f"{each}"
        assert r"\ud800 \x1b[31m red" in odd.message
        assert 'vmhost_calls_total{task="prices",version="1.0.0",outcome="breaker_open"} 6\n' in metrics.scrape(host)
        statistics = host.statistics()
        assert 'outcome="breaker_open"} 6\n' in metrics.exposition(statistics)
        assert statistics.tasks["prices"].calls == statistics.tasks["prices"].failures == 3
        page = get(dashboard, "/tasks/prices")
        assert "no price for masked-" in page and "in inner" in page and "ann@" not in page
        assert '<tr><th>refused by the breaker</th><td class="n">6</td></tr>' in page
        dashboard._history.sample()
        assert "refused/s" in get(dashboard, "/") and "refused" in history.RATES
        capsys.readouterr()
        assert main(["top", dashboard.url, "--once"]) == 0
        assert "no price for masked-" in capsys.readouterr().out
        assert main(["top", dashboard.url, "--errors"]) == 0
        printed = capsys.readouterr().out
        assert "in inner" in printed and r"\x1b[31m" in printed and "\x1b" not in printed
        assert main(["top", dashboard.url, "--errors", "--json"]) == 0
        assert [error["message"] for error in json.loads(capsys.readouterr().out)["prices"]] == [
            newest.message,
            odd.message,
        ]
        (logged,) = [line for record in caplog.records if "last seen at" in (line := record.getMessage())]
        assert ", in run" in logged and "Error: " in logged  # of the call that the host saw first
        assert "ann@" not in logged and "abcdefghijkl" not in logged and "\x1b" not in logged
        assert ", in run" in get(dashboard, "/log")


def test_errors_that_differ_are_kept_up_to_a_bound():
    source = "\n".join(f"def run_{n}(value): raise ValueError({n})" for n in range(15)) + "\ndef run(value): return 1"
    policy = Policy(task=TaskPolicy(breaker=BreakerPolicy(enabled=False)))
    with vmhost.Host(allow_unsigned=True, policy=policy) as patient:
        task = patient.load(bundle(source, name="many"))
        assert task(0) == 1
        for number in range(15):
            with pytest.raises(vmhost.TaskError):
                task(0, entry=f"main:run_{number}")
        errors = until(lambda: (found := _errors(patient)) and "14" in found[0].message and found)
    assert [error.message for error in errors] == [f"many 1.0.0: ValueError: {n}" for n in range(14, 4, -1)]
    assert len(errors) == last_errors.MAX_ERRORS


def _errors(host):
    return host.statistics().tasks["many"].last_errors


def test_a_time_limit_says_where_the_task_was(host):
    task = host.load(bundle("def run(value):\n    while True: pass", name="many"))
    stopped_by_its_deadline(task, 0, "run", lambda error: "main.py" in (error.guest_traceback or ""))
    error, *_ = until(lambda: (found := _errors(host)) and found[0].traceback and found)
    assert error.outcome == "TIME_LIMIT" and "many@1.0.0/main.py" in error.traceback


def test_half_a_surrogate_pair_is_shown_escaped_on_every_page(tmp_path, monkeypatch):
    monkeypatch.setattr(logging.getLogger("vmhost"), "propagate", False)  # pytest's processes cannot pass it on
    from vmhost.operations.crash_reports import CrashReport

    odd = "half \ud800 pair"
    folder = tmp_path / "state" / "crashes"
    folder.mkdir(parents=True)
    report = CrashReport("1-2-3", odd, 1.0, 2, odd, odd, odd, odd, None, (odd,), (), (), (odd,), {odd: odd})
    (folder / "1-2-3.json").write_text(json.dumps(dataclasses.asdict(report)))
    with vmhost.Host(allow_unsigned=True, state=tmp_path / "state") as host, Dashboard(host, "127.0.0.1:0") as shown:
        host.load(bundle("def run(value): raise ValueError(chr(0xd800))", name="odd"))
        with pytest.raises(vmhost.TaskError):
            host.task("odd")(1)
        until(lambda: host.statistics().tasks["odd"].last_errors)
        logging.getLogger("vmhost").error("%s", odd)
        logging.getLogger("vmhost.task.odd").error("%s", odd)
        pages = [
            "/",
            "/log",
            "/part/log",
            "/tasks/odd",
            "/crashes",
            "/crashes/1-2-3",
            "/settings",
            "/vms",
            "/tasks.json",
        ]
        for page in pages:
            assert get(shown, page)
        assert get(shown, "/log?text=half%20%ED%A0%80") and get(shown, "/crashes").count(r"\ud800")


def test_half_a_surrogate_pair_reaches_a_debugging_client_as_json_says_it():
    async def answer(request, body):
        return {"said": body["say"]}

    async def asked():
        sent, whole = [], [{"type": "http.request", "body": rb'{"say": "half \ud800 pair"}'}]
        scope = {"type": "http", "method": "POST", "path": "/debug/api", "query_string": b"", "root_path": ""}
        scope["headers"] = [(b"content-type", b"application/json")]

        async def receive():
            return whole.pop()

        async def send(message):
            sent.append(message)

        await Starlette(routes=other_end(answer))(scope, receive, send)
        return sent

    begun, body = asyncio.run(asked())
    assert begun["status"] == 200 and json.loads(body["body"]) == {"said": "half \ud800 pair"}
