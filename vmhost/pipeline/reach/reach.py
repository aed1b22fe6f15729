"""Matches of rules and results of tasks become messages in a queue; each channel sends its own on one thread.

A channel's thread reads match events from the store, in order, and queues their messages in the transaction that
stores its new position: each match is queued exactly once, even if the process is killed.
"""

import contextlib
import logging
import threading
import time

from vmhost import ConfigurationError
from vmhost.pipeline import interrupts
from vmhost.pipeline.complex_events import PREFIX, channels_of, rule_of
from vmhost.pipeline.reach import queue
from vmhost.pipeline.reach.audience import audiences
from vmhost.pipeline.reach.channels import ToPages, adapter_of
from vmhost.pipeline.reach.queue import Message, MessageQueue
from vmhost.pipeline.reach.sending import Sender
from vmhost.pipeline.reach.settings import channel_settings, task_settings
from vmhost.stores import StoreError

_INTERRUPT_S = 0.1  # between checks for Ctrl-C
_IDLE_S = 0.5  # longest wait of a channel's thread before it looks for work again
_BATCH = 100  # matches whose messages are queued in one transaction
_AHEAD = 10_000  # queued messages of a channel above which matches stay in the store
_SWEEP_MS = 3_600_000
_BACK_MS = 60_000  # a smaller step back of the clock is ignored
_log = logging.getLogger("vmhost.pipeline.reach")


