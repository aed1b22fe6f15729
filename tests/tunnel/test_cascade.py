"""`vmhost.guest.cascade` as plain Python with a cloud that the test plays, and in a VM."""

import math
import random

import pytest

import vmhost
from vmhost.bytecode import spec
from vmhost.bytecode.compiler import compile_sources
from vmhost.guest import cascade, testing
from vmhost.guest.cascade import Budget, Cascade, HardExamples, entropy, fit_temperature, margin, maximum
from vmhost.tunnel import host_functions

SURE, UNSURE = [0.9, 0.1], [0.55, 0.45]


class Cloud:
    """Plays the tunnel: answers with `reply`, and keeps what it was asked."""

    def __init__(self, reply=None):
        self.reply = {"answer": [0.0, 1.0]} if reply is None else reply
        self.asked = []

    def __call__(self, given):
        self.asked.append(given)
        return self.reply


def test_a_channel_s_host_function_has_one_name_everywhere():
    assert cascade._PREFIX == host_functions.PREFIX == spec.TUNNEL_FUNCTION


@pytest.fixture
def cloud():
    cloud = Cloud()
    with testing.stand_in(functions={"tunnel_recognise": cloud}):
        yield cloud


def counted(name, **labels):
    """The value of a series of `vmhost.guest.metrics` in plain Python."""
    key = "".join(f"\x1f{label}\x1f{value}" for label, value in labels.items())
    return next((value for _, known, value in testing._series if known.startswith(name) and known.endswith(key)), 0)


def test_what_the_small_model_is_sure_of_stays_here(cloud):
    decision = Cascade(lambda value: value, "recognise", name="stays")(SURE)
    assert decision == (SURE, "small", 0.9, "sure") and not cloud.asked
    assert counted("cascade_decisions", cascade="stays", by="small", reason="sure") == 1


def test_what_it_is_not_sure_of_is_asked_and_counted(cloud):
    recognise = Cascade(lambda value: value, "recognise", name="asked", timeout_s=0.25)
    assert recognise(UNSURE) == ([0.0, 1.0], "large", 0.55, "unsure")
    cloud.reply = {"answer": [1.0, 0.0]}
    assert recognise(UNSURE).by == "large"
    assert cloud.asked == [{"ask": UNSURE, "timeout_s": 0.25}] * 2
    assert (
        counted("cascade_agreed", cascade="asked", same="no")
        == counted("cascade_agreed", cascade="asked", same="yes")
        == 1
    )
    assert counted("cascade_sent_bytes", cascade="asked") == 2 * (3 + 2 * 9)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ({"error": "gone", "offline": True, "late": False}, "offline"),
        ({"error": "no answer within 0.5 s", "offline": False, "late": True}, "late"),
        ({"error": "ValueError: too large", "offline": False, "late": False}, "failed"),
    ],
)
def test_without_an_answer_the_small_model_decides(cloud, reply, reason):
    cloud.reply = reply
    assert Cascade(lambda value: value, "recognise")(UNSURE) == (UNSURE, "small", 0.55, reason)


def test_a_channel_that_is_not_there_is_an_error_and_no_fallback():
    with testing.stand_in(), pytest.raises(Exception, match="tunnel_recognise"):
        Cascade(lambda value: value, "recognise")(UNSURE)


def test_the_cloud_is_never_waited_for_longer_than_the_call_may_last(cloud):
    recognise = Cascade(lambda value: value, "recognise", timeout_s=5000)
    with testing.stand_in(functions={"tunnel_recognise": cloud}, deadline_s=1000):
        assert recognise(UNSURE).by == "large"
    assert 0 < cloud.asked[0]["timeout_s"] < 1000
    with testing.stand_in(functions={"tunnel_recognise": cloud}, deadline_s=0.001):
        assert recognise(UNSURE).reason == "late"
    assert len(cloud.asked) == 1


def test_a_share_of_calls_is_saved_up_to_the_burst(cloud):
    recognise = Cascade(lambda value: value, "recognise", budget=Budget(share=0.25, burst=2))
    assert [recognise(UNSURE).by for _ in range(9)] == [
        "large",
        "small",
        "small",
        *["large", "small", "small", "small"] * 2,
    ][:9]
    for _ in range(100):
        recognise(SURE)
    assert [recognise(UNSURE).reason for _ in range(5)] == ["unsure", "unsure", "budget", "budget", "unsure"]


def test_bytes_are_limited_over_the_last_minute(cloud, monkeypatch):
    now = 1000.0
    monkeypatch.setattr(cascade.time, "monotonic", lambda: now)
    recognise = Cascade(lambda value: UNSURE, "recognise", budget=Budget(bytes_per_minute=250))
    assert [recognise(bytes(100)).by for _ in range(3)] == ["large", "large", "small"]
    now += 59
    assert recognise(bytes(100)).reason == "budget"
    now += 1
    assert recognise(bytes(100)).by == "large"


