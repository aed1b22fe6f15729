"""Sizes that an ONNX model leaves open (numbers of examples, lengths of sequences): one model file for all of them.

The model is compiled at several sizes. These networks have the same layers, and each number that differs among them, a
size, an offset or a stride, is found as a polynomial of the open sizes with whole coefficients, which a further network
confirms; the file has the polynomials, and the engine works them out for the sizes of a call (docs/model-format.md).
Where networks differ otherwise, or a number is no such polynomial (a window's stride rounds down, for one), the model
has to be exported with that size fixed, and the error says what stands in the way."""

import itertools
import math

import numpy

from .problems import OnnxError
from .writing import numbered

# Sizes at which networks are compiled: large enough and odd enough to be no other number of a model. Three tell a
# polynomial of the second degree; the fourth confirms it.
_SAMPLES = ((11, 13, 17, 26), (19, 23, 29, 34))
_DEGREES = 3
MAX_OPEN_SIZES = len(_SAMPLES)


def find(model):
    """The dimensions of tensors that no number is given for, by name: each name is a size that calls may choose, if an
    input has it."""
    constants, found = {item.name for item in model.graph.initializer}, {}
    for value in model.graph.input:
        if value.name in constants:
            continue
        for axis, size in enumerate(value.type.tensor_type.shape.dim):
            if not size.HasField("dim_value"):
                if not size.dim_param:
                    size.dim_param = f"{value.name}[{axis}]"
                found.setdefault(size.dim_param, [])
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param in found:
                found[size.dim_param].append(size)
    return found


class OpenSizes:
    """What the file says of open sizes: their `names`, `inputs` (place of an input and dimension of each), and of each
    tensor with numbers that vary a mapping `numbers[tensor][place]` of exponents of the sizes to factors. Places: 0 to
    7 sizes, 8 the offset, 9 to 16 strides."""

    def __init__(self, names, network):
        self.names, self.numbers = names, {}
        self.inputs = []
        self.network = network

    def label(self, terms):
        """The polynomial as it is written: "2*batch + 1"."""
        texts = []
        for exponents, factor in sorted(terms.items(), reverse=True):
            powers = [
                name if exponent == 1 else f"{name}^{exponent}"
                for name, exponent in zip(self.names, exponents)
                if exponent
            ]
            texts.append("*".join([str(abs(factor))] * (abs(factor) != 1 or not powers) + powers))
            texts[-1] = f"{'-' if factor < 0 else '+'} {texts[-1]}"
        return " ".join(texts).removeprefix("+ ") or "0"


def compile_open(found, network_at, where):
    """The network at small sizes, and its OpenSizes. `found` is find()'s; `network_at(unfolded)` compiles the model
    with the sizes that it has just been given, and computes no constants of those names ahead of time."""
    names = list(found)
    if len(names) > MAX_OPEN_SIZES:
        raise OnnxError(
            where,
            f"leaves {len(names)} sizes open ({', '.join(names)}), at most {MAX_OPEN_SIZES} can be; fix others when"
            " exporting",
        )
    unfolded = set()

    def sampled(sizes):
        for name, size in zip(names, sizes):
            for dimension in found[name]:
                dimension.dim_value = size
        try:
            return network_at(frozenset(unfolded))
        except OnnxError as error:
            tried = ", ".join(f"{name} = {size}" for name, size in zip(names, sizes))
            note = (
                f"that is at {tried}, tried since the model leaves {', '.join(names)} open; export it with fixed sizes"
                " if it cannot take all"
            )
            raise OnnxError(where, *error.messages, note) from error

    grid = list(itertools.product(*(_SAMPLES[index][:_DEGREES] for index in range(len(names)))))
    checks = [tuple(_SAMPLES[index][-1] for index in range(len(names)))]
    networks = _alike(sampled, [grid[0], grid[-1]], names, unfolded, where)
    networks = {grid[0]: networks[0], grid[-1]: networks[1]}
    first, table = networks[grid[0]], {}
    for sizes in (*grid, *checks):
        network = networks.get(sizes) or sampled(sizes)
        problem = _difference(first, network)
        if problem:
            raise OnnxError(where, _sentence(problem[0], names))
        table[sizes] = _numbers(network)
        networks[sizes] = None  # of large constants no two copies
    return _fitted(first, names, grid, checks, table, where)


def _alike(sampled, two, names, unfolded, where):
    """Networks at both sizes that differ in numbers only; constants that the sizes change are made by layers instead,
    where there are some."""
    while True:
        pair = [sampled(sizes) for sizes in two]
        problem = _difference(*pair)
        if problem is None:
            return pair
        text, constant = problem
        folded = [
            name
            for name in pair[0].folded
            if constant is not None and (constant == name or constant.startswith(f"{name}/"))
        ]
        if not folded:
            raise OnnxError(where, _sentence(text, names))
        unfolded.add(max(folded, key=len))


