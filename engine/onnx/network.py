"""A model on its way from ONNX to the engine: layers over named tensors, which are computed, constant, or views of
others."""

import itertools
import math
import operator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy

from . import sizes
from .operations import BINARY, REDUCE, TRUTHS, UNARY

# In the order of the engine's numbers (engine/include/vme.h): the file has numbers.
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
# Of Activate, and of products behind the other activations.
CURVES = ("gelu", "gelu tanh", "sigmoid", "silu", "mish", "hard sigmoid", "hard swish")
_LARGE = 4096  # bytes of a constant
MAX_ROW = 1 << 16  # numbers of a row that Softmax and Normalize do


_NUMBERS = {numpy.dtype(name): number for number, name in enumerate(DTYPES)}


def dtype_number(dtype):
    dtype = numpy.dtype(dtype)
    number = _NUMBERS.get(dtype)
    return DTYPES.index(dtype.name) if number is None else number  # of other byte orders


def has_dtype(dtype):
    """Whether the engine has that dtype of NumPy's."""
    return dtype in _NUMBERS or dtype.name in DTYPES


def is_binary(layer, op):
    return layer.op == "Binary" and layer.parameters[0] == BINARY.index(op)


def is_unary(layer, op):
    return layer.op == "Unary" and layer.parameters[0] == UNARY.index(op)


def float_bits(number):
    """A float parameter as the file has it: the bits of a float32, as an integer."""
    return int(numpy.float32(number).view("int32"))


@dataclass
class Layer:
    """One node of the engine: `inputs` are names of tensors or None. Operators on images have the 11 parameters of a
    `window`, an activation (`relu`, or `bounds`: lowest and highest value, or of products `curve`, one of CURVES) and
    `further` parameters of their own; the others have `parameters`. `guard` is the number of one of the network's, see
    guards.py."""

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

    def takes(self, activation):
        """This layer's result is from now on what the `activation`, a layer of its own so far, makes of it."""
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
    """The strides, in elements, of a contiguous tensor."""
    strides = list(itertools.accumulate(shape[:0:-1], operator.mul, initial=1)) if shape else []
    return tuple(reversed(strides))


