"""Trigger conditions: sequences of ids, as in `trigger:` of a task.yaml, and the events that complete them.

An id is the name of an event (`click`), the id of a page (`page:item`), or `*`, which skips any run of events, even an
empty one. docs/decisions/triggers.md has the rules."""

import secrets

from vmhost.pipeline.triggers._triggers import Engine, TriggerError

__all__ = ["LEVELS", "TriggerEngine", "TriggerError"]

LEVELS = ("page", "time")
PAGE = "page:"
ANY_RUN = "*"
MAX_IDS = 1000
MAX_WITHIN_MS = 1 << 52


class TriggerEngine(Engine):
    """Conditions, and their matches under way. Not thread-safe; main interpreter only.

    `max_matches`: matches under way, all visits together. `max_bytes`: three quarters are for conditions (`add` and
    `change` refuse one that does not fit), one quarter is for matches. Where a bound of matches is reached, the visit
    without an event for longest gives up its matches, which are counted as `dropped`; where there is no other visit,
    the new match is dropped. `max_back_ms`: an event that is further behind the latest one means that the device's
    clock was set; a nearer one counts at the latest time.
    """

    __slots__ = ()

    def __new__(cls, max_matches=1_000_000, max_bytes=64 << 20, max_back_ms=3_600_000):
        return super().__new__(cls, max_matches, max_bytes, max_back_ms, secrets.randbits(64))

    def add(self, key, sequences, level="page", within_ms=None):
        """Adds a condition: any of its `sequences`, lists of ids, completes it; it sees events from the next one on.

        `level`: "page", the events of one visit, or "time", all events. `within_ms`: the last event comes less than so
        many milliseconds after the first. TriggerError if an argument is wrong, the key is in use, or it does not
        fit; nothing has changed then.
        """
        self.put(*_checked(key, sequences, level, within_ms))

    def change(self, key, sequences, level="page", within_ms=None):
        """Replaces the condition with this key, which begins anew. TriggerError as in `add`; the old one stays then."""
        self.put_anew(*_checked(key, sequences, level, within_ms))

    def explain(self, key):
        """The state of the condition: a dict, with a dict for each of its ids in `sequences`.

        For an id, `waiting` is the number of matches under way that reached it and wait for more, `ends` the number of
        sequences that end there, `next` the number of different ids that may follow; each over all conditions with the
        same beginning.
        """
        time_level, within_ms, fired, steps = self.steps(key)
        sequences = []
        for sequence, text, page, gap, waiting, ends, following in steps:
            if sequence == len(sequences):
                sequences.append([])
            about = {"id": f"{PAGE}{text}" if page else text, "after_any_run": gap, "waiting": waiting}
            sequences[sequence].append({**about, "ends": ends, "next": following})
        return {
            "key": key,
            "level": LEVELS[time_level],
            "within_ms": within_ms or None,
            "fired": fired,
            "sequences": sequences,
        }


def _checked(key, sequences, level, within_ms):
    """The arguments of `put`; TriggerError."""
    if not isinstance(key, str):
        raise TriggerError(f"key: expected a `str`, got `{type(key).__name__}`")
    if level not in LEVELS:
        raise TriggerError(f"{key!r}: level: expected {' or '.join(LEVELS)}, got {level!r:.100}")
    if within_ms is not None and (
        not isinstance(within_ms, int) or isinstance(within_ms, bool) or not 1 <= within_ms <= MAX_WITHIN_MS
    ):
        raise TriggerError(f"{key!r}: within_ms: expected None or 1 … {MAX_WITHIN_MS}, got {within_ms!r:.100}")
    if not isinstance(sequences, list | tuple) or not sequences:
        raise TriggerError(f"{key!r}: expected a list of sequences, got {sequences!r:.100}")
    lowered = tuple(_lowered(f"{key!r}: sequence {number}", ids) for number, ids in enumerate(sequences, 1))
    return key, lowered, level == "time", within_ms or 0


def _lowered(where, ids):
    """A sequence as ((text, whether it is a page's, whether `*` precedes it), ...).

    `*` at begin and end is redundant, since any event may be there; two in a row are one."""
    if not isinstance(ids, list | tuple) or not ids:
        raise TriggerError(f"{where}: expected a list of ids, got {ids!r:.100}")
    if len(ids) > 2 * MAX_IDS:
        raise TriggerError(f"{where}: expected up to {MAX_IDS} ids, got {len(ids)}")
    lowered, gap = [], False
    for number, text in enumerate(ids, 1):
        if not isinstance(text, str) or text in ("", PAGE):
            raise TriggerError(f"{where}: id {number}: expected a name, `page:ID` or `*`, got {text!r:.100}")
        if text == ANY_RUN:
            gap = True
            continue
        page = text.startswith(PAGE)
        lowered.append((text[len(PAGE) :] if page else str(text), page, gap and bool(lowered)))
        gap = False
    if not lowered:
        raise TriggerError(f"{where}: expected an id beside `*`, which would complete it at every event")
    if len(lowered) > MAX_IDS:
        raise TriggerError(f"{where}: expected up to {MAX_IDS} ids, got {len(lowered)}")
    return tuple(lowered)
