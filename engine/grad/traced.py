"""Traced arrays: the arguments of a function whose operators are recorded on a tape.

The functions of `vmhost.engine._array` pass calls with a traced argument to `dispatch` (engine/arrays/tracing.c); the
operators below do so themselves. A tape has a `level`, which increases with each new tape, `apply(name, args,
kwargs)`, `leave(traced)` for a value that Python reads, and `differentiates`: whether stop_gradient takes values off
it. Of several tapes the one with the highest level applies; to it, arrays of the others are plain values.
"""

from itertools import count

from vmhost.engine import _array as _a

PRIMITIVES = {}  # name to function: operators that are not in `vmhost.engine._array`
levels = count()


def dispatch(name, /, *args, **kwargs):
    """The call `name(*args, **kwargs)`, with a traced argument."""
    return highest((*args, *kwargs.values()) if kwargs else args).apply(name, args, kwargs)


def highest(items, tape=None):
    """The tape with the highest level among the items, also within lists and tuples; None: none is traced."""
    for one in items:
        if type(one) is Traced:
            if tape is None or one.tape.level > tape.level:
                tape = one.tape
        elif type(one) is list or type(one) is tuple:
            tape = highest(one, tape)
    return tape


def function(name):
    """The function with this name in rules and tapes."""
    own = PRIMITIVES.get(name)
    return getattr(_a, name) if own is None else own


def call(name, *args, **kwargs):
    """Calls a function of PRIMITIVES on arguments of which some may be traced."""
    for one in args:
        if type(one) is Traced:
            return dispatch(name, *args, **kwargs)
    return PRIMITIVES[name](*args, **kwargs)


def primitive(implementation):
    """Makes a function of arrays an operator with the function's name, for which a rule can be defined."""
    name = implementation.__name__
    PRIMITIVES[name] = implementation

    def operator(*args, **kwargs):
        return call(name, *args, **kwargs)

    operator.__name__, operator.__doc__ = name, implementation.__doc__
    return operator


@primitive
def getitem(array, key):
    return array[key]


@primitive
def scatter_add(values, key, shape):
    """Zeros of that shape, to which `values` are added at `key`."""
    result = _a.zeros(shape, values.dtype)
    _a._scatter_add(result, key, values)
    return result


@primitive
def scatter(values, key, shape):
    """Zeros of that shape, with `values` at `key`, which must not contain an index twice."""
    result = _a.zeros(shape, values.dtype)
    result[key] = values
    return result


class Traced:
    """An array on a tape. Computes like an array; writing to it is refused, because recorded operators read it."""

    __slots__ = ("value", "tape", "gradient")
    __array_ufunc__ = None  # NumPy leaves operators to this class

    def __init__(self, value, tape):
        self.value, self.tape, self.gradient = value, tape, None

    # --- attributes of an array
    @property
    def shape(self):
        return self.value.shape

    @property
    def ndim(self):
        return self.value.ndim

    @property
    def size(self):
        return self.value.size

    @property
    def dtype(self):
        return self.value.dtype

    @property
    def itemsize(self):
        return self.value.itemsize

    @property
    def nbytes(self):
        return self.value.nbytes

    def __len__(self):
        return len(self.value)

    def __repr__(self):
        return f"Traced({self.value!r})"

    def __format__(self, specification):
        return format(self.value, specification)

    def __bool__(self):
        return bool(self.tape.leave(self))

    def __int__(self):
        return int(self.tape.leave(self))

    def __float__(self):
        return float(self.tape.leave(self))

    def item(self, *index):
        return self.tape.leave(self).item(*index)

    def tolist(self):
        return self.tape.leave(self).tolist()

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    # --- indexing and shapes
    def __getitem__(self, key):
        return dispatch("getitem", self, key)

    def __setitem__(self, key, value):
        raise TypeError(
            "a traced array cannot be written: its gradient would be wrong; make a new one, with numpy.where or "
            "numpy.concatenate, or write before the function whose gradient is taken"
        )

    @property
    def T(self):
        return dispatch("transpose", self)

    @property
    def mT(self):
        return dispatch("swapaxes", self, -1, -2)

    @property
    def real(self):
        return dispatch("real", self)

    def reshape(self, *shape, order="C"):
        return dispatch("reshape", self, shape[0] if len(shape) == 1 else shape, order)

    def transpose(self, *axes):
        return dispatch("transpose", self, axes[0] if len(axes) == 1 else axes or None)

    def astype(self, dtype, order="K", casting="unsafe", subok=True, copy=True):
        return dispatch("astype", self, dtype)

    def flatten(self, order="C"):
        return dispatch("ravel", self.copy(), order)


def _forward(operator, name):
    def method(self, other):
        tape = self.tape
        if type(other) is Traced and other.tape is not tape:
            if tape.level < other.tape.level:
                tape = other.tape
            return tape.apply(name, (self, other), _NO_KEYWORDS)
        return tape.apply_binary(name, self, other)

    method.__name__ = operator
    setattr(Traced, operator, method)


def _reflected(operator, name):
    def method(self, other):  # `other` is not traced
        return self.tape.apply(name, (other, self), _NO_KEYWORDS)

    method.__name__ = operator
    setattr(Traced, operator, method)


_NO_KEYWORDS = {}
for _name, _operators in {
    "add": "add",
    "subtract": "sub",
    "multiply": "mul",
    "divide": "truediv",
    "floor_divide": "floordiv",
    "remainder": "mod",
    "power": "pow",
    "matmul": "matmul",
}.items():
    _forward(f"__{_operators}__", _name)
    _reflected(f"__r{_operators}__", _name)
for _operator, _name in {
    "lt": "less",
    "le": "less_equal",
    "eq": "equal",
    "ne": "not_equal",
    "gt": "greater",
    "ge": "greater_equal",
}.items():
    _forward(f"__{_operator}__", _name)
Traced.__hash__ = object.__hash__
for _operator, _name in {"neg": "negative", "pos": "positive", "abs": "absolute"}.items():

    def _unary(self, _name=_name):
        return self.tape.apply(_name, (self,), _NO_KEYWORDS)

    setattr(Traced, f"__{_operator}__", _unary)


def _method(name, module=_a):
    def method(self, *args, **kwargs):
        if args or kwargs:
            return dispatch(name, self, *args, **kwargs)
        return self.tape.apply(name, (self,), _NO_KEYWORDS)

    method.__name__ = name
    setattr(Traced, name, method)


def _delegated(name):
    def method(self, *args, **kwargs):
        from vmhost.engine import numpy

        return getattr(numpy, name)(self, *args, **kwargs)

    method.__name__ = name
    setattr(Traced, name, method)


for _name in (
    "sum prod max min mean all any argmax argmin cumsum cumprod argsort nonzero searchsorted copy ravel swapaxes "
    "squeeze diagonal trace take clip dot conjugate"
).split():
    _method(_name)
for _name in "var std round repeat choose".split():
    _delegated(_name)
Traced.conj = Traced.conjugate

_a._trace(Traced, dispatch)
