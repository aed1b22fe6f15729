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


def by_hand(name, w, gradients, rates=None):
    """One weight after these gradients; `rates`: Ftrl's learning rates, of which the first is that of w itself."""
    v = m = s = 0.0
    if name == "Adagrad":
        s = 0.1
    rates = [0.1] * (len(gradients) + 1) if rates is None else rates
    z = -w * (1 / rates[0] + 0.01) - math.copysign(0.001, w)
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
            sigma = (1 + math.sqrt(s + g * g)) / rates[t] - (1 + math.sqrt(s)) / rates[t - 1]
            z, s = z + g - sigma * w, s + g * g
            w = 0.0 if abs(z) <= 0.001 else -(z - math.copysign(0.001, z)) / ((1 + math.sqrt(s)) / rates[t] + 0.01)
    return w


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_by_its_formula(name):
    layer = nn.Linear(3, 1, bias=False)
    layer.weight = np.array([[0.5, -1.0, 2.0]])
    steps = numpy.random.default_rng(1).standard_normal((20, 3))
    steps[3:6, 1] = 0
    narrow, optimizer, other = nn.Linear(3, 1, bias=False), OPTIMIZERS[name](), OPTIMIZERS[name]()
    narrow.weight = layer.weight.astype("float32")
    for g in steps:
        optimizer.update(layer, {"weight": np.array([g.tolist()])})
        other.update(narrow, {"weight": np.array([g.tolist()], "float32")})
    wanted = [by_hand(name, w, steps[:, i]) for i, w in enumerate([0.5, -1.0, 2.0])]
    assert numpy.allclose(layer.weight, [wanted], rtol=1e-9)
    assert narrow.weight.dtype == "float32" and numpy.allclose(narrow.weight, [wanted], rtol=1e-4, atol=1e-5)
    assert optimizer.state["step"] == 20


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_float16_is_the_float32_computation_rounded_at_each_step(name):
    """Also of gradients of 0, and of those whose squares float16 cannot hold."""
    steps = (numpy.random.default_rng(1).standard_normal((20, 6)) * [1, 1e-5, 3e-4, 300, 0, 1]).astype("float16")
    weight = np.array([0.5, -1.0, 2.0, 1.0, 3.0, 0.0], "float16")
    half, table, wide = {"w": weight.copy()}, {"w": weight.reshape(6, 1).copy()}, {"w": weight.astype("float32")}
    of_half, of_table, of_wide = (OPTIMIZERS[name]() for _ in range(3))
    for g in steps:
        g = np.asarray(g)
        of_half.apply_gradients({"w": g}, half)
        of_table.apply_gradients({"w": RowGradient(np.arange(6), g.reshape(6, 1), (6, 1))}, table)
        of_wide.apply_gradients({"w": g.astype("float32")}, wide)
        wide["w"][...] = wide["w"].astype("float16")
        assert half["w"].dtype == "float16" and half["w"].tolist() == wide["w"].tolist() == table["w"].ravel().tolist()
    assert np.isfinite(half["w"]).all() and half["w"][4] == (3 if name not in ("AdamW", "momentum") else half["w"][4])


def test_ftrl_follows_a_schedule_by_its_formula():
    rates = [0.1 / (1 + k) for k in range(21)]
    steps = numpy.random.default_rng(2).standard_normal((20, 3)) * [1, 0, 0.01]
    weights, start = {"w": np.array([0.5, -1.0, 0.002])}, [0.5, -1.0, 0.002]
    optimizer = optim.Ftrl(lambda step: rates[step + 1], l1=0.001, l2=0.01)
    for g in steps:
        optimizer.apply_gradients({"w": np.asarray(g)}, weights)
    wanted = [by_hand("Ftrl", w, steps[:, i], rates) for i, w in enumerate(start)]
    assert numpy.allclose(weights["w"], wanted, rtol=1e-8) and weights["w"][1] == pytest.approx(-1, abs=1e-12)
    warm = optim.Ftrl(optim.linear_schedule(0.0, 0.1, 3))  # its first rate is 0
    warm.apply_gradients({"w": np.ones(3)}, weights)
    assert numpy.allclose(weights["w"], wanted, rtol=1e-8)


