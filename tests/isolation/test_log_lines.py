"""What a task prints and logs: bounded, with drops counted and told, and each line one line of plain text."""

import contextlib
import logging
import re
import threading

import pytest

import vmhost
from tests.hosts import bundle, until

TASK = """
import sys

def run(lines):
    for number in range(lines):
        print(number)

def writes(texts):
    import _vmhost
    import logging
    from vmhost.guest import log
    for text in texts:
        _vmhost.log(20, text)
        print(text, end="\\n")
        log.info("%s", text)
        logging.getLogger("own").warning(text)
"""
MANY = 50_000  # lines: the usual limit drops some of them
DROPPED = re.compile(r"([0-9]+) lines were dropped: the task writes faster than its limits.output allows, 4096 bytes")


@contextlib.contextmanager
def lines_of(name):
    """The texts that arrive at the logger of task `name`."""
    texts = []

    class Handler(logging.Handler):
        def emit(self, record):
            texts.append(record.getMessage())

    handler, logger = Handler(), logging.getLogger(f"vmhost.task.{name}")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield texts
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)


def test_a_flood_is_cut_and_every_line_of_it_is_accounted_for():
    total = 100_000  # at 4 KiB a second these take 40 minutes
    with lines_of("flood") as texts:
        with vmhost.Host(allow_unsigned=True) as host:
            host.load(bundle(TASK, "flood", limits={"output_bytes": 4096}))(total)
            (vm,) = [vm for vm in host.statistics().vms if vm.task]
        numbers = [int(text) for text in texts if text.isdigit()]
        notices = [DROPPED.match(text) for text in texts if not text.isdigit()]
    assert numbers[:20] == list(range(20)) and numbers == sorted(numbers) and len(numbers) < total // 2
    assert all(notices) and len(notices) < 100
    assert sum(int(notice[1]) for notice in notices) + len(numbers) == total
    assert vm.counters["lines_dropped"] == total - len(numbers)


def test_a_host_bounds_what_a_task_asks_for():
    with (
        lines_of("capped") as texts,
        vmhost.Host(allow_unsigned=True, policy=vmhost.Policy(limits={"output": "4 KiB"})) as host,
    ):
        host.load(bundle(TASK, "capped", limits={"output_bytes": 1 << 30}))(10_000)
        until(lambda: any(DROPPED.match(text) for text in texts))


def test_a_task_that_may_write_more_loses_none():
    with lines_of("much") as texts, vmhost.Host(allow_unsigned=True) as host:
        host.load(bundle(TASK, "much", limits={"output_bytes": 64 << 20}))(MANY)
        until(lambda: len(texts) == MANY)
    assert texts == [str(number) for number in range(MANY)]


def _prints(lines):
    for number in range(lines):
        print(number)


def test_an_executor_loses_none_however_long_the_logger_takes():
    """It holds what a process pool would write to stdout."""
    begins = threading.Event()
    texts = []

    class Slow(logging.Handler):
        def emit(self, record):
            assert begins.wait(60)
            texts.append(record.getMessage())

    handler, logger = Slow(), logging.getLogger("vmhost.task")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        with vmhost.VMExecutor(max_workers=1) as pool:
            pool.submit(_prints, MANY).result()
            begins.set()
        until(lambda: len(texts) == MANY)
    finally:
        begins.set()
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    assert texts == [str(number) for number in range(MANY)]


ESCAPED = {
    "\x1b[2J\x1b]0;title\x07": r"\x1b[2J\x1b]0;title\x07",
    "under\rover": r"under\rover",
    "\x00\x0b\x7f\x85\x9b": r"\x00\x0b\x7f\x85\x9b",
    "a\u2028b\u2029c\u202ed\u2066e\u2069": r"a\u2028b\u2029c\u202ed\u2066e\u2069",
    "tab\tand é \u2014 \U0001f600 \u200b": "tab\tand é \u2014 \U0001f600 \u200b",
}


def test_control_characters_arrive_as_escapes():
    with lines_of("odd") as texts, vmhost.Host(allow_unsigned=True) as host:
        host.load(bundle(TASK, "odd"))(list(ESCAPED), entry="main:writes")
        until(lambda: len(texts) == 4 * len(ESCAPED))
    assert texts == [text for shown in ESCAPED.values() for text in (shown, shown, shown, f"own: {shown}")]


@pytest.mark.parametrize("forged", ["plain\nERROR vmhost: forged", "\n" * 3, "x\r\ny"])
def test_one_line_is_one_line(forged):
    source = "def run(text):\n    import _vmhost\n    _vmhost.log(20, text)\n    print('end')\n"
    with lines_of("one") as texts, vmhost.Host(allow_unsigned=True) as host:
        host.load(bundle(source, "one"))(forged)
        until(lambda: "end" in texts)
    assert texts == [forged.replace("\n", r"\n").replace("\r", r"\r"), "end"]
