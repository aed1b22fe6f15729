"""`numpy.random`: `default_rng(seed)` returns a Generator over Philox.

`Generator(Philox(seed))` draws the same numbers as `numpy.random.Generator(numpy.random.Philox(seed))`: words and
integers exactly, floating-point numbers up to rounding. NumPy's default_rng draws other numbers, since it uses PCG64.
RandomState and the functions of the legacy interface (seed, rand, normal …) are in _random_state.py."""

from operator import index as _index

from vmhost.engine import _array as _a
from vmhost.engine.numpy._random_arguments import (
    common_shape,
    integer_limits,
    mean_and_covariances,
    shape_of_size,
    sum_tolerance,
)

__all__ = ["BitGenerator", "Generator", "Philox", "SeedSequence", "default_rng"]

# the order of enum vme_random_kind
(
    _UNIFORM,
    _NORMAL,
    _EXPONENTIAL,
    _EXPONENTIAL_INVERSE,
    _GAMMA,
    _BETA,
    _LAPLACE,
    _GUMBEL,
    _LOGISTIC,
    _STUDENT,
    _WALD,
    _VONMISES,
    _TRIANGULAR,
    _NONCENTRAL_CHISQUARE,
    _POISSON,
    _BINOMIAL,
    _GEOMETRIC,
    _NEGATIVE_BINOMIAL,
    _LOGSERIES,
    _ZIPF,
    _INTEGERS,
    _SHUFFLE,
    _SHUFFLE_TAIL,
    _SAMPLE,
) = range(24)
_WORD = (1 << 64) - 1
_HALF = (1 << 32) - 1