def test_facts_of_the_device_decide_whether_it_asks(cloud):
    network = "mobile"
    recognise = Cascade(lambda value: value, "recognise", budget=Budget(when=lambda: network == "wifi"))
    assert recognise(UNSURE) == (UNSURE, "small", 0.55, "not now")
    network = "wifi"
    assert recognise(UNSURE).by == "large"


def test_answers_are_kept_for_equal_values_and_no_task_can_change_them(cloud):
    recognise = Cascade(lambda value: UNSURE, "recognise", cache=2)
    recognise({"a": [1]}).answer.append("changed")
    again = recognise({"a": [1]})
    assert again == ([0.0, 1.0], "cache", 0.55, "unsure") and len(cloud.asked) == 1
    again.answer.clear()
    assert recognise({"a": [1]}).answer == [0.0, 1.0]
    for value in (1, True, "1", b"1", 1.0):  # equal, or printed alike, but not the same
        assert recognise(value).by == "large", value
    assert recognise({"a": [1]}).by == "large"  # it was the oldest
    assert recognise(object()).by == "large"  # a value without a key is always asked
    numbers = bytes(range(8))
    for kind in "if":  # the same bytes as other numbers
        assert recognise(memoryview(numbers).cast(kind)).by == "large"
    cloud.reply = {"answer": ([1], {"b": [2]})}
    recognise("nested").answer[0].append(3)
    again = recognise("nested")
    assert again.by == "cache" and again.answer == ([1], {"b": [2]})


def test_another_value_may_be_sent_in_its_place(cloud):
    recognise = Cascade(
        lambda value: {"scores": UNSURE, "cut": b"activation"}, "recognise",
        confidence=lambda answer: max(answer["scores"]), send=lambda value, answer: answer["cut"],
    )  # fmt: skip
    recognise("image")
    assert cloud.asked[0]["ask"] == b"activation"


def test_hard_examples_are_kept_with_consent_up_to_the_quota(cloud):
    kept, consent = [], False
    hard = HardExamples(lambda value, decision: kept.append((value, decision.by)), lambda: consent, per_day=2)
    recognise = Cascade(lambda value: value, "recognise", hard=hard, name="hard")
    recognise(UNSURE)
    assert not kept
    consent = True
    for value in (SURE, UNSURE, UNSURE, UNSURE):
        recognise(value)
    assert kept == [(UNSURE, "large")] * 2
    assert counted("cascade_hard_examples", cascade="hard") == 2
    recognise.hard = HardExamples(lambda value, decision: 1 / 0, lambda: True)
    assert recognise(UNSURE).by == "large"


def test_the_quota_of_hard_examples_holds_in_any_day(cloud, monkeypatch):
    now, kept = 0.0, []
    monkeypatch.setattr(cascade.time, "monotonic", lambda: now)
    hard = HardExamples(lambda value, decision: kept.append(now), lambda: True, per_day=2)
    for now in (0.0, 86_399.0, 86_399.5, 86_400.0, 86_401.0, 172_798.0, 172_799.0, 172_800.0):
        hard.offer(1, None)
    assert kept == [0.0, 86_399.0, 86_400.0, 172_799.0, 172_800.0]
    assert not HardExamples(print, lambda: True, per_day=0).offer(1, None)


def test_a_share_of_nothing_never_asks(cloud):
    recognise = Cascade(lambda value: value, "recognise", budget=Budget(share=0))
    assert {recognise(UNSURE).reason for _ in range(5)} == {"budget"} and not cloud.asked


def test_rules_of_confidence():
    flat, sure = [0.25] * 4, [1.0, 0.0, 0.0, 0.0]
    for rule, of_flat in ((maximum(), 0.25), (margin(), 0.0), (entropy(), 0.0)):
        assert rule(flat) == pytest.approx(of_flat, abs=1e-12) and rule(sure) == 1.0 and rule([1.0]) == 1.0
    assert margin()([0.1, 0.7, 0.2]) == pytest.approx(0.5)
    assert maximum()([[0.2, 0.8]]) == 0.8  # a batch of one
    assert maximum(temperature=2)([1000.0, 1002.0]) == pytest.approx(1 / (1 + math.exp(-1)))
    for wrong in (5, "text", [], None):
        with pytest.raises(TypeError, match="scores"):
            maximum()(wrong)


@pytest.mark.parametrize("rule", [maximum(), margin(), entropy(), maximum(temperature=2)])
@pytest.mark.parametrize("scores", [[0.95, math.nan], [math.nan, 0.95], [0.01, math.nan, 0.95]])
def test_scores_with_a_nan_are_never_sure(cloud, rule, scores):
    decision = Cascade(lambda value: value, "recognise", confidence=rule, threshold=0)(scores)
    assert decision.by == "large" and math.isnan(decision.confidence)


