"""Metrics that tasks count themselves: compared with their work, in many VMs at once that come and go; bounds;
denials; and the Grafana dashboard, whose queries name existing metrics."""

import concurrent.futures
import json
import re
import threading
from importlib import resources

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as families

import vmhost
from tests.batches import each
from tests.hosts import bundle, until
from vmhost.guest import metrics as plain_metrics
from vmhost.operations import metrics

SOURCE = """
import time

from vmhost.guest import metrics

orders = metrics.counter("orders", "Orders, by kind.", labels=("kind",))
open_orders = metrics.gauge("open_orders", "Orders that wait.")
prices = metrics.histogram("price_euros", "What orders came to.", bounds=(1, 10, 100))
work = metrics.histogram("work_seconds", labels="kind")

def run(value):
    with work.time(kind="all"):
        orders.add(2, kind=value["kind"])
        open_orders.set(value["open"])
        prices.observe(value["price"])
    while value["kind"] == "endless":
        time.sleep(60)
    return value
"""


def host(**policy):
    return vmhost.Host(allow_unsigned=True, policy=vmhost.Policy(**policy))


def samples(running, content_type=metrics.PROMETHEUS):
    """(name, labels without task and version) -> value, of the task's own; parsed as Prometheus would."""
    parse = families if content_type == metrics.PROMETHEUS else openmetrics_families
    found = {}
    for family in parse(metrics.exposition(running.statistics(), content_type)):
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if name not in ("task", "version")}
            key = sample.name, tuple(sorted(labels.items()))
            if not sample.name.startswith("vmhost_"):
                assert key not in found
                found[key] = sample.value
    return found


@pytest.mark.parametrize("content_type", [metrics.PROMETHEUS, metrics.OPENMETRICS])
def test_what_tasks_count_is_shown(content_type):
    with host() as running:
        task = running.load(bundle(SOURCE))
        for price in (0.5, 1.0, 7.0, 1000.0):
            task({"kind": 'new "x"\\\n', "open": 3, "price": price})
        found = samples(running, content_type)
    assert found["orders_total", (("kind", 'new "x"\\ '),)] == 8
    assert found["open_orders", ()] == 3
    buckets = {le: found["price_euros_bucket", (("le", le),)] for le in ("1.0", "10.0", "100.0", "+Inf")}
    assert buckets == {"1.0": 2, "10.0": 3, "100.0": 3, "+Inf": 4}
    assert found["price_euros_sum", ()] == 1008.5 and found["price_euros_count", ()] == 4
    assert found["work_seconds_count", (("kind", "all"),)] == 4


def test_counts_are_those_of_what_ran_while_vms_come_and_go_and_others_read():
    with host(max_vms=4) as running:
        task = running.load(bundle(SOURCE, limits={"concurrency": 4}))
        over, scraped = threading.Event(), []

        def scrape():
            while not over.wait(0.001):
                scraped.append(samples(running).get(("orders_total", (("kind", "a"),)), 0))

        reader = threading.Thread(target=scrape)
        reader.start()
        try:
            values = [{"kind": "ab"[number % 2], "open": 1, "price": 5.0} for number in range(4000)]
            for turn in (1, 2):
                assert sum(1 for _ in task.map(values)) == 4000
                with pytest.raises(vmhost.TaskError):
                    task({"kind": "a"})  # counted before it fails
                stopped = task.submit({"kind": "endless", "open": 1, "price": 5.0})
                until(lambda turn=turn: samples(running).get(("orders_total", (("kind", "endless"),))) == 2 * turn)
                stopped.stop()  # its VM ends, and another takes its place
                with pytest.raises(concurrent.futures.CancelledError):
                    stopped.result()
        finally:
            over.set()
            reader.join()
        found = samples(running)
    assert found["orders_total", (("kind", "b"),)] == 8_000
    assert found["orders_total", (("kind", "a"),)] == 8_004
    assert found["orders_total", (("kind", "endless"),)] == 4
    assert found["price_euros_count", ()] == 8_002
    assert scraped == sorted(scraped), "a counter only grows"


def test_series_are_bounded_and_those_beyond_are_told():
    source = """
        from vmhost.guest import metrics
        seen = metrics.counter("seen", labels=("number",))
        def run(value):
            for number in range(value):
                seen.add(number=number)
    """
    with host() as running:
        task = running.load(bundle(source))
        task(1000)
        statistics = running.statistics()
        assert len(statistics.tasks["task"].metrics) == 200
        assert statistics.tasks["task"].counters["metrics_left_out"] == 800
        text = metrics.exposition(statistics)
    assert "vmhost_task_metrics_left_out 800" in text


