"""Open sizes of an ONNX model (numbers of examples, lengths of sequences): one model file for all of them.

The model is read at sample sizes. Each number in it (a size, an offset or a stride) carries its polynomial in the open
sizes (sizes.py). A second reading at other sizes must give the same layers and constants, and
numbers that agree with the polynomials. The passes (passes.py) work on Sizes alone, so only one network is improved;
if the two differ before the passes, both are improved and must agree afterwards. If they do not, the model depends on
sizes in a way that polynomials cannot express, and the error says where. Sizes that must be equal because the model
combines two tensors, such as a mask's length and that of the masked tensor, are unified.

The file contains the polynomials; the engine evaluates them for a call's sizes (docs/model-format.md)."""

import copy
import itertools
import math

import numpy

from .passes import drop_dead, improve
from .problems import WHATEVER_SIZES, OnnxError
from .sizes import Size, Unequal, evaluated, label, terms_of, variables
from .writing import numbered

# Sample sizes: large and odd enough not to coincide with other numbers of a model. If they fail, try larger ones first
# (a full mask, then the shorter cache); then, except for numbers of examples, multiples: for models that halve and
# double an image, or make one element of many audio samples. Conditions found only there are checked at each call, like
# all others in the file.
_SAMPLES = ((11, 17, 19, 23, 29, 31, 37, 41), (13, 26, 34, 22, 38, 46, 58, 62))
_PICTURE_SAMPLES = ((197, 211, 227, 239, 251, 263, 269, 281), (262, 230, 278, 246, 294, 310, 326, 342))  # image sides
_SMALL_SAMPLES = ((3, 5, 7, 8, 9, 10, 11, 12), (4, 6, 5, 9, 10, 11, 13, 14))  # for tables of few positions
_FACTORS = ((3, 5, 7, 11, 13, 17, 19, 23), (4, 6, 9, 8, 10, 14, 15, 21))
_TRIES = ((None, False), (None, True), (64, False), (1920, False))  # (multiple, largest size first)
_BROADCASTS = {"Binary", "Where"}
_PICTURE, _COUNT = 224, 32  # sizes that algorithms are chosen for: image sides, counted elements
# Elements of a tensor at those sizes; above it, smaller sizes are tried first. Attention between all pixels of 224 x
# 224 exceeds what the engine can open.
_LARGEST_TENSOR = 1 << 26
_ROUND = (2, 3, 4, 6, 12, 60)  # sizes to try if those do not fit: a Reshape may need a multiple
_FEWER = (1, 4, 16)  # tried last: differences between one count and the next, as a part is less than the whole
MAX_OPEN_SIZES = 64
_LISTED = 6  # names listed in a message
_MAX_DEGREE = 8  # variables in a term
_MAX_QUOTIENTS = 239
_MAX_VARIABLES = 255  # open sizes and quotients together: a term names one in a byte
_MAX_READINGS = 64  # each, except the last two, unifies two sizes


def find(model):
    """Returns (the inputs' dimensions without a number, by name; these names by (input, axis); the names of image
    heights and widths). Unnamed dimensions get a name. Calls choose the size of each name."""
    constants, dimensions, named_axes = {item.name for item in model.graph.initializer}, {}, {}
    for value in model.graph.input:
        if value.name in constants:
            continue
        for axis, size in enumerate(value.type.tensor_type.shape.dim):
            if not size.HasField("dim_value"):
                if not size.dim_param:
                    size.dim_param = f"{value.name}[{axis}]"
                dimensions.setdefault(size.dim_param, [])
                named_axes[value.name, axis] = size.dim_param
    for value in model.graph.input:  # declared sizes of other tensors follow, and may be wrong
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param in dimensions:
                dimensions[size.dim_param].append(size)
    return dimensions, named_axes, _pictures(model, named_axes)


