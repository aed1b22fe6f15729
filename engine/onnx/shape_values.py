"""Evaluates constants that depend on open sizes while the graph is read: the operands of reshapes, slices and
expansions that exporters compute from `Shape`. They are object arrays with Sizes (sizes.py). Other operators, and
values that cannot be determined, are left to layers."""

import math

import numpy

from . import sizes

# Indices of the operands that readers take as numbers; other operands are tensors that layers read.
NUMBERS = {
    "Reshape": (1,),
    "Expand": (1,),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Tile": (1,),
    "ConstantOfShape": (0,),
    "Range": (0, 1, 2),
    "Resize": (1, 2, 3),
    "Upsample": (1,),
    "Pad": (1, 3),
    "CenterCropPad": (1,),
    "TopK": (1,),
    "Compress": (1,),
    "OneHot": (1,),
    "AffineGrid": (1,),
    "Col2Im": (1, 2),
    "MaxUnpool": (2,),
    "DFT": (1, 2),
    "STFT": (1, 3),
    "HannWindow": (0,),
    "HammingWindow": (0,),
    "BlackmanWindow": (0,),
    "Squeeze": (1,),
    "Unsqueeze": (1,),
}
_MAX_ELEMENTS = 1 << 12  # elements of such a constant
_MAX_REPEATED = 64  # elements of a broadcast result; larger ones are left to a layer, which is cheaper
_OPERATORS = {}


class NotFollowed(Exception):
    """A layer must compute the value."""


def _computes(*operators):
    def enter(function):
        _OPERATORS.update(dict.fromkeys(operators, function))
        return function

    return enter


def value_of(node, values, dtypes):
    """Returns (array, dtype) of the node's result for constants `values`, some of them arrays of Sizes; None if a layer
    must compute it. `node.assumed` receives Sizes: the result is that of calls at which they are not negative."""
    function = _OPERATORS.get(node.op)
    if function is None or any(value is not None and value.size > _MAX_ELEMENTS for value in values):
        return None
    try:
        result, dtype = function(node, [None if value is None else value.astype(object) for value in values], dtypes)
    except NotFollowed, ArithmeticError, LookupError, TypeError, ValueError:
        return None
    operand_size = max((value.size for value in values if value is not None), default=0)
    if result.size > _MAX_ELEMENTS or (result.size > max(_MAX_REPEATED, operand_size) and sizes.is_open(result)):
        return None
    return result, numpy.dtype(dtype)


def parts_of(node, values):
    """The outputs of Split for a constant that depends on sizes, one array each; None if a layer must compute them."""
    try:
        part_sizes = (
            node.get("split") if len(values) < 2 or values[1] is None else _fixed_integers(values[1].astype(object))
        )
    except NotFollowed:
        return None
    axis, count = node.get("axis", 0), len(node.outputs)
    if part_sizes is None:
        part_size = -(-values[0].shape[axis] // count)
        part_sizes = [part_size] * (count - 1)
    ends = numpy.cumsum(part_sizes)[: count - 1]
    return numpy.split(values[0].astype(object), ends, axis)


def _array(items, shape):
    result = numpy.empty(len(items), object)
    result[:] = items
    return result.reshape(shape)


def _elementwise(function, *operands):
    operands = numpy.broadcast_arrays(*operands)
    return _array([function(*items) for items in zip(*(operand.flat for operand in operands))], operands[0].shape)


def _integers(dtype):
    if dtype.kind not in "iub":
        raise NotFollowed
    return dtype


def _fixed_integers(values):
    """The integers of an operand that configures the operator; it must not depend on sizes."""
    if sizes.is_open(values):
        raise NotFollowed
    return [int(value) for value in values.flat]


# ---- elementwise
@_computes("Identity")
def _identity(node, values, dtypes):
    return values[0], dtypes[0]


@_computes("Cast")
def _cast(node, values, dtypes):
    from onnx import helper

    dtype = numpy.dtype(helper.tensor_dtype_to_np_dtype(node.get("to")))
    if dtypes[0].kind == "f" and not all(isinstance(value, int) for value in values[0].flat):
        raise NotFollowed
    if dtype.kind == "b":
        return _elementwise(lambda value: _truth(value, 0, "!=", node.assumed), values[0]), dtype
    if dtype.kind != "f" or dtype.itemsize < 4:  # float32 and float64 represent sizes exactly
        _integers(dtype)
    return values[0], dtype


def _divided(a, b):
    """Quotient rounded towards zero. A difference of sizes such as (length - 10) / 5 is assumed to be non-negative:
    exporters write quotients of sizes this way, and a window larger than its operand is invalid."""
    if sizes.is_open(a) or sizes.is_open(b):
        minimum = sizes.at_least(b)
        if a < 0 or minimum is None or minimum < 0:
            raise NotFollowed
        return a // b
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _larger(a, b, assumed):
    """The larger one, if that is the same at all sizes; else at all sizes of at least 1."""
    for open_size in (0, 1):
        for one, other in ((a, b), (b, a)):
            bound = sizes.at_least(one - other, open_size)
            if bound is not None and bound >= 0:
                _assume(one - other, assumed)
                return one
    raise NotFollowed


def _assume(size, assumed):
    """Adds the size, which is not negative where open sizes are at least 1, unless it never is."""
    bound = sizes.at_least(size, counted=1)
    if bound is None or bound < 0:
        assumed.append(size)


_ARITHMETIC = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Div": _divided,
    "Mod": lambda a, b: a % b,
}


