"""Gradient rules of the operators.

A rule computes the operator on plain values and returns (result, pulls): for each array argument a function from the
result's gradient to the argument's gradient, called only if that is needed, or None if the result does not depend on
it. Rules use the engine's own functions, so gradients of gradients work without further rules.

A pull has the arrays that it reads in its closure or defaults, where the tape looks for those that were written since.
Where a derivative is 0, gradients are selected, not multiplied: infinity times 0 would be NaN.
"""

import math

from vmhost.engine import _array as _a
from vmhost.engine.grad.traced import call

RULES = {}
OF_LISTS = {"concatenate"}  # their first argument is a list of arrays

# The result does not depend on the arguments, or is piecewise constant: it is a plain array without a gradient.
CONSTANT = frozenset(
    "sign floor ceil trunc rint isnan isinf isfinite signbit imag logical_not invert bitwise_count floor_divide "
    "bitwise_and bitwise_or bitwise_xor left_shift right_shift equal not_equal less less_equal greater "
    "greater_equal logical_and logical_or logical_xor gcd lcm all any argmax argmin count_nonzero nonzero "
    "argsort searchsorted zeros_like ones_like empty_like zeros ones empty _address _alone _kinds _writes "
    "_bits_packed _bits_unpacked _bpe_pieces _bpe_table _unigram_pieces _unigram_table _words _shortest "
    "promote_types result_type can_cast _statistics".split()
)
# No rule yet: a gradient through them is refused, naming the operator.
REFUSED = frozenset(
    "arange _random "
    "_fmax _fmin _cummax _cummin cumprod frombuffer _as_strided _partition _scatter_add _interp _reduceat _windows "
    "from_dlpack _split _parts _fft _linear _trace _model_arrays _model_backends _model_names _model_open _model_ports "
    "_model_run _model_steps _text_numbers _labelled_rows "
    "_embedding_bags _embedding_evict _embedding_lookup _embedding_names _embedding_new _embedding_open "
    "_embedding_put _embedding_snapshot _embedding_snapshot_bloom _embedding_snapshot_end _embedding_snapshot_read "
    "_embedding_snapshot_rows _embedding_snapshot_waiting _embedding_statistics _embedding_update "
    "_embedding_update_bags _normalize _normalize_gradient".split()
)


def rule(function):
    RULES[function.__name__.rstrip("_")] = function
    return function


# ---- elementwise
def _fit(g, x):
    """`g` summed over the dimensions along which `x` was broadcast, in the dtype of `x`."""
    shape = x.shape
    if g.shape != shape:
        leading = len(g.shape) - len(shape)
        if leading:
            g = _a.sum(g, tuple(range(leading)))
        broadcast = tuple(i for i, size in enumerate(shape) if size == 1 and g.shape[i] != 1)
        if broadcast:
            g = _a.sum(g, broadcast, keepdims=True)
    return g if g.dtype is x.dtype else _a.astype(g, x.dtype)


def _unary(name, derivative):
    """A rule for a unary operator: `derivative(x, y)`, where y is the result."""
    base = getattr(_a, name)

    def unary(x):
        y = base(x)
        return y, (lambda g: g * derivative(x, y),)

    RULES[name] = unary


