"""The lines whose allocations fill the memory when a task reaches its limit, in programs with known answers."""

import json
import sys
import threading
import time
import tracemalloc

import pytest

import vmhost
from tests import warm
from tests.operations.hosts_at_work import ask
from tests.operations.hosts_at_work import bundle as task_bundle
from vmhost.bytecode.compiler import compile_sources
from vmhost.memory_lines import read
from vmhost.operations import Dashboard
from vmhost.profile import Frame

GRACE_S = 30.0  # a full memory takes a while to free where other processes have the cores

PROGRAM = """
import json

def large(n):
    return bytearray(n)

def run(what):
    kept = []
    if what == "three":
        while True:
            kept.append(bytearray(7000))
            kept.append([0] * 250)
            kept.append(json.loads('"' + "x" * 1000 + '"'))
            [bytearray(300) for _ in range(50)]
    if what == "one request":
        return large(10**9)
    if what == "one that grows":
        while True:
            kept.append(None)
    if what == "arrays":
        import vmhost.engine.numpy as np
        while True:
            kept.append(np.zeros(500))
    if what == "caught":
        try:
            large(10**9)
        except MemoryError:
            pass
        while True:
            kept.append(str(len(kept)) * 4)
    if what == "a dict that is built again":
        for _ in range(20):
            kept = {n: str(n) for n in range(20000)}
        while True:
            kept[len(kept)] = bytes(900)
    return what
"""


def line_of(text):
    """The number of the first line of PROGRAM with `text`."""
    return next(n for n, line in enumerate(PROGRAM.splitlines(), 1) if text in line)


def bundle(memory=64 << 20, **limits):
    return compile_sources(
        {"main": (PROGRAM, "hold@1.0.0/main.py", False)},
        entry="main:run",
        name="hold",
        version="1.0.0",
        limits={"memory_bytes": memory, **limits},
    )


@pytest.fixture(scope="module")
def running():
    policy = vmhost.Policy(
        grace_s=GRACE_S, task=vmhost.TaskPolicy(memory_lines=True, breaker=vmhost.BreakerPolicy(enabled=False))
    )
    with vmhost.Host(allow_unsigned=True, policy=policy) as host:
        yield host


def met(host, what, **limits):
    with pytest.raises(vmhost.MemoryLimitError) as raised:
        host.load(bundle(**limits))(what)
    return raised.value


def shares(lines):
    return {each.frame.line: each.held_bytes / lines.held_bytes for each in lines.held}


def test_lines_hold_what_they_hold(running):
    error = met(running, "three", memory=192 << 20)
    found = shares(error.memory_lines)
    sizes = {
        "bytearray(7000)": sys.getsizeof(bytearray(7000)),
        "[0] * 250": sys.getsizeof([0] * 250),
        "json.loads": sys.getsizeof("x" * 1000),
    }
    for text, size in sizes.items():
        assert abs(found[line_of(text)] - size / sum(sizes.values())) < 0.05, (text, found)
    assert found.get(line_of("range(50)"), 0) < 0.01  # freed memory
    by = {each.frame.line: each.inner for each in error.memory_lines.held}
    assert by[line_of("bytearray(7000)")] is None
    assert by[line_of("json.loads")].file.endswith("json/decoder.py")
    assert 150 << 20 < error.memory_lines.held_bytes < 234 << 20  # estimated from samples
    assert f"hold@1.0.0/main.py:{line_of('bytearray(7000)')} (run)" in error.__notes__[-1]


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("one that grows", "kept.append(None)"),
        ("arrays", "np.zeros(500)"),
        ("a dict that is built again", "bytes(900)"),
    ],
)
def test_one_line_holds_nearly_all(running, what, text):
    lines = met(running, what).memory_lines
    assert shares(lines)[line_of(text)] > 0.85
    assert lines.asked == Frame("run", "hold@1.0.0/main.py", line_of(text))


def test_a_request_that_is_refused_is_named_with_its_size(running):
    lines = met(running, "one request").memory_lines
    assert lines.asked == Frame("large", "hold@1.0.0/main.py", line_of("return bytearray(n)"))
    assert 10**9 <= lines.asked_bytes < 10**9 + 4096
    assert "953.7 MiB by hold@1.0.0/main.py" in lines.text()


def test_a_refusal_that_the_task_survives_is_not_what_met_the_limit(running):
    lines = met(running, "caught").memory_lines
    assert lines.asked.line == line_of("* 4)") and lines.asked_bytes < 10**8
    assert shares(lines)[line_of("* 4)")] > 0.85


