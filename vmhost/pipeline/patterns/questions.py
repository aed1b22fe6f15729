"""Questions: a rule and a list of events; the answer has every match and time-out. `vmhost pipeline match` reads them.

A question is {"rule", "events", "watermark"?, "flush"?, "case"?, "limit"?}; an event is {"id", "at", "name"?, "key"?}
and fields of its own. `watermark` says when time moves on, as in Flink's operator:

- `per-event`, the default: events of one key wait, in order of time, for the first later event; time ends with the
  last one, or with `flush` never.
- `end`: all events wait for the end.
- `direct`: each event counts at once, and moves time for its own key only.

An answer has `matches` and `timeouts`, each match a list of {step: [ids]} in order of emission; besides them `match_on`
and `timeout_on` (id of the event that was processed, or whose arrival moved time; null: the end), `timeout_at` (ms) and
`late` (ids of events that arrived after their time was over). Or it has `error` and `phase`.
"""

import heapq

from vmhost.pipeline.patterns import MISSED, PatternEngine, PatternError, RuleError, match

WATERMARKS = ("per-event", "end", "direct")
FOREVER = (1 << 63) - 1
LIMIT = 20_000
_BY_KEY = 1


def field_path(text):
    """The path of a field, which is at the top level of a question's event."""
    return (0, text)


def answer(question):
    """The answer to a question; both are dicts. Problems of the question become `error`, not exceptions."""
    data = {"case": question["case"]} if isinstance(question, dict) and "case" in question else {}
    try:
        run = _Run(question)
    except (RuleError, PatternError) as error:
        return {**data, "error": str(error), "phase": "compile"}
    except _QuestionError as error:
        return {**data, "error": str(error), "phase": "read"}
    try:
        run.all()
    except _RunError as error:
        return {**data, "error": str(error), "phase": "run"}
    return {**data, **run.as_data()}


class _QuestionError(ValueError):
    pass


class _RunError(ValueError):
    pass


class _Run:
    def __init__(self, question):
        if not isinstance(question, dict) or "rule" not in question or not isinstance(question.get("events"), list):
            raise _QuestionError("expected a mapping with `rule` and `events`, a list")
        self.mode = question.get("watermark", "per-event")
        if self.mode not in WATERMARKS:
            raise _QuestionError(f"watermark: expected one of {', '.join(WATERMARKS)}, got {self.mode!r}")
        self.flush, self.limit = bool(question.get("flush")), question.get("limit", LIMIT)
        self.events = [_event(one, number) for number, one in enumerate(question["events"])]
        self.engine = PatternEngine(max_matches=1_000_000, max_bytes=1 << 30)
        lowered = self.engine.add("rule", question["rule"], path=field_path)
        self.within_ms = lowered.automaton.within_ms
        self.ids = []  # ids of events, by the position given to the engine
        self.matches, self.match_on, self.timeouts, self.timeout_on, self.timeout_at, self.late = [], [], [], [], [], []
        self.waiting, self.timers, self.rank = {}, [], {}
        self.armed = set()  # (time, key) of pending timers
        self.time = None

    def as_data(self):
        data = {
            "matches": self.matches,
            "timeouts": self.timeouts,
            "match_on": self.match_on,
            "timeout_on": self.timeout_on,
            "timeout_at": self.timeout_at,
        }
        return data | ({"late": self.late} if self.late else {})

    def all(self):
        if self.mode == "direct":
            keys = {}
            for event in self.events:
                keys[event["key"]] = True
                self.advance(event["key"], event["at"], event["id"])
                self.process(event)
            for key in keys if self.flush else ():
                self.advance(key, FOREVER, None)
            return
        top = None
        for event in self.events:
            if self.mode == "per-event" and (top is None or event["at"] > top):
                self.move(event["at"] - 1, event["id"])
            top = event["at"] if top is None else max(top, event["at"])
            self.arrive(event)
        if top is not None or self.flush or self.mode == "end":
            self.move(FOREVER if self.mode == "end" or self.flush else top, None)

    def arm(self, time, key):
        time = min(time, FOREVER)
        self.rank.setdefault(key, len(self.rank))
        if (time, key) not in self.armed:
            self.armed.add((time, key))
            heapq.heappush(self.timers, (time, self.rank[key], key))

    def arrive(self, event):
        if self.time is not None and event["at"] <= self.time:
            self.late.append(event["id"])
            return
        self.arm(event["at"], event["key"])
        self.waiting.setdefault(event["key"], {}).setdefault(event["at"], []).append(event)

    def move(self, time, on):
        self.time = time
        while self.timers and self.timers[0][0] <= time:
            due, _, key = heapq.heappop(self.timers)
            self.armed.discard((due, key))
            queue, began = self.waiting.get(key, {}), False
            for at in sorted(at for at in queue if at <= time):
                events = queue.pop(at)
                self.advance(key, at, events[0]["id"])
                for event in events:
                    began = self.process(event) or began
                    if self.within_ms > 0 and began:
                        self.arm(at + self.within_ms, key)
            self.advance(key, time, on)

    def process(self, event):
        """Returns whether a match began."""
        position = len(self.ids)
        self.ids.append(event["id"])
        results, began, status = self.engine.feed_raw(
            event, event["name"], event["key"], "", "", event["at"], position, True
        )
        self.take(results, event["id"], status)
        return began

    def advance(self, key, time, on):
        results, status = self.engine.advance_key(_BY_KEY, key, time)
        self.take(results, on, status)

    def take(self, results, on, status):
        for result in results:
            found = match(result)
            shape = [{step: [self.ids[position] for position in positions]} for step, positions in found.steps]
            if found.timed_out:
                self.timeouts.append(shape)
                self.timeout_on.append(on)
                self.timeout_at.append(found.at_ms)
            else:
                self.matches.append(shape)
                self.match_on.append(on)
        if status == MISSED:
            raise _RunError("a match lacks the step that `skip` names, or begins with it")
        if status:
            raise _RunError("there is no memory for more matches")
        if len(self.matches) > self.limit:
            raise _RunError(f"more than {self.limit} matches")


def _event(data, number):
    place = f"events[{number}]"
    if not isinstance(data, dict):
        raise _QuestionError(f"{place}: expected a mapping")
    for key in ("id", "at"):
        if type(data.get(key)) is not int or not -FOREVER <= data[key] <= FOREVER:
            raise _QuestionError(f"{place}.{key}: expected a whole number, got {data.get(key)!r}")
    for key in ("name", "key"):
        if data.get(key) is not None and not isinstance(data[key], str):
            raise _QuestionError(f"{place}.{key}: expected a text, got {data[key]!r}")
    return data | {"name": data.get("name") or "", "key": data.get("key") or ""}