def test_an_array_with_two_names_steps_and_decays_once():
    shared, once = np.ones(2), np.ones(2)
    twice, single = (optim.SGD(0.1, momentum=0.9, weight_decay=0.5) for _ in range(2))
    for _ in range(2):
        twice.apply_gradients({"a": np.full(2, 1.0), "b": [np.full(2, 2.0)]}, {"a": shared, "b": [shared]})
        single.apply_gradients({"a": np.full(2, 3.0)}, {"a": once})
    assert shared.tolist() == once.tolist()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(3, 3)]
        self.again, self.weight = self.layers[0], self.layers[0].weight

    def __call__(self, x):
        return self.again(self.layers[0](x)) @ self.weight.T


def test_a_layer_with_two_names_steps_once_and_stays_one():
    nn.seed(1)
    net = Tied()
    before, x = net.weight.copy(), np.ones((2, 3), "float32")
    read_only = net.layers[0].weight = net.weight = np.broadcast_to(before, (3, 3))
    assert not read_only.flags.writeable
    _, gradients = nn.value_and_grad(net, lambda: net(x).sum())()
    assert gradients["again"] == {"weight": None, "bias": None} and gradients["weight"] is None
    step = 1e-2
    wanted = numpy.zeros((3, 3))
    for i in range(3):
        for j in range(3):
            sides = []
            for sign in (step, -step):
                moved = before.copy()
                moved[i, j] += sign
                net.layers[0].weight = net.weight = moved
                sides.append(float(net(x).sum()))
            wanted[i, j] = (sides[0] - sides[1]) / (2 * step)
    net.layers[0].weight = net.weight = read_only
    assert numpy.allclose(gradients["layers"][0]["weight"], wanted, rtol=1e-2, atol=1e-2)
    optim.SGD(0.1, weight_decay=0.5).update(net, gradients)
    assert net.weight is net.layers[0].weight is net.again.weight
    assert numpy.allclose(net.weight, before - 0.1 * (gradients["layers"][0]["weight"] + 0.5 * before))


def test_wrong_arguments_are_told_at_once():
    net = nn.Linear(2, 2)
    for given in (net, net.parameters(), [net.weight], net.weight, "0.1"):
        with pytest.raises(TypeError, match="Adam: learning_rate: expected a number or a function of the step, got"):
            optim.Adam(given, 1e-3)
    with pytest.raises(ValueError, match="Adam: betas: expected two numbers from 0 to below 1, got 0.9"):
        optim.Adam(1e-3, 0.9)
    with pytest.raises(ValueError, match="SGD: learning_rate: expected 0 or more, got nan"):
        optim.SGD(float("nan"))
    with pytest.raises(TypeError, match="Ftrl: l1: expected a number, got list"):
        optim.Ftrl(0.1, [0.1])
    sgd = optim.SGD(0.1)
    for gradients, text in (
        ({"weight": np.ones(2)}, r"weight has shape \(2,\), its parameter \(2, 2\)"),
        ({"wieght": np.ones(2)}, "gradients: the parameters have no 'wieght'"),
        ({"weight": {"a": np.ones(2)}}, "weight: the parameters have no"),
    ):
        with pytest.raises(ValueError, match=text):
            sgd.update(net, gradients)
    with pytest.raises(TypeError, match="gradients: expected a tree of arrays like the parameters"):
        sgd.update(net, np.ones(2))
    with pytest.raises(ValueError, match="a.b: two arrays have this name"):
        tree = {"a.b": np.ones(1), "a": {"b": np.ones(1)}}
        sgd.apply_gradients(tree, tree)
    assert sgd.state["step"] == 0


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


def test_clipping_is_exact_where_squares_do_not_fit():
    for dtype, scale in (("float16", 100), ("float16", 1e-4), ("float32", 1e20), ("float32", 1e-25)):
        gradients = {
            "a": np.array([3 * scale], dtype),
            "b": RowGradient(np.array([1]), np.array([[4 * scale]], dtype), (4, 1)),
        }
        clipped, norm = optim.clip_grad_norm(gradients, scale)
        assert norm == pytest.approx(5 * scale, rel=1e-3)
        assert clipped["a"].item() == pytest.approx(3 * scale * scale / (norm + 1e-6), rel=1e-2)
        assert clipped["b"].rows.item() == pytest.approx(4 * scale * scale / (norm + 1e-6), rel=1e-2)
        assert clipped["a"].dtype == clipped["b"].dtype == dtype
    clipped, norm = optim.clip_grad_norm({"a": np.array([6e4], "float16")}, 1e-3)  # a factor that float16 cannot hold
    assert clipped["a"].item() == pytest.approx(1e-3, rel=1e-2)
