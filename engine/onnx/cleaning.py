"""The first clean-up of an ONNX graph, by onnx-ir's passes: functions of the model's own are written out where they are
called, nodes that no output needs are gone. What these lack, and what only layers and views show, is done in passes.py;
identities vanish when the graph is read."""

import onnx_ir
from onnx_ir.passes import Sequential, common


def cleaned(model):
    """The ModelProto so cleaned; `model` itself is used up. Raises whatever onnx-ir does about a model that contradicts
    itself."""
    for node in model.graph.node:
        # where it was left out it is there from now on, and empty: onnx-ir makes names up, and errors tell nodes by
        # outputs
        node.name = node.name
    if _is_clean(model):
        return model
    _raise_functions(model)
    maps = {value.name: value.type for value in model.graph.output if _has_map(value.type)}
    for value in (*model.graph.output, *model.graph.value_info):
        if _has_map(value.type):  # onnx-ir knows no maps; none of its passes asks for types
            value.ClearField("type")
    graph = onnx_ir.from_proto(model)
    Sequential(common.InlinePass(), common.RemoveUnusedNodesPass())(graph)
    result = onnx_ir.to_proto(graph)
    for value in result.graph.output:
        if value.name in maps:
            value.type.CopyFrom(maps[value.name])
    return result


def _raise_functions(model):
    """Gives functions the model's opset, which onnx-ir's inlining wants, where their operators are the same in both."""
    from onnx import defs

    [version] = [item.version for item in model.opset_import if item.domain == ""] or [None]
    for function in model.functions if version else ():
        for opset in function.opset_import:
            names = {node.op_type for node in function.node if node.domain in ("", "ai.onnx")}
            if opset.domain == "" and all(
                defs.has(name)
                and len({defs.get_schema(name, number, "").since_version for number in (opset.version, version)}) == 1
                for name in names
            ):
                opset.version = version


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


def _is_clean(model):
    """Whether the passes would change nothing: no functions, and everything that is made is used."""
    if model.functions:
        return False
    made, used = [], set()

    def walk(graph):
        used.update(value.name for value in graph.output)
        made.extend(tensor.name for tensor in graph.initializer)
        for node in graph.node:
            if len(node.input) and not node.input[-1]:
                made.append("")
            made.extend(node.output)
            used.update(filter(None, node.input))
            for attribute in node.attribute:
                for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else ())):
                    walk(inner)

    walk(model.graph)
    return used.issuperset(made)


def _has_map(kind):
    return kind.HasField("map_type") or (kind.HasField("sequence_type") and _has_map(kind.sequence_type.elem_type))
