"""Each operator of features, in plain Python: a literal translation of docs/features-of-events.md.

An event is (seconds since 1970, value or None, identity, the other value or None). `at` is when it is read, `span` the
window's length in seconds.
"""

import math
from collections import Counter

NAN = math.nan
HOUR, DAY = 3600, 86400


def ratio(a, b):
    return a / b if b else NAN


def mean(values):
    return ratio(sum(values), len(values))


def moment(values, power):
    middle = mean(values)
    return sum((value - middle) ** power for value in values)


def quantile(values, q):
    if not values or not 0 <= q <= 1:
        return NAN
    values = sorted(values)
    at = q * (len(values) - 1)
    below = int(at)
    above = min(below + 1, len(values) - 1)
    return values[below] + (values[above] - values[below]) * (at - below)


def deviation(values):
    return math.sqrt(ratio(moment(values, 2), len(values))) if values else NAN


def nth(values, number):
    """The number-th, counted from 1; none if there are fewer."""
    number = math.floor(number) if number >= 1 else 1
    return values[number - 1] if number <= len(values) else NAN


def steps(values):
    return [after - before for before, after in zip(values, values[1:], strict=False)]


def best(values, choose=max):
    return choose(values) if values else NAN


def longest_run(flags):
    longest = run = 0
    for flag in flags:
        run = run + 1 if flag else 0
        longest = max(longest, run)
    return longest


def gaps(times):
    return [after - before for before, after in zip(times, times[1:], strict=False)]


def sessions(times, pause):
    found = []
    for time in times:
        if not found or time - found[-1][-1] > pause:
            found.append([])
        found[-1].append(time)
    return found


def hour(time):
    return time // HOUR % 24


