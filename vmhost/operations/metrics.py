"""A host's statistics in Prometheus's text format and in OpenMetrics.

Sources: Prometheus's exposition formats, version 0.0.4; OpenMetrics 1.0.0. Names and units follow their conventions:
base units, `_total` for counters. A family has a sample for each version of a task that is loaded or draining. Beyond
MAX_VERSIONS only those with most calls have samples, and `vmhost_versions_left_out` counts the others, so that a host
that loads new tasks all day does not fill a database.
"""

import collections
import functools
import itertools
import operator
import platform

from vmhost.statistics import KINDS, VersionNumbers, bucket_end_s, filled, reached

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
MAX_OWN_SERIES = 5000  # of metrics by tasks, all tasks together
_SUFFIXES = {"counter": ("", "_total"), "gauge": ("",), "histogram": ("", "_bucket", "_sum", "_count")}  # of samples
MAX_VERSIONS = 1000

# Every second power of two from 16 us to 275 s. Buckets of isolation/lanes/histogram.h end there, so counts are exact.
_FIRST, _STEP = 40, 16  # buckets
_BOUNDS = [repr(bucket_end_s(end)) for end in range(_FIRST - 1, _FIRST + 12 * _STEP, _STEP)]
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
# Outcomes of calls (names of vmhost.errors.Kind). Each has a sample from the start, so that the first call makes a
# rate.
OUTCOMES = ("ok", "task_error", "time_limit", "cpu_limit", "memory_limit", "vm_lost", "value", "load_error")
BREAKER_STATES = ("closed", "open", "half-open")
_ends = operator.itemgetter(*(KINDS.index(outcome.upper()) for outcome in OUTCOMES))
_OTHERS = tuple(kind for kind, name in enumerate(KINDS) if name.lower() not in OUTCOMES)
_other_ends = operator.itemgetter(*_OTHERS)
_calls = operator.itemgetter(0)
_BREAKER_ROWS = {state: [int(state == each) for each in BREAKER_STATES] for state in BREAKER_STATES}


def exposition(statistics, content_type=PROMETHEUS):
    """The text for a HostStatistics, in the format that `content_type` (PROMETHEUS or OPENMETRICS) names."""
    tasks = (*statistics.draining, *statistics.tasks.values())
    walls, waits = (_rows([getattr(task, name) for task in tasks]) for name in ("walls", "waits"))
    versions = [
        VersionNumbers(
            task.calls,
            task.name,
            task.version,
            [task.ended.get(name, 0) for name in KINDS],
            task.queued,
            task.running,
            task.vms,
            task.totals.cpu_s,
            task.totals.stops,
            task.counters.get("denied", 0),
            task.counters.get("input_bytes", 0),
            task.breaker.state,
            task.breaker.trips,
            task.breaker.refused,
            ran,
            waited,
            task.metrics,
            task.counters.get("metrics_left_out", 0),
        )
        for task, ran, waited in zip(tasks, walls, waits)
    ]
    return _exposition(statistics, versions, content_type)


def scrape(host, content_type=PROMETHEUS):
    """The same for a Host now, in less time."""
    numbers = host.numbers(_FIRST, _STEP, len(_BOUNDS))
    return _exposition(numbers.whole, numbers.versions, content_type)


def _exposition(whole, versions, content_type):
    text = _Text(openmetrics=content_type == OPENMETRICS)
    _host(text, whole)
    _tasks(text, whole.vms, versions)
    return text.ended()


def _rows(histograms):
    rows = reached(histograms, _FIRST, _STEP, len(_BOUNDS))
    for row, one in zip(rows, histograms):
        row += (one.total_s, row[-1])
    return rows


def accepted(accept):
    """The content type for a request with this Accept header."""
    return OPENMETRICS if "application/openmetrics-text" in accept else PROMETHEUS


def _host(text, statistics):
    info = {"version": _own_version(), "python": platform.python_version()}
    text.family("vmhost_build", "info", "Versions of vmhost and Python.", [(_labels(info), 1)])
    states = dict.fromkeys(("booting", "ready", "serving", "ending"), 0)
    for vm in statistics.vms:
        states[vm.state] = states.get(vm.state, 0) + 1
    states["quarantined"] = len(statistics.quarantined)
    samples = [(_labels({"state": state}), count) for state, count in states.items()]
    text.family("vmhost_vms", "gauge", "VMs by state.", samples)
    for name, help_text, value in (
        ("vmhost_vms_booted", "VMs that have booted.", statistics.booted),
        ("vmhost_vm_boot_failures", "VMs that could not be booted.", statistics.boot_failures),
        ("vmhost_vms_ended", "VMs that have ended.", statistics.ended),
        ("vmhost_vms_refused", "VMs that tasks needed and did not get.", statistics.starved),
        ("vmhost_vms_cpu_seconds", "Processor time of all VMs.", statistics.totals.cpu_s),
    ):
        text.family(name, "counter", help_text, [("", value)])
    text.family("vmhost_memory_bytes", "gauge", "Memory that all VMs hold.", [("", statistics.memory_bytes)])
    text.family(
        "vmhost_abandoned_threads",
        "gauge",
        "Threads that work in a foreign library for calls that a stop has ended.",
        [("", statistics.abandoned_threads)],
    )
    _tables(text, statistics.tables)