class SeedSequence:
    """Mixes any entropy into a given number of well-distributed words (O'Neill's seed_seq with NumPy's constants)."""

    def __init__(self, entropy=None, *, spawn_key=(), pool_size=4, n_children_spawned=0):
        if entropy is None:
            from os import urandom

            entropy = int.from_bytes(urandom(16), "little")
        if pool_size < 4:
            raise ValueError("The size of the entropy pool should be at least 4")
        self.entropy, self.spawn_key, self.pool_size = entropy, tuple(spawn_key), pool_size
        self.n_children_spawned = n_children_spawned
        words = _words_of(entropy)
        if self.spawn_key and len(words) < pool_size:
            words += [0] * (pool_size - len(words))
        self._pool = _mixed(words + _words_of(self.spawn_key), pool_size)

    @property
    def state(self):
        return {
            "entropy": self.entropy,
            "spawn_key": self.spawn_key,
            "pool_size": self.pool_size,
            "n_children_spawned": self.n_children_spawned,
        }

    def generate_state(self, n_words, dtype=None):
        """`n_words` words of uint32 (or uint64)."""
        dtype = _a.uint32 if dtype is None else _a.dtype(dtype)
        if dtype not in (_a.uint32, _a.uint64):
            raise ValueError("only support uint32 or uint64")
        count = n_words * (dtype.itemsize // 4)
        multiplier, words = 0x8B51F9DD, []
        for i in range(count):
            value = self._pool[i % self.pool_size] ^ multiplier
            multiplier = multiplier * 0x58F38DED & _HALF
            value = value * multiplier & _HALF
            words.append(value ^ value >> 16)
        if dtype == _a.uint64:
            words = [low | high << 32 for low, high in zip(words[::2], words[1::2])]
        return _a.array(words, dtype)

    def spawn(self, n_children):
        """`n_children` sequences, distinct from this one and from each other."""
        first = self.n_children_spawned
        self.n_children_spawned += n_children
        return [
            SeedSequence(self.entropy, spawn_key=(*self.spawn_key, i), pool_size=self.pool_size)
            for i in range(first, first + n_children)
        ]

    def __repr__(self):
        return f"SeedSequence(\n    entropy={self.entropy!r},\n)"


def _words_of(value):
    if isinstance(value, _a.ndarray):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        if any(isinstance(item, (list, tuple)) or getattr(item, "ndim", 0) for item in value):
            raise TypeError("SeedSequence does not accept nested sequences.")
        return [word for item in value for word in _words_of(item)]
    if isinstance(value, str):
        raise TypeError("SeedSequence expects int or sequence of ints for entropy, not str")
    value = _index(value)
    if value < 0:
        raise ValueError("expected non-negative integer")
    words = [value & _HALF]
    while value := value >> 32:
        words.append(value & _HALF)
    return words


def _mixed(words, size):
    multiplier = 0x43B0D7E5

    def hashed(value):
        nonlocal multiplier
        value ^= multiplier
        multiplier = multiplier * 0x931E8875 & _HALF
        value = value * multiplier & _HALF
        return value ^ value >> 16

    def mix(x, y):
        value = 0xCA01F9DD * x - 0x4973F715 * y & _HALF
        return value ^ value >> 16

    pool = [hashed(words[i] if i < len(words) else 0) for i in range(size)]
    for source in range(size):
        for target in range(size):
            if source != target:
                pool[target] = mix(pool[target], hashed(pool[source]))
    for word in words[size:]:
        for target in range(size):
            pool[target] = mix(pool[target], hashed(word))
    return pool


class BitGenerator:
    """A source of random words; Philox is the only one."""


class Philox(BitGenerator):
    """Philox 4x64 with 10 rounds: the words of numpy.random.Philox for the same seed, or key and counter."""

    def __init__(self, seed=None, counter=None, key=None):
        if seed is not None and key is not None:
            raise ValueError("seed and key cannot be both used")
        self.seed_seq = None
        if key is None:
            self.seed_seq = seed if isinstance(seed, SeedSequence) else SeedSequence(seed)
            key = self.seed_seq.generate_state(2, _a.uint64)
        self._state = _a.zeros(13, _a.uint64)
        self._state[:2] = _as_words(key, 2, "key")
        self._state[2:6] = _as_words(0 if counter is None else counter, 4, "counter")
        self._state[10] = 4  # the position in the buffered block: all words are used

    @property
    def state(self):
        s = self._state
        return {
            "bit_generator": "Philox",
            "state": {"counter": s[2:6].copy(), "key": s[:2].copy()},
            "buffer": s[6:10].copy(),
            "buffer_pos": int(s[10]),
            "has_uint32": int(s[11]),
            "uinteger": int(s[12]),
        }

    @state.setter
    def state(self, value):
        if not isinstance(value, dict):
            raise TypeError("state must be a dict")
        if value.get("bit_generator") != "Philox":
            raise ValueError("state must be for a Philox RNG")
        words = [
            *value["state"]["key"],
            *value["state"]["counter"],
            *value["buffer"],
            value["buffer_pos"],
            value["has_uint32"],
            value["uinteger"],
        ]
        self._state[...] = _a.array([int(word) for word in words], _a.uint64)

    def random_raw(self, size=None, output=True):
        """The next words of the stream, as uint64; with `output` false, they are only skipped."""
        result = _a.empty(() if size is None else size, _a.uint64)
        self._fill(_INTEGERS, (_a.zeros((), _a.uint64), _a.full((), _WORD, _a.uint64)), result)
        if output:
            return int(result) if size is None else result
        return None

    def _fill(self, kind, parameters, out):
        _a._random(self._state, kind, parameters, out)

    def advance(self, delta):
        """Advances by `delta` blocks of four words; the rest of the buffered block is dropped."""
        counter = sum(int(word) << 64 * i for i, word in enumerate(self._state[2:6])) + delta
        self._state[2:6] = _as_words(counter & (1 << 256) - 1, 4, "counter")
        self._state[10], self._state[11], self._state[12] = 4, 0, 0
        return self

    def jumped(self, jumps=1):
        """A generator 2**128 blocks ahead for each jump."""
        generator = Philox(key=self._state[:2].copy())
        generator._state[...] = self._state
        return generator.advance(jumps << 128)

    def spawn(self, n_children):
        if self.seed_seq is None:
            raise TypeError("The underlying SeedSequence does not implement spawning.")
        return [Philox(child) for child in self.seed_seq.spawn(n_children)]


def _as_words(value, count, name):
    if isinstance(value, (list, tuple, _a.ndarray)):
        words = [int(word) for word in value]
        if len(words) != count:
            raise ValueError(f"{name} must have {count} elements when using array form")
    else:
        value = _index(value)
        if value < 0 or value >> 64 * count:
            raise ValueError(f"{name} must be positive and less than 2**{64 * count}.")
        words = [value >> 64 * i & _WORD for i in range(count)]
    return _a.array(words, _a.uint64)


def default_rng(seed=None):
    """A Generator over Philox. `seed`: None, an int, ints, a SeedSequence, a Philox, or a Generator, which is returned
    unchanged."""
    if isinstance(seed, Generator):
        return seed
    return Generator(seed if isinstance(seed, BitGenerator) else Philox(seed))


def _float_dtype(dtype, name):
    dtype = _a.dtype(dtype)
    if dtype not in (_a.float32, _a.float64):
        raise TypeError(f"Unsupported dtype {dtype!r} for {name}")
    return dtype


class Generator:
    """Random numbers of many distributions. Not thread-safe."""

    def __init__(self, bit_generator):
        if not isinstance(bit_generator, BitGenerator):
            raise ValueError("Bit generator must be a Philox of this module")
        self.bit_generator = bit_generator

    def __repr__(self):
        return "Generator(Philox)"

    def spawn(self, n_children):
        return [Generator(child) for child in self.bit_generator.spawn(n_children)]

    # ---- drawing
    def _draw(self, kind, size, parameters=(), dtype=None, out=None):
        """Draws an array of shape `size` (None: the parameters' shape; a number if all are numbers)."""
        dtype = _a.float64 if dtype is None else dtype
        if parameters and any(_a.isnan(parameter).any() for parameter in parameters):
            return self._draw_of_nan(kind, size, parameters, dtype, out)
        shape = None if size is None else shape_of_size(size)
        if shape is None and out is not None:
            shape = out.shape
        if parameters and any(parameter.ndim for parameter in parameters):
            from vmhost.engine.numpy._shapes import broadcast_shapes

            common = broadcast_shapes(*(parameter.shape for parameter in parameters))
            if shape is None:
                shape = common
            elif broadcast_shapes(shape, common) != shape:
                raise ValueError(f"Output size {shape} is not compatible with broadcast dimensions of inputs {common}.")
            parameters = tuple(
                p if p.ndim == 0 else _a.ascontiguousarray(_a.broadcast_to(p, shape)) for p in parameters
            )
        if out is not None:
            if shape is not None and shape != out.shape:
                raise ValueError("size must match out.shape when used together")
            if out.dtype != dtype:
                raise TypeError(f"Supplied output array has the wrong type. Expected {dtype!r}, got {out.dtype!r}")
            if not (out.flags.c_contiguous and out.flags.writeable):
                raise ValueError(
                    "Supplied output array must be contiguous, writable, aligned, and in machine byte order"
                )
            self.bit_generator._fill(kind, parameters, out)
            return out
        result = _a.empty(() if shape is None else shape, dtype)
        self.bit_generator._fill(kind, parameters, result)
        return result[()] if shape is None else result

    def _draw_of_nan(self, kind, size, parameters, dtype, out):
        """A draw with parameters that are NaN: so are the elements that have them."""
        missing = _a.bool_(False)
        for parameter in parameters:
            missing = missing | _a.isnan(parameter)
        result = self._draw(kind, size, tuple(_a.where(_a.isnan(each), 1.0, each) for each in parameters), dtype, out)
        if result.ndim or out is not None:
            result[_a.broadcast_to(missing, result.shape)] = float("nan")
            return result
        return result * _a.asarray(float("nan"), dtype=dtype)[()]

    # ---- uniform, normal and derived distributions
    def random(self, size=None, dtype=float, out=None):
        """Uniform in [0, 1)."""
        return self._draw(_UNIFORM, size, (), _float_dtype(dtype, "random"), out)

    def uniform(self, low=0.0, high=1.0, size=None):
        low, high = _parameter(low), _parameter(high)
        span = high - low
        if not _a.isfinite(span).all():
            raise OverflowError("high - low range exceeds valid bounds")
        if (span < 0).any():
            raise ValueError("low > high")
        return self._scaled(_UNIFORM, size, low, span)

    def _scaled(self, kind, size, loc, scale):
        """loc + scale * a draw of `kind`."""
        if loc.ndim == 0 and scale.ndim == 0:
            result = self._draw(kind, size)
            result *= scale
            result += loc
            return result
        if size is None and (loc.ndim or scale.ndim):
            size = _a.add(loc, scale).shape
        result = self._draw(kind, size)
        if size is not None and result.shape != common_shape(result, loc, scale):
            raise ValueError(f"Output size {result.shape} is not compatible with broadcast dimensions of inputs.")
        return loc + scale * result

    def standard_normal(self, size=None, dtype=float, out=None):
        return self._draw(_NORMAL, size, (), _float_dtype(dtype, "standard_normal"), out)

    def normal(self, loc=0.0, scale=1.0, size=None):
        return self._scaled(_NORMAL, size, _parameter(loc), _positive(scale, "scale"))

    def lognormal(self, mean=0.0, sigma=1.0, size=None):
        return _a.exp(self._scaled(_NORMAL, size, _parameter(mean), _positive(sigma, "sigma")))

    def standard_exponential(self, size=None, dtype=float, method="zig", out=None):
        return self._draw(
            _EXPONENTIAL if method == "zig" else _EXPONENTIAL_INVERSE,
            size,
            (),
            _float_dtype(dtype, "standard_exponential"),
            out,
        )

    def exponential(self, scale=1.0, size=None):
        scale = _positive(scale, "scale")
        return self._draw(_EXPONENTIAL, scale.shape if size is None and scale.ndim else size) * scale

    def _from_exponential(self, size, a, function):
        return function(self._draw(_EXPONENTIAL, a.shape if size is None and a.ndim else size), a)

    def pareto(self, a, size=None):
        return self._from_exponential(size, _positive(a, "a", True), lambda x, a: _a.expm1(x / a))

    def weibull(self, a, size=None):
        return self._from_exponential(size, _positive(a, "a"), lambda x, a: x ** (1 / a))

    def power(self, a, size=None):
        return self._from_exponential(size, _positive(a, "a", True), lambda x, a: (-_a.expm1(-x)) ** (1 / a))

    def rayleigh(self, scale=1.0, size=None):
        return self._from_exponential(size, _positive(scale, "scale"), lambda x, a: a * _a.sqrt(2 * x))

    def laplace(self, loc=0.0, scale=1.0, size=None):
        return self._scaled(_LAPLACE, size, _parameter(loc), _positive(scale, "scale"))

    def gumbel(self, loc=0.0, scale=1.0, size=None):
        return self._scaled(_GUMBEL, size, _parameter(loc), _positive(scale, "scale"))

    def logistic(self, loc=0.0, scale=1.0, size=None):
        return self._scaled(_LOGISTIC, size, _parameter(loc), _positive(scale, "scale"))

    def standard_cauchy(self, size=None):
        pairs = self._draw(_NORMAL, (2,) if size is None else (*shape_of_size(size), 2))
        return (pairs[..., 0] / pairs[..., 1])[()]

    # ---- gamma and derived distributions
    def standard_gamma(self, shape, size=None, dtype=float, out=None):
        return self._draw(_GAMMA, size, (_positive(shape, "shape"),), _float_dtype(dtype, "standard_gamma"), out)

    def gamma(self, shape, scale=1.0, size=None):
        shape, scale = _positive(shape, "shape"), _positive(scale, "scale")
        if size is None and (shape.ndim or scale.ndim):
            size = _a.add(shape, scale).shape
        return scale * self._draw(_GAMMA, size, (shape,))

    def chisquare(self, df, size=None):
        return 2.0 * self._draw(_GAMMA, size, (_positive(df, "df", True) / 2.0,))

    def f(self, dfnum, dfden, size=None):
        df1, df2 = _positive(dfnum, "dfnum", True), _positive(dfden, "dfden", True)
        shapes = _a.broadcast_to(
            _pairs(df1, df2) / 2.0, (*(shape_of_size(size) if size is not None else _a.add(df1, df2).shape), 2)
        )
        drawn = 2.0 * self._draw(_GAMMA, None, (shapes,))
        return (drawn[..., 0] * df2 / (drawn[..., 1] * df1))[()]

    def beta(self, a, b, size=None):
        return self._draw(_BETA, size, (_positive(a, "a", True), _positive(b, "b", True)))

    def standard_t(self, df, size=None):
        return self._draw(_STUDENT, size, (_positive(df, "df", True),))

    def wald(self, mean, scale, size=None):
        return self._draw(_WALD, size, (_positive(mean, "mean", True), _positive(scale, "scale", True)))

    def vonmises(self, mu, kappa, size=None):
        return self._draw(_VONMISES, size, (_parameter(mu), _positive(kappa, "kappa")))

    def triangular(self, left, mode, right, size=None):
        left, mode, right = _parameter(left), _parameter(mode), _parameter(right)
        if (left > mode).any():
            raise ValueError("left > mode")
        if (mode > right).any():
            raise ValueError("mode > right")
        if (left == right).any():
            raise ValueError("left == right")
        return self._draw(_TRIANGULAR, size, (left, mode, right))

    def noncentral_chisquare(self, df, nonc, size=None):
        return self._draw(_NONCENTRAL_CHISQUARE, size, (_positive(df, "df", True), _positive(nonc, "nonc")))

    def noncentral_f(self, dfnum, dfden, nonc, size=None):
        from vmhost.engine.numpy._shapes import broadcast_arrays

        parameters = [_positive(dfnum, "dfnum", True), _positive(dfden, "dfden", True), _positive(nonc, "nonc")]
        shape = common_shape(*parameters) if size is None else shape_of_size(size)
        columns = [_a.broadcast_to(one, shape).ravel().tolist() for one in broadcast_arrays(*parameters)]
        values = [
            float(self.noncentral_chisquare(df1, nonc)) * df2 / (float(self.chisquare(df2)) * df1)
            for df1, df2, nonc in zip(*columns, strict=True)
        ]
        return _a.array(values, _a.float64).reshape(shape)[()]

    def dirichlet(self, alpha, size=None):
        alpha = _positive(alpha, "alpha")
        if alpha.ndim != 1:
            raise ValueError("alpha must be a one-dimensional sequence")
        shape = alpha.shape if size is None else (*shape_of_size(size), len(alpha))
        if _a.isnan(alpha).any():
            return _a.full(shape, float("nan"))
        positive = alpha > 0
        if not len(alpha) or not positive.all():  # the share of a parameter of 0 is 0
            result = _a.zeros(shape)
            if positive.any():
                result[..., positive] = self.dirichlet(alpha[positive], size)
            return result
        if float(alpha.max()) < 0.1:  # stick breaking: sums of such small gammas would underflow
            rest = _a.cumsum(alpha[::-1])[::-1][1:]
            sticks = self._draw(
                _BETA,
                None,
                (
                    _a.broadcast_to(alpha[:-1], (*shape[:-1], len(alpha) - 1)),
                    _a.broadcast_to(rest, (*shape[:-1], len(rest))),
                ),
            )
            result, length_left = _a.empty(shape), _a.ones(shape[:-1])
            for j in range(len(alpha) - 1):
                result[..., j] = length_left * sticks[..., j]
                length_left = length_left * (1 - sticks[..., j])
            result[..., -1] = length_left
            return result
        drawn = self._draw(_GAMMA, None, (_a.broadcast_to(alpha, shape),))
        return drawn / drawn.sum(axis=-1, keepdims=True)

    # ---- counts
    def poisson(self, lam=1.0, size=None):
        lam = _parameter(lam)
        if not (lam >= 0).all():
            raise ValueError("lam < 0 or lam is NaN")
        if (lam > 9.223372006484771e18).any():
            raise ValueError("lam value too large")
        return self._draw(_POISSON, size, (lam,), _a.int64)

    def binomial(self, n, p, size=None):
        return self._draw(_BINOMIAL, size, (_a.floor(_count(n)), _probability(p)), _a.int64)

    def negative_binomial(self, n, p, size=None):
        p = _probability(p)
        if (p <= 0).any():
            raise ValueError("p <= 0, p > 1 or p contains NaNs")
        return self._draw(_NEGATIVE_BINOMIAL, size, (_count(n, True), p), _a.int64)

    def geometric(self, p, size=None):
        p = _probability(p)
        if (p <= 0).any():
            raise ValueError("p <= 0, p > 1 or p contains NaNs")
        return self._draw(_GEOMETRIC, size, (p,), _a.int64)

    def logseries(self, p, size=None):
        p = _probability(p)
        if (p >= 1).any():
            raise ValueError("p < 0, p >= 1 or p is NaN")
        return self._draw(_LOGSERIES, size, (p,), _a.int64)

    def zipf(self, a, size=None):
        a = _parameter(a)
        if not (a > 1).all():
            raise ValueError("a <= 1 or a is NaN")
        return self._draw(_ZIPF, size, (a,), _a.int64)

    def multinomial(self, n, pvals, size=None):
        pvals, n = _probability(pvals, "pvals"), _a.asarray(n)
        if not pvals.ndim:
            raise ValueError("pvals must have at least 1 dimension")
        if (pvals[..., :-1].sum(-1) > 1 + 1e-12).any():
            raise ValueError("sum(pvals[:-1]) > 1.0")
        batch = (n + pvals[..., 0]).shape
        shape, kinds = batch if size is None else shape_of_size(size), pvals.shape[-1]
        result = _a.zeros((*shape, kinds), _a.int64)
        experiments = _a.broadcast_to(n, shape).ravel().tolist()
        probabilities = _a.broadcast_to(pvals, (*shape, kinds)).reshape(-1, kinds).tolist()
        for row, left, row_probabilities in zip(result.reshape(-1, kinds), experiments, probabilities):
            remaining = 1.0
            for j, probability in enumerate(row_probabilities[:-1]):
                drawn = int(self.binomial(left, min(probability / remaining, 1.0)))
                row[j] = drawn
                left -= drawn
                if left <= 0:
                    break
                remaining -= probability
            if left > 0:
                row[kinds - 1] = left
        return result

    def hypergeometric(self, ngood, nbad, nsample, size=None):
        """The number of good balls among `nsample` drawn without replacement from `ngood` good and `nbad` bad balls."""
        from vmhost.engine.numpy._shapes import broadcast_arrays
        from vmhost.engine.numpy._urns import hypergeometric

        counts = [_a.asarray(count).astype(_a.int64, casting="same_kind") for count in (ngood, nbad, nsample)]
        for name, count, limit in zip(("ngood", "nbad", "nsample"), counts, (10**9, 10**9, None), strict=True):
            if (count < 0).any():
                raise ValueError(f"{name} < 0")
            if limit and (count >= limit).any():
                raise ValueError("both ngood and nbad must be less than 1000000000")
        if (counts[0] + counts[1] < counts[2]).any():
            raise ValueError("ngood + nbad < nsample")
        shape = common_shape(*counts) if size is None else shape_of_size(size)
        columns = [_a.broadcast_to(count, shape).ravel().tolist() for count in broadcast_arrays(*counts)]
        result = _a.array([hypergeometric(self, *row) for row in zip(*columns, strict=True)], _a.int64)
        return result.reshape(shape)[()]

    def multivariate_hypergeometric(self, colors, nsample, size=None, method="marginals"):
        """The number of balls of each colour among `nsample`, drawn without replacement: (..., colours)."""
        from vmhost.engine.numpy._urns import by_counting, by_marginals

        if method not in ("marginals", "count"):
            raise ValueError('method must be "count" or "marginals".')
        colors = _a.asarray(colors)
        if colors.ndim != 1 or colors.dtype.kind not in "iu" and colors.size or (colors < 0).any():
            raise ValueError("colors must be a one-dimensional sequence of nonnegative integers.")
        nsample, counts = _index(nsample), colors.tolist()
        if nsample < 0:
            raise ValueError("nsample must be nonnegative.")
        if nsample > sum(counts):
            raise ValueError("nsample > sum(colors)")
        if sum(counts) >= 1 << 63:
            raise ValueError(
                f"sum(colors) must not exceed the maximum value of a 64 bit signed integer ({(1 << 63) - 1})"
            )
        if method == "count" and sum(counts) >= 1 << 60:  # NumPy's list has 8 bytes for each ball
            raise ValueError(f"When method is 'count', sum(colors) must not exceed {(1 << 60) - 1}")
        if method == "marginals" and sum(counts) >= 10**9:
            raise ValueError('When method is "marginals", sum(colors) must be less than 1000000000.')
        shape = () if size is None else shape_of_size(size)
        times = 1
        for n in shape:
            times *= n
        rows = (
            by_counting(self, counts, nsample, times)
            if method == "count"
            else [by_marginals(self, counts, nsample) for _ in range(times)]
        )
        return _a.array(rows, _a.int64).reshape((*shape, len(counts)))

    def integers(self, low, high=None, size=None, dtype=_a.int64, endpoint=False):
        """Integers from `low` to `high`, exclusive (inclusive with `endpoint`)."""
        if high is None:
            low, high = 0, low
        dtype = _a.dtype(dtype)
        if dtype.kind not in "biu":
            raise TypeError(f"Unsupported dtype {dtype!r} for integers")
        lowest, highest = (0, 1) if dtype.kind == "b" else integer_limits(dtype)
        if isinstance(low, int) and isinstance(high, int):
            last = high if endpoint else high - 1
            _check_range(low, last, lowest, highest, endpoint)
            parameters = (_a.full((), low & _WORD, _a.uint64), _a.full((), last - low, _a.uint64))
        else:
            try:
                lows, highs = (_integer_array(values) for values in (low, high))
            except OverflowError as error:
                raise ValueError(f"low or high is out of bounds for {dtype.name}") from error
            parameters = _integer_ranges(lows, highs, lowest, highest, endpoint)
        return self._draw(_INTEGERS, size, parameters, dtype)

    def bytes(self, length):
        """Random bytes."""
        return self.integers(0, _HALF, (length + 3) // 4, _a.uint32, True).tobytes()[:length]

    # ---- choice and order
    def choice(self, a, size=None, replace=True, p=None, axis=0, shuffle=True):
        """Random elements of `a`, or of range(a) if it is a number; with or without replacement; `p` are the
        probabilities, by default equal."""
        a = _a.asarray(a)
        if a.ndim == 0:
            if a.dtype.kind not in "iu":
                raise ValueError("a must be a sequence or an integer, not " + str(type(a.item())))
            population = int(a)
            if population <= 0 and size != 0:
                raise ValueError("a must be a positive integer unless no samples are taken")
        else:
            population = a.shape[axis]
            if population == 0 and size != 0:
                raise ValueError("a cannot be empty unless no samples are taken")
        if p is not None:
            tolerance = sum_tolerance(p)
            p = _a.asarray(p, dtype=_a.float64)
            if p.ndim != 1:
                raise ValueError("p must be 1-dimensional")
            if p.size != population:
                raise ValueError("a and p must have same size")
            total = float(p.sum())
            if total != total:
                raise ValueError("Probabilities contain NaN")
            if (p < 0).any():
                raise ValueError("Probabilities are not non-negative")
            if abs(total - 1) > tolerance:
                raise ValueError("Probabilities do not sum to 1. See Notes section of docstring for more information.")
        shape = () if size is None else shape_of_size(size)
        count = 1
        for n in shape:
            count *= n
        if replace and p is not None:
            sums = p.cumsum()
            sums /= sums[-1]
            indices = sums.searchsorted(self.random(shape), side="right")
        elif replace:
            indices = self.integers(0, population, shape)
        else:
            if count > population:
                raise ValueError("Cannot take a larger sample than population when replace is False")
            indices = (
                self._sample(population, count, shuffle) if p is None else self._weighted_sample(p, count)
            ).reshape(shape)
        if size is None:
            indices = indices.reshape(())[()]
        if a.ndim == 0:
            return indices
        return _a.take(a, indices, axis)

    def _sample(self, population, count, shuffle):
        if population > 10000 and count > population // (50 if shuffle else 20):
            indices = _a.arange(population)
            self.bit_generator._fill(_SHUFFLE_TAIL, (_a.full((), max(population - count, 1), _a.uint64),), indices)
            return indices[population - count :].copy()
        indices = _a.empty(count, _a.int64)
        self.bit_generator._fill(_SAMPLE, (_a.full((), population, _a.uint64),), indices)
        if shuffle:
            self.bit_generator._fill(_SHUFFLE_TAIL, (_a.ones((), _a.uint64),), indices)
        return indices

    def _weighted_sample(self, p, count):
        if int(_a.count_nonzero(p > 0)) < count:
            raise ValueError("Fewer non-zero entries in p than size")
        p, indices = p.copy(), []
        while len(indices) < count:
            drawn = self.random((count - len(indices),))
            if indices:
                p[_a.asarray(indices)] = 0
            sums = p.cumsum()
            sums /= sums[-1]
            indices += list(dict.fromkeys(sums.searchsorted(drawn, side="right").tolist()))
        return _a.asarray(indices, dtype=_a.int64)

    def _shuffled(self, n):
        """range(n), shuffled."""
        order = _a.arange(n)
        self.bit_generator._fill(_SHUFFLE, (), order)
        return order

    def shuffle(self, x, axis=0):
        """Shuffles x along `axis`, in place."""
        if not isinstance(x, _a.ndarray):
            if axis != 0:
                raise NotImplementedError("Axis argument is only supported on ndarray objects")
            x[:] = [x[i] for i in self._shuffled(len(x)).tolist()]
            return
        if x.ndim == 0:
            raise TypeError("len() of unsized object")
        x[...] = _a.take(x, self._shuffled(x.shape[_axis_of(axis, x.ndim)] if x.size else 0), axis) if x.size else x

    def permutation(self, x, axis=0):
        """A permutation of range(x), or of a copy of x along `axis`."""
        if isinstance(x, int) or isinstance(x, _a.ndarray) and x.ndim == 0 and x.dtype.kind in "iu":
            return self._shuffled(int(x))
        x = _a.array(x)
        axis = _axis_of(axis, x.ndim)
        return _a.take(x, self._shuffled(x.shape[axis]), axis)

    def permuted(self, x, *, axis=None, out=None):
        """A copy with each row along `axis` shuffled independently; without `axis`, with all elements shuffled."""
        x = _a.asarray(x)
        if out is not None and out.shape != x.shape:
            raise ValueError("out must have the same shape as x")
        if axis is None:
            result = _a.take(x.ravel(), self._shuffled(x.size)).reshape(x.shape)
        else:
            from vmhost.engine.numpy._shapes import take_along_axis

            axis = _axis_of(axis, x.ndim)
            axis_last = [i for i in range(x.ndim) if i != axis] + [axis]
            rows = x.transpose(axis_last)
            orders = _a.empty(rows.shape, _a.int64)
            orders[...] = _a.arange(x.shape[axis])
            self.bit_generator._fill(_SHUFFLE, (), orders)
            result = take_along_axis(rows, orders, -1)
            inverse = [0] * x.ndim
            for position, dimension in enumerate(axis_last):
                inverse[dimension] = position
            result = _a.ascontiguousarray(result.transpose(inverse))
        if out is None:
            return result
        out[...] = result
        return out

    # ---- vectors
    def multivariate_normal(self, mean, cov, size=None, check_valid="warn", tol=1e-8, *, method="svd"):
        """Vectors of normal numbers with this mean and covariance."""
        from vmhost.engine.numpy import linalg

        if method not in ("eigh", "svd", "cholesky"):
            raise ValueError("method must be one of {'eigh', 'svd', 'cholesky'}")
        mean, cov = mean_and_covariances(mean, cov)
        x = self.standard_normal((() if size is None else shape_of_size(size)) + mean.shape)
        if method == "cholesky":
            factor = linalg.cholesky(cov)
        elif method == "eigh":
            s, u = linalg.eigh(cov)
            factor = u * _a.sqrt(_a.absolute(s))
        else:
            u, s, vh = linalg.svd(cov)
            factor = u * _a.sqrt(s)
            if (
                check_valid != "ignore"
                and not (_a.absolute(vh.T * s @ vh - cov) <= tol + tol * _a.absolute(cov)).all()
                and check_valid == "raise"
            ):
                raise ValueError("covariance is not symmetric positive-semidefinite.")
        return mean + (x.reshape(-1, len(mean)) @ factor.T).reshape(x.shape)


def _parameter(value):
    return _a.float64(value) if isinstance(value, (int, float)) else _a.asarray(value, dtype=_a.float64)


def _positive(value, name, strictly=False):
    if type(value) is float and value > 0:
        return _a.float64(value)
    value = _parameter(value)
    wrong = value <= 0 if strictly else _a.signbit(value) & ~_a.isnan(value)  # -0.0 is negative, as in NumPy
    if wrong if wrong.ndim == 0 else wrong.any():
        raise ValueError(f"{name} <= 0" if strictly else f"{name} < 0")
    return value


def _count(value, strictly=False):
    value = _positive(value, "n", strictly)
    if _a.isnan(value).any():
        raise ValueError("n must not be NaN")
    return value


def _probability(value, name="p"):
    value = _parameter(value)
    if not ((value >= 0) & (value <= 1)).all():
        raise ValueError(f"{name} < 0, {name} > 1 or {name} is NaN")
    return value


def _pairs(first, second):
    result = _a.empty((*_a.add(first, second).shape, 2))
    result[..., 0], result[..., 1] = first, second
    return result


def _integer_array(values):
    values = _a.asarray(values)
    if values.dtype.kind == "f":
        integers = values.astype(_a.int64)
        if (integers != values).any():
            raise TypeError("integers takes whole numbers")
        return integers
    if values.dtype.kind not in "biu":
        raise TypeError("integers takes whole numbers")
    return values


def _check_range(low, last, lowest, highest, endpoint):
    if low < lowest:
        raise ValueError("low is out of bounds for " + ("bool" if highest == 1 else _integer_name(lowest, highest)))
    if last > highest:
        raise ValueError("high is out of bounds for " + ("bool" if highest == 1 else _integer_name(lowest, highest)))
    if low > last:
        raise ValueError("low > high" if endpoint else "high <= 0" if low == 0 else "low >= high")


def _integer_name(lowest, highest):
    return f"{'int' if lowest else 'uint'}{(highest - lowest).bit_length()}"


def _integer_ranges(lows, highs, lowest, highest, endpoint):
    shape = common_shape(lows, highs)
    lows, highs = (_a.broadcast_to(values, shape).ravel().tolist() for values in (lows, highs))
    lasts = highs if endpoint else [high - 1 for high in highs]
    for low, last in zip(lows, lasts):
        _check_range(low, last, lowest, highest, endpoint)
    return (
        _a.array([low & _WORD for low in lows], _a.uint64).reshape(shape),
        _a.array([last - low for low, last in zip(lows, lasts)], _a.uint64).reshape(shape),
    )


def _axis_of(axis, rank):
    from vmhost.engine.numpy._shapes import _axis

    return _axis(axis, rank)


def __dir__():
    return list(__all__)


def __getattr__(name):
    from vmhost.engine.numpy import _random_state

    if name == "RandomState":
        return _random_state.RandomState
    if name in _random_state.SHARED:
        return _random_state.shared(_random_state.SHARED[name])
    from vmhost.engine.numpy._absent import missing

    raise missing("random", name)
