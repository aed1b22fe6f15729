"""Counting into bins: bincount, digitize, and histograms of one or more dimensions."""

from operator import index

from vmhost.engine import _array as _a


def bincount(x, /, weights=None, minlength=0):
    """How often each of 0, 1, 2, ... occurs in `x`, or the sums of the weights."""
    x = _a.asarray(x)
    if x.ndim != 1:
        raise ValueError(
            "object too deep for desired array" if x.ndim else "object of too small depth for desired array"
        )
    if x.dtype.kind not in "iub" and x.size:
        raise TypeError(f"Cannot cast array data from {x.dtype!r} to dtype('int64') according to the rule 'safe'")
    if minlength < 0:
        raise ValueError("'minlength' must not be negative")
    if not x.size:
        return _a.zeros(minlength, int)  # like NumPy, also with weights
    if weights is not None:
        weights = _a.ascontiguousarray(weights, float)
        if weights.shape != x.shape:
            raise ValueError("The weights and list don't have the same length.")
    return _a._bincount(_a.ascontiguousarray(x, int), weights, minlength)


def digitize(x, bins, right=False):
    """The index of the bin that each element is in."""
    x, bins = _a.asarray(x), _a.asarray(bins)
    if x.dtype.kind == "c":
        raise TypeError("x may not be complex")
    side = "left" if right else "right"
    if _is_increasing(bins):
        return _a.searchsorted(bins, x, side)
    return len(bins) - _a.searchsorted(bins[::-1], x, side)


def _is_increasing(bins):
    """Whether bins increase, as NumPy decides it: by the first two in a row that differ. ValueError if they neither
    increase nor decrease; no comparison with NaN says so."""
    if bins.dtype.kind == "c":
        raise TypeError(f"Cannot cast array data from {bins.dtype!r} to dtype('float64') according to the rule 'safe'")
    if bins.ndim != 1:
        raise ValueError(
            "object too deep for desired array" if bins.ndim else "object of too small depth for desired array"
        )
    earlier, later = bins[:-1].astype(float), bins[1:].astype(float)
    changes = (earlier != later).nonzero()[0]
    if not len(changes):
        return True
    first = changes[0]
    increasing = bool(earlier[first] < later[first])
    if (earlier > later if increasing else earlier[first + 1 :] < later[first + 1 :]).any():
        raise ValueError("bins must be monotonically increasing or decreasing")
    return increasing


# ---- the edges


def _limits(a, range):
    if range is not None:
        low, high = range
        if low > high:
            raise ValueError("max must be larger than min in range parameter.")
        if not (_a.isfinite(low) and _a.isfinite(high)):
            raise ValueError(f"supplied range of [{low}, {high}] is not finite")
    elif a.size == 0:
        low, high = 0, 1
    else:
        low, high = a.min(), a.max()
        if not (_a.isfinite(low) and _a.isfinite(high)):
            raise ValueError(f"autodetected range of [{low}, {high}] is not finite")
    if low == high:
        low, high = low - 0.5, high + 0.5
    return low, high


def _width(name, x, range):
    """The bin width that the named estimator recommends; 0 if it gives none."""
    from vmhost.engine.numpy._quantiles import percentile
    from vmhost.engine.numpy._statistics import std

    n, spread = x.size, float(x.max()) - float(x.min())
    if name == "sqrt":
        return spread / n**0.5
    if name == "sturges":
        return spread / (float(_a.log2(n)) + 1.0)
    if name == "rice":
        return spread / (2.0 * n ** (1.0 / 3))
    if name == "scott":
        return (24.0 * 3.141592653589793**0.5 / n) ** (1.0 / 3.0) * float(std(x))
    if name == "fd":
        high, low = percentile(x, [75, 25])
        return 2.0 * float(high - low) * n ** (-1.0 / 3.0)
    if name == "doane":
        if n <= 2 or not float(std(x)) > 0:
            return 0.0
        scaled = (x - x.mean()) / std(x)
        skew = abs(float((scaled**3).mean())) / (6.0 * (n - 2) / ((n + 1.0) * (n + 3))) ** 0.5
        return spread / float(1.0 + _a.log2(n) + _a.log2(1.0 + skew))
    if name == "auto":
        return min(max(_width("fd", x, range), _width("sqrt", x, range) / 2), _width("sturges", x, range))
    if name == "stone":
        if n <= 1 or spread == 0:
            return 0.0

        def risk(bins):
            shares = histogram(x, bins, range)[0] / n
            return float(2 - (n + 1) * shares.dot(shares)) / (spread / bins)

        return spread / min([*_counting(1, max(100, int(n**0.5)) + 1)], key=risk)
    raise ValueError(f"{name!r} is not a valid estimator for `bins`")


_counting = range


def _edges(a, bins, range, weights):
    from vmhost.engine.numpy._creation import linspace

    if isinstance(bins, str):
        if weights is not None:
            raise TypeError("Automated estimation of the number of bins is not supported for weighted data")
        low, high = _limits(a, range)
        if range is not None:
            a = a[(a >= low) & (a <= high)]
        if a.size == 0:
            bins = 1
        else:
            width = _width(bins, a, (low, high))
            if a.dtype.kind in "iu" and width < 1:
                width = 1
            bins = int(_a.ceil((float(high) - float(low)) / width)) if width else 1
    elif _a.asarray(bins).ndim == 1:
        edges = _a.asarray(bins)
        if (edges[:-1] > edges[1:]).any():
            raise ValueError("`bins` must increase monotonically, when an array")
        return edges
    elif _a.asarray(bins).ndim:
        raise ValueError("`bins` must be 1d, when an array")
    else:
        try:
            bins = index(bins)
        except TypeError:
            raise TypeError("`bins` must be an integer, a string, or an array") from None
        if bins < 1:
            raise ValueError("`bins` must be positive, when an integer")
        low, high = _limits(a, range)
    dtype = _a.result_type(*(x if isinstance(x, (int, float)) else _a.asarray(x) for x in (low, high)), a)
    edges = linspace(low, high, bins + 1, dtype=dtype if dtype.kind == "f" else float)
    if (edges[:-1] >= edges[1:]).any():
        raise ValueError(f"Too many bins for data range. Cannot create {bins} finite-sized bins.")
    return edges


