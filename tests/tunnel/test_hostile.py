"""Hostile bytes: the connection is closed with one line, and nothing else happens."""

import random
import tracemalloc

import msgpack
import pytest

from tests.batches import each
from vmhost.tunnel import connection as protocol
from vmhost.tunnel import frames
from vmhost.tunnel.compression import Compression
from vmhost.tunnel.connection import Connection
from vmhost.tunnel.limits import FRAGMENT_BYTES, FRAME_BYTES, Limits

LIMITS = Limits(message_bytes=100_000, window_bytes=50_000, fragments_bytes=100_000)
HELLO = {"epoch": b"12345678", "received": {}, "limits": LIMITS.as_dict(), "heartbeat_ms": 30_000}


def greeted(client=False):
    """A Connection after the greeting, and the other end."""
    device = Connection(client=True, limits=LIMITS, compression=Compression())
    cloud = Connection(client=False, limits=LIMITS, compression=Compression())
    device.hello({"epoch": b"12345678", "received": {}})
    cloud.receive(device.data_to_send(), 0)
    cloud.welcome({"epoch": b"abcdefgh", "received": {}, "time_ms": 0, "device": "ann"})
    device.receive(cloud.data_to_send(), 0)
    assert device.open and cloud.open
    return (device, cloud) if client else (cloud, device)


def closed_with_one_line(connection):
    assert connection.closed.code == protocol.PROTOCOL and not connection.closed.by_peer
    assert connection.closed.why and "\n" not in connection.closed.why and len(connection.closed.why) < 500
    sent = list(frames.Decoder().feed(connection.data_to_send()))
    assert sent[-1][0] == frames.CLOSE


def encoded(*frame):
    return frames.encode(*frame)


A_CHANNEL = encoded(frames.CHANNEL, 0, "a", 4)
BOMB = Compression().pack("a", b"\0" * 20_000_000)[1]