_ROOT_PI = 2 / math.sqrt(math.pi)
for _name, _derivative in {
    "absolute": lambda x, y: _a.sign(x),
    "square": lambda x, y: x * 2,
    "sqrt": lambda x, y: 0.5 / y,
    "cbrt": lambda x, y: 1 / (3 * y * y),
    "reciprocal": lambda x, y: -(y * y),
    "exp": lambda x, y: y,
    "exp2": lambda x, y: y * math.log(2),
    "expm1": lambda x, y: y + 1,
    "log": lambda x, y: 1 / x,
    "log2": lambda x, y: (1 / math.log(2)) / x,
    "log10": lambda x, y: (1 / math.log(10)) / x,
    "log1p": lambda x, y: 1 / (x + 1),
    "sin": lambda x, y: _a.cos(x),
    "cos": lambda x, y: -_a.sin(x),
    "tan": lambda x, y: y * y + 1,
    "arcsin": lambda x, y: 1 / _a.sqrt(1 - x * x),
    "arccos": lambda x, y: -1 / _a.sqrt(1 - x * x),
    "arctan": lambda x, y: 1 / (x * x + 1),
    "sinh": lambda x, y: _a.cosh(x),
    "cosh": lambda x, y: _a.sinh(x),
    "tanh": lambda x, y: 1 - y * y,
    "arcsinh": lambda x, y: 1 / _a.sqrt(x * x + 1),
    "arccosh": lambda x, y: 1 / _a.sqrt(x * x - 1),
    "arctanh": lambda x, y: 1 / (1 - x * x),
    "erf": lambda x, y: _a.exp(-(x * x)) * _ROOT_PI,
}.items():
    _unary(_name, _derivative)


@rule
def negative(x):
    return -x, (lambda g: -g,)


def _same(g):
    return g


def _unchanged(x, *_, **__):
    return x, (_same,)


RULES["positive"] = RULES["real"] = RULES["conjugate"] = _unchanged
RULES["copy"] = lambda x, *_, **__: (_a.copy(x), (_same,))


def _alike(x, y, z):
    """Whether the result has the shape and dtype of both arguments, so that gradients need no reduction."""
    kind = z.dtype
    return x.dtype is kind and y.dtype is kind and x.shape == y.shape if type(y) is type(z) is type(x) else False


@rule
def add(x, y):
    z = x + y
    if _alike(x, y, z):
        return z, (_same, _same)
    return z, (lambda g: _fit(g, x), lambda g: _fit(g, y))


@rule
def subtract(x, y):
    z = x - y
    if _alike(x, y, z):
        return z, (_same, _negated)
    return z, (lambda g: _fit(g, x), lambda g: _fit(-g, y))


def _negated(g):
    return -g


@rule
def multiply(x, y):
    z = x * y
    if _alike(x, y, z):
        return z, (lambda g: g * y, lambda g: g * x)
    return z, (lambda g: _fit(g * y, x), lambda g: _fit(g * x, y))


@rule
def divide(x, y):
    z = x / y
    return z, (lambda g: _fit(g / y, x), lambda g: _fit(-(g * z) / y, y))


@rule
def power(x, y):
    z = x**y
    if type(y) in (int, float):
        if y == 0:  # 0 * x ** -1 is NaN at 0
            return z, (lambda g: _a.zeros(x.shape, x.dtype), None)
        return z, (lambda g: g * (x ** (y - 1) * y), None)

    def base_gradient(g):
        flat = _a.equal(y, 0)
        slope = y * x ** (_a.where(flat, 1.0, y) - 1.0)
        return _fit(_a.where(flat, 0.0, g * slope), x)

    def exponent_gradient(g):  # that of 0 ** y is 0 from y = 0 on
        flat = _a.logical_and(_a.equal(x, 0), _a.greater_equal(y, 0))
        return _fit(g * z * _a.log(_a.where(flat, 1.0, x)), y)

    return z, (base_gradient, exponent_gradient)


def _chosen(x, extreme):
    """Where x is the extreme; a NaN is one, where the extreme is NaN."""
    return _a.logical_or(_a.equal(x, extreme), _a.logical_and(_a.isnan(x), _a.isnan(extreme)))


def _pairwise_extreme(name):
    base = getattr(_a, name)

    def binary(x, y):
        z = base(x, y)

        def share(g, own, other):  # equal elements get half each
            return _a.where(_a.equal(own, other), g * 0.5, _a.where(_chosen(own, z), g, 0.0))

        return z, (lambda g: _fit(share(g, x, y), x), lambda g: _fit(share(g, y, x), y))

    RULES[name] = binary