@_computes(*_ARITHMETIC, "Max", "Min")
def _arithmetic(node, values, dtypes):
    _integers(dtypes[0])

    def function(a, b):
        if node.op in _ARITHMETIC:
            return _ARITHMETIC[node.op](a, b)
        larger = _larger(a, b, node.assumed)
        return larger if node.op == "Max" else a + b - larger

    result = values[0]
    for value in values[1:]:
        result = _elementwise(function, result, value)
    return result, dtypes[0]


@_computes("Neg")
def _negative(node, values, dtypes):
    return _elementwise(lambda a: -a, values[0]), _integers(dtypes[0])


def _truth(a, b, relation, assumed):
    """Whether the relation holds, if that is the same at all sizes; else at all sizes of at least 1, and counted ones
    are taken to be that; else NotFollowed."""
    low, high = sizes.at_least(a - b, 1, counted=1), sizes.at_least(b - a, 1, counted=1)
    above, below = low is not None and low > 0, high is not None and high > 0
    equal = not sizes.is_open(a - b) and a - b == 0
    if not (above or below or equal):
        if relation in (">=", "<") and low is not None and low >= 0:
            _assume(a - b, assumed)
            return relation == ">="
        if relation in ("<=", ">") and high is not None and high >= 0:
            _assume(b - a, assumed)
            return relation == "<="
        raise NotFollowed
    if above or below:
        _assume((a - b if above else b - a) - 1, assumed)
    return {">": above, ">=": not below, "<": below, "<=": not above, "==": equal, "!=": not equal}[relation]


_RELATIONS = {"Equal": "==", "Greater": ">", "GreaterOrEqual": ">=", "Less": "<", "LessOrEqual": "<="}


@_computes(*_RELATIONS)
def _compared(node, values, dtypes):
    _integers(dtypes[0])
    return _elementwise(lambda a, b: _truth(a, b, _RELATIONS[node.op], node.assumed), *values), numpy.bool_


def if_none(node, values, counted):
    """For a comparison of a single `counted` size with a number: (the size's name, the result if the size is 0). None
    for other nodes. Everywhere else a counted size is taken to be at least 1."""
    relation = _RELATIONS.get(node.op)
    if relation is None or any(value is None or value.size != 1 for value in values):
        return None
    one, other = (value.astype(object).item() for value in values)
    terms = sizes.terms_of(one - other)
    if len(sizes.variables(terms)) != 1 or not sizes.variables(terms) <= set(counted) or set(map(len, terms)) - {0, 1}:
        return None
    [name] = sizes.variables(terms)
    if set(terms) - {(), (name,)}:
        return None
    rest = terms.get((), 0)
    return name, {">": rest > 0, ">=": rest >= 0, "<": rest < 0, "<=": rest <= 0, "==": rest == 0}[relation]


@_computes("Where")
def _chosen(node, values, dtypes):
    return _elementwise(lambda choice, a, b: a if choice else b, *values), dtypes[1]


# ---- rearrangements
@_computes("Gather")
def _gathered(node, values, dtypes):
    indices = numpy.array(_fixed_integers(values[1]), numpy.int64).reshape(values[1].shape)
    return numpy.asarray(numpy.take(values[0], indices, node.get("axis", 0)), object), dtypes[0]


@_computes("Slice")
def _sliced(node, values, dtypes):
    starts, ends = (_fixed_integers(value) for value in values[1:3])
    axes = _fixed_integers(values[3]) if len(values) > 3 and values[3] is not None else range(len(starts))
    steps = _fixed_integers(values[4]) if len(values) > 4 and values[4] is not None else [1] * len(starts)
    result = values[0]
    for start, end, axis, step in zip(starts, ends, axes, steps):
        end = None if step < 0 and end < -result.shape[axis] else end
        result = result[(slice(None),) * (axis % result.ndim) + (slice(start, end, step),)]
    return result, dtypes[0]


@_computes("Concat")
def _joined(node, values, dtypes):
    return numpy.concatenate(values, node.get("axis")), dtypes[0]


def _axes(node, values):
    return node.get("axes") if len(values) < 2 or values[1] is None else _fixed_integers(values[1])


@_computes("Unsqueeze")
def _unsqueezed(node, values, dtypes):
    return numpy.expand_dims(values[0], tuple(_axes(node, values))), dtypes[0]


@_computes("Squeeze")
def _squeezed(node, values, dtypes):
    axes = _axes(node, values)
    return numpy.asarray(numpy.squeeze(values[0], None if axes is None else tuple(axes)), object), dtypes[0]


@_computes("Transpose")
def _transposed(node, values, dtypes):
    return values[0].transpose(node.get("perm")), dtypes[0]


@_computes("Reshape")
def _reshaped(node, values, dtypes):
    return values[0].reshape(_fixed_integers(values[1])), dtypes[0]


@_computes("Expand")
def _expanded(node, values, dtypes):
    shape = numpy.broadcast_shapes(values[0].shape, tuple(_fixed_integers(values[1])))
    return numpy.broadcast_to(values[0], shape), dtypes[0]


@_computes("ReduceProd", "ReduceSum")
def _reduced(node, values, dtypes):
    axes = _axes(node, values)
    if values[0].ndim != 1 or axes not in (None, [0], [-1]):
        raise NotFollowed
    total = math.prod(values[0]) if node.op == "ReduceProd" else sum(values[0])
    return _array([total], (1,) if node.get("keepdims", 1) else ()), _integers(dtypes[0])
