"""A pipeline and its tunnel as one object, arrays in values, rows as SQL reads them, and names that nobody has."""

import asyncio

import numpy as np
import pytest

from tests.pipeline.stream_tasks import clicks, stream_task
from tests.tunnel.conftest import WAIT_S, rows, until
from vmhost.pipeline import Pipeline, PipelineError
from vmhost.pipeline.asynchronous import AsyncPipeline
from vmhost.pipeline.values import pack
from vmhost.tunnel import AnswerError, Rows, TunnelConfigurationError, frames, keeper
from vmhost.tunnel.errors import ProtocolError

SOURCE = """
import vmhost.engine.numpy as np
from vmhost.guest import host


def run(value):
    answer = host.tunnel_double({"ask": len(value["events"]), "timeout_s": 20})
    scores = np.asarray([1.5, float(answer["answer"])])
    return {"visit": value["visit"], "count": answer["answer"], "scores": scores, "notes": {"of": value["visit"]}}
"""
TABLE = (
    "columns: {visit: {type: text, leaves: true}, count: {type: integer, leaves: true},"
    " scores: {type: array, leaves: true}, notes: {type: json, leaves: true}}"
)


@pytest.fixture
def server(make_server):
    server = make_server()
    server.answer("double", lambda request: request.value * 2)
    server.consume("clicks", Rows("clicks"))
    return server


@pytest.fixture
def settings(keys, tmp_path):
    """settings(address) -> the path of a pipeline.yaml with a tunnel."""

    def write(address):
        (tmp_path / "clicks.vmb").write_bytes(stream_task(tmp_path, SOURCE, table=TABLE, functions="tunnel_double"))
        path = tmp_path / "pipeline.yaml"
        path.write_text(
            f"folder: shop\nbundles: [clicks.vmb]\nallow_unsigned: true\ntunnel: {{to: 'localhost:"
            f"{address.rpartition(':')[2]}', keys: {keys}, device: ann, channels: [double]}}\n"
        )
        return path

    return write


def test_an_asyncio_app_in_ten_lines(server, settings):
    async def app(path):
        async with AsyncPipeline.from_file(path) as pipeline:
            heard = asyncio.get_running_loop().create_future()

            @pipeline.on("news")
            async def news(message):
                heard.set_result(message.body)

            for event in clicks("a", "b"):
                await pipeline.append(event)
            assert await pipeline.wait(WAIT_S) and await pipeline.wait_sent(WAIT_S)
            assert await pipeline.ask("double", 4, timeout_s=WAIT_S) == 8
            await pipeline.send("log", b"done")
            await asyncio.to_thread(server.push, "ann", "news", b"hello")
            assert await asyncio.wait_for(heard, WAIT_S) == b"hello"

    with server.running() as address:
        asyncio.run(app(settings(address)))
    found = rows(server.store, "SELECT device, visit, count, scores, notes ->> 'of' FROM clicks ORDER BY visit")
    assert found == [("ann", "a", 2, "[1.5,2.0]", "a"), ("ann", "b", 2, "[1.5,2.0]", "b")]
    assert rows(server.store, "SELECT channel, body FROM messages") == [("log", b"done")]


def test_a_pipeline_from_a_file_sends_its_rows_until_its_end(server, settings):
    with server.running() as address:
        with Pipeline.from_file(settings(address)) as pipeline:
            pipeline.tunnel.wait_connected(WAIT_S)
            pipeline.append_many(clicks("a", "b", "c"))
        assert rows(server.store, "SELECT visit, sum(value) FROM clicks, json_each(scores) GROUP BY visit") == [
            (visit, 3.5) for visit in "abc"
        ]


def test_what_a_pipeline_without_a_tunnel_says(tmp_path):
    async def app():
        async with AsyncPipeline(tmp_path, (), allow_unsigned=True) as pipeline:
            assert pipeline.pipeline.tunnel is None
            with pytest.raises(PipelineError, match="this pipeline has no tunnel"):
                await pipeline.wait_sent()

    asyncio.run(app())


def test_a_handler_that_comes_later_gets_what_was_refused(make_server, make_device):
    server, heard = make_server(), []
    with server.running() as address, make_device(address) as ann:
        ann.wait_connected(WAIT_S)
        server.push("ann", "news", b"1")
        until(lambda: ann._inner._refused_channels)
        ann.on("news", lambda message: heard.append(message.body))
        until(lambda: heard == [b"1"])


# ---- arrays


