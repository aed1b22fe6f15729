"""Caches of keys and values that are written in place: outputs that go on from inputs, against ONNX Runtime."""

import numpy
import pytest
from onnx import TensorProto, helper, numpy_helper

import vmhost.engine.numpy as np
from tests import networks
from tests.engine.library import backends, on_backend
from vmhost.engine.models import opened
from vmhost.engine.onnx import caches, compile_model

HEADS, GROUPS, SIZE, CAPACITY = 4, 2, 16, 12


def decoder(past="past_sequence_length", total="total_sequence_length"):
    """One layer of attention over a cache, as exporters write it."""
    draw = numpy.random.default_rng(1)
    width = HEADS * SIZE
    weights = {
        name: draw.standard_normal((width, size)).astype("float32") / 4
        for name, size in (("wq", width), ("wk", GROUPS * SIZE), ("wv", GROUPS * SIZE))
    }
    angles = numpy.outer(numpy.arange(32), 100.0 ** (-numpy.arange(0, SIZE, 2) / SIZE))
    constants = weights | {
        "cos": numpy.cos(angles).astype("float32"),
        "sin": numpy.sin(angles).astype("float32"),
        "one": numpy.array([1]),
        "place": numpy.array(1),
    }
    node = helper.make_node
    nodes = [
        node("ReduceSum", ["mask", "one"], ["seen"], keepdims=0),
        node("Sub", ["seen", "one"], ["last"]),
        node("Cast", ["last"], ["lengths"], to=TensorProto.INT32),
        node("Shape", ["mask"], ["shape"]),
        node("Gather", ["shape", "place"], ["whole"]),
        node("Cast", ["whole"], ["total"], to=TensorProto.INT32),
        *(node("MatMul", ["x", f"w{name}"], [name]) for name in "qkv"),
        node(
            "GroupQueryAttention",
            ["q", "k", "v", "past_key", "past_value", "lengths", "total", "cos", "sin"],
            ["y", "present_key", "present_value"],
            domain="com.microsoft",
            num_heads=HEADS,
            kv_num_heads=GROUPS,
            do_rotary=1,
        ),
    ]
    info = helper.make_tensor_value_info
    inputs = [
        info("x", TensorProto.FLOAT, ["batch", "rows", width]),
        info("mask", TensorProto.INT64, ["batch", total]),
        *(info(f"past_{kind}", TensorProto.FLOAT, ["batch", GROUPS, past, SIZE]) for kind in ("key", "value")),
    ]
    outputs = [
        info("y", TensorProto.FLOAT, ["batch", "rows", width]),
        *(info(f"present_{kind}", TensorProto.FLOAT, ["batch", GROUPS, total, SIZE]) for kind in ("key", "value")),
    ]
    graph = helper.make_graph(
        nodes, "decoder", inputs, outputs, [numpy_helper.from_array(array, name) for name, array in constants.items()]
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


def turns(batch):
    """The inputs `x` and how many tokens there are with each: a prompt, then tokens."""
    draw, total = numpy.random.default_rng(2), 0
    for rows in (5, 1, 1, 2):
        total += rows
        yield draw.standard_normal((batch, rows, HEADS * SIZE)).astype("float32"), total


def by_onnx_runtime(batch):
    """`y` of each turn, and the key cache in the end: all tokens are one prompt, of which each sees those before."""
    x = numpy.concatenate([x for x, _ in turns(batch)], 1)
    past = {f"past_{kind}": numpy.zeros((batch, GROUPS, 0, SIZE), "float32") for kind in ("key", "value")}
    inputs = {"x": x, "mask": numpy.ones(x.shape[:2], "int64"), **past}
    [[y, keys, _]] = networks.each_by_onnx_runtime([(decoder(), inputs)])
    totals = [total for _, total in turns(batch)]
    return numpy.split(y, totals[:-1], 1), keys


@pytest.fixture(scope="module")
def file():
    return compile_model(caches.with_capacity(decoder()), "decoder")


@pytest.mark.parametrize("batch", [1, 2])
def test_caches_are_written_in_place_and_answers_are_onnx_runtimes(file, batch):
    expected, keys = by_onnx_runtime(batch)
    for backend in backends():
        with on_backend(backend):
            model = opened("decoder", file)
        assert model.continued == {"present_key": "past_key", "present_value": "past_value"}
        cache = {name: np.zeros((batch, GROUPS, CAPACITY, SIZE), "float32") for name in model.continued.values()}
        out = {present: cache[past] for present, past in model.continued.items()}
        mask = np.zeros((batch, CAPACITY), "int64")
        for (x, total), right in zip(turns(batch), expected):
            mask[:, :total] = 1
            made = model({"x": x, "mask": mask, **cache}, out=out)
            assert made["present_key"] is out["present_key"]
            networks.assert_close(made["y"], right, 1e-5)
        networks.assert_close(cache["past_key"][:, :, : keys.shape[2]], keys, 1e-5)
        assert not numpy.asarray(cache["past_key"][:, :, keys.shape[2] :]).any()


def test_without_arrays_to_write_to_inputs_stay_as_they_are(file):
    model, [first, *_] = opened("decoder", file), by_onnx_runtime(1)[0]
    past = {name: np.full((1, GROUPS, CAPACITY, SIZE), 7, "float32") for name in ("past_key", "past_value")}
    (x, total), *_ = turns(1)
    mask = np.zeros((1, CAPACITY), "int64")
    mask[:, :total] = 1
    made = model({"x": x, "mask": mask, **past})
    networks.assert_close(made["y"], first, 1e-5)
    assert numpy.asarray(past["past_key"] == 7).all()
    assert numpy.asarray(made["present_key"][:, :, total:] == 7).all()
    given = numpy.zeros((1, GROUPS, CAPACITY, SIZE), "float32")  # an array of NumPy, and another one than the input
    again = model({"x": x, "mask": mask, **past}, out={"present_key": given, "y": made["y"]})
    assert again["y"] is made["y"]
    numpy.testing.assert_array_equal(given, made["present_key"])


def test_arrays_that_cannot_be_written_to_are_refused(file):
    model = opened("decoder", file)
    past = {name: np.zeros((1, GROUPS, CAPACITY, SIZE), "float32") for name in ("past_key", "past_value")}
    x = np.zeros((1, 1, HEADS * SIZE), "float32")
    inputs = {"x": x, "mask": np.ones((1, CAPACITY), "int64"), **past}
    frozen = numpy.zeros((1, GROUPS, CAPACITY, SIZE), "float32")
    frozen.flags.writeable = False
    wide = np.zeros((1, GROUPS, CAPACITY, 2 * SIZE), "float32")
    locked = np.broadcast_to(np.zeros((1, GROUPS, CAPACITY, SIZE), "float32"), frozen.shape)  # its buffer is writable
    for out, message in (
        ({"present_key": past["past_value"]}, "out: the array of 'present_key' overlaps that of 'past_value'"),
        ({"y": x}, "out: the array of 'y' overlaps that of 'x'"),
        ({"present_key": locked}, "read-only"),
        ({"present_key": past["past_key"], "present_value": past["past_key"]}, "overlaps that of 'past_key'"),
        ({"present_key": wide[..., :SIZE]}, "output 'present_key': expected a contiguous array"),
        ({"present_key": wide}, "output 'present_key': expected a contiguous array"),
        ({"present_key": frozen}, "read-only"),
        ({"other": x}, "decoder: out: there is no output 'other'"),
    ):
        with pytest.raises(ValueError, match=message):
            model(inputs, out=out)


def test_a_cache_of_onnx_is_written_in_place_where_nothing_else_reads_it():
    node = helper.make_node
    x, rows = numpy.zeros((2, 3, 6, 4), "float32"), networks.values((2, 3, 2, 4))
    inputs = {"cache": x, "rows": rows, "at": numpy.array([1, 4])}
    scatter = node("TensorScatter", ["cache", "rows", "at"], ["next"], axis=2)
    sum_of_it = node("ReduceSum", ["next"], ["sum"], keepdims=0)
    model = opened("m", compile_model(networks.graph_of([scatter, sum_of_it], inputs, ["next", "sum"], opset=24), "m"))
    assert model.continued == {"next": "cache"}
    cache = np.asarray(x.copy())
    made = model({**inputs, "cache": cache}, out={"next": cache})
    right = x.copy()
    right[0, :, 1:3], right[1, :, 4:6] = rows
    numpy.testing.assert_array_equal(cache, right)
    assert float(made["sum"]) == pytest.approx(rows.sum(), rel=1e-5)
    for nodes, outputs in (
        ([scatter, node("Neg", ["cache"], ["was"])], ["next", "was"]),
        ([node("Neg", ["cache"], ["was"]), node("TensorScatter", ["was", "rows", "at"], ["next"], axis=2)], ["next"]),
        ([scatter, node("Neg", ["next"], ["y"])], ["y"]),
    ):
        other = opened("m", compile_model(networks.graph_of(nodes, inputs, outputs, opset=24), "m"))
        assert other.continued == {}
        made = numpy.asarray(other(inputs)[outputs[0]])
        numpy.testing.assert_array_equal(made, right if outputs[0] == "next" else -right)


def test_what_products_of_rows_read_is_no_cache():
    """They look for their rows in the arena."""
    node = helper.make_node
    x, rows = networks.values((6, 4)), networks.values((1, 4), 1)
    nodes = [
        node("ScatterElements", ["x", "at", "rows"], ["next"], axis=0),
        node("MatMul", ["next", "w"], ["y"]),
    ]
    inputs = {"x": x, "rows": rows, "at": numpy.full((1, 4), 2)}
    data = networks.graph_of(nodes, inputs, ["next", "y"], {"w": networks.values((4, 3), 2)})
    model = opened("m", compile_model(data, "m"))
    assert model.continued == {}
    for ours, right in zip(model(inputs).values(), networks.expected(data, inputs), strict=True):
        networks.assert_close(ours, right)


def test_sizes_that_are_not_there_are_told():
    with pytest.raises(ValueError, match="no tensor of the model has the open size 'other'"):
        caches.with_capacity(decoder(), ("other",))
    with pytest.raises(ValueError, match="no GroupQueryAttention of the model has a cache"):
        caches.with_capacity(decoder(), ("batch",))
