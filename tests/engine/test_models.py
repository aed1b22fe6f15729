"""Models in the engine: against ONNX's reference on every backend, ResNet18 against ONNX Runtime, and a session's
methods."""

import threading

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from bench.networks import resnet18
from tests import networks
from tests.engine.library import backends, on_backend
from vmhost import engine
from vmhost.engine import _array, library
from vmhost.engine.models import Model
from vmhost.engine.onnx import compile_model

SMALL = compile_model(networks.small(), "small.onnx")


def opened(data):
    return Model("model", _array._model_open(data))


def agrees(model, shape, seeds=(0, 1, 2), tolerance=1e-5, by_onnx_runtime=False):
    """Every output is on every backend what ONNX's reference computes, which takes longer than they, or what ONNX
    Runtime does; `shape` is the one input's."""
    compiled = compile_model(model, "model.onnx")
    [name] = (port.name for port in opened(compiled).inputs)
    inputs = [{name: networks.values(shape, seed)} for seed in seeds]
    if by_onnx_runtime:
        expected = networks.all_by_onnx_runtime(model, inputs)
    else:
        expected = [networks.expected(model, given) for given in inputs]
    for backend in backends():
        with on_backend(backend):
            ours = opened(compiled)
            for given, outputs in zip(inputs, expected):
                answers = ours(given)
                for port, theirs in zip(ours.outputs, outputs, strict=True):
                    networks.assert_close(answers[port.name], theirs, tolerance)
                    if theirs.ndim == 2:
                        assert numpy.argmax(numpy.asarray(answers[port.name]), 1).tolist() == theirs.argmax(1).tolist()


def window(operator="Conv", shape=(1, 5, 13, 17), outputs=7, kernel=(3, 3), then=(), **attributes):
    """A model of one convolution or pool of an input x, and `then` nodes from y to z."""
    node = helper.make_node(
        operator, ["x", "w", "b"] if operator == "Conv" else ["x"], ["y"], "window", kernel_shape=kernel, **attributes
    )
    constants = (
        {
            "w": networks.values((outputs, shape[1] // attributes.get("group", 1), *kernel), 7),
            "b": networks.values((outputs,), 8),
        }
        if operator == "Conv"
        else {}
    )
    return networks.graph([node, *then], {"x": shape}, {"z" if then else "y": None}, constants)


@pytest.mark.parametrize(
    "case",
    [
        {},
        {"pads": (1, 1, 1, 1)},
        {"strides": (2, 2), "pads": (1, 1, 1, 1)},
        {"kernel": (1, 1), "outputs": 33},
        {"shape": (2, 70, 9, 9), "outputs": 70},
        {"kernel": (1, 1), "strides": (2, 2)},
        {"kernel": (5, 2), "pads": (0, 1, 2, 0), "strides": (1, 3)},
        {"dilations": (2, 3), "pads": (2, 3, 2, 3)},
        {"auto_pad": "SAME_LOWER", "strides": (2, 2)},
        {"shape": (3, 400, 4, 5), "outputs": 40, "pads": (1, 1, 1, 1)},
        {"then": (helper.make_node("Relu", ["y"], ["z"]),)},
        {"operator": "MaxPool"},
        {"operator": "MaxPool", "strides": (2, 2), "pads": (1, 1, 1, 1)},
        {"operator": "MaxPool", "strides": (2, 2), "ceil_mode": 1, "shape": (1, 3, 14, 18)},
        {"operator": "MaxPool", "kernel": (2, 3), "dilations": (2, 1)},
    ],
    ids=str,
)
def test_a_window_agrees(case):
    agrees(window(**case), case.get("shape", (1, 5, 13, 17)))


@pytest.mark.parametrize("algorithm", library.algorithms())
def test_every_algorithm_for_convolutions_agrees(algorithm):
    try:
        library.force_algorithm(algorithm)
        agrees(
            window(pads=(1, 1, 1, 1), shape=(2, 19, 10, 7), outputs=35, then=(helper.make_node("Relu", ["y"], ["z"]),)),
            (2, 19, 10, 7),
            (0,),
        )
        agrees(window(pads=(0, 1, 2, 0), shape=(1, 32, 17, 9)), (1, 32, 17, 9), (0,))
        agrees(window(kernel=(1, 1), shape=(2, 131, 7, 9), outputs=97), (2, 131, 7, 9), (0,))
        agrees(window(kernel=(1, 1), strides=(2, 2), shape=(2, 40, 7, 9), outputs=66), (2, 40, 7, 9), (0,))
        agrees(window(dilations=(2, 3), pads=(2, 3, 2, 3), strides=(2, 1)), (1, 5, 13, 17), (0,))
        agrees(networks.small(), (1, 3, 32, 32), (0,))
    finally:
        library.force_algorithm(None)


def test_an_algorithm_that_there_is_not_is_refused():
    with pytest.raises(
        library.EngineError,
        match="no algorithm 'magic'; there are direct, winograd2, winograd4, strassen, im2col, fused, apart",
    ):
        library.force_algorithm("magic")


def test_small_networks_agree_on_every_backend():
    agrees(networks.small(), (1, 3, 32, 32))
    agrees(networks.small(width=9, size=45, seed=3), (1, 3, 45, 45))


def test_resnet18_agrees_with_onnx_runtime():
    model, inputs = resnet18().SerializeToString(), [networks.values((1, 3, 224, 224), seed) for seed in range(3)]
    ours = opened(compile_model(model, "resnet18.onnx"))
    for x, theirs in zip(inputs, networks.by_onnx_runtime(model, inputs)):
        output = ours({"input": x})["output"]
        networks.assert_close(output, theirs)
        assert int(output.argmax()) == theirs.argmax()


@pytest.mark.skipif(library.threads() == 1, reason="one core: the engine has no second thread")
def test_any_number_of_threads_gives_the_same_bytes():
    model, x = opened(SMALL), networks.values((1, 3, 32, 32))
    try:
        library.set_threads(1)
        alone = model({"input": x})["output"].tobytes()
    finally:
        library.set_threads(2)
    assert model({"input": x})["output"].tobytes() == alone


def test_flattening_images_keeps_onnx_order():
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Flatten", ["r"], ["f"]),
        helper.make_node("Gemm", ["f", "w", "b"], ["y"], alpha=0.5, beta=2.0),
    ]
    agrees(
        networks.graph(
            nodes,
            {"x": (3, 4, 5, 6)},
            {"y": (3, 8)},
            {"w": networks.values((120, 8), 1), "b": networks.values((8,), 2)},
        ),
        (3, 4, 5, 6),
    )


@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(1, 9), st.integers(1, 9)),
    margin=st.sampled_from([0, 1, 2]),
    seed=st.integers(0, 9),
)
@settings(deadline=None, max_examples=25)
def test_images_come_back_from_channels_last_byte_for_byte(shape, margin, seed):
    """A window of one pixel changes nothing; a convolution beside it wants a margin around the same image."""
    window = 2 * margin + 1
    nodes = [
        helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[1, 1]),
        helper.make_node("MaxPool", ["y"], ["again"], kernel_shape=[1, 1]),
        helper.make_node("Conv", ["y", "w"], ["c"], pads=[margin] * 4),
    ]
    model = compile_model(
        networks.graph(
            nodes, {"x": shape}, {"again": None, "c": None}, {"w": numpy.ones((1, shape[1], window, window), "float32")}
        ),
        "model",
    )
    x = networks.values(shape, seed)
    for backend in backends():
        with on_backend(backend):
            assert opened(model)({"x": x})["again"].tobytes() == x.tobytes()


