"""Runs a package's own tests with pytest, and returns the outcome of each: the same code in a VM and in plain Python.

A request is a dict: `root` (the folder with the tests, and the package's settings for pytest), `writable` (where tests
may write), `environment` (variables), `files` (of tests, below `root`), `options` (of pytest), `marks` (of tests that
are not run) and `processes` (what was asked of processes while modules were imported, and their answers). The answer is
{"outcomes": {id: [outcome, text]}, "processes"}, where an outcome is "passed", "failed", "skipped" or "expected", and a
file that can't be imported has an id of its own."""

import os
import subprocess
import sys
import tempfile

import pytest

_TEXT = 3000  # characters of a failure that are kept
_OPTIONS = [
    "--assert=plain",
    "--capture=sys",
    "--import-mode=prepend",
    "-q",
    "--no-header",
    "--no-summary",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:faulthandler",
    "-p",
    "no:doctest",
    "-o",
    "addopts=",
    "--continue-on-collection-errors",
]


class Outcomes:
    """A pytest plugin that notes the outcome of each test."""

    def __init__(self, marks, processes):
        self.noted = {}
        self._marks = marks
        self.processes = processes
        self._start = subprocess.check_output
        subprocess.check_output = self._check_output

    def _check_output(self, command, **options):
        """Data that test modules get from a process while they are imported: a VM gets the answer of plain Python."""
        key = " ".join(map(str, command[1:]))
        if key not in self.processes:
            self.processes[key] = self._start(command, **options).decode()
        return self.processes[key].encode()

    def pytest_collection_modifyitems(self, config, items):
        """Replaces pytest's own `-m`, which needs a compiler."""
        items[:] = [item for item in items if not any(item.get_closest_marker(mark) for mark in self._marks)]

    @pytest.fixture(scope="session")
    @classmethod  # pytest warns of a method, and some suites make errors of its warnings
    def doctest_namespace(cls):
        """Of pytest's plugin for doctests, which is not loaded; some suites ask for it in every test."""
        return {}

    def pytest_collection_finish(self, session):
        """From now on it is a test that starts processes."""
        subprocess.check_output = self._start

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report):
        outcome = report.outcome
        if outcome == "passed" and report.when != "call":
            return
        if hasattr(report, "wasxfail"):
            outcome = "expected" if outcome == "skipped" else "failed"
        if self.noted.get(report.nodeid, ("passed",))[0] == "passed":
            self.noted[report.nodeid] = [outcome, _text(report)]

    def pytest_collectreport(self, report):
        if report.outcome != "passed":
            self.noted[report.nodeid] = [report.outcome, _text(report)]


def _stay(path, change=os.chdir):
    """chdir, which pytest calls at its end to return to its folder; a VM cannot change folders."""
    if os.fspath(path) != os.getcwd():
        change(path)


def _text(report):
    try:
        return "" if report.longrepr is None else str(report.longrepr)[-_TEXT:]
    except Exception as error:  # a traceback that can't be shown is a failure all the same
        return f"{type(error).__name__}: {error}"


def run(request):
    """Serves one request."""
    os.environ["PY_IGNORE_IMPORTMISMATCH"] = "1"  # in a VM, modules come from the bundle
    os.environ.update(request["environment"])
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    if not sys.path:
        sys.path.append("")  # pytest looks at the first one; in a VM modules come from the bundle
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = request["writable"]
    tempfile.tempdir = request["writable"]
    sys.argv, os.chdir = ["pytest"], _stay
    outcomes = Outcomes(request["marks"], request["processes"])
    root = request["root"]
    options = [*_OPTIONS, f"--rootdir={root}", f"--basetemp={request['writable']}/pytest", *request["options"]]
    status = pytest.main([*options, *(f"{root}/{file}" for file in request["files"])], plugins=[outcomes])
    return {"status": int(status), "outcomes": outcomes.noted, "processes": outcomes.processes}
