"""The thread that stores received messages: all that arrive during a transaction go into the next one.

Consumers that write with the transaction share it, so one sync to the disk serves all devices. If a consumer fails, the
transaction is halved until the channels of devices that it fails for are found; these are *held*: their messages are
tried alone, again and again, after those of all others. Callables run on threads, those of one device and channel one
after the other, and those of a device in turn with those of others. A consumer that stores messages elsewhere (`keep`,
such as PostgreSQL) has a thread of its own that does the same. Nothing is acknowledged before it is stored.

A message that a consumer fails for, while it takes messages of others, is the one to blame: after some such tries it
goes to `tunnel_refused`, and its channel goes on. While a consumer fails for all, its messages wait.
"""

import contextlib
import heapq
import itertools
import logging
import queue
import threading
import time
from collections import deque

from vmhost import callbacks
from vmhost.stores import StoreError
from vmhost.tunnel.errors import ConsumerError
from vmhost.tunnel.inbox import Callable
from vmhost.tunnel.turns import Turns

_log = logging.getLogger("vmhost.tunnel")
FIRST_RETRY_S, LONGEST_RETRY_S = 0.1, 30.0
TRIES = 10  # of a message, counted while its consumer takes others
_MAX_ARRIVALS = 5000  # most arrivals in one transaction
_RETRY_THREADS = 2  # for Callables that failed: they may have failed by a time-out
_WAKE = object()


class _Blame:
    """Failures of one message: how often it was tried, and how often that was its own fault. `works`: the consumer's
    `_Works`."""

    __slots__ = ("_seen", "_works", "number", "own", "tries")

    def __init__(self, works, number):
        self._works, self.number = works, number
        self.tries, self.own, self._seen = 0, 0, works.count

    def failed(self):
        """Counts a failure; returns how often the message failed though the consumer works."""
        self.tries += 1
        self.own += self._works.count != self._seen
        self._seen = self._works.count
        return self.own


class _Works:
    """How often a consumer took messages."""

    __slots__ = ("count",)

    def __init__(self):
        self.count = 0


