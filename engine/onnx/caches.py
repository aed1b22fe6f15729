"""Caches of keys and values that have a capacity: a decoder's inputs and outputs of one size, into which the rows of
new tokens are written, so that every call has the same sizes and the engine writes in place
(engine/src/models/caches.c)."""

SHARED = "vmhost_shared_cache"  # what a node of GroupQueryAttention gets whose cache has a capacity
_OPERATOR = "GroupQueryAttention"


def with_capacity(model, sizes=("past_sequence_length", "total_sequence_length"), name="capacity"):
    """The ONNX model (bytes, or a ModelProto that has its weights) whose caches are as large as they may become, as
    bytes: the open sizes of these names are one, `name`. A call then gives caches of the capacity and a mask of the
    capacity, 1 where a token is. ValueError: no input has one of these sizes, or nothing that GroupQueryAttention
    writes has them."""
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
    """Marks the nodes whose caches have a capacity: past and present are an input and an output of the model, of one
    size by its name or number. How many there are."""
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