class OpenSizes:
    """The file's records of open sizes: `names`; `inputs`, (index of an input, dimension) of each;
    `numbers[tensor][slot]`, the terms (sizes.py) of each number that varies; `needs` of calls; `quotients` in the
    terms, each after those that it contains. Slots: 0 to 7 are sizes, 8 is the offset, 9 to 16 are strides."""

    def __init__(self, names, network):
        self.names, self.numbers, self.quotients = names, {}, {}
        self.inputs, self.needs = [], []
        self.network = network

    def follow(self, name, slot, terms, where):
        """Records that number's polynomial."""
        if any(len(factors) > _MAX_DEGREE for factors in terms):
            raise OnnxError(where, _sentence(f"a product of more than {_MAX_DEGREE} sizes", self.names))
        self._divide(terms, where)
        self.numbers.setdefault(name, {})[slot] = terms

    def add_need(self, need, where):
        """Records a condition on calls."""
        if any(len(factors) > _MAX_DEGREE for factors in need.terms):
            raise OnnxError(where, _sentence(f"a product of more than {_MAX_DEGREE} sizes", self.names))
        self._divide(need.terms, where)
        self.needs.append(need)

    def _divide(self, terms, where):
        for variable in itertools.chain.from_iterable(terms):
            if isinstance(variable, tuple) and variable not in self.quotients:
                for part in variable[1:]:
                    self._divide(dict(part), where)
                self.quotients[variable] = None
        limit = min(_MAX_QUOTIENTS, _MAX_VARIABLES - len(self.names))
        if len(self.quotients) > limit:
            raise OnnxError(where, _sentence(f"more than {limit} quotients of sizes", self.names))

    def size_text(self, size):
        return self.label(terms_of(size))

    def label(self, terms):
        return label(terms, self.names)


class Opens:
    """The sizes of one reading: `variables` are the open sizes, `shape` gives the Sizes of inputs. `number` counts
    readings; `counts` maps counted sizes (parts.py) that must equal another one to its name, or to terms.
    `beyond_an_end`: a slice by these sizes ends beyond a fixed dimension."""

    def __init__(self, named_axes, numbers, number=0, counts=None):
        self.beyond_an_end = False
        self.number, self.counts, self._counted = number, counts or {}, {}
        self.variables = {name: number for name, number in numbers.items() if terms_of(number) == {(name,): 1}}
        self._sizes = {axis: numbers[name] for axis, name in named_axes.items()}

    def counted(self, name, sample):
        """The sample of a counted size: `sample`, or that of a counted size that it must equal."""
        target = self.counts.get(name, name)
        if not isinstance(target, str):
            return evaluated(target, {variable: int(size) for variable, size in self.variables.items()})
        return self._counted.setdefault(target, sample)

    def shape(self, name, sizes):
        return tuple(self._sizes.get((name, axis), size) for axis, size in enumerate(sizes))


def compile_open(open_dimensions, network_at, where):
    """The improved networks of all parts (parts.py) at small sizes, each with its OpenSizes; None if nothing is open.
    `open_dimensions` is the result of find(); `network_at(opens)` reads the model at those sizes."""
    first_error = None
    try:
        for multiple, largest_first in _TRIES:
            try:
                compile_at = _compile_around if (multiple, largest_first) == _TRIES[0] else _compile_at
                return compile_at(
                    _Samples(open_dimensions, multiple, largest_first), open_dimensions, network_at, where
                )
            except OnnxError as error:
                first_error = first_error or error
                if not any(axis > 0 for _, axis in open_dimensions[1]):
                    break
        raise first_error
    finally:
        first_error = None  # its traceback references this frame


