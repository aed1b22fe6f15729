"""Key-value caches of fixed capacity: inputs and outputs of a decoder with one size, into which new rows are written,
so that every call has the same sizes and the engine writes in place (engine/src/models/outside.c)."""

SHARED = "vmhost_shared_cache"  # attribute that marks a GroupQueryAttention node whose cache has a capacity
_OPERATOR = "GroupQueryAttention"


def with_capacity(model, sizes=("past_sequence_length", "total_sequence_length"), name="capacity"):
    """Returns the ONNX model (bytes, or a ModelProto with its weights) with caches of fixed capacity, as bytes: the
    open sizes of these names become one, `name`. A call then passes caches of that capacity and a mask of it, 1 where a
    token is. ValueError if no tensor has one of these sizes, or no GroupQueryAttention has a cache that is an input and
    an output of the model."""
    import onnx

    model = onnx.load_model_from_string(model) if isinstance(model, bytes) else onnx.ModelProto.FromString(
        model.SerializeToString()
    )  # fmt: skip
    found = set()
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param in sizes:
                found.add(size.dim_param)
                size.dim_param = name
    if missing := [size for size in sizes if size not in found]:
        raise ValueError(f"no tensor of the model has the open size {missing[0]!r}")
    if not mark(model):
        raise ValueError(f"no {_OPERATOR} of the model has a cache that is an input and goes on as an output")
    return model.SerializeToString()


def mark(model):
    """Marks the nodes whose caches have a capacity: past and present are an input and an output of the model with the
    same size, by name or number. Returns the number of marked nodes."""
    from onnx import helper

    ports = {value.name: value for value in (*model.graph.input, *model.graph.output)}
    count = 0
    for node in model.graph.node:
        caches = zip([*node.input, *[""] * 5][3:5], [*node.output, *[""] * 3][1:3])  # past and present of keys, values
        if node.op_type == _OPERATOR and all(_sizes(ports, a) == (_sizes(ports, b) or ()) for a, b in caches):
            if all(attribute.name != SHARED for attribute in node.attribute):
                node.attribute.append(helper.make_attribute(SHARED, 1))
            count += 1
    return count


def _sizes(ports, name):
    if name not in ports:
        return None
    return [size.dim_param or size.dim_value for size in ports[name].type.tensor_type.shape.dim] or None
