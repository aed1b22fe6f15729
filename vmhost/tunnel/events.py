"""The events of a `Connection`, for the program that drives it."""

from typing import Any, NamedTuple


class Greeted(NamedTuple):
    """A device has introduced itself; the cloud answers with `welcome` or `close`."""

    greeting: dict


class Welcomed(NamedTuple):
    """The cloud accepted the device."""

    greeting: dict


class Received(NamedTuple):
    """`messages`: (number, id, body) in order of number. Call `applied(channel, number)` when they are stored."""

    channel: str
    epoch: bytes
    messages: list


class Acknowledged(NamedTuple):
    """The other end has stored all messages of the channel up to `number`."""

    channel: str
    number: int


class ChannelRefused(NamedTuple):
    """The other end takes no messages on this channel; this end keeps them."""

    channel: str
    why: str


class Requested(NamedTuple):
    """A request, for `answer` or `fail`. `timeout_s`: how long the other end waits; None: without limit."""

    number: int
    channel: str
    value: Any
    timeout_s: float | None


class Answered(NamedTuple):
    """`error`: None, or why there is no answer. `late`: the time limit of the request was over."""

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
    """The other end has ended its direction. `error`: None, or why the stream broke."""

    stream: int
    error: str | None


class StreamWritable(NamedTuple):
    stream: int


class DictionaryCame(NamedTuple):
    channel: str
    number: int
    data: bytes


class Draining(NamedTuple):
    """The other end is about to close; reconnect after `after_s`, elsewhere if possible."""

    after_s: float
    why: str


class Closed(NamedTuple):
    """The connection is over. `by_peer`: the other end closed it. Send the remaining bytes, then close the
    transport."""

    code: int
    why: str
    by_peer: bool
