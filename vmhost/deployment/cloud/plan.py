"""Plans: how a release is rolled out. `release.yaml` at the top of a task's branch, or given to `vmhost cloud release`.

A device succeeds when it is *proven*: loaded, self-test passed, and `calls` calls came or `within` has passed; at most
`max_error` of the calls failed, they took at most `max_time` each (on average; in a self-test, each case), at most the
share `max` of `slow` took longer than `over` (`{over: 200 ms, max: 1 %}` bounds the 99th percentile), and no VM used
more than `max_memory`. What is left out is unbounded. `max_time` and `max_memory` apply to the platform's simulation
too. A step is over when `min_reports` of its devices and `min_proven` of those that it reached have proven it,
`min_calls` calls came on devices that have it, and `soak` has passed.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from vmhost.bytecode.kinds import Choice, Items, Refused, Section, Setting, Size, Text, Whole, setting, settings_of
from vmhost.cohorts import COHORTS
from vmhost.deployment.cloud import audience, written
from vmhost.deployment.cloud.audience import Audience

FILE_NAME = "release.yaml"
WHOLE_FLEET = {"steps": [{"percent": 100}]}
_SHARE, _TIME, _PERCENT = written.Share(), written.Span(), written.Percentage()


def _count(ge=0):
    return Whole(ge, written.MAX_COUNT)


class _Start(Choice):
    def kept(self, value):
        return value == "manual"


class _Hours(Text):
    """Two hours of the day. `is_stored`: they may never open."""

    def __init__(self, is_stored):
        pattern = re.compile("([01][0-9]|2[0-4])-([01][0-9]|2[0-4])")
        super().__init__('hours of the day such as "06-22"', pattern, 5)
        self.is_stored = is_stored

    def kept(self, value):
        first, last = map(int, value.split("-"))
        if not self.is_stored and first % 24 == last % 24 and value != "00-24":
            raise Refused(f"{value} never opens; leave hours out for all day")
        return first, last


@dataclass(frozen=True)
class Step:
    """One step. `percent` in thousandths; None if it does not select devices that way. `soak_s` in seconds."""

    devices: frozenset = setting(written.Names("device"), "reaches these, and those of earlier steps", frozenset())
    cohorts: frozenset = setting(written.Names("cohort"), "reaches these named cohorts", frozenset())
    percent: int | None = setting(_PERCENT, "reaches this share of the devices", None)
    count: int | None = setting(_count(1), "reaches this many devices in all, first come, first served", None)
    per_minute: int | None = setting(_count(1), "devices offered the version in a minute", None, unset="all")
    min_reports: int = setting(_count(), "the step ends when this many of *its* devices have proven the version", 1)
    min_proven: float = setting(_SHARE, "and this share of the devices that it reached", 0.0)
    min_calls: int = setting(_count(), "and this many calls came on all devices with the version", 0)
    soak_s: float = setting(_TIME, "and this time after its start", 0.0, "soak")
    max_error: float = setting(_SHARE, "the failure limit of this step", None, unset="the plan's")
    max_worse: float | None = setting(_SHARE, "instead of `control`'s", None)
    manual: bool = setting(
        _Start("by itself", "manual"),
        "manual: waits for `vmhost cloud next`, the first step too",
        False,
        "start",
        unset="by itself",
    )

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

    percent: int = setting(_PERCENT, "this share of the devices keeps the version before until the release is done")
    max_worse: float = setting(
        _SHARE, "it fails if a larger share of calls fails, by more than this, than on those devices", 0.01
    )
    min_calls: int = setting(_count(1), "on both sides, before", 1000)

    def keeps(self, facts):
        """Whether the device of these Facts is one of them."""
        return facts.cohort > COHORTS - self.percent


def _rows(*rows):
    return [Setting(*row[:3], (row[3],), *row[4:], required=len(row) == 4) for row in rows]


_SLOW = _rows(
    ("over", _TIME, "a call that takes longer is slow", "slow_over_s"),
    ("max", _SHARE, "more slow calls are a failure; 1 %: over is the 99th percentile; 0 %: none", "max_slow", 0.01),
)
_PROOF = Section(
    [
        *_rows(
            ("calls", _count(), "required, in any process of the device that follows the store", "calls", 0),
            ("within", _TIME, "after it, the proof counts without them", "within_s", 10.0),
            ("max_error", _SHARE, "a larger share of failed calls is a failure", "max_error", 0.05),
            ("max_time", _TIME, "average of the calls; in a self-test, of each case", "max_time_s", "any"),
            ("max_memory", Size(1, 1 << 50, "a size such as 48 MiB"), "peak of a VM", "max_memory_bytes", "any"),
        ),
        Setting("slow", Section(_SLOW), "a bound of slow calls", ()),
    ]
)


@dataclass(frozen=True)
class Plan:
    """A checked plan; `plain` is its source as plain data."""

    plain: Mapping
    audience: Audience = setting(audience.AUDIENCE, "eligible devices", None)
    steps: tuple = setting(
        Items(Section(settings_of(Step)), "a list of 1 to 100 steps", 1, 100, unique=False),
        "each reaches devices in addition to those of earlier steps",
        (),
        unset="all at once",
    )
    on_failure: str = setting(
        Choice("roll_back", "halt", "pause"), "halt: stop spreading, but keep the version where it is", "roll_back"
    )
    max_error: float = setting(
        _SHARE,
        "a larger share of failures among a step's reports, or among all reports, is a failure of the release; it is"
        " computed over at least `min_reports`",
        0.02,
    )
    min_failures: int = setting(_count(1), "fewer failures than this are ignored", 1)
    proof: Mapping = setting(_PROOF, "what a device must show, and limits for its calls", dict)
    silence_s: float = setting(
        _TIME, "a device that took the version and does not report for this time counts as failed", 1800.0, "silence"
    )
    control: Control | None = setting(Section(settings_of(Control)), "devices to compare with", None)
    priority: int = setting(Whole(-1000, written.MAX_COUNT), "order among queued releases of one task", 0)
    hours: tuple | None = setting(_Hours(False), "in UTC, in which the version is offered", None, unset="any")

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
        plain, lines = written.parsed(text, where)
        return cls.of(plain, where, lines=lines)

    @classmethod
    def of(cls, plain, where=FILE_NAME, is_stored=False, lines=None):
        """The plan in plain data; RefusedError. `is_stored`: it was accepted before, maybe by fewer checks."""
        found = written.read(_STORED if is_stored else PLAN, plain, where, lines, _check)
        error = found.get("max_error", 0.02)
        steps = tuple(Step(**{"max_error": error} | step) for step in found.get("steps", ({"percent": COHORTS},)))
        proof = _USUAL_PROOF | found.get("proof", {})
        if "slow_over_s" in proof:
            proof = {"max_slow": 0.01} | proof
        control = Control(**found["control"]) if "control" in found else None
        found |= {"steps": steps, "proof": proof, "control": control}
        return cls(**found | {"plain": plain, "audience": Audience(plain.get("audience"), is_stored=is_stored)})


_USUAL_PROOF = {
    each.path[0]: each.default for each in _PROOF.settings.values() if each.path and not isinstance(each.default, str)
}
PLAN = Section(settings_of(Plan))
_STORED = Section(
    each._replace(kind={"audience": audience.STORED, "hours": _Hours(True)}.get(each.key, each.kind))
    for each in PLAN.settings.values()
)


def _check(plan, at):
    for number, step in enumerate(plan.get("steps") or ()):
        if step is not None and not {"devices", "cohorts", "percent", "count"} & step.keys():
            at.add(("steps", number), "reaches nobody; name devices, cohorts, percent or count")
        if step is not None and "max_worse" in step and "control" not in plan:
            at.add(("steps", number, "max_worse"), "needs a control cohort; name one, such as control: {percent: 5}")
