"""Activations: functions of arrays."""

import math

import vmhost.engine.numpy as np
from vmhost.engine import _array as _a
from vmhost.engine.grad import stop_gradient
from vmhost.engine.grad.rules import RULES
from vmhost.engine.grad.traced import call, primitive
from vmhost.engine.nn.export import graph_of


@primitive
def sigmoid(x):
    """1 / (1 + exp(-x)). Of integers in float64."""
    x = x if getattr(x, "dtype", _a.float64).kind == "f" else _a.astype(_a.asarray(x), "float64")  # -x of uint8 wraps
    return _a.reciprocal(_a.exp(-x) + 1)


@primitive
def relu(x):
    """x where it is positive, else 0."""
    return _a.maximum(x, 0)


def _sigmoid_rule(x):
    y = call("sigmoid", x)
    return y, (lambda g: g * (y * (1 - y)),)


def _relu_rule(x):
    y = call("relu", x)
    return y, (lambda g: _a.where(y <= 0, 0, g),)


RULES["sigmoid"], RULES["relu"] = _sigmoid_rule, _relu_rule
tanh = np.tanh


def silu(x):
    return x * sigmoid(x)


def gelu(x):
    """Uses the error function, not an approximation."""
    return x * (_a.erf(x * math.sqrt(0.5)) + 1) * 0.5


def leaky_relu(x, negative_slope=0.01):
    return np.where(x > 0, x, x * negative_slope)


def elu(x, alpha=1.0):
    return np.where(x > 0, x, (np.exp(np.where(x > 0, 0, x)) - 1) * alpha)


def softplus(x):
    return np.logaddexp(x, 0)


def softmax(x, axis=-1):
    if (graph := graph_of(x)) is not None and x.dtype.kind == "f":
        value = graph.plain(lambda: softmax(x.value, axis))
        return graph.node("Softmax", [graph.name_of(x)], value, axis=axis % x.ndim)
    powers = np.exp(x - stop_gradient(np.max(x, axis=axis, keepdims=True)))
    return powers / np.sum(powers, axis=axis, keepdims=True)


def log_softmax(x, axis=-1):
    if (graph := graph_of(x)) is not None and x.dtype.kind == "f":
        value = graph.plain(lambda: log_softmax(x.value, axis))
        return graph.node("LogSoftmax", [graph.name_of(x)], value, axis=axis % x.ndim)
    shifted = x - stop_gradient(np.max(x, axis=axis, keepdims=True))
    return shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))
