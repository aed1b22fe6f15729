"""What one end of a connection accepts. It tells the other end, which keeps to it; who exceeds a limit is cut off."""

from dataclasses import asdict, dataclass, fields

from vmhost.tunnel.errors import TunnelConfigurationError

FRAME_BYTES = 65_536  # of one frame on the wire; what is larger travels in fragments
FRAGMENT_BYTES = 32_000  # of one fragment: what a small message may have to wait for
CONTAINERS = 250_000  # lists and maps in one frame that came in fragments or packed
GREETING_BYTES = 16_384  # of the first frame
NAME_CHARACTERS = 128  # of a channel, a device
ID_CHARACTERS = 256  # of a message's id
TAKEN_BYTES = 1 << 20  # of messages that are taken from a store at a time, unless one alone is larger
MESSAGE_OVERHEAD = 32  # bytes that a message counts beyond its body


@dataclass(frozen=True)
class Limits:
    """`message_bytes`: of a message, a request or an answer. `window_bytes`: of messages on one channel that were
    sent and not yet acknowledged. `channels`, `requests`, `streams`: open at a time, of one connection and direction.
    `stream_window_bytes`: of a stream, sent and not yet read. `fragments_bytes`: of values that arrived in part."""

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

    def told(self):
        return asdict(self)

    @classmethod
    def heard(cls, told):
        """The Limits that the other end told; what it did not tell is as usual."""
        known = {field.name for field in fields(cls)}
        heard = cls(**{name: value for name, value in told.items() if name in known})
        return USUAL if heard == USUAL else heard  # one for all connections that have it


USUAL = Limits()
