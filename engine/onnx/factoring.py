"""Factors products of a concatenation whose parts share factors, as attention over a history has ([q, h, q-h, q*h] W).
The part that does not depend on the row is computed once.

With W split into a block for each part, [q, h, q-h, q*h] W is q (W1 + W3) + h (W2 - W3) + (q*h) W4. If q is the same
for all rows, its term is one row added to the others, and (q*h) W4 is h (diag(q) W4): the product only runs over h, a
quarter of the multiplications, and nothing is concatenated. Sums change their order, as in any product; infinities that
would have cancelled to NaN may not."""

import math

import numpy

from .network import Layer, View, contiguous, is_binary, same_strides

# Minimum rows that share weights scaled by a factor of the call. Models with open sizes are compiled at more
# (open_sizes.py), so one choice serves all sizes.
_MIN_ROWS = 8
_MAX_WEIGHTS = 1 << 18  # elements of such weights
_MIN_SAVED = 64  # elements of a row: the cost of writing and reading a sum


class _Part:
    """A part of the concatenation, or an operand of a part. `view` has the concatenation's rank, with stride 0 where it
    is broadcast."""

    def __init__(self, network, name, shape):
        view, tensor_shape = network.as_view(name), network.shape(name)
        strides = (0,) * (len(shape) - len(tensor_shape)) + view.strides
        sizes = (1,) * (len(shape) - len(tensor_shape)) + tensor_shape
        self.name, self.shape = name, shape
        self.view = View(
            view.base, view.offset, tuple(0 if size == 1 else stride for size, stride in zip(sizes, strides))
        )
        self.one_row = self.view.strides[-2] == 0


def factor_products(network):
    """Rewrites each product where that reduces the number of multiplications."""
    layers, network.layers = network.layers, []
    producers, writers = {layer.output: layer for layer in layers}, {}
    for layer in layers:
        writers.setdefault(network.base(layer.output), []).append(layer)
    for layer in layers:
        parts = (
            _parts(network, layer, writers)
            if layer.op == "Gemm" and not layer.activated and not layer.inputs[3]
            else None
        )
        if not (parts and _rewrite(network, layer, parts, producers)):
            network.layers.append(layer)


def _parts(network, product, writers):
    """[(part, its position in a row)] of the concatenation that the product reads, or None if it reads none. `writers`
    maps bases to the layers that write them."""
    rows = product.inputs[0]
    base = network.base(rows)
    if (
        base in network.constants
        or base in network.inputs
        or not network.is_dense(rows)
        or network.as_view(rows).offset
    ):
        return None
    shape, parts, begin = network.shape(base), [], 0
    copies = writers.get(base, ())
    if (
        len(shape) < 2
        or shape[-1] != network.shape(rows)[1]
        or math.prod(shape) != math.prod(network.shape(rows))
        or len(copies) < 2
    ):
        return None
    for copy in sorted(copies, key=lambda layer: network.as_view(layer.output).offset):
        view, part = network.as_view(copy.output), network.shape(copy.output)
        if (
            copy.op != "Copy"
            or view.offset != begin
            or part[:-1] != shape[:-1]
            or not same_strides(shape, view.strides)
            or network.dtype(copy.inputs[0]) != numpy.float32
            or copy.inputs[0] in network.constants
        ):
            return None
        parts.append((_Part(network, copy.inputs[0], part), begin))
        begin += part[-1]
    return parts if begin == shape[-1] else None


def _terms(network, part, producers, columns, sign=1):
    """[(sign, part, factor)] that sum up to the part, each of its shape. `factor` is a single-row part that can be
    multiplied into the weights, or None."""
    base = part.view.base
    covers_base = network.shape(base) == part.shape and _Part(network, base, part.shape).view == part.view
    layer = producers.get(base) if covers_base else None
    if layer is None or layer.op != "Binary" or any(name in network.constants for name in layer.inputs):
        return [(sign, part, None)]
    left, right = (_Part(network, name, part.shape) for name in layer.inputs)
    if is_binary(layer, "add") or is_binary(layer, "subtract"):
        second = sign if is_binary(layer, "add") else -sign
        return _terms(network, left, producers, columns, sign) + _terms(network, right, producers, columns, second)
    *lead, rows, width = part.shape
    if (
        is_binary(layer, "multiply")
        and left.one_row != right.one_row
        and math.prod(lead) == 1
        and rows >= _MIN_ROWS
        and width * columns <= _MAX_WEIGHTS
    ):
        return [(sign, right, left) if left.one_row else (sign, left, right)]
    return [(sign, part, None)]