def test_logits_without_a_temperature_are_told():
    for rule in (maximum(), margin(), entropy()):
        with pytest.raises(ValueError, match="expected probabilities, got 7.5; for logits give the rule a temperature"):
            rule([7.5, -1.0])
        assert rule([1 + 1e-6, -1e-6]) == pytest.approx(1, abs=1e-4)
    with pytest.raises(TypeError, match="scores: expected a list or an array of a number a class, got a list of 2"):
        maximum()([[0.5, 0.5], [0.1, 0.9]])


def test_a_temperature_is_fitted_that_makes_confidences_true():
    """Labels are drawn with the probabilities at temperature 3 of the logits that the model claims at 1."""
    draw = random.Random(5)
    logits = [[draw.gauss(0, 4) for _ in range(5)] for _ in range(4000)]
    labels = [draw.choices(range(5), cascade._softmax(row, 3.0))[0] for row in logits]
    assert fit_temperature(logits, labels) == pytest.approx(3.0, rel=0.1)
    with pytest.raises(ValueError, match="2 rows and 1 labels"):
        fit_temperature(logits[:2], labels[:1])
    for wrong in (5, -1):
        with pytest.raises(ValueError, match=r"labels\[1\]: expected the index of one of 5 classes"):
            fit_temperature(logits[:2], [0, wrong])
    with pytest.raises(ValueError, match=r"logits\[0\]: expected finite numbers"):
        fit_temperature([[1.0, math.inf]], [0])


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"large": "no-name"}, "large"),
        ({"threshold": 1.1}, "threshold"),
        ({"threshold": math.nan}, "threshold"),
        ({"threshold": "0.8"}, "threshold"),
        ({"timeout_s": "1"}, "timeout_s"),
        ({"confidence": 0.5}, "confidence: expected a function of the small model's answer"),
        ({"send": "cut"}, "send: expected a function"),
        ({"label": {}}, "label: expected a function"),
        ({"hard": print}, "hard: expected HardExamples"),
        ({"budget": {"share": "1"}}, "share"),
        ({"budget": {"burst": math.nan}}, "burst"),
        ({"budget": {"bytes_per_minute": math.nan}}, "bytes_per_minute"),
        ({"budget": {"when": True}}, "when: expected a function"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"cache": -1}, "cache"),
        ({"small": 3}, "small"),
        ({"budget": {"share": 2}}, "share"),
        ({"budget": {"burst": 0}}, "burst"),
        ({"budget": {"bytes_per_minute": -1}}, "bytes_per_minute"),
    ],
)
def test_what_makes_no_sense_is_refused(settings, text):
    with pytest.raises((ValueError, TypeError), match=text):
        budget = Budget(**settings.pop("budget")) if "budget" in settings else None
        Cascade(**{"small": len, "large": "recognise", "budget": budget} | settings)
    with pytest.raises(TypeError, match="budget: expected a Budget"):
        Cascade(len, "recognise", budget=0.5)
    for per_day in ("100", -1, 2.5, None):
        with pytest.raises(ValueError, match="per_day"):
            HardExamples(print, print, per_day=per_day)
    with pytest.raises(ValueError, match="temperature"):
        margin(temperature="2")


def test_a_confidence_that_is_no_number_is_not_sure(cloud):
    assert Cascade(lambda value: value, "recognise", confidence=lambda scores: math.nan)(SURE).by == "large"


TASK = """
from vmhost.engine import numpy as np
from vmhost.guest import cascade

recognise = cascade.Cascade(lambda value: value.mean(axis=0), "recognise", threshold=0.6, cache=4)

def run(value):
    return [tuple(recognise(np.array(row, "float32").reshape(2, 2))) [1:] for row in value]
"""


def test_it_works_in_a_vm_with_arrays():
    asked = []

    def recognise(given):
        asked.append(given["ask"].tolist())
        return {"answer": [0.0, 1.0]}

    task = compile_sources(
        {"main": (TASK, "main.py", False)},
        entry="main:run",
        name="task",
        version="1",
        permissions={"host": ["tunnel_recognise"]},
    )
    with vmhost.Host(allow_unsigned=True, functions={"tunnel_recognise": recognise}) as host:
        found = host.load(task)([[1, 0, 1, 0], [0.5, 0.5, 0.5, 0.5], [0.5, 0.5, 0.5, 0.5]])
    assert found == [("small", 1.0, "sure"), ("large", 0.5, "unsure"), ("cache", 0.5, "unsure")]
    assert asked == [[[0.5, 0.5], [0.5, 0.5]]]
