"""A task may raise or forge anything: its caller gets one vmhost error, in time and of bounded size."""

import _thread
import logging
import threading
import traceback

import pytest

import vmhost
from tests.hosts import ROOT, bundle, until
from tests.vmhost import hostile_errors
from tests.vmhost.hostile_errors import (
    large_arguments,
    nothing,
    over_a_lying_report,
    over_a_number,
    over_nothing,
    raise_again,
    vars_of,
)
from vmhost.limits import BreakerPolicy, Policy, TaskPolicy

HOSTILE = (ROOT / "tests/vmhost/hostile_errors.py").read_text()
NAMES = [function.__name__ for function in hostile_errors.FUNCTIONS]
NEVER = Policy(task=TaskPolicy(breaker=BreakerPolicy(enabled=False)))


def size_of(report):
    return (
        sum(map(size_of, report.values() if isinstance(report, dict) else report))
        if isinstance(report, (dict, list))
        else len(report)
        if isinstance(report, (str, bytes))
        else 1
    )


@pytest.fixture(scope="module")
def task():
    each_its_own_vm = Policy(task=TaskPolicy(breaker=BreakerPolicy(enabled=False), fresh=True))
    with vmhost.Host(allow_unsigned=True, policy=each_its_own_vm) as host:
        yield host.load(bundle(HOSTILE, limits={"memory_bytes": 128 << 20}))


def test_there_are_cases():
    assert len(NAMES) > 40


@pytest.mark.parametrize("name", NAMES)
def test_a_task_ends_in_one_error_of_a_bounded_size(task, name):
    with pytest.raises(vmhost.VMHostError) as caught:
        task(None, entry=f"main:{name}", timeout_s=60)
    error = caught.value
    assert type(error) is vmhost.TaskError
    assert type(error.type_name) is str and type(error.guest_message) is str and type(error.guest_traceback) is str
    assert size_of(error.report) < 400_000
    assert len("".join(traceback.format_exception(error))) < 400_000


def test_a_text_that_never_ends_ends_at_the_deadline():
    source = """
        class Endless(Exception):
            def __str__(self):
                while True:
                    pass
        def run(value):
            raise Endless
    """
    with vmhost.Host(allow_unsigned=True, policy=NEVER) as host, pytest.raises(vmhost.TimeLimitError):
        host.load(bundle(source))(None, timeout_s=0.5)


@pytest.fixture(scope="module")
def pool():
    with vmhost.VMExecutor(max_workers=1, limits={"memory": "128 MiB"}) as pool:
        yield pool


@pytest.mark.parametrize("function", hostile_errors.FUNCTIONS, ids=lambda function: function.__name__)
def test_a_function_ends_in_an_error_of_vmhost_or_a_builtin_one(function):
    for in_rows in False, True:
        with vmhost.VMExecutor(max_workers=1, limits={"memory": "128 MiB"}) as pool, pytest.raises(Exception) as caught:
            list(pool.map(function, [1, 2], chunksize=2)) if in_rows else pool.submit(function, 1).result(60)
        error = caught.value
        assert isinstance(error, vmhost.VMHostError) or (
            type(error).__module__ == "builtins" and isinstance(error.__cause__, vmhost.TaskError)
        )
        assert len("".join(traceback.format_exception(error))) < 2_000_000


def test_each_builtin_error_comes_back_as_itself_with_what_it_knows(pool):
    for error in (
        ValueError("x", 1, 2.5, None, True, b"y"),
        KeyError("k"),
        ZeroDivisionError(),
        StopIteration(5),
        FileNotFoundError(2, "gone", "a/b"),
        PermissionError(1, "no", "from", None, "to"),
        OSError("plain"),
        OSError(5, "io", b"bytes"),
        UnicodeDecodeError("utf-8", b"abc", 0, 1, "bad"),
        ImportError("no", name="n", path="p"),
        NameError("x", name="y"),
        AttributeError("x", name="y"),
        BlockingIOError(11, "later", 7),
        SyntaxError("bad"),
    ):
        with pytest.raises(type(error)) as caught:
            pool.submit(raise_again, type(error).__name__, error.args, vars_of(error)).result(60)
        back = caught.value
        assert (type(back), back.args, str(back)) == (type(error), error.args, str(error))
        assert vars_of(back) == vars_of(error)
        assert back.__notes__ == ["noted"]


