"""Resize of images of integers, beside ONNX Runtime."""

import numpy
import pytest
from onnx import helper, numpy_helper

from tests import networks
from vmhost.engine.models import opened
from vmhost.engine.onnx import compile_model

RANDOM = numpy.random.default_rng(5)


def model(x, scales, shape=None, **attributes):
    """Resize by these scales; `shape` of the input, where sizes are open."""
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], **attributes)
    element = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        [node],
        "resize",
        [helper.make_tensor_value_info("x", element, shape or x.shape)],
        [helper.make_tensor_value_info("y", element, [f"y{d}" for d in range(x.ndim)])],
        [numpy_helper.from_array(numpy.float32(scales), "scales")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=8).SerializeToString()


def by_engine(data, x):
    return numpy.asarray(opened("resize", compile_model(data, "resize"))({"x": x})["y"])


def resized(x, *arguments, **attributes):
    """(ours, ONNX Runtime's) of such a model."""
    data = model(x, *arguments, **attributes)
    [theirs] = networks.by_onnx_runtime(data, [x])
    return by_engine(data, x), theirs


def image(dtype, *shape):
    low, high = (-128, 128) if dtype == "int8" else (0, 256)
    return RANDOM.integers(low, high, shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32"])
@pytest.mark.parametrize("where", ["half_pixel", "asymmetric"])
@pytest.mark.parametrize("scales", [(1, 1, 2, 2), (1, 1, 0.5, 4), (1, 1, 1.37, 0.61)])
def test_integers_lose_their_fraction(dtype, where, scales):
    ours, theirs = resized(image(dtype, 2, 3, 9, 10), scales, mode="linear", coordinate_transformation_mode=where)
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
    apart = numpy.abs(ours.astype(int) - theirs)
    assert apart.max() <= (scales[2] == 1.37)  # where sums come to whole numbers but for their last digits
    assert (apart > 0).mean() < 0.05


@pytest.mark.parametrize(("mode", "bound"), [("linear", 1), ("cubic", 8)])
def test_antialias_rounds(mode, bound):
    """ONNX Runtime rounds and bounds behind each dimension; cutting off would be 0.5 below in the mean."""
    ours, theirs = resized(image("uint8", 1, 3, 32, 32), (1, 1, 0.5, 0.5), mode=mode, antialias=1)
    apart = ours.astype(int) - theirs
    assert numpy.abs(apart).max() <= bound and abs(apart.mean()) < 0.2


def test_cubic_stays_within_the_dtype():
    """ONNX Runtime has it for floats only."""
    x = numpy.where(numpy.arange(8) % 4 < 2, 0, 255).astype("uint8").reshape(1, 1, 1, 8)
    _, theirs = resized(x.astype("float32"), (1, 1, 1, 2), mode="cubic")
    ours = by_engine(model(x, (1, 1, 1, 2), mode="cubic"), x)
    numpy.testing.assert_array_equal(ours, numpy.clip(theirs, 0, 255).astype("uint8"))
    assert theirs.max() > 255 and theirs.min() < 0


def test_open_sizes():
    ours, theirs = resized(image("uint8", 1, 3, 12, 20), (1, 1, 2, 0.5), (1, 3, "height", "width"), mode="linear")
    numpy.testing.assert_array_equal(ours, theirs)


def test_a_scale_times_a_size_is_that_of_float32():
    """10 * 1.3 is 13 in float32, but not in float64."""
    ours, theirs = resized(image("uint8", 1, 1, 10, 10).astype("float32"), (1, 1, 1.3, 1.3), mode="nearest")
    assert ours.shape == theirs.shape == (1, 1, 13, 13)
