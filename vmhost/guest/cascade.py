"""A small model in the task, a large one in the cloud: what the small one is sure of stays on the device.

    from vmhost.guest import cascade

    recognise = cascade.Cascade(
        small=scores_of,                     # value -> scores of the classes
        large="recognise",                   # a channel of the tunnel, named in task.yaml's permissions
        confidence=cascade.margin(temperature=1.7),
        threshold=0.6,                       # below it the cloud is asked
        budget=cascade.Budget(share=0.2, bytes_per_minute=200_000),
        timeout_s=0.5,
        cache=100,
    )

    def run(image):
        decision = recognise(image)
        return {"scores": decision.answer, "by": decision.by}

If the cloud is not asked, or does not answer in time, the decision is the small model's. The module needs no engine:
scores may be a list, or an array of any kind with `tolist`. Each VM of a task has budget and cache of its own;
what is counted is counted for all VMs of a version (`vmhost.guest.metrics`).
"""

import math
import time
from collections import OrderedDict, deque
from typing import NamedTuple

from vmhost.guest import deadline, host, metrics

__all__ = ["Budget", "Cascade", "Decision", "HardExamples", "entropy", "fit_temperature", "margin", "maximum"]

_PREFIX = "tunnel_"  # of host functions; vmhost/tunnel/host_functions.py
_MARGIN_S = 0.02  # left of the call's own time when the cloud's is over
_WINDOW_S = 60.0
_DAY_S = 24 * 3600.0
_ROUNDING = 1e-3  # of probabilities, beyond 0 and 1


class Decision(NamedTuple):
    """What a Cascade returns.

    - `answer`: of the model that decided
    - `by`: "small", "large", or "cache": an answer of the large model to an equal value
    - `confidence`: the small model's, 0 to 1
    - `reason`: "sure"; "unsure": the large model decided; else why an unsure value was not decided by it: "budget",
      "not now" (`Budget(when=)`), "offline", "late", "failed"
    """

    answer: object
    by: str
    confidence: float
    reason: str


# ---- confidence: rules that take scores and give a number from 0 to 1


def maximum(temperature=None):
    """The largest probability. `temperature`: the scores are logits, and are calibrated by it; None: probabilities."""
    return _rule(max, temperature)


def margin(temperature=None):
    """The largest probability less the second largest. `temperature` as of `maximum`."""

    def rule(probabilities):
        if len(probabilities) == 1:
            return probabilities[0]
        first, second = sorted(probabilities, reverse=True)[:2]
        return first - second

    return _rule(rule, temperature)


def entropy(temperature=None):
    """1 less the entropy of the probabilities over its maximum: 1 for one sure class, 0 for equal ones.
    `temperature` as of `maximum`."""

    def rule(probabilities):
        if len(probabilities) == 1:
            return 1.0
        total = -sum(each * math.log(each) for each in probabilities if each > 0)
        return 1.0 - total / math.log(len(probabilities))

    return _rule(rule, temperature)


def _rule(of_probabilities, temperature):
    if temperature is not None:
        _check_number("temperature", temperature, lambda it: 0 < it < math.inf, "a number above 0")

    def confidence(scores):
        values = _numbers(scores)
        if temperature is not None:
            values = _softmax(values, temperature)
        if any(map(math.isnan, values)):
            return math.nan  # which is not sure, whatever the others are
        if not all(-_ROUNDING <= each <= 1 + _ROUNDING for each in values):
            wrong = next(each for each in values if not -_ROUNDING <= each <= 1 + _ROUNDING)
            raise ValueError(f"scores: expected probabilities, got {wrong:g}; for logits give the rule a temperature")
        return of_probabilities(values)

    return confidence


def _numbers(scores):
    """The scores as a list of floats. A batch of one, as models give it, counts as its only row."""
    values = scores.tolist() if hasattr(scores, "tolist") else scores
    while isinstance(values, list | tuple) and len(values) == 1 and isinstance(values[0], list | tuple):
        values = values[0]
    if isinstance(values, list | tuple) and values and all(hasattr(each, "__float__") for each in values):
        return [float(each) for each in values]
    raise TypeError(f"scores: expected a list or an array of a number a class, got {_shown(scores)}")


def _shown(value):
    """A value in an error."""
    size = f" of {len(value)}" if hasattr(value, "__len__") and not isinstance(value, str | bytes) else ""
    return f"a {type(value).__name__}{size}: {value!r:.80}"


