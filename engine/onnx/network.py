"""A model between ONNX and the engine: layers over named tensors, which are computed, constant, or views of others."""

import itertools
import math
import operator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy

from . import sizes
from .operations import BINARY, BOOLEAN_RESULTS, REDUCE, UNARY

# In the order of the engine's numbers (engine/include/vme.h), which the file stores.
DTYPES = (
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
)
# Activations of Activate, and of products besides the others.
CURVES = ("gelu", "gelu tanh", "sigmoid", "silu", "mish", "hard sigmoid", "hard swish")
_LARGE = 4096  # bytes from which a constant is not copied
MAX_ROW = 1 << 16  # elements of a row, for Softmax and Normalize


_NUMBERS = {numpy.dtype(name): number for number, name in enumerate(DTYPES)}


def dtype_number(dtype):
    dtype = numpy.dtype(dtype)
    number = _NUMBERS.get(dtype)
    return DTYPES.index(dtype.name) if number is None else number  # also for other byte orders


def has_dtype(dtype):
    """Whether the engine has this NumPy dtype."""
    return dtype in _NUMBERS or dtype.name in DTYPES


def is_binary(layer, op):
    return layer.op == "Binary" and layer.parameters[0] == BINARY.index(op)


def is_unary(layer, op):
    return layer.op == "Unary" and layer.parameters[0] == UNARY.index(op)


def float_bits(number):
    """A float parameter as the file stores it: the bits of a float32, as an integer."""
    return int(numpy.float32(number).view("int32"))


@dataclass
class Layer:
    """One node of the engine. `inputs` are names of tensors or None. Operators on images have the 11 parameters of a
    `window`, an activation (`relu`, `bounds`: lowest and highest value, or for products `curve`, one of CURVES) and
    `further` parameters; others have `parameters`. `guard` is an index into the network's guards (guards.py)."""

    op: str
    name: str
    inputs: list
    output: str
    window: tuple = ()
    relu: bool = False
    bounds: tuple | None = None
    curve: str | None = None
    further: tuple = ()
    parameters: tuple = ()
    guard: int | None = None

    @property
    def activated(self):
        return self.relu or self.bounds is not None or self.curve is not None

    def absorb(self, activation):
        """Absorbs the layer `activation`, which was applied to this layer's result."""
        self.relu, self.bounds = activation.op == "Relu", activation.bounds
        self.curve = CURVES[activation.parameters[0]] if activation.op == "Activate" else None


class View(NamedTuple):
    """Elements of the contiguous tensor `base`: `offset` and `strides` count elements."""

    base: str
    offset: int
    strides: tuple


_WHOLE_NUMBERS = (int, sizes.Size)


def _integers(numbers):
    return tuple([number if type(number) in _WHOLE_NUMBERS else int(number) for number in numbers])


def contiguous(shape):
    """The strides of a contiguous tensor, in elements."""
    strides = list(itertools.accumulate(shape[:0:-1], operator.mul, initial=1)) if shape else []
    return tuple(reversed(strides))