for _name in ("maximum", "minimum", "fmax", "fmin"):
    _pairwise_extreme(_name)


@rule
def arctan2(x, y):
    return _a.arctan2(x, y), (
        lambda g: _fit(g * y / (x * x + y * y), x),
        lambda g: _fit(-g * x / (x * x + y * y), y),
    )


@rule
def hypot(x, y):
    z = _a.hypot(x, y)
    return z, (lambda g: _fit(g * x / z, x), lambda g: _fit(g * y / z, y))


@rule
def copysign(x, y):
    return _a.copysign(x, y), (lambda g: _fit(g * _a.copysign(_a.sign(x), y) * _a.sign(x), x), None)


@rule
def logaddexp(x, y):
    def share(own, other):  # also of infinities: equal ones get half each
        return _a.where(_a.equal(own, other), 0.5, 1 / (_a.exp(_a.subtract(other, own)) + 1))

    return _a.logaddexp(x, y), (lambda g: _fit(g * share(x, y), x), lambda g: _fit(g * share(y, x), y))


@rule
def heaviside(x, y):
    return _a.heaviside(x, y), (None, lambda g: _fit(_a.where(_a.equal(x, 0), g, 0.0), y))


@rule
def nextafter(x, y):
    return _a.nextafter(x, y), (lambda g: _fit(g, x), None)


@rule
def remainder(x, y):
    return _a.remainder(x, y), (lambda g: _fit(g, x), lambda g: _fit(-g * _a.floor(x / y), y))


@rule
def fmod(x, y):
    return _a.fmod(x, y), (lambda g: _fit(g, x), lambda g: _fit(-g * _a.trunc(x / y), y))


@rule
def where(condition, x, y):
    return _a.where(condition, x, y), (
        None,
        lambda g: _fit(_a.where(condition, g, 0.0), x),
        lambda g: _fit(_a.where(condition, 0.0, g), y),
    )


@rule
def clip(x, low=None, high=None):
    """A bound has the gradient of the elements that it replaces. The upper one applies last."""

    def within(g):
        g = g if low is None else _a.where(_a.less(x, low), 0.0, g)
        return g if high is None else _a.where(_a.greater(x, high), 0.0, g)

    def of_low(g):
        g = _a.where(_a.less(x, low), g, 0.0)
        return _fit(g if high is None else _a.where(_a.greater(low, high), 0.0, g), low)

    def of_high(g):
        replaced = _a.greater(x if low is None else _a.maximum(x, low), high)
        return _fit(_a.where(replaced, g, 0.0), high)

    return _a.clip(x, low, high), (lambda g: _fit(within(g), x), of_low, of_high)


@rule
def full(shape, fill_value, dtype=None, order="C"):
    return _a.full(shape, fill_value, dtype), (None, lambda g: _fit(g, fill_value))


@rule
def full_like(x, fill_value, dtype=None, *_, **__):
    return _a.full(x.shape, fill_value, x.dtype if dtype is None else dtype), (None, lambda g: _fit(g, fill_value))


# ---- dtypes
@rule
def astype(x, dtype, *, copy=True, device=None):
    kind = x.dtype
    y = _a.astype(x, dtype)
    return y, (lambda g: _a.astype(g, kind),) if y.dtype.kind in "fc" else (None,)


def _converted(x, dtype=None, order=None, *, ndmin=0, **_):
    y = x if dtype is None or _a.dtype(dtype) is x.dtype else _a.astype(x, dtype)
    if y.dtype.kind not in "fc":
        return y, (None,)
    if y.ndim < ndmin:
        y = _a.reshape(y, (1,) * (ndmin - y.ndim) + y.shape)
    return y, (lambda g: _fit(_a.reshape(g, x.shape), x),)


def _converted_copy(x, *args, copy=True, **options):
    return _converted(_a.copy(x) if copy else x, *args, **options)