def _compile_around(samples, open_dimensions, network_at, where):
    """`_compile_at`. A model with a table of few positions is compiled at lengths that the table has, if it fits
    there: the samples may exceed it, and the model would be one of these lengths alone."""
    compiled = first_error = None
    try:
        try:
            compiled = _compile_at(samples, open_dimensions, network_at, where)
        except OnnxError as error:
            first_error = error
        if samples.beyond_an_end:
            small_samples = _Samples(open_dimensions, None, few=True)
            try:
                within_table = _compile_at(small_samples, open_dimensions, network_at, where)
                if not small_samples.beyond_an_end:
                    return within_table
            except OnnxError:
                pass  # the first result or error counts
        if first_error:
            raise first_error
        return compiled
    finally:
        first_error = None  # its traceback references this frame


class _Samples:
    """Sizes to read a model at: `names` are the free ones, `values_at(number)` gives their values in that reading,
    small ones with `few`. `beyond_an_end`: as of a reading's Opens."""

    def __init__(self, open_dimensions, multiple, largest_first=False, few=False):
        dimensions, named_axes, self.pictures = open_dimensions
        self._few, self.beyond_an_end = few, False
        self.names, self._multiple, self._largest_first = list(dimensions), multiple, largest_first
        self._counts = {
            name
            for name in dimensions
            if {axis for (_, axis), axis_name in named_axes.items() if axis_name == name} == {0}
        }

    def values_at(self, number):
        values = []
        for position, name in enumerate(self.names):
            index = len(self.names) - 1 - position if self._largest_first else position
            candidates = (_PICTURE_SAMPLES if name in self.pictures else _SMALL_SAMPLES if self._few else _SAMPLES)[
                number
            ]
            size = candidates[index % len(candidates)] + 60 * (index // len(candidates))
            if self._multiple and name not in self._counts:
                candidates = _FACTORS[number]
                size = self._multiple * (candidates[index % len(candidates)] + 24 * (index // len(candidates)))
            values.append(size)
        return values


def _compile_at(samples, open_dimensions, network_at, where):
    dimensions, named_axes, pictures = open_dimensions
    bound = {}  # names of open sizes to the terms of others that they must equal
    counts = {}  # names of counted sizes to the names or terms that they must equal

    def numbers_at(number):
        """{name: Size}."""
        free = {name: Size.open(name, size) for name, size in zip(samples.names, samples.values_at(number))}
        values = {name: int(size) for name, size in free.items()}
        return free | {
            name: Size(evaluated(terms, values), terms) if any(terms) else terms.get((), 0)
            for name, terms in bound.items()
        }

    def read_at(number):
        numbers = numbers_at(number)
        for name, size in numbers.items():
            for dimension in dimensions[name]:
                dimension.dim_value = int(size)
        opens = Opens(named_axes, numbers, number, counts)
        try:
            return network_at(opens)
        except OnnxError as error:
            if not dimensions or all(getattr(one, "remedy", None) in WHATEVER_SIZES for one in error.messages):
                raise
            sample_text = _listed(f"{name} = {size}" for name, size in numbers.items())
            note = (
                f"that is at {sample_text}, tried since the model leaves {_listed(dimensions)} open; export it with"
                " fixed sizes if it cannot take all"
            )
            raise OnnxError(where, *error.messages, note) from error
        finally:
            samples.beyond_an_end |= opens.beyond_an_end

    for _ in range(_MAX_READINGS):
        samples.names = [name for name in dimensions if name not in bound]
        try:
            if len(samples.names) > MAX_OPEN_SIZES + 8:
                raise _too_many(samples.names, [], where)
            first, second = read_at(0), read_at(1)
            break
        except Unequal as unequal:
            if not _count_as(counts, unequal, set(dimensions)):
                _bind(bound, unequal, where, samples.names, set(dimensions))
    else:
        raise OnnxError(where, f"leaves more sizes open than can be followed: {_listed(samples.names)}")
    if len(first) != len(second):
        raise OnnxError(where, _sentence("the list of parts", samples.names))
    return [_improved(*pair, samples, where) for pair in zip(first, second)]


def _count_as(counts, unequal, free):
    """Unifies the two sizes if one is counted: later readings use the other, and calls check it. Returns whether it
    did."""
    for size, other in ((unequal.one, unequal.other), (unequal.other, unequal.one)):
        name, known = _counted_name(size, free), _counted_name(other, free)
        if not name or name in counts:
            continue
        while isinstance(known, str) and known in counts:
            known = counts[known]
        if known is None and variables(terms_of(other)) <= free:
            known = terms_of(other)
        if known is not None and known != name:
            counts[name] = known
            return True
    return False


def _counted_name(size, free):
    terms = terms_of(size)
    [factors, factor] = next(iter(terms.items())) if len(terms) == 1 else [(), 0]
    if factor == 1 and len(factors) == 1 and isinstance(factors[0], str) and factors[0] not in free:
        return factors[0]
    return None


def _improved(first, second, samples, where):
    """Returns (one part's improved network, its OpenSizes)."""
    names, pictures = samples.names, samples.pictures
    sample_values = [
        dict(zip(names, samples.values_at(number))) | _counted(network)
        for number, network in enumerate((first, second))
    ]
    open_names = [
        name for name in sample_values[0] if any(_has_dimension(first, name, tensor) for tensor in first.inputs)
    ]
    if len(open_names) > MAX_OPEN_SIZES:
        raise _too_many(open_names, [name for name in open_names if name not in names], where)
    first_sizes, second_sizes = ({name: sizes[name] for name in open_names} for sizes in sample_values)
    agree = _is_alike(first, second, second_sizes)
    improve(first)
    if not agree:
        improve(second)
    problem = _open_parameter(first) if agree else _difference(first, second) or _mismatch(first, second, second_sizes)
    if problem:
        raise OnnxError(where, _sentence(problem, names or open_names))
    if not open_names:
        return first, None
    return first, _open_sizes_of(first, first_sizes, pictures, where)


def _too_many(names, counted, where):
    """The error for too many open sizes; `counted` ones are among them."""
    remedy = "fix others when exporting"
    if counted:
        remedy = (
            f"{len(counted)} of them follow from values, such as how many elements NonZero finds: export the model"
            " without the operators that find them, or in parts"
        )
    return OnnxError(
        where, f"leaves {len(names)} sizes open ({_listed(names)}), at most {MAX_OPEN_SIZES} can be; {remedy}"
    )


def _listed(names):
    """The first names, and the number of the others."""
    names = list(names)
    if len(names) <= _LISTED + 1:
        return ", ".join(names)
    return f"{', '.join(names[:_LISTED])} and {len(names) - _LISTED} more"


def _is_alike(first, second, sizes):
    """Whether the needed parts of both networks, before the passes, agree."""
    one, other = copy.copy(first), copy.copy(second)
    drop_dead(one)
    drop_dead(other)
    return not _difference(one, other) and not _mismatch(one, other, sizes)


def _counted(network):
    return {name: int(network.shapes[ruler][0]) for name, (_, ruler) in network.counted.items()}


def _has_dimension(network, name, tensor):
    """Whether a dimension of that input is the open size itself."""
    return any(terms_of(size) == {(name,): 1} for size in network.shapes[tensor])


def _bind(bound, unequal, where, names, free):
    """Replaces one of two sizes that must be equal, an open size itself, by the other."""
    solutions = [
        (name, terms)
        for name, terms in _solutions(unequal.one - unequal.other)
        if name in free and variables(terms) <= free and any(factor > 0 for factor in terms.values())
    ]
    # A size is at least 1, so a solution needs a positive term. Prefer sums: a total length is the sum of the past and
    # the added one, rather than one of these a difference.
    if solutions:
        name, terms = min(solutions, key=lambda pair: any(factor < 0 for factor in pair[1].values()))
        for key, other_terms in bound.items():
            bound[key] = _substituted(other_terms, name, terms)
        bound[name] = terms
        return
    raise OnnxError(
        where,
        f"works on tensors of the sizes {OpenSizes(names, None).size_text(unequal.one)} and"
        f" {OpenSizes(names, None).size_text(unequal.other)} as if they were equal; export the model with fixed sizes",
    )


def _solutions(difference):
    """Yields (name of an open size, the terms that make the difference 0)."""
    for factors, factor in terms_of(difference).items():
        if factor in (-1, 1) and len(factors) == 1 and isinstance(factors[0], str):
            others = {
                other: -factor * other_factor
                for other, other_factor in terms_of(difference).items()
                if other != factors
            }
            if factors[0] not in variables(others):
                yield factors[0], others


def _substituted(terms, name, other):
    """The polynomial with `other` substituted for the open size `name`."""
    total = 0
    for factors, factor in terms.items():
        parts = [Size(1, other) if variable == name else Size(1, {(variable,): 1}) for variable in factors]
        total = total + math.prod(parts) * factor
    return terms_of(total)


def _sentence(problem, names):
    return (
        f"{problem} depends on the open size{'s' if len(names) > 1 else ''} {_listed(names)} in a way that the engine"
        " cannot follow; export the model with fixed sizes"
    )


def _difference(one, other):
    """The difference between two networks apart from numbers; None if there is none."""
    for name, values in one.constants.items():
        if name not in other.constants:
            return f"constant {name!r}"
        if values is not other.constants[name] and (
            values.dtype != other.constants[name].dtype
            or not numpy.array_equal(values, other.constants[name], equal_nan=values.dtype.kind in "fc")
        ):
            return f"constant {name!r}"
    if len(one.layers) != len(other.layers):
        return "the list of steps"
    for a, b in zip(one.layers, other.layers):
        if a is not b and a != b:
            return _operator(a)
    for name in numbered(one):
        if name not in one.constants and _form(one, name) != _form(other, name):
            return f"tensor {name!r}"
    return _open_parameter(one)


def _open_parameter(network):
    """The first operator with an open size as a parameter, which the file stores as a plain number; None if there is
    none."""
    for layer in network.layers:
        for size in (*layer.window, *layer.further, *layer.parameters):
            if isinstance(size, Size):
                return _operator(layer)
    return None


def _operator(layer):
    return f"operator {layer.op} (node {layer.name!r})"


def _mismatch(network, other, sizes):
    """A tensor's number whose polynomial, evaluated at the `sizes` of the other network, gives another value; None if
    there is none."""
    numbers, values = _numbers(other), {}
    for (name, slot), value in _numbers(network).items():
        if _evaluated(value, sizes, values) != int(numbers[name, slot]):
            return f"number {slot} of tensor {name!r}"
    return None


def _evaluated(number, point, cache):
    """The number at those sizes; `cache` keeps the values of Sizes."""
    if not isinstance(number, Size):
        return number
    entry = cache.get(id(number))
    if entry is None:  # keeps the Size alive, so that its id is not reused
        entry = cache[id(number)] = evaluated(number.terms, point), number
    return entry[0]


def _form(network, name):
    view = network.views.get(name)
    return len(network.shapes.get(name, ())), network.dtypes.get(name), view and view.base


def _numbers(network):
    """The numbers of each tensor except constants, by slot (OpenSizes)."""
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


def _open_sizes_of(network, sample_sizes, pictures, where):
    """The OpenSizes of a network read at `sample_sizes`: the polynomial of each number that varies."""
    names = list(sample_sizes)
    sizes = OpenSizes(names, network)
    network.savings.sizes = sample_sizes
    for (name, slot), value in _numbers(network).items():
        if isinstance(value, Size) and any(value.terms):
            sizes.follow(name, slot, value.terms, where)
    for need in network.needs.values():
        sizes.add_need(need, where)
    sizes.inputs = [
        next(
            (number, axis)
            for number, name in enumerate(network.inputs)
            for axis in range(len(network.shapes[name]))
            if sizes.numbers.get(name, {}).get(axis) == {(size_name,): 1}
        )
        for size_name in names
    ]
    # small sizes may be invalid: a part that begins after the first element is empty at size 1
    points = ((_PICTURE, _COUNT, 1), (_PICTURE, 1, 1), (1, 1, 1), (_PICTURE, 1, _COUNT), *((n, n, n) for n in _ROUND))
    for largest, (picture, counted, other) in itertools.product((_LARGEST_TENSOR, None), points):
        likely_sizes = {**dict.fromkeys(pictures, picture), **dict.fromkeys(network.counted, counted)}
        if _move_to(sizes, [likely_sizes.get(name, other) for name in names], largest):
            return sizes
    for step in _FEWER if network.counted else ():
        counts = {name: step * (len(network.counted) - number) for number, name in enumerate(network.counted)}
        if any(
            _move_to(sizes, [(dict.fromkeys(pictures, _PICTURE) | counts).get(name, other) for name in names])
            for other in (1, _COUNT)
        ):
            break
    return sizes


def _pictures(model, named_axes):
    """The open sizes that are heights or widths of images: adjacent dimensions of a rank-4 input after the first. If
    the first of three is open as well, it counts channels."""
    ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in model.graph.input}
    sides = {(name, axis) for name, axis in named_axes if ranks[name] == 4 and axis >= 1}
    sides -= {(name, 1) for name, axis in sides if {(name, 2), (name, 3)} <= sides}
    return {named_axes[name, axis] for name, axis in sides if {(name, axis - 1), (name, axis + 1)} & sides}


def _fits(layer, constants, shapes):
    """Whether the operands broadcast to the result's shape; calls do not check that for counted sizes."""
    shape = shapes[layer.output]
    for name in layer.inputs:
        operand_shape = constants[name].shape if name in constants else shapes[name]
        if any(size not in (1, result_size) for size, result_size in zip(operand_shape[::-1], shape[::-1])):
            return False
    return True


def _move_to(sizes, point, largest=None):
    """Sets the network's numbers to those at these sizes. Returns False if the sizes are invalid, e.g. a slice of two
    elements at size 1, or a tensor whose shape is open has more than `largest` elements at them."""
    network, values_at = sizes.network, dict(zip(sizes.names, point))
    shapes, views = dict(network.shapes), dict(network.views)
    term_values = {}  # ids of terms to their values
    for name, numbers in sizes.numbers.items():
        values = {}
        for slot, terms in numbers.items():
            if id(terms) not in term_values:
                try:
                    term_values[id(terms)] = evaluated(terms, values_at)
                except ZeroDivisionError:
                    return False
            values[slot] = term_values[id(terms)]
        shapes[name] = tuple(values.get(slot, size) for slot, size in enumerate(network.shapes[name]))
        if name in views:
            view = views[name]
            views[name] = view._replace(
                offset=values.get(8, view.offset),
                strides=tuple(values.get(9 + d, stride) for d, stride in enumerate(view.strides)),
            )
    for name, view in views.items():
        base_shape = network.constants[view.base].shape if view.base in network.constants else shapes[view.base]
        spans = [(size - 1) * stride for size, stride in zip(shapes[name], view.strides)]
        if view.offset + sum(min(0, span) for span in spans) < 0 or view.offset + sum(
            max(0, span) for span in spans
        ) >= math.prod(base_shape):
            return False
    is_valid = all(size >= 1 for shape in shapes.values() for size in shape) and not any(
        need.equal and evaluated(need.terms, values_at) for need in network.needs.values()
    )
    is_valid = is_valid and all(
        _fits(layer, network.constants, shapes) for layer in network.layers if layer.op in _BROADCASTS
    )
    if largest is not None:
        is_valid = is_valid and all(math.prod(shapes[name]) <= largest for name in sizes.numbers if name in shapes)
    if is_valid:
        network.move(shapes, views)
    return is_valid
