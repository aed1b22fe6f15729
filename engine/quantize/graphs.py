"""Prepares an ONNX file: operators of version 13 or newer, batch normalization folded into convolutions, constants as
initializers, known ranks of tensors."""

import numpy
import onnx
from onnx import helper, numpy_helper, shape_inference, version_converter

from vmhost.engine.quantize.errors import QuantizeError

_MIN_OPSET = 13  # the first version whose QuantizeLinear has an axis


class Graph:
    """A ModelProto, `model`, with the queries that quantization needs."""

    def __init__(self, model):
        self.model, self.graph = model, model.graph
        self.constants = {each.name: each for each in self.graph.initializer}
        self.ranks, self.types = {}, {}
        inferred = shape_inference.infer_shapes(model, data_prop=True).graph
        for each in (*inferred.value_info, *inferred.input, *inferred.output):
            kind = each.type.tensor_type
            self.types[each.name] = kind.elem_type
            if kind.HasField("shape"):
                self.ranks[each.name] = len(kind.shape.dim)
        self.inputs = {each.name for each in self.graph.input} - self.constants.keys()
        self.outputs = {each.name for each in self.graph.output}
        self.producers = {name: node for node in self.graph.node for name in node.output}
        self.readers = {}
        for node in self.graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)

    def weights(self, name):
        """The constant with that name as a float32 array, or None."""
        found = self.constants.get(name)
        if found is None or found.data_type != onnx.TensorProto.FLOAT:
            return None
        return numpy_helper.to_array(found)

    def is_float(self, name):
        """Whether it is a float32 tensor that is computed or an input."""
        return bool(name) and name not in self.constants and self.types.get(name) == onnx.TensorProto.FLOAT

    def put(self, name, values):
        """Adds a constant; returns its name."""
        tensor = numpy_helper.from_array(values, name)
        self.graph.initializer.append(tensor)
        self.constants[name] = tensor
        return name

    def fresh(self, name):
        """An unused tensor name."""
        taken = self.constants.keys() | self.producers.keys() | self.inputs
        while name in taken:
            name += "_"
        self.producers[name] = None
        return name

    def drop_dead_constants(self):
        used = {name for node in self.graph.node for name in _names(node)} | self.outputs
        kept = [each for each in self.graph.initializer if each.name in used]
        del self.graph.initializer[:]
        self.graph.initializer.extend(kept)
        inputs = [each for each in self.graph.input if each.name in used or each.name in self.inputs]
        del self.graph.input[:]
        self.graph.input.extend(inputs)


def _names(node):
    """The tensors that a node reads, including those in its branches and loops."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from _names(inner)
            yield from (each.name for each in graph.output)


def ready(path):
    """The Graph of the ONNX file at `path`."""
    try:
        model = onnx.load(path)
    except FileNotFoundError as error:
        raise QuantizeError(f"{path}: no such file, or weights beside it are missing: {error}") from error
    except Exception as error:  # protobuf's errors, whose classes are not part of its interface
        raise QuantizeError(f"{path}: not an ONNX model: {error}") from error
    if not model.graph.node:
        raise QuantizeError(f"{path}: not an ONNX model: there is no operator in it")
    if any(node.op_type in ("QuantizeLinear", "QLinearConv", "MatMulNBits") for node in model.graph.node):
        raise QuantizeError(f"{path}: is quantized already; give the model of float32")
    version = next((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), 1)
    if version < _MIN_OPSET:
        try:
            model = version_converter.convert_version(model, _MIN_OPSET)
        except Exception as error:  # the converter's own class
            reason = str(error).strip().splitlines()[0]
            raise QuantizeError(
                f"{path}: its operators are of version {version}, and cannot be converted to version {_MIN_OPSET}:"
                f" {reason}; export it with opset {_MIN_OPSET} or newer"
            ) from error
    _constants_as_initializers(model.graph)
    _fold_normalizations(model.graph)
    return Graph(model)


def _constants_as_initializers(graph):
    for node in [node for node in graph.node if node.op_type == "Constant" and node.domain in ("", "ai.onnx")]:
        value = next((each for each in node.attribute if each.name == "value"), None)
        if value is not None:
            tensor = onnx.TensorProto()
            tensor.CopyFrom(value.t)
            tensor.name = node.output[0]
            graph.initializer.append(tensor)
            graph.node.remove(node)


def _fold_normalizations(graph):
    """Folds BatchNormalization into the weights of a preceding convolution that nothing else reads."""
    arrays = {each.name: each for each in graph.initializer}
    producers = {name: node for node in graph.node for name in node.output}
    uses = {}
    for node in graph.node:
        for name in _names(node):
            uses[name] = uses.get(name, 0) + 1
    for each in graph.output:
        uses[each.name] = uses.get(each.name, 0) + 1
    for node in [node for node in graph.node if node.op_type == "BatchNormalization"]:
        before = producers.get(node.input[0])
        if before is None or before.op_type != "Conv" or uses[node.input[0]] > 1 or len(node.output) > 1:
            continue
        names = [*node.input[1:], *before.input[1:]]
        if any(name and name not in arrays for name in names):
            continue
        scale, shift, mean, variance = (
            numpy_helper.to_array(arrays[name]).astype("float64") for name in node.input[1:]
        )
        epsilon = next((each.f for each in node.attribute if each.name == "epsilon"), 1e-5)
        factor = scale / numpy.sqrt(variance + epsilon)
        weights = numpy_helper.to_array(arrays[before.input[1]])
        bias = numpy_helper.to_array(arrays[before.input[2]]) if len(before.input) > 2 and before.input[2] else 0
        folded = weights * factor.reshape(-1, *[1] * (weights.ndim - 1))
        new = {
            f"{node.output[0]}_weights": folded.astype("float32"),
            f"{node.output[0]}_bias": ((bias - mean) * factor + shift).astype("float32"),
        }
        for name, values in new.items():
            graph.initializer.append(numpy_helper.from_array(values, name))
        del before.input[1:]
        before.input.extend(new)
        before.output[0] = node.output[0]
        graph.node.remove(node)


def insert_nodes(graph, added):
    """Inserts the nodes of `added` into `graph`: pairs of the node to insert before (None: at the front) and a node."""
    at = {}
    for before, node in added:
        at.setdefault(id(before), []).append(node)
    nodes = [*at.get(id(None), ())]
    for node in graph.node:
        nodes += at.get(id(node), ())
        nodes.append(node)
    nodes = [_copied(node) for node in nodes]
    del graph.node[:]
    graph.node.extend(nodes)


def _copied(node):
    copied = onnx.NodeProto()
    copied.CopyFrom(node)
    return copied


def pair(graph, name, scale, zero, axis=None):
    """(the nodes QuantizeLinear and DequantizeLinear, the name of the result) after the tensor `name`."""
    options = {} if axis is None else {"axis": axis}
    integers, out = graph.fresh(f"{name}_integers"), graph.fresh(f"{name}_again")
    return [
        helper.make_node("QuantizeLinear", [name, scale, zero], [integers], name=f"{integers}_of", **options),
        helper.make_node("DequantizeLinear", [integers, scale, zero], [out], name=f"{out}_of", **options),
    ], out
