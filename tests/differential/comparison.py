"""One graph by both engines."""

import numpy
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

from tests.engine.library import backends, on_backend
from vmhost.engine.models import opened
from vmhost.engine.onnx import OnnxError, compile_model

TOLERANCE = 2e-4  # of the largest number of a result; what two orders of sums may differ by behind ten operators
TOLERANCE_OF_HALVES = 1e-2  # where a float16 is among the tensors
_SMALL = 1e-2  # the least number that the tolerance is taken of
# The same behind recurrences: ONNX Runtime's tanh there is good to 6e-8, however small its result, and each time step
# multiplies that. Seed 1395071: 4e-6 from float64 in numbers up to 8e-4, where this engine's were 2e-10 from it.
_SMALL_AFTER_RECURRENCE = 1e-1
_RECURRENT = {"RNN", "GRU", "LSTM"}
_UNSTABLE, _UNSTABLE_HALVES = 1e-6, 1e-3  # inputs so far from theirs show what is not settled by them
_INTEGERS = {onnx.TensorProto.DataType.Value(f"{sign}INT{bits}") for sign in ("", "U") for bits in (8, 16, 32, 64)}


class NotTheirsError(Exception):
    """ONNX Runtime does not run this graph."""


def onnx_runtime_session(data, optimized=False):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def onnx_runtime_of(data, optimized=False):
    """A function of inputs and names of outputs (None: all)."""
    session = onnx_runtime_session(data, optimized)
    return lambda inputs, names=None: session.run(names, inputs)


def reference_of(data):
    """The same by ONNX's reference implementation."""
    evaluator = ReferenceEvaluator(_with_narrow_sums(onnx.load_model_from_string(data)))
    return lambda inputs, names=None: [numpy.asarray(value) for value in evaluator.run(names, inputs)]


def _with_narrow_sums(model):
    """The reference adds integers as NumPy does, in 64 bits, and goes on in these: here reductions have the type that
    ONNX gives them."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    types = {each.name: each.type.tensor_type.elem_type for each in (*graph.value_info, *graph.output)}
    nodes = []
    for node in model.graph.node:
        nodes.append(node)
        name = node.output[0]
        if node.op_type.startswith("Reduce") and types.get(name) in _INTEGERS:
            node.output[0] = f"{name} in 64 bits"
            nodes.append(onnx.helper.make_node("Cast", [node.output[0]], [name], to=types[name]))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def difference(graph, seed, judges=(onnx_runtime_of,)):
    """None, or a text that says how our answers differ from those of the first of the `judges` that runs the graph.
    OnnxError: our compiler refuses the graph; that the engine refuses what it made is a difference."""
    data = graph.data()
    for judge in judges:
        try:
            theirs = judge(data)
            expected = [theirs(graph.inputs(call)) for call in (0, 1)]
            break
        except Exception as error:  # what they do not run either
            refusal = error
    else:
        raise NotTheirsError(f"{type(refusal).__name__} {refusal}") from refusal
    small = _SMALL_AFTER_RECURRENCE if any(node.op_type in _RECURRENT for node in graph.nodes) else _SMALL
    has_halves = any(value.dtype == "float16" for value in (*graph.ports, *graph.values))
    tolerance = TOLERANCE_OF_HALVES if has_halves else TOLERANCE
    names = backends()
    with on_backend(names[seed % len(names)] if seed % 2 else names[-1]):
        try:
            model = opened("random", compile_model(data, "random"))
            made = [model.run(None, graph.inputs(call)) for call in (0, 1)]
        except Exception as error:
            if isinstance(error, OnnxError) and "the engine does not open" not in str(error):
                raise
            return f"{type(error).__name__}: {error}\n{text(graph)}"
    for call in (0, 1):
        for value, ours, right in zip(graph.outputs(), made[call], expected[call], strict=True):
            if value.name in graph.right:
                right = graph.right[value.name](call)
            elif judge is reference_of and right.dtype.kind in "iu":  # NumPy's sums may be wider
                right = right.astype(value.dtype)
            outcome = compared(numpy.asarray(ours), right, value.exact, small, tolerance)
            if outcome and not unsettled(graph, (data, judge, theirs), call, value.name, right):
                return f"{value.name} of call {call}: {outcome}\n{text(graph)}"
    return None


def compared(ours, right, exact, small=_SMALL, tolerance=TOLERANCE):
    if ours.shape != right.shape or ours.dtype != right.dtype:
        return f"{ours.dtype} {ours.shape}, expected {right.dtype} {right.shape}"
    if right.dtype.kind != "f":
        if exact and not numpy.array_equal(ours, right):
            return f"{ours.reshape(-1)[:8]}, expected {right.reshape(-1)[:8]}"
        return None
    if not right.size:
        return None
    finite = numpy.isfinite(right)
    if not numpy.array_equal(ours[~finite], right[~finite], equal_nan=True) or not numpy.isfinite(ours[finite]).all():
        return "other numbers are not finite"
    apart = numpy.abs(ours[finite].astype("float64") - right[finite])
    if apart.size and apart.max() > tolerance * max(numpy.abs(right[finite]).max(), small):
        return f"{apart.max():.3g} apart, of numbers up to {numpy.abs(right[finite]).max():.3g}"
    return None


def unsettled(graph, judged, call, name, right):
    """Whether the judge's answers differ from each other as much: ONNX Runtime's, optimized, or those for slightly
    changed inputs."""
    data, judge, theirs = judged
    inputs = graph.inputs(call)
    moved = {
        key: array * (1 + array.dtype.type(_UNSTABLE_HALVES if array.dtype == "float16" else _UNSTABLE))
        if array.dtype.kind == "f"
        else array
        for key, array in inputs.items()
    }
    for optimized, given in ((judge is onnx_runtime_of, inputs), (False, moved)):
        try:
            [again] = (onnx_runtime_of(data, True) if optimized else theirs)(given, [name])
        except Exception:
            return True
        if again.shape != right.shape or compared(again, right, False):
            return True
    return False


def text(graph):
    lines = [f"  {value.name}: {value.dtype} {value.shape}" for value in graph.ports]
    for node in graph.nodes:
        attributes = [a.name if a.HasField("g") else str(a).replace("\n", " ") for a in node.attribute]
        lines.append(f"  {', '.join(node.output)} = {node.op_type}({', '.join(node.input)}) {attributes}")
    for name, array in graph.constants.items():
        lines.append(f"  {name}: {array.dtype} {array.shape} {array.reshape(-1)[:4].tolist()}")
    return "\n".join(lines)
