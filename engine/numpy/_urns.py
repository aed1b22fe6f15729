"""Sampling without replacement, for a Generator's `hypergeometric` and `multivariate_hypergeometric`.

The numbers are those of NumPy for the same stream: small samples are drawn ball by ball, larger ones by Stadlober's
ratio of uniforms (HRUA, 1989). `generator` is a `random.Generator`; all counts are validated Python integers."""

from math import floor, lgamma, log, sqrt

from vmhost.engine import _array as _a

_FULL_32, _FULL_64 = (1 << 32) - 1, (1 << 64) - 1


def bounded_integer(generator, maximum):
    """A uniform integer in [0, maximum], by rejection of masked words."""
    if maximum == 0:
        return 0
    mask = (1 << maximum.bit_length()) - 1
    full, dtype = (_FULL_32, _a.uint32) if maximum <= _FULL_32 else (_FULL_64, _a.uint64)
    while True:
        value = int(generator.integers(0, full, None, dtype, True)) & mask
        if value <= maximum:
            return value


def hypergeometric(generator, good, bad, sample):
    """The number of good balls among `sample` drawn from an urn with `good` good and `bad` bad ones."""
    if 10 <= sample <= good + bad - 10:
        return _by_ratio_of_uniforms(generator, good, bad, sample)
    return _ball_by_ball(generator, good, bad, sample)


def _ball_by_ball(generator, good, bad, sample):
    total = good + bad
    complement = sample > total // 2  # draw the balls that stay in the urn instead
    left, left_good, to_draw = total, good, total - sample if complement else sample
    while to_draw > 0 and left_good > 0 and left > left_good:
        left -= 1
        if bounded_integer(generator, left) < left_good:
            left_good -= 1
        to_draw -= 1
    if left == left_good:
        left_good -= to_draw
    return left_good if complement else good - left_good


def _by_ratio_of_uniforms(generator, good, bad, sample):
    total, fewer, more = good + bad, min(good, bad), max(good, bad)
    drawn = min(sample, total - sample)
    p, q = fewer / total, more / total
    center = drawn * p + 0.5
    deviation = sqrt((total - drawn) * drawn * p * q / (total - 1) + 0.5)
    width = 1.7155277699214135 * deviation + 0.8989161620588988
    mode = floor((drawn + 1) * (fewer + 1) / (total + 2))

    def weight(k):  # minus the logarithm of k's probability, up to a constant
        return lgamma(k + 1) + lgamma(fewer - k + 1) + lgamma(drawn - k + 1) + lgamma(more - drawn + k + 1)

    weight_at_mode, end = weight(mode), min(min(drawn, fewer) + 1, floor(center + 16 * deviation))
    while True:
        u, v = float(generator.random()), float(generator.random())
        x = center + width * (v - 0.5) / u
        if not 0 <= x < end:
            continue
        k = floor(x)
        log_ratio = weight_at_mode - weight(k)
        if u * (4.0 - u) - 3.0 <= log_ratio:
            break
        if u * (u - log_ratio) < 1 and 2.0 * log(u) <= log_ratio:
            break
    if good > bad:
        k = drawn - k
    return good - k if drawn < sample else k


def by_marginals(generator, colors, sample):
    """The number of balls of each colour in a sample, drawn colour by colour."""
    total = sum(colors)
    complement = sample > total // 2
    to_draw, left, drawn = total - sample if complement else sample, total, [0] * len(colors)
    if total and sample:
        for j, count in enumerate(colors[:-1]):
            if to_draw <= 0:
                break
            left -= count
            drawn[j] = hypergeometric(generator, count, left, to_draw)
            to_draw -= drawn[j]
        drawn[-1] += max(to_draw, 0)
        if complement:
            drawn = [count - n for count, n in zip(colors, drawn)]
    return drawn


def by_counting(generator, colors, sample, times):
    """The counts of `times` samples, each drawn by a partial shuffle of all balls."""
    total = sum(colors)
    complement = sample > total // 2
    to_draw = total - sample if complement else sample
    balls = [color for color, count in enumerate(colors) for _ in range(count)]
    rows = []
    for _ in range(times):
        drawn = [0] * len(colors)
        if total and sample:
            for j in range(to_draw):
                k = j + bounded_integer(generator, total - j - 1)
                balls[j], balls[k] = balls[k], balls[j]
                drawn[balls[j]] += 1
            if complement:
                drawn = [count - n for count, n in zip(colors, drawn)]
        rows.append(drawn)
    return rows
