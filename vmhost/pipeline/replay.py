"""Replays: stored events go into another pipeline, at any speed.

clock = ReplayClock(speed=60)
recording = Recording.stored("data", since_ms=..., until_ms=...)
with Pipeline("again", bundles, clock=clock) as pipeline:
    Replay(recording, Feed(pipeline, "replay"), clock).run()

The pipeline's clock is the replay's: it shows the time of the events, so that lateness, time-outs of visits and
retention are as they were when the events happened, whatever the speed.

Replays of a recording at one speed give the same events, matches of rules and rows: events are cut into batches by
their number and time alone, and nothing depends on the machine's clock. How many events of the recording were taken is
stored with them, so that a replay that was killed goes on where it ended, with the same result.
"""

import hashlib
import os
import time
from pathlib import Path

from vmhost import ConfigurationError
from vmhost.pipeline import interrupts
from vmhost.pipeline.complex_events import PREFIX
from vmhost.pipeline.feed import BadLineError, decoded
from vmhost.pipeline.sources import Lines
from vmhost.pipeline.stored import StoredPipeline

_AT_ONCE = 100
_READ_BYTES = 1 << 16
_POLL_S = 0.1  # how often a waiting replay checks whether it is to stop
_SPAN_S = 0.05  # events of a batch are due within this time
_TAKEN, _WHICH = "replay.taken", "replay.recording"  # notes in the store: number of events, Recording.identity


class Recording:
    """Events to be replayed, in order of arrival; `total` is their number, in `unit`s: events or bytes."""

    def __init__(self, name, total, unit, events):
        self.name, self.total, self.unit, self._events = name, total, unit, events

    def __iter__(self):
        """Yields (Event, its number of units)."""
        return iter(self._events)

    @property
    def identity(self):
        """A number that tells recordings of different names or sizes apart."""
        content = f"{os.path.abspath(self.name)}\0{self.total}\0{self.unit}"
        return int.from_bytes(hashlib.sha256(content.encode(errors="surrogatepass")).digest()[:7])

    @classmethod
    def stored(cls, folder, since_ms=None, until_ms=None):
        """The events stored in `folder` with times from `since_ms` on, before `until_ms`. StoreError."""
        until_ms = None if until_ms is None else until_ms - 1
        with StoredPipeline(folder) as stored:
            if since_ms is None and until_ms is None:
                total = stored.status()["events"]["stored"]
            else:
                total = sum(1 for _ in stored.find(since_ms=since_ms, until_ms=until_ms))

        def events():
            with StoredPipeline(folder) as stored:
                for one in stored.find(since_ms=since_ms, until_ms=until_ms):
                    yield one.event, 1

        return cls(os.fspath(folder), total, "events", events())

    @classmethod
    def lines(cls, path, since_ms=None, until_ms=None):
        """The events in a file of JSON lines. ConfigurationError; BadLineError while they are read."""
        try:
            total = Path(path).stat().st_size
            file = open(path, "rb")
        except OSError as error:
            raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from error

        def events():
            number, cut = 0, Lines()
            with file:
                while True:
                    data = file.read(_READ_BYTES)
                    for line in cut.ended(data):
                        number += 1
                        if line is not None and not line.strip():
                            continue
                        try:
                            event = decoded(line if line is not None else b"")
                        except ValueError as error:
                            raise BadLineError(os.fspath(path), number, str(error)) from None
                        if (since_ms is None or event.time_ms >= since_ms) and (
                            until_ms is None or event.time_ms < until_ms
                        ):
                            yield event, len(line) + 1
                    if not data:
                        return

        return cls(os.fspath(path), total, "bytes", events())


