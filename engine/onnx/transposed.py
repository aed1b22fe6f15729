"""Transposed convolutions of float32 with constant weights, in one to three dimensions, without products by the zeros
between the operand's elements: each phase of the strides is a convolution of its own, or one convolution makes all
phases as channels."""

import itertools
import math

import numpy

from .lowering import Lowering
from .readers import Unsupported
from .sizes import at_least, is_open
from .windows import convolved

_PHASES = 64  # maximum of the strides' product
_VECTOR = 16  # channels that the engine's convolution computes at once


class TransposedWindow:
    """A transposed convolution as a window over its operand spread out by the strides: stride 1, complementary
    padding."""

    def __init__(self, reader, node, kernel, sizes):
        rank = len(kernel)
        strides, self.dilations = node.get("strides", (1,) * rank), tuple(node.get("dilations", (1,) * rank))
        output_padding, pads = node.get("output_padding", (0,) * rank), node.get("pads", (0,) * (2 * rank))
        automatic, shape = node.get("auto_pad", "NOTSET"), node.get("output_shape")
        self.strides, self.result_sizes, self.before, self.after = (1,) * rank, [], [], []
        for d in range(rank):
            reach = self.dilations[d] * (kernel[d] - 1)
            spread = (sizes[d] - 1) * strides[d] + 1
            begin, end = pads[d], pads[rank + d]
            if shape is not None or automatic in ("SAME_UPPER", "SAME_LOWER"):
                target_size = shape[-rank + d] if shape is not None else sizes[d] * strides[d]
                excess = spread + reach + output_padding[d] - target_size
                cropped = max(0, excess)  # missing elements are added at the end
                begin = cropped // 2 if automatic == "SAME_UPPER" else cropped - cropped // 2
                end = excess - begin
            self.before.append(reach - begin)
            self.after.append(reach - end + output_padding[d])
            self.result_sizes.append(spread + reach + output_padding[d] - begin - end)


def spread_out(add, x, strides):
    """Inserts stride - 1 zeros after each element in each dimension."""
    for d, stride in enumerate(strides, 2):
        if stride > 1:
            shape = add.shape(x)
            blocks = add.empty((*shape[: d + 1], stride, *shape[d + 1 :]), add.dtype(x))
            add.put(add.part(blocks, d + 1, 0, 1), add.reshape(x, (*shape[: d + 1], 1, *shape[d + 1 :])))
            add.put(add.part(blocks, d + 1, 1, stride), 0)
            x = add.reshape(blocks, (*shape[:d], shape[d] * stride, *shape[d + 1 :]))
    return x


