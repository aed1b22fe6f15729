"""The guest's half of the fuzzer: walks every module, type and object that a task reaches, and calls what it finds
with junk.

A task like any other, compiled by tests/fuzz/process.py. `run` makes one batch of calls; what it does follows from
the seeds that it is given. Before each call its thread notes it in a file, so that the host can say what crashed the
process.
"""

import _ast
import array
import collections
import copy
import datetime
import decimal
import fractions
import gc
import importlib
import io
import itertools
import mmap
import operator
import os
import pathlib
import pickle
import random
import re
import sqlite3
import sys
import threading
import time
import types
import uuid
import weakref

import vmhost.engine.numpy as np
from vmhost.engine import _array

SLOT, SLOTS = 240, 32  # bytes of a note, and how many are kept of each thread
STRIDE = 200  # results that are kept for later calls


class Junk(Exception):
    pass


class Found:
    """The callable objects of the VM: functions and types by name, and the types' own attributes."""

    def __init__(self, modules, skipped):
        self.functions, self.types = {}, {}
        for name in modules:
            try:
                module = importlib.import_module(name)
            except Exception:  # not there on this machine, or not in a VM
                continue
            for attribute, value in list(vars(module).items()):
                if callable(value) and f"{name}.{attribute}" not in skipped and attribute not in skipped:
                    self.functions[f"{name}.{attribute}"] = value
        seen, kinds = {type}, [object, type]
        for kind in kinds:
            kinds += [one for one in type.__subclasses__(kind) if one not in seen and not seen.add(one)]
        for kind in kinds:
            name = f"{kind.__module__}.{kind.__qualname__}"
            if not name.startswith(("main.", "__main__.")) and name not in skipped:
                self.types[name] = kind
        self.function_names, self.type_names = sorted(self.functions), sorted(self.types)
        # exceptions, and the classes of syntax trees, are a third of the types and alike
        self.own_types = [
            name for name in self.type_names if not issubclass(self.types[name], (BaseException, _ast.AST))
        ]
        self.native_types = [name for name in self.own_types if "__firstlineno__" not in vars(self.types[name])]
        self.native_names = [
            name for name in self.function_names if isinstance(self.functions[name], types.BuiltinFunctionType)
        ]

    def some_type(self, random):
        choose = random.random()
        return random.choice(self.native_types if choose < 0.6 else self.own_types if choose < 0.9 else self.type_names)


class Meddler:
    """An object that gives something else each time it is used, and changes other objects meanwhile."""

    def __init__(self, fuzz):
        self.fuzz = fuzz
        self.asked = 0

    def turn(self, *answers):
        self.asked += 1
        self.fuzz.meddle()
        answer = answers[self.asked % len(answers)]
        if answer is Junk:
            raise Junk
        return answer

    def __index__(self):
        return self.turn(0, 1, -1, 2**31, 5, 2**70, Junk, 3)

    def __int__(self):
        return self.turn(1, 2**64, Junk, 0)

    def __float__(self):
        return self.turn(0.5, float("nan"), Junk)

    def __bool__(self):
        return self.turn(True, False, Junk)

    def __len__(self):
        return self.turn(3, 0, 100, 2**40, 1, Junk)

    def __iter__(self):
        return iter(self.turn([1, 2, 3], [], self.fuzz.pool, [b"x"] * 100, "ab"))

    def __next__(self):
        return self.turn(1, "a", None, Junk)

    def __getitem__(self, key):
        return self.turn(1, "a", None, b"b", (1, 2), IndexError)

    def __setitem__(self, key, value):
        self.turn(None, Junk)

    def __contains__(self, key):
        return self.turn(True, False)

    def __eq__(self, other):
        return self.turn(True, False, Junk, NotImplemented)

    def __lt__(self, other):
        return self.turn(True, False, NotImplemented)

    def __hash__(self):
        return self.turn(1, 2, 1, 7)

    def __fspath__(self):
        return self.turn(*self.fuzz.paths)

    def fileno(self):
        return self.turn(*self.fuzz.descriptors)

    def __buffer__(self, flags):
        self.data = bytearray(64)
        return memoryview(self.turn(self.data, b"abcdefgh", b"", self.data))

    def __release_buffer__(self, view):
        self.turn(None)

    def __call__(self, *arguments, **named):
        return self.turn(None, 1, b"x", "x", Junk, arguments)

    def __str__(self):
        return self.turn("a", "/etc/passwd", "utf-8", "")

    __repr__ = __str__

    def __bytes__(self):
        return self.turn(b"a", b"", b"x" * 99)

    def __enter__(self):
        return self.turn(self, None)

    def __exit__(self, *error):
        return self.turn(True, False)

    def read(self, *size):
        return self.turn(b"abc", "abc", b"", None, b"x" * 4096)

    readline = read

    def readinto(self, buffer):
        return self.turn(0, 2**40, -1, 3, None)

    def write(self, data):
        return self.turn(1, len(data) if hasattr(data, "__len__") else 0, 2**40, -1, None)

    def keys(self):
        return self.turn(["a"], [], [1])

    def __array_interface__(self):
        return self.turn({}, None)

    def __getattr__(self, name):
        if name.startswith("__") or name in ("fuzz", "asked"):
            raise AttributeError(name)
        return self.turn(self, 1, None, len)

    def __reduce_ex__(self, protocol):
        return self.turn((list, ()), "x", (len, ((),)), None)


