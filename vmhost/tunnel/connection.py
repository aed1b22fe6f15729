"""The protocol of one connection, without I/O: it turns bytes into events, and calls into bytes.

A `Connection` has no socket, store or clock: `receive(data, now)` returns events, `data_to_send(budget)` returns bytes,
`tick(now)` finds out that the other end has been silent for too long. Not thread-safe. Both ends use the same class;
the device says `hello`, the cloud answers with `welcome`.

Everything sent belongs to a *lane*: a channel of one direction, with a priority and a queue. Large frames are sent in
fragments; between two fragments the lane with the best priority (0) goes first. Control frames (acknowledgements,
pings, credit) go before all lanes.

Messages on a channel have increasing numbers, each given out in an epoch (`vmhost.stores.epochs`): the sender's current
one, unless EPOCH says otherwise. The receiver acknowledges the last number that it has stored; the sender has at most
`window_bytes` of unacknowledged messages on a channel. Messages that were not acknowledged when a connection ends are
sent again on the next one.
"""

from collections import deque

from vmhost.tunnel import events, frames
from vmhost.tunnel.errors import MessageTooLargeError, ProtocolError, TunnelConfigurationError, TunnelError
from vmhost.tunnel.heartbeat import Watch
from vmhost.tunnel.limits import (
    FRAGMENT_BYTES,
    FRAME_BYTES,
    GREETING_BYTES,
    ID_CHARACTERS,
    MAX_EPOCHS,
    MESSAGE_OVERHEAD,
    NAME_CHARACTERS,
    USUAL,
    Limits,
)

# Codes of CLOSE: why a connection was closed.
BYE, PROTOCOL, IDENTITY, REPLACED, SILENT, LOST, TROUBLE = range(7)

PRIORITIES = 8  # 0 goes first
USUAL_PRIORITY = 4
_CLOSE_TEXT, _FAILURE_TEXT = 200, 4096  # characters
# Initial bytes of unacknowledged messages. Where a connection is cut again and again, a burst that it does not survive
# would never be acknowledged: a device that sees this starts with less.
FLIGHT_BYTES, SMALLEST_FLIGHT_BYTES = 32_768, 1024


def checked_name(name, what="channel"):
    """Returns `name` if it is a valid one. TunnelConfigurationError."""
    if not isinstance(name, str) or not 1 <= len(name) <= NAME_CHARACTERS or not name.isprintable():
        raise TunnelConfigurationError(
            f"{what}: expected 1 to {NAME_CHARACTERS} printable characters, got {str(name)[:NAME_CHARACTERS]!r}"
        )
    return name


def _sendable(text, characters=_CLOSE_TEXT):
    """A text of the application as frames take it: not too long, without surrogates."""
    return text[:characters].encode(errors="replace").decode()


def _is_epoch(value):
    return type(value) is bytes and 1 <= len(value) <= 32


def cost(identity, body):
    """The bytes that a message counts in the window of its channel."""
    return len(body) + len(identity) + MESSAGE_OVERHEAD


class _Lane:
    """An outgoing channel: frames to be sent, and messages sent but not acknowledged."""

    __slots__ = (
        "alias",
        "epoch",
        "frames",
        "last",
        "name",
        "offset",
        "priority",
        "refused",
        "unacknowledged",
        "window",
    )

    def __init__(self, name, alias, priority, epoch):
        self.name, self.alias, self.priority = name, alias, priority
        self.epoch = epoch  # of the messages offered last
        self.frames = deque()  # packed frames, without their lengths
        self.offset = 0  # bytes of the first frame that were sent in fragments
        self.unacknowledged = deque()  # (number, cost)
        self.window = 0  # their total cost, in bytes
        self.last = 0  # highest number offered
        self.refused = None


class _Incoming:
    """A channel of the other end."""

    __slots__ = ("epoch", "fragments", "last", "name", "pending", "priority", "refused", "window")

    def __init__(self, name, priority, epoch):
        self.name, self.priority = name, priority
        self.epoch = epoch  # of the messages that come next
        self.pending = deque()  # (number, cost) of messages not acknowledged yet
        self.window = 0
        self.last = 0
        self.fragments = None
        self.refused = False


