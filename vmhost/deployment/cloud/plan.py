"""Plans: how a release is rolled out. `release.yaml` at the top of a task's branch, or given to `vmhost cloud release`.

    audience: {os: linux}             who may get it at all (audience.py); default: all devices
    steps:                            each reaches the devices that it names, and all that earlier steps reached
      - {devices: [kitchen-1], min_reports: 1}
      - {cohorts: [staff]}
      - {count: 1000, soak: 10 min}   this many devices in all, first come, first served
      - {percent: 5, min_reports: 20, min_proven: 95 %, min_calls: 10000, per_minute: 500}
      - {percent: 100, start: manual} waits for `vmhost cloud next`
    on_failure: roll_back             or halt (it stays where it is, but spreads no further), or pause
    max_error: 2 %                    of the devices that reported; more is a failure
    min_failures: 1                   fewer failures than this are ignored
    proof: {calls: 0, within: 10 s, max_error: 5 %, max_time: 50 ms, slow: {over: 200 ms}, max_memory: 48 MiB}
    silence: 30 min                   a device that took it and is silent for this long counts as failed
    control: {percent: 5, max_worse: 1 %, min_calls: 1000}
                                      these devices keep the version before until the release is done; it fails if
                                      its calls fail by more than max_worse more often than theirs
    priority: 0
    hours: "06-22"                    UTC; no device is offered it at other times

A device succeeds when it is *proven*: loaded, self-test passed, and `calls` calls came or `within` has passed; at most
`max_error` of the calls failed, they took at most `max_time` each (on average; in a self-test, each case), at most the
share `max` of `slow` took longer than `over` (`{over: 200 ms, max: 1 %}` bounds the 99th percentile), and no VM used
more than `max_memory`. What is left out is unbounded. `max_time` and `max_memory` apply to the platform's simulation
too. A step is over when `min_reports` of its devices and `min_proven` of those that it reached have proven it,
`min_calls` calls came on devices that have it, and `soak` has passed.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from vmhost.bytecode import quantities
from vmhost.bytecode.errors import TaskSpecError
from vmhost.bytecode.spec import plain_of
from vmhost.cohorts import COHORTS
from vmhost.deployment import identifiers
from vmhost.deployment.cloud.audience import Audience, percent, size
from vmhost.deployment.errors import RefusedError

FILE_NAME = "release.yaml"
ON_FAILURE = ("roll_back", "halt", "pause")
_HOURS = re.compile(r"([01][0-9]|2[0-4])-([01][0-9]|2[0-4])")
_STEP_KEYS = (
    "devices",
    "cohorts",
    "percent",
    "count",
    "per_minute",
    "min_reports",
    "min_proven",
    "min_calls",
    "soak",
    "max_error",
    "max_worse",
    "start",
)
_KEYS = (
    "audience",
    "steps",
    "on_failure",
    "max_error",
    "min_failures",
    "proof",
    "silence",
    "control",
    "priority",
    "hours",
)
_MAX_STEPS = 100
WHOLE_FLEET = {"steps": [{"percent": 100}]}


@dataclass(frozen=True)
class Step:
    """One step. `percent` in thousandths; None if it does not select devices that way. `soak_s` in seconds."""

    devices: frozenset = frozenset()
    cohorts: frozenset = frozenset()
    percent: int | None = None
    count: int | None = None
    per_minute: int | None = None
    min_reports: int = 1
    min_proven: float = 0.0
    min_calls: int = 0
    soak_s: float = 0.0
    max_error: float = 0.02
    max_worse: float | None = None
    manual: bool = False

    def reaches(self, facts):
        """Whether it reaches the device of these Facts, except by `count`, which depends on earlier devices."""
        return (
            facts.device in self.devices
            or bool(self.cohorts & facts.named)
            or (self.percent is not None and facts.cohort <= self.percent)
        )


@dataclass(frozen=True)
class Control:
    """Devices that keep the version before: the last `percent` thousandths of all. `max_worse`: by how much the share
    of failed calls may exceed theirs, once both have `min_calls`."""

    percent: int
    max_worse: float
    min_calls: int

    def keeps(self, facts):
        """Whether the device of these Facts is one of them."""
        return facts.cohort > COHORTS - self.percent


@dataclass(frozen=True)
class Plan:
    """A checked plan; `plain` is its source as plain data."""

    plain: Mapping
    audience: Audience
    steps: tuple
    on_failure: str
    min_failures: int
    proof: Mapping = field(default_factory=dict)
    silence_s: float = 1800.0
    control: Control | None = None
    priority: int = 0
    hours: tuple | None = None

    def open_at(self, now_s):
        """Whether it is offered to devices at this time (seconds since 1970)."""
        if self.hours is None:
            return True
        first, last = self.hours
        hour = now_s % 86400 / 3600
        return first <= hour < last if first <= last else hour >= first or hour < last

    @classmethod
    def read(cls, text, where=FILE_NAME):
        """The plan in a YAML text; RefusedError says what is wrong with it."""
        try:
            plain = plain_of(text.encode(errors="replace"), where)
        except TaskSpecError as error:
            raise RefusedError(str(error)) from None
        return cls.of(plain, where)

    @classmethod
    def of(cls, plain, where=FILE_NAME, is_stored=False):
        """The plan in plain data; RefusedError. `is_stored`: it was accepted before, maybe by fewer checks."""
        _keys(plain, _KEYS, where)
        error = _share(plain.get("max_error", "2 %"), f"{where}: max_error")
        steps = plain.get("steps", WHOLE_FLEET["steps"])
        if not isinstance(steps, list) or not 0 < len(steps) <= _MAX_STEPS:
            raise RefusedError(f"{where}: steps: expected a list of 1 to {_MAX_STEPS} steps")
        on_failure = plain.get("on_failure", "roll_back")
        if on_failure not in ON_FAILURE:
            raise RefusedError(f"{where}: on_failure: expected one of {', '.join(ON_FAILURE)}, got {on_failure!r}")
        proof = plain.get("proof", {})
        _keys(proof, ("calls", "within", "max_error", "max_time", "slow", "max_memory"), f"{where}: proof")
        bounds = {}
        if "max_time" in proof:
            bounds["max_time_s"] = seconds(proof["max_time"], f"{where}: proof: max_time")
        if "slow" in proof:
            slow = proof["slow"]
            _keys(slow, ("over", "max"), f"{where}: proof: slow")
            bounds["slow_over_s"] = seconds(slow.get("over"), f"{where}: proof: slow: over")
            bounds["max_slow"] = _share(slow.get("max", "1 %"), f"{where}: proof: slow: max")
        if "max_memory" in proof:
            bounds["max_memory_bytes"] = _bytes(proof["max_memory"], f"{where}: proof: max_memory")
        return cls(
            plain=plain,
            audience=Audience(plain.get("audience"), f"{where}: audience", is_stored),
            steps=tuple(_step(step, error, f"{where}: steps[{index}]") for index, step in enumerate(steps)),
            on_failure=on_failure,
            min_failures=_whole(plain.get("min_failures", 1), 1, f"{where}: min_failures"),
            proof={
                "calls": _whole(proof.get("calls", 0), 0, f"{where}: proof: calls"),
                "within_s": seconds(proof.get("within", "10 s"), f"{where}: proof: within"),
                "max_error": _share(proof.get("max_error", "5 %"), f"{where}: proof: max_error"),
            }
            | bounds,
            control=_control(plain.get("control"), steps, f"{where}: control"),
            silence_s=seconds(plain.get("silence", "30 min"), f"{where}: silence"),
            priority=_whole(plain.get("priority", 0), -1000, f"{where}: priority"),
            hours=_hours(plain.get("hours"), f"{where}: hours", is_stored),
        )


def _step(plain, error, where):
    _keys(plain, _STEP_KEYS, where)
    devices = frozenset(identifiers.check("device", name) for name in _list(plain, "devices", where))
    cohorts = frozenset(identifiers.check("cohort", name) for name in _list(plain, "cohorts", where))
    if not {"devices", "cohorts", "percent", "count"} & plain.keys():
        raise RefusedError(f"{where}: reaches nobody; name devices, cohorts, percent or count")
    start = plain.get("start", "by itself")
    if start not in ("by itself", "manual"):
        raise RefusedError(f"{where}: start: expected manual, or no such key, got {start!r}")
    given = plain.get("max_error")
    return Step(
        devices=devices,
        cohorts=cohorts,
        percent=percent(plain["percent"], f"{where}: percent") if "percent" in plain else None,
        count=_whole(plain["count"], 1, f"{where}: count") if "count" in plain else None,
        per_minute=_whole(plain["per_minute"], 1, f"{where}: per_minute") if "per_minute" in plain else None,
        min_reports=_whole(plain.get("min_reports", 1), 0, f"{where}: min_reports"),
        min_proven=_share(plain.get("min_proven", 0), f"{where}: min_proven"),
        min_calls=_whole(plain.get("min_calls", 0), 0, f"{where}: min_calls"),
        soak_s=seconds(plain.get("soak", "0 s"), f"{where}: soak"),
        max_error=error if given is None else _share(given, f"{where}: max_error"),
        max_worse=_share(plain["max_worse"], f"{where}: max_worse") if "max_worse" in plain else None,
        manual=start == "manual",
    )


def _control(plain, steps, where):
    if plain is None:
        if any("max_worse" in step for step in steps):
            raise RefusedError(f"{where}: max_worse of a step needs a control cohort; name one, such as percent: 5")
        return None
    _keys(plain, ("percent", "max_worse", "min_calls"), where)
    if "percent" not in plain:
        raise RefusedError(f"{where}: expected percent, the share of devices that keep the version before")
    return Control(
        percent=percent(plain["percent"], f"{where}: percent"),
        max_worse=_share(plain.get("max_worse", "1 %"), f"{where}: max_worse"),
        min_calls=_whole(plain.get("min_calls", 1000), 1, f"{where}: min_calls"),
    )


def _keys(plain, known, where):
    if not isinstance(plain, Mapping):
        raise RefusedError(f"{where}: expected keys ({', '.join(known)}), got {plain!r:.80}")
    for key in plain:
        if key not in known:
            raise RefusedError(f"{where}: {key!r}: expected one of {', '.join(known)}")


def _list(plain, key, where):
    value = plain.get(key, [])
    if not isinstance(value, list):
        raise RefusedError(f"{where}: {key}: expected a list of names, got {value!r:.80}")
    return value


def _whole(value, minimum, where):
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= 10**9:
        raise RefusedError(f"{where}: expected a whole number from {minimum} on, got {value!r:.80}")
    return value


def _share(value, where):
    """0.02 for `2 %` or 0.02."""
    text = str(value).strip() if not isinstance(value, bool) else "?"
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise RefusedError(f"{where}: expected a share such as 2 % or 0.02, got {value!r:.80}")
    return share


def _bytes(value, where):
    try:
        found = size(value)
    except ValueError as error:
        raise RefusedError(f"{where}: {error}") from None
    if not 0 < found < 1 << 50:
        raise RefusedError(f"{where}: expected a size such as 48 MiB, got {value!r:.80}")
    return int(found)


def seconds(value, where):
    """The seconds in `10 min`."""
    found = quantities.seconds(value)
    if found is None:
        raise RefusedError(f"{where}: expected a time such as 10 min, got {value!r:.80}")
    return found


def _hours(value, where, is_stored):
    if value is None:
        return None
    found = _HOURS.fullmatch(value) if isinstance(value, str) else None
    if not found:
        raise RefusedError(f'{where}: expected hours of the day such as "06-22", got {value!r:.80}')
    if not is_stored and int(found[1]) % 24 == int(found[2]) % 24 and value != "00-24":
        raise RefusedError(f"{where}: {value} never opens; leave hours out for all day")
    return int(found[1]), int(found[2])
