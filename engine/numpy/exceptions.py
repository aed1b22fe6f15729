"""Exceptions of `vmhost.engine.numpy`, under NumPy's module name."""

from vmhost.engine._array import AxisError

__all__ = ["AxisError", "RankWarning", "TooHardError"]


class RankWarning(RuntimeWarning):
    """The points of polyfit do not determine all coefficients."""


class TooHardError(RuntimeError):
    """shares_memory would take more work than it may."""


def __getattr__(name):
    from vmhost.engine.numpy._absent import missing

    raise missing("exceptions", name)