def _ready(a, weights):
    a = _a.asarray(a)
    if a.dtype.kind == "b":
        a = a.astype(_a.uint8)
    if weights is not None:
        weights = _a.asarray(weights)
        if weights.shape != a.shape:
            raise ValueError("weights should have the same shape as a.")
        weights = weights.ravel()
    return a.ravel(), weights


def histogram_bin_edges(a, bins=10, range=None, weights=None):
    a, weights = _ready(a, weights)
    return _edges(a, bins, range, weights)


def histogram(a, bins=10, range=None, density=None, weights=None):
    """Returns (number of elements in each bin, bin edges). The last bin includes its right edge."""
    a, weights = _ready(a, weights)
    edges = _edges(a, bins, range, weights)
    count = len(edges) - 1
    if weights is None and not isinstance(bins, str) and _a.asarray(bins).ndim == 1:
        # sorted: each edge is searched in the elements, the last one to the right of equal elements
        a = _a.sort(a)
        below = _a.searchsorted(a, edges)
        below[-1] = _a.searchsorted(a, edges[-1], "right")
        counts = below[1:] - below[:-1]
        return (counts / (edges[1:] - edges[:-1]) / counts.sum(), edges) if density else (counts, edges)
    inside = (a >= edges[0]) & (a <= edges[-1])
    if not inside.all():
        a, weights = a[inside], None if weights is None else weights[inside]
    indices = _a.minimum(_a.searchsorted(edges, a, "right") - 1, count - 1)
    if weights is None:
        counts = bincount(indices, None, count)
    elif weights.dtype.kind == "c":
        counts = bincount(indices, weights.real, count) + 1j * bincount(indices, weights.imag, count)
    else:
        counts = bincount(indices, weights, count)
        counts = counts.astype(weights.dtype if weights.dtype.kind in "iuf" else int, copy=False)
    if density:
        return counts / (edges[1:] - edges[:-1]) / counts.sum(), edges
    return counts, edges


def histogramdd(sample, bins=10, range=None, density=None, weights=None):
    """Counts points of D dimensions, an (N, D) array or D arrays, in a grid of bins. Returns (counts, edges of each
    dimension)."""
    from vmhost.engine.numpy._creation import linspace
    from vmhost.engine.numpy._shapes import stack

    if not (isinstance(sample, _a.ndarray) and sample.ndim == 2):
        columns = _a.asarray(sample)
        sample = stack(list(columns), 1) if columns.ndim == 2 else columns.reshape(-1, 1)
    total, rank = sample.shape
    try:
        if len(bins) != rank:
            raise ValueError("The dimension of bins must be equal to the dimension of the sample x.")
    except TypeError:
        bins = rank * [bins]
    if range is None:
        range = (None,) * rank
    elif len(range) != rank:
        raise ValueError("range argument must have one entry per dimension")
    edges, indices, shape = [], _a.zeros(total, int), []
    inside = _a.ones(total, bool)
    for i in _counting(rank):
        column = sample[:, i]
        if _a.asarray(bins[i]).ndim == 0:
            if bins[i] < 1:
                raise ValueError(f"`bins[{i}]` must be positive, when an integer")
            low, high = _limits(column, range[i])
            edges.append(linspace(low, high, int(bins[i]) + 1))
        elif _a.asarray(bins[i]).ndim == 1:
            edges.append(_a.asarray(bins[i]))
            if (edges[i][:-1] > edges[i][1:]).any():
                raise ValueError(f"`bins[{i}]` must be monotonically increasing, when an array")
        else:
            raise ValueError(f"`bins[{i}]` must be a scalar or 1d array")
        count = len(edges[i]) - 1
        shape.append(count)
        bin_index = _a.searchsorted(edges[i], column, "right") - 1
        bin_index = _a.where(column == edges[i][-1], count - 1, bin_index)
        inside = inside & (bin_index >= 0) & (bin_index < count)
        indices = indices * count + bin_index
    size = 1
    for count in shape:
        size *= count
    if size >= 1 << 60:
        raise ValueError(f"a histogram of {size} bins is more than an array can hold")
    counts = bincount(indices[inside], None if weights is None else _a.asarray(weights).ravel()[inside], size)
    counts = counts.reshape(shape).astype(float)
    if density:
        total = counts.sum()
        for i, edge in enumerate(edges):
            counts = counts / (edge[1:] - edge[:-1]).reshape((-1,) + (1,) * (rank - 1 - i))
        counts = counts / total
    return counts, edges


def histogram2d(x, y, bins=10, range=None, density=None, weights=None):
    """Returns (counts of the points (x, y) in a grid of bins, edges along x, edges along y)."""
    if len(x) != len(y):
        raise ValueError("x and y must have the same length.")
    try:
        count = len(bins)
    except TypeError:
        count = 1
    if count not in (1, 2):
        bins = [_a.asarray(bins)] * 2
    counts, edges = histogramdd([x, y], bins, range, density, weights)
    return counts, _a.asarray(edges[0]), _a.asarray(edges[1])
