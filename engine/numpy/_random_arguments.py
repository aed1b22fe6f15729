"""Arguments of the functions of `numpy.random`: sizes, parameters of distributions, the range of a dtype."""

from vmhost.engine import _array as _a
from vmhost.engine.numpy._shapes import _integers, broadcast_shapes


def shape_of_size(size):
    return (size,) if type(size) is int else _integers(size)


def common_shape(*arrays):
    return broadcast_shapes(*(array.shape for array in arrays))


def mean_and_covariances(mean, cov):
    """Both as float64 arrays of shapes (n,) and (n, n); ValueError if the shapes differ from that."""
    mean, cov = _a.asarray(mean, dtype=_a.float64), _a.asarray(cov, dtype=_a.float64)
    if mean.ndim != 1:
        raise ValueError("mean must be 1 dimensional")
    if cov.ndim != 2 or cov.shape[0] != cov.shape[1]:
        raise ValueError("cov must be 2 dimensional and square")
    if mean.shape[0] != cov.shape[0]:
        raise ValueError("mean and cov must have same length")
    return mean, cov


def sum_tolerance(p):
    """How far from 1 probabilities may add up: to the precision of the array's dtype."""
    eps = {"float16": 2.0**-10, "float32": 2.0**-23}.get(p.dtype.name if isinstance(p, _a.ndarray) else None, 2.0**-52)
    return eps**0.5


def integer_limits(dtype):
    bits = 8 * dtype.itemsize
    return (0, (1 << bits) - 1) if dtype.kind == "u" else (-(1 << bits - 1), (1 << bits - 1) - 1)
