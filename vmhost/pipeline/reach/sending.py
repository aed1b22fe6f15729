"""Sending: matches of rules and results of tasks become messages in a queue, and one thread a channel sends them.

A channel's thread reads matches' events from the store, in order, and puts messages for them into the queue, in the
transaction that notes how far it has come: each match is there once, whenever the process ends. Then it sends what is
due, highest priority first. A message is handed over at least once, with the same id each time.
"""

import contextlib
import logging
import threading
import time

from vmhost import ConfigurationError
from vmhost.pipeline import interrupts
from vmhost.pipeline.complex_events import PREFIX, channels_of, rule_of
from vmhost.pipeline.reach import channels as adapters
from vmhost.pipeline.reach import queue
from vmhost.pipeline.reach.audience import audiences
from vmhost.pipeline.reach.channels import ChannelError, NobodyThereError
from vmhost.pipeline.reach.queue import Message, MessageQueue
from vmhost.pipeline.reach.settings import channel_settings, task_settings
from vmhost.stores import StoreError

LOOK_S = 0.1  # how often a wait looks whether Ctrl-C was pressed
_LOOK_S = 0.5
_AT_ONCE = 100  # matches whose messages are stored at once
_AHEAD = 10_000  # messages of a channel in the queue, beyond which matches wait in the store
_SWEEP_MS = 3_600_000
_BACK_MS = 60_000  # by which the clock goes back before it is noticed
_NOBODY_MS = 600_000  # until a message that no page was there for is looked at again; a page that opens has it at once
_log = logging.getLogger("vmhost.pipeline.reach")


