"""The first clean-up of an ONNX graph: functions of the model's own are written out where they are called, by onnx-ir's
pass, and what no output needs is gone. What these lack, and what only layers and views show, is done in passes.py;
identities vanish when the graph is read."""

import onnx


def cleaned(model):
    """The ModelProto so cleaned; `model` itself is used up. Raises whatever onnx-ir does about a model that contradicts
    itself."""
    for node in model.graph.node:
        # where it was left out it is there from now on, and empty: onnx-ir makes names up, and errors tell nodes by
        # outputs
        node.name = node.name
    if model.functions:
        model = _without_functions(model)
    _drop_unused(model)
    return model


def _without_functions(model):
    """The ModelProto with functions written out."""
    import onnx_ir  # takes a while
    from onnx_ir.passes import common

    _raise_functions(model)
    maps = {value.name: value.type for value in model.graph.output if _has_map(value.type)}
    for value in (*model.graph.output, *model.graph.value_info):
        if _has_map(value.type):  # onnx-ir knows no maps; none of its passes asks for types
            value.ClearField("type")
    graph = onnx_ir.from_proto(model)
    common.InlinePass()(graph)
    result = onnx_ir.to_proto(graph)
    for value in result.graph.output:
        if value.name in maps:
            value.type.CopyFrom(maps[value.name])
    return result


def _raise_functions(model):
    """Gives functions the model's opset, which onnx-ir's inlining wants, where their operators are the same in both."""
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
    """Says of what LabelEncoder looks up what its keys are: ONNX's shape inference (1.23) ends the process where it
    does not know that, as behind an ensemble of trees."""
    from onnx import TensorProto, helper

    kinds = {"keys_floats": TensorProto.FLOAT, "keys_int64s": TensorProto.INT64, "keys_strings": TensorProto.STRING}
    known = {value.name for value in (*model.graph.input, *model.graph.value_info, *model.graph.output)}
    known.update(tensor.name for tensor in model.graph.initializer)
    for node in model.graph.node:
        if node.op_type != "LabelEncoder" or node.domain != "ai.onnx.ml" or node.input[0] in known:
            continue
        said = [item.t.data_type if item.name == "keys_tensor" else kinds.get(item.name) for item in node.attribute]
        for kind in filter(None, said):
            model.graph.value_info.append(helper.make_tensor_value_info(node.input[0], kind, None))
            known.add(node.input[0])
            break


def _drop_unused(model):
    """Takes out nodes and weights that no output needs, and names of results that nothing reads where the operator may
    leave these out."""
    version = next((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), None)
    used = _drop_within(model.graph, version)
    graph = model.graph
    used.update(value.name for value in graph.input)
    for number in reversed(range(len(graph.initializer))):
        if graph.initializer[number].name not in used:
            del graph.initializer[number]


def _drop_within(graph, version):
    """The same for a graph's nodes; all names that are read there, in graphs within it too."""
    outputs = {value.name for value in graph.output}
    used = set(outputs)
    for number in reversed(range(len(graph.node))):
        node = graph.node[number]
        made = list(node.output)
        if used.isdisjoint(made):
            del graph.node[number]
            continue
        while node.input and not node.input[-1]:
            del node.input[-1]
        if len(made) > 1 and not used.issuperset(made):
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
    if node.op_type == "BatchNormalization":  # what trains gives other results
        if "training_mode" not in schema.attributes or any(
            item.name == "training_mode" and item.i for item in node.attribute
        ):
            return
    for place, (name, said) in enumerate(zip(list(node.output), schema.outputs)):
        if said.option == onnx.defs.OpSchema.FormalParameterOption.Optional and name not in used:
            node.output[place] = ""
    while node.output and not node.output[-1]:
        del node.output[-1]


def _has_map(kind):
    return kind.HasField("map_type") or (kind.HasField("sequence_type") and _has_map(kind.sequence_type.elem_type))
