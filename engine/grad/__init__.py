"""Gradients of functions over `vmhost.engine.numpy`, the same in the host and in every VM.

`value_and_grad(f)` runs `f` on traced arrays: each operator is recorded with the rule for its gradient, and the record
is read backwards once. There is no graph to compile and no artifact to build beforehand; docs/gradients.md lists the
operators."""

from vmhost.engine.grad.rows import RowGradient
from vmhost.engine.grad.tape import NoGradientError, checkpoint, grad, stop_gradient, value_and_grad

__all__ = ["NoGradientError", "RowGradient", "checkpoint", "grad", "stop_gradient", "value_and_grad"]