def test_a_large_argument_is_cut_and_says_so(pool):
    with pytest.raises(ValueError) as caught:
        pool.submit(large_arguments, 1).result(60)
    assert len(caught.value.args[0]) < 40_000 and caught.value.args[0].endswith("more characters)")


@pytest.mark.parametrize("forge", [over_nothing, over_a_number, over_a_lying_report])
def test_forged_rows_are_an_error_of_vmhost(forge):
    with vmhost.VMExecutor(max_workers=1) as pool:
        assert pool.submit(forge, 1).result() == 1
        with pytest.raises(vmhost.TaskError):
            list(pool.map(nothing, range(6), chunksize=3))


def test_an_answer_for_each_chunk_also_where_the_last_is_short(pool):
    assert list(pool.map(nothing, range(7), chunksize=3)) == [None] * 7


class Mute(Exception):
    def __str__(self):
        raise KeyboardInterrupt


# --- host functions


def ask_with(function):
    source = """
        from vmhost.guest import host, HostFunctionError
        def run(value):
            try:
                return host.ask(value)
            except HostFunctionError as error:
                return str(error)
    """
    with vmhost.Host(allow_unsigned=True, functions={"ask": function}, policy=NEVER) as host:
        return host.load(bundle(source, permissions={"host": ["ask"]}))(1, timeout_s=60)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (SystemExit(3), "SystemExit: 3"),
        (GeneratorExit(), "GeneratorExit: "),
        (ValueError("no"), "ValueError: no"),
        (Mute(), "Mute: str() of the exception failed"),
        (ValueError("\udc80"), "ValueError: \udc80"),
        (BaseExceptionGroup("g", [SystemExit(1)]), "BaseExceptionGroup: g (1 sub-exception)"),
    ],
)
def test_a_host_function_that_raises_answers_at_once(error, message):
    def ask(_):
        raise error

    assert ask_with(ask) == message


def test_a_host_function_that_gives_what_cannot_cross_answers_at_once():
    assert "a `object` cannot cross" in ask_with(lambda _: object())


def test_ctrl_c_in_a_host_function_answers_the_guest_and_reaches_the_main_thread(monkeypatch):
    interrupted = threading.Event()
    monkeypatch.setattr(_thread, "interrupt_main", interrupted.set)

    def ask(_):
        raise KeyboardInterrupt

    assert ask_with(ask) == "KeyboardInterrupt: "
    assert interrupted.wait(60)


def test_a_host_function_call_that_nobody_answers_is_answered(monkeypatch, caplog):
    """As if memory ran out while its answer is made."""

    def fails(self, request):
        raise MemoryError

    monkeypatch.setattr(vmhost.runtime.service.Service, "_answer", fails)
    with caplog.at_level(logging.CRITICAL, "vmhost"):
        assert ask_with(lambda _: 1) == "the host did not answer; its log says why"


# --- text that is not Unicode


def test_lone_surrogates_are_written_as_escapes():
    source = """
        import logging, sys, threading, warnings
        from vmhost.guest import log

        def dies():
            raise ValueError("thread \\udc81")

        def run(value):
            print("out \\ud800")
            print("err \\udc80 \\xe9", file=sys.stderr)
            sys.stdout.write("half \\udcff")
            log.info("guest %s", "\\udfff")
            logging.warning("logged \\udc82")
            warnings.warn("warned \\udc83")
            thread = threading.Thread(target=dies)
            thread.start()
            thread.join()
            sys.stderr.write("x" * 8190 + "\\udc80" * 10 + "\\n")
            raise ValueError("said \\udc84")
    """
    records = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    logger = logging.getLogger("vmhost.task.surrogates")
    logger.addHandler(handler)
    logger.setLevel(1)
    try:
        with vmhost.Host(allow_unsigned=True, policy=NEVER) as host, pytest.raises(vmhost.TaskError) as caught:
            host.load(bundle(source, name="surrogates"))(None)
        until(lambda: any("half" in text for text in records))
    finally:
        logger.removeHandler(handler)
    assert caught.value.guest_message == "said \udc84" and "said \udc84" in caught.value.guest_traceback
    text = "\n".join(records)
    for line in (
        "out \\ud800",
        "err \\udc80 \xe9",
        "half \\udcff",
        "guest \\udfff",
        "logged \\udc82",
        "warned \\udc83",
        "ValueError: thread \\udc81",
    ):
        assert line in text, line
    assert max(map(len, records)) <= 8192
