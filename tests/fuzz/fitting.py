"""Calls of the arrays' native functions with arguments that fit, of which one is bent.

Junk hardly ever passes the first check of a function. So the arguments of a private function of vmhost.engine._array
come from EXAMPLES, or from the kinds that the function itself tells (`_array._kinds()`); those of public functions,
ufuncs and methods from the names of their parameters; those of the guest runtime's functions, which VMs alone have,
from RUNTIME. Then one is bent: a number near 2**31, 2**62 or 2**63, NaN, an unknown mode, an array of another form, the
same array twice, an object whose __index__ clears, ends or freezes the other arguments. The same file runs in a VM
(guest.py) and in the plain process (test_fitting.py), so it imports only what tasks can.
"""

import collections
import datetime
import inspect
import math
import random as random_module
import time
import types

import vmhost.engine.numpy as np
from vmhost.engine import _array

try:
    import _vmhost
except ImportError:  # the plain process
    _vmhost = None

EDGES = (
    -1, 0, 1, 2, 3, 5, 7, 8, 63, 64, 65, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**61, 2**62 - 1,
    2**62, 2**62 + 1, 2**63 - 1, 2**63, 2**64, -2, -(2**31), -(2**62), -(2**63), -(2**63) - 1,
)  # fmt: skip
REALS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-308, 5e-324, 1e308, math.inf, -math.inf, math.nan, 2.0**31, 2.0**63, 1e300)
TEXTS = ("", "a", "add", "sum", "\0", "net\0", chr(0xDC80), "é" * 9, "ab" * 500, "raise", "wrap", "clip", "C", "F", "K")
DTYPES = ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16")
# They change the interpreter for all calls after them, wait for input, or read what is not theirs.
NEVER = ("_trace", "_kinds", "seterr", "seterrcall", "set_printoptions", "from_dlpack", "setflags", "__setstate__")
ELEMENTS_MAX = 1 << 12


class Told(Exception):
    pass


class Acts:
    """A number or a truth that acts on the other arguments of its call when it is asked for."""

    def __init__(self, fitting, answer):
        self.fitting, self.answer = fitting, answer

    def ask(self):
        self.fitting.meddle()
        if self.answer is Told:
            raise Told
        return self.answer

    def __index__(self):
        answer = self.ask()
        return answer if isinstance(answer, int) else 1

    __int__ = __index__

    def __float__(self):
        return float(self.ask() or 0)

    def __bool__(self):
        return bool(self.ask())

    def __len__(self):
        return self.__index__()

    def __getitem__(self, key):
        self.ask()
        if not isinstance(key, int) or key > 3:
            raise IndexError
        return self.answer

    def __iter__(self):
        self.ask()
        return iter((self.answer, 1))


class Key(str):
    """A key of a dict that acts whenever it is compared."""

    def __eq__(self, other):
        Key.fitting.meddle()
        return str.__eq__(self, other)

    __hash__ = str.__hash__


# ---- arguments that fit: each call makes them anew
def f8(*shape):
    return np.arange(float(math.prod(shape))).reshape(shape) / 7


def f4(*shape):
    return f8(*shape).astype("f4")


def i8(*numbers):
    return np.array(numbers, "i8")


def table():
    own = _array._embedding_new(4, 0, np.ones((2, 4), "f4"))
    _array._embedding_update(own, RATES, i8(1, 2, 3), np.ones((3, 4), "f4"))
    return own


def snapshot():
    return _array._embedding_snapshot((table(),), False)[0]


RATES = (0.1, 1e-8, 0.9, 0.99, 0.0, 0.0, 0.0, 1, 1)
WINDOWS = (2, 2, 1, 1, 1, 1, 0, 0)
MERGES = {(0, 1): (0, 2), (2, 0): (1, 3)}
IDS = {"a": 0, "b": 1, "ab": 2, "aba": 3}
TOKENS, SCORES = {"a": 1, "b": 2, "ab": 3}, [0.0, -1.0, -2.0, -1.5]


