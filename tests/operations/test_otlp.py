"""Metrics, traces and logs by OTLP, received and decoded by the rules of the protocol: against the callers' counts,
and with incoming and outgoing trace contexts."""

import http.server
import json
import logging
import re
import socket
import threading

import pytest

import vmhost
from tests import networks
from tests.hosts import bundle, until
from vmhost.compiler import compile_folder
from vmhost.limits import Policy, TaskPolicy
from vmhost.operations import OtlpExporter, otlp

SOURCE = """
from vmhost.guest import metrics
orders = metrics.counter("orders", "Orders.", labels=("kind",))
sizes = metrics.histogram("sizes", bounds=(1, 10))

def run(value):
    orders.add(kind="new")
    sizes.observe(5)
    if value == "fail":
        raise RuntimeError("asked to")
    return value
"""
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


# -- a decoder of OTLP's JSON (opentelemetry-proto 1.5): names in lowerCamelCase, 64-bit numbers as texts, ids in hex


def only(value, *names):
    assert isinstance(value, dict) and value.keys() <= set(names), value
    return value


def whole(text):
    assert isinstance(text, str) and re.fullmatch(r"\d+", text), text
    return int(text)


def attributes(found):
    for pair in found:
        only(pair, "key", "value")
        assert isinstance(only(pair["value"], "stringValue")["stringValue"], str)
    pairs = {pair["key"]: pair["value"]["stringValue"] for pair in found}
    assert len(pairs) == len(found)
    return pairs


def decoded(request, kind, scope_kind, items):
    """(resource's attributes, items) of an export request."""
    (resource,) = only(request, kind)[kind]
    only(resource, "resource", scope_kind)
    (scope,) = resource[scope_kind]
    only(scope, "scope", items)
    only(scope["scope"], "name", "version")
    return attributes(only(resource["resource"], "attributes")["attributes"]), scope[items]


def decoded_metrics(request):
    """(name, sorted attributes) -> value, or (count, sum, counts by bound)."""
    resource, metrics = decoded(request, "resourceMetrics", "scopeMetrics", "metrics")
    assert resource["service.name"] == "vmhost"
    found = {}
    for metric in metrics:
        only(metric, "name", "unit", "description", "sum", "gauge", "histogram")
        (kind,) = metric.keys() & {"sum", "gauge", "histogram"}
        data = metric[kind]
        if kind != "gauge":
            assert data["aggregationTemporality"] == 2
        for point in data["dataPoints"]:
            assert whole(point["startTimeUnixNano"]) <= whole(point["timeUnixNano"])
            key = metric["name"], tuple(sorted(attributes(point["attributes"]).items()))
            assert key not in found
            if kind == "histogram":
                counts = [whole(count) for count in point["bucketCounts"]]
                bounds = point["explicitBounds"]
                assert len(counts) == len(bounds) + 1 and bounds == sorted(bounds)
                assert sum(counts) == whole(point["count"])
                found[key] = whole(point["count"]), point["sum"], counts
            else:
                assert isinstance(point["asDouble"], float)
                found[key] = point["asDouble"]
    return found


def decoded_spans(requests):
    spans = []
    for request in requests:
        for span in decoded(request, "resourceSpans", "scopeSpans", "spans")[1]:
            assert re.fullmatch("[0-9a-f]{32}", span["traceId"]) and re.fullmatch("[0-9a-f]{16}", span["spanId"])
            assert whole(span["startTimeUnixNano"]) <= whole(span["endTimeUnixNano"])
            assert span["kind"] in (1, 2) and span["status"]["code"] in (1, 2)
            spans.append(span | {"attributes": attributes(span["attributes"])})
    return spans


@pytest.fixture
def collector():
    """(address, requests by path) of a collector."""
    got = {"/v1/metrics": [], "/v1/traces": [], "/v1/logs": []}

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            assert self.headers["Content-Type"] == "application/json" and self.headers["X-Key"] == "k"
            got[self.path].append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", got
        server.shutdown()
        thread.join()


