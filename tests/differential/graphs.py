"""Random graphs of ONNX: operators drawn one after the other on what is there already, of several dtypes, with open
sizes, graphs within graphs, bytes, and results whose size depends on values.

Sizes are drawn twice, so that an open one has two numbers; every operator is drawn so that it works at both. What both
engines compute to the last bit is told from what they round (`exact`): only that decides what is compared, counted or
looked up, so that the last bit of a float changes no answer by more."""

import math
import random
from dataclasses import dataclass

import numpy
from onnx import TensorProto, helper, numpy_helper

FLOATS, INTEGERS = ("float32", "float64"), ("int32", "int64", "uint8", "int8")
OPSET = 20


@dataclass(frozen=True)
class Value:
    name: str
    dtype: str
    shape: tuple  # of (size at the first call, size at the second)
    exact: bool = True
    counted: bool = False  # its size depends on values: nothing else reads it

    @property
    def rank(self):
        return len(self.shape)

    @property
    def count(self):
        return math.prod(size for size, _ in self.shape)


def fixed(size):
    return (size, size)


def is_fixed(size):
    return size[0] == size[1]


class Graph:
    """A random model: `data()` and `inputs(0)` or `inputs(1)` for its two calls."""

    def __init__(self, seed, length=7):
        self.seed, self.random = seed, random.Random(seed)
        self.nodes, self.constants, self.values, self.ports, self.number = [], {}, [], [], 0
        self.labels, self.right = {}, {}  # right: outputs that are known exactly, by functions of the call
        self.opens = self.random.random() < 0.5
        for _ in range(self.random.choice([1, 1, 2])):
            self.input()
        for _ in range(length):
            draw = self.random.choice(self.random.choice(KINDS))
            draw(self, self.pick())
        if not self.nodes:
            unary(self, self.pick())

    # ---- parts
    def size(self):
        size = self.random.choice([1, 2, 3, 4, 5, 8])
        return fixed(size) if not self.opens or self.random.random() < 0.5 else (size + 1, size + 3)

    def input(self):
        dtype = self.random.choice(["float32"] * 6 + ["float64", "int64", "int32", "uint8", "int8"])
        shape = tuple(self.size() for _ in range(self.random.choice([1, 2, 2, 3, 4, 4])))
        value = Value(f"x{len(self.ports)}", dtype, shape)
        self.ports.append(value)
        self.values.append(value)

    def flag(self):
        """The name of an input that is one bool."""
        if "flag" not in self.labels:
            self.labels["flag"] = True
        return "flag"

    def pick(self):
        usable = [value for value in self.values if not value.counted]
        return self.random.choice(usable[-3:] + usable)

    def constant(self, array):
        name = f"c{len(self.constants)}"
        self.constants[name] = numpy.asarray(array)
        return name

    def fresh(self):
        self.number += 1
        return f"v{self.number}"

    def draw(self, *shape, dtype="float32", low=-2, high=3):
        generator = numpy.random.default_rng(self.random.randrange(1 << 30))
        kind = numpy.dtype(dtype).kind
        if kind == "f":
            return generator.standard_normal(shape).astype(dtype)
        if kind == "b":
            return generator.integers(0, 2, shape).astype(dtype)
        return generator.integers(max(low, 0) if kind == "u" else low, high, shape).astype(dtype)

    def node(self, op, inputs, count=1, domain="", **attributes):
        names = [self.fresh() for _ in range(count)]
        self.nodes.append(helper.make_node(op, inputs, names, name=f"n{len(self.nodes)}", domain=domain, **attributes))
        return names[0] if count == 1 else names

    def add(self, op, inputs, like, shape=None, dtype=None, exact=None, counted=False, domain="", **attributes):
        """A node of one result, like `like` except for the given arguments."""
        name = self.node(op, inputs, domain=domain, **attributes)
        return self.keep(name, like, shape, dtype, exact, counted)

    def keep(self, name, like, shape=None, dtype=None, exact=None, counted=False):
        value = Value(
            name,
            dtype or like.dtype,
            tuple(like.shape if shape is None else shape),
            like.exact if exact is None else exact and like.exact,
            counted,
        )
        self.values.append(value)
        return value

    # ---- the whole
    def outputs(self):
        read = {name for node in self.nodes for name in node.input}
        made = [value for value in self.values if value not in self.ports]
        last = [value for value in made if value.name not in read]
        return last + [value for value in made if value.name in read and self.seed % 3 == 0][:1]

    def data(self):
        inputs = [
            helper.make_tensor_value_info(
                value.name,
                KIND[value.dtype],
                [size[0] if is_fixed(size) else f"{value.name}_{d}" for d, size in enumerate(value.shape)],
            )
            for value in self.ports
        ]
        if "flag" in self.labels:
            inputs.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, []))
        outputs = []
        for value in self.outputs():
            made = helper.make_tensor_value_info(value.name, KIND[value.dtype], [None] * value.rank)
            outputs.append(made)
        graph = helper.make_graph(
            self.nodes, "random", inputs, outputs,
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )  # fmt: skip
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()

    def inputs(self, call):
        generator = numpy.random.default_rng([self.seed, call])
        made = {}
        for value in self.ports:
            shape = [size[call] for size in value.shape]
            kind = numpy.dtype(value.dtype).kind
            if kind == "f":
                made[value.name] = generator.standard_normal(shape).astype(value.dtype)
            else:
                low, high = {"u": (0, 5), "b": (0, 2)}.get(kind, (-4, 5))
                made[value.name] = generator.integers(low, high, shape).astype(value.dtype)
        if "flag" in self.labels:
            made["flag"] = numpy.array(bool((self.seed + call) % 2))
        return made


