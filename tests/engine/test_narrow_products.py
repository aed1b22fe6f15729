"""Products with weights that stay narrow (float16, integers of 8 and 4 bits in blocks) against float64 of the same
weights."""

import random

import numpy
import pytest
from onnx import helper, numpy_helper

from tests import networks
from tests.engine.library import backends, on_backend
from vmhost.engine.models import opened
from vmhost.engine.onnx import OnnxError, compile_model

SEED, CASES = 20261126, 40


def close(data, given, expected, dtype):
    """Names of backends whose answer is not `expected`."""
    file, wrong = compile_model(data, "narrow"), []
    tolerance = 2e-3 if dtype == numpy.float16 else 2e-5
    for backend in backends():
        with on_backend(backend):
            model = opened("narrow", file)
            ours = numpy.asarray(model(given)["y"])
        same = ours.shape == expected.shape and ours.dtype == dtype
        if not same or numpy.abs(ours - expected).max() > tolerance * numpy.abs(expected).max():
            wrong.append(backend)
    assert "NarrowProduct" in {step.kind for step in model.steps}
    return wrong


def few_bits_model(names, x, constants, shape, **attributes):
    node = helper.make_node("MatMulNBits", names, ["y"], "few", domain="com.microsoft", **attributes)
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    ports = [helper.make_tensor_value_info(name, kind, size) for name, size in (("x", x.shape), ("y", shape))]
    arrays = [numpy_helper.from_array(numpy.asarray(values), name) for name, values in constants.items()]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "few", ports[:1], ports[1:], arrays)
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def few_bits(choose):
    """(model, inputs, what a MatMulNBits makes)."""
    draw = numpy.random.default_rng(choose.randrange(1 << 30))
    bits, block, columns = choose.choice([4, 8]), choose.choice([16, 32]), choose.choice([1, 31, 33, 70])
    k, dtype = choose.choice([32, 40, 96, 600]), choose.choice(["float32", "float32", "float16"])
    shape = choose.choice([(1,), (2,), (3,), (7,), (9,), (2, 20), (1, 1, 1)])
    blocks, top = -(-k // block), 1 << bits
    numbers = draw.integers(0, top, (columns, blocks * block))
    scales = draw.uniform(0.5, 1.5, (columns, blocks)).astype(dtype)
    zeros = choose.choice([None, draw.integers(0, top, (columns, blocks))])
    points = top // 2 if zeros is None else numpy.repeat(zeros, block, 1)
    whole = (numbers - points) * numpy.repeat(scales.astype("float64"), block, 1)

    def packed(values):
        if bits == 8:
            return values.astype("uint8")
        values = numpy.pad(values, ((0, 0), (0, values.shape[1] % 2)))
        return (values[:, 0::2] | values[:, 1::2] << 4).astype("uint8")

    constants = {"w": packed(numbers).reshape(columns, blocks, -1), "s": scales.reshape(-1)}
    if zeros is not None:
        constants["z"] = packed(zeros).reshape(-1)
    names = ["x", "w", "s", "z" if zeros is not None else ""]
    x, bias = draw.standard_normal((*shape, k)).astype(dtype), 0.0
    if choose.random() < 0.3:
        bias = constants["b"] = draw.standard_normal(columns).astype(dtype)
        names += ["", "b"]
    attributes = {"K": k, "N": columns, "bits": bits, "block_size": block}
    data = few_bits_model(names, x, constants, (*shape, columns), **attributes)
    return data, {"x": x}, x.astype("float64") @ whole[:, :k].T + bias, numpy.dtype(dtype)


def halves(choose):
    draw = numpy.random.default_rng(choose.randrange(1 << 30))
    k, columns, rows = choose.choice([1, 2, 7, 64, 300]), choose.choice([1, 32, 45]), choose.choice([1, 3, 5, 8, 30])
    x, w = draw.standard_normal((rows, k)).astype("float16"), draw.standard_normal((k, columns)).astype("float16")
    constants, expected = {"w": w}, x.astype("float64") @ w.astype("float64")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    if choose.random() < 0.5:
        constants = {"w": w.T, "b": draw.standard_normal(columns).astype("float16")}
        expected = expected + constants["b"]
        node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=1)
    return networks.graph_of([node], {"x": x}, ["y"], constants, opset=17), {"x": x}, expected, numpy.dtype("float16")


@pytest.mark.parametrize("kind", [few_bits, halves])
def test_products_are_those_of_the_numbers_that_weights_stand_for(kind):
    choose = random.Random(SEED)
    cases = [kind(choose) for _ in range(CASES)]
    assert [(number, wrong) for number, case in enumerate(cases) if (wrong := close(*case))] == []


