"""For each operator that has a gradient, calls of it whose gradient is compared with finite differences.

A case is (name of the rule, function, arrays). The arrays are float64 and away from jumps and kinks.
"""

import vmhost.engine.numpy as np
from vmhost.engine import nn
from vmhost.engine._array import (
    _depthwise,
    _depthwise_images,
    _depthwise_weights,
    _max_pool,
    _patches,
    _patches_sum,
    _pool_gradient,
)
from vmhost.engine.grad.traced import call
from vmhost.engine.nn.layers import Moments

_random = np.random.default_rng(7)


def _some(*shape, low=-2.0, high=2.0):
    return _random.uniform(low, high, shape)


X, Y, ROW, COLUMN, SCALAR = _some(3, 4), _some(3, 4), _some(4), _some(3, 1), _some()
POSITIVE, SMALL = _some(3, 4, low=0.5, high=2.5), _some(3, 4, low=-0.8, high=0.8)
CUBE = _some(2, 3, 4)
IMAGES = _some(1, 2, 5, 9)
IDS = np.array([2, 0, 2, -1])
PLACES = np.array([[0, 2], [2, 1]])


def _depthwise_cases(weights, windows):
    """Of images with two channels: each of the three functions by each of its arrays."""
    made = _depthwise(IMAGES, weights, windows)
    g = _some(*made.shape)
    return (
        ("_depthwise", lambda x, w: _depthwise(x, w, windows), (IMAGES, weights)),
        ("_depthwise_images", lambda g, w: _depthwise_images(g, w, windows, IMAGES.shape), (g, weights)),
        ("_depthwise_weights", lambda x, g: _depthwise_weights(x, g, windows), (IMAGES, g)),
    )


