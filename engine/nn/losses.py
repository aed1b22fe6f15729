"""Losses: one number for a batch, or with reduction="none" one for each example."""

import vmhost.engine.numpy as np
from vmhost.engine.nn.activations import log_softmax


def _reduced(loss, reduction):
    if reduction == "none":
        return loss
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction: 'mean', 'sum' or 'none', got {reduction!r}")
    return np.mean(loss) if reduction == "mean" else np.sum(loss)


def binary_cross_entropy(inputs, targets, with_logits=True, reduction="mean"):
    """`inputs` are logits, or with with_logits=False probabilities."""
    if with_logits:
        loss = np.logaddexp(inputs, 0) - inputs * targets
    else:
        clipped = np.clip(inputs, 1e-7, 1 - 1e-7)
        loss = -(np.log(clipped) * targets + np.log(1 - clipped) * (1 - targets))
    return _reduced(loss, reduction)


def cross_entropy(logits, targets, axis=-1, reduction="mean"):
    """`targets`: the indices of the right classes, without the axis of classes."""
    targets = np.expand_dims(np.asarray(targets), axis)
    return _reduced(-np.squeeze(np.take_along_axis(log_softmax(logits, axis), targets, axis), axis), reduction)


def mse_loss(predictions, targets, reduction="mean"):
    return _reduced(np.square(predictions - targets), reduction)


def l1_loss(predictions, targets, reduction="mean"):
    return _reduced(np.absolute(predictions - targets), reduction)
