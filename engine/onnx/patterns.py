"""Recognizes composite operators that exporters decompose: layer normalization, GELU, SiLU, scaling and masking before
a softmax, and attention."""

import numpy

from .network import CURVES, MAX_ROW, Layer, float_bits
from .operations import BINARY, REDUCE, UNARY


class Graph:
    """Producers and readers of tensors, for one pass over the layers; matches go backwards from their last layer."""

    def __init__(self, network):
        self.network, self.producers = network, network.producers()
        self.readers = network.readers()
        self.bases = {view.base for view in network.views.values()}

    def producer(self, name, op, single=True):
        """The layer of that kind that makes `name`; with `single`, only if exactly one layer reads it. None
        otherwise."""
        layer = self.producers.get(name)
        if layer is None or (
            single and (len(self.readers.get(name, ())) != 1 or self.readers[name][0] is None or name in self.bases)
        ):
            return None
        number = layer.parameters[0] if layer.parameters else None
        kind = {"Binary": BINARY, "Unary": UNARY, "Reduce": REDUCE}.get(layer.op)
        return layer if (kind[number] if kind else layer.op) == op else None

    def split(self, layer):
        """(operand, value) if one operand of the layer is a constant number, else (None, None)."""
        for name, other in (layer.inputs, layer.inputs[::-1]):
            values = self.network.constants.get(other)
            if values is not None and values.size == 1 and name not in self.network.constants:
                return name, float(values.reshape(()))
        return None, None

    def scaled(self, name, single=True):
        """(operand, factor) if `name` is a product or quotient with a number, else (None, None)."""
        for op in ("multiply", "divide"):
            layer = self.producer(name, op, single)
            if layer is None or (op == "divide" and layer.inputs[1] not in self.network.constants):
                continue
            operand, value = self.split(layer)
            if operand is not None and value != 0 and self.network.shape(operand) == self.network.shape(name):
                return operand, value if op == "multiply" else 1 / value
        return None, None


def find_patterns(network):
    """Replaces the last layer of each match; drop_dead removes the others. Returns whether there was a match."""
    activations = (_gelu, _hard_swish, _normalization, _root_mean_square, _silu)
    return _replace(network, *((match, "Binary") for match in activations), (_masked_softmax, "Softmax"))


def find_attention(network):
    """Likewise for attention. Nothing else may read its scores, so dead layers must have been dropped before."""
    return _replace(network, (_attention, "MatMul"))


def _replace(network, *matches):
    """`matches`: (function, operator of the last layer of a match)."""
    graph, changed, positions = None, False, {op: [] for _, op in matches}
    for number, layer in enumerate(network.layers):
        if layer.op in positions and network.dtype(layer.output) == numpy.float32:
            positions[layer.op].append(number)
    for match, op in matches:
        replaced = False
        for number in positions[op]:
            layer = network.layers[number]
            if layer.op == op:  # no match has replaced it
                graph = graph or Graph(network)
                found = match(graph, layer)
                if found is not None:
                    network.layers[number] = found
                    graph.producers[found.output] = found
                    replaced = changed = True
        if replaced:  # the readers have changed
            graph = None
    return changed


def _is(graph, layer, op):
    return layer.op == "Binary" and BINARY[layer.parameters[0]] == op


def _activation(layer, curve, source):
    return Layer("Activate", layer.name, [source], layer.output, parameters=(CURVES.index(curve),))


def _gelu(graph, layer):
    """x/2 * (1 + erf(x / sqrt(2))), with its two products in any order; or the tanh approximation."""
    if not _is(graph, layer, "multiply"):
        return None
    factors, half = [], 1.0

    def gather(name, top):
        nonlocal half
        product = layer if top else graph.producer(name, "multiply")
        if product is None or len(factors) > 2:
            factors.append(name)
            return
        for operand in product.inputs:
            values = graph.network.constants.get(operand)
            if values is not None and values.size == 1:
                half *= float(values.reshape(()))
            else:
                gather(operand, False)

    gather(None, True)
    if len(factors) != 2 or abs(half - 0.5) > 1e-6:
        return None
    for source, other in (factors, factors[::-1]):
        sum_layer = graph.producer(other, "add")
        operand, one = graph.split(sum_layer) if sum_layer else (None, None)
        if one != 1 or graph.network.shape(source) != graph.network.shape(layer.output):
            continue
        erf, tanh = (graph.producer(operand, op) for op in ("erf", "tanh"))
        scaled, factor = graph.scaled(erf.inputs[0]) if erf else (None, None)
        if scaled == source and abs(factor - 0.5**0.5) < 1e-6:
            return _activation(layer, "gelu", source)
        if tanh and _is_inner(graph, tanh.inputs[0], source):
            return _activation(layer, "gelu tanh", source)
    return None


