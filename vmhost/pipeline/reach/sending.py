"""Sending: a channel's due messages leave the queue, highest priority first.

Expiry, quiet hours and caps are checked first; a failed send is tried again later. A message is delivered at least
once, each time with the same id.
"""

import logging

from vmhost.bytecode.either import time_text
from vmhost.pipeline.reach import queue
from vmhost.pipeline.reach.channels import ChannelError, NobodyThereError
from vmhost.stores import StoreError

_STORE_RETRY_S = 0.5  # between attempts to write to the store
_NOBODY_MS = 600_000  # hold time of a message without an open page; a page that opens gets it at once
_log = logging.getLogger("vmhost.pipeline.reach")


class Sender:
    """Sends one channel's messages. `send_next` and `keep` run on the channel's thread.

    `changed` is the condition that guards `busy` and is notified when it changes; `closing` ends waits for the store.
    `messages` makes messages for other channels out of a task's result; `wake` is called when they are in the queue.
    """

    def __init__(self, settings, adapter, messages_queue, *, messages, changed, wake, closing):
        self.settings, self.adapter = settings, adapter
        self._queue, self._messages = messages_queue, messages
        self._changed, self._wake, self._closing = changed, wake, closing
        self.counts = dict.fromkeys(queue.WORDS, 0)
        self.waits = None  # why the channel waits; None while it does not
        self.store_error = None  # of its last write; None after one that succeeded
        self.busy = None  # the person whose message is being sent
        self.paused_ms = 0  # nothing is sent before this time
        self._failures = 0  # in a row
        self._rest_s = 0  # in a replay, the channel's thread waits so long in our own time after a failure

    def count(self, what, n=1):
        self.counts[what] += n

    def keep(self, store):
        """Calls `store()`, again while it raises StoreError: a full disk must not cause a message to be sent twice."""
        while True:
            try:
                kept = store()
                self.store_error = None
                return kept
            except StoreError as error:
                self.waits, self.store_error = str(error), error
                if self._closing.wait(_STORE_RETRY_S):
                    raise

    def send_next(self):
        """Sends, holds or ends the next due message. Returns whether there was one."""
        now_ms = self._queue.now_ms()
        if now_ms < self.paused_ms:
            return False
        settings = self.settings
        message = self._queue.next(settings.name)
        if message is None:
            return False
        if now_ms >= message.expires_ms:
            self._end(message, queue.EXPIRED, f"not sent in time{f': {self.waits}' if self.waits else ''}")
            return True
        if settings.quiet is not None and message.priority < settings.quiet.urgent:
            until_ms = settings.quiet.until_ms(now_ms)
            if until_ms is not None:
                text = f"quiet hours from {settings.quiet.begin:%H:%M} to {settings.quiet.end:%H:%M}"
                self._hold(message, until_ms, text)
                return True
        if message.person:
            for cap in settings.caps:
                if self._queue.sent_since(settings.name, message.person, now_ms - cap.per_ms) >= cap.count:
                    self._end(
                        message, queue.CAPPED, f"{cap.count} messages were sent within {time_text(cap.per_ms)} already"
                    )
                    return True
        self._send(message)
        if self._rest_s:
            self._closing.wait(self._rest_s)
            self._rest_s = 0
        return True

    def _send(self, message):
        with self._changed:
            self.busy = message.person
        try:
            try:
                given = self.adapter.send(message.body)
            except Exception as error:
                self._failed(message, error)
            else:
                self._failures = 0
                self.waits = None
                remark = given if isinstance(given, str) and self.settings.kind != "walle_task" else "taken"
                self._end(message, queue.SENT_WORD, remark, self._following(message, given))
        finally:
            with self._changed:
                self.busy = None
                self._changed.notify_all()

    def _following(self, message, given):
        """The messages for the channels in `then` of a `walle_task` channel, made from the task's result `given`."""
        settings = self.settings
        if settings.kind != "walle_task" or not settings.then or given is None:
            return ()
        identity = f"{message.id}:{settings.name}"
        body = {"id": identity, "key": message.person, "task": settings.name, "row": given, "of": message.id}
        text = message.body.get("message")
        return list(
            self._messages(
                *(f"channel:{settings.name}", settings.then, identity, message.person, body),
                priority=message.priority,
                audience=None,
                expires_ms=None,
                message=given if isinstance(given, dict) and given.keys() & {"title", "text"} else text,
            )
        )

    def _failed(self, message, error):
        settings = self.settings
        why = f"{type(error).__name__}: {error}"
        if isinstance(error, ChannelError):
            why = str(error)
        if isinstance(error, NobodyThereError):
            if settings.kind == "broadcast":
                self._end(message, queue.MISSED, why)
            else:
                self._hold(message, min(self._queue.now_ms() + _NOBODY_MS, message.expires_ms), why)
            return
        counts = getattr(error, "counts", True)
        tried = message.tries + counts
        if getattr(error, "final", False) or tried >= settings.tries:
            self._failures = 0 if getattr(error, "final", False) else self._failures + 1
            self.waits = why
            self._end(message, queue.GIVEN_UP, why)
            _log.error("%s: %s was given up: %s", settings.name, message.id, why)
        else:
            self._failures += 1
            wait_ms = settings.wait_ms(max(tried, 1))
            if (asked_s := getattr(error, "wait_s", None)) is not None:
                wait_ms = max(wait_ms, round(asked_s * 1000))
            due_ms = self._queue.ms_after(wait_ms)
            self.waits = why
            self.keep(lambda: self._queue.put_off(settings.name, message, due_ms, queue.RETRY, why, tried=counts))
            self.count(queue.RETRY)
        if self._failures:  # back off the whole channel: other messages would fail too
            asked_ms = round((getattr(error, "wait_s", None) or 0) * 1000)
            wait_ms = max(asked_ms, settings.wait_ms(self._failures))
            self.paused_ms = self._queue.ms_after(wait_ms)
            self._rest_s = 0 if self._queue.live else wait_ms / 1000

    def _hold(self, message, until_ms, why):
        self.keep(lambda: self._queue.put_off(self.settings.name, message, until_ms, queue.HELD, why))
        self.count(queue.HELD)

    def _end(self, message, what, why, then=()):
        if self.keep(lambda: self._queue.end(self.settings.name, message, what, why, then)):
            self.count(what)
        if then:
            self._wake()
