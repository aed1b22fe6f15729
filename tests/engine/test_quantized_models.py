"""Quantized models: networks as ONNX Runtime's tool writes them give what ONNX Runtime computes, and convolutions and
products drawn at random exact integer sums; ONNX's own cases are in test_onnx_nodes.py."""

import itertools
import os
import random
import subprocess
import sys

import numpy
import pytest
from onnx import TensorProto, helper, numpy_helper

from bench import networks as networks_of_bench
from tests import networks
from tests.engine.library import backends, on_backend
from vmhost.engine.models import opened
from vmhost.engine.onnx import OnnxError, compile_model

SEED, CASES = 20261202, 60

QUANTIZE = """
import logging, numpy, onnxruntime, sys
from pathlib import Path
logging.disable(logging.WARNING)
onnxruntime.set_default_logger_severity(4)
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

class Inputs(CalibrationDataReader):
    def __init__(self, arrays):
        self.left = iter(arrays)
    def get_next(self):
        return next(self.left, None)

def run(path, given):
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")  # its sums saturate where a CPU has no VNNI
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(None, given)[0]

unsigned, signed = QuantType.QUInt8, QuantType.QInt8
ways = {
    "qdq-u8s8": (QuantFormat.QDQ, unsigned, signed, True),
    "operators-u8s8": (QuantFormat.QOperator, unsigned, signed, True),
    "qdq-s8s8": (QuantFormat.QDQ, signed, signed, False),
    "operators-u8u8": (QuantFormat.QOperator, unsigned, unsigned, False),
}
folder = Path(sys.argv[1])
for path in [folder / f"{name}.onnx" for name in sys.argv[2:]]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(path.with_suffix(".plain"))
    port = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).get_inputs()[0]
    draw = numpy.random.default_rng(0)
    arrays = [{port.name: draw.standard_normal(port.shape).astype("float32")} for _ in range(5)]
    numpy.save(path.with_suffix(".input.npy"), arrays[-1][port.name])
    for way, (form, activations, weights, each) in ways.items():
        made = path.with_name(f"{path.stem}-{way}.onnx")
        quantize_static(
            options.optimized_model_filepath, made, Inputs(arrays[:4]), quant_format=form,
            activation_type=activations, weight_type=weights, per_channel=each,
        )
        numpy.save(made.with_suffix(".npy"), run(made, arrays[-1]))
    made = path.with_name(f"{path.stem}-dynamic.onnx")
    quantize_dynamic(options.optimized_model_filepath, made, weight_type=signed)
    numpy.save(made.with_suffix(".npy"), run(made, arrays[-1]))
"""


def layers():
    """Two dense layers on rows, the usual case of dynamic quantization."""
    net = networks_of_bench.Network("layers", 5)
    x = net.relu("active", net.dense("first", net.input("x", [3, 7, 32]), 32, 48))
    y = net.dense("second", x, 48, 10)
    net.output(y, "y", [3, 7, 10])
    return net.model()


@pytest.fixture(scope="module")
def quantized(tmp_path_factory):
    """A folder with each network's quantized models, and ONNX Runtime's answers beside them."""
    folder = tmp_path_factory.mktemp("quantized")
    models = {
        "resnet": networks_of_bench.resnet18(size=32, width=8, classes=10),
        "mobilenet": networks_of_bench.mobilenet_v2(size=32, width=0.25, classes=10),
        "layers": layers(),
    }
    for name, model in models.items():
        (folder / f"{name}.onnx").write_bytes(model.SerializeToString())
    environment = {**os.environ, "HOME": str(folder)}
    subprocess.run([sys.executable, "-c", QUANTIZE, folder, *models], env=environment, check=True, timeout=280)
    return folder


WAYS = ["qdq-u8s8", "operators-u8s8", "qdq-s8s8", "operators-u8u8", "dynamic"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["resnet", "mobilenet", "layers"])
def test_networks_give_what_onnx_runtime_computes(quantized, name, way):
    path = quantized / f"{name}-{way}.onnx"
    given, theirs = numpy.load(quantized / f"{name}.input.npy"), numpy.load(path.with_suffix(".npy"))
    file = compile_model(path.read_bytes(), name)
    for backend in backends():
        with on_backend(backend):
            model = opened(name, file)
            [ours] = model({model.inputs[0].name: given}).values()
            numpy.testing.assert_allclose(ours, theirs, atol=0.01 * numpy.abs(theirs).max())
    kinds = {step.kind for step in model.steps}
    assert "IntegerProduct" in kinds and not kinds & {"Conv", "Gemm", "MatMul"}