class Reach:
    """The settings of a pipeline's messages: `channels` by name (settings or functions), `audience`, `tasks` whose
    results become messages, and the device's `profile`. ConfigurationError for a name that does not exist.

    It sends from `start` to `close`; unsent messages are sent after the next start.
    """

    def __init__(self, database, store, clock, *, rules, channels, audience, profile, tasks, functions, host, folder):
        self._database, self._store, self._clock = database, store, clock
        self._rules = rules
        self._identity = database.identity.hex()[:16]
        self._settings = {name: channel_settings(name, data, functions) for name, data in (channels or {}).items()}
        self._audiences = audiences(audience, profile)
        self._tasks = {name: task_settings(name, data) for name, data in (tasks or {}).items()}
        self._check_names()
        self._wake = threading.Condition()
        self._closing = threading.Event()
        self._woken = dict.fromkeys(self._settings, True)
        self._full = dict.fromkeys(self._settings, False)  # the queue is long, so matches stay in the store
        self._positions, self._threads, self._senders, self._servers = {}, {}, {}, {}
        self.queue = None
        self.called = []  # names of tasks that channels call
        if not self._settings:
            return
        longest = max((cap.per_ms for one in self._settings.values() for cap in one.caps), default=0)
        self.queue = MessageQueue(database, clock, longest)
        self._latest_ms = self.queue.now_ms()
        self.queue.offered = self.wake
        self._swept_ms = 0
        try:
            self.queue.clock_went_back()
            for name, settings in self._settings.items():
                self._senders[name] = Sender(
                    *(settings, self._adapter(settings, host, folder), self.queue),
                    messages=self._messages,
                    changed=self._wake,
                    wake=self.wake,
                    closing=self._closing,
                )
            self._load_positions()
        except BaseException:
            self._close_adapters()
            raise

    # ---- settings

    def _check_names(self):
        self.must_have(self._rules.values())
        for name, settings in self._settings.items():
            self._must_be_there(f"channel {name}", settings.then, settings.audience)
        for name, task in self._tasks.items():
            self._must_be_there(f"task {name}", task["then"], task["audience"])
        for name in self._settings:
            seen, left = set(), [name]
            while left:
                for then in self._settings[left.pop()].then:
                    if then == name:
                        raise ConfigurationError(
                            f"channel {name}: `then` leads back to it; its messages would never end"
                        )
                    if then not in seen:
                        seen.add(then)
                        left.append(then)

    def _must_be_there(self, here, channels, audience):
        for name in channels:
            if name not in self._settings:
                there = ", ".join(self._settings) or "none"
                raise ConfigurationError(f"{here}: there is no channel {name!r}; there are {there}")
        if audience is not None and audience not in self._audiences:
            there = ", ".join(self._audiences) or "none"
            raise ConfigurationError(f"{here}: there is no audience {audience!r}; there are {there}")

    def _adapter(self, settings, host, folder):
        if settings.function is None and settings.kind in ("poplayer", "broadcast"):
            server = self._servers.get(settings.target)
            if server is None:
                from vmhost.pipeline.reach.page import PageServer  # needs the extra `web`

                server = self._servers[settings.target] = PageServer(settings.target)
                server.pages.opened = self._opened
            return ToPages(settings, server.pages)
        task = None
        if settings.function is None and settings.kind == "walle_task":
            task = host.load(settings.target)
            self.called.append(task.name)
        return adapter_of(settings, task, folder)

    @property
    def urls(self):
        """The URL that pages of an address get messages from, by address."""
        return {address: server.url for address, server in self._servers.items()}

    def _load_positions(self):
        with self._database.reader() as connection:
            known = dict(connection.execute("SELECT name, position FROM reach_channels"))
        self._positions = {name: known.get(name, self._store.position) for name in self._settings}
        with self._database.transaction() as connection:
            connection.executemany("INSERT OR IGNORE INTO reach_channels VALUES (?, ?)", self._positions.items())

    def start(self):
        for server in self._servers.values():
            server.start()
        for name in self._settings:
            thread = threading.Thread(target=self._run, args=(name,), name=f"vmhost-reach-{name}", daemon=True)
            self._threads[name] = thread
            thread.start()

    # ---- for the pipeline

    def must_have(self, rules):
        """Raises ConfigurationError if a rule names a channel or an audience that does not exist."""
        for rule in rules:
            self._must_be_there(f"rule {rule.name}", (*rule.then, *(rule.timeout or ())), rule.audience)

    def change_rules(self, rules):
        """Replaces the rules, {name: rule}."""
        self._rules = rules
        self.wake()

    def wake(self):
        with self._wake:
            self._woken = dict.fromkeys(self._woken, True)
            self._wake.notify_all()

    def admits(self, task, key):
        """Whether this person is in the task's audience. The task must have one."""
        return self._audiences[self._tasks[task]["audience"]].why_not(key) is None

    def targets(self, task):
        """Whether a task has an audience."""
        settings = self._tasks.get(task)
        return settings is not None and settings["audience"] is not None

    def reaches(self, task):
        """Whether a task's results become messages."""
        settings = self._tasks.get(task)
        return settings is not None and bool(settings["then"])

    @contextlib.contextmanager
    def result(self, task, position, key, rows):
        """A context in which the caller stores the rows that a call of `task` returned. Their messages are stored by
        the same commit or an earlier one; they are withdrawn if the body raises."""
        settings = self._tasks[task]
        listed = [rows] if isinstance(rows, dict) else rows
        messages = []
        for number, row in enumerate(listed if isinstance(listed, list | tuple) else ()):
            identity = f"{self._identity}:task:{task}:{position}:{number}"
            body = {"id": identity, "key": key, "position": position, "task": task, "row": row}
            others = _without(settings, "then")
            messages += self._messages(f"task:{task}", settings["then"], identity, key, body, **others)
        with self._database.lock:  # no commit between `offer` and the body
            self.queue.offer(messages)
            try:
                yield
            except BaseException:
                self.queue.take_back(messages)
                raise

    def wait(self, timeout_s=None):
        """Waits until every match and result stored so far is sent, ended, or due in more than `timeout_s` (in a
        replay: due after its last event). Returns False after `timeout_s`; without one, StoreError while the
        store cannot be written. The channels go on by themselves once it can."""
        if not self._threads:
            return True
        self._database.flush()
        self.wake()
        position = self._store.durable_position
        until_ms = None  # no limit
        if timeout_s is not None or not self.queue.live:
            until_ms = self.queue.ms_after((timeout_s or 0) * 1000)
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._wake:
                if self._wake.wait_for(lambda: self._is_done(position, until_ms), _INTERRUPT_S):
                    return True
            interrupts.check()
            if end_s is None:
                for sender in self._senders.values():
                    if sender.store_error is not None:
                        raise sender.store_error
            elif time.monotonic() >= end_s:
                return False

    def _is_done(self, position, until_ms):
        for name in self._settings:
            if self._positions[name] < position or self._senders[name].busy is not None:
                return False
            due_ms = self.queue.next_due_ms(name)
            if due_ms is not None and (until_ms is None or max(due_ms, self._senders[name].paused_ms) <= until_ms):
                return False
        return True

    def settle(self, key):
        """Waits, up to 10 s, until no message of a person is being sent. The queue has none any more."""
        with self._wake:
            self._wake.wait_for(lambda: all(one.busy != key for one in self._senders.values()), 10.0)

    def close(self):
        self._closing.set()
        self.wake()
        for thread in self._threads.values():
            thread.join()
        self._close_adapters()
        if self.queue is not None:
            self.queue.close()

    def _close_adapters(self):
        for server in self._servers.values():
            server.close()
        for sender in self._senders.values():
            if hasattr(sender.adapter, "close"):
                sender.adapter.close()

    def statistics(self):
        return {
            name: {what: count for what, count in sender.counts.items() if count or what in ("sent", "given_up")}
            | {"waits": sender.waits}
            for name, sender in self._senders.items()
        }

    # ---- into the queue

    def _messages(self, source, then, identity, key, body, priority, audience, expires_ms, message):
        if message is not None:
            body = body | {"message": message}
        for name in then:
            settings = self._settings[name]
            reasons = (self._audiences[one].why_not(key) for one in (audience, settings.audience) if one is not None)
            outside = next((reason for reason in reasons if reason is not None), None)
            expires = settings.expires_ms if expires_ms is None else expires_ms
            yield Message(name, identity, key, source, priority, expires, body, outside)

    def _take_matches(self, name):
        """Queues the messages of new match events. Returns whether there were new events."""
        after, until = self._positions[name], self._store.durable_position
        self._full[name] = after < until and self._ahead(name) >= _AHEAD
        if after >= until or self._full[name]:
            return False
        messages, last = [], until
        for position in self._found(after, until):
            stored = self._store.at(position)
            if stored is not None:
                messages += self._of_match(name, stored)
            if len(messages) >= _BATCH:
                last = position
                break
        with self._database.transaction() as connection:
            self.queue.put(connection, messages)
            connection.execute("UPDATE reach_channels SET position = ? WHERE name = ?", (last, name))
        self._senders[name].count(queue.OUTSIDE, sum(one.outside is not None for one in messages))
        with self._wake:
            self._positions[name] = last
            self._wake.notify_all()
        return True

    def _ahead(self, name):
        with self._database.reader() as connection:
            sql = "SELECT count(*) FROM (SELECT 1 FROM reach_messages WHERE channel = ? AND state = 0 LIMIT ?)"
            return connection.execute(sql, (name, _AHEAD)).fetchone()[0]

    def _found(self, after, until):
        """Yields the positions of match events in (after, until]."""
        for head in self._store.heads(after):
            for name, position in zip(head.names, head.positions):
                if after < position <= until and name.startswith(PREFIX):
                    yield position

    def _of_match(self, name, stored):
        event = stored.event
        rule = self._rules.get(rule_of(event.name))
        if rule is None or name not in channels_of(rule, event):
            return ()
        # older versions accepted outside events under these names
        if not isinstance(event.contents, dict) or event.id is None:
            self._senders[name].count(queue.GIVEN_UP)
            _log.error("%s: the event at %d, %s, is no match; it was given up", name, stored.position, event.name)
            return ()
        identity = f"{self._identity}:{event.id}"
        body = {"id": identity, "key": event.key, "position": stored.position, **event.contents}
        return self._messages(
            *(event.name, (name,), identity, event.key, body),
            priority=rule.priority,
            audience=rule.audience,
            expires_ms=rule.expires_ms,
            message=rule.message,
        )

    # ---- the channels' threads

    def _run(self, name):
        while not self._closing.is_set():
            try:
                with self._wake:
                    self._woken[name] = False
                self._look_at_the_clock()
                more = self._take_matches(name)
                self._senders[name].store_error = None
                if self._senders[name].send_next() or more:
                    continue
                self._sweep(name)
                self._rest(name)
            except StoreError as error:
                self._senders[name].waits, self._senders[name].store_error = str(error), error
                self._closing.wait(_IDLE_S)
            except Exception:
                _log.exception("%s: the channel failed", name)
                self._closing.wait(_IDLE_S)

    def _look_at_the_clock(self):
        with self._wake:
            now_ms, latest_ms = self.queue.now_ms(), self._latest_ms
            back = now_ms < latest_ms - _BACK_MS
            self._latest_ms = now_ms if back else max(latest_ms, now_ms)
        if back:
            _log.warning("the clock went back by %d s", (latest_ms - now_ms) // 1000)
            for sender in self._senders.values():
                sender.paused_ms = 0
            next(iter(self._senders.values())).keep(self.queue.clock_went_back)
            self.wake()

    def _rest(self, name):
        """Waits until there may be new events, a message is due, or `wake` is called."""
        sender, due_ms = self._senders[name], self.queue.next_due_ms(name)
        while not self._closing.is_set() and self.queue.now_ms() >= self._latest_ms - _BACK_MS:
            if due_ms is not None and max(due_ms, sender.paused_ms) <= self.queue.now_ms():
                return
            if self._positions[name] < self._store.durable_position and not self._full[name]:
                return
            with self._wake:
                self._wake.notify_all()  # for `wait`
                if self._woken[name]:
                    return
                wait_ms = _IDLE_S * 1000
                if due_ms is not None:
                    wait_ms = max(1, min(wait_ms, max(due_ms, sender.paused_ms) - self.queue.now_ms()))
                self._wake.wait(wait_ms / 1000)

    def _sweep(self, name):
        if name == next(iter(self._settings)) and abs(self.queue.now_ms() - self._swept_ms) > _SWEEP_MS:
            self._swept_ms = self.queue.now_ms()
            self.queue.sweep()

    def _opened(self, key):
        """Makes held messages due when a page has opened. Called on the page server's loop, which must not block."""
        threading.Thread(target=self._due_now, args=(key,), name="vmhost-reach-opened", daemon=True).start()

    def _due_now(self, key):
        with contextlib.suppress(StoreError):
            for name, settings in self._settings.items():
                if settings.kind == "poplayer":
                    self.queue.due_now(name, key)
            self.wake()


def _without(mapping, key):
    return {name: value for name, value in mapping.items() if name != key}
