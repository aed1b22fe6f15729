"""Frames on the wire: a length, then a msgpack array whose first item says what it is (docs/tunnel-protocol.md).

`encode` gives the bytes of one frame, `Decoder` takes bytes as they come and gives frames. A frame that the Decoder
gives has a known kind, as many fields as its kind wants, and fields of the right types; numbers are not negative.
"""

import threading

import msgpack

from vmhost.tunnel.errors import ProtocolError
from vmhost.tunnel.limits import CONTAINERS, FRAME_BYTES

VERSION = 1

NAMES = (
    "HELLO",
    "WELCOME",
    "CHANNEL",
    "MESSAGES",
    "PACKED",
    "FRAGMENT",
    "ACK",
    "REFUSE",
    "REQUEST",
    "RESPONSE",
    "CANCEL",
    "OPEN",
    "DATA",
    "END",
    "CREDIT",
    "PING",
    "PONG",
    "DICTIONARY",
    "DRAIN",
    "CLOSE",
)
(
    HELLO,
    WELCOME,
    CHANNEL,
    MESSAGES,
    PACKED,
    FRAGMENT,
    ACK,
    REFUSE,
    REQUEST,
    RESPONSE,
    CANCEL,
    OPEN,
    DATA,
    END,
    CREDIT,
    PING,
    PONG,
    DICTIONARY,
    DRAIN,
    CLOSE,
) = range(len(NAMES))

LATE = 2  # in a RESPONSE: the time that the request has is over
_VALUES = (type(None), bool, int, float, str, bytes, list, dict)  # what an application may say
# Of each kind, the types of its fields.
_FIELDS = {
    HELLO: (int, dict),  # version, what the device tells
    WELCOME: (int, dict),  # version, what the cloud tells
    CHANNEL: (int, str, int),  # alias, name, priority
    MESSAGES: (int, list),  # alias, [number, id, body, number, id, body, ...]
    PACKED: (int, int, int, bytes),  # alias, dictionary (0: none), bytes unpacked, the list above as zstd
    FRAGMENT: (int, bool, bytes),  # alias, whether it is the last, a piece of a frame
    ACK: (int, int),  # alias, the last number that is kept
    REFUSE: (int, str),  # alias, why nothing on this channel is taken
    REQUEST: (int, int, int, _VALUES),  # request, alias, time left in ms (0: no limit), value
    RESPONSE: (int, int, _VALUES),  # request, 0 (answered), 1 (failed) or LATE, value or text
    CANCEL: (int,),  # request
    OPEN: (int, int, _VALUES),  # stream, alias, value
    DATA: (int, bytes),  # stream, bytes
    END: (int, (type(None), str)),  # stream, None or why it broke
    CREDIT: (int, int),  # stream, bytes that may be sent beyond those before
    PING: (int, int),  # number, in how many ms the next sign of life comes at the latest
    PONG: (int,),  # number
    DICTIONARY: (str, int, bytes),  # channel, dictionary's number, its bytes
    DRAIN: (int, str),  # in how many ms to connect anew, why
    CLOSE: (int, str),  # code, text
}


def _signatures(fields):
    """The tuples of types that frames with these fields may have: one look-up checks a whole frame."""
    tuples = [(int,)]
    for each in fields:
        kinds = each if isinstance(each, tuple) else (each,)
        tuples = [(*types, kind) for types in tuples for kind in kinds]
    return frozenset(tuples)


_SIGNATURES = {kind: _signatures(fields) for kind, fields in _FIELDS.items()}


# Where the numbers of ours are, which are not negative; others are the application's.
_NUMBERS = {kind: tuple(at for at, each in enumerate(fields, 1) if each is int) for kind, fields in _FIELDS.items()}


class _Packers(threading.local):
    def __init__(self):
        self.pack = msgpack.Packer(buf_size=4096, use_bin_type=True, strict_types=False).pack


_packers = _Packers()


