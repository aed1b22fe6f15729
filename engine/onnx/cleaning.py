"""The first clean-up of an ONNX graph: inlines the model's functions by onnx-ir's pass and removes nodes that no output
needs. passes.py later removes what only shows in layers and views; identities disappear when the graph is read."""

import onnx


def cleaned(model):
    """The cleaned ModelProto; consumes `model`. Raises onnx-ir's errors for a model that contradicts itself."""
    for node in model.graph.node:
        # Sets a missing name to the empty string: onnx-ir would make one up, and errors identify unnamed nodes by
        # outputs.
        node.name = node.name
    if model.functions:
        model = _without_functions(model)
    _drop_unused(model)
    return model


def _without_functions(model):
    """The ModelProto with functions inlined."""
    import onnx_ir  # slow to import
    from onnx_ir.passes import common

    _raise_function_opsets(model)
    maps = {value.name: value.type for value in model.graph.output if _has_map(value.type)}
    for value in (*model.graph.output, *model.graph.value_info):
        if _has_map(value.type):  # onnx-ir has no map type; its passes do not need types
            value.ClearField("type")
    graph = onnx_ir.from_proto(model)
    common.InlinePass()(graph)
    result = onnx_ir.to_proto(graph)
    for value in result.graph.output:
        if value.name in maps:
            value.type.CopyFrom(maps[value.name])
    return result


def _raise_function_opsets(model):
    """Sets the functions' opset to the model's, which onnx-ir's inlining requires, if their operators are the same in
    both."""
    [version] = [item.version for item in model.opset_import if item.domain == ""] or [None]
    for function in model.functions if version else ():
        for opset in function.opset_import:
            names = {node.op_type for node in function.node if node.domain in ("", "ai.onnx")}
            if opset.domain == "" and all(_is_same(name, opset.version, version) for name in names):
                opset.version = version


def _is_same(operator, *versions):
    """Whether the operator is the same in these opsets."""
    schemas = [onnx.defs.get_schema(operator, version, "") for version in versions if onnx.defs.has(operator)]
    return len({schema.since_version for schema in schemas}) == 1


def tell_types(model):
    """Adds the type of LabelEncoder's input, known from its keys, where it is missing (after a tree ensemble): without
    it ONNX's shape inference (1.23) crashes the process."""
    from onnx import TensorProto, helper

    kinds = {"keys_floats": TensorProto.FLOAT, "keys_int64s": TensorProto.INT64, "keys_strings": TensorProto.STRING}
    typed = {value.name for value in (*model.graph.input, *model.graph.value_info, *model.graph.output)}
    typed.update(tensor.name for tensor in model.graph.initializer)
    for node in model.graph.node:
        if node.op_type != "LabelEncoder" or node.domain != "ai.onnx.ml" or node.input[0] in typed:
            continue
        key_types = [
            item.t.data_type if item.name == "keys_tensor" else kinds.get(item.name) for item in node.attribute
        ]
        for kind in filter(None, key_types):
            model.graph.value_info.append(helper.make_tensor_value_info(node.input[0], kind, None))
            typed.add(node.input[0])
            break


def forget_shapes_of_outputs(model):
    """Removes the shapes that the model declares for its outputs. Converters write wrong ones (skl2onnx: of votes, of
    PLSRegression), which ONNX Runtime only warns of: shapes follow from inputs and operators."""
    for value in model.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")


def _drop_unused(model):
    """Removes nodes and weights that no output needs, and names of unused outputs if the operator may omit them."""
    version = next((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), None)
    used = _drop_within(model.graph, version)
    graph = model.graph
    used.update(value.name for value in graph.input)
    for number in reversed(range(len(graph.initializer))):
        if graph.initializer[number].name not in used:
            del graph.initializer[number]


def _drop_within(graph, version):
    """`_drop_unused` for a graph's nodes. Returns all names read there, including in nested graphs."""
    outputs = {value.name for value in graph.output}
    used = set(outputs)
    for number in reversed(range(len(graph.node))):
        node = graph.node[number]
        produced = list(node.output)
        if used.isdisjoint(produced):
            del graph.node[number]
            continue
        while node.input and not node.input[-1]:
            del node.input[-1]
        if len(produced) > 1 and not used.issuperset(produced):
            _drop_outputs(node, used, version)
        used.update(node.input)
        for attribute in node.attribute:
            if attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
                for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else ())):
                    used |= _drop_within(inner, version)
    return used


def _drop_outputs(node, used, version):
    if node.domain not in ("", "ai.onnx") or version is None or not onnx.defs.has(node.op_type, version, ""):
        return
    schema = onnx.defs.get_schema(node.op_type, version, "")
    if node.op_type == "BatchNormalization":  # training mode needs its outputs; old opsets select it by them
        if "training_mode" not in schema.attributes or any(
            item.name == "training_mode" and item.i for item in node.attribute
        ):
            return
    for index, (name, formal) in enumerate(zip(list(node.output), schema.outputs)):
        if formal.option == onnx.defs.OpSchema.FormalParameterOption.Optional and name not in used:
            node.output[index] = ""
    while node.output and not node.output[-1]:
        del node.output[-1]


def _has_map(kind):
    return kind.HasField("map_type") or (kind.HasField("sequence_type") and _has_map(kind.sequence_type.elem_type))
