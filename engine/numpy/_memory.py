"""Tests for shared memory."""

from operator import index

from vmhost.engine import _array as _a


def byte_bounds(a):
    """Returns (address of the first byte, address past the last byte), for comparison only."""
    low = high = _a._address(a)
    for n, stride in zip(a.shape, a.strides):
        if stride < 0:
            low += (n - 1) * stride
        else:
            high += (n - 1) * stride
    return low, high + a.itemsize


def _work(max_work):
    """`max_work`, which C code counts in 64 bits."""
    if max_work is not None and not -1 << 63 <= index(max_work) < 1 << 63:
        raise OverflowError("Python int too large to convert to C long")
    return max_work


def may_share_memory(a, b, /, max_work=0):
    """Whether the memory ranges of both arrays overlap."""
    _work(max_work)
    a, b = _a.asarray(a), _a.asarray(b)
    if not a.size or not b.size:
        return False
    (a_low, a_high), (b_low, b_high) = byte_bounds(a), byte_bounds(b)
    return a_low < b_high and b_low < a_high


def shares_memory(a, b, /, max_work=-1):
    """Whether any byte belongs to both arrays, by searching the elements of one among those of the other.

    TooHardError above `max_work` elements."""
    a, b, max_work = _a.asarray(a), _a.asarray(b), _work(max_work)
    if not may_share_memory(a, b):
        return False
    if a.flags.forc and b.flags.forc:
        return True
    if max_work is not None and 0 <= max_work < a.size + b.size:
        from vmhost.engine.numpy.exceptions import TooHardError

        raise TooHardError("Exceeded max_work")
    starts = _a.sort(_starts(a))
    b_starts = _starts(b)
    # An element of b overlaps `a` if the first element of `a` that ends after its start begins before its end.
    index = _a.searchsorted(starts, b_starts - (a.itemsize - 1))
    a_starts = starts[_a.minimum(index, len(starts) - 1)]
    return bool(((index < len(starts)) & (a_starts < b_starts + b.itemsize)).any())


def _starts(a):
    starts = _a.asarray(_a._address(a))
    for n, stride in zip(a.shape, a.strides):
        starts = starts[..., None] + _a.arange(n) * stride
    return starts.ravel()