def _check_number(name, value, fits, expected):
    if not hasattr(value, "__float__") or not fits(value):
        raise ValueError(f"{name}: expected {expected}, got {value!r:.80}")


def _check_function(name, value, of):
    if not callable(value):
        raise TypeError(f"{name}: expected a function of {of}, got {value!r:.80}")


def _softmax(logits, temperature):
    highest = max(logits)
    powers = [math.exp((each - highest) / temperature) for each in logits]
    total = sum(powers)
    return [each / total for each in powers]


def fit_temperature(logits, labels):
    """The temperature, 0.05 to 20, whose probabilities fit the labels best (least negative log-likelihood; Guo et al.,
    "On Calibration of Modern Neural Networks", 2017).

    logits: a row of scores for each example. labels: the index of its true class."""
    rows = [_numbers(row) for row in logits]
    labels = [int(label) for label in labels]
    if not rows or len(rows) != len(labels):
        raise ValueError(f"expected a label for each row of logits, got {len(rows)} rows and {len(labels)} labels")
    for at, (row, label) in enumerate(zip(rows, labels)):
        if not 0 <= label < len(row):
            raise ValueError(f"labels[{at}]: expected the index of one of {len(row)} classes, got {label}")
        if not all(map(math.isfinite, row)):
            raise ValueError(f"logits[{at}]: expected finite numbers, got {row!r:.80}")

    def loss(log_temperature):
        temperature, total = math.exp(log_temperature), 0.0
        for row, label in zip(rows, labels):
            highest = max(row)
            total += math.log(sum(math.exp((each - highest) / temperature) for each in row))
            total -= (row[label] - highest) / temperature
        return total

    low, high = math.log(0.05), math.log(20.0)  # the loss has one minimum in between: golden-section search
    shrink = (math.sqrt(5) - 1) / 2
    left, right = high - shrink * (high - low), low + shrink * (high - low)
    at_left, at_right = loss(left), loss(right)
    while high - low > 1e-4:
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - shrink * (high - low)
            at_left = loss(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + shrink * (high - low)
            at_right = loss(right)
    return math.exp((low + high) / 2)


# ---- what asking may cost


class Budget:
    """How often, and with how many bytes, a VM asks the cloud.

    - `share`: of all calls, 0 to 1. Calls that do not ask save for later ones, up to `burst` of them
    - `burst`: asks in a row that a saved share allows, at least 1
    - `bytes_per_minute`: of the values that are sent, over the last minute
    - `when`: a function without arguments: asks only where it returns true. For facts of the device, such as `lambda:
      host.facts()["network"] == "wifi"`
    """

    def __init__(self, share=None, burst=10, bytes_per_minute=None, when=None):
        if share is not None:
            _check_number("share", share, lambda it: 0 <= it <= 1, "a number from 0 to 1")
        _check_number("burst", burst, lambda it: it >= 1, "a number from 1 on")
        if bytes_per_minute is not None:
            _check_number("bytes_per_minute", bytes_per_minute, lambda it: it >= 0, "a number of bytes")
        if when is not None:
            _check_function("when", when, "no arguments")
        self.share, self.burst, self.bytes_per_minute, self.when = share, burst, bytes_per_minute, when
        self._saved = 0.0 if share == 0 else 1.0
        self._sent = OrderedDict()  # time -> bytes, of the last minute
        self._sent_bytes = 0

    def call(self):
        """Counts a call, whoever decides it."""
        if self.share is not None:
            self._saved = min(self._saved + self.share, float(self.burst))

    def refusal(self, size):
        """None if `size` bytes may be sent now, else the reason of a Decision."""
        if self.when is not None and not self.when():
            return "not now"
        if self.share is not None and self._saved < 1 - 1e-9:
            return "budget"
        if self.bytes_per_minute is not None:
            now = time.monotonic()
            while self._sent and next(iter(self._sent)) <= now - _WINDOW_S:
                self._sent_bytes -= self._sent.popitem(last=False)[1]
            if self._sent_bytes + size > self.bytes_per_minute:
                return "budget"
        return None

    def spend(self, size):
        """Counts a value that is sent."""
        if self.share is not None:
            self._saved -= 1
        if self.bytes_per_minute is not None:
            now = time.monotonic()
            self._sent[now] = self._sent.get(now, 0) + size
            self._sent_bytes += size


class HardExamples:
    """Keeps what the small model was not sure of, for training: `keep(value, decision)` is called for it.

    - `keep`: for example `lambda value, decision: host.tunnel_examples({"send": value})`
    - `consent`: a function without arguments: nothing is kept where it returns false, or raises
    - `per_day`: how many at most, within any 24 hours, by each VM
    """

    def __init__(self, keep, consent, per_day=100):
        _check_function("keep", keep, "a value and its decision")
        _check_function("consent", consent, "no arguments")
        if type(per_day) is not int or per_day < 0:
            raise ValueError(f"per_day: expected a whole number from 0 on, got {per_day!r:.80}")
        self.keep, self.consent, self.per_day = keep, consent, per_day
        self._times = deque(maxlen=per_day)  # when the latest ones were kept

    def offer(self, value, decision):
        """Whether it was kept."""
        now = time.monotonic()
        if len(self._times) == self.per_day and (self.per_day == 0 or now - self._times[0] < _DAY_S):
            return False
        if not self.consent():
            return False
        self.keep(value, decision)
        self._times.append(now)
        return True


# ---- the cascade


class Cascade:
    """`cascade(value)` gives a `Decision`.

    - `small`: value -> the small model's answer
    - `large`: the channel of the tunnel that answers with the large model; `permissions: {tunnel: [CHANNEL]}`
    - `confidence`: the small model's answer -> 0 to 1: `maximum()`, `margin()`, `entropy()`, or a function of your own
    - `threshold`: the small model decides from this confidence on
    - `send`: (value, the small model's answer) -> what is sent; by default the value. To split a network between device
      and cloud let `small` return the activation at the cut as well, and send that
    - `timeout_s`: how long to wait for the cloud, and never longer than the call itself may last
    - `budget`: a `Budget`
    - `cache`: of how many values the cloud's answers are kept, the latest used
    - `hard`: `HardExamples`
    - `label`: answer -> its label, to count how often both models agree; by default the index of the largest score
    - `name`: of this cascade in the metrics; by default the channel
    """

    def __init__(
        self, small, large, *, confidence=None, threshold=0.8, send=None, timeout_s=0.5, budget=None, cache=0,
        hard=None, label=None, name=None,
    ):  # fmt: skip
        _check_function("small", small, "a value")
        if not isinstance(large, str) or not large.isidentifier():
            raise ValueError(f"large: expected the name of a channel (letters, digits and _), got {large!r:.80}")
        _check_number("threshold", threshold, lambda it: 0 <= it <= 1, "a number from 0 to 1")
        _check_number("timeout_s", timeout_s, lambda it: 0 < it < math.inf, "seconds above 0")
        if type(cache) is not int or cache < 0:
            raise ValueError(f"cache: expected a number of values, got {cache!r:.80}")
        for each, function, of in (
            ("confidence", confidence, "the small model's answer"),
            ("send", send, "a value and the small model's answer"),
            ("label", label, "an answer"),
        ):
            if function is not None:
                _check_function(each, function, of)
        if not isinstance(budget, Budget | None):
            raise TypeError(f"budget: expected a Budget, got {budget!r:.80}")
        if not isinstance(hard, HardExamples | None):
            raise TypeError(f"hard: expected HardExamples, got {hard!r:.80}")
        self.small, self.large, self.threshold, self.timeout_s = small, large, threshold, timeout_s
        self.confidence = maximum() if confidence is None else confidence
        self.budget = Budget() if budget is None else budget
        self.hard = hard
        self._send = send
        self._label = _largest if label is None else label
        self._cache, self._cached = cache, OrderedDict()
        self._counts = _Counts(name or large)

    def __call__(self, value):
        answer = self.small(value)
        confidence = float(self.confidence(answer))
        self.budget.call()
        if confidence >= self.threshold:
            return self._counts.decided(Decision(answer, "small", confidence, "sure"))
        decision = self._unsure(value, answer, confidence)  # NaN is not sure
        if self.hard is not None:
            self._counts.kept(self._keep(value, decision))
        return self._counts.decided(decision)

    def _unsure(self, value, answer, confidence):
        key = _key(value) if self._cache else None
        if key is not None and key in self._cached:
            self._cached.move_to_end(key)
            return Decision(_copy(self._cached[key]), "cache", confidence, "unsure")
        sent = value if self._send is None else self._send(value, answer)
        size = _bytes_of(sent)
        refusal = self.budget.refusal(size)
        if refusal is not None:
            return Decision(answer, "small", confidence, refusal)
        self.budget.spend(size)
        began = time.monotonic()
        reply, refusal = self._ask(sent)
        self._counts.asked(size, time.monotonic() - began)
        if refusal is not None:
            return Decision(answer, "small", confidence, refusal)
        if key is not None:
            self._cached[key] = _copy(reply)
            if len(self._cached) > self._cache:
                self._cached.popitem(last=False)
        self._counts.compared(self._label, answer, reply)
        return Decision(reply, "large", confidence, "unsure")

    def _ask(self, sent):
        """(the cloud's answer, None), or (None, why there is none)."""
        left = deadline()
        timeout_s = self.timeout_s if left is None else min(self.timeout_s, left - _MARGIN_S)
        if timeout_s <= 0:
            return None, "late"
        # A HostFunctionError is a mistake, such as a channel that is not granted: no fallback hides it.
        reply = getattr(host, _PREFIX + self.large)({"ask": sent, "timeout_s": timeout_s})
        if "answer" in reply:
            return reply["answer"], None
        return None, "offline" if reply["offline"] else "late" if reply["late"] else "failed"

    def _keep(self, value, decision):
        try:
            return self.hard.offer(value, decision)
        except Exception:  # whatever it is, the decision stands
            return False


def _largest(answer):
    values = _numbers(answer)
    return values.index(max(values))


class _Counts:
    """The metrics of one cascade."""

    def __init__(self, name):
        self._name = name
        labels = ("cascade",)
        self._decisions = metrics.counter(
            "cascade_decisions", "Decisions, by who decided and why.", labels=("cascade", "by", "reason")
        )
        self._bytes = metrics.counter("cascade_sent_bytes", "Bytes of values sent to the cloud.", labels=labels)
        self._seconds = metrics.histogram(
            "cascade_asked_seconds", "Time until the cloud's answer, or none.", labels=labels
        )
        self._agreed = metrics.counter(
            "cascade_agreed",
            "Answers of the cloud, by whether the small model says the same.",
            labels=("cascade", "same"),
        )
        self._kept = metrics.counter("cascade_hard_examples", "Values kept for training.", labels=labels)

    def decided(self, decision):
        self._decisions.add(1, cascade=self._name, by=decision.by, reason=decision.reason)
        return decision

    def asked(self, size, seconds):
        self._bytes.add(size, cascade=self._name)
        self._seconds.observe(seconds, cascade=self._name)

    def compared(self, label, small, large):
        try:
            same = "yes" if label(small) == label(large) else "no"
        except Exception:
            same = "unknown"  # the two have answers of different kinds, and no `label` was given
        self._agreed.add(1, cascade=self._name, same=same)

    def kept(self, was_kept):
        if was_kept:
            self._kept.add(1, cascade=self._name)


# ---- values


def _bytes_of(value):
    """About as many bytes as the value has on the wire."""
    if isinstance(value, bytes | bytearray):
        return len(value)
    if isinstance(value, str):
        return len(value.encode(errors="replace"))
    if isinstance(value, dict):
        return 3 + sum(_bytes_of(key) + _bytes_of(each) for key, each in value.items())
    if isinstance(value, list | tuple):
        return 3 + sum(map(_bytes_of, value))
    if isinstance(value, memoryview) or hasattr(value, "nbytes"):
        return int(value.nbytes)
    return 9


def _copy(value):
    """Of what the task may change, or what holds such."""
    if isinstance(value, list | tuple):
        return type(value)(map(_copy, value))
    if isinstance(value, dict):
        return {key: _copy(each) for key, each in value.items()}
    if value is None or isinstance(value, str | bytes | int | float):
        return value
    return value.copy() if hasattr(value, "copy") else value


def _key(value):
    """A key for equal values of equal types; None for values that have none."""
    if isinstance(value, list | tuple):
        keys = [_key(each) for each in value]
        return None if None in keys else (type(value), *keys)
    if isinstance(value, dict):
        keys = [(_key(key), _key(each)) for key, each in value.items()]
        return None if any(None in pair for pair in keys) else (dict, *keys)
    if isinstance(value, bytearray):
        return bytearray, bytes(value)
    if hasattr(value, "tobytes") and hasattr(value, "shape"):
        kind = str(getattr(value, "dtype", "") or getattr(value, "format", ""))
        return type(value), kind, tuple(value.shape), value.tobytes()
    return (type(value), value) if isinstance(value, str | bytes | int | float | bool | type(None)) else None
