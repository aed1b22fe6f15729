"""ONNX's own tests of single nodes (onnx.backend.test), run by the engine: what docs/onnx-operators.md is made of.

    python -m tests.engine.onnx_nodes > docs/onnx-operators.md

An operator is claimed when there is a reader for it. A case is left out for its types only: element types that the
engine has not, tensors of no elements; or because it trains. Inputs that the compiler wants as
constants (shapes, axes, weights) are made constants. Sequences and optionals that a case takes or gives are made of
tensors, and taken apart, by nodes around its own."""

import collections
import dataclasses
import sys
import warnings

import numpy
from onnx import TensorProto, TypeProto, helper, numpy_helper

from tests.engine.library import backend_name, backends, on_backend
from vmhost.engine.models import opened
from vmhost.engine.onnx import READERS, OnnxError, compile_model
from vmhost.engine.onnx.network import DTYPES

UNREAD = "unread"
# Why there is no reader for the rest of ONNX's operators.
ABSENT = {
    "Constant": "is no computation: the compiler takes its value",
    "ImageDecoder": "reads files of images",
    "LinearAttention": "goes step by step through time with a state, of which the engine has no kernel",
    "RegexFullMatch": "works on texts",
    "StringConcat": "works on texts",
    "StringNormalizer": "works on texts",
    "StringSplit": "works on texts",
    "TfIdfVectorizer": "works on texts, or counts rows of integers as if they were words",
    "ai.onnx.ml.CastMap": "works on dicts",
    "ai.onnx.ml.DictVectorizer": "works on dicts",
}
ML = "ai.onnx.ml"


def cases():
    """(operator, case) of each case with one node; those of functions that ONNX has expanded are other operators' and
    not here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        found = load_model_tests(kind="node")
    for case in found:
        graph = case.model.graph
        [node, *others] = graph.node
        if not others and node.domain in ("", "ai.onnx", ML):
            yield f"{ML}.{node.op_type}" if node.domain == ML else node.op_type, with_tensors(case)


def with_tensors(case):
    """The case with tensors for the sequences and optionals that it takes and gives."""
    graph = case.model.graph
    if all(value.type.WhichOneof("value") == "tensor_type" for value in (*graph.input, *graph.output)):
        return case
    [(inputs, outputs)] = case.data_sets
    model = type(case.model)()
    model.CopyFrom(case.model)
    del model.graph.input[:], model.graph.output[:]
    given, expected, before, after = [], [], [], []
    for value, data in zip(graph.input, inputs):
        kind, name = value.type, value.name
        optional = kind.HasField("optional_type")
        kind = kind.optional_type.elem_type if optional else kind
        inner = f"{name}_element" if optional else name
        if data is None or (isinstance(data, list) and data and data[0] is None):
            before.append(helper.make_node("Optional", [], [name], type=kind))
            continue
        if kind.HasField("sequence_type"):
            names = [f"{name}_{number}" for number in range(len(data))]
            made = "SequenceConstruct" if names else "SequenceEmpty"
            told = {} if names else {"dtype": kind.sequence_type.elem_type.tensor_type.elem_type}
            before.append(helper.make_node(made, names, [inner], **told))
        else:
            names, data = [inner], [data]
        if optional:
            before.append(helper.make_node("Optional", [inner], [name]))
        model.graph.input.extend(map(_info, names, data))
        given += data
    for value, data in zip(graph.output, outputs):
        kind, name = value.type, value.name
        if kind.HasField("optional_type"):
            after.append(helper.make_node("OptionalGetElement", [name], [f"{name}_element"]))
            kind, name = kind.optional_type.elem_type, f"{name}_element"
        names = [name]
        if kind.HasField("sequence_type"):
            names = [f"{name}_{number}" for number in range(len(data))]
            for number, item in enumerate(names):
                model.graph.initializer.append(numpy_helper.from_array(numpy.int64(number), f"{item}_at"))
                after.append(helper.make_node("SequenceAt", [name, f"{item}_at"], [item]))
        else:
            data = [data]
        model.graph.output.extend(map(_info, names, data))
        expected += data
    nodes = [*before, *model.graph.node, *after]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    if not given:  # a model takes something
        model.graph.input.append(helper.make_tensor_value_info(UNREAD, TensorProto.FLOAT, (1,)))
        given = [numpy.zeros(1, "float32")]
    return dataclasses.replace(case, model=model, data_sets=[(given, expected)])


def _info(name, array):
    array = numpy.asarray(array)
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def left_out(case):
    """Why the case's types are none of the engine's, or None."""
    graph = case.model.graph
    [node, *_] = graph.node
    for value in (*graph.input, *graph.output):
        if value.type.WhichOneof("value") != "tensor_type":
            return "dicts"
        if not _has(value.type) and node.domain != ML:
            return "element types"
    if any(item.name == "training_mode" and item.i for item in node.attribute) or (
        node.op_type == "Dropout" and len(node.input) > 2
    ):
        return "training"
    if node.op_type in ("Bernoulli", "Multinomial") or node.op_type.startswith("Random"):
        return "random"
    for inputs, outputs in case.data_sets:
        for array in (*inputs, *outputs):
            if not isinstance(array, (numpy.ndarray, numpy.generic)):
                return "dicts"
            if numpy.asarray(array).dtype.name not in DTYPES and not (_is_text(array) and node.domain == ML):
                return "element types"
            if numpy.asarray(array).size == 0:
                return "no elements"
    return None


def _is_text(array):
    return numpy.asarray(array).dtype.kind in "OSUT"


def _has(kind: TypeProto):
    try:
        return numpy.dtype(helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type)).name in DTYPES
    except KeyError, TypeError:
        return False


def compiled(case):
    """The model file, and names of inputs that became constants because the compiler wants that: those behind the
    first. Where there is none left, the model gets an input that nothing reads."""
    try:
        return compile_model(case.model.SerializeToString(), case.name), ()
    except OnnxError:
        names = [value.name for value in case.model.graph.input]
    try:
        return _with_constants(case, names[1:]), names[1:]
    except OnnxError:
        return _with_constants(case, names), names


def _with_constants(case, names):
    model = type(case.model)()
    model.CopyFrom(case.model)
    for value, array in zip(case.model.graph.input, case.data_sets[0][0]):
        if value.name in names:
            model.graph.initializer.append(numpy_helper.from_array(numpy.asarray(array), value.name))
    kept = [value for value in model.graph.input if value.name not in names]
    del model.graph.input[:]
    model.graph.input.extend(kept or [helper.make_tensor_value_info(UNREAD, TensorProto.FLOAT, (1,))])
    return compile_model(model.SerializeToString(), case.name)


def failure(case):
    """What is wrong with the case on one of the backends, or None."""
    data, constants = compiled(case)
    for backend in backends():
        with on_backend(backend):
            wrong = _difference(case, opened(case.name, data), constants)
        if wrong is not None:
            return f"{wrong} on {backend_name(backend)}"
    return None


def _difference(case, model, constants):
    names = [value.name for value in case.model.graph.input]
    for inputs, outputs in case.data_sets[:1] if constants else case.data_sets:
        given = {
            name: array.tolist() if _is_text(array) else numpy.asarray(array)
            for name, array in zip(names, inputs)
            if name not in constants
        }
        answers = model(given or {port.name: numpy.zeros(port.shape, "float32") for port in model.inputs})
        for name, theirs in zip((value.name for value in case.model.graph.output), outputs):
            ours, theirs = numpy.asarray(answers[name]), numpy.asarray(theirs)
            if _is_text(theirs):
                if ours.tolist() != theirs.tolist():
                    return "other texts"
                continue
            if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
                return f"made {ours.dtype}{ours.shape}, expected {theirs.dtype}{theirs.shape}"
            if not numpy.allclose(ours, theirs, rtol=case.rtol, atol=case.atol, equal_nan=True):
                return "other values"
    return None


def absent():
    """(operator, reason) of all of ONNX's that are not claimed, but for those that train."""
    from onnx import defs

    names = {
        f"{ML}.{item.name}" if item.domain == ML else item.name
        for item in defs.get_all_schemas()
        if item.domain in ("", ML)
    }
    return [(name, ABSENT[name]) for name in sorted(names - set(READERS))]


