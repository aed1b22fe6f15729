"""Recurrent layers give what ONNX Runtime computes: kinds, directions, options, sizes and lengths drawn at random, and
ONNX's own cases (test_onnx_nodes.py)."""

import random

import numpy
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests import networks
from tests.engine.library import backends, on_backend
from vmhost.engine.models import opened
from vmhost.engine.onnx import OnnxError, compile_model

SEED, CASES = 20261130, 120
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
# Bounded functions: small differences stay small.
FUNCTIONS = ["Sigmoid", "Tanh", "Softsign", "HardSigmoid", "ScaledTanh"]
OTHERS = ["Relu", "LeakyRelu", "Elu", "ThresholdedRelu", "Affine", "Softplus"]
ALPHA = {"Affine": 0.3, "LeakyRelu": 0.2, "ThresholdedRelu": 0.4, "ScaledTanh": 0.9, "HardSigmoid": 0.3, "Elu": 0.5}
BETA = {"Affine": 0.1, "ScaledTanh": 0.7, "HardSigmoid": 0.4}


def layer(draw, **fixed):
    """(model's bytes, {input: array}) of one recurrent layer that `draw`, a random.Random, and `fixed` say."""

    def chance(key, part, value=1):
        return fixed[key] if key in fixed else value if draw.random() < part else 0

    op = fixed.get("op") or draw.choice(sorted(GATES))
    direction = fixed.get("direction") or draw.choice(["forward", "reverse", "bidirectional"])
    times, batch, inputs = draw.choice([1, 2, 9]), draw.choice([1, 2, 7, 50]), draw.choice([1, 4, 33])
    hidden, directions = draw.choice([1, 3, 16, 65, 100]), 1 + (direction == "bidirectional")
    gates, layout, is_open = GATES[op], chance("layout", 0.0), chance("open", 0.3)
    random_numbers = numpy.random.default_rng(draw.randrange(1 << 30))

    def array(*shape, scale=0.5):
        return (random_numbers.standard_normal(shape) * scale).astype("float32")

    def state():
        return array(batch, directions, hidden) if layout else array(directions, batch, hidden)

    tensors = {
        "x": array(batch, times, inputs) if layout else array(times, batch, inputs),
        "w": array(directions, gates * hidden, inputs),
        "r": array(directions, gates * hidden, hidden, scale=hidden**-0.5),
        "b": array(directions, 2 * gates * hidden) if chance("bias", 0.7) else None,
        "lengths": random_numbers.integers(0, times + 1, batch).astype("int32") if chance("lengths", 0.4) else None,
        "h": state() if chance("state", 0.5) else None,
        "c": state() if op == "LSTM" and chance("cell", 0.5) else None,
        "p": array(directions, 3 * hidden) if op == "LSTM" and chance("peepholes", 0.3) else None,
    }
    attributes = {"hidden_size": hidden, "direction": direction}
    if layout:
        attributes["layout"] = 1
    if op == "GRU":
        attributes["linear_before_reset"] = chance("after", 0.5)
    if op == "LSTM":
        attributes["input_forget"] = chance("input_forget", 0.2)
    if chance("clip", 0.2):
        attributes["clip"] = 0.4
    if chance("functions", 0.3):
        several = {"RNN": 1, "GRU": 2, "LSTM": 3}[op]
        names = [
            draw.choice(FUNCTIONS + OTHERS * (number % several == several - 1))
            for number in range(several * directions)
        ]
        attributes["activations"] = names
        for key, numbers in (("activation_alpha", ALPHA), ("activation_beta", BETA)):
            if any(name in numbers for name in names):
                attributes[key] = [numbers[name] for name in names if name in numbers]
    given = [name for name in ("x", "lengths", "h", "c") if tensors[name] is not None]
    given += [name for name in "wrbp" if tensors[name] is not None and chance("computed", 0.1)]
    outputs = ["y", "y_h", "y_c"][: 2 + (op == "LSTM")]
    return model(op, tensors, given, outputs, attributes, is_open, layout), {name: tensors[name] for name in given}


