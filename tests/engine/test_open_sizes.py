"""Models that leave sizes open: every size gives what ONNX's reference computes, plans are kept, and unsupported models
get an error."""

import threading

import numpy
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vmhost.engine.numpy as np
from tests import networks
from tests.engine.library import backends, on_backend
from tests.networks import images
from vmhost.engine import _array
from vmhost.engine.models import opened
from vmhost.engine.onnx import OnnxError, compile_model, open_sizes, parts


def attention(heads=2, depth=8, positions=40):
    """One layer of BERT's form on any number of texts of any length, as exporters write it: shapes are computed of
    shapes, positions are a slice."""
    node, width = helper.make_node, heads * depth
    split = [node("Reshape", [name, "parts"], [f"{name}4"]) for name in "qkv"]
    nodes = [
        node("Shape", ["ids"], ["shape"]),
        node("Slice", ["shape", "0", "1"], ["b"]),
        node("Slice", ["shape", "1", "2"], ["s"]),
        node("Slice", ["positions", "0", "s", "1"], ["at"]),
        node("Gather", ["position_table", "at"], ["placed"]),
        node("Gather", ["word_table", "ids"], ["words"]),
        node("Add", ["words", "placed"], ["sum"]),
        node("LayerNormalization", ["sum", "scale", "bias"], ["h"], axis=-1),
        *(node("MatMul", ["h", f"w{name}"], [name]) for name in "qkv"),
        node("Concat", ["b", "s", "heads", "rest"], ["parts"], axis=0),
        *split,
        node("Transpose", ["q4"], ["qt"], perm=[0, 2, 1, 3]),
        node("Transpose", ["k4"], ["kt"], perm=[0, 2, 3, 1]),
        node("Transpose", ["v4"], ["vt"], perm=[0, 2, 1, 3]),
        node("MatMul", ["qt", "kt"], ["scores"]),
        node("Mul", ["scores", "half"], ["scaled"]),
        node("Softmax", ["scaled"], ["p"], axis=-1),
        node("MatMul", ["p", "vt"], ["o"]),
        node("Transpose", ["o"], ["ot"], perm=[0, 2, 1, 3]),
        node("Concat", ["b", "s", "rest"], ["joined"], axis=0),
        node("Reshape", ["ot", "joined"], ["oj"]),
        node("MatMul", ["oj", "wo"], ["made"]),
        node("Add", ["made", "h"], ["added"]),
        node("Concat", ["h", "added"], ["y"], axis=1),
    ]
    constants = {
        **{str(number): numpy.array([number]) for number in range(3)},
        "positions": numpy.arange(positions)[None],
        "heads": numpy.array([heads]),
        "rest": numpy.array([-1]),
        "half": numpy.float32(0.5),
        "position_table": networks.values((positions, width), 1),
        "word_table": networks.values((50, width), 2),
        "scale": networks.values((width,), 3),
        "bias": networks.values((width,), 4),
        **{f"w{name}": networks.values((width, width), seed) for seed, name in enumerate("qkvo", 5)},
    }
    graph = helper.make_graph(
        nodes,
        "attention",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ("texts", "words"))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ("texts", "twice", width))],
        [numpy_helper.from_array(numpy.asarray(values), name) for name, values in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def concatenation():
    """Two inputs of one size, which are also concatenated: a strange model, with a size that is a sum."""
    return networks.graph(
        [helper.make_node("Concat", ["a", "b", "c"], ["y"], axis=0)],
        {"a": ("n", 3), "b": ("n", 3), "c": (1, 3)},
        {"y": ("all", 3)},
    )


@pytest.fixture(scope="module")
def files():
    return {make: compile_model(make(), make.__name__) for make in (images, attention, concatenation)}


def test_every_number_of_images_gives_the_reference(files):
    given = [networks.values((count, 3, 32, 32), count) for count in (1, 3, 2)]
    expected = [networks.expected(images(), {"input": x})[0] for x in given]
    for backend in backends():
        with on_backend(backend):
            model = opened("images", files[images])
            for x, theirs in zip(given, expected, strict=True):
                networks.assert_close(model({"input": x})["output"], theirs)


def test_every_number_and_length_of_texts_gives_the_reference(files):
    given = [
        numpy.random.default_rng(words).integers(0, 50, (texts, words))
        for texts, words in ((1, 1), (3, 40), (2, 7), (1, 40))
    ]
    for backend in backends():
        with on_backend(backend):
            model = opened("attention", files[attention])
            for ids in given:
                networks.assert_close(model({"ids": ids})["y"], networks.expected(attention(), {"ids": ids})[0])


def test_each_plan_chooses_how_attention_is_done(files):
    """For its own sizes, whatever was chosen for the small ones at which the model was prepared; weights, which lie in
    memory once, stay as they were chosen there."""
    model = opened("attention", files[attention])
    for words, algorithm in ((4, "apart"), (40, "fused"), (4, "apart")):
        _, steps = model.run({"ids": numpy.zeros((1, words), "int64")}, profile=True)
        assert [step.algorithm for step in steps if step.kind == "Attention"] == [algorithm]


def test_ports_name_the_sizes_that_are_open(files):
    model = opened("attention", files[attention])
    assert [(port.name, port.shape) for port in (*model.inputs, *model.outputs)] == [
        ("ids", ("texts", "words")),
        ("y", ("texts", "2*words", 16)),
    ]
    model = opened("concatenation", files[concatenation])
    assert [port.shape for port in (*model.inputs, *model.outputs)] == [("n", 3), ("n", 3), (1, 3), ("2*n + 1", 3)]
    assert model.shapes_at({"n": 5}) == {"a": (5, 3), "b": (5, 3), "c": (1, 3)} and model.shapes_at()["a"] == (1, 3)
    assert model.warmup() is None and model.warmup({"n": 7}) is None
    with pytest.raises(ValueError, match="there is no open size 'm'; expected 'n'"):
        model.warmup({"m": 7})


@pytest.mark.parametrize(
    ("make", "shapes", "message"),
    [
        (
            images,
            {"input": (2, 3, 32, 31)},
            r"input 'input': expected shape \(batch, 3, 32, 32\), got \(2, 3, 32, 31\)",
        ),
        (
            images,
            {"input": (2, 0, 32, 32)},
            r"input 'input': expected shape \(batch, 3, 32, 32\), got \(2, 0, 32, 32\)",
        ),
        (images, {"input": (3, 32, 32)}, r"input 'input': expected shape \(batch, 3, 32, 32\), got \(3, 32, 32\)"),
        (
            concatenation,
            {"a": (2, 3), "b": (4, 3), "c": (1, 3)},
            r"input 'b': expected shape \(n, 3\) with n = 2, got \(4, 3\)",
        ),
    ],
)
def test_a_shape_that_does_not_fit_says_what_was_expected(files, make, shapes, message):
    with pytest.raises(ValueError, match=message):
        opened("model", files[make])({name: numpy.zeros(shape, "float32") for name, shape in shapes.items()})


def test_a_size_at_which_constants_end_says_so_and_others_work_on(files):
    model = opened("attention", files[attention])
    for _ in range(2):
        with pytest.raises(
            ValueError,
            match="this model does not work at texts = 2, words = 41: Slice 'at' slices .* compiled for 40 >= words",
        ):
            model({"ids": numpy.zeros((2, 41), "int64")})
    assert model({"ids": numpy.zeros((2, 40), "int64")})["y"].shape == (2, 80, 16)


def test_a_steady_run_allocates_its_output_only_and_the_last_eight_plans_stay(files):
    model = opened("images", files[images])
    given = [np.asarray(networks.values((count, 3, 32, 32), count)) for count in range(1, 9)]
    for x in given[::-1]:  # the largest arena first
        model({"input": x})

    def taken(x):
        before = _array._statistics()["peak_bytes"]
        model({"input": x})
        return _array._statistics()["peak_bytes"] - before

    peak = np.zeros(
        _array._statistics()["peak_bytes"] - _array._statistics()["live_bytes"], "uint8"
    )  # what is allocated from now on shows
    assert peak.size
    assert all(taken(x) <= 64 * len(x) for x in given)
    more = np.asarray(networks.values((9, 3, 32, 32)))
    model({"input": more})
    assert taken(given[-1]) <= 64 * 9


def test_a_profile_is_of_the_sizes_of_the_call(files):
    model = opened("images", files[images])
    steps = {count: model.run({"input": networks.values((count, 3, 32, 32))}, profile=True)[1] for count in (1, 4)}
    assert [step.name for step in steps[1]] == [step.name for step in steps[4]]
    assert steps[4][0].shape == (4, 3, 32, 32) and all(
        four.products == 4 * one.products for one, four in zip(steps[1], steps[4])
    )


def test_calls_of_several_sizes_at_the_same_time_do_not_meet(files):
    model, wrong = opened("images", files[images], search="fixed"), []
    inputs = [networks.values((count, 3, 32, 32), count) for count in (1, 2, 3)]
    alone = [opened("images", files[images], search="fixed")({"input": x})["output"].tobytes() for x in inputs]

    def run(first):
        for number in range(first, first + 30):
            case = number % 3
            if model({"input": inputs[case]})["output"].tobytes() != alone[case]:
                wrong.append(case)

    threads = [threading.Thread(target=run, args=(first,)) for first in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def refused(nodes, inputs, outputs, message, constants=None):
    with pytest.raises(OnnxError) as caught:
        compile_model(networks.graph(nodes, inputs, outputs, constants), "model.onnx")
    assert message in str(caught.value)


def test_a_size_that_constants_fix_is_that_size():
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    graph = networks.graph(nodes, {"x": ("n", 6)}, {"y": (4, 3)}, {"shape": numpy.array([4, 3])})
    model = opened("fixed", compile_model(graph, "model.onnx"))
    x = numpy.arange(12, dtype="float32").reshape(2, 6)
    assert numpy.array_equal(model({"x": x})["y"], x.reshape(4, 3))
    with pytest.raises(ValueError, match=r"expected shape \(2, 6\), got \(3, 6\)"):
        model({"x": numpy.zeros((3, 6), "float32")})


def test_a_size_that_constants_fix_to_no_whole_number_is_refused_when_it_is_compiled():
    refused(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        {"x": ("n", 6)},
        {"y": (4, 4)},
        "works on tensors of the sizes 3*n and 8 as if they were equal; export the model with fixed sizes",
        {"shape": numpy.array([4, 4])},
    )


def test_what_no_sizes_would_solve_is_told_without_advice_on_sizes():
    node = helper.make_node("Own", ["x"], ["y"], domain="my.own")
    model = onnx.load_from_string(networks.graph([node], {"x": ("n", 6)}, {"y": ("n", 6)}))
    model.opset_import.append(helper.make_opsetid("my.own", 1))
    with pytest.raises(OnnxError, match="operator my.own.Own .* is not supported") as caught:
        compile_model(model.SerializeToString(), "model.onnx")
    assert "fixed sizes" not in str(caught.value)


def test_what_would_count_padding_of_an_open_width_is_refused():
    refused(
        [helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2], auto_pad="SAME_UPPER")],
        {"x": (1, 3, "height", 8)},
        {"y": None},
        "has auto_pad SAME_UPPER and strides over an open size",
    )


