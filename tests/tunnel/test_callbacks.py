"""Whatever functions of the application raise, both ends go on: an error answer or a retry, and nothing is leaked."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading

import pytest

from tests.tunnel.conftest import WAIT_S, bodies, rows, until
from vmhost import callbacks
from vmhost.tunnel import (
    AnswerError,
    AsyncDevice,
    Limits,
    NoAnswerError,
    OfflineError,
    PostgreSQL,
    StreamBrokenError,
    Table,
    Transactional,
    TunnelConfigurationError,
    TunnelError,
    task_functions,
)
from vmhost.tunnel.server import bind


class Own(BaseException):
    pass


ENDS = {
    "exit": lambda: sys.exit(3),
    "cancelled": lambda: _raise(asyncio.CancelledError()),
    "interrupt": lambda: _raise(KeyboardInterrupt()),  # not on the main thread: nobody pressed Ctrl-C
    "own": lambda: _raise(Own("gone")),
    "generator": lambda: _raise(GeneratorExit()),
}
MOST = 3  # requests that are open at a time: a leaked one is noticed


def _raise(error):
    raise error


@pytest.fixture(params=ENDS)
def end(request):
    return ENDS[request.param]


@pytest.fixture
def server(make_server):
    """A server in trouble that must go on: `alive(device)` finds out."""
    server = make_server(limits=Limits(requests=MOST, streams=MOST))
    server.answer("double", lambda request: request.value * 2)
    return server


def alive(server, *devices):
    for device in devices:
        device.wait_connected(WAIT_S)  # who asks waits for a second only
        assert device.ask("double", 2, timeout_s=WAIT_S) == 4
        device.send("kept", b"still there")
        assert device.wait_sent(WAIT_S)
    assert bodies(server.store).count((b"still there",)) == len(devices)


# ---- the cloud's places


@pytest.mark.parametrize("kind", ["thread", "loop", "quick", "gathered"])
def test_an_answer(server, make_device, end, kind):
    async def on_the_loop(request):
        await asyncio.sleep(0)
        end()

    async def gathered(request):
        await asyncio.gather(on_the_loop(request), asyncio.sleep(0))

    function = {"loop": on_the_loop, "gathered": gathered}.get(kind, lambda request: end())
    server.answer("ends", function, quick=kind == "quick")
    with server.running() as address, make_device(address) as ann, make_device(address, name="bob") as bob:
        ann.wait_connected(WAIT_S)
        for _ in range(2 * MOST):
            with pytest.raises(AnswerError, match="the function ended"):
                ann.ask("ends", 1, timeout_s=WAIT_S)
        alive(server, ann, bob)


@pytest.mark.parametrize("kind", ["thread", "loop"])
def test_a_stream(server, make_device, end, kind):
    async def on_the_loop(stream):
        await stream.read()
        end()

    def on_a_thread(stream):
        stream.read()
        end()

    server.stream("ends", on_the_loop if kind == "loop" else on_a_thread)
    with server.running() as address, make_device(address) as ann, make_device(address, name="bob") as bob:
        ann.wait_connected(WAIT_S)
        for _ in range(2 * MOST):
            stream = ann.open_stream("ends")
            stream.write(b"x")
            with pytest.raises(StreamBrokenError, match="the function ended"):
                stream.read()
        alive(server, ann, bob)


@pytest.mark.parametrize("name", ["identify", "why_blocked"])
def test_who_asks_about_a_device(make_server, make_device, keys, end, name, caplog):
    """A greeting is refused; who is connected stays."""
    ending = []

    def asked(value):
        if ending:
            end()
        return value.removeprefix("token-") if name == "identify" else None

    server = make_server(client_ca=None if name == "identify" else keys / "ca.pem", **{name: asked})
    server.answer("double", lambda request: request.value * 2)
    me = {"certificate": None, "key": None, "token": "token-ann"} if name == "identify" else {}
    other = {"certificate": None, "key": None, "token": "token-bob"} if name == "identify" else {}
    with (
        server.running() as address,
        make_device(address, **me) as ann,
        make_device(address, name="bob", **other) as bob,
    ):
        ann.wait_connected(WAIT_S)
        bob.wait_connected(WAIT_S)
        ending.append(1)
        ann._inner._loop.call_soon_threadsafe(ann._inner.reconnect)
        until(lambda: server.worker.counts["refused"] >= 2)
        if name == "why_blocked":
            until(lambda: "whether it is blocked is not known" in caplog.text)
        assert bob.ask("double", 2, timeout_s=WAIT_S) == 4
        ending.clear()
        ann.wait_connected(WAIT_S)
        alive(server, ann, bob)


class Elsewhere:
    """A consumer with a store of its own."""

    schema = None

    def __init__(self, take):
        self.take, self.closed = take, 0

    def write(self, connection, messages, time_ms):
        pass

    def keep(self, arrivals):
        for each in arrivals:
            for _, _, body in each.messages:
                self.take(body)
        return 1

    def close(self):
        self.closed += 1


@pytest.mark.parametrize("kind", ["transaction", "function", "elsewhere"])
def test_a_consumer_is_tried_again(server, make_device, end, kind):
    tried, taken = [], []

    def take(body):
        tried.append(body)
        if body == b"bad" and (tried.count(body) < 4 or b"good" not in taken):
            end()
        taken.append(body)

    server.consume(
        "c",
        {
            "transaction": Transactional(lambda connection, messages: [take(each.body) for each in messages]),
            "function": lambda message: take(message.body),
            "elsewhere": (elsewhere := Elsewhere(take)),
        }[kind],
    )
    with server.running() as address, make_device(address) as ann, make_device(address, name="bob") as bob:
        ann.wait_connected(WAIT_S)
        ann.send("c", b"bad")
        until(lambda: tried)
        bob.send("c", b"good")
        assert ann.wait_sent(WAIT_S) and bob.wait_sent(WAIT_S)
        alive(server, ann, bob)
    assert taken.count(b"bad") == 1 and tried.count(b"bad") >= 4, "what fails holds up no other device"
    assert elsewhere.closed == (kind == "elsewhere")


def test_a_consumer_that_cannot_be_closed(server, make_device, end):
    consumer = Elsewhere(lambda body: None)
    consumer.close = end
    server.consume("c", consumer)
    with server.running() as address, make_device(address) as ann:
        ann.send("c", b"1")
        assert ann.wait_sent(WAIT_S)


# ---- the device's places


@pytest.mark.parametrize("kind", ["thread", "loop"])
def test_a_devices_answer_and_stream(server, make_device, end, kind):
    async def answers(value):
        end()

    async def serves(stream):
        await stream.read()
        end()

    with server.running() as address:
        ann = make_device(address, limits=Limits(requests=MOST, streams=MOST))
        ann.answer("ends", answers if kind == "loop" else lambda value: end())
        ann.stream("ends", serves if kind == "loop" else lambda stream: (stream.read(), end()))
        with ann:
            ann.wait_connected(WAIT_S)
            for _ in range(2 * MOST):
                with pytest.raises(AnswerError, match="the function ended"):
                    server.call(server.ask("ann", "ends", 1, WAIT_S))
                stream = server.call(server.open_stream("ann", "ends"))
                stream.write(b"x")
                with pytest.raises(StreamBrokenError, match="the function ended"):
                    stream.read()
            alive(server, ann)


@pytest.mark.parametrize("kind", ["transaction", "function"])
def test_a_devices_consumer_is_tried_again(server, make_device, end, kind):
    tried = []

    def take(body):
        tried.append(body)
        if len(tried) < 3:
            end()

    with server.running() as address:
        ann = make_device(address)
        if kind == "function":
            ann.on("news", lambda message: take(message.body))
        else:
            ann.on("news", Transactional(lambda connection, messages: [take(each.body) for each in messages]))
        with ann:
            server.push("ann", "news", b"1")
            until(lambda: not server.worker.pushes.waiting())
            alive(server, ann)
    assert tried == [b"1"] * 3


def test_a_token(make_server, make_device, end):
    asked = []

    def token():
        asked.append(1)
        if len(asked) < 3:
            end()
        return "token-ann"

    server = make_server(client_ca=None, identify=lambda token: token.removeprefix("token-"))
    server.answer("double", lambda request: request.value * 2)
    with server.running() as address, make_device(address, certificate=None, key=None, token=token) as ann:
        ann.wait_connected(WAIT_S)
        alive(server, ann)


# ---- slots


@pytest.mark.parametrize("kind", ["thread", "loop"])
def test_requests_whose_askers_gave_up_leave_their_room(server, make_device, kind):
    """One on a thread keeps its room until the function ends, as the thread is taken."""
    go_on, began = threading.Event(), []

    async def sleeps(request):
        began.append(1)
        await asyncio.sleep(3600)

    server.answer("slow", sleeps if kind == "loop" else lambda request: go_on.wait(WAIT_S))
    server.answer("quick", lambda request: request.value, quick=True)
    with server.running() as address, make_device(address) as ann:
        ann.wait_connected(WAIT_S)
        asked = server.worker.sessions["ann"].connection._asked
        # on a slow machine some are given up before their function begins: those leave their room in either case
        while len(asked) < MOST if kind == "thread" else len(began) < 2 * MOST:
            with pytest.raises(NoAnswerError):
                ann.ask("slow", 1, timeout_s=0.02)
            with contextlib.suppress(AnswerError):  # answered or refused, the server has heard of what came before
                ann.ask("quick", 1, timeout_s=WAIT_S)
        if kind == "thread":
            with pytest.raises(AnswerError, match=f"{MOST} requests wait already"):
                ann.ask("double", 1, timeout_s=WAIT_S)
        go_on.set()
        until(lambda: not asked)
        alive(server, ann)


# ---- what still ends them


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_a_server_whose_functions_run(keys, settings_of, tmp_path, number):
    code = f"""if True:
        import asyncio, sys
        from vmhost.tunnel import Server
        keys = {str(keys)!r}
        server = Server({str(tmp_path / "cloud.sqlite")!r}, certificate=keys + "/server.pem",
                        key=keys + "/server.key", client_ca=keys + "/ca.pem")

        @server.answer("slow")
        async def slow(request):
            print("asked", flush=True)
            await asyncio.sleep(3600)

        server.run("127.0.0.1:0", drain_s=0.1, ready=lambda found: print(found[0][1], flush=True))
    """
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        address = f"localhost:{process.stdout.readline().strip()}"

        async def ask():
            async with AsyncDevice(address, tmp_path / "ann.sqlite", **settings_of("ann")) as device:
                await device.wait_connected(WAIT_S)
                asking = asyncio.ensure_future(device.request("slow", 1))
                await asyncio.to_thread(process.stdout.readline)
                os.kill(process.pid, number)
                with pytest.raises(OfflineError):
                    await asking

        asyncio.run(ask())
        assert process.wait(WAIT_S) == 0


def test_the_cancellation_of_a_servers_own_task_ends_it(server, make_device):
    began, ended = threading.Event(), []

    @server.answer("slow")
    async def slow(request):
        began.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(asyncio.current_task().cancelling())

    async def serve(ready):
        async with server.serving(bind("127.0.0.1:0")) as worker:
            ready.set_result(worker.addresses[0][1])
            await asyncio.sleep(3600)

    async def main():
        server.prepare()
        ready = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(serve(ready))
        with make_device(f"127.0.0.1:{await ready}") as ann:
            asking = asyncio.ensure_future(asyncio.to_thread(ann.ask, "slow", 1, fallback=lambda value: "fallback"))
            await asyncio.to_thread(began.wait, WAIT_S)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asking == "fallback"

    asyncio.run(main())
    assert ended == [1]


def test_what_passes():
    with pytest.raises(KeyboardInterrupt):  # this is the main thread
        callbacks.call(_raise, KeyboardInterrupt())
    with pytest.raises(callbacks.CallbackError, match="the function ended by SystemExit: 3"):
        callbacks.call(sys.exit, 3)
    with pytest.raises(ValueError, match="its own"):
        callbacks.call(_raise, ValueError("its own"))

    async def cancelled():
        task = asyncio.ensure_future(callbacks.awaited(asyncio.sleep(3600)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        waits = asyncio.ensure_future(asyncio.sleep(3600))
        task = asyncio.ensure_future(callbacks.awaited(waits))
        await asyncio.sleep(0)
        waits.cancel()
        with pytest.raises(callbacks.CallbackError, match="CancelledError"):
            await task

    asyncio.run(cancelled())


# ---- async functions


async def _async(*given):
    return None


class _Asynchronous:
    async def __call__(self, *given):
        return None


@pytest.mark.parametrize("function", [_async, _Asynchronous()])
def test_async_functions_are_refused_where_there_is_no_loop(make_server, make_device, function):
    server = make_server()
    with pytest.raises(TunnelConfigurationError, match="not async"):
        server.consume("c", function)
    with pytest.raises(TunnelConfigurationError, match="not async"):
        server.answer("c", function, quick=True)
    with pytest.raises(TunnelConfigurationError, match="not async"):
        Transactional(function)
    with pytest.raises(TunnelConfigurationError, match="not async"):
        PostgreSQL("", write=function)
    for name in ("identify", "why_blocked"):
        with pytest.raises(TunnelConfigurationError, match="not async"):
            make_server(**{name: function})
    device = make_device("127.0.0.1:1")
    with device, pytest.raises(TunnelConfigurationError, match="AsyncDevice.on takes async ones"):
        device.on("c")(function)


def test_a_plain_function_that_returns_an_awaitable_does_not_count_as_done(make_server, make_device, caplog):
    server = make_server(table=None)
    server.consume("c", lambda message: _async())
    server.answer("c", lambda request: _async())
    with server.running() as address, make_device(address) as ann:
        ann.wait_connected(WAIT_S)
        with pytest.raises(AnswerError, match="returned an awaitable"):
            ann.ask("c", 1, timeout_s=WAIT_S)
        ann.send("c", b"1")
        until(lambda: server.worker.statistics()["counts"]["retries"])
        assert len(ann.store.outbox) == 1
    assert "returned an awaitable" in caplog.text


@pytest.mark.parametrize("make", [lambda take: take, lambda take: type("Takes", (), {"__call__": take})()])
def test_an_async_consumer_is_awaited_on_an_async_device(make_server, settings_of, tmp_path, make):
    server = make_server()

    async def main(address):
        taken, tries, changed = [], [], asyncio.Event()
        device = AsyncDevice(address, tmp_path / "ann.sqlite", **settings_of("ann"))

        async def take(*given):
            message = given[-1]
            await asyncio.sleep(0)
            if message.body == b"2" and len(tries) < 2:
                tries.append(1)
                raise RuntimeError("not yet")
            taken.append((message.body, threading.current_thread()))
            changed.set()

        device.on("news", make(take))
        async with device, asyncio.timeout(WAIT_S):
            for body in (b"1", b"2", b"3"):
                await asyncio.to_thread(server.push, "ann", "news", body)
            while len(taken) < 3 or server.worker.pushes.waiting():
                await asyncio.sleep(0.005)
        assert taken == [(body, threading.current_thread()) for body in (b"1", b"2", b"3")]
        assert len(tries) == 2

    with server.running() as address:
        asyncio.run(main(address.replace("127.0.0.1", "localhost")))


def test_closing_cancels_an_async_consumer_and_the_message_comes_again(make_server, settings_of, tmp_path):
    server, began = make_server(), []

    async def main(address, count):
        device = AsyncDevice(address, tmp_path / "ann.sqlite", **settings_of("ann"))

        @device.on("news")
        async def never(message):
            began.append(message.body)
            await asyncio.sleep(3600)

        async with device, asyncio.timeout(WAIT_S):
            while len(began) < count:
                await asyncio.sleep(0.005)

    with server.running() as address:
        server.push("ann", "news", b"1")
        for count in (1, 2):
            asyncio.run(main(address.replace("127.0.0.1", "localhost"), count))
        assert server.worker.pushes.waiting()
    assert began == [b"1", b"1"]


def test_functions_of_tasks_await_an_async_device(make_server, settings_of, tmp_path):
    server = make_server(table=None)
    server.consume("features", Table("features"))
    server.answer("classify", lambda request: {"label": request.value})
    device = AsyncDevice("localhost:1", tmp_path / "other.sqlite", **settings_of("ann"))
    with pytest.raises(OfflineError, match="not started"):
        task_functions(device, ["features"])["tunnel_features"]({"send": b"bytes"})
    device.store.close()

    async def main(address):
        async with AsyncDevice(address, tmp_path / "ann.sqlite", **settings_of("ann")) as device:
            functions = task_functions(device, ["features", "classify"])
            await device.wait_connected(WAIT_S)
            identity = await asyncio.to_thread(functions["tunnel_features"], {"send": b"bytes", "id": "mine"})
            assert identity == "mine" and await device.wait_sent(WAIT_S)
            answer = await asyncio.to_thread(functions["tunnel_classify"], {"ask": 5})
            assert answer == {"answer": {"label": 5}}
            gone = await asyncio.to_thread(task_functions(device, ["gone"])["tunnel_gone"], {"ask": 5})
            assert gone == {"error": "nobody answers on channel gone", "offline": False, "late": False}
            with pytest.raises(TunnelError, match="runs on the loop"):
                functions["tunnel_features"]({"send": b"bytes"})

    with server.running() as address:
        asyncio.run(main(address.replace("127.0.0.1", "localhost")))
    assert rows(server.store, "SELECT device, id, body FROM features") == [("ann", "mine", b"bytes")]