def of_state(kind, parameters=(), dtype="f8"):
    return lambda: (np.zeros(13, "u8"), kind, tuple(np.full((), one) for one in parameters), np.zeros(6, dtype))


def linear(op, *outputs, inputs=1, columns=0, flags=0):
    return lambda: (
        op, flags, 1e-10, (1, 3, 3, columns), tuple(np.eye(3) + f8(3, 3) for _ in range(inputs)),
        tuple(np.zeros(shape, dtype) for shape, dtype in outputs),
    )  # fmt: skip


def bag():
    return table(), i8(1, 2, 3), i8(0, 2, 3), None, -1, 1


def session_of(open_arguments):
    """A function that makes (session, names of inputs, inputs) of a model; calls and threads share the session."""
    kept = []

    def made():
        if not kept:
            kept.append(_array._model_open(*open_arguments()))
        inputs = _array._model_ports(kept[0])[0]
        arrays = {
            name: np.ones([2 if isinstance(size, str) else size for size in shape], dtype)
            for name, dtype, shape in inputs
        }
        return kept[0], tuple(arrays), arrays

    return made


def examples(models):
    """{name: functions that make arguments}; `models`: functions that make arguments of _model_open."""
    found = {
        "_as_strided": (lambda: (f8(12), (3, 4), (32, 8), 0), lambda: (f8(12), (5, 3), (8, 8), 8)),
        "_pad": tuple(
            lambda mode=mode: (f8(3, 4), (1, 2), (6, 8), mode, 0.5 if mode == 0 else None) for mode in range(5)
        ),
        "_tile": (lambda: (f8(2, 3), (4, 6)),),
        "_roll": (lambda: (f8(3, 4), (1, 2)),),
        "_partition": (lambda: (f8(4, 5), (1, 2), 1, False), lambda: (f8(4, 5), (0,), 0, True)),
        "_scatter_add": (
            lambda: (np.zeros(5), i8(0, 1, 1), f8(3)),
            lambda: (np.zeros((3, 4)), (i8(0, 2), slice(1, 3)), f8(2, 2)),
        ),
        "_split": (lambda: (f8(3, 4),),),
        "_parts": (lambda: (f4(3, 4),),),
        "_bincount": (lambda: (i8(1, 2, 2), None, 3), lambda: (i8(1, 2, 2), f8(3), 0)),
        "_interp": (lambda: (f8(5), f8(3), f8(3), None, None), lambda: (f8(2, 3), f8(3), f8(3), 0.5, 1.0)),
        "_reduceat": (lambda: ("sum", f8(6, 2), i8(0, 2, 1), "add"), lambda: ("max", f8(6), i8(0, 3), "maximum")),
        "_windows": (lambda: (f8(9), f8(3), 2, 2), lambda: (f8(9), f4(3), 0, 0)),
        "_bits_packed": (lambda: (np.ones((3, 11), "?"), True),),
        "_bits_unpacked": (lambda: (np.ones((3, 2), "u1"), 11, False),),
        "_fft": (
            lambda: (0, 6, 1.0, f8(2, 6).astype("c16"), np.zeros((2, 6), "c16")),
            lambda: (1, 6, 1.0, f8(2, 6).astype("c16"), np.zeros((2, 6), "c16")),
            lambda: (2, 6, 0.5, f8(2, 6), np.zeros((2, 4), "c16")),
            lambda: (3, 6, 0.5, f8(2, 4).astype("c16"), np.zeros((2, 6))),
        ),
        "_linear": (
            lambda: (0, 0, 0.0, (2, 3, 3, 1), (f8(2, 3, 3) + np.eye(3), f8(2, 3, 1)), (np.zeros((2, 3, 1)),)),
            linear(1, ((3, 3), "f8")),
            linear(2, ((), "f8"), ((), "f8")),
            linear(3, ((3, 3), "f8")),
            linear(4, ((3, 3), "f8"), ((3, 3), "f8")),
            linear(4, ((3, 3), "f8"), ((3,), "f8"), flags=4),
            linear(5, ((3,), "f8"), ((3, 3), "f8"), ((3, 3), "f8"), flags=2),
            linear(6, ((3,), "c16"), ((3, 3), "c16")),
            linear(7, ((3,), "f8"), ((3, 3), "f8")),
            lambda: (8, 0, 1e-9, (1, 3, 2, 1), (f8(3, 2), f8(3, 1)), (f8(3, 1), f8(2), np.zeros((), "i8"))),
        ),
        "_random": (
            *(of_state(kind) for kind in (0, 1, 2, 3, 8)),
            *(of_state(kind, (2.5,)) for kind in (4, 9)),
            *(of_state(kind, (1.5, 2.0)) for kind in (5, 6, 7, 10, 11, 13)),
            of_state(12, (0.0, 0.5, 1.0)),
            of_state(14, (3.0,), "i8"),
            *(of_state(kind, (9.0, 0.4), "i8") for kind in (15, 17)),
            *(of_state(kind, (0.4,), "i8") for kind in (16, 18)),
            of_state(19, (2.5,), "i8"),
            lambda: (np.zeros(13, "u8"), 20, (np.full((), 2, "u8"), np.full((), 7, "u8")), np.zeros(6, "i4")),
            lambda: (np.zeros(13, "u8"), 21, (), np.arange(6)),
            lambda: (np.zeros(13, "u8"), 22, (np.full((), 2, "u8"),), np.arange(6)),
            lambda: (np.zeros(13, "u8"), 23, (np.full((), 90, "u8"),), np.zeros(6, "i8")),
        ),
        "_statistics": (lambda: (),),
        "_address": (lambda: (f8(3),),),
        "_alone": (lambda: (f8(3),),),
        "_writes": (lambda: (), lambda: (f8(3),)),
        "_words": (lambda: ((1, 2), (1, 2, 3, 4), 5, 9),),
        "_shortest": (lambda: (f8(5),), lambda: (f4(5),), lambda: (f8(5).astype("f2"),)),
        "_text_numbers": (lambda: (dict(IDS), ["a", "x"]), lambda: (dict(IDS), [["a", "b"], ["ab", "x"]])),
        "_labelled_rows": (lambda: (("a", 1), [[1, 2], [3, 4]]),),
        "_bpe_table": (lambda: (dict(MERGES),),),
        "_bpe_pieces": (
            lambda: (dict(IDS), _array._bpe_table(MERGES), "ababa", None, False, None),
            lambda: (dict(IDS), _array._bpe_table(MERGES), "xéya", 1, True, tuple([None, 7] * 128)),
            lambda: (dict(IDS), _array._bpe_table(MERGES), [(0, 0, 1), (1, 1, 2)], None, False, None),
        ),
        "_unigram_table": (lambda: (dict(TOKENS), list(SCORES)),),
        "_unigram_pieces": (lambda: (_array._unigram_table(TOKENS, SCORES), "abxyb", 0, -12.0),),
        "_patches": (lambda: (f4(1, 2, 5, 5), WINDOWS),),
        "_patches_sum": (lambda: (f4(1, 8, 16), WINDOWS, (1, 2, 5, 5)),),
        "_max_pool": (lambda: (f4(1, 2, 5, 5), WINDOWS),),
        "_pool_gradient": (lambda: (f4(1, 2, 5, 5), f4(1, 2, 4, 4), f4(1, 2, 4, 4), WINDOWS),),
        "_depthwise": (lambda: (f4(1, 2, 5, 5), f4(2, 1, 2, 2), WINDOWS),),
        "_depthwise_images": (lambda: (f4(1, 2, 4, 4), f4(2, 1, 2, 2), WINDOWS, (1, 2, 5, 5)),),
        "_depthwise_weights": (lambda: (f4(1, 2, 5, 5), f4(1, 2, 4, 4), WINDOWS),),
        "_normalize": (lambda: (f4(4, 3), f4(3), f4(3), 1e-5),),
        "_normalize_gradient": (lambda: (f4(4, 3), f4(4, 3), f4(3), f4(3), f4(3), 1e-5),),
        "_embedding_names": (lambda: (),),
        "_embedding_new": (
            lambda: (4, 1, np.ones((2, 4), "f4"), 0, 0, 0.01, 0.0, 0.1, 0, 0.0, 0),
            lambda: (4, 0, np.ones((1, 4), "f4"), 2, 100, 0.01, 0.5, 0.0, 9, 0.0, 1 << 20),
        ),
        "_embedding_statistics": (lambda: (table(),),),
        "_embedding_lookup": (lambda: (table(), i8(1, 2, 9)),),
        "_embedding_bags": (lambda: ([bag(), bag()], False), lambda: ([(f4(5, 4), *bag()[1:])], True)),
        "_embedding_update_bags": (lambda: ([(*bag(), f4(2, 4))], RATES),),
        "_embedding_update": (lambda: (table(), RATES, i8(1, 5), f4(2, 4)),),
        "_embedding_evict": (lambda: (table(), 5),),
        "_embedding_put": (
            lambda: (table(), i8(7, 8), i8(1, 1), i8(1, 1), f4(2, 4), f4(2, 0)),
            lambda: (table(), i8(7, 8), i8(1, 1), i8(1, 1), None, None),
        ),
        "_embedding_snapshot": (lambda: ((table(), table()), True),),
        "_embedding_snapshot_bloom": (lambda: (snapshot(),),),
        "_embedding_snapshot_end": (lambda: (snapshot(), True),),
        "_embedding_snapshot_read": (lambda: (snapshot(), 4),),
        "_embedding_snapshot_rows": (lambda: (snapshot(),),),
        "_embedding_snapshot_waiting": (lambda: (snapshot(), 2048),),
        "_model_names": (lambda: (),),
    }  # fmt: skip
    for arguments_of_open in models:
        made = session_of(arguments_of_open)
        for name, arguments in {
            "_model_backends": lambda made=made: made()[:1],
            "_model_ports": lambda made=made: made()[:1],
            "_model_steps": lambda made=made: (made()[0], tuple(made()[2].values())),
            "_model_arrays": lambda made=made: made(),
            "_model_run": lambda made=made: (made()[0], tuple(made()[2].values()), False, None),
            "_model_open": arguments_of_open,
        }.items():
            found[name] = (*found.get(name, ()), arguments)
    return found


