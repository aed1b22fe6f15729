"""Replaying a baseline: its calls run again in another version of the task, and the outcomes are compared.

A call is `same`, `different` (its result, its error, or its calls of host functions), `error` (it had a result and now
fails), `slower` or `larger`, or `skipped`, with a reason. Times and memory depend on the machine: a call that looks
slower runs twice more, alone, and the best time counts.
"""

import os
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from vmhost import BreakerPolicy, Host, Policy, TaskPolicy
from vmhost.baseline import FOREIGN, Baseline, BaselineError, Recorded
from vmhost.operations.comparison import Difference, Tolerance, differences

STATUSES = ("same", "different", "error", "slower", "larger", "skipped")
FAILING = ("different", "error")
_MAX_AT_ONCE = 256  # calls queued or running: bounds the results in memory
_MAX_RERUNS = 50  # calls that run again because they look slower
_RERUN_TIME_SHARE = 0.02  # bound of the time for that, as a share of the replay's; at least one call runs again


@dataclass(frozen=True, slots=True)
class Faults:
    """Injected faults. `functions`: rules as in Task.replay. `memory`: the memory limit of a call in bytes; None: the
    task's."""

    functions: tuple[dict[str, object], ...] = ()
    memory_bytes: int | None = None

    def __bool__(self) -> bool:
        return bool(self.functions) or self.memory_bytes is not None


@dataclass(frozen=True, slots=True)
class Rules:
    """How calls are compared. Slower: more than `slower` times as long, and by more than `slower_least_s`. Larger: peak
    memory or result have more than `larger` times the bytes, and more than `larger_least_bytes` more. `functions`:
    whether calls of host functions must be the same."""

    tolerance: Tolerance = Tolerance()
    slower: float = 2.0
    slower_least_s: float = 0.01
    larger: float = 2.0
    larger_least_bytes: int = 1 << 20
    functions: bool = True


@dataclass(frozen=True, slots=True)
class Outcome:
    """One call of a replay. `why`: a sentence, unless it is the same."""

    recorded: Recorded
    status: str
    why: str = ""
    differences: tuple[Difference, ...] = ()
    wall_s: float = 0.0
    peak_bytes: int = 0
    beyond: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a replay. `version`: that of the bundle."""

    baseline: Baseline
    version: str
    outcomes: tuple[Outcome, ...]
    elapsed_s: float
    faults: Faults

    @property
    def counts(self) -> dict[str, int]:
        """Status -> number of calls, for all statuses."""
        found = Counter(outcome.status for outcome in self.outcomes)
        return {status: found[status] for status in STATUSES}

    def failed(self, statuses: Iterable[str] = FAILING) -> bool:
        """Whether any call has one of these `statuses`."""
        counts = self.counts
        return any(counts[status] for status in statuses)

    def medians(self) -> tuple[float, float]:
        """Median seconds of a call, recorded and now; 0 if none was compared."""
        ran = [outcome for outcome in self.outcomes if outcome.status != "skipped"]
        if not ran:
            return 0.0, 0.0
        return median(outcome.recorded.wall_s for outcome in ran), median(outcome.wall_s for outcome in ran)


def replay(
    baseline: Baseline,
    bundle: str | os.PathLike[str] | bytes,
    *,
    rules: Rules = Rules(),
    faults: Faults = Faults(),
    trust: object = None,
    allow_unsigned: bool = False,
    tables: Mapping[str, object] | None = None,
    progress: Callable[[int], object] = lambda done: None,
) -> Report:
    """Runs the calls of `baseline` in `bundle`. `trust`, `allow_unsigned`, `tables`: as for vmhost.Host.

    BundleError; BaselineError: the baseline is damaged, or of another task."""
    calls = list(baseline)
    with Host(trust=trust, allow_unsigned=allow_unsigned, policy=Policy(warm=0)) as host:
        checked = host.check(bundle)
        if checked.manifest.name != baseline.header.task:
            raise BaselineError(
                f"{baseline.path}: of the task {baseline.header.task}, the bundle has {checked.manifest.name}; give a "
                "version of the same task"
            )
    functions = dict.fromkeys(checked.manifest.permissions.get("host", ()), _unanswered)
    with _host(trust, allow_unsigned, faults, functions, tables) as host:
        task = host.load(checked)
        _warm_up(task, calls, faults)
        began = time.perf_counter()
        outcomes = []
        for outcome in _outcomes(task, calls, rules, faults):
            outcomes.append(outcome)
            progress(len(outcomes))
        if not faults:
            _retime_slow_ones(task, outcomes, rules, (time.perf_counter() - began) * _RERUN_TIME_SHARE)
        return Report(baseline, task.version, tuple(outcomes), time.perf_counter() - began, faults)


def _unanswered(value):
    """Stands for all host functions; the record answers inside the VM, so it is never called."""
    raise RuntimeError("a replay does not call host functions")


def _host(trust, allow_unsigned, faults, functions, tables):
    limits = {} if faults.memory_bytes is None else {"memory_bytes": faults.memory_bytes}
    off = BreakerPolicy(enabled=False)  # a replay looks for failures
    policy = Policy(limits=limits, task=TaskPolicy(breaker=off))
    return Host(
        trust=trust, allow_unsigned=allow_unsigned, policy=policy, functions=functions, types=FOREIGN, tables=tables
    )


def _outcomes(task, calls, rules, faults) -> Iterator[Outcome]:
    """The Outcomes in the order of `calls`. More calls are queued than can run at once, so that no VM becomes idle
    while results are compared here: waking costs more than a short call."""
    at_once = min(16 * max(2, os.process_cpu_count() or 1), _MAX_AT_ONCE)
    waiting: deque = deque()
    for recorded in calls:
        waiting.append((recorded, None if recorded.unfit else task.replay(recorded, faults=faults.functions)))
        if len(waiting) > at_once:
            yield _outcome(task, *waiting.popleft(), rules, faults)
    while waiting:
        yield _outcome(task, *waiting.popleft(), rules, faults)


def _outcome(task, recorded, running, rules, faults):
    if running is None:
        return Outcome(recorded, "skipped", recorded.unfit)
    now = running.result()
    status, why, found = _judged(recorded, now, rules, faults)
    observed = now.observed or {}
    return Outcome(
        recorded, status, why, tuple(found), now.wall_s, observed.get("peak_bytes", 0), observed.get("beyond", {})
    )


def _judged(recorded, now, rules, faults):
    """(status, why, differences) of the call's outcome `now`."""
    if now.observed is not None and now.observed["used"]:
        return "skipped", f"the new version used {', '.join(now.observed['used'])}", ()
    if now.error is not None and recorded.error is None:
        return "error", f"{now.error['type_name']}: {now.error['message']}", ()
    found = _differences(recorded, now, rules, faults)
    if found:
        return "different", str(found[0]), found
    larger = _larger(recorded, now, rules)
    return ("larger", larger, ()) if larger else ("same", "", ())