class _Stream:
    __slots__ = ("credit", "granted", "lane", "local_end", "remote_end")

    def __init__(self, lane, credit, granted):
        self.lane = lane
        self.credit = credit  # bytes that this end may send
        self.granted = granted  # bytes that the other end may send
        self.local_end = self.remote_end = False


class Connection:
    """`client`: this is the device's end. `priorities`: {channel: 0 to 7}. `compression`: a `compression.Compression`;
    None: no compression. `heartbeat_s`: the longest silence that the device promises. `flight_bytes`: initial bound of
    unacknowledged message bytes; each acknowledgement doubles it, up to the window."""

    def __init__(
        self,
        *,
        client,
        limits=None,
        priorities=None,
        compression=None,
        heartbeat_s=30.0,
        flight_bytes=FLIGHT_BYTES,
        now=0.0,
    ):
        self.client = client
        self.limits = limits or USUAL
        self.peer_limits = USUAL
        self.compression = compression
        self.open = False  # greeted, and not closed
        self.closed = None  # the event Closed
        self.counts = {"sent_bytes": 0, "received_bytes": 0, "sent_frames": 0, "received_frames": 0}
        self.watch = Watch(client=client, heartbeat_s=heartbeat_s, now=now)
        self._epoch = self._peer_epoch = None  # of the greetings
        self._priorities = priorities or {}
        self._decoder = frames.Decoder(GREETING_BYTES)
        self.has_more = False  # whether received bytes wait for another `receive`
        self._control = []
        self.queued_bytes = 0  # of frames to be sent
        self._acks = {}
        self._lanes = {}
        self._by_alias = []
        self._resumed = None  # channels without a lane yet -> the last number that the other end has
        self._ready = {}  # priority -> lanes with frames; filled lazily, as most connections are idle
        self._ready_bits = 0
        self._incoming = {}
        self._fragments_bytes = 0
        self._flight_bytes = flight_bytes
        self._requests = {}  # our requests: number -> name of the lane
        self._next_request = 0
        self._asked = {}  # the other end's requests: number -> (_Incoming, or None once cancelled; bytes)
        self._asked_bytes = 0
        self._frame_bytes = 0  # of the current frame
        self._streams = {}
        self._next_stream = 0 if client else 1
        self._last_stream = -1
        self._greeted = False
        self._events = []
        self._now = now

    # ---- greeting

    def hello(self, greeting):
        """Sends the device's first frame. `greeting`: a dict (docs/tunnel-protocol.md); limits and heartbeat are
        added."""
        self._epoch = greeting["epoch"]
        greeting = greeting | {"limits": self.limits.as_dict(), "heartbeat_ms": self.watch.promised_ms}
        self._send_control(frames.HELLO, frames.VERSION, greeting)

    def welcome(self, greeting):
        """Sends the cloud's answer to `Greeted`."""
        self._epoch = greeting["epoch"]
        self._send_control(frames.WELCOME, frames.VERSION, greeting | {"limits": self.limits.as_dict()})
        self._greeted = self.open = True
        self._decoder.limit = FRAME_BYTES

    def _greeting(self, version, greeting, expected):
        if version != frames.VERSION:
            raise ProtocolError(f"version {version} of the protocol; this end speaks {frames.VERSION}")
        for key, kinds in expected.items():
            if not isinstance(greeting.get(key), kinds):
                raise ProtocolError(f"the greeting's {key}: {type(greeting.get(key)).__name__} is not allowed")
        for epoch, numbers in [(greeting["epoch"], {}), *greeting["received"].items()]:
            if not _is_epoch(epoch) or type(numbers) is not dict:
                raise ProtocolError("the greeting: expected epochs of 1 to 32 bytes, with channels and numbers")
            for channel, number in numbers.items():
                if type(channel) is not str or type(number) is not int or not 0 <= number < 1 << 63:
                    raise ProtocolError("the greeting's received: expected channels and numbers")
        self._peer_epoch = greeting["epoch"]
        try:
            self.peer_limits = Limits.announced(greeting["limits"])
        except (TypeError, TunnelConfigurationError) as error:
            raise ProtocolError(f"the greeting's limits: {error}") from None

    def _hello(self, version, greeting):
        if self.client or self._greeted:
            raise ProtocolError("unexpected HELLO")
        optional = (type(None),)
        self._greeting(
            version,
            greeting,
            {
                "limits": dict,
                "heartbeat_ms": int,
                "epoch": bytes,
                "received": dict,
                "epochs": (list, *optional),
                "token": (str, *optional),
                "device": (str, *optional),
                "dictionaries": (list, *optional),
            },
        )
        if len(greeting.get("token") or "") > 8192:
            raise ProtocolError("the greeting's token is too long")
        epochs = greeting.get("epochs") or []
        if len(epochs) > MAX_EPOCHS or not all(map(_is_epoch, epochs)):
            raise ProtocolError(f"the greeting's epochs: expected up to {MAX_EPOCHS} of 1 to 32 bytes")
        self.watch.heard_promise(greeting["heartbeat_ms"])
        self._greeted = True
        self._events.append(events.Greeted(greeting))

    def _welcome(self, version, greeting):
        if not self.client or self.open:
            raise ProtocolError("unexpected WELCOME")
        self._greeting(
            version, greeting, {"limits": dict, "epoch": bytes, "received": dict, "time_ms": int, "device": str}
        )
        self._greeted = self.open = True
        self._decoder.limit = FRAME_BYTES
        self._events.append(events.Welcomed(greeting))

    # ---- bytes in

    def receive(self, data, now, most=1 << 30):
        """Takes bytes of the other end, and handles `most` frames at most: `has_more` tells whether to call it again,
        with b"". Returns the resulting events. After `Closed` it takes nothing."""
        self.has_more = False
        if self.closed:
            return []
        self._now = now
        self.watch.heard(now)
        self.counts["received_bytes"] += len(data)
        found = self._events = []
        try:
            decoder = self._decoder
            while bodies := decoder.bodies(data, most):
                data = b""
                most -= len(bodies)
                self.counts["received_frames"] += len(bodies)
                for body in bodies:
                    frame = frames.checked(body)
                    self._frame_bytes = len(body)
                    if self.open:
                        _HANDLERS[frame[0]](self, *frame[1:])
                    else:
                        self._before_greeting(frame)
                    if self.closed:
                        return found
                if not decoder.rest and decoder.wrong is None:
                    break
                if most <= 0:
                    self.has_more = True
                    break
        except ProtocolError as error:
            self.close(PROTOCOL, str(error))
        except TunnelError as error:  # a value that could not be sent back
            self.close(TROUBLE, str(error))
        finally:
            self._events = []  # the caller owns the events; an idle connection holds none
        return found

    def _before_greeting(self, frame):
        kind = frame[0]
        if kind not in (frames.HELLO, frames.WELCOME, frames.CLOSE):
            raise ProtocolError(f"{frames.NAMES[kind]} before the greeting")
        _HANDLERS[kind](self, *frame[1:])

    def _of(self, alias):
        try:
            return self._incoming[alias]
        except KeyError:
            raise ProtocolError(f"channel number {alias} was not introduced") from None

    def _channel(self, alias, name, priority):
        if alias != len(self._incoming) or priority >= PRIORITIES:
            raise ProtocolError(f"CHANNEL {alias} with priority {priority} is not allowed")
        if len(self._incoming) >= self.limits.channels:
            raise ProtocolError(f"more than {self.limits.channels} channels")
        try:
            checked_name(name)
        except TunnelConfigurationError as error:
            raise ProtocolError(str(error)) from None
        self._incoming[alias] = _Incoming(name, priority, self._peer_epoch)

    def _epoch_begins(self, alias, epoch):
        if not _is_epoch(epoch):
            raise ProtocolError(f"EPOCH of {len(epoch)} bytes; expected 1 to 32")
        self._of(alias).epoch = epoch

    def _fragment(self, alias, last, piece):
        channel = self._of(alias)
        if channel.fragments is None:
            channel.fragments = bytearray()
        self._fragments_bytes += len(piece)
        limit = self.limits.message_bytes + FRAME_BYTES
        if len(channel.fragments) + len(piece) > limit or not piece:
            raise ProtocolError(f"a frame in fragments of more than {limit} bytes, or an empty fragment")
        if self._fragments_bytes > self.limits.fragments_bytes + limit:
            raise ProtocolError(f"more than {self.limits.fragments_bytes} bytes in fragments")
        channel.fragments += piece
        if last:
            whole, channel.fragments = bytes(channel.fragments), None
            self._fragments_bytes -= len(whole)
            self._frame_bytes = len(whole)
            self._inner(frames.checked(whole), (frames.FRAGMENT,))

    def _packed(self, alias, dictionary, size, data):
        self._of(alias)
        limit = self.limits.message_bytes + FRAME_BYTES
        if self.compression is None or size > limit:
            raise ProtocolError(f"a packed frame of {size} bytes; the limit is {limit}")
        self._frame_bytes = size
        self._inner(frames.checked(self.compression.unpack(data, dictionary, size)), (frames.FRAGMENT, frames.PACKED))

    def _inner(self, frame, refused):
        if frame[0] in (*refused, frames.HELLO, frames.WELCOME, frames.CHANNEL):
            raise ProtocolError(f"{frames.NAMES[frame[0]]} within another frame")
        _HANDLERS[frame[0]](self, *frame[1:])

    # ---- messages

    def _messages(self, alias, flat):
        channel = self._of(alias)
        if len(flat) % 3 or not flat:
            raise ProtocolError("MESSAGES: expected number, id and body of each")
        messages, last, window, limit = [], channel.last, channel.window, self.limits.window_bytes
        pending = channel.pending
        for at in range(0, len(flat), 3):
            message = number, identity, body = tuple(flat[at : at + 3])
            if type(number) is not int or type(identity) is not str or type(body) is not bytes:
                raise ProtocolError("MESSAGES: expected a number, a text and bytes for each")
            if not last < number < 1 << 63 or len(identity) > ID_CHARACTERS:
                raise ProtocolError(f"MESSAGES: number {number} after {last}, an id of {len(identity)} characters")
            if len(body) > self.limits.message_bytes:
                raise ProtocolError(f"a message of {len(body)} bytes; the limit is {self.limits.message_bytes}")
            size = cost(identity, body)
            if window and window + size > limit:
                raise ProtocolError(f"channel {channel.name}: more than {limit} bytes are not acknowledged")
            window += size
            last = number
            pending.append((number, size))
            messages.append(message)
        channel.last, channel.window = last, window
        if not channel.refused:
            self._events.append(events.Received(channel.name, channel.epoch, messages))

    def applied(self, channel, number):
        """Acknowledges the messages of the channel up to `number`, which are stored."""
        for alias, incoming in self._incoming.items():
            if incoming.name == channel:
                pending = incoming.pending
                while pending and pending[0][0] <= number:
                    incoming.window -= pending.popleft()[1]
                if incoming.last >= number and not self.closed:
                    self._acks[alias] = number

    def refuse(self, channel, why):
        """Takes nothing more on this channel of this connection; the other end keeps the messages."""
        for alias, incoming in self._incoming.items():
            if incoming.name == channel and not incoming.refused:
                incoming.refused = True
                self._send_control(frames.REFUSE, alias, _sendable(why))

    def _refuse(self, alias, why):
        if alias >= len(self._by_alias):
            raise ProtocolError(f"REFUSE of channel number {alias}, which was not introduced")
        lane = self._by_alias[alias]
        if lane.refused is None:
            lane.refused = why[:_CLOSE_TEXT]
            self._events.append(events.ChannelRefused(lane.name, lane.refused))

    def _ack(self, alias, number):
        if alias >= len(self._by_alias) or number > self._by_alias[alias].last:
            raise ProtocolError(f"ACK of {number} on channel number {alias}, which was not sent")
        lane = self._by_alias[alias]
        waiting = lane.unacknowledged
        while waiting and waiting[0][0] <= number:
            lane.window -= waiting.popleft()[1]
        self._flight_bytes = min(self.peer_limits.window_bytes, self._flight_bytes * 2)
        self._events.append(events.Acknowledged(lane.name, number))

    @property
    def _flight_limit(self):
        # Our own window counts too: unacknowledged messages are in our memory, and the other end may announce any
        # window.
        return min(self._flight_bytes, self.peer_limits.window_bytes, self.limits.window_bytes)

    def resume(self, channel, number):
        """The other end has everything up to `number`: offers start after it. The channel is introduced only when
        something is offered, as a device may have used more channels in its life than may be open."""
        lane = self._lanes.get(channel)
        if lane is not None:
            lane.last = max(lane.last, number)
        else:
            self._resumed = self._resumed or {}
            self._resumed[channel] = max(number, self._resumed.get(channel, 0))

    def positions(self):
        """{channel: (highest number offered, whether there is room)}."""
        limit = self._flight_limit
        found = {name: (number, True) for name, number in (self._resumed or {}).items()}
        for name, lane in self._lanes.items():
            found[name] = lane.last, lane.refused is None and lane.window < limit
        return found

    def unacknowledged(self):
        """The number of messages that were sent and not acknowledged."""
        return sum(len(lane.unacknowledged) for lane in self._lanes.values())

    def offer(self, channel, messages, epoch=None):
        """Sends messages (number, id, body) in order of number, as far as there is room; returns how many. `epoch`: the
        one in which their numbers were given out; None: the one of the greeting. TunnelError where the other end takes
        no more channels, MessageTooLargeError if the first one is larger than it takes."""
        lane = self._lane(channel)
        if lane.refused is not None:
            return 0
        if (epoch or self._epoch) != lane.epoch:
            lane.epoch = epoch or self._epoch
            self._queue(lane, frames.pack((frames.EPOCH, lane.alias, lane.epoch)))
        limit, flat, size, count = self._flight_limit, [], 0, 0
        batch = min(FRAGMENT_BYTES, limit)
        for number, identity, body in messages:
            if len(body) > self.peer_limits.message_bytes or len(identity) > ID_CHARACTERS:
                if count:
                    break  # those before go first
                raise MessageTooLargeError(
                    f"channel {channel}: a message of {len(body)} bytes; the other end takes "
                    f"{self.peer_limits.message_bytes}"
                )
            message_cost = cost(identity, body)
            if lane.window and lane.window + message_cost > limit:
                break
            if size and size + message_cost > batch:
                self._queue_messages(lane, flat)
                flat, size = [], 0
            flat += (number, identity, body)
            size += message_cost
            lane.last = number
            lane.window += message_cost
            lane.unacknowledged.append((number, message_cost))
            count += 1
        if flat:
            self._queue_messages(lane, flat)
        if count:
            self.watch.expect(self._now)
        return count

    def _queue_messages(self, lane, flat):
        body = frames.pack((frames.MESSAGES, lane.alias, flat))
        if self.compression is not None:
            packed = self.compression.pack(lane.name, body)
            if packed is not None:
                dictionary, data = packed
                body = frames.pack((frames.PACKED, lane.alias, dictionary, len(body), data))
        self._queue(lane, body)

    # ---- requests

    def request(self, channel, value, timeout_s=None):
        """Sends a request; returns its number. TypeError, ValueError, OverflowError: msgpack cannot express the value.
        TunnelError: the request is too large, or too many wait."""
        if len(self._requests) >= self.peer_limits.requests:
            raise TunnelError(f"{len(self._requests)} requests wait for answers; the other end takes no more at a time")
        lane = self._lane(channel)
        number = self._next_request
        left_ms = 0 if timeout_s is None else max(1, int(timeout_s * 1000))
        body = frames.pack((frames.REQUEST, number, lane.alias, left_ms, value))
        if len(body) > self.peer_limits.message_bytes:
            raise TunnelError(f"a request of {len(body)} bytes; the other end takes {self.peer_limits.message_bytes}")
        self._next_request += 1
        self._requests[number] = lane
        self._queue(lane, body)
        self.watch.expect(self._now)
        return number

    def cancel(self, number):
        """Cancels a request whose answer is no longer wanted."""
        if self._requests.pop(number, None) is not None:
            self._send_control(frames.CANCEL, number)

    def _request(self, number, alias, left_ms, value):
        channel = self._of(alias)
        if number in self._asked:
            raise ProtocolError(f"REQUEST {number} twice")
        if len(self._asked) >= self.limits.requests:
            self._send_control(frames.RESPONSE, number, 1, f"{self.limits.requests} requests wait already")
            return
        size = self._frame_bytes
        if self._asked_bytes and self._asked_bytes + size > self.limits.fragments_bytes:
            self._send_control(frames.RESPONSE, number, 1, f"requests of {self._asked_bytes} bytes wait already")
            return
        self._asked[number] = channel, size
        self._asked_bytes += size
        self._events.append(events.Requested(number, channel.name, value, left_ms / 1000 if left_ms else None))

    def _cancel(self, number):
        channel, size = self._asked.get(number, (None, 0))
        if channel is not None:
            self._asked[number] = None, size  # its value stays in memory until the program forgets it
            self._events.append(events.Cancelled(number))

    def answer(self, number, value):
        """Answers a request of the other end; does nothing if it was cancelled or answered. TypeError, ValueError or
        OverflowError if msgpack cannot express the value; the caller may then call `fail`."""
        channel, _ = self._asked.get(number, (None, 0))
        body = None if channel is None else frames.pack((frames.RESPONSE, number, 0, value))
        self.forget_request(number)
        if channel is None or self.closed:
            return
        if len(body) > self.peer_limits.message_bytes:
            body = frames.pack((frames.RESPONSE, number, 1, f"the answer has {len(body)} bytes, which is too large"))
        self._reply(channel, number, body)

    def _reply(self, channel, number, body):
        try:
            lane = self._lane(channel.name, channel.priority)
        except TunnelError as error:  # no more channels
            self._send_control(frames.RESPONSE, number, 1, str(error))
        else:
            self._queue(lane, body)

    def forget_request(self, number):
        """Gives its room back to a request that is answered, failed or cancelled, and whose work has ended."""
        channel, size = self._asked.pop(number, (None, 0))
        self._asked_bytes -= size
        return channel

    def fail(self, number, why, late=False, *, ended=True):
        """Tells the other end why its request has no answer. `late`: its time is over. Not `ended`: the request keeps
        its room until `forget_request`, as somebody may still work on it."""
        channel, size = self._asked.get(number, (None, 0))
        if ended:
            self.forget_request(number)
        elif channel is not None:
            self._asked[number] = None, size
        if channel is not None and not self.closed:
            self._reply(
                channel,
                number,
                frames.pack((frames.RESPONSE, number, frames.LATE if late else 1, _sendable(why, _FAILURE_TEXT))),
            )

    def _response(self, number, failed, value):
        if number >= self._next_request:
            raise ProtocolError(f"RESPONSE to request {number}, which was never sent")
        if self._requests.pop(number, None) is not None:  # else it was cancelled
            error, answer = (str(value), None) if failed else (None, value)
            self._events.append(events.Answered(number, error, answer, failed == frames.LATE))

    # ---- streams

    def open_stream(self, channel, value=None):
        """Opens a stream on the channel; returns its number."""
        if len(self._streams) >= self.peer_limits.streams:
            raise TunnelError(f"{len(self._streams)} streams are open; the other end takes no more at a time")
        lane = self._lane(channel)
        number = self._next_stream
        body = frames.pack((frames.OPEN, number, lane.alias, value))
        if len(body) > FRAME_BYTES:
            raise TunnelError(f"a stream's first value has {len(body)} bytes; at most {FRAME_BYTES}")
        self._next_stream += 2
        self._streams[number] = _Stream(lane, self.peer_limits.stream_window_bytes, self.limits.stream_window_bytes)
        self._queue(lane, body)
        return number

    def _open(self, number, alias, value):
        channel = self._of(alias)
        if number % 2 == (0 if not self.client else 1) and number > self._last_stream:
            self._last_stream = number
        else:
            raise ProtocolError(f"OPEN of stream {number}, which is not next")
        if len(self._streams) >= self.limits.streams:
            self._send_control(frames.END, number, f"{self.limits.streams} streams are open already")
            return
        lane = self._lane(channel.name, channel.priority)
        self._streams[number] = _Stream(lane, self.peer_limits.stream_window_bytes, self.limits.stream_window_bytes)
        self._events.append(events.StreamOpened(number, channel.name, value))

    def write_stream(self, number, data):
        """Sends as much of `data` as the other end has room for; returns the bytes. StreamWritable announces new
        room."""
        stream = self._streams.get(number)
        if stream is None or stream.local_end:
            raise TunnelError(f"stream {number} is closed")
        size = min(len(data), stream.credit)
        stream.credit -= size
        for at in range(0, size, FRAGMENT_BYTES - 64):
            piece = bytes(data[at : min(size, at + FRAGMENT_BYTES - 64)])
            self._queue(stream.lane, frames.pack((frames.DATA, number, piece)))
        return size

    def end_stream(self, number, error=None):
        """Ends the writing direction. With `error` both directions end."""
        stream = self._streams.get(number)
        if stream is None or stream.local_end:
            return
        stream.local_end = True
        self._queue(stream.lane, frames.pack((frames.END, number, error and _sendable(error))))
        if error is not None or stream.remote_end:
            del self._streams[number]

    def consumed(self, number, size):
        """The program has read `size` bytes of a stream: the other end may send that many more."""
        stream = self._streams.get(number)
        if stream is not None and not stream.remote_end and size:
            stream.granted += size
            self._send_control(frames.CREDIT, number, size)

    def _data(self, number, data):
        stream = self._streams.get(number)
        if stream is None:
            self._known_stream(number)
            return
        if stream.remote_end or not 0 < len(data) <= stream.granted:
            raise ProtocolError(f"stream {number}: {len(data)} bytes; {stream.granted} are allowed")
        stream.granted -= len(data)
        self._events.append(events.StreamData(number, data))

    def _known_stream(self, number):
        """Late frames of a stream that we ended are dropped; frames of one that never existed are an error."""
        ours = number % 2 == (0 if self.client else 1)
        if number >= self._next_stream if ours else number > self._last_stream:
            raise ProtocolError(f"stream {number} was not opened")

    def _end(self, number, error):
        stream = self._streams.get(number)
        if stream is None:
            self._known_stream(number)
            return
        if stream.remote_end:
            raise ProtocolError(f"END of stream {number} twice")
        stream.remote_end = True
        if error is not None or stream.local_end:
            del self._streams[number]
        self._events.append(events.StreamEnded(number, error))

    def _credit(self, number, size):
        stream = self._streams.get(number)
        if stream is None:
            self._known_stream(number)
            return
        if stream.credit + size > self.peer_limits.stream_window_bytes:
            raise ProtocolError(f"stream {number}: credit beyond the window")
        stream.credit += size
        self._events.append(events.StreamWritable(number))

    # ---- liveness and closing

    def _ping(self, number, promise_ms):
        if not self.client:
            self.watch.heard_promise(promise_ms)
        self._send_control(frames.PONG, number)

    def _pong(self, number):
        self.watch.pong(number, self._now)

    def tick(self, now):
        """Called at `next_tick()` or later; returns the resulting events. `Closed` with SILENT: the other end does not
        answer."""
        if self.closed or (self.client and not self.open):  # until the welcome, the driver's own time limit applies
            return []
        self._now = now
        expecting = bool(self._requests) or any(lane.unacknowledged for lane in self._lanes.values())
        what = self.watch.tick(now, expecting)
        if what == "ping":
            self._send_control(frames.PING, self.watch.ping_number, self.watch.promised_ms)
        elif what == "silent":
            self.closed = events.Closed(SILENT, f"nothing was heard for {now - self.watch.last_heard:.1f} s", False)
            self.open = False
            return [self.closed]
        return []

    def next_tick(self):
        return self.watch.next_tick()

    def probe(self, now):
        """Pings now, for example after the machine woke up."""
        self._now = now
        if self.open and self.watch.probe(now):
            self._send_control(frames.PING, self.watch.ping_number, self.watch.promised_ms)

    def send_dictionary(self, channel, number, data):
        """TunnelError if the other end takes no more channels, or nothing of this size."""
        if len(data) > self.peer_limits.message_bytes:
            raise TunnelError(
                f"a dictionary of {len(data)} bytes; the other end takes {self.peer_limits.message_bytes}"
            )
        body = frames.pack((frames.DICTIONARY, channel, number, data))
        self._queue(self._lane(channel), body)

    def _dictionary(self, channel, number, data):
        if not self.client:
            raise ProtocolError("DICTIONARY from a device")
        if not 0 < number < 1 << 31:
            raise ProtocolError(f"DICTIONARY {number}: expected a number from 1 to {(1 << 31) - 1}")
        self._events.append(events.DictionaryCame(channel, number, data))

    def drain(self, after_s, why):
        """Asks the other end to reconnect after this time."""
        if self.open:
            self._send_control(frames.DRAIN, int(after_s * 1000), _sendable(why))

    def _drain(self, after_ms, why):
        self._events.append(events.Draining(min(after_ms, 3_600_000) / 1000, why[:_CLOSE_TEXT]))

    def close(self, code=BYE, why=""):
        """Closes the connection; `data_to_send` returns the last bytes."""
        if self.closed:
            return
        self._send_control(frames.CLOSE, code, _sendable(why))
        self.open = False
        self.closed = events.Closed(code, why, False)
        self._events.append(self.closed)

    def _close(self, code, why):
        self.open = False
        self.closed = events.Closed(code, why[:_CLOSE_TEXT], True)
        self._events.append(self.closed)

    def lost(self, why):
        """The transport was closed or lost."""
        if not self.closed:
            self.open = False
            self.closed = events.Closed(LOST, why, False)

    # ---- bytes out

    def _send_control(self, *frame):
        data = frames.encode(*frame)
        self._control.append(data)
        self.queued_bytes += len(data)

    def _lane(self, name, priority=None):
        lane = self._lanes.get(name)
        if lane is None:
            if len(self._lanes) >= self.peer_limits.channels:
                raise TunnelError(f"channel {name}: the other end takes {self.peer_limits.channels} channels")
            priority = self._priorities.get(name, USUAL_PRIORITY if priority is None else priority)
            lane = self._lanes[checked_name(name)] = _Lane(name, len(self._by_alias), priority, self._epoch)
            if self._resumed:
                lane.last = self._resumed.pop(name, 0)
            self._by_alias.append(lane)
            self._send_control(frames.CHANNEL, lane.alias, name, priority)
        return lane

    def _queue(self, lane, body):
        if not lane.frames:
            ready = self._ready.get(lane.priority)
            if ready is None:
                ready = self._ready[lane.priority] = deque()
            ready.append(lane)
            self._ready_bits |= 1 << lane.priority
        lane.frames.append(body)
        self.queued_bytes += len(body)

    @property
    def has_data(self):
        return bool(self._control or self._acks or self._ready_bits)

    def data_to_send(self, budget=32_768):
        """The next bytes: control frames, then frames by priority, until there are `budget` bytes or more."""
        parts = self._control
        if parts:
            self._control = []
            self.queued_bytes -= sum(map(len, parts))
        else:
            parts = []
        if self._acks:
            parts += [frames.encode(frames.ACK, alias, number) for alias, number in self._acks.items()]
            self._acks.clear()
        count = len(parts)
        size = sum(map(len, parts)) if count > 1 else 0
        while self._ready_bits and size < budget:
            priority = (self._ready_bits & -self._ready_bits).bit_length() - 1
            ready = self._ready[priority]
            lane = ready.popleft()
            body = lane.frames[0]
            if len(body) <= FRAGMENT_BYTES:
                lane.frames.popleft()
                self.queued_bytes -= len(body)
                parts.append(frames.length(len(body)))
                parts.append(body)
                size += len(body)
            else:
                end = lane.offset + FRAGMENT_BYTES
                last = end >= len(body)
                parts.append(frames.encode(frames.FRAGMENT, lane.alias, last, body[lane.offset : end]))
                size += len(parts[-1])
                lane.offset = 0 if last else end
                if last:
                    lane.frames.popleft()
                    self.queued_bytes -= len(body)
            count += 1
            if lane.frames:
                ready.append(lane)
            elif not ready:
                self._ready_bits &= ~(1 << priority)
        if not parts:
            return b""
        data = b"".join(parts)
        self.counts["sent_bytes"] += len(data)
        self.counts["sent_frames"] += count
        self.watch.sent(self._now)
        return data


# By kind. One table for all connections, as there may be many.
_HANDLERS = {
    frames.MESSAGES: Connection._messages,
    frames.ACK: Connection._ack,
    frames.REQUEST: Connection._request,
    frames.RESPONSE: Connection._response,
    frames.FRAGMENT: Connection._fragment,
    frames.PACKED: Connection._packed,
    frames.CHANNEL: Connection._channel,
    frames.REFUSE: Connection._refuse,
    frames.CANCEL: Connection._cancel,
    frames.OPEN: Connection._open,
    frames.DATA: Connection._data,
    frames.END: Connection._end,
    frames.CREDIT: Connection._credit,
    frames.PING: Connection._ping,
    frames.PONG: Connection._pong,
    frames.DICTIONARY: Connection._dictionary,
    frames.DRAIN: Connection._drain,
    frames.CLOSE: Connection._close,
    frames.EPOCH: Connection._epoch_begins,
    frames.HELLO: Connection._hello,
    frames.WELCOME: Connection._welcome,
}