def test_a_collector_gets_what_ran(collector):
    address, got = collector
    with vmhost.Host(allow_unsigned=True) as host:
        task = host.load(bundle(SOURCE))
        with OtlpExporter(host, address, interval_s=60, headers={"X-Key": "k"}) as exporter:
            traced = exporter.traced(task)
            future = traced.submit(1, traceparent=f"00-{TRACE}-{SPAN}-01")
            assert future.result() == 1
            with pytest.raises(vmhost.TaskError):
                traced("fail")
            assert traced(3, traceparent=f"00-{TRACE}-{SPAN}-00") == 3, "not sampled"
            assert traced(4, traceparent="made up") == 4
        assert exporter.dropped == 0
    metrics = decoded_metrics(got["/v1/metrics"][-1])
    named = (("vmhost.task", "task"), ("vmhost.version", "1.0.0"))
    assert metrics["vmhost.calls", (("vmhost.outcome", "ok"), *named)] == 3
    assert metrics["vmhost.calls", (("vmhost.outcome", "task_error"), *named)] == 1
    assert metrics["vmhost.call.duration", named][0] == 4
    assert metrics["orders", (("kind", "new"), *named)] == 4
    assert metrics["sizes", named] == (4, 20.0, [0, 4, 0])
    spans = decoded_spans(got["/v1/traces"])
    mine = [span for span in spans if span["traceId"] == TRACE]
    whole_call = next(span for span in mine if span["name"] == "task task")
    assert whole_call["parentSpanId"] == SPAN and whole_call["attributes"]["vmhost.outcome"] == "ok"
    assert future.traceparent == f"00-{TRACE}-{whole_call['spanId']}-01"
    below = {span["name"] for span in mine if span.get("parentSpanId") == whole_call["spanId"]}
    assert below == {"queue", "run"} and len(mine) == 3
    failed = [span for span in spans if span["attributes"].get("vmhost.outcome") == "task_error"]
    assert [span["status"]["code"] for span in failed] == [2] and "parentSpanId" not in failed[0]
    assert len({span["traceId"] for span in spans}) == 3


def test_models_that_a_call_runs_are_spans_below_its_run(collector, tmp_path):
    address, got = collector
    main = """
from vmhost import engine

def run(value):
    secret, count, inputs = value
    model = engine.load("net")
    for _ in range(count):
        model(inputs)
    return len(secret)
"""
    (tmp_path / "main.py").write_text(main)
    (tmp_path / "net.onnx").write_bytes(networks.small())
    (tmp_path / "task.yaml").write_text(
        'name: vision\nversion: "1"\nentry: main:run\npython: "3.14"\nmodels: {net: net.onnx}\n'
    )
    inputs = {"input": networks.values((1, 3, 32, 32))}
    with vmhost.Host(allow_unsigned=True) as host:
        task = host.load(compile_folder(tmp_path).to_bytes())
        future = task.submit(("x", 1, inputs))
        future.result()
        with OtlpExporter(host, address, interval_s=60, headers={"X-Key": "k"}) as exporter:
            traced = exporter.traced(task)
            for count in (0, 2, 40):
                assert traced(("ann@example.org", count, inputs)) == 15
    spans = decoded_spans(got["/v1/traces"])
    assert "ann@example.org" not in json.dumps(got["/v1/traces"])
    runs = [span for span in spans if span["name"] == "run"]
    found = {span["spanId"]: [each for each in spans if each.get("parentSpanId") == span["spanId"]] for span in runs}
    assert sorted(map(len, found.values())) == [0, 2, 32]
    for span in runs:
        steps = found[span["spanId"]]
        assert {each["name"] for each in steps} <= {"engine"}
        times = [whole(span["startTimeUnixNano"])]
        for each in steps:
            assert each["attributes"]["vmhost.engine.runs"] == ("2" if len(steps) == 2 else "40")
            times += [whole(each["startTimeUnixNano"]), whole(each["endTimeUnixNano"])]
        times.append(whole(span["endTimeUnixNano"]))
        assert times == sorted(times)