WRONG = {
    "no msgpack": b"\x05\xc1\xc1\xc1\xc1\xc1",
    "no array": frames.length(1) + b"\x01",
    "an empty array": frames.length(1) + b"\x90",
    "an unknown kind": encoded(99, 1),
    "a kind that is true": encoded(True, 1),
    "a kind that is a text": encoded("HELLO", 1),
    "too few fields": encoded(frames.ACK, 1),
    "wrong types": encoded(frames.ACK, "a", None),
    "a negative number": encoded(frames.PONG, -1),
    "a number of 64 bits": encoded(frames.ACK, 0, (1 << 64) - 1),
    "an extension": encoded(frames.REQUEST, 0, 0, 0, msgpack.ExtType(5, b"x")),
    "a list as a key": frames.length(9) + b"\x95\x08\x00\x00\x00\x81\x91\x01\x01",
    "a length without end": b"\xff\xff\xff\xff",
    "a frame that is too long": frames.length(FRAME_BYTES + 1),
    "nesting without end": frames.length(5000) + b"\x91" * 5000,
    "an array that is not there": frames.length(6) + b"\x96\x03\x00\xdd\xff\xff",
    "a second greeting": encoded(frames.HELLO, frames.VERSION, HELLO),
    "a welcome": encoded(frames.WELCOME, frames.VERSION, {}),
    "a channel that is not next": encoded(frames.CHANNEL, 7, "a", 4),
    "a channel without a name": encoded(frames.CHANNEL, 0, "", 4),
    "a channel whose name is a line": encoded(frames.CHANNEL, 0, "a\nb", 4),
    "a channel with priority 9": encoded(frames.CHANNEL, 0, "a", 9),
    "too many channels": b"".join(encoded(frames.CHANNEL, n, "a", 4) for n in range(65)),
    "messages without channel": encoded(frames.MESSAGES, 0, [1, "i", b"x"]),
    "messages that are none": A_CHANNEL + encoded(frames.MESSAGES, 0, [1, "i"]),
    "no messages": A_CHANNEL + encoded(frames.MESSAGES, 0, []),
    "a message whose body is a text": A_CHANNEL + encoded(frames.MESSAGES, 0, [1, "i", "x"]),
    "a number again": A_CHANNEL + encoded(frames.MESSAGES, 0, [1, "i", b"x"]) * 2,
    "a number of 0": A_CHANNEL + encoded(frames.MESSAGES, 0, [0, "i", b"x"]),
    "an id that is too long": A_CHANNEL + encoded(frames.MESSAGES, 0, [1, "i" * 300, b"x"]),
    "more than the window": A_CHANNEL
    + b"".join(encoded(frames.MESSAGES, 0, [n, "i", bytes(30_000)]) for n in range(1, 4)),
    "an ACK of nothing": encoded(frames.ACK, 0, 1),
    "a REFUSE of nothing": encoded(frames.REFUSE, 0, "no"),
    "an answer to nothing": encoded(frames.RESPONSE, 0, 0, None),
    "a request twice": A_CHANNEL + encoded(frames.REQUEST, 0, 0, 0, None) * 2,
    "a stream of ours": A_CHANNEL + encoded(frames.OPEN, 1, 0, None),
    "a stream twice": A_CHANNEL + encoded(frames.OPEN, 0, 0, None) * 2,
    "data of no stream": encoded(frames.DATA, 2, b"x"),
    "credit of no stream": encoded(frames.CREDIT, 2, 1),
    "credit beyond the window": A_CHANNEL + encoded(frames.OPEN, 0, 0, None) + encoded(frames.CREDIT, 0, 1 << 40),
    "more than a stream's window": A_CHANNEL
    + encoded(frames.OPEN, 0, 0, None)
    + encoded(frames.DATA, 0, bytes(60_000)) * 5,
    "the end twice": A_CHANNEL + encoded(frames.OPEN, 0, 0, None) + encoded(frames.END, 0, None) * 2,
    "an empty fragment": A_CHANNEL + encoded(frames.FRAGMENT, 0, False, b""),
    "fragments without end": A_CHANNEL + encoded(frames.FRAGMENT, 0, False, bytes(FRAGMENT_BYTES)) * 20,
    "fragments on many channels": b"".join(encoded(frames.CHANNEL, n, f"a{n}", 4) for n in range(60))
    + b"".join(encoded(frames.FRAGMENT, n, False, bytes(FRAGMENT_BYTES)) for n in range(60)),
    "a greeting in fragments": A_CHANNEL
    + encoded(frames.FRAGMENT, 0, True, frames.pack([frames.HELLO, frames.VERSION, HELLO])),
    "a fragment in a fragment": A_CHANNEL
    + encoded(frames.FRAGMENT, 0, True, frames.pack([frames.FRAGMENT, 0, True, b"x"])),
    "a dictionary from a device": encoded(frames.DICTIONARY, "a", 1, b"x"),
    "packed with no dictionary that is here": A_CHANNEL + encoded(frames.PACKED, 0, 77, 10, b"x"),
    "packed, and no zstd": A_CHANNEL + encoded(frames.PACKED, 0, 0, 10, b"xxxxxxxx"),
    "packed, with another size": A_CHANNEL + encoded(frames.PACKED, 0, 0, 10, Compression().pack("a", b"\0" * 5000)[1]),
    "a bomb": A_CHANNEL + encoded(frames.PACKED, 0, 0, 20_000_000, BOMB),
    "an epoch of nothing": A_CHANNEL + encoded(frames.EPOCH, 0, b""),
    "an epoch of no channel": A_CHANNEL + encoded(frames.EPOCH, 1, b"1"),
    "a bomb that lies": A_CHANNEL + encoded(frames.PACKED, 0, 0, 1000, BOMB),
}