@functools.cache
def _own_version():
    from vmhost import __version__  # late: reads the package's metadata, which takes a millisecond

    return __version__


def _tables(text, tables):
    if not tables:
        return
    for name, kind, help_text, values in (
        ("vmhost_table_rows", "gauge", "Rows of embedding tables.", lambda t: (t.rows - t.disk_rows, t.disk_rows)),
        (
            "vmhost_table_bytes",
            "gauge",
            "Memory and disk space of embedding tables.",
            lambda t: (t.bytes, t.disk_bytes),
        ),
        (
            "vmhost_table_hits",
            "counter",
            "Keys that lookups found, of tables with rows on disk.",
            lambda t: (t.memory_hits, t.disk_hits),
        ),
    ):
        samples = [
            (_labels({"table": table, "tier": tier}), value)
            for table, of in tables.items()
            for tier, value in zip(("memory", "disk"), values(of))
        ]
        text.family(name, kind, help_text, samples)


def _tasks(text, vms, versions):
    # The same version may drain and serve, with other settings: labels are written once, for the one that serves.
    versions = sorted({(one.name, one.version): one for one in versions}.values(), key=_calls, reverse=True)
    left_out = max(0, len(versions) - MAX_VERSIONS)
    text.family(
        "vmhost_versions_left_out", "gauge", "Versions of tasks left out, as there are too many.", [("", left_out)]
    )
    versions = versions[:MAX_VERSIONS]
    if not versions:
        return
    of = VersionNumbers(*map(list, zip(*versions)))  # one column per number
    labels = list(map(_version_labels, of.name, of.version))
    braced = [f"{{{label}}}" for label in labels]
    others = [
        (f'{{{label},outcome="{KINDS[kind].lower()}"}}', ends[kind])
        for label, ends in zip(labels, of.ends)
        if any(_other_ends(ends))
        for kind in _OTHERS
        if ends[kind]
    ]
    others += [(f'{{{label},outcome="breaker_open"}}', count) for label, count in zip(labels, of.refused) if count]
    rows = list(map(_ends, of.ends))
    text.table("vmhost_calls", "counter", "Calls that ended, by outcome.", labels, "outcome", OUTCOMES, rows, others)
    text.histograms("vmhost_call_duration_seconds", "How long calls ran in their VMs.", _BOUNDS, labels, of.walls)
    text.histograms("vmhost_call_wait_seconds", "How long calls waited for a VM.", _BOUNDS, labels, of.waits)
    held = collections.Counter()
    for vm in vms:
        held[vm.task, vm.version] += vm.live_bytes
    memory = [held.get(key, 0) for key in zip(of.name, of.version)]
    for name, kind, help_text, values in (
        ("vmhost_calls_queued", "gauge", "Calls waiting for a VM.", of.queued),
        ("vmhost_calls_running", "gauge", "Running calls.", of.running),
        ("vmhost_task_vms", "gauge", "VMs that serve the task.", of.vms),
        ("vmhost_task_memory_bytes", "gauge", "Memory that its VMs hold.", memory),
        ("vmhost_task_cpu_seconds", "counter", "Processor time of its VMs.", of.cpu_s),
        ("vmhost_task_stops", "counter", "Calls that were stopped.", of.stops),
        ("vmhost_task_denials", "counter", "Requests of the task that were denied.", of.denied),
        ("vmhost_task_input_bytes", "counter", "Bytes of its calls' inputs, arrays included.", of.input_bytes),
        ("vmhost_breaker_trips", "counter", "How often its breaker opened.", of.trips),
    ):
        text.numbers(name, kind, help_text, braced, values)
    states = [_BREAKER_ROWS[state] for state in of.breaker]
    text.table(
        "vmhost_breaker_state",
        "gauge",
        "1 for the current state of its breaker.",
        labels,
        "state",
        BREAKER_STATES,
        states,
    )
    _own(text, versions)


