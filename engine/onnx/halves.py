"""Computes float16 networks with matrix products in float32, as ONNX Runtime does on CPUs: weights stay float16
(NarrowProduct); tensors become float32 unless they are inputs, outputs, casts of the model, or operands of operators
that are not in `_WIDENED`. Results are rounded less often, and passes find their patterns."""

import numpy

from .network import Layer, dtype_number

_HALF, _SINGLE = numpy.dtype("float16"), numpy.dtype("float32")
_WIDENED = {"Unary", "Binary", "Reduce", "MatMul", "Where", "Copy", "NarrowProduct"}
_COMPUTES_IN = {"Unary", "Binary", "Reduce"}  # their second parameter is the compute dtype; the result is cast


def widen_halves(network):
    """Widens the network. Returns whether it changed."""
    if not any(
        layer.op in ("MatMul", "NarrowProduct") and network.dtype(layer.output) == _HALF for layer in network.layers
    ):
        return False
    unchanged_bases = {network.base(name) for name in (*network.inputs, *network.outputs, *network.rounded)}
    for layer in network.layers:
        if layer.op not in _WIDENED:
            unchanged_bases.update(network.base(name) for name in (*layer.inputs, layer.output) if name)
    casts = {layer.output for layer in network.layers if network.dtype(layer.inputs[0]) != network.dtype(layer.output)}
    for name, dtype in network.dtypes.items():
        base = network.base(name)
        if dtype == _HALF and base not in unchanged_bases and base not in network.constants:
            network.dtypes[name] = _SINGLE
    layers, widened = network.layers, {}
    network.layers = []
    for layer in layers:
        if layer.op in _COMPUTES_IN and layer.parameters[1] == dtype_number(_HALF):
            first, _, *rest = layer.parameters
            layer.parameters = (first, dtype_number(_SINGLE), *rest)
            layer.inputs = [_as_single(network, name, widened) for name in layer.inputs]
            network.layers.append(layer)
        elif layer.op in ("MatMul", "Where", "NarrowProduct"):
            _widen_operands(network, layer, widened)
        elif layer.op == "Copy" and _is_redundant_cast(network, layer, casts):
            network.become_view(layer.output, network.as_view(layer.inputs[0]))
        else:
            network.layers.append(layer)
    return True


def _is_redundant_cast(network, layer, casts):
    """Whether the copy was a cast that widening has made redundant."""
    [source] = layer.inputs
    return (
        layer.output in casts
        and layer.output not in network.views
        and layer.output not in network.outputs
        and network.dtype(source) == network.dtype(layer.output) == _SINGLE
        and network.base(source) not in network.constants
        and network.shape(source) == network.shape(layer.output)
        and network.is_dense(source)
    )


def _widen_operands(network, layer, widened):
    """Appends the layer. If some of its operands and its result are float32 and others float16, all become float32; a
    float16 result is cast back afterwards."""
    operand_indices = range(1) if layer.op == "NarrowProduct" else range(layer.op == "Where", len(layer.inputs))
    dtypes = {network.dtype(layer.inputs[index]) for index in operand_indices} | {network.dtype(layer.output)}
    if dtypes != {_HALF, _SINGLE}:
        network.layers.append(layer)
        return
    for index in operand_indices:
        layer.inputs[index] = _as_single(network, layer.inputs[index], widened)
    output = layer.output
    network.layers.append(layer)
    if network.dtype(output) == _HALF:
        layer.output = network.declare(network.fresh(f"{output}/single"), network.shape(output), _SINGLE)
        network.layers.append(Layer("Copy", layer.name, [layer.output], output))


def _as_single(network, name, widened):
    if name is None or network.dtype(name) != _HALF:
        return name
    if name not in widened and name in network.constants and name not in network.values:
        widened[name] = network.constant(f"{name}/single", network.constants[name], _SINGLE)
    elif name not in widened:
        widened[name] = network.copied(network.fresh(f"{name}/single"), name, _SINGLE)
    return widened[name]
