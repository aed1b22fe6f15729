"""CPython's and loky's own tests of executors with VMExecutor: `python -m tests.conformance.executors --suite FOLDER`.

FOLDER is the one that tools/cpython_tests.sh prints; loky's are fetched from the package index. A test that fails or is
skipped must be filed in executors.toml with its reason, and one that is filed must do so: else the exit status is 1.
"""

import argparse
import contextlib
import faulthandler
import functools
import importlib
import logging
import os
import re
import shutil
import sys
import tarfile
import tempfile
import tomllib
import unittest
from pathlib import Path

import pytest

from tests.packages import archives

HERE = Path(__file__).resolve().parent
FILED = HERE / "executors.toml"
LOKY = "loky-3.7.0"
LOKY_SHA256 = "80928106fe18b5300c6f1b3a871d71e68a81dc9b2fe5c8ee4afe93bb9ba6424d"
OURS, HOST, CPYTHONS, LOKYS = "executor_under_test", "executor_on_host", "tests_of_executors", "tests_of_loky"
# module -> its classes of tests for any executor
CPYTHON_TESTS = {
    "executor": ["ExecutorTest"],
    "test_wait": ["WaitTests"],
    "test_as_completed": ["AsCompletedTests"],
    "test_init": ["InitializerMixin", "FailingInitializerMixin"],
    "test_shutdown": ["ExecutorShutdownTest"],
    "test_deadlock": ["ExecutorDeadlockTest"],
}
LOKY_TESTS = ["ExecutorShutdownTest", "WaitTests", "AsCompletedTests", "ExecutorTest"]
LEFT_OUT = "left out: "  # begins the reason of a test that is not run
# What in the tests names the executors of others, and what takes its place.
REPLACED = [
    (r"test\.test_concurrent_futures", CPYTHONS),
    (r"^create_executor_tests\((?s:.*)", ""),  # and all behind it: classes of process pools
    (r"from (concurrent\.futures|loky\.process_executor) import \{executor_type\}", f"from {HOST} import VMExecutor"),
    (r"\bfrom tests\b", f"from {LOKYS}"),
    (r"\bfrom loky import process_executor\b", f"import {OURS} as process_executor"),
    (r"\bfrom loky[\w.]* import\b", f"from {OURS} import"),
    (r"^import pytest$", f"from {OURS} import pytest"),
    (r"^import (loky|cloudpickle)$", rf"import {OURS} as \1"),
    (r"assertLogs\('concurrent\.futures'", "assertLogs('vmhost'"),
]


def offer(suite, folder, lokys_too):
    """Copies the tests into the `folder` as packages of other names: none that is in the standard library's `test`
    travels to a VM."""
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), str(HERE.parents[1])])
    os.chdir(folder)
    for name in (OURS, HOST):
        shutil.copy(HERE / f"{name}.py", folder)
    shutil.copytree(suite / "test_concurrent_futures", folder / CPYTHONS)
    if lokys_too:
        with tarfile.open(archives.fetch(f"{LOKY}.tar.gz", LOKY_SHA256, HERE.parents[1] / "build" / "loky")) as packed:
            packed.extractall(folder, filter="data")
        os.rename(folder / LOKY / "tests", folder / LOKYS)
    for path in [*(folder / CPYTHONS).glob("*.py"), *(folder / LOKYS).glob("*.py")]:
        text = path.read_text()
        for pattern, new in REPLACED:
            text = re.sub(pattern, new, text, flags=re.MULTILINE)
        if path.name == "_test_process_executor.py":  # so that VMs find the classes too
            bases = "_executor_mixin.ExecutorMixin, {0}"
            text += "".join(f"\n\nclass TestLoky{name}({bases.format(name)}):\n    pass\n" for name in LOKY_TESTS)
        path.write_text(text)
    (folder / CPYTHONS / "__init__.py").write_text("")  # its checks are not for VMs


def cpythons_tests():
    """{name: class} of CPython's."""
    host, util = importlib.import_module(HOST), importlib.import_module(f"{CPYTHONS}.util")
    shutdown = importlib.import_module(f"{CPYTHONS}.test_shutdown")
    # with variables of its own a script finds the modules of the tests
    shutdown.assert_python_ok = functools.partial(shutdown.assert_python_ok, PYTHONPATH=os.environ["PYTHONPATH"])
    own = {"executor_type": host.sending(importlib.import_module(f"{CPYTHONS}.executor").MyObject)}

    class VMMixin(util.ExecutorMixin):
        def create_event(self):
            return importlib.import_module(OURS).new_event()

        def get_context(self):
            return None  # how processes are made

    for module, names in CPYTHON_TESTS.items():
        for name in names:
            tests = getattr(importlib.import_module(f"{CPYTHONS}.{module}"), name)
            bases = (VMMixin, tests) if issubclass(tests, util.ExecutorMixin) else (tests, VMMixin)
            yield name, type(name, (*bases, unittest.TestCase), own)