def bytes_of(draw, dtype, *shape):
    info = numpy.iinfo(dtype)
    return draw.integers(info.min, info.max + 1, shape).astype(dtype)


def convolution(choose, whole=True, rank=2):
    """(model, inputs, the exact sums) of a ConvInteger of `rank` dimensions; not `whole`: of a QLinearConv, with the
    bytes of the sums."""
    draw = numpy.random.default_rng(choose.randrange(1 << 30))
    groups, each = choose.choice([(1, 1), (1, 3), (1, 8), (1, 40), (2, 4), (3, 5), (8, 1), (40, 1), (72, 1)])
    outputs = groups * choose.choice([1, 2, 33] if each > 1 else [1, 3])
    kernel, strides, dilations = ([choose.choice([1, 2, 3]) for _ in range(rank)] for _ in range(3))
    if each == 1 and choose.random() < 0.5:
        kernel, dilations = [3] * rank, [choose.choice([1, 2]), *[1] * (rank - 1)]
    pads = [choose.randrange(3) for _ in range(2 * rank)]
    size = [choose.choice([5, 7, 12] if rank == 2 else [1, 2, 5]) + (k - 1) * d for k, d in zip(kernel, dilations)]
    x = bytes_of(draw, choose.choice(["uint8", "int8"]), choose.choice([1, 2]), groups * each, *size)
    w = bytes_of(draw, choose.choice(["uint8", "int8"]), outputs, each, *kernel)
    x_zero = bytes_of(draw, x.dtype)
    w_zero = choose.choice([numpy.zeros((), w.dtype), bytes_of(draw, w.dtype)])
    node = helper.make_node(
        "ConvInteger", ["x", "w", "xz", "wz"], ["y"], group=groups, strides=strides, dilations=dilations, pads=pads
    )
    constants = {"w": w, "wz": w_zero} | ({"xz": x_zero} if choose.random() < 0.5 else {})
    inputs = {"x": x} | ({} if "xz" in constants else {"xz": x_zero})
    wide = numpy.pad(x.astype("int64") - int(x_zero), ((0, 0), (0, 0), *zip(pads[:rank], pads[rank:])))
    weights = w.astype("int64") - int(w_zero)
    sizes = [(wide.shape[2 + d] - dilations[d] * (kernel[d] - 1) - 1) // strides[d] + 1 for d in range(rank)]
    sums = numpy.zeros((len(x), outputs, *sizes), "int64")
    for tap in itertools.product(*map(range, kernel)):
        begins = [place * dilation for place, dilation in zip(tap, dilations)]
        seen = wide[:, :, *(slice(begin, None, stride) for begin, stride in zip(begins, strides))]
        seen = seen[:, :, *map(slice, sizes)]
        for group in range(groups):
            own = slice(group * outputs // groups, (group + 1) * outputs // groups)
            part = seen[:, group * each : (group + 1) * each]
            sums[:, own] += numpy.einsum("nc...,oc->no...", part, weights[own, :, *tap])
    if whole:
        return networks.graph_of([node], inputs, ["y"], constants, opset=17), inputs, sums.astype("int32")
    bias, y_zero = draw.integers(-5000, 5000, outputs).astype("int32"), bytes_of(draw, x.dtype)
    x_scale, w_scale = numpy.float32(0.02), draw.uniform(0.001, 0.01, outputs).astype("float32")
    y_scale = numpy.float32(x_scale * w_scale.mean() * sums.std() / 50 + 1e-6)
    if choose.random() < 0.1:
        y_scale = numpy.float32(choose.choice([1e-9, -1e-9]))  # results do not fit in 32 bits
    constants = {"xs": x_scale, "xz": x_zero, "w": w, "ws": w_scale, "wz": numpy.full(outputs, w_zero, w.dtype)}
    constants |= {"ys": y_scale, "yz": y_zero, "b": bias}
    node.op_type = "QLinearConv"
    del node.input[:]
    node.input.extend(["x", *constants])
    factors, bias = (of_outputs.reshape(-1, *[1] * rank) for of_outputs in (x_scale * w_scale / y_scale, bias))
    numbers = numpy.rint((sums + bias).astype("float32") * factors) + int(y_zero)
    info, inputs = numpy.iinfo(x.dtype), {"x": x}
    expected = numpy.clip(numbers, info.min, info.max).astype(x.dtype)
    return networks.graph_of([node], inputs, ["y"], constants, opset=17), inputs, expected


def product(choose):
    draw = numpy.random.default_rng(choose.randrange(1 << 30))
    rows, k, columns = choose.choice([1, 2, 13, 60]), choose.choice([1, 3, 4, 65, 300]), choose.choice([1, 31, 33, 100])
    a = bytes_of(draw, choose.choice(["uint8", "int8"]), 2, rows, k)
    b = bytes_of(draw, choose.choice(["uint8", "int8"]), k, columns)
    a_zero, b_zero = bytes_of(draw, a.dtype), bytes_of(draw, b.dtype, *choose.choice([(), (columns,)]))
    node = helper.make_node("MatMulInteger", ["a", "b", "az", "bz"], ["y"])
    constants = {"bz": b_zero} | ({"b": b} if choose.random() < 0.7 else {})
    inputs = {"a": a, "az": a_zero} | ({} if "b" in constants else {"b": b})
    sums = (a.astype("int64") - int(a_zero)) @ (b.astype("int64") - b_zero.astype("int64"))
    return networks.graph_of([node], inputs, ["y"], constants, opset=17), inputs, sums.astype("int32")


def test_sums_are_exact():
    choose, wrong = random.Random(SEED), []
    for number in range(CASES):
        data, inputs, expected = (convolution if number % 2 else product)(choose)
        file = compile_model(data, "sums")
        for backend in backends():
            with on_backend(backend):
                ours = numpy.asarray(opened("sums", file)(inputs)["y"])
            if ours.dtype != numpy.int32 or not numpy.array_equal(ours, expected):
                wrong.append((number, backend, inputs["x" if "x" in inputs else "a"].shape))
    assert wrong == []


@pytest.mark.parametrize("whole", [True, False])
def test_volumes_are_exact_too(whole):
    choose, wrong = random.Random(SEED + 2), []
    for number in range(CASES // 2):
        data, inputs, expected = convolution(choose, whole, rank=3)
        ours = numpy.asarray(opened("volumes", compile_model(data, "volumes"))(inputs)["y"])
        if ours.dtype != expected.dtype or not numpy.array_equal(ours, expected):
            wrong.append((number, inputs["x"].shape, expected.shape))
    assert wrong == []


def test_volumes_between_quantize_and_dequantize_are_computed_on_bytes():
    """As quantizers write 3-D convolutions: no operator on floats remains between the first and the last."""
    draw = numpy.random.default_rng(SEED)
    fine, middle = numpy.float32(0.05), numpy.uint8(120)
    weights = bytes_of(draw, "int8", 6, 4, 3, 3, 3)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "fine", "middle"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "fine", "middle"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "small", "none"], ["e"]),
        helper.make_node("Conv", ["d", "e"], ["c"], pads=[1] * 6),
        helper.make_node("QuantizeLinear", ["c", "wide", "middle"], ["r"]),
        helper.make_node("DequantizeLinear", ["r", "wide", "middle"], ["y"]),
    ]
    constants = {"fine": fine, "middle": middle, "w": weights, "small": numpy.float32(0.01), "none": numpy.int8(0)}
    constants["wide"] = numpy.float32(0.5)
    given = {"x": draw.standard_normal((2, 4, 5, 6, 7)).astype("float32")}
    data = networks.graph_of(nodes, given, ["y"], constants, opset=17)
    model = opened("volumes", compile_model(data, "volumes"))
    kinds = [step.kind for step in model.steps]
    assert "IntegerProduct" in kinds and not set(kinds) & {"Conv", "Gemm", "MatMul", "Binary"}
    [[theirs]] = networks.each_by_onnx_runtime([(data, given)])
    steps = numpy.abs(numpy.asarray(model(given)["y"]) - theirs) / 0.5
    assert steps.max() < 1.01 and (steps > 0.5).mean() < 0.01


