"""Images read at computed places, computed convolutions, signals and random numbers: against ONNX Runtime if it has
the operator for these dtypes, and with NaNs."""

import numpy
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.batches import each
from tests.engine.library import backends, on_backend
from tests.engine.test_other_models import assert_same, by_onnx_runtime
from vmhost.engine.models import opened
from vmhost.engine.onnx import OnnxError, compile_model

RANDOM = numpy.random.default_rng(7)


def model(op, inputs, opset=20, outputs=("y",), opens=None, kind=TensorProto.FLOAT, **attributes):
    """One node's; inputs in capitals are constants, `opens` names sizes of inputs."""
    ports = []
    for name, values in inputs.items():
        if name.islower():
            shape = [*((opens or {}).get(name, ())), *[None] * values.ndim]
            sizes = [given or size for given, size in zip(shape, values.shape)]
            ports.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(values.dtype), sizes))
    constants = [numpy_helper.from_array(values, name) for name, values in inputs.items() if not name.islower()]
    node = helper.make_node(op, list(inputs), list(outputs), "only", **attributes)
    rank = 4 if op in ("AffineGrid", "STFT") else next(iter(inputs.values())).ndim
    made = [helper.make_tensor_value_info(name, kind, [f"{name}{d}" for d in range(rank)]) for name in outputs]
    graph = helper.make_graph([node], "one", ports, made, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10).SerializeToString()


def numbers(*shape, dtype="float32"):
    return RANDOM.standard_normal(shape).astype(dtype)


def grids():
    for mode in ("nearest", "linear", "cubic"):
        for padding in ("zeros", "border", "reflection"):
            for corners in (0, 1):
                options = {"mode": mode, "padding_mode": padding, "align_corners": corners}
                yield "GridSample", {"x": numbers(2, 3, 7, 9), "grid": numbers(2, 6, 50, 2) * 0.8}, options
                if mode != "cubic":
                    yield "GridSample", {"x": numbers(1, 2, 4, 5, 6), "grid": numbers(1, 3, 4, 5, 3) * 0.8}, options
    # ONNX Runtime's float64 is computed in float32 in part
    yield "AffineGrid", {"theta": numbers(2, 2, 3), "SIZE": numpy.array([2, 3, 5, 4])}, {"align_corners": 1}


def regions():
    corners = RANDOM.uniform(0, 20, (5, 2))
    boxes = numpy.concatenate([corners, corners + RANDOM.uniform(0, 15, (5, 2))], 1).astype("float32")
    inputs = {"x": numbers(2, 5, 12, 14), "boxes": boxes, "images": numpy.array([0, 1, 1, 0, 1])}
    for mode in ("avg", "max"):
        for ratio in (0, 2, 5):
            for half in ("half_pixel", "output_half_pixel"):
                options = {"mode": mode, "sampling_ratio": ratio, "coordinate_transformation_mode": half}
                yield "RoiAlign", inputs, {**options, "output_height": 3, "output_width": 4, "spatial_scale": 0.5}
    rows = numpy.concatenate([inputs["images"][:, None].astype("float32"), boxes], 1)
    yield "MaxRoiPool", {"x": inputs["x"], "rows": rows}, {"pooled_shape": [3, 4], "spatial_scale": 0.5}


