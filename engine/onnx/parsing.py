"""Parses an ONNX file into a checked model that holds all its weights, or raises OnnxError."""

import collections
import heapq
import math
import os
import warnings

import onnx
from onnx import TensorProto, external_data_helper, helper, numpy_helper

from .bfloat16 import widen
from .problems import OnnxError

_MAX_BYTES = (1 << 31) - 1  # largest protobuf message
_LARGE = 4096  # bytes from which weights are kept apart
_KINDS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.INT8, TensorProto.UINT8)
_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
_TREE_PREFIXES = ("nodes_", "class_", "target_")  # prefixes of attributes that list nodes and leaves
_PLACEHOLDER = b"these weights are kept apart"  # data of a tensor whose values are in `weights`


def parse(data, where, folder, weights=None):
    """Returns (the ModelProto of `data`, the paths of external weight files). These files are read from `folder`, the
    model's own; None means that there is none.

    If the dict `weights` is given, large weights move into it by name, because ONNX's checks and shape inference copy
    them each time; `array_of` finds them there."""
    try:
        model = onnx.load_model_from_string(data)
    except Exception as error:  # protobuf's error class is not public
        raise OnnxError(where, f"not an ONNX model: {reason(error)}") from error
    if not model.ir_version or not model.HasField("graph"):
        raise OnnxError(where, "not an ONNX model: it has no version and no graph")
    _check_versions(model, where)
    _name_domains(model)
    _sort(model.graph)
    files = _load_weights(model, where, folder)
    _check_form(model, where)
    extracted = [] if weights is None else _extract_large(model.graph, weights)
    size = model.ByteSize() + sum(values.nbytes for values in (weights or {}).values())
    if size > _MAX_BYTES:
        raise OnnxError(where, f"has {size:,} bytes with its weights; ONNX's checks take at most {_MAX_BYTES:,}")
    shapeless = [value.type.tensor_type for value in model.graph.output if _has_no_shape(value.type)]
    for kind in shapeless:  # the checker requires a shape, runtimes do not
        kind.shape.SetInParent()
    try:
        onnx.checker.check_model(model)
    except Exception as error:  # the checker raises its own class and ValueError
        raise OnnxError(where, f"is no valid ONNX model: {reason(error)}") from error
    for kind in shapeless:
        kind.ClearField("shape")
    for tensor in extracted:
        tensor.dims[:], tensor.raw_data = weights[tensor.name].shape, _PLACEHOLDER
    widen(model)
    return model, files


def array_of(tensor, weights):
    """The TensorProto's array. ValueError if its data do not fit its shape and type."""
    if tensor.name in weights and tensor.raw_data == _PLACEHOLDER:
        return weights[tensor.name]
    return numpy_helper.to_array(tensor)


def without_lists(model):
    """Removes the node lists of tree ensembles, which ONNX's shape inference would copy each time but does not use.
    Returns the original ensembles, {index of the node: NodeProto}."""
    originals = {}
    for number, node in enumerate(model.graph.node):
        if node.domain == "ai.onnx.ml" and node.op_type in ("TreeEnsembleClassifier", "TreeEnsembleRegressor"):
            originals[number] = onnx.NodeProto.FromString(node.SerializeToString())
            for attribute in node.attribute:
                if attribute.name.startswith(_TREE_PREFIXES):
                    for field in ("ints", "floats", "strings"):
                        attribute.ClearField(field)
    return originals


def _extract_large(graph, weights):
    """Moves large weights to `weights` and empties their tensors, which the checker accepts. Returns these tensors."""
    extracted, names = [], collections.Counter(tensor.name for tensor in graph.initializer)
    for tensor in graph.initializer:
        kind = tensor.data_type
        if kind not in _KINDS or not tensor.HasField("raw_data") or names[tensor.name] != 1:
            continue
        if math.prod(tensor.dims) * helper.tensor_dtype_to_np_dtype(kind).itemsize >= _LARGE:
            try:
                weights[tensor.name] = numpy_helper.to_array(tensor)
            except ValueError:  # reported by the checker
                continue
            tensor.dims[:], tensor.raw_data = [0], b""
            extracted.append(tensor)
    return extracted


def _has_no_shape(kind):
    return kind.HasField("tensor_type") and not kind.tensor_type.HasField("shape")