def _factors(graph, name, source):
    """(constant factor, number of factors `source`, the other factor or None) of the product `name`; None if it has
    several other factors."""
    if name == source:
        return 1.0, 1, None
    square = graph.producer(name, "square")
    if square:
        return (1.0, 2, None) if square.inputs[0] == source else None
    layer = graph.producer(name, "multiply")
    if layer is None:
        return 1.0, 0, name
    number, count, rest = 1.0, 0, None
    for operand in layer.inputs:
        values = graph.network.constants.get(operand)
        if values is not None and values.size == 1:
            number *= float(values.reshape(()))
            continue
        found = _factors(graph, operand, source)
        if found is None or (found[2] is not None and rest is not None):
            return None
        number, count, rest = number * found[0], count + found[1], rest if found[2] is None else found[2]
    return number, count, rest


def _is_inner(graph, name, x):
    """Whether `name` is sqrt(2 / pi) * (x + 0.044715 * x^3), possibly with x factored out."""

    def near(number, expected):
        return abs(number - expected) < 1e-5 * expected

    factors = _factors(graph, name, x)
    total = graph.producer(factors[2], "add") if factors and factors[2] and near(factors[0], 0.7978845608) else None
    if total is None or factors[1] > 1:
        return False
    for first, cube in (total.inputs, total.inputs[::-1]):
        power = _factors(graph, cube, x)
        values = graph.network.constants.get(first)
        matches = first == x if factors[1] == 0 else values is not None and values.size == 1 and values.reshape(()) == 1
        if matches and power and power[2] is None and power[1] == 3 - factors[1] and near(power[0], 0.044715):
            return True
    return False


def _hard_swish(graph, layer):
    """x * min(max(x + 3, 0), 6) / 6, with its products in any order."""
    if not (_is(graph, layer, "multiply") or _is(graph, layer, "divide")):
        return None
    number, factors = 1.0, []

    def gather(product):
        nonlocal number
        for index, operand in enumerate(product.inputs):
            values = graph.network.constants.get(operand)
            if values is not None and values.size == 1:
                number *= float(values.reshape(())) ** (-1 if _is(graph, product, "divide") and index == 1 else 1)
                continue
            if _is(graph, product, "divide") and index == 1:
                factors.extend((None, None, None))  # a quotient of tensors
                return
            inner = graph.producer(operand, "multiply") or graph.producer(operand, "divide")
            if inner is None or len(factors) > 2:
                factors.append(operand)
            else:
                gather(inner)

    gather(layer)
    if len(factors) != 2 or abs(number - 1 / 6) > 1e-7:
        return None
    for source, other in (factors, factors[::-1]):
        clip = graph.producer(other, "Clip")
        total = graph.producer(clip.inputs[0], "add") if clip and clip.bounds == (0.0, 6.0) else None
        operand, three = graph.split(total) if total else (None, None)
        if operand == source and three == 3 and graph.network.shape(source) == graph.network.shape(layer.output):
            return _activation(layer, "hard swish", source)
    return None


def _silu(graph, layer):
    if not _is(graph, layer, "multiply"):
        return None
    for source, other in (layer.inputs, layer.inputs[::-1]):
        gate = graph.producer(other, "Activate")
        if gate is not None and gate.parameters[0] == CURVES.index("sigmoid") and gate.inputs[0] == source:
            return _activation(layer, "silu", source)
    return None


def _mean(graph, name):
    """The operand if `name` is a mean along the last dimension, else None."""
    quotient = graph.producer(name, "divide", single=False)
    reduced = graph.producer(quotient.inputs[0], "sum") if quotient else None
    if reduced is None:
        return None
    shape, count = graph.network.shape(reduced.inputs[0]), graph.split(quotient)[1]
    return reduced.inputs[0] if shape and reduced.parameters[2] == 1 << len(shape) - 1 and count == shape[-1] else None


def _normalization(graph, layer):
    """(x - mean) / sqrt(mean((x - mean)^2) + epsilon) * scale + bias."""
    if not _is(graph, layer, "add"):
        return None
    network = graph.network
    for product_name, bias in (layer.inputs, layer.inputs[::-1]):
        product = graph.producer(product_name, "multiply")
        if product is None or bias not in network.constants:
            continue
        for quotient_name, scale in (product.inputs, product.inputs[::-1]):
            quotient = graph.producer(quotient_name, "divide") if scale in network.constants else None
            root = graph.producer(quotient.inputs[1], "sqrt") if quotient else None
            variance = graph.producer(root.inputs[0], "add") if root else None
            squares, epsilon = graph.split(variance) if variance else (None, None)
            square = _mean(graph, squares) if squares else None
            power, centred = (
                graph.producers.get(square),
                graph.producer(quotient.inputs[0], "subtract", single=False) if quotient else None,
            )
            if power is None or centred is None or power.inputs[0] != centred.output:
                continue
            squared = _squares(graph, square, power)
            source, length = centred.inputs[0], network.shape(layer.output)[-1]
            if (
                squared
                and _mean(graph, centred.inputs[1]) == source
                and length <= MAX_ROW
                and network.shape(source) == network.shape(layer.output)
                and all(network.shape(name) == (length,) for name in (scale, bias))
            ):
                return Layer(
                    "Normalize", layer.name, [source, scale, bias], layer.output, parameters=(float_bits(epsilon),)
                )
    return None