# ---- the guest runtime's functions
def numbers(*rest):
    yield from rest
    return [each for each in range(1000)]


def renamed(value_1, *rest):
    def inner_1(each):
        return value_1, each, rest, 1000

    return inner_1(1)


class Plain:
    """Its body is code too, and so are methods that know their class."""

    def method(self):
        return __class__


CODES = (numbers, renamed, Plain.method, lambda *a, b=1, **c: (a, b, c))
FIELDS = ("a", "b", "c")
STEPS = (
    ("field", "a", "given", "a", "make"),
    ("frozen", "b", "variable", "default"),
    ("field", "c", "parameter", "c"),
    ("post_init", ("a", "c")),
)
CROSS = (
    lambda: None,
    lambda: [1, -2.5, 2**99, "a", chr(0xDC80), b"b", (1, 2j), True],
    lambda: {"a": {1, 2}, (1, "b"): frozenset("c"), 2.5: [[]]},
    lambda: [f8(3, 4), f8(3, 4)[::-1, ::2], np.float32(2), i8()],
    lambda: [_vmhost.Buffer(9), bytearray(9), memoryview(bytes(9))[2:]],
    lambda: [collections.deque([1, 2]), collections.Counter("aab"), datetime.datetime(2026, 1, 1), {1: ValueError(1)}],
)  # fmt: skip


