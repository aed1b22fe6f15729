"""Exceptions of `engine.numpy`, under NumPy's module name."""

from engine._array import AxisError

__all__ = ["AxisError"]