def test_vms_that_fill_up_side_by_side_tell_of_their_own(running):
    found = {}

    def one(what):
        found[what] = task.submit(what).exception()

    task = running.load(bundle(concurrency=4))
    threads = [threading.Thread(target=one, args=(what,)) for what in ("three", "one that grows", "arrays")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shares(found["one that grows"].memory_lines)[line_of("kept.append(None)")] > 0.9
    assert shares(found["arrays"].memory_lines)[line_of("np.zeros")] > 0.9
    assert shares(found["three"].memory_lines)[line_of("bytearray(7000)")] > 0.55


def test_nothing_is_told_where_nobody_asked():
    with vmhost.Host(allow_unsigned=True, policy=vmhost.Policy(grace_s=GRACE_S)) as host:
        error = met(host, "one that grows")
        assert error.memory_lines is None
        assert host.statistics().tasks["hold"].memory_lines is None


def test_tracemalloc_comes_and_goes_beside_it():
    """Its hooks are above or below ours, and ours are removed when the last VM that needs them has ended."""
    policy = vmhost.Policy(grace_s=GRACE_S, task=vmhost.TaskPolicy(memory_lines=True))
    for _ in range(3):
        with vmhost.Host(allow_unsigned=True, policy=policy) as host:
            assert host.load(bundle())("plain") == "plain"
            tracemalloc.start()
            assert host.load(bundle())("plain") == "plain"
            tracemalloc.stop()
            lines = met(host, "one that grows").memory_lines
            assert shares(lines)[line_of("kept.append(None)")] > 0.85


def test_the_task_goes_on_in_a_new_vm_and_forgets(running):
    task = running.load(bundle())
    met(running, "one that grows")
    assert task("plain") == "plain"
    assert met(running, "one request").memory_lines.held_bytes < 8 << 20


def test_host_yaml_log_and_the_page_of_the_task(tmp_path, caplog):
    (tmp_path / "host.yaml").write_text("tasks:\n  hold: {memory_lines: true}\n")
    assert vmhost.TaskPolicy().memory_lines is False
    policy = vmhost.Policy(tasks={"hold": vmhost.TaskPolicy(memory_lines=True)})
    with (
        vmhost.Host(allow_unsigned=True, policy=policy) as host,
        Dashboard(host, "127.0.0.1:0", token=False) as dashboard,
    ):
        met(host, "arrays")
        page = ask(dashboard, "/tasks/hold")[2]
        assert "What held the memory of 1.0.0 at its limit" in page
        assert f"<td>hold@1.0.0/main.py:{line_of('np.zeros')} (run)</td>" in page
        lines = host.statistics().tasks["hold"].memory_lines
        assert shares(lines)[line_of("np.zeros")] > 0.9
        end = time.monotonic() + 60
        while "met its memory limit" not in caplog.text and time.monotonic() < end:
            time.sleep(0.01)
        assert f"main.py:{line_of('np.zeros')} (run)" in caplog.text
    with vmhost.Host.from_file(tmp_path / "host.yaml") as host:
        assert host.policy.tasks["hold"].memory_lines is True


def test_the_command_line_tells_it(tmp_path):
    path = tmp_path / "hold.vmb"
    path.write_bytes(task_bundle(tmp_path, "hold", source=PROGRAM))
    command = ["-m", "vmhost", "run", path, "--allow-unsigned", "--input", '"arrays"']
    ran = warm.run(*command)
    assert ran.returncode == 4, ran.stderr
    assert "What held the memory:" in ran.stderr
    assert f"%  hold@1.0.0/main.py:{line_of('np.zeros')} (run)" in ran.stderr
    ran = warm.run(*command, "--json")
    report = json.loads(ran.stdout)["error"]["memory_lines"]
    assert report["held"][0]["at"] == {"file": "hold@1.0.0/main.py", "line": line_of("np.zeros"), "function": "run"}
    assert report["asked"]["bytes"] > 0


def test_what_the_core_tells_is_grouped_by_the_lines_of_the_task():
    text = (
        "asked 10\x1fstdlib/json.py\x1f3\x1floads\x1ft@1/main.py\x1f7\x1frun\n"
        "held 500\x1ft@1/main.py\x1f7\x1frun\n"
        "held 300\x1fstdlib/json.py\x1f3\x1floads\x1ft@1/main.py\x1f7\x1frun\x1ft@1/main.py\x1f1\x1f<module>\n"
        "held 900\x1ft@1/other.py\x1f2\x1f?\x1ft@1/main.py\x1f7\x1frun\n"
        "held 5\nother 20\n"
    )
    lines = read(text, "t", "1")
    assert [(each.frame.file, each.frame.line, each.held_bytes) for each in lines.held] == [
        ("t@1/other.py", 2, 900),
        ("t@1/main.py", 7, 800),
        ("", 0, 25),
    ]
    assert lines.asked == Frame("run", "t@1/main.py", 7) and lines.held_bytes == 1725
    assert "no line of the task" in lines.text()
