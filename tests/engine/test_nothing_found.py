"""Where nothing is found: every operator that takes what was found must give ONNX Runtime's answer, also if that is
empty, and detectors with a level of the pyramid that finds nothing must find what the others do."""

import random

import numpy
import pytest

from tests.engine.library import backends, on_backend
from tests.engine.test_counted_sizes import FLOAT, INT, floats, model, node
from tests.engine.test_other_models import assert_same, by_onnx_runtime
from vmhost.engine.models import opened
from vmhost.engine.onnx import compile_model

# rows of x [8, 6] whose mark is above a half: "some" [count, 6], with their numbers "places" [count]
FOUND = [
    node("Greater", "marks half", "own"),
    node("NonZero", "own", "found"),
    node("Squeeze", "found zeroth", "places"),
    node("Gather", "x places", "some"),
]
CONSTANTS = {
    "half": numpy.float32(0.5),
    "zeroth": [0],
    "first": [1],
    "zero": 0,
    "two": numpy.float32(2),
    "three": [3],
    "flat": [-1],
    "row": floats(1, 6),
    "weights": floats(6, 4),
    "filters": floats(5, 3, 2, 1),
    "image": [-1, 3, 2, 1],
    "scale": floats(6),
    "pads": [1, 0, 2, 0],
    "halves": [3, 3],
    "steps": [2, 2],
    "limit": [3],
    "end": [1000],
    "overlap": numpy.float32(0.5),
    "depth": 8,
    "values": numpy.float32([0, 1]),
    "seven": [7],
}


def case_concatenation():
    """As detectors do with the levels of a pyramid."""
    return [
        node("Less", "marks two", "more"),
        node("LessOrEqual", "marks half", "rest"),
        node("NonZero", "rest", "found2"),
        node("Squeeze", "found2 zeroth", "places2"),
        node("Gather", "x places2", "others"),
        node("Concat", "some others row", "y", axis=0),
        node("Concat", "some others", "z", axis=0),
        node("Relu", "z", "u"),
        node("Shape", "z", "shape"),
    ], {"y": (FLOAT, 2), "u": (FLOAT, 2), "shape": (INT, 1)}


def reduced(op):
    return [node(op, "some zeroth", "y", keepdims=0), node(op, "some first", "z", keepdims=1)], {
        "y": (FLOAT, 1),
        "z": (FLOAT, 2),
    }


def case_sum():
    return reduced("ReduceSum")


def case_mean():
    return reduced("ReduceMean")


def case_maximum():
    return reduced("ReduceMax")


def case_minimum():
    return reduced("ReduceMin")


def case_product():
    return reduced("ReduceProd")


def case_logarithm_of_sum():
    return reduced("ReduceLogSumExp")


def case_norm():
    return reduced("ReduceL2")


def case_maximum_of_places():
    return [node("ReduceMax", "places", "y"), node("ReduceMin", "places", "z")], {"y": (INT, 1), "z": (INT, 1)}


def case_maximum_of_halves():
    return [
        node("Cast", "some", "short", to=10),
        node("ReduceMax", "short zeroth", "most"),
        node("Cast", "most", "y", to=1),
    ], {"y": (FLOAT, 2)}


def case_maximum_of_bytes():
    return [
        node("Cast", "places", "short", to=3),
        node("ReduceMax", "short zeroth", "most"),
        node("ReduceMin", "short zeroth", "least"),
        node("Cast", "most", "y", to=1),
        node("Cast", "least", "z", to=1),
    ], {"y": (FLOAT, 1), "z": (FLOAT, 1)}


def case_product_of_rows():
    return [node("MatMul", "some weights", "p"), node("Relu", "p", "y")], {"y": (FLOAT, 2)}


def case_product_over_what_was_found():
    return [node("Transpose", "some", "turned", perm=[1, 0]), node("MatMul", "turned some")], {"y": (FLOAT, 2)}


def case_gemm():
    return [node("Gemm", "some weights", "y")], {"y": (FLOAT, 2)}