RULES["array"] = _converted_copy
RULES["asarray"] = RULES["ascontiguousarray"] = _converted


# ---- reductions
def _axes(axis, rank):
    """The axes as a sorted tuple of non-negative numbers."""
    if axis is None:
        return tuple(range(rank))
    return tuple(sorted({one % rank for one in (axis if isinstance(axis, (tuple, list)) else (axis,))})) if rank else ()


def _keepdims_shape(shape, axis):
    axes = _axes(axis, len(shape))
    return tuple(1 if i in axes else size for i, size in enumerate(shape))


def _refuse_options(name, out, initial=None, where=True):
    if out is not None or initial is not None or where is not True:
        raise TypeError(f"engine.grad: {name}() of a traced array takes no out=, initial= or where=")


@rule
def sum_(x, axis=None, dtype=None, out=None, keepdims=False, initial=None, where=True):
    _refuse_options("sum", out, initial, where)
    shape, kind = x.shape, x.dtype
    if axis is None and dtype is None and not keepdims:
        return _a.sum(x), (lambda g: _a.broadcast_to(g, shape),)
    kept = _keepdims_shape(shape, axis)

    def back(g):
        g = g if g.dtype is kind else _a.astype(g, kind)
        return _a.broadcast_to(_a.reshape(g, kept), shape)

    return _a.sum(x, axis, dtype, keepdims=bool(keepdims)), (back,)


@rule
def mean(x, axis=None, dtype=None, out=None, keepdims=False, *, where=True):
    _refuse_options("mean", out, where=where)
    kept, kind, shape = _keepdims_shape(x.shape, axis), x.dtype, x.shape
    count = math.prod(shape) // max(math.prod(kept), 1)

    def back(g):
        return _a.broadcast_to(_a.reshape(_a.astype(g, kind) / count, kept), shape)

    return _a.mean(x, axis, dtype, keepdims=bool(keepdims)), (back,)


def _reduced_extreme(name):
    base = getattr(_a, name)

    def extreme(x, axis=None, out=None, keepdims=False, initial=None, where=True):
        _refuse_options(name, out, initial, where)
        kept = _keepdims_shape(x.shape, axis)
        y = base(x, axis, keepdims=bool(keepdims))

        def back(g):  # equal elements share it
            chosen = _chosen(x, _a.reshape(y, kept))
            count = _a.sum(_a.astype(chosen, x.dtype), _axes(axis, len(kept)), keepdims=True)
            return _a.where(chosen, _a.reshape(g, kept) / count, 0.0)

        return y, (back,)

    RULES[name] = extreme


_reduced_extreme("max")
_reduced_extreme("min")


@rule
def prod(x, axis=None, dtype=None, out=None, keepdims=False, initial=None, where=True):
    _refuse_options("prod", out, initial, where)
    axis = axis if x.ndim else None
    if axis is not None and isinstance(axis, (tuple, list)):
        raise TypeError("engine.grad: prod() of a traced array takes one axis, or None")
    kept = _keepdims_shape(x.shape, axis)

    def back(g):
        if not x.size:
            return _a.zeros(x.shape, x.dtype)
        rows = _a.reshape(x, (-1,)) if axis is None else _a.swapaxes(x, axis, -1)
        one = _a.ones((*rows.shape[:-1], 1), rows.dtype)
        # the product of the other elements, as the product before times the product after: correct even with zeros
        before = _a.cumprod(_a.concatenate([one, rows[..., :-1]], -1), -1)
        after = _a.cumprod(_a.concatenate([one, rows[..., :0:-1]], -1), -1)[..., ::-1]
        others = before * after
        others = _a.reshape(others, x.shape) if axis is None else _a.swapaxes(others, axis, -1)
        return others * _a.reshape(g, kept)

    return _a.prod(x, axis, dtype, keepdims=bool(keepdims)), (back,)


