"""Layers. Initial weights come from one generator, seeded by `seed`."""

import vmhost.engine.numpy as np
from vmhost.engine import _array as _a
from vmhost.engine.grad import stop_gradient
from vmhost.engine.grad.rules import RULES
from vmhost.engine.grad.traced import call, primitive
from vmhost.engine.nn.activations import relu, sigmoid
from vmhost.engine.nn.export import graph_of
from vmhost.engine.nn.module import Module

_random = {}


def seed(number):
    """Seeds the generator of initial weights and of dropout."""
    _random["generator"] = np.random.default_rng(number)


def generator():
    if not _random:
        seed(0)
    return _random["generator"]


def expect_last(layer, x, size):
    if not getattr(x, "ndim", 0) or x.shape[-1] != size:
        shape = getattr(x, "shape", type(x).__name__)
        raise ValueError(f"{layer}: expected an array whose last dimension is {size}, got {shape}")


def uniform(shape, bound):
    return generator().uniform(-bound, bound, shape).astype("float32")


class Linear(Module):
    """x @ weight.T + bias; `weight` is (output, input)."""

    def __init__(self, input_dims, output_dims, bias=True):
        super().__init__()
        self.weight = uniform((output_dims, input_dims), input_dims**-0.5)
        if bias:
            self.bias = uniform((output_dims,), input_dims**-0.5)

    def __call__(self, x):
        expect_last("Linear", x, self.weight.shape[1])
        y = x @ self.weight.T
        return y + self.bias if hasattr(self, "bias") else y


class Embedding(Module):
    """Rows of a table by non-negative integers. Its gradient has only the rows that were read."""

    def __init__(self, num_embeddings, dims, scale=None):
        super().__init__()
        scale = dims**-0.5 if scale is None else scale
        self.weight = (generator().standard_normal((num_embeddings, dims)) * scale).astype("float32")

    def __call__(self, ids):
        if getattr(getattr(ids, "dtype", None), "kind", "i") not in "iu":
            raise ValueError(f"Embedding: expected whole numbers, got {ids.dtype}")
        return np.take(self.weight, ids, axis=0)


class Sequential(Module):
    """Applies layers and functions in order."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = list(layers)

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class ReLU(Module):
    def __call__(self, x):
        return relu(x)


class Sigmoid(Module):
    def __call__(self, x):
        return sigmoid(x)


class Tanh(Module):
    def __call__(self, x):
        return np.tanh(x)


class Dropout(Module):
    """In training, zeroes elements with probability `p`, and divides the others by 1 - p."""

    def __init__(self, p=0.5):
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"p: a probability below 1, got {p}")
        self._p = p

    def __call__(self, x):
        if not self._training or not self._p:
            return x
        return np.where(generator().random(x.shape) >= self._p, x / (1 - self._p), 0)


class LayerNorm(Module):
    def __init__(self, dims, eps=1e-5):
        super().__init__()
        self.weight, self.bias = np.ones(dims, "float32"), np.zeros(dims, "float32")
        self._eps = eps

    def __call__(self, x):
        expect_last("LayerNorm", x, self.weight.shape[0])
        centred = x - np.mean(x, axis=-1, keepdims=True)
        scale = np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + self._eps)
        return centred / scale * self.weight + self.bias


class RMSNorm(Module):
    def __init__(self, dims, eps=1e-5):
        super().__init__()
        self.weight = np.ones(dims, "float32")
        self._eps = eps

    def __call__(self, x):
        expect_last("RMSNorm", x, self.weight.shape[0])
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self._eps) * self.weight


def _moments(x, axes):
    mean = np.mean(x, axis=axes, keepdims=True)
    centred = x - mean
    return mean, np.mean(centred * centred, axis=axes, keepdims=True)


def _of_channels(x, weight, bias):
    """Whether the engine's normalization applies: arrays of one dtype, over all dimensions but the second."""
    return (
        x.dtype in (np.float32, np.float64)
        and weight.dtype == bias.dtype == x.dtype
        and x.ndim >= 2
        and weight.shape == bias.shape == (1, x.shape[1], *[1] * (x.ndim - 2))
        and x.size > 0
    )


class Moments:
    """Receives the mean and the variance by which `batch_normalized` normalizes: values without a gradient."""

    __slots__ = ("mean", "var")