@each("what", WRONG)
def test_what_is_not_allowed_closes_the_connection(what):
    cloud, _ = greeted()
    tracemalloc.start()
    try:
        cloud.receive(WRONG[what], 1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    closed_with_one_line(cloud)
    assert peak < 3_000_000, f"it cost {peak} bytes"
    assert cloud.receive(encoded(frames.PING, 1, 1), 2) == [], "a closed connection goes on"


@pytest.mark.parametrize(
    "greeting",
    [
        {},
        HELLO | {"epoch": b""},
        HELLO | {"epoch": b"x" * 33},
        HELLO | {"epoch": "text"},
        HELLO | {"received": {"a": {"a": 2}}},
        HELLO | {"received": {b"1": {1: 2}}},
        HELLO | {"received": {b"1": {"a": -1}}},
        HELLO | {"received": {b"1": 1}},
        HELLO | {"epochs": [b"1"] * 65},
        HELLO | {"epochs": [1]},
        HELLO | {"limits": {"window_bytes": 0}},
        HELLO | {"limits": {"window_bytes": "many"}},
        HELLO | {"heartbeat_ms": None},
        HELLO | {"token": "x" * 9000},
        HELLO | {"token": b"bytes"},
        HELLO | {"dictionaries": 5},
    ],
    ids=range(16),
)
def test_a_wrong_greeting(greeting):
    cloud = Connection(client=False, limits=LIMITS)
    cloud.receive(encoded(frames.HELLO, frames.VERSION, greeting), 0)
    closed_with_one_line(cloud)


def test_another_version():
    cloud = Connection(client=False, limits=LIMITS)
    cloud.receive(encoded(frames.HELLO, frames.VERSION + 1, HELLO), 0)
    closed_with_one_line(cloud)
    assert f"version {frames.VERSION + 1}" in cloud.closed.why


def test_frames_before_the_greeting():
    cloud = Connection(client=False, limits=LIMITS)
    cloud.receive(A_CHANNEL, 0)
    closed_with_one_line(cloud)


def transcript():
    """Frames of all kinds, as a well-behaved device sends them."""
    _, device = greeted()
    for channel in "ab":
        device.offer(channel, [(n, f"id{n}", bytes([n]) * n * 40) for n in range(1, 12)])
        device.request(channel, {"a": [1, 2.5, None, b"x", "y"]}, 2)
        stream = device.open_stream(channel, "value")
        device.write_stream(stream, b"data" * 30)
        device.end_stream(stream)
    device.request("a", bytes(40_000))
    device.cancel(0)
    device.probe(1)
    parts = []
    while data := device.data_to_send(1):
        parts.append(data)
    parts += [encoded(frames.ACK, 0, 1), encoded(frames.CREDIT, 0, 5), encoded(frames.PONG, 1)]
    return b"".join(parts)


def mutated(chance, data):
    data = bytearray(data)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(data))
        what = chance.randrange(5)
        if what == 0:
            data[at] = chance.randrange(256)
        elif what == 1:
            data[at] ^= 1 << chance.randrange(8)
        elif what == 2:
            del data[at : at + chance.randrange(1, 20)]
        elif what == 3:
            data[at:at] = chance.randbytes(chance.randrange(1, 20))
        else:
            other = chance.randrange(len(data))
            data[at:at] = data[other : other + chance.randrange(1, 200)]
        if not data:
            break
    return bytes(data)


def fuzz(count, seed):
    """Mutated frames, each to one end; a connection that it did not close gets more. How many connections it took."""
    chance = random.Random(seed)
    pieces = [frames.length(len(body)) + body for body in frames.Decoder().bodies(transcript())]
    connections, cloud = 0, None
    for number in range(count):
        if cloud is None or cloud.closed or number % 50 == 0:
            cloud, device = greeted(client=chance.random() < 0.3)
            connections += 1
            cloud.receive(b"".join(pieces[:2]), 1)
        piece = chance.choice(pieces)
        if len(piece) > 3000 and chance.random() < 0.9:
            piece = pieces[0]
        cloud.receive(mutated(chance, piece), number)
        if cloud.closed and not cloud.closed.by_peer:
            closed_with_one_line(cloud)
        cloud.data_to_send()
    return connections


@pytest.mark.parametrize("count", [25_000, pytest.param(500_000, marks=pytest.mark.stress)])
def test_mutated_frames(count):
    assert fuzz(count, seed=1) > count // 100
