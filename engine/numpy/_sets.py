"""Sets of values, counting them, and finding where they are."""

from engine import _array as _a


def flatnonzero(a):
    return _a.nonzero(_a.ravel(a))[0]


def argwhere(a):
    """The places where `a` is not zero, a row each."""
    from engine.numpy._shapes import stack

    a = _a.asarray(a)
    if a.ndim == 0:
        return _a.empty((int(bool(a)), 0), int)
    return stack(a.nonzero(), 1)


def unique(ar, return_index=False, return_inverse=False, return_counts=False, axis=None, *, equal_nan=True, sorted=True):
    """The sorted values without repetition; on request where each is first, which each element is, and how often."""
    if axis is not None:
        raise NotImplementedError("unique(axis=...): flat arrays are what there is")
    ar = _a.asarray(ar)
    flat = ar.ravel()
    order = flat.argsort() if return_index or return_inverse else None
    ordered = flat[order] if order is not None else _a.sort(flat)
    first = _a.ones(len(ordered), bool)
    if len(ordered):
        first[1:] = ordered[1:] != ordered[:-1]
        if equal_nan and ordered.dtype.kind in "fc":
            first[1:] &= ~(_a.isnan(ordered[1:]) & _a.isnan(ordered[:-1]))
    results = [ordered[first]]
    if return_index:
        results.append(order[first])
    if return_inverse:
        inverse = _a.empty(len(ordered), int)
        inverse[order] = first.cumsum() - 1
        results.append(inverse.reshape(ar.shape))
    if return_counts:
        places = _a.concatenate((first.nonzero()[0], [len(ordered)]))
        results.append(places[1:] - places[:-1])
    return results[0] if len(results) == 1 else tuple(results)


def unique_values(x):
    return unique(x, equal_nan=False)


def _distinct(a):
    return unique(_a.ravel(a))


def union1d(ar1, ar2):
    return _distinct(_a.concatenate((_a.ravel(ar1), _a.ravel(ar2))))


def intersect1d(ar1, ar2, assume_unique=False, return_indices=False):
    if return_indices:
        raise NotImplementedError("intersect1d(return_indices=True) is not there")
    values = _a.sort(_a.concatenate((_distinct(ar1), _distinct(ar2))))
    return values[:-1][values[1:] == values[:-1]]


def isin(element, test_elements, assume_unique=False, invert=False, *, kind=None):
    """Whether each element is among `test_elements`."""
    element, values = _a.asarray(element), _distinct(test_elements)
    if not len(values):
        return _a.full(element.shape, invert, bool)
    dtype = _a.promote_types(element.dtype, values.dtype)
    places = _a.clip(_a.searchsorted(values, element), 0, len(values) - 1)
    found = values.astype(dtype)[places] == element
    return ~found if invert else found


def setdiff1d(ar1, ar2, assume_unique=False):
    values = _distinct(ar1)
    return values[isin(values, ar2, invert=True)]


def setxor1d(ar1, ar2, assume_unique=False):
    return union1d(setdiff1d(ar1, ar2), setdiff1d(ar2, ar1))


def bincount(x, /, weights=None, minlength=0):
    """How often each of 0, 1, 2, ... is in `x`, or the sums of their weights."""
    x = _a.asarray(x)
    if x.ndim != 1:
        raise ValueError("object too deep for desired array" if x.ndim else "object of too small depth for desired array")
    if x.dtype.kind not in "iub":
        raise TypeError(f"Cannot cast array data from {x.dtype!r} to dtype('int64') according to the rule 'safe'")
    if len(x) and x.min() < 0:
        raise ValueError("'list' argument must have no negative elements")
    size = max(int(x.max()) + 1 if len(x) else 0, minlength)
    counts = _a.zeros(size, float if weights is not None else int)
    if weights is not None and len(_a.asarray(weights)) != len(x):
        raise ValueError("The weights and list don't have the same length.")
    _a._scatter_add(counts, x.astype(int), 1 if weights is None else weights)
    return counts


def digitize(x, bins, right=False):
    """The number of the bin that each element lies in."""
    bins = _a.asarray(bins)
    step = bins[1:] - bins[:-1]
    if (step >= 0).all():
        return _a.searchsorted(bins, x, "left" if right else "right")
    if (step <= 0).all():
        return len(bins) - _a.searchsorted(bins[::-1], x, "right" if right else "left")
    raise ValueError("bins must be monotonically increasing or decreasing")


def histogram(a, bins=10, range=None, density=None, weights=None):
    """(how many elements lie in each bin, the edges of the bins)."""
    a = _a.ravel(a)
    if hasattr(bins, "__len__") or isinstance(bins, _a.ndarray) and bins.ndim:
        edges = _a.asarray(bins)
        if (edges[1:] < edges[:-1]).any():
            raise ValueError("`bins` must increase monotonically, when an array")
    else:
        if bins < 1:
            raise ValueError("`bins` must be positive, when an integer")
        low, high = range if range is not None else (float(a.min()), float(a.max())) if len(a) else (0.0, 1.0)
        if low > high:
            raise ValueError("max must be larger than min in range parameter.")
        if low == high:
            low, high = low - 0.5, high + 0.5
        from engine.numpy._creation import linspace

        edges = linspace(low, high, bins + 1)
    inside = (a >= edges[0]) & (a <= edges[-1])
    a = a[inside]
    places = _a.clip(_a.searchsorted(edges, a, "right") - 1, 0, len(edges) - 2)
    counts = bincount(places, None if weights is None else _a.ravel(weights)[inside], len(edges) - 1)
    if density:
        return counts / (edges[1:] - edges[:-1]) / counts.sum(), edges
    return counts, edges


def partition(a, kth, axis=-1, kind="introselect", order=None):
    """Sorted altogether, which is a partition at every place."""
    return _a.sort(a, axis)


def argpartition(a, kth, axis=-1, kind="introselect", order=None):
    return _a.argsort(a, axis)


def lexsort(keys, axis=-1):
    """The order by the last key, within it by the one before, and so on."""
    keys = [_a.asarray(key) for key in keys]
    order = keys[0].argsort(axis)
    for key in keys[1:]:
        order = order[key[order].argsort(axis)]
    return order
