"""Histograms of durations: longer_than and quantile for known durations."""

import pytest

from vmhost.statistics import Histogram, bucket_end_s


def histogram(*durations_s):
    buckets = [0] * 300
    for duration_s in durations_s:
        buckets[next(bucket for bucket in range(300) if duration_s < bucket_end_s(bucket))] += 1
    return Histogram(b"".join(number.to_bytes(8, "little") for number in buckets), sum(durations_s))


@pytest.mark.parametrize("bound_s", [0.0000005, 0.001, 0.2, 3.0])
def test_what_is_longer_is_counted_but_for_what_is_near(bound_s):
    durations = [bound_s * factor for factor in (0.1, 0.5, 0.99, 1.2, 2.0, 50.0)]
    assert histogram(*durations).longer_than(bound_s) == 3
    assert histogram().longer_than(bound_s) == 0


def test_a_quantile_is_that_of_the_durations():
    assert histogram(*[0.01] * 98, 0.5, 0.5).quantile(0.98) == pytest.approx(0.01, rel=0.125)
    assert histogram(*[0.01] * 98, 0.5, 0.5).quantile(0.99) == pytest.approx(0.5, rel=0.125)


def test_a_histogram_is_shown_in_short():
    assert repr(histogram(0.5, 1.5)) == "Histogram(count=2, total_s=2)"