@rule
def cumsum(x, axis=None, dtype=None, out=None):
    _refuse_options("cumsum", out)
    axis = axis if x.ndim else None

    def back(g):
        at = (slice(None),) * (0 if axis is None else axis % x.ndim) + (slice(None, None, -1),)
        return _fit(_a.reshape(call("getitem", _a.cumsum(call("getitem", g, at), axis or 0), at), x.shape), x)

    return _a.cumsum(x, axis, dtype), (back,)


# ---- shapes
@rule
def reshape(x, shape, order="C", *, copy=None):
    _refuse_fortran("reshape", order)
    before = x.shape
    return _a.reshape(x, shape), (lambda g: _a.reshape(g, before),)


def _refuse_fortran(name, order):
    if order == "F":
        raise TypeError(f"engine.grad: {name}() of a traced array works in order 'C' only; transpose first")


@rule
def ravel(x, order="C"):
    _refuse_fortran("ravel", order)
    before = x.shape
    return _a.reshape(x, (-1,)), (lambda g: _a.reshape(g, before),)


@rule
def squeeze(x, axis=None):
    before = x.shape
    return _a.squeeze(x, axis), (lambda g: _a.reshape(g, before),)


@rule
def transpose(x, axes=None):
    if axes is None:
        return _a.transpose(x), (lambda g: _a.transpose(g),)
    inverse = sorted(range(x.ndim), key=[one % x.ndim for one in axes].__getitem__)
    return _a.transpose(x, axes), (lambda g: _a.transpose(g, inverse),)


@rule
def swapaxes(x, axis1, axis2):
    return _a.swapaxes(x, axis1, axis2), (lambda g: _a.swapaxes(g, axis1, axis2),)


@rule
def broadcast_to(x, shape, subok=False):
    return _a.broadcast_to(x, shape), (lambda g: _fit(g, x),)


@rule
def concatenate(arrays, axis=0, out=None, *, dtype=None, casting="same_kind"):
    _refuse_options("concatenate", out)
    if axis is None:
        shapes, arrays = [one.shape for one in arrays], [_a.reshape(one, (-1,)) for one in arrays]
        axis = 0
    else:
        shapes = None
    leading, pulls, start = (slice(None),) * (axis % arrays[0].ndim), [], 0
    for i, one in enumerate(arrays):
        stop = start + one.shape[axis]

        def back(g, one=one, key=(*leading, slice(start, stop)), shape=shapes and shapes[i]):
            part = _fit(call("getitem", g, key), one)
            return part if shape is None else _a.reshape(part, shape)

        pulls.append(back)
        start = stop
    return _a.concatenate(arrays, axis, dtype=dtype), pulls


@rule
def diagonal(x, offset=0, axis1=0, axis2=1):
    indices = _a.diagonal(_a.reshape(_a.arange(x.size), x.shape), offset, axis1, axis2)
    return _a.diagonal(x, offset, axis1, axis2), (lambda g: _spread(g, indices, x.shape),)


@rule
def trace(x, offset=0, axis1=0, axis2=1, dtype=None, out=None):
    _refuse_options("trace", out)
    indices = _a.diagonal(_a.reshape(_a.arange(x.size), x.shape), offset, axis1, axis2)

    def back(g):
        return _spread(_a.broadcast_to(_a.reshape(g, (*g.shape, 1)), indices.shape), indices, x.shape)

    return _a.sum(_a.diagonal(x, offset, axis1, axis2), -1, dtype), (back,)


def _spread(g, indices, shape):
    """Zeros of that shape, to which `g` is added at the elements with these flat `indices` (C order)."""
    flat = call("scatter_add", _a.reshape(g, (-1,)), _a.reshape(indices, (-1,)), (math.prod(shape),))
    return _a.reshape(flat, shape)


