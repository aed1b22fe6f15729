"""Exceptions of `vmhost.engine.numpy`, under NumPy's module name."""

from vmhost.engine._array import AxisError

__all__ = ["AxisError", "RankWarning", "TooHardError"]


class RankWarning(RuntimeWarning):
    """polyfit's points do not determine all coefficients."""


class TooHardError(RuntimeError):
    """shares_memory would exceed `max_work`."""


def __getattr__(name):
    from vmhost.engine.numpy._absent import missing

    raise missing("exceptions", name)