_OTHERS = ("float16", "int16", "uint16", "uint32", "uint64", "bool")
KIND = {name: helper.np_dtype_to_tensor_dtype(numpy.dtype(name)) for name in (*FLOATS, *INTEGERS, *_OTHERS)}


def floats(graph, value):
    return value.dtype in FLOATS


def as_float(graph, value, dtype="float32"):
    if value.dtype == dtype:
        return value
    return graph.add("Cast", [value.name], value, dtype=dtype, to=KIND[dtype])


# ---- elementwise
def unary(graph, value):
    if value.dtype == "bool":
        return graph.add("Not", [value.name], value)
    if value.dtype in INTEGERS:
        return graph.add(
            graph.random.choice(["Abs", "Neg", "Sign"] if value.dtype != "uint8" else ["Sign"]), [value.name], value
        )
    exact = graph.random.random() < 0.3
    op = graph.random.choice(
        ["Abs", "Neg", "Relu", "Sign"] if exact else ["Sigmoid", "Tanh", "Erf", "Sin", "Cos", "Atan"]
    )
    if op == "Relu" or value.dtype == "float32":
        op = (
            op
            if exact
            else graph.random.choice(
                [
                    op,
                    "Softplus",
                    "Elu",
                    "Selu",
                    "LeakyRelu",
                    "HardSwish",
                    "HardSigmoid",
                    "Gelu",
                    "Mish",
                    "Softsign",
                    "Celu",
                    "ThresholdedRelu",
                ]
            )
        )
    if op in (
        "HardSwish",
        "Gelu",
        "Mish",
        "Celu",
        "ThresholdedRelu",
        "HardSigmoid",
        "Softsign",
        "Selu",
        "Elu",
        "LeakyRelu",
        "Softplus",
        "Sign",
    ):
        if op == "ThresholdedRelu" and not value.exact:
            op = "LeakyRelu"
        value = value if op == "Sign" else as_float(graph, value)
    if op == "Sign" and not value.exact:
        op = "Neg"
    return graph.add(op, [value.name], value, exact=exact)


def root(graph, value):
    value = as_float(graph, value)
    name = graph.node("Abs", [value.name])
    if graph.random.random() < 0.5:
        return graph.add("Sqrt", [name], value, exact=False)
    one = graph.node("Add", [name, graph.constant(numpy.float32(1))])
    return graph.add(graph.random.choice(["Log", "Reciprocal"]), [one], value, exact=False)


def bounded(graph, value):
    if value.dtype == "bool":
        return
    low, high = graph.draw(dtype=value.dtype), graph.draw(dtype=value.dtype)
    low, high = min(low, high), max(low, high)
    inputs = [value.name, graph.constant(low), graph.constant(high)]
    if graph.random.random() < 0.3:
        inputs[graph.random.choice([1, 2])] = ""
    graph.add("Clip", inputs, value)


def partner(graph, value):
    """An operand that broadcasts with `value`: (name, exact, shape of both)."""
    same = [
        other
        for other in graph.values
        if other.dtype == value.dtype and other.shape == value.shape and not other.counted
    ]
    choice = graph.random.randrange(4)
    if choice == 0 and same:
        other = graph.random.choice(same)
        return other.name, other.exact
    if choice == 1 and value.dtype != "bool":
        wide = [size[0] if is_fixed(size) and graph.random.random() < 0.6 else 1 for size in value.shape]
        return graph.constant(graph.draw(*wide, dtype=value.dtype)), True
    if choice == 2 and value.rank:
        axis = graph.random.randrange(value.rank)
        if value.dtype in FLOATS:
            inputs = [value.name, graph.constant(numpy.array([axis]))]
            return graph.node("ReduceMax", inputs, keepdims=1), value.exact
    if value.dtype == "bool":
        return graph.constant(numpy.array(graph.random.random() < 0.5)), True
    return graph.constant(graph.draw(dtype=value.dtype)), True


def binary(graph, value):
    other, exact = partner(graph, value)
    if value.dtype == "bool":
        return graph.add(graph.random.choice(["And", "Or", "Xor", "Equal"]), [value.name, other], value)
    inputs = [value.name, other]
    if graph.random.random() < 0.3:
        inputs.reverse()
    op = graph.random.choice(["Add", "Sub", "Mul", "Max", "Min"])
    if op in ("Max", "Min"):
        return graph.add(op, inputs, value, exact=exact)
    return graph.add(op, inputs, value, exact=exact and value.dtype in INTEGERS)


def divide(graph, value):
    if value.dtype == "bool":
        return None
    if value.dtype in INTEGERS:
        by = graph.draw(dtype=value.dtype, low=1, high=5)
        if graph.random.random() < 0.5 or value.dtype in ("int8", "uint8"):
            return graph.add("Mod", [value.name, graph.constant(by)], value)
        return graph.add("Div", [value.name, graph.constant(by)], value)
    by = abs(graph.draw(dtype=value.dtype)) + numpy.dtype(value.dtype).type(0.5)
    return graph.add("Div", [value.name, graph.constant(by)], value, exact=False)


