"""Optimizers, in the shape of MLX's `mlx.optimizers`: `optimizer.update(model, gradients)`.

Parameters are changed in place; read-only ones (passed from another VM, or views) are replaced by copies first. For a
table with a RowGradient, only the rows that were read and their state are updated: weight decay and momentum of other
rows wait until these are read."""

from vmhost.engine.optim.optimizers import SGD, Adagrad, Adam, AdamW, Ftrl, Optimizer, RMSprop, clip_grad_norm
from vmhost.engine.optim.schedules import cosine_decay, exponential_decay, join_schedules, linear_schedule, step_decay

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Ftrl",
    "Optimizer",
    "RMSprop",
    "clip_grad_norm",
    "cosine_decay",
    "exponential_decay",
    "join_schedules",
    "linear_schedule",
    "step_decay",
]
