"""`vmhost quantize`: networks of int8 and int4 are close to the original, give the same answer here and in ONNX
Runtime, and bad data gives an error of one sentence."""

import json

import numpy
import onnx
import pytest
from onnx import helper

from tests import networks
from tests.engine.test_exported_models import FOLDER, texts
from vmhost.cli import main
from vmhost.engine.models import opened
from vmhost.engine.onnx import compile_model


def convolutions():
    """ResNet18's form, with BatchNormalization after a convolution, as bytes."""
    r = numpy.random.default_rng(3)
    numbers = {
        "w": r.standard_normal((8, 3, 3, 3)) * 0.3, "b": r.standard_normal(8), "scale": r.uniform(0.5, 2, 8),
        "shift": r.standard_normal(8), "mean": r.standard_normal(8), "variance": r.uniform(0.5, 2, 8),
        "v": r.standard_normal((8, 8, 3, 3)) * 0.2, "m": r.standard_normal((8, 10)), "c": r.standard_normal(10),
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["p"], pads=[1] * 4),
        helper.make_node("BatchNormalization", ["p", "scale", "shift", "mean", "variance"], ["q"]),
        helper.make_node("Relu", ["q"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["s"], pads=[1] * 4),
        helper.make_node("Add", ["s", "r"], ["t"]),
        helper.make_node("MaxPool", ["t"], ["u"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["u"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Gemm", ["f", "m", "c"], ["y"]),
    ]
    constants = {name: values.astype("float32") for name, values in numbers.items()}
    return networks.graph(nodes, {"x": (1, 3, 12, 12)}, {"y": (1, 10)}, constants)


def quantize(tmp_path, model, data, *options, capsys):
    """(what the command tells, the bytes that it wrote)."""
    (tmp_path / "model.onnx").write_bytes(model)
    calibrate = []
    if data is not None:
        numpy.savez(tmp_path / "data.npz", **data)
        calibrate = ["--calibrate", str(tmp_path / "data.npz")]
    arguments = ["quantize", str(tmp_path / "model.onnx"), *calibrate, "-o", str(tmp_path / "small.onnx"), "--json"]
    code = main([*arguments, *options])
    told = json.loads(capsys.readouterr().out)
    assert code == 0, told
    return told, (tmp_path / "small.onnx").read_bytes()


def images(count=6):
    return {"x": networks.values((count, 3, 12, 12))}


@pytest.mark.parametrize(
    "options, bound",
    [
        ((), 0.04),
        (("--method", "percentile"), 0.05),
        (("--method", "entropy"), 0.15),
        (("--weights-only",), 0.01),
        (("--to", "int4"), 0.15),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_convolutions_stay_near_and_run_in_both_engines(tmp_path, capsys, options, bound):
    told, small = quantize(tmp_path, convolutions(), images(), *options, capsys=capsys)
    assert told["examples"] == 6 and told["bytes_after"] == len(small)
    [row] = told["outputs"].values()
    x = {"x": images()["x"][:1]}
    ours = numpy.asarray(opened("small", compile_model(small, "small"))(x)["y"])
    theirs, before = (networks.all_by_onnx_runtime(model, [x])[0][0] for model in (small, convolutions()))
    numpy.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    assert numpy.linalg.norm(ours - before) < bound * numpy.linalg.norm(before)
    assert row["relative"] < bound and row["cosine"] > 0.98 and row["top1"] >= 0.5
    if not any("only" in each or "int4" in each for each in options):
        nodes = onnx.load_model_from_string(small).graph.node
        assert sum(node.op_type == "BatchNormalization" for node in nodes) == 0
        steps = [step.kind for step in opened("small", compile_model(small, "small")).steps]
        assert "IntegerProduct" in steps and not {"Conv", "Gemm", "MatMul"} & set(steps)  # all products are of bytes


@pytest.mark.parametrize("options, bound", [((), 0.03), (("--weights-only",), 0.02), (("--to", "int4"), 0.25)])
def test_a_decoder_with_open_sizes_stays_near(tmp_path, capsys, options, bound):
    model = (FOLDER / "gpt2.onnx").read_bytes()
    told, small = quantize(tmp_path, model, texts(4, 9), *options, capsys=capsys)
    assert told["outputs"]["y"]["relative"] < bound
    given = texts(3, 5)
    ours = numpy.asarray(opened("small", compile_model(small, "small"))(given)["y"])
    [[theirs]] = networks.all_by_onnx_runtime(small, [given])
    numpy.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4 * numpy.abs(theirs).max())


def test_labels_tell_accuracy_before_and_after(tmp_path, capsys):
    data = images(8)
    model = opened("model", compile_model(convolutions(), "model"))
    right = [int(numpy.asarray(model({"x": data["x"][i : i + 1]})["y"]).argmax()) for i in range(8)]
    right[0] = (right[0] + 1) % 10
    told, _ = quantize(
        tmp_path, convolutions(), {**data, "right": numpy.array(right)}, "--labels", "right", capsys=capsys
    )
    assert told["outputs"]["y"]["right_before"] == 7 / 8 and 0 <= told["outputs"]["y"]["right_after"] <= 1


def test_weights_alone_need_no_data(tmp_path, capsys):
    told, small = quantize(tmp_path, (FOLDER / "llama.onnx").read_bytes(), None, "--to", "int4", capsys=capsys)
    assert told["outputs"] == {} and "MatMulNBits" in {
        node.op_type for node in onnx.load_model_from_string(small).graph.node
    }


def wrong(tmp_path):
    """Files of data, and the error for each."""
    x = images(2)["x"]
    cases = {
        "name": ({"y": x}, "there is no array 'x'; the model's inputs are 'x', the file has 'y'"),
        "shape": ({"x": x[:, :2]}, r"is of shape \(2, 2, 12, 12\), expected \(1, 3, 12, 12\)"),
        "bytes": ({"x": (x * 9).astype("uint8")}, "is of uint8, expected float32"),
        "empty": ({"x": x[:0]}, "is empty"),
        "nan": ({"x": x * numpy.nan}, "NaN or infinite"),
        "objects": ({"x": numpy.array([{}])}, "is no .npz or .npy file of numbers"),
    }
    for name, (arrays, message) in cases.items():
        numpy.savez(tmp_path / f"{name}.npz", **arrays)
        yield tmp_path / f"{name}.npz", message
    (tmp_path / "text.npz").write_bytes(b"PK\x03\x04 cut short")
    yield tmp_path / "text.npz", "is no .npz or .npy file of numbers"
    (tmp_path / "words.npy").write_text("words")
    yield tmp_path / "words.npy", "it holds neither arrays nor an archive of them"
    (tmp_path / "nothing").mkdir()
    yield tmp_path / "nothing", "no .npz and no .npy files"
    yield tmp_path / "absent.npz", "no such file"


def test_bad_data_is_told_in_one_sentence(tmp_path, capsys):
    (tmp_path / "model.onnx").write_bytes(convolutions())
    for path, message in wrong(tmp_path):
        arguments = [
            "quantize",
            str(tmp_path / "model.onnx"),
            "--calibrate",
            str(path),
            "-o",
            str(tmp_path / "out.onnx"),
        ]
        assert main(arguments) == 2
        said = capsys.readouterr().err
        with pytest.raises(AssertionError, match=message):
            raise AssertionError(" ".join(said.split()))
        assert "Traceback" not in said and not (tmp_path / "out.onnx").exists()


def test_bad_models_are_told_in_one_sentence(tmp_path, capsys):
    def said(model, *options):
        (tmp_path / "model.onnx").write_bytes(model)
        assert main(["quantize", str(tmp_path / "model.onnx"), *options, "-o", str(tmp_path / "out.onnx")]) in (2, 3)
        told = " ".join(capsys.readouterr().err.split())
        assert "Traceback" not in told
        return told

    numpy.save(tmp_path / "x.npy", images(1)["x"])
    data = ("--calibrate", str(tmp_path / "x.npy"))
    relu = networks.graph([helper.make_node("Relu", ["x"], ["y"])], {"x": (1, 3, 12, 12)}, {"y": (1, 3, 12, 12)})
    assert "nothing to quantize" in said(relu, *data)
    assert "not an ONNX model" in said(b"no model", *data)
    assert "--calibrate DATA" in said(convolutions())
    assert main(["quantize", str(tmp_path / "model.onnx"), *data, "-o", str(tmp_path / "small.onnx")]) == 0
    capsys.readouterr()
    assert "quantized already" in said((tmp_path / "small.onnx").read_bytes(), *data)


@pytest.mark.parametrize("options", [(), ("--to", "int4")])
def test_products_after_operators_that_onnx_does_not_know_become_small(tmp_path, capsys, options):
    r = numpy.random.default_rng(5)
    gain, weights = numpy.ones(64, "float32"), r.standard_normal((64, 32)).astype("float32")
    nodes = [
        helper.make_node("SimplifiedLayerNormalization", ["x", "g"], ["h"], domain="com.microsoft"),
        helper.make_node("MatMul", ["h", "w"], ["y"]),
    ]
    model = onnx.load_model_from_string(
        networks.graph(nodes, {"x": (2, 64)}, {"y": (2, 32)}, {"g": gain, "w": weights})
    )
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    told, small = quantize(
        tmp_path, model.SerializeToString(), {"x": networks.values((4, 64))}, *options, capsys=capsys
    )
    assert told["outputs"]["y"]["relative"] < 0.15 and told["bytes_after"] < told["bytes_before"]
    made = {node.op_type for node in onnx.load_model_from_string(small).graph.node}
    assert made & {"QuantizeLinear", "MatMulNBits"}


def relative_error(tmp_path, capsys, model, data, *options):
    """Of the quantized model's output, the largest error, as a part of the largest number."""
    quantized = quantize(tmp_path, model, data, *options, capsys=capsys)[1]
    answers = []
    for each in (model, quantized):
        answers.append(numpy.asarray(opened("model", compile_model(each, "model"))(data)["y"]))
    before, after = answers
    networks.assert_close(after, networks.all_by_onnx_runtime(quantized, [data])[0][0], 1e-4)
    return float(numpy.abs(before - after).max() / numpy.abs(before).max())


@pytest.mark.parametrize("options, bound", [((), 0.03), (("--weights-only",), 0.02), (("--to", "int4"), 0.25)])
def test_a_square_weight_that_is_also_read_transposed(tmp_path, capsys, options, bound):
    weights = {"w": networks.values((32, 32), 5), "b": networks.values((32,), 6)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Gemm", ["x", "w", "b"], ["q"], transB=1),
        helper.make_node("Concat", ["p", "q"], ["y"], axis=1),
    ]
    model = networks.graph(nodes, {"x": (8, 32)}, {"y": (8, 64)}, weights)
    assert relative_error(tmp_path, capsys, model, {"x": networks.values((8, 32))}, *options) < bound


@pytest.mark.parametrize("weight", [1e-8, 1e-30, 0.0])
def test_a_large_bias_beside_small_weights_stays(tmp_path, capsys, weight):
    weights = networks.values((4, 3, 3, 3), 5)
    weights[1] *= numpy.float32(weight)
    bias = numpy.array([1, 50, -2, 0], "float32")
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["y"], pads=[1] * 4)]
    model = networks.graph(nodes, {"x": (1, 3, 12, 12)}, {"y": (1, 4, 12, 12)}, {"w": weights, "b": bias})
    assert relative_error(tmp_path, capsys, model, {"x": networks.values((1, 3, 12, 12))}) < 0.01


@pytest.mark.parametrize("shape", [(8, 1), (1, 8), (8,), (8, 8), (1, 1), ()])
@pytest.mark.parametrize("options, bound", [((), 0.03), (("--weights-only",), 0.02), (("--to", "int4"), 0.25)])
def test_a_bias_of_any_shape_is_added_where_it_was(tmp_path, capsys, shape, options, bound):
    constants = {"w": networks.values((32, 8), 5), "b": networks.values(shape, 6) * numpy.float32(9)}
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["y"])]
    model = networks.graph(nodes, {"x": (8, 32)}, {"y": (8, 8)}, constants)
    assert relative_error(tmp_path, capsys, model, {"x": networks.values((8, 32))}, *options) < bound


@pytest.mark.parametrize("shape, size", [((8, 1), 9.0), ((8,), 1e9)], ids=["of rows", "large"])
def test_a_bias_of_float32_beside_quantized_operands_is_added_as_it_is(shape, size):
    """As other tools write it: the products are of bytes, the bias is not."""
    constants = {
        "w": numpy.random.default_rng(5).integers(-127, 127, (32, 8)).astype("int8"),
        "b": networks.values(shape) * numpy.float32(size),
        "scale": numpy.float32(0.02), "zero": numpy.uint8(128), "small": numpy.float32(1e-9), "middle": numpy.int8(0),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "small", "middle"], ["v"]),
        helper.make_node("Gemm", ["d", "v", "b"], ["y"]),
    ]
    model = networks.graph(nodes, {"x": (8, 32)}, {"y": (8, 8)}, {k: numpy.asarray(v) for k, v in constants.items()})
    x = {"x": networks.values((8, 32))}
    ours = opened("small", compile_model(model, "small"))(x)["y"]
    networks.assert_close(ours, networks.all_by_onnx_runtime(model, [x])[0][0], 1e-4)
