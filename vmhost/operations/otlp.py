"""A host's metrics, traces and log by OTLP, OpenTelemetry's protocol: HTTP with JSON bodies.

    with OtlpExporter(host, "http://127.0.0.1:4318") as exporter:
        priced = exporter.traced(host.task("prices"))
        priced(order, traceparent=request.headers.get("traceparent"))

Metrics are sent every `interval_s` seconds. A traced call is a span with two children, its wait in the queue and its
run in a VM; the run has a child for each model that the engine ran. The caller's context is a W3C `traceparent`, and
the span's own is on the future. Sources: OTLP 1.5 (opentelemetry-proto), W3C Trace Context. Nothing is buffered for an
unreachable collector: a batch that cannot be sent is dropped and counted. Leaving takes at most `_LEAVE_S`.
"""

import array
import collections
import json
import logging
import math
import re
import secrets
import threading
import time
from collections.abc import Mapping

from vmhost import ConfigurationError, Host, Task, __version__
from vmhost.masking import CurrentMasking
from vmhost.operations.posting import post
from vmhost.statistics import bucket_end_s

_log = logging.getLogger("vmhost")
_MAX_SPANS = 10_000  # waiting to be sent
_BATCH = 500
_TIMEOUT_S = 10.0
_LEAVE_S = 2.0  # for what is waiting, when the exporter is left
_MAX_LINES, _MAX_LINE_CHARS = 10_000, 16_384  # lines waiting to be sent; characters of one
_SEVERITIES = ((logging.CRITICAL, 21), (logging.ERROR, 17), (logging.WARNING, 13), (logging.INFO, 9), (0, 5))
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_CUMULATIVE = 2
_INTERNAL, _SERVER = 1, 2  # kinds of spans
_OK, _ERROR = 1, 2  # their status
# Bounds of histograms: each power of two from 16 us to 275 s; /metrics has every second of them.
_ENDS = range(39, 264, 8)
_SCOPE = {"name": "vmhost", "version": __version__}


