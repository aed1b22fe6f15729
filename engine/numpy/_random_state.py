"""`numpy.random`'s legacy interface: RandomState over the Mersenne Twister, and the functions of a VM's shared one.

Draws the numbers that NumPy draws for the same seed: words and integers exactly, floating-point numbers to rounding.
The twister is that of Python's module `random`. New code should use a Generator of `default_rng(seed)`, which is faster
and has more distributions."""

from math import exp, floor, lgamma, log, sqrt
from operator import index
from random import Random

from vmhost.engine import _array as _a
from vmhost.engine.numpy._random_arguments import (
    common_shape,
    integer_limits,
    mean_and_covariances,
    shape_of_size,
    sum_tolerance,
)

_WORD_MAX = (1 << 32) - 1


def _twister_of_number(seed):
    state, value = [], seed
    for i in range(1, 625):
        state.append(value)
        value = (1812433253 * (value ^ value >> 30) + i) & _WORD_MAX
    return state


def _twister_of_words(words):
    """Matsumoto and Nishimura's init_by_array (2002)."""
    state, i, j = _twister_of_number(19650218), 1, 0
    for _ in range(max(624, len(words))):
        state[i] = ((state[i] ^ (state[i - 1] ^ state[i - 1] >> 30) * 1664525) + words[j] + j) & _WORD_MAX
        i, j = i + 1, (j + 1) % len(words)
        if i == 624:
            state[0], i = state[623], 1
    for _ in range(623):
        state[i] = ((state[i] ^ (state[i - 1] ^ state[i - 1] >> 30) * 1566083941) - i) & _WORD_MAX
        i += 1
        if i == 624:
            state[0], i = state[623], 1
    state[0] = 1 << 31
    return state


_POISSON_MAX = 9.223372006484771e18


def _is_not_negative(values):
    """-0.0 is negative here, and NaN is not, as in NumPy."""
    return ~_a.signbit(values) | _a.isnan(values)


def _is_positive(values):
    return ~(values <= 0)


def _checked(values, right, sentence):
    if not right(values).all():
        raise ValueError(sentence)