class Phase:
    """One phase of a transposed convolution: a window of stride 1 over the original operand that computes every
    stride-th row and column of the result from `offset` on. `taps` are the indices of its weights in the operand's
    order; None if there are none, or if they read only padding."""

    def __init__(self, window, strides, sizes, kernel, offset):
        self.strides, self.dilations, self.taps = (1,) * len(kernel), [], []
        self.result_sizes, self.before, self.after = [], [], []
        for d, (stride, dilation, first) in enumerate(zip(strides, window.dilations, offset)):
            begin = dilation * (kernel[d] - 1) - window.before[d]  # padding of the transposed convolution
            taps = [tap for tap in range(kernel[d]) if (first + begin - tap * dilation) % stride == 0][::-1]
            if not taps:
                self.taps = None
                return
            step = dilation // math.gcd(stride, dilation)
            count = -(-(window.result_sizes[d] - first) // stride)
            before = -((first + begin - taps[0] * dilation) // stride)
            self.taps.append(taps)
            self.dilations.append(step)
            self.result_sizes.append(count)
            self.before.append(before)
            self.after.append(count + step * (len(taps) - 1) - sizes[d] - before)
            if (
                is_open(self.after[-1])
                or (at_least(sizes[d] + min(0, before, self.after[-1], before + self.after[-1]), 1) or 0) < 1
            ):
                self.taps = None
                return


def transposed(reader, node, weights, bias):
    """The name of the result."""
    add, x = Lowering(reader, node), node.inputs[0]
    rank, groups = weights.ndim - 2, node.get("group", 1)
    if rank > 3:
        raise Unsupported(f"has {rank} dimensions, expected 3 at most")
    strides = tuple(node.get("strides", (1,) * rank))
    window = TransposedWindow(reader, node, weights.shape[2:], add.shape(x)[2:])
    swapped = numpy.concatenate([numpy.swapaxes(part, 0, 1) for part in numpy.split(weights, groups)])
    if 1 < math.prod(strides) <= _PHASES:
        for algorithm in (_few_channels, _in_phases, _as_channels):
            result = algorithm(add, x, swapped, bias, window, strides, groups)
            if result is not None:
                return result
    window.after = [after - stride + 1 for after, stride in zip(window.after, strides)]
    mirrored = swapped[(slice(None), slice(None), *(slice(None, None, -1),) * rank)]
    return convolved(add, spread_out(add, x, strides), numpy.ascontiguousarray(mirrored), bias, window, groups)


def _cropped_before(window, kernel):
    """The rows and columns that the transposed convolution's padding cuts off before the result."""
    return [dilation * (k - 1) - before for dilation, k, before in zip(window.dilations, kernel, window.before)]


class _AllPositions:
    """A window of stride 1 and `taps`, at all positions at which one of its taps reads an element."""

    def __init__(self, sizes, taps):
        self.strides = self.dilations = (1,) * len(taps)
        self.before = self.after = [tap - 1 for tap in taps]
        self.result_sizes = [size + tap - 1 for size, tap in zip(sizes, taps)]


def _few_channels(add, x, swapped, bias, window, strides, groups):
    """`_as_channels`, if it takes less than half of the vectors that a convolution per phase would."""
    phases, outputs = math.prod(strides), len(swapped)
    if 2 * -(-outputs * phases // _VECTOR) >= phases * -(-outputs // _VECTOR):
        return None
    return _as_channels(add, x, swapped, bias, window, strides, groups)


def _as_channels(add, x, swapped, bias, window, strides, groups):
    """One convolution that makes all phases as channels; its result is rearranged and cut. None for groups and
    dilations."""
    outputs, channels, *kernel = swapped.shape
    rank, phases, sizes, begins = len(kernel), math.prod(strides), add.shape(x)[2:], _cropped_before(window, kernel)
    if groups > 1 or max(window.dilations) > 1 or min(begins) < 0:
        return None
    excess = [
        begin + result_size - size * stride
        for begin, result_size, size, stride in zip(begins, window.result_sizes, sizes, strides)
    ]
    if any(map(is_open, excess)):
        return None
    taps = [max(1, -(-k // stride), 1 - -extra // stride) for k, stride, extra in zip(kernel, strides, excess)]
    padded = numpy.zeros((outputs, channels, *(tap * stride for tap, stride in zip(taps, strides))), "float32")
    padded[(slice(None), slice(None), *map(slice, kernel))] = swapped
    split = padded.reshape(outputs, channels, *itertools.chain.from_iterable(zip(taps, strides)))
    split = split[(slice(None), slice(None), *(slice(None, None, -1), slice(None)) * rank)]  # the last tap reads first
    split = split.transpose(*range(3, 2 * rank + 2, 2), 0, 1, *range(2, 2 * rank + 2, 2))
    weights = numpy.ascontiguousarray(split.reshape(phases * outputs, channels, *taps))
    biases = None if bias is None else numpy.tile(bias, phases)
    result = convolved(add, x, weights, biases, _AllPositions(sizes, taps), 1)
    count, _, *blocks = add.shape(result)
    result = add.reshape(result, (count, *strides, outputs, *blocks))
    order = itertools.chain.from_iterable((rank + 2 + d, d + 1) for d in range(rank))
    result = add.transpose(result, (0, rank + 1, *order))
    result = add.reshape(result, (count, outputs, *(block * stride for block, stride in zip(blocks, strides))))
    for d, (begin, size) in enumerate(zip(begins, window.result_sizes)):
        result = add.part(result, d + 2, begin, begin + size)
    return result


def _in_phases(add, x, swapped, bias, window, strides, groups):
    """One convolution for each phase, with interleaved results; None for phases without weights."""
    rank, sizes, result_sizes = len(strides), add.shape(x)[2:], tuple(window.result_sizes)
    if any(
        at_least(size - stride, 1) is None or at_least(size - stride, 1) < 0
        for size, stride in zip(result_sizes, strides)
    ):
        return None
    offsets = list(itertools.product(*map(range, strides)))
    phases = {offset: Phase(window, strides, sizes, swapped.shape[2:], offset) for offset in offsets}
    if any(phase.taps is None for phase in phases.values()):
        return None
    images = {}
    for offset, phase in phases.items():
        weights = swapped
        for d, taps in enumerate(phase.taps):
            weights = weights.take(taps, d + 2)
        images[offset] = _as_images(add, convolved(add, x, weights, bias, phase, groups))
    if rank < 3:
        return _of_images(add, _interleaved(add, list(images.values()), (1, *strides)[-2:], result_sizes), result_sizes)
    result = add.empty((add.shape(x)[0], len(swapped), *result_sizes), numpy.float32)
    for first in range(strides[0]):
        plane_images = [images[offset] for offset in offsets if offset[0] == first]
        part_sizes = -(-(result_sizes[0] - first) // strides[0]), *result_sizes[1:]
        part = add.part(result, 2, first, first + (part_sizes[0] - 1) * strides[0] + 1, strides[0])
        add.put(part, _of_images(add, _interleaved(add, plane_images, strides[1:], part_sizes), part_sizes))
    return result


def _as_images(add, name):
    """The tensor as two-dimensional images: one dimension gets another of size 1; of three, depth joins the batch."""
    count, channels, *sizes = add.shape(name)
    if len(sizes) == 3:
        name = add.transpose(name, (0, 2, 1, 3, 4))
        return add.reshape(name, (count * sizes[0], channels, *sizes[1:]))
    return name if len(sizes) == 2 else add.reshape(name, (count, channels, 1, *sizes))


def _of_images(add, name, sizes):
    """The inverse of _as_images."""
    count, channels, *image_sizes = add.shape(name)
    if len(sizes) == 3:
        name = add.reshape(name, (count // sizes[0], sizes[0], channels, *image_sizes))
        return add.transpose(name, (0, 2, 1, 3, 4))
    return name if len(sizes) == 2 else add.reshape(name, (count, channels, *sizes))


def _interleaved(add, images, strides, sizes):
    if len(images) == 1:
        return images[0]
    count, channels, *_ = add.shape(images[0])
    shape = (count, channels, *(1, *sizes)[-2:])
    parameters = (1, 1, *strides, 0, 0, 0, 0, 1, 1, 1)
    return add.reader.add_layer("Interleave", add.node, images, shape, output=add.fresh("whole"), window=parameters)
