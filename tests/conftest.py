"""Options and fixtures of all tests. Warnings are errors and `stress` tests run by `make stress`: see pyproject.toml.

Checks that wrap every test (VMs, threads, file descriptors left behind) belong here, as autouse fixtures.
"""

import ctypes
import gc
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from _pytest.assertion import rewrite
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import none

from tests import batches, warm

# On a busy machine a test's time says nothing about the code.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# A process started in the background ignores Ctrl-C, and programs that tests start and interrupt inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption("--case", default="", metavar="TEXT", help="of batches (tests/batches.py), the cases named so")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """Of `-n auto`: more than cores, as tests wait for a third of their time. PYTEST_XDIST_AUTO_NUM_WORKERS=3 chooses
    another number, for measurements."""
    chosen = os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS")
    return int(chosen) if chosen else 2 * (os.process_cpu_count() or 1)


def pytest_configure(config):
    batches.chosen = config.getoption("--case")


def pytest_sessionstart(session):
    if not any(Path(session.config.rootpath, "vmhost", "isolation").glob("_core.*.so")):
        pytest.exit("the native core is not built; run `make test`, or `make build` once", returncode=3)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """What a test logged or printed may have lone surrogates, which xdist cannot send: a worker would end by them."""
    report = yield
    report.sections = [(name, _sendable(text)) for name, text in report.sections]
    if report.longrepr is not None and not isinstance(report.longrepr, tuple):
        text = str(report.longrepr)
        if text != _sendable(text):
            report.longrepr = _sendable(text)
    return report


def _sendable(text):
    return text.encode("utf-8", "backslashreplace").decode()


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session):
    """In a checkout whose tests have not run yet, each worker compiles a share of the test files first. They collect in
    the same order at the same time, so that all of them would compile each file: 14 core seconds a worker."""
    worker, config = getattr(session.config, "workerinput", None), session.config
    if worker is None or sys.dont_write_bytecode or [Path(one).name for one in config.args] != ["tests"]:
        return
    files = sorted(Path(config.rootpath, "tests").rglob("test_*.py"))
    for file in files[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        compiled = rewrite.get_cache_dir(file) / f"{file.stem}{rewrite.PYC_TAIL}"
        if rewrite._read_pyc(file, compiled) is None and rewrite.try_makedirs(compiled.parent):
            digest, code = rewrite._rewrite_test(file, config)
            rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, digest, compiled)


def pytest_collection_finish(session):
    """Objects that exist by now stay: the collector, which fixtures call to see what tests leave behind, need not visit
    them again. With fourteen thousand tests that takes 70 ms each time, minutes in all."""
    _first_example()
    _one_thread_of_numpy()
    gc.collect()
    gc.freeze()


@settings(max_examples=1, derandomize=True, database=None)
@given(nothing=none())
def _first_example(nothing):
    """With this Hypothesis has made its random numbers, and asked the collector who holds them: it could not see a
    frozen holder. Where the variable CI is set, it would ask in the first test."""


def _one_thread_of_numpy():
    """The threads of NumPy's OpenBLAS wait for each other in loops. With more workers than cores, a product of two
    matrices by two threads takes ten times as much processor time as by one. The engine has an OpenBLAS of its own.
    They exist from here on, so that no test seems to leave them behind that imports NumPy first."""
    import numpy

    for library in Path(numpy.__file__).parents[1].glob("numpy.libs/libscipy_openblas*.so"):
        ctypes.CDLL(str(library)).scipy_openblas_set_num_threads64_(1)


def _thread_name(number):
    try:
        return Path("/proc/self/task", number, "comm").read_text().strip()
    except OSError:
        return ""  # ended since it was listed


_STAYING = {"vme", "jemalloc_bg_thd"}  # threads of the engine, and of the allocator that pyarrow brings


class Belongings:
    """This process's native threads without a Python thread (VMs, and one warden once there was a VM; not those of
    _STAYING), Python threads, and open files."""

    def __init__(self):
        threads = threading.enumerate()
        python = {str(thread.native_id) for thread in threads}
        self.native = sum(
            number not in python and _thread_name(number) not in _STAYING for number in os.listdir("/proc/self/task")
        )
        self.threads = {thread for thread in threads if not thread.name.startswith("pytest_timeout")}
        self.files = {}
        for number in os.listdir("/proc/self/fd"):
            try:
                self.files[number] = os.readlink(f"/proc/self/fd/{number}")
            except OSError:
                pass  # the listing's own descriptor, closed by now

    def left_since(self, before):
        """A sentence about each thing that exists now and did not `before`."""
        left = [f"thread {thread.name}" for thread in self.threads - before.threads]
        if self.native - before.native > 1:
            left.append(f"{self.native - before.native - 1} native threads of VMs")
        # A process keeps its breadcrumbs open and locked until it ends, the socket of tests/warm.py open, and from the
        # first callback of ctypes or cffi the file of libffi, whose trampolines are mapped from it.
        return left + [
            f"file {number}: {path}"
            for number, path in self.files.items()
            if before.files.get(number) != path
            and not path.endswith(("crash.map", "crash.dump"))
            and "/libffi.so" not in path
            and number not in warm.files()
        ]


def _hosts_are_open():
    module = sys.modules.get("vmhost.host")
    return module is not None and any(not service._finished_at_all for service in module._services)


@pytest.fixture(autouse=True)
def nothing_is_left_behind(request):
    """No test leaves a VM, a thread or an open file. Not looked at while a host of a wider fixture is open; it is after
    its last test's successor."""
    if _hosts_are_open() or request.node.get_closest_marker("quarantines"):
        yield
        return
    before = Belongings()
    yield
    if _hosts_are_open():
        return
    end = time.monotonic() + 30
    while left := Belongings().left_since(before):
        if time.monotonic() > end:
            pytest.fail("left behind: " + "; ".join(left))
        gc.collect()
        time.sleep(0.01)