def case_rows():
    return [
        node("Softmax", "some", "soft", axis=1),
        node("LayerNormalization", "soft scale", "even", axis=-1),
        node("Sigmoid", "even", "y"),
        node("Softmax", "some", "z", axis=0),
    ], {"y": (FLOAT, 2), "z": (FLOAT, 2)}


def case_images():
    return [
        node("Reshape", "some image", "images"),
        node("Conv", "images filters", "maps"),
        node("Relu", "maps", "bright"),
        node("GlobalAveragePool", "bright", "means"),
        node("MaxPool", "images", "largest", kernel_shape=[2, 1]),
        node("Flatten", "means", "y"),
        node("Concat", "images images", "pair", axis=1),
        node("BatchNormalization", "images three_scales three_scales three_scales three_scales", "even"),
        node("ConvTranspose", "even spread", "wide", strides=[2, 2]),
        node("Resize", "images  doubled", "doubles", mode="linear"),
        node("AveragePool", "images", "averages", kernel_shape=[2, 1], pads=[1, 0, 0, 0]),
    ], dict.fromkeys(("largest", "pair", "wide", "doubles", "averages"), (FLOAT, 4)) | {"y": (FLOAT, 2)}


def case_padding():
    return [node("Pad", "some pads", "y")], {"y": (FLOAT, 2)}


def case_best():
    return [
        node("Gather", "marks places", "own_marks"),
        node("Shape", "own_marks", "n"),
        node("Min", "n limit", "k"),
        node("TopK", "own_marks k", "best order"),
        node("Gather", "some order", "y"),
    ], {"best": (FLOAT, 1), "order": (INT, 1), "y": (FLOAT, 2)}


def case_beginning():
    return [node("Slice", "some zeroth limit", "y"), node("Slice", "some first end", "z")], {
        "y": (FLOAT, 2),
        "z": (FLOAT, 2),
    }


def case_found_again():
    """What is found among what was found, which may be nothing."""
    return [
        node("Greater", "some half", "above"),
        node("NonZero", "above", "again"),
        node("Transpose", "again", "pairs", perm=[1, 0]),
        node("GatherND", "some pairs", "y"),
        node("ReduceSum", "y", "total"),
    ], {"again": (INT, 2), "y": (FLOAT, 1), "total": (FLOAT, 1)}


def case_written_back():
    return [
        node("Neg", "some", "made"),
        node("Transpose", "found", "rows", perm=[1, 0]),
        node("ScatterND", "x rows made", "y"),
        node("ScatterND", "x rows made", "z", reduction="add"),
    ], {"y": (FLOAT, 2), "z": (FLOAT, 2)}


def case_written_back_by_elements():
    return [
        node("Gather", "marks places", "own_marks"),
        node("Neg", "own_marks", "made"),
        node("ScatterElements", "marks places made"),
    ], {"y": (FLOAT, 1)}


def case_sums_so_far():
    return [node("CumSum", "some zero", "y"), node("CumSum", "some zero", "z", exclusive=1, reverse=1)], {
        "y": (FLOAT, 2),
        "z": (FLOAT, 2),
    }


def case_one_hot():
    return [node("OneHot", "places depth values")], {"y": (FLOAT, 2)}


def case_chosen():
    return [
        node("Greater", "some half", "above"),
        node("Where", "above some row", "w"),
        node("Clip", "w", "y"),
        node("Not", "above", "below"),
        node("Cast", "below", "z", to=1),
    ], {"y": (FLOAT, 2), "z": (FLOAT, 2)}


def case_sizes():
    return [
        node("Shape", "some", "shape"),
        node("Size", "some", "size"),
        node("ConstantOfShape", "shape", "zeros"),
        node("Expand", "row shape", "many"),
        node("Gather", "shape zero", "n"),
        node("Range", "zero n one", "y"),
        node("Max", "shape first", "most"),
        node("Tile", "some steps", "tiled"),
    ], {"size": (INT, 0), "zeros": (FLOAT, 2), "many": (FLOAT, 2), "y": (INT, 1), "most": (INT, 1), "tiled": (FLOAT, 2)}


def case_split():
    return [node("Split", "some halves", "y z", axis=1)], {"y": (FLOAT, 2), "z": (FLOAT, 2)}


