"""`export`: a network as an ONNX model, from two runs of it.

The first run is on the example, the second on the same with one example more. What differs between the two depends on
the number of examples, which stays open in the file: sizes of outputs and of reshaped arrays may, constants may not.

ONNX does not promote types, and its operators are defined for a few types each. So the operands are converted in the
graph to the type in which NumPy computes, and small integers are computed as int32 and converted back."""

import operator
import os
import sys
from typing import NamedTuple

import vmhost.engine.numpy as np
from vmhost.engine import _array as _a
from vmhost.engine.embedding.lookups import COMBINERS, PlainTable, Ragged, read_bags
from vmhost.engine.grad.traced import Traced, function, levels
from vmhost.engine.grad.trees import is_array, mapped, named
from vmhost.engine.nn import onnx_file
from vmhost.engine.nn.onnx_file import ExportError

_ARITHMETIC = {
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
}
_OF_BOOLEANS = {"add": "Or", "maximum": "Or", "multiply": "And", "minimum": "And"}
_COMPARISONS = {"equal": "Equal", "less": "Less", "greater": "Greater"}
_REDUCTIONS = {"sum": "ReduceSum", "mean": "ReduceMean", "max": "ReduceMax", "min": "ReduceMin", "prod": "ReduceProd"}
_MODULAR = ("add", "subtract", "multiply", "square", "negative", "matmul", "sum", "prod")  # exact modulo 2**64
_IGNORED = ("casting", "order", "subok")  # keywords of ufuncs that do not change a result


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

    The model is called twice. Its parameters keep their names, which are those of `save_weights`. ExportError says what
    cannot be written and where it was called: an operator without a counterpart in ONNX, a value of an input that
    Python reads (`if`, `float()`, `.tolist()`), or a constant that depends on the number of examples.

    Embedding tables (nn.SparseEmbedding) are not exported: each lookup result is an input "IDS@TABLE" of the network,
    in place of the ids. `with_lookups`: returns a pair of the bytes and a tuple of Lookups, which describe these
    inputs.
    """
    batch = {_examples(one) for _, one in _named(example)}
    if len(batch) != 1 or min(one or 0 for one in batch) < 2:
        raise ExportError("example: arrays of the same number of examples, at least two, in the first dimension")
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        graph, other = (_run(model, one, outputs) for one in (example, _mapped_inputs(_one_more, example)))
    finally:
        for module, mode in modes:
            module._training = mode
    written = graph.written(other)
    return (written, tuple(graph.lookups)) if with_lookups else written


def _named(example):
    """(name, array or Ragged) of the inputs."""
    for name, one in example.items():
        if isinstance(one, dict):
            yield from ((f"{name}.{key}", part) for key, part in one.items())
        else:
            yield name, one


def _mapped_inputs(function, example):
    return {
        name: {key: function(part) for key, part in one.items()} if isinstance(one, dict) else function(one)
        for name, one in example.items()
    }


def _examples(one):
    if isinstance(one, Ragged):
        return len(one.offsets) - 1
    return one.shape[0] if one.ndim else None


def _one_more(one):
    """The input with its first example once more at its end."""
    if isinstance(one, Ragged):
        offsets = _a.asarray(one.offsets)
        first, last = int(offsets[1]) - int(offsets[0]), int(offsets[-1])
        values = _a.asarray(one.values)
        more = _a.concatenate([values[:last], values[int(offsets[0]) : int(offsets[1])]])
        return Ragged(more, _a.concatenate([offsets, _a.asarray([last + first], offsets.dtype)]))
    one = _a.asarray(one)
    return _a.concatenate([one, one[:1]])


def _run(model, example, outputs):
    """The graph of one run. The model's parameters are traced arrays meanwhile."""
    graph, parameters = _Graph(), model.parameters()
    names = iter(named(parameters))
    inputs = {
        name: {key: graph.input(f"{name}.{key}", part) for key, part in one.items()}
        if isinstance(one, dict)
        else graph.input(name, one)
        for name, one in example.items()
    }
    model.update(mapped(lambda array: graph.weight(next(names), array), parameters))
    try:
        result = model(**inputs)
    finally:
        model.update(parameters)
    results = result if isinstance(result, tuple) else (result,)
    if len(results) != len(outputs):
        raise ExportError(f"outputs: {len(outputs)} names for {len(results)} results")
    for name, one in zip(outputs, results):
        if type(one) is not Traced or one.gradient in graph.constants:
            raise ExportError(f"{name} does not depend on the inputs")
        graph.emit("Identity", [graph.name_of(one)], output=name)
        graph.outputs[name] = one.value
    return graph