@pytest.mark.parametrize("count", [65, 80])
def test_more_open_sizes_than_a_file_can_have_are_refused(count):
    names = [f"n{number}" for number in range(count)]
    inputs = {f"x{name}": (name,) for name in names}
    nodes = [helper.make_node("Relu", [key], [f"y{name}"]) for key, name in zip(inputs, names)]
    refused(
        nodes,
        inputs,
        {f"y{name}": (name,) for name in names},
        f"leaves {count} sizes open (n0, n1, n2, n3, n4, n5 and {count - 6} more), at most 64 can be; fix others when"
        " exporting",
    )


def test_more_counted_sizes_than_a_file_can_have_are_refused():
    nodes = [helper.make_node("NonZero", [f"x{number}"], [f"y{number}"]) for number in range(65)]
    given = {f"x{number}": numpy.ones(5, "float32") for number in range(65)}
    with pytest.raises(OnnxError) as caught:
        compile_model(networks.graph_of(nodes, given, [f"y{number}" for number in range(65)]), "model.onnx")
    listed = ", ".join(f"count of y{number}" for number in range(6))
    assert (
        f"leaves 65 sizes open ({listed} and 59 more), at most 64 can be; 65 of them follow from values, such as how"
        " many elements NonZero finds: export the model without the operators that find them, or in parts"
    ) in str(caught.value)


