"""Python functions applied along axes or to every element."""

from itertools import islice

from vmhost.engine import _array as _a
from vmhost.engine.numpy._shapes import _axis, _count, expand_dims, moveaxis

_PYTHON = ("bool", "int64", "float64", "complex128")  # the dtypes of Python's numbers


def apply_along_axis(func1d, axis, arr, *args, **kwargs):
    """Applies `func1d` to each 1-d slice along `axis`; the dimensions of its result replace that axis."""
    arr = _a.asarray(arr)
    axis = _axis(axis, arr.ndim)
    rows = moveaxis(arr, axis, -1)
    outside, length = rows.shape[:-1], rows.shape[-1]
    if 0 in outside:
        raise ValueError("Cannot apply_along_axis when any iteration dimensions are 0")
    rows = rows.reshape(_count(outside), length)
    first = _a.asarray(func1d(rows[0], *args, **kwargs))
    result = _a.zeros((len(rows), *first.shape), first.dtype)
    result[0] = first
    for i in range(1, len(rows)):
        result[i] = func1d(rows[i], *args, **kwargs)
    result = result.reshape(outside + first.shape)
    rank = len(outside)
    return moveaxis(result, tuple(range(rank, rank + first.ndim)), tuple(range(axis, axis + first.ndim)))[()]


def apply_over_axes(func, a, axes):
    """Applies `func(a, axis)` for each axis in turn; dimensions that it removes are kept with size 1."""
    result = _a.asarray(a)
    rank = result.ndim
    for axis in axes if _a.asarray(axes).ndim else (axes,):
        axis = int(axis) + rank if axis < 0 else int(axis)
        reduced = func(result, axis)
        if reduced.ndim != rank:
            reduced = expand_dims(reduced, axis)
            if reduced.ndim != rank:
                raise ValueError("function is not returning an array of the correct shape")
        result = reduced
    return result


def iterable(y):
    try:
        iter(y)
    except TypeError:
        return False
    return True


