"""vmhost.engine.grad: each operator's gradient against finite differences, rows of tables, what is refused."""

import gc
import math
import re
import threading
from pathlib import Path

import pytest

import vmhost
import vmhost.engine.numpy as np
from tests.batches import each
from tests.engine.gradient_cases import CASES, COMPOSITES
from tests.hosts import bundle
from vmhost.engine import _array, nn
from vmhost.engine.grad import NoGradientError, RowGradient, checkpoint, grad, stop_gradient, value_and_grad
from vmhost.engine.grad.rules import CONSTANT, REFUSED, RULES
from vmhost.engine.grad.trees import leaves

PAGE = Path(__file__).resolve().parents[2] / "docs" / "gradients.md"


def differences(function, arrays, weights, step=1e-6):
    """The gradients of sum(function * weights) by central differences."""
    gradients = []
    for number, array in enumerate(arrays):
        result = np.zeros(array.size)
        for place in range(array.size):
            sides = []
            for sign in (1, -1):
                moved = [np.array(one) for one in arrays]
                flat = moved[number].ravel()
                flat[place] += sign * step
                moved[number] = flat.reshape(array.shape)
                sides.append(float((function(*moved) * weights).sum()))
            result[place] = (sides[0] - sides[1]) / (2 * step)
        gradients.append(result.reshape(array.shape))
    return gradients


def whole(gradient):
    return gradient.dense() if isinstance(gradient, RowGradient) else gradient


def agree(function, arrays):
    value = function(*arrays)
    weights = np.random.default_rng(3).uniform(0.5, 1.5, value.shape)
    loss, gradients = value_and_grad(lambda *arrays: (function(*arrays) * weights).sum(), tuple(range(len(arrays))))(
        *arrays
    )
    assert float(loss) == pytest.approx(float((value * weights).sum()))
    for own, wanted, array in zip(gradients, differences(function, arrays, weights), arrays):
        own = whole(own)
        assert own.shape == array.shape and own.dtype == array.dtype
        assert np.allclose(own, wanted, 1e-5, 1e-6), (own, wanted)


@each(("name", "function", "arrays"), CASES, ids=[f"{i}-{case[0]}" for i, case in enumerate(CASES)])
def test_operator_against_finite_differences(name, function, arrays):
    agree(function, arrays)


@pytest.mark.parametrize("name", COMPOSITES)
def test_function_of_operators_against_finite_differences(name):
    agree(*COMPOSITES[name])


def test_every_rule_has_a_case_and_a_row_in_the_docs():
    cases = {name for name, _, _ in CASES} | {"embedding_bags"}  # of tables, not arrays: test_embedding_lookups.py
    assert set(RULES) - cases == set()
    listed = set(re.findall(r"`(\w+)`", PAGE.read_text()))
    assert {name for name in RULES if not name.startswith("_")} - listed == set()


def test_every_function_of_the_engine_is_filed():
    names = {name for name in dir(_array) if not name.startswith("__") and callable(getattr(_array, name))}
    functions = {name for name in names if not isinstance(getattr(_array, name), (type, _array.dtype))}
    unfiled = functions - set(RULES) - CONSTANT - REFUSED
    assert unfiled == set(), "file it in engine/grad/rules.py: a rule, CONSTANT or REFUSED"
    assert not (set(RULES) & (CONSTANT | REFUSED) or CONSTANT & REFUSED)


def test_gradients_of_gradients():
    third = grad(grad(grad(lambda x: np.sin(x) * x)))
    assert float(third(0.7)) == pytest.approx(-3 * float(np.sin(0.7)) - 0.7 * float(np.cos(0.7)))
    x = np.array([0.5, 1.0, 2.0])
    # a gradient within a function whose gradient is taken, of an array of that function
    inner = grad(lambda x: (x * grad(lambda y: (y**3 * x).sum())(x)).sum())(x)
    assert np.allclose(inner, 12 * x**3)


def test_trees_arguments_and_further_results():
    weights = {"layers": [(np.ones((2, 2)), np.zeros(2))], "name": None, "step": 3}

    def loss(x, weights, scale):
        w, b = weights["layers"][0]
        y = x @ w + b
        return (y * y).sum() * scale, y

    (value, y), (gradient, of_scale) = value_and_grad(loss, (1, 2))(np.ones((1, 2)), weights, scale := 0.5)
    assert float(value) == 4 and isinstance(y, np.ndarray) and y.tolist() == [[2, 2]]
    assert gradient["layers"][0][0].tolist() == [[2, 2], [2, 2]] and gradient["layers"][0][1].tolist() == [2, 2]
    assert gradient["name"] is None and gradient["step"] is None and isinstance(gradient["layers"][0], tuple)
    assert float(of_scale) == 8 and scale == 0.5


