"""Convolutions and pooling over images (examples, channels, rows, columns)."""

import vmhost.engine.numpy as np
from vmhost.engine import _array as _a
from vmhost.engine.nn.export import graph_of
from vmhost.engine.nn.layers import uniform
from vmhost.engine.nn.module import Module

_COMPUTED = (np.float32, np.float64)  # dtypes with window kernels


def _pair(value):
    return (value, value) if isinstance(value, int) else tuple(value)


def _expect_images(x, channels=None):
    if x.ndim != 4 or channels not in (None, x.shape[1]):
        wanted = "channels" if channels is None else channels
        raise ValueError(f"expected images of shape (examples, {wanted}, rows, columns), got {x.shape}")


def _counts(x, windows):
    """The numbers of windows in a column and in a row."""
    _expect_images(x)
    height, width, *rest = windows
    kernel, (stride_h, stride_w, dilation_h, dilation_w, top, left) = (height, width), rest
    rows = (x.shape[2] + 2 * top - dilation_h * (height - 1) - 1) // stride_h + 1
    columns = (x.shape[3] + 2 * left - dilation_w * (width - 1) - 1) // stride_w + 1
    if rows < 1 or columns < 1:
        raise ValueError(f"images of {x.shape[2]} x {x.shape[3]} are smaller than the kernel {kernel[0]} x {kernel[1]}")
    return rows, columns


def convolution(x, weight, bias=None, stride=(1, 1), dilation=(1, 1), groups=1, padding=(0, 0)):
    """Convolution of zero-padded images; `weight` as in Conv2d, `bias` (output,) or None."""
    _expect_images(x, weight.shape[1] * groups)
    kind = np.result_type(x.dtype, weight.dtype)
    if kind not in _COMPUTED:
        y = convolution(x.astype("float32"), weight.astype("float32"), None, stride, dilation, groups, padding)
        y = y.astype(kind)
        return y if bias is None else y + bias.reshape(1, -1, 1, 1)
    out, inner, *kernel = weight.shape
    windows = (*kernel, *stride, *dilation, *padding)
    rows, columns = _counts(x, windows)
    if groups == out == x.shape[1] and inner == 1:
        x, weight = (one if one.dtype == kind else one.astype(kind) for one in (x, weight))
        y = _a._depthwise(x, weight, windows)
        return y if bias is None else y + bias.reshape(1, -1, 1, 1)
    if kernel == [1, 1] and (*stride, *padding) == (1, 1, 0, 0):
        patches = x.reshape(*x.shape[:2], rows * columns)
    else:
        patches = _a._patches(x if x.dtype == kind else x.astype(kind), windows)
    patch_size = inner * kernel[0] * kernel[1]
    if groups == 1:
        y = weight.reshape(out, patch_size) @ patches
    else:
        y = weight.reshape(groups, out // groups, patch_size) @ patches.reshape(
            len(x), groups, patch_size, rows * columns
        )
        y = y.reshape(len(x), out, rows * columns)
    if bias is not None:
        y = y + bias.reshape(-1, 1)
    return y.reshape(len(x), out, rows, columns)


def largest(x, windows):
    _counts(x, windows)
    return _a._max_pool(x, windows)


def average(x, windows):
    rows, columns = _counts(x, windows)
    patches = _a._patches(x, windows).reshape(*x.shape[:2], windows[0] * windows[1], rows, columns)
    return np.mean(patches, axis=2)


def pooled(x, kernel, stride, reduced):
    """Applies `reduced` (largest, average) to each window."""
    windows = (*kernel, *stride, 1, 1, 0, 0)
    if x.dtype in _COMPUTED:
        return reduced(x, windows)
    y = reduced(x.astype("float64"), windows)  # represents every value of the other dtypes
    return y.astype(x.dtype) if reduced is largest or x.dtype.kind == "f" else y


class Conv2d(Module):
    """A convolution; `weight` is (output, input / groups, rows, columns).

    in_channels, out_channels: numbers of channels. kernel_size: rows and columns, or one number for both. stride,
    padding, dilation: the same. groups: of channels that are convolved apart; as many as input channels: depthwise.
    bias: whether there is one."""

    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, groups=1, bias=True):
        super().__init__()
        if in_channels % groups or out_channels % groups:
            raise ValueError(f"groups: {groups} divides not both {in_channels} and {out_channels} channels")
        kernel = _pair(kernel_size)
        bound = (in_channels // groups * kernel[0] * kernel[1]) ** -0.5
        self.weight = uniform((out_channels, in_channels // groups, *kernel), bound)
        if bias:
            self.bias = uniform((out_channels,), bound)
        self._stride, self._padding, self._dilation, self._groups = (
            _pair(stride),
            _pair(padding),
            _pair(dilation),
            groups,
        )

    def __call__(self, x):
        if (graph := graph_of(x)) is not None:
            return self._write(graph, x)
        bias = self.bias if hasattr(self, "bias") else None
        return convolution(x, self.weight, bias, self._stride, self._dilation, self._groups, self._padding)

    def _write(self, graph, x):
        inputs = [x, self.weight, self.bias] if hasattr(self, "bias") else [x, self.weight]
        return graph.node(
            "Conv",
            [graph.name_of(one) for one in inputs],
            graph.plain(lambda: self(x.value)),
            kernel_shape=self.weight.shape[2:],
            strides=self._stride,
            pads=self._padding * 2,
            dilations=self._dilation,
            group=self._groups,
        )


class MaxPool2d(Module):
    _operator, _reduced = "MaxPool", staticmethod(largest)

    def __init__(self, kernel_size, stride=None):
        super().__init__()
        self._kernel = _pair(kernel_size)
        self._stride = self._kernel if stride is None else _pair(stride)

    def __call__(self, x):
        if (graph := graph_of(x)) is not None:
            return graph.node(
                self._operator,
                [graph.name_of(x)],
                self(x.value),
                kernel_shape=self._kernel,
                strides=self._stride,
            )
        return pooled(x, self._kernel, self._stride, self._reduced)


class AvgPool2d(MaxPool2d):
    _operator, _reduced = "AveragePool", staticmethod(average)
