"""Losses: one number for a batch, or with reduction="none" one for each example."""

import vmhost.engine.numpy as np
from vmhost.engine.grad.traced import Traced
from vmhost.engine.nn.activations import log_softmax


def _reduced(loss, reduction):
    if reduction == "none":
        return loss
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction: 'mean', 'sum' or 'none', got {reduction!r}")
    return np.mean(loss) if reduction == "mean" else np.sum(loss)


def _fitting(loss, inputs, targets):
    """The targets as a number or an array of the inputs' shape."""
    targets = targets if isinstance(targets, (int, float)) or hasattr(targets, "shape") else np.asarray(targets)
    if np.shape(targets) not in ((), inputs.shape):  # by broadcasting, each would meet each
        raise ValueError(
            f"{loss}: expected targets of the shape of the inputs, {inputs.shape}, got {targets.shape}; reshape one"
        )
    return targets


def binary_cross_entropy(inputs, targets, with_logits=True, reduction="mean"):
    """`inputs` are logits, or with with_logits=False probabilities."""
    targets = _fitting("binary_cross_entropy", inputs, targets)
    if with_logits:
        loss = np.logaddexp(inputs, 0) - inputs * targets
    else:
        clipped = np.clip(inputs, 1e-7, 1 - 1e-7)
        loss = -(np.log(clipped) * targets + np.log(1 - clipped) * (1 - targets))
    return _reduced(loss, reduction)


def cross_entropy(logits, targets, axis=-1, reduction="mean"):
    """`targets`: the indices of the right classes, from 0 on, without the axis of classes."""
    targets = np.asarray(targets)
    classes, shape = logits.shape[axis], list(logits.shape)
    del shape[axis]
    if targets.shape != tuple(shape) or targets.dtype.kind not in "iu":
        raise ValueError(
            f"cross_entropy: expected targets as whole numbers of shape {tuple(shape)}, one for each row of classes, "
            f"got {targets.dtype} of shape {targets.shape}"
        )
    wrong = type(targets) is not Traced and np.argwhere((targets < 0) | (targets >= classes))
    if wrong is not False and len(wrong):
        place = tuple(wrong[0].tolist())
        raise ValueError(
            f"cross_entropy: expected classes from 0 to {classes - 1}, got {targets[place]} at {place}; leave out "
            "examples without a class"
        )
    targets = np.expand_dims(targets, axis)
    return _reduced(-np.squeeze(np.take_along_axis(log_softmax(logits, axis), targets, axis), axis), reduction)


def mse_loss(predictions, targets, reduction="mean"):
    return _reduced(np.square(predictions - _fitting("mse_loss", predictions, targets)), reduction)


def l1_loss(predictions, targets, reduction="mean"):
    return _reduced(np.absolute(predictions - _fitting("l1_loss", predictions, targets)), reduction)
