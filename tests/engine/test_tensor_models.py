"""Models of operators on tensors: views, layouts that meet, dtypes, against ONNX's reference on every backend."""

import contextlib

import numpy
import pytest
from onnx import helper

import bench.networks
import vmhost.engine.library
from tests import networks
from tests.batches import each
from tests.engine.library import backends, names, on_backend
from vmhost.engine import _array
from vmhost.engine.models import Model, opened
from vmhost.engine.onnx import OnnxError, compile_model
from vmhost.engine.onnx.operations import BINARY, REDUCE, UNARY


def runs(data, inputs):
    """The outputs as NumPy arrays, in the model's order."""
    [outputs] = runs_on([None], data, inputs)
    return outputs


def runs_on(numbers, data, inputs):
    """The same for each of these backends; None: the one in use."""
    compiled = compile_model(data, "model.onnx")
    for number in numbers:
        with contextlib.nullcontext() if number is None else on_backend(number):
            model = Model("model", _array._model_open(compiled))
            outputs = model(inputs)
        yield [numpy.asarray(outputs[port.name]) for port in model.outputs]


def agrees(nodes, inputs, constants=None, outputs=("y",), tolerance=1e-5, opset=18):
    """Nodes from `inputs` (names to arrays) to `outputs` give on every backend what ONNX's reference gives."""
    data = networks.graph_of(nodes, inputs, outputs, constants, opset)
    expected = [numpy.asarray(theirs) for theirs in networks.expected(data, inputs)]
    for answer in runs_on(backends(), data, inputs):
        for ours, theirs in zip(answer, expected, strict=True):
            assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
            if theirs.dtype.kind == "f":
                networks.assert_close(ours, theirs, tolerance)
            else:
                assert ours.tolist() == theirs.tolist()


def node(op, inputs, output="y", **attributes):
    return helper.make_node(op, inputs.split(), output.split(), **attributes)


X = networks.values((2, 3, 4, 5))


def test_numbers_of_operations_are_the_engines():
    for listed, kind in ((UNARY, "unary"), (BINARY, "binary"), (REDUCE, "reduce")):
        assert list(names(kind)) == list(listed)


def test_views_of_views():
    agrees(
        [
            node("Transpose", "x", "t", perm=[2, 0, 3, 1]),
            node("Slice", "t starts ends axes steps", "s"),
            node("Reshape", "s shape", "r"),
            node("Transpose", "r", "u"),
            node("Add", "u c", "y"),
        ],
        {"x": X},
        {
            "starts": numpy.array([3, 1]),
            "ends": numpy.array([-9, 4]),
            "axes": numpy.array([0, 2]),
            "steps": numpy.array([-1, 2]),
            "shape": numpy.array([0, -1]),
            "c": networks.values((12, 4), 1),
        },
    )


def test_an_output_may_be_a_view_an_input_or_a_constant():
    agrees(
        [
            node("Transpose", "x", "t"),
            node("Identity", "x", "same"),
            node("Shape", "x", "shape"),
            node("Reshape", "x minus", "flat"),
        ],
        {"x": X},
        {"minus": numpy.array([-1])},
        outputs=("t", "same", "shape", "flat"),
    )


def test_parts_of_a_whole_are_made_in_their_places():
    agrees(
        [
            node("Split", "x", "a b c", axis=1, num_outputs=3),
            node("Neg", "b", "n"),
            node("Concat", "c n a b", "y", axis=1),
        ],
        {"x": X},
    )


def test_images_and_tensors_meet():
    """A convolution between views: each side has its preferred layout."""
    constants = {
        "w": networks.values((5, 3, 3, 3), 1),
        "v": networks.values((3, 5, 1, 1), 2),
        "s": numpy.array([2, 15, 20]),
    }
    agrees(
        [
            node("Transpose", "x", "t", perm=[0, 1, 3, 2]),
            node("Conv", "t w", "c", pads=[1, 1, 1, 1]),
            node("Sigmoid", "c", "g"),
            node("Mul", "c g", "m"),
            node("Conv", "m v", "d"),
            node("Relu", "d", "e"),
            node("Transpose", "e", "f", perm=[0, 2, 3, 1]),
            node("Mul", "f f", "p"),
            node("Flatten", "p", "flat"),
            node("Flatten", "m", "other"),
        ],
        {"x": X},
        constants,
        outputs=("flat", "other", "c", "e"),
    )