def power(graph, value):
    if value.dtype == "float32":
        graph.add("Pow", [value.name, graph.constant(numpy.float32(graph.random.choice([2, 3])))], value, exact=False)


def compare(graph, value):
    if value.dtype == "bool" or not value.exact:
        return None
    other, exact = partner(graph, value)
    if not exact:
        return None
    op = graph.random.choice(["Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Equal"])
    if op == "Equal" and value.dtype in ("int8", "uint8"):
        op = "Less"
    return graph.add(op, [value.name, other], value, dtype="bool")


def choose(graph, value):
    flags = [
        other for other in graph.values if other.dtype == "bool" and other.shape == value.shape and not other.counted
    ]
    if value.dtype in ("int8", "bool"):
        return
    if flags:
        condition = graph.random.choice(flags).name
    elif value.exact and value.dtype in FLOATS:
        condition = graph.node("Greater", [value.name, graph.constant(numpy.zeros((), value.dtype))])
    else:
        return
    other, exact = partner(graph, value)
    graph.add("Where", [condition, value.name, other], value, exact=exact)


def cast(graph, value):
    if value.dtype in FLOATS and not value.exact:
        to = graph.random.choice(FLOATS)
    elif value.dtype in FLOATS:  # what is beyond a byte differs from machine to machine
        to = graph.random.choice([*FLOATS, "int32", "int64", "bool"])
    else:
        to = graph.random.choice([*FLOATS, *INTEGERS, "bool"])
    if to != value.dtype:
        graph.add("Cast", [value.name], value, dtype=to, to=KIND[to])


# ---- rearrangements
def transpose(graph, value):
    if not value.rank:
        return
    order = graph.random.sample(range(value.rank), value.rank)
    graph.add("Transpose", [value.name], value, [value.shape[d] for d in order], perm=order)


def cut(graph, value):
    if not value.rank:
        return
    axis = graph.random.randrange(value.rank)
    small = min(value.shape[axis])
    if graph.random.random() < 0.3:
        start, stop, step = -1, -1 << 31, -graph.random.choice([1, 2])
    else:
        start, stop, step = (
            graph.random.randrange(small),
            graph.random.choice([1 << 31, small]),
            graph.random.choice([1, 2]),
        )
        if start >= stop:
            start = 0
    shape = list(value.shape)
    shape[axis] = tuple(len(range(size)[start : None if stop < 0 else stop : step]) for size in value.shape[axis])
    constants = [graph.constant(numpy.array([number])) for number in (start, stop, axis, step)]
    graph.add("Slice", [value.name, *constants], value, shape)


def reshape(graph, value):
    if value.rank > 1 and graph.random.random() < 0.6:
        axis = graph.random.randrange(value.rank - 1)  # two dimensions as one
        shape = list(value.shape)
        joined = tuple(a * b for a, b in zip(*shape[axis : axis + 2]))
        target = [0] * axis + [-1] + [size[0] if is_fixed(size) else None for size in shape[axis + 2 :]]
        if None in target:
            return
        shape[axis : axis + 2] = [joined]
        graph.add("Reshape", [value.name, graph.constant(numpy.array(target))], value, shape)
    elif all(is_fixed(size) for size in value.shape):
        count, shape = value.count, []
        while count > 1 and len(shape) < 3:
            shape.append(graph.random.choice([n for n in range(1, count + 1) if count % n == 0]))
            count //= shape[-1]
        shape.append(count)
        graph.add("Reshape", [value.name, graph.constant(numpy.array(shape))], value, map(fixed, shape))
    else:
        graph.add("Flatten", [value.name], value, flat(value, 1 if value.rank else 0), axis=1 if value.rank else 0)


def flat(value, axis):
    def count(sizes):
        return tuple(math.prod(size[call] for size in sizes) for call in (0, 1))

    return count(value.shape[:axis]), count(value.shape[axis:])


def unsqueeze(graph, value):
    if value.rank < 4:
        axis = graph.random.randrange(value.rank + 1)
        shape = [*value.shape[:axis], fixed(1), *value.shape[axis:]]
        graph.add("Unsqueeze", [value.name, graph.constant(numpy.array([axis]))], value, shape)


def squeeze(graph, value):
    axes = [axis for axis, size in enumerate(value.shape) if size == (1, 1)]
    if axes and value.rank > 1:
        axis = graph.random.choice(axes)
        shape = [size for place, size in enumerate(value.shape) if place != axis]
        graph.add("Squeeze", [value.name, graph.constant(numpy.array([axis]))], value, shape)


def join(graph, value):
    if not value.rank or value.count > 2000:
        return
    axis = graph.random.randrange(value.rank)
    fits = [
        other
        for other in graph.values
        if other.dtype == value.dtype and other.rank == value.rank and not other.counted
        and all(place == axis or a == b for place, (a, b) in enumerate(zip(other.shape, value.shape)))
    ]  # fmt: skip
    others = [graph.random.choice(fits) for _ in range(graph.random.choice([1, 2]))]
    shape = list(value.shape)
    shape[axis] = tuple(sum(sizes) for sizes in zip(*(each.shape[axis] for each in [value, *others])))
    exact = all(other.exact for other in others)
    graph.add("Concat", [value.name, *(other.name for other in others)], value, shape, exact=exact, axis=axis)


