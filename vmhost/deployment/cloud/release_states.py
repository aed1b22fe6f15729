"""The states of a release and of a device in it, as tables; and when a step is over or has failed.

Pure functions, used by the engine (releases.py), the simulation of a fleet and the tests.
"""

from dataclasses import dataclass, fields

from vmhost.deployment.errors import RefusedError

# (state, event) -> next state
RELEASE = {
    ("queued", "start"): "running",
    ("queued", "cancel"): "cancelled",
    ("running", "pause"): "paused",
    ("running", "halt"): "halted",
    ("running", "roll_back"): "rolled_back",
    ("running", "next"): "running",  # the next step
    ("running", "finish"): "done",
    ("paused", "resume"): "running",
    ("paused", "halt"): "halted",
    ("paused", "roll_back"): "rolled_back",
    ("halted", "resume"): "running",
    ("halted", "roll_back"): "rolled_back",
    ("done", "halt"): "halted",
    ("done", "pause"): "paused",
    ("done", "roll_back"): "rolled_back",
}
RELEASE_STATES = ("queued", "running", "paused", "halted", "done", "rolled_back", "cancelled")
ACTIVE = ("running", "paused")  # at most one release of a task is in these

# The states of a device in a release, and the next ones. `offered`: it was told. `taken`: it pulls or tries the
# version. `running`: it switched, and is watched. `proven`, `failed`. `silent`: it took the version and then said
# nothing for too long. `declined`: its user went back.
DEVICE = {
    "offered": ("taken", "running", "proven", "failed", "declined"),
    "taken": ("running", "proven", "failed", "silent", "declined"),
    "running": ("proven", "failed", "silent", "declined"),
    "silent": ("taken", "running", "proven", "failed", "declined"),
    "proven": ("failed", "declined"),
    "failed": ("taken", "running", "proven"),  # after a retry
    "declined": ("taken", "running", "proven"),
}
HAS_NO_MORE = ("failed", "declined")


def after(state, event):
    """The state of a release after `event`; RefusedError if the event is not possible."""
    try:
        return RELEASE[state, event]
    except KeyError:
        can = sorted({name for (from_state, name) in RELEASE if from_state == state})
        raise RefusedError(
            f"the release is {state}; it can {', '.join(can) or 'not be changed'}, not {event}"
        ) from None


@dataclass
class Counts:
    """The number of devices of a release in each state."""

    offered: int = 0
    taken: int = 0
    running: int = 0
    proven: int = 0
    failed: int = 0
    silent: int = 0
    declined: int = 0

    def move(self, before, now):
        """Counts a device's change of state (`before` None: it is new)."""
        if before is not None:
            setattr(self, before, getattr(self, before) - 1)
        setattr(self, now, getattr(self, now) + 1)

    @property
    def reached(self):
        return sum(getattr(self, each.name) for each in fields(self))

    @property
    def bad(self):
        return self.failed + self.silent

    @property
    def reports(self):
        return self.proven + self.bad


@dataclass
class CallCounts:
    """Calls and failures since a release began: on devices that have it, and on those that keep the old version."""

    calls: int = 0
    failures: int = 0
    control_calls: int = 0
    control_failures: int = 0


def is_worse(plan, step, counted):
    """Whether calls (CallCounts) fail more often than in the control cohort, by more than the step allows."""
    control = plan.control
    if control is None or min(counted.calls, counted.control_calls) < control.min_calls:
        return False
    worse = counted.failures / counted.calls - counted.control_failures / counted.control_calls
    return worse > (control.max_worse if step.max_worse is None else step.max_worse)


def has_failed(plan, step, counts):
    """Whether more devices failed than the step allows.

    Relative to the number of reports, or to the number that the step waits for if that is larger, so that the first of
    many devices to report does not count as all of them."""
    bad = counts.bad
    return bad >= plan.min_failures and bad > step.max_error * max(counts.reports, step.min_reports)


def is_over(step, counts, calls, since_ms, now_ms):
    """Whether all conditions of the step are met. `counts`: of its devices; `calls`: on devices that have the
    version."""
    return (
        counts.proven >= step.min_reports
        and counts.proven >= step.min_proven * (counts.reached - counts.declined)
        and calls >= step.min_calls
        and now_ms - since_ms >= step.soak_s * 1000
    )
