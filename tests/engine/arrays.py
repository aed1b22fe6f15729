"""Arrays of any dtype, shape and strides for hypothesis, with special values: NaN, infinities, signed
zeros, ends of integer ranges."""

import numpy as np
from hypothesis import strategies as st


def shapes(min_rank=0, max_rank=5, max_size=7):
    return st.lists(st.integers(0, max_size), min_size=min_rank, max_size=max_rank).map(tuple)


SPECIAL = {
    "f": [0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, 1e-7, 60000.0],
    "c": [0.0, -0.0, 1 + 2j, complex(np.nan, 1), complex(1, np.nan), complex(np.inf, -1), -3.5j],
    "b": [False, True],
}


def values(dtype, size, seed):
    """`size` values of `dtype`, a mixture of ordinary and special ones."""
    random = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        special = [limits.min, limits.max, 0, 1, limits.max - 1]
        ordinary = random.integers(max(limits.min, -100), 100, size)
    else:
        special = SPECIAL[dtype.kind]
        ordinary = random.normal(size=size) * 10
        if dtype.kind == "b":
            ordinary = ordinary > 0
        if dtype.kind == "c":
            ordinary = ordinary + 1j * random.normal(size=size)
    cast = ordinary.astype(dtype)
    odd = random.random(size) < 0.2
    cast[odd] = np.array(special, dtype)[random.integers(0, len(special), odd.sum())]
    return cast


def stretched(array, seed):
    """The same values in another layout: dimensions permuted, with gaps, reversed."""
    random = np.random.default_rng(seed)
    order = random.permutation(array.ndim)
    steps = random.choice([1, 1, 2, 3, -1, -2], array.ndim)
    base = np.zeros([array.shape[axis] * abs(int(step)) for axis, step in zip(order, steps, strict=True)], array.dtype)
    view = base[tuple(slice(None, None, int(step)) for step in steps) + (...,)].transpose(np.argsort(order))
    view[...] = array
    return view


@st.composite
def arrays(draw, dtypes, shape=None, nan=True):
    """An array with strides of any kind."""
    shape = draw(shapes()) if shape is None else shape
    dtype, seed = draw(st.sampled_from(dtypes)), draw(st.integers(0, 2**32 - 1))
    flat = values(dtype, int(np.prod(shape, dtype=np.int64)), seed)
    if not nan and flat.dtype.kind in "fc":
        flat = np.where(np.isnan(flat), flat.dtype.type(1), flat)
    return stretched(flat.reshape(shape), seed) if draw(st.booleans()) else flat.reshape(shape)
