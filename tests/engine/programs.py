"""Random programs of a few statements on arrays that share memory: views of views, in-place operators, out=, where=,
broadcasting, mixed dtypes, wrong shapes. The same text runs with NumPy and with `vmhost.engine.numpy`, and every array
must be the same after every statement.

    python -m tests.engine.programs [SECONDS [SEED]]        many, until the time is over; a program that differs is
    printed

Values are small whole numbers and operators exact, so nothing is compared to rounding; a program ends where a value is
not finite any more. Which of two faults of one statement is told is not compared, nor is what changes NumPy's scalars,
which are no arrays."""

import random
import re
import sys
import time
import warnings

import numpy

import vmhost.engine.numpy

DTYPES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]
BINARY = [
    "add",
    "subtract",
    "multiply",
    "maximum",
    "minimum",
    "bitwise_and",
    "bitwise_xor",
    "equal",
    "less",
    "greater_equal",
    "logical_or",
    "not_equal",
]
SIGNS = ["+", "-", "*", "&", "|", "==", "<", ">="]
REDUCTIONS = ["sum", "prod", "max", "min", "any", "all", "argmax", "argmin", "cumsum"]


class Program:
    """Statements as text, each with a name that it binds or changes."""

    def __init__(self, seed, length=10):
        self.random = random.Random(seed)
        self.names = []
        self.statements = [self.array() for _ in range(3)]
        for _ in range(length):
            statement = self.random.choice(
                [
                    self.view,
                    self.view,
                    self.operator,
                    self.operator,
                    self.out,
                    self.in_place,
                    self.put,
                    self.reduction,
                    self.order,
                    self.copy,
                    self.array,
                ]
            )()
            self.statements.append(statement)

    def new(self, text):
        name = f"a{len(self.names)}"
        self.names.append(name)
        return f"{name} = {text}"

    def any(self):
        return self.random.choice(self.names)

    def of(self, *texts):
        return self.random.choice(texts)

    def dtype(self):
        return repr(self.random.choice(DTYPES))

    def array(self):
        shape = tuple(
            self.random.choice([0, 1, 2, 3, 3, 4, 6]) if self.random.random() < 0.9 else 1
            for _ in range(self.random.randrange(4))
        )
        size = int(numpy.prod(shape))
        start = self.random.randrange(-3, 3)
        return self.new(
            f"(np.arange({size}) % 7 + {start}).reshape({shape}).astype({self.dtype()}, order={self.of('C', 'F')!r})"
        )

    def slice(self):
        one = [None, None, 0, 1, 2, -1, -2, 5]
        return (
            f"slice({self.random.choice(one)}, {self.random.choice(one)},"
            f" {self.random.choice([None, 1, 2, -1, -2, 3])})"
        )

    def key(self):
        fields = []
        for _ in range(self.random.randrange(1, 4)):
            fields.append(
                self.of(
                    self.slice(),
                    self.slice(),
                    "...",
                    "None",
                    str(self.random.randrange(-3, 3)),
                    "[0, -1, 0]",
                    "[[1], [0]]",
                )
            )
        return ", ".join(fields)

    def view(self):
        x, axis = self.any(), self.random.randrange(-3, 3)
        return self.new(
            self.of(
                f"{x}[{self.key()}]",
                f"{x}[{self.key()}]",
                f"{x}.T",
                f"{x}[::-1]",
                f"{x}.reshape(-1)",
                f"{x}.reshape(-1, 2)",
                f"np.broadcast_to({x}, (2, *{x}.shape))",
                f"{x}.swapaxes({axis}, 0)",
                f"np.expand_dims({x}, {axis})",
                f"{x}.ravel()",
                f"np.moveaxis({x}, 0, {axis})",
                f"{x}.squeeze()",
                f"{x}.real",
                f"{x}.diagonal()",
                f"np.flip({x}, {axis})",
            )
        )

    def operator(self):
        x, y = self.any(), self.any()
        other = self.of(y, y, str(self.random.randrange(-2, 5)), "True", "2.0", "1j")
        return self.new(
            self.of(
                f"{x} {self.random.choice(SIGNS)} {other}",
                f"np.{self.random.choice(BINARY)}({x}, {other})",
                f"-{x}",
                f"abs({x})",
                f"~{x}",
                f"np.where({y} > 1, {x}, {other})",
                f"np.logical_not({x})",
                f"np.square({x})",
                f"{x} @ {y}",
            )
        )

    def out(self):
        x, y, z = self.any(), self.any(), self.any()
        name = self.random.choice(BINARY)
        return self.of(
            f"np.{name}({x}, {y}, out={z})",
            f"np.{name}({x}, {y}, out={z}, where={self.any()} > 0)",
            f"np.{name}({x}, 2, out={x})",
            f"np.copyto({z}, {x})",
            f"np.negative({x}, out={z})",
            f"{x}.sum(axis=0, out={z})",
            f"np.{name}({x}, {y}, out={z}, casting='unsafe')",
            f"np.cumsum({x}, axis=0, out={z})",
            f"np.add.at({x}, [0, 0], 1)",
            f"np.take({x}, [0, 1], axis=0, out={z}, mode='clip')",
        )

    def in_place(self):
        x, y = self.any(), self.any()
        sign = self.random.choice(["+=", "-=", "*=", "|=", "&="])
        return self.of(
            f"{x} {sign} {y}",
            f"{x} {sign} 2",
            f"{x}[{self.key()}] {sign} {y}",
            f"{x}[...] = np.sort({x}, axis=0)",
            f"{x}.fill(3)",
            f"{x}[{self.key()}] {sign} 1",
        )

    def put(self):
        x, y = self.any(), self.any()
        return self.of(
            f"{x}[{self.key()}] = {y}",
            f"{x}[{self.key()}] = 2",
            f"{x}[{x} > 1] = 1",
            f"{x}[{x} > 2] = {y}.ravel()[:1]",
            f"{x}[...] = {x}[::-1]",
            f"{x}[1:] = {x}[:-1]",
            f"{x}.T[...] = {y}",
            f"{x}.flat[::2] = 5",
            f"np.put({x}, [0, -1], 4)",
        )

    def reduction(self):
        x, name = self.any(), self.random.choice(REDUCTIONS)
        axis = self.of(
            "",
            f"axis={self.random.randrange(-2, 3)}",
            "axis=(0, 1)" if name not in ("argmax", "argmin", "cumsum") else "axis=0",
        )
        keep = ", keepdims=True" if axis and name != "cumsum" and self.random.random() < 0.3 else ""
        return self.new(f"{x}.{name}({axis}{keep})")

    def order(self):
        x, y = self.any(), self.any()
        return self.new(
            self.of(
                f"np.sort({x}, axis={self.random.randrange(-2, 2)})",
                f"np.argsort({x}, axis=-1, kind='stable')",
                f"np.unique({x})",
                f"np.nonzero({x})[0]",
                f"{x}[{x} > 0]",
                f"np.take({x}, [1, 0, -1], axis={self.random.randrange(-2, 2)}, mode='wrap')",
                f"np.searchsorted(np.sort({x}.ravel()), {y})",
                f"np.count_nonzero({x})",
                f"{x}.argsort(axis=0, kind='stable')",
            )
        )

    def copy(self):
        x, y = self.any(), self.any()
        wider = self.random.choice(["float64", "complex128", "int64"])
        return self.new(
            self.of(
                f"{x}.copy()",
                f"{x}.copy('F')",
                f"np.concatenate([{x}, {y}])",
                f"np.stack([{x}, {x}], -1)",
                f"np.tile({x}, 2)",
                f"np.repeat({x}, 2, axis=0)",
                f"np.roll({x}, 1)",
                f"np.pad({x}, 1)",
                f"{x}.astype({wider!r}, casting='same_kind')",
                f"np.asarray({x}, order='F')",
                f"np.array({x}, ndmin=3)",
                f"np.concatenate([{x}, {y}], axis=None)",
            )
        )