def _rewrite(network, product, parts, producers):
    """Rewrites the product over these parts if that reduces the multiplications. Returns whether it did; the layers are
    added then."""
    weights = network.constants[product.inputs[1]].astype("float64")
    groups = {}  # multiplied part to {factor: (the factor's part, weights)}
    for part, begin in parts:
        width = part.shape[-1]
        for sign, term, factor in _terms(network, part, producers, len(weights)):
            _, blocks = groups.setdefault((term.view, width), (term, {}))
            key = factor and factor.view
            blocks[key] = factor, sign * weights[:, begin : begin + width] + (blocks[key][1] if key in blocks else 0)
    rows = [group for group in groups.values() if group[0].one_row]
    matrices = [group for group in groups.values() if not group[0].one_row]
    if not matrices or sum(term.shape[-1] for term, _ in matrices) > weights.shape[1] - _MIN_SAVED:
        return False
    _Builder(network, product, parts[0][0].shape[:-1]).build(rows, matrices)
    return True


class _Builder:
    """Adds the layers that replace `product`; `shape` is that of all rows."""

    def __init__(self, network, product, shape):
        self.network, self.product, self.shape = network, product, shape
        self.columns = network.shape(product.output)[1]

    def build(self, rows, matrices):
        """`rows`, `matrices`: lists of (part, {factor: (the factor's part, weights)})."""
        network, bias, addends, shape = self.network, self.product.inputs[2], [], (*self.shape, self.columns)
        fixed = [(term, blocks[None][1]) for term, blocks in matrices if list(blocks) == [None]]
        if rows:
            terms = [
                (
                    self._view_of(
                        "row", term, (*term.shape[:-2], term.shape[-1]), term.view.strides[:-2] + term.view.strides[-1:]
                    ),
                    blocks[None][1],
                )
                for term, blocks in rows
            ]
            addends.append(
                network.reshaped(self._name("added"), self._products(terms, bias), (*self.shape[:-1], 1, self.columns))
            )
            bias = None
        if fixed:
            is_complete = not addends and len(fixed) == len(matrices)
            terms = [(self._view_of("part", term, term.shape, term.view.strides), block) for term, block in fixed]
            product = self._products(terms, bias, self.product.output if is_complete else None)
            if is_complete:
                return
            addends.append(network.reshaped(self._name("matrix"), product, shape))
            bias = None
        for term, blocks in matrices:
            if list(blocks) != [None]:
                product = network.declare(self._name("matrix"), shape, "float32")
                operand = self._view_of("part", term, term.shape, term.view.strides)
                network.layers.append(Layer("MatMul", self.product.name, [operand, self._weights(blocks)], product))
                addends.append(product)
        addends += [bias] * (bias is not None)
        result, total = network.view(self._name("whole"), self.product.output, shape, contiguous(shape)), addends[0]
        for name in addends[1:]:
            total = network.binary("add", self.product.name, total, name, self._name("sum"))
        network.layers[-1].output = result  # the last layer (a sum or a product) writes the result itself

    def _name(self, what):
        return self.network.fresh(f"{self.product.output}/{what}")

    def _view_of(self, what, part, shape, strides):
        return self.network.view(self._name(what), part.name, shape, strides, part.view.offset)

    def _products(self, terms, bias, output=None):
        """The sum of products with constants; each product is the addend of the next."""
        product = None
        for number, (operand, block) in enumerate(terms, 1):
            rows = self.network.reshaped(self._name("rows"), operand, (-1, self.network.shape(operand)[-1]))
            inputs = [
                rows,
                self.network.constant(f"{self.product.output}/weights", block, "float32"),
                None if product else bias,
                product,
            ]
            product = output if output and number == len(terms) else self._name("product")
            self.network.declare(product, (self.network.shape(rows)[0], self.columns), "float32")
            self.network.layers.append(Layer("Gemm", self.product.name, inputs, product))
        return product

    def _weights(self, blocks):
        """A matrix (elements of a row, columns) with rows scaled by the factors."""
        network, total = self.network, None
        for factor, block in sorted(blocks.values(), key=lambda pair: pair[0] is not None):
            weights = network.constant(f"{self.product.output}/weights", block.T, "float32")
            if factor is not None:
                column = self._view_of(
                    "factor",
                    factor,
                    (*(1 for _ in self.shape[:-1]), len(block.T), 1),
                    (*factor.view.strides[:-2], factor.view.strides[-1], 0),
                )
                weights = network.binary("multiply", self.product.name, column, weights, self._name("scaled"))
            total = (
                weights
                if total is None
                else network.binary("add", self.product.name, weights, total, self._name("weighed"))
            )
        return total