def code_of(name):
    """A function that makes code with `_vmhost`'s function of this name, and runs it."""

    def made(*arguments):
        code = getattr(_vmhost, name)(*arguments)
        cells = tuple(types.CellType(1) for _ in code.co_freevars)
        given = (Plain(), 1, 2, 3)[: code.co_argcount]
        function = types.FunctionType(code, {"_tuple_new": lambda cls, values: values}, closure=cells)
        try:
            list(function(*given))
        except Exception:  # the arguments are any
            pass

    return made


def recorded(recorder):
    """Clocks and randomness pass through `recorder` for a moment."""
    _vmhost.record(recorder)
    try:
        for ask in (time.time, time.time_ns, datetime.datetime.now, random_module.Random):
            ask()
    finally:
        _vmhost.record(None)


def shown(*arguments):
    """A Buffer, seen as each thing that it can be."""
    buffer = _vmhost.Buffer(*arguments)
    view = memoryview(buffer)
    np.asarray(buffer)
    return repr(buffer), len(buffer), buffer.shape, buffer.nbytes, buffer.readonly, view.format, view.strides


RUNTIME = {
    "Buffer": (shown, lambda: (9,), lambda: ((2, 3), "d"), lambda: ([4, 1, 2], "H"), lambda: (0,)),
    "code": (None, lambda: ("main",), lambda: ("json.decoder",)),
    "coroutine_code": (code_of, *(lambda one=one: (one.__code__,) for one in CODES[:1])),
    "create": (None, lambda: ("_bisect",), lambda: ("_json",), lambda: ("_socket",), lambda: ("_decimal",)),
    "deadline": (None, lambda: ()),
    "file": (None, lambda: ("models/net",), lambda: ("a",)),
    "files": (None, lambda: ()),
    "find": (None, lambda: ("main",), lambda: ("json",), lambda: ("math",), lambda: ("absent.one",)),
    "host_call": (None, *(lambda made=made: ("echo", made()) for made in CROSS)),
    "identity": (None, lambda: ()),
    "log": (None, lambda: (10, "a line"), lambda: (10, "odd\n\x1b" + chr(0x202E) * 99)),
    "method_code": (
        code_of,
        lambda: ("__init__", 1, 2, ("self", "a", "c"), 3, STEPS),
        lambda: ("__repr__", 1, 2, FIELDS, FIELDS),
        *(lambda name=name: (name, 1, 2, FIELDS) for name in ("__eq__", "__lt__", "__hash__", "__setattr__")),
    ),
    "metric": (None, lambda: (0, "sum", ()), lambda: (1, "gauge", ()), lambda: (2, "times", (0.1, 1.0, 10.0))),
    "metric_add": (None, lambda: (_vmhost.metric(0, "sum", ()), 1.5)),
    "metric_observe": (None, lambda: (_vmhost.metric(2, "times", (0.1, 1.0, 10.0)), 0.5)),
    "metric_set": (None, lambda: (_vmhost.metric(1, "gauge", ()), 2.0)),
    "modules": (None, lambda: ("",), lambda: ("json",)),
    "namedtuple_code": (code_of, lambda: (FIELDS,), lambda: ((),)),
    "record": (recorded, lambda: (lambda name, real, argument: real,), lambda: (None,)),
    "relocated_code": (
        code_of, *(lambda one=one: (one.__code__, "file", "name", "path", 3, True) for one in CODES),
        lambda: (renamed.__code__, None, None, None, 0, False),
    ),
    "renamed_code": (code_of, lambda: (renamed.__code__, {"value_1": "value_2", "inner_1": "inner_2", 1000: 2000})),
    "text": (None, lambda: (bytes(32),)),
}  # fmt: skip