def test_as_many_open_sizes_as_a_file_can_have():
    """Half of the tensors are cut in the middle: each size has a quotient."""
    names = [f"n{number}" for number in range(64)]
    inputs = {f"x{name}": (name,) for name in names}
    node, nodes = helper.make_node, []
    for place, name in enumerate(names):
        if place % 2:
            nodes.append(node("Relu", [f"x{name}"], [f"y{name}"]))
            continue
        nodes += [
            node("Shape", [f"x{name}"], [f"s{name}"]),
            node("Add", [f"s{name}", "three"], [f"more{name}"]),
            node("Div", [f"more{name}", "two"], [f"half{name}"]),
            node("Slice", [f"x{name}", "zero", f"half{name}"], [f"y{name}"]),
        ]
    constants = {"zero": numpy.array([0]), "two": numpy.array([2]), "three": numpy.array([3])}
    data, model = opened_of(nodes, inputs, {f"y{name}": (f"m{name}",) for name in names}, constants)
    for step in (1, 5):
        given = {key: networks.values((3 + place * step % 13,), place) for place, key in enumerate(inputs)}
        answers = model(given)
        for name, wanted in zip(answers, networks.expected(data, given), strict=True):
            networks.assert_close(answers[name], wanted)
    [sizes] = {len(port.shape) for port in model.inputs}
    assert sizes == 1 and len({port.shape[0] for port in model.inputs}) == 64


