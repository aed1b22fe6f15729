"""Gradients of functions over `vmhost.engine.numpy`, the same in the host and in every VM.

`value_and_grad(f)` runs `f` on traced arrays: each operator notes how its gradient is taken, and the notes are read
backwards once. There is no graph to compile and no artifact to make beforehand; docs/gradients.md lists operators."""

from vmhost.engine.grad.rows import RowGradient
from vmhost.engine.grad.tape import NoGradientError, checkpoint, grad, stop_gradient, value_and_grad

__all__ = ["NoGradientError", "RowGradient", "checkpoint", "grad", "stop_gradient", "value_and_grad"]
