"""The command that runs CPython's tests in VMs: what it leaves out, how it counts, and its baseline for later runs."""

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.conformance import report, selection
from tests.conformance.__main__ import _again as again
from tests.conformance.sealed import Crashed, Process

PLAIN = Path(__file__).parent / "conformance" / "plain.py"

MODULE = """
import os, socket, sys, unittest
from test import support
from _testinternalcapi import has_inline_values     # for one test of many: test_class has it so

support.skip_if_huge_c_stack()      # asks for what is absent, and knows what else to do

class Tests(unittest.TestCase):
    def test_nothing(self):
        import json
        json.dumps([1])
        with open(os.path.abspath("note.txt"), "w") as file:
            file.write("in the folder that is granted")

    def test_loopback(self):
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))

    def test_all_addresses(self):
        with socket.socket() as server:
            server.bind(("0.0.0.0", 0))

    def test_relative_path(self):
        with open("note.txt", "w") as file:     # in a VM that is a file of the bundle
            file.write("")

    def test_relative_folders(self):
        os.makedirs("some/folder")

    def test_relative_path_of_nothing(self):
        self.assertRaises(FileNotFoundError, open, "nothing.txt")

    def test_eval(self):
        eval("1 + 1")

    def test_eval_by_unittest(self):
        self.assertRaises(SyntaxError, eval, "1 +")

    def test_eval_of_code_that_is_there(self):
        eval((lambda: 1).__code__)

    def test_trace(self):
        sys.settrace(None)

    def test_trace_by_support(self):
        support.no_tracing(lambda: None)()

    def test_written_module(self):
        with open(os.path.abspath("just_written.py"), "w") as file:
            file.write("x = 1")
        sys.path.insert(0, os.getcwd())
        try:
            import just_written
        finally:
            del sys.path[0]

    def test_file(self):
        open("/etc/hostname").close()

    def test_folder(self):
        os.mkdir(os.path.abspath("granted"))
        os.chdir(os.getcwd())

    def test_process(self):
        import subprocess
        subprocess.run(["true"])

    def test_library_alone(self):
        import dataclasses
        dataclasses.make_dataclass("A", ["x"])      # the library compiles, nobody asked it to

class Prepared(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        eval("1 + 1")

    def test_of_a_class_that_evaluates(self):
        pass
"""


@pytest.fixture(scope="module")
def denied(tmp_path_factory):
    """{test: kinds of events} that plain.py notes about MODULE."""
    home = tmp_path_factory.mktemp("plain")
    shutil.copytree(
        Path(sysconfig.get_path("stdlib")) / "test", home / "tests" / "test", ignore=shutil.ignore_patterns("test_*")
    )
    (home / "tests" / "test" / "test_sample.py").write_text(MODULE, encoding="utf-8")
    (home / "writable").mkdir()
    subprocess.run(
        [sys.executable, "-s", "-P", PLAIN, home / "tests", "test_sample", home / "writable", home / "out.json"],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    found = json.loads((home / "out.json").read_text(encoding="utf-8"))
    assert {outcome for outcome, _ in found["outcomes"].values()} == {"passed"}
    return {name.rpartition(".")[2]: set(events.values()) for name, events in found["denied"].items()}


@pytest.mark.parametrize(
    ("test", "kinds"),
    [
        ("test_eval", {"compile"}),
        ("test_eval_by_unittest", {"compile"}),
        ("test_trace", {"policy"}),
        ("test_trace_by_support", {"policy"}),
        ("test_written_module", {"written"}),
        ("test_file", {"file"}),
        ("test_folder", {"policy"}),
        ("test_process", {"process"}),
        ("test_all_addresses", {"network"}),
        ("test_relative_path", {"file"}),
        ("test_relative_folders", {"file"}),
        ("test_of_a_class_that_evaluates", {"compile"}),
    ],
)
def test_tests_that_do_what_a_vm_denies_are_found(denied, test, kinds):
    assert kinds <= denied[test]


@pytest.mark.parametrize(
    "test",
    [
        "test_nothing",
        "test_loopback",
        "test_relative_path_of_nothing",
        "test_eval_of_code_that_is_there",
        "test_library_alone",
    ],
)
def test_all_others_count(denied, test):
    assert test not in denied


ONE = {
    "module": "test_sample",
    "seconds": [1, 1],
    "plain": {name: ["passed", ""] for name in "abcd"} | {"e": ["failed", ""]},
    "denied": {"c": {"compile": "compile"}},
    "sealed": {"a": ["passed", ""], "b": ["failed", "Error: wrong"], "c": ["failed", ""], "d": ["skipped", "no links"]},
}


def test_counting():
    judged = report.judge(ONE, {"messages": {"links are refused": ["skipped: no links"]}})
    assert {key: judged[key] for key in ("run", "passed", "counted", "same", "same_counted")} == {
        "run": 5,
        "passed": 4,
        "counted": 3,
        "same": 1,
        "same_counted": 1,
    }
    assert {difference["test"]: difference["reason"] for difference in judged["differences"]} == {
        "b": None,
        "c": "plain CPython raised compile",
        "d": "links are refused",
    }


@pytest.mark.parametrize(("imported", "counted"), [({"import": "import"}, 1), ({}, 2)])
def test_a_test_that_uses_what_its_module_imported_in_vain(imported, counted):
    plain = {name: ["passed", ""] for name in ("uses", "other")}
    sealed = {
        "uses": ["failed", "Traceback\ngaps.AbsentError: tool.run: a VM does not have it"],
        "other": ["passed", ""],
    }
    judged = report.judge(
        {"module": "test_tool", "seconds": [1, 1], "plain": plain, "denied": {"": imported}, "sealed": sealed}, {}
    )
    assert (judged["counted"], judged["same_counted"], judged["same"]) == (counted, 1, 1)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("ValueError: now it is 2", ["round 2: test_sample.Tests.test_it passed before"]),
        ("vmhost.guest.PermissionDenied: [Errno 13] 7: a task uses descriptors that it made itself", []),
    ],
)
def test_what_does_not_pass_again_is_told_unless_it_has_a_reason(tmp_path, capsys, text, wrong):
    class Run:
        home, process = tmp_path, Process(1)

        def sealed(self, module, bundle, names):
            return {"sealed": dict.fromkeys(names, ["failed", f"Traceback\n{text}"]), "seconds": [1]}

    names = {"test_sample.Tests.test_it": ["passed", ""]}
    assert (
        again(Run(), [{"module": "test_sample", "plain": names, "sealed": names}], 1, 1, report.known_reasons())
        == wrong
    )
    assert ("a task uses descriptors that it made itself" in capsys.readouterr().out) != bool(wrong)


