"""What a `Connection` tells the program that drives it."""

from typing import Any, NamedTuple


class Greeted(NamedTuple):
    """A device told who it is; the cloud answers with `welcome` or `close`."""

    told: dict


class Welcomed(NamedTuple):
    """The cloud took the device in."""

    told: dict


class Received(NamedTuple):
    """`messages`: (number, id, body) in the order of their numbers. When they are kept: `applied(channel, number)`."""

    channel: str
    messages: list


class Acknowledged(NamedTuple):
    """The other end keeps all messages of the channel up to `number`."""

    channel: str
    number: int


class ChannelRefused(NamedTuple):
    """The other end takes no messages on this channel; they stay where they are."""

    channel: str
    why: str


class Requested(NamedTuple):
    """To be answered with `answer` or `fail`. `timeout_s`: how long the other end waits, None: as long as it takes."""

    number: int
    channel: str
    value: Any
    timeout_s: float | None


class Answered(NamedTuple):
    """`error`: None, or why there is no answer. `late`: because it would have taken longer than was asked."""

    number: int
    error: str | None
    value: Any
    late: bool = False


class Cancelled(NamedTuple):
    """The other end no longer waits for the answer to its request."""

    number: int


class StreamOpened(NamedTuple):
    stream: int
    channel: str
    value: Any


class StreamData(NamedTuple):
    stream: int
    data: bytes


class StreamEnded(NamedTuple):
    """The other end writes nothing more. `error`: None, or why it gave up."""

    stream: int
    error: str | None


class StreamWritable(NamedTuple):
    stream: int


class DictionaryCame(NamedTuple):
    channel: str
    number: int
    data: bytes


class Draining(NamedTuple):
    """The other end will close; connect anew after so many seconds, elsewhere if possible."""

    after_s: float
    why: str


class Closed(NamedTuple):
    """The connection is over. `by_peer`: the other end closed it. Send what is left, then close the transport."""

    code: int
    why: str
    by_peer: bool
