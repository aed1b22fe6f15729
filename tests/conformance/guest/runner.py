"""Runs one of CPython's test modules and says what became of each test: the same code in a sealed VM and in plain
CPython.

A request is a dict: `folder` (where tests may write), `home` (the original folder `test`, which they may read) and
`names` (ids of the tests to run; None: only list them). The answer is a dict of test id to [outcome, text]: "passed",
"failed", "skipped" or "expected"."""

import os
import shutil
import sys
import tempfile
import unittest

_TEXT = 4000  # characters of a traceback that are kept
_tests = {}  # test module -> its tests; modules ask class by class, and some have hundreds


class Outcomes(unittest.TestResult):
    """Notes the outcome of each test; `on_start(id)` and `on_stop()` are called when one begins and ends."""

    def __init__(self, on_start=None, on_stop=None):
        super().__init__()
        self.buffer = True
        self.noted = {}
        self._on_start, self._on_stop = on_start, on_stop

    def startTest(self, test):
        super().startTest(test)
        if self._on_start:
            self._on_start(test.id())

    def stopTest(self, test):
        super().stopTest(test)
        if self._on_stop:
            self._on_stop()

    def _note(self, test, outcome, text=""):
        if self.noted.get(test.id(), ("passed",))[0] in ("passed", "skipped") or outcome == "failed":
            self.noted[test.id()] = [outcome, text[-_TEXT:]]

    def _failed(self, test, error):
        try:
            text = self._exc_info_to_string(error, test)
        except Exception:  # a traceback that can't be shown is a failure all the same
            text = f"{error[0].__name__}: {error[1]}"
        self._note(test, "failed", text)
        self._mirrorOutput = False

    def addSuccess(self, test):
        self._note(test, "passed")

    def addError(self, test, err):
        self._failed(test, err)

    def addFailure(self, test, err):
        self._failed(test, err)

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self._failed(test, err)

    def addSkip(self, test, reason):
        self._note(getattr(test, "test_case", test), "skipped", reason)

    def addExpectedFailure(self, test, err):
        self._note(test, "expected")

    def addUnexpectedSuccess(self, test):
        self._note(test, "failed", "unexpected success")


def prepare(folder, home):
    """To be called before the test module is imported: names of folders are read then."""
    from test import support
    from test.support import os_helper, socket_helper

    socket_helper._bind_nix_socket_error = "no Unix sockets in a VM"  # in neither run, then
    support.use_resources = []  # neither network nor anything slow
    support.TEST_HOME_DIR = support.STDLIB_DIR = home
    support.TEST_DATA_DIR = os.path.join(home, "data")
    tempfile.tempdir = folder
    os_helper.TESTFN = os_helper.TESTFN_ASCII = os.path.join(folder, "@test")
    for name, value in vars(os_helper).items():
        if name.startswith("TESTFN_") and value:
            setattr(os_helper, name, os.path.join(folder if isinstance(value, str) else os.fsencode(folder), value))
    os_helper.SAVEDCWD = folder


def _tidy():
    """Removes files that tests left under their reserved name: the next class would fail over them."""
    from test.support import os_helper

    if os.path.isdir(os_helper.TESTFN):
        shutil.rmtree(os_helper.TESTFN, ignore_errors=True)
    elif os.path.lexists(os_helper.TESTFN):
        os.unlink(os_helper.TESTFN)


def flat(suite):
    """The tests of a suite of suites."""
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from flat(test)
        elif test is not None:
            yield test


def run(module, request, on_start=None, on_stop=None):
    """Serves one request about the test module `module`, imported by its caller after `prepare`."""
    if module not in _tests:
        _tests[module] = list(flat(unittest.defaultTestLoader.loadTestsFromModule(module)))
    wanted = request["names"]
    if wanted is None:
        return {test.id(): ["listed", ""] for test in _tests[module]}
    wanted = set(wanted)
    result = Outcomes(on_start, on_stop)
    chosen = unittest.TestSuite(
        test for test in _tests[module] if test.id() in wanted or isinstance(test, unittest.loader._FailedTest)
    )
    recursion = sys.getrecursionlimit()
    try:
        chosen.run(result)
    finally:
        sys.setrecursionlimit(recursion)
        _tidy()
    # what a class or module failed to set up is noted under a name of its own: it is why its tests did not run
    why = (
        "\n".join(text for name, (_, text) in result.noted.items() if name not in wanted)
        or "the loader did not find it"
    )
    return {name: result.noted.get(name, ["failed", why]) for name in wanted}
