"""A reference for the trigger engine, as simple as possible: it keeps all events, and for each new one tries every
sequence from every event that it may have begun at."""

from dataclasses import dataclass

MAX_BACK_MS = 3_600_000


@dataclass(frozen=True)
class Seen:
    name: str
    page: str
    visit: str
    position: int
    clock: int


class BruteForce:
    def __init__(self, max_back_ms=MAX_BACK_MS):
        self.conditions = {}
        self.everything = []
        self.visits = {}
        self.position = -1
        self.max_back_ms = max_back_ms
        self.clock, self.ahead = None, 0

    def add(self, key, sequences, level="page", within_ms=None):
        assert key not in self.conditions
        self.change(key, sequences, level, within_ms)

    def change(self, key, sequences, level="page", within_ms=None):
        self.conditions[key] = (sequences, level, within_ms, self.position)

    def remove(self, key):
        del self.conditions[key]

    def end_visit(self, visit):
        self.visits.pop(visit, None)

    def advance(self, time_ms):
        if self.clock is None:
            self.clock = time_ms
            return
        forward = time_ms + self.ahead - self.clock
        if forward >= 0:
            self.clock += forward
        elif forward < -self.max_back_ms:
            self.ahead -= forward

    def feed(self, name, page, visit, time_ms, position):
        self.advance(time_ms)
        self.position = position
        event = Seen(name, page, visit, position, self.clock)
        self.everything.append(event)
        if visit:
            self.visits.setdefault(visit, []).append(event)
        fired = []
        for key, (sequences, level, within_ms, since) in self.conditions.items():
            events = self.everything if level == "time" else self.visits.get(visit, []) if visit else []
            for event in reversed(events):
                if event.position <= since:
                    continue
                if within_ms is not None and self.clock - event.clock >= within_ms:
                    continue
                begun_here = events[events.index(event) :]
                if any(completes(ids, begun_here) for ids in sequences):
                    fired.append((key, event.position))
                    break
        return fired


def equals(text, event):
    return event.page == text.removeprefix("page:") if text.startswith("page:") else event.name == text


def completes(ids, events):
    """Do the ids match the events, the first id the first event and the last id the last one?"""
    ids = list(ids)
    while ids[0] == "*":
        ids.pop(0)
    while ids[-1] == "*":
        ids.pop()
    places = {0} if equals(ids[0], events[0]) else set()
    anywhere = False
    for text in ids[1:]:
        if text == "*":
            anywhere = True
            continue
        reached = {
            later
            for place in places
            for later in (range(place + 1, len(events)) if anywhere else [place + 1])
            if later < len(events) and equals(text, events[later])
        }
        places, anywhere = reached, False
    return len(events) - 1 in places
