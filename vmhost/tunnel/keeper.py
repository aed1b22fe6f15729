"""The thread that stores received messages: all that arrive during a transaction go into the next one.

Consumers that write with the transaction share it, so one sync to the disk serves all devices. If the transaction
fails, each channel of each device is tried alone, and those that fail are tried again later; nothing is acknowledged
before it is stored. Callables run on a pool of threads, those of one device and channel one after the other. A consumer
that stores messages elsewhere (`keep`, such as PostgreSQL) has a thread of its own that does the same.
"""

import contextlib
import logging
import queue
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from vmhost.stores import StoreError
from vmhost.tunnel.inbox import Callable

_log = logging.getLogger("vmhost.tunnel")
FIRST_RETRY_S, LONGEST_RETRY_S = 0.1, 30.0
_MAX_ARRIVALS = 5000  # most arrivals in one transaction


class _Line:
    """Messages from one device on one channel for a Callable."""

    __slots__ = ("failures", "items", "running")

    def __init__(self):
        self.items = deque()
        self.running = False
        self.failures = 0


class Keeper:
    """`done(kept, new)` is called on other threads: `kept` has (ticket, channel, number) of each arrival, `new` is the
    number of new messages. A ticket has an attribute `closed`: retries for closed tickets are dropped."""

    def __init__(self, inbox, pushes, done, *, threads=4):
        self._inbox, self._pushes, self._done = inbox, pushes, done
        self._queue = queue.SimpleQueue()
        self._stalled = {}  # (ticket, channel) -> [time of the next try, failures, items]
        self._lines = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tunnel-consumer")
        self._timers = set()
        self._closed = False
        self._error = None  # why the last write to the store failed
        self._counts = {"transactions": 0, "retries": 0}
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
            keeper = self._elsewhere[consumer] = _ElsewhereKeeper(self._inbox, consumer, self._done)
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

    # ---- consumers that write with the transaction

    def _run(self):
        ending = False
        while not ending:
            items = self._next()
            if None in items:
                ending = True
                items = [item for item in items if item is not None]
            fresh, acknowledged = [], []
            for item in items:
                ticket, arrival = item
                if ticket is None:
                    acknowledged.append(arrival)
                elif (stalled := self._stalled.get((ticket, arrival.channel))) is not None:
                    stalled[2].append(item)
                else:
                    fresh.append(item)
            now = time.monotonic()
            failures = {}
            for key, (due, count, waiting) in list(self._stalled.items()):
                if key[0].closed:
                    del self._stalled[key]
                elif due <= now:
                    del self._stalled[key]
                    failures[key] = count
                    fresh += waiting
            try:
                self._keep(fresh, acknowledged, failures)
            except Exception:
                _log.exception("tunnel: received messages could not be stored")

    def _next(self):
        """All queued items; none if a retry is due. None among them: the end."""
        timeout, items = None, []
        if self._stalled:
            timeout = max(0.0, min(due for due, _, _ in self._stalled.values()) - time.monotonic())
        with contextlib.suppress(queue.Empty):
            items.append(self._queue.get(timeout=timeout))
            while len(items) < _MAX_ARRIVALS:
                items.append(self._queue.get_nowait())
        return items

    def _keep(self, items, acknowledged, failures):
        if not items and not acknowledged:
            return
        try:
            new = self._commit([arrival for _, arrival in items], acknowledged)
            self._counts["transactions"] += 1
            self._error = None
            if items:
                self._done([(ticket, arrival.channel, arrival.messages[-1][0]) for ticket, arrival in items], new)
            return
        except StoreError as error:
            if self._error is None:
                _log.error("tunnel: received messages wait until the store can be written: %s", error)
            self._error = error
            for item in items:
                self._stall([item], failures, None)
            return  # acknowledged pushes are sent again on the next connection; the device recognizes them
        except Exception as error:
            alone = error
        keys = {}
        for item in items:
            keys.setdefault((item[0], item[1].channel), []).append(item)
        if len(keys) == 1:
            self._stall(items, failures, alone)
            return
        for each in keys.values():
            self._keep(each, [], failures)
        if acknowledged:
            self._keep([], acknowledged, failures)

    def _commit(self, arrivals, acknowledged):
        """Writes in one transaction; returns how many messages were new."""
        with self._inbox.database.transaction():
            if acknowledged:
                self._pushes.acknowledge(acknowledged)
            return self._inbox.keep(arrivals) if arrivals else 0

    def _stall(self, items, failures, error):
        ticket, arrival = items[0]
        key = ticket, arrival.channel
        if key in self._stalled:
            self._stalled[key][2].extend(items)
            return
        count = failures.get(key, 0)
        if error is not None and not count:
            _log.error(
                "tunnel: %s on %s: the consumer failed and is tried again: %s: %s",
                arrival.peer,
                arrival.channel,
                type(error).__name__,
                error,
            )
        self._counts["retries"] += 1
        self._stalled[key] = [time.monotonic() + _retry_s(count), count + 1, list(items)]

    # ---- callables

    def _put_callable(self, ticket, arrival):
        key = ticket, arrival.channel
        with self._lock:
            if self._closed:
                return
            self._called.add(arrival.consumer)
            line = self._lines.setdefault(key, _Line())
            line.items.append(arrival)
            if line.running:
                return
            line.running = True
            self._pool.submit(self._call, key, line)

    def _call(self, key, line):
        ticket, channel = key
        while True:
            with self._lock:
                if ticket.closed or not line.items or self._closed:
                    line.running = False
                    self._lines.pop(key, None)
                    return
                arrival = line.items[0]
            try:
                new = self._inbox.call(arrival)
            except Exception as error:
                if not line.failures:
                    _log.error(
                        "tunnel: %s on %s: the consumer failed and is called again: %s: %s",
                        arrival.peer,
                        channel,
                        type(error).__name__,
                        error,
                    )
                self._counts["retries"] += 1
                self._call_later(_retry_s(line.failures), key, line)
                line.failures += 1
                return
            line.failures = 0
            line.items.popleft()
            self._done([(ticket, channel, arrival.messages[-1][0])], new)

    def _call_later(self, after_s, key, line):
        def again():
            with self._lock:
                self._timers.discard(timer)
                if self._closed:
                    return
                self._pool.submit(self._call, key, line)

        timer = threading.Timer(after_s, again)
        timer.daemon = True
        with self._lock:
            if self._closed:
                return
            self._timers.add(timer)
        timer.start()

    def close(self):
        """Stores what has arrived so far, and ends the threads. Stalled messages are not acknowledged, so devices send
        them again."""
        with self._lock:
            self._closed = True
            timers, self._timers = self._timers, set()
        for timer in timers:
            timer.cancel()
            if timer.ident is not None:
                timer.join()
        self._pool.shutdown(wait=True)
        self._queue.put(None)
        self._thread.join()
        for each in (*self._elsewhere.values(), *self._called):
            each.close()


class _ElsewhereKeeper(Keeper):
    """The Keeper of one consumer with a store of its own. Numbers are recorded in the inbox afterwards: after a crash
    in between, messages come again, and the consumer's store recognizes them."""

    def __init__(self, inbox, consumer, done):
        self._consumer = consumer
        super().__init__(inbox, None, done, threads=1)

    def _commit(self, arrivals, acknowledged):
        new = self._consumer.keep(arrivals)
        self._inbox.keep(arrivals)
        return new

    def close(self):
        super().close()
        self._consumer.close()


def _retry_s(failures):
    return min(LONGEST_RETRY_S, FIRST_RETRY_S * 2 ** min(failures, 12))