def convolutions():
    for rank, groups, options in (
        (1, 1, {"strides": [2], "pads": [1, 2]}),
        (2, 2, {"strides": [2, 1], "dilations": [1, 2], "pads": [1, 0, 2, 1]}),
        (2, 6, {"pads": [1, 1, 1, 1]}),
        (3, 1, {"strides": [1, 2, 1]}),
    ):
        x, weights = numbers(2, 6, *(9, 10, 7)[:rank]), numbers(6, 6 // groups, *(3,) * rank)
        yield "Conv", {"x": x, "weights": weights, "bias": numbers(6)}, {"group": groups, **options}
        yield "ConvTranspose", {"x": x, "weights": weights}, {"group": groups, **options}
    yield "DeformConv", deformed(numbers(2, 4, 7, 6)), {"kernel_shape": [3, 3], "group": 2, "offset_group": 2}


def deformed(x):
    return {
        "x": x,
        "weights": numbers(6, 2, 3, 3),
        "offsets": numbers(2, 36, 5, 4) * 2,
        "bias": numbers(6),
        "mask": numbers(2, 18, 5, 4),
    }


def signals():
    signal, window = numbers(2, 700, 1), numpy.hanning(100).astype("float32")
    steps = {"STEP": numpy.array(40)}
    yield "STFT", {"x": signal, **steps, "WINDOW": window}, {}
    yield "STFT", {"x": signal, **steps, "window": window}, {"onesided": 0}
    for count, axis in ((16, 1), (15, 2)):
        shape = [2, 16, 15, 1]
        for onesided in (0, 1):
            yield (
                "DFT",
                {"x": numbers(*shape), "COUNT": numpy.array(count), "AXIS": numpy.array(axis)},
                {"onesided": onesided},
            )
        yield (
            "DFT",
            {"x": numbers(2, 16, 15, 2), "COUNT": numpy.array(count), "AXIS": numpy.array(axis)},
            {"inverse": 1},
        )


CASES = [*grids(), *regions(), *convolutions(), *signals()]


def given(inputs):
    return {name: values for name, values in inputs.items() if name.islower()}


@pytest.fixture(scope="module")
def expected():
    asked = {
        str(number): (model(op, inputs, **options), given(inputs)) for number, (op, inputs, options) in enumerate(CASES)
    }
    return asked, by_onnx_runtime(asked)


@each("number", range(len(CASES)), ids=lambda n: f"{CASES[n][0]}-{n}")
def test_operators_answer_as_onnx_runtime_does(expected, number):
    data, arrays = expected[0][str(number)]
    compiled = compile_model(data, "one")
    for backend in backends():
        with on_backend(backend):
            answers = opened("one", compiled)(arrays)
            for output, theirs in expected[1][str(number)]:
                assert_same(answers[output], theirs, 2e-5)


def answer(data, arrays):
    return opened("one", compile_model(data, "one"))(arrays)["y"]


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_convolutions_of_other_floats_are_as_exact_as_these(op, dtype):
    inputs = {"x": numbers(1, 4, 6, 5, dtype=dtype), "WEIGHTS": numbers(4, 4, 3, 3, dtype=dtype)}
    kind = helper.np_dtype_to_tensor_dtype(numpy.dtype(dtype))
    ours = numpy.asarray(answer(model(op, inputs, kind=kind, strides=[2, 1], pads=[1, 1, 0, 1]), given(inputs)))
    single = {name: values.astype("float32") for name, values in inputs.items()}
    theirs = numpy.asarray(answer(model(op, single, strides=[2, 1], pads=[1, 1, 0, 1]), given(single)))
    assert ours.dtype == dtype
    numpy.testing.assert_allclose(
        ours, theirs, rtol=2e-3 if dtype == "float16" else 1e-5, atol=2e-2 * (dtype == "float16") + 1e-5
    )
    if dtype == "float64":
        assert (ours != theirs).any()  # it is not computed in float32


def test_a_coordinate_that_is_no_number_reads_nothing_or_gives_none():
    grid = numpy.array([numpy.nan, 0, numpy.inf, 0, -1e38, 1e38, 0, 0], "float32").reshape(1, 1, 4, 2)
    inputs = {"x": numpy.ones((1, 1, 3, 3), "float32"), "grid": grid}
    for mode in ("nearest", "linear", "cubic"):
        made = {
            padding: numpy.asarray(answer(model("GridSample", inputs, mode=mode, padding_mode=padding), inputs)).ravel()
            for padding in ("zeros", "border", "reflection")
        }
        numpy.testing.assert_allclose(made["zeros"], [0, 0, 0, 1], atol=1e-6)
        assert made["border"][0] == 1 or numpy.isnan(made["border"][0])
        numpy.testing.assert_allclose(made["border"][2:], 1, atol=1e-6)
        assert made["border"][1] == 1 or mode == "cubic"
        numpy.testing.assert_allclose(made["reflection"][3], 1, atol=1e-6)


@pytest.mark.parametrize(
    ("boxes", "images", "message"),
    [
        ([0, 0, numpy.nan, 1], 0, "region 0 has a coordinate that is not finite"),
        ([0, 0, 1, 1], 1, "region 0 is of image 1, and there are 1"),
        ([0, 0, 1, 1], -1, "region 0 is of image -1"),
        ([0, 0, 1e9, 1e9], 0, "region 0 reads .* points for each number"),
    ],
)
def test_regions_that_are_none_are_errors(boxes, images, message):
    inputs = {
        "x": numbers(1, 1, 4, 4),
        "boxes": numpy.array([boxes], "float32"),
        "images": numpy.array([images]),
    }
    with pytest.raises(ValueError, match=message):
        answer(model("RoiAlign", inputs), inputs)


def test_random_numbers_are_the_same_with_a_seed_and_others_without():
    for op, mean, deviation in (("RandomNormalLike", 2.0, 3.0), ("RandomUniformLike", 3.0, 2 / 12**0.5)):
        named = {"mean": 2.0, "scale": 3.0} if op == "RandomNormalLike" else {"low": 2.0, "high": 4.0}
        x = {"x": numbers(20, 1000)}
        for seed in ({}, {"seed": 5.0}):
            drawn = opened("one", compile_model(model(op, x, **named, **seed), "one"))
            first, second = (numpy.asarray(drawn(x)["y"]) for _ in range(2))
            assert bool((first == second).all()) == bool(seed)
            assert abs(first.mean() - mean) < 0.1 and abs(first.std() - deviation) < 0.1
            assert len(numpy.unique(first)) > 19000
    chances = {"x": numpy.repeat([[0.0, 0.25, 1.0]], 4000, 0).astype("float32")}
    coins = numpy.asarray(answer(model("Bernoulli", chances), chances))
    assert set(coins.ravel()) == {0, 1}
    numpy.testing.assert_allclose(coins.mean(0), [0, 0.25, 1], atol=0.05)
    odds = {"x": numpy.log(numpy.array([[0.5, 0.25, 0.25]], "float32"))}
    chosen = numpy.asarray(answer(model("Multinomial", odds, kind=TensorProto.INT32, sample_size=4000), odds))
    numpy.testing.assert_allclose(numpy.bincount(chosen[0]) / 4000, [0.5, 0.25, 0.25], atol=0.05)


def test_a_window_of_an_open_size_is_that_of_a_fixed_one():
    inputs = {"x": numbers(9)}
    shape = helper.make_node("Shape", ["x"], ["n"])
    nodes = [shape, helper.make_node("Squeeze", ["n"], ["size"]), helper.make_node("HammingWindow", ["size"], ["y"])]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["length"]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "open", ports[:1], ports[1:])
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10).SerializeToString()
    at = numpy.arange(9)
    theirs = 25 / 46 - 21 / 46 * numpy.cos(2 * numpy.pi * at / 9)
    numpy.testing.assert_allclose(answer(data, inputs), theirs, atol=1e-6)


def test_what_cannot_be_is_told():
    x = numbers(1, 1, 4, 4)
    for op, inputs, options, message in (
        ("GridSample", {"x": x, "grid": numbers(1, 2, 2, 2)}, {"mode": "area"}, "mode"),
        (
            "RoiAlign",
            {"x": x, "boxes": numbers(1, 4), "images": numpy.array([0])},
            {"output_width": -3},
            "output_width",
        ),
        ("MelWeightMatrix", {name: numpy.array(1) for name in "abcde"}, {}, "computed at run time"),
        ("STFT", {"x": numbers(1, 20, 1), "STEP": numpy.array(-4), "WINDOW": numbers(8)}, {}, "frames"),
        ("DFT", {"x": numbers(1, 20, 1), "COUNT": numpy.array(-4)}, {}, "dft_length"),
        ("AffineGrid", {"x": numbers(1, 2, 3), "S": numpy.array([1, 1, 2, 1 << 40])}, {}, "range of 1,099,511,627,776"),
    ):
        with pytest.raises(OnnxError, match=message):
            compile_model(model(op, inputs, **options), "one")