def split(graph, value):
    axes = [axis for axis, size in enumerate(value.shape) if is_fixed(size) and size[0] > 1]
    if not axes:
        return
    axis = graph.random.choice(axes)
    first = graph.random.randrange(1, value.shape[axis][0])
    sizes = [first, value.shape[axis][0] - first]
    names = graph.node("Split", [value.name, graph.constant(numpy.array(sizes))], 2, axis=axis)
    for name, size in zip(names, sizes):
        shape = list(value.shape)
        shape[axis] = fixed(size)
        graph.keep(name, value, shape)


def expand(graph, value):
    if value.count > 1000 or value.rank > 3:
        return
    shape = [fixed(2), *(fixed(3) if size == (1, 1) else size for size in value.shape)]
    target = [2, *(3 if size == (1, 1) else 1 for size in value.shape)]
    graph.add("Expand", [value.name, graph.constant(numpy.array(target))], value, shape)


def tile(graph, value):
    if value.count < 1000 and value.rank:
        times = [graph.random.choice([1, 1, 2]) for _ in value.shape]
        shape = [tuple(size * n for size in sizes) for sizes, n in zip(value.shape, times)]
        graph.add("Tile", [value.name, graph.constant(numpy.array(times))], value, shape)


def pad(graph, value):
    if not value.rank or value.dtype in ("bool", "int8") or value.count > 3000:
        return
    mode = graph.random.choice(["constant", "constant", "reflect", "edge"])
    if mode == "reflect" and min(min(size) for size in value.shape) < 3:
        mode = "edge"
    before, after = ([graph.random.choice([0, 0, 1, 2]) for _ in value.shape] for _ in range(2))
    shape = [tuple(size + a + b for size in sizes) for sizes, a, b in zip(value.shape, before, after)]
    inputs = [value.name, graph.constant(numpy.array(before + after))]
    if mode == "constant" and graph.random.random() < 0.5:
        inputs.append(graph.constant(graph.draw(dtype=value.dtype)))
    graph.add("Pad", inputs, value, shape, mode=mode)


def gather(graph, value):
    if not value.rank:
        return
    axis = graph.random.randrange(value.rank)
    small = min(value.shape[axis])
    kind = graph.random.choice(["int64", "int32"])
    indices = graph.draw(*graph.random.choice([(), (3,), (2, 2)]), dtype=kind, low=-small, high=small)
    shape = [*value.shape[:axis], *map(fixed, indices.shape), *value.shape[axis + 1 :]]
    if len(shape) < 5:
        graph.add("Gather", [value.name, graph.constant(indices)], value, shape, axis=axis)


def gather_elements(graph, value):
    if not value.rank:
        return
    axis = graph.random.randrange(value.rank)
    small = [min(size) for size in value.shape]
    wide = [graph.random.randrange(1, size + 1) for size in small]
    indices = graph.draw(*wide, dtype="int64", low=-small[axis], high=small[axis])
    graph.add("GatherElements", [value.name, graph.constant(indices)], value, map(fixed, wide), axis=axis)


def scatter(graph, value):
    if not value.rank or value.dtype == "bool":
        return
    small = [min(size) for size in value.shape]
    if graph.random.random() < 0.5:
        axis = graph.random.randrange(value.rank)
        wide = [graph.random.randrange(1, size + 1) for size in small]
        wide[axis] = 1
        indices = graph.draw(*wide, dtype="int64", low=-small[axis], high=small[axis])
        inputs = [value.name, graph.constant(indices), graph.constant(graph.draw(*wide, dtype=value.dtype))]
        graph.add("ScatterElements", inputs, value, axis=axis)
    elif all(is_fixed(size) for size in value.shape[1:]):
        place = graph.random.randrange(small[0])
        updates = graph.draw(1, *small[1:], dtype=value.dtype)
        inputs = [value.name, graph.constant(numpy.array([[place]])), graph.constant(updates)]
        graph.add("ScatterND", inputs, value)


def triangle(graph, value):
    if value.rank >= 2 and value.dtype in (*FLOATS, "int64"):
        graph.add("Trilu", [value.name], value, upper=graph.random.randrange(2))


