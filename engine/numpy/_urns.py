"""Sampling without replacement, for a Generator's `hypergeometric` and `multivariate_hypergeometric`.

Number by number and in NumPy's streams: small samples draw by draw, larger ones by Stadlober's ratio of uniforms (HRUA,
1989). `generator` is a `random.Generator`; all counts are validated Python integers."""

from math import floor, lgamma, log, sqrt

from vmhost.engine import _array as _a

_FULL_32, _FULL_64 = (1 << 32) - 1, (1 << 64) - 1


def below_or_at(generator, maximum):
    """A number from 0 to `maximum`: masked words until one is small enough."""
    if maximum == 0:
        return 0
    mask = (1 << maximum.bit_length()) - 1
    full, dtype = (_FULL_32, _a.uint32) if maximum <= _FULL_32 else (_FULL_64, _a.uint64)
    while True:
        value = int(generator.integers(0, full, None, dtype, True)) & mask
        if value <= maximum:
            return value


def hypergeometric(generator, good, bad, sample):
    """The number of good balls among `sample` drawn from an urn with `good` and `bad` ones."""
    if 10 <= sample <= good + bad - 10:
        return _by_ratio(generator, good, bad, sample)
    return _one_by_one(generator, good, bad, sample)


def _one_by_one(generator, good, bad, sample):
    total = good + bad
    complement = sample > total // 2  # draw the balls that stay in the urn instead
    left, left_good, to_draw = total, good, total - sample if complement else sample
    while to_draw > 0 and left_good > 0 and left > left_good:
        left -= 1
        if below_or_at(generator, left) < left_good:
            left_good -= 1
        to_draw -= 1
    if left == left_good:
        left_good -= to_draw
    return left_good if complement else good - left_good


def _by_ratio(generator, good, bad, sample):
    total, fewer, more = good + bad, min(good, bad), max(good, bad)
    drawn = min(sample, total - sample)
    p, q = fewer / total, more / total
    middle = drawn * p + 0.5
    deviation = sqrt((total - drawn) * drawn * p * q / (total - 1) + 0.5)
    width = 1.7155277699214135 * deviation + 0.8989161620588988
    mode = floor((drawn + 1) * (fewer + 1) / (total + 2))

    def weight(k):
        return lgamma(k + 1) + lgamma(fewer - k + 1) + lgamma(drawn - k + 1) + lgamma(more - drawn + k + 1)

    highest, end = weight(mode), min(min(drawn, fewer) + 1, floor(middle + 16 * deviation))
    while True:
        u, v = float(generator.random()), float(generator.random())
        x = middle + width * (v - 0.5) / u
        if not 0 <= x < end:
            continue
        k = floor(x)
        gain = highest - weight(k)
        if u * (4.0 - u) - 3.0 <= gain:
            break
        if u * (u - gain) < 1 and 2.0 * log(u) <= gain:
            break
    if good > bad:
        k = drawn - k
    return good - k if drawn < sample else k


def by_marginals(generator, colors, sample):
    """The number of balls of each colour, one colour after the other."""
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
    """`times` such samples, by shuffling the balls themselves."""
    total = sum(colors)
    complement = sample > total // 2
    to_draw = total - sample if complement else sample
    balls = [color for color, count in enumerate(colors) for _ in range(count)]
    rows = []
    for _ in range(times):
        drawn = [0] * len(colors)
        if total and sample:
            for j in range(to_draw):
                k = j + below_or_at(generator, total - j - 1)
                balls[j], balls[k] = balls[k], balls[j]
                drawn[balls[j]] += 1
            if complement:
                drawn = [count - n for count, n in zip(colors, drawn)]
        rows.append(drawn)
    return rows