def _own(text, versions):
    """Metrics defined by tasks. A family has one kind: where tasks differ, that of the task with most calls. No sample
    of a family has the name of another one's, such as those of a histogram `price` and a gauge `price_count`."""
    families, left_out, series, taken = {}, sum(version.left_out for version in versions), 0, set()
    for version in versions:
        seen = set()
        for metric in version.metrics:
            name = metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name
            if name not in families:
                samples = {name + suffix for suffix in _SUFFIXES[metric.kind]}
                if samples & taken:
                    left_out += 1
                    continue
                taken |= samples
                families[name] = metric.kind, metric.bounds, metric.help, []
            family, key = families[name], (name, metric.labels)
            if (metric.kind, metric.bounds) != family[:2] or key in seen or series >= MAX_OWN_SERIES:
                left_out += 1
                continue
            seen.add(key)
            series += 1
            own = "".join(f',{label}="{_escaped(value)}"' for label, value in metric.labels)
            label = _version_labels(version.name, version.version) + own
            family[3].append((label, metric))
    left = "Series of tasks left out: there are too many, or the names of their samples are those of others."
    text.family("vmhost_task_metrics_left_out", "gauge", left, [("", left_out)])
    for name, (kind, bounds, help_text, found) in families.items():
        help_text = help_text.replace("\\", r"\\") or "Counted by the task."
        if kind == "histogram":
            text.own_histogram(name, help_text, bounds, found)
        else:
            text.family(name, kind, help_text, [(f"{{{label}}}", metric.value) for label, metric in found])


class _Text:
    """The lines of an exposition. For each family, one template is filled for all of its samples."""

    def __init__(self, openmetrics):
        self._openmetrics, self._parts = openmetrics, []

    def family(self, name, kind, help_text, samples):
        """A family of kind "counter", "gauge" or "info"; `samples`: (labels in braces or "", value)."""
        suffix = {"counter": "_total", "info": "_info"}.get(kind, "")
        self._head(name, suffix, kind, help_text)
        self._samples(name + suffix, samples)

    def numbers(self, name, kind, help_text, labels, values):
        """A family with one of `values` for each of `labels`, which include their braces."""
        suffix = "_total" if kind == "counter" else ""
        self._head(name, suffix, kind, help_text)
        self._parts.append(filled(f"{name}{suffix}\0 \1\n", labels, values))

    def table(self, name, kind, help_text, labels, column, columns, rows, others=()):
        """A family of integers: for each of `labels`, without braces, a row with a sample for each of `columns`, which
        the label `column` names. `others`: samples as for `family`."""
        suffix = "_total" if kind == "counter" else ""
        self._head(name, suffix, kind, help_text)
        template = "".join([f'{name}{suffix}{{\0,{column}="{each}"}} \1\n' for each in columns])
        self._parts.append(filled(template, labels, rows))
        self._samples(name + suffix, others)

    def own_histogram(self, name, help_text, bounds, found):
        """A family of histograms with these bounds, from (labels without braces, TaskMetric)."""
        rows = []
        for _, metric in found:
            row = list(itertools.accumulate(metric.counts))
            row += (metric.value, row[-1])
            rows.append(row)
        self.histograms(name, help_text, bounds, [labels for labels, _ in found], rows)

    def histograms(self, name, help_text, bounds, labels, rows):
        """A family of histograms, each with its labels, without braces. `rows`: cumulative counts up to each bound, the
        total, the sum, and the total again."""
        self._head(name, "", "histogram", help_text)
        lines = [f'{name}_bucket{{\0,le="{bound}"}} \1\n' for bound in (*bounds, "+Inf")]
        self._parts.append(filled("".join([*lines, f"{name}_sum{{\0}} \1\n{name}_count{{\0}} \1\n"]), labels, rows))

    def _samples(self, sample, found):
        labels, values = zip(*found) if found else ((), ())
        self._parts.append(filled(f"{sample}\0 \1\n", list(labels), list(values)))

    def ended(self):
        return "".join([*self._parts, "# EOF\n"] if self._openmetrics else self._parts)

    def _head(self, name, suffix, kind, help_text):
        # Prometheus's own format names families as their samples, and has no "info".
        family, kind = (name, kind) if self._openmetrics else (name + suffix, "gauge" if kind == "info" else kind)
        self._parts.append(f"# HELP {family} {help_text}\n# TYPE {family} {kind}\n")


def _labels(labels):
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


@functools.lru_cache(MAX_VERSIONS)
def _version_labels(name, version):
    return f'task="{_escaped(name)}",version="{_escaped(version)}"'


def _escaped(value):
    return value.translate(_ESCAPES)