def test_what_is_not_used_has_a_gradient_of_zeros():
    assert grad(lambda x, y: x.sum(), (0, 1))(np.ones(2), np.ones((2, 3)))[1].tolist() == [[0] * 3] * 2
    assert grad(lambda x: np.floor(x).sum())(np.array([1.5])).tolist() == [0]
    assert grad(lambda x: np.float64(3) * 2)(np.ones(2)).tolist() == [0, 0]


def test_float32_stays_float32_beside_numbers_of_python():
    x = np.arange(3, dtype="float32")
    for function in (lambda x: (x * 0.1 + 1).mean(), lambda x: (2 - x / 3).sum(), lambda x: np.maximum(x, 0.5).sum()):
        value, gradient = value_and_grad(function)(x)
        assert value.dtype == gradient.dtype == np.float32


def test_stop_gradient():
    assert grad(lambda x: (x * stop_gradient(x)).sum())(np.array([3.0])).tolist() == [3]


def test_rows_of_a_table_stay_rows():
    table, ids = np.ones((1000, 4)), np.array([[3, 3], [7, -1]])

    def loss(table):
        return (table[ids] * 2).sum() + np.take(table, np.array([3]), axis=0).sum()

    gradient = grad(loss)(table)
    assert isinstance(gradient, RowGradient) and gradient.shape == (1000, 4)
    assert sorted(gradient.ids.tolist()) == [3, 3, 3, 7, 999]
    combined = gradient.combined()
    assert combined.ids.tolist() == [3, 7, 999] and combined.rows[:, 0].tolist() == [5, 2, 2]
    assert (gradient.dense() == combined.dense()).all() and float(gradient.dense().sum()) == 36
    both = grad(lambda table: loss(table) + table.sum())(table)  # also used whole: an array
    assert both.shape == (1000, 4) and float(both.sum()) == 4036


def test_checkpoint_gives_the_same_gradient_and_keeps_less():
    w = np.full((64, 64), 0.1)
    x = np.linspace(-1, 1, 64 * 256).reshape(256, 64)
    calls = []

    def block(x):
        calls.append(1)
        for _ in range(6):
            x = np.tanh(x @ w_traced[0])
        return x

    w_traced = [w]

    def loss(w, x, wrap):
        w_traced[0] = w  # read by closure
        for _ in range(4):
            x = wrap(block)(x)
        return (x * x).sum()

    peaks, results = [], []
    for wrap in (lambda f: f, checkpoint):
        gc.collect()
        calls.clear()
        results.append(value_and_grad(lambda w, x: loss(w, x, wrap), (0, 1))(w, x))
        peaks.append(len(calls))
    assert peaks == [4, 8]
    assert float(results[0][0]) == float(results[1][0])
    assert all((a == b).all() for a, b in zip(results[0][1], results[1][1]))


@pytest.mark.parametrize("wrap", [lambda made: made, list, dict, "nested", "one"])
def test_checkpoint_of_functions_that_return_trees(wrap):
    calls = []

    def several(x, y):
        calls.append(1)
        a, b = np.tanh(x) * y, x * y * y
        if wrap == "nested":
            return {"a": [a, (b, None)], "step": 3, "same": x}
        if wrap == "one":
            return a
        return wrap({"a": a, "b": b}.items()) if wrap is dict else wrap((a, b))

    def loss(x, y, function):
        made = [one for _, one in leaves(function(x, y)) if hasattr(one, "dtype")]
        return sum((one * one).sum() * (i + 1) for i, one in enumerate(made)) + x.sum()

    arrays = np.array([0.5, 1.0]), np.array([2.0, -1.0])
    plain = value_and_grad(lambda x, y: loss(x, y, several), (0, 1))(*arrays)
    calls.clear()
    found = value_and_grad(lambda x, y: loss(x, y, checkpoint(several)), (0, 1))(*arrays)
    assert len(calls) == 2, "once for the value, once for all gradients"
    assert float(found[0]) == float(plain[0])
    assert [one.tolist() for one in found[1]] == [one.tolist() for one in plain[1]]
    again = grad(lambda x: (grad(lambda x: loss(x, arrays[1], checkpoint(several)))(x) ** 2).sum())(arrays[0])
    wanted = grad(lambda x: (grad(lambda x: loss(x, arrays[1], several))(x) ** 2).sum())(arrays[0])
    assert np.allclose(again, wanted)