@dataclass
class Network:
    """`shapes` and `dtypes` (NumPy's) of all tensors but constants, which are arrays; a view's base is no view,
    `sources` tells what it was made of. `savings` tells what became of its nodes; `values` are
    the numbers of those constants that follow from open sizes: arrays of Sizes, where `constants` has their values at
    the sizes that the model is read at. `texts` are tensors whose numbers stand for texts of the `vocabulary`
    (texts.py), `labels` those that callers get as a dict of each row, with the labels of its columns. `counted` are
    open sizes that follow from values, each with the tensor that tells it and its ruler, and `notes` what the runner
    of several parts has to know (parts.py)."""

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
    vocabulary: list = field(default_factory=list)
    counted: dict = field(default_factory=dict)
    needs: dict = field(default_factory=dict)  # what has to hold at sizes of calls: keys to sizes.Need
    reads: object = None  # the node that is being read
    bounds: dict = field(default_factory=dict)  # counted sizes to numbers that they are no more than
    guarded: dict = field(default_factory=dict)  # what is scattered to the counted sizes that may be 0 there
    guards: list = field(default_factory=list)  # (tensor, side, parent or None), see guards.py
    notes: dict | None = None
    repeats: bool = False  # while the body of a loop is read
    kept: dict = field(default_factory=dict)  # parts of arrays to the constants made of them, in all readings
    _made: dict = field(default_factory=dict)  # and to the names that they have here
    _whole: dict = field(default_factory=dict)  # tensors to what they are as views of themselves

    def shape(self, name):
        values = self.constants.get(name)
        return self.shapes[name] if values is None else values.shape

    def dtype(self, name):
        values = self.constants.get(name)
        return self.dtypes[name] if values is None else values.dtype

    def declare(self, name, shape, dtype):
        self.shapes[name], self.dtypes[name] = _integers(shape), numpy.dtype(dtype)
        self._whole.pop(name, None)
        return name

    def move(self, shapes, views):
        """Gives tensors other shapes and views."""
        self.shapes, self.views, self._whole = shapes, views, {}

    def fresh(self, name):
        """`name`, or with a number behind it, which no tensor has."""
        number, found = 0, name
        while found in self.shapes or found in self.constants:
            number += 1
            found = f"{name}/{number}"
        return found

    def constant(self, name, values, dtype=None):
        """A new constant; in bodies of loops, which are read over and over, the one that was made of the same part of
        an array. Large arrays are not copied: nobody may write to them from now on."""
        part = isinstance(values, numpy.ndarray) and values.base is not None
        if not part or not (self.repeats or values.nbytes >= _LARGE):
            name = self.fresh(name)
            self.constants[name] = numpy.array(values, dtype)
            return name
        there = values.__array_interface__["data"][0], values.strides, values.shape, values.dtype.str
        key = there, values.dtype if dtype is None else numpy.dtype(dtype)
        if self.repeats and key in self._made:
            return self._made[key]
        if key not in self.kept:  # as long as `values` are there, no other array lies at that address
            self.kept[key] = numpy.array(values, dtype, copy=None if values.nbytes >= _LARGE else True), values
        self._made[key] = name = self.fresh(name)
        self.constants[name] = self.kept[key][0]
        return name

    def as_view(self, name):
        """The tensor as a view: of its base, or of itself."""
        view = self.views.get(name) or self._whole.get(name)
        if view is None:
            view = self._whole[name] = View(name, 0, contiguous(self.shape(name)))
        return view

    def is_dense(self, name):
        """Whether the tensor's elements lie side by side, in order: as a contiguous one's do."""
        return same_strides(self.shape(name), self.as_view(name).strides)

    def become_view(self, name, view):
        """Makes the tensor, which was a base, see the dense `view` of another one; what saw it sees that one."""
        for other, old in self.views.items():
            if old.base == name:
                self.views[other] = old._replace(base=view.base, offset=view.offset + old.offset)
        self.views[name] = View(view.base, view.offset, contiguous(self.shape(name)))

    def view(self, name, source, shape, strides, offset=0):
        """Makes `name` see `source`, a base, itself or through its view; strides are those of the base."""
        base, self.sources[name] = self.as_view(source).base, source
        self.declare(name, shape, self.dtype(source))
        self.views[name] = View(base, *_integers((offset,)), _integers(strides))
        return name

    def need(self, one, other, text, equal=True):
        """Has calls refused at whose sizes `one` is not `other`, or unless `equal` less than it: what is made of the
        numbers would be wrong there. `text()` says what is wrong and what to do."""
        if not sizes.is_open(one) and not sizes.is_open(other):
            if one < other or (equal and one != other):
                raise ValueError(text())
            return
        difference = one - other
        terms = sizes.terms_of(difference)
        known = self.counted.keys().isdisjoint(sizes.variables(terms))  # what is counted may be more than can be here
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
        """Has calls refused at whose sizes the two shapes are not of as many elements."""
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
                f"makes {sizes.told_shape(other)} of {sizes.told_shape(shape)}, which are of as many elements at some"
                " sizes only: call it with such sizes"
            ),
        )

    def need_within(self, name, axis, first, last):
        """Has calls refused at whose sizes the axis has no elements `first` to `last`."""
        shape = self.shape(name)

        def text():
            return (
                f"takes elements {sizes.told(first)} to {sizes.told(last)} along axis {axis} of"
                f" {sizes.told_shape(shape)}: call it with sizes at which they are there"
            )

        self.need(first, 0, text, equal=False)
        self.need(shape[axis] - 1, last, text, equal=False)

    def need_joined(self, shape, other, axis):
        """Has calls refused at whose sizes the shapes differ beside that axis."""
        for d, (own, size) in enumerate(zip(shape, other)):
            if d != axis:
                self.need(
                    own,
                    size,
                    lambda: (
                        f"joins {sizes.told_shape(shape)} and {sizes.told_shape(other)} along axis {axis}, which fit at"
                        " some sizes only: call it with such sizes"
                    ),
                )

    def need_signs(self, *widths):
        """Has calls refused at whose sizes a width is below 0 and is not where the model is read, or the other way."""
        for width in widths:
            self.need(
                *((-1, width) if width < 0 else (width, 0)),
                lambda: (
                    f"has a border of {sizes.told(width)}: call it with sizes at which that is"
                    f" {'below' if width < 0 else 'not below'} 0"
                ),
                equal=False,
            )

    def reshaped(self, name, source, shape):
        """Makes `name` the same elements in another shape; copies where they do not lie so that a view can see them."""
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
        """Makes `name` see `source` broadcast to `shape`."""
        view, own = self.as_view(source), self.shape(source)
        self.need_broadcast(own, shape)
        own, strides = (1,) * (len(shape) - len(own)) + own, (0,) * (len(shape) - len(own)) + view.strides
        return self.view(
            name, source, shape, [0 if size == 1 else stride for size, stride in zip(own, strides)], view.offset
        )

    def need_broadcast(self, shape, other):
        """Has calls refused at whose sizes a dimension of `shape` that is no 1 is not that of `other`, from behind."""
        for own, size in zip(shape[::-1], other[::-1]):
            if own != 1:
                self.need(
                    own,
                    size,
                    lambda: (
                        f"broadcasts {sizes.told_shape(shape)} to {sizes.told_shape(other)}, which fit at some sizes"
                        " only: call it with such sizes"
                    ),
                )

    def copied(self, name, source, dtype=None, layer=None):
        self.declare(name, self.shape(source), dtype or self.dtype(source))
        self.layers.append(Layer("Copy", layer or name, [source], name))
        return name

    def unary(self, op, layer, source, output, dtype=None, loop=None):
        """Adds a layer that does `op` to each element, computing in `loop` (default: the operand's dtype)."""
        loop = numpy.dtype(loop or self.dtype(source))
        self.declare(output, self.shape(source), dtype or (numpy.bool_ if op in TRUTHS else loop))
        self.layers.append(Layer("Unary", layer, [source], output, parameters=(UNARY.index(op), dtype_number(loop))))
        return output

    def binary(self, op, layer, a, b, output, dtype=None, loop=None):
        """The same with two operands, which are broadcast."""
        loop = numpy.dtype(loop or self.dtype(a))
        self.declare(
            output,
            sizes.broadcast(self.shape(a), self.shape(b)),
            dtype or (numpy.bool_ if op in TRUTHS else loop),
        )
        self.layers.append(Layer("Binary", layer, [a, b], output, parameters=(BINARY.index(op), dtype_number(loop))))
        return output

    def reduced(self, op, layer, source, axes, output, dtype=None, loop=None):
        """Reduces the axes, which stay with size 1."""
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

    def makers(self):
        """Tensor to the layer that makes it, whole; parts that views give are not in here."""
        return {layer.output: layer for layer in self.layers}

    def readers(self):
        """Tensor to the layers that read it itself; None stands for being an output of the model."""
        found = {}
        for layer in self.layers:
            for name in dict.fromkeys(filter(None, layer.inputs)):
                found.setdefault(name, []).append(layer)
        for name in self.outputs:
            found.setdefault(name, []).append(None)
        return found

    def rename(self, old, new):
        """Everything that is about the tensor `old` is about `new` from now on; `new` has no tensor yet."""
        self._whole.pop(old, None)
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
    """Whether these are a contiguous tensor's; those of dimensions of one element do not count."""
    return all(size == 1 or own == wanted for size, own, wanted in zip(shape, strides, contiguous(shape)))


def has_rows(shape, strides):
    """Whether the elements of each row, the last dimension, lie side by side."""
    return len(shape) > 0 and (shape[-1] == 1 or strides[-1] == 1)
