"""Cases of tests and benchmarks: operators with dtypes, and layouts of operands. Plain data.

A case is an operator's name, the dtypes of its inputs and a domain (which values make sense); a layout says how
operands of `n` elements lie in memory."""

import numpy as np

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "float32", "float64"]
COMPLEX = ["complex64", "complex128"]
ALL = ["bool", *INTEGERS, *FLOATS, *COMPLEX]

# the range of a benchmark's values: (low, high)
DOMAINS = {"any": (-50, 50), "positive": (0.1, 50), "unit": (-0.99, 0.99), "above one": (1.01, 50), "small": (1, 5)}

# operator: domain of its input
UNARY = {
    "negative": "any",
    "positive": "any",
    "absolute": "any",
    "sign": "any",
    "invert": "any",
    "logical_not": "any",
    "square": "any",
    "sqrt": "positive",
    "cbrt": "any",
    "reciprocal": "positive",
    "exp": "any",
    "exp2": "any",
    "expm1": "any",
    "log": "positive",
    "log2": "positive",
    "log10": "positive",
    "log1p": "positive",
    "sin": "any",
    "cos": "any",
    "tan": "any",
    "arcsin": "unit",
    "arccos": "unit",
    "arctan": "any",
    "sinh": "any",
    "cosh": "any",
    "tanh": "any",
    "arcsinh": "any",
    "arccosh": "above one",
    "arctanh": "unit",
    "floor": "any",
    "ceil": "any",
    "trunc": "any",
    "rint": "any",
    "isnan": "any",
    "isinf": "any",
    "isfinite": "any",
    "signbit": "any",
    "conjugate": "any",
    "bitwise_count": "any",
}
BINARY = {
    "add": "any",
    "subtract": "any",
    "multiply": "any",
    "divide": "positive",
    "floor_divide": "positive",
    "remainder": "positive",
    "fmod": "positive",
    "power": "small",
    "maximum": "any",
    "minimum": "any",
    "fmax": "any",
    "fmin": "any",
    "arctan2": "any",
    "hypot": "any",
    "copysign": "any",
    "nextafter": "any",
    "logaddexp": "any",
    "bitwise_and": "any",
    "bitwise_or": "any",
    "bitwise_xor": "any",
    "left_shift": "small",
    "right_shift": "small",
    "equal": "any",
    "not_equal": "any",
    "less": "any",
    "less_equal": "any",
    "greater": "any",
    "greater_equal": "any",
    "logical_and": "any",
    "logical_or": "any",
    "logical_xor": "any",
    "heaviside": "any",
    "gcd": "any",
    "lcm": "any",
}

# measured by the benchmark: (operator, dtypes of its inputs)
MEASURED = [
    *(
        (name, (dtype, dtype))
        for name in ("add", "multiply", "maximum", "less", "equal")
        for dtype in ("float32", "float64", "int32", "int64", "uint8")
    ),
    *((name, (dtype, dtype)) for name in ("divide", "power", "arctan2") for dtype in ("float32", "float64")),
    *((name, (dtype, dtype)) for name in ("floor_divide", "remainder") for dtype in ("float32", "int32", "int64")),
    *((name, ("int64", "int64")) for name in ("bitwise_and", "left_shift")),
    ("logical_and", ("bool", "bool")),
    ("add", ("int32", "float32")),
    ("add", ("float16", "float16")),
    ("multiply", ("complex64",) * 2),
    *(
        (name, (dtype,))
        for name in (
            "negative",
            "absolute",
            "sqrt",
            "square",
            "floor",
            "isnan",
            "exp",
            "log",
            "sin",
            "cos",
            "tanh",
            "expm1",
            "log1p",
            "arctan",
        )
        for dtype in ("float32", "float64")
    ),
    ("absolute", ("int32",)),
    ("absolute", ("complex64",)),
    ("logical_not", ("bool",)),
    ("exp", ("float16",)),
]

# what a benchmark reduces: operator, dtypes; and what the values are drawn from
REDUCED = {
    "sum": ("float32", "float64", "int64", "uint8"),
    "mean": ("float32", "float64"),
    "prod": ("float64",),
    "max": ("float32", "float64", "int32", "uint8"),
    "min": ("float32", "int64"),
    "argmax": ("float32", "int64"),
    "all": ("bool",),
    "any": ("bool",),
    "count_nonzero": ("bool", "int32"),
    "cumsum": ("float32", "int64"),
}
REDUCED_DOMAIN = {name: "unit" if name == "prod" else "any" for name in REDUCED}