@pytest.mark.parametrize("op", ["Gemm", "MatMul"])
@pytest.mark.parametrize("dtype", ["int4", "uint4", "int8", "uint8"])
def test_blocks_before_a_product_stay_narrow(dtype, op):
    import ml_dtypes

    draw, signed = numpy.random.default_rng(3), dtype.startswith("int")
    top = 1 << (4 if dtype.endswith("4") else 8)
    kind = numpy.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    low = -top // 2 if signed else 0
    w, zero = (draw.integers(low, low + top, shape) for shape in ((40, 64), (40, 2)))
    scale, x = draw.random((40, 2)).astype("float32"), draw.standard_normal((3, 64)).astype("float32")
    whole = (w - numpy.repeat(zero, 32, 1)) * numpy.repeat(scale, 32, 1)
    if op == "MatMul":
        w, zero, scale = w.T, zero.T, scale.T
    attributes = {"axis": 1, "transB": 1} if op == "Gemm" else {"axis": 0}
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["whole"], axis=attributes.pop("axis"), block_size=32),
        helper.make_node(op, ["x", "whole"], ["y"], **attributes),
    ]
    constants = {"w": w.astype(kind), "s": scale, "z": zero.astype(kind)}
    data = networks.graph_of(nodes, {"x": x}, ["y"], constants, opset=21)
    assert close(data, {"x": x}, x.astype("float64") @ whole.T, numpy.dtype("float32")) == []
    if top == 16:  # and so does the file
        assert len(compile_model(data, "narrow")) < whole.size * 4


@pytest.mark.parametrize("bits", [4, 8])
def test_rows_of_any_size_and_blocks_longer_than_a_part(bits):
    draw, k = numpy.random.default_rng(4), 2 * 264
    w, scale = draw.integers(-8, 8, (40, k)), draw.random((40, 2)).astype("float32")
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["whole"], axis=1, block_size=264),
        helper.make_node("Gemm", ["x", "whole"], ["y"], transB=1),
    ]
    whole = w * numpy.repeat(scale, 264, 1).astype("float64")
    import ml_dtypes

    kind = ml_dtypes.int4 if bits == 4 else numpy.dtype("int8")
    x = numpy.stack([draw.standard_normal(k), numpy.zeros(k), draw.standard_normal(k) * 1e30]).astype("float32")
    data = networks.graph_of(nodes, {"x": x}, ["y"], {"w": w.astype(kind), "s": scale}, opset=21)
    for row in x:
        assert close(data, {"x": row[None].repeat(3, 0)}, row[None].repeat(3, 0) @ whole.T, x.dtype) == []
    x[1, 300], x[2, 7] = numpy.inf, numpy.nan
    for backend in backends():
        with on_backend(backend):
            made = opened("narrow", compile_model(data, "narrow"))({"x": x})["y"]
        assert numpy.isfinite(numpy.asarray(made)).all(1).tolist() == [True, False, False], backend


def test_weights_of_other_bits_are_refused():
    constants = {"w": numpy.zeros((4, 1, 8), "uint8"), "s": numpy.ones(4, "float32")}
    attributes = {"K": 32, "N": 4, "bits": 2, "block_size": 32}
    data = few_bits_model(["x", "w", "s"], numpy.zeros((1, 32), "float32"), constants, (1, 4), **attributes)
    with pytest.raises(OnnxError, match=r"MatMulNBits \(node 'few'\) has 2 bits in blocks of 32, expected 4 or 8"):
        compile_model(data, "model")


def test_networks_of_float16_are_computed_in_float32():
    """But for inputs, outputs and what the model itself casts to float16."""
    draw = numpy.random.default_rng(3)
    weights = {name: (draw.standard_normal((24, 24)) * 0.3).astype("float16") for name in "uv"}
    nodes = [
        helper.make_node("MatMul", ["x", "u"], ["a"]),
        helper.make_node("Softmax", ["a"], ["b"], axis=-1),
        helper.make_node("MatMul", ["b", "v"], ["c"]),
        helper.make_node("Add", ["c", "z"], ["y"]),
        helper.make_node("Cast", ["w"], ["h"], to=10),
        helper.make_node("Cast", ["h"], ["r"], to=1),
    ]
    ports = [
        helper.make_tensor_value_info(name, kind, (5, 24))
        for name, kind in (("x", 10), ("z", 10), ("w", 1), ("y", 10), ("r", 1))
    ]
    arrays = [numpy_helper.from_array(values, name) for name, values in weights.items()]
    graph = helper.make_graph(nodes, "halves", ports[:3], ports[3:], arrays)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x, z, w = (draw.standard_normal((5, 24)) for _ in range(3))
    given = {"x": x.astype("float16"), "z": z.astype("float16"), "w": w.astype("float32")}
    run = opened("halves", compile_model(model.SerializeToString(), "halves"))
    answer = {name: numpy.asarray(values) for name, values in run(given).items()}
    powers = numpy.exp(given["x"].astype("float64") @ weights["u"])
    expected = powers / powers.sum(1, keepdims=True) @ weights["v"].astype("float64") + given["z"]
    assert answer["y"].dtype == numpy.float16
    numpy.testing.assert_allclose(answer["y"], expected, atol=0, rtol=2**-10)  # rounded once
    numpy.testing.assert_array_equal(answer["r"], given["w"].astype("float16").astype("float32"))
    steps = {step.kind: str(step.dtype) for step in run.steps}
    assert steps["NarrowProduct"] == steps["Softmax"] == "float32" and steps["Binary"] == "float16"
