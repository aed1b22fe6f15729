"""Learning rate schedules: functions from the number of completed steps to the rate."""

import math


def exponential_decay(start, factor):
    return lambda step: start * factor**step


def step_decay(start, factor, every):
    return lambda step: start * factor ** (step // every)


def cosine_decay(start, steps, end=0.0):
    return lambda step: end + (start - end) * 0.5 * (1 + math.cos(math.pi * min(step, steps) / steps))


def linear_schedule(start, end, steps):
    return lambda step: start + (end - start) * min(step, steps) / steps


def join_schedules(schedules, boundaries):
    """Each schedule runs until its boundary; the next one counts from there."""
    if len(schedules) != len(boundaries) + 1:
        raise ValueError(f"{len(schedules)} schedules need {len(schedules) - 1} boundaries, got {len(boundaries)}")

    def joined(step):
        index = sum(step >= boundary for boundary in boundaries)
        return schedules[index](step - (boundaries[index - 1] if index else 0))

    return joined
