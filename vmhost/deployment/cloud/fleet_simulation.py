"""A release to millions of simulated devices, with the plan and release code of real ones.

A plan does not distinguish devices of one cohort, and each asks, pulls and reports at random moments, so counts for
each of the 1000 cohorts describe everything: offline, online without the version, trying it, proven, failed. Each time
step draws how many of each move on. Devices come online at a constant rate, as implied by the paper's 22 minutes, or by
the hour of the day (`Day`), and then go offline again. `plan.Step`, `release_states.has_failed` and `is_over` decide
what the steps reach, when a step is over and when a release has failed.
"""

import math
from dataclasses import dataclass, field

import numpy

from vmhost.cohorts import COHORTS
from vmhost.deployment.cloud import release_states as states
from vmhost.deployment.cloud.audience import Facts
from vmhost.deployment.cloud.release_states import Counts


@dataclass(frozen=True)
class Day:
    """A daily cycle: the share of devices that are online swings from `least` at `lowest_hour` to `most` twelve hours
    later; a device stays online for `visit_s` on average. `begins`: the hour at which the release begins."""

    least: float = 0.05
    most: float = 0.40
    visit_s: float = 600.0
    lowest_hour: float = 4.0
    begins: float = 8.0

    def online(self, now_s):
        """The share of devices that are online, this long after the release began."""
        turns = (self.begins + now_s / 3600 - self.lowest_hour) / 24
        return self.least + (self.most - self.least) * (1 - math.cos(2 * math.pi * turns)) / 2


@dataclass
class Outcome:
    """`curve`: (seconds, devices online, devices proven) per minute; `reached`: devices that were offered it."""

    state: str
    reached: int
    proven: int
    failed: int
    online_covered_s: float | None  # when it ran on 99 % as many devices as were online at the start
    all_covered_s: float | None  # when it ran on 99 % of all
    requests_per_s: float  # the peak
    curve: list = field(default_factory=list)


def _come_and_go(random, day, now_s, step_s, lacking, offline, tried, away):
    """Lets devices leave and come online for a step; returns (devices that come online without the version, offline
    devices that have it). Changes `lacking` and `offline` by those that leave. Who comes is random among the offline
    ones."""
    leave = -numpy.expm1(-step_s / day.visit_s)
    leaving = random.binomial(lacking, leave)
    lacking -= leaving
    offline += leaving
    away = away + random.binomial(tried - away, leave)
    devices = int(lacking.sum() + offline.sum() + tried.sum())
    wanted = day.online(now_s) * devices - int(lacking.sum()) - int((tried - away).sum())
    asleep = int(offline.sum() + away.sum())
    share = min(1.0, max(0.0, wanted / asleep)) if asleep else 0.0
    return random.binomial(offline, share), away - random.binomial(away, share)


