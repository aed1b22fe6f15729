"""Coverage of code that ran in VMs, compared with coverage.py's own in plain Python."""

import itertools
import json
import re
import subprocess
import sys

import coverage
import pytest

import vmhost
from tests.hosts import stopped_by_its_deadline
from tests.operations.hosts_at_work import ask, bundle
from vmhost.cli import main
from vmhost.coverage import Coverage, Ran
from vmhost.operations import Dashboard

NUMBERS = itertools.count()
# Of PROGRAMS["choices"], called with [1, 0]: number of a line -> how the page marks it.
LINES_OF_CHOICES = dict.fromkeys(map(str, range(1, 16)), "ran")
LINES_OF_CHOICES |= {"1": "", "5": "part", "6": "missing", "8": "", "11": "part", "12": "missing", "13": ""}
PROGRAMS = {
    "choices": """
def sign(n):
    if n > 0:
        return "+"
    elif n < 0:
        return "-"
    return "0"

def run(value):
    both = [sign(n) for n in value if n != 7]
    while value and value[-1] > 100:
        value.pop()
    else:
        both.append("end")
    return both
""",
    "errors": """
import contextlib

class Wrong(Exception):
    def __init__(self, n):
        self.n = n

@contextlib.contextmanager
def around():
    try:
        yield 1
    finally:
        pass

def once(n):
    try:
        if n == 2:
            raise Wrong(n)
        return 10 // n
    except ZeroDivisionError:
        return "zero"
    except Wrong as error:
        return error.n
    finally:
        n += 1

def run(value):
    with around() as one:
        return [once(n) for n in value] + [one]
""",
    "shapes": """
import asyncio
from dataclasses import dataclass

@dataclass
class Point:
    x: int
    y: int = 0

def which(value):
    match value:
        case [first, *_]:
            return first
        case {"name": str(name)}:
            return name
        case Point(x=0):
            return "axis"
        case _:
            return None

def numbers(most):
    for n in range(most):
        if n % 2:
            yield n
        else:
            yield from (n, n)

async def later(n):
    await asyncio.sleep(0)
    return n if n > 1 else -n

async def together(value):
    return await asyncio.gather(*[later(n) for n in value])

def run(value):
    kinds = [which([1]), which({"name": "x"}), which(Point(1)), (lambda: 5)()]
    return kinds + list(numbers(len(value))) + asyncio.run(together(value))
""",
}
INPUTS = {"choices": [[1, 2], [-1, 200]], "errors": [[1, 0], [5]], "shapes": [[1, 2, 3]]}


def covered(path, share, name, calls=(), source=None, **policy):
    """A host that records coverage, and a task with a name of its own."""
    host = vmhost.Host(
        allow_unsigned=True, policy=vmhost.Policy(warm=0, task=vmhost.TaskPolicy(coverage=share, **policy))
    )
    name = f"{name}_{next(NUMBERS)}"
    return host, host.load(bundle(path, name, source=source or PROGRAMS[name.rpartition("_")[0]])), name


def of_task(host, name):
    noted = host.coverage()
    mine = {key: ran for key, ran in noted.functions.items() if key[0].startswith(f"{name}@")}
    return Coverage(mine, noted.full)


def report(path, name, noted, capfd):
    """(exit code, output of `vmhost coverage --json`)."""
    noted.save(path / "ran.json")
    arguments = ["coverage", str(path / "ran.json"), "--source", str(path / f"{name}-1.0.0"), "--json"]
    code = main(
        [*arguments, "--data-file", str(path / "theirs"), "--xml", str(path / "c.xml"), "--html", str(path / "h")]
    )
    out, err = capfd.readouterr()
    return code, json.loads(out) if code == 0 else out + err


