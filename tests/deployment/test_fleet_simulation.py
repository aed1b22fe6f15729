"""Releases to millions of simulated devices, by the real plan and release code: in miniature."""

import pytest

from vmhost.deployment.cloud.fleet_simulation import Day, simulate
from vmhost.deployment.cloud.plan import Plan

PLAN = Plan.of(
    {
        "steps": [{"count": 1000, "min_reports": 500}, {"percent": 10, "min_reports": 2000}, {"percent": 100}],
        "max_error": "1 %",
        "on_failure": "halt",
    }
)


def test_a_good_release_reaches_everybody_as_they_come_online():
    outcome = simulate(PLAN, devices=1_000_000, online=300_000, joining_per_min=50_000, seed=1)
    assert outcome.state == "done"
    assert outcome.proven + outcome.failed >= 980_000
    assert outcome.online_covered_s < outcome.all_covered_s
    last_joins_s = (0.99 * 1_000_000 - 300_000) / 50_000 * 60
    assert outcome.all_covered_s < last_joins_s + 60  # devices ask as soon as they are online


@pytest.mark.parametrize("seed", range(5))
def test_a_bad_release_stops_at_its_first_step(seed):
    outcome = simulate(PLAN, failing=0.05, seed=seed)
    assert outcome.state == "halted" and outcome.reached <= 2000


def test_over_a_day_devices_come_and_go_and_each_gets_it_when_it_is_there():
    day = Day(least=0.05, most=0.4, begins=4.0)
    assert [round(day.online(hour * 3600), 3) for hour in (0, 6, 12, 24)] == [0.05, 0.225, 0.4, 0.05]
    outcome = simulate(PLAN, devices=1_000_000, day=day, step_s=10.0, until_s=36 * 3600, seed=1)
    assert outcome.state == "done" and outcome.proven + outcome.failed >= 980_000
    for now_s, online, _ in outcome.curve:
        assert abs(online / 1_000_000 - day.online(now_s)) < 0.03, now_s
    by_noon = simulate(PLAN, devices=1_000_000, day=Day(begins=12.0), step_s=10.0, until_s=36 * 3600, seed=1)
    assert by_noon.all_covered_s < outcome.all_covered_s


def test_no_device_is_lost_or_made_up():
    outcome = simulate(PLAN, devices=100_000, online=50_000, failing=0.0, until_s=7200, joining_per_min=50_000)
    assert outcome.reached >= outcome.proven and outcome.reached <= 100_000 and outcome.failed == 0