def simulate(
    plan,
    *,
    devices=22_000_000,
    online=7_000_000,
    joining_per_min=700_000,
    ask_every_s=60.0,
    trial_s=5.0,
    failing=0.002,
    platform_per_s=None,
    until_s=3600,
    step_s=1.0,
    day=None,
    seed=0,
):
    """Returns the Outcome. `day` (a Day): the daily cycle, instead of `online` and `joining_per_min`. A device asks
    when it comes online, and every `ask_every_s` on average from then on. It tries a version for `trial_s` on average,
    which fails with probability `failing`. The platform answers at most `platform_per_s` requests a second (None:
    all)."""
    random = numpy.random.default_rng(seed)
    if day is not None:
        online = round(devices * day.online(0))
    cohorts = numpy.full(COHORTS, devices // COHORTS, dtype=numpy.int64)
    cohorts[: devices % COHORTS] += 1
    lacking = random.binomial(cohorts, online / devices)  # online, not offered yet
    offline = cohorts - lacking
    trying, proven, failed = (numpy.zeros(COHORTS, dtype=numpy.int64) for _ in range(3))
    away = numpy.zeros(COHORTS, dtype=numpy.int64)  # offline, but have it already or tried it
    step, since_s, state = 0, 0.0, "running"
    by_step = [Counts() for _ in plan.steps]
    trying_of = [numpy.zeros(COHORTS, dtype=numpy.int64) for _ in plan.steps]
    reaches = [
        numpy.array([each.reaches(Facts("", {}, cohort)) for cohort in range(1, COHORTS + 1)]) for each in plan.steps
    ]
    online_covered_s = all_covered_s = None
    reached, most_requests, curve = 0, 0.0, []
    now_s = 0.0
    while now_s < until_s and state == "running" or state == "done" and now_s < until_s and all_covered_s is None:
        now_s += step_s
        joining = numpy.zeros(COHORTS, dtype=numpy.int64)
        if day is None:
            if waiting := int(offline.sum()):
                joining = random.binomial(offline, min(1.0, joining_per_min / 60 * step_s / waiting))
        else:
            joining, away = _come_and_go(random, day, now_s, step_s, lacking, offline, proven + failed, away)
        offline -= joining
        online_now, joined = devices - int(offline.sum()) - int(away.sum()), int(joining.sum())
        # devices that ask, and those that are reached
        share = -numpy.expm1(-step_s / ask_every_s)
        requests, at_once = ((online_now - joined) * share + joined) / step_s, 1.0
        if platform_per_s is not None and requests > platform_per_s:
            at_once = platform_per_s / requests
            share *= at_once
            requests = platform_per_s
        most_requests = max(most_requests, requests)
        open_to = numpy.logical_or.reduce(reaches[: step + 1]) if state == "running" else numpy.ones(COHORTS, bool)
        asked = random.binomial(lacking, share) + random.binomial(joining, at_once)
        lacking += joining
        offered = numpy.where(open_to, asked, 0)
        room = max((each.count or 0) for each in plan.steps[: step + 1]) - reached
        not_offered = asked - offered
        if state == "running" and room > 0 and (candidates := int(not_offered.sum())):
            taken = random.multivariate_hypergeometric(not_offered, min(room, candidates), method="marginals")
            offered = offered + taken
        lacking -= offered
        trying += offered
        trying_of[step] += offered
        reached += int(offered.sum())
        # devices that end their trial
        for number, each in enumerate(trying_of):
            if each.any():
                ended = random.binomial(each, -numpy.expm1(-step_s / trial_s))
                failing_now = random.binomial(ended, failing)
                each -= ended
                trying -= ended
                proven += ended - failing_now
                failed += failing_now
                by_step[number].proven += int((ended - failing_now).sum())
                by_step[number].failed += int(failing_now.sum())
        whole = Counts(proven=int(proven.sum()), failed=int(failed.sum()))
        for counts in (by_step[step], whole):
            if state in ("running", "done") and states.has_failed(plan, plan.steps[step], counts):
                state = states.after(state, plan.on_failure)
        current = plan.steps[step]
        # Calls are not simulated: assume that as many have come as the step waits for.
        if state == "running" and states.is_over(
            current, by_step[step], current.min_calls, since_s * 1000, now_s * 1000
        ):
            last = step + 1 == len(plan.steps)
            state = states.after(state, "finish" if last else "next")
            step, since_s = (step, since_s) if last else (step + 1, now_s)
        runs = whole.proven
        if online_covered_s is None and runs >= 0.99 * online * (1 - failing):
            online_covered_s = now_s
        if all_covered_s is None and runs >= 0.99 * devices * (1 - failing):
            all_covered_s = now_s
        if now_s % 60 < step_s:
            curve.append((now_s, online_now, runs))
    whole = Counts(proven=int(proven.sum()), failed=int(failed.sum()))
    return Outcome(state, reached, whole.proven, whole.failed, online_covered_s, all_covered_s, most_requests, curve)
