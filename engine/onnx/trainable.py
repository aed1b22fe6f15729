"""Splits a model whose last part is trained. Nodes that do not depend on the trainable weights are compiled and
run by the engine; the others stay as nodes and weights with the names in the ONNX file, which
`vmhost.engine.nn.FineTuned` runs and trains.

The second part is a file of its own: header length (8 bytes), header (JSON), the arrays' bytes."""

import fnmatch
import hashlib
import json

import numpy
import onnx
from onnx import helper, numpy_helper

from .parsing import parse
from .problems import OnnxError

FORMAT = 1
OPERATORS = (
    "Add", "AveragePool", "BatchNormalization", "Clip", "Concat", "Conv", "Div", "Dropout", "Elu", "Erf", "Exp",
    "Flatten", "Gelu", "Gemm", "GlobalAveragePool", "HardSigmoid", "HardSwish", "Identity", "LayerNormalization",
    "LeakyRelu", "Log", "LogSoftmax", "MatMul", "MaxPool", "Mul", "Neg", "Pow", "ReduceMean", "Relu", "Reshape",
    "Sigmoid", "Softmax", "Softplus", "Sqrt", "Squeeze", "Sub", "Tanh", "Transpose", "Unsqueeze",
)  # fmt: skip
_PADDED = ("Conv", "MaxPool", "AveragePool")


def split(data, where, folder, patterns):
    """Returns (ONNX of the frozen part, the trained part's file, external weight files) for the ONNX model `data`.
    `patterns` name float weights, with `*` as a wildcard. OnnxError says what cannot be trained."""
    model, weight_files = parse(data, where, folder)
    if (opset := max(item.version for item in model.opset_import if item.domain in ("", "ai.onnx"))) < 13:
        raise OnnxError(where, f"has opset {opset}; training takes opset 13 and later: export the model again")
    graph = model.graph
    weights = {item.name: item for item in graph.initializer}
    trained = _named(weights, patterns, where)
    stored, dependent, nodes, problems = dict(weights), set(trained), [], []
    for node in graph.node:  # in topological order
        if dependent.intersection(node.input):
            nodes.append(node)
            dependent.update(node.output)
            problems += _problems(node, weights)
        elif node.op_type == "Constant" and len(node.attribute) == 1 and node.attribute[0].name == "value":
            stored[node.output[0]] = node.attribute[0].t
    outputs = [item.name for item in graph.output]
    names_read = {*outputs, *(name for node in nodes for name in node.input)}
    for node in nodes:
        if names_read.intersection(node.output[1:]) - {""}:
            problems.append(f"{_label(node)}: only its first output can be trained through")
    if problems:
        raise OnnxError(where, *problems)
    if not dependent.intersection(outputs):
        raise OnnxError(where, f"no output depends on the trainable weights {', '.join(sorted(trained))}")
    inputs = {item.name for item in graph.input} - weights.keys()
    operands = {name for node in nodes for name in node.input if name} - dependent
    boundary = sorted(name for name in operands if name not in stored and name not in inputs)
    frozen_outputs = [name for name in outputs if name not in dependent]
    if not boundary and not frozen_outputs:  # all of it is trained; the engine's part gives back an input
        given = next(iter(inputs))
        boundary = [f"{given}.unchanged"]
        graph.node.append(helper.make_node("Identity", [given], boundary))
    constants = {name: _array(stored[name], where) for name in sorted(operands) if name in stored}
    header = {
        "format": FORMAT,
        "model": hashlib.sha256(data).hexdigest(),
        "boundary": boundary,
        "inputs": sorted(operands & inputs),
        "outputs": [name for name in outputs if name in dependent],
        "nodes": [_described(node) for node in nodes],
    }
    part = _written(header, {name: _array(weights[name], where) for name in trained}, constants)
    return _frozen(model, nodes, [*boundary, *frozen_outputs], where), part, weight_files