def branches(data_file, path):
    measured = coverage.Coverage(data_file=str(data_file), branch=True, config_file=False)
    measured.load()
    found = {line: sorted(arcs) for line, arcs in measured._analyze(str(path)).missing_branch_arcs().items()}
    measured.get_data().close(force=True)
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_what_coverage_py_finds_in_plain_python(tmp_path, name, capfd):
    host, task, own = covered(tmp_path, 1.0, name)
    with host:
        results = [task(list(value)) for value in INPUTS[name]]
        code, text = report(tmp_path, own, of_task(host, own), capfd)
    assert code == 0, text
    source = tmp_path / f"{own}-1.0.0" / "main.py"
    (tmp_path / "plain.py").write_text(
        f"import json, sys\nsys.path.insert(0, {str(source.parent)!r})\nimport main\n"
        f"print(json.dumps([main.run(value) for value in {INPUTS[name]!r}]))\n"
    )
    command = [sys.executable, "-m", "coverage", "run", "--branch", "--data-file", str(tmp_path / "plain")]
    done = subprocess.run([*command, str(tmp_path / "plain.py")], capture_output=True, text=True, cwd=tmp_path)
    assert json.loads(done.stdout) == results, done.stderr
    plain = coverage.Coverage(data_file=str(tmp_path / "plain"), branch=True, config_file=False)
    plain.load()
    missing = plain.analysis2(str(source))[3]
    plain.get_data().close(force=True)
    assert text["files"][str(source)]["missing"] == missing
    assert branches(tmp_path / "theirs", source) == branches(tmp_path / "plain", source)
    assert "<coverage" in (tmp_path / "c.xml").read_text() and (tmp_path / "h" / "index.html").exists()


def test_nothing_is_noted_where_nobody_asked(tmp_path):
    host, task, name = covered(tmp_path, 0, "choices")
    with host:
        task([1])
        assert of_task(host, name).functions == {}


def test_a_share_of_calls(tmp_path):
    """At one call in ten, each of the 64 branches is met by some of 20,000 calls; ten calls meet few."""
    source = "def run(value):\n" + "".join(f"    if value == {n}:\n        return {n}\n" for n in range(64))
    host, task, name = covered(tmp_path, 0.1, "many", source=source)
    with host:
        list(task.map([n % 64 for n in range(10)]))
        few = sum(len(ran.lines) for ran in of_task(host, name).functions.values())
        list(task.map([n % 64 for n in range(20_000)]))
        all_of_it = of_task(host, name)
    ran = all_of_it.functions[f"{name}@1.0.0/main.py", "run", 1]
    assert few < 64 and ran.lines >= set(range(2, 130))


def test_all_vms_and_threads_of_a_task_add_up(tmp_path):
    source = """
import threading

def branch(value):
    if value % 2:
        return "odd"
    return "even"

def run(value):
    thread = threading.Thread(target=branch, args=(value,))
    thread.start()
    thread.join()
"""
    host, task, name = covered(tmp_path, 1.0, "threads", source=source, fresh=True)
    with host:
        for value in (1, 2):
            task(value)
        ran = of_task(host, name).functions[f"{name}@1.0.0/main.py", "branch", 4]
    assert ran.lines == {5, 6, 7} and len(ran.branches) == 2


def test_a_call_that_is_stopped_or_fails_is_noted_as_far_as_it_came(tmp_path):
    source = """
def run(value):
    if value == "fail":
        raise ValueError(value)
    while value == "hang":
        pass
    return value
"""
    host, task, name = covered(tmp_path, 1.0, "stopped", source=source)
    with host:
        with pytest.raises(vmhost.TaskError):
            task("fail")
        stopped_by_its_deadline(task, "hang", "run", lambda error: "main.py" in (error.guest_traceback or ""))
        assert task("well") == "well"
        ran = of_task(host, name).functions[f"{name}@1.0.0/main.py", "run", 2]
    assert ran.lines == {3, 4, 5, 6, 7}


def test_a_task_sees_nothing_of_it(tmp_path):
    source = """
import gc, sys

def run(value):
    found = [name for name in ("monitoring", "settrace", "setprofile") if hasattr(sys, name)]
    for name in ("get_objects", "get_referrers"):
        if hasattr(gc, name):
            found += [repr(one) for one in gc.get_objects() if "monitoring" in repr(type(one)) or one is sys.modules]
    return found
"""
    host, task, _ = covered(tmp_path, 1.0, "curious", source=source)
    with host:
        assert [one for one in task(None) if "monitoring" in one] == []


def test_sources_of_another_version_are_told(tmp_path, capfd):
    host, task, name = covered(tmp_path, 1.0, "choices")
    with host:
        task([1])
        noted = of_task(host, name)
    main_py = tmp_path / f"{name}-1.0.0" / "main.py"
    main_py.write_text("# a line more\n" + main_py.read_text())
    code, text = report(tmp_path, name, noted, capfd)
    assert code == 2 and "these are not the sources of" in text


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"format": "other"}', '{"format": "vmhost coverage 1", "full": 0, "functions": [[1]]}', "\x00"],
)
def test_damaged_data_is_told(tmp_path, text, capfd):
    (tmp_path / "ran.json").write_text(text)
    (tmp_path / "task").mkdir()
    with pytest.raises(vmhost.ConfigurationError, match="not what Coverage.save writes"):
        Coverage.load(tmp_path / "ran.json")
    assert main(["coverage", str(tmp_path / "ran.json"), "--source", str(tmp_path / "task")]) != 0
    assert "not what Coverage.save writes" in capfd.readouterr().err


