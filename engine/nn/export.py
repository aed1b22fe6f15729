"""`export`: a network as an ONNX model, from one run of it on an example."""

import struct
from typing import NamedTuple

from vmhost.engine import _array as _a
from vmhost.engine.embedding.lookups import COMBINERS, PlainTable, Ragged, read_bags
from vmhost.engine.grad.traced import Traced, function, levels
from vmhost.engine.grad.trees import is_array, leaves

OPSET = 17
_TYPES = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
}
_ONE_TO_ONE = {
    "add": "Add",
    "subtract": "Sub",
    "multiply": "Mul",
    "divide": "Div",
    "power": "Pow",
    "maximum": "Max",
    "minimum": "Min",
    "matmul": "MatMul",
    "negative": "Neg",
    "absolute": "Abs",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "reciprocal": "Reciprocal",
    "tanh": "Tanh",
    "erf": "Erf",
    "sigmoid": "Sigmoid",
    "relu": "Relu",
    "sin": "Sin",
    "cos": "Cos",
    "floor": "Floor",
    "ceil": "Ceil",
    "where": "Where",
    "equal": "Equal",
    "less": "Less",
    "greater": "Greater",
}
_REDUCTIONS = {"sum": "ReduceSum", "mean": "ReduceMean", "max": "ReduceMax", "min": "ReduceMin", "prod": "ReduceProd"}


class ExportError(ValueError):
    """The network uses an operator that cannot be written as ONNX here."""


class Lookup(NamedTuple):
    """An input of an exported network that replaces a lookup in a table: the input's name, the table's name, the dim of
    its rows, the names of the example's ids and weights (None: no weights), the combiner, and the default id of empty
    bags (None: zeros)."""

    input: str
    table: str
    dim: int
    ids: str
    weights: str | None
    combiner: str
    default_id: int | None


def export(model, example, outputs=("output",), *, with_lookups=False):
    """ONNX (opset 17) of `model(**example)`, as bytes. `example` maps names of inputs to arrays of at least two
    examples in the first dimension, whose size stays open, as "batch". Ids of tables may be Ragged; dicts of arrays and
    Ragged are passed as dicts, with inputs "NAME.KEY". `outputs`: names of the model's outputs.

    Embedding tables (nn.SparseEmbedding) are not exported: each lookup result is an input "IDS@TABLE" of the network,
    in place of the ids. `with_lookups`: returns a pair of the bytes and a tuple of Lookups, which describe these
    inputs.
    """
    batch = {_examples(one) for _, one in _named(example)}
    if len(batch) != 1 or min(one or 0 for one in batch) < 2:
        raise ExportError("example: arrays of the same number of examples, at least two, in the first dimension")
    graph = _Graph(batch.pop())
    was_training = model.training
    model.eval()
    try:
        for path, array in leaves(model.parameters()):
            graph.names[id(array)] = (".".join(map(str, path)), array)
        traced = {
            name: {key: graph.input(f"{name}.{key}", part) for key, part in one.items()}
            if isinstance(one, dict)
            else graph.input(name, one)
            for name, one in example.items()
        }
        result = model(**traced)
    finally:
        model.train(was_training)
    results = result if isinstance(result, tuple) else (result,)
    if len(results) != len(outputs):
        raise ExportError(f"outputs: {len(outputs)} names for {len(results)} results")
    for name, one in zip(outputs, results):
        if type(one) is not Traced:
            raise ExportError(f"{name} does not depend on the inputs")
        graph.node("Identity", [graph.name_of(one)], one.value, output=name)
        graph.outputs.append(graph.port(name, one.value))
    written = graph.model()
    return (written, tuple(graph.lookups)) if with_lookups else written


def _named(example):
    """(name, array or Ragged) of the inputs."""
    for name, one in example.items():
        if isinstance(one, dict):
            yield from ((f"{name}.{key}", part) for key, part in one.items())
        else:
            yield name, one


def _examples(one):
    if isinstance(one, Ragged):
        return len(one.offsets) - 1
    return one.shape[0] if one.ndim else None


def graph_of(x):
    """The graph that an export of `x` writes; None if `x` is not exported. A layer that corresponds to one ONNX
    operator adds it by `node`, with names of its inputs from `name_of`."""
    return x.tape if type(x) is Traced and type(x.tape) is _Graph else None


