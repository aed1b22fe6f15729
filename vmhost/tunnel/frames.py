"""Frames on the wire: a length, then a msgpack array whose first item is the kind (docs/tunnel-protocol.md).

`encode` makes the bytes of one frame; `Decoder` takes bytes in any pieces and returns frames. Frames from the Decoder
have a known kind, the number of fields of that kind, and fields of the right types; numbers are not negative.
"""

import threading

import msgpack

from vmhost.tunnel import arrays
from vmhost.tunnel.errors import ProtocolError
from vmhost.tunnel.limits import CONTAINERS, FRAME_BYTES

VERSION = 2

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
    "EPOCH",
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
    EPOCH,
) = range(len(NAMES))

LATE = 2  # in a RESPONSE: the request's time is over
_VALUES = (type(None), bool, int, float, str, bytes, list, dict)  # types of application values
_HAVE_VALUES = (REQUEST, RESPONSE, OPEN)  # only these frames may have arrays
# The field types of each kind.
_FIELDS = {
    HELLO: (int, dict),  # version, the device's introduction
    WELCOME: (int, dict),  # version, the cloud's answer
    CHANNEL: (int, str, int),  # alias, name, priority
    MESSAGES: (int, list),  # alias, [number, id, body, number, id, body, ...]
    PACKED: (int, int, int, bytes),  # alias, dictionary (0: none), bytes unpacked, the list above as zstd
    FRAGMENT: (int, bool, bytes),  # alias, whether it is the last, a piece of a frame
    ACK: (int, int),  # alias, the last number stored
    REFUSE: (int, str),  # alias, why nothing on this channel is taken
    REQUEST: (int, int, int, _VALUES),  # request, alias, time left in ms (0: no limit), value
    RESPONSE: (int, int, _VALUES),  # request, 0 (answered), 1 (failed) or LATE, value or text
    CANCEL: (int,),  # request
    OPEN: (int, int, _VALUES),  # stream, alias, value
    DATA: (int, bytes),  # stream, bytes
    END: (int, (type(None), str)),  # stream, None or why it broke
    CREDIT: (int, int),  # stream, additional bytes that may be sent
    PING: (int, int),  # number, ms until the next frame at the latest
    PONG: (int,),  # number
    DICTIONARY: (str, int, bytes),  # channel, dictionary's number, its bytes
    DRAIN: (int, str),  # ms after which to reconnect, why
    CLOSE: (int, str),  # code, text
    EPOCH: (int, bytes),  # alias, epoch of the messages that follow on it
}


def _signatures(fields):
    """All tuples of types that frames with these fields may have, so that one lookup checks a whole frame."""
    tuples = [(int,)]
    for each in fields:
        kinds = each if isinstance(each, tuple) else (each,)
        tuples = [(*types, kind) for types in tuples for kind in kinds]
    return frozenset(tuples)


_SIGNATURES = {kind: _signatures(fields) for kind, fields in _FIELDS.items()}


# Positions of the protocol's own numbers, which must not be negative; the application's may be.
_NUMBERS = {kind: tuple(at for at, each in enumerate(fields, 1) if each is int) for kind, fields in _FIELDS.items()}


class _Packers(threading.local):
    def __init__(self):
        self.pack = msgpack.Packer(buf_size=4096, use_bin_type=True, strict_types=False, default=arrays.extension).pack


_packers = _Packers()


def pack(value):
    """`value` as msgpack. TypeError, ValueError, OverflowError: msgpack cannot express it."""
    return _packers.pack(value)


def length(size):
    """The length prefix of a frame of `size` bytes: seven bits per byte, the lowest first."""
    if size < 0x80:
        return bytes((size,))
    if size < 0x4000:
        return bytes((size & 0x7F | 0x80, size >> 7))
    return bytes((size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14))


def encode(*frame):
    """The bytes of a frame, with its length prefix."""
    body = _packers.pack(frame)
    return length(len(body)) + body


class _Counted:
    """Counts the lists and maps of a large frame: an empty one takes 1 byte on the wire, but 70 bytes in memory."""

    def __init__(self):
        self.left = CONTAINERS

    def __call__(self, container):
        self.left -= 1
        if self.left < 0:
            raise ValueError("too many lists and maps")
        return container


def checked(body):
    """The checked frame in `body`, which has no length prefix. ProtocolError."""
    has_value = body[1:2] and body[1] in _HAVE_VALUES  # after the array's header of one byte
    extensions = {"ext_hook": arrays.extended} if has_value else {"max_ext_len": 0}
    try:
        if len(body) > FRAME_BYTES:
            counted = _Counted()
            frame = msgpack.unpackb(body, strict_map_key=False, list_hook=counted, object_hook=counted, **extensions)
        else:
            frame = msgpack.unpackb(body, strict_map_key=False, **extensions)
    except Exception as error:  # msgpack raises many types, such as TypeError for a list as a key
        raise ProtocolError(f"a frame of {len(body)} bytes is not msgpack: {type(error).__name__}") from None
    if type(frame) is not list or not frame:
        raise ProtocolError(f"a frame of {len(body)} bytes is no array with a kind")
    kind = frame[0]
    types = tuple(map(type, frame))
    if has_value and hasattr(types[-1], "dtype"):
        types = (*types[:-1], list)  # an array is a value, as a list is
    if type(kind) is not int or types not in _SIGNATURES.get(kind, ()):
        name = NAMES[kind] if type(kind) is int and 0 <= kind < len(NAMES) else f"kind {str(kind)[:20]}"
        types = ", ".join(type(each).__name__ for each in frame[1:9])
        raise ProtocolError(f"{name}: no frame has these {len(frame) - 1} fields: {types}")
    for at in _NUMBERS[kind]:
        if frame[at] < 0:
            raise ProtocolError(f"{NAMES[kind]}: {frame[at]} is out of range")
    return frame


class Decoder:
    """Takes bytes in pieces of any size, returns frames. `limit`: bytes of one frame, without its length."""

    def __init__(self, limit=FRAME_BYTES):
        self.limit = limit
        self.rest = b""  # the begin of an incomplete frame
        self.wrong = None  # the error that the next `bodies(b"")` raises

    @property
    def pending(self):
        """Bytes of an incomplete frame."""
        return len(self.rest)

    def bodies(self, data, most=1 << 30):
        """The frames that are complete now, still packed, at most `most`. Call it with b"" until it returns none: only
        then it raises ProtocolError for a frame that is too long."""
        if self.rest:
            data = self.rest + data
        found, start, end = [], 0, len(data)
        while start < end and len(found) < most:
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
                break  # after the greeting the limit may be larger
        self.rest = data[start:] if start < end else b""
        if self.wrong is not None and not found:
            raise self.wrong
        return found

    def feed(self, data):
        """The frames that are complete now, each checked."""
        while found := self.bodies(data):
            data = b""
            yield from map(checked, found)