def weekday(time):
    return (time // DAY + 3) % 7


def line(points):
    """(slope, share of the variance that it explains) of the line of least squares through (hour, value)."""
    if not points:
        return NAN, NAN
    x0, y0 = mean([x for x, _ in points]), mean([y for _, y in points])
    xx = sum((x - x0) ** 2 for x, _ in points)
    yy = sum((y - y0) ** 2 for _, y in points)
    xy = sum((x - x0) * (y - y0) for x, y in points)
    return ratio(xy, xx), NAN if not xx or not yy else xy * xy / (xx * yy)


def since(events, at, wanted):
    return next((at - time for time, value, *_ in reversed(events) if value == wanted), NAN)


def near_pairs(events, seconds):
    """(pairs of events with values within `seconds`, those of them whose values differ)."""
    valued = [(time, mark) for time, value, mark, _ in events if value is not None]
    near = [
        (one, two)
        for place, (time, one) in enumerate(valued)
        for before, two in valued[:place]
        if time - before <= seconds
    ]
    return len(near), sum(one != two for one, two in near)


def entropy(things):
    return sum(-c / len(things) * math.log2(c / len(things)) for c in Counter(things).values())


def of_pairs(pairs):
    """Operators over (value, other)."""
    values, others = [value for value, _ in pairs], [other for _, other in pairs]
    x, y, counts = mean(values), mean(others), Counter(pairs)
    xy = sum((value - x) * (other - y) for value, other in pairs)
    xx, yy = moment(values, 2), moment(others, 2)
    product = sum(value * other for value, other in pairs)
    return {
        "weighted_sum": product,
        "weighted_mean": ratio(product, sum(others)),
        "covariance": ratio(xy, len(pairs)),
        "correlation": ratio(xy, math.sqrt(xx) * math.sqrt(yy)),
        "slope_over": ratio(xy, yy),
        "sum_ratio": ratio(sum(values), sum(others)),
        "pairs": len(counts),
        "pair_mode_count": max(counts.values(), default=0),
        "pair_mode_share": ratio(max(counts.values(), default=0), len(pairs)),
        "mutual_information": entropy(values) + entropy(others) - entropy(pairs) if pairs else NAN,
    }


def computed(events, at, span, p):
    """{name of an operator: its value} for the events of the window, by time."""
    times = [time for time, *_ in events]
    values = [value for _, value, *_ in events if value is not None]
    marks = [mark for _, value, mark, _ in events if value is not None]
    n, many = len(events), len(values)
    positive = [value for value in values if value > 0]
    counts = Counter(marks)
    last_place = {mark: place for place, mark in enumerate(marks)}
    mode = max(counts, key=lambda mark: (counts[mark], last_place[mark])) if counts else None
    value_of = dict(zip(marks, values, strict=True))
    first, last = nth(values, 1), nth(values[::-1], 1)
    moves = steps(values)
    rises = [move for move in moves if move > 0]
    turning = [move for move in moves if move != 0]
    pauses = gaps(times)
    mean_gap = ratio(times[-1] - times[0], n - 1) if n > 1 else NAN
    gap_deviation = math.sqrt(sum((gap - mean_gap) ** 2 for gap in pauses) / len(pauses)) if pauses else NAN
    visits = sessions(times, p)
    decay = [0.5 ** ((at - time) / p) for time in times] if p else []
    valued = [(weight, value) for weight, (_, value, *_) in zip(decay, events, strict=False) if value is not None]
    slope, fit = line([((time - at) / HOUR, value) for time, value, *_ in events if value is not None])
    newer = [value for time, value, *_ in events if value is not None and 2 * (at - time) < span]
    older = [value for time, value, *_ in events if value is not None and not 2 * (at - time) < span]
    recent = sum(2 * (at - time) < span for time in times)
    hours = Counter(map(hour, times))
    ordered = sorted(values)
    spread = deviation(values)
    cut = int(p * many)
    lasting = [(time, value) for time, value, *_ in events if value is not None]
    weights = [then - time for (time, _), then in zip(lasting, [*(time for time, _ in lasting[1:]), at], strict=False)]
    near, differing = near_pairs(events, p)
    runs = 0
    for mark in reversed(marks):
        if mark != marks[-1]:
            break
        runs += 1
    return {
        "count": n,
        "valued": many,
        "missing": n - many,
        "any": int(n > 0),
        "at_least": int(n >= p),
        "positive": len(positive),
        "negative": sum(value < 0 for value in values),
        "zeros": values.count(0),
        "above": sum(value > p for value in values),
        "below": sum(value < p for value in values),
        "equal": values.count(p),
        "above_share": ratio(sum(value > p for value in values), many),
        "below_share": ratio(sum(value < p for value in values), many),
        "equal_share": ratio(values.count(p), many),
        "positive_share": ratio(len(positive), many),
        "missing_share": ratio(n - many, n),
        "sum": sum(values),
        "mean": mean(values),
        "least": best(values, min),
        "most": best(values),
        "range": best(values) - best(values, min),
        "midrange": (best(values) + best(values, min)) / 2,
        "variance": ratio(moment(values, 2), many),
        "sample_variance": moment(values, 2) / (many - 1) if many > 1 else NAN,
        "deviation": spread,
        "sample_deviation": math.sqrt(moment(values, 2) / (many - 1)) if many > 1 else NAN,
        "variation": ratio(spread, abs(mean(values))) if many else NAN,
        "skewness": moment(values, 3) / many / spread**3 if many and spread else NAN,
        "kurtosis": moment(values, 4) / many / spread**4 - 3 if many and spread else NAN,
        "root_mean_square": math.sqrt(mean([value * value for value in values])) if many else NAN,
        "sum_of_squares": sum(value * value for value in values),
        "absolute_sum": sum(map(abs, values)),
        "absolute_mean": mean(list(map(abs, values))),
        "geometric_mean": math.exp(mean([math.log(value) for value in positive])) if positive else NAN,
        "harmonic_mean": len(positive) / sum(1 / value for value in positive) if positive else NAN,
        "positive_sum": sum(positive),
        "negative_sum": sum(value for value in values if value < 0),
        "median": quantile(values, 0.5),
        "quantile": quantile(values, p),
        "lower_quartile": quantile(values, 0.25),
        "upper_quartile": quantile(values, 0.75),
        "quartile_range": quantile(values, 0.75) - quantile(values, 0.25),
        "percentile_90": quantile(values, 0.9),
        "percentile_95": quantile(values, 0.95),
        "percentile_99": quantile(values, 0.99),
        "trimmed_mean": mean(ordered[cut : many - cut]) if many and 0 <= p < 0.5 else NAN,
        "median_deviation": quantile([abs(value - quantile(values, 0.5)) for value in values], 0.5),
        "gini": (
            sum(abs(a - b) for a in values for b in values) / (2 * many * sum(values))
            if many and sum(values) > 0
            else NAN
        ),
        "top_share": (
            sum(ordered[many - math.ceil(p * many) :]) / sum(values) if many and sum(values) and 0 < p <= 1 else NAN
        ),
        "first": first,
        "last": last,
        "previous": nth(values[::-1], 2),
        "nth_last": nth(values[::-1], p),
        "nth_first": nth(values, p),
        "change": last - first,
        "last_change": last - nth(values[::-1], 2),
        "relative_change": ratio(last - first, abs(first)) if many else NAN,
        "mean_change": mean(moves),
        "absolute_change": sum(map(abs, moves)),
        "largest_rise": best(moves),
        "largest_fall": -best(moves, min),
        "rises": len(rises),
        "falls": sum(move < 0 for move in moves),
        "longest_rise": longest_run([move > 0 for move in moves]),
        "turns": sum(a * b < 0 for a, b in zip(turning, turning[1:], strict=False)),
        "autocorrelation": (
            sum((a - mean(values)) * (b - mean(values)) for a, b in zip(values, values[1:], strict=False))
            / moment(values, 2)
            if many > 1 and moment(values, 2)
            else NAN
        ),
        "above_mean_share": ratio(sum(value > mean(values) for value in values), many),
        "records": sum(all(value > before for before in values[:place]) for place, value in enumerate(values)),
        "since_most": since(events, at, best(values)),
        "since_least": since(events, at, best(values, min)),
        "distinct": len(counts),
        "distinct_share": ratio(len(counts), many),
        "mode": NAN if mode is None else value_of[mode],
        "mode_count": counts[mode],
        "mode_share": ratio(counts[mode], many),
        "entropy": sum(-c / many * math.log2(c / many) for c in counts.values()) if many else NAN,
        "repeated": sum(c > 1 for c in counts.values()),
        "singles": sum(c == 1 for c in counts.values()),
        "same_as_last": counts[marks[-1]] if marks else 0,
        "run_length": runs,
        "switches": sum(a != b for a, b in zip(marks, marks[1:], strict=False)),
        "recency": at - times[-1] if n else NAN,
        "age": at - times[0] if n else NAN,
        "span": times[-1] - times[0] if n else NAN,
        "hourly_rate": n / (span / HOUR),
        "daily_rate": n / (span / DAY),
        "mean_gap": mean_gap,
        "shortest_gap": best(pauses, min),
        "longest_gap": best(pauses),
        "gap_deviation": gap_deviation,
        "burstiness": ratio(gap_deviation - mean_gap, gap_deviation + mean_gap) if pauses else NAN,
        "sessions": len(visits),
        "session_events": len(visits[-1]) if visits else 0,
        "session_seconds": visits[-1][-1] - visits[-1][0] if visits else NAN,
        "mean_session_events": ratio(n, len(visits)),
        "mean_session_seconds": mean([visit[-1] - visit[0] for visit in visits]),
        "active_days": len({time // DAY for time in times}),
        "active_hours": len({time // HOUR for time in times}),
        "hour_share": ratio(sum(hour(time) == p for time in times), n),
        "weekday_share": ratio(sum(weekday(time) == p for time in times), n),
        "weekend_share": ratio(sum(weekday(time) >= 5 for time in times), n),
        "night_share": ratio(sum(hour(time) < 6 or hour(time) >= 22 for time in times), n),
        "peak_hour": min(hours, key=lambda each: (-hours[each], each)) if hours else NAN,
        "decayed_count": sum(decay),
        "decayed_sum": sum(weight * value for weight, value in valued),
        "decayed_mean": ratio(sum(w * v for w, v in valued), sum(w for w, _ in valued)),
        "slope": slope,
        "slope_fit": fit,
        "recent_share": ratio(sum(at - time < p * span for time in times), n),
        "trend": mean(newer) - mean(older),
        "acceleration": recent - (n - recent),
        "time_weighted_mean": ratio(sum(w * v for w, (_, v) in zip(weights, lasting, strict=False)), sum(weights)),
        "co_occurrence": differing,
        "co_occurrence_share": ratio(differing, near),
        **of_pairs([(value, other) for _, value, _, other in events if value is not None and other is not None]),
    }