def graph_of(x):
    """The graph that an export of `x` writes; None if `x` is not exported. A layer that corresponds to one ONNX
    operator adds it by `node`, with names of its inputs from `name_of`, and computes its value by `plain`."""
    return x.tape if type(x) is Traced and type(x.tape) is _Graph else None


class _Node(NamedTuple):
    kind: str
    inputs: tuple
    output: str
    attributes: dict
    shapes: tuple | None  # of a Reshape: those of its input and result, of which `written` makes the sizes
    place: str  # where the network calls it


class _Graph:
    """The tape of an export: each operator on a traced array becomes nodes. A traced array's slot for a gradient has
    its name in the file."""

    differentiates = False

    def __init__(self):
        self.level, self.paused = next(levels), False
        self.nodes, self.outputs = [], {}
        self.ports, self.used = {}, set()  # ports: inputs by name (None: Ragged ids); used: inputs that operators read
        self.empty = set()  # inputs without elements, which are omitted unless they are read
        self.lookups, self.tables = [], {}
        self.weights = {}  # id of a parameter to the array that stands for it
        self.initializers, self.places = {}, {}  # by name, those that are read; where each is first
        self.constants = set()  # names of values that do not depend on an input
        self.numbers = {}  # id of a plain array to its name and the array, which keeps the id valid

    # ---- values
    def named(self, name, array):
        traced = Traced(array, self)
        traced.gradient = name
        return traced

    def input(self, name, array):
        if name in self.ports:
            raise ExportError(f"example: there are two inputs {name!r}")
        if isinstance(array, Ragged):
            self.ports[name] = None  # read by a table only
            return Ragged(self.named(name, _a.asarray(array.values)), array.offsets)
        self.ports[name] = array = _a.asarray(array)
        if not array.size:
            self.empty.add(name)
        return self.named(name, array)

    def weight(self, name, array):
        """A parameter. One without elements is the anchor of a table, and stays as it is; one with two names has the
        first."""
        if not array.size:
            return array
        if name in self.ports:
            raise ExportError(f"{name}: an input and a parameter have this name; rename one of them")
        if id(array) not in self.weights:
            self.weights[id(array)] = self.named(name, array)
            self.constants.add(name)
        return self.weights[id(array)]

    def name_of(self, one):
        """The name of a value; plain arrays and numbers become initializers."""
        if type(one) is Traced:
            name = one.gradient
            if name in self.ports:
                if self.ports[name] is None:
                    raise _refusal(f"{name}: Ragged ids are for embedding tables only")
                self.used.add(name)
            elif id(one.value) in self.weights:
                self.initializers[name] = one.value
            return name
        one = one if is_array(one) else _a.asarray(one)
        if id(one) not in self.numbers:
            name = self.free_name("constant")
            self.numbers[id(one)] = name, one
            self.initializers[name], self.places[name] = one, _place()
            self.constants.add(name)
        return self.numbers[id(one)][0]

    def free_name(self, kind):
        number = len(self.nodes) + len(self.numbers) + 1
        while (name := f"{kind}_{number}") in self.constants or name in self.ports:
            number += 1
        return name

    def read(self, one, dtype):
        """The name of a value, converted to that dtype."""
        if type(one) is Traced:
            name = self.name_of(one)
            return name if one.dtype == dtype else self.emit("Cast", [name], to=onnx_file.type_number(dtype))
        if is_array(one):
            return self.name_of(one if one.dtype == dtype else _a.astype(one, dtype))
        return self.name_of(_a.asarray(one, dtype))

    def sizes(self, numbers):
        return self.name_of(_a.asarray([int(one) for one in numbers], "int64"))

    def leave(self, traced):
        """The plain value of a traced array that Python reads."""
        if self.paused or traced.gradient in self.constants:
            return traced.value
        raise _refusal(
            "a value that depends on an input is read as a plain number here (if, float(), int(), item(), tolist()), "
            "which an exported network cannot do; use numpy.where for a choice"
        )

    def plain(self, call):
        """The result of `call()` on plain arrays, without adding nodes."""
        self.paused = True
        try:
            return call()
        finally:
            self.paused = False

    # ---- nodes
    def emit(self, kind, inputs, output=None, shapes=None, **attributes):
        """Adds a node; returns the name of its result."""
        output = output or self.free_name("value")
        self.nodes.append(_Node(kind, tuple(inputs), output, attributes, shapes, _place()))
        if self.constants.issuperset(inputs):
            self.constants.add(output)
        return output

    def node(self, kind, inputs, value, **attributes):
        return self.named(self.emit(kind, inputs, **attributes), value)

    def lookup(self, bags):
        """A table's result for bags whose ids are an input: an input of its own."""
        ids, weights = (None if one is None else one.gradient for one in (bags.ids, bags.weights))
        table = bags.table
        if type(table) is PlainTable:
            raise _refusal("a lookup of bags of a plain table cannot be written; nn.Embedding, called, can")
        default_id = None if bags.default_id < 0 else bags.default_id
        if self.tables.setdefault(table.name, table) is not table:
            raise _refusal(f"{table.name}: there are two tables of this name")
        name = f"{ids}@{table.name}"
        found = Lookup(name, table.name, table.dim, ids, weights, COMBINERS[bags.combiner], default_id)
        plain = bags._replace(ids=bags.ids.value, weights=None if weights is None else bags.weights.value)
        value = read_bags([table.anchor], [plain])
        if found not in self.lookups:
            if name in self.ports:
                raise _refusal(f"{name}: the same ids are looked up there in two ways")
            self.lookups.append(found)
            self.ports[name] = value
        self.used.add(name)
        return self.named(name, value)

    # ---- operators
    def apply_binary(self, name, x, y):
        return self.apply(name, (x, y), {})

    def apply(self, name, args, kwargs):
        if name == "embedding_bags" and not self.paused:
            parts = [self.lookup(bags) for bags in args[1]]
            return parts[0] if len(parts) == 1 else self.apply("concatenate", (parts, 1), {})
        value = function(name)(*_plain(args), **{key: _plain(one) for key, one in kwargs.items()})
        if self.paused:
            return value
        nodes = len(self.nodes)
        try:
            return self.translated(name, args, kwargs, value)
        except ExportError:
            if any(one.gradient not in self.constants for one in _traced((*args, *kwargs.values()))):
                raise
            del self.nodes[nodes:]  # of parameters alone: the value is a constant
            return value

    def translated(self, name, args, kwargs, value):
        """The traced result of an operator with this plain value."""
        x = args[0]
        if name in _ARITHMETIC or name in _COMPARISONS or name in ("square", "log1p", "logaddexp"):
            _refuse_keywords(name, {key: one for key, one in kwargs.items() if key not in ("dtype", *_IGNORED)})
            if name in _COMPARISONS:
                return self.comparison(name, args, value)
            return self.arithmetic(name, args, value)
        if name == "where" and len(args) == 3:
            work = self.computed_in(name, value.dtype)
            inputs = [self.read(x, _a.dtype("bool")), *[self.read(one, work) for one in args[1:]]]
            return self.converted(self.emit("Where", inputs), work, value)
        if name in _REDUCTIONS and type(x) is Traced:
            return self.reduction(name, x, value, args[1:], kwargs)
        if name in ("reshape", "ravel", "squeeze") and type(x) is Traced:
            order = kwargs.get("order", args[2] if name == "reshape" and len(args) > 2 else "C")
            if order not in ("C", None) or (name == "ravel" and args[1:] not in ((), ("C",))):
                raise _refusal(f"{name}: order 'C' only")
            return self.reshaped(x, value)
        if name == "transpose":
            axes = kwargs.get("axes", args[1] if len(args) > 1 else None)
            axes = tuple(reversed(range(x.ndim))) if axes is None else axes
            return self.node("Transpose", [self.name_of(x)], value, perm=[operator.index(one) % x.ndim for one in axes])
        if name == "swapaxes":
            axes = list(range(x.ndim))
            one, other = args[1] % x.ndim, args[2] % x.ndim
            axes[one], axes[other] = axes[other], axes[one]
            return self.node("Transpose", [self.name_of(x)], value, perm=axes)
        if name == "concatenate":
            axis = args[1] if len(args) > 1 else kwargs.get("axis", 0)
            parts = [one for one in x if 0 not in one.shape] or x
            if axis is None:
                parts = [self.reshaped(one, _plain(one).reshape(-1)) if one.ndim != 1 else one for one in parts]
            return self.node(
                "Concat", [self.read(one, value.dtype) for one in parts], value, axis=(axis or 0) % value.ndim
            )
        if name == "take":
            return self.taken(value, *args, **kwargs)
        if name == "_pad" and type(x) is Traced and len(args) == 5 and value.shape[0] == x.shape[0]:  # constant padding
            after = [size - front - own for size, front, own in zip(value.shape, args[1], x.shape)]
            pads = self.sizes([*args[1], *after])
            return self.node("Pad", [self.name_of(x), pads, self.read(args[4], value.dtype)], value)
        if name in ("astype", "asarray", "array", "copy", "ascontiguousarray") and type(x) is Traced:
            _refuse_keywords(
                name, {key: kwargs[key] for key in kwargs if key not in ("dtype", "copy", "device", *_IGNORED)}
            )
            return self.named(self.read(x, value.dtype), value)
        if name == "getitem":
            return self.part(x, args[1], value)
        raise _refusal(f"{name}: cannot be written as ONNX here")

    def computed_in(self, name, dtype):
        """The dtype in which an operator is computed whose result has this one."""
        if dtype.name in ("bool", "int8", "uint8", "int16", "uint16"):
            return _a.dtype("int32")
        if dtype.name == "uint64" and name not in _MODULAR:
            raise _refusal(f"{name}: of uint64 cannot be written as ONNX; convert to int64 first")
        return _a.dtype("int64") if dtype.name in ("uint32", "uint64") else dtype

    def converted(self, name, dtype, value):
        """The traced result of a node that gives `dtype`, as the dtype of `value`."""
        if dtype != value.dtype:
            name = self.emit("Cast", [name], to=onnx_file.type_number(value.dtype))
        return self.named(name, value)

    def arithmetic(self, name, args, value):
        kind = value.dtype
        if kind.kind in "iub":
            if name in ("floor", "ceil") or (kind == "bool" and name == "absolute"):
                return self.named(self.read(args[0], kind), value)
            if kind == "bool" and name in _OF_BOOLEANS:
                return self.node(_OF_BOOLEANS[name], [self.read(one, kind) for one in args], value)
            if name == "relu":
                name, args = "maximum", (args[0], 0)
            if name == "power":
                return self.integer_power(*args, value)
            if name == "reciprocal":
                raise _refusal("reciprocal: of integers cannot be written as ONNX; use 1 / x")
        if name == "logaddexp" and (type(args[1]) is not int or args[1] != 0):
            raise _refusal("logaddexp: cannot be written as ONNX here, but for a second argument of 0")
        work = self.computed_in(name, kind)
        inputs = [self.read(one, work) for one in (args[:1] if name == "logaddexp" else args)]
        if name == "square":
            found = self.emit("Mul", inputs * 2)
        elif name == "log1p":
            found = self.emit("Log", [self.emit("Add", [*inputs, self.read(1, work)])])
        elif name == "logaddexp":
            found = self.emit("Softplus", inputs)
        else:
            found = self.emit(_ARITHMETIC[name], inputs)
        return self.converted(found, work, value)

    def integer_power(self, x, exponent, value):
        """By products, which wrap as NumPy's do; ONNX's Pow computes in float64."""
        if type(exponent) is not int or not 0 <= exponent <= 64:
            raise _refusal("power: of integers takes an exponent from 0 to 64, as a number")
        work = self.computed_in("multiply", value.dtype)
        base = self.read(x, work)
        zeros = self.emit("Mul", [base, self.read(0, work)]) if exponent == 0 else None
        found = None if zeros is None else self.emit("Add", [zeros, self.read(1, work)])
        while exponent:
            if exponent & 1:
                found = base if found is None else self.emit("Mul", [found, base])
            exponent >>= 1
            if exponent:
                base = self.emit("Mul", [base, base])
        return self.converted(found, work, value)

    def comparison(self, name, args, value):
        plain = [_plain(one) for one in args]
        try:
            kind = _a.result_type(*plain)
        except OverflowError:
            kind = _a.dtype("int64")  # a number beyond the array's dtype
        if kind.kind == "f" and any(
            is_array(one) and one.dtype.kind in "iu" and one.dtype.itemsize == 8 for one in plain
        ):
            if all(one.dtype.kind in "iu" if is_array(one) else type(one) is int for one in plain):
                raise _refusal(f"{name}: of int64 and uint64 cannot be written as ONNX")
        if kind != "bool" or name != "equal":
            kind = self.computed_in(name, kind)
        return self.node(_COMPARISONS[name], [self.read(one, kind) for one in args], value)

    def reduction(self, name, x, value, args, kwargs):
        options = ("axis", "out", "keepdims") if name in ("max", "min") else ("axis", "dtype", "out", "keepdims")
        given = {**dict(zip((*options, "initial", "where"), args)), **kwargs}
        axis, keepdims = given.pop("axis", None), given.pop("keepdims", False)
        given.pop("dtype", None)  # that of `value`
        _refuse_keywords(name, given)
        axes = range(x.ndim) if axis is None else axis if isinstance(axis, (tuple, list)) else (axis,)
        axes = [operator.index(one) % x.ndim for one in axes]
        if not axes:  # ONNX would reduce all of them
            return self.named(self.read(x, value.dtype), value)
        work = self.computed_in(name, value.dtype)
        if name == "mean" and work == "float16":
            work = _a.dtype("float32")
        inputs, attributes = [self.read(x, work)], {"keepdims": int(bool(keepdims))}
        if name == "sum":
            inputs.append(self.sizes(axes))
        else:
            attributes["axes"] = axes
        return self.converted(self.emit(_REDUCTIONS[name], inputs, **attributes), work, value)

    def reshaped(self, x, value):
        if x.shape == value.shape:
            return x
        return self.node("Reshape", [self.name_of(x)], value, shapes=(x.shape, value.shape))

    def taken(self, value, x, indices, axis=None, out=None, mode="raise"):
        _refuse_keywords("take", {"out": out})
        if axis is None:
            if x.ndim != 1:
                raise _refusal("take: needs an axis to be written as ONNX")
            axis = 0
        if mode != "raise":
            if type(indices) is Traced:
                raise _refusal(f"take: mode={mode!r} cannot be written as ONNX")
            size, indices = x.shape[axis], _a.asarray(indices)
            indices = _a.remainder(indices, size) if mode == "wrap" else _a.clip(indices, 0, size - 1)
        kind = indices.dtype if hasattr(indices, "dtype") else None
        indices = self.name_of(indices) if kind in ("int32", "int64") else self.read(indices, _a.dtype("int64"))
        return self.node("Gather", [self.name_of(x), indices], value, axis=operator.index(axis) % x.ndim)

    def part(self, x, key, value):
        keys = key if isinstance(key, tuple) else (key,)
        if type(x) is not Traced or any(type(one) not in (slice, int) and one is not Ellipsis for one in keys):
            raise _refusal("x[...]: slices and whole numbers only; take(x, ids, axis) for rows")
        if Ellipsis in keys:
            at = keys.index(Ellipsis)
            keys = (*keys[:at], *[slice(None)] * (x.ndim - len(keys) + 1), *keys[at + 1 :])
        starts, stops, axes, steps, squeezed, unbounded = [], [], [], [], [], 2**62
        for axis, one in enumerate(keys):
            if type(one) is int:
                starts.append(one)
                stops.append(one + 1 if one != -1 else unbounded)
                axes.append(axis)
                steps.append(1)
                squeezed.append(axis)
            elif one != slice(None):
                step = 1 if one.step is None else one.step
                if step < 0:
                    raise _refusal("x[...]: steps below 0")
                starts.append(one.start or 0), stops.append(unbounded if one.stop is None else one.stop)
                axes.append(axis), steps.append(step)
        name = self.name_of(x)
        if axes:
            name = self.emit("Slice", [name, *[self.sizes(numbers) for numbers in (starts, stops, axes, steps)]])
        if squeezed:
            name = self.emit("Squeeze", [name, self.sizes(squeezed)])
        return self.named(name, value)

    # ---- the file
    def written(self, other):
        """The file, where `other` is the graph of the run with one example more."""
        self.compare(other)
        for one in self.weights.values():
            if one.gradient in self.initializers and one.dtype.kind == "f" and np.isnan(one.value).any():
                raise ExportError(f"{one.gradient}: has NaN, so all outputs would; train again with a lower rate")
        constants = dict(self.initializers)
        nodes = []
        for number, (node, twin) in enumerate(zip(self.nodes, other.nodes), 1):
            inputs = node.inputs
            if node.shapes is not None:
                name = f"{node.output}.shape"
                constants[name] = _a.asarray(_open_sizes(node, twin), "int64")
                inputs = (*inputs, name)
            nodes.append(onnx_file.node(f"{node.kind}_{number}", node.kind, inputs, node.output, node.attributes))
        looked_up = {name for one in self.lookups for name in (one.ids, one.weights)}
        unread = (looked_up | self.empty) - self.used
        inputs = [
            onnx_file.port(name, array.dtype, ("batch", *array.shape[1:]))
            for name, array in self.ports.items()
            if array is not None and name not in unread
        ]
        outputs = [
            onnx_file.port(name, array.dtype, self.output_sizes(array.shape, other.outputs[name].shape, other))
            for name, array in self.outputs.items()
        ]
        initializers = [onnx_file.constant(name, array) for name, array in constants.items()]
        return onnx_file.model(nodes, initializers, inputs, outputs)

    def output_sizes(self, shape, longer, other):
        batch, more = (_examples(next(iter(one.ports.values()))) for one in (self, other))
        for size, grown in zip(shape, longer):
            yield size if size == grown else "batch" if (size, grown) == (batch, more) else None

    def compare(self, other):
        """Refuses a network that does something else for another number of examples."""
        for node, twin in zip(self.nodes, other.nodes):
            if node._replace(shapes=None) != twin._replace(shapes=None):
                break
            for name in node.inputs:
                if name in self.places and not _same(self.initializers[name], other.initializers[name]):
                    raise ExportError(
                        f"{self.places[name]}: a constant of {node.kind} depends on the number of examples, which is "
                        "open in an exported network; compute it with the arrays, as by numpy.mean"
                    )
        else:
            if len(self.nodes) == len(other.nodes):
                return
            node = (self.nodes if len(self.nodes) > len(other.nodes) else other.nodes)[
                min(len(self.nodes), len(other.nodes))
            ]
        raise ExportError(
            f"{node.place}: the network does something else when it is called with one example more; an exported "
            "network does the same for any number"
        )