def _named(weights, patterns, where):
    """The names of the float weights that match the patterns. A pattern leaves out weights that are not float32; a name
    does not."""
    matching = []
    floats = [name for name, item in weights.items() if item.data_type == onnx.TensorProto.FLOAT]
    for pattern in patterns:
        names = [pattern] if pattern in weights else [name for name in floats if fnmatch.fnmatchcase(name, pattern)]
        if not names:
            raise OnnxError(where, f"has no weight {pattern!r} to train; it has {', '.join(sorted(weights)[:20])}")
        for name in names:
            if weights[name].data_type != onnx.TensorProto.FLOAT:
                kind = helper.tensor_dtype_to_string(weights[name].data_type)
                raise OnnxError(where, f"{name}: only float32 weights can be trained, this is {kind}")
        matching += names
    return list(dict.fromkeys(matching))


def trained_names(part):
    """The names of the weights that a trained part holds."""
    return tuple(json.loads(part[8 : 8 + int.from_bytes(part[:8], "little")])["trained"])


def _label(node):
    return f"{node.op_type} {node.name!r}" if node.name else node.op_type


def _problems(node, weights):
    where = _label(node)
    if node.domain not in ("", "ai.onnx") or node.op_type not in OPERATORS:
        return [f"{where}: depends on trainable weights, but cannot be trained; expected one of {', '.join(OPERATORS)}"]
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    if node.op_type in _PADDED:
        if attributes.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
            return [f"{where}: auto_pad cannot be trained; export the model with explicit pads"]
        if attributes.get("ceil_mode") or (node.op_type != "Conv" and any(attributes.get("pads", ()))):
            return [f"{where}: pools with ceil_mode or pads cannot be trained"]
        if node.op_type != "Conv" and set(attributes.get("dilations", ())) - {1}:
            return [f"{where}: pools with dilations cannot be trained"]
        kernel = attributes.get("kernel_shape")  # of a Conv it may be left out; then the weight tells
        if kernel is None and (weight := weights.get(node.input[1])) is None:
            return [f"{where}: has no kernel_shape; export the model with it to train through this convolution"]
        if len(weight.dims[2:] if kernel is None else kernel) != 2:
            return [f"{where}: only windows of two dimensions can be trained"]
    if node.op_type == "BatchNormalization" and attributes.get("training_mode"):
        return [f"{where}: export the model for use (eval), not for training"]
    return []


def _described(node):
    attributes = {}
    for attribute in node.attribute:
        value = helper.get_attribute_value(attribute)
        attributes[attribute.name] = value.decode() if isinstance(value, bytes) else value
        if not isinstance(attributes[attribute.name], (int, float, str)):
            attributes[attribute.name] = list(value)
    return {"kind": node.op_type, "inputs": list(node.input), "outputs": list(node.output), "attributes": attributes}


def _array(tensor, where):
    array = numpy_helper.to_array(tensor)
    if array.dtype.name not in ("float32", "int64", "int32", "bool"):
        raise OnnxError(where, f"{tensor.name}: {array.dtype} beside trainable weights; export it as float32")
    return array


def _written(header, trained, constants):
    pieces, offset = [], 0
    for kind, arrays in (("trained", trained), ("constants", constants)):
        header[kind] = {}
        for name, array in arrays.items():
            data = numpy.ascontiguousarray(array).tobytes()
            header[kind][name] = [array.dtype.name, list(array.shape), offset, offset + len(data)]
            pieces.append(data)
            offset += len(data)
    text = json.dumps(header, sort_keys=True).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *pieces])


def _frozen(model, nodes, outputs, where):
    """The bytes of the model without these nodes, with the named outputs."""
    try:
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception as error:
        raise OnnxError(where, f"shapes cannot be inferred: {error}") from error
    graph = model.graph
    known = {value.name: value for value in (*graph.value_info, *graph.output)}
    if unknown := [name for name in outputs if name not in known]:
        raise OnnxError(where, f"the type of {', '.join(unknown)} is not known, where the trained part begins")
    removed = {name for node in nodes for name in node.output}
    needed, kept = set(outputs), []
    for node in reversed(graph.node):
        if not removed.intersection(node.output) and needed.intersection(node.output):
            kept.append(node)
            needed.update(node.input)
    ports = [known[name] for name in outputs]
    initializers = [value for value in graph.initializer if value.name in needed]
    inputs = [value for value in graph.input if value.name in needed]
    result = helper.make_graph(kept[::-1], graph.name, inputs, ports, initializers)
    return helper.make_model(result, opset_imports=model.opset_import, ir_version=model.ir_version).SerializeToString()