def test_bytes_are_exact_sums_that_are_rounded_once():
    choose, wrong = random.Random(SEED + 1), []
    for number in range(2 * CASES):
        data, inputs, expected = convolution(choose, whole=False)
        file = compile_model(data, "bytes")
        for backend in backends():
            with on_backend(backend):
                ours = numpy.asarray(opened("bytes", file)(inputs)["y"])
            if ours.dtype != expected.dtype or not numpy.array_equal(ours, expected):
                wrong.append((number, backend, inputs["x"].shape, expected.shape))
    assert wrong == []


def linear(op, inputs, **attributes):
    """(model, inputs) of one of com.microsoft's operators: each tensor of bytes has a scale and zero point of its own,
    constants."""
    names, constants, given = [], {}, {}
    for name, (values, scale, zero) in inputs.items():
        if values is not None:
            (given if name.islower() else constants)[name] = values
            names.append(name)
        if scale is not None:
            constants[f"{name}_scale"] = numpy.float32(scale)
            constants[f"{name}_zero"] = numpy.array(zero, inputs["x"][0].dtype)
            names += [f"{name}_scale", f"{name}_zero"]
    node = helper.make_node(op, names, ["y"], op, domain="com.microsoft", **attributes)
    kind = TensorProto.UINT8 if inputs["x"][0].dtype == numpy.uint8 else TensorProto.INT8
    graph = helper.make_graph(
        [node],
        op,
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(values.dtype), values.shape)
            for name, values in given.items()
        ],
        [helper.make_tensor_value_info("y", kind, "abcd"[: inputs["x"][0].ndim])],
        [numpy_helper.from_array(values, name) for name, values in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString(), given


def linear_cases():
    draw = numpy.random.default_rng(7)
    for dtype, zero in (("uint8", 120), ("int8", -8)):
        x, other = (
            (bytes_of(draw, dtype, 2, 6, 8, 8), 0.0413, zero),
            (bytes_of(draw, dtype, 2, 6, 8, 8), 0.0317, zero + 5),
        )
        row, y = (bytes_of(draw, dtype, 5, 16), 0.05, zero), (None, 0.0611, zero - 3)
        yield linear("QLinearAdd", {"x": x, "b": other, "y": y})
        yield linear("QLinearMul", {"x": x, "b": other, "y": (None, 0.207, zero)})
        yield linear("QLinearAdd", {"x": x, "B": (bytes_of(draw, dtype, 8), 0.0317, zero), "y": y})
        yield linear("QLinearSigmoid", {"x": x, "y": (None, 0.004, zero)})
        yield linear("QLinearLeakyRelu", {"x": x, "y": y}, alpha=0.1)
        yield linear(
            "QLinearSoftmax", {"x": row, "y": (None, 0.004, 0 if dtype == "uint8" else -128)}, opset=13, axis=-1
        )
        yield linear("QLinearAveragePool", {"x": x, "y": y}, kernel_shape=[2, 2], strides=[2, 2])
        yield linear("QLinearGlobalAveragePool", {"x": x, "y": (None, 0.0123, zero)}, channels_last=0)
        data, given = linear("QLinearConcat", {"y": y, "x": x, "b": other}, axis=1)
        yield data, given


def pools():
    """(model, inputs) of a MaxPool of bytes."""
    draw = numpy.random.default_rng(8)
    for dtype in ("uint8", "int8"):
        for shape, attributes in (
            ((2, 67, 9, 11), {"kernel_shape": [3, 3], "strides": [2, 2]}),
            ((1, 130, 8, 7), {"kernel_shape": [2, 3], "pads": [1, 1, 1, 2]}),
            ((1, 5, 9, 10), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
            ((1, 64, 9, 9), {"kernel_shape": [2, 2], "dilations": [3, 2], "auto_pad": "VALID"}),
            ((2, 33, 20), {"kernel_shape": [5], "strides": [3]}),
        ):
            x = bytes_of(draw, dtype, *shape)
            kind = helper.np_dtype_to_tensor_dtype(x.dtype)
            graph = helper.make_graph(
                [helper.make_node("MaxPool", ["x"], ["y"], **attributes)],
                "pool",
                [helper.make_tensor_value_info("x", kind, shape)],
                [helper.make_tensor_value_info("y", kind, "abcd"[: len(shape)])],
            )
            model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
            yield model.SerializeToString(), {"x": x}


def test_largest_bytes_of_windows():
    cases = list(pools())
    for (data, given), [theirs] in zip(cases, networks.each_by_onnx_runtime(cases), strict=True):
        file = compile_model(data, "pool")
        for backend in backends():
            with on_backend(backend):
                model = opened("pool", file)
                [ours] = model(given).values()
            assert "ByteMaxPool" in {step.kind for step in model.steps}
            numpy.testing.assert_array_equal(numpy.asarray(ours), theirs)


def fire(draw, dtype, zero):
    """(model, inputs) of a fire module of bytes: two convolutions side by side, one of which is scaled anew, and a pool
    behind them."""
    names = {"x": (bytes_of(draw, dtype, 1, 16, 9, 9), 0.04, zero)}
    constants = {"x_scale": numpy.float32(0.04), "x_zero": numpy.array(zero, dtype)}
    nodes = []
    for part, kernel, scale in (("one", 1, 0.5), ("three", 3, 0.7)):
        constants |= {
            f"{part}_w": bytes_of(draw, "int8", 40, 16, kernel, kernel) // 2,  # sums of two products fit int16
            f"{part}_w_scale": numpy.float32(0.01),
            f"{part}_w_zero": numpy.int8(0),
            f"{part}_scale": numpy.float32(scale),
            f"{part}_zero": numpy.array(zero, dtype),
        }
        of_weights = [f"{part}_w", f"{part}_w_scale", f"{part}_w_zero"]
        result = [f"{part}_scale", f"{part}_zero"]
        pads = [kernel // 2] * 4
        nodes.append(
            helper.make_node("QLinearConv", ["x", "x_scale", "x_zero", *of_weights, *result], [part], pads=pads)
        )
    ends = ["one_scale", "one_zero", "one", "one_scale", "one_zero", "three", "three_scale", "three_zero"]
    nodes.append(helper.make_node("QLinearConcat", ends, ["both"], domain="com.microsoft", axis=1))
    nodes.append(helper.make_node("MaxPool", ["both"], ["y"], kernel_shape=[3, 3], strides=[2, 2]))
    kind = helper.np_dtype_to_tensor_dtype(numpy.dtype(dtype))
    graph = helper.make_graph(
        nodes,
        "fire",
        [helper.make_tensor_value_info("x", kind, (1, 16, 9, 9))],
        [helper.make_tensor_value_info("y", kind, "abcd")],
        [numpy_helper.from_array(values, name) for name, values in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return model.SerializeToString(), {"x": names["x"][0]}


def test_parts_of_bytes_are_made_in_their_places():
    draw = numpy.random.default_rng(9)
    cases = [fire(draw, "uint8", 110), fire(draw, "int8", -10)]
    answers = networks.each_by_onnx_runtime(cases, exact=False)  # it refuses QLinearConv otherwise
    for (data, given), [theirs] in zip(cases, answers, strict=True):
        file = compile_model(data, "fire")
        for backend in backends():
            with on_backend(backend):
                model = opened("fire", file)
                [ours] = model(given).values()
            away = numpy.abs(numpy.asarray(ours).astype("int32") - theirs.astype("int32"))
            assert away.max() <= 1 and (away > 0).mean() < 0.1
        kinds = [step.kind for step in model.steps if step.kind not in ("Input", "Output")]
        assert sorted(kinds) == ["ByteMaxPool", "Copy", *["IntegerProduct"] * 2, "LookUp"]


def test_operators_of_onnx_runtime_are_within_a_step():
    cases = list(linear_cases())
    for (data, given), [theirs] in zip(cases, networks.each_by_onnx_runtime(cases), strict=True):
        file = compile_model(data, "linear")
        for backend in backends():
            with on_backend(backend):
                [ours] = opened("linear", file)(given).values()
            ours = numpy.asarray(ours)
            assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
            away = numpy.abs(ours.astype("int32") - theirs.astype("int32"))
            assert away.max() <= 1 and (away > 0).mean() < 0.1  # halves, and exponentials from tables


def test_weights_that_are_computed_are_refused():
    x, w = numpy.zeros((1, 2, 4, 4), "uint8"), numpy.zeros((2, 2, 1, 1), "uint8")
    data = networks.graph_of([helper.make_node("ConvInteger", ["x", "w"], ["y"], "conv")], {"x": x, "w": w}, ["y"])
    with pytest.raises(OnnxError, match=r"operator ConvInteger \(node 'conv'\) has weights that are computed"):
        compile_model(data, "model")


def test_weights_in_blocks_of_4_bits_are_computed_ahead():
    import ml_dtypes

    draw = numpy.random.default_rng(2)
    w = draw.integers(-8, 8, (6, 64)).astype(ml_dtypes.int4)
    scale = draw.random((6, 2)).astype("float32")
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "scale"], ["whole"], axis=1, block_size=32),
        helper.make_node("Gemm", ["x", "whole"], ["y"], transB=1),
    ]
    x = draw.standard_normal((3, 64)).astype("float32")
    data = networks.graph_of(nodes, {"x": x}, ["y"], {"w": w, "scale": scale}, opset=21)
    whole = w.astype("float32") * numpy.repeat(scale, 32, 1)
    numpy.testing.assert_allclose(
        opened("w", compile_model(data, "w"))({"x": x})["y"], x @ whole.T, rtol=1e-4, atol=1e-4
    )