def _differences(recorded, now, rules, faults):
    if recorded.outcome != now.outcome:
        return [Difference("$", _outcome_text(recorded), _outcome_text(now))]
    found = []
    if recorded.error is not None:
        found = differences(_plain_error(recorded.error), _plain_error(now.error), rules.tolerance, "error")
    elif now.packed_result is None or now.packed_result != recorded.packed_result:  # equal bytes mean an equal value
        found = differences(recorded.result, now.result, rules.tolerance)
    if not found and rules.functions and not faults:
        before, after = _host_calls(recorded), _host_calls(now)
        if before or after:
            found = differences(before, after, rules.tolerance, "host functions")
    return found


def _host_calls(call):
    """[name, value] of each call of a host function."""
    functions = call.observed["functions"] if call.observed is not None else ()
    return [each[:2] for each in functions] if functions else ()


def _plain_error(error):
    """The error without addresses of objects, which differ each time."""
    return {name: re.sub(r"\b0x[0-9a-f]{6,}", "0x...", text) for name, text in error.items()}


def _outcome_text(call):
    return "a result" if call.error is None else f"{call.error['type_name']}: {call.error['message']}"[:200]


def _warm_up(task, calls, faults):
    """Runs a call first, so that loading does not count as its time."""
    first = next((call for call in calls if not call.unfit), None)
    if first is not None:
        task.replay(first, faults=faults.functions).result()


def _retime_slow_ones(task, outcomes, rules, most_s):
    """Runs calls that look slower up to twice more, alone; the best time counts. First the general slowdown, such as
    from parallel calls, is taken off; if that is large, only a sample runs again, for at most about `most_s`."""
    same = [at for at, outcome in enumerate(outcomes) if outcome.status == "same" and outcome.recorded.wall_s > 0]
    if not same:
        return
    general = max(1.0, median(outcomes[at].wall_s / outcomes[at].recorded.wall_s for at in same))
    suspects = [at for at in same if _is_slower(outcomes[at], outcomes[at].wall_s / general, rules)]
    all_are = general > rules.slower and not suspects
    if all_are:
        suspects = sorted(same, key=lambda at: outcomes[at].wall_s, reverse=True)
    began = time.perf_counter()
    for at in suspects[:_MAX_RERUNS]:
        outcomes[at] = _retimed(task, outcomes[at], rules)
        if all_are and time.perf_counter() - began > most_s:
            return


def _retimed(task, outcome, rules):
    best, tries = outcome.wall_s, 2
    while tries and _is_slower(outcome, best, rules):
        best, tries = min(best, task.replay(outcome.recorded).result().wall_s), tries - 1
    slower = _is_slower(outcome, best, rules)
    why = f"{best * 1e3:.1f} ms, it took {outcome.recorded.wall_s * 1e3:.1f} ms" if slower else ""
    return replace(outcome, wall_s=best, status="slower" if slower else "same", why=why)


def _is_slower(outcome, wall_s, rules):
    before = outcome.recorded.wall_s
    return wall_s > before * rules.slower and wall_s - before > rules.slower_least_s


def _larger(recorded, now, rules):
    for what, before, after in (
        ("its result", recorded.result_bytes, now.result_bytes),
        ("the peak of its memory", _peak_bytes(recorded), _peak_bytes(now)),
    ):
        if after - before > rules.larger_least_bytes and after > before * rules.larger:
            return f"{what}: {after:,} bytes, it had {before:,}"
    return None


def _peak_bytes(call):
    return 0 if call.observed is None else call.observed.get("peak_bytes", 0)
