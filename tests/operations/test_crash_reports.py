"""Crashes of each kind lead to a report: the task, its call, the stacks of all VMs; reports by cause and rank,
masked, sent, shown; and the supervisor that goes on after them."""

import contextlib
import http.server
import io
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

import vmhost
from tests.hosts import ROOT, in_a_process
from tests.operations.hosts_at_work import ask
from tests.operations.hosts_at_work import bundle as compiled
from vmhost.cli import main
from vmhost.lines.signals import Signals
from vmhost.masking import Masking
from vmhost.operations import Dashboard
from vmhost.operations.crash_reports import CrashFolder, read_dump
from vmhost.operations.sentry import Sentry
from vmhost.operations.supervisor import Supervisor

# The host function `here` sends a signal to the VM's thread that asks for it.
TASK = """
import threading
from vmhost.guest import host, log

def run(value):
    log.warning("about to go, ann@example.org, token=Bearer abcdefghij")
    return outer(value)

def outer(value):
    return inner(value)

def inner(value):
    if value == "stay":
        while True:
            pass
    return host.here(threading.get_native_id())
"""
CRASH = """
    import ctypes
    from tests.operations.test_crash_reports import TASK
    number, state, version = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    from vmhost.runtime import crash_notes

    def kill(thread):
        until(lambda: b"vmhost.task.bad: about" in crash_notes._notes[0]._text or version == "0.0.0")
        ctypes.CDLL(None).tgkill(os.getpid(), thread, number)

    record = vmhost.RecordPolicy(state + "-records", share=1e-9, mask_patterns=("email",))
    policy = Policy(task=TaskPolicy(record=record, breaker=BreakerPolicy(enabled=False)))
    host = vmhost.Host(allow_unsigned=True, state=state, functions={"here": kill}, policy=policy)
    granted = {"host": ["here"]}
    limits = {"memory": "48 MiB", "wall_time": "90 s"}
    other = host.load(bundle(TASK, "busy", permissions=granted)).submit("stay")
    bad = host.load(bundle(TASK, "bad", version, permissions=granted, limits=limits))
    until(lambda: any(vm.task == "busy" and vm.counters.get("phase") == "call" for vm in host.statistics().vms))
    if version == "0.0.0":  # a thread of the host
        kill(threading.get_native_id())
    bad("go")
    time.sleep(60)
"""


def crash(state, number=signal.SIGSEGV, version="1.0.0"):
    done = in_a_process(CRASH, int(number), state, version)
    assert done.returncode == -number, done.stderr
    folder = CrashFolder(state)
    folder.take_dump()
    return folder


@pytest.mark.parametrize(
    "number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL], ids=lambda n: n.name
)
def test_a_crash_of_each_kind_leads_to_its_report(tmp_path, number):
    (report,) = crash(tmp_path / "state", number).collect()
    assert (report.signal, report.task, report.version, report.phase) == (number.name, "bad", "1.0.0", "call")
    assert report.complete
    assert report.call["entry"] == "main:run" and report.call["running_s"] >= 0
    assert report.limits["memory_bytes"] == 48 << 20 and report.limits["wall_s"] == 90
    assert [line.rpartition(" in ")[2] for line in report.python if '"bad@' in line] == ["inner", "outer", "run"]
    assert [line.rpartition(" in ")[2] for line in _own(report, "bad")][:3] == ["inner", "outer", "run"]
    assert [line.rpartition(" in ")[2] for line in _own(report, "busy")][-1:] == ["run"], "it had begun"
    assert any("Binary file" in line for line in report.native)
    assert report.machine["cores"] and report.machine["python"] == sys.version.split()[0]
    assert any("vmhost.task.bad: about to go" in line for line in report.log)
    text = next(Path(tmp_path, "state", "crashes").glob("*.json")).read_text()
    assert "ann@example.org" not in text and "abcdefghij" not in text, "masked by the rules of records"
    assert not list(Path(tmp_path, "state", "crashes").glob("*.dump"))


def _own(report, task):
    """The frames of the task's own code in the VM that serves it."""
    vm = next(vm for vm in report.vms if vm.task == task)
    return [line for thread in vm.threads for line in thread if f'"{task}@' in line]