def decoded_lines(requests):
    """(severity number and text, body, attributes) of each line."""
    lines = []
    for request in requests:
        for line in decoded(request, "resourceLogs", "scopeLogs", "logRecords")[1]:
            times = ("timeUnixNano", "observedTimeUnixNano")
            only(line, *times, "severityNumber", "severityText", "body", "attributes")
            assert all(whole(line[name]) > 1.7e18 for name in times)
            body = only(line["body"], "stringValue")["stringValue"]
            lines.append((line["severityNumber"], line["severityText"], body, attributes(line["attributes"])))
    return lines


def test_a_collector_gets_the_log_of_host_and_tasks_masked(collector, caplog):
    address, got = collector
    source = """
        from vmhost.guest import log

        def run(value):
            log.warning("for %s", "ann@example.org")
            log.debug("not sent")
    """
    record = vmhost.RecordPolicy("unused", share=1e-9, mask_patterns=("email",))
    policy = Policy(task=TaskPolicy(record=record))
    with vmhost.Host(allow_unsigned=True, policy=policy) as host:
        task = host.load(bundle(source, name="says"))
        with OtlpExporter(host, address, interval_s=60, headers={"X-Key": "k"}):
            task(1)
            until(lambda: any(record.name == "vmhost.task.says" for record in caplog.records))  # another thread's
            logging.getLogger("vmhost.pipeline").error("token=Bearer abcdefghijkl %s")
            try:
                raise KeyError("lost")
            except KeyError:
                logging.getLogger("vmhost").exception("no answer")
    lines = decoded_lines(got["/v1/logs"])
    (task_line,) = [line for line in lines if "vmhost.task" in line[3]]
    assert task_line[:2] == (13, "WARNING") and "ann@" not in task_line[2] and task_line[2].startswith("for ")
    assert task_line[3]["vmhost.task"] == "says"
    (error,) = [line for line in lines if line[3]["log.logger"] == "vmhost.pipeline"]
    assert error[:2] == (17, "ERROR") and "abcdefghijkl" not in error[2]
    assert any(line[2].startswith("no answer\nTraceback") and "KeyError: 'lost'" in line[2] for line in lines)
    with vmhost.Host(allow_unsigned=True) as host:
        with OtlpExporter(host, address, interval_s=60, headers={"X-Key": "k"}, logs=None):
            logging.getLogger("vmhost").error("nobody hears it")
        assert not any("nobody" in line[2] for line in decoded_lines(got["/v1/logs"]))


def test_a_collector_that_is_not_there_is_told_once_and_harms_nobody(caplog):
    with (
        vmhost.Host(allow_unsigned=True) as host,
        OtlpExporter(host, "http://127.0.0.1:1", interval_s=60, logs=None) as exporter,
    ):
        assert exporter.traced(host.load(bundle(SOURCE)))(1) == 1
    assert exporter.dropped == 2 and caplog.text.count("cannot be sent") == 1


def test_a_silent_collector_does_not_keep_who_leaves(monkeypatch):
    """It accepts connections and answers nothing: each request would take its whole time."""
    monkeypatch.setattr(otlp, "_LEAVE_S", 0.2)
    monkeypatch.setattr(otlp, "_TIMEOUT_S", 1e6)
    with vmhost.Host(allow_unsigned=True) as host, socket.create_server(("127.0.0.1", 0)) as silent:
        task = host.load(bundle(SOURCE))
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with OtlpExporter(host, address, interval_s=1e6) as exporter:
            exporter._spans.extend([{"name": "x"}] * (5 * otlp._BATCH))
            exporter.traced(task)(1)
        exporter._thread.join()  # its requests end with the time for leaving
        assert exporter.dropped >= 6 and not exporter._spans
    with vmhost.Host(allow_unsigned=True) as host, socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with OtlpExporter(host, address, interval_s=0.001) as exporter:
            asked, _ = silent.accept()
        assert exporter._thread.is_alive()  # it waits for an answer; leaving did not wait with it
        asked.close()
        exporter._thread.join()


@pytest.mark.parametrize("wrong", [{"endpoint": "ftp://x"}, {"endpoint": 5}, {"interval_s": 0}])
def test_wrong_arguments_are_told(wrong):
    with vmhost.Host(allow_unsigned=True) as host, pytest.raises(vmhost.ConfigurationError, match="expected"):
        OtlpExporter(host, **wrong)
