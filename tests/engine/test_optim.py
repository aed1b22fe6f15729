"""vmhost.engine.optim: each optimizer against its formula in plain Python, rows of tables, schedules."""

import math

import numpy
import pytest

import vmhost.engine.numpy as np
from vmhost.engine import nn, optim
from vmhost.engine.grad import RowGradient

OPTIMIZERS = {
    "SGD": lambda: optim.SGD(0.1),
    "momentum": lambda: optim.SGD(0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda: optim.SGD(0.1, momentum=0.9, nesterov=True),
    "Adagrad": lambda: optim.Adagrad(0.1, initial=0.1),
    "RMSprop": lambda: optim.RMSprop(0.01),
    "Adam": lambda: optim.Adam(0.01),
    "AdamW": lambda: optim.AdamW(0.01, weight_decay=0.1),
    "Ftrl": lambda: optim.Ftrl(0.1, l1=0.001, l2=0.01),
}


def by_hand(name, w, gradients):
    """One weight after these gradients."""
    v = m = s = 0.0
    if name == "Adagrad":
        s = 0.1
    z = -w * (1 / 0.1 + 0.01)
    for t, g in enumerate(gradients, 1):
        if name == "SGD":
            w -= 0.1 * g
        elif name == "momentum":
            v = 0.9 * v + g + 0.01 * w
            w -= 0.1 * v
        elif name == "nesterov":
            v = 0.9 * v + g
            w -= 0.1 * (g + 0.9 * v)
        elif name == "Adagrad":
            s += g * g
            w -= 0.1 * g / (math.sqrt(s) + 1e-8)
        elif name == "RMSprop":
            s = 0.99 * s + 0.01 * g * g
            w -= 0.01 * g / (math.sqrt(s) + 1e-8)
        elif name in ("Adam", "AdamW"):
            if name == "AdamW":
                w *= 1 - 0.01 * 0.1
            m, s = 0.9 * m + 0.1 * g, 0.999 * s + 0.001 * g * g
            w -= 0.01 * (m / (1 - 0.9**t)) / (math.sqrt(s / (1 - 0.999**t)) + 1e-8)
        elif name == "Ftrl":
            sigma = (math.sqrt(s + g * g) - math.sqrt(s)) / 0.1
            z, s = z + g - sigma * w, s + g * g
            w = 0.0 if abs(z) <= 0.001 else -(z - math.copysign(0.001, z)) / ((1 + math.sqrt(s)) / 0.1 + 0.01)
    return w


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_by_its_formula(name):
    layer = nn.Linear(3, 1, bias=False)
    layer.weight = np.array([[0.5, -1.0, 2.0]])
    steps = numpy.random.default_rng(1).standard_normal((5, 3))
    optimizer = OPTIMIZERS[name]()
    for g in steps:
        optimizer.update(layer, {"weight": np.array([g.tolist()])})
    wanted = [by_hand(name, w, steps[:, i]) for i, w in enumerate([0.5, -1.0, 2.0])]
    assert numpy.allclose(layer.weight, [wanted], rtol=1e-9)
    assert optimizer.state["step"] == 5


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rows_are_changed_as_if_the_table_had_only_them(name):
    start = np.random.default_rng(2).standard_normal((6, 2))
    table, few = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    table.weight, few.weight = start.copy(), start[[1, 4]]
    sparse, dense = OPTIMIZERS[name](), OPTIMIZERS[name]()
    for k in range(3):
        rows = np.array([[1.0, 2], [0.5, 1], [3, -1]]) * (k + 1)
        sparse.update(table, {"weight": RowGradient(np.array([4, 1, 4]), rows, (6, 2))})
        dense.update(few, {"weight": np.stack([rows[1], rows[0] + rows[2]])})
    assert numpy.allclose(table.weight[[1, 4]], few.weight)
    assert (table.weight[[0, 2, 3, 5]] == start[[0, 2, 3, 5]]).all()


def test_arrays_are_changed_in_place_and_read_only_ones_copied():
    layer = nn.Linear(2, 2)
    weight = layer.weight
    bias = layer.bias = np.broadcast_to(np.ones(1, "float32"), (2,))
    optim.SGD(1.0).update(layer, {"weight": np.ones((2, 2), "float32"), "bias": np.ones(2, "float32")})
    assert layer.weight is weight
    assert layer.bias.tolist() == [0, 0] and bias.tolist() == [1, 1]


def test_a_saved_state_resumes_equally():
    def run(steps, layer, optimizer):
        for k in steps:
            optimizer.update(layer, {"weight": np.full((1, 2), float(k)), "bias": np.ones(1)})
        return layer

    def fresh():
        layer = nn.Linear(2, 1)
        layer.weight, layer.bias = np.ones((1, 2)), np.zeros(1)
        return layer

    whole = run(range(6), fresh(), optim.Adam(0.1))
    first, optimizer = fresh(), optim.Adam(0.1)
    run(range(3), first, optimizer)
    resumed = optim.Adam(0.1)
    resumed.state = optimizer.state
    run(range(3, 6), first, resumed)
    assert (whole.weight == first.weight).all() and (whole.bias == first.bias).all()


def test_schedules():
    assert [optim.step_decay(1.0, 0.5, 2)(k) for k in range(5)] == [1, 1, 0.5, 0.5, 0.25]
    assert optim.exponential_decay(1.0, 0.9)(2) == pytest.approx(0.81)
    cosine = optim.cosine_decay(1.0, 10, 0.1)
    assert (cosine(0), cosine(5), cosine(99)) == (1.0, pytest.approx(0.55), pytest.approx(0.1))
    joined = optim.join_schedules([optim.linear_schedule(0, 1, 4), cosine], [4])
    assert [joined(k) for k in (0, 2, 4)] == [0, 0.5, 1.0]
    layer, optimizer = nn.Linear(1, 1, bias=False), optim.SGD(optim.step_decay(1.0, 0.1, 1))
    layer.weight = np.zeros((1, 1))
    for _ in range(2):
        optimizer.update(layer, {"weight": np.ones((1, 1))})
    assert layer.weight.item() == pytest.approx(-1.1)
    with pytest.raises(ValueError, match="2 schedules need 1 boundaries"):
        optim.join_schedules([cosine, cosine], [])


def test_clipping_counts_rows_and_arrays_together():
    rows = RowGradient(np.array([0, 0]), np.array([[1.0], [2.0]]), (4, 1))  # row 0: 3
    clipped, norm = optim.clip_grad_norm({"a": np.array([4.0]), "b": rows}, 1.0)
    assert (
        norm == 5
        and clipped["a"].item() == pytest.approx(0.8)
        and clipped["b"].combined().rows.item() == pytest.approx(0.6)
    )
    same, _ = optim.clip_grad_norm({"a": np.array([0.5])}, 1.0)
    assert same["a"].item() == 0.5
