"""An ONNX network of bench/networks.py as a torch module: one torch call per node. Supports the operators of these
networks."""

import numpy
import torch
from onnx import helper, load, numpy_helper
from torch.nn import functional


def _pads(attributes):
    """The padding, which torch requires to be the same on all sides."""
    [pad] = set(attributes.get("pads", [0]))
    return pad


def _convolution(x, weights, bias=None, *, attributes):
    return functional.conv2d(
        x, weights, bias, attributes["strides"], _pads(attributes), groups=attributes.get("group", 1)
    )


def _pool(x, *, attributes):
    return functional.max_pool2d(
        x,
        attributes["kernel_shape"],
        attributes["strides"],
        _pads(attributes),
        ceil_mode=bool(attributes.get("ceil_mode", 0)),
    )


def _norm(x, *parameters, attributes):
    weight, bias, mean, variance = parameters
    return functional.batch_norm(x, mean, variance, weight, bias, eps=attributes.get("epsilon", 1e-5))


def _layer_norm(x, weight, bias, *, attributes):
    return functional.layer_norm(x, weight.shape, weight, bias, attributes["epsilon"])


def _gemm(x, weights, bias, *, attributes):
    return functional.linear(x, weights if attributes.get("transB", 0) else weights.T, bias)


def _bounded(x, low, high, *, attributes):
    return torch.clamp(x, float(low), float(high))


def _mean(x, *axes, attributes):
    return x.mean(attributes["axes"], keepdim=bool(attributes.get("keepdims", 1)))


CALLS = {
    "Conv": _convolution,
    "MaxPool": _pool,
    "BatchNormalization": _norm,
    "LayerNormalization": _layer_norm,
    "Gemm": _gemm,
    "Clip": _bounded,
    "ReduceMean": _mean,
    "Relu": lambda x, **_: torch.relu(x),
    "Sigmoid": lambda x, **_: torch.sigmoid(x),
    "Erf": lambda x, **_: torch.erf(x),
    "Sqrt": lambda x, **_: torch.sqrt(x),
    "Dropout": lambda x, *_, **__: x,
    "Add": lambda a, b, **_: a + b,
    "Sub": lambda a, b, **_: a - b,
    "Mul": lambda a, b, **_: a * b,
    "Div": lambda a, b, **_: a / b,
    "Pow": lambda a, b, **_: a**b,
    "MatMul": lambda a, b, **_: torch.matmul(a, b),
    "Where": lambda condition, a, b, **_: torch.where(condition, a, b),
    "Softmax": lambda x, attributes: torch.softmax(x, attributes["axis"]),
    "Concat": lambda *tensors, attributes: torch.cat(tensors, attributes["axis"]),
    "Transpose": lambda x, attributes: x.permute(attributes["perm"]),
    "Gather": lambda table, indices, attributes: functional.embedding(indices, table),
    "GlobalAveragePool": lambda x, **_: x.mean((2, 3), keepdim=True),
    "Flatten": lambda x, attributes: torch.flatten(x, attributes["axis"]),
    "Reshape": lambda x, shape, **_: x.reshape(shape.tolist()),
    "Expand": lambda x, shape, **_: x.expand(shape.tolist()),
    "Unsqueeze": lambda x, axes, **_: _unsqueezed(x, axes.tolist()),
    "Squeeze": lambda x, axes, **_: x.squeeze(tuple(axes.tolist())),
    "Split": lambda x, sizes, attributes: torch.split(x, sizes.tolist(), attributes["axis"]),
    "Cast": lambda x, attributes: x.to(
        torch.from_numpy(numpy.empty(0, helper.tensor_dtype_to_np_dtype(attributes["to"]))).dtype
    ),
}


def _unsqueezed(x, axes):
    for axis in sorted(axes):
        x = x.unsqueeze(axis)
    return x


class Network(torch.nn.Module):
    """Takes the inputs in the order of the graph, returns a tuple of its outputs."""

    def __init__(self, path):
        super().__init__()
        graph = load(path).graph
        self.inputs, self.outputs = [value.name for value in graph.input], [value.name for value in graph.output]
        self._constants = {
            item.name: torch.from_numpy(numpy_helper.to_array(item).copy()) for item in graph.initializer
        }
        self._nodes = [
            (
                CALLS[node.op_type],
                list(node.input),
                list(node.output),
                {item.name: helper.get_attribute_value(item) for item in node.attribute},
            )
            for node in graph.node
        ]

    def forward(self, *inputs):
        values = {**self._constants, **dict(zip(self.inputs, inputs))}
        for call, sources, outputs, attributes in self._nodes:
            results = call(*(values[name] for name in sources), attributes=attributes)
            values.update(zip(outputs, results if isinstance(results, tuple) else (results,)))
        return tuple(values[name] for name in self.outputs)