class Texting(str):
    def __str__(self):
        return "/etc/passwd"

    def encode(self, *arguments):
        return b"/etc/passwd"


class Counting(int):
    def __index__(self):
        return 7

    __int__ = __index__


def generator(fuzz):
    while True:
        try:
            fuzz.meddle()
            fuzz.keep((yield fuzz.pool))
        except Junk:
            pass


async def coroutine(fuzz):
    fuzz.meddle()
    await fuzz.pool[0]


async def agenerator(fuzz):
    while True:
        yield fuzz.pool


class Shared:
    """The shared state of a batch's threads: the results of calls."""

    def __init__(self, found, settings):
        self.found, self.settings = found, settings
        self.pool = []
        self.own = {
            id(self),
            id(found),
            id(self.pool),
            id(sys.modules),
            id(settings),
            id(found.functions),
            id(found.types),
        }
        self.leaks = []


class Fuzz:
    def __init__(self, shared, seed, thread):
        self.shared, self.found, self.pool = shared, shared.found, shared.pool
        self.random = random.Random(f"{seed}/{thread}")
        self.depth = 0
        self.notes = os.path.join(shared.settings["notes"], f"{thread}.notes")
        self.file, self.step = None, 0
        inside, outside = shared.settings["inside"], shared.settings["outside"]
        self.paths = [
            inside,
            f"{inside}/a",
            f"{inside}/d/b",
            f"{inside}/link",
            f"{inside}/../outside/secret",
            f"{outside}/secret",
            outside,
            "/etc/passwd",
            f"{inside}/new",
            f"{inside}/keep/",
            ":memory:",
            "",
            "/",
            ".",
            "..",
            "/proc/self/fd/0",
            "/proc/self/mem",
            f"{inside}/new.db",
            shared.settings["readable"],
            shared.settings["readable"] + "/r",
        ]
        self.descriptors = [0, 1, 2, 3, 4, *shared.settings["descriptors"], 99, -1, 5, 6, 7, 8, 9, 10, 11, 12]

    # ---- junk
    def junk(self):
        choose = self.random.random()
        if choose < 0.30 and self.pool:
            return self.random.choice(self.pool)
        if choose < 0.42:
            return Meddler(self)
        if choose < 0.52:
            return self.random.choice(self.paths)
        if choose < 0.58:
            return self.random.choice(self.descriptors)
        if choose < 0.64:
            return self.found.types[self.found.some_type(self.random)]
        return self.random.choice(PLAIN)() if choose < 0.97 else self.composed()

    def composed(self):
        return self.random.choice(
            [
                lambda: generator(self),
                lambda: agenerator(self),
                lambda: [Meddler(self), 1],
                lambda: (Meddler(self), "a"),
                lambda: {"a": Meddler(self)},
                lambda: bytearray(16),
                lambda: iter(list(self.pool)),
                lambda: sys._getframe(),
                lambda: types.SimpleNamespace(a=1),
                lambda: self.meddle,
                lambda: memoryview(bytearray(32)),
                lambda: Texting("a"),
                lambda: Counting(3),
                lambda: type("Own", (), {"__slots__": ("a",)})(),
            ]
        )()

    def arguments(self):
        count = self.random.choice((0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 8))
        named = {}
        if self.random.random() < 0.12:
            for _ in range(self.random.choice((1, 1, 2))):
                named[self.random.choice(NAMES)] = self.junk()
        return tuple([self.junk() for _ in range(count)]), named

    def keep(self, value):
        """Keeps a result for later calls, unless the fuzzer itself depends on it."""
        if value is None or id(value) in self.shared.own or isinstance(value, (bool, types.ModuleType, Fuzz, Shared)):
            return
        if type(value) in (str, bytes):
            self.look(value)
            return
        if type(value) is dict and ("__name__" in value or "__builtins__" in value or len(value) > 200):
            return
        if type(value) in (list, tuple) and len(value) > 200:
            return
        if len(self.pool) < STRIDE:
            self.pool.append(value)
        else:
            self.pool[self.random.randrange(STRIDE)] = value

    def look(self, text):
        """The host's secret is in files and descriptors that were not granted, and in its environment."""
        secret = self.shared.settings["secret"][::-1]
        if (secret if type(text) is str else secret.encode()) in text:
            self.shared.leaks.append(self.last)

    def meddle(self):
        """The work of a callback while its caller runs: it changes, closes or recreates objects in the pool."""
        if self.depth > 3 or self.random.random() < 0.6:
            return
        self.depth += 1
        try:
            value = self.random.choice(self.pool) if self.pool else None
            name = self.random.choice(
                (
                    "clear",
                    "close",
                    "__init__",
                    "pop",
                    "append",
                    "release",
                    "update",
                    "resize",
                    "reverse",
                    "extend",
                    "truncate",
                    "detach",
                )
            )
            method = getattr(type(value), name, None)
            if method is None or isinstance(value, (type, types.FunctionType)):
                gc.collect(0)
            else:
                arguments = self.arguments()[0][:1]
                self.note(f"meanwhile <{type(value).__qualname__}>.{name}", arguments)
                method(value, *arguments)
        except Exception:
            pass
        finally:
            self.depth -= 1

    # ---- notes
    def note(self, what, arguments=(), named=None):
        self.step += 1
        self.last = what
        text = ", ".join(
            [self.text_of(one) for one in arguments[:6]]
            + [f"{name}={self.text_of(one)}" for name, one in (named or {}).items()]
        )
        line = f"{self.step}: {what}({text})".encode("ascii", "backslashreplace")[: SLOT - 1].ljust(SLOT - 1) + b"\n"
        for _ in range(2):
            try:
                if self.file is None:
                    self.file = OPEN(self.notes, os.O_RDWR | os.O_CREAT)
                PWRITE(self.file, line, self.step % SLOTS * SLOT)
                return
            except OSError:  # a call closed it
                self.file = None

    def text_of(self, value):
        kind = type(value)
        if kind in (int, float, bool, type(None)):
            return repr(value) if kind is not int or abs(value) < 2**80 else "a long int"
        if kind in (str, bytes):
            return repr(value[:40])
        return kind.__name__ + ("" if kind is not type else f" {value.__name__}")

    # ---- steps
    def attempt(self, what, function, arguments=(), named=None):
        self.note(what, arguments, named)
        try:
            result = function(*arguments, **(named or {}))
        except (Exception, GeneratorExit, SystemExit, KeyboardInterrupt) as error:
            if self.random.random() < 0.02:
                self.keep(error)
            return
        self.keep(result)

    def try_fitting(self, what, function, arguments):
        self.note(what)
        try:
            function(*arguments)
        except Exception, GeneratorExit, SystemExit, KeyboardInterrupt:
            pass

    def call(self):
        name = self.random.choice(self.found.native_names if self.random.random() < 0.7 else self.found.function_names)
        arguments, named = self.arguments()
        self.attempt(name, self.found.functions[name], arguments, named)

    def new(self):
        name = self.found.some_type(self.random)
        kind = self.found.types[name]
        if self.random.random() < 0.5:
            self.attempt(f"{name}.__new__", kind.__new__, (kind,))
        else:
            arguments, named = self.arguments()
            self.attempt(name, kind, arguments, named)

    def unbound(self):
        name = self.found.some_type(self.random)
        kind = self.found.types[name]
        attribute = self.random.choice(dir(kind))
        if attribute in NEVER or attribute in self.shared.settings["skipped"]:
            return
        function = getattr(kind, attribute, None)
        if callable(function):
            arguments, named = self.arguments()
            self.attempt(f"{name}.{attribute}", function, arguments, named)

    def method(self):
        if not self.pool:
            return
        value = self.random.choice(self.pool)
        kind = type(value)
        attribute = self.random.choice(dir(kind))
        if (
            attribute in NEVER
            or attribute in self.shared.settings["skipped"]
            or f"{kind.__module__}.{kind.__qualname__}.{attribute}" in self.shared.settings["skipped"]
        ):
            return
        what = f"<{kind.__module__}.{kind.__qualname__}>.{attribute}"
        self.note(what)
        try:
            function = getattr(value, attribute)
        except Exception:
            return
        if callable(function):
            arguments, named = self.arguments()
            self.attempt(what, function, arguments, named)
        else:
            self.keep(function)

    def change(self):
        """Attributes of objects in the pool; not of classes and modules, on which all of the VM depends."""
        if not self.pool:
            return
        value = self.random.choice(self.pool)
        if isinstance(value, (type, types.FunctionType, types.ModuleType, Meddler)):
            return
        kind = type(value)
        attribute = self.random.choice(dir(kind))
        if attribute in NEVER or attribute == "__class__":
            return
        if self.random.random() < 0.8:
            self.attempt(f"setattr <{kind.__qualname__}>.{attribute}", setattr, (value, attribute, self.junk()))
        else:
            self.attempt(f"delattr <{kind.__qualname__}>.{attribute}", delattr, (value, attribute))

    def use(self):
        value, other = self.junk(), self.junk()
        name, function = self.random.choice(USES)
        self.attempt(f"{name} of a {type(value).__qualname__}", function, (value, other))

    def run(self, steps):
        if self.shared.settings["fitting"]:
            from fitting import Fitting

            models = [lambda name=name: (name,) for name in _array._model_names()]
            own = Fitting(self.random.random(), self.try_fitting, models)
            end = time.monotonic() + self.shared.settings["fitting_s"]
            for _ in range(steps):
                own.step()
                if time.monotonic() > end:  # the machine may be busy
                    break
            return self.step
        choices = (
            [self.call] * 6
            + [self.new] * 3
            + [self.unbound] * 3
            + [self.method] * 7
            + [self.change] * 2
            + [self.use] * 4
        )
        for _ in range(steps):
            self.random.choice(choices)()
        return self.step