class ReplayClock:
    """Seconds since 1970 in the time of the replayed events. `speed`: how many of their seconds pass in one of ours;
    None: as fast as they can be taken. The clock never passes the time of the next event."""

    live = False  # only events move event time on

    def __init__(self, speed=None):
        self.speed = speed
        self._began_s = self.began_ms = None
        self._next_ms = 0

    def __call__(self):
        return self._now_ms() / 1000

    def _now_ms(self):
        if self._began_s is None:
            return self._next_ms
        if self.speed is None:
            return self._next_ms
        return min(self._next_ms, self.began_ms + (time.monotonic() - self._began_s) * 1000 * self.speed)

    def next_is(self, time_ms):
        """Sets the time of the next event; returns the seconds until it is due, 0 for a due one."""
        self._next_ms = max(self._next_ms, time_ms)
        if self._began_s is None:
            self._began_s, self.began_ms = time.monotonic(), time_ms
        if self.speed is None:
            return 0.0
        due_s = self._began_s + (time_ms - self.began_ms) / 1000 / self.speed
        return max(0.0, due_s - time.monotonic())

    def not_before(self, time_ms):
        """The pipeline has events up to this time."""
        self._next_ms = max(self._next_ms, time_ms)

    def was(self, time_ms):
        """An event of this time was taken by an earlier run of the replay: the clock goes on after it."""
        self._next_ms = max(self._next_ms, time_ms)
        if self.began_ms is None:
            self.began_ms = time_ms
        passed_s = 0.0 if self.speed is None else (self._next_ms - self.began_ms) / 1000 / self.speed
        self._began_s = time.monotonic() - passed_s

    def batch_of(self, time_ms):
        """The number of the batch in which an event of this time belongs."""
        return 0 if self.speed is None else int((time_ms - self.began_ms) / 1000 / self.speed / _SPAN_S)


class Replay:
    """One replay of a Recording into a Feed, whose pipeline uses the ReplayClock `clock`. `done`: units so far;
    `events`: events so far; `latest_ms`: the latest event time. It goes on where an earlier one into the same pipeline
    was cut off."""

    def __init__(self, recording, feed, clock):
        self.recording, self.feed, self.clock = recording, feed, clock
        self.done, self.events, self.latest_ms = 0, 0, None

    def run(self):
        """Returns when all events were taken, or the feed's `stop` was set. ConfigurationError if the pipeline has
        taken a part of another recording; BadLineError, StoreError, PipelineError; ValueError for an event that the
        store cannot take."""
        before, taken, waiting, units, batch = self._taken_before(), 0, [], 0, None
        events = iter(self.recording)
        while True:
            try:
                event, size = next(events)
            except StopIteration:
                break
            except BadLineError:
                self._take(waiting, units, taken)
                raise
            taken += 1
            if event.name.startswith(PREFIX) or taken <= before:  # in a replay the pipeline's own rules make matches
                units += size
                if taken <= before:
                    self.clock.was(event.time_ms)
                continue
            away_s = self.clock.next_is(event.time_ms)
            now = self.clock.batch_of(event.time_ms)
            if waiting and (now != batch or len(waiting) >= _AT_ONCE):
                if not self._take(waiting, units, taken - 1):
                    return
                waiting, units = [], 0
            batch = now
            while away_s > 0:
                if self.feed.stop.is_set():
                    return
                time.sleep(min(away_s, _POLL_S))
                interrupts.check()
                away_s = self.clock.next_is(event.time_ms)
            waiting.append(event)
            units += size
        self._take(waiting, units, taken)

    def _taken_before(self):
        counters = self.feed.pipeline.database.counters()
        if counters.get(_WHICH, self.recording.identity) != self.recording.identity:
            raise ConfigurationError(
                f"{self.feed.pipeline.folder}: holds a part of a replay of another recording than"
                f" {self.recording.name}; name a new folder"
            )
        return counters.get(_TAKEN, 0)

    def _take(self, events, units, taken):
        if not self.feed.take(events, {_TAKEN: taken, _WHICH: self.recording.identity}):
            return False
        self.done += units
        self.events += len(events)
        if events:
            latest_ms = max(event.time_ms for event in events)
            self.latest_ms = latest_ms if self.latest_ms is None else max(self.latest_ms, latest_ms)
        return True
