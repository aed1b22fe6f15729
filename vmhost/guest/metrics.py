"""A task's own metrics; the host shows them with its own, for each version of the task.

    from vmhost.guest import metrics

    orders = metrics.counter("orders", "Orders that were priced.", labels=("kind",))
    prices = metrics.histogram("price_euros", "What they came to.", bounds=(1, 10, 100))

    def run(order):
        orders.add(1, kind=order["kind"])
        prices.observe(order["price"])

All VMs of a version share a series, which outlives them. A version has at most 200 series (a name with its labels'
values): further ones are not counted, and the host reports that. A metric that is declared again is the same one.
"""

try:
    from _vmhost import metric, metric_add, metric_observe, metric_set
except ModuleNotFoundError:  # plain Python: a task's own tests
    from vmhost.guest.testing import metric, metric_add, metric_observe, metric_set

__all__ = ["Counter", "Gauge", "Histogram", "counter", "gauge", "histogram"]

_COUNTER, _GAUGE, _HISTOGRAM = range(3)
_RESERVED = ("vmhost_", "process_", "python_", "__")
_HOST_LABELS = ("task", "version", "le", "quantile")
_MAX_VALUE_CHARS = 100  # characters of a label's value
_MAX_KNOWN = 1000  # label values whose series numbers a VM caches
# Seconds, the defaults of Prometheus's clients.
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_declared = {}  # name -> the metric


class _Metric:
    _kind = None

    def __init__(self, name, help_text, labels, bounds=()):
        self.name, self.labels, self.bounds = name, labels, bounds
        self._head = f"{name}\x1f{help_text}"
        self._series = {}
        self._names = frozenset(labels)
        if not labels:
            self._number(())  # creates the series, with value 0, before anything is counted

    def _number(self, given):
        """The number of the series with these label values, in order; negative: there are too many."""
        number = self._series.get(given)
        if number is None:
            values = "".join(f"\x1f{name}\x1f{value}" for name, value in zip(self.labels, given))
            number = metric(self._kind, self._head + values, self.bounds)
            if number == -2:
                raise ValueError(f"{self.name}: another module declares it as another kind, or with other bounds")
            if len(self._series) < _MAX_KNOWN:
                self._series[given] = number
        return number

    def _of(self, labels):
        if not self.labels and not labels:
            return self._series[()]
        if labels.keys() != self._names:
            expected = ", ".join(self.labels) or "none"
            raise ValueError(f"{self.name}: expected the labels {expected}, got {sorted(labels)}")
        return self._number(tuple([_label_value(labels[name]) for name in self.labels]))

    def __repr__(self):
        return f"<{type(self).__name__.lower()} {self.name}>"


class Counter(_Metric):
    """A count of events: it only grows."""

    _kind = _COUNTER

    def add(self, value=1, **labels):
        """Add `value`, a number of at least 0."""
        if not value >= 0:
            raise ValueError(f"{self.name}: a counter grows, got {value!r}")
        number = self._of(labels)
        if number >= 0:
            metric_add(number, value)


class Gauge(_Metric):
    """A current amount."""

    _kind = _GAUGE

    def set(self, value, **labels):
        number = self._of(labels)
        if number >= 0:
            metric_set(number, value)

    def add(self, value=1, **labels):
        """Add `value`, which may be negative."""
        number = self._of(labels)
        if number >= 0:
            metric_add(number, value)


class Histogram(_Metric):
    """The distribution of values, counted by bounds."""

    _kind = _HISTOGRAM

    def observe(self, value, **labels):
        """Counts `value` in its bucket."""
        number = self._of(labels)
        if number >= 0:
            metric_observe(number, value)

    def time(self, **labels):
        """A context manager: observes the duration of its block in seconds, even if it raises."""
        return _Timer(self, labels)


class _Timer:
    __slots__ = ("_histogram", "_labels", "_began")

    def __init__(self, histogram, labels):
        self._histogram, self._labels = histogram, labels

    def __enter__(self):
        from time import perf_counter

        self._began = perf_counter()
        return self

    def __exit__(self, *_):
        from time import perf_counter

        self._histogram.observe(perf_counter() - self._began, **self._labels)


def counter(name, help_text="", *, labels=()):
    """The Counter `name`; the suffix _total is added for display if missing. ValueError."""
    return _declare(Counter, name, help_text, labels)


def gauge(name, help_text="", *, labels=()):
    """The Gauge `name`. ValueError."""
    return _declare(Gauge, name, help_text, labels)


def histogram(name, help_text="", *, labels=(), bounds=BOUNDS):
    """The Histogram `name`, with at most 32 ascending `bounds`; the default is for durations in seconds. ValueError."""
    bounds = tuple([float(bound) for bound in bounds])
    if not 1 <= len(bounds) <= 32 or not all(a < b for a, b in zip(bounds, (*bounds[1:], float("inf")))):
        raise ValueError(f"{name}: bounds: expected 1 to 32 rising numbers, got {bounds}")
    return _declare(Histogram, name, help_text, labels, bounds)


def _declare(cls, name, help_text, labels, bounds=()):
    if not _is_name(name) or name.startswith(_RESERVED):
        raise ValueError(
            f"a metric's name: expected at most 100 letters, digits and _, not beginning with {', '.join(_RESERVED)}; "
            f"got {name!r:.100}"
        )
    labels = (labels,) if isinstance(labels, str) else tuple(labels)
    for label in labels:
        if not _is_name(label) or label in _HOST_LABELS or label[:2] == "__":
            raise ValueError(f"{name}: labels: expected names other than {', '.join(_HOST_LABELS)}, got {label!r:.100}")
    if len(labels) > 8 or len(set(labels)) != len(labels):
        raise ValueError(f"{name}: labels: expected at most 8 different ones, got {labels!r:.200}")
    before = _declared.get(name)
    if before is not None:
        if type(before) is not cls or (before.labels, before.bounds) != (labels, bounds):
            raise ValueError(
                f"{name}: declared before as {before!r} with labels {before.labels}, bounds {before.bounds}"
            )
        return before
    made = _declared[name] = cls(name, _line(help_text)[:300], labels, bounds)
    return made


def _is_name(name):
    return isinstance(name, str) and name.isascii() and name.isidentifier() and len(name) <= 100


def _label_value(value):
    return _line(value if type(value) is str else str(value))[:_MAX_VALUE_CHARS]


def _line(text):
    """`text` without separators of a key's parts, NUL, which would end the key, and lone surrogates."""
    text = str(text)
    if text.isprintable():
        return text
    return "".join([c if c.isprintable() else " " for c in text])