def case_regions():
    """Features of the regions that were found, as the second stage of a detector makes them."""
    return [
        node("Slice", "some zeroth four first", "corners"),
        node("Mul", "places zero", "images"),
        node("Reshape", "x picture", "maps"),
        node("RoiAlign", "maps corners images", "y", output_height=2, output_width=2, spatial_scale=1.0),
    ], {"y": (FLOAT, 4)}


def case_distinct():
    return [node("Unique", "places", "y first inverse counts")], dict.fromkeys(
        ("y", "first", "inverse", "counts"), (INT, 1)
    )


def case_bytes():
    return [
        node("QuantizeLinear", "some fine middle", "bytes"),
        node("DequantizeLinear", "bytes fine middle", "back"),
        node("QuantizeLinear", "weights fine middle", "weights8"),
        node("MatMulInteger", "bytes weights8 middle middle", "sums"),
        node("Cast", "sums", "y", to=1),
        node("DynamicQuantizeLinear", "x", "q s z"),
    ], {"back": (FLOAT, 2), "y": (FLOAT, 2)}


def case_classes():
    return [
        node("Scaler", "some", "even", domain="ai.onnx.ml", offset=[0.5], scale=[2.0]),
        node(
            "LinearClassifier",
            "even",
            "label marks_of",
            domain="ai.onnx.ml",
            coefficients=[0.1] * 12,
            intercepts=[0.0, 0.1],
            classlabels_ints=[3, 7],
            post_transform="SOFTMAX",
        ),
    ], {"label": (INT, 1), "marks_of": (FLOAT, 2)}


def case_suppression():
    return [
        node("Slice", "some zeroth four first", "corners"),
        node("Unsqueeze", "corners zeroth", "all"),
        node("Gather", "marks places", "own_marks"),
        node("Unsqueeze", "own_marks zero_first", "scores"),
        node("NonMaxSuppression", "all scores seven overlap", "chosen"),
        node("Gather", "chosen depth_two", "kept", axis=1),
        node("Gather", "corners kept", "y"),
    ], {"chosen": (INT, 2), "y": (FLOAT, 2)}


CONSTANTS |= {
    "three_scales": numpy.float32([1, 2, 3]),
    "spread": floats(3, 2, 3, 3),
    "doubled": numpy.float32([1, 1, 2, 2]),
    "sequences": [-1, 2, 3],
    "gates": floats(1, 6, 3),
    "states": floats(1, 6, 2),
    "lstm_gates": floats(1, 8, 3),
    "lstm_states": floats(1, 8, 2),
    "fine": numpy.float32(0.01),
    "middle": numpy.uint8(3),
    "one": 1,
    "four": [4],
    "picture": [1, 3, 4, 4],
    "zero_first": [0, 1],
    "depth_two": 2,
}
CASES = {name.removeprefix("case_"): make for name, make in globals().items() if name.startswith("case_")}


def inputs():
    x = (floats(8, 6) * 64).round() / 64  # exact in float16
    x[:, 2:4] += x[:, :2]  # corners
    marks = floats(8) * 0.4
    some = marks + 0.55 * (numpy.arange(8) % 3 == 1)
    return [
        {"x": x, "marks": given.astype("float32")}
        for given in (some, marks, marks + 0.5 * (numpy.arange(8) == 5), marks + 0.55)
    ]


@pytest.fixture(scope="module")
def expected():
    given = inputs()
    data = {}
    for name, make in CASES.items():
        nodes, outputs = make()
        used = {text for each in FOUND + nodes for text in each.input}
        data[name] = model(FOUND + nodes, given[0], outputs, {own: CONSTANTS[own] for own in CONSTANTS if own in used})
    asked = {f"{name} {n}": (data[name], some) for name in CASES for n, some in enumerate(given)}
    return given, data, by_onnx_runtime(asked)


