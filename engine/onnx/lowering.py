"""For readers of composite operators: adds layers one by one, named after the node's output; numbers become
constants."""

import copy
import math

import numpy

from . import sizes
from .network import dtype_number
from .operations import BINARY, UNARY
from .readers import READERS, Unsupported

_OPSET = 21  # of the nodes that readers emit
_MAX_COUNTED = 1 << 26  # elements of a counting constant
_OPERATIONS = {**dict.fromkeys(UNARY, 1), **dict.fromkeys(BINARY, 2)}


def may_be_zero(width):
    """Whether a width that depends on open sizes may be 0 or less in a call."""
    bound = sizes.at_least(width)
    return sizes.is_open(width) and (bound is None or bound < 1)


class Lowering:
    """Each method adds layers or views and returns the name of the result. Operands are names, or numbers in the dtype
    of the first name."""

    def __init__(self, reader, node):
        self.reader, self.node, self.network = reader, node, reader.network

    def shape(self, name):
        return self.network.shape(name)

    def dtype(self, name):
        return self.network.dtype(name)

    def fresh(self, what):
        return self.network.fresh(f"{self.node.output}/{what}")

    def constant(self, values, dtype):
        if sizes.is_open(values):
            return self.of_sizes(numpy.asarray(values, object), dtype)
        return self.network.constant(f"{self.node.output}/constant", values, dtype)

    def of_sizes(self, numbers, dtype):
        """A tensor of these numbers, an object array; those that depend on open sizes are computed by layers."""
        numpy_dtype = numpy.dtype(dtype)
        scalars = [self.cast(self._computed(number), numpy_dtype) for number in numbers.flat]
        if len(scalars) > 1:
            rows = [self.reshape(name, (1,)) for name in scalars]
            scalars = [self.joined(rows, 0)]
        return self.reshape(scalars[0], numbers.shape)

    def _computed(self, number):
        """The number as a tensor of int64 with one element."""
        if not sizes.is_open(number):
            return self.constant(int(number), numpy.int64)
        return self._polynomial(number.terms)

    def _polynomial(self, terms):
        total = None
        for variables, factor in terms.items():
            product = None
            for variable in variables:
                value = self._variable(variable)
                product = value if product is None else self.do("multiply", product, value)
            if product is None:
                product = self.constant(factor, numpy.int64)
            elif factor != 1:
                product = self.do("multiply", product, factor)
            total = product if total is None else self.do("add", total, product)
        return total

    def _variable(self, variable):
        if variable in self.network.counted:
            return self.network.counted[variable][0]
        if not isinstance(variable, str):
            return self.do("floor_divide", *(self._polynomial(dict(terms)) for terms in variable[1:]))
        return self.reshape(
            self.reduce("sum", self.expand(self.constant(1, numpy.int64), (self.open(variable),)), [0]), ()
        )

    def open(self, variable):
        """The open size with that name."""
        return self.reader.opens[variable]

    def arange(self, size):
        """The int64 tensor 0, 1, 2 … of length `size`."""
        if not sizes.is_open(size):
            if not 0 <= size <= _MAX_COUNTED:
                raise Unsupported(f"makes a range of {size:,} elements, expected 0 to {_MAX_COUNTED:,}")
            return self.constant(numpy.arange(size), numpy.int64)
        ones = self.expand(self.constant(1, numpy.int64), (size,))
        parameters = (0, dtype_number(numpy.int64), 0)
        totals = self.reader.add_layer(
            "Scan", self.node, [ones], (size,), numpy.int64, self.fresh("counted"), parameters=parameters
        )
        return self.do("subtract", totals, 1)

    def do(self, op, *operands):
        """One of the engine's unary or binary operations, broadcast."""
        dtype = next(self.dtype(name) for name in operands if isinstance(name, str))
        names = [name if isinstance(name, str) else self.constant(name, dtype) for name in operands]
        if _OPERATIONS[op] == 1:
            return self.network.unary(op, self.node.name, *names, self.fresh(op))
        return self.network.binary(op, self.node.name, *names, self.fresh(op), loop=dtype)

    def reduce(self, op, source, axes):
        """Reduces the axes, which keep size 1. Sums and products of short integers are computed in long ones."""
        dtype = self.dtype(source)
        if op in ("argmax", "argmin"):
            return self.network.reduced(op, self.node.name, source, axes, self.fresh(op), numpy.int64, dtype)
        loop = {"i": "int64", "u": "uint64", "b": "bool"}.get(dtype.kind) if op in ("sum", "prod") else None
        return self.network.reduced(op, self.node.name, source, axes, self.fresh(op), dtype, loop)

    def mean(self, source, axes):
        """The mean of floats over the axes, which keep size 1."""
        return self.do("divide", self.reduce("sum", source, axes), self.number_of(source, axes, self.dtype(source)))

    def number_of(self, source, axes, dtype):
        """The number of elements that a mean over these axes divides by. At least 1: the mean of none is 0, as in ONNX
        Runtime."""
        total = math.prod(self.shape(source)[d] for d in axes)
        count = self.constant(total, dtype)
        return self.do("maximum", count, 1) if may_be_zero(total) else count

    def where(self, condition, a, b):
        dtype = self.dtype(a if isinstance(a, str) else b)
        names = [name if isinstance(name, str) else self.constant(name, dtype) for name in (condition, a, b)]
        shape = self.network.broadcast(*(self.shape(name) for name in names))
        return self.reader.add_layer("Where", self.node, names, shape, dtype, self.fresh("where"))

    def cast(self, source, dtype):
        return (
            source
            if self.dtype(source) == dtype
            else self.network.copied(self.fresh("cast"), source, dtype, self.node.name)
        )

    def copy(self, source):
        return self.network.copied(self.fresh("copy"), source, layer=self.node.name)

    def reshape(self, source, shape):
        return self.network.reshaped(self.fresh("reshaped"), source, shape)

    def transpose(self, source, order):
        return self.network.transposed(self.fresh("transposed"), source, order)

    def expand(self, source, shape):
        return self.network.expanded(self.fresh("expanded"), source, shape)

    def part(self, source, axis, start, stop, step=1):
        """The view `source[..., start:stop:step, ...]` along `axis`."""
        view, shape = self.network.as_view(source), list(self.shape(source))
        strides = list(view.strides)
        offset = view.offset + start * strides[axis]
        span = stop - start if step > 0 else start - stop
        shape[axis], strides[axis] = -(-span // abs(step)) if span > 0 else 0, strides[axis] * step
        if shape[axis] < 1:
            raise Unsupported("makes an empty tensor")
        last = start + (shape[axis] - 1) * step
        self.network.need_within(source, axis, *((start, last) if step > 0 else (last, start)))
        return self.network.view(self.fresh("part"), source, shape, strides, offset)

    def reverse(self, source, axis):
        return self.part(source, axis, self.shape(source)[axis] - 1, -1, -1)

    def empty(self, shape, dtype):
        """A tensor to be filled part by part by `put`; parts are disjoint views of it."""
        return self.network.declare(self.fresh("whole"), shape, dtype)

    def put(self, part, values):
        """Copies a tensor, or a number, to a part, broadcast."""
        name = values if isinstance(values, str) else self.constant(values, self.dtype(part))
        self.reader.add_layer("Copy", self.node, [name], self.shape(part), self.dtype(part), part)

    def joined(self, names, axis):
        shapes = [self.shape(name) for name in names]
        for shape in shapes[1:]:
            self.network.need_joined(shapes[0], shape, axis)
        result = self.empty(
            [*shapes[0][:axis], sum(shape[axis] for shape in shapes), *shapes[0][axis + 1 :]], self.dtype(names[0])
        )
        begin = 0
        for name, shape in zip(names, shapes):
            self.put(self.part(result, axis, begin, begin + shape[axis]), name)
            begin += shape[axis]
        return result

    def padded(self, source, before, after, value):
        """Adds borders of `value`, a number or a name; negative widths crop."""
        for d, (front, back) in enumerate(zip(before, after)):
            self.network.need_signs(front, back)
            if min(front, back) < 0:
                source = self.part(source, d, max(0, -front), self.shape(source)[d] - max(0, -back))
        before, after = ([0 if n < 0 else n for n in widths] for widths in (before, after))
        shape = self.shape(source)
        if all(map(sizes.is_zero, (*before, *after))):
            return source
        spare_rows = [
            [int(may_be_zero(n)) for n in widths] for widths in (before, after)
        ]  # one more row, which the views exclude
        before, after = ([n + extra for n, extra in zip(*pair)] for pair in zip((before, after), spare_rows))
        result = self.empty([sum(widths) for widths in zip(before, shape, after)], self.dtype(source))
        inside = result
        for d, (front, size, back) in enumerate(zip(before, shape, after)):  # disjoint slabs
            if not sizes.is_zero(front):
                self.put(self.part(inside, d, 0, front), value)
            if not sizes.is_zero(back):
                self.put(self.part(inside, d, front + size, front + size + back), value)
            inside = self.part(inside, d, front, front + size)
        self.put(inside, source)
        for d, (front, back) in enumerate(zip(*spare_rows)):
            if front or back:
                result = self.part(result, d, front, self.shape(result)[d] - back)
        return result

    def matmul(self, a, b):
        """The product of matrices, or of batches of them."""
        a_shape, b_shape = self.shape(a), self.shape(b)
        shape = (*self.network.broadcast(a_shape[:-2], b_shape[:-2]), a_shape[-2], b_shape[-1])
        return self.reader.add_layer("MatMul", self.node, [a, b], shape, output=self.fresh("matmul"))

    def take(self, source, indices, first=0):
        """Gathers by broadcast indices (int64, names or arrays) of the dimensions first, first+1, …"""
        names = [name if isinstance(name, str) else self.constant(name, numpy.int64) for name in indices]
        shape, index_shape = self.shape(source), self.network.broadcast(*(self.shape(name) for name in names))
        return self.reader.add_layer(
            "Gather",
            self.node,
            [source, *names],
            (*shape[:first], *index_shape, *shape[first + len(names) :]),
            output=self.fresh("taken"),
            parameters=(first,),
        )

    def scattered(self, source, values, indices, first=0, reduction=None):
        """`source` with `values` written at broadcast indices (int64, names or arrays) of the dimensions first,
        first+1, …, combined by the binary operation `reduction` if given."""
        names = [name if isinstance(name, str) else self.constant(name, numpy.int64) for name in indices]
        shape, index_shape = self.shape(source), self.network.broadcast(*(self.shape(name) for name in names))
        self.network.need_written(self.shape(values), (*shape[:first], *index_shape, *shape[first + len(names) :]))
        return self.reader.add_layer(
            "Scatter",
            self.node,
            [source, values, *names],
            self.shape(source),
            output=self.fresh("scattered"),
            parameters=(first, -1 if reduction is None else BINARY.index(reduction)),
        )

    def all_indices(self, shape, axis, indices):
        """Indices of all dimensions for `take`: `indices` (of that shape's rank) along `axis`, the element's own
        position along others."""
        return [indices if d == axis else self.along(size, d, len(shape)) for d, size in enumerate(shape)]

    def along(self, size, axis, rank):
        """0, 1, 2 … along one of `rank` dimensions, broadcast along the others."""
        return self.reshape(self.arange(size), [size if d == axis else 1 for d in range(rank)])

    def operator(self, op, *inputs, outputs=None, **attributes):
        """Emits ONNX's operator `op` (of a recent opset) for these names and returns its first output. `outputs`: names
        of its outputs."""
        node = copy.copy(self.node)
        node.op, node.domain, node.opset, node.inputs, node.attributes = op, "", _OPSET, list(inputs), attributes
        node.names, node.outputs = list(inputs), outputs or [self.fresh(op.lower())]
        return self.read(node)

    def read(self, node):
        """Reads a node that is not in the model. Returns its first output."""
        from onnx import helper

        outer_proto, names = self.reader.proto, [name or "" for name in node.inputs]
        self.reader.proto = helper.make_node(node.op, names, node.outputs, **node.attributes)
        READERS[node.op](self.reader, node)
        self.reader.proto = outer_proto
        return self.reader.name_of(node.output)

    def done(self, name, output=None):
        """Makes `name` the node's output."""
        self.reader.same(output or self.node.output, name)
