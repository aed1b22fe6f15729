"""`array.flat`: access to elements by their flat index in C order, without a copy."""

from vmhost.engine import _array as _a


class flatiter:
    """An array as a 1-d sequence in C order: iteration, `flat[3]`, `flat[::2]` (a copy), `flat[[1, 5]] = 0`."""

    __slots__ = ("base", "_next")

    def __init__(self, array):
        self.base, self._next = array, 0

    def __len__(self):
        return self.base.size

    def __iter__(self):
        return self

    def __next__(self):
        if self._next >= self.base.size:
            raise StopIteration
        self._next += 1
        return self.base.reshape(-1)[self._next - 1]

    @property
    def index(self):
        return self._next

    @property
    def coords(self):
        """The index of the next element."""
        from vmhost.engine.numpy._grids import unravel_index

        return tuple(int(index) for index in unravel_index(self._next, self.base.shape))

    def __getitem__(self, key):
        items = self.base.reshape(-1)[_row_key(key)]
        return items.copy() if items.ndim else items

    def __setitem__(self, key, value):
        if isinstance(key, tuple) and not key:
            raise IndexError("Assigning to a flat iterator with a 0-D index is not supported")
        key = _row_key(key)
        try:
            value = _a.asarray(value) if isinstance(value, _a.ndarray) else _a.asarray(value, self.base.dtype)
        except OverflowError as error:
            if isinstance(key, slice) or not hasattr(key, "__index__"):
                raise
            raise ValueError("Error setting single item of array.") from error
        if self.base.flags.c_contiguous:
            row = self.base.reshape(-1)
            row[key] = _repeated(value, row[key])
            return
        from vmhost.engine.numpy._grids import unravel_index

        indices = _a.arange(self.base.size)[key]
        self.base[unravel_index(indices, self.base.shape)] = _repeated(value, indices)

    def __delitem__(self, key):
        raise TypeError("Cannot delete elements of a flat iterator")

    def copy(self):
        return self.base.flatten()

    def __array__(self, dtype=None, copy=None):
        """The elements as a row: a view where they lie so, else a copy that cannot be written."""
        base = self.base
        row = base.reshape(-1) if base.flags.c_contiguous else base.flatten()
        if not base.flags.c_contiguous:
            row.flags.writeable = False
        return row if dtype is None else row.astype(dtype, copy=bool(copy))

    def __eq__(self, other):
        return self.base.reshape(-1) == other

    __hash__ = None


def _row_key(key):
    """`key` as an index of the flat row. A truth value selects the first element or none; lists are no masks."""
    if key is Ellipsis or isinstance(key, tuple) and not key:
        return slice(None)
    if isinstance(key, tuple) and len(key) == 1:
        key = key[0]
    if key is None:
        raise IndexError(
            "only integers, slices (`:`), ellipsis (`...`) and integer or boolean arrays are valid indices"
        )
    if isinstance(key, list) and key and all(isinstance(item, bool) for item in key):
        raise IndexError(
            "boolean indices for iterators are not supported because of previous behavior that was confusing (valid"
            " boolean indices are expected to match the size of the iterator): make an array of them"
        )
    if isinstance(key, bool) or isinstance(key, _a.ndarray) and key.dtype.kind == "b" and not key.ndim:
        return 0 if key else slice(0, 0)
    return key


def _repeated(value, indices):
    """As many values as indices; values repeat if there are fewer."""
    value = _a.ravel(value)
    if value.size in (1, indices.size) or not value.size:
        return value if indices.ndim else value[0]
    return value[_a.arange(indices.size) % value.size].reshape(indices.shape)