@pytest.mark.parametrize("name", CASES)
def test_as_onnx_runtime_says(expected, name):
    given, data, theirs = expected
    compiled = compile_model(data[name], name)
    for backend in backends():
        with on_backend(backend):
            found = opened(name, compiled)
            for number, some in enumerate(given):
                answers = found(some)
                for output, wanted in theirs[f"{name} {number}"]:
                    assert_same(answers[output], wanted)


# ---- the same where a caller gives nothing: an empty batch, a decoder without a past
def open_model(name):
    """The model of a case that takes what was found as inputs, and what it is called with: three rows, none, one."""
    nodes, outputs = CASES[name]()
    used, given = {text for each in nodes for text in each.input}, inputs()[0]
    calls = []
    for places in ([1, 4, 7], [], [5]):
        places = numpy.array(places, "int64")
        call = given | {"places": places, "found": places[None], "some": given["x"][places]}
        calls.append({key: values for key, values in call.items() if key in used})
    sizes = {"some": ["count", 6], "places": ["count"], "found": [1, "count"]}
    constants = {own: CONSTANTS[own] for own in CONSTANTS if own in used}
    return model(nodes, calls[0], outputs, constants, sizes), calls


REFUSED = (
    "beginning",
    "sizes",
)  # the first three rows of fewer; the larger one of a size and 1, which is the size above 0


@pytest.fixture(scope="module")
def expected_of_calls():
    models = {name: open_model(name) for name in CASES}
    asked = {(name, n): (data, call) for name, (data, calls) in models.items() for n, call in enumerate(calls)}
    return models, by_onnx_runtime(asked)


@pytest.mark.parametrize("name", CASES)
def test_a_size_that_a_call_chooses_may_be_zero(expected_of_calls, name):
    models, theirs = expected_of_calls
    data, calls = models[name]
    compiled = compile_model(data, name)
    for backend in backends():
        with on_backend(backend):
            found = opened(name, compiled)
            for number, call in enumerate(calls):
                try:
                    answers = found(call)
                except ValueError as error:
                    assert name in REFUSED and number and "call it with such sizes" in str(error)
                    continue
                for output, wanted in theirs[name, number]:
                    assert_same(answers[output], wanted)


def past_and_new(past, new, batch=1):
    return {"past": floats(batch, 2, past, 4), "new": floats(batch, 2, new, 4)}


def test_a_decoder_without_a_past_and_an_empty_batch():
    nodes = [
        node("Concat", "past new", "keys", axis=2),
        node("Transpose", "keys", "turned", perm=[0, 1, 3, 2]),
        node("MatMul", "new turned", "scores"),
        node("Softmax", "scores", "weights"),
        node("MatMul", "weights keys", "y"),
    ]
    calls = [past_and_new(3, 1), past_and_new(0, 5), past_and_new(3, 1, 0), past_and_new(2, 0)]
    outputs, opens = {"y": (FLOAT, 4), "keys": (FLOAT, 4)}, {"past": ["b", 2, "p", 4], "new": ["b", 2, "n", 4]}
    data = model(nodes, calls[0], outputs, None, opens)
    theirs = by_onnx_runtime({number: (data, call) for number, call in enumerate(calls)})
    decoder = opened("decoder", compile_model(data, "decoder"))
    for number, call in enumerate(calls):
        answers = decoder(call)
        for output, wanted in theirs[number]:
            assert_same(answers[output], wanted)


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        ([node("Shape", "x", "n"), node("Max", "n one", "most"), node("Expand", "row most", "y")], ("one", "row")),
        (
            [
                node("Shape", "x", "n"),
                node("Equal", "n none", "nothing"),
                node("Where", "nothing seven n", "size"),
                node("Expand", "row size", "y"),
            ],
            ("none", "seven", "row"),
        ),
    ],
    ids=["Max", "Equal"],
)
def test_what_is_decided_for_sizes_of_at_least_one_is_refused_at_none(nodes, constants):
    values = {"one": [1], "none": [0], "seven": [7], "row": numpy.float32([2])}
    given = {"x": floats(3)}
    data = model(nodes, given, {"y": (FLOAT, 1)}, {name: values[name] for name in constants}, {"x": ["n"]})
    found = opened("found", compile_model(data, "found"))
    assert numpy.asarray(found(given)["y"]).tolist() == [2, 2, 2]
    with pytest.raises(ValueError, match="does not work at n = 0: .* is compiled for sizes of at least 1"):
        found({"x": floats(0)})