def step(module, names, statement):
    """The exception of one statement, or None."""
    try:
        with numpy.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
            exec(statement, {"np": module}, names)
    except Exception as error:
        return error
    return None


def tame(value):
    """Whether the next statements are exact, too."""
    value = numpy.asarray(value)
    if value.dtype == "uint64" and (value > 2**53).any():  # NumPy's add.at goes through float64
        return False
    return value.dtype.kind not in "fc" or bool(
        (numpy.isfinite(value) & (abs(value) < (2**10 if value.dtype == "float16" else 2**20))).all()
    )


def changes_a_scalar(names, statement):
    binds = re.match(r"a\d+ = ", statement)
    return not binds and any(isinstance(names.get(name), numpy.generic) for name in re.findall(r"a\d+", statement))


def exact_part(statements):
    """The statements up to the first after which a value is not tame."""
    names = {}
    exact = []
    for statement in statements:
        if changes_a_scalar(names, statement) or re.fullmatch(r"np\.copyto\((a\d+), \1\)", statement):
            continue  # of a copy onto itself NumPy does not ask whether it may write
        step(numpy, names, statement)
        if not all(map(tame, names.values())):
            break
        exact.append(statement)
    return exact


def difference(statements):
    """None, or a sentence on the first statement after which the two differ."""
    theirs, ours = {}, {}
    statements = exact_part(statements)
    for number, statement in enumerate(statements):
        wanted, got = step(numpy, theirs, statement), step(vmhost.engine.numpy, ours, statement)
        if "read-only" in str(wanted) and not all(value.size for value in theirs.values()):
            continue  # nothing would be written: refused there, let through here
        if (wanted is None) != (got is None):
            return f"after {statements[: number + 1]}: NumPy {wanted!r}, the engine {got!r}"
        for name, value in theirs.items():
            own = ours.get(name)
            if (
                str(own.dtype) != str(value.dtype)
                or own.shape != value.shape
                or not numpy.array_equal(numpy.asarray(own), value)
            ):
                return f"after {statements[: number + 1]}: {name} is\n{value!r}\nin NumPy, and\n{own!r}\nhere"
    return None


def main(seconds="60", seed=""):
    end, number = time.monotonic() + float(seconds), int(seed or time.time())
    first, differing = number, 0
    while time.monotonic() < end:
        found = difference(Program(number).statements)
        if found:
            differing += 1
            print(f"seed {number}, {found}\n", flush=True)
        number += 1
    print(f"{number - first} programs from seed {first}, {differing} differ")
    return differing != 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