def test_several_outputs_and_a_value_that_two_read():
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Add", ["r", "x"], ["s"]),
        helper.make_node("Conv", ["s", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["s", "c"], ["t"]),
        helper.make_node("GlobalAveragePool", ["t"], ["g"]),
    ]
    agrees(
        networks.graph(
            nodes, {"x": (2, 4, 7, 6)}, {"s": None, "t": None, "g": None}, {"w": networks.values((4, 4, 3, 3), 1)}
        ),
        (2, 4, 7, 6),
    )


def test_ports_tell_names_dtypes_and_shapes(tmp_path):
    (tmp_path / "small.vmm").write_bytes(SMALL)
    model = engine.load(tmp_path / "small.vmm")
    assert [(port.name, str(port.dtype), port.shape) for port in (*model.inputs, *model.outputs)] == [
        ("input", "float32", (1, 3, 32, 32)),
        ("output", "float32", (1, 10)),
    ]


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ([1, 2], TypeError, "expected a mapping of names to arrays, with .*, got a list"),
        ({}, ValueError, "input 'input' is missing"),
        ({"input": networks.values((1, 3, 32, 32)), "more": 1}, ValueError, "no input 'more'"),
        (
            {"input": networks.values((1, 3, 32, 31))},
            ValueError,
            r"expected shape \(1, 3, 32, 32\), got \(1, 3, 32, 31\)",
        ),
        ({"input": numpy.zeros((1, 3, 32, 32))}, TypeError, "expected float32, got float64"),
        ({"input": None}, TypeError, "input 'input': cannot make an array element of 'NoneType'"),
        ({"input": [[1, 2], [3]]}, ValueError, "input 'input': setting an array element with a sequence"),
    ],
)
def test_a_wrong_call_says_what_was_expected(inputs, error, message):
    with pytest.raises(error, match=message):
        opened(SMALL)(inputs)


class Gives(dict):
    """A mapping that makes what it is asked for, and counts nothing."""

    def __contains__(self, name):
        return True

    def __missing__(self, name):
        return networks.values((1, 3, 32, 32))


def test_a_mapping_may_make_its_inputs():
    x = networks.values((1, 3, 32, 32))
    assert opened(SMALL)(Gives())["output"].tolist() == opened(SMALL)({"input": x})["output"].tolist()


def test_an_input_that_lies_otherwise_is_read_as_it_is():
    model, x = opened(SMALL), networks.values((1, 32, 32, 3)).transpose(0, 3, 1, 2)
    assert model({"input": engine.numpy.asarray(x.copy())})["output"].tolist() == model({"input": x})["output"].tolist()


def test_runs_at_the_same_time_do_not_meet():
    model = opened(SMALL)
    inputs = [networks.values((1, 3, 32, 32), seed) for seed in range(4)]
    alone = [model({"input": x})["output"].tobytes() for x in inputs]
    wrong = []

    def run(x, right):
        for _ in range(50):
            if model({"input": x})["output"].tobytes() != right:
                wrong.append(right)

    threads = [threading.Thread(target=run, args=pair) for pair in zip(inputs, alone)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_steady_run_allocates_its_output_only():
    model, x = opened(SMALL), engine.numpy.asarray(networks.values((1, 3, 32, 32)))
    model({"input": x})
    before = _array._statistics()["peak_bytes"]
    model({"input": x})
    assert _array._statistics()["peak_bytes"] - before <= 64
