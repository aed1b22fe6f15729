"""FineTuned: a compiled model with a trainable last part (task.yaml, `trainable`)."""

import hashlib
import json
import os

import vmhost.engine.numpy as np
from vmhost.engine.nn import activations
from vmhost.engine.nn.images import average, convolution, largest, pooled
from vmhost.engine.nn.module import Module
from vmhost.engine.nn.weights import load_arrays, save_arrays

_FORMAT = 1


class FineTuned(Module):
    """`network(inputs)` returns the ONNX model's outputs by name, for arrays by name: all but the last blocks run in
    the engine, without a gradient; the last ones are traced.

    model: the result of `engine.load` for a model listed under `trainable` in task.yaml. data: the bytes of the
        bundle's file NAME.trainable. `weights` maps the weights' names in the ONNX file to arrays: the parameters."""

    def __init__(self, model, data):
        super().__init__()
        description, arrays = _read(data)
        self._model, self._description = model, description
        self._constants = {name: arrays[name] for name in description["constants"]}
        self.weights = {name: arrays[name].copy() for name in description["trained"]}
        self._digest = hashlib.sha256(data).hexdigest()
        given = {port.name for port in model.outputs}
        if missing := set(description["boundary"]) - given:
            raise ValueError(
                f"{model.name}: has no outputs {', '.join(sorted(missing))}: the trainable part is that of another"
                " model"
            )

    def frozen(self, inputs):
        """The outputs of the engine's part, by name: equal for equal inputs, so they may be cached across epochs."""
        found = self._model({port.name: inputs[port.name] for port in self._model.inputs})
        return {name: inputs[name] for name in self._description["inputs"]} | found

    def trained(self, found):
        """The outputs, computed from the result of `frozen`."""
        values = {**found, **self._constants, **self.weights}
        for node in self._description["nodes"]:
            inputs = [values[name] if name else None for name in node["inputs"]]
            values[node["outputs"][0]] = OPERATORS[node["kind"]](node["attributes"], *inputs)
        given = {port.name for port in self._model.outputs} - set(self._description["boundary"])
        return {name: values[name] for name in (*self._description["outputs"], *sorted(given))}

    def __call__(self, inputs):
        return self.trained(self.frozen(inputs))

    # ---- files
    def _path(self, folder):
        return os.path.join(os.fspath(folder), f"{self._model.name}-{self._digest[:16]}.safetensors")

    def save(self, folder):
        """Writes the weights into the folder, atomically, under a name that is tied to the bundle's model and its
        trainable part; returns the path."""
        path = self._path(folder)
        save_arrays(path, self.weights)
        return path

    def load(self, folder):
        """Loads weights for this bundle's model from the folder, and returns whether there were any; files of other
        models are ignored. ValueError: the file is damaged, and nothing was changed."""
        try:
            arrays = load_arrays(self._path(folder))
        except FileNotFoundError:
            return False
        wanted = {name: (one.dtype, one.shape) for name, one in self.weights.items()}
        if {name: (one.dtype, one.shape) for name, one in arrays.items()} != wanted:
            raise ValueError(f"{self._path(folder)}: other weights than {', '.join(wanted)}")
        self.weights = {name: arrays[name] for name in wanted}
        return True


def _read(data):
    size = int.from_bytes(data[:8], "little")
    try:
        description = json.loads(bytes(data[8 : 8 + size]))
        if description["format"] != _FORMAT:
            raise ValueError(f"format {description['format']}, expected {_FORMAT}")
        arrays = {
            name: np.frombuffer(bytes(data[8 + size + begin : 8 + size + end]), dtype).reshape(tuple(shape))
            for kind in ("trained", "constants")
            for name, (dtype, shape, begin, end) in description[kind].items()
        }
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"no trainable part of a model: {error}; compile the task again") from error
    return description, arrays


# ---- operators, as defined in onnx.ai/onnx/operators: (attributes, *inputs)
def _gemm(attributes, a, b, c=None):
    a, b = (np.swapaxes(one, 0, 1) if attributes.get(key) else one for one, key in ((a, "transA"), (b, "transB")))
    y = a @ b
    y = y * attributes["alpha"] if attributes.get("alpha", 1.0) != 1.0 else y
    return y if c is None else y + (c * attributes["beta"] if attributes.get("beta", 1.0) != 1.0 else c)


def _conv(attributes, x, weight, bias=None):
    top, left, bottom, right = attributes.get("pads", (0, 0, 0, 0))
    if (top, left) != (bottom, right):
        x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
        top = left = 0
    strides, dilations = attributes.get("strides", (1, 1)), attributes.get("dilations", (1, 1))
    return convolution(x, weight, bias, tuple(strides), tuple(dilations), attributes.get("group", 1), (top, left))


def _pool(reduced):
    def pool(attributes, x):
        kernel = tuple(attributes["kernel_shape"])
        return pooled(x, kernel, tuple(attributes.get("strides", (1, 1))), reduced)

    return pool


