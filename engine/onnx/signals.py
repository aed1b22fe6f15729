"""Readers of ONNX's signal operators: Fourier transforms, short-time transforms, and window functions."""

import copy
import math

import numpy

from . import sizes
from .lowering import Lowering
from .readers import Unsupported, reads
from .sampling import floats_for
from .tensor_operators import numbers_of, product

_FORWARD, _BACKWARD, _REAL_FORWARD, _REAL_BACKWARD = range(4)
_MAX_DIRECT_LENGTH = 512  # longest frame for which a product with sines is as fast as an FFT


def _transformed(add, x, kind, count):
    """Transforms rows [any …, n, 1 or 2] to rows of `count` elements."""
    shape = (*add.shape(x)[:-2], count, 1 if kind == _REAL_BACKWARD else 2)
    return add.reader.add_layer("Fourier", add.node, [x], shape, output=add.fresh("fourier"), parameters=(kind,))


def _fitted(add, x, axis, count):
    """Crops or zero-pads the axis to `count` elements."""
    size, rank = add.shape(x)[axis], len(add.shape(x))
    return x if size == count else add.padded(x, [0] * rank, [count - size if d == axis else 0 for d in range(rank)], 0)


def _complex(add, x):
    last = len(add.shape(x)) - 1
    return x if add.shape(x)[last] == 2 else add.padded(x, [0] * (last + 1), [0] * last + [1], 0)


