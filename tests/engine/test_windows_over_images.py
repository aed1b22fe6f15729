"""Pools and convolutions over images of many sizes and dtypes, against their definitions."""

import math

import numpy
import pytest

import vmhost.engine.numpy as np
from tests.batches import each
from vmhost.engine import nn
from vmhost.engine.grad import grad

pytestmark = pytest.mark.usefixtures("backend")
WINDOWS = [((2, 2), (2, 2)), ((2, 2), (1, 1)), ((3, 2), (2, 1)), ((1, 1), (1, 1)), ((3, 3), (3, 3))]


def windows(x, kernel, stride):
    """[examples, channels, rows, columns, kernel rows, kernel columns]."""
    view = numpy.lib.stride_tricks.sliding_window_view(x, kernel, (2, 3))
    return view[:, :, :: stride[0], :: stride[1]]


def drawn(shape, dtype):
    return numpy.random.default_rng(math.prod(shape)).integers(-9, 9, shape).astype(dtype)


@each("dtype", ["float32", "float64", "float16", "int32"])
@each(("kernel", "stride"), WINDOWS)
def test_pools_by_their_definition(dtype, kernel, stride):
    for width in (3, 4, 5, 7, 8, 9, 14, 15, 16, 17, 18, 33):
        x = drawn((2, 3, 5, width), dtype)
        seen = windows(x, kernel, stride)
        largest = nn.MaxPool2d(kernel, stride)(np.asarray(x))
        assert largest.dtype == x.dtype
        assert numpy.array_equal(numpy.asarray(largest), seen.max((4, 5))), width
        mean = numpy.asarray(nn.AvgPool2d(kernel, stride)(np.asarray(x)))
        assert numpy.allclose(mean, seen.mean((4, 5), dtype="float64"), 1e-3 if dtype == "float16" else 1e-5), width


@each("dtype", ["float32", "float64"])
@each(("kernel", "stride"), WINDOWS)
def test_equals_of_a_window_share_its_gradient(dtype, kernel, stride):
    for width in (3, 4, 5, 8, 9, 16, 19):
        x = drawn((1, 2, 5, width), dtype)
        seen = windows(x, kernel, stride)
        weights = drawn(seen.shape[:4], dtype)
        chosen = seen == seen.max((4, 5), keepdims=True)
        parts = chosen * (weights[..., None, None] / chosen.sum((4, 5), keepdims=True))
        wanted = numpy.zeros_like(x)
        for row, column in numpy.ndindex(*seen.shape[2:4]):
            top, left = row * stride[0], column * stride[1]
            wanted[:, :, top : top + kernel[0], left : left + kernel[1]] += parts[:, :, row, column]
        pool = nn.MaxPool2d(kernel, stride)
        found = grad(lambda x: (pool(x) * np.asarray(weights)).sum())(np.asarray(x))
        assert numpy.allclose(numpy.asarray(found), wanted, 1e-5, 1e-5), width


def test_a_window_with_nan_gives_nan():
    x = numpy.arange(96, dtype="float32").reshape(1, 1, 4, 24)
    for place in range(24):
        x[0, 0, 1, place] = math.nan
        for kernel in ((2, 2), (3, 3)):
            found = numpy.asarray(nn.MaxPool2d(kernel, (2, 2))(np.asarray(x)))
            assert numpy.array_equal(found, windows(x, kernel, (2, 2)).max((4, 5)), equal_nan=True), place
        x[0, 0, 1, place] = 1


def test_convolutions_of_other_dtypes_have_the_dtype_of_both():
    layer = nn.Conv2d(2, 3, 3)
    assert layer(np.ones((1, 2, 4, 4), "float64")).dtype == np.float64
    layer.weight, layer.bias = layer.weight.astype("float16"), layer.bias.astype("float16")
    assert layer(np.ones((1, 2, 4, 4), "float16")).dtype == np.float16


def test_images_smaller_than_the_kernel_are_refused():
    for layer in (nn.Conv2d(1, 1, 3), nn.MaxPool2d(3), nn.AvgPool2d(3)):
        with pytest.raises(ValueError, match="images of 2 x 9 are smaller than the kernel 3 x 3"):
            layer(np.ones((1, 1, 2, 9), "float32"))