def _batch_norm(attributes, x, scale, bias, mean, variance):
    shape = (1, -1) + (1,) * (x.ndim - 2)
    factor = scale / np.sqrt(variance + attributes.get("epsilon", 1e-5))
    return x * factor.reshape(shape) + (bias - mean * factor).reshape(shape)


def _layer_norm(attributes, x, scale, bias=None):
    axes = tuple(range(attributes.get("axis", -1) % x.ndim, x.ndim))
    centred = x - np.mean(x, axis=axes, keepdims=True)
    variance = np.mean(np.square(centred), axis=axes, keepdims=True)
    y = centred / np.sqrt(variance + attributes.get("epsilon", 1e-5)) * scale
    return y if bias is None else y + bias


def _clip(attributes, x, low=None, high=None):
    low, high = attributes.get("min", low), attributes.get("max", high)
    x = x if low is None else np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


def _reshape(attributes, x, shape):
    sizes = [int(one) for one in shape]
    if not attributes.get("allowzero"):
        sizes = [x.shape[i] if one == 0 else one for i, one in enumerate(sizes)]
    return x.reshape(tuple(sizes))


def _flatten(attributes, x):
    axis, rows = attributes.get("axis", 1), 1
    for size in x.shape[: axis + x.ndim if axis < 0 else axis]:
        rows *= size
    return x.reshape(rows, -1)


def _axes(attributes, axes):
    given = attributes.get("axes") if axes is None else [int(one) for one in axes]
    return None if given is None else tuple(given)


def _mean(attributes, x, axes=None):
    axes = _axes(attributes, axes)
    if not axes and attributes.get("noop_with_empty_axes"):
        return x
    return np.mean(x, axis=axes or None, keepdims=bool(attributes.get("keepdims", 1)))


def _squeeze(attributes, x, axes=None):
    return np.squeeze(x, _axes(attributes, axes))


def _unsqueeze(attributes, x, axes=None):
    axes = _axes(attributes, axes)
    rank = x.ndim + len(axes)
    inserted, sizes = {one % rank for one in axes}, iter(x.shape)
    return x.reshape(tuple(1 if i in inserted else next(sizes) for i in range(rank)))


def _hard_sigmoid(attributes, x, alpha=0.2):
    return np.minimum(np.maximum(x * attributes.get("alpha", alpha) + attributes.get("beta", 0.5), 0.0), 1.0)


def _gelu(attributes, x):
    if attributes.get("approximate", "none") == "tanh":
        return x * 0.5 * (np.tanh((x + x * x * x * 0.044715) * 0.7978845608028654) + 1.0)
    return activations.gelu(x)


OPERATORS = {
    "Add": lambda _, a, b: a + b,
    "AveragePool": _pool(average),
    "BatchNormalization": _batch_norm,
    "Clip": _clip,
    "Concat": lambda attributes, *parts: np.concatenate(parts, axis=attributes["axis"]),
    "Conv": _conv,
    "Div": lambda _, a, b: a / b,
    "Dropout": lambda _, x, *more: x,
    "Elu": lambda attributes, x: activations.elu(x, attributes.get("alpha", 1.0)),
    "Erf": lambda _, x: np.erf(x),
    "Exp": lambda _, x: np.exp(x),
    "Flatten": _flatten,
    "Gelu": _gelu,
    "Gemm": _gemm,
    "GlobalAveragePool": lambda _, x: np.mean(x, axis=tuple(range(2, x.ndim)), keepdims=True),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": lambda attributes, x: x * _hard_sigmoid(attributes, x, 1 / 6),
    "Identity": lambda _, x: x,
    "LayerNormalization": _layer_norm,
    "LeakyRelu": lambda attributes, x: activations.leaky_relu(x, attributes.get("alpha", 0.01)),
    "Log": lambda _, x: np.log(x),
    "LogSoftmax": lambda attributes, x: activations.log_softmax(x, attributes.get("axis", -1)),
    "MatMul": lambda _, a, b: a @ b,
    "MaxPool": _pool(largest),
    "Mul": lambda _, a, b: a * b,
    "Neg": lambda _, x: -x,
    "Pow": lambda _, a, b: a**b,
    "ReduceMean": _mean,
    "Relu": lambda _, x: activations.relu(x),
    "Reshape": _reshape,
    "Sigmoid": lambda _, x: activations.sigmoid(x),
    "Softmax": lambda attributes, x: activations.softmax(x, attributes.get("axis", -1)),
    "Softplus": lambda _, x: activations.softplus(x),
    "Sqrt": lambda _, x: np.sqrt(x),
    "Squeeze": _squeeze,
    "Sub": lambda _, a, b: a - b,
    "Tanh": lambda _, x: activations.tanh(x),
    "Transpose": lambda attributes, x: np.transpose(x, attributes.get("perm")),
    "Unsqueeze": _unsqueeze,
}
