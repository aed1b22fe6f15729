"""Answers of threads: in turns where one device asked much, told in text that can be sent."""

import asyncio
import gc
import threading

import pytest

from vmhost.tunnel import answering, events
from vmhost.tunnel.answering import Answering
from vmhost.tunnel.errors import AnswerError
from vmhost.tunnel.transport import EVENTS_AT_ONCE
from vmhost.tunnel.turns import Turns


class _Connection:
    def __init__(self):
        self.answered, self.failed, self.forgotten = [], [], []

    def answer(self, number, value):
        self.answered.append((number, value))

    def fail(self, number, why, late=False, *, ended=True):
        self.failed.append((number, why, late, ended))

    def forget_request(self, number):
        self.forgotten.append(number)


class _Transport:
    def __init__(self, is_behind=False):
        self.connection, self.is_behind, self.flushed = _Connection(), is_behind, 0

    def flush(self):
        self.flushed += 1


class _Reading:
    def __init__(self):
        self.waiting = []

    def later(self, work):
        self.waiting.append(work)


def _asked(number, timeout_s=None):
    return events.Requested(number, "channel", number, timeout_s)


class _Answers:
    """An Answering whose functions end when `go` is set."""

    def __init__(self):
        self.reading, self.threads, self.go = _Reading(), Turns(4, "test"), threading.Event()
        self.ended, self.failures = [], []
        self.answering = Answering(
            asyncio.get_running_loop(),
            self.reading,
            self.threads,
            lambda event, error, late: self.failures.append((error, late)),
            lambda transport, event, began, answered: self.ended.append(answered),
        )

    def begin(self, transport, event, function=None):
        def wait(value):
            self.go.wait()
            return value

        return self.answering.begin(transport, event, function or wait, event.value, "device")


def _run(test):
    async def with_answers():
        answers = _Answers()
        try:
            await test(answers)
        finally:
            answers.go.set()
            answers.threads.shutdown()

    asyncio.run(with_answers())


def test_what_one_device_asked_without_an_end_is_answered_in_turns_and_what_another_asked_at_once():
    async def test(answers):
        much, little = _Transport(), _Transport()
        done = threading.Semaphore(0)

        def work(value):
            done.release()
            return value

        for number in range(3 * EVENTS_AT_ONCE):
            answers.begin(much, _asked(number), work)
        answers.begin(little, _asked(7), work)
        for _ in range(3 * EVENTS_AT_ONCE + 1):
            done.acquire()
        answers.threads.shutdown()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert little.connection.answered == [(7, 7)] and little.flushed
        assert len(much.connection.answered) == EVENTS_AT_ONCE and much.flushed == 1
        for turn in (2, 3):
            answers.reading.waiting.pop()()
            assert not answers.reading.waiting or turn == 2
            assert len(much.connection.answered) == turn * EVENTS_AT_ONCE
        assert sorted(much.connection.answered) == [(number, number) for number in range(3 * EVENTS_AT_ONCE)]
        assert answers.ended == [True] * (3 * EVENTS_AT_ONCE + 1)

    _run(test)


def test_who_waits_for_a_turn_to_read_waits_for_one_to_be_answered():
    async def test(answers):
        transport = _Transport(is_behind=True)
        answers.go.set()
        answers.begin(transport, _asked(1))
        answers.threads.shutdown()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert transport.connection.answered == []
        answers.reading.waiting.pop()()
        assert transport.connection.answered == [(1, 1)]

    _run(test)


def test_an_answered_request_is_freed_without_the_collector():
    async def test(answers):
        transport = _Transport()
        answers.go.set()
        gc.collect()
        gc.disable()
        try:
            for number in range(50):
                answers.begin(transport, _asked(number, 3600.0))
                await asyncio.to_thread(answers.threads.submit("another", int).result)
            while len(answers.ended) < 50:
                await asyncio.sleep(0)
            transport.connection.answered.clear()
            assert not [one for one in gc.get_objects() if isinstance(one, answering._OnThread)]
        finally:
            gc.enable()

    _run(test)


@pytest.mark.parametrize("how", ["late", "cancelled"])
def test_a_request_counts_as_open_until_its_function_ends(how):
    async def test(answers):
        transport = _Transport()
        begun = answers.begin(transport, _asked(1, 0.001 if how == "late" else None))
        while how == "late" and not transport.connection.failed:
            await asyncio.sleep(0.001)
        if how == "cancelled":
            begun.cancel()
        ((number, _, late, ended),) = transport.connection.failed
        assert (number, late, ended) == (1, how == "late", False)
        assert begun.done() and answers.ended == [False] and not transport.connection.forgotten
        answers.go.set()
        while not transport.connection.forgotten:
            await asyncio.sleep(0.001)
        assert transport.connection.forgotten == [1] and transport.connection.answered == []
        assert [late for _, late in answers.failures] == [True] * (how == "late")

    _run(test)


@pytest.mark.parametrize("quick", [False, True])
def test_an_error_whose_text_has_a_surrogate_arrives(make_server, make_device, quick):
    server = make_server()

    def answer(request):
        raise AnswerError("no \udc80 text")  # which is not logged: pytest-xdist cannot carry the text

    answer.quick = quick
    server.answer("fails", answer)
    with server.running() as address, make_device(address) as device:
        device.wait_connected(60)
        with pytest.raises(AnswerError, match=r"AnswerError: no \? text"):
            device.request("fails", 1, timeout_s=30)
        with pytest.raises(AnswerError, match=r"AnswerError: no \? text"):  # the connection is the same
            device.request("fails", 1, timeout_s=30)