def blocks(graph, value):
    if value.rank != 4 or value.dtype not in FLOATS or not all(is_fixed(size) for size in value.shape[1:]):
        return
    n, (c, _), (h, _), (w, _) = value.shape
    if c % 4 == 0:
        graph.add("DepthToSpace", [value.name], value, [n, *map(fixed, (c // 4, h * 2, w * 2))],
                  blocksize=2, mode=graph.random.choice(["DCR", "CRD"]))  # fmt: skip
    elif h % 2 == 0 and w % 2 == 0:
        graph.add("SpaceToDepth", [value.name], value, [n, *map(fixed, (c * 4, h // 2, w // 2))], blocksize=2)


# ---- sums
def reduce(graph, value):
    if not value.rank or value.dtype not in (*FLOATS, "int32", "int64"):
        return
    names = ["ReduceSum", "ReduceMax", "ReduceMin"]
    if value.dtype in FLOATS:
        names += ["ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp"]
    op = graph.random.choice(names)
    axes = sorted(graph.random.sample(range(value.rank), graph.random.choice([1, 1, min(2, value.rank)])))
    keep = graph.random.randrange(2)
    shape = [fixed(1) if place in axes else size for place, size in enumerate(value.shape) if keep or place not in axes]
    exact = op in ("ReduceMax", "ReduceMin") or value.dtype in INTEGERS
    graph.add(op, [value.name, graph.constant(numpy.array(axes))], value, shape, exact=exact, keepdims=keep)


def accumulate(graph, value):
    if value.rank and value.dtype in (*FLOATS, "int32", "int64"):
        axis = graph.constant(numpy.int64(graph.random.randrange(value.rank)))
        attributes = {"exclusive": graph.random.randrange(2), "reverse": graph.random.randrange(2)}
        graph.add("CumSum", [value.name, axis], value, exact=value.dtype in INTEGERS, **attributes)


def extreme(graph, value):
    if value.rank and value.exact and value.dtype in (*FLOATS, "int32"):
        axis, keep = graph.random.randrange(value.rank), graph.random.randrange(2)
        shape = [fixed(1) if place == axis else size for place, size in enumerate(value.shape) if keep or place != axis]
        graph.add(
            graph.random.choice(["ArgMax", "ArgMin"]), [value.name], value, shape, "int64", axis=axis, keepdims=keep
        )


def largest(graph, value):
    if not value.rank or not value.exact or value.dtype not in (*FLOATS, "int64"):
        return
    axis = graph.random.randrange(value.rank)
    count = graph.random.randrange(1, min(value.shape[axis]) + 1)
    shape = list(value.shape)
    shape[axis] = fixed(count)
    inputs = [value.name, graph.constant(numpy.array([count]))]
    names = graph.node("TopK", inputs, 2, axis=axis, largest=graph.random.randrange(2))
    graph.keep(names[0], value, shape)
    graph.keep(names[1], value, shape, "int64")


def product(graph, value):
    if value.rank < 2 or value.dtype not in FLOATS or not is_fixed(value.shape[-1]):
        return
    k, columns = value.shape[-1][0], graph.random.choice([1, 3, 5, 17])
    weights = graph.draw(k, columns, dtype=value.dtype) / numpy.sqrt(k).astype(value.dtype)
    if value.rank == 2 and graph.random.random() < 0.4:
        inputs = [value.name, graph.constant(weights.T), graph.constant(graph.draw(columns, dtype=value.dtype))]
        graph.add("Gemm", inputs, value, [value.shape[0], fixed(columns)], exact=False, transB=1, alpha=0.5)
    else:
        shape = [*value.shape[:-1], fixed(columns)]
        graph.add("MatMul", [value.name, graph.constant(weights)], value, shape, exact=False)


def square(graph, value):
    """Rows with each other, as attention has them."""
    if value.rank < 2 or value.dtype != "float32" or value.count > 3000:
        return
    order = [*range(value.rank - 2), value.rank - 1, value.rank - 2]
    turned = graph.node("Transpose", [value.name], perm=order)
    scores = graph.node("MatMul", [value.name, turned])
    if graph.random.random() < 0.7:
        scores = graph.node("Mul", [scores, graph.constant(numpy.float32(0.3))])
    shape = [*value.shape[:-1], value.shape[-2]]
    weights = graph.add("Softmax", [scores], value, shape, exact=False, axis=-1)
    graph.add("MatMul", [weights.name, value.name], value, exact=False)


def einsum(graph, value):
    if value.rank == 3 and value.dtype == "float32" and is_fixed(value.shape[2]):
        weights = graph.draw(value.shape[2][0], 2, 3)
        first, second = value.shape[:2]
        equation, shape = graph.random.choice(
            [
                ("abc,cde->abde", [first, second, fixed(2), fixed(3)]),
                ("abc,cde->bade", [second, first, fixed(2), fixed(3)]),
                ("abc,cde->aed", [first, fixed(3), fixed(2)]),
            ]
        )
        graph.add("Einsum", [value.name, graph.constant(weights)], value, shape, exact=False, equation=equation)


def softmax(graph, value):
    if value.rank and value.dtype in FLOATS:
        axis = graph.random.choice([-1, -1, graph.random.randrange(value.rank)])
        graph.add(graph.random.choice(["Softmax", "LogSoftmax"]), [value.name], value, exact=False, axis=axis)


def normalize(graph, value):
    if value.rank < 2 or value.dtype != "float32":
        return
    kind = graph.random.randrange(4)
    if kind == 0 and is_fixed(value.shape[-1]):
        size = value.shape[-1][0]
        inputs = [value.name, graph.constant(graph.draw(size)), graph.constant(graph.draw(size))]
        graph.add("LayerNormalization", inputs, value, exact=False, axis=-1, epsilon=0.1)
    elif is_fixed(value.shape[1]):
        size = value.shape[1][0]
        gain, shift = graph.constant(graph.draw(size)), graph.constant(graph.draw(size))
        if kind == 1 and value.rank > 2:
            graph.add("InstanceNormalization", [value.name, gain, shift], value, exact=False, epsilon=0.1)
        elif kind == 2 and value.rank == 4:
            graph.add("LRN", [value.name], value, exact=False, size=3)
        else:
            mean, variance = graph.constant(graph.draw(size)), graph.constant(abs(graph.draw(size)) + 0.5)
            graph.add("BatchNormalization", [value.name, gain, shift, mean, variance], value, exact=False)


# ---- images
def is_image(value):
    return value.rank in (3, 4) and value.dtype == "float32" and is_fixed(value.shape[1]) and value.count < 4000


def convolve(graph, value):
    if not is_image(value):
        return
    channels, sides = value.shape[1][0], value.shape[2:]
    groups = channels if graph.random.random() < 0.3 else 1
    outputs = groups * graph.random.choice([1, 2]) if groups > 1 else graph.random.choice([1, 3, 8])
    kernel = [graph.random.choice([k for k in (1, 2, 3, 5) if k <= min(size) + 2]) for size in sides]
    stride = [graph.random.choice([1, 1, 2]) for _ in sides]
    if not all(is_fixed(size) for size in sides) and graph.random.random() < 0.5:
        stride = [1] * len(sides)
    pads = [graph.random.choice([1, 1, 2]) for _ in sides]
    shape = [tuple((n + 2 * p - k) // s + 1 for n in size) for size, p, k, s in zip(sides, pads, kernel, stride)]
    if min(min(size) for size in shape) < 1 or any(p >= k and k > 1 for p, k in zip(pads, kernel)):
        return
    weights = graph.draw(outputs, channels // groups, *kernel) / numpy.float32(math.sqrt(math.prod(kernel) * channels))
    inputs = [value.name, graph.constant(weights)]
    if graph.random.random() < 0.7:
        inputs.append(graph.constant(graph.draw(outputs)))
    graph.add("Conv", inputs, value, [value.shape[0], fixed(outputs), *shape], exact=False,
              pads=pads * 2, strides=stride, group=groups)  # fmt: skip


def transposed(graph, value):
    if not is_image(value) or value.rank != 4 or value.count > 1000:
        return
    channels, outputs = value.shape[1][0], graph.random.choice([1, 3])
    stride, kernel, cut_off = graph.random.choice([1, 2]), graph.random.choice([2, 3]), graph.random.choice([0, 1])
    shape = [tuple((n - 1) * stride + kernel - 2 * cut_off for n in size) for size in value.shape[2:]]
    if min(min(size) for size in shape) < 1:
        return
    weights = graph.draw(channels, outputs, kernel, kernel) / numpy.float32(kernel * math.sqrt(channels))
    graph.add("ConvTranspose", [value.name, graph.constant(weights)], value, [value.shape[0], fixed(outputs), *shape],
              exact=False, strides=[stride] * 2, pads=[cut_off] * 4)  # fmt: skip


def pool(graph, value):
    if not is_image(value):
        return
    if graph.random.random() < 0.2:
        op, shape = graph.random.choice(["GlobalAveragePool", "GlobalMaxPool"]), [fixed(1)] * (value.rank - 2)
        graph.add(op, [value.name], value, [*value.shape[:2], *shape], exact=op == "GlobalMaxPool")
        return
    sides = value.shape[2:]
    kernel, stride = [graph.random.choice([2, 3]) for _ in sides], [graph.random.choice([1, 2]) for _ in sides]
    pads = [1] * len(sides)
    shape = [tuple((n + 2 * p - k) // s + 1 for n in size) for size, p, k, s in zip(sides, pads, kernel, stride)]
    if min(min(size) for size in shape) < 1:
        return
    op = graph.random.choice(["MaxPool", "AveragePool"])
    attributes = {"count_include_pad": 1} if op == "AveragePool" and graph.random.random() < 0.3 else {}
    graph.add(op, [value.name], value, [*value.shape[:2], *shape], exact=op == "MaxPool",
              kernel_shape=kernel, strides=stride, pads=pads * 2, **attributes)  # fmt: skip


def resize(graph, value):
    if not is_image(value) or value.rank != 4 or value.count > 1000:
        return
    mode = graph.random.choice(["nearest", "linear"])
    attributes = {"mode": mode, "coordinate_transformation_mode": graph.random.choice(["asymmetric", "half_pixel"])}
    if mode == "nearest":
        attributes |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    shape = [tuple(2 * n for n in size) for size in value.shape[2:]]
    scales = graph.constant(numpy.array([1, 1, 2, 2], "float32"))
    graph.add(
        "Resize", [value.name, "", scales], value, [*value.shape[:2], *shape], exact=mode == "nearest", **attributes
    )


# ---- sizes and counts
def by_size(graph, value):
    """Values computed from the sizes of `value`."""
    if not value.rank:
        return
    shape = graph.node("Shape", [value.name])
    axis = graph.random.randrange(value.rank)
    kind = graph.random.randrange(4)
    if kind == 0:
        start = graph.constant(graph.draw(1, dtype=value.dtype)) if value.dtype in ("float32", "int64") else None
        if start is not None:
            name = graph.node("Expand", [start, shape])
            graph.add("Add", [value.name, name], value, exact=value.dtype == "int64")
    elif kind == 1:
        size = graph.node("Gather", [shape, graph.constant(numpy.int64(axis))])
        zero, one = graph.constant(numpy.int64(0)), graph.constant(numpy.int64(1))
        graph.keep(graph.node("Range", [zero, size, one]), Value("", "int64", ()), [value.shape[axis]])
    elif kind == 2:
        size = graph.node("Slice", [shape, *(graph.constant(numpy.array([n])) for n in (0, 1))])
        target = graph.node("Concat", [size, graph.constant(numpy.array([-1]))], axis=0)
        graph.add("Reshape", [value.name, target], value, [value.shape[0], flat(value, 1)[1]])
    else:
        filled = graph.node("ConstantOfShape", [shape], value=numpy_helper.from_array(numpy.array([3], "int64")))
        graph.keep(filled, Value("", "int64", value.shape))


def count(graph, value):
    """Results whose size depends on values."""
    if not value.rank or not value.exact:
        return
    kind = graph.random.randrange(3)
    unknown = (0, 0)
    if kind == 0 and value.dtype in ("bool", "float32", "int64", "int32", "uint8"):
        graph.add("NonZero", [value.name], value, [fixed(value.rank), unknown], "int64", counted=True)
    elif kind == 1 and value.dtype in ("float32", "int64"):
        name = graph.node("Unique", [value.name], sorted=1)
        graph.keep(name, value, [unknown], counted=True)
    elif value.dtype in ("float32", "int64") and is_fixed(value.shape[0]):
        some = [graph.random.random() < 0.6 for _ in range(value.shape[0][0])]
        shape = [fixed(sum(some)), *value.shape[1:]]
        if sum(some):
            graph.add("Compress", [value.name, graph.constant(numpy.array(some))], value, shape, axis=0)


# ---- graphs within
def body(graph, prefix, name, ops, constants):
    """Nodes that take `name` on, each by one of `ops`, and the last one's name."""
    nodes = []
    for place in range(graph.random.choice([1, 2, 3])):
        op = graph.random.choice(ops)
        inputs, name = [name], f"{prefix}{place}"
        if op in ("Add", "Mul", "Sub"):
            inputs.append(graph.constant(graph.draw() * numpy.float32(0.5)))
        nodes.append(helper.make_node(op, inputs, [name], name=f"{prefix}n{place}"))
        inputs[0] = name
    return nodes, name


_STEADY = ["Tanh", "Sigmoid", "Neg", "Abs", "Add", "Mul", "Sub"]


def branch(graph, value):
    if value.dtype != "float32":
        return
    branches = {}
    for side in ("then_branch", "else_branch"):
        nodes, name = body(graph, f"{graph.fresh()}_", value.name, _STEADY, graph)
        port = helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * value.rank)
        branches[side] = helper.make_graph(nodes, graph.fresh(), [], [port])
    if value.exact and graph.random.random() < 0.3 and value.count:
        inputs = [value.name, graph.constant(numpy.arange(value.rank))]
        largest = graph.node("ReduceMax", inputs, keepdims=0) if value.rank else value.name
        condition = graph.node("Greater", [largest, graph.constant(numpy.float32(1.5))])
    else:
        condition = graph.flag()
    graph.add("If", [condition], value, exact=False, **branches)


def loop(graph, value):
    if value.dtype != "float32":
        return
    times, prefix = graph.random.choice([1, 2, 3, 5]), graph.fresh()
    nodes, name = body(graph, f"{prefix}_", f"{prefix}h", _STEADY, graph)
    scans = graph.random.random() < 0.5
    on, shape = f"{prefix}on", [None] * value.rank
    out = f"{prefix}goes"
    if graph.random.random() < 0.3:  # ends before
        last = graph.constant(numpy.int64(graph.random.randrange(times)))
        nodes.append(helper.make_node("Less", [f"{prefix}i", last], [out]))
    else:
        nodes.append(helper.make_node("Identity", [on], [out]))
    if scans:
        nodes.append(helper.make_node("Identity", [name], [f"{prefix}kept"]))
    info = helper.make_tensor_value_info
    inputs = [info(f"{prefix}i", TensorProto.INT64, []), info(on, TensorProto.BOOL, []),
              info(f"{prefix}h", TensorProto.FLOAT, shape)]  # fmt: skip
    outputs = [info(out, TensorProto.BOOL, []), info(name, TensorProto.FLOAT, shape)]
    outputs += [info(f"{prefix}kept", TensorProto.FLOAT, shape)] if scans else []
    graph_within = helper.make_graph(nodes, f"{prefix}body", inputs, outputs)
    inputs = [graph.constant(numpy.int64(times)), graph.constant(numpy.array(True)), value.name]
    made = graph.node("Loop", inputs, 2 if scans else 1, body=graph_within)
    names = made if scans else [made]
    graph.keep(names[0], value, exact=False)
    if scans:
        graph.keep(names[1], value, [(0, 0), *value.shape], exact=False, counted=True)


def scan(graph, value):
    if value.dtype != "float32" or value.rank < 2 or not all(is_fixed(size) for size in value.shape):
        return
    prefix = graph.fresh()
    row = [size for size, _ in value.shape[1:]]
    nodes, name = body(graph, f"{prefix}_", f"{prefix}sum", _STEADY, graph)
    first = helper.make_node("Add", [f"{prefix}state", f"{prefix}x"], [f"{prefix}sum"])
    last = helper.make_node("Identity", [name], [f"{prefix}kept"])
    info = helper.make_tensor_value_info
    within = helper.make_graph(
        [first, *nodes, last], f"{prefix}body",
        [info(f"{prefix}state", TensorProto.FLOAT, row), info(f"{prefix}x", TensorProto.FLOAT, row)],
        [info(name, TensorProto.FLOAT, row), info(f"{prefix}kept", TensorProto.FLOAT, row)],
    )  # fmt: skip
    start = graph.constant(graph.draw(*row))
    direction = graph.random.randrange(2)
    names = graph.node(
        "Scan", [start, value.name], 2, body=within, num_scan_inputs=1, scan_input_directions=[direction]
    )
    graph.keep(names[0], value, value.shape[1:], exact=False)
    graph.keep(names[1], value, exact=False)


def recur(graph, value):
    if value.dtype != "float32" or value.rank != 3 or not is_fixed(value.shape[2]) or value.count > 1000:
        return
    op, gates = graph.random.choice([("LSTM", 4), ("GRU", 3), ("RNN", 1)])
    direction = graph.random.choice(["forward", "reverse", "bidirectional"])
    ways, hidden, width = 2 if direction == "bidirectional" else 1, graph.random.choice([1, 3, 8]), value.shape[2][0]
    weights = [graph.draw(ways, gates * hidden, n) * numpy.float32(0.5) for n in (width, hidden)]
    inputs = [value.name, *map(graph.constant, weights)]
    if graph.random.random() < 0.5:
        inputs.append(graph.constant(graph.draw(ways, 2 * gates * hidden)))
    attributes = {"hidden_size": hidden, "direction": direction}
    if op == "GRU":
        attributes["linear_before_reset"] = graph.random.randrange(2)
    time, batch, _ = value.shape
    names = graph.node(op, inputs, 2, **attributes)
    graph.keep(names[0], value, [time, fixed(ways), batch, fixed(hidden)], exact=False)
    graph.keep(names[1], value, [fixed(ways), batch, fixed(hidden)], exact=False)


# ---- bytes
def to_bytes(graph, value):
    if value.dtype == "float32" and value.exact:
        scale = graph.constant(numpy.float32(graph.random.choice([0.03125, 0.0625])))
        kind = graph.random.choice(["uint8", "int8"])
        zero = graph.constant(numpy.array(graph.random.choice([0, 3] if kind == "int8" else [128, 100]), kind))
        made = graph.node("QuantizeLinear", [value.name, scale, zero])
        if graph.random.random() < 0.5:
            graph.keep(made, value, dtype=kind)
        else:
            graph.add("DequantizeLinear", [made, scale, zero], value, exact=False)


def whole_product(graph, value):
    if value.dtype in ("uint8", "int8") and value.rank >= 2 and is_fixed(value.shape[-1]):
        columns, kind = graph.random.choice([1, 4, 17]), graph.random.choice(["int8", "uint8"])
        # larger ones saturate in ONNX Runtime's kernels for processors without VNNI
        weights = graph.draw(value.shape[-1][0], columns, dtype=kind, low=-64, high=64)
        shape = [*value.shape[:-1], fixed(columns)]
        zeros = [graph.constant(numpy.array(2, value.dtype)), graph.constant(numpy.array(1, kind))]
        inputs = [value.name, graph.constant(weights), *(zeros if graph.random.random() < 0.5 else [])]
        graph.add("MatMulInteger", inputs, value, shape, "int32")


def few_bits(graph, value):
    if value.dtype != "float32" or value.rank < 2 or value.shape[-1] not in ((8, 8),):
        return
    value = graph.add("Tile", [value.name, graph.constant(numpy.array([1] * (value.rank - 1) + [4]))], value,
                      [*value.shape[:-1], fixed(32)])  # fmt: skip
    bits, columns = graph.random.choice([4, 8]), graph.random.choice([1, 5, 40])
    packed = graph.draw(columns, 1, 16 * bits // 4, dtype="uint8", low=0, high=256)
    scales = graph.draw(columns, 1) / numpy.float32(1 << bits)
    inputs = [value.name, graph.constant(packed), graph.constant(scales.reshape(-1))]
    graph.add("MatMulNBits", inputs, value, [*value.shape[:-1], fixed(columns)], exact=False, domain="com.microsoft",
              K=32, N=columns, bits=bits, block_size=32)  # fmt: skip


ELEMENTWISE = (unary, unary, root, bounded, binary, binary, binary, divide, power, compare, choose, cast)
REARRANGEMENTS = (transpose, transpose, cut, cut, reshape, reshape, unsqueeze, squeeze, join, split, expand, tile, pad,
                  gather, gather_elements, scatter, triangle, blocks)  # fmt: skip
SUMS = (reduce, reduce, accumulate, extreme, largest, product, product, square, einsum, softmax, normalize, normalize)
IMAGES = (convolve, convolve, transposed, pool, resize)
SIZES = (by_size, by_size, count)
WITHIN = (branch, loop, scan, recur)
BYTES = (to_bytes, to_bytes, whole_product, few_bits)
KINDS = (ELEMENTWISE, ELEMENTWISE, REARRANGEMENTS, REARRANGEMENTS, SUMS, SUMS, IMAGES, SIZES, WITHIN, BYTES)