class _Graph:
    """The tape of an export: each operator on a traced array becomes nodes."""

    def __init__(self, batch):
        self.level, self.batch = next(levels), batch
        self.nodes, self.initializers, self.outputs = [], [], []
        self.ports, self.used = {}, set()  # ports: inputs by name; used: names of inputs that operators read
        self.empty = set()  # inputs without elements, which are omitted unless they are read
        self.lookups, self.tables = [], {}
        self.names = {}  # id of a constant array to its name and the array, which keeps the id valid
        self.written = set()
        self.count = 0

    def input(self, name, array):
        if name in self.ports:
            raise ExportError(f"example: there are two inputs {name!r}")
        if isinstance(array, Ragged):
            self.ports[name] = None  # read by a table only
            return Ragged(self.named(name, array.values), array.offsets)
        self.ports[name] = self.port(name, array)
        if not array.size:
            self.empty.add(name)
        return self.named(name, array)

    def named(self, name, array):
        traced = Traced(array, self)
        traced.gradient = name  # reuses the slot of a gradient tape for the name
        return traced

    def lookup(self, bags):
        """A table's result for bags whose ids are an input: an input of its own."""
        ids, weights = (None if one is None else one.gradient for one in (bags.ids, bags.weights))
        table = bags.table
        if type(table) is PlainTable:
            raise ExportError("a lookup of bags of a plain table cannot be written; nn.Embedding, called, can")
        default_id = None if bags.default_id < 0 else bags.default_id
        if self.tables.setdefault(table.name, table) is not table:
            raise ExportError(f"{table.name}: there are two tables of this name")
        name = f"{ids}@{table.name}"
        found = Lookup(name, table.name, table.dim, ids, weights, COMBINERS[bags.combiner], default_id)
        plain = bags._replace(ids=bags.ids.value, weights=None if weights is None else bags.weights.value)
        value = read_bags([table.anchor], [plain])
        if found not in self.lookups:
            if name in self.ports:
                raise ExportError(f"{name}: the same ids are looked up there in two ways")
            self.lookups.append(found)
            self.ports[name] = self.port(name, value)
        self.used.add(name)
        return self.named(name, value)

    def port(self, name, array):
        dims = b""
        for i, size in enumerate(array.shape):
            open_size = i == 0 and size == self.batch
            dims += _field(1, _field(2, b"batch") if open_size else _field(1, size))
        tensor = _field(1, _type(array)) + _field(2, dims)
        return _field(1, name.encode()) + _field(2, _field(1, tensor))

    def name_of(self, one, like=None):
        """The name of a value; plain arrays and numbers become initializers."""
        if type(one) is Traced:
            name = one.gradient
            if name in self.ports:
                if self.ports[name] is None:
                    raise ExportError(f"{name}: Ragged ids are for embedding tables only")
                self.used.add(name)
            return name
        if not is_array(one):
            one = _a.asarray(one, None if like is None else like.dtype)
        name, kept = self.names.setdefault(id(one), (f"constant_{len(self.names)}", one))
        if name not in self.written:
            self.written.add(name)
            self.initializers.append(_tensor(name, kept))
        return name

    def node(self, kind, inputs, value, output=None, **attributes):
        self.count += 1
        output = output or f"value_{self.count}"
        body = b"".join(_field(1, one.encode()) for one in inputs) + _field(2, output.encode())
        body += _field(3, f"{kind}_{self.count}".encode()) + _field(4, kind.encode())
        body += b"".join(_field(5, _attribute(name, given)) for name, given in attributes.items())
        self.nodes.append(body)
        traced = Traced(value, self)
        traced.gradient = output
        return traced

    def sizes(self, numbers):
        return self.name_of(_a.asarray([int(one) for one in numbers], "int64"))

    def apply_binary(self, name, x, y):
        return self.apply(name, (x, y), {})

    def apply(self, name, args, kwargs):
        if name == "embedding_bags":
            parts = [self.lookup(bags) for bags in args[1]]
            return parts[0] if len(parts) == 1 else self.apply("concatenate", (parts, 1), {})
        plain = [_plain(one) for one in args]
        value = function(name)(*plain, **{key: _plain(one) for key, one in kwargs.items()})
        x = args[0]
        if name in _ONE_TO_ONE and not kwargs:
            arrays = [one.value if type(one) is Traced else one for one in args if hasattr(one, "dtype")]
            like = next((one for one in arrays if one.dtype.kind == "f"), arrays[0])
            return self.node(_ONE_TO_ONE[name], [self.name_of(one, like) for one in args], value)
        if name == "square":
            return self.node("Mul", [self.name_of(x)] * 2, value)
        if name == "log1p":
            return self.node("Log", [self.apply("add", (x, 1), {}).gradient], value)
        if name == "logaddexp" and type(args[1]) is int and args[1] == 0:
            return self.node("Softplus", [self.name_of(x)], value)
        if name in _REDUCTIONS and type(x) is Traced:
            return self.reduction(name, x, value, *args[1:], **kwargs)
        if name in ("reshape", "ravel") and type(x) is Traced:
            return self.reshaped(x, value)
        if name == "squeeze":
            return self.reshaped(x, value)
        if name == "transpose":
            axes = args[1] if len(args) > 1 and args[1] is not None else tuple(reversed(range(x.ndim)))
            return self.node("Transpose", [self.name_of(x)], value, perm=[one % x.ndim for one in axes])
        if name == "swapaxes":
            axes = list(range(x.ndim))
            one, other = args[1] % x.ndim, args[2] % x.ndim
            axes[one], axes[other] = axes[other], axes[one]
            return self.node("Transpose", [self.name_of(x)], value, perm=axes)
        if name == "concatenate":
            axis = args[1] if len(args) > 1 else kwargs.get("axis", 0)
            parts = [one for one in x if 0 not in one.shape] or x
            return self.node("Concat", [self.name_of(one) for one in parts], value, axis=axis % value.ndim)
        if name == "take":
            axis = args[2] if len(args) > 2 else kwargs.get("axis")
            if axis is not None:
                return self.node("Gather", [self.name_of(x), self.name_of(args[1])], value, axis=axis)
        if name == "_pad" and type(x) is Traced and len(args) == 5 and value.shape[0] == x.shape[0]:  # constant padding
            after = [size - front - own for size, front, own in zip(value.shape, args[1], x.shape)]
            pads = self.sizes([*args[1], *after])
            return self.node("Pad", [self.name_of(x), pads, self.name_of(args[4], value)], value)
        if name == "astype":
            return self.node("Cast", [self.name_of(x)], value, to=_type(value))
        if name in ("asarray", "array", "copy", "ascontiguousarray") and type(x) is Traced and value.dtype is x.dtype:
            return x
        if name == "getitem":
            return self.part(x, args[1], value)
        raise ExportError(f"{name}: cannot be written as ONNX here")

    def reduction(self, name, x, value, axis=None, dtype=None, out=None, keepdims=False):
        axes = range(x.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        axes = [one % x.ndim for one in axes]
        if name == "sum":
            return self.node("ReduceSum", [self.name_of(x), self.sizes(axes)], value, keepdims=int(bool(keepdims)))
        return self.node(_REDUCTIONS[name], [self.name_of(x)], value, axes=axes, keepdims=int(bool(keepdims)))

    def reshaped(self, x, value):
        sizes = list(value.shape)
        if sizes and sizes[0] == self.batch and x.ndim and x.shape[0] == self.batch:
            sizes[0] = 0  # as in the input
        elif x.ndim and x.shape[0] == self.batch:
            raise ExportError(f"reshape of {x.shape} to {value.shape} does not leave the first dimension as it is")
        return self.node("Reshape", [self.name_of(x), self.sizes(sizes)], value)

    def part(self, x, key, value):
        keys = key if isinstance(key, tuple) else (key,)
        if type(x) is not Traced or any(not isinstance(one, (slice, int)) and one is not Ellipsis for one in keys):
            raise ExportError("x[...]: slices and whole numbers only; take(x, ids, axis) for rows")
        if Ellipsis in keys:
            at = keys.index(Ellipsis)
            keys = (*keys[:at], *[slice(None)] * (x.ndim - len(keys) + 1), *keys[at + 1 :])
        starts, stops, axes, steps, squeezed, unbounded = [], [], [], [], [], 2**62
        for axis, one in enumerate(keys):
            if isinstance(one, int):
                (
                    starts.append(one),
                    stops.append(one + 1 if one != -1 else unbounded),
                    axes.append(axis),
                    steps.append(1),
                )
                squeezed.append(axis)
            elif one != slice(None):
                step = one.step or 1
                if step < 0:
                    raise ExportError("x[...]: steps below 0")
                starts.append(one.start or 0), stops.append(unbounded if one.stop is None else one.stop)
                axes.append(axis), steps.append(step)
        name = self.name_of(x)
        if axes:
            sizes = [self.sizes(numbers) for numbers in (starts, stops, axes, steps)]
            name = self.node("Slice", [name, *sizes], value).gradient
        return (
            self.node("Squeeze", [name, self.sizes(squeezed)], value)
            if squeezed
            else self.node("Identity", [name], value)
        )

    def model(self):
        looked_up = {name for one in self.lookups for name in (one.ids, one.weights)}
        unread = (looked_up | self.empty) - self.used
        inputs = [port for name, port in self.ports.items() if port is not None and name not in unread]
        graph = b"".join(_field(1, one) for one in self.nodes) + _field(2, b"network")
        graph += b"".join(_field(5, one) for one in self.initializers)
        graph += b"".join(_field(11, one) for one in inputs) + b"".join(_field(12, one) for one in self.outputs)
        opset = _field(1, b"") + _field(2, OPSET)
        return _field(1, 8) + _field(2, b"vmhost") + _field(7, graph) + _field(8, opset)


def _plain(one):
    if type(one) is Traced:
        return one.value
    return type(one)([_plain(item) for item in one]) if type(one) in (list, tuple) else one


# ---- protocol buffers, with the field numbers of onnx.proto3
def _varint(number):
    number &= 2**64 - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number, value):
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _type(array):
    if array.dtype.name not in _TYPES:
        raise ExportError(f"arrays of {array.dtype} cannot be written as ONNX")
    return _TYPES[array.dtype.name]


def _tensor(name, array):
    dims = b"".join(_field(1, size) for size in array.shape)
    return dims + _field(2, _type(array)) + _field(8, name.encode()) + _field(9, array.tobytes())


def _attribute(name, value):
    head = _field(1, name.encode())
    if isinstance(value, float):
        return head + _varint(2 << 3 | 5) + struct.pack("<f", value) + _field(20, 1)
    if isinstance(value, int):
        return head + _field(3, value) + _field(20, 2)
    return head + b"".join(_field(8, one) for one in value) + _field(20, 7)
