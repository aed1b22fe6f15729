"""CPython's own tests of executors with VMExecutor: `python -m tests.conformance.executors --suite FOLDER`.

FOLDER is the one that tools/cpython_tests.sh prints. A test that fails must be filed in executors.toml with its reason,
and one that is filed must fail: otherwise the exit status is 1.
"""

import argparse
import contextlib
import faulthandler
import importlib
import logging
import shutil
import sys
import tempfile
import tomllib
import unittest
from pathlib import Path

import vmhost

FILED = Path(__file__).with_name("executors.toml")
PACKAGE = "tests_of_executors"
# module -> its classes of tests for any executor
TESTS = {
    "executor": ["ExecutorTest"],
    "test_wait": ["WaitTests"],
    "test_as_completed": ["AsCompletedTests"],
    "test_init": ["InitializerMixin", "FailingInitializerMixin"],
    "test_shutdown": ["ExecutorShutdownTest"],
    "test_deadlock": ["ExecutorDeadlockTest"],
}


def offer(suite, folder):
    """Copies the tests from `suite` into the `folder` as a package of another name: none that is in the standard
    library's `test` travels to a VM."""
    package = folder / PACKAGE
    shutil.copytree(suite / "test_concurrent_futures", package)
    for path in package.glob("*.py"):
        path.write_text(path.read_text().replace("test.test_concurrent_futures", PACKAGE))
    (package / "__init__.py").write_text("")  # its checks are not for VMs
    sys.path.insert(0, str(folder))


def cases():
    """(name, a test) of each test."""
    util = importlib.import_module(f"{PACKAGE}.util")

    class VMPoolMixin(util.ExecutorMixin):
        executor_type = vmhost.VMExecutor

        def create_event(self):
            self.skipTest("an event reaches no VM")

        def get_context(self):
            return None  # how processes are made

    for module, names in TESTS.items():
        for name in names:
            tests = getattr(importlib.import_module(f"{PACKAGE}.{module}"), name)
            own_mixin = issubclass(tests, util.ExecutorMixin)
            bases = (VMPoolMixin, tests) if own_mixin else (tests, VMPoolMixin)
            cls = type(name, (*bases, unittest.TestCase), {"executor_type": vmhost.VMExecutor})
            for test in unittest.defaultTestLoader.loadTestsFromTestCase(cls):
                yield f"{name}.{test._testMethodName}", test


def run(test, limit_s):
    """The last line of what went wrong with the test; None: it passed or was skipped. A test that takes longer ends
    the process, with the stacks of its threads."""
    result = unittest.TestResult()
    faulthandler.dump_traceback_later(limit_s, exit=True)
    with contextlib.redirect_stdout(None):
        test.run(result)
    faulthandler.cancel_dump_traceback_later()
    problems = result.errors + result.failures
    return problems[0][1].strip().splitlines()[-1] if problems else None


def reason_of(name, filed):
    return next((reason for reason, names in filed.items() if name in names), None)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", type=Path, required=True)
    parser.add_argument("--limit-s", type=float, default=120)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        offer(options.suite.resolve(), Path(folder))
        return hold(options)


def hold(options):
    """Runs the tests and holds them against what is filed; the exit status."""
    filed = tomllib.loads(FILED.read_text())
    wrong, counted = [], {}
    for name, test in cases():
        if options.names and name not in options.names:
            continue
        problem, reason = run(test, options.limit_s), reason_of(name, filed)
        if (problem is None) != (reason is None):
            wrong.append(name)
            print(f"{name}: {problem or 'passes, and is filed as ' + reason}", flush=True)
        group = reason or ("pass" if problem is None else "fail, and are not filed")
        counted[group] = counted.get(group, 0) + 1
    for reason, count in counted.items():
        print(f"{count:4} {reason}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