def test_checkpoint_refuses_results_in_which_gradients_would_be_lost():
    class Holder:
        def __init__(self, value):
            self.value = value

    with pytest.raises(NoGradientError, match="checkpoint: the function has returned Holder"):
        grad(lambda x: checkpoint(Holder)(x).value.sum())(np.ones(2))


@pytest.mark.parametrize(
    ("function", "at", "wanted"),
    [
        (lambda x: np.sqrt(nn.relu(x)), [-1.0, 4.0], [0, 0.25]),
        (lambda x: np.sqrt(np.maximum(x, 0)), [-1.0, 4.0], [0, 0.25]),
        (lambda x: np.sqrt(np.minimum(x, 0) * -1), [1.0, -4.0], [0, -0.25]),
        (lambda x: np.sqrt(np.clip(x, 0, None)), [-1.0, 4.0], [0, 0.25]),
        (lambda x: np.sqrt(np.where(x > 0, x, 0)), [-1.0, 4.0], [0, 0.25]),
        (lambda x: x**0, [0.0, 2.0], [0, 0]),
        (lambda x: x**1, [0.0, 2.0], [1, 1]),
        (lambda x: x[:, None] ** np.arange(3), [0.0, 2.0], [1, 5]),
        (lambda x: x ** np.array([0.0, 0.5]), [0.0, 4.0], [0, 0.25]),
        (lambda x: 0.0**x, [0.0, 2.0], [0, 0]),
        (nn.elu, [0.0, 1.0, -1.0], [1, 1, math.exp(-1)]),
        (lambda x: np.logaddexp(x, 0), [math.inf, -math.inf, 0.0], [1, 0, 0.5]),
        (lambda x: np.logaddexp(x, x), [-math.inf, math.inf, 1.0], [1, 1, 1]),
        (nn.relu, [math.nan, -0.0, 1.0], [1, 0, 1]),
        (lambda x: np.max(x), [1.0, 3.0, 3.0], [0, 0.5, 0.5]),
        (lambda x: np.max(x), [1.0, math.nan, 3.0], [0, 1, 0]),
        (lambda x: np.maximum(x, 2), [1.0, math.nan, 3.0, 2.0], [0, 1, 1, 0.5]),
        (lambda x: np.fmax(x, 2), [1.0, math.nan, 3.0], [0, 0, 1]),
        (lambda x: np.nansum(x * 2), [1.0, math.nan, 3.0], [2, 0, 2]),
        (np.prod, [0.0, 2.0, 3.0], [6, 0, 0]),
        (np.std, [2.0, 2.0, 2.0], [0, 0, 0]),
        (lambda x: np.std(x, axis=0), [[1.0, 2.0], [3.0, 2.0]], [[-0.5, 0], [0.5, 0]]),
        (lambda x: np.sort(x) * np.arange(3.0), [1.0, 1.0, 0.0], [1, 2, 0]),
    ],
)
def test_gradients_at_kinks_ties_masks_and_nan(function, at, wanted):
    found = grad(lambda x: function(x).sum())(np.array(at))
    assert found.ravel().tolist() == pytest.approx(np.array(wanted).ravel().tolist())


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_a_second_derivative_through_batch_norm_in_training(kind):
    draw = np.random.default_rng(0)
    x, w = draw.standard_normal((5, 2)).astype(kind), draw.standard_normal((5, 2)).astype(kind)

    def native(x):
        return (np.tanh(nn.BatchNorm(2)(x)) * w).sum()

    def plain(x):
        centred = x - x.mean(0)
        return (np.tanh(centred / np.sqrt((centred * centred).mean(0) + 1e-5)) * w).sum()

    second = [grad(lambda x, f=f: (grad(f)(x) ** 2).sum())(x) for f in (native, plain)]
    assert np.allclose(*second, 1e-3, 1e-4) and float(np.abs(second[0]).max()) > 0.1
    layer = nn.BatchNorm(2)
    found = grad(lambda x: (np.tanh(checkpoint(layer)(x)) * w).sum())(x)
    assert np.allclose(found, grad(native)(x), 1e-5, 1e-6)
    assert type(layer.running_mean) is np.ndarray