@dataclass
class Network:
    """A model's tensors and layers.

    `shapes` and `dtypes` (NumPy's) cover all tensors except constants, which are arrays. A view's base is never a view;
    `sources` maps a view to the tensor that it was made of. `values` has the constants that depend on open sizes, as
    arrays of Sizes; `constants` has their values at the sizes of the current reading. `texts` are tensors of indices
    into the `vocabulary` (texts.py); `labels` are the column labels of outputs that callers get as a dict for each row.
    `shown` maps outputs that have the name of an input to that name. `counted` maps each open size that depends on
    values to (the tensor that gives it, its ruler); `notes` are for the runner of several parts (parts.py)."""

    inputs: list
    outputs: list = field(default_factory=list)
    shapes: dict = field(default_factory=dict)
    dtypes: dict = field(default_factory=dict)
    constants: dict = field(default_factory=dict)
    views: dict = field(default_factory=dict)
    layers: list = field(default_factory=list)
    sources: dict = field(default_factory=dict)
    values: dict = field(default_factory=dict)
    savings: object = None
    texts: set = field(default_factory=set)
    labels: dict = field(default_factory=dict)
    shown: dict = field(default_factory=dict)
    sequences: dict = field(default_factory=dict)  # outputs that callers get as lists: names to those of their items
    vocabulary: list = field(default_factory=list)
    counted: dict = field(default_factory=dict)
    needs: dict = field(default_factory=dict)  # conditions on a call's sizes: keys to sizes.Need
    reads: object = None  # the node that is being read
    must_be_zero: set = field(default_factory=set)  # counted sizes that must be 0
    guards: list = field(default_factory=list)  # (tensor, side, parent or None), see guards.py
    notes: dict | None = None
    repeats: bool = False  # a loop's body is being read
    rounded: set = field(default_factory=set)  # what the model itself casts to float16, which stays so
    shared_constants: dict = field(default_factory=dict)  # parts of arrays to constants, shared by all readings
    _constant_names: dict = field(default_factory=dict)  # parts of arrays to names in this network
    _producers: dict = field(default_factory=dict)  # producers in the first `_indexed_layers` layers
    _indexed_layers: int = 0
    _identity_views: dict = field(default_factory=dict)  # tensors to their views of themselves

    def shape(self, name):
        values = self.constants.get(name)
        return self.shapes[name] if values is None else values.shape

    def dtype(self, name):
        values = self.constants.get(name)
        return self.dtypes[name] if values is None else values.dtype

    def declare(self, name, shape, dtype):
        self.shapes[name], self.dtypes[name] = _integers(shape), numpy.dtype(dtype)
        self._identity_views.pop(name, None)
        return name

    def move(self, shapes, views):
        """Replaces the tensors' shapes and views."""
        self.shapes, self.views, self._identity_views = shapes, views, {}

    def fresh(self, name):
        """`name`, with a number appended if it is taken."""
        number, candidate = 0, name
        while candidate in self.shapes or candidate in self.constants:
            number += 1
            candidate = f"{name}/{number}"
        return candidate

    def constant(self, name, values, dtype=None):
        """Adds a constant; in loop bodies, which are read repeatedly, reuses the one made of the same part of an array.
        Large arrays are not copied and must not be modified afterwards."""
        part = isinstance(values, numpy.ndarray) and values.base is not None
        if not part or not (self.repeats or values.nbytes >= _LARGE):
            name = self.fresh(name)
            self.constants[name] = numpy.array(values, dtype)
            return name
        address = values.__array_interface__["data"][0], values.strides, values.shape, values.dtype.str
        key = address, values.dtype if dtype is None else numpy.dtype(dtype)
        if self.repeats and key in self._constant_names:
            return self._constant_names[key]
        if key not in self.shared_constants:  # keeps `values` alive, so that its address is not reused
            copy = None if values.nbytes >= _LARGE else True
            self.shared_constants[key] = numpy.array(values, dtype, copy=copy), values
        self._constant_names[key] = name = self.fresh(name)
        self.constants[name] = self.shared_constants[key][0]
        return name

    def as_view(self, name):
        """The tensor as a view: of its base, or of itself."""
        view = self.views.get(name) or self._identity_views.get(name)
        if view is None:
            view = self._identity_views[name] = View(name, 0, contiguous(self.shape(name)))
        return view

    def base(self, name):
        """The tensor that the view `name` is of, or the tensor itself."""
        view = self.views.get(name)
        return name if view is None else view.base

    def is_dense(self, name):
        """Whether the tensor's elements are contiguous and in order."""
        return same_strides(self.shape(name), self.as_view(name).strides)

    def become_view(self, name, view, views=None):
        """Makes the tensor, a base so far, a dense `view` of another one; its own views, among `views` if the caller
        knows them, become views of that one."""
        for other in self.views if views is None else views:
            old = self.views[other]
            if old.base == name:
                self.views[other] = old._replace(base=view.base, offset=view.offset + old.offset)
        self.views[name] = View(view.base, view.offset, contiguous(self.shape(name)))

    def view(self, name, source, shape, strides, offset=0):
        """Makes `name` a view of `source` (of its base if it is a view); `strides` are those of the base."""
        base, self.sources[name] = self.base(source), source
        self.declare(name, shape, self.dtype(source))
        self.views[name] = View(base, *_integers((offset,)), _integers(strides))
        return name

    def need(self, one, other, text, equal=True):
        """Rejects calls at whose sizes `one` differs from `other` (with `equal`) or is less (without): results would be
        wrong. `text()` describes the problem and the remedy."""
        if not sizes.is_open(one) and not sizes.is_open(other):
            if one < other or (equal and one != other):
                raise ValueError(text())
            return
        difference = one - other
        terms = sizes.terms_of(difference)
        known = self.counted.keys().isdisjoint(sizes.variables(terms))  # a counted size may exceed its sample
        if known and (difference < 0 or (equal and int(difference) != 0)):
            raise ValueError(text())
        if not sizes.is_open(difference):
            return
        bound = sizes.at_least(difference)
        if not equal and ((bound is not None and bound >= 0) or terms.get((), 0) > sizes.ENDLESS):
            return
        key = frozenset(terms.items()), equal
        if key not in self.needs:
            self.needs[key] = sizes.Need(terms, equal, f"{self._reads()} {text()}")

    def _reads(self):
        return "" if self.reads is None else f"{self.reads.operator} {self.reads.label!r}"

    def need_same_count(self, shape, other):
        """Rejects calls at whose sizes the shapes differ in their number of elements."""
        shape, other = tuple(shape), tuple(other)
        left, right = list(shape), list(other)
        for size in shape:
            if size in right:
                left.remove(size)
                right.remove(size)
        self.need(
            math.prod(left),
            math.prod(right),
            lambda: (
                f"makes {sizes.shape_text(other)} of {sizes.shape_text(shape)}, which have equally many elements at"
                " some sizes only: call it with such sizes"
            ),
        )

    def need_within(self, name, axis, first, last):
        """Rejects calls at whose sizes the axis lacks elements `first` to `last`."""
        shape = self.shape(name)

        def text():
            return (
                f"takes elements {sizes.size_text(first)} to {sizes.size_text(last)} along axis {axis} of"
                f" {sizes.shape_text(shape)}: call it with sizes at which they exist"
            )

        self.need(first, 0, text, equal=False)
        self.need(shape[axis] - 1, last, text, equal=False)

    def need_joined(self, shape, other, axis):
        """Rejects calls at whose sizes the shapes differ in another dimension than `axis`."""
        for d, (first_size, second_size) in enumerate(zip(shape, other)):
            if d != axis:
                self.need(
                    first_size,
                    second_size,
                    lambda: (
                        f"joins {sizes.shape_text(shape)} and {sizes.shape_text(other)} along axis {axis}, which fit at"
                        " some sizes only: call it with such sizes"
                    ),
                )

    def need_signs(self, *widths):
        """Rejects calls at whose sizes a width's sign differs from that of the current reading."""
        for width in widths:
            self.need(
                *((-1, width) if width < 0 else (width, 0)),
                lambda: (
                    f"has a border of {sizes.size_text(width)}: call it with sizes at which that is"
                    f" {'below' if width < 0 else 'not below'} 0"
                ),
                equal=False,
            )

    def reshaped(self, name, source, shape):
        """Makes `name` the same elements in another shape: a view if possible, else a copy."""
        view = self.as_view(source)
        shape = sizes.reshaped(self.shape(source), _integers(shape))
        self.need_same_count(self.shape(source), shape)
        strides = sizes.reshaped_strides(self.shape(source), view.strides, shape)
        if strides is None:
            source = self.copied(self.fresh(f"{name}/plain"), source)
            view, strides = View(source, 0, ()), contiguous(shape)
        return self.view(name, source, shape, strides, view.offset)

    def transposed(self, name, source, order):
        view, shape = self.as_view(source), self.shape(source)
        return self.view(name, source, [shape[d] for d in order], [view.strides[d] for d in order], view.offset)

    def expanded(self, name, source, shape):
        """Makes `name` a view of `source` broadcast to `shape`."""
        view, source_shape = self.as_view(source), self.shape(source)
        self.need_broadcast(source_shape, shape)
        source_shape, strides = (
            (1,) * (len(shape) - len(source_shape)) + source_shape,
            (0,) * (len(shape) - len(source_shape)) + view.strides,
        )
        return self.view(
            name,
            source,
            shape,
            [0 if size == 1 else stride for size, stride in zip(source_shape, strides)],
            view.offset,
        )

    def broadcast(self, *shapes):
        """The broadcast shape. Rejects calls at whose sizes the shapes cannot be broadcast to it."""
        result = sizes.broadcast(*shapes)
        for shape in shapes:
            differ = [size for size, target in zip(shape[::-1], result[::-1]) if size != target and size != 1]
            # calls find out about counted sizes themselves
            if differ and not any(self._is_counted(size) for size in (*shape, *result)):
                self.need_broadcast(shape, result)
        return result

    def need_same(self, columns, rows):
        """Rejects calls at whose sizes the inner dimensions of a matrix product differ."""
        sizes.same(columns, rows)
        if columns != rows and not (self._is_counted(columns) or self._is_counted(rows)):
            self.need(
                columns,
                rows,
                lambda: (
                    f"multiplies {sizes.size_text(columns)} columns by {sizes.size_text(rows)} rows, which fit at some"
                    " sizes only: call it with such sizes"
                ),
            )

    def need_written(self, shape, other):
        """Rejects calls at whose sizes values of this shape do not fill places of the other."""
        if len(shape) != len(other):
            raise ValueError(f"writes values {sizes.shape_text(shape)} to places {sizes.shape_text(other)}")
        for value_size, target_size in zip(shape, other):
            sizes.same(value_size, target_size)
            self.need(
                value_size,
                target_size,
                lambda: (
                    f"writes values {sizes.shape_text(shape)} to places {sizes.shape_text(other)}, which fit at some"
                    " sizes only: call it with such sizes"
                ),
            )

    def _is_counted(self, size):
        return bool(self.counted) and not self.counted.keys().isdisjoint(sizes.variables(sizes.terms_of(size)))

    def need_broadcast(self, shape, other):
        """Rejects calls at whose sizes a dimension of `shape`, aligned from the last, is neither 1 nor that of
        `other`."""
        for size, target_size in zip(shape[::-1], other[::-1]):
            if size != 1:
                self.need(
                    size,
                    target_size,
                    lambda: (
                        f"broadcasts {sizes.shape_text(shape)} to {sizes.shape_text(other)}, which fit at some sizes"
                        " only: call it with such sizes"
                    ),
                )

    def copied(self, name, source, dtype=None, layer=None):
        self.declare(name, self.shape(source), dtype or self.dtype(source))
        self.layers.append(Layer("Copy", layer or name, [source], name))
        return name

    def unary(self, op, layer, source, output, dtype=None, loop=None):
        """Adds a layer that applies `op` to each element, computing in `loop` (default: the operand's dtype)."""
        loop = numpy.dtype(loop or self.dtype(source))
        self.declare(output, self.shape(source), dtype or (numpy.bool_ if op in BOOLEAN_RESULTS else loop))
        self.layers.append(Layer("Unary", layer, [source], output, parameters=(UNARY.index(op), dtype_number(loop))))
        return output

    def binary(self, op, layer, a, b, output, dtype=None, loop=None):
        """`unary` with two broadcast operands."""
        loop = numpy.dtype(loop or self.dtype(a))
        self.declare(
            output,
            self.broadcast(self.shape(a), self.shape(b)),
            dtype or (numpy.bool_ if op in BOOLEAN_RESULTS else loop),
        )
        self.layers.append(Layer("Binary", layer, [a, b], output, parameters=(BINARY.index(op), dtype_number(loop))))
        return output

    def reduced(self, op, layer, source, axes, output, dtype=None, loop=None):
        """Reduces the axes, which keep size 1."""
        loop = numpy.dtype(loop or self.dtype(source))
        self.declare(output, [1 if d in axes else size for d, size in enumerate(self.shape(source))], dtype or loop)
        self.layers.append(
            Layer(
                "Reduce",
                layer,
                [source],
                output,
                parameters=(REDUCE.index(op), dtype_number(loop), sum(1 << d for d in axes)),
            )
        )
        return output

    def producers(self):
        """Maps each tensor to the layer that writes it as a whole; parts written through views are not included."""
        return {layer.output: layer for layer in self.layers}

    def producers_so_far(self):
        """`producers`, cached; only while the model is read, since layers are only appended then."""
        for layer in self.layers[self._indexed_layers :]:
            self._producers[layer.output] = layer
        self._indexed_layers = len(self.layers)
        return self._producers

    def forget(self, count):
        """Removes all layers but the first `count`, while the model is read."""
        del self.layers[count:]
        self._producers, self._indexed_layers = {}, 0

    def readers(self):
        """Maps each tensor to the layers that read it directly; None stands for a model output."""
        readers_of = {}
        for layer in self.layers:
            for name in dict.fromkeys(filter(None, layer.inputs)):
                readers_of.setdefault(name, []).append(layer)
        for name in self.outputs:
            readers_of.setdefault(name, []).append(None)
        return readers_of

    def rename(self, old, new):
        """Renames the tensor `old` to `new`, which must be unused."""
        self._identity_views.pop(old, None)
        for values in (self.shapes, self.dtypes, self.constants, self.views, self.sources):
            if old in values:
                values[new] = values.pop(old)
        self.sources.update({name: new for name, source in self.sources.items() if source == old})
        for name, view in self.views.items():
            if view.base == old:
                self.views[name] = view._replace(base=new)
        for layer in self.layers:
            layer.inputs = [new if name == old else name for name in layer.inputs]
            layer.output = new if layer.output == old else layer.output
        self.inputs = [new if name == old else name for name in self.inputs]
        if old in self.texts:
            self.texts.add(new)
        if old in self.labels:
            self.labels[new] = self.labels.pop(old)


def same_strides(shape, strides):
    """Whether these are the strides of a contiguous tensor; those of dimensions of size 1 are ignored."""
    return all(size == 1 or stride == expected for size, stride, expected in zip(shape, strides, contiguous(shape)))


def has_rows(shape, strides):
    """Whether the elements of each row (the last dimension) are adjacent."""
    return len(shape) > 0 and (shape[-1] == 1 or strides[-1] == 1)