@rule
def _pad(x, before, shape, mode, value=None):
    y = _a._pad(x, before, shape, mode) if value is None else _a._pad(x, before, shape, mode, value)

    def back(g):
        if mode == 0:
            return call("getitem", g, tuple(slice(b, b + size) for b, size in zip(before, x.shape)))
        return _spread(g, _a._pad(_a.reshape(_a.arange(x.size), x.shape), before, shape, mode), x.shape)

    return y, (back,)


@rule
def _tile(x, shape):
    split = [part for whole, size in zip(shape, x.shape) for part in (whole // size if size else 0, size)]
    return _a._tile(x, shape), (lambda g: _a.sum(_a.reshape(g, split), tuple(range(0, len(split), 2))),)


@rule
def _roll(x, shifts):
    back = tuple((size - by) % size if size else 0 for by, size in zip(shifts, x.shape))
    return _a._roll(x, shifts), (lambda g: _a._roll(g, back),)


@rule
def sort(x, axis=-1, kind=None, order=None, *, stable=None, descending=False):
    if descending:
        raise TypeError("engine.grad: sort() of a traced array is ascending only; flip the result")
    flat = axis is None
    rows = _a.reshape(x, (-1,)) if flat else x
    at = -1 if flat else axis
    chosen = _a.argsort(rows, at)

    def back(g):
        from vmhost.engine.numpy import take_along_axis

        return _a.reshape(take_along_axis(g, _a.argsort(chosen, at), at), x.shape)

    return _a.sort(rows, at), (back,)


# ---- indexing
def _is_integer_array(key):
    return hasattr(key, "dtype") and key.dtype.kind in "iu"


def _takes_once(key):
    """Whether a part of a key takes no element twice: a slice, a whole number, a mask, None, Ellipsis."""
    if hasattr(key, "dtype"):
        return key.dtype.kind == "b" or not key.ndim
    return key is None or key is Ellipsis or isinstance(key, (slice, int)) or hasattr(key, "__index__")


@rule
def getitem(x, key):
    shape = x.shape
    parts = key if isinstance(key, tuple) else (key,)
    once = all(map(_takes_once, parts))
    if not once:  # a list may change until the gradient is taken
        parts = tuple(one if _takes_once(one) or hasattr(one, "dtype") else _a.array(one) for one in parts)
        key = parts if isinstance(key, tuple) else parts[0]

    def back(g):
        if _is_integer_array(key) and key.ndim and len(shape):
            return _row_gradient(g, key, shape)
        return call("scatter" if once else "scatter_add", g, key, shape)

    return call("getitem", x, key), (back,)


def _row_gradient(g, ids, shape):
    from vmhost.engine.grad.rows import RowGradient

    ids = _a.reshape(_a.astype(ids, _a.int64), (-1,))
    if (negative := ids < 0).any():
        ids = _a.where(negative, ids + shape[0], ids)
    return RowGradient(ids, _a.reshape(g, (ids.size, *shape[1:])), shape)


@rule
def take(x, indices, axis=None, out=None, mode="raise"):
    _refuse_options("take", out)
    if mode != "raise":
        raise TypeError(f"engine.grad: take() of a traced array: expected mode 'raise', got {mode!r}")
    indices = _a.asarray(indices)
    indices = _a.astype(indices, _a.int64) if indices.dtype.kind == "b" else indices  # as a key it would be a mask
    if axis is None and x.ndim != 1:
        return _a.take(x, indices), (lambda g: _spread(g, indices, x.shape),)
    at, shape = (axis or 0) % x.ndim, x.shape

    def back(g):
        if at == 0:
            return _row_gradient(g, indices, shape)
        return call("scatter_add", g, (*(slice(None),) * at, indices), shape)

    return _a.take(x, indices, at), (back,)


def _scattered(name):
    def scattered(values, key, shape):
        return call(name, values, key, shape), (lambda g: call("getitem", g, key),)

    RULES[name] = scattered


_scattered("scatter")
_scattered("scatter_add")


@rule
def _bincount(indices, weights, length):
    return _a._bincount(indices, weights, length), (None, lambda g: call("getitem", g, indices))


# ---- windows over images
@rule
def _patches(x, windows):
    shape = x.shape
    return _a._patches(x, windows), (lambda g: _a._patches_sum(g, windows, shape),)


@rule
def _patches_sum(patches, windows, shape):
    return _a._patches_sum(patches, windows, shape), (lambda g: _a._patches(g, windows),)


@rule
def _max_pool(x, windows):
    y = _a._max_pool(x, windows)
    return y, (lambda g: _a._pool_gradient(x, y, g, windows),)


@rule
def _pool_gradient(x, y, g, windows):
    def back(h):  # the mean over the maxima of each window
        patch_shape = (*x.shape[:2], -1, y.shape[2] * y.shape[3])
        top = _a.reshape(y, (*x.shape[:2], 1, -1))
        chosen = _a.astype(_a.equal(_a.reshape(_a._patches(x, windows), patch_shape), top), x.dtype)
        seen = _a.reshape(_a._patches(h, windows), patch_shape)
        return _a.reshape(_a.sum(chosen * seen, 2) / _a.sum(chosen, 2), y.shape)

    return _a._pool_gradient(x, y, g, windows), (None, None, back)


@rule
def _depthwise(x, weight, windows):
    pulls = (
        lambda g: _a._depthwise_images(g, weight, windows, x.shape),
        lambda g: _a._depthwise_weights(x, g, windows),
    )
    return _a._depthwise(x, weight, windows), pulls


@rule
def _depthwise_images(g, weight, windows, shape):
    pulls = lambda h: _a._depthwise(h, weight, windows), lambda h: _a._depthwise_weights(h, g, windows)
    return _a._depthwise_images(g, weight, windows, shape), pulls


@rule
def _depthwise_weights(x, g, windows):
    pulls = lambda h: _a._depthwise_images(g, h, windows, x.shape), lambda h: _a._depthwise(x, h, windows)
    return _a._depthwise_weights(x, g, windows), pulls


# ---- products
@rule
def matmul(x, y, out=None):
    _refuse_options("matmul", out)
    if x.ndim < 1 or y.ndim < 1:
        return _a.matmul(x, y), ()  # raises the error
    left = _a.reshape(x, (1, x.shape[0])) if x.ndim == 1 else x
    right = _a.reshape(y, (y.shape[0], 1)) if y.ndim == 1 else y

    def as_matrices(g):
        if x.ndim == 1:
            g = _a.reshape(g, (*g.shape[: g.ndim - (y.ndim > 1)], 1, *g.shape[g.ndim - (y.ndim > 1) :]))
        return _a.reshape(g, (*g.shape, 1)) if y.ndim == 1 else g

    def left_gradient(g):
        if x.ndim == 2 and y.ndim == 3 and x.size > (g.shape[1] + y.shape[1]) * y.shape[2]:
            # many products with few columns: one product over all columns costs less than the products and their sum
            joined = [_a.reshape(_a.transpose(one, (1, 0, 2)), (one.shape[1], -1)) for one in (g, y)]
            return _fit(_a.matmul(joined[0], _a.transpose(joined[1])), x)
        return _a.reshape(_fit(_a.matmul(as_matrices(g), _a.swapaxes(right, -1, -2)), left), x.shape)

    return _a.matmul(x, y), (
        left_gradient,
        lambda g: _a.reshape(_fit(_a.matmul(_a.swapaxes(left, -1, -2), as_matrices(g)), right), y.shape),
    )


@rule
def dot(x, y, out=None):
    _refuse_options("dot", out)
    x, y = _a.asarray(x), _a.asarray(y)
    if not x.ndim or not y.ndim:
        return multiply(x, y)
    if y.ndim <= 2:
        return matmul(x, y)
    raise TypeError("engine.grad: dot() of a traced array takes vectors and matrices; use matmul or einsum")