def test_each_gradient_has_its_own_memory():
    tree = {"a": np.ones((2, 3)), "b": np.ones((2, 3)), "rows": np.ones((4, 3)), "t": np.ones((3, 2)), "s": np.ones(3)}

    def loss(tree):
        both = tree["a"] + tree["b"] + tree["rows"][np.array([1, 2])] + tree["t"].T
        return (both * 2).sum() + tree["s"].sum()

    gradient = grad(loss)(tree)
    for name, one in gradient.items():
        array = one.rows if isinstance(one, RowGradient) else one
        array += 5
        for other, two in gradient.items():
            wanted = 1 if other == "s" else 2
            assert float(np.abs(whole(two)).max()) == (wanted + 5 if other == name else wanted), (name, other)
        array -= 5
    kept = np.ones(3)
    stop_gradient_of = []
    grad(lambda x: (stop_gradient_of.append(stop_gradient(x.copy())), np.array(x).flatten().sum())[1])(kept)
    stop_gradient_of[0][0] = 7
    assert kept.tolist() == [1, 1, 1]


def test_branches_go_by_values():
    def absolute(x):
        return x if x > 0 else -x

    assert float(grad(absolute)(-2.0)) == -1 and float(grad(absolute)(2.0)) == 1


@pytest.mark.parametrize(
    ("function", "argument", "says"),
    [
        (lambda x: x * 2, np.ones(3), "of one float: take its sum"),
        (lambda x: (x * 2).astype(int).sum(), 3, "argument 0 is int"),
        (lambda x: x.sum(), np.arange(3), "gradients are of float arrays"),
        (lambda x: "loss", np.ones(3), "the function gives str"),
        (lambda x: np.cumprod(x).sum(), np.ones(3), "no gradient through cumprod"),
        (lambda x: np.fft.fft(x).real.sum(), np.ones(3), "returns complex numbers"),
        (lambda x: (x * 1j).real.sum(), np.ones(3), "returns complex numbers"),
        (lambda x: np.zeros(3).__setitem__(0, x[0]), np.ones(3), "its gradient would be lost"),
        (lambda x: np.arange(x[0], 3).sum(), np.ones(3), "no gradient through arange"),
        (lambda x: np.vectorize(lambda one: one * 2)(x).sum(), np.ones(3), "no gradient through vectorize"),
        (lambda x: np.poly(x).sum(), np.ones(3), "no gradient through poly:"),
        (lambda x: np.linalg.inv(x).sum(), np.eye(3), "no gradient through inv"),
        (lambda x: np.sum(x, 0, None, None, False, x[0]), np.ones(3), "sum() of a traced array takes no"),
        (lambda x: np.zeros(3).dot(x), np.ones(3), "its gradient would be lost"),
        (lambda x: np.add(x, 1, out=np.empty(3)).sum(), np.ones(3), "takes no out="),
        (lambda x: np.add(x, 1, np.empty(3)).sum(), np.ones(3), "takes no out="),
        (lambda x: np.exp(x, np.empty(3)).sum(), np.ones(3), "takes no out="),
        (lambda x: np.floor(x, x).sum(), np.ones(3), "floor() cannot write into a traced array"),
        (lambda x: np.floor(np.ones(3), out=x).sum(), np.ones(3), "floor() cannot write into a traced array"),
        (lambda x: np.sum(x, where=np.ones(3, bool)), np.ones(3), "takes no out=, initial= or where="),
        (lambda x: x.__setitem__(0, 1), np.ones(3), "a traced array cannot be written"),
    ],
)
def test_what_is_refused_is_said(function, argument, says):
    with pytest.raises((TypeError, ValueError), match=re.escape(says)):
        value_and_grad(function)(argument)
    assert float(grad(lambda x: x * x)(1.5)) == 3  # and nothing of it stays


def written(where, change):
    """The gradient of `where`, a function of x and an array, with the array written before it is taken."""
    array = np.array([[2.0, 3.0], [4.0, 5.0]])

    def loss(x):
        made = where(x, array)
        change(array)
        return (made * made).sum()

    return grad(loss)(np.ones((2, 2)))


WRITES = {
    "an element": lambda array: array.__setitem__((0, 0), 1),
    "in place": lambda array: array.__iadd__(1),
    "a view": lambda array: array[0].fill(1),
    "out": lambda array: np.add(array, 1, out=array),
    "sort": lambda array: array.sort(),
    "copyto": lambda array: np.copyto(array, 1),
    "at": lambda array: np.add.at(array, 0, 1.0),
    "random": lambda array: np.random.default_rng(1).random(out=array),
    "fft": lambda array: np.fft.fft(np.ones((2, 1)), out=array.view(complex)),
}
READS = {
    "multiply": lambda x, array: x * array,
    "divide": lambda x, array: x / array,
    "power": lambda x, array: x**array,
    "matmul": lambda x, array: x @ array,
    "where": lambda x, array: np.where(array.view("bool")[:, ::8], x, 0),
    "maximum": lambda x, array: np.maximum(x, array),
    "getitem": lambda x, array: x[array.view("int64")[:, 0] * 0],
    "take": lambda x, array: np.take(x, array.view("int64")[0] * 0 + array.view("int64") * 0, 1),
    "checkpoint": lambda x, array: checkpoint(lambda x, y: x + y)(x, array),
    "checkpoint ": lambda x, array: checkpoint(lambda x: x + array)(x),
}


