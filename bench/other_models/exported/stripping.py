"""Strips exported graphs of their weights, and fills in others. A tensor with many different numbers is replaced by a
sentence in its doc_string: mean, deviation, minimum and maximum; for the model's inputs dtype, shape and range of
integers. Values are renamed to numbers."""

import json

import numpy

_KEPT, _LOOKED_AT = 64, 1 << 14  # a tensor with at most _KEPT different numbers, of the first _LOOKED_AT, stays
_INPUTS = "inputs"


def stripped(model, inputs):
    """The ModelProto without weights; `inputs` are arrays by name, of a typical call."""
    from onnx import numpy_helper

    names = _names(model.graph, {})
    _rename(model.graph, names)
    for tensor in _tensors(model.graph):
        values = numpy_helper.to_array(tensor)
        tensor.ClearField("doc_string")
        if values.dtype.kind == "f" and len(numpy.unique(values.ravel()[:_LOOKED_AT])) > _KEPT:
            wide = values.astype("float64")
            numbers = wide.mean(), wide.std(), wide.min(), wide.max()
            for field in ("raw_data", "float_data", "double_data", "int32_data"):
                tensor.ClearField(field)
            tensor.doc_string = json.dumps([float(f"{number:.6g}") for number in numbers])
    inputs_of = {
        names[name]: [
            str(values.dtype),
            values.shape,
            *((int(values.min()), int(values.max())) * (values.dtype.kind != "f")),
        ]
        for name, values in inputs.items()
    }
    del model.metadata_props[:], model.graph.value_info[:]
    model.metadata_props.add(key=_INPUTS, value=json.dumps(inputs_of))
    model.doc_string = model.graph.doc_string = ""
    return model


def filled(model, random):
    """(the model with random weights, inputs of a typical call by name)"""
    for tensor in _tensors(model.graph):
        if tensor.doc_string:
            mean, deviation, low, high = json.loads(tensor.doc_string)
            values = random.standard_normal(tuple(tensor.dims), "float32") * numpy.float32(deviation)
            values = numpy.clip(values + numpy.float32(mean), low, high)
            tensor.raw_data = values.astype(_dtype(tensor)).tobytes()
            tensor.ClearField("doc_string")
    [inputs_of] = [json.loads(item.value) for item in model.metadata_props if item.key == _INPUTS]
    return model, {name: _drawn(random, *what) for name, what in inputs_of.items()}


def _drawn(random, dtype, shape, low=None, high=None):
    if low is None:
        return random.standard_normal(shape, "float32").astype(dtype)
    return random.integers(low, high + 1, shape).astype(dtype)


def _dtype(tensor):
    from onnx import helper

    return helper.tensor_dtype_to_np_dtype(tensor.data_type)


def _graphs(graph):
    yield graph
    for node in graph.node:
        for item in node.attribute:
            for inner in (*([item.g] if item.HasField("g") else ()), *item.graphs):
                yield from _graphs(inner)


def _tensors(graph):
    for part in _graphs(graph):
        yield from part.initializer
        for node in part.node:
            yield from (item.t for item in node.attribute if item.HasField("t"))


def _names(graph, names):
    """A map from each name of a value to a short one."""
    for part in _graphs(graph):
        own = [item.name for item in (*part.input, *part.initializer)]
        for node in part.node:
            own += [*node.input, *node.output]
        for name in (*own, *(value.name for value in part.output)):
            if name and name not in names:
                names[name] = f"v{len(names)}"
    return names


def _rename(graph, names):
    for part in _graphs(graph):
        part.name = "exported"
        for value in (*part.input, *part.output, *part.initializer):
            value.name = names[value.name]
            value.doc_string = ""
        for node in part.node:
            node.name = node.doc_string = ""
            node.input[:] = [name and names[name] for name in node.input]
            node.output[:] = [name and names[name] for name in node.output]
            del node.metadata_props[:]
        if part is not graph:
            del part.value_info[:]
