"""Views by strides; sliding windows."""

from vmhost.engine import _array as _a
from vmhost.engine.numpy._shapes import _axes

__all__ = ["as_strided", "sliding_window_view"]


def as_strided(x, shape=None, strides=None, subok=False, writeable=True, *, check_bounds=None):
    """A view with this shape and these strides in bytes. Unlike NumPy's, it must lie inside `x`'s memory."""
    x = _a.asarray(x)
    view = _a._as_strided(x, x.shape if shape is None else shape, x.strides if strides is None else strides)
    if not writeable:
        view.setflags(write=False)
    return view


def sliding_window_view(x, window_shape, axis=None, *, subok=False, writeable=False):
    """A view of all windows of that shape: first the windows' positions, then the windows' own dimensions."""
    window = tuple(window_shape) if isinstance(window_shape, (tuple, list)) else (window_shape,)
    x = _a.asarray(x)
    if any(one < 0 for one in window):
        raise ValueError("`window_shape` cannot contain negative values")
    if axis is None:
        axes = tuple(range(x.ndim))
        if len(window) != len(axes):
            raise ValueError(
                f"Since axis is None, must provide window_shape for all dimensions of `x`; got {len(window)}"
                f" window_shape elements and `x.ndim` is {x.ndim}."
            )
    else:
        axes = tuple(one % x.ndim for one in axis) if isinstance(axis, (tuple, list)) else _axes(axis, x.ndim)
        if len(window) != len(axes):
            raise ValueError(
                f"Must provide matching length window_shape and axis; got {len(window)} window_shape elements and"
                f" {len(axes)} axes elements."
            )
    sizes = list(x.shape)
    for one, size in zip(axes, window):
        if sizes[one] < size:
            raise ValueError("window shape cannot be larger than input array shape")
        sizes[one] -= size - 1
    view = _a._as_strided(x, tuple(sizes) + window, x.strides + tuple(x.strides[one] for one in axes))
    if not writeable:
        view.setflags(write=False)
    return view
