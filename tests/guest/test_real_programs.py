"""Features that CPython's own tests found missing in VMs: sources in the bundle, locales, rare modules."""

import pytest

import vmhost
from vmhost.bytecode.compiler import compile_sources

SOURCE = """\
import sys

def shown():
    import inspect, linecache, traceback
    try:
        1 / len("")         # the line that is wrong
    except ZeroDivisionError:
        text = traceback.format_exc()
    return inspect.getsource(shown).splitlines()[0], text, linecache.getline(__file__, 1)

def warned():
    import warnings
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn("careful")
    return warnings.formatwarning(caught[0].message, caught[0].category, caught[0].filename, caught[0].lineno)

def locale():
    import locale
    now = locale.setlocale(locale.LC_CTYPE)
    same = locale.setlocale(locale.LC_CTYPE, now) == now
    try:
        locale.setlocale(locale.LC_ALL, "tr_TR.UTF-8")
    except locale.Error as error:
        return same, isinstance(error, PermissionError), str(error)

def configuration():
    import sysconfig
    return [sysconfig.get_config_var(name) for name in ("WITH_DOC_STRINGS", "Py_GIL_DISABLED", "Py_DEBUG")]

def queues():
    import _queue, queue, threading
    shared = _queue.SimpleQueue()
    got = []
    threads = [threading.Thread(target=lambda: got.append(shared.get(timeout=30))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(4):
        shared.put(number)
    for thread in threads:
        thread.join()
    try:
        shared.get(timeout=0.01)
    except queue.Empty:
        return sorted(got), shared.empty(), queue.SimpleQueue is _queue.SimpleQueue

def library_checks():
    import argparse
    import wsgiref.handlers
    import wsgiref.headers
    found = []
    for wrong in (lambda: wsgiref.headers.Headers([("a", "b\\r\\nc: d")]),
                  lambda: wsgiref.handlers.SimpleHandler(None, None, None, {}).start_response("200 OK",
                          [("Connection", "close")])):
        try:
            wrong()
            found.append(None)
        except (AssertionError, ValueError) as error:
            found.append(type(error).__name__)
    return found, __debug__, library_checks.__doc__, argparse.ArgumentParser.__doc__, argparse.__doc__

def interval():
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.001)
    return before, sys.getswitchinterval()

def io_in_python():
    import _pyio
    stream = _pyio.TextIOWrapper(_pyio.BytesIO())
    stream.write("words")
    stream.flush()
    return stream.buffer.getvalue()

def main_thread():
    import threading
    seen = []
    thread = threading.Thread(target=lambda: seen.append(threading.current_thread() is threading.main_thread()))
    thread.start()
    thread.join()
    return (threading.current_thread() is threading.main_thread(), threading.current_thread().name, seen,
            threading.active_count())

def main_module():
    import __main__
    return __main__.__name__

def run(name):
    return globals()[name]()
"""


@pytest.fixture(scope="module")
def host():
    with vmhost.Host(allow_unsigned=True) as host:
        yield host


def load(host, name, files):
    return host.load(
        compile_sources(
            {"main": (SOURCE, f"{name}@1/main.py", False)}, entry="main:run", name=name, version="1", files=files
        )
    )


@pytest.fixture(scope="module")
def task(host):
    return load(host, "open", {"main.py": SOURCE.encode()})


@pytest.fixture(scope="module")
def closed(host):
    return load(host, "closed", {})


def test_the_library_checks_what_cpython_checks(task):
    assert task("library_checks") == (["ValueError", "AssertionError"], True, None, None, None)


def test_a_bundle_with_its_sources_shows_them(task):
    source, text, first = task("shown")
    assert (source, first) == ("def shown():", "import sys\n")
    assert '1 / len("")         # the line that is wrong\n' in text
    assert 'warnings.warn("careful")' in task("warned")


def test_a_bundle_without_them_shows_none(closed):
    with pytest.raises(vmhost.TaskError, match="OSError: could not get source code"):
        closed("shown")
    assert "careful" in closed("warned") and "warnings.warn" not in closed("warned")


def test_the_locale_may_be_set_to_what_it_is(task):
    assert task("locale") == (True, True, "[Errno 13] setlocale: the locale belongs to the whole process")


def test_the_configuration_is_told(task):
    assert task("configuration") == [1, 0, 0]


def test_simple_queues_of_the_native_module(task):
    assert task("queues") == ([0, 1, 2, 3], True, True)


def test_the_switch_interval_is_that_of_one_vm(host, task, closed):
    before, after = task("interval")
    assert after == pytest.approx(0.001)
    assert closed("interval")[0] == before


@pytest.mark.parametrize(
    ("name", "expected"),
    [("io_in_python", b"words"), ("main_module", "__main__"), ("main_thread", (True, "MainThread", [False], 1))],
)
def test_modules_that_are_there(task, name, expected):
    assert task(name) == expected