def test_sizes_and_quotients_that_a_byte_cannot_tell_apart_are_refused():
    names = [f"n{number}" for number in range(64)]
    inputs, node = {f"x{name}": (name,) for name in names}, helper.make_node
    nodes = [
        part
        for place, (key, name) in enumerate(zip(inputs, names))
        for divisor in (2, 3, 4)
        for part in (
            node("Shape", [key], [f"s{name}{divisor}"]),
            node("Div", [f"s{name}{divisor}", f"by{divisor}"], [f"part{name}{divisor}"]),
            node("Slice", [key, "zero", f"part{name}{divisor}"], [f"y{place * 3 + divisor}"]),
        )
    ]
    constants = {f"by{divisor}": numpy.array([divisor]) for divisor in (2, 3, 4)} | {"zero": numpy.array([0])}
    outputs = [name for part in nodes for name in part.output if name.startswith("y")]
    refused(
        nodes,
        inputs,
        {name: (f"m{name}",) for name in outputs},
        "more than 191 quotients of sizes depends on the open",
        constants,
    )


def test_samples_tell_all_sizes_apart():
    """Sizes that agreed in both readings would be taken for one."""
    count = open_sizes.MAX_OPEN_SIZES
    names = [f"n{number}" for number in range(count)]
    for pictures, multiple in ((set(), None), (set(names), None), (set(names[::2]), None), (set(), 64), (set(), 1920)):
        places = {(f"x{name}", 1): name for name in names}
        samples = open_sizes._Samples((dict.fromkeys(names, []), places, pictures), multiple)
        pairs = list(zip(samples.values_at(0), samples.values_at(1)))
        pairs += zip(*([parts.sample(number, place) for place in range(count)] for number in range(2)))
        assert len(set(pairs)) == 2 * count


def opened_of(nodes, inputs, outputs, constants=None):
    data = networks.graph(nodes, inputs, outputs, constants)
    return data, opened("model", compile_model(data, "model"))


@pytest.mark.parametrize(
    ("op", "constant", "told"),
    [
        ("Add", (7,), "Add .* broadcasts .* which fit at some sizes only"),
        ("MatMul", (7, 2), "MatMul .* multiplies .* columns by 7 rows, which fit at some sizes only"),
    ],
)
def test_a_size_that_is_a_constants_at_long_inputs_alone(op, constant, told):
    """The engine once refused the file: its numbers were those for one element, for which the sizes do not fit."""
    node = helper.make_node
    slices = {"start": numpy.array([1]), "end": numpy.array([15]), "axis": numpy.array([1]), "step": numpy.array([2])}
    data, model = opened_of(
        [
            node("Reshape", ["x", "rows"], ["flat"]),
            node("Slice", ["flat", *slices], ["first"]),
            node(op, ["first", "c"], ["y"]),
        ],
        {"x": (2, "n", 5)},
        {"y": (2, constant[-1])},
        {"rows": numpy.array([0, -1]), **slices, "c": networks.values(constant)},
    )
    for size in (3, 4):
        given = {"x": networks.values((2, size, 5))}
        [wanted] = networks.expected(data, given)
        numpy.testing.assert_allclose(model(given)["y"], wanted, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=told):
        model({"x": networks.values((2, 2, 5))})