class Reach:
    """What a pipeline says of whom it reaches and how: `channels` by name (settings, or functions), `audiences`, what
    becomes of `tasks`' results, the device's `profile`. ConfigurationError for anything that is not there.

    It sends from `start` to `close`; what was not sent is sent after the next start.
    """

    def __init__(self, database, store, clock, *, rules, channels, audience, profile, tasks, functions, host, folder):
        self._database, self._store, self._clock = database, store, clock
        self._rules = rules
        self._identity = database.identity.hex()[:16]
        self._settings = {name: channel_settings(name, said, functions) for name, said in (channels or {}).items()}
        self._audiences = audiences(audience, profile)
        self._tasks = {name: task_settings(name, said) for name, said in (tasks or {}).items()}
        self._check_names()
        self._wake = threading.Condition()
        self._closing = threading.Event()
        self._counts = {name: dict.fromkeys(queue.WORDS, 0) for name in self._settings}
        self.waits = dict.fromkeys(self._settings)  # why a channel waits; None while it does not
        self._busy = dict.fromkeys(self._settings)  # the person whose message is being handed over
        self._woken = dict.fromkeys(self._settings, True)
        self._full = dict.fromkeys(self._settings, False)  # so many messages wait that matches do, in the store
        self._paused_ms = dict.fromkeys(self._settings, 0)
        self._failures = dict.fromkeys(self._settings, 0)
        self._positions, self._threads, self._adapters, self._servers = {}, {}, {}, {}
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
                self._adapters[name] = self._adapter(settings, host, folder)
            self._take_up()
        except BaseException:
            self._close_adapters()
            raise

    # ---- what is said

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
                server = self._servers[settings.target] = page_server(settings.target)
                server.pages.opened = self._opened
            return ToPages(settings, server.pages)
        task = None
        if settings.function is None and settings.kind == "walle_task":
            task = host.load(settings.target)
            self.called.append(task.name)
        return adapter_of(settings, task, folder)

    @property
    def urls(self):
        """Where pages get messages: {address: URL}."""
        return {address: server.url for address, server in self._servers.items()}

    def _take_up(self):
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
        """ConfigurationError where a rule names a channel or an audience that is not there."""
        for rule in rules:
            self._must_be_there(f"rule {rule.name}", (*rule.then, *(rule.timeout or ())), rule.audience)

    def change_rules(self, rules):
        """Goes by these rules (by name) from now on."""
        self._rules = rules
        self.wake()

    def wake(self):
        with self._wake:
            self._woken = dict.fromkeys(self._woken, True)
            self._wake.notify_all()

    def admits(self, task, key):
        """Whether calls of a task that has an audience are for this person."""
        return self._audiences[self._tasks[task]["audience"]].why_not(key) is None

    def targets(self, task):
        """Whether a task has an audience."""
        said = self._tasks.get(task)
        return said is not None and said["audience"] is not None

    def reaches(self, task):
        """Whether a task's results become messages."""
        said = self._tasks.get(task)
        return said is not None and bool(said["then"])

    @contextlib.contextmanager
    def result(self, task, position, key, rows):
        """Within it the rows that a call of `task` gave are to be stored: they become messages, which the same commit
        stores, or one before. Where it raises, they do not."""
        said = self._tasks[task]
        listed = [rows] if isinstance(rows, dict) else rows
        messages = []
        for number, row in enumerate(listed if isinstance(listed, list | tuple) else ()):
            identity = f"{self._identity}:task:{task}:{position}:{number}"
            body = {"id": identity, "key": key, "position": position, "task": task, "row": row}
            messages += self._messages(f"task:{task}", said["then"], identity, key, body, **_but(said, "then"))
        with self._database.lock:  # no commit comes between
            self.queue.offer(messages)
            try:
                yield
            except BaseException:
                self.queue.take_back(messages)
                raise

    def wait(self, timeout_s=None):
        """Waits until what was stored so far is sent, or not to be sent, or waits for longer than `timeout_s`. False
        after `timeout_s`. StoreError."""
        if not self._threads:
            return True
        self._database.flush()
        self.wake()
        position = self._store.durable_position
        until_ms = None if timeout_s is None else self.queue.now_ms() + timeout_s * 1000
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._wake:
                if self._wake.wait_for(lambda: self._is_done(position, until_ms), LOOK_S):
                    return True
            interrupts.check()
            if end_s is not None and time.monotonic() >= end_s:
                return False

    def _is_done(self, position, until_ms):
        for name in self._settings:
            if self._positions[name] < position or self._busy[name] is not None:
                return False
            due_ms = self.queue.next_due_ms(name)
            if due_ms is not None and (until_ms is None or max(due_ms, self._paused_ms[name]) <= until_ms):
                return False
        return True

    def forget(self, key):
        """After their messages were deleted: waits a little for one that is being handed over, and takes their lines
        out of the tracking log."""
        with self._wake:
            self._wake.wait_for(lambda: key not in self._busy.values(), 10.0)
        for adapter in self._adapters.values():
            if isinstance(adapter, adapters.TrackingLog):
                adapter.forget(key)

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
        for adapter in self._adapters.values():
            if hasattr(adapter, "close"):
                adapter.close()

    def statistics(self):
        return {
            name: {what: count for what, count in self._counts[name].items() if count or what in ("sent", "given_up")}
            | {"waits": self.waits[name]}
            for name in self._settings
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
        """Whether there were any events to look at."""
        after, until = self._positions[name], self._store.durable_position
        self._full[name] = after < until and self._ahead(name) >= _AHEAD
        if after >= until or self._full[name]:
            return False
        messages, last = [], until
        for position in self._found(after, until):
            stored = self._store.at(position)
            if stored is not None:
                messages += self._of_match(name, stored)
            if len(messages) >= _AT_ONCE:
                last = position
                break
        with self._database.transaction() as connection:
            self.queue.put(connection, messages)
            connection.execute("UPDATE reach_channels SET position = ? WHERE name = ?", (last, name))
        self._count(name, queue.OUTSIDE, sum(one.outside is not None for one in messages))
        with self._wake:
            self._positions[name] = last
            self._wake.notify_all()
        return True

    def _ahead(self, name):
        with self._database.reader() as connection:
            sql = "SELECT count(*) FROM (SELECT 1 FROM reach_messages WHERE channel = ? AND state = 0 LIMIT ?)"
            return connection.execute(sql, (name, _AHEAD)).fetchone()[0]

    def _found(self, after, until):
        """The positions of matches' events."""
        for head in self._store.heads(after):
            for name, position in zip(head.names, head.positions):
                if after < position <= until and name.startswith(PREFIX):
                    yield position

    def _of_match(self, name, stored):
        event = stored.event
        rule = self._rules.get(rule_of(event.name))
        if rule is None or name not in channels_of(rule, event):
            return ()
        if (
            not isinstance(event.contents, dict) or event.id is None
        ):  # stores of older versions hold events from outside
            self._count(name, queue.GIVEN_UP)
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

    # ---- out of it

    def _run(self, name):
        while not self._closing.is_set():
            try:
                with self._wake:
                    self._woken[name] = False
                self._look_at_the_clock()
                more = self._take_matches(name)
                if self._send_next(name) or more:
                    continue
                self._sweep(name)
                self._rest(name)
            except StoreError as error:
                self.waits[name] = str(error)
                self._closing.wait(_LOOK_S)
            except Exception:
                _log.exception("%s: the channel failed", name)
                self._closing.wait(_LOOK_S)

    def _look_at_the_clock(self):
        with self._wake:
            now_ms, latest_ms = self.queue.now_ms(), self._latest_ms
            back = now_ms < latest_ms - _BACK_MS
            self._latest_ms = now_ms if back else max(latest_ms, now_ms)
        if back:
            _log.warning("the clock went back by %d s", (latest_ms - now_ms) // 1000)
            self._paused_ms = dict.fromkeys(self._settings, 0)
            self._keep(next(iter(self._settings)), self.queue.clock_went_back)
            self.wake()

    def _rest(self, name):
        """Until something new may be there, or a message is due."""
        due_ms = self.queue.next_due_ms(name)
        while not self._closing.is_set() and self.queue.now_ms() >= self._latest_ms - _BACK_MS:
            if due_ms is not None and max(due_ms, self._paused_ms[name]) <= self.queue.now_ms():
                return
            if self._positions[name] < self._store.durable_position and not self._full[name]:
                return
            with self._wake:
                self._wake.notify_all()  # for `wait`
                if self._woken[name]:
                    return
                wait_ms = _LOOK_S * 1000
                if due_ms is not None:
                    wait_ms = max(1, min(wait_ms, max(due_ms, self._paused_ms[name]) - self.queue.now_ms()))
                self._wake.wait(wait_ms / 1000)

    def _sweep(self, name):
        if name == next(iter(self._settings)) and abs(self.queue.now_ms() - self._swept_ms) > _SWEEP_MS:
            self._swept_ms = self.queue.now_ms()
            self.queue.sweep()

    def _send_next(self, name):
        """Whether a message was due."""
        now_ms = self.queue.now_ms()
        if now_ms < self._paused_ms[name]:
            return False
        message = self.queue.next(name)
        if message is None:
            return False
        settings = self._settings[name]
        if now_ms >= message.expires_ms:
            why = f"not sent in time{f': {self.waits[name]}' if self.waits[name] else ''}"
            self._end(name, message, queue.EXPIRED, why)
            return True
        if settings.quiet is not None and message.priority < settings.quiet.urgent:
            until_ms = settings.quiet.until_ms(now_ms)
            if until_ms is not None:
                said = f"quiet hours from {settings.quiet.begin:%H:%M} to {settings.quiet.end:%H:%M}"
                self._hold(name, message, until_ms, said)
                return True
        if message.person:
            for cap in settings.caps:
                if self.queue.sent_since(name, message.person, now_ms - cap.per_ms) >= cap.count:
                    self._end(name, message, queue.CAPPED, f"{cap.count} messages were sent within {cap.said} already")
                    return True
        self._hand_over(name, settings, message)
        return True

    def _hand_over(self, name, settings, message):
        with self._wake:
            self._busy[name] = message.person
        try:
            try:
                given = self._adapters[name].send(message.body)
            except Exception as error:
                self._failed(name, settings, message, error)
            else:
                self._failures[name] = 0
                self.waits[name] = None
                remark = given if isinstance(given, str) and settings.kind != "walle_task" else "taken"
                self._end(name, message, queue.SENT_WORD, remark, self._following(settings, message, given))
        finally:
            with self._wake:
                self._busy[name] = None
                self._wake.notify_all()

    def _following(self, settings, message, given):
        """What a task gave goes on."""
        if settings.kind != "walle_task" or not settings.then or given is None:
            return ()
        identity = f"{message.id}:{settings.name}"
        body = {"id": identity, "key": message.person, "task": settings.name, "row": given, "of": message.id}
        said = message.body.get("message")
        return list(
            self._messages(
                *(f"channel:{settings.name}", settings.then, identity, message.person, body),
                priority=message.priority,
                audience=None,
                expires_ms=None,
                message=given if isinstance(given, dict) and given.keys() & {"title", "text"} else said,
            )
        )

    def _failed(self, name, settings, message, error):
        now_ms, why = self.queue.now_ms(), f"{type(error).__name__}: {error}"
        if isinstance(error, ChannelError):
            why = str(error)
        if isinstance(error, NobodyThereError):
            if settings.kind == "broadcast":
                self._end(name, message, queue.MISSED, why)
            else:
                self._hold(name, message, min(now_ms + _NOBODY_MS, message.expires_ms), why)
            return
        counts = getattr(error, "counts", True)
        tried = message.tries + counts
        if getattr(error, "final", False) or tried >= settings.tries:
            self._failures[name] = 0 if getattr(error, "final", False) else self._failures[name] + 1
            self.waits[name] = why
            self._end(name, message, queue.GIVEN_UP, why)
            _log.error("%s: %s was given up: %s", name, message.id, why)
        else:
            self._failures[name] += 1
            wait_ms = settings.wait_ms(max(tried, 1))
            if (asked_s := getattr(error, "wait_s", None)) is not None:
                wait_ms = max(wait_ms, round(asked_s * 1000))
            due_ms = now_ms + wait_ms
            self.waits[name] = why
            self._keep(name, lambda: self.queue.put_off(name, message, due_ms, queue.RETRY, why, tried=counts))
            self._count(name, queue.RETRY)
        if self._failures[name]:  # a receiver that fails is not asked for each message that waits
            asked_ms = round((getattr(error, "wait_s", None) or 0) * 1000)
            self._paused_ms[name] = self.queue.now_ms() + max(asked_ms, settings.wait_ms(self._failures[name]))

    def _hold(self, name, message, until_ms, why):
        self._keep(name, lambda: self.queue.put_off(name, message, until_ms, queue.HELD, why))
        self._count(name, queue.HELD)

    def _keep(self, name, store):
        """`store()`, again until the store can be written: a message that was handed over is not handed over again
        for a disk that is full."""
        while True:
            try:
                return store()
            except StoreError as error:
                self.waits[name] = str(error)
                if self._closing.wait(_LOOK_S):
                    raise

    def _end(self, name, message, what, why, then=()):
        if self._keep(name, lambda: self.queue.end(name, message, what, why, then)):
            self._count(name, what)
        if then:
            self.wake()

    def _count(self, name, what, n=1):
        self._counts[name][what] += n

    def _opened(self, key):
        """A page of a person is there: what is held for it is due. On the loop's thread, which is not to wait."""
        threading.Thread(target=self._due_now, args=(key,), name="vmhost-reach-opened", daemon=True).start()

    def _due_now(self, key):
        with contextlib.suppress(StoreError):
            for name, settings in self._settings.items():
                if settings.kind == "poplayer":
                    self.queue.due_now(name, key)
            self.wake()


def page_server(address):
    """A PageServer, which wants the extra `web`. ConfigurationError."""
    from vmhost.pipeline.reach.page import PageServer

    return PageServer(address)


def adapter_of(settings, task, folder):
    """What a channel sends with, but for pages; `task` is a walle_task's. ConfigurationError."""
    timeout_s = settings.timeout_ms / 1000
    if settings.function is not None:
        return adapters.Function(settings.function, timeout_s)
    if settings.kind == "push":
        return adapters.Webhook(settings)
    if settings.kind == "walle_task":
        return adapters.TaskCall(task, timeout_s)
    if settings.kind == "ut":
        return adapters.TrackingLog(folder, settings.target)
    return adapters.Log(settings.name)


class ToPages:
    """The channels to `pages` (page.Pages): `poplayer` to those of the message's person, `broadcast` to all."""

    def __init__(self, settings, pages):
        self._kind, self._pages, self._timeout_s = settings.kind, pages, settings.timeout_ms / 1000

    def send(self, message):
        key = message["key"] if self._kind == "poplayer" else None
        count = self._pages.show(self._kind, message, key, self._timeout_s)
        return f"shown by {count} page{'s' if count != 1 else ''}"


def _but(said, key):
    return {name: value for name, value in said.items() if name != key}