def test_a_version_counts_anew_and_a_name_has_one_kind():
    one = "from vmhost.guest import metrics\nm = metrics.counter('made')\ndef run(value):\n    m.add()\n"
    other = one.replace("counter", "gauge").replace("m.add()", "m.set(7)")
    with host() as running:
        running.load(bundle(one, "first"))(1)
        assert samples(running) == {("made_total", ()): 1}
        second = running.load(bundle(one, "first", "2.0.0"))
        assert running.statistics().tasks["first"].metrics == ()
        second(1)
        second(1)
        running.load(bundle(other, "second"))(1)
        text = metrics.exposition(running.statistics())
    kinds = {family.name: family.type for family in families(text)}
    assert kinds["made"] == "counter", "of two tasks that differ, that with more calls"
    assert "vmhost_task_metrics_left_out 1" in text


@each(
    ("first", "second"),
    [
        ("histogram('price').observe(1)", "counter('price_count').add()"),
        ("counter('price_count').add()", "histogram('price').observe(1)"),
        ("histogram('price').observe(1)", "gauge('price_sum').set(1)"),
        ("histogram('price').observe(1)", "histogram('price_bucket').observe(1)"),
        ("counter('price').add()", "gauge('price_total').set(1)"),
        ("gauge('price_total').set(1)", "counter('price').add()"),
    ],
)
def test_a_metric_whose_samples_have_another_s_name_is_omitted_and_counted(first, second):
    source = f"from vmhost.guest import metrics\ndef run(value):\n    metrics.{first}\n    metrics.{second}\n"
    with host() as running:
        running.load(bundle(source))(None)
        text = metrics.exposition(running.statistics(), metrics.OPENMETRICS)
    shown = [family.name for family in openmetrics_families(text) if family.name.startswith("price")]
    assert len(shown) == 1, "the parser refuses names that clash"
    assert "vmhost_task_metrics_left_out 1" in text


@pytest.mark.parametrize(
    "made, message",
    [
        ("counter('vmhost_calls')", "name"),
        ("counter('a b')", "name"),
        ("counter('ä')", "name"),
        ("counter(5)", "name"),
        ("counter('a', labels=('le',))", "labels"),
        ("counter('a', labels=('task',))", "labels"),
        ("counter('a', labels=tuple('abcdefghi'))", "labels"),
        ("histogram('a', bounds=(2, 1))", "bounds"),
        ("histogram('a', bounds=())", "bounds"),
        ("histogram('a', bounds=(float('nan'),))", "bounds"),
        ("counter('a').add(-1)", "grows"),
        ("counter('a').add(float('nan'))", "grows"),
        ("counter('a', labels=('b',)).add(1)", "labels"),
        ("counter('a').add(1, b=2)", "labels"),
        ("[counter('a'), gauge('a')]", "declared before"),
    ],
)
def test_what_is_wrong_is_told_where_it_is_made(monkeypatch, made, message):
    monkeypatch.setattr(plain_metrics, "_declared", {})
    with pytest.raises(ValueError, match=message):
        eval(made, vars(plain_metrics))


def test_made_up_series_harm_nobody():
    source = """
        import _vmhost
        def run(value):
            number = _vmhost.metric(0, value, ())
            for wrong in (-1, 99, 1 << 40):
                try:
                    _vmhost.metric_add(wrong, 1.0)
                except ValueError:
                    continue
                raise AssertionError(wrong)
            _vmhost.metric_add(number, 1e308)
            _vmhost.metric_add(number, 1e308)
    """
    with host() as running:
        task = running.load(bundle(source))
        for key in (
            "",
            "a",
            "a\x1fb\x1fc",
            "vmhost_calls\x1fx",
            "ok\x1fhelp\x1fle\x1f1",
            "n\nx 1\x1fhelp",
            "fine\x1fhelp",
        ):
            task(key)
        assert samples(running) == {}, "none has a number that can be told, or a name"


def test_metrics_work_in_plain_python(monkeypatch):
    monkeypatch.setattr(plain_metrics, "_declared", {})
    counter = plain_metrics.counter("made_in_a_test", labels=("kind",))
    counter.add(2, kind="a")
    with plain_metrics.histogram("timed_in_a_test").time():
        assert plain_metrics.counter("made_in_a_test", labels=("kind",)) is counter


def test_denials_are_counted():
    source = "def run(value):\n    open('/etc/hostname')\n"
    with host() as running:
        task = running.load(bundle(source))
        for _ in range(3):
            with pytest.raises(vmhost.PermissionDenied):
                task(1)
        text = metrics.exposition(running.statistics())
    assert re.search(r'vmhost_task_denials_total\{task="task",version="1.0.0"\} 3\n', text)


def test_the_grafana_dashboard_asks_for_what_there_is():
    board = json.loads(resources.files("vmhost.operations").joinpath("static/grafana.json").read_text())
    with host() as running:
        running.load(bundle("def run(value):\n    return value\n"))(1)
        text = metrics.exposition(running.statistics())
    there = {sample.name for family in families(text) for sample in family.samples}
    asked = set()
    for panel in board["panels"]:
        assert panel["targets"] and panel["gridPos"]["w"] == 12
        for target in panel["targets"]:
            asked.update(re.findall(r"vmhost_[a-z_]+", target["expr"]))
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            asked.update(re.findall(r"vmhost_[a-z_]+", variable["query"]["query"]))
    assert len(asked) >= 11 and asked <= there
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