def lokys_tests():
    """{name: class} of loky's."""
    host, mixin = importlib.import_module(HOST), importlib.import_module(f"{LOKYS}._executor_mixin")
    tests = importlib.import_module(f"{LOKYS}._test_process_executor")
    mixin.psutil = None  # it counts processes

    class Context:
        Event = staticmethod(importlib.import_module(OURS).new_event)
        get_start_method = staticmethod(lambda: "loky")

    def teardown_method(self, method):
        self.executor.terminate_workers()  # of a test that failed some sleep for minutes
        mixin.ExecutorMixin.teardown_method(self, method)

    for name in (f"TestLoky{name}" for name in LOKY_TESTS):
        cls = getattr(tests, name)
        cls.executor_type, cls.context = host.sending(tests.MyObject), Context
        cls.teardown_method = teardown_method
        yield name, cls


class Outcomes:
    """A plugin of pytest: `of` has the last line of what was wrong with a test, or why it was skipped; None: it
    passed."""

    def __init__(self, only, filed, limit_s):
        self.of, self._only, self._limit_s = {}, only, limit_s
        self._left_out = {name for name, reason in filed.items() if reason.startswith(LEFT_OUT)}
        self._stderr = open(os.dup(2), "w")  # pytest captures the other one

    def pytest_collection_modifyitems(self, items):
        names = {item: _name(item.nodeid) for item in items}
        items[:] = [item for item in items if names[item] in (self._only or set(names.values()) - self._left_out)]

    def pytest_runtest_logstart(self, nodeid):
        faulthandler.dump_traceback_later(self._limit_s, exit=True, file=self._stderr)

    def pytest_collectreport(self, report):
        if report.failed:
            print(report.longreprtext)

    def pytest_runtest_logreport(self, report):
        name = _name(report.nodeid)
        self.of.setdefault(name, None)
        if report.outcome != "passed" and self.of[name] is None:
            crash = getattr(report.longrepr, "reprcrash", None)
            text = report.longrepr[2] if report.skipped else crash.message if crash else report.longreprtext
            self.of[name] = text.strip().splitlines()[-1]


def _name(nodeid):
    return nodeid.partition("::")[2].removeprefix("Test").replace("::", ".").partition("[")[0]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", type=lambda path: Path(path).resolve(), required=True)
    parser.add_argument("--limit-s", type=float, default=120, help="a test that takes longer ends the process")
    parser.add_argument("--quick", action="store_true", help="CPython's only")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args(arguments)
    logging.getLogger("vmhost.task").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        offer(options.suite, Path(folder), not options.quick)
        filed = {name: reason for reason, names in tomllib.loads(FILED.read_text()).items() for name in names}
        outcomes = Outcomes(options.names, filed, options.limit_s)
        Path("pytest.ini").write_text("[pytest]\nmarkers =\n  timeout\n  broken_pool\n  high_memory\n")
        Path("test_all.py").write_text(
            "from tests.conformance import executors\n\nglobals().update(executors.cpythons_tests())\n"
            + ("" if options.quick else "globals().update(executors.lokys_tests())\n")
        )
        without = ("cacheprovider", "terminal", "faulthandler")
        pytest.main([*(f"-pno:{name}" for name in without), "test_all.py"], [outcomes])
        faulthandler.cancel_dump_traceback_later()
        return hold(outcomes.of, filed, options.names or options.quick)


def hold(outcomes, filed, is_part):
    """Holds the outcomes against what is filed; the exit status."""
    ran = {name for name, reason in filed.items() if not reason.startswith(LEFT_OUT)}
    wrong, counted = {name for name in ran if name not in outcomes and not is_part}, {}
    for name in wrong:
        print(f"{name}: is filed, and there is no such test")
    for name, problem in outcomes.items():
        reason = filed.get(name)
        if (problem is None) != (reason is None):
            wrong.add(name)
            print(f"{name}: {problem or f'passes, and is filed as: {reason}'}")
        group = reason or ("pass" if problem is None else "fail, and are not filed")
        counted[group] = counted.get(group, 0) + 1
    for reason, count in counted.items():
        print(f"{count:4} {reason}")
    return 1 if wrong or not outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