def test_matrices_with_batches_and_constants():
    agrees(
        [node("MatMul", "a b", "p"), node("MatMul", "p w", "q"), node("MatMul", "q v", "r"), node("Add", "q r", "y")],
        {"a": networks.values((2, 3, 7, 5)), "b": networks.values((3, 5, 9), 1)},
        {"w": networks.values((9, 17), 2), "v": networks.values((2, 1, 17, 17), 3)},
    )


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize(
    ("kind", "nodes"),
    [
        ("Gemm+gelu tanh", [node("Gelu", "b", approximate="tanh")]),
        ("Gemm+gelu", [node("Gelu", "b")]),
        ("Gemm+sigmoid", [node("Sigmoid", "b")]),
        ("Gemm+silu", [node("Sigmoid", "b", "s"), node("Mul", "b s")]),
        ("Gemm+mish", [node("Mish", "b")]),
        ("Gemm", [node("Relu", "b")]),
        ("Gemm", [node("Clip", "b low high")]),
    ],
)
def test_activations_go_into_the_product_that_makes_their_operand(kind, nodes, rank):
    """Of all its numbers, also those of tiles that are not full, and of sums over several blocks; through a view or
    not."""
    x, w = networks.values((2, 61, 2200)[-rank:]), networks.values((2200, 70), 1) / 20
    nodes = [node("MatMul", "x w", "m"), node("Add", "m bias", "b"), *nodes]
    constants = {"w": w, "bias": networks.values((70,), 2), "low": numpy.float32(-0.25), "high": numpy.float32(0.5)}
    model = Model(
        "model",
        _array._model_open(compile_model(networks.graph_of(nodes, {"x": x}, ("y",), constants, 20), "model.onnx")),
    )
    assert [step.kind for step in model.steps] == ["Input", kind, "Output"]
    agrees(nodes, {"x": x}, constants, opset=20)


@pytest.mark.parametrize(
    ("numbers", "columns"), [(512, 300), (513, 290), (770, 256), (1030, 200), (2100, 45), (2100, 320)]
)  # more weights than stay near
def test_sums_in_parts_of_a_tile(numbers, columns):
    """Tiles of many rows visit their output between parts of a sum, whole parts and a shorter last one; bias, addend
    and activation come once."""
    x = networks.values((120, numbers), 1)
    constants = {
        "w": networks.values((numbers, columns), 2) / 32,
        "b": networks.values((columns,), 3),
        "v": networks.values((columns, columns), 4) / 16,
    }
    nodes = [
        node("MatMul", "x w", "m"),
        node("Add", "m b", "n"),
        node("MatMul", "n v", "o"),
        node("MatMul", "x w", "p"),
        node("Add", "p o", "q"),
        node("Relu", "q"),
    ]
    agrees(nodes, {"x": x}, constants)
    agrees([*nodes[:2], node("Sigmoid", "n")], {"x": x}, constants)


@pytest.mark.parametrize("rows", [225, 256, 700])
def test_any_number_of_threads_gives_the_same_bytes_of_products(rows):
    """Threads have rows of their own from product to product; 225 of 14 to a tile are not as many for each."""
    x = networks.values((rows, 770), 1)
    constants = {
        "w": networks.values((770, 300), 2) / 32,
        "v": networks.values((300, 800), 3) / 16,
        "u": networks.values((800, 9), 4),
    }
    compiled = compile_model(
        networks.graph_of(
            [node("MatMul", "x w", "m"), node("Sigmoid", "m", "s"), node("MatMul", "s v", "r"), node("MatMul", "r u")],
            {"x": x},
            ("y",),
            constants,
        ),
        "model.onnx",
    )
    products = [
        numpy.asarray(Model("model", _array._model_open(compiled, threads, False, True))({"x": x})["y"])
        for threads in (1, 2, 3)
    ]
    assert products[0].tobytes() == products[1].tobytes() == products[2].tobytes()
    networks.assert_close(
        products[0], (1 / (1 + numpy.exp(-(x @ constants["w"])))) @ constants["v"] @ constants["u"], 1e-5
    )


def test_probabilities_are_normal_numbers_or_0():
    """Masked scores become 0 and not subnormal numbers, whose products take a hundred cycles each. (masked BERT was 8
    % slower)"""
    x = numpy.array(
        [[0, -86.5, -87.5, -95, -103, -110, -1e30, -numpy.inf] * 5, [-1, -3e38] * 20, [numpy.nan, -100] * 20], "float32"
    )
    for answer in runs_on(backends(), networks.graph_of([node("Softmax", "x")], {"x": x}, ("y",)), {"x": x}):
        assert (answer[0][0].reshape(5, 8)[:, :2] > 0).all() and (answer[0][0].reshape(5, 8)[:, 2:] == 0).all()
        assert numpy.allclose(answer[0][1][::2], 1 / 20, rtol=1e-6) and not answer[0][1][1::2].any()
        assert numpy.isnan(answer[0][2]).all()


