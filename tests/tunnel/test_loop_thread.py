"""A loop that threads share: a thread that asks often runs it itself, and nothing hangs or breaks."""

import asyncio
import contextlib
import signal
import threading

import pytest

from tests.tunnel.conftest import WAIT_S, until
from vmhost.pipeline import interrupts
from vmhost.tunnel import AsyncDevice
from vmhost.tunnel.loop_thread import LoopEndedError, LoopThread

# A thread that asks again at once gets the loop within this number of calls; a slow machine may need more.
OFTEN = 10_000


@contextlib.contextmanager
def loop_thread():
    broken = []

    async def nothing():
        pass

    thread = LoopThread("loop", nothing, nothing, None, lambda: broken.append(True))
    thread.broken = broken
    thread.start()
    try:
        yield thread
    finally:
        thread.close()


async def whose():
    await asyncio.sleep(0)
    return threading.get_ident()


def borrow(thread):
    """Calls until the loop runs on this thread."""
    assert any(thread.run(whose()) == threading.get_ident() for _ in range(OFTEN))


def test_who_asks_often_runs_the_loop_himself_and_gives_it_back():
    with loop_thread() as thread:
        assert thread.run(whose()) != threading.get_ident()
        borrow(thread)
        notified = threading.Event()
        came_on = []
        thread.call_soon_threadsafe(lambda: (came_on.append(threading.get_ident()), notified.set()))
        assert notified.wait(WAIT_S), "nobody asks any more: the loop's own thread goes on"
        assert came_on != [threading.get_ident()]


def test_many_threads_ask_at_once():
    async def doubled(value):
        await asyncio.sleep(0)
        if value % 7 == 0:
            raise ValueError(value)
        return value * 2

    wrong, done = [], []

    def ask(first):
        for value in range(first, first + 300):
            try:
                if thread.run(doubled(value)) != value * 2:
                    wrong.append(value)
            except ValueError as error:
                if error.args != (value,):
                    wrong.append(value)
        done.append(first)

    with loop_thread() as thread:
        threads = [threading.Thread(target=ask, args=(first,), daemon=True) for first in range(0, 4000, 1000)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(WAIT_S)
    assert (wrong, len(done)) == ([], 4)


def test_the_loop_ends_while_threads_wait():
    async def never():
        began.release()
        await asyncio.Event().wait()

    began, failed = threading.Semaphore(0), []

    def ask(often):
        if often:
            borrow(thread)
        with pytest.raises(LoopEndedError):
            thread.run(never())
        failed.append(often)

    with loop_thread() as thread:
        threads = [threading.Thread(target=ask, args=(often,), daemon=True) for often in (True, False, False)]
        for each in threads:
            each.start()
            assert began.acquire(timeout=WAIT_S)
    for each in threads:
        each.join(WAIT_S)
    assert sorted(failed) == [False, False, True]
    with pytest.raises(LoopEndedError):
        thread.run(whose())


def test_what_is_handed_over_while_the_loop_ends_is_told(monkeypatch):
    with loop_thread() as thread:
        handed_over = threading.Event()
        original = thread.call_soon_threadsafe
        # the loop gets nothing more
        monkeypatch.setattr(thread, "call_soon_threadsafe", lambda function: handed_over.set())
        failed = []

        def ask():
            with pytest.raises(LoopEndedError):
                thread.run(whose())
            failed.append(True)

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        assert handed_over.wait(WAIT_S)
        monkeypatch.setattr(thread, "call_soon_threadsafe", original)
    asking.join(WAIT_S)
    assert failed


def test_a_coroutine_of_another_loop_may_call():
    async def call():
        return [thread.run(whose()) for _ in range(100)]

    with loop_thread() as thread:
        assert threading.get_ident() not in asyncio.run(call())


@pytest.mark.parametrize("often", [True, False])
def test_ctrl_c_ends_the_call_and_nothing_else(often):
    cancelled = []
    before = signal.getsignal(signal.SIGINT)

    async def never():
        main = threading.main_thread().ident
        threading.Timer(0.01, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(threading.get_ident())
            raise

    with loop_thread() as thread:
        if often:
            borrow(thread)
        with pytest.raises(KeyboardInterrupt):
            thread.run(never())
        until(lambda: cancelled)
        assert thread.run(whose())
    assert thread.broken == []
    assert signal.getsignal(signal.SIGINT) == before


def test_ctrl_c_ends_the_call_while_a_pipeline_is_open_and_after_one_was_closed_elsewhere():
    """Closed by another thread, it leaves its handler, which defers Ctrl-C until this thread is out of the tunnel."""

    async def never():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        await asyncio.sleep(WAIT_S)
        raise AssertionError("it was not cancelled")

    before = signal.getsignal(signal.SIGINT)
    assert interrupts.open()
    try:
        with loop_thread() as thread:
            for often in (False, True):
                if often:
                    borrow(thread)
                with pytest.raises(KeyboardInterrupt):
                    thread.run(never())
            closing = threading.Thread(target=interrupts.close)
            closing.start()
            closing.join()
            borrow(thread)
            with pytest.raises(KeyboardInterrupt):
                thread.run(never())
            assert thread.run(whose())
        assert signal.getsignal(signal.SIGINT) == interrupts.heard
    finally:
        signal.signal(signal.SIGINT, before)


def test_after_a_handler_that_raises_a_device_connects_anew(make_server, make_device, monkeypatch):
    """The interrupted callback of the loop is half done."""

    def raises(number, frame):
        raise ZeroDivisionError

    broken = []
    reconnect = AsyncDevice.reconnect
    monkeypatch.setattr(AsyncDevice, "reconnect", lambda self: broken.append(True) or reconnect(self))
    server = make_server()
    server.answer("echo", lambda request: request.value, quick=True)

    @server.answer("slow")
    async def slow(request):
        main = threading.main_thread().ident
        threading.Timer(0.02, lambda: signal.pthread_kill(main, signal.SIGUSR1)).start()
        await asyncio.sleep(3600)

    before = signal.signal(signal.SIGUSR1, raises)
    try:
        with server.running() as address, make_device(address) as device:
            device.wait_connected(WAIT_S)
            for _ in range(50):
                for _ in range(20):
                    device.request("echo", 1, WAIT_S)
                with pytest.raises(ZeroDivisionError):
                    device.request("slow", 1, WAIT_S)
                if broken:
                    break
            assert broken, "the loop was never lent"
            device.wait_connected(WAIT_S)
            assert device.request("echo", 2, WAIT_S) == 2
            until(lambda: device.statistics()["counts"]["connections"] > 1)
    finally:
        signal.signal(signal.SIGUSR1, before)
