"""The tool that mutates lines: the same seed gives the same sample; mutants compile and are reverted."""

import importlib.util
import itertools
import json
import shutil
import subprocess
import sys

import pytest

from tests.hosts import ROOT


@pytest.fixture(scope="module")
def mutants():
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "tools/mutants.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PYTHON = '''\
"""A text that says 1 + 1."""


def first(values, *rest):
    # not 1
    if len(values) > 1 and not rest:
        raise ValueError("1 + 1")
    return values[0] if values else -1
'''
TEST = "from engine.first import first\ndef test_first():\n    assert first([7]) == 7 and first([]) == -1\n"


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with one module and one test, which holds its last line only. Its tests need no other plugins."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "_hypothesis_pytestplugin")  # of which the tool sets the seed
    for name, text in {"engine/first.py": PYTHON, "tests/engine/test_first.py": TEST, "setup.py": ""}.items():
        (tmp_path / "own" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "own" / name).write_text(text)
    (tmp_path / "own/tests/bytecode").mkdir()
    (tmp_path / "own/.venv").symlink_to(ROOT / ".venv")
    return tmp_path / "own"


def test_words_of_texts_and_comments_are_left_alone_and_what_does_not_compile_is_left_out(mutants, checkout):
    path = checkout / "engine/first.py"
    made = mutants.python_mutations(path)
    found = {row: [line for line in lines if mutants.compiles(path, row, line)] for row, lines in made.items()}
    assert sorted(found) == [6, 7, 8]
    assert "    if len(values) >= 1 and not rest:" in found[6] and "    if len(values) > 1 or not rest:" in found[6]
    assert found[7] == ["        pass"] and "    return None" in found[8]
    assert not mutants.compiles(path, 6, "    if len(values) > 1 and not rest")


def test_c_is_changed_where_it_computes(mutants, tmp_path):
    path = tmp_path / "a.c"
    path.write_text(
        '#define N 3\n/* a == b\n * 1 */\nstatic int f(const char *s, int n)\n{\n    put("1 + 1", s->at);\n'
        "    return n <= 010 && n != 2; // 5\n}\n"
    )
    assert mutants.c_mutations(path) == {
        6: ["    ;"],
        7: [
            "    return n < 010 && n != 2; // 5",
            "    return n <= 010 || n != 2; // 5",
            "    return n <= 010 && n == 2; // 5",
            "    return n <= 010 && n != 3; // 5",
        ],
    }


def test_a_seed_gives_its_sample(mutants):
    one, again, other = (
        [(m["file"], m["row"], m["new"]) for m in itertools.islice(mutants.draw(ROOT, ["bytecode"], seed), 20)]
        for seed in (1, 1, 2)
    )
    assert one == again != other and len({(file, row) for file, row, _ in one}) == 20


def test_a_mutant_is_applied_where_its_line_is_now_and_taken_back(mutants, checkout, tmp_path):
    copy = mutants.Copy(checkout, tmp_path / "copy")
    path = copy.folder / "engine/first.py"
    undo = copy.change({"file": "engine/first.py", "row": 1, "old": PYTHON.splitlines()[5], "new": "    if rest:"})
    assert path.read_text() == PYTHON.replace(PYTHON.splitlines()[5], "    if rest:")
    undo()
    assert path.read_text() == PYTHON and (checkout / "engine/first.py").read_text() == PYTHON
    assert copy.change({"file": "engine/first.py", "row": 1, "old": "    gone()", "new": "    pass"}) is None


def test_what_tests_hold_is_caught_and_what_they_do_not_survives(mutants, checkout, tmp_path):
    copy = mutants.Copy(checkout, tmp_path / "copy")
    lines = PYTHON.splitlines()
    times = type("Times", (), {"seconds": {"tests/engine/test_first.py": 0.1}, "failing": []})

    def outcome(row, new, **more):
        mutant = {"kind": "engine", "file": "engine/first.py", "row": row, "old": lines[row - 1], "new": new}
        return mutants.try_mutant(copy, mutant, list(times.seconds), times, tmp_path / "log", 60, **more)

    assert outcome(7, "        pass")["result"] == "survived"
    caught = outcome(8, "    return None")
    assert (caught["result"], caught["by"]) == ("caught", "tests/engine/test_first.py::test_first")
    times.failing = ["tests/engine/test_first.py::test_first"]
    assert outcome(8, "    return None")["result"] == "survived", "the test fails without a mutant, it is said"


def test_the_tests_of_a_line_are_found(mutants, checkout, tmp_path):
    arguments = type("Arguments", (), {"checkout": checkout, "work": tmp_path, "kinds": ["engine"]})
    (checkout / "tools").mkdir()
    (checkout / "tools/mutants.py").write_bytes((ROOT / "tools/mutants.py").read_bytes())
    mutants.make_map(arguments)
    found = mutants.Map(tmp_path, tmp_path / "copy", ["engine"])
    drawn = {"kind": "engine", "file": "engine/first.py"}
    assert found.files({**drawn, "row": 8}) == (["tests/engine/test_first.py"], True)
    assert found.files({**drawn, "row": 7}) == (["tests/engine/test_first.py"], False), "no test runs it"


def test_two_runs_are_compared(tmp_path):
    line = '{{"kind": "engine", "file": "engine/a.py", "row": {0}, "old": "a", "new": "b", "result": "{1}"}}\n'
    (tmp_path / "one").write_text(line.format(1, "caught") + line.format(2, "survived"))
    (tmp_path / "other").write_text(line.format(1, "survived") + line.format(2, "survived"))
    done = subprocess.run(
        [sys.executable, ROOT / "tools/mutants.py", "compare", tmp_path / "one", tmp_path / "other"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "engine: 2 mutants, 1 and 0 caught" in done.stdout and "engine/a.py:1: caught and survived" in done.stdout


def test_lines_of_two_checkouts_are_held_against_the_tests_of_each(mutants, checkout, tmp_path):
    """The older checkout's test holds the line that raises too, has a line more above, and a test that always fails."""
    before = tmp_path / "before"
    shutil.copytree(checkout, before, symlinks=True)
    lines = PYTHON.replace("(1 + 1)", "(2)").splitlines()
    (before / "engine/first.py").write_text("\n".join(["# more", *lines[:-1], "    return values[0]"]) + "\n")
    (before / "tests/engine/test_first.py").write_text(
        "import pytest\n" + TEST.replace(" and first([]) == -1", "") + "def test_never():\n    assert first([7]) == 8\n"
        "def test_raise():\n    with pytest.raises(ValueError):\n        first([1, 2])\n"
    )
    lines = {"engine/first.py": {row: ["tests/engine/test_first.py"] for row in range(1, 9)}}
    found = {"seconds": {"tests/engine/test_first.py": 1}, "failing": [], "lines": lines}
    (tmp_path / "engine.map").write_text(json.dumps(found))
    arguments = ["pairs", str(before), "--checkout", str(checkout), "--work", str(tmp_path), "--kinds", "engine"]
    arguments += ["-o", str(tmp_path / "out")]
    for _ in range(2):  # the second run finds all done
        done = subprocess.run(
            [sys.executable, ROOT / "tools/mutants.py", *arguments], capture_output=True, text=True, check=True
        )
        results = {}
        for name in ("after", "before"):
            for line in (tmp_path / "out" / f"{name}.jsonl").read_text().splitlines():
                outcome = json.loads(line)
                results.setdefault(outcome["row"], []).append((outcome["result"], outcome.get("by", "")[-5:]))
        assert sorted(results) == [6, 7], "the last line differs"
        assert results[7] == [("survived", ""), ("caught", "raise")]
    assert "survived, caught" in done.stdout


def test_a_mutant_that_a_killed_run_left_is_taken_back(mutants, checkout, tmp_path):
    first = mutants.Copy(checkout, tmp_path / "copy")
    first.change({"file": "engine/first.py", "row": 6, "old": PYTHON.splitlines()[5], "new": "    if rest:"})
    again = mutants.Copy(checkout, tmp_path / "copy")
    assert (again.folder / "engine/first.py").read_text() == PYTHON