class vectorize:
    """Makes a Python function of numbers work on arrays: it is called once for each element of the broadcast arguments,
    with Python numbers.

    A convenience that is not fast. `otypes` are the dtypes of the results (default: those of the first call); arguments
    named in `excluded` (positions or names) are passed unchanged; `signature`, e.g. "(n),(n)->()", makes it a function
    of the last dimensions."""

    def __init__(self, pyfunc=None, otypes=None, doc=None, excluded=None, cache=False, signature=None):
        if pyfunc is not None and not callable(pyfunc):
            raise TypeError(_DECORATOR)
        if isinstance(otypes, str):
            for one in otypes:
                try:
                    _a.dtype(one)
                except TypeError:
                    raise ValueError(f"Invalid otype specified: {one}") from None
        elif otypes is not None:
            otypes = "".join(_a.dtype(one).char for one in otypes)
        self.pyfunc, self.otypes, self.cache, self.signature = pyfunc, otypes, cache, signature
        self.excluded = set(excluded or ())
        self._dimensions = None if signature is None else _signature(signature)
        self.__doc__ = doc if doc is not None else getattr(pyfunc, "__doc__", None)
        if pyfunc is not None:
            self.__name__ = getattr(pyfunc, "__name__", "vectorize")

    def __call__(self, *args, **kwargs):
        if self.pyfunc is None:  # used as a decorator with arguments: this call passes the function
            if len(args) != 1 or kwargs or not callable(args[0]):
                raise TypeError(_DECORATOR)
            return vectorize(args[0], self.otypes, self.__doc__, self.excluded, self.cache, self.signature)
        positions = [position for position in range(len(args)) if position not in self.excluded]
        names = [name for name in kwargs if name not in self.excluded]

        def function(*values):
            positional, keywords = list(args), dict(kwargs)
            for position, value in zip(positions, values):
                positional[position] = value
            keywords.update(zip(names, values[len(positions) :]))
            return self.pyfunc(*positional, **keywords)

        arrays = [_a.asarray(args[position]) for position in positions] + [_a.asarray(kwargs[name]) for name in names]
        if not arrays:
            return function()
        return self._by_rows(function, arrays) if self._dimensions else self._by_elements(function, arrays)

    def _by_elements(self, function, arrays):
        from vmhost.engine.numpy._shapes import broadcast_arrays

        arrays = broadcast_arrays(*arrays)
        shape, columns = arrays[0].shape, [array.ravel().tolist() for array in arrays]
        if not columns[0] and self.otypes is None:
            raise ValueError("cannot call `vectorize` on size 0 inputs unless `otypes` is set")
        rows = []
        if columns[
            0
        ]:  # as in NumPy, the first call sees elements of the arrays' dtypes, which give those of the results
            first = [
                column[0] if array.dtype.name in _PYTHON else array.ravel()[0] for array, column in zip(arrays, columns)
            ]
            rows = [function(*first), *(function(*row) for row in islice(zip(*columns), 1, None))]
        several = isinstance(rows[0], tuple) if rows else len(self.otypes) > 1
        results = list(zip(*rows)) if rows and several else [[] for _ in self.otypes] if several else [rows]
        if self.otypes is not None and len(self.otypes) < len(results):
            raise ValueError(f"the function gives {len(results)} values, otypes has {len(self.otypes)}")
        shaped = []
        for k, values in enumerate(results):
            dtype = _a.dtype(self.otypes[k]) if self.otypes is not None else _a.asarray(values[0]).dtype
            if values and _a.asarray(values[0]).ndim:
                raise ValueError("setting an array element with a sequence.")
            result = _a.empty(len(values), dtype)
            result[...] = _a.asarray(values).astype(dtype) if values else 0
            shaped.append(result.reshape(shape))
        return tuple(shaped) if several else shaped[0]

    def _by_rows(self, function, arrays):
        inputs, outputs = self._dimensions
        if len(arrays) != len(inputs):
            raise TypeError(f"wrong number of positional arguments: expected {len(inputs)}, got {len(arrays)}")
        from vmhost.engine.numpy._shapes import broadcast_shapes

        sizes, outer = {}, []
        for array, names in zip(arrays, inputs):
            if array.ndim < len(names):
                raise ValueError(
                    f"{array.ndim}-dimensional argument does not have enough dimensions for all core dimensions {names}"
                )
            _measure(sizes, array.shape[array.ndim - len(names) :], names)
            outer.append(array.shape[: array.ndim - len(names)])
        shape = broadcast_shapes(*outer)
        arrays = [
            _a.broadcast_to(array, shape + array.shape[array.ndim - len(names) :])
            for array, names in zip(arrays, inputs)
        ]
        from vmhost.engine.numpy._grids import ndindex

        filled = None
        for index in ndindex(*shape):
            results = function(*(array[index] for array in arrays))
            count = len(results) if isinstance(results, tuple) else 1
            if count != len(outputs):
                raise ValueError(f"wrong number of outputs from pyfunc: expected {len(outputs)}, got {count}")
            results = results if len(outputs) > 1 else (results,)
            results = [_a.asarray(result) for result in results]
            for result, names in zip(results, outputs):
                _measure(sizes, result.shape, names)
            if filled is None:
                filled = [
                    _a.empty(shape + result.shape, self.otypes[k] if self.otypes else result.dtype)
                    for k, result in enumerate(results)
                ]
            for one, result in zip(filled, results):
                one[index] = result
        if filled is None:
            if self.otypes is None:
                raise ValueError("cannot call `vectorize` on size 0 inputs unless `otypes` is set")
            if any(name not in sizes for names in outputs for name in names):
                raise ValueError(
                    "cannot call `vectorize` with a signature including new output dimensions on size 0 inputs"
                )
            filled = [
                _a.empty(shape + tuple(sizes[name] for name in names), dtype)
                for names, dtype in zip(outputs, self.otypes)
            ]
        return tuple(filled) if len(outputs) > 1 else filled[0]


_DECORATOR = "When used as a decorator, only accepts keyword arguments."


def _signature(text):
    """("(m,n),(n)->(m)") as ([("m", "n"), ("n",)], [("m",)])."""
    import re

    group = r"\(\s*(?:\w+\s*(?:,\s*\w+\s*)*)?\)"
    groups = rf"\s*{group}\s*(?:,\s*{group}\s*)*"
    if re.fullmatch(rf"{groups}->{groups}", text) is None:
        raise ValueError(f"not a valid gufunc signature: {text}")
    return tuple([tuple(re.findall(r"\w+", one)) for one in re.findall(group, side)] for side in text.split("->"))


def _measure(sizes, shape, names):
    """Records the sizes of the named dimensions, which must be consistent."""
    if len(shape) != len(names):
        raise ValueError(
            f"{len(shape)}-dimensional argument does not have enough dimensions for all core dimensions {names}"
        )
    for name, size in zip(names, shape):
        if sizes.setdefault(name, size) != size:
            raise ValueError(f"inconsistent size for core dimension {name!r}: {size!r} vs {sizes[name]!r}")
