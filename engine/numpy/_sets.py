"""Set functions, positions of nonzero elements, partial and indirect sorts."""

from vmhost.engine import _array as _a


def flatnonzero(a):
    return _a.nonzero(_a.ravel(a))[0]


def argwhere(a):
    """The indices of nonzero elements, one row each."""
    from vmhost.engine.numpy._shapes import stack

    a = _a.asarray(a)
    if a.ndim == 0:
        return _a.empty((int(bool(a)), 0), int)
    if a.ndim == 1:
        return a.nonzero()[0].reshape(-1, 1)
    return stack(a.nonzero(), 1)


def unique(
    ar, return_index=False, return_inverse=False, return_counts=False, axis=None, *, equal_nan=True, sorted=True
):
    """The sorted distinct values (with `axis`: rows); optionally the index of the first occurrence, the inverse, and
    counts."""
    ar = _a.asarray(ar)
    if axis is not None:
        from vmhost.engine.numpy._shapes import _axis, _count, moveaxis

        axis = _axis(axis, ar.ndim)
    if axis is None or ar.ndim == 1:  # rows of one number: NaNs are equal, as without an axis
        rows = ar.ravel()
        order = rows.argsort() if return_index or return_inverse else None
        ordered = rows[order] if order is not None else _a.sort(rows)
        first = _a.ones(len(ordered), bool)
        if len(ordered):
            first[1:] = ordered[1:] != ordered[:-1]
            if equal_nan and ordered.dtype.kind in "fc":
                first[1:] &= ~(_a.isnan(ordered[1:]) & _a.isnan(ordered[:-1]))
        values = ordered[first]
    else:
        moved = moveaxis(ar, axis, 0)
        rows = _a.ascontiguousarray(moved).reshape(len(moved), _count(moved.shape[1:]))
        order = _a.arange(len(rows))
        for column in range(rows.shape[1] - 1, -1, -1):
            order = order[rows[order, column].argsort()]
        ordered = rows[order]
        first = _a.ones(len(ordered), bool)
        if len(ordered):
            first[1:] = (ordered[1:] != ordered[:-1]).any(1)
        values = moveaxis(
            ordered[first].reshape((-1, *moved.shape[1:]) if ordered.size else (int(first.sum()), *moved.shape[1:])),
            0,
            axis,
        )
    results = [values]
    if return_index:
        results.append(order[first])
    if return_inverse:
        inverse = _a.empty(len(ordered), int)
        inverse[order] = first.cumsum() - 1
        results.append(inverse.reshape(ar.shape) if axis is None else inverse)
    if return_counts:
        starts = _a.concatenate((first.nonzero()[0], [len(ordered)]))
        results.append(starts[1:] - starts[:-1])
    return results[0] if len(results) == 1 else tuple(results)


class _NamedResult(tuple):
    """A tuple with named items, like NumPy's results; the names are in `_fields`."""

    __slots__ = ()
    _fields = ()

    def __repr__(self):
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in zip(self._fields, self))})"

    def _asdict(self):
        return dict(zip(self._fields, self))


class UniqueAllResult(_NamedResult):
    __slots__ = ()
    _fields = ("values", "indices", "inverse_indices", "counts")
    values = property(lambda self: self[0])
    indices = property(lambda self: self[1])
    inverse_indices = property(lambda self: self[2])
    counts = property(lambda self: self[3])


class UniqueCountsResult(_NamedResult):
    __slots__ = ()
    _fields = ("values", "counts")
    values = property(lambda self: self[0])
    counts = property(lambda self: self[1])


class UniqueInverseResult(_NamedResult):
    __slots__ = ()
    _fields = ("values", "inverse_indices")
    values = property(lambda self: self[0])
    inverse_indices = property(lambda self: self[1])


def unique_all(x, /):
    """`unique` of the array API standard: values, indices of first occurrences, inverse, counts. Each NaN is a value of
    its own."""
    return UniqueAllResult(unique(x, True, True, True, equal_nan=False))


def unique_counts(x, /):
    return UniqueCountsResult(unique(x, return_counts=True, equal_nan=False))


def unique_inverse(x, /):
    return UniqueInverseResult(unique(x, return_inverse=True, equal_nan=False))


def unique_values(x, /):
    return unique(x, equal_nan=False)


def _distinct(a):
    return unique(_a.ravel(a))


def union1d(ar1, ar2):
    return _distinct(_a.concatenate((_a.ravel(ar1), _a.ravel(ar2))))


def intersect1d(ar1, ar2, assume_unique=False, return_indices=False):
    """The sorted values in both; optionally the index of the first occurrence in each."""
    ar1, ar2 = _a.ravel(ar1), _a.ravel(ar2)
    first = second = None
    if not assume_unique:
        if return_indices:
            (ar1, first), (ar2, second) = unique(ar1, return_index=True), unique(ar2, return_index=True)
        else:
            ar1, ar2 = unique(ar1), unique(ar2)
    both = _a.concatenate((ar1, ar2))
    if not return_indices:
        both = _a.sort(both)
        return both[:-1][both[1:] == both[:-1]]
    order = both.argsort()
    both = both[order]
    same = both[1:] == both[:-1]
    values, in_first, in_second = both[:-1][same], order[:-1][same], order[1:][same] - len(ar1)
    return (
        values,
        in_first if first is None else first[in_first],
        in_second if second is None else second[in_second],
    )