def test_no_sequences_give_no_states():
    """Without ONNX Runtime, which divides by their number (1.31.1)."""
    nodes = [
        node("Reshape", "some sequences", "batches"),
        node("Transpose", "batches", "times", perm=[1, 0, 2]),
        node("GRU", "times gates states", "all last", hidden_size=2),
        node("LSTM", "times lstm_gates lstm_states", "y", hidden_size=2),
        node("Einsum", "batches batches", "products", equation="nij,nkj->nik"),
    ]
    outputs = {"all": (FLOAT, 4), "last": (FLOAT, 3), "y": (FLOAT, 4), "products": (FLOAT, 3)}
    used = {text for each in FOUND + nodes for text in each.input}
    given = inputs()
    data = model(FOUND + nodes, given[0], outputs, {own: CONSTANTS[own] for own in CONSTANTS if own in used})
    found = opened("found", compile_model(data, "found"))
    for some, count in zip(given, (3, 0)):
        shapes = {name: numpy.asarray(values).shape for name, values in found(some).items()}
        rows = {"all": (2, 1, count, 2), "last": (1, count, 2), "y": (2, 1, count, 2)}
        assert shapes == rows | {"products": (count, 2, 2)}


def random_graph(choose):
    """Nodes on rows [count, 6] that are found, joined, cut and found again, and the last outputs."""
    nodes, rows, outputs = list(FOUND), ["x", "some"], {}

    def new(op, inputs, **attributes):
        nodes.append(node(op, inputs, f"v{len(nodes)}", **attributes))
        return f"v{len(nodes) - 1}"

    for _ in range(choose.randrange(3, 8)):
        own, kind = choose.choice(rows), choose.randrange(8)
        if kind <= 1:
            column = new("Gather", f"{own} zero", axis=1)
            above = new("NonZero", new(choose.choice(["Greater", "Less"]), f"{column} half"))
            outputs[f"p{len(nodes)}"] = INT, 1
            nodes.append(node("Squeeze", f"{above} zeroth", f"p{len(nodes)}"))
            result = new("Gather", f"{own} p{len(nodes) - 1}")
        elif kind <= 3:
            result = new("Concat", f"{own} {choose.choice(rows)}", axis=0)
        elif kind == 4:
            total = new(choose.choice(["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"]), f"{own} zeroth")
            result = new("Concat", f"{total} {own}", axis=0)
        elif kind == 5:
            count = new("Min", f"{new('Gather', f'{new("Shape", own)} zeroth')} limit")
            column = new("Gather", f"{own} one", axis=1)
            nodes.append(node("TopK", f"{column} {count}", f"best{len(nodes)} order{len(nodes)}"))
            result = new("Gather", f"{own} order{len(nodes) - 1}")
        elif kind == 6:
            result = new("Slice", f"{own} {choose.choice(['zeroth limit', 'zeroth end', 'first end'])}")
        else:
            result = new(choose.choice(["Relu", "Exp", "CumSum"]), own)
            if nodes[-1].op_type == "CumSum":
                nodes[-1].input.append("zero")
        rows.append(result)
        outputs[result] = FLOAT, 2
    return nodes, dict(list(outputs.items())[-4:])


def test_graphs_drawn_at_random_find_what_onnx_runtime_finds():
    choose, given = random.Random(20261128), inputs()
    data = {}
    for number in range(40):
        nodes, outputs = random_graph(choose)
        used = {text for each in nodes for text in each.input}
        data[number] = model(nodes, given[0], outputs, {own: CONSTANTS[own] for own in CONSTANTS if own in used})
    theirs = by_onnx_runtime({(number, n): (data[number], some) for number in data for n, some in enumerate(given)})
    for number in data:
        found = opened("found", compile_model(data[number], "found"))
        for n, some in enumerate(given):
            answers = found(some)
            for output, wanted in theirs[number, n]:
                assert_same(answers[output], wanted)