@pytest.mark.parametrize(
    "value",
    [
        np.arange(12, dtype="float32").reshape(3, 4),
        np.array([[True], [False]]),
        np.array(3 + 4j),
        np.zeros((0, 5), "int8"),
        np.arange(100_000, dtype="int64")[::2],
    ],
    ids=str,
)
def test_arrays_cross_both_ways(make_server, make_device, value):
    server = make_server()
    server.answer("echo", lambda request: {"is": request.value, "sum": request.value.sum()})
    with server.running() as address:
        device = make_device(address)
        device.answer("echo", lambda given: [given, given.max(initial=0)])
        with device:
            device.wait_connected(WAIT_S)
            answer = device.ask("echo", value, timeout_s=WAIT_S)
            assert answer["is"].dtype == value.dtype and np.array_equal(answer["is"], value)
            assert answer["sum"] == value.sum() and not answer["is"].flags.writeable
            back, _ = server.call(server.ask("ann", "echo", value, WAIT_S))
            assert back.dtype == value.dtype and np.array_equal(back, value)


def test_arrays_that_cannot_cross(make_server, make_device):
    server = make_server()
    server.answer("objects", lambda request: np.array([object()]))
    with server.running() as address, make_device(address) as device:
        device.wait_connected(WAIT_S)
        with pytest.raises(TunnelConfigurationError, match="an array of <U1 cannot be sent"):
            device.ask("objects", np.array(["x"]))
        with pytest.raises(AnswerError, match="an array of object cannot be sent"):
            device.ask("objects", 1, timeout_s=WAIT_S)


@pytest.mark.parametrize(
    "content",
    [
        ["<f4", [3], b"1234"],
        ["<f4", [-1], b"1234"],
        ["<f4", [1 << 40, 1 << 40, 0], b"1234"],
        ["|O", [1], b"12345678"],
        ["f4,f4", [1], b"12345678"],
        ["<f4", "x", b"1234"],
        ["<f4", [1] * 40, b"1234"],
        [4, [1], b"1234"],
        "text",
    ],
    ids=str,
)
def test_arrays_of_liars(content):
    import msgpack

    value = msgpack.ExtType(5, msgpack.packb(content))
    with pytest.raises(ProtocolError):
        frames.checked(msgpack.packb([frames.REQUEST, 0, 0, 0, value]))


@pytest.mark.parametrize("frame", [(frames.MESSAGES, 0, np.ones(3)), (frames.WELCOME, 2, {"limits": np.ones(3)})])
def test_arrays_are_nowhere_else(frame):
    with pytest.raises(ProtocolError):
        frames.checked(frames.pack(frame))


# ---- rows


def test_rows_of_all_kinds_and_what_is_none(make_server, make_device, monkeypatch):
    monkeypatch.setattr(keeper, "FIRST_RETRY_S", 0.001)
    server = make_server(table=None, tries=2)
    server.consume("t", Rows("t"))
    good = [
        {"a": 1, "b": "text", "c": 1.5, "d": b"bytes", "e": True},
        {"a": None, "f": 1 << 70, "g": [1, {"x": None}], "h": np.array([1, 2])},
        {"A": 7, "b": "\ud800"},
    ]
    bad = [b"\xff", pack([1]), pack({"a b": 1}), pack({"device": 1}), pack({1: 1}), pack({"a": 1, "A": 2})]
    with server.running() as address, make_device(address) as ann, make_device(address, name="bob") as bob:
        for body in bad:
            ann.send("t", body)
        sent = 0
        while len(ann.store.outbox):
            bob.send("t", pack(good[sent % 3]), identity=str(sent))
            sent += 1
            assert bob.wait_sent(WAIT_S)
    columns = 'a, b, c, d, e, f, g ->> "$[0]", h'.replace('"', "'")
    found = rows(server.store, f"SELECT {columns} FROM t WHERE device = 'bob' ORDER BY position LIMIT 3")
    assert found == [
        (1, "text", 1.5, b"bytes", 1, None, None, None),
        (None, None, None, None, None, str(1 << 70), 1, "[1,2]"),
        (7, "?", None, None, None, None, None, None),
    ]
    assert rows(server.store, "SELECT count(*) FROM tunnel_refused WHERE peer = 'ann'") == [(len(bad),)]


def test_a_device_cannot_add_columns_without_end(make_server, make_device):
    server = make_server(table=None)
    server.consume("t", Rows("t"))
    with server.running() as address, make_device(address) as ann:
        ann.send("t", pack({f"c{number}": 1 for number in range(195)}))
        assert ann.wait_sent(WAIT_S)
        ann.send("t", pack({"one_more": 1}))
        until(lambda: server.worker.statistics()["counts"]["retries"])
    assert rows(server.store, "SELECT count(*) FROM t") == [(1,)]


# ---- names that nobody has


def test_a_push_to_a_mistyped_device_is_warned_of(make_server, make_device, caplog):
    server = make_server()
    with server.running() as address, make_device(address) as ann:
        ann.wait_connected(WAIT_S)
        server.push("ann", "news", b"1")
        assert "no device of this name" not in caplog.text
        until(lambda: "ann: pushes on news wait: this device has no handler for the channel" in caplog.text)
        server.push("anne", "news", b"1")
    assert "anne: no device of this name has connected yet; the push waits for it. Is it ann?" in caplog.text
