"""The limits of one end of a connection. It announces them, the other end keeps to them; who exceeds one is cut off."""

import sys
from dataclasses import asdict, dataclass, fields

from vmhost.tunnel.errors import TunnelConfigurationError

FRAME_BYTES = 65_536  # of one frame on the wire; larger ones are sent in fragments
FRAGMENT_BYTES = 32_000  # of one fragment: bounds the delay of a small message
CONTAINERS = 250_000  # lists and maps in one frame that came in fragments or packed
GREETING_BYTES = 16_384  # of the first frame
NAME_CHARACTERS = 128  # of a channel or device name
ID_CHARACTERS = 256  # of a message's id
TAKEN_BYTES = 1 << 20  # of messages taken from a store at a time, unless a single one is larger
MAX_EPOCHS = 64  # of one sender that a receiver remembers; more than two copies of a store have on their way
MESSAGE_OVERHEAD = 32  # bytes that a message counts beyond its id and body, in windows
# Bytes of memory that a received message takes beyond its id and body: its tuple and number, its entry in the window,
# and its places in lists; and a frame of messages: its list, and who it is from.
MESSAGE_MEMORY, FRAME_MEMORY = 260, 600


@dataclass(frozen=True)
class Limits:
    """`message_bytes`: of a message, request or answer. `window_bytes`: of unacknowledged messages on one channel.
    `channels`, `requests`, `streams`: open at a time, per connection and direction. `stream_window_bytes`: of a stream,
    sent and not yet read. `fragments_bytes`: of incomplete values."""

    message_bytes: int = 4 << 20
    window_bytes: int = 512 << 10
    channels: int = 64
    requests: int = 256
    streams: int = 32
    stream_window_bytes: int = 256 << 10
    fragments_bytes: int = 8 << 20

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is not int or not 1 <= value < 1 << 31:
                raise TunnelConfigurationError(f"limits: {field.name}: expected 1 to {(1 << 31) - 1}, got {value!r}")

    def as_dict(self):
        """The fields by name."""
        return asdict(self)

    @classmethod
    def announced(cls, announced):
        """The Limits announced by the other end; defaults for what it left out."""
        known = {field.name for field in fields(cls)}
        limits = cls(**{name: value for name, value in announced.items() if name in known})
        return USUAL if limits == USUAL else limits  # one shared object for the usual case


USUAL = Limits()


def memory(messages):
    """The bytes of memory that received messages (number, id, body) of one frame take until they are stored."""
    size = sys.getsizeof
    return FRAME_MEMORY + sum(size(identity) + size(body) + MESSAGE_MEMORY for _, identity, body in messages)