@primitive
def batch_normalized(x, weight, bias, eps, moments):
    """x normalized to mean 0 and variance 1 over the dimensions in which `weight` and `bias` have size 1, times weight,
    plus bias. Sets `moments`, a Moments."""
    if _of_channels(x, weight, bias) and type(x) is type(weight) is type(bias) is _a.ndarray:
        y, mean, var = _a._normalize(x, weight.reshape(-1), bias.reshape(-1), eps)
        moments.mean, moments.var = mean.reshape(weight.shape), var.reshape(weight.shape)
        return y
    mean, var = _moments(x, _batch_axes(weight))
    moments.mean, moments.var = stop_gradient((mean, var))
    factor = weight / np.sqrt(var + eps)
    return x * factor + (bias - mean * factor)


def _batch_axes(weight):
    return tuple(i for i, size in enumerate(weight.shape) if size == 1)


def _batch_normalized_rule(x, weight, bias, eps, moments):
    y = call("batch_normalized", x, weight, bias, eps, moments)
    mean, var, axes, count, kept = moments.mean, moments.var, _batch_axes(weight), x.size // weight.size, {}
    native = _of_channels(x, weight, bias) and type(x) is type(weight) is _a.ndarray

    def gradients(g):  # the gradients of x, weight and bias
        if kept.get("of") is not g:
            if native and type(g) is _a.ndarray and g.dtype == x.dtype:
                flat = (one.reshape(-1) for one in (mean, var, weight))
                of_x, *others = _a._normalize_gradient(x, g, *flat, eps)
                kept.update(of=g, all=(of_x, *(one.reshape(weight.shape) for one in others)))
            else:
                kept.update(of=g, all=by_sums(g))
        return kept["all"]

    def by_sums(g):  # sums of g, and of g times the normalized x
        mean, var = _moments(x, axes)  # by x: a gradient of this gradient needs them
        root = 1 / np.sqrt(var + eps)
        total = np.sum(g, axis=axes, keepdims=True)
        weight_gradient = (np.sum(g * x, axis=axes, keepdims=True) - mean * total) * root
        slope = weight_gradient * root / count
        return (g - x * slope - (total / count - slope * mean)) * (weight * root), weight_gradient, total

    return y, (lambda g: gradients(g)[0], lambda g: gradients(g)[1], lambda g: gradients(g)[2], None, None)


RULES["batch_normalized"] = _batch_normalized_rule


class BatchNorm(Module):
    """Normalizes over all dimensions but the second, the channels. In training it uses the batch's mean and variance
    and updates the running ones; otherwise it uses the running ones."""

    def __init__(self, num_features, eps=1e-5, momentum=0.1):
        super().__init__()
        self.weight, self.bias = np.ones(num_features, "float32"), np.zeros(num_features, "float32")
        self.running_mean, self.running_var = np.zeros(num_features, "float32"), np.ones(num_features, "float32")
        self._eps, self._momentum = eps, momentum
        self.freeze(keys=("running_mean", "running_var"))

    def unfreeze(self, *, recurse=True, keys=None):
        super().unfreeze(recurse=recurse, keys=keys)
        return self.freeze(recurse=False, keys=("running_mean", "running_var"))

    def __call__(self, x):
        if x.ndim < 2 or x.shape[1] != self.weight.shape[0]:
            raise ValueError(
                f"BatchNorm: expected an array of shape (examples, {self.weight.shape[0]}, ...), got {x.shape}"
            )
        shape = (1, -1, *[1] * (x.ndim - 2))
        if self._training:
            moments, count = Moments(), x.size // x.shape[1]
            y = batch_normalized(x, self.weight.reshape(shape), self.bias.reshape(shape), self._eps, moments)
            self._update_running("running_mean", moments.mean, 1)
            self._update_running("running_var", moments.var, count / max(count - 1, 1))
            return y
        if (graph := graph_of(x)) is not None:
            arrays = (x, self.weight, self.bias, self.running_mean, self.running_var)
            names = [graph.name_of(one) for one in arrays]
            return graph.node("BatchNormalization", names, graph.plain(lambda: self(x.value)), epsilon=self._eps)
        centred, var = x - self.running_mean.reshape(shape), self.running_var.reshape(shape)
        return centred / np.sqrt(var + self._eps) * self.weight.reshape(shape) + self.bias.reshape(shape)

    def _update_running(self, name, value, factor):
        scaled = stop_gradient(value).reshape(-1) * factor
        setattr(self, name, getattr(self, name) * (1 - self._momentum) + scaled * self._momentum)
