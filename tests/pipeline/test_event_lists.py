"""Passes over events in C: columns of blocks, and the events of a visit as a call is given them; bodies of blocks."""

import os

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from msgspec.structs import asdict

from vmhost.pipeline import bodies
from vmhost.pipeline.events import Event, StoredEvent
from vmhost.pipeline.passes import EventList, columns, pack_contents
from vmhost.pipeline.values import pack

TEXTS = some.text(max_size=40)
EVENTS = some.lists(
    some.builds(
        Event,
        name=TEXTS,
        time_ms=some.integers(-3, 3) | some.integers(-(1 << 63), (1 << 63) - 1),
        page=TEXTS,
        visit=some.text(max_size=300),
        contents=some.none() | some.dictionaries(TEXTS, some.integers(-5, 5) | TEXTS),
        id=some.none() | TEXTS,
        key=some.sampled_from(["", "ann", "bob"]),
    ),
    max_size=30,
)


def stored(events):
    return [StoredEvent(n, event, pack(event.contents)) for n, event in enumerate(events, 1)]


def in_order(events):
    return [asdict(each.event) for each in sorted(events, key=lambda each: (each.event.time_ms, each.position))]


def unpacked(data):
    return msgpack.unpackb(data, unicode_errors="surrogatepass")


@given(EVENTS, some.integers(0, 30), some.integers(0, 30))
@settings(max_examples=200, deadline=None)
def test_a_list_gives_its_events_in_order_of_time(events, after, until):
    taken, made = stored(events), EventList()
    for number, each in enumerate(taken):
        made.append(each)
        if number % 7 == 3:
            assert unpacked(made.packed()) == in_order(taken[: number + 1]), "asked for while it grows"
    assert len(made) == len(taken) and unpacked(made.packed()) == in_order(taken)
    assert unpacked(made.packed(after, until)) == in_order(taken[after:until] if until > after else [])
    whole = made.packed()
    less = made.without("ann")
    left = [each for each in taken if each.event.key != "ann"]
    assert len(less) == len(left) and unpacked(less.packed()) == in_order(left)
    made.append(StoredEvent(1000, Event("more", 0), b"\xc0"))
    assert unpacked(whole) == in_order(taken), "bytes that were given away do not change"
    assert len(made) == len(taken) + 1 and unpacked(made.packed(999)) == [asdict(Event("more", 0))]


def test_what_a_list_does_not_take():
    made = EventList()
    with pytest.raises(ValueError, match="expected the contents as bytes, got `NoneType`"):
        made.append(StoredEvent(1, Event("a", 1)))
    for wrong in (Event(1, 1), Event("a", "1"), Event("a", 1, key=None), Event("a", 1 << 64)):
        with pytest.raises((TypeError, OverflowError)):
            made.append(StoredEvent(1, wrong, b"\xc0"))
    with pytest.raises(AttributeError):
        made.append(None)
    assert len(made) == 0 and made.packed() == b"\xdd\0\0\0\0"


def test_columns_are_of_what_the_store_takes():
    class Text(str):
        pass

    events = [Event(Text("a"), True, "p", "é", None, Text("i"), "k"), Event("b", -5)]
    names, times, pages, visits, keys, ids = columns(events)
    assert (names, times, pages, visits, keys, ids) == (
        ["a", "b"],
        [1, -5],
        ["p", ""],
        ["é", ""],
        ["k", ""],
        ["i", None],
    )
    assert type(names[0]) is str and type(ids[0]) is str and type(times[0]) is int
    for wrong in (
        Event(None, 1),
        Event("a", None),
        Event("a", 1.5),
        Event("a", 1 << 63),
        Event("a", 1, page=b"p"),
        Event("a", 1, visit="\ud800"),
        Event("a", 1, id=7),
        Event("a", 1, key=None),
    ):
        with pytest.raises(
            ValueError, match="expected text in name, page, visit, key and id, and a whole number of 64"
        ):
            columns([Event("good", 1), wrong])


def test_bodies_are_compressed_where_that_pays():
    made = bodies.Bodies()
    small, large, noise = [b"\x01"] * 10, [pack("a text " * 20)] * 300, [pack(os.urandom(100)) for _ in range(300)]
    assert made.make(small) == b"\x9a" + b"\x01" * 10
    body = made.make(large)
    assert len(body) < 2000 and bodies.contents_of(body, [0, 299]) == ["a text " * 20] * 2
    assert len(made.make(large, compress=False)) > 40_000
    assert made.make(noise).startswith(b"\xdc"), "no smaller"
    tries = [len(made.make(large)) < 2000 for _ in range(20)]
    assert tries == [False] * 15 + [True] * 5, "it rests for a while"
    with pytest.raises(ValueError, match="no compressed contents"):
        bodies.contents_of(body[:-20], [1])


def test_without_zstd_nothing_is_compressed_and_what_is_says_so(monkeypatch):
    body = bodies.Bodies().make([pack("a text " * 20)] * 300)
    monkeypatch.setattr(bodies, "zstd", None)
    assert len(bodies.Bodies().make([pack("a text " * 20)] * 300)) > 40_000
    with pytest.raises(Exception, match="compressed with zstd, which this Python was built without"):
        bodies.contents_of(body, [1])


PLAIN = some.recursive(
    some.none()
    | some.booleans()
    | some.integers(-(1 << 63), (1 << 63) - 1)
    | some.integers(-300, 300)
    | some.floats(allow_nan=False)
    | some.text()
    | some.binary(),
    lambda inner: (
        some.lists(inner, max_size=20) | some.dictionaries(some.text() | some.integers(-9, 9), inner, max_size=20)
    ),
    max_leaves=60,
)


@given(some.lists(PLAIN, max_size=5))
@settings(max_examples=80, deadline=None)
def test_plain_contents_are_packed_as_msgpack_packs_them(values):
    made = pack_contents([Event("a", 1, contents=value) for value in values])
    assert made == [msgpack.packb(value) for value in values]


@pytest.mark.parametrize("size", [0, 15, 16, 31, 32, 255, 256, 65_535, 65_536])
def test_sizes_of_contents(size):
    value = ["x" * size, "é" * size, b"x" * size, list(range(size)), {n: n for n in range(size)}]
    assert pack_contents((Event("a", 1, contents=value),)) == [msgpack.packb(value)]


def test_other_contents_are_left_to_msgpack():
    deep = []
    for _ in range(101):
        deep = [deep]
    within = []
    within.append(within)
    for value in ((1,), {1, 2}, 1 << 63, 1j, "\ud800", bytearray(b"x"), deep, within, object(), {(): 1}):
        assert pack_contents([Event("a", 1), Event("a", 1, contents=[value])]) is None
    with pytest.raises(TypeError, match="takes a list or a tuple"):
        pack_contents(iter(()))