def main():
    table, reasons = collections.defaultdict(collections.Counter), collections.Counter()
    for operator, case in cases():
        reason = left_out(case)
        if operator not in READERS:
            table[operator]["unclaimed"] += 1
        elif reason is not None:
            table[operator]["left"] += 1
            reasons[reason] += 1
        else:
            try:
                wrong = failure(case)
            except Exception as error:  # noqa: BLE001 - any failure is a line of the report
                wrong = f"{type(error).__name__}: {error}"
            table[operator]["passed" if wrong is None else "failed"] += 1
            if wrong is not None:
                print(f"{case.name}: {wrong}", file=sys.stderr)
    return table, reasons


DOMAINS = ("com.microsoft.", "com.ms.internal.nhwc.")  # of ONNX Runtime


def page(table, reasons):
    claimed = sorted(name for name in READERS if not name.startswith(DOMAINS))
    others, images = (
        sorted(name.removeprefix(domain) for name in READERS if name.startswith(domain)) for domain in DOMAINS
    )
    passed, failed, left = (sum(table[name][key] for name in claimed) for key in ("passed", "failed", "left"))
    yield "# Operators of ONNX\n"
    yield (
        "Made by `python -m tests.engine.onnx_nodes`, which runs ONNX's own tests of single nodes"
        " (`onnx.backend.test`) on every backend. A case is left out for its types\nor because it trains:"
        f" {', '.join(f'{reason} ({count})' for reason, count in sorted(reasons.items()))}. Shapes, axes and weights"
        " are constants; sequences and optionals are made of tensors.\n"
    )
    yield f"{len(claimed)} operators are claimed: {passed} cases pass, {failed} fail, {left} are left out.\n"
    yield (
        f"Of com.microsoft, what ONNX Runtime's optimizers write (tests/engine/test_optimized_operators.py):"
        f" {', '.join(others)}. DynamicQuantizeLSTM keeps inputs and states in float32, which is nearer to the network"
        " that was quantized.\n"
    )
    yield f"Of com.ms.internal.nhwc, whose images have channels last: {', '.join(images)}.\n"
    if left_over := absent():
        yield "Not there:\n\n| operator | it |\n| --- | --- |"
        yield from (f"| {name} | {reason} |" for name, reason in left_over)
        yield ""
    yield "| operator | passed | failed | left out |\n| --- | --- | --- | --- |"
    for name in claimed:
        yield f"| {name} | {table[name]['passed']} | {table[name]['failed'] or ''} | {table[name]['left'] or ''} |"


if __name__ == "__main__":
    print("\n".join(page(*main())))
