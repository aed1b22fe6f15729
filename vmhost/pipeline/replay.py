"""Replays: stored events go into another pipeline, at any speed.

clock = ReplayClock(speed=60)
recording = Recording.stored("data", since_ms=..., until_ms=...)
with Pipeline("again", bundles, clock=clock) as pipeline:
    Replay(recording, Feed(pipeline, "replay"), clock).run()

The pipeline's clock is the replay's: it shows the time of the events, so that lateness, time-outs of visits and
retention are as they were when the events happened, whatever the speed.
"""

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


class Recording:
    """Events to be replayed, in order of arrival; `total` is their number, in `unit`s: events or bytes."""

    def __init__(self, name, total, unit, events):
        self.name, self.total, self.unit, self._events = name, total, unit, events

    def __iter__(self):
        """Yields (Event, its number of units)."""
        return iter(self._events)

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


class Replay:
    """One replay of a Recording into a Feed, whose pipeline uses the ReplayClock `clock`. `done`: units so far;
    `events`: events so far; `latest_ms`: the latest event time."""

    def __init__(self, recording, feed, clock):
        self.recording, self.feed, self.clock = recording, feed, clock
        self.done, self.events, self.latest_ms = 0, 0, None

    def run(self):
        """Returns when all events were taken, or the feed's `stop` was set. BadLineError, StoreError, PipelineError;
        ValueError for an event that the store cannot take."""
        waiting, units = [], 0
        events = iter(self.recording)
        while True:
            try:
                event, size = next(events)
            except StopIteration:
                break
            except BadLineError:
                self._take(waiting, units)
                raise
            if event.name.startswith(PREFIX):  # a match; in a replay the pipeline's own rules make these
                units += size
                continue
            away_s = self.clock.next_is(event.time_ms)
            if waiting and (away_s > 0 or len(waiting) >= _AT_ONCE):
                if not self._take(waiting, units):
                    return
                waiting, units = [], 0
            while away_s > 0:
                if self.feed.stop.is_set():
                    return
                time.sleep(min(away_s, _POLL_S))
                interrupts.check()
                away_s = self.clock.next_is(event.time_ms)
            waiting.append(event)
            units += size
        self._take(waiting, units)

    def _take(self, events, units):
        if not self.feed.take(events):
            return False
        self.done += units
        self.events += len(events)
        if events:
            latest_ms = max(event.time_ms for event in events)
            self.latest_ms = latest_ms if self.latest_ms is None else max(self.latest_ms, latest_ms)
        return True