def test_what_is_saved_comes_back_and_merges(tmp_path):
    one = Coverage({("a@1/main.py", "run", 1): Ran({1, 2}, {(2, 8)}, {10})})
    two = Coverage({("a@1/main.py", "run", 1): Ran({3}, {(2, 12)}), ("b@1/main.py", "é", 4): Ran({5})}, full=True)
    one.save(tmp_path / "one")
    two.save(tmp_path / "two")
    merged = Coverage.load(tmp_path / "one")
    assert merged == one
    merged.merge(Coverage.load(tmp_path / "two"))
    assert merged.functions["a@1/main.py", "run", 1] == Ran({1, 2, 3}, {(2, 8), (2, 12)}, {10})
    assert merged.functions["b@1/main.py", "é", 4] == Ran({5}) and merged.full


def test_tasks_without_sources_are_named_and_a_bound_is_kept(tmp_path, capfd):
    host, task, name = covered(tmp_path, 1.0, "choices")
    with host:
        task([1, -1])
        noted = of_task(host, name)
    noted.functions["other@2.0.0/main.py", "run", 1] = Ran({1})
    noted.save(tmp_path / "ran.json")
    arguments = ["coverage", str(tmp_path / "ran.json"), "--source", str(tmp_path / f"{name}-1.0.0")]
    assert main(arguments) == 0
    out, err = capfd.readouterr()
    assert "main.py" in out and "other@2.0.0: left out" in err
    assert main([*arguments, "--fail-under", "99"]) == 3
    assert "less than 99 %" in capfd.readouterr().err


@pytest.mark.parametrize("share", [-0.1, 1.5, True, "1", None])
def test_shares_that_are_none(share):
    with pytest.raises(vmhost.ConfigurationError, match="coverage"):
        vmhost.TaskPolicy(coverage=share)


def test_the_dashboard_opens_what_ran_in_its_sources(tmp_path):
    name = f"worker{next(NUMBERS)}"
    made = bundle(tmp_path, name=name, source=PROGRAMS["choices"])
    noted = vmhost.Policy(task=vmhost.TaskPolicy(coverage=1.0))
    folder = tmp_path / f"{name}-1.0.0"
    with (
        vmhost.Host(allow_unsigned=True, policy=noted) as host,
        Dashboard(host, "127.0.0.1:0", sources=[folder]) as board,
    ):
        host.load(made)([1, 0])
        overview = ask(board, "/coverage", board.token)[2]
        assert f"{name} 100.0%" in overview and '<td class="n">10 of 12</td><td class="n">4 of 6</td>' in overview
        [link] = re.findall(rf'href="(/coverage/{name}%[^"]*)"', overview)
        page = ask(board, link, board.token)[2]
        lines = dict(re.findall(r'<tr id="line-(\d+)"(?: class="(\w+)")?>', page))
        assert lines == LINES_OF_CHOICES
        (folder / "main.py").write_text("def run(value):\n    return 1\n")
    with (
        vmhost.Host(allow_unsigned=True, policy=noted) as host,
        Dashboard(host, "127.0.0.1:0", sources=[folder]) as board,
    ):
        page = ask(board, "/coverage", board.token)[2]
        assert f"these are not the sources of {name}@1.0.0" in page and "functions" in page


def test_the_dashboard_tells_lines_where_there_are_no_sources(tmp_path):
    name = f"worker{next(NUMBERS)}"
    noted = vmhost.Policy(task=vmhost.TaskPolicy(coverage=1.0))
    with vmhost.Host(allow_unsigned=True, policy=noted) as host, Dashboard(host, "127.0.0.1:0") as board:
        host.load(bundle(tmp_path, name=name, source=PROGRAMS["choices"]))([1, 0])
        assert f"/coverage/{name}%401.0.0/main.py" in ask(board, "/coverage", board.token)[2]
        status, _, page = ask(board, f"/coverage/{name}@1.0.0/main.py", board.token)
        assert status == 200 and "sign (line 2)" in page and "3, 4, 5, 7" in page
        assert ask(board, f"/coverage/{name}@1.0.0/other.py", board.token)[0] == 404
        assert ask(board, "/coverage/../../etc/passwd", board.token)[0] == 404
        assert ask(board, "/coverage")[0] == 401