def reason(error):
    """The first line of the error's root cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _check_versions(model, where):
    advice = f"the onnx package here, {onnx.__version__}, knows up to"
    if model.ir_version > onnx.IR_VERSION:
        raise OnnxError(
            where, f"is of ONNX's format version {model.ir_version}, {advice} {onnx.IR_VERSION}; install a newer one"
        )
    newest = onnx.defs.onnx_opset_version()
    for item in model.opset_import:
        if item.domain in ("", "ai.onnx") and item.version > newest:
            raise OnnxError(
                where,
                f"uses version {item.version} of ONNX's operators, {advice} {newest}; install a newer one, or export"
                f" with opset {newest}",
            )


def _name_domains(model):
    """Moves operators that ONNX Runtime's optimizers write into ONNX's domain to their own domain."""
    opset = min((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), default=1)
    names = {"SimplifiedLayerNormalization", "FusedMatMul"} | ({"LayerNormalization"} if opset < 17 else set())
    nodes = [node for node in model.graph.node if node.domain in ("", "ai.onnx") and node.op_type in names]
    for node in nodes:
        node.domain = "com.microsoft"
    if nodes and all(item.domain != "com.microsoft" for item in model.opset_import):
        model.opset_import.add(domain="com.microsoft", version=1)


def _sort(graph):
    """Sorts nodes topologically, as the format requires but some converters do not ensure. Otherwise the order stays;
    nodes in a cycle keep their places, for the checker to reject."""
    for inner in (inner for node in graph.node for inner in _graphs_of(node)):
        _sort(inner)
    producers = {name: number for number, node in enumerate(graph.node) for name in node.output if name}
    reads = [{producers[name] for name in _names_read(node) if name in producers} for node in graph.node]
    if all(number > max(dependencies, default=-1) for number, dependencies in enumerate(reads)):
        return
    consumers = collections.defaultdict(list)
    for number, dependencies in enumerate(reads):
        for producer in dependencies:
            consumers[producer].append(number)
    missing_counts, ready, order = [len(dependencies) for dependencies in reads], [], []
    for number, count in enumerate(missing_counts):
        if count == 0:
            heapq.heappush(ready, number)
    while ready:
        order.append(heapq.heappop(ready))
        for number in consumers[order[-1]]:
            missing_counts[number] -= 1
            if missing_counts[number] == 0:
                heapq.heappush(ready, number)
    if len(order) == len(reads):
        nodes = [onnx.NodeProto.FromString(graph.node[number].SerializeToString()) for number in order]
        del graph.node[:]
        graph.node.extend(nodes)


def _names_read(node):
    """Names of tensors that the node reads, those that its graphs read from around them included."""
    yield from node.input
    for graph in _graphs_of(node):
        for inner in graph.node:
            yield from _names_read(inner)
        yield from (value.name for value in graph.output)


def _graphs_of(node):
    for attribute in node.attribute:
        if attribute.type in _GRAPHS:
            yield from (attribute.g, *attribute.graphs)


def _check_form(model, where):
    if model.graph.sparse_initializer:
        names = ", ".join(item.values.name for item in model.graph.sparse_initializer)
        raise OnnxError(where, f"has sparse weights ({names}), which the engine does not have; export them dense")
    constants = {item.name for item in model.graph.initializer}
    if not model.graph.output:
        raise OnnxError(where, "has no outputs")
    if all(item.name in constants for item in model.graph.input):
        raise OnnxError(where, "has no inputs: there is nothing to compute at run time")


def _load_weights(model, where, folder):
    """Puts what lies in other files into the model; the paths of these files."""
    external = [
        tensor
        for tensor in external_data_helper._get_all_tensors(model)
        if external_data_helper.uses_external_data(tensor)
    ]
    files = {}
    for tensor in external:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of keys that the library does not know
                location = external_data_helper.ExternalDataInfo(tensor).location
        except ValueError as error:  # an offset or length that is no number, or negative
            raise OnnxError(
                where, f"does not say where in another file the weights of tensor {tensor.name!r} lie: {reason(error)}"
            ) from error
        cause = f"the weights of tensor {tensor.name!r} lie in {location!r}"
        if folder is None:
            raise OnnxError(
                where,
                f"{cause}, another file; give the model as a file in its folder, or export it with its weights inside",
            )
        path = os.path.join(folder, location)
        if not os.path.exists(path):
            raise OnnxError(
                where,
                f"{cause}, which is missing beside the model; copy it there, or export the model with its weights"
                " inside",
            )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                external_data_helper.load_external_data_for_tensor(tensor, str(folder))
        except Exception as error:  # the library's C++ refuses links and paths that lead out of the folder
            raise OnnxError(where, f"{cause}, which can't be read: {reason(error)}") from error
        files[path] = None
    return tuple(files)