class RandomState:
    """Random numbers of the legacy interface. The seed is a number from 0 to 2**32 - 1, a list of them, or None for a
    random seed."""

    def __init__(self, seed=None):
        self._twister = Random()
        self.seed(seed)

    def __repr__(self):
        return "RandomState(MT19937)"

    def seed(self, seed=None):
        self._kept = None  # the second normal number of a pair
        if seed is None:
            self._twister.seed()
            return
        if hasattr(seed, "squeeze"):
            seed = seed.squeeze()
        try:
            number = index(seed)
        except TypeError:
            words = _a.asarray(seed)
            if words.size == 0:
                raise ValueError("Seed must be non-empty") from None
            if words.dtype.kind not in "biu":
                raise TypeError(
                    f"Cannot cast {'array data' if words.ndim else 'scalar'} from {words.dtype!r} to dtype('int64')"
                    " according to the rule 'safe'"
                ) from None
            if words.ndim != 1:
                raise ValueError("Seed array must be 1-d") from None
            words = words.tolist()
            if min(words) < 0 or max(words) > _WORD_MAX:
                raise ValueError("Seed must be between 0 and 2**32 - 1") from None
            state = _twister_of_words(words)
        else:
            if not 0 <= number <= _WORD_MAX:
                raise ValueError("Seed must be between 0 and 2**32 - 1")
            state = _twister_of_number(number)
        self._twister.setstate((3, (*state, 624), None))

    def get_state(self, legacy=True):
        """("MT19937", 624 words, position, whether a normal number is cached, that number), or the same as a dict."""
        words = self._twister.getstate()[1]
        key, position = _a.array(words[:624], _a.uint32), words[624]
        kept, value = int(self._kept is not None), self._kept or 0.0
        if legacy:
            return "MT19937", key, position, kept, value
        return {"bit_generator": "MT19937", "state": {"key": key, "pos": position}, "has_gauss": kept, "gauss": value}

    def set_state(self, state):
        if isinstance(state, dict):
            state = (
                state["bit_generator"],
                state["state"]["key"],
                state["state"]["pos"],
                state.get("has_gauss", 0),
                state.get("gauss", 0.0),
            )
        if not isinstance(state, (tuple, list)):
            raise TypeError("state must be a dict or a tuple.")
        if len(state) < 3:
            raise IndexError("state is a tuple of at least 3 items")
        name, key, position, *kept = state
        if name != "MT19937":
            raise ValueError("set_state can only be used with legacy MT19937 state instances.")
        self._twister.setstate((3, (*_a.asarray(key).tolist(), int(position)), None))
        self._kept = float(kept[1]) if kept and kept[0] else None

    # ---- words
    def _words(self, count):
        return _a.frombuffer(self._twister.randbytes(4 * count), _a.uint32)

    def _doubles(self, count):
        words = self._words(2 * count)
        return ((words[::2] >> 5) * 67108864.0 + (words[1::2] >> 6)) / 9007199254740992.0

    def _normals(self, count):
        """Normal numbers by Marsaglia's polar method; the second of a pair is cached for the next call."""
        result, filled = _a.empty(count), 0
        if count and self._kept is not None:
            result[0], filled, self._kept = self._kept, 1, None
        while filled < count:
            pairs = (count - filled + 1) // 2
            points = 2.0 * self._doubles(2 * pairs).reshape(pairs, 2) - 1.0
            squares = (points * points).sum(axis=1)
            inside = (squares < 1.0) & (squares != 0.0)
            points, squares = points[inside], squares[inside]
            normals = (points[:, ::-1] * _a.sqrt(-2.0 * _a.log(squares) / squares)[:, None]).reshape(-1)
            taken = min(len(normals), count - filled)
            result[filled : filled + taken] = normals[:taken]
            filled += taken
            if taken < len(normals):
                self._kept = float(normals[taken])
        return result

    def _exponentials(self, count):
        return -_a.log(1.0 - self._doubles(count))

    def _interval(self, maximum):
        """A number from 0 to `maximum`: masked words until one is small enough."""
        mask, bits = (1 << maximum.bit_length()) - 1, self._twister.getrandbits
        while True:
            value = bits(32) if maximum <= _WORD_MAX else bits(32) << 32 | bits(32)
            if value & mask <= maximum:
                return value & mask

    def _pieces(self, width):
        """Splits words into pieces of `width` bits, low bits first."""
        while True:
            word = self._twister.getrandbits(32)
            for shift in range(0, 32, width):
                yield word >> shift & (1 << width) - 1

    def _below(self, maximum, count, width):
        """`count` numbers from 0 to `maximum`, from pieces of words of `width` bits each."""
        if width == 64 and maximum <= _WORD_MAX:
            width = 32
        dtype, per_word = _a.dtype(f"uint{width}"), max(32 // width, 1)
        if maximum == 0:
            return _a.zeros(count, dtype)
        mask = _a.asarray((1 << maximum.bit_length()) - 1, dtype)
        result, filled, left = _a.empty(count, dtype), 0, _a.empty(0, dtype)
        while filled < count:
            missing = count - filled
            words = -(-(missing - len(left)) // per_word)
            if width == 64:
                halves = self._words(2 * missing).astype(dtype)
                pieces = halves[::2] << 32 | halves[1::2]
            else:
                pieces = _a.concatenate((left, self._words(words).view(dtype)))
            left = pieces[missing:]
            values = pieces[:missing] & mask
            values = values[values <= maximum]
            result[filled : filled + len(values)] = values
            filled += len(values)
        return result

    # ---- drawing
    def _drawn(self, size, draw, *parameters):
        """draw(count, *parameters as flat arrays or numbers), in shape; a number if there is no size and no array."""
        shape = common_shape(*parameters) if parameters else ()
        if size is None and shape == ():
            return draw(1, *parameters).item()
        if size is not None:
            target = shape_of_size(size)
            if shape and common_shape(_a.empty(shape), _a.empty(target)) != target:
                raise ValueError(f"Output size {target} is not compatible with broadcast dimensions of inputs {shape}.")
            shape = target
        count = 1
        for length in shape:
            if length < 0:
                raise ValueError("negative dimensions are not allowed")
            count *= length
        flat = [
            parameter if parameter.ndim == 0 else _a.broadcast_to(parameter, shape).ravel() for parameter in parameters
        ]
        return draw(count, *flat).reshape(shape)

    def _each_element(self, size, one, *parameters, dtype=float):
        """one(*numbers) for every element in order."""

        def draw(count, *flat):
            rows = zip(
                *([parameter.item()] * count if parameter.ndim == 0 else parameter.tolist() for parameter in flat)
            )
            return _a.array([one(*row) for row in rows], dtype).reshape(count)

        return self._drawn(size, draw, *parameters)

    # ---- uniform and integers
    def random_sample(self, size=None):
        return self._drawn(size, self._doubles)

    random = random_sample

    def rand(self, *args):
        return self.random_sample(args or None)

    def uniform(self, low=0.0, high=1.0, size=None):
        low, high = _numbers(low, high)
        if not _a.isfinite(high - low).all():
            raise OverflowError("Range exceeds valid bounds")
        return self._drawn(size, lambda count, low, high: low + (high - low) * self._doubles(count), low, high)

    def tomaxint(self, size=None):
        def draw(count):
            halves = self._words(2 * count).astype(_a.uint64)
            return (halves[::2] << 31 | halves[1::2] >> 1).astype(_a.int64)

        return self._drawn(size, draw)

    def bytes(self, length):
        return self._twister.randbytes(-(-length // 4) * 4)[:length]

    def randint(self, low, high=None, size=None, dtype=int):
        """Integers from `low` to `high`, exclusive; from 0 if only one bound is given."""
        if high is None:
            low, high = 0, low
        requested, dtype = dtype, _a.dtype(dtype)
        if dtype.kind not in "biu":
            raise TypeError(f"Unsupported dtype {dtype!r} for randint")
        width = 1 if dtype.kind == "b" else 8 * dtype.itemsize
        lowest, highest = (0, 1) if dtype.kind == "b" else integer_limits(dtype)

        def check(minimum, last):
            if minimum < lowest:
                raise ValueError(f"low is out of bounds for {dtype.name}")
            if last > highest:
                raise ValueError(f"high is out of bounds for {dtype.name}")
            if minimum > last:
                raise ValueError("low >= high")

        if all(isinstance(bound, (int, float)) or getattr(bound, "ndim", 1) == 0 for bound in (low, high)):
            minimum, last = int(low), int(high) - 1
            check(minimum, last)
            result = self._drawn(
                size,
                lambda count: (
                    (self._bits(count, last) if width == 1 else self._below(last - minimum, count, width)).astype(dtype)
                    + _a.asarray(minimum, dtype)
                ),
            )
            as_python = size is None and (requested is int or requested is bool)
            return result if size is not None or as_python else _a.asarray(result, dtype)[()]
        pieces = self._pieces(width)

        lows, highs = _a.asarray(low), _a.asarray(high)
        for values in (lows, highs):
            if values.dtype.kind not in "biu":
                raise TypeError(
                    f"Cannot cast array data from {values.dtype!r} to {_a.dtype(int)!r} according to the rule 'safe'"
                )

        def one(minimum, high):
            check(int(minimum), int(high) - 1)
            span = int(high) - 1 - int(minimum)
            if width >= 32 or span == 0:
                return int(minimum) + (span and self._interval(span))
            mask = (1 << span.bit_length()) - 1
            return int(minimum) + next(piece & mask for piece in pieces if piece & mask <= span)

        return self._each_element(size, one, lows, highs, dtype=dtype)

    def _bits(self, count, last):
        if last == 0:
            return _a.zeros(count, bool)
        from vmhost.engine.numpy._bits import unpackbits

        return unpackbits(self._words(-(-count // 32)).view(_a.uint8), bitorder="little")[:count]

    def random_integers(self, low, high=None, size=None):
        low, high = (1, low) if high is None else (low, high)
        return self.randint(low, int(high) + 1, size)

    # ---- orders and choices
    def _order(self, length):
        order = list(range(length))
        for i in range(length - 1, 0, -1):
            j = self._interval(i)
            order[i], order[j] = order[j], order[i]
        return order

    def shuffle(self, x):
        if isinstance(x, _a.ndarray):
            if x.ndim == 0:
                raise TypeError("x must be an array or a sequence of more than 0 dimensions")
            x[...] = _a.take(x, _a.array(self._order(len(x)), int), 0)
            return
        for i in range(len(x) - 1, 0, -1):
            j = self._interval(i)
            x[i], x[j] = x[j], x[i]

    def permutation(self, x):
        if isinstance(x, int) or hasattr(x, "__index__") and not getattr(x, "ndim", 0):
            return _a.array(self._order(int(x)), int)
        x = _a.asarray(x)
        if x.ndim < 1:
            raise IndexError("x must be an integer or at least 1-dimensional")
        return _a.take(x, _a.array(self._order(len(x)), int), 0)

    def choice(self, a, size=None, replace=True, p=None):
        """Random elements of `a` (of arange(a) if it is a number) with probabilities `p`."""
        array = _a.asarray(a)
        if array.ndim == 0:
            population = array.item()
            if not isinstance(population, int):
                raise ValueError("a must be 1-dimensional or an integer")
            if population <= 0 and size != 0:
                raise ValueError("a must be greater than 0 unless no samples are taken")
        elif array.ndim != 1:
            raise ValueError("a must be 1-dimensional")
        else:
            population = len(array)
            if population == 0 and size != 0:
                raise ValueError("'a' cannot be empty unless no samples are taken")
        shape = None if size is None else shape_of_size(size)
        count = 1
        for length in shape or ():
            if length < 0:
                raise ValueError("negative dimensions are not allowed")
            count *= length
        if p is not None:
            tolerance = sum_tolerance(p)
            p = _a.asarray(p, dtype=float)
            if p.ndim != 1:
                raise ValueError("'p' must be 1-dimensional")
            if len(p) != population:
                raise ValueError("'a' and 'p' must have same size")
            if _a.isnan(p).any():
                raise ValueError("probabilities contain NaN")
            if (p < 0).any():
                raise ValueError("probabilities are not non-negative")
            if abs(float(p.sum()) - 1.0) > tolerance:
                raise ValueError("probabilities do not sum to 1")
        if replace and p is None:
            indices = _a.asarray(self.randint(0, population, size))
        elif replace:
            limits = p.cumsum()
            limits /= limits[-1]
            indices = limits.searchsorted(self.random_sample(size), side="right")
        else:
            if count > population:
                raise ValueError("Cannot take a larger sample than population when 'replace=False'")
            if p is not None and _a.count_nonzero(p) < count:
                raise ValueError("Fewer non-zero entries in p than size")
            indices = self.permutation(population)[:count] if p is None else self._weighted_sample(p, count)
            indices = indices.reshape(shape or ())
        if array.ndim == 0:
            return indices.item() if shape is None else indices
        return array[indices]

    def _weighted_sample(self, p, count):
        from vmhost.engine.numpy._sets import unique

        p, indices = p.copy(), _a.zeros(0, int)
        while len(indices) < count:
            draws = self.rand(count - len(indices))
            p[indices] = 0
            limits = p.cumsum()
            limits /= limits[-1]
            drawn = limits.searchsorted(draws, side="right")
            _, first = unique(drawn, return_index=True)
            indices = _a.concatenate((indices, drawn[_a.sort(first)]))
        return indices

    # ---- normal numbers and distributions derived from them
    def randn(self, *args):
        return self.standard_normal(args or None)

    def standard_normal(self, size=None):
        return self._drawn(size, self._normals)

    def normal(self, loc=0.0, scale=1.0, size=None):
        loc, scale = _numbers(loc, scale)
        _checked(scale, _is_not_negative, "scale < 0")
        return self._drawn(size, lambda count, loc, scale: loc + scale * self._normals(count), loc, scale)

    def lognormal(self, mean=0.0, sigma=1.0, size=None):
        mean, sigma = _numbers(mean, sigma)
        _checked(sigma, _is_not_negative, "sigma < 0")
        return self._drawn(size, lambda count, mean, sigma: _a.exp(mean + sigma * self._normals(count)), mean, sigma)

    def standard_cauchy(self, size=None):
        def draw(count):
            pairs = self._normals(2 * count)
            return pairs[::2] / pairs[1::2]

        return self._drawn(size, draw)

    def multivariate_normal(self, mean, cov, size=None, check_valid="warn", tol=1e-8):
        """Vectors of normal numbers with this mean and covariance."""
        from vmhost.engine.numpy.linalg import svd

        mean, cov = mean_and_covariances(mean, cov)
        x = self.standard_normal((() if size is None else shape_of_size(size)) + mean.shape).reshape(-1, len(mean))
        _, s, v = svd(cov)
        if check_valid == "raise" and not (_a.absolute(v.T * s @ v - cov) <= tol + tol * _a.absolute(cov)).all():
            raise ValueError("covariance is not symmetric positive-semidefinite.")
        return (mean + x @ (_a.sqrt(s)[:, None] * v)).reshape(
            (() if size is None else shape_of_size(size)) + mean.shape
        )

    # ---- distributions derived from uniform and exponential numbers
    def standard_exponential(self, size=None):
        return self._drawn(size, self._exponentials)

    def exponential(self, scale=1.0, size=None):
        (scale,) = _numbers(scale)
        _checked(scale, _is_not_negative, "scale < 0")
        return self._drawn(size, lambda count, scale: scale * self._exponentials(count), scale)

    def _with_positive(self, size, a, function, name="a", strictly=True):
        (a,) = _numbers(a)
        _checked(a, _is_positive if strictly else _is_not_negative, f"{name} <= 0" if strictly else f"{name} < 0")
        return self._drawn(size, function, a)

    def pareto(self, a, size=None):
        return self._with_positive(size, a, lambda count, a: _a.expm1(self._exponentials(count) / a))

    def weibull(self, a, size=None):
        (a,) = _numbers(a)
        if ((a == 0) & ~_a.signbit(a)).any() and (a >= 0).all():  # consumes no word for these
            return self._each_element(size, lambda a: a and (-log(1.0 - self._twister.random())) ** (1.0 / a), a)
        return self._with_positive(size, a, lambda count, a: self._exponentials(count) ** (1.0 / a), strictly=False)

    def power(self, a, size=None):
        return self._with_positive(size, a, lambda count, a: (-_a.expm1(-self._exponentials(count))) ** (1.0 / a))

    def rayleigh(self, scale=1.0, size=None):
        return self._with_positive(
            size, scale, lambda count, scale: scale * _a.sqrt(2.0 * self._exponentials(count)), "scale", False
        )

    def _location_scale(self, size, loc, scale, function):
        loc, scale = _numbers(loc, scale)
        _checked(scale, _is_not_negative, "scale < 0")
        return self._drawn(size, lambda count, loc, scale: loc + scale * function(self._doubles(count)), loc, scale)

    def laplace(self, loc=0.0, scale=1.0, size=None):
        return self._location_scale(size, loc, scale, lambda u: _a.where(u >= 0.5, -_a.log(2.0 - u - u), _a.log(u + u)))

    def gumbel(self, loc=0.0, scale=1.0, size=None):
        return self._location_scale(size, loc, scale, lambda u: -_a.log(-_a.log(1.0 - u)))

    def logistic(self, loc=0.0, scale=1.0, size=None):
        return self._location_scale(size, loc, scale, lambda u: _a.log(u / (1.0 - u)))

    def triangular(self, left, mode, right, size=None):
        left, mode, right = _numbers(left, mode, right)
        for wrong, sentence in (
            (left > mode, "left > mode"),
            (mode > right, "mode > right"),
            (left == right, "left == right"),
        ):
            if wrong.any():
                raise ValueError(sentence)

        def draw(count, left, mode, right):
            u, base = self._doubles(count), right - left
            return _a.where(
                u <= (mode - left) / base,
                left + _a.sqrt(u * (mode - left) * base),
                right - _a.sqrt((1.0 - u) * (right - mode) * base),
            )

        return self._drawn(size, draw, left, mode, right)

    # ---- element by element
    def _gamma(self, shape):
        uniform, normal = self._twister.random, self._normal
        if shape == 1.0:
            return -log(1.0 - uniform())
        if shape == 0.0:
            return 0.0
        if shape < 1.0:  # Ahrens and Dieter's GS (1974)
            while True:
                u, v = uniform(), -log(1.0 - uniform())
                if u <= 1.0 - shape:
                    x = u ** (1.0 / shape)
                    if x <= v:
                        return x
                else:
                    y = -log((1.0 - u) / shape)
                    x = (1.0 - shape + shape * y) ** (1.0 / shape)
                    if x <= v + y:
                        return x
        b = shape - 1.0 / 3.0  # Marsaglia and Tsang (2000)
        c = 1.0 / sqrt(9.0 * b)
        while True:
            v = 0.0
            while v <= 0.0:
                x = normal()
                v = 1.0 + c * x
            v, u = v * v * v, uniform()
            if u < 1.0 - 0.0331 * x**4 or log(u) < 0.5 * x * x + b * (1.0 - v + log(v)):
                return b * v

    def _normal(self):
        return self._normals(1).item()

    def standard_gamma(self, shape, size=None):
        (shape,) = _numbers(shape)
        _checked(shape, _is_not_negative, "shape < 0")
        return self._each_element(size, self._gamma, shape)

    def gamma(self, shape, scale=1.0, size=None):
        shape, scale = _numbers(shape, scale)
        _checked(shape, _is_not_negative, "shape < 0")
        _checked(scale, _is_not_negative, "scale < 0")
        return self._each_element(size, lambda shape, scale: scale * self._gamma(shape), shape, scale)

    def chisquare(self, df, size=None):
        (df,) = _numbers(df)
        _checked(df, _is_positive, "df <= 0")
        return self._each_element(size, lambda df: 2.0 * self._gamma(df / 2.0), df)

    def standard_t(self, df, size=None):
        (df,) = _numbers(df)
        _checked(df, _is_positive, "df <= 0")

        def one(df):
            normal = self._normal()
            return sqrt(df / 2.0) * normal / sqrt(self._gamma(df / 2.0))

        return self._each_element(size, one, df)

    def beta(self, a, b, size=None):
        a, b = _numbers(a, b)
        _checked(a, _is_positive, "a <= 0")
        _checked(b, _is_positive, "b <= 0")

        def one(a, b):
            if not (a <= 1.0 and b <= 1.0):
                first = self._gamma(a)
                return first / (first + self._gamma(b))
            while True:  # Johnk (1964)
                u, v = self._twister.random(), self._twister.random()
                x, y = u ** (1.0 / a), v ** (1.0 / b)
                if x + y <= 1.0:
                    if x + y > 0:
                        return x / (x + y)
                    x, y = log(u) / a, log(v) / b
                    larger = max(x, y)
                    return exp(x - larger - log(exp(x - larger) + exp(y - larger)))

        return self._each_element(size, one, a, b)

    def dirichlet(self, alpha, size=None):
        alpha = _a.asarray(alpha, dtype=float)
        if alpha.ndim != 1:
            raise ValueError("alpha must be a one-dimensional sequence")
        _checked(alpha, _is_positive, "alpha <= 0")
        shape = () if size is None else shape_of_size(size)
        gammas = self.standard_gamma(_a.broadcast_to(alpha, shape + alpha.shape))
        return gammas / gammas.sum(axis=-1, keepdims=True)

    def poisson(self, lam=1.0, size=None):
        (lam,) = _numbers(lam)
        _checked(
            lam, lambda lam: lam >= 0, "lam < 0 or lam is NaN" if lam.ndim == 0 else "lam < 0 or lam contains NaNs"
        )
        _checked(lam, lambda lam: lam <= _POISSON_MAX, "lam value too large")
        return self._each_element(size, self._poisson, lam, dtype=int)

    def _poisson(self, lam):
        uniform = self._twister.random
        if lam < 10:
            limit, product, count = exp(-lam), 1.0, 0
            while lam:
                product *= uniform()
                if product <= limit:
                    break
                count += 1
            return count
        b = 0.931 + 2.53 * sqrt(lam)  # Hörmann's transformed rejection, PTRS (1993)
        a = -0.059 + 0.02483 * b
        inverse = 1.1239 + 1.1328 / (b - 3.4)
        while True:
            u, v = uniform() - 0.5, uniform()
            us = 0.5 - abs(u)
            k = floor((2 * a / us + b) * u + lam + 0.43)
            if us >= 0.07 and v <= 0.9277 - 3.6224 / (b - 2):
                return k
            if (
                k >= 0
                and not (us < 0.013 and v > us)
                and log(v) + log(inverse) - log(a / (us * us) + b) <= -lam + k * log(lam) - lgamma(k + 1)
            ):
                return k


def _numbers(*values):
    return [_a.asarray(value, dtype=float) for value in values]


_shared = None


def shared(name):
    """The named method of the RandomState that all code in this VM shares, created at first use."""
    global _shared
    if _shared is None:
        _shared = RandomState()
    return getattr(_shared, name)


SHARED = {
    "ranf": "random_sample",
    "sample": "random_sample",
    **{name: name for name in vars(RandomState) if not name.startswith("_")},
}