@pytest.mark.parametrize("curve", ["Relu", "Sigmoid", None])
def test_rows_between_products_that_lie_apart_are_the_same_rows(curve):
    """1024 numbers are a whole way of the nearest cache: between two products rows get a line more, and where an
    operator sees them, none."""
    activated = [node(curve, "m", "a")] if curve else [node("Identity", "m", "a")]
    nodes = [
        node("MatMul", "x w", "m"),
        *activated,
        node("MatMul", "a v", "b"),
        node("MatMul", "b v", "c"),
        node("Softmax", "c", "s"),
        node("MatMul", "s u", "y"),
    ]
    constants = {
        "w": networks.values((24, 1024), 1) / 5,
        "v": networks.values((1024, 1024), 2) / 32,
        "u": networks.values((1024, 9), 3) / 32,
    }
    agrees(nodes, {"x": networks.values((1, 30, 24), 4)}, constants)
    agrees(nodes, {"x": networks.values((30, 24), 4)}, constants, outputs=("y", "b"))


ATTENTION = [
    node("Transpose", "k", "t", perm=[0, 1, 3, 2]),
    node("MatMul", "q t", "s"),
    node("Mul", "s scale", "f"),
    node("Add", "f mask", "w"),
    node("Softmax", "w", "p"),
    node("MatMul", "p v"),
]


@contextlib.contextmanager
def forced(algorithm):
    vmhost.engine.library.force_algorithm(algorithm)
    try:
        yield
    finally:
        vmhost.engine.library.force_algorithm(None)


def ways_of_attention(data, search="fixed"):
    model = opened("model", data, search=search)
    return [step.algorithm for step in model.steps if step.kind == "Attention"]


@each(
    ("rows", "keys", "depth", "width"),
    [(20, 33, 8, 8), (29, 64, 64, 64), (9, 1, 3, 70), (130, 45, 5, 31), (8, 9000, 16, 4), (3, 40, 8, 5), (1, 7, 4, 4)],
)
@each("mask", ["row", "all", "heads", "none"])
@each("algorithm", ["fused", "apart"])
def test_attention(algorithm, rows, keys, depth, width, mask):
    """As one step, which is done in one of two ways."""
    shape = {"row": (keys,), "all": (2, 3, rows, keys), "heads": (2, 1, 1, keys)}.get(mask)
    inputs = {
        "q": networks.values((2, 3, rows, depth)),
        "k": networks.values((2, 3, keys, depth), 1),
        "v": networks.values((2, 3, keys, width), 2),
    }
    inputs |= {"mask": networks.values(shape, 3) * 4} if shape else {}
    nodes = ATTENTION if shape else [*ATTENTION[:3], node("Softmax", "f", "p"), ATTENTION[-1]]
    constants = {"scale": numpy.float32(depth**-0.5)}
    with forced(algorithm):
        model = Model(
            "model",
            _array._model_open(compile_model(networks.graph_of(nodes, inputs, ("y",), constants, 18), "model.onnx")),
        )
        assert [(step.kind, step.algorithm) for step in model.steps if step.kind not in ("Input", "Output")] == [
            ("Attention", algorithm)
        ]
        agrees(nodes, inputs, constants)


def attention_of(rows, keys, depth, heads=12):
    """Its ONNX file and inputs, without a mask."""
    inputs = {
        "q": networks.values((1, heads, rows, depth)),
        "k": networks.values((1, heads, keys, depth), 1),
        "v": networks.values((1, heads, keys, depth), 2),
    }
    nodes = [*ATTENTION[:3], node("Softmax", "f", "p"), ATTENTION[-1]]
    return networks.graph_of(nodes, inputs, ("y",), {"scale": numpy.float32(depth**-0.5)}), inputs


def test_the_search_chooses_how_attention_is_done():
    """For few rows as its operators are, since packing takes longer; for many fused, since scores stay near. Which it
    is follows from what the two cost."""
    few, many = (compile_model(attention_of(rows, 256, 64)[0], "model.onnx") for rows in (8, 1024))
    for search in ("fixed", "measured"):
        assert ways_of_attention(few, search) == ["apart"] and ways_of_attention(many, search) == ["fused"]
    for other in ("direct", "winograd4"):  # which compute no attention
        with forced(other):
            assert ways_of_attention(few) == ["fused"]


