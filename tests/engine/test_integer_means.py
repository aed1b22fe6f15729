"""Means, norms and logarithms of sums of integers are exact and rounded toward zero, whether or not sums fit."""

import fractions
import math

import numpy
import pytest
from onnx import helper

from tests import networks
from tests.engine.library import backends, on_backend
from vmhost.engine.models import opened
from vmhost.engine.onnx import compile_model

INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
OPERATORS = ["ReduceMean", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"]


def right(op, row, dtype):
    """By Python's integers."""
    limits = numpy.iinfo(dtype)
    if op == "ReduceMean":
        return math.trunc(fractions.Fraction(sum(row), len(row)))
    if op == "ReduceL2":
        return min(math.isqrt(sum(x * x for x in row)), limits.max)
    if op == "ReduceLogSum":
        return math.trunc(math.log(sum(row))) if sum(row) > 0 else limits.min
    logarithm = math.log(sum(math.exp(x - max(row)) for x in row))
    whole = max(row) + math.floor(logarithm)
    return min(whole if whole >= 0 else max(row) + math.ceil(logarithm), limits.max)


def of(op, x, axes, keepdims=1, constant=False):
    """Of the input x, or of a constant."""
    nodes = [helper.make_node(op, ["c" if constant else "x", "axes"], ["y"], keepdims=keepdims)]
    constants = {"axes": numpy.array(axes)} | ({"c": x} if constant else {})
    data = networks.graph_of(nodes, {"x": x}, ("y",), constants)
    return numpy.asarray(opened("means", compile_model(data, "means"))({"x": x})["y"])


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_numbers_near_the_limits_are_exact(op, dtype):
    limits, random = numpy.iinfo(dtype), numpy.random.default_rng(47)
    rows = [random.integers(limits.min, limits.max, 7, dtype, endpoint=True).tolist() for _ in range(20)]
    rows += [random.integers(max(limits.min, -9), 9, 7).tolist() for _ in range(20)]
    rows += [[limits.max] * 7, [limits.min] * 7, [limits.min, limits.max] + [0] * 5, [limits.max] + [0] * 6]
    x = numpy.array(rows, dtype)
    expected = [right(op, row, dtype) for row in rows]
    for number in backends():
        with on_backend(number):
            assert of(op, x, [1], keepdims=0).tolist() == expected
    assert of(op, x, [1], keepdims=0, constant=True).tolist() == expected
    assert of(op, x.T, [0]).tolist() == [expected]


def test_examples_of_the_rounding_and_of_what_does_not_fit():
    assert of("ReduceMean", numpy.array([[-1, -2]], "int32"), [1]).tolist() == [[-1]]
    assert of("ReduceMean", numpy.full((1, 3), 1 << 30, "int32"), [1]).tolist() == [[1 << 30]]
    assert of("ReduceL2", numpy.array([[50000, 50000]], "int32"), [1]).tolist() == [[70710]]
    assert of("ReduceL2", numpy.array([[1 << 40, 0]]), [1]).tolist() == [[1 << 40]]


@pytest.mark.parametrize("axes", [[0, 2], [1], [0, 1, 2, 3], [3, 1]])
def test_axes_anywhere_and_views_are_as_numpys(axes):
    x = numpy.random.default_rng(1).integers(-50, 50, (3, 4, 5, 6)).astype("int16")
    expected = numpy.trunc(x.astype("float64").mean(tuple(axes), keepdims=True)).astype("int16")
    assert numpy.array_equal(of("ReduceMean", x, axes), expected)
    assert numpy.array_equal(of("ReduceMean", x, axes, keepdims=0), expected.squeeze(tuple(axes)))
