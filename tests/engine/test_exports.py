"""nn.export: what a file computes is what the network computes, for other numbers, sizes and dtypes than the example's;
what cannot be written is refused with its place."""

import re
import sys

import numpy
import onnx
import pytest

import vmhost.engine.numpy as np
from tests import onnx_runtime
from vmhost.engine import nn
from vmhost.engine.models import opened
from vmhost.engine.nn import activations
from vmhost.engine.onnx import compile_model

FLOATS = ("float32", "float64", "float16")
INTEGERS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
ALL = (*FLOATS, *INTEGERS, "bool")
# ONNX Runtime has no exact ones of uint64: refused by name.
REFUSED = (
    r"(maximum|minimum|absolute|equal|less|greater|max|min): of uint64 cannot be written as ONNX; convert to int64"
)
NOT_OF_BOOLEANS = ("subtract", "negative", "softmax", "log_softmax")  # in NumPy, either
# By operator: networks of one input (examples, 3), and the dtypes of inputs that they take.
CASES = {
    "add": [(lambda x: x + 3, ALL), (lambda x: x + 0.5, ALL), (lambda x: x + np.asarray([1, 2, 3]), ALL)],
    "subtract": [(lambda x: 2 - x, ALL), (lambda x: x[:, :1] - x, ALL)],
    "multiply": [(lambda x: x * 0.5, ALL), (lambda x: x * x, ALL), (lambda x: x * np.asarray([1, 2, 3], "int16"), ALL)],
    "divide": [
        (lambda x: (x / 255.0).astype("float32"), ALL),
        (lambda x: x / 2, ALL),
        (lambda x: 1 / (x * x + 1), ALL),
    ],
    "power": [
        (lambda x: x**2, ALL),
        (lambda x: x**3, INTEGERS),
        (lambda x: x**0, INTEGERS),
        (lambda x: (x * x) ** 0.5, ALL),
    ],
    "maximum": [(lambda x: np.maximum(x, 2), ALL), (lambda x: np.maximum(x, 2.5), ALL)],
    "minimum": [(lambda x: np.minimum(x, x[:, 1:2]), ALL)],
    "matmul": [(lambda x: x @ np.asarray([[1, 2], [3, 4], [5, 6]], "int8"), ALL), (lambda x: x @ np.ones((3, 2)), ALL)],
    "negative": [(lambda x: -x, ALL)],
    "absolute": [(lambda x: np.absolute(x), ALL)],
    "exp": [(lambda x: np.exp(x * 0.1), ALL)],
    "log": [(lambda x: np.log(x * x + 1), ALL)],
    "sqrt": [(lambda x: np.sqrt(x * x), ALL)],
    "reciprocal": [(lambda x: np.reciprocal(x * x + 1.0), ALL)],
    "tanh": [(np.tanh, ALL)],
    "erf": [(nn.gelu, FLOATS)],
    "sin": [(np.sin, ALL)],
    "cos": [(np.cos, ALL)],
    "floor": [(np.floor, ALL)],
    "ceil": [(np.ceil, ALL)],
    "square": [(np.square, ALL)],
    "log1p": [(lambda x: np.log1p(x * x), ALL)],
    "logaddexp": [(lambda x: np.logaddexp(x, 0), ALL)],
    "where": [
        (lambda x: np.where(x > 2, x, 0), ALL),
        (lambda x: np.where(x, 1.5, x), ALL),
        (lambda x: np.where(x > 2, True, x == 1), ALL),
    ],
    "equal": [(lambda x: x == 2, ALL), (lambda x: (x > 1) == (x < 3), ALL)],
    "less": [(lambda x: x < 2.5, ALL), (lambda x: x < 300, ALL), (lambda x: x[:, :1] < x, ALL)],
    "greater": [(lambda x: x > 1, ALL), (lambda x: x > -200, ALL)],
    "sum": [
        (lambda x: x.sum(axis=1), ALL),
        (lambda x: x.sum(axis=(), keepdims=True) + 1, ALL),
        (lambda x: (x > 1).sum(axis=-1, keepdims=True), ALL),
        (lambda x: x.sum(1, "float32"), INTEGERS),
    ],
    "mean": [(lambda x: x.mean(axis=1), ALL), (lambda x: np.mean(x, (0, 1)), ("float32", "int64"))],
    "max": [(lambda x: x.max(1, None, True), ALL), (lambda x: (x > 1).max(1), ALL)],
    "min": [(lambda x: np.min(x, axis=-1), ALL)],
    "prod": [(lambda x: np.prod(x, axis=1), ALL)],
    "reshape": [(lambda x: x.reshape(len(x), 3, 1), ALL), (lambda x: np.transpose(x).reshape(3, 1, -1), ALL)],
    "ravel": [(lambda x: x.ravel(), ALL)],
    "squeeze": [(lambda x: np.squeeze(x[:, :1], 1), ALL)],
    "transpose": [(lambda x: x.T, ALL)],
    "swapaxes": [(lambda x: x.swapaxes(0, -1) * 2, ALL)],
    "concatenate": [
        (lambda x: np.concatenate([x, x * 0.5], 1), ALL),
        (lambda x: np.concatenate([x, x[:1]], axis=0), ALL),
        (lambda x: np.concatenate([x, x], axis=None), ALL),
    ],
    "take": [
        (lambda x: np.take(x, [2, 0], axis=1), ALL),
        (lambda x: np.take(x, [4, -1, 7], axis=1, mode="wrap"), ALL),
        (lambda x: np.take(x, [4, -1, 1], axis=1, mode="clip"), ALL),
        (lambda x: np.take(np.asarray([5.0, 7.0, 9.0]), (x > 2).astype("int8"), axis=0), ALL),
    ],
    "_pad": [(lambda x: np.pad(x, ((0, 0), (1, 2)), constant_values=3), ("float32", "int64"))],
    "astype": [(lambda x: x.astype("int32") * 2, ALL), (lambda x: x.astype(bool), ALL)],
    "getitem": [(lambda x: x[:, -1], ALL), (lambda x: x[..., ::2], ALL), (lambda x: x[0], ALL), (lambda x: x[1:], ALL)],
    "add of booleans": [(lambda x: (x > 1) + (x < 0), ALL), (lambda x: (x > 1) * (x < 3), ALL)],
    "var": [(lambda x: np.var(x, axis=1), ALL), (lambda x: np.std(x, axis=-1, ddof=1), FLOATS)],
    "a constant of its parameters": [(nn.Linear(3, 4), ("float32",)), (nn.LayerNorm(3), ("float32",))],
}
FUNCTIONS = ("sigmoid", "relu", "silu", "gelu", "leaky_relu", "elu", "softplus", "softmax", "log_softmax", "tanh")
CASES |= {name: [(getattr(nn, name), FLOATS if name == "gelu" else ALL)] for name in FUNCTIONS if name not in ("tanh",)}
# ONNX Runtime has no kernel for these dtypes of results.
ABSENT_THERE = {(name, "float64") for name in ("gelu", "erf", "softplus", "logaddexp")}


