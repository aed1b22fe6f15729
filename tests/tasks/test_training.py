"""Training of the shipped networks: gradients against differences, and the same training for the same seed."""

import importlib

import numpy
import pytest

from tasks import cases
from tasks.training import __main__, digits_cnn, gradients
from tasks.training.gradients import Value

RANDOM = numpy.random.default_rng(0)
OPERATORS = {
    "convolution": (lambda x, w: gradients.convolution(x, w), (2, 6, 6, 3), (4, 3, 3, 3)),
    "convolution by two": (lambda x, w: gradients.convolution(x, w, 2), (2, 7, 6, 3), (4, 3, 3, 3)),
    "depthwise": (lambda x, w: gradients.depthwise(x, w, 2), (2, 7, 6, 3), (3, 1, 3, 3)),
    "pooled": (gradients.pooled, (2, 4, 6, 3)),
    "normalized": (
        lambda x, a, b: gradients.normalized(x, a, b, (numpy.zeros(3), numpy.ones(3)), True),
        (2, 4, 4, 3),
        (3,),
        (3,),
    ),
    "softmax": (gradients.softmax, (2, 3, 4)),
    "sigmoid": (gradients.sigmoid, (2, 3, 4)),
    "clipped": (lambda x: gradients.clipped(x, 1.0), (2, 3, 4)),
    "joined": (lambda a, b: gradients.joined(a, b, a * b, a - b), (2, 1, 4), (2, 3, 4)),
    "rows": (lambda table: gradients.rows(table, numpy.array([[1, 2], [2, 0]])), (4, 3)),
    "products and sums": (lambda a, b: a @ b + a, (2, 3, 4), (4, 4)),
    "mean": (lambda x: gradients.mean(x, (1, 2)), (2, 4, 4, 3)),
    "turned": (lambda x: gradients.turned(x, (2, 0, 1)), (2, 4, 3)),
    "cross entropy": (lambda x: gradients.cross_entropy(x, numpy.array([1, 2]), 0.1), (2, 3)),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_gradients_are_what_small_differences_say(name):
    function, *shapes = OPERATORS[name]
    values = [Value(RANDOM.standard_normal(shape)) for shape in shapes]
    weights = RANDOM.standard_normal(function(*values).shape)

    def loss():
        return gradients.mean((function(*values) * weights).reshape(-1), (0,))

    gradients.gradients(loss())
    for value in values:
        found = value.grad.copy()
        for position in RANDOM.integers(0, value.data.size, 5):
            before, step = value.data.flat[position], 1e-6
            value.data.flat[position] = before + step
            above = loss().data
            value.data.flat[position] = before - step
            below = loss().data
            value.data.flat[position] = before
            assert found.flat[position] == pytest.approx((above - below) / (2 * step), abs=1e-6)


@pytest.mark.parametrize("name", __main__.NAMES)
def test_the_command_finds_what_prepares_a_task(name):
    assert callable(importlib.import_module(f"tasks.training.{name}").prepare)


def test_the_same_seed_trains_the_same_network(monkeypatch):
    few = cases.read_digits()[:128]
    monkeypatch.setattr(cases, "read_digits", lambda: few)
    lines = []
    first, again, other = (digits_cnn.train(seed, 3, lines.append) for seed in (1, 1, 2))
    assert all((first[name] == again[name]).all() for name in first)
    assert any((first[name] != other[name]).any() for name in first)
    losses = [float(line.rpartition(" ")[2]) for line in lines[:3]]
    assert losses[0] > losses[1] > losses[2]
