"""What sends matches to channels: one thread a channel reads their events from the store, in order, and notes how far
it has come. A message is handed over at least once; its id is the same each time.

A message that a channel does not take is tried again, after 1, 2, 4 … seconds, TRIES times; then it is given up, which
is logged and counted, and the next one comes.
"""

import logging
import threading

from vmhost import ConfigurationError
from vmhost.pipeline.complex_events import PREFIX, channels_of, rule_of
from vmhost.pipeline.reach.channels import ChannelError, channel
from vmhost.stores import StoreError

TRIES = 6
_LOOK_S = 0.5
_AT_ONCE = 100  # messages, after which it is noted how far a channel has come
STEPS = ("CREATE TABLE reach_channels (name TEXT PRIMARY KEY, position INTEGER NOT NULL) WITHOUT ROWID",)
_log = logging.getLogger("vmhost.pipeline.reach")


def message_of(stored):
    """What a channel gets of a match's StoredEvent."""
    event = stored.event
    return {"id": event.id, "key": event.key, "position": stored.position, **event.contents}


class Sending:
    """Sends what `rules` (by name) match to `channels` (name: function), from the durable events in `store`.

    `wake` is called when there may be something new; `close` ends it: what was not sent is sent after the next start.
    """

    def __init__(self, database, store, rules, channels):
        self._database, self._store, self._rules = database, store, rules
        self._wake = threading.Condition()
        self._closing = threading.Event()
        self.sent = dict.fromkeys(channels, 0)
        self.given_up = dict.fromkeys(channels, 0)
        self.waits = dict.fromkeys(channels)  # why a channel waits; None while it does not
        self._positions, self._threads = {}, []
        if not channels:
            return
        database.migrate("pipeline.reach", STEPS)
        with database.reader() as connection:
            known = dict(connection.execute("SELECT name, position FROM reach_channels"))
        self._positions = {name: known.get(name, store.position) for name in channels}
        with database.transaction() as connection:
            rows = list(self._positions.items())
            connection.executemany("INSERT OR IGNORE INTO reach_channels VALUES (?, ?)", rows)
        self._threads = [
            threading.Thread(target=self._run, args=(name, send), name=f"vmhost-reach-{name}", daemon=True)
            for name, send in channels.items()
        ]
        for thread in self._threads:
            thread.start()

    @classmethod
    def of(cls, database, store, complex_events, settings, functions):
        """Of settings by name (channels.py), or functions. ConfigurationError, also for a channel that a rule names and
        that is not there."""
        rules = {} if complex_events is None else complex_events.rules
        channels = {
            name: said if callable(said) else channel(name, said, functions) for name, said in (settings or {}).items()
        }
        _must_have(channels, rules.values())
        return cls(database, store, rules, channels)

    def must_have(self, rules):
        """ConfigurationError where a rule names a channel that is not there."""
        _must_have(self.sent, rules)

    def change_rules(self, rules):
        """Goes by these rules (by name) from now on."""
        self._rules = rules
        self.wake()

    def wake(self):
        with self._wake:
            self._wake.notify_all()

    def wait(self, timeout_s=None):
        """Waits until all that was stored so far is sent or given up. False after `timeout_s`. StoreError."""
        if not self._threads:
            return True
        self._database.flush()
        self.wake()
        position = self._store.durable_position
        with self._wake:
            return self._wake.wait_for(lambda: min(self._positions.values(), default=position) >= position, timeout_s)

    def close(self):
        self._closing.set()
        self.wake()
        for thread in self._threads:
            thread.join()

    def statistics(self):
        return {
            name: {"sent": self.sent[name], "given_up": self.given_up[name], "waits": self.waits[name]}
            for name in self.sent
        }

    def _run(self, name, send):
        while not self._closing.is_set():
            try:
                if not self._send_some(name, send):
                    with self._wake:
                        self._wake.wait(_LOOK_S)
            except StoreError as error:
                self.waits[name] = str(error)
                self._closing.wait(_LOOK_S)
            except Exception:
                _log.exception("%s: the channel failed", name)
                self._closing.wait(_LOOK_S)

    def _send_some(self, name, send):
        """Whether there was anything."""
        after, until = self._positions[name], self._store.durable_position
        if after >= until:
            return False
        last, since = after, 0
        for position in self._found(after, until):
            stored = self._store.at(position)
            if stored is None or not self._is_for(name, stored.event):
                continue
            if not self._send(name, send, stored):
                if since:
                    self._note(name, last)
                return True
            last, since = position, since + 1
            if since == _AT_ONCE:
                self._note(name, position)
                since = 0
        self._note(name, until)
        return True

    def _found(self, after, until):
        """The positions of matches' events."""
        for head in self._store.heads(after):
            for name, position in zip(head.names, head.positions):
                if after < position <= until and name.startswith(PREFIX):
                    yield position

    def _note(self, name, position):
        with self._database.transaction() as connection:
            connection.execute("UPDATE reach_channels SET position = ? WHERE name = ?", (position, name))
        with self._wake:
            self._positions[name] = position
            self._wake.notify_all()

    def _is_for(self, name, event):
        rule = self._rules.get(rule_of(event.name))
        return rule is not None and name in channels_of(rule, event)

    def _send(self, name, send, stored):
        """False where the end came first."""
        try:
            message = message_of(stored)
        except TypeError:  # no match made it: stores of older versions may hold such events from outside
            self.given_up[name] += 1
            _log.error(
                "%s: the event at %d, %s, is no match; it was given up", name, stored.position, stored.event.name
            )
            return True
        for tried in range(TRIES):
            if self._closing.is_set():
                return False
            try:
                send(message)
                self.sent[name] += 1
                self.waits[name] = None
                return True
            except Exception as error:
                self.waits[name] = f"{type(error).__name__}: {error}"
                if isinstance(error, ChannelError) and error.final:
                    break
                if tried + 1 < TRIES and self._closing.wait(min(2.0**tried, 60.0)):
                    return False
        self.given_up[name] += 1
        _log.error("%s: %s was given up: %s", name, message["id"], self.waits[name])
        return True


def _must_have(channels, rules):
    for rule in rules:
        for name in (*rule.then, *(rule.timeout or ())):
            if name not in channels:
                there = ", ".join(channels) or "none"
                raise ConfigurationError(f"rule {rule.name}: there is no channel {name!r}; there are {there}")