def runtime():
    """{name: (function, functions that make arguments)} of `_vmhost`; empty outside of a VM."""
    if _vmhost is None:
        return {}
    wrapped = {name: (maker(name) if maker is code_of else maker) for name, (maker, *_) in RUNTIME.items()}
    return {name: (wrapped[name] or getattr(_vmhost, name), made) for name, (_, *made) in RUNTIME.items()}


# ---- public functions: kinds by the names of parameters
NAMED = {
    "axis": "axis", "axes": "axis", "dtype": "dtype", "out": "out", "shape": "sizes", "order": "text", "mode": "text",
    "kind": "text", "casting": "text", "side": "text", "axis1": "axis", "axis2": "axis", "offset": "integer",
    "keepdims": "truth", "copy": "truth", "indices": "indices", "kth": "indices", "count": "integer",
    "start": "integer", "stop": "integer", "step": "integer", "ndmin": "integer", "strides": "sizes",
    "fill_value": "number", "where": "condition", "condition": "condition", "n": "integer", "k": "integer",
    "N": "integer", "M": "integer", "num": "integer", "repeats": "indices", "shift": "sizes", "reps": "sizes",
    "pad_width": "sizes", "newshape": "sizes", "subscripts": "text", "size": "sizes", "s": "sizes",
}  # fmt: skip
METHODS = tuple(
    name for name in dir(np.ndarray) if name not in NEVER and callable(getattr(np.ndarray, name, None))
    and (not name.startswith("__") or name in ("__getitem__", "__setitem__", "__matmul__", "__pow__", "__dlpack__"))
)  # fmt: skip


