"""Packed: msgpack bytes that are unpacked in the VM, valid and invalid ones."""

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

import vmhost
from tests.hosts import bundle

PLAIN = (
    some.none()
    | some.booleans()
    | some.integers(-(1 << 63), (1 << 64) - 1)
    | some.floats(allow_nan=False)
    | some.text(some.characters(codec=None))
    | some.binary()
)
KEYS = some.none() | some.booleans() | some.integers(-(1 << 63), (1 << 64) - 1) | some.text() | some.binary()
VALUES = some.recursive(
    PLAIN, lambda inner: some.lists(inner, max_size=40) | some.dictionaries(KEYS, inner, max_size=20), max_leaves=60
)
LENT_FROM = 64 * 1024  # bytes; wire.c


@pytest.fixture(scope="module")
def echo():
    with vmhost.Host(allow_unsigned=True) as host:
        yield host.load(bundle("def run(value):\n    return value\n", limits={"memory_bytes": 256 << 20}))


def packed(value):
    return vmhost.Packed(msgpack.packb(value, unicode_errors="surrogatepass"))


@given(VALUES)
@settings(max_examples=200, deadline=None)
def test_any_value_arrives_as_it_was_packed(echo, value):
    whole, part, last = echo([packed(value), {"in": packed(value)}, value])
    assert repr(whole) == repr(value) == repr(part["in"]) == repr(last)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 31, 32, 255, 256, 65_535, 65_536, LENT_FROM * 2])
def test_sizes_of_texts_bytes_lists_and_dicts(echo, size):
    value = ["x" * size, "é" * size, b"x" * size, list(range(size)), {n: n for n in range(size)}]
    assert echo(packed(value)) == value


def test_numbers_of_each_width(echo):
    numbers = [
        n * sign for bits in (0, 5, 7, 8, 15, 16, 31, 32, 62) for n in ((1 << bits) - 1, 1 << bits) for sign in (1, -1)
    ]
    assert echo(packed(numbers)) == numbers
    assert echo(vmhost.Packed(b"\xca\x3f\xc0\x00\x00")) == 1.5, "four bytes"


@pytest.mark.parametrize(
    "data, why",
    [
        (b"", "end in the middle"),
        (b"\x92\x01", "end in the middle"),
        (b"\xa5abc", "end in the middle"),
        (b"\xcf\x01", "end in the middle"),
        (b"\xdd\xff\xff\xff\xff", "end in the middle"),
        (b"\xdf\xff\xff\xff\xff", "end in the middle"),
        (b"\xc6\xff\xff\xff\xff", "end in the middle"),
        (b"\x01\x01", "1 bytes follow the value"),
        (b"\xc1", "byte 193 begins no value"),
        (b"\xd4\x01\x01", "byte 212 begins no value that can cross; expected msgpack without extension types"),
        (b"\x81\x90\x01", "a `list` cannot be a dict's key"),
        (b"\x91" * 300 + b"\x01", "nested deeper than 200 levels"),
        (b"\xa1\xff", "can't decode byte 0xff"),
    ],
)
def test_bytes_that_are_no_value_end_the_call(echo, data, why):
    with pytest.raises(vmhost.CrossingError, match=r"argument: \$\.a\[1\]: .*" + why.replace("[", r"\[")):
        echo({"a": [1, vmhost.Packed(data)]})
    assert echo(1) == 1, "the task goes on"


def test_where_it_cannot_be(echo):
    with pytest.raises(TypeError, match="Packed: expected bytes, got `str`"):
        vmhost.Packed("x")
    with pytest.raises(vmhost.CrossingError, match="cannot cross as a dict's key"):
        echo({packed(1): 1})
    assert vmhost.Packed(b"\x01").data == b"\x01" and repr(vmhost.Packed(b"\x01")) == "<vmhost.Packed, 1 bytes>"


def test_a_value_that_takes_more_than_the_vm_has(echo):
    """A byte of msgpack may become an object of many bytes: they are charged to the VM, not to the host."""
    with vmhost.Host(allow_unsigned=True, policy=vmhost.Policy(grace_s=30)) as host:
        small = host.load(bundle("def run(value):\n    return len(value)\n", limits={"memory": "16 MiB"}))
        with pytest.raises(vmhost.MemoryLimitError):
            small(vmhost.Packed(b"\xdd\x00\x10\x00\x00" + b"\x90" * (1 << 20)))
        assert small([]) == 0