def test_reports_are_grouped_by_cause_and_ranked(tmp_path, capsys):
    state = tmp_path / "state"
    for version in ("1.0.0", "2.0.0"):
        crash(state, signal.SIGSEGV, version)
    folder = crash(state, signal.SIGSEGV, "0.0.0")
    folder.collect()
    groups = folder.groups()
    assert [(group.task, group.count) for group in groups] == [("bad", 2), (None, 1)]
    assert groups[0].versions == {"1.0.0": 1, "2.0.0": 1}
    assert folder.ranking() == (("", "", 1), ("bad", "1.0.0", 1), ("bad", "2.0.0", 1))
    assert main(["crashes", str(state)]) == 0
    assert "SIGSEGV in bad" in " ".join(capsys.readouterr().out.split())
    assert main(["crashes", str(state), groups[0].latest]) == 0
    assert "in inner" in capsys.readouterr().out
    assert main(["crashes", str(state), "no-such"]) == 2 and main(["crashes", str(tmp_path / "none")]) == 2
    capsys.readouterr()
    assert main(["crashes", str(state), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["groups"][0]["count"] == 2


def test_the_next_host_puts_the_dump_aside_and_its_dashboard_shows_it(tmp_path):
    state = tmp_path / "state"
    done = in_a_process(CRASH, int(signal.SIGSEGV), state, "1.0.0")
    assert done.returncode == -signal.SIGSEGV, done.stderr
    with vmhost.Host(allow_unsigned=True, state=tmp_path / "first"):
        pass  # this process keeps its own breadcrumbs there from now on
    with vmhost.Host(allow_unsigned=True, state=state) as host, Dashboard(host, "127.0.0.1:0") as dashboard:
        assert [crash.task for crash in host.crashes] == ["bad"]
        page = ask(dashboard, "/crashes", dashboard.token)[2]
        assert "SIGSEGV in bad 1.0.0" in page
        (report,) = CrashFolder(state).reports()
        shown = ask(dashboard, f"/crashes/{report.id}", dashboard.token)[2]
        assert "in inner" in shown and "48" in shown and "ann@" not in shown
        assert ask(dashboard, "/crashes/none", dashboard.token)[0] == 404
    with vmhost.Host(allow_unsigned=True) as host, Dashboard(host, "127.0.0.1:0") as dashboard:
        assert "has no state folder" in ask(dashboard, "/crashes", dashboard.token)[2]


def test_reports_are_sent_to_a_webhook(tmp_path):
    got = []

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    (tmp_path / "crashes").mkdir()
    (tmp_path / "crashes" / "1.dump").write_text(DUMP)
    with http.server.HTTPServer(("127.0.0.1", 0), Receiver) as server:
        folder = CrashFolder(tmp_path, webhook=f"http://127.0.0.1:{server.server_port}/crash")
        folder.collect()
        server.handle_request()
    for thread in threading.enumerate():
        if thread.name == "vmhost-crash-sender":
            thread.join()
    assert got[0]["title"] == "SIGSEGV in shop 1.2.0: f (shop@1.2.0/main.py:3)" and got[0]["task"] == "shop"


def test_reports_are_sent_to_sentry(tmp_path, caplog):
    """The envelope follows Sentry's documentation; a report that is read again is the same event."""
    got = []

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((self.path, self.headers["X-Sentry-Auth"], self.headers["Content-Type"], body))
            self.send_response(200 if len(got) == 1 else 500)
            self.end_headers()

        def log_message(self, *_):
            pass

    (tmp_path / "crashes").mkdir()
    with http.server.HTTPServer(("127.0.0.1", 0), Receiver) as server:
        sentry = Sentry.of(f"http://public@127.0.0.1:{server.server_port}/under/42")
        for number in range(2):
            (tmp_path / "crashes" / f"{number}.dump").write_text(DUMP)
            CrashFolder(tmp_path, senders={"sentry": sentry.send}).collect()
            server.handle_request()
            for thread in threading.enumerate():
                if thread.name == "vmhost-crash-sender":
                    thread.join()
    (path, auth, kind, body), (*_, again) = got
    assert path == "/under/api/42/envelope/" and kind == "application/x-sentry-envelope"
    assert "sentry_version=7" in auth and "sentry_key=public" in auth
    header, item, payload, rest = body.split(b"\n")
    event = json.loads(payload)
    assert json.loads(header)["event_id"] == event["event_id"] and len(event["event_id"]) == 32 and rest == b""
    assert json.loads(item) == {"type": "event", "content_type": "application/json", "length": len(payload)}
    assert (event["level"], event["release"], event["tags"]["task"]) == ("fatal", "shop@1.2.0", "shop")
    (exception,) = event["exception"]["values"]
    frame = {"filename": "shop@1.2.0/main.py", "lineno": 3, "function": "f", "in_app": True}
    assert exception["type"] == "SIGSEGV" and exception["stacktrace"]["frames"] == [frame]
    assert [thread["name"] for thread in event["threads"]["values"]] == ["shop", "shop 1.2.0"]
    assert json.loads(again.split(b"\n")[2])["event_id"] == event["event_id"]
    assert "could not be sent: HTTP Error 500" in caplog.text


@pytest.mark.parametrize(
    "dsn", ["", "https://sentry.example.org/1", "https://key@/1", "ftp://k@h/1", "https://k@h/", "https://k@h:x/1"]
)
def test_a_dsn_that_is_none_is_told(dsn):
    with pytest.raises(vmhost.ConfigurationError, match="expected a DSN"):
        Sentry.of(dsn)


DUMP = """VMHCRASH 1
signal 11
pid 42
time 1795713214
vm 7
task shop
version 1.2.0
phase 3
entry main:run
bytes 12
running_us 1500
== tasks
{"vmhost": "1", "python": "3.14", "tasks": {"shop 1.2.0": {"memory_bytes": 5}}}
== log
vmhost.task.shop: card 4111 1111 1111 1111
== python
  File "shop@1.2.0/main.py", line 3, in f
== native
  Binary file "/usr/lib/libc.so.6", at abort+0x1 [0x1]
  Binary file "/usr/lib/libx.so", at broken+0x10 [0x2]
== vms
-- vm 7
task shop
version 1.2.0
phase 3
thread
  File "shop@1.2.0/main.py", line 3, in f
== end
"""


def test_a_dump_is_read_and_causes_do_not_depend_on_versions_lines_and_addresses():
    report = read_dump(DUMP, 0.0, Masking((), ("card",)))
    assert report.complete and report.limits == {"memory_bytes": 5} and "4111" not in report.log[0]
    assert report.call == {"entry": "main:run", "bytes": 12, "running_s": 0.0015}
    other = DUMP.replace("1.2.0", "1.3.0").replace("line 3", "line 9").replace("[0x2]", "[0x77]")
    other = other.replace("broken+0x10", "broken+0x18")
    assert read_dump(other, 0.0, Masking()).fingerprint == report.fingerprint
    for change in (("signal 11", "signal 6"), ("task shop", "task shop2"), (", in f", ", in g"), ("broken+", "other+")):
        assert read_dump(DUMP.replace(*change), 0.0, Masking()).fingerprint != report.fingerprint


def test_damaged_dumps_and_reports_harm_nobody(tmp_path, caplog):
    for end in range(0, len(DUMP), 7):
        try:
            report = read_dump(DUMP[:end], 5.0, Masking())
        except ValueError:
            assert end < 22, "with its head and a signal there is something to tell"
        else:
            assert not report.complete
    folder = CrashFolder(tmp_path)
    folder.folder.mkdir()
    (folder.folder / "1.dump").write_bytes(b"\x00\xffgarbage")
    (folder.folder / "2.dump").write_text(DUMP)
    assert len(folder.collect()) == 1
    assert (folder.folder / "1.damaged").exists() and "no report can be made" in caplog.text
    (good,) = folder.reports()
    text = (folder.folder / f"{good.id}.json").read_text()
    for number, wrong in enumerate(("", "[]", "{}", text[:-20], text.replace('"time":', '"wrong":'))):
        (folder.folder / f"9-{number}.json").write_text(wrong)
    assert [report.id for report in folder.reports()] == [good.id]


# -- the supervisor --------------------------------------------------------------------------------------------------

# Answers each line; "die" ends it by SIGSEGV, before it has answered.
CHILD = """
import json, os, signal, sys
for number, line in enumerate(sys.stdin, 1):
    asked = json.loads(line)
    if asked.get("input") == "die":
        os.kill(os.getpid(), signal.SIGSEGV)
    print(f"{number}\\t" + json.dumps({"id": asked.get("id"), "result": asked.get("input")}), flush=True)
"""


def supervised(lines, child=CHILD):
    out, crashes = io.BytesIO(), []
    command = [sys.executable, "-c", child]

    def on_crash(pid, number):
        crashes.append(number)
        return "it crashed"

    reads, writes = os.pipe()
    sender = threading.Thread(target=_send, args=(writes, lines))
    sender.start()
    with Signals(30.0) as signals:
        code = Supervisor(command, out, on_crash, signals, wait_s=0.001).run(reads)
    os.close(reads)
    sender.join()
    return code, [json.loads(line) for line in out.getvalue().splitlines()], crashes


def _send(descriptor, lines):
    with open(descriptor, "wb") as file, contextlib.suppress(BrokenPipeError):
        file.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        file.flush()


def test_every_line_has_one_answer_though_processes_die():
    lines = [{"id": number, "input": "die" if number % 10 == 4 else number} for number in range(40)]
    code, answers, crashes = supervised(lines)
    assert sorted(answer["id"] for answer in answers) == list(range(40))
    lost = {answer["id"] for answer in answers if "error" in answer}
    assert {number for number in range(40) if number % 10 == 4} & lost and len(crashes) >= 1
    for answer in answers:
        if "error" in answer:
            assert answer["error"] == {"type": "VMLostError", "message": "it crashed"}
        else:
            assert answer["result"] == answer["id"]


def test_a_process_that_always_dies_is_given_up():
    code, answers, crashes = supervised([{"id": 1, "input": "x"}], "import os; os.abort()")
    assert code == -signal.SIGABRT and 1 <= len(crashes) <= 20 and [answer["id"] for answer in answers] == [1]
    code, answers, crashes = supervised([{"id": 1, "input": "x"}], "raise SystemExit(3)")
    assert code == 3 and not crashes and [answer["id"] for answer in answers] == [1]


def test_a_line_that_a_process_prints_besides_is_no_answer(capsys):
    child = 'print("a greeting", flush=True)\n' + CHILD
    code, answers, _ = supervised([{"id": 1, "input": "x"}, {"input": "y"}], child)
    assert (code, answers) == (0, [{"id": 1, "result": "x"}, {"id": None, "result": "y"}])
    assert "a greeting" in capsys.readouterr().err


def test_serve_with_supervise_makes_a_report_and_goes_on(tmp_path):
    folder, state = tmp_path / "bundles", tmp_path / "state"
    folder.mkdir()
    (tmp_path / "functions.py").write_text(
        textwrap.dedent("""
            import ctypes, os
            def here(thread):
                ctypes.CDLL(None).tgkill(os.getpid(), thread, 11)
        """)
    )
    (tmp_path / "host.yaml").write_text(
        "allow_unsigned: true\nstate: state\nfunctions: {here: functions:here}\nbreaker: {enabled: false}\n"
    )
    source = tmp_path / "bad-source"
    source.mkdir()
    (source / "main.py").write_text(TASK)
    (source / "task.yaml").write_text(
        'name: bad\nversion: 1.0.0\nentry: main:run\npython: "3.14"\npermissions: {host: [here]}\n'
    )
    from vmhost.compiler import compile_folder

    (folder / "bad.vmb").write_bytes(compile_folder(source).to_bytes(None))
    (folder / "good.vmb").write_bytes(compiled(tmp_path, "good"))
    process = subprocess.Popen(
        [sys.executable, "-m", "vmhost", "serve", folder, "--settings", tmp_path / "host.yaml", "--supervise"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PYTHONPATH": f"{ROOT}:{tmp_path}", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )

    def call(name, value):
        process.stdin.write(json.dumps({"id": name, "task": name, "input": value}).encode() + b"\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    try:
        assert call("good", 1)["result"] == 1
        lost = call("bad", "go")
        assert lost["error"]["type"] == "VMLostError" and "SIGSEGV in bad 1.0.0" in lost["error"]["message"]
        assert call("good", 2)["result"] == 2
        _, output = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, output
    assert b"crash: SIGSEGV in bad 1.0.0" in output
    (report,) = CrashFolder(state).reports()
    assert report.task == "bad" and [line.rpartition(" in ")[2] for line in _own(report, "bad")][0] == "inner"


def test_wrong_options_of_serve_are_told(tmp_path, capsys):
    assert main(["serve", str(tmp_path), "--supervise"]) == 2
    assert "--supervise needs a state folder" in capsys.readouterr().err
    assert main(["serve", str(tmp_path), "--crash-webhook", "ftp://x"]) == 2
    assert "--crash-webhook" in capsys.readouterr().err


def test_notes_of_a_host_that_is_gone_hide_what_it_hid(tmp_path):
    """And do not keep the lines of other hosts from their handlers."""
    done = in_a_process(
        """
        import gc
        from vmhost.runtime import crash_notes

        host = vmhost.Host(state=sys.argv[1], policy=Policy(task=TaskPolicy(record=vmhost.RecordPolicy(
            sys.argv[1] + "-records", mask_patterns=("email",)))))
        del host  # which is not closed, and has logged nothing
        gc.collect()
        crash_notes._notes[0].lines("other", [(20, "mail ann@example.com")])
        assert b"mail" in crash_notes._notes[0]._text and b"ann@" not in crash_notes._notes[0]._text
        """,
        tmp_path / "state",
    )
    assert done.returncode == 0, done.stderr