def isin(element, test_elements, assume_unique=False, invert=False, *, kind=None):
    """Whether each element is in `test_elements`."""
    if kind not in (None, "sort", "table"):
        raise ValueError(f"Invalid kind: '{kind}'. Please use None, 'sort' or 'table'.")
    element, values = _a.asarray(element), _a.ravel(test_elements)
    whole = element.dtype.kind in "iub" and values.dtype.kind in "iub"
    if kind == "table" and not whole:
        raise ValueError(
            "The 'table' method is only supported for boolean or integer arrays. Please select 'sort' or None for kind."
        )
    if whole and len(values):
        low, high = int(values.min()), int(values.max())
        if kind == "table" and high - low > _limits(values.dtype)[1]:
            raise RuntimeError(
                "You have specified kind='table', but the range of values in `ar2` or `ar1` exceed the maximum integer"
                " of the datatype. Please set `kind` to None or 'sort'."
            )
        if element.dtype != values.dtype:
            least, greatest = _limits(element.dtype)
            if low < least or high > greatest:  # an element equals none of these
                values = values[(values >= least) & (values <= greatest)]
            values = values.astype(element.dtype)
    if not len(values):
        return _a.full(element.shape, invert, bool)
    if kind != "sort" and whole and element.dtype.kind != "b":
        low, high = int(values.min()), int(values.max())
        # a table with one entry per integer in [low, high], if it is not much larger than the operands
        if high - low <= 6 * (element.size + values.size) and high < 1 << 63:
            table = _a.full(high - low + 1, invert, bool)
            table[values - low] = not invert
            inside = (element >= low) & (element <= high)
            found = table[_a.where(inside, element, low) - low]
            return _a.asarray(found | ~inside if invert else found & inside)
    values = _a.sort(values)
    dtype = _a.promote_types(element.dtype, values.dtype)
    indices = _a.minimum(_a.searchsorted(values, element), len(values) - 1)
    found = values.astype(dtype, copy=False)[indices]
    return _a.asarray(found != element if invert else found == element)


def _limits(dtype):
    """The least and the greatest number of an integer dtype or of bool."""
    if dtype.kind == "b":
        return 0, 1
    from vmhost.engine.numpy._dtypes import iinfo

    limits = iinfo(dtype)
    return limits.min, limits.max


def setdiff1d(ar1, ar2, assume_unique=False):
    values = _a.ravel(ar1) if assume_unique else _distinct(ar1)
    return values[isin(values, ar2, invert=True)]


def setxor1d(ar1, ar2, assume_unique=False):
    ar1, ar2 = (_a.ravel(a) if assume_unique else _distinct(a) for a in (ar1, ar2))
    both = _a.sort(_a.concatenate((ar1, ar2)))
    if not len(both):
        return both
    boundary = _a.concatenate(([True], both[1:] != both[:-1], [True]))
    return both[boundary[1:] & boundary[:-1]]


# ---- partial and indirect sorts


def _partitioned(a, kth, axis, indices):
    from vmhost.engine.numpy._shapes import _axis

    a = _a.asarray(a)
    if axis is None:
        a, axis = a.ravel(), 0
    if a.ndim == 0:
        a = a.reshape(1)
    axis = _axis(axis, a.ndim)
    size, kth = a.shape[axis], _a.asarray(kth)
    if kth.dtype.kind not in "iu":
        raise TypeError("Partition index must be integer")
    positions = kth.ravel().tolist()
    if not size:
        return _a.zeros(a.shape, int) if indices else a.copy()
    for position in positions:
        if not -size <= position < size:
            raise ValueError(f"kth(={position}) out of bounds ({size})")
    return partitioned(a, [position % size for position in positions], axis, indices)


MAX_SELECTED = 6  # positions; for more, a full sort is faster


def partitioned(a, kth, axis=-1, indices=False):
    """numpy.partition, or argpartition with `indices`; `kth` is any number of validated positions in any order."""
    kth = tuple(sorted(set(kth)))
    if len(kth) > MAX_SELECTED:
        return _a.argsort(a, axis) if indices else _a.sort(a, axis)
    return _a._partition(a, kth, axis, indices)


def _check_kind(kind):
    if not isinstance(kind, str):
        raise TypeError(f"select kind must be str, not {type(kind).__name__}")
    if kind != "introselect":
        raise ValueError(f"select kind must be 'introselect' (got {kind!r})")


def partition(a, kth, axis=-1, kind="introselect", order=None):
    """A partially sorted copy: the elements at `kth` are in their sorted positions, no larger ones before them and no
    smaller ones after."""
    _check_kind(kind)
    return _partitioned(a, kth, axis, False)


def argpartition(a, kth, axis=-1, kind="introselect", order=None):
    """The indices that give the order of `partition`."""
    _check_kind(kind)
    return _partitioned(a, kth, axis, True)


def lexsort(keys, axis=-1):
    """The indices that sort by the last key, ties by the key before, and so on."""
    from vmhost.engine.numpy._shapes import _axis, take_along_axis

    keys = [_a.asarray(key) for key in keys]
    if not keys:
        raise TypeError("need sequence of keys with len > 0 in lexsort")
    if keys[0].ndim == 0:
        _axis(axis, 1)
        return _a.asarray(0)
    axis = _axis(axis, keys[0].ndim)
    order = keys[0].argsort(axis)
    for key in keys[1:]:
        order = take_along_axis(order, take_along_axis(key, order, axis).argsort(axis), axis)
    return order


def sort_complex(a):
    """Sorts along the last axis, as complex numbers."""
    result = _a.sort(_a.asarray(a))
    if result.dtype.kind == "c":
        return result
    return result.astype(_a.complex64 if result.dtype.name in ("int8", "uint8", "int16", "uint16") else _a.complex128)