def test_later_runs_are_held_against_the_table(tmp_path):
    document = tmp_path / "conformance.md"
    document.write_text("# A page\n\nwith words\n\n## Results\nold", encoding="utf-8")
    found = [report.judge(ONE, {}), {"module": "test_other", "error": "CRASHED"}]
    left_out = {"test_ctypes.test_a": "no ctypes", "test_ctypes.test_b": "no ctypes", "test_pty": "no terminal"}
    report.write_table(found, report.total(found), left_out, document)
    written = document.read_text(encoding="utf-8")
    assert written.startswith("# A page\n\nwith words\n\n## Results\nCPython ")
    assert "| no ctypes | test_ctypes (2) |\n| no terminal | test_pty |\n" in written
    table = report.read_table(document)
    assert table == {"test_sample": (1, 2)}
    assert report.less_than(found[:1], table) == []
    worse = report.judge(ONE | {"sealed": {}}, {})
    assert report.less_than([worse], table) == [
        "test_sample: 0 tests pass in a VM, docs/conformance.md says 1",
        "test_sample: 3 tests without a denied event do not pass in a VM, docs/conformance.md says 2",
    ]
    assert "has no row" in report.less_than([worse | {"module": "test_new"}], table)[0]


def test_a_module_is_run_unless_it_is_left_out_with_a_reason(tmp_path):
    for name, text in {
        "test_a.py": "",
        "test_b/__init__.py": "class T:\n    def test_it(self): pass\n",
        "test_b/test_c.py": "",
        "test_d/__init__.py": "",
        "test_d/helper.py": "",
        "support/__init__.py": "",
    }.items():
        (tmp_path / "test" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "test" / name).write_text(text)
    every = selection.all_modules(tmp_path)
    assert every == ["test_a", "test_b", "test_b.test_c"]
    patterns = {"no b": ["test_b.*"], "gone": ["test_old"]}
    assert selection.select(every, patterns) == (["test_a", "test_b"], {"test_b.test_c": "no b"})
    assert selection.idle_patterns(every, patterns) == ["test_old"]


def test_a_crash_is_told_with_the_modules_that_were_running():
    process = Process(1, [sys.executable, "-c", "import os; input(); os.abort()"])
    for _ in range(2):  # and the next request gets a new process
        with pytest.raises(Crashed, match="SIGABRT while it ran test_dict"):
            process.run({"module": "test_dict"})
    assert process.crashes == 2
    assert process.close() is None