def pack(value):
    """`value` as msgpack. TypeError, ValueError, OverflowError: it has parts that msgpack cannot say."""
    return _packers.pack(value)


def length(size):
    """The bytes that stand before a frame of `size` bytes: seven bits in each, the lowest first."""
    if size < 0x80:
        return bytes((size,))
    if size < 0x4000:
        return bytes((size & 0x7F | 0x80, size >> 7))
    return bytes((size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14))


def encode(*frame):
    """The bytes of a frame, its length first."""
    body = _packers.pack(frame)
    return length(len(body)) + body


class _Counted:
    """Counts the lists and maps of a large frame: empty ones take 70 bytes in memory for each that they take here."""

    def __init__(self):
        self.left = CONTAINERS

    def __call__(self, made):
        self.left -= 1
        if self.left < 0:
            raise ValueError("too many lists and maps")
        return made


def checked(body):
    """The frame that `body` holds, without its length. ProtocolError."""
    try:
        if len(body) > FRAME_BYTES:
            counted = _Counted()
            frame = msgpack.unpackb(body, strict_map_key=False, max_ext_len=0, list_hook=counted, object_hook=counted)
        else:
            frame = msgpack.unpackb(body, strict_map_key=False, max_ext_len=0)
    except Exception as error:  # msgpack raises a dozen kinds, TypeError for a list as a key among them
        raise ProtocolError(f"a frame of {len(body)} bytes is not msgpack: {type(error).__name__}") from None
    if type(frame) is not list or not frame:
        raise ProtocolError(f"a frame of {len(body)} bytes is no array with a kind")
    kind = frame[0]
    if type(kind) is not int or tuple(map(type, frame)) not in _SIGNATURES.get(kind, ()):
        name = NAMES[kind] if type(kind) is int and 0 <= kind < len(NAMES) else f"kind {str(kind)[:20]}"
        types = ", ".join(type(each).__name__ for each in frame[1:9])
        raise ProtocolError(f"{name}: no frame has these {len(frame) - 1} fields: {types}")
    for at in _NUMBERS[kind]:
        if frame[at] < 0:
            raise ProtocolError(f"{NAMES[kind]}: {frame[at]} is out of range")
    return frame


class Decoder:
    """Takes bytes in pieces of any size, gives frames. `limit`: bytes of one frame, without its length."""

    def __init__(self, limit=FRAME_BYTES):
        self.limit = limit
        self.rest = b""  # the beginning of a frame that is not complete
        self.wrong = None  # what the next `bodies(b"")` raises

    @property
    def pending(self):
        """Bytes of a frame that is not complete."""
        return len(self.rest)

    def bodies(self, data):
        """A list of frames that are complete now, still packed. To be called with b"" until there are none: then
        ProtocolError comes up for one that is too long."""
        if self.rest:
            data = self.rest + data
        found, start, end = [], 0, len(data)
        while start < end:
            size = data[start]
            at = start + 1
            if size >= 0x80:
                if at >= end:
                    break
                size = size & 0x7F | (data[at] & 0x7F) << 7
                at += 1
                if data[at - 1] >= 0x80:
                    if at >= end:
                        break
                    if data[at] >= 0x80:
                        self.wrong = ProtocolError("a frame's length has more than three bytes")
                        break
                    size |= data[at] << 14
                    at += 1
            if size > self.limit:
                self.wrong = ProtocolError(f"a frame of {size} bytes; the limit is {self.limit}")
                break
            stop = at + size
            if stop > end:
                break
            found.append(data[at:stop])
            start = stop
            if self.limit < FRAME_BYTES:
                break  # the greeting: what follows it may be larger
        self.rest = data[start:] if start < end else b""
        if self.wrong is not None and not found:
            raise self.wrong
        return found

    def feed(self, data):
        """The frames that are complete now, each checked."""
        while found := self.bodies(data):
            data = b""
            yield from map(checked, found)
