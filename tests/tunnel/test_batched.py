"""Requests of several devices answered in batches (`vmhost.tunnel.Batched`)."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from tests.tunnel.conftest import WAIT_S
from vmhost.tunnel import AnswerError, Batched, NoAnswerError, TunnelConfigurationError


def request(value, timeout_s=None):
    return SimpleNamespace(value=value, timeout_s=timeout_s)


def test_what_comes_together_is_one_batch_in_order():
    sizes = []

    def double(requests):
        sizes.append(len(requests))
        return [each.value * 2 for each in requests]

    async def ask():
        batched = Batched(double, most=4, wait_ms=50_000)
        return await asyncio.gather(*(batched(request(value)) for value in range(8)))

    assert asyncio.run(ask()) == [0, 2, 4, 6, 8, 10, 12, 14]
    assert sizes == [4, 4]


def test_a_batch_that_is_not_full_leaves_when_its_time_is_over():
    async def ask():
        return await Batched(lambda requests: [each.value for each in requests], most=100, wait_ms=1)(request(7))

    assert asyncio.run(ask()) == 7


def test_a_batch_leaves_early_for_a_request_that_would_be_late():
    """It would wait for a minute; its request may wait for a fifth of a second."""

    async def ask():
        batched = Batched(lambda requests: [each.value for each in requests], most=100, wait_ms=59_999)
        async with asyncio.timeout(WAIT_S):
            return await batched(request(7, timeout_s=0.2))

    assert asyncio.run(ask()) == 7


def test_a_bad_value_costs_nobody_else_an_answer():
    def divide(requests):
        return [12 / each.value for each in requests]

    async def ask():
        batched = Batched(divide, most=4, wait_ms=50_000)
        return await asyncio.gather(*(batched(request(value)) for value in (1, 2, 0, 3)), return_exceptions=True)

    found = asyncio.run(ask())
    assert found[:2] == [12, 6] and found[3] == 4 and isinstance(found[2], ZeroDivisionError)


@pytest.mark.parametrize("answers", [None, [1], [1, 2, 3], "ab", 5])
def test_a_function_that_gives_no_answer_for_each_request_is_told(answers):
    async def ask():
        batched = Batched(lambda requests: answers, most=2, wait_ms=50_000)
        return await asyncio.gather(*(batched(request(value)) for value in range(2)), return_exceptions=True)

    found = asyncio.run(ask())
    if answers == [1]:  # right for each of them alone
        assert found == [1, 1]
    else:
        assert all("expected a list of 1 answers" in str(error) for error in found), found


def test_a_function_that_ends_by_what_would_end_a_thread_costs_one_answer():
    def leave(requests):
        raise SystemExit(3)

    async def ask():
        batched = Batched(leave, wait_ms=0)
        for _ in range(2):
            with pytest.raises(Exception, match="SystemExit"):
                await batched(request(1))

    asyncio.run(ask())


def test_who_no_longer_waits_is_left_out():
    began, go, seen = threading.Event(), threading.Event(), []

    def slow(requests):
        seen.append([each.value for each in requests])
        began.set()
        assert go.wait(WAIT_S)
        return [each.value for each in requests]

    async def ask():
        batched = Batched(slow, wait_ms=0)
        first = asyncio.create_task(batched(request("first")))
        await asyncio.to_thread(began.wait, WAIT_S)
        gone, stays = (asyncio.create_task(batched(request(name))) for name in ("gone", "stays"))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        go.set()
        assert await asyncio.gather(first, stays) == ["first", "stays"]

    asyncio.run(ask())
    assert seen == [["first"], ["stays"]]


def test_another_loop_begins_anew():
    batched = Batched(lambda requests: [each.value for each in requests], wait_ms=0)

    async def ask():
        return await batched(request(1))

    assert [asyncio.run(ask()) for _ in range(2)] == [1, 1]


@pytest.mark.parametrize(
    ("function", "settings"),
    [
        (3, {}),
        (asyncio.sleep, {}),
        (len, {"most": 0}),
        (len, {"most": 2.5}),
        (len, {"wait_ms": -1}),
        (len, {"wait_ms": "2"}),
        (len, {"wait_ms": None}),
    ],
)
def test_what_makes_no_sense_is_refused(function, settings):
    with pytest.raises(TunnelConfigurationError, match="Batched"):
        Batched(function, **settings)


def test_devices_share_a_batch(make_server, make_device):
    together = threading.Barrier(2)

    def classify(requests):
        return [[len(requests), each.device, each.value] for each in requests]

    server = make_server()
    server.answer("classify", Batched(classify, most=2, wait_ms=50_000))
    server.answer("fails", Batched(lambda requests: 1 / 0, wait_ms=0))
    stuck = threading.Event()
    server.answer("stuck", Batched(lambda requests: stuck.wait(WAIT_S) and [1] * len(requests), wait_ms=0))
    with server.running() as address, make_device(address) as ann, make_device(address, name="bob") as bob:
        ann.wait_connected(WAIT_S)
        bob.wait_connected(WAIT_S)
        found = {}

        def ask(device, name):
            together.wait(WAIT_S)
            found[name] = device.ask("classify", name, timeout_s=WAIT_S)

        threads = [threading.Thread(target=ask, args=pair) for pair in ((ann, "ann"), (bob, "bob"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == {"ann": [2, "ann", "ann"], "bob": [2, "bob", "bob"]}
        with pytest.raises(AnswerError, match="ZeroDivisionError"):
            ann.ask("fails", 1, timeout_s=WAIT_S)
        with pytest.raises(NoAnswerError):
            ann.ask("stuck", 1, timeout_s=0.2)
        stuck.set()