class OtlpExporter:
    """Sends the activity of a host to a collector of OpenTelemetry.

    `host`: whose activity. `endpoint`: of the collector, which has the paths /v1/metrics, /v1/traces and /v1/logs.
    `interval_s`: how often metrics are sent. `headers`: added to each request. `service`: the resource's service.name.
    `logs`: the lowest level of lines of the log `vmhost` that are sent, the host's and its tasks', masked by the rules
    of its records; None: no lines.

    A context manager; leaving it sends what is waiting, for at most two seconds. ConfigurationError."""

    def __init__(
        self,
        host: Host,
        endpoint: str = "http://127.0.0.1:4318",
        *,
        interval_s: float = 15.0,
        headers: Mapping[str, str] | None = None,
        service: str = "vmhost",
        logs: int | None = logging.INFO,
    ) -> None:
        if not isinstance(endpoint, str) or not endpoint.startswith(("http://", "https://")):
            raise ConfigurationError(f"endpoint: expected an address that begins with http, got {endpoint!r:.100}")
        if not interval_s > 0:
            raise ConfigurationError(f"interval_s: expected seconds above 0, got {interval_s!r:.100}")
        self._host, self._endpoint, self._interval_s = host, endpoint.rstrip("/"), interval_s
        self._headers = {"Content-Type": "application/json", **(headers or {})}
        self._resource = {"attributes": _attributes({"service.name": service, "service.version": __version__})}
        self._started_ns = time.time_ns()
        self._spans: collections.deque[dict[str, object]] = collections.deque(maxlen=_MAX_SPANS)
        self._calls: set[object] = set()  # futures whose spans are missing yet
        self._level_before = logging.NOTSET
        self._log = None if logs is None else _LogLines(logs, CurrentMasking(lambda: host.policy))
        self._over = threading.Event()
        self._end = math.inf  # when nothing more is sent
        self._thread: threading.Thread | None = None
        self._failure_logged = False
        self.dropped = 0  # requests that could not be sent

    def __enter__(self) -> "OtlpExporter":
        if self._log is not None:
            self._level_before = _log.level
            if not _log.isEnabledFor(self._log.level):
                _log.setLevel(self._log.level)
            _log.addHandler(self._log)
        self._thread = threading.Thread(target=self._run, name="vmhost-otlp", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end = time.monotonic() + _LEAVE_S
        self._over.set()
        if self._thread is not None:
            self._thread.join(_LEAVE_S)  # a request that began before may take longer: its thread ends by itself
        if self._log is not None:
            _log.removeHandler(self._log)
            _log.setLevel(self._level_before)

    def traced(self, task: Task) -> "TracedTask":
        """`task`, with a span for each call."""
        self._host.trace_engine()
        return TracedTask(task, self._spans, self._calls)

    def metrics(self) -> dict[str, object]:
        """The ExportMetricsServiceRequest of now, in its JSON form."""
        found = list(_metrics(self._host.statistics(), str(self._started_ns), str(time.time_ns())))
        scope = {"scope": _SCOPE, "metrics": found}
        return {"resourceMetrics": [{"resource": self._resource, "scopeMetrics": [scope]}]}

    def _run(self):
        while True:
            over = self._over.wait(self._interval_s)
            if over:
                self._wait_for_spans()
            try:
                self._send("metrics", self.metrics())
                for spans in _batches(self._spans):
                    scope = {"scope": _SCOPE, "spans": spans}
                    self._send("traces", {"resourceSpans": [{"resource": self._resource, "scopeSpans": [scope]}]})
                for lines in _batches(() if self._log is None else self._log.records):
                    scope = {"scope": _SCOPE, "logRecords": lines}
                    self._send("logs", {"resourceLogs": [{"resource": self._resource, "scopeLogs": [scope]}]})
            except Exception:
                _log.exception("vmhost: telemetry could not be sent; it is retried")
            if over:
                return

    def _wait_for_spans(self):
        """A caller may learn of the end of a call shortly before its span is recorded."""
        end = self._end - _LEAVE_S / 2
        while any(future.done() for future in tuple(self._calls)) and time.monotonic() < end:
            time.sleep(0.001)

    def _send(self, path, body):
        timeout_s = min(_TIMEOUT_S, self._end - time.monotonic())
        try:
            if timeout_s <= 0:
                raise TimeoutError(f"the exporter ended {_LEAVE_S:g} s ago")
            post(f"{self._endpoint}/v1/{path}", json.dumps(body).encode(), self._headers, timeout_s)
            self._failure_logged = False
        except (OSError, ValueError) as error:
            self.dropped += 1
            if not self._failure_logged:  # log once, until it works again
                self._failure_logged = True
                _log.warning("%s: %s cannot be sent: %s", self._endpoint, path, error)


class _LogLines(logging.Handler):
    """Log lines in OTLP's form, until they are sent; beyond the bound the oldest are dropped."""

    def __init__(self, level, masking):
        super().__init__(level)
        self._masking = masking
        self.records: collections.deque[dict[str, object]] = collections.deque(maxlen=_MAX_LINES)

    def emit(self, record):
        try:
            text = record.getMessage()
            if record.exc_info:
                text += "\n" + logging.Formatter().formatException(record.exc_info)
        except Exception:  # arguments that do not fit: send the unformatted line
            text = str(record.msg)
        text = text[:_MAX_LINE_CHARS].encode("utf-8", "replace").decode()
        named = {"log.logger": record.name}
        if record.name.startswith("vmhost.task."):
            named["vmhost.task"] = record.name.removeprefix("vmhost.task.")
        if (version := getattr(record, "version", None)) is not None:
            named["vmhost.version"] = version
        at = str(round(record.created * 1e9))
        self.records.append(
            {
                "timeUnixNano": at,
                "observedTimeUnixNano": at,
                "severityNumber": next(number for level, number in _SEVERITIES if record.levelno >= level),
                "severityText": record.levelname,
                "body": {"stringValue": self._masking.text(text)},
                "attributes": _attributes(named),
            }
        )


def _batches(waiting):
    """Empties a deque into lists of up to _BATCH."""
    left = len(waiting)
    while left > 0:
        batch = [waiting.popleft() for _ in range(min(_BATCH, left, len(waiting)))]
        if not batch:
            return
        left -= len(batch)
        yield batch


class TracedTask:
    """A Task whose calls are spans. Futures of `submit` have `traceparent`, the context of the call's span."""

    def __init__(self, task, spans, calls):
        self._task, self._spans, self._calls = task, spans, calls

    def __call__(self, value=None, *, traceparent=None, **options):
        return self.submit(value, traceparent=traceparent, **options).result()

    def submit(self, value=None, *, traceparent=None, **options):
        """As Task.submit. An invalid `traceparent` begins a new trace, as the specification says; if it is not sampled,
        no span is made."""
        found = _TRACEPARENT.fullmatch(traceparent) if isinstance(traceparent, str) else None
        trace, parent, flags = found.groups() if found else (secrets.token_hex(16), None, "01")
        span = secrets.token_hex(8)
        version = self._task.version
        future = self._task.submit(value, **options)
        future.traceparent = f"00-{trace}-{span}-{flags}"
        if int(flags, 16) & 1:
            named = {"vmhost.task": self._task.name, "vmhost.version": version}
            self._calls.add(future)

            def ended():
                try:
                    self._spans.extend(_spans(future, trace, parent, span, named))
                finally:
                    self._calls.discard(future)

            future.when_ended(ended)
        return future


def _spans(future, trace, parent, span, named):
    """The spans of an ended call."""
    submitted, started, ended = future.timings()
    offset = time.time_ns() - time.monotonic_ns()
    outcome = future.outcome()
    began = started or ended

    def made(name, identity, above, begin, end, kind, status, attributes):
        return {
            "traceId": trace,
            "spanId": identity,
            **({"parentSpanId": above} if above else {}),
            "name": name,
            "kind": kind,
            "startTimeUnixNano": str(begin + offset),
            "endTimeUnixNano": str(end + offset),
            "attributes": _attributes(attributes),
            "status": {"code": status},
        }

    ok = _OK if outcome == "OK" else _ERROR
    whole = {**named, "vmhost.outcome": outcome.lower()}
    spans = [made(f"task {named['vmhost.task']}", span, parent, submitted, ended, _SERVER, ok, whole)]
    spans.append(made("queue", secrets.token_hex(8), span, submitted, began, _INTERNAL, _OK, named))
    if started:
        run = secrets.token_hex(8)
        spans.append(made("run", run, span, started, ended, _INTERNAL, ok, named))
        count, runs = future.engine_runs()
        for number, (begin, end) in enumerate(runs, 1):
            of = {**named, "vmhost.engine.run": number, "vmhost.engine.runs": count}
            spans.append(made("engine", secrets.token_hex(8), run, begin, end, _INTERNAL, _OK, of))
    return spans


def _metrics(statistics, started, now):
    times = {"startTimeUnixNano": started, "timeUnixNano": now}

    def points(rows):
        return [{**times, "attributes": _attributes(labels), "asDouble": float(value)} for labels, value in rows]

    def counter(name, unit, text, rows):
        data = {"dataPoints": points(rows), "aggregationTemporality": _CUMULATIVE, "isMonotonic": True}
        return {"name": name, "unit": unit, "description": text, "sum": data}

    def gauge(name, unit, text, rows):
        return {"name": name, "unit": unit, "description": text, "gauge": {"dataPoints": points(rows)}}

    def histogram(name, unit, text, rows):
        found = [
            {
                **times,
                "attributes": _attributes(labels),
                "count": str(sum(counts)),
                "sum": float(total),
                "bucketCounts": [str(count) for count in counts],
                "explicitBounds": list(bounds),
            }
            for labels, bounds, counts, total in rows
        ]
        data = {"dataPoints": found, "aggregationTemporality": _CUMULATIVE}
        return {"name": name, "unit": unit, "description": text, "histogram": data}

    versions = [*statistics.tasks.values(), *statistics.draining][:1000]
    of = [({"vmhost.task": version.name, "vmhost.version": version.version}, version) for version in versions]
    yield counter(
        "vmhost.calls",
        "{call}",
        "Calls that ended, by outcome.",
        [
            ({**labels, "vmhost.outcome": outcome.lower()}, count)
            for labels, version in of
            for outcome, count in (*version.ended.items(), *_refused(version.breaker.refused))
        ],
    )
    yield histogram(
        "vmhost.call.duration", "s", "How long calls ran in their VMs.", [_row(labels, v.walls) for labels, v in of]
    )
    yield histogram("vmhost.call.wait", "s", "How long calls waited.", [_row(labels, v.waits) for labels, v in of])
    yield gauge("vmhost.calls.queued", "{call}", "Waiting calls.", [(labels, v.queued) for labels, v in of])
    yield gauge("vmhost.calls.running", "{call}", "Running calls.", [(labels, v.running) for labels, v in of])
    yield counter("vmhost.task.cpu", "s", "Processor time of VMs.", [(labels, v.totals.cpu_s) for labels, v in of])
    denied = [(labels, v.counters.get("denied", 0)) for labels, v in of]
    yield counter("vmhost.task.denials", "{denial}", "Requests that were denied.", denied)
    yield gauge("vmhost.vms", "{vm}", "VMs.", [({}, len(statistics.vms))])
    yield gauge("vmhost.memory", "By", "Memory that all VMs hold.", [({}, statistics.memory_bytes)])
    tables = [
        ({"table": name, "tier": tier}, counts)
        for name, table in statistics.tables.items()
        for tier, counts in (
            ("memory", (table.rows - table.disk_rows, table.bytes, table.memory_hits)),
            ("disk", (table.disk_rows, table.disk_bytes, table.disk_hits)),
        )
    ]
    if tables:
        rows, held, hits = ([(labels, counts[i]) for labels, counts in tables] for i in range(3))
        yield gauge("vmhost.table.rows", "{row}", "Rows of embedding tables.", rows)
        yield gauge("vmhost.table.memory", "By", "Memory and disk space of embedding tables.", held)
        yield counter("vmhost.table.hits", "{key}", "Keys that lookups found, of tables with rows on disk.", hits)
    own = collections.defaultdict(list)
    for labels, version in of:
        for metric in version.metrics:
            own[metric.name, metric.kind, metric.help].append(({**labels, **dict(metric.labels)}, metric))
    for (name, kind, text), rows in own.items():
        if kind == "histogram":
            histograms = [(labels, metric.bounds, metric.counts, metric.value) for labels, metric in rows]
            yield histogram(name, "", text, histograms)
        else:
            make = counter if kind == "counter" else gauge
            yield make(name, "", text, [(labels, metric.value) for labels, metric in rows])


def _row(labels, durations):
    """(labels, bounds, counts, sum) of a Histogram of durations; the bounds are ends of buckets, so counts are
    exact."""
    counts, found, begin = array.array("Q", durations.counts), [], 0
    for end in _ENDS:
        found.append(sum(counts[begin : end + 1]))
        begin = end + 1
    return labels, [bucket_end_s(end) for end in _ENDS], [*found, sum(counts[begin:])], durations.total_s


def _attributes(values):
    return [{"key": key, "value": {"stringValue": str(value)}} for key, value in values.items()]


def _refused(number):
    """The calls that the breaker refused, as (outcome, number), if there are any."""
    return [("BREAKER_OPEN", number)] if number else []