def test_attention_that_is_expected_to_take_as_long_in_both_ways_is_tried():
    """Once a process: a tie is broken alike afterwards, whatever came out that time."""

    def gap(rows):
        data = compile_model(attention_of(rows, 256, 64)[0], "model.onnx")
        expected = []
        for algorithm in ("fused", "apart"):
            with forced(algorithm):
                expected += [step.expected_ms for step in opened("model", data).steps if step.kind == "Attention"]
        return abs(expected[0] / expected[1] - 1), rows

    rates = vmhost.engine.library.measured_rates()
    try:
        vmhost.engine.library.set_rates(vmhost.engine.library.fixed_rates())
        difference, rows = min(map(gap, range(20, 200, 6)))
        assert difference < 0.02
        source, inputs = attention_of(rows, 256, 64)
        data = compile_model(source, "model.onnx")
        answers = {numpy.asarray(opened("model", data)(inputs)["y"]).tobytes() for _ in range(5)}
        assert len(answers) == 1
        networks.assert_close(opened("model", data)(inputs)["y"], networks.expected(source, inputs)[0])
    finally:
        vmhost.engine.library.set_rates(rates)


def test_attention_whose_operands_and_result_lie_in_any_order():
    """Heads are parts of rows, keys are repeated for several heads, the result's heads are put together in place; and
    numbers of a row that lie apart."""
    x, shared = networks.values((2, 21, 24)), networks.values((1, 1, 17, 8), 1)
    heads = [
        node("Reshape", "x split", "a"),
        node("Transpose", "a", "q", perm=[0, 2, 1, 3]),
        node("Transpose", "shared", "t", perm=[0, 1, 3, 2]),
    ]
    body = [node("MatMul", "q t", "s"), node("Softmax", "s", "p"), node("MatMul", "p shared", "c")]
    constants = {"split": numpy.array([2, 21, 3, 8]), "joined": numpy.array([2, 21, 24])}
    agrees(
        [*heads, *body, node("Transpose", "c", "d", perm=[0, 2, 1, 3]), node("Reshape", "d joined")],
        {"x": x, "shared": shared},
        constants,
    )
    turned = [
        node("Transpose", "x", "q", perm=[0, 2, 1]),
        node("MatMul", "q b", "s"),
        node("Softmax", "s", "p"),
        node("MatMul", "p w", "c"),
        node("Transpose", "c", perm=[0, 2, 1]),
    ]
    agrees(
        turned,
        {"x": networks.values((2, 8, 21)), "b": networks.values((2, 8, 10), 1), "w": networks.values((2, 10, 9), 2)},
    )


def test_a_mask_may_close_keys_and_even_all_of_them():
    mask = numpy.zeros((2, 1, 9, 12), "float32")
    mask[:, :, :, 7:] = -numpy.inf
    inputs = {
        "q": networks.values((2, 1, 9, 4)),
        "k": networks.values((2, 1, 12, 4), 1),
        "v": networks.values((2, 1, 12, 4), 2),
        "mask": mask,
    }
    agrees(ATTENTION, inputs, {"scale": numpy.float32(0.5)})
    mask[1, 0, 3] = -numpy.inf
    data = networks.graph_of(ATTENTION, inputs, ("y",), {"scale": numpy.float32(0.5)})
    for [answer] in runs_on(backends(), data, inputs):
        assert numpy.isnan(answer[1, 0, 3]).all() and numpy.isfinite(answer[1, 0, 4:]).all()


def test_scores_that_others_read_are_made():
    inputs = {
        "q": networks.values((2, 1, 9, 4)),
        "k": networks.values((2, 1, 12, 4), 1),
        "v": networks.values((2, 1, 12, 4), 2),
        "mask": networks.values((12,), 3),
    }
    for other in "spf":
        agrees(ATTENTION, inputs, {"scale": numpy.float32(0.5)}, outputs=("y", other))


@pytest.mark.parametrize("algorithm", ["fused", "apart"])
def test_attention_is_the_same_whatever_the_threads(algorithm):
    inputs = {
        "q": networks.values((2, 3, 70, 16)),
        "k": networks.values((2, 3, 90, 16), 1),
        "v": networks.values((2, 3, 90, 40), 2),
        "mask": networks.values((90,), 3),
    }
    data = compile_model(networks.graph_of(ATTENTION, inputs, ("y",), {"scale": numpy.float32(0.25)}), "model.onnx")
    with forced(algorithm):
        [one, *others] = [
            numpy.asarray(Model("model", _array._model_open(data, threads, False, True))(inputs)["y"]).tobytes()
            for threads in (1, 2, 3, 7)
        ]
    assert set(others) == {one}


