"""What a function raises in a VM is raised here, with its arguments, members, attributes and notes, and without code of
its class."""

import concurrent.futures
import enum
import importlib
import json
import signal
import sys
import threading

import pytest

import vmhost
from tests.batches import each
from tests.vmhost import functions, library_classes, raising
from vmhost.runtime.library_classes import LIBRARY_CLASSES


@pytest.fixture(scope="module")
def pool():
    with vmhost.VMExecutor(1) as executor:
        yield executor


def parts(error):
    state = {name: value for name, value in vars(error).items() if name != "__notes__"}
    members = [parts(each) for each in error.exceptions] if isinstance(error, ExceptionGroup) else error.args
    names = [getattr(error, name, None) for name in ("filename", "filename2", "name", "path")]
    return type(error), str(error), members, state, names, getattr(error, "__notes__", [])


@each("function", raising.FUNCTIONS, ids=lambda function: function.__name__)
def test_an_exception_is_the_one_that_plain_python_raises(pool, function):
    with pytest.raises(Exception) as plain:
        function()
    raised = pool.submit(function).exception()
    assert parts(raised) == parts(plain.value)
    assert isinstance(raised.__cause__, vmhost.TaskError)


def test_library_errors_keep_their_builtin_base(pool):
    with pytest.raises(ValueError) as caught:
        pool.submit(json.loads, "{").result()
    assert type(caught.value) is json.JSONDecodeError
    with pytest.raises(json.JSONDecodeError) as caught:
        list(pool.map(raising.in_rows, [0, 1], chunksize=2))
    assert (caught.value.doc, caught.value.pos) == ('{"a": }', 6)


def test_a_false_exception_in_rows_is_raised(pool):
    with pytest.raises(raising.Falsehood):
        list(pool.map(raising.raise_false, [1, 2], chunksize=2))


def test_an_attribute_that_cannot_cross_is_left_out_of_a_builtin_exception(pool):
    error = pool.submit(raising.with_what_cannot_cross).exception()
    assert (type(error), error.args, vars(error)) == (ValueError, ("x",), {"number": 3})


def test_a_group_with_an_unknown_member_is_a_task_error(pool):
    error = pool.submit(raising.unknown_in_a_group).exception()
    assert type(error) is vmhost.TaskError and error.type_name == "ExceptionGroup"


def test_every_exception_and_member_of_the_list_arrives_as_itself(pool):
    for name in sorted(LIBRARY_CLASSES):
        module, _, path = name.partition(":")
        try:
            expected = getattr(importlib.import_module(module), path)
        except AttributeError:
            continue  # only VMs have it: `_queue.Empty` is `queue.Empty` there
        if issubclass(expected, Exception):
            assert type(pool.submit(raising.bare, name).exception()) is expected, name
        elif issubclass(expected, enum.Enum):
            members = list(expected)
            back = pool.submit(functions.echo, members).result()
            assert all(one is other for one, other in zip(back, members, strict=True)), name


def test_the_list_is_that_of_this_python():
    assert library_classes.FILE.read_text() == library_classes.text()


def test_a_module_that_the_host_has_not_imported_stays_unimported(pool, monkeypatch):
    monkeypatch.delitem(sys.modules, "mailbox", raising=False)
    error = pool.submit(raising.bare, "mailbox:FormatError").exception()
    assert type(error) is vmhost.TaskError and error.type_name == "mailbox.FormatError"
    assert "mailbox" not in sys.modules


def test_exceptions_and_their_classes_cross_both_ways(pool):
    values = [json.JSONDecodeError("a", "b", 0), ExceptionGroup("g", [ValueError(1)]), KeyError, json.JSONDecodeError]
    back = pool.submit(functions.echo, values).result()
    assert [type(value) for value in back[:2]] == [json.JSONDecodeError, ExceptionGroup]
    assert back[0].pos == 0 and type(back[1].exceptions[0]) is ValueError and back[2:] == values[2:]


def test_tasks_still_raise_task_error():
    from tests.hosts import bundle

    source = (
        "import json\ndef run(value):\n    raise KeyError((1, 2)) if value else json.JSONDecodeError('a', 'b', 0)\n"
    )
    with vmhost.Host(allow_unsigned=True) as host:
        task = host.load(bundle(source))
        for value in 0, 1:
            with pytest.raises(vmhost.TaskError) as caught:
                task(value)
            assert caught.value.__cause__ is None


def test_a_memory_limit_that_was_met_is_a_memory_error():
    with vmhost.VMExecutor(1, limits={"memory": "32 MiB"}) as executor:
        with pytest.raises(MemoryError) as caught:
            executor.submit(bytes, 1 << 28).result()
        assert type(caught.value) is vmhost.MemoryLimitError


# -- what happens while a future is waited for


class Interrupted(Exception):
    pass


@pytest.fixture
def gate(tmp_path):
    """A file that a call waits for; there at the end at the latest."""
    yield tmp_path / "gate"
    (tmp_path / "gate").touch()


@pytest.mark.parametrize("wait", ["result", "exception"])
def test_the_exception_of_a_signal_handler_is_not_the_futures(pool, gate, wait):
    raised = threading.Event()

    def interrupt(_, frame):
        if frame.f_globals["__name__"].startswith("vmhost."):  # it waits
            raised.set()
            raise Interrupted

    def send():
        while not raised.wait(0.01):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    future = pool.submit(functions.wait_for_file, str(gate))
    before = signal.signal(signal.SIGUSR1, interrupt)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        with pytest.raises(Interrupted):
            getattr(future, wait)()
    finally:
        raised.set()
        sender.join()
        signal.signal(signal.SIGUSR1, before)
    assert not future.done()
    gate.touch()
    assert future.result(60) == str(gate) and future.exception() is None


@pytest.mark.parametrize("timeout", [-0.1, -1, 0])
def test_a_time_that_is_over_is_a_timeout(pool, gate, timeout):
    future = pool.submit(functions.wait_for_file, str(gate))
    for wait in future.result, future.exception:
        with pytest.raises(concurrent.futures.TimeoutError):
            wait(timeout)
    gate.touch()
    assert future.result(60) == str(gate)
    assert future.result(timeout) == str(gate)