@pytest.mark.parametrize("from_the_middle", [False, True])
def test_a_table_of_few_positions_leaves_the_lengths_open_that_it_has(from_the_middle):
    """The lengths that the model is read at first are longer than the table."""
    node = helper.make_node
    start, end, far = numpy.array([0]), numpy.array([12]), numpy.array([1 << 60])
    middle = [
        node("Sub", ["middle", "length"], ["first"]),
        node("Add", ["middle", "length"], ["behind"]),
        node("Slice", ["table", "first", "behind", "axis"], ["around"]),
        node("Slice", ["around", "length", "far", "axis"], ["places"]),
    ]
    data, model = opened_of(
        [
            node("Shape", ["x"], ["shape"]),
            node("Slice", ["shape", "one", "two"], ["length"]),
            *(middle if from_the_middle else [node("Slice", ["table", "axis", "length", "axis"], ["places"])]),
            node("Add", ["x", "places"], ["y"]),
        ],
        {"x": ("n", "m", 3)},
        {"y": ("n", "m", 3)},
        {"one": numpy.array([1]), "two": numpy.array([2]), "axis": start, "middle": end, "far": far}
        | {"table": networks.values((24 if from_the_middle else 12, 3))},
    )
    for size in (1, 5, 12):
        given = {"x": networks.values((2, size, 3))}
        networks.assert_close(model(given)["y"], networks.expected(data, given)[0])
    with pytest.raises(ValueError, match="m = 13: Slice .* call it with such sizes"):
        model({"x": networks.values((2, 13, 3))})


def test_five_open_sizes_and_a_quotient_without_a_remainder():
    """Halves of a doubled size."""
    node = helper.make_node
    data, model = opened_of(
        [
            node("Concat", ["x", "x"], ["double"], axis=0),
            node("Shape", ["double"], ["shape"]),
            node("Div", ["shape", "divisors"], ["halves"]),
            node("Expand", ["z", "halves"], ["w"]),
            node("Add", ["x", "w"], ["y"]),
        ],
        {"x": ("a", "b", "c", "d", "e"), "z": (1,)},
        {"y": ("a", "b", "c", "d", "e")},
        {"divisors": numpy.array([2, 1, 1, 1, 1])},
    )
    given = {"x": networks.values((2, 1, 4, 3, 5)), "z": networks.values((1,))}
    networks.assert_close(model(given)["y"], networks.expected(data, given)[0])


def test_sizes_become_numbers_that_are_computed_with():
    """A mean over an open size, as exporters write it out, and indices that count to one."""
    node = helper.make_node
    data, model = opened_of(
        [
            node("ReduceSum", ["x", "one"], ["sum"]),
            node("Shape", ["x"], ["shape"]),
            node("Gather", ["shape", "one"], ["count"]),
            node("Cast", ["count"], ["divisor"], to=TensorProto.FLOAT),
            node("Div", ["sum", "divisor"], ["mean"]),
            node("Squeeze", ["count"], ["last"]),
            node("Range", ["zero", "last", "step"], ["every"]),
            node("Gather", ["x", "every"], ["picked"], axis=1),
            node("Sub", ["picked", "mean"], ["y"]),
        ],
        {"x": ("n", "m")},
        {"y": ("n", "m")},
        {"one": numpy.array([1]), "zero": numpy.int64(0), "step": numpy.int64(1)},
    )
    for shape in ((3, 5), (1, 1), (2, 300)):
        x = networks.values(shape)
        networks.assert_close(model({"x": x})["y"], networks.expected(data, {"x": x})[0])


def test_a_branch_on_a_constant_is_read_as_if_it_stood_there():
    node, info = helper.make_node, helper.make_tensor_value_info
    branches = {
        f"{name}_branch": helper.make_graph(
            [node(op, ["x"], [f"{name}_y"])], name, [], [info(f"{name}_y", TensorProto.FLOAT, ("n", 3))]
        )
        for name, op in (("then", "Relu"), ("else", "Neg"))
    }
    for condition in (True, False):
        data, model = opened_of(
            [node("If", ["condition"], ["y"], **branches)],
            {"x": ("n", 3)},
            {"y": ("n", 3)},
            {"condition": numpy.array(condition)},
        )
        x = networks.values((4, 3))
        networks.assert_close(model({"x": x})["y"], networks.expected(data, {"x": x})[0])


def test_sizes_without_names_get_some():
    model = onnx.load_model_from_string(
        networks.graph([helper.make_node("Relu", ["x"], ["y"])], {"x": ("n", 2)}, {"y": ("n", 2)})
    )
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[0].Clear()
    model_ = opened("model", compile_model(model.SerializeToString(), "model"))
    assert model_.inputs[0].shape == model_.outputs[0].shape == ("x[0]", 2)
    assert model_({"x": numpy.full((5, 2), -1, "float32")})["y"].tolist() == [[0, 0]] * 5
