"""/metrics against the calls that ran, counted by the callers; read by the parsers of Prometheus's own client."""

import subprocess
import threading
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_prometheus

import vmhost
from tests.hosts import until
from tests.operations.hosts_at_work import bundle, host
from vmhost.operations import OPENMETRICS, PROMETHEUS, exposition
from vmhost.operations.metrics import MAX_VERSIONS, scrape
from vmhost.statistics import (
    BreakerStatistics,
    Histogram,
    HostStatistics,
    TaskStatistics,
    VMTotals,
    bucket_end_s,
    filled,
    reached,
)

ROOT = Path(__file__).resolve().parents[2]
BUCKETS = 264


def samples(text, parse=parse_prometheus):
    """Value by (name, labels) of every sample; each appears once."""
    found = {}
    for family in parse(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found
            found[key] = sample.value
    return found


def value(found, name, **labels):
    return found[name, frozenset(labels.items())]


def histogram(**counts):
    """A Histogram with counts by bucket, as b7=1."""
    numbers = [counts.get(f"b{bucket}", 0) for bucket in range(BUCKETS)]
    return Histogram(b"".join(number.to_bytes(8, "little") for number in numbers), 1.0)


def task(name, version="1", calls=0):
    breaker = BreakerStatistics("closed", None, 0)
    ended = {"OK": calls} if calls else {}
    return TaskStatistics(
        name, version, False, 0, 0, 0, calls, 0, ended, VMTotals(), breaker, histogram(b8=calls), histogram(), {}
    )


def statistics(tasks, draining=()):
    named = {each.name: each for each in tasks}
    return HostStatistics(named, tuple(draining), (), (), 0, 0, 0, 0, 0, 0, 0, True, VMTotals(), ())


def test_it_counts_what_callers_counted_while_scrapes_and_new_versions_go_on(tmp_path):
    failed, ended = 0, threading.Event()
    one, two = bundle(tmp_path), bundle(tmp_path, version="2.0.0")
    with host() as running:
        work = running.load(one)
        seen = []

        def look():
            last = 0.0
            while not ended.is_set():
                found = samples(scrape(running))
                now = found.get(("vmhost_vms_booted_total", frozenset()))
                assert now >= last
                last = now
                seen.append(now)

        scrapers = [threading.Thread(target=look) for _ in range(2)]
        for thread in scrapers:
            thread.start()
        for number in range(200):
            if number == 100:
                running.load(two)
            if number % 10 == 0:
                with pytest.raises(vmhost.TaskError):
                    work("fail")
                failed += 1
            else:
                assert work(number) == number
        ended.set()
        for thread in scrapers:
            thread.join()
        assert seen
        for content_type, parse in ((PROMETHEUS, parse_prometheus), (OPENMETRICS, parse_openmetrics)):
            found = samples(exposition(running.statistics(), content_type), parse)
            labels = {"task": "worker", "version": "2.0.0"}
            assert value(found, "vmhost_calls_total", **labels, outcome="ok") == 90
            assert value(found, "vmhost_calls_total", **labels, outcome="task_error") == failed // 2
            for name in ("vmhost_call_duration_seconds", "vmhost_call_wait_seconds"):
                assert value(found, f"{name}_count", **labels) == 100
                assert value(found, f"{name}_bucket", **labels, le="+Inf") == 100
            assert value(found, "vmhost_breaker_state", **labels, state="closed") == 1
            assert value(found, "vmhost_calls_running", **labels) == 0
            until(
                lambda: (
                    samples(scrape(running, content_type), parse)
                    == samples(exposition(running.statistics(), content_type), parse)
                )
            )


def test_both_formats_end_as_they_must_and_name_counters_their_way():
    one = statistics([task("a", calls=3)])
    plain, open_text = exposition(one), exposition(one, OPENMETRICS)
    assert "# TYPE vmhost_calls_total counter\n" in plain and "# EOF" not in plain
    assert "# TYPE vmhost_calls counter\n" in open_text and open_text.endswith("# EOF\n")
    assert samples(plain) == samples(open_text, parse_openmetrics)


def test_names_that_no_label_could_say_are_escaped():
    odd = 'a"b\\c\nd{}=,'
    found = samples(exposition(statistics([task(odd, calls=2)])))
    assert value(found, "vmhost_calls_total", task=odd, version="1", outcome="ok") == 2


def test_a_bucket_counts_what_is_shorter_than_its_bound():
    buckets = histogram(b38=1, b39=2, b40=4, b263=8)
    one = task("a")
    one = TaskStatistics(*(buckets if name == "walls" else getattr(one, name) for name in one.__slots__))
    found = samples(exposition(statistics([one])))
    bounds = sorted(
        (float(dict(labels)["le"]), number)
        for (name, labels), number in found.items()
        if name == "vmhost_call_duration_seconds_bucket"
    )
    assert bounds[0] == (bucket_end_s(39), 3)
    assert bounds[1] == (bucket_end_s(55), 7)
    assert [number for _, number in bounds[-2:]] == [7, 15]


def test_of_too_many_versions_the_most_called_have_samples():
    tasks = [task(f"t{number}", calls=number) for number in range(MAX_VERSIONS + 5)]
    found = samples(exposition(statistics(tasks)))
    assert value(found, "vmhost_versions_left_out") == 5
    named = {dict(labels)["task"] for name, labels in found if name == "vmhost_calls_queued"}
    assert named == {f"t{number}" for number in range(5, MAX_VERSIONS + 5)}


def test_a_quantile_is_the_end_of_its_bucket():
    counted = histogram(b10=50, b100=49, b200=1)
    assert counted.count == 100
    assert [counted.quantile(share) for share in (0, 0.5, 0.51, 0.99, 1)] == [
        bucket_end_s(bucket) for bucket in (10, 10, 100, 100, 200)
    ]
    assert histogram().quantile(0.5) is None
    ends = [bucket_end_s(bucket) for bucket in range(BUCKETS)]
    assert all(low < high <= max(low * 1.125, low + 129e-9) for low, high in zip(ends, ends[1:]))


@pytest.mark.stress  # fetches Debian's promtool the first time
def test_promtool_finds_nothing_wrong(tmp_path):
    tool = subprocess.run(["sh", ROOT / "tools" / "promtool.sh"], capture_output=True, text=True, check=True)
    with host() as running:
        running.load(bundle(tmp_path))("x")
        text = scrape(running)
    checked = subprocess.run(
        [tool.stdout.strip(), "check", "metrics"], input=text, capture_output=True, text=True, timeout=60
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_templates_are_filled_as_they_say():
    assert filled("a{\0} \1 \1\n\0", ["x", "ü"], [[1, -2], (2.5, 1e300)]) == "a{x} 1 -2\nxa{ü} 2.5 1e+300\nü"
    assert filled("\1,", ["", "", ""], [0, True, -(1 << 63)]) == "0,1,-9223372036854775808,"
    assert filled("", [], []) == filled("", ["x"], [()]) == ""
    for wrong in (([["x"]], [1]), (["x"], [[1, 2]]), (["x"], []), (["x"], ["1"]), (["x"], [1 << 64]), (["x"], [[]])):
        with pytest.raises((TypeError, ValueError, OverflowError), match="fill"):
            filled("\0 \1", *wrong)


def test_sums_of_buckets_are_of_buckets_that_there_are():
    one = histogram(b0=1, b39=2, b40=4, b263=8)
    assert reached([one, one], 40, 16, 3) == [[3, 7, 7, 15]] * 2
    assert reached([one], 264, 1, 1) == [[15, 15]]
    for first, step, steps in ((-1, 1, 1), (0, 0, 1), (0, 1, 0), (265, 1, 1), (1, 264, 2), (1, 1 << 30, 1 << 30)):
        with pytest.raises(ValueError, match="buckets"):
            reached([one], first, step, steps)


def test_a_scrape_wants_buckets_that_there_are(tmp_path):
    with host() as running:
        running.load(bundle(tmp_path))
        for first, step, steps in ((-1, 1, 1), (0, 0, 1), (0, 1, 0), (265, 1, 1), (1, 1 << 30, 1 << 30)):
            with pytest.raises(ValueError, match="buckets"):
                running.numbers(first, step, steps)
