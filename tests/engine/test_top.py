"""TopK of a few of many elements, which takes a heap, against a whole stable sort."""

import numpy
import pytest
from onnx import helper

from tests import networks
from tests.engine.library import backends, on_backend
from vmhost.engine.models import opened
from vmhost.engine.onnx import compile_model

DTYPES = ("float32", "float64", "float16", "int64", "int32", "uint8")


def elements(dtype, shape, draw):
    if numpy.dtype(dtype).kind == "f":  # rounded, so that some are equal
        x = (draw.standard_normal(shape) * 50).round().astype(dtype)
        x[draw.random(shape) < 0.01] = numpy.nan
        x[draw.random(shape) < 0.01] = numpy.inf
        return x
    return draw.integers(0, 200, shape).astype(dtype)


def top(x, count, axis, largest):
    nodes = [helper.make_node("TopK", ["x", "k"], ["y", "i"], axis=axis, largest=largest)]
    return compile_model(networks.graph_of(nodes, {"x": x}, ["y", "i"], {"k": numpy.array([count])}), "top")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(("shape", "axis", "count"), [((3, 1000), 1, 1), ((700, 4), 0, 87), ((2, 5000), 1, 64)])
def test_a_few_of_many_are_the_first_of_all(dtype, largest, shape, axis, count):
    x = elements(dtype, shape, numpy.random.default_rng(count))
    whole, few = top(x, shape[axis], axis, largest), top(x, count, axis, largest)
    for backend in backends():
        with on_backend(backend):
            wanted, found = (opened("top", file)({"x": x}) for file in (whole, few))
        for name in ("y", "i"):
            first = numpy.take(numpy.asarray(wanted[name]), range(count), axis)
            assert numpy.array_equal(numpy.asarray(found[name]), first, equal_nan=first.dtype.kind == "f"), backend


def test_numbers_in_either_order():
    for x in (numpy.arange(4096, dtype="float32"), numpy.arange(4096, dtype="float32")[::-1].copy()):
        for largest in (0, 1):
            order = numpy.argsort(-x if largest else x, kind="stable")[:200]
            found = opened("top", top(x, 200, 0, largest))({"x": x})
            assert numpy.array_equal(numpy.asarray(found["i"]), order)
            assert numpy.array_equal(numpy.asarray(found["y"]), x[order])


@pytest.mark.parametrize("size", [3, 4, 9])
@pytest.mark.parametrize("axis", [0, 1])
def test_along_an_open_axis(axis, size):
    nodes = [helper.make_node("TopK", ["x", "k"], ["y", "i"], axis=axis)]
    shape = [4, 4]
    shape[axis] = "n"
    called = opened(
        "top", compile_model(networks.graph(nodes, {"x": shape}, {"y": None}, {"k": numpy.array([3])}), "top")
    )
    shape[axis] = size
    x = numpy.random.default_rng(size).standard_normal(shape).astype("float32")
    order = numpy.argsort(-x, axis, kind="stable").take(range(3), axis)
    numpy.testing.assert_array_equal(called({"x": x})["y"], numpy.take_along_axis(x, order, axis))
