"""Convolutions and pools over images (examples, channels, rows, columns), as products and maxima of shifted views."""

import vmhost.engine.numpy as np
from vmhost.engine.nn.export import graph_of
from vmhost.engine.nn.layers import uniform
from vmhost.engine.nn.module import Module


def _pair(value):
    return (value, value) if isinstance(value, int) else tuple(value)


def _shifted(x, kernel, stride, dilation=(1, 1)):
    """For each place of the kernel the view of `x` that it meets, rows first."""
    rows = (x.shape[2] - dilation[0] * (kernel[0] - 1) - 1) // stride[0] + 1
    columns = (x.shape[3] - dilation[1] * (kernel[1] - 1) - 1) // stride[1] + 1
    if rows < 1 or columns < 1:
        raise ValueError(f"images of {x.shape[2]} x {x.shape[3]} are smaller than the kernel {kernel[0]} x {kernel[1]}")
    views = []
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            top, left = i * dilation[0], j * dilation[1]
            bottom, right = top + (rows - 1) * stride[0] + 1, left + (columns - 1) * stride[1] + 1
            views.append(x[:, :, top : bottom : stride[0], left : right : stride[1]])
    return views, rows, columns


def convolution(x, weight, bias=None, stride=(1, 1), dilation=(1, 1), groups=1):
    """Of images without padding; `weight` as of Conv2d, `bias` (output,) or None."""
    out, inner, *kernel = weight.shape
    views, rows, columns = _shifted(x, kernel, stride, dilation)
    patches = np.stack(views, 2)  # examples, channels, places, rows, columns
    patches = patches.reshape(x.shape[0], groups, inner * len(views), rows * columns)
    y = weight.reshape(groups, out // groups, inner * len(views)) @ patches
    y = y.reshape(x.shape[0], out, rows, columns)
    return y if bias is None else y + bias.reshape(1, -1, 1, 1)


def pooled(x, kernel, stride, reduced):
    """`reduced` (np.max, np.mean) of each window."""
    return reduced(np.stack(_shifted(x, kernel, stride)[0]), axis=0)


class Conv2d(Module):
    """`weight` is (output, input / groups, rows, columns); groups == input channels: depthwise."""

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
        top, left = self._padding
        if top or left:
            x = np.pad(x, ((0, 0), (0, 0), (top, top), (left, left)))
        bias = self.bias if hasattr(self, "bias") else None
        return convolution(x, self.weight, bias, self._stride, self._dilation, self._groups)

    def _write(self, graph, x):
        inputs = [x, self.weight, self.bias] if hasattr(self, "bias") else [x, self.weight]
        return graph.node(
            "Conv",
            [graph.name_of(one) for one in inputs],
            self(x.value),
            kernel_shape=self.weight.shape[2:],
            strides=self._stride,
            pads=self._padding * 2,
            dilations=self._dilation,
            group=self._groups,
        )


class MaxPool2d(Module):
    _operator, _reduced = "MaxPool", staticmethod(np.max)

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
    _operator, _reduced = "AveragePool", staticmethod(np.mean)
