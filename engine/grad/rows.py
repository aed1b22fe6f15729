"""Gradients of tables of which a function read only some rows."""

from vmhost.engine import _array as _a
from vmhost.engine.grad.traced import call


class RowGradient:
    """The gradient of an array of `shape` that is zero except in some rows: `rows[i]` belongs to row `ids[i]`.

    `ids` (int64, one dimension) may contain a row several times: its gradient is the sum. `combined()` has each row
    once."""

    __slots__ = ("ids", "rows", "shape")

    def __init__(self, ids, rows, shape):
        self.ids, self.rows, self.shape = ids, rows, tuple(shape)

    @property
    def dtype(self):
        return self.rows.dtype

    def combined(self):
        """The same with ascending unique ids."""
        from vmhost.engine.numpy import unique

        ids, positions = unique(self.ids, return_inverse=True)
        if len(ids) == len(self.ids):
            order = self.ids.argsort()
            return RowGradient(self.ids[order], self.rows[order], self.shape)
        return RowGradient(ids, call("scatter_add", self.rows, positions, (len(ids), *self.shape[1:])), self.shape)

    def dense(self):
        """The gradient as a full array."""
        return call("scatter_add", self.rows, self.ids, self.shape)

    def __add__(self, other):
        if isinstance(other, RowGradient):
            ids = _a.concatenate([self.ids, other.ids])
            return RowGradient(ids, _a.concatenate([self.rows, other.rows]), self.shape)
        return self.dense() + other

    __radd__ = __add__

    def __mul__(self, number):
        """Multiplies all rows by a number."""
        return RowGradient(self.ids, self.rows * number, self.shape)

    __rmul__ = __mul__

    def __repr__(self):
        return f"RowGradient({len(self.ids)} rows, shape={self.shape})"
