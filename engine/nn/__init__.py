"""Networks as small trees of arrays, in the shape of MLX's `mlx.nn`: modules, layers, activations, losses.

Images have the layout (examples, channels, rows, columns)."""

from vmhost.engine.nn.activations import (
    elu,
    gelu,
    leaky_relu,
    log_softmax,
    relu,
    sigmoid,
    silu,
    softmax,
    softplus,
    tanh,
)
from vmhost.engine.nn.export import ExportError, export
from vmhost.engine.nn.fine_tuning import FineTuned
from vmhost.engine.nn.images import AvgPool2d, Conv2d, MaxPool2d
from vmhost.engine.nn.layers import (
    BatchNorm,
    Dropout,
    Embedding,
    LayerNorm,
    Linear,
    ReLU,
    RMSNorm,
    Sequential,
    Sigmoid,
    Tanh,
    seed,
)
from vmhost.engine.nn.losses import binary_cross_entropy, cross_entropy, l1_loss, mse_loss
from vmhost.engine.nn.module import Module, value_and_grad
from vmhost.engine.nn.scores import auc, calibration, gauc, log_loss
from vmhost.engine.nn.sparse import SparseEmbedding
from vmhost.engine.nn.weights import load_arrays, save_arrays

__all__ = [
    "AvgPool2d",
    "BatchNorm",
    "Conv2d",
    "Dropout",
    "Embedding",
    "ExportError",
    "FineTuned",
    "LayerNorm",
    "Linear",
    "MaxPool2d",
    "Module",
    "RMSNorm",
    "ReLU",
    "Sequential",
    "Sigmoid",
    "SparseEmbedding",
    "Tanh",
    "auc",
    "binary_cross_entropy",
    "calibration",
    "cross_entropy",
    "elu",
    "export",
    "gauc",
    "gelu",
    "l1_loss",
    "leaky_relu",
    "load_arrays",
    "log_loss",
    "log_softmax",
    "mse_loss",
    "relu",
    "save_arrays",
    "seed",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "tanh",
    "value_and_grad",
]