# casts of the benchmark: from, to
CASTS = [
    ("float32", "float64"),
    ("float64", "float32"),
    ("int32", "float32"),
    ("int64", "float64"),
    ("float32", "int32"),
    ("float64", "int64"),
    ("uint8", "float32"),
    ("float32", "uint8"),
    ("bool", "float32"),
    ("int64", "int32"),
    ("int32", "int64"),
    ("float16", "float32"),
    ("float32", "float16"),
    ("float32", "bool"),
]

DRAWN = 250_007
# layout: how many operands of `n` elements are laid out
LAYOUTS = ["contiguous", "strided", "broadcast", "scalar", "transposed"]


def operand(layout, number, n, dtype, domain, seed=0):
    """Input `number` (0, 1) of a case: about `n` elements of `dtype` in one of LAYOUTS.

    strided: every other element; broadcast: (rows, 100) with a row of 100; scalar: with a 0-d array; transposed: a
    square's transpose, both inputs alike. Large operands repeat DRAWN values: what they are does not matter, that
    drawing them takes long does."""
    low, high = DOMAINS[domain]
    random = np.random.default_rng(seed + number)

    def values(size):
        drawn = min(size, DRAWN) if isinstance(size, int) else size
        drawn_values = random.uniform(low, high, drawn)
        if np.dtype(dtype).kind == "u":
            drawn_values = np.abs(drawn_values)
        if np.dtype(dtype).kind == "c":
            drawn_values = drawn_values + 1j * random.uniform(low, high, drawn)
        if np.dtype(dtype).kind == "b":
            drawn_values = drawn_values > (low + high) / 2
        if np.dtype(dtype).kind in "iu" and low > 0:
            drawn_values = np.ceil(drawn_values)
        drawn_values = np.asarray(drawn_values, dtype)
        return drawn_values if drawn == size else np.resize(drawn_values, size)

    if layout == "strided":
        return values(2 * n)[::2]
    if layout == "broadcast":
        return values(max(n // 100, 1) * 100).reshape(-1, 100) if number == 0 else values(100)
    if layout == "scalar" and number == 1:
        return values(())
    if layout == "transposed":
        side = round(n**0.5)
        return values(side * side).reshape(side, side).T
    return values(n)


# Functions of the whole surface as a task writes them, of operands that `surface_operands` makes: benched against
# NumPy, and compared with it.
SURFACE = """
    np.median(v); np.median(big, 0); np.median(big, 1); np.percentile(v, [10, 50, 90]); np.nanmedian(z);
    np.nanpercentile(z, 30); np.nansum(z); np.nanmax(z); np.nanmean(z); np.nanvar(z); np.nanargmax(z);
    np.nancumsum(z); np.histogram(v, 50); np.histogram(v, xs[::20]); np.bincount(i); np.bincount(i, w);
    np.digitize(v, xs); np.histogram2d(v, w, 20); np.unique(i); np.unique(v); np.unique(i, return_inverse=True);
    np.unique(k, axis=0); np.isin(i, i[:100]); np.intersect1d(i, i[:500]); np.union1d(i, i); np.setdiff1d(i, i[:10]);
    np.lexsort((v, i)); np.partition(v, 500); np.argpartition(v, 500); np.einsum('ij,jk->ik', m, m);
    np.einsum('ij,ij->i', m, m); np.einsum('ii', m); np.einsum('i,i', v, w); np.einsum('ij->j', m);
    np.einsum('ijk,ilk->ijl', q, q); np.interp(v, xs, ys); np.interp(s, xs, ys); np.gradient(v); np.gradient(m);
    np.diff(v); np.trapezoid(v); np.cov(m); np.corrcoef(m); np.average(v, weights=w); np.convolve(v, s);
    np.correlate(s, s, 'full'); np.convolve(s, s); np.kron(s[:20, None] * s[:20], s[:20, None] * s[:20]);
    np.outer(xs, xs); np.inner(m, m); np.tensordot(m, m, 1); np.vdot(v, w); np.vecdot(big, big);
    np.cross(k * 1.0, k * 2.0); np.trace(m); np.packbits(b); np.unpackbits(u); np.bitwise_count(i); np.gcd(i, 36);
    np.gcd(i, i[::-1]); np.lcm(i, 36); np.modf(v); np.frexp(v); np.ldexp(v, 3); np.divmod(i, 7); np.divmod(v, 0.3);
    np.sinc(v); np.unwrap(v); np.angle(c); np.deg2rad(v); np.heaviside(v, 0.5); np.logaddexp2(v, w); np.i0(v);
    np.kaiser(1000, 5); np.hanning(1000); np.nan_to_num(z); np.clip(v, -1, 1); np.where(b, v, w);
    np.select([v < 0, v > 1], [v, w]); np.piecewise(v, [v < 0, v >= 0], [lambda x: -x, lambda x: x]);
    np.isclose(v, w); np.allclose(v, v); np.array_equal(v, v); np.round(v, 2); np.ptp(v); np.var(v); np.std(v);
    np.var(big, 0); np.cumulative_sum(v); np.pad(m, 5); np.pad(m, 5, 'reflect'); np.pad(m, 5, 'mean');
    np.pad(s, 5, 'linear_ramp'); np.roll(v, 7); np.roll(m, (3, 4), (0, 1)); np.tile(s, 100); np.repeat(v, 3);
    np.repeat(m, 2, 1); np.stack([v, w]); np.vstack([v, w]); np.hstack([v, w]); np.block([[m, m], [m, m]]);
    np.concatenate([m, m], 1); np.insert(v, 5, 1); np.delete(v, [1, 5]); np.append(v, w); np.flip(v);
    np.rot90(m).copy(); np.tril(m); np.triu(m); np.diag(s); np.diagonal(m).copy(); np.eye(300); np.meshgrid(xs, s);
    np.mgrid[0:100, 0:100]; np.indices((100, 100)); np.ix_(i[:5], i[:5]); np.r_[v, w]; np.c_[v, w];
    np.linspace(0, 1, 1000); np.logspace(0, 1, 1000); np.geomspace(1, 10, 1000); np.arange(1000); np.vander(s, 5);
    np.take_along_axis(m, np.argsort(m, 1), 1); np.unravel_index(i, (i.size, 1));
    np.ravel_multi_index((k[:, 0], k[:, 1]), (40, 40)); np.fill_diagonal(m.copy(), 1);
    np.choose(b.astype(int), [v, w]); np.compress(b, v); np.extract(b, v); np.argwhere(b); np.flatnonzero(b);
    np.count_nonzero(b); np.nonzero(b); np.searchsorted(xs, v); np.sort(v); np.argsort(v); np.sort(f);
    np.apply_over_axes(np.sum, big, 0); np.lib.stride_tricks.sliding_window_view(v, 50).sum(1); np.polyval(s[:5], v);
    np.polymul(s, s); np.polyadd(s, s); np.broadcast_to(v, (2, v.size)).sum(); np.expand_dims(s, 0);
    np.moveaxis(q, 0, 2); np.squeeze(s[None]); np.atleast_2d(s); np.array_split(s, 5); np.nanstd(z); np.ediff1d(v);
    np.isin(v, xs); np.trim_zeros(v); np.maximum.accumulate(v); np.add.reduceat(v, i[:50]); np.spacing(v); np.fabs(v);
    np.float_power(w, 2.5); np.hypot(v, w); np.cbrt(v); np.matvec(m, m[0]); np.broadcast_arrays(s, m[:, :1]);
    np.add.at(v.copy(), i, 1.0); np.bitwise_count(u); np.apply_along_axis(lambda row: row.sum(), 1, big)
"""


def surface_operands(n):
    """{name: array} of about `n` elements: v, w (positive), f (float32) vectors, i integers below n, b truth, z with
    NaNs, c complex, u bytes; s, xs (sorted), ys short vectors; m, big, k (triples), q arrays of more dimensions."""
    random = np.random.default_rng(1)
    side, short = max(round(n**0.5), 4), max(n // 100, 4)
    normal = random.normal
    return {
        "v": normal(size=n),
        "w": random.uniform(0.1, 2, n),
        "f": normal(size=n).astype("f4"),
        "i": random.integers(0, n, n),
        "b": random.uniform(size=n) > 0.5,
        "z": np.where(random.uniform(size=n) > 0.9, np.nan, normal(size=n)),
        "c": normal(size=n) + 1j * normal(size=n),
        "u": random.integers(0, 255, n).astype("u1"),
        "s": normal(size=min(short, 100)),
        "xs": np.sort(normal(size=short)),
        "ys": normal(size=short),
        "m": normal(size=(side, side)),
        "big": normal(size=(n // 10, 10)),
        "k": random.integers(0, 40, (n // 10, 3)),
        "q": normal(size=(4, 5, max(n // 20, 1))),
    }


def surface_cases(n):
    """(expression, "n", function of a module and the operands, the operands) of each of SURFACE, as
    bench.against_numpy.measured takes them."""
    operands = surface_operands(n)
    names = ", ".join(operands)
    expressions = [one.strip() for line in SURFACE.strip().splitlines() for one in line.split(";") if one.strip()]
    return [(one, f"n = {n:,}", eval(f"lambda np, {names}: {one}"), tuple(operands.values())) for one in expressions]