def _spectrum(add, x, length, inverse, onesided):
    """The spectrum along the second to last dimension, of `length` elements."""
    axis = len(add.shape(x)) - 2
    if inverse and onesided:
        return _transformed(add, _complex(add, _fitted(add, x, axis, length // 2 + 1)), _REAL_BACKWARD, length)
    x = _fitted(add, x, axis, length)
    if add.shape(x)[-1] == 1 and not inverse:
        half = _transformed(add, x, _REAL_FORWARD, length // 2 + 1)
        if onesided or length < 3:
            return half
        signs = add.constant(numpy.array([1, -1]), add.dtype(x))
        return add.joined([half, add.do("multiply", add.part(half, axis, (length - 1) // 2, 0, -1), signs)], axis)
    result = _transformed(add, _complex(add, x), _BACKWARD if inverse else _FORWARD, length)
    return add.part(result, axis, 0, length // 2 + 1) if onesided else result


@reads("DFT")
def transform(reader, node):
    add, x = Lowering(reader, node), node.inputs[0]
    rank, dtype = len(add.shape(x)), add.dtype(x)
    if add.shape(x)[-1] not in (1, 2):
        raise Unsupported(f"has numbers of {add.shape(x)[-1]} parts, expected 1 or 2")
    axis = node.get("axis", 1) if node.opset < 20 else (numbers_of(reader, node, 2, "axis") or [-2])[0]
    axis, inverse, onesided = axis % rank, node.get("inverse", 0), node.get("onesided", 0)
    if axis == rank - 1:
        raise Unsupported("transforms along the dimension of real and imaginary parts")
    lengths = numbers_of(reader, node, 1, "dft_length")
    axis_size = add.shape(x)[axis]
    length = lengths[0] if lengths else 2 * (axis_size - 1) if inverse and onesided else axis_size
    if length < 1:
        raise Unsupported(f"has the dft_length {length}, expected at least 1")
    order = [*(d for d in range(rank) if d not in (axis, rank - 1)), axis, rank - 1]
    rows = add.transpose(add.cast(x, floats_for(add, x)), order)
    result = add.transpose(_spectrum(add, rows, length, inverse, onesided), [order.index(d) for d in range(rank)])
    add.done(add.cast(result, dtype))


def _sines(window, bins):
    """The transform's matrix with the window applied: [bins * 2, elements of a frame]."""
    indices = numpy.arange(len(window), dtype=numpy.float64)
    angles = numpy.outer(numpy.arange(bins), indices) % len(window) * (-2 * math.pi / len(window))
    return (numpy.stack([numpy.cos(angles), numpy.sin(angles)], 1) * window).reshape(2 * bins, -1)


@reads("STFT")
def transform_of_frames(reader, node):
    add, (x, _, window) = Lowering(reader, node), (*node.inputs, None)[:3]
    signal_shape, dtype = add.shape(x), add.dtype(x)
    if len(signal_shape) == 2:
        x, signal_shape = add.reshape(x, (*signal_shape, 1)), (*signal_shape, 1)
    if len(signal_shape) != 3 or signal_shape[2] not in (1, 2):
        raise Unsupported(f"has a signal of the shape {signal_shape}, expected [batch, length, 1 or 2]")
    [step], lengths = numbers_of(reader, node, 1, "frame_step"), numbers_of(reader, node, 3, "frame_length")
    onesided = node.get("onesided", 1) and signal_shape[2] == 1
    length = lengths[0] if lengths else add.shape(window)[0] if window else signal_shape[1]
    if step < 1 or length < 1 or length > signal_shape[1] or (window and add.shape(window) != (length,)):
        raise Unsupported(f"has frames of {length} numbers, {step} apart, of a signal of {signal_shape[1]}")
    add.network.need_within(x, 1, 0, length - 1)
    count, bins, compute_dtype = (
        (signal_shape[1] - length) // step + 1,
        length // 2 + 1 if onesided else length,
        floats_for(add, x),
    )
    x = add.cast(x, compute_dtype)
    if not add.network.is_dense(x):
        x = add.copy(x)
    view, shape = add.network.as_view(x), (signal_shape[0], count, length, signal_shape[2])
    strides = (view.strides[0], step * view.strides[1], *view.strides[1:])
    frames = add.network.view(add.fresh("frames"), x, shape, strides, view.offset)
    values = numpy.ones(length) if window is None else reader.constant(window)
    if (
        values is not None
        and signal_shape[2] == 1
        and compute_dtype == numpy.float32
        and not sizes.is_open(length)
        and length <= _MAX_DIRECT_LENGTH
    ):
        rows = add.reshape(frames, (signal_shape[0] * count, length))
        result = add.fresh("spectrum")
        renamed = _with_output(node, result)
        product(reader, renamed, rows, _sines(values.astype("float64"), bins), None, (signal_shape[0], count, bins, 2))
    else:
        if window is not None:
            frames = add.do("multiply", frames, add.reshape(add.cast(window, compute_dtype), (length, 1)))
        result = _spectrum(add, frames, length, False, onesided)
    add.done(add.cast(result, dtype))


def _with_output(node, output):
    other = copy.copy(node)
    other.outputs = [output]
    return other


_WINDOWS = {
    "HannWindow": (0.5, -0.5, 0.0),
    "HammingWindow": (25 / 46, -21 / 46, 0.0),
    "BlackmanWindow": (0.42, -0.5, 0.08),
}


@reads(*_WINDOWS)
def window(reader, node):
    """A sum of cosines, for a size that is not constant: the reader evaluates the others itself."""
    from onnx import helper

    add, [size] = Lowering(reader, node), numbers_of(reader, node, 0, "size")
    dtype = numpy.dtype(helper.tensor_dtype_to_np_dtype(node.get("output_datatype", 1)))
    period = size if node.get("periodic", 1) else size - 1
    index = add.cast(add.arange(size), numpy.float64)
    period = add.cast(add.constant(period, numpy.int64), numpy.float64)
    angles = add.do("divide", add.do("multiply", index, 2 * math.pi), period)
    a0, a1, a2 = _WINDOWS[node.op]
    result = add.do("add", add.do("multiply", add.do("cos", angles), a1), a0)
    if a2:
        result = add.do("add", result, add.do("multiply", add.do("cos", add.do("multiply", angles, 2.0)), a2))
    add.done(add.cast(result, dtype))


@reads("MelWeightMatrix")
def mel_weights(reader, node):
    """The reader evaluates the node itself if its operands are constant and not too large; others are not supported."""
    raise Unsupported("has numbers of filters or frequencies that are computed at run time or exceed a million")