OPEN, PWRITE = os.open, os.pwrite
NEVER = frozenset(
    (
        "__class__",
        "__init_subclass__",
        "__subclasshook__",
        "__abstractmethods__",
        "acquire",
        "acquire_lock",
        "_acquire_restore",
    )
)
NAMES = (
    "key",
    "default",
    "dtype",
    "axis",
    "out",
    "size",
    "mode",
    "encoding",
    "errors",
    "timeout",
    "buffering",
    "closefd",
    "opener",
    "flags",
    "name",
    "start",
    "stop",
    "step",
    "maxlen",
    "copy",
    "order",
    "context",
    "loop",
    "factory",
    "uri",
    "dir_fd",
    "follow_symlinks",
    "usedforsecurity",
    "strict",
)
PLAIN = (
    lambda: None,
    lambda: True,
    lambda: 0,
    lambda: 1,
    lambda: -1,
    lambda: 2,
    lambda: 7,
    lambda: 255,
    lambda: 4096,
    lambda: 2**31,
    lambda: -(2**31),
    lambda: 2**63 - 1,
    lambda: 2**64,
    lambda: -(10**30),
    lambda: 0.5,
    lambda: float("inf"),
    lambda: float("nan"),
    lambda: 1j,
    lambda: "",
    lambda: "a",
    lambda: "\0",
    lambda: chr(0xDC80),
    lambda: "utf-8",
    lambda: "r",
    lambda: "w+b",
    lambda: "f8",
    lambda: "é" * 9,
    lambda: "select 1",
    lambda: "%s%d{0}",
    lambda: b"",
    lambda: b"abc",
    lambda: b"\xff" * 40,
    lambda: b"\0",
    lambda: (),
    lambda: (1, 2),
    lambda: ("127.0.0.1", 1),
    list,
    lambda: [1, "a"],
    dict,
    lambda: {"a": 1},
    lambda: set(),
    lambda: frozenset((1,)),
    lambda: range(5),
    lambda: slice(0, 2**70, -1),
    lambda: ...,
    lambda: NotImplemented,
    lambda: bytearray(b"abc"),
    lambda: memoryview(bytearray(8)),
    lambda: object(),
    lambda: ValueError("x"),
    lambda: Junk,
    lambda: len,
    lambda: print,
    lambda: lambda *a, **k: 1,
    lambda: iter(()),
    lambda: int,
    lambda: str,
    lambda: type,
    lambda: object,
    lambda: array.array("d", [1, 2]),
    lambda: np.arange(6.0).reshape(2, 3),
    lambda: np.zeros(()),
    lambda: np.float32(3),
    lambda: np.arange(4)[::-1],
    lambda: io.BytesIO(b"abc"),
    lambda: io.StringIO("abc"),
    lambda: collections.deque([1, 2]),
    lambda: sqlite3.connect(":memory:"),
    lambda: mmap.mmap(-1, 4096),
    lambda: threading.Lock(),
    lambda: re.compile("a+"),
    lambda: decimal.Decimal("1.5"),
    lambda: datetime.datetime(2026, 1, 1),
    lambda: collections.OrderedDict(a=1),
    lambda: collections.Counter("aab"),
    lambda: collections.defaultdict(list, a=[1]),
    lambda: frozenset({1, "x"}),
    lambda: datetime.timedelta(1),
    lambda: datetime.time(1, tzinfo=datetime.UTC),
    lambda: [datetime.datetime(2026, 1, day, tzinfo=datetime.timezone.max) for day in (1, 2, 3)],
    lambda: [ValueError(number, [number]) for number in range(3)],
    lambda: fractions.Fraction(1, 3),
    lambda: uuid.UUID(int=7),
    lambda: pathlib.PurePosixPath("a/b"),
)
USES = tuple(
    [
        (function.__name__, lambda value, other, function=function: function(value))
        for function in (
            repr,
            str,
            hash,
            len,
            bool,
            int,
            float,
            complex,
            bytes,
            dir,
            vars,
            reversed,
            iter,
            memoryview,
            callable,
            abs,
            ascii,
            id,
            sys.getsizeof,
        )
    ]
) + (
    ("next", lambda value, other: next(iter(value))),
    ("some", lambda value, other: list(itertools.islice(value, 20))),
    ("==", lambda value, other: value == other),
    ("<", lambda value, other: value < other),
    ("+", lambda value, other: value + other),
    ("-", lambda value, other: value - other),
    ("&", lambda value, other: value & other),
    ("|", lambda value, other: value | other),
    ("@", lambda value, other: value @ other),
    ("%", lambda value, other: value % other),
    ("//", lambda value, other: value // other),
    ("+=", lambda value, other: operator.iadd(value, other)),
    ("[]", lambda value, other: value[other]),
    ("[:]", lambda value, other: value[0 : 2**40]),
    ("[] =", lambda value, other: operator.setitem(value, other, other)),
    ("del []", lambda value, other: operator.delitem(value, other)),
    ("in", lambda value, other: other in value),
    ("call", lambda value, other: value(other)),
    ("isinstance", lambda value, other: isinstance(value, other)),
    ("format", lambda value, other: format(value, other)),
    ("copy", lambda value, other: copy.copy(value)),
    ("deepcopy", lambda value, other: copy.deepcopy(value)),
    ("pickle", lambda value, other: pickle.dumps(value)),
    ("__buffer__", lambda value, other: value.__buffer__(other)),
    ("send", lambda value, other: value.send(other)),
    ("throw", lambda value, other: value.throw(Junk)),
    ("with", lambda value, other: [value.__enter__(), value.__exit__(None, None, None)]),
    ("__init__", lambda value, other: value.__init__(other)),
    ("__setstate__", lambda value, other: value.__setstate__(other)),
    ("weakref", lambda value, other: weakref.ref(value, other)),
    ("await", lambda value, other: value.__await__()),
    ("slots", lambda value, other: type("Own", (type(value),), {})(other)),
    ("class", lambda value, other: setattr(value, "__class__", type(other))),
)

_found = None


def run(settings):
    """One batch: {"steps", "leaks"}. settings: seed, steps, threads, modules, skipped, folders, descriptors, secret,
    and whether the calls are those of fitting.py."""
    global _found
    if _found is None:
        _found = Found(settings["modules"], settings["skipped"])
    shared = Shared(_found, settings)
    done = [0] * settings["threads"]

    def one(thread):
        fuzz = Fuzz(shared, settings["seed"], thread)
        done[thread] = fuzz.run(settings["steps"])

    others = [threading.Thread(target=one, args=(thread,), daemon=True) for thread in range(1, settings["threads"])]
    for other in others:
        other.start()
    one(0)
    for other in others:
        other.join(2)
    return {"steps": sum(done), "leaks": shared.leaks, "functions": len(_found.functions), "types": len(_found.types)}