def test_an_activation_of_what_others_read_stays():
    x, w = networks.values((2, 5, 16)), networks.values((16, 8), 1)
    agrees(
        [node("MatMul", "x w", "m"), node("Sigmoid", "m", "y"), node("Add", "m y", "z")],
        {"x": x},
        {"w": w},
        outputs=("y", "z"),
    )
    agrees([node("MatMul", "x w", "m"), node("Sigmoid", "m", "y")], {"x": x}, {"w": w}, outputs=("y", "m"))


def test_integers_and_truths():
    agrees(
        [
            node("Gather", "table i", "g", axis=0),
            node("Equal", "i two", "e"),
            node("Not", "e", "n"),
            node("Cast", "n", "c", to=7),
            node("Mul", "c i", "m"),
            node("Unsqueeze", "e axes", "u"),
            node("Where", "u zero g", "y"),
        ],
        {"i": numpy.array([[0, 2, 3], [2, 1, -1]])},
        {"table": networks.values((4, 6)), "two": numpy.array(2), "zero": numpy.float32(0), "axes": numpy.array([2])},
        outputs=("y", "m", "n"),
    )


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean", "ReduceMax"])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_reductions(op, keepdims):
    agrees([node(op, "x axes", keepdims=keepdims)], {"x": X}, {"axes": numpy.array([1, -1])})


def test_scalars():
    agrees(
        [node("ReduceSum", "x", "s", keepdims=0), node("Sqrt", "s", "r"), node("Add", "r r", "y")], {"x": numpy.abs(X)}
    )


def test_what_is_not_there_is_all_named_at_once():
    words = {"ngram_counts": [0], "ngram_indexes": [0], "pool_int64s": [1]}
    grams = {"max_gram_length": 1, "min_gram_length": 1, "max_skip_count": 0, "mode": "TF"}
    data = networks.graph_of(
        [node("ImageDecoder", "x", "d"), node("TfIdfVectorizer", "i", "z", **words, **grams)],
        {"x": numpy.zeros(4, "uint8"), "i": numpy.zeros(4, "int64")},
        ("d", "z"),
        opset=20,
    )
    with pytest.raises(OnnxError) as caught:
        compile_model(data, "model.onnx")
    assert caught.value.messages == (
        "operator ImageDecoder (node 'd') is not supported",
        "operator TfIdfVectorizer (node 'z') is not supported",
    )


@pytest.mark.parametrize(
    ("model", "limits"),
    [
        (bench.networks.bert(16, 2, 32, 4, 64, 100), {"input_ids": 100, "token_type_ids": 2}),
        (bench.networks.bert(7, 1, 24, 3, 50, 100, fused=False), {"input_ids": 100, "token_type_ids": 2}),
        (
            bench.networks.din(10, 50, 20, 8),
            {"item": 50, "category": 20, "history_items": 50, "history_categories": 20},
        ),
    ],
    ids=["bert", "bert in parts", "din"],
)
def test_small_networks_agree(backend, model, limits):
    data = model.SerializeToString()
    ours = Model("model", _array._model_open(compile_model(data, "model.onnx")))
    for seed in range(3):
        inputs = bench.networks.inputs(ours.inputs, seed, limits)
        outputs = ours(inputs)
        for port, theirs in zip(ours.outputs, networks.expected(data, inputs), strict=True):
            networks.assert_close(outputs[port.name], theirs)


@pytest.mark.parametrize("model", [lambda: bench.networks.bert(layers=2), bench.networks.din], ids=["bert", "din"])
def test_networks_agree_with_onnx_runtime(model):
    """As large as they are measured, but for BERT's layers: all twelve are of the same sizes."""
    data = model().SerializeToString()
    ours = Model("model", _array._model_open(compile_model(data, "model.onnx")))
    inputs = [bench.networks.inputs(ours.inputs, seed) for seed in range(2)]
    for given, expected in zip(inputs, networks.all_by_onnx_runtime(data, inputs), strict=True):
        outputs = ours(given)
        for port, theirs in zip(ours.outputs, expected, strict=True):
            networks.assert_close(outputs[port.name], theirs)
            assert int(outputs[port.name].argmax()) == theirs.argmax()


def test_an_index_out_of_bounds_is_the_callers_error():
    with pytest.raises(IndexError, match="out of bounds"):
        agrees([node("Gather", "table i", axis=0)], {"i": numpy.array([4])}, {"table": networks.values((4, 6))})