def _open_sizes(node, twin):
    """The sizes of a Reshape: -1 for the one that depends on the number of examples, 0 for one that is the input's."""
    (shape, result), (_, longer) = node.shapes, twin.shapes
    varying = [i for i, (size, grown) in enumerate(zip(result, longer)) if size != grown]
    sizes = list(result)
    for i in varying:
        kept = i < len(shape) and (shape[i], twin.shapes[0][i]) == (result[i], longer[i])
        sizes[i] = 0 if kept else -1
    if len(result) != len(longer) or sizes.count(-1) > 1:
        raise ExportError(
            f"{node.place}: reshape of {shape} to {result}: more than one size depends on the number of examples"
        )
    return sizes


def _same(one, other):
    return one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()


def _refuse_keywords(name, given):
    for key, one in given.items():
        if one is not None and not (key == "where" and one is True):
            raise _refusal(f"{name}: {key}= cannot be written as ONNX here")


def _refusal(text):
    return ExportError(f"{_place()}: {text}")


def _place():
    """The file and line of the network's code that runs."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("vmhost.engine."):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def _plain(one):
    if type(one) is Traced:
        return one.value
    return type(one)([_plain(item) for item in one]) if type(one) in (list, tuple) else one


def _traced(items):
    """The traced arrays among the items, also within lists and tuples."""
    for one in items:
        if type(one) is Traced:
            yield one
        elif type(one) in (list, tuple):
            yield from _traced(one)
