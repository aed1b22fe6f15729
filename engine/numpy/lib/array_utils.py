"""Normalized axis numbers, and the range of an array's memory."""

from vmhost.engine.numpy._memory import byte_bounds
from vmhost.engine.numpy._shapes import _axes, _axis

__all__ = ["byte_bounds", "normalize_axis_index", "normalize_axis_tuple"]


def normalize_axis_index(axis, ndim, msg_prefix=None):
    """The axis as a number in [0, ndim)."""
    return _axis(axis, ndim, msg_prefix)


def normalize_axis_tuple(axis, ndim, argname=None, allow_duplicate=False):
    """The axes as numbers in [0, ndim)."""
    if allow_duplicate:
        return tuple(_axis(one, ndim, argname) for one in (axis if isinstance(axis, (tuple, list)) else (axis,)))
    return _axes(axis, ndim, argname)
