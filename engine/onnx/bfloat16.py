"""Converts bfloat16 models to float32, which represents every bfloat16: tensors, types and casts. Intermediate results
are not rounded to bfloat16. Weights of products are stored as float16 (`as_halves`), which has more digits; values
below its least normal number, 6e-5, are off by at most 3e-8."""

import numpy

_MARK = "vmhost.bfloat16"  # key in the metadata of a converted model
_KINDS = ("to", "dtype", "output_dtype")  # attributes that name an element type
_LARGEST = 65504.0  # largest float16


def widen(model):
    """Converts the ModelProto in place if it has bfloat16."""
    changed = _widen_graph(model.graph)
    for function in model.functions:
        changed |= _widen_nodes(function.node)
        changed |= _widen_values(function.value_info)
    if changed:
        model.metadata_props.add(key=_MARK, value="1")


def as_halves(reader, weights):
    """The float32 array `weights` as float16 if it was bfloat16 in the model, else None."""
    if all(item.key != _MARK for item in reader.model.metadata_props):
        return None
    if weights.dtype != numpy.float32 or (numpy.ascontiguousarray(weights).view("uint32") & 0xFFFF).any():
        return None
    with numpy.errstate(invalid="ignore"):
        return weights.astype("float16") if numpy.abs(weights).max(initial=0) <= _LARGEST else None


def _widen_graph(graph):
    changed = False
    for tensor in graph.initializer:
        changed |= _widen_tensor(tensor)
    changed |= _widen_values((*graph.input, *graph.output, *graph.value_info))
    return _widen_nodes(graph.node) | changed


def _widen_nodes(nodes):
    from onnx import AttributeProto, TensorProto

    changed = False
    for node in nodes:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR:
                changed |= _widen_tensor(attribute.t)
            elif (
                attribute.type == AttributeProto.INT
                and attribute.name in _KINDS
                and attribute.i == TensorProto.BFLOAT16
            ):
                attribute.i, changed = TensorProto.FLOAT, True
            elif attribute.type == AttributeProto.GRAPH:
                changed |= _widen_graph(attribute.g)
            for tensor in attribute.tensors:
                changed |= _widen_tensor(tensor)
            for graph in attribute.graphs:
                changed |= _widen_graph(graph)
    return changed


def _widen_tensor(tensor):
    from onnx import TensorProto, numpy_helper

    if tensor.data_type != TensorProto.BFLOAT16:
        return False
    wide = numpy_helper.from_array(numpy_helper.to_array(tensor).astype("float32"), tensor.name)
    tensor.CopyFrom(wide)
    return True


def _widen_values(values):
    return any([_widen_type(value.type) for value in values])


def _widen_type(kind):
    from onnx import TensorProto

    which = kind.WhichOneof("value")
    if which == "tensor_type":
        if kind.tensor_type.elem_type != TensorProto.BFLOAT16:
            return False
        kind.tensor_type.elem_type = TensorProto.FLOAT
        return True
    if which in ("sequence_type", "optional_type"):
        return _widen_type(getattr(kind, which).elem_type)
    return False