class Of(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def __call__(self, x):
        return self.function(x)


def numbers(count, dtype, seed, scale):
    drawn = numpy.random.default_rng(seed).normal(1, 2, (count, 3)) * scale
    with numpy.errstate(invalid="ignore"):
        return drawn.clip(0 if dtype[0] == "u" else -100, 100).astype(dtype)


def tolerance(*dtypes):
    return max({"float16": 4e-3, "float32": 1e-5}.get(dtype, 1e-6) for dtype in dtypes)


@pytest.mark.parametrize("name", CASES)
def test_a_file_computes_what_the_network_does_for_other_examples(name):
    for function, dtypes in CASES[name]:
        model = function if isinstance(function, nn.Module) else Of(function)
        for dtype in dtypes:
            examples = [np.asarray(numbers(count, dtype, count, scale)) for count, scale in ((2, 1), (4, 3))]
            third = numbers(5, dtype, 99, 2)
            model.eval()
            try:
                expected = numpy.asarray(model(np.asarray(third)))
            except TypeError:
                assert dtype == "bool" and name in NOT_OF_BOOLEANS
                continue
            try:
                files = [nn.export(model, {"x": one}) for one in examples]
            except nn.ExportError as error:
                assert dtype == "uint64" and re.search(REFUSED, str(error)), (name, dtype)
                continue
            found = [numpy.asarray(opened("net", compile_model(one, "net"))({"x": third})["output"]) for one in files]
            if (name, expected.dtype.name) not in ABSENT_THERE:
                found += [answer for [[(_, answer)]] in onnx_runtime.answers([(one, [{"x": third}]) for one in files])]
            close = tolerance(dtype, expected.dtype.name)
            for one in found:
                assert (one.dtype, one.shape) == (expected.dtype, expected.shape), (name, dtype)
                numpy.testing.assert_allclose(one, expected, close, close, err_msg=f"{name} {dtype}")


def test_every_operator_and_function_that_can_be_exported_has_a_case():
    module = sys.modules["vmhost.engine.nn.export"]
    known = {*module._ARITHMETIC, *module._COMPARISONS, *module._REDUCTIONS}
    assert not known - CASES.keys()
    public = {name for name, one in vars(activations).items() if callable(one) and getattr(nn, name, None) is one}
    assert not public - CASES.keys()


def refused(function, text, dtype="float32"):
    line = function.__code__.co_firstlineno
    with pytest.raises(nn.ExportError, match=rf"test_exports\.py:\d+: .*{re.escape(text)}") as caught:
        nn.export(Of(function), {"x": np.asarray(numbers(3, dtype, 0, 1))})
    assert line <= int(str(caught.value).split(":")[1]) <= line + 3


def test_values_that_python_reads_are_refused_with_their_place():
    def decides(x):
        return x if float(x.sum()) > 0 else -x

    for function in (
        decides,
        lambda x: x if x.sum() > 0 else -x,
        lambda x: x * int(x[0, 0]),
        lambda x: x * np.asarray(x.tolist()),
        lambda x: x * x[0, 0].item(),
    ):
        refused(function, "a value that depends on an input is read as a plain number")


def test_what_depends_on_the_number_of_examples_is_refused_with_its_place():
    refused(lambda x: x.sum(axis=0) / len(x), "a constant of Div depends on the number of examples")
    refused(lambda x: x * 2 if len(x) % 2 else x, "does something else when it is called with one example more")
    refused(lambda x: np.concatenate([x] * len(x)), "does something else when")
    refused(lambda x: (x @ x.T).reshape(1, 1, len(x), -1), "reshape of (3, 3) to (1, 1, 3, 3): more than one size")


def test_what_onnx_does_not_say_is_refused_with_its_place():
    refused(lambda x: np.sort(x), "sort: cannot be written as ONNX")
    refused(lambda x: x.sum(axis=1, initial=3), "sum: initial= cannot be written")
    refused(lambda x: x.max(axis=1, where=x > 0, initial=0), "where= cannot be written")
    refused(lambda x: np.take(x, x.astype(int), axis=1, mode="wrap"), "mode='wrap'")
    refused(lambda x: x.reshape(3, -1, order="F"), "order 'C' only")
    refused(lambda x: np.reciprocal(x), "reciprocal: of integers", "int32")


def test_a_choice_on_a_parameter_is_of_the_parameter_when_it_is_exported():
    class Chooses(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.ranks = np.asarray([2.0]), np.asarray([3.0, 1.0, 2.0])

        def __call__(self, x):
            return x + np.sort(self.ranks) if float(self.gate[0]) > 1 else x

    model, x = Chooses(), numbers(4, "float64", 0, 1)
    [[[(_, found)]]] = onnx_runtime.answers([(nn.export(model, {"x": np.asarray(x)}), [{"x": x}])])
    numpy.testing.assert_allclose(found, x + [1, 2, 3])
    assert type(model.gate) is np.ndarray


def test_parameters_keep_their_names_and_come_back():
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    before = model.parameters()
    names = {
        one.name for one in onnx.load_from_string(nn.export(model, {"x": np.ones((2, 3), "float32")})).graph.initializer
    }
    assert {f"layers.{i}.{one}" for i in range(3) for one in ("weight", "bias")} <= names
    assert model.layers[0].weight is before["layers"][0]["weight"]
    with pytest.raises(nn.ExportError, match="an input and a parameter have this name"):
        nn.export(nn.Linear(3, 2), {"weight": np.ones((2, 3), "float32")})


def test_weights_of_nan_are_not_exported():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model.layers[1].weight[0, 1] = np.nan
    with pytest.raises(nn.ExportError, match=r"layers\.1\.weight: has NaN"):
        nn.export(model, {"x": np.ones((2, 3), "float32")})


def test_a_tied_parameter_is_written_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(7, 4)
            self.out = self.table.weight

        def __call__(self, ids):
            return self.table(ids) @ self.out.T

    data = nn.export(Tied(), {"ids": np.asarray([[1, 2], [3, 4]])})
    assert [one.name for one in onnx.load_from_string(data).graph.initializer].count("table.weight") == 1