def public_functions():
    """{name: (function, its parameters or None)} of the arrays' modules."""
    found = {}
    for module in (np, np.linalg, np.fft):
        for name, function in list(vars(module).items()):
            if name.startswith("_") or name in NEVER or inspect.isclass(function) or not callable(function):
                continue
            try:
                parameters = list(inspect.signature(function).parameters.values())
            except TypeError, ValueError:
                parameters = None
            found[f"{module.__name__}.{name}"] = (function, parameters)
    return found


class Fitting:
    """One thread's calls. `attempt(name, function, arguments)` makes a call and catches its exceptions."""

    def __init__(self, seed, attempt, models=(), plain=False):
        self.random = random_module.Random(seed)
        self.attempt, self.plain = attempt, plain
        self.examples = examples(models)
        self.kinds = {name: kinds for name, kinds in _array._kinds().items() if name not in NEVER}
        if plain:  # files of models are the host's own there
            del self.kinds["_model_open"]
        self.public, self.runtime = public_functions(), runtime()
        self.arguments, self.kept, self.depth = [], [], 0
        Key.fitting = self

    # ---- what fits
    def number(self):
        return self.random.choice((0, 1, 2, 3, 4, 7, 0.5, -1, 1.5, 2j))

    def array(self, dtype=None):
        if self.kept and self.random.random() < 0.2:
            return self.random.choice(self.kept)
        shape = tuple(
            self.random.choice((0, 1, 2, 3, 4, 5, 9)) for _ in range(self.random.choice((0, 1, 1, 2, 2, 3, 4)))
        )
        made = np.arange(math.prod(shape)).reshape(shape).astype(dtype or self.random.choice(DTYPES))
        if self.random.random() < 0.1:
            self.kept = [*self.kept[-9:], made]
        return made

    def fit(self, kind, bounds=None):
        """A value of this kind."""
        choose = self.random.choice
        if kind in ("array", "out", "like"):
            return self.array(choose(("f8", "f4", "i8", None)))
        if kind == "arrays":
            return tuple(choose((None, self.array("f8"), self.array())) for _ in range(choose((0, 1, 2, 3))))
        if kind == "integer":
            return (
                self.random.randint(bounds[0], min(bounds[1], bounds[0] + 24)) if bounds else choose((0, 1, 2, 3, 5, 9))
            )
        if kind == "real":
            return choose((0.0, 0.5, 1.0, 3))
        if kind == "truth":
            return choose((True, False))
        if kind == "number":
            return self.number()
        if kind == "numbers":
            return tuple(self.number() for _ in range(choose((2, 4, 9))))
        if kind == "sizes":
            return tuple(choose((0, 1, 1, 2, 3, 4, 6)) for _ in range(choose((0, 1, 2, 2, 3, 4, 8))))
        if kind == "sets":
            return [bag() for _ in range(choose((0, 1, 2)))]
        if kind == "text":
            return choose(TEXTS)
        if kind == "path":
            return None
        if kind == "bytes":
            return choose((b"", bytes(16), bytes(128), b"\xff" * 128, _array._bpe_table(MERGES)))
        if kind == "dict":
            return choose((dict(IDS), dict(MERGES), dict(TOKENS), {Key("a"): 1}))
        if kind in ("list", "tuple", "any"):
            items = choose(([], [1, 2], ["a", "b"], [[1.0, 2.0]], [("a", 0, 1)], [(0, 0, 1), (1, 1, 2)], list(SCORES)))
            return tuple(items) if kind == "tuple" else list(items)
        if kind == "table":
            return table()
        if kind == "snapshot":
            return snapshot()
        if kind == "session":
            return self.random.choice(self.examples["_model_ports"])()[0] if "_model_ports" in self.examples else None
        if kind == "axis":
            return choose((None, 0, 1, -1, (0, 1), ()))
        if kind == "dtype":
            return choose((None, *DTYPES))
        if kind == "indices":
            return choose((0, [0, 1], i8(0, 1), i8(1, 0, 2), np.array([True, False])))
        if kind == "condition":
            return choose((True, self.array("?")))
        return None

    # ---- what does not
    def bend(self, value):
        """Another value in its place."""
        random = self.random.random()
        if random < 0.08:
            return None
        if random < 0.2 and self.arguments:
            return self.random.choice(self.arguments)  # the same object twice
        if random < 0.25:
            return self.fit(self.random.choice(("table", "snapshot", "session", "bytes", "dict", "text", "array")))
        if isinstance(value, bool):
            return self.acts()
        if isinstance(value, int):
            return self.random.choice((self.random.choice(EDGES), self.random.choice(EDGES), self.acts()))
        if isinstance(value, float):
            return self.random.choice((self.random.choice(REALS), self.acts()))
        if isinstance(value, np.ndarray):
            return self.bent_array(value)
        if isinstance(value, str):
            return self.random.choice(TEXTS)
        if isinstance(value, bytes):
            return self.bent_bytes(value)
        if isinstance(value, (tuple, list)):
            items = list(value)
            if items and self.random.random() < 0.8:
                at = self.random.randrange(len(items))
                items[at] = self.bend(items[at])
            else:
                items = self.random.choice((items[:-1], items + items[-1:], items * 40, []))
            return type(value)(items) if self.random.random() < 0.8 else self.random.choice((list, tuple))(items)
        if isinstance(value, types.CodeType):
            return self.random.choice(CODES).__code__
        if isinstance(value, dict):
            bent = dict(value)
            for key in list(bent)[:2]:
                if self.random.random() < 0.5:
                    bent[key] = self.bend(bent[key])
                elif isinstance(key, str):
                    bent[Key(key)] = bent.pop(key)
            return bent
        return self.random.choice((self.acts(), 0, "a", (), value))

    def acts(self):
        return Acts(self, self.random.choice((0, 1, 2, 3, 1, 2, self.random.choice(EDGES), Told)))

    def bent_bytes(self, value):
        choose = self.random.randrange(4)
        if choose == 0:
            return value[: self.random.randrange(len(value) + 1)]
        if choose == 1:
            return value * 2
        bent = bytearray(value or b"\0")
        for _ in range(self.random.choice((1, 3, 40))):
            bent[self.random.randrange(len(bent))] = self.random.choice((0, 1, 127, 128, 255))
        return bytes(bent)

    def bent_array(self, value):
        choose = self.random.randrange(11)
        if choose == 0:
            return value.astype(self.random.choice(DTYPES))
        if choose == 1:
            return value.T
        if choose == 2:
            return value[..., ::-1] if value.ndim else value
        if choose == 3:
            return value[..., :0] if value.ndim else value
        if choose == 4:
            return np.broadcast_to(value, (self.random.choice((1, 3, 70)), *value.shape)) if value.ndim < 9 else value
        if choose == 5:
            return value.reshape(-1)
        if choose == 6 and value.dtype.kind in "fc" and value.size and value.flags.writeable:
            value = value.copy()
            value.reshape(-1)[self.random.randrange(value.size)] = self.random.choice(REALS)
            return value
        if choose == 7 and value.dtype.kind in "iu" and value.size:
            value = value.copy()
            edge = self.random.choice(EDGES)
            if -(2**63) <= edge < 2**63 and value.dtype == np.int64:
                value.reshape(-1)[self.random.randrange(value.size)] = edge
            return value
        if choose == 8:
            value = value.copy()
            value.setflags(write=False)
            return value
        if choose == 9 and value.size and not self.plain and self.random.random() < 0.05:
            return np.broadcast_to(value.reshape(-1)[:1], (2**40,))  # only a stop ends what reads it
        return value[()] if value.ndim == 0 else value[0]

    # ---- meanwhile
    def meddle(self):
        """Code of the program while a call runs: it changes, ends or freezes what the call was given."""
        if self.depth > 2 or not self.arguments:
            return
        self.depth += 1
        try:
            value = self.random.choice(self.arguments)
            choose = self.random.random()
            if isinstance(value, list):
                value.clear() if choose < 0.5 else value.extend(value[:9] * 999)
            elif isinstance(value, dict):
                value.clear() if choose < 0.5 else value.update({f"k{i}": i for i in range(999)})
            elif isinstance(value, np.ndarray):
                value.setflags(write=False) if choose < 0.5 else value.fill(7)
            elif type(value).__name__ == "PyCapsule":
                _array._embedding_snapshot_end(value, False)
            else:
                self.arguments.clear()
        except Exception:
            pass
        finally:
            self.depth -= 1

    # ---- calls
    def private(self):
        name = self.random.choice(list(self.kinds))
        made = self.examples.get(name)
        if made and self.random.random() < 0.75:
            return name, getattr(_array, name), list(self.random.choice(made)())
        arguments = []
        for _, kind, or_none, bounds, absent in self.kinds[name]:
            if absent and self.random.random() < 0.3:
                break
            arguments.append(None if or_none and self.random.random() < 0.3 else self.fit(kind, bounds))
        return name, getattr(_array, name), arguments

    def function(self):
        name = self.random.choice(list(self.public))
        function, parameters = self.public[name]
        arguments = []
        for parameter in parameters or [None] * self.random.choice((1, 2, 3)):
            if parameter is not None:
                if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                    break
                if parameter.default is not parameter.empty and self.random.random() < 0.4:
                    break
            kind = "array" if parameter is None else NAMED.get(parameter.name, "array")
            arguments.append(self.fit(kind))
        return name, function, arguments

    def method(self):
        name = self.random.choice(METHODS)
        arguments = [self.array()]
        for _ in range(self.random.choice((0, 1, 1, 2))):
            arguments.append(
                self.fit(self.random.choice(("array", "integer", "axis", "sizes", "dtype", "indices", "text")))
            )
        return f"ndarray.{name}", getattr(np.ndarray, name), arguments

    def of_runtime(self):
        name = self.random.choice(list(self.runtime))
        function, made = self.runtime[name]
        return f"_vmhost.{name}", function, list(self.random.choice(made)())

    def step(self):
        ways = (self.private, self.private, self.private, self.function, self.method)
        make = self.random.choice(ways + (self.of_runtime, self.of_runtime) * bool(self.runtime))
        try:
            name, function, arguments = make()
            self.arguments = arguments
            for _ in range(self.random.choice((0, 1, 1, 1, 1, 2))):
                if arguments:
                    at = self.random.randrange(len(arguments))
                    arguments[at] = self.bend(arguments[at])
            self.arguments = [
                *arguments,
                *(item for one in arguments if isinstance(one, (list, tuple)) for item in one),
            ]
        except Told, MemoryError, ValueError, TypeError, IndexError, OverflowError, AttributeError, RecursionError:
            return  # what it is made of was bent too
        self.attempt(f"{name}{text_of(arguments)}", function, arguments)


def text_of(value):
    """Short, and without code of the value."""
    if isinstance(value, (tuple, list)):
        return (
            f"{'(' if isinstance(value, tuple) else '['}{', '.join(map(text_of, value[:9]))}{'...' * (len(value) > 9)})"
        )
    if isinstance(value, np.ndarray):
        return f"{value.dtype.name}{list(value.shape)}"
    if isinstance(value, Acts):
        return f"Acts({value.answer})"
    return repr(value)[:40] if isinstance(value, (bool, int, float, str, bytes, type(None))) else type(value).__name__
