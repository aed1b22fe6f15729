"""Merges equal layers: a result of one operator on equal operands is computed once, and so is a whole assembled from
equal parts (rasters, in the paper's terms: a transpose or concatenation that two branches of a model request)."""

import hashlib

from .network import Layer, float_bits, same_strides

# Operators whose results depend only on their operands: all at present. An operator that draws random numbers or keeps
# a state must not be listed.
_PURE = frozenset(
    {
        "Conv",
        "MaxPool",
        "AveragePool",
        "GlobalAveragePool",
        "Gemm",
        "Add",
        "Relu",
        "Flatten",
        "Clip",
        "Concat",
        "Slice",
        "Shuffle",
        "Interleave",
        "Copy",
        "Unary",
        "Binary",
        "Where",
        "Reduce",
        "MatMul",
        "Gather",
        "Softmax",
        "Normalize",
        "Activate",
        "Scan",
        "Argsort",
        "Scatter",
        "Attention",
        "Recurrence",
        "Trees",
        "Couple",
        "IntegerProduct",
        "Quantize",
        "Dequantize",
        "QuantizedAdd",
        "QuantizedMultiply",
        "LookUp",
        "NarrowProduct",
        "Blend",
        "Sample",
        "Regions",
        "Fourier",
        "Bits",
        "Suppress",
        "ByteMaxPool",
        "IntegerMean",
    }
)

_PREFIX = 16  # leading elements of constants, compared first


def merge_equal(network):
    """Removes layers that repeat an earlier one, and constants equal to others. Returns whether anything changed."""
    replacements = _constants(network)  # removed bases to the equal ones that stay
    named = {}  # staying bases to the model outputs whose names they take
    last, early = _written(network)
    writers, firsts, kept, outputs, copied = {}, {}, [], set(network.outputs), False
    impure = set()  # bases that another operator writes a part of
    for number, layer in enumerate(network.layers):
        base, *written = _operand(network, layer.output, {})
        writers.setdefault(base, []).append(
            (
                layer.op,
                tuple([name and _operand(network, name, replacements) for name in layer.inputs]),
                layer.window,
                layer.relu,
                layer.bounds and tuple(map(float_bits, layer.bounds)),
                layer.curve,
                layer.further,
                layer.parameters,
                tuple(written),
            )
        )
        kept.append(layer)
        if layer.op not in _PURE:
            impure.add(base)
        if number != last[base] or base in early or base in impure:
            continue
        first = firsts.setdefault((network.shape(base), network.dtype(base), tuple(writers[base])), base)
        if first == base:
            continue
        if base not in outputs:
            replacements[base] = first
        elif first not in outputs and first not in named:
            replacements[base], named[first] = first, base
        elif len(writers[base]) == 1:
            kept[-1], copied = Layer("Copy", layer.name, [first], layer.output), True  # two outputs are two tensors

    if not replacements and not copied:
        return False

    renames = named | {name: named.get(equal, equal) for name, equal in replacements.items()}
    network.layers = [layer for layer in kept if network.base(layer.output) not in replacements]
    for layer in network.layers:
        layer.inputs = [renames.get(name, name) for name in layer.inputs]
        layer.output = renames.get(layer.output, layer.output)
    network.views = {
        name: view._replace(base=renames[view.base]) if view.base in renames else view
        for name, view in network.views.items()
    }
    network.constants = {name: values for name, values in network.constants.items() if name not in replacements}
    return True


def _constants(network):
    candidates, replacements = {}, {}
    for name, values in network.constants.items():
        candidates.setdefault((values.dtype, values.shape, values.flat[:_PREFIX].tobytes()), []).append(name)
    for names in candidates.values():
        first_by_digest = {}
        for name in names if len(names) > 1 else ():  # only candidates are hashed in full
            first = first_by_digest.setdefault(hashlib.sha256(network.constants[name].tobytes()).digest(), name)
            if first != name:
                replacements[name] = first
    return replacements


def _written(network):
    """Returns (index of the last layer that writes each base, bases that are read before that layer)."""
    views = network.views
    last = {network.base(layer.output): number for number, layer in enumerate(network.layers)}
    early = set()
    for number, layer in enumerate(network.layers):
        for name in layer.inputs:
            base = views[name].base if name in views else name
            if base in last and last[base] >= number:
                early.add(base)
    return last, early


def _operand(network, name, replacements):
    """The elements that the tensor consists of: equal for equal tensors. Dense ones have no strides."""
    view, shape = network.views.get(name), network.shape(name)
    if view is None:
        return replacements.get(name, name), 0, shape, None
    strides = None
    if not same_strides(shape, view.strides):
        strides = tuple(0 if size == 1 else stride for size, stride in zip(shape, view.strides))
    return replacements.get(view.base, view.base), view.offset, shape, strides