def model(op, tensors, given, outputs, attributes, is_open, layout):
    opens = {"x": (0, 1), "lengths": (0,), "h": (0,) if layout else (1,), "c": (0,) if layout else (1,)}

    def port(name):
        shape = list(tensors[name].shape)
        for axis in opens.get(name, ()) if is_open else ():
            shape[axis] = "times" if name == "x" and axis == (1 if layout else 0) else "batch"
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(tensors[name].dtype), shape)

    names = ["" if tensors[name] is None else name for name in tensors]
    names = names if op == "LSTM" else names[:-2]
    graph = helper.make_graph(
        [helper.make_node(op, names, outputs, "layer", **attributes)],
        "test",
        [port(name) for name in given],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, "abcd" if name == "y" else "efg", "")
            for name in outputs
        ],
        [
            numpy_helper.from_array(values, name)
            for name, values in tensors.items()
            if values is not None and name not in given
        ],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return made.SerializeToString()


def differences(cases):
    wrong = []
    for (data, inputs), theirs in zip(cases, networks.each_by_onnx_runtime(cases), strict=True):
        file = compile_model(data, "layer")
        for backend in backends():
            with on_backend(backend):
                ours = opened("layer", file)(inputs)
            for (name, made), expected in zip(ours.items(), theirs, strict=True):
                made = numpy.asarray(made)
                if made.shape != expected.shape or not numpy.allclose(made, expected, rtol=1e-4, atol=2e-5):
                    wrong.append((len(wrong), name, made.shape, expected.shape))
    return wrong


def test_layers_drawn_at_random_give_what_onnx_runtime_computes():
    draw = random.Random(SEED)
    assert differences([layer(draw) for _ in range(CASES)]) == []


def test_a_batch_that_comes_first_is_the_same_layer():
    """ONNX Runtime has no layout 1: its answer is that of the transposed layer."""
    for op in GATES:
        data, inputs = layer(random.Random(5), op=op, layout=1, lengths=1, state=1, cell=1, direction="bidirectional")
        other, turned = layer(random.Random(5), op=op, layout=0, lengths=1, state=1, cell=1, direction="bidirectional")
        turned = {
            name: values.swapaxes(0, 1) if values.ndim == 3 and name in "xhc" else values
            for name, values in inputs.items()
        }
        ours = opened("layer", compile_model(data, "layer"))(inputs)
        theirs = opened("layer", compile_model(other, "layer"))(turned)
        assert numpy.array_equal(ours["y"], numpy.asarray(theirs["y"]).transpose(2, 0, 1, 3))
        for name in ("y_h", "y_c")[: 1 + (op == "LSTM")]:
            assert numpy.array_equal(ours[name], numpy.asarray(theirs[name]).swapaxes(0, 1))


@pytest.mark.parametrize("lengths", [[3, 10], [-1, 2]])
def test_lengths_beyond_the_times_say_so(lengths):
    draw = random.Random(1)
    while True:
        data, inputs = layer(draw, lengths=1, open=0)
        if inputs["lengths"].shape == (2,) and inputs["x"].shape[0] == 9:
            break
    inputs["lengths"] = numpy.array(lengths, "int32")
    wrong = next(length for length in lengths if not 0 <= length <= 9)
    with pytest.raises(ValueError, match=rf"sequence_lens\[\d\]: expected 0 to 9, got {wrong}"):
        opened("layer", compile_model(data, "layer"))(inputs)


def test_an_unknown_activation_is_named():
    data, _ = layer(random.Random(2), op="RNN", direction="forward", functions=0)
    from onnx import load_model_from_string

    proto = load_model_from_string(data)
    proto.graph.node[0].attribute.append(helper.make_attribute("activations", ["Gaussian"]))
    with pytest.raises(OnnxError, match=r"operator RNN \(node 'layer'\) has the activation Gaussian"):
        compile_model(proto.SerializeToString(), "layer")