def _root_mean_square(graph, layer):
    """x / sqrt(mean(x^2) + epsilon) * scale; the quotient may be a product with 1 / sqrt."""
    if not _is(graph, layer, "multiply"):
        return None
    network = graph.network
    for scaled, scale in (layer.inputs, layer.inputs[::-1]):
        length = network.shape(layer.output)[-1:]
        if not length or scale not in network.constants or network.shape(scale) != length or length[0] > MAX_ROW:
            continue
        for source, root in _quotients(graph, scaled):
            variance = graph.producer(root.inputs[0], "add") if root is not None else None
            squares, epsilon = graph.split(variance) if variance else (None, None)
            square = _mean(graph, squares) if squares else None
            power = graph.producers.get(square)
            if (
                power is not None
                and power.inputs[0] == source
                and _squares(graph, square, power)
                and network.shape(source) == network.shape(layer.output)
            ):
                return Layer(
                    "Normalize", layer.name, [source, scale, None], layer.output, parameters=(float_bits(epsilon), 1)
                )
    return None


def _quotients(graph, name):
    """(x, the layer of the root) if `name` is x / root or x * (1 / root)."""
    divided = graph.producer(name, "divide")
    if divided is not None:
        yield divided.inputs[0], graph.producer(divided.inputs[1], "sqrt")
    product = graph.producer(name, "multiply")
    for source, factor in (product.inputs, product.inputs[::-1]) if product is not None else ():
        inverse = graph.producer(factor, "reciprocal")
        if inverse is not None:
            yield source, graph.producer(inverse.inputs[0], "sqrt")
        quotient = graph.producer(factor, "divide")
        one = graph.network.constants.get(quotient.inputs[0]) if quotient is not None else None
        if one is not None and one.size == 1 and one.reshape(()) == 1:
            yield source, graph.producer(quotient.inputs[1], "sqrt")


def _squares(graph, name, power):
    """Whether the layer `power`, which makes `name`, squares its operand."""
    return (
        (graph.producer(name, "power") and graph.split(power)[1] == 2)
        or graph.producer(name, "square")
        or (graph.producer(name, "multiply") and power.inputs[0] == power.inputs[1])
    )


def _masked_softmax(graph, layer):
    """softmax(x * number + addend): fuses the scale and the mask into the softmax."""
    if layer.op != "Softmax" or layer.inputs[1] is not None:
        return None
    network, source, addend, factor = graph.network, layer.inputs[0], None, 1.0
    total = graph.producer(source, "add")
    if total is not None:
        for name, other in (total.inputs, total.inputs[::-1]):
            if (
                name not in network.constants
                and network.shape(name) == network.shape(source)
                and network.shape(other)[-1:] == network.shape(source)[-1:]
            ):
                source, addend = name, other
                if graph.scaled(name)[0] is not None:
                    break
    scaled, number = graph.scaled(source)
    if scaled is not None:
        source, factor = scaled, number
    if addend is None and scaled is None:
        return None
    return Layer(
        "Softmax", layer.name, [source, addend], layer.output, parameters=(layer.parameters[0], float_bits(factor))
    )


def _attention(graph, layer):
    """softmax(q @ k * factor + addend) @ v with equal shapes of scores; the addend may have any strides."""
    if layer.op != "MatMul":
        return None
    network, weights = graph.network, graph.producer(layer.inputs[0], "Softmax")
    guarded = weights is None
    if guarded:
        weights = _guarded(graph, layer.inputs[0])
    scores = graph.producer(weights.inputs[0], "MatMul") if weights is not None and not weights.parameters[0] else None
    if (
        scores is None
        or network.shape(scores.output) != network.shape(weights.output)
        or len(network.shape(layer.output)) != len(network.shape(scores.output))
    ):
        return None
    addend, shape = weights.inputs[1], network.shape(scores.output)
    if (
        shape[:-2] != network.shape(layer.output)[:-2]
        or shape[-1] > MAX_ROW
        or any(network.dtype(name) != numpy.float32 for name in (*scores.inputs, layer.inputs[1]))
    ):
        return None
    if addend is not None and shape[-1] != 1 and network.as_view(addend).strides[-1] != 1:
        return None
    return Layer(
        "Attention",
        layer.name,
        [*scores.inputs, layer.inputs[1], addend],
        layer.output,
        parameters=(weights.parameters[1], int(guarded)),
    )


def _guarded(graph, name):
    """The softmax whose NaNs `name` replaces by 0 (rows that attend to nothing), or None."""
    choice = graph.producer(name, "Where")
    is_nan = graph.producer(choice.inputs[0], "isnan") if choice is not None else None
    zero = graph.network.constants.get(choice.inputs[1]) if choice is not None else None
    if is_nan is None or is_nan.inputs[0] != choice.inputs[2] or zero is None or zero.any():
        return None
    weights, readers = graph.producer(is_nan.inputs[0], "Softmax", single=False), graph.readers[is_nan.inputs[0]]
    are_only_readers = len(readers) == 2 and all(reader is choice or reader is is_nan for reader in readers)
    return weights if are_only_readers and is_nan.inputs[0] not in graph.bases else None
