"""Windows over any number of dimensions and any dtype, for cases that the engine's image operators (two dimensions,
float32) do not cover directly.

One dimension becomes two, the first of size 1. A convolution in three dimensions is a sum of two-dimensional ones, one
for each position in depth. Pools are maxima or sums of strided views, one dimension after the other."""

import itertools
import math

import numpy

from .lowering import Lowering
from .readers import Unsupported
from .sizes import is_open


class Window:
    """A node's window: kernel, strides, dilations and explicit padding for each dimension; `result_sizes` are the
    result's."""

    def __init__(self, reader, node, kernel):
        rank = len(kernel)
        self.kernel, self.strides, self.dilations = (
            tuple(kernel),
            tuple(node.get("strides", (1,) * rank)),
            tuple(node.get("dilations", (1,) * rank)),
        )
        pads, automatic = node.get("pads", (0,) * (2 * rank)), node.get("auto_pad", "NOTSET")
        if node.op == "Conv" and automatic in ("NOTSET", "VALID"):
            pads, automatic = self._absorb_padding(reader, node, pads if automatic == "NOTSET" else (0,) * (2 * rank))
        self.sizes = tuple(reader.shape(node.inputs[0])[2:])
        if any(is_open(size) for size in self.sizes):
            if automatic in ("SAME_UPPER", "SAME_LOWER") and any(stride > 1 for stride in self.strides):
                self._pad_operand(reader, node, automatic)
                pads, automatic = (0,) * (2 * rank), "NOTSET"
            self._pad_for_open_sizes(node, pads, automatic)
            return
        self.result_sizes = tuple(reader.inferred_shape(node.output)[2:])
        self.before, self.after, self.uncounted = [], [], []
        for d in range(rank):
            needed = (self.result_sizes[d] - 1) * self.strides[d] + self.dilations[d] * (kernel[d] - 1) + 1
            before, after = (pads[d], pads[rank + d]) if automatic == "NOTSET" else (0, 0)
            if automatic in ("SAME_UPPER", "SAME_LOWER"):
                padding = max(0, needed - self.sizes[d])
                before = padding // 2 if automatic == "SAME_UPPER" else padding - padding // 2
                after = padding - before
            end_padding = max(
                after, needed - self.sizes[d] - before
            )  # ceil_mode adds padding, which averages never count
            self.before.append(before)
            self.after.append(end_padding)
            self.uncounted.append(end_padding - after)

    def _absorb_padding(self, reader, node, pads):
        """If a Pad of zeros made the convolution's operand, reads what it padded instead, and adds its widths to the
        explicit padding, provided that the engine's convolution supports the sum."""
        inner, before, after = reader.borders.get(node.inputs[0], (None, (), ()))
        widths = [explicit + border for explicit, border in zip(pads, (*before[2:], *after[2:]))]
        reaches = [dilation * (taps - 1) for dilation, taps in zip(self.dilations, self.kernel)]
        if (
            inner
            and not any((*before[:2], *after[:2]))
            and all(0 <= width <= reach for width, reach in zip(widths, reaches * 2))
        ):
            node.inputs[0], pads = inner, widths
        return pads, "NOTSET"

    def _pad_for_open_sizes(self, node, pads, automatic):
        """Sets padding and result sizes for open sizes: the padding is the same at all of them."""
        rank, rounds_up = len(self.kernel), node.get("ceil_mode", 0)
        self.before, self.after, self.uncounted, result = [], [], [], []
        for d, (size, stride) in enumerate(zip(self.sizes, self.strides)):
            reach = self.dilations[d] * (self.kernel[d] - 1)
            before, after = (pads[d], pads[rank + d]) if automatic == "NOTSET" else (0, 0)
            if automatic in ("SAME_UPPER", "SAME_LOWER"):
                before = reach // 2 if automatic == "SAME_UPPER" else reach - reach // 2
                after = reach - before
            extra = stride - 1 if rounds_up else 0
            if extra > reach - after:
                raise Unsupported("rounds up over an open size, and its windows could begin behind the end")
            self.before.append(before)
            self.after.append(after + extra)
            self.uncounted.append(extra)
            result.append((size + before + after + extra - reach - 1) // stride + 1)
        self.result_sizes = tuple(result)

    def _pad_operand(self, reader, node, automatic):
        """Replaces the node's operand by a padded view whose border depends on the size as the strides require; it is
        part of a tensor padded for the worst case."""
        if node.op not in ("Conv", "MaxPool"):
            raise Unsupported(f"has auto_pad {automatic} and strides over an open size")
        add, x = Lowering(reader, node), node.inputs[0]
        value = lowest(add.dtype(x)) if node.op == "MaxPool" else 0
        for d, (size, stride) in enumerate(zip(self.sizes, self.strides)):
            reach, rank = self.dilations[d] * (self.kernel[d] - 1), len(self.sizes) + 2
            if reach + 1 < stride:
                raise Unsupported(f"has auto_pad {automatic} and strides longer than its windows over an open size")
            needed = ((size + stride - 1) // stride - 1) * stride + reach + 1
            before = (needed - size) // 2 if automatic == "SAME_UPPER" else (needed - size + 1) // 2
            front = (reach + 1) // 2
            padded = add.padded(
                x,
                [front if axis == d + 2 else 0 for axis in range(rank)],
                [reach if axis == d + 2 else 0 for axis in range(rank)],
                value,
            )
            x = add.part(padded, d + 2, front - before, front - before + needed)
        node.inputs[0], self.sizes = x, tuple(add.shape(x)[2:])

    def parameters(self, groups=1):
        """The 11 parameters of a two-dimensional image operator."""
        return (*self.kernel, *self.strides, *self.before, *self.after, *self.dilations, groups)


def two_dimensional(reader, node, window):
    """The node's operand with two dimensions; extends a one-dimensional window likewise."""
    x = node.inputs[0]
    if len(window.kernel) == 2:
        return x
    add = Lowering(reader, node)
    for name in ("kernel", "strides", "dilations", "result_sizes", "sizes"):
        setattr(window, name, (1, *getattr(window, name)))
    for name in ("before", "after", "uncounted"):
        setattr(window, name, [0, *getattr(window, name)])
    return add.reshape(x, (*add.shape(x)[:2], 1, add.shape(x)[2]))


def _tap_view(add, source, window, d, tap, axis):
    """The view of the elements along one dimension that the windows see at position `tap`."""
    first = tap * window.dilations[d]
    return add.part(
        source, axis, first, first + (window.result_sizes[d] - 1) * window.strides[d] + 1, window.strides[d]
    )


def _padded(add, x, window, value):
    return add.padded(x, (0, 0, *window.before), (0, 0, *window.after), value)


def _reduced(add, operation, result, window):
    """Reduces each window by a binary operation, one dimension after the other."""
    for d in range(len(window.kernel)):
        slices = [_tap_view(add, result, window, d, tap, d + 2) for tap in range(window.kernel[d])]
        result = slices[0]
        for part in slices[1:]:
            result = add.do(operation, result, part)
    return result


def lowest(dtype):
    return -math.inf if dtype.kind == "f" else numpy.iinfo(dtype).min


def largest(reader, node, window):
    """The maxima of all windows, for more than two dimensions or other dtypes than float32."""
    add, x = Lowering(reader, node), node.inputs[0]
    return _reduced(add, "maximum", _padded(add, x, window, lowest(add.dtype(x))), window)


def indices_of_largest(reader, node, window):
    """The index in the operand of each window's first maximum, in ONNX's numbering: over the whole tensor, column-major
    with storage_order."""
    add, x = Lowering(reader, node), node.inputs[0]
    shape = add.shape(x)
    order = range(len(window.sizes))[::-1] if node.get("storage_order", 0) else range(len(window.sizes))
    inner = (
        numpy.arange(math.prod(window.sizes)).reshape([window.sizes[d] for d in order]).transpose(numpy.argsort(order))
    )
    outer = numpy.arange(shape[0] * shape[1]).reshape((*shape[:2], *(1,) * len(window.sizes))) * math.prod(window.sizes)
    numbers = numpy.pad(inner + outer, [(0, 0), (0, 0), *zip(window.before, window.after)])
    source, best, best_indices = _padded(add, x, window, lowest(add.dtype(x))), None, None
    for taps in itertools.product(*map(range, window.kernel)):
        part, slices = source, [slice(None)] * 2
        for d, tap in enumerate(taps):
            part = _tap_view(add, part, window, d, tap, d + 2)
            first = tap * window.dilations[d]
            slices.append(slice(first, first + (window.result_sizes[d] - 1) * window.strides[d] + 1, window.strides[d]))
        part_indices = add.constant(numpy.ascontiguousarray(numbers[tuple(slices)]), numpy.int64)
        if best is None:
            best, best_indices = part, part_indices
        else:
            better = add.do("greater", part, best)
            best, best_indices = add.where(better, part, best), add.where(better, part_indices, best_indices)
    return best_indices


def sums(add, x, window):
    """The sums of all windows, in the operand's dtype."""
    return _reduced(add, "add", _padded(add, x, window, 0), window)


def counts(window, padding):
    """The number of elements in each window, in the result's shape; with `padding`, explicit padding counts."""
    result = numpy.ones((1,) * len(window.kernel))
    for d, size in enumerate(window.sizes):
        first, end = (-window.before[d], size + window.after[d] - window.uncounted[d]) if padding else (0, size)
        positions = (
            numpy.arange(window.result_sizes[d])[:, None] * window.strides[d]
            - window.before[d]
            + numpy.arange(window.kernel[d]) * window.dilations[d]
        )
        valid = ((positions >= first) & (positions < end)).sum(1)
        result = result * valid.reshape([-1 if e == d else 1 for e in range(len(window.kernel))])
    return numpy.maximum(result, 1)


def averages(reader, node, window):
    add = Lowering(reader, node)
    return add.do("divide", sums(add, node.inputs[0], window), counts(window, node.get("count_include_pad", 0)))


# ---- convolutions of float32 with constant weights
def convolved(add, x, weights, bias, window, groups):
    """Convolves `x` [n, channels, ...] with the array `weights` in one to three dimensions; `bias` is an array or None.
    Negative padding crops."""
    rank, outputs = weights.ndim - 2, len(weights)
    before, after = list(window.before), list(window.after)
    for d in range(rank):
        if not _pads_within(window, d, weights.shape[d + 2]):
            x = add.padded(
                x,
                [before[d] if e == d + 2 else 0 for e in range(rank + 2)],
                [after[d] if e == d + 2 else 0 for e in range(rank + 2)],
                0,
            )
            before[d] = after[d] = 0
    x_shape = add.shape(x)
    if rank == 3:
        return _convolved_3d(add, x, weights, bias, window, groups, before, after)
    if rank == 1:
        x, weights = add.reshape(x, (*x_shape[:2], 1, x_shape[2])), weights[:, :, None]
    leading_zeros = (0,) * (2 - rank)
    parameters = (
        *weights.shape[2:],
        *(1,) * (2 - rank),
        *window.strides,
        *leading_zeros,
        *before,
        *leading_zeros,
        *after,
        *(1,) * (2 - rank),
        *window.dilations,
        groups,
    )
    names = [add.constant(weights, "float32"), None if bias is None else add.constant(bias, "float32")]
    shape = (x_shape[0], outputs, *(1,) * (2 - rank), *window.result_sizes)
    result = add.reader.add_layer(
        "Conv", add.node, [x, *names, None], shape, output=add.fresh("convolution"), window=parameters
    )
    return result if rank == 2 else add.reshape(result, (x_shape[0], outputs, *window.result_sizes))


def _pads_within(window, d, taps):
    """Whether the engine's convolution supports this padding: smaller than the window."""
    reach = window.dilations[d] * (taps - 1)
    return 0 <= window.before[d] <= reach and 0 <= window.after[d] <= reach


def pads_within(window):
    return all(_pads_within(window, d, taps) for d, taps in enumerate(window.kernel))


def _convolved_3d(add, x, weights, bias, window, groups, before, after):
    """Three dimensions: merges depth into the batch."""
    x = add.padded(x, (0, 0, before[0], 0, 0), (0, 0, after[0], 0, 0), 0)
    n, channels, _, height, width = add.shape(x)
    flat, total = Flat(window, before, after), None
    for tap in range(weights.shape[2]):
        part = add.transpose(_tap_view(add, x, window, 0, tap, 2), (0, 2, 1, 3, 4))
        images = add.reshape(part, (n * window.result_sizes[0], channels, height, width))
        result = convolved(add, images, weights[:, :, tap], bias if tap == 0 else None, flat, groups)
        total = result if total is None else add.do("add", total, result)
    return add.transpose(
        add.reshape(total, (n, window.result_sizes[0], len(weights), *window.result_sizes[1:])), (0, 2, 1, 3, 4)
    )


def trim_taps(window, weights):
    """Removes outer taps that only ever see padding, as with dilations on small images, from the weights and the
    window's padding."""
    kernel = list(window.kernel)
    for d, (size, count) in enumerate(zip(window.sizes, window.result_sizes)):
        if is_open(size) or is_open(count):
            continue
        dilation, stride, before = window.dilations[d], window.strides[d], window.before[d]
        positions = numpy.arange(count)[:, None] * stride + numpy.arange(window.kernel[d]) * dilation - before
        used_taps = numpy.flatnonzero(((positions >= 0) & (positions < size)).any(0))
        if len(used_taps) and len(used_taps) < window.kernel[d]:
            first, last = int(used_taps[0]), int(used_taps[-1])
            window.before[d] -= first * dilation
            window.after[d] -= (window.kernel[d] - 1 - last) * dilation
            kernel[d] = last + 1 - first
            weights = weights.take(range(first, last + 1), d + 2)
    window.kernel = tuple(kernel)
    return weights


class Flat:
    """A three-dimensional window without its first dimension."""

    def __init__(self, window, before, after):
        self.strides, self.dilations, self.result_sizes = (
            window.strides[1:],
            window.dilations[1:],
            window.result_sizes[1:],
        )
        self.before, self.after = before[1:], after[1:]