class _Held:
    """A device's channel whose consumer failed. `items`: (ticket, arrival) in order; `most`: how many messages the next
    try takes; `blame`: of the first message, once it was tried alone. It may be empty, after a message was refused."""

    __slots__ = ("blame", "due", "items", "most")

    def __init__(self, items):
        self.items = deque(items)
        self.most = max(1, sum(len(arrival.messages) for _, arrival in items) // 2)
        self.blame, self.due = None, 0.0


class _Line:
    """Messages from one device on one channel for a Callable."""

    __slots__ = ("blame", "items", "running", "waits")

    def __init__(self):
        self.items = deque()
        self.running = False
        self.blame = None  # of the message that failed last, until one is taken
        self.waits = 0  # how often in a row the store could not be written


class Keeper:
    """`done(kept, new)` is called on other threads: `kept` has (ticket, channel, number) of each arrival, `new` is the
    number of new messages. A ticket has an attribute `closed`: retries for closed tickets are dropped. `tries`: after
    how many a message is refused; None: never."""

    def __init__(self, inbox, pushes, done, *, threads=4, tries=TRIES):
        self._inbox, self._pushes, self._done, self._tries = inbox, pushes, done, tries
        self._queue = queue.SimpleQueue()
        self._unwritten, self._unwritten_due, self._unwritten_tries = [], 0.0, 0  # while the store cannot be written
        self._held = {}  # (ticket, channel) -> _Held
        self._works = {}  # consumer -> _Works
        self._lines = {}
        self._lock = threading.Lock()
        self._later, self._order = [], itertools.count()  # heap of (due, order, key, line)
        self._calls = Turns(threads, "tunnel-consumer", max(1, threads // 2))
        self._retries = Turns(_RETRY_THREADS, "tunnel-retry", 1)
        self._closed = False
        self._error = None  # why the last write to the store failed
        self._counts = {"transactions": 0, "retries": 0, "given_up": 0}
        self._called = set()  # Callables
        self._elsewhere = {}  # consumer with a store of its own -> its Keeper
        self._thread = threading.Thread(target=self._run, name="tunnel-keeper", daemon=True)
        self._thread.start()

    def put(self, ticket, arrival):
        """Queues an arrival to be stored."""
        if isinstance(arrival.consumer, Callable):
            self._put_callable(ticket, arrival)
        elif hasattr(arrival.consumer, "keep"):
            self._keeper_of(arrival.consumer).put_here(ticket, arrival)
        else:
            self.put_here(ticket, arrival)

    def put_here(self, ticket, arrival):
        self._queue.put((ticket, arrival))

    def _keeper_of(self, consumer):
        keeper = self._elsewhere.get(consumer)
        if keeper is None:
            keeper = self._elsewhere[consumer] = _ElsewhereKeeper(self._inbox, consumer, self._done, self._tries)
        return keeper

    @property
    def error(self):
        """Why the last write failed, or None."""
        return next((each._error for each in (self, *self._elsewhere.values()) if each._error), None)

    @property
    def counts(self):
        found = dict(self._counts)
        for each in self._elsewhere.values():
            for name, count in each._counts.items():
                found[name] += count
        return found

    def pushed(self, device, channel, number):
        """The device has stored all pushes on the channel up to `number`."""
        self._queue.put((None, (device, channel, number)))

    def _works_of(self, consumer):
        return self._works.get(consumer) or self._works.setdefault(consumer, _Works())

    # ---- consumers that write with the transaction

    def _run(self):
        ending = False
        while not ending:
            items = self._next()
            if None in items:
                ending = True
            fresh, acknowledged = [], []
            for item in items:
                if item is None or item is _WAKE:
                    continue
                ticket, arrival = item
                if ticket is None:
                    acknowledged.append(arrival)
                elif (held := self._held.get((ticket, arrival.channel))) is not None:
                    held.items.append(item)
                else:
                    fresh.append(item)
            try:
                self._write(fresh, acknowledged)
                self._retry_held()
                self._call_due()
            except Exception:  # none is expected
                _log.exception("tunnel: received messages could not be stored")

    def _next(self):
        """All queued items; none if a retry is due. None among them: the end."""
        dues = [held.due for held in self._held.values() if held.items]
        if self._unwritten:
            dues.append(self._unwritten_due)
        with self._lock:
            if self._later:
                dues.append(self._later[0][0])
        timeout, items = None, []
        if dues:
            timeout = max(0.0, min(dues) - time.monotonic())
        with contextlib.suppress(queue.Empty):
            items.append(self._queue.get(timeout=timeout))
            while len(items) < _MAX_ARRIVALS:
                items.append(self._queue.get_nowait())
        return items

    def _write(self, fresh, acknowledged):
        """Writes what came, after what waits for the store."""
        items = self._unwritten + fresh
        if self._unwritten and time.monotonic() < self._unwritten_due:
            self._unwritten = items
            return  # acknowledged pushes are sent again on the next connection; the device recognizes them
        self._unwritten = []
        items = [item for item in items if not item[0].closed] if self._unwritten_tries else items
        self._keep(items, acknowledged)

    def _keep(self, items, acknowledged):
        """Writes in one transaction, or in several if a consumer fails."""
        if not items and not acknowledged:
            return
        try:
            self._commit_and_tell(items, acknowledged)
            return
        except StoreError as error:
            self._cannot_be_written(error)
            self._unwritten += items
            self._unwritten_due = time.monotonic() + _retry_s(self._unwritten_tries)
            self._unwritten_tries += 1
            return
        except Exception as error:
            failure = error
        if acknowledged:
            self._keep([], acknowledged)
        keys = list(dict.fromkeys((ticket, arrival.channel) for ticket, arrival in items))
        if len(keys) == 1:
            self._hold(keys[0], items, failure)
            return
        half = set(keys[: len(keys) // 2])
        for ours in (True, False):
            self._keep([item for item in items if ((item[0], item[1].channel) in half) is ours], [])

    def _commit_and_tell(self, items, acknowledged):
        new = self._commit([arrival for _, arrival in items], acknowledged)
        self._counts["transactions"] += 1
        self._error, self._unwritten_tries = None, 0
        for consumer in {arrival.consumer for _, arrival in items}:
            self._works_of(consumer).count += 1
        if items:
            self._done([(ticket, arrival.channel, arrival.messages[-1][0]) for ticket, arrival in items], new)

    def _commit(self, arrivals, acknowledged):
        """Writes in one transaction; returns how many messages were new."""
        with self._inbox.database.transaction():
            if acknowledged:
                self._pushes.acknowledge(acknowledged)
            return self._inbox.keep(arrivals) if arrivals else 0

    def _cannot_be_written(self, error):
        if self._error is None:
            _log.error("tunnel: received messages wait until the store can be written: %s", error)
        self._error = error
        self._counts["retries"] += 1

    # ---- held channels

    def _hold(self, key, items, error):
        self._held[key] = held = _Held(items)
        if sum(len(arrival.messages) for _, arrival in items) == 1:
            self._failed(held, error)

    def _retry_held(self):
        """Tries the one that is due the longest: what came meanwhile is written before the next."""
        for key in [key for key in self._held if key[0].closed]:
            del self._held[key]
        waiting = [(key, held) for key, held in self._held.items() if held.items]
        key, held = min(waiting, key=lambda each: each[1].due, default=(None, None))
        if held is not None and held.due <= time.monotonic():
            self._retry(key, held)

    def _retry(self, key, held):
        """Tries the first messages: fewer after each failure, until the one that fails is found; more after each
        success, until all are written."""
        ticket, arrival = held.items[0]
        tried = arrival._replace(messages=arrival.messages[: held.most])
        try:
            self._commit_and_tell([(ticket, tried)], [])
        except StoreError as error:
            self._cannot_be_written(error)
            held.due = time.monotonic() + FIRST_RETRY_S
        except Exception as error:
            if len(tried.messages) == 1:
                self._failed(held, error)
            held.most = max(1, len(tried.messages) // 2)
        else:
            held.most *= 2
            self._passed(held, len(tried.messages))
            if not held.items:
                del self._held[key]

    @staticmethod
    def _passed(held, count):
        """The first `count` messages are settled."""
        ticket, arrival = held.items.popleft()
        if rest := arrival.messages[count:]:
            held.items.appendleft((ticket, arrival._replace(messages=rest)))
        held.blame, held.due = None, time.monotonic()

    def _failed(self, held, error):
        """The first message failed alone."""
        ticket, arrival = held.items[0]
        number = arrival.messages[0][0]
        if held.blame is None:
            held.blame = _Blame(self._works_of(arrival.consumer), number)
        if self._is_to_blame(held.blame, arrival, error, "tried"):
            self._inbox.refuse(arrival._replace(messages=arrival.messages[:1]), _why(held.blame, error))
            self._done([(ticket, arrival.channel, number)], 0)
            self._passed(held, 1)
        else:
            held.due = time.monotonic() + _retry_s(held.blame.tries - 1)

    def _is_to_blame(self, blame, arrival, error, what):
        """Counts and logs a failure of a message. Returns whether the message is to be refused."""
        own = blame.failed()
        self._counts["retries"] += 1
        where = f"{arrival.peer or 'the cloud'} on {arrival.channel}"
        if blame.tries == 1:
            _log.error(
                "tunnel: %s: the consumer failed and is %s again: %s: %s", where, what, type(error).__name__, error
            )
        if self._tries is None or own < self._tries:
            return False
        self._counts["given_up"] += 1
        _log.error("tunnel: %s: message %d goes to tunnel_refused: %s", where, blame.number, _why(blame, error))
        return True

    # ---- callables

    def _put_callable(self, ticket, arrival):
        key = ticket, arrival.channel
        with self._lock:
            if self._closed:
                return
            self._called.add(arrival.consumer)
            line = self._lines.setdefault(key, _Line())
            line.items.append(arrival)
            if not line.running:
                line.running = True
                self._submit(key, line)

    def _submit(self, key, line):
        threads = self._calls if line.blame is None else self._retries
        threads.submit(line.items[0].peer, self._call, key, line)

    def _call(self, key, line):
        """Calls the consumer for the first arrival of the line."""
        ticket, channel = key
        with self._lock:
            if not self._goes_on(key, line):
                return
            arrival = line.items[0]
        works = self._works_of(arrival.consumer)

        def gives_up(number, error):
            if self._closed:  # it may have been cancelled
                return None
            if line.blame is None or line.blame.number != number:
                line.blame = _Blame(works, number)
            return _why(line.blame, error) if self._is_to_blame(line.blame, arrival, error, "called") else None

        def took():
            works.count += 1

        try:
            new = self._inbox.call(arrival, gives_up, took)
        except StoreError as error:
            self._cannot_be_written(error)
            self._call_later(key, line, _retry_s(line.waits))
            line.waits += 1
            return
        except ConsumerError:
            if line.blame is not None:
                self._call_later(key, line, _retry_s(line.blame.tries - 1))
            return
        line.blame, line.waits, self._error = None, 0, None
        line.items.popleft()
        self._done([(ticket, channel, arrival.messages[-1][0])], new)
        with self._lock:
            if self._goes_on(key, line):
                self._submit(key, line)

    def _call_later(self, key, line, after_s):
        with self._lock:
            if not self._closed:
                heapq.heappush(self._later, (time.monotonic() + after_s, next(self._order), key, line))
        self._queue.put(_WAKE)

    def _goes_on(self, key, line):
        """Whether the line has work; if not, it is dropped."""
        if not key[0].closed and line.items and not self._closed:
            return True
        line.running = False
        if self._lines.get(key) is line:
            del self._lines[key]
        return False

    def _call_due(self):
        """Runs on the keeper's thread: has lines called again that are due."""
        now = time.monotonic()
        with self._lock:
            while self._later and self._later[0][0] <= now:
                _, _, key, line = heapq.heappop(self._later)
                if self._goes_on(key, line):
                    self._submit(key, line)

    def end(self):
        """From now on no callable is called."""
        with self._lock:
            self._closed = True
            self._later.clear()

    def close(self):
        """Stores what has arrived so far, and ends the threads. Messages that wait for another try are not
        acknowledged, so devices send them again."""
        self.end()
        self._calls.shutdown()
        self._retries.shutdown()
        self._queue.put(None)
        self._thread.join()
        for each in (*self._elsewhere.values(), *self._called):
            try:
                callbacks.call(each.close)
            except Exception:
                _log.exception("tunnel: a consumer could not be closed")


class _ElsewhereKeeper(Keeper):
    """The Keeper of one consumer with a store of its own. Numbers are recorded in the inbox afterwards: after a crash
    in between, messages come again, and the consumer's store recognizes them."""

    def __init__(self, inbox, consumer, done, tries):
        self._consumer = consumer
        super().__init__(inbox, None, done, threads=1, tries=tries)

    def _commit(self, arrivals, acknowledged):
        new = callbacks.call(self._consumer.keep, arrivals)
        self._inbox.keep(arrivals)
        return new

    def close(self):
        super().close()
        callbacks.call(self._consumer.close)


def _why(blame, error):
    return f"failed {blame.tries} times, while others did not: {type(error).__name__}: {error}"


def _retry_s(failures):
    return min(LONGEST_RETRY_S, FIRST_RETRY_S * 2 ** min(failures, 12))