def _sentence(problem, names):
    return (
        f"{problem} depends on the open size{'s' if len(names) > 1 else ''} {', '.join(names)} in a way that the engine"
        " cannot follow; export the model with fixed sizes"
    )


def _difference(one, other):
    """What differs beside numbers, and the constant if it is one; None: nothing."""
    for name, values in one.constants.items():
        if name not in other.constants:
            return f"constant {name!r}", name
        if values is not other.constants[name] and (
            values.dtype != other.constants[name].dtype
            or not numpy.array_equal(values, other.constants[name], equal_nan=values.dtype.kind in "fc")
        ):
            return f"constant {name!r}", name
    if len(one.layers) != len(other.layers):
        return "the list of steps", None
    for a, b in zip(one.layers, other.layers):
        if a != b:
            return f"operator {a.op} (node {a.name!r})", None
    for name in numbered(one):
        if name not in one.constants and _form(one, name) != _form(other, name):
            return f"tensor {name!r}", None
    return None


def _form(network, name):
    view = network.views.get(name)
    return len(network.shapes.get(name, ())), network.dtypes.get(name), view and view.base


def _numbers(network):
    """The numbers of each tensor that is no constant, by place."""
    table = {}
    for name in numbered(network):
        if name in network.constants:
            continue
        table.update(((name, slot), size) for slot, size in enumerate(network.shapes[name]))
        if name in network.views:
            view = network.views[name]
            table[name, 8] = view.offset
            table.update(((name, 9 + slot), stride) for slot, stride in enumerate(view.strides))
    return table


def _fitted(network, names, grid, checks, table, where):
    sizes = OpenSizes(names, network)
    network.savings.sizes = dict(zip(names, grid[0]))
    count = len(names)
    inverse, divisor = zip(*(_interpolation(_SAMPLES[index][:_DEGREES]) for index in range(count)))
    for key, value in table[grid[0]].items():
        values = [table[point][key] for point in (*grid, *checks)]
        if all(other == value for other in values):
            continue
        factors = numpy.array(values[: len(grid)], object).reshape((_DEGREES,) * count)
        for axis in range(count):
            factors = numpy.moveaxis(numpy.tensordot(inverse[axis], factors, (1, axis)), 0, axis)
        whole = math.prod(divisor)
        terms = {exponents: factor // whole for exponents, factor in numpy.ndenumerate(factors) if factor}
        if any(factor % whole for factor in factors.flat) or any(
            _worked_out(terms, point) != table[point][key] for point in checks
        ):
            raise OnnxError(where, _sentence(f"number {key[1]} of tensor {key[0]!r}", names))
        sizes.numbers.setdefault(key[0], {})[key[1]] = terms
    units = [tuple(int(index == other) for other in range(count)) for index in range(count)]
    sizes.inputs = [
        next(
            (number, axis)
            for number, name in enumerate(network.inputs)
            for axis in range(len(network.shapes[name]))
            if sizes.numbers.get(name, {}).get(axis) == {unit: 1}
        )
        for unit in units
    ]
    _move_to(sizes, (1,) * count)
    return sizes


def _interpolation(points):
    """The matrix, of whole numbers, and the divisor that give a polynomial's factors from its values at the points."""
    columns = []
    for own in points:
        others = [point for point in points if point != own]
        numerator = numpy.array([1], object)  # from the lowest power
        for point in others:
            numerator = numpy.convolve(numerator, numpy.array([-point, 1], object))
        columns.append((numerator, math.prod(own - point for point in others)))
    divisor = math.lcm(*(abs(below) for _, below in columns))
    return numpy.array([numerator * (divisor // below) for numerator, below in columns], object).T, divisor


def _worked_out(terms, point):
    return sum(
        factor * math.prod(size**exponent for size, exponent in zip(point, exponents))
        for exponents, factor in terms.items()
    )


def _move_to(sizes, point):
    """Gives the network the numbers that it has at these sizes, if it has some there: a slice of two elements has none
    of one."""
    network = sizes.network
    shapes, views = dict(network.shapes), dict(network.views)
    for name, numbers in sizes.numbers.items():
        values = {slot: _worked_out(terms, point) for slot, terms in numbers.items()}
        shapes[name] = tuple(values.get(slot, size) for slot, size in enumerate(network.shapes[name]))
        if name in views:
            view = views[name]
            views[name] = view._replace(
                offset=values.get(8, view.offset),
                strides=tuple(values.get(9 + d, stride) for d, stride in enumerate(view.strides)),
            )
    for name, view in views.items():
        base = network.constants[view.base].shape if view.base in network.constants else shapes[view.base]
        spans = [(size - 1) * stride for size, stride in zip(shapes[name], view.strides)]
        if view.offset + sum(min(0, span) for span in spans) < 0 or view.offset + sum(
            max(0, span) for span in spans
        ) >= math.prod(base):
            return
    if all(size >= 1 for shape in shapes.values() for size in shape):
        network.shapes, network.views = shapes, views