CASES = [
    *((name, getattr(np, name), (X,)) for name in "negative positive absolute square exp exp2 expm1 sin cos".split()),
    *((name, getattr(np, name), (SMALL,)) for name in "tan arcsin arccos arctanh cbrt".split()),
    *(
        (name, getattr(np, name), (X,))
        for name in "arctan sinh cosh tanh arcsinh erf conjugate".split()
        if name != "erf"
    ),
    *((name, getattr(np, name), (POSITIVE,)) for name in "sqrt reciprocal log log2 log10 log1p".split()),
    ("erf", lambda x: call_of("erf", x), (X,)),
    ("sigmoid", nn.sigmoid, (X,)),
    ("relu", nn.relu, (X,)),
    ("arccosh", lambda x: np.arccosh(x + 1), (POSITIVE,)),
    ("real", lambda x: np.real(x) * 2, (X,)),
    *(
        (name, getattr(np, name), pair)
        for name in "add subtract multiply maximum minimum fmax fmin hypot logaddexp copysign arctan2".split()
        for pair in ((X, Y), (X, ROW), (COLUMN, X), (X, SCALAR), (COLUMN, ROW))
    ),
    *(
        (name, getattr(np, name), pair)
        for name in "divide remainder fmod power".split()
        for pair in (
            (POSITIVE, POSITIVE[::-1] + 0.1),
            (POSITIVE, POSITIVE[0] + 0.3),
            (POSITIVE[:, :1], POSITIVE[1] + 0.2),
        )
    ),
    ("power", lambda x: x**3, (X,)),
    ("power", lambda x: x**-1.5, (POSITIVE,)),
    ("power", lambda x: 2.0**x, (X,)),
    ("divide", lambda x: 1 / x, (POSITIVE,)),
    ("subtract", lambda x: 1 - x, (X,)),
    ("where", lambda x, y: np.where(x > 0, x * y, y), (X, ROW)),
    ("clip", lambda x: np.clip(x, -1, 1), (X,)),
    ("clip", lambda x: x.clip(max=0.5), (X,)),
    ("clip", np.clip, (X, ROW - 1, COLUMN)),  # bounds that cross: the upper one applies
    ("clip", lambda x, y: np.clip(0.3, min=x, max=y), (X, ROW)),
    ("clip", lambda x, y: x.clip(max=y), (X, Y)),
    ("clip", lambda x, y: np.clip(x, a_min=y, a_max=None), (X, Y)),
    ("heaviside", lambda x: np.heaviside(np.array([-1.0, 0, 0, 2]), x), (ROW,)),
    ("heaviside", lambda x: np.heaviside(np.array([[0.0], [1], [0]]), x), (ROW,)),
    ("nextafter", lambda x: np.nextafter(x, ROW), (X,)),
    ("full", lambda x: np.full((2, 3, 4), x), (X,)),
    ("full_like", lambda x: np.full_like(CUBE, x), (ROW,)),
    ("array", lambda x: np.array([[x[0], 1.0], [2.0, x[1]]]), (ROW,)),
    ("astype", lambda x: x.astype("float64") * 2, (X,)),
    ("array", lambda x, y: np.array([x, y, x]), (ROW, ROW * 2)),
    ("asarray", lambda x: np.asarray(x, "float64") * 3, (X,)),
    ("ascontiguousarray", lambda x: np.ascontiguousarray(x.T), (X,)),
    ("copy", lambda x: x.copy() + np.copy(x), (X,)),
    *(
        (name, lambda x, name=name, options=options: getattr(np, name)(x, **options), (CUBE,))
        for name in ("sum", "mean", "max", "min")
        for options in ({}, {"axis": 1}, {"axis": (0, -1)}, {"axis": -1, "keepdims": True})
    ),
    ("sum", lambda x: x.sum(), (SCALAR,)),
    *(("prod", lambda x, axis=axis: np.prod(x, axis), (CUBE,)) for axis in (None, 0, 1, -1)),
    ("prod", lambda x: np.prod(x * np.array([0.0, 1, 1, 1]), 1), (X,)),
    *(("cumsum", lambda x, axis=axis: np.cumsum(x, axis), (CUBE,)) for axis in (None, 0, -1)),
    ("reshape", lambda x: x.reshape(2, 6) @ np.ones(6), (X,)),
    ("ravel", lambda x: x.ravel() * np.arange(12.0), (X,)),
    ("squeeze", lambda x: np.squeeze(x, 1), (COLUMN,)),
    ("transpose", lambda x: x.transpose(2, 0, 1), (CUBE,)),
    ("transpose", lambda x: x.T, (X,)),
    ("swapaxes", lambda x: np.swapaxes(x, 0, 2), (CUBE,)),
    ("broadcast_to", lambda x: np.broadcast_to(x, (2, 3, 4)), (COLUMN,)),
    ("concatenate", lambda x, y: np.concatenate([x, y, x], 1), (X, COLUMN)),
    ("concatenate", lambda x, y: np.concatenate([x, y], None), (X, ROW)),
    ("diagonal", lambda x: np.diagonal(x, 1, 1, 2), (CUBE,)),
    ("trace", lambda x: np.trace(x), (X,)),
    ("trace", lambda x: np.trace(x, 0, 1, 2), (CUBE,)),
    *(
        ("_pad", lambda x, mode=mode: np.pad(x, ((1, 2), (0, 1)), mode), (X,))
        for mode in ("constant", "edge", "wrap", "reflect")
    ),
    ("_tile", lambda x: np.tile(x, (2, 1, 3)), (X,)),
    ("_roll", lambda x: np.roll(x, (1, -2), (0, 1)), (X,)),
    ("sort", lambda x: np.sort(x, 0), (X,)),
    ("sort", lambda x: np.sort(x, None), (X,)),
    ("getitem", lambda x: x[1], (X,)),
    ("getitem", lambda x: x[:, ::-2], (X,)),
    ("getitem", lambda x: x[..., None, 1:3], (CUBE,)),
    ("getitem", lambda x: x[IDS], (X,)),
    ("getitem", lambda x: (x * 2)[PLACES], (X,)),
    ("getitem", lambda x: x[:, PLACES], (CUBE,)),
    ("getitem", lambda x: x[IDS, IDS], (X,)),
    ("getitem", lambda x: x[np.asarray(X) > 0], (X,)),
    ("getitem", lambda x: x[[0, 0, 2]], (X,)),
    ("getitem", lambda x: x[(0, 0), :] * x[:, (1, 1, 3, 1)][:2], (X,)),
    ("getitem", lambda x: x[range(2), (3, 3)], (X,)),
    ("getitem", lambda x: x[[(0, 0), (1, 0)]], (X,)),
    ("getitem", lambda x: x[np.asarray(X) > 0, None], (X,)),
    ("getitem", lambda x: x[[True, False, True]], (X,)),
    ("_bincount", lambda x: np.bincount(IDS + 1, x, 6), (ROW,)),
    ("_bincount", lambda x: np.bincount([0, 2, 2, 1], weights=x), (ROW,)),
    ("take", lambda x: np.take(x, PLACES, 0), (X,)),
    ("take", lambda x: np.take(x, PLACES, 1), (CUBE,)),
    ("take", lambda x: x.take(PLACES), (X,)),
    ("take", lambda x: x.take(PLACES > 1), (X,)),
    ("take", lambda x: np.take(x, PLACES > 1, 1), (X,)),
    ("prod", lambda x: np.prod(x[:, :0], 1), (X,)),
    ("cumsum", lambda x: np.cumsum(x, 0), (SCALAR,)),
    ("scatter", lambda x: call("scatter", x, np.array([3, 0, 1]), (5, 4)), (X,)),
    ("scatter_add", lambda x: call("scatter_add", x, np.array([1, 1, 0]), (5, 4)), (X,)),
    *(
        ("matmul", np.matmul, pair)
        for pair in (
            (X, X.T.copy()),
            (X, ROW),
            (ROW, X.T.copy()),
            (ROW, ROW),
            (CUBE, _some(4, 5)),
            (X, _some(2, 4, 3)),
            (ROW, _some(2, 4, 3)),
            (CUBE, ROW),
        )
    ),
    ("_patches", lambda x: _patches(x, (2, 3, 2, 1, 1, 2, 1, 0)), (IMAGES,)),
    ("_patches_sum", lambda x: _patches_sum(x, (2, 2, 1, 1, 1, 1, 0, 0), (2, 3, 3, 4)), (_some(2, 12, 6),)),
    ("_max_pool", lambda x: _max_pool(x, (2, 2, 2, 2, 1, 1, 0, 0)), (IMAGES,)),
    ("_max_pool", lambda x: _max_pool(x, (3, 2, 1, 2, 1, 1, 0, 0)), (IMAGES,)),
    *(
        (
            "_pool_gradient",
            lambda g, k=kernel: _pool_gradient(
                IMAGES, _max_pool(IMAGES, (k, k, 2, 2, 1, 1, 0, 0)), g, (k, k, 2, 2, 1, 1, 0, 0)
            ),
            (_some(1, 2, (5 - kernel) // 2 + 1, (9 - kernel) // 2 + 1),),
        )
        for kernel in (2, 3)
    ),
    *(
        case
        for w, windows in (
            (_some(2, 1, 2, 3), (2, 3, 1, 1, 1, 1, 1, 2)),
            (_some(2, 1, 3, 3), (3, 3, 1, 1, 2, 1, 2, 0)),
            (_some(2, 1, 3, 2), (3, 2, 2, 3, 1, 2, 1, 1)),
        )
        for case in _depthwise_cases(w, windows)
    ),
    ("matmul", np.matmul, (_some(5, 6), _some(2, 6, 2))),
    (
        "batch_normalized",
        lambda x, w, b: call("batch_normalized", x, w, b, 1e-5, Moments()),
        (_some(3, 2, 4), _some(1, 2, 1), _some(1, 2, 1)),
    ),
    ("dot", np.dot, (X, ROW)),
    ("dot", np.dot, (SCALAR, ROW)),
]

# NumPy's functions that are written in Python with the operators above.
COMPOSITES = {
    "var": (np.var, (X,)),
    "std over an axis": (lambda x: np.std(x, 1, ddof=1), (X,)),
    "stack": (lambda x, y: np.stack([x, y], 1), (X, Y)),
    "vstack and hstack": (lambda x, y: np.vstack([x, y]).sum() * np.hstack([x, y]), (X, Y)),
    "split": (lambda x: np.split(x, 2, 1)[1] * 3, (X,)),
    "moveaxis": (lambda x: np.moveaxis(x, 0, -1), (CUBE,)),
    "expand_dims": (lambda x: np.expand_dims(x, 1) * np.ones((3, 2, 4)), (X,)),
    "flip": (lambda x: np.flip(x, 1), (X,)),
    "repeat": (lambda x: np.repeat(x, 2, 0), (X,)),
    "outer": (np.outer, (ROW, ROW)),
    "tensordot": (lambda x, y: np.tensordot(x, y, 1), (CUBE, ROW)),
    "einsum": (lambda x, y: np.einsum("bij,bkj->bik", x, y), (CUBE, CUBE * 2)),
    "diff": (lambda x: np.diff(x, axis=1), (X,)),
    "average": (lambda x, y: np.average(x, 0, y), (X, POSITIVE)),
    "take_along_axis": (lambda x: np.take_along_axis(x, np.argsort(X, 1), 1), (X,)),
    "softmax": (lambda x: (e := np.exp(x - x.max(-1, keepdims=True))) / e.sum(-1, keepdims=True), (X,)),
    "a ufunc's dtype": (lambda x, y: np.multiply(x, y, dtype="float64"), (X, Y)),
    "add.reduce": (lambda x: np.add.reduce(x, 1), (X,)),
    "histogram's weights": (lambda x: np.histogram(X[0], 3, weights=x)[0], (ROW,)),
    "histogram's weights and density": (
        lambda x: np.histogram([0.1, 0.9, 2, 3], 3, (0, 2), True, x)[0],
        (POSITIVE[0],),
    ),
    "a list of numbers": (lambda x, y: np.maximum(x, [y[0], 1.0, y[1], y[2]]), (X, ROW)),
}


def call_of(name, x):
    from vmhost.engine import _array

    return getattr(_array, name)(x)