@pytest.mark.parametrize("write", WRITES)
def test_what_is_written_before_its_gradient_is_refused(write):
    with pytest.raises(NoGradientError, match="multiply: an array of shape .* was written in the meantime"):
        written(READS["multiply"], WRITES[write])


@pytest.mark.parametrize(
    "read", ["multiply", "divide", "power", "matmul", "where", "maximum", "checkpoint", "checkpoint "]
)
def test_what_an_operator_reads_may_not_be_written_until_then(read):
    with pytest.raises(NoGradientError, match=f"{read.strip()}: an array of shape .* was written in the meantime"):
        written(READS[read], WRITES["an element"])


def test_indices_and_arguments_may_not_be_written_until_then():
    ids, mask, x = np.array([0, 1]), np.array([True, False]), np.ones(2)
    for read, name in (
        (lambda x: x[ids], "getitem"),
        (lambda x: np.take(x, ids), "take"),
        (lambda x: x[mask], "getitem"),
    ):

        def loss(x, read=read):
            made = read(x)
            ids[0], mask[1] = 0, False
            return made.sum()

        with pytest.raises(NoGradientError, match=f"{name}: an array of shape"):
            grad(loss)(x)

    def changes_its_argument(traced):
        made = traced * traced
        x[0] = 5
        return made.sum()

    with pytest.raises(NoGradientError, match="multiply: an array"):
        grad(changes_its_argument)(x)
    listed = [0, 0]

    def changes_a_list(x):
        made = x[listed]
        listed[1] = 1
        return made.sum()

    assert whole(grad(changes_a_list)(np.ones(2))).tolist() == [2, 0]


def test_what_no_gradient_needs_may_be_written():
    for read in (
        lambda x, array: x + array,
        lambda x, array: array - x,
        lambda x, array: x * array.copy(),
        lambda x, array: np.concatenate([x, array]),
        lambda x, array: x * (array * 2),
    ):
        for write in WRITES.values():
            written(read, write)
    before = np.ones(2)
    before[0] = 2  # before the operator
    assert grad(lambda x: (x * before).sum())(np.ones(2)).tolist() == [2, 1]


def test_argnums_out_of_range():
    with pytest.raises(ValueError, match="argnums: 1, but the function was called with 1 arguments"):
        grad(lambda x: x.sum(), 1)(np.ones(2))


def test_an_array_kept_from_an_ended_gradient_is_refused():
    kept = []
    grad(lambda x: (kept.append(x), x.sum())[1])(np.ones(2))
    with pytest.raises(NoGradientError, match="used after its gradient was computed"):
        kept[0] + 1


def test_threads_take_gradients_side_by_side():
    failures = []

    def work(k):
        for _ in range(50):
            if grad(lambda x: (x**2 * k).sum())(np.array([1.0, 2.0])).tolist() != [2 * k, 4 * k]:
                failures.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_an_error_in_the_function_comes_out_as_it_is_and_leaves_no_tape():
    with pytest.raises(ZeroDivisionError):
        grad(lambda x: (x * 2).sum() / (1 // 0))(np.ones(2))
    from vmhost.engine.grad import tape

    assert tape._open == []


GUEST = """
import vmhost
import vmhost.engine.numpy as np
from vmhost.engine.grad import value_and_grad

def run(value):
    loss = lambda table, w: np.tanh(table[value["ids"]] @ w).sum()
    value, (rows, of_w) = value_and_grad(loss, (0, 1))(value["table"], value["w"])
    return {"loss": float(value), "rows": rows.dense(), "w": of_w}
"""


def test_a_task_takes_gradients_in_a_vm():
    value = {"ids": np.array([1, 1, 3]), "table": np.ones((5, 2)), "w": np.array([0.1, 0.2])}
    with vmhost.Host(allow_unsigned=True) as host:
        answer = host.load(bundle(GUEST))(value)
    scope = {}
    exec(GUEST, scope)
    own = scope["run"](value)
    assert answer["loss"] == own["loss"]
    assert (answer["rows"] == own["rows"]).all() and (answer["w"] == own["w"]).all()
    assert answer["rows"].sum(1).astype(bool).tolist() == [False, True, False, True, False]
