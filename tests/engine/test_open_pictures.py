"""Images of any height and width: strides, pools that round either way, padding that follows the size, interpolation.
They give ONNX Runtime's answers, at sizes of every remainder."""

import numpy
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.engine.library import backends, on_backend
from tests.engine.test_other_models import assert_same, by_onnx_runtime
from vmhost.engine.models import opened
from vmhost.engine.onnx import compile_model, open_sizes

SIZES = [(224, 224), (97, 131), (64, 33), (33, 64), (50, 39), (32, 34)]


class Layers:
    """The model of a network on images [batch, 3, height, width]."""

    def __init__(self):
        self.nodes, self.constants, self.random = [], [], numpy.random.default_rng(5)

    def numbers(self, values):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(numpy.asarray(values), name))
        return name

    def do(self, op, *names, **attributes):
        self.nodes.append(helper.make_node(op, names, [f"n{len(self.nodes)}"], **attributes))
        return f"n{len(self.nodes) - 1}"

    def weights(self, *shape):
        return self.numbers((self.random.standard_normal(shape) * (2 / numpy.prod(shape[1:])) ** 0.5).astype("float32"))

    def model(self, made, batch="batch"):
        self.nodes.append(helper.make_node("Identity", [made], ["y"]))
        ports = [("x", [batch, 3, "height", "width"]), ("y", ["n", "c", "h", "w"])]
        ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in ports]
        graph = helper.make_graph(self.nodes, "pictures", ports[:1], ports[1:], self.constants)
        opsets = [helper.make_opsetid("", 18)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


def reduced(layers, ceil=0, padding=None):
    """To a sixteenth."""
    border = {"auto_pad": padding} if padding else {"pads": [3, 3, 3, 3]}
    x = layers.do("Relu", layers.do("Conv", "x", layers.weights(16, 3, 7, 7), strides=[2, 2], **border))
    border = {"auto_pad": padding} if padding else {"pads": [1, 1, 1, 1], "ceil_mode": ceil}
    x = layers.do("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], **border)
    x = layers.do("Relu", layers.do("Conv", x, layers.weights(32, 16, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1]))
    x = layers.do("Add", x, layers.do("Conv", x, layers.weights(32, 32, 3, 3), pads=[1, 1, 1, 1]))
    x = layers.do("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=ceil)
    return layers.do("Conv", x, layers.weights(5, 32, 1, 1))


def plain():
    layers = Layers()
    return layers.model(reduced(layers))


def rounded_up():
    layers = Layers()
    return layers.model(reduced(layers, ceil=1))


def padded(how):
    layers = Layers()
    return layers.model(reduced(layers, padding=how))


def enlarged(mode, where, factor):
    layers = Layers()
    scale = layers.numbers(numpy.array([1, 1, factor, factor], "float32"))
    made = layers.do("Resize", reduced(layers), "", scale, mode=mode, coordinate_transformation_mode=where)
    return layers.model(made, batch=1)


def as_before(mode, where):
    """Back to the size of x, as segmentation networks do."""
    layers = Layers()
    made, shape = reduced(layers), layers.do("Shape", "x")
    sides = layers.do("Slice", shape, layers.numbers([2]), layers.numbers([4]))
    sizes = layers.do("Concat", layers.numbers([1, 5]), sides, axis=0)
    return layers.model(layers.do("Resize", made, "", "", sizes, mode=mode, coordinate_transformation_mode=where), 1)


def scaled():
    """A head that weighs channels by their means, and a transposed convolution."""
    layers = Layers()
    x = reduced(layers)
    weighed = layers.do("Mul", x, layers.do("Sigmoid", layers.do("GlobalAveragePool", x)))
    return layers.model(layers.do("ConvTranspose", weighed, layers.weights(5, 4, 2, 2), strides=[2, 2]))


MODELS = {
    "plain": plain,
    "rounded up": rounded_up,
    "same upper": lambda: padded("SAME_UPPER"),
    "same lower": lambda: padded("SAME_LOWER"),
    "twice": lambda: enlarged("linear", "half_pixel", 2),
    "twice by corners": lambda: enlarged("linear", "align_corners", 2),
    "each twice": lambda: enlarged("nearest", "asymmetric", 2),
    "by five halves": lambda: enlarged("linear", "asymmetric", 2.5),
    "as before": lambda: as_before("linear", "half_pixel"),
    "as before by corners": lambda: as_before("linear", "align_corners"),
    "nearest as before": lambda: as_before("nearest", "half_pixel"),
    "scaled": scaled,
}


def picture(size):
    return {"x": numpy.random.default_rng(sum(size)).standard_normal((1, 3, *size)).astype("float32")}


@pytest.fixture(scope="module")
def expected():
    made = {name: make() for name, make in MODELS.items()}
    asked = {f"{name} {size}": (data, picture(size)) for name, data in made.items() for size in SIZES}
    return made, by_onnx_runtime(asked)


@pytest.mark.parametrize("name", MODELS)
def test_every_size_gives_what_onnx_runtime_answers(expected, name):
    compiled = compile_model(expected[0][name], name)
    for backend in backends():
        with on_backend(backend):
            model = opened(name, compiled)
            assert model.inputs[0].shape[2:] == ("height", "width")
            for size in SIZES:
                [(_, theirs)] = expected[1][f"{name} {size}"]
                assert_same(model(picture(size))["y"], theirs, 2e-5)


def test_outputs_say_how_they_follow_from_the_sizes():
    assert opened("plain", compile_model(plain(), "plain")).outputs[0].shape[2:] == (
        "(height + 7) // 16",
        "(width + 7) // 16",
    )


def test_a_size_that_is_too_small_is_the_callers_error():
    model = opened("plain", compile_model(plain(), "plain"))
    with pytest.raises(ValueError, match="this model does not work at batch = 1, height = 1, width = 224"):
        model(picture((1, 224)))
    assert numpy.asarray(model(picture((224, 224)))["y"]).shape == (1, 5, 14, 14)


def test_algorithms_are_those_of_a_usual_size():
    """Not the choices for an image of one pixel: Winograd's squares need more."""
    layers = Layers()
    x = layers.do("Conv", "x", layers.weights(64, 3, 3, 3), pads=[1, 1, 1, 1])
    data = layers.model(layers.do("Conv", x, layers.weights(64, 64, 3, 3), pads=[1, 1, 1, 1]))
    model = opened("wide", compile_model(data, "wide"), search="fixed")
    assert any("winograd" in step.algorithm for step in model.steps), model.steps


@pytest.mark.parametrize(
    ("open_axes", "sides"),
    [({2, 3}, {2, 3}), ({1, 2}, {1, 2}), ({0, 1, 2, 3}, {2, 3}), ({0, 3}, set()), ({1, 3}, set())],
)
def test_an_open_count_of_channels_is_no_side(open_axes, sides):
    """A network prepared for 224 channels, of sides of 224, once took gigabytes."""
    port = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None] * 4)
    model = helper.make_model(helper.make_graph([], "picture", [port], []))
    named = {("x", axis): f"size {axis}" for axis in open_axes}
    assert open_sizes._pictures(model, named) == {f"size {axis}" for axis in sides}


def test_attention_of_all_pixels_to_all_pixels():
    """At the 224 x 224 pixels that models are prepared for it would take 161 G elements; opening once failed."""
    rows = numpy_helper.from_array(numpy.array([4, -1]), "rows")
    nodes = [
        helper.make_node("Reshape", ["x", "rows"], ["flat"]),
        helper.make_node("Transpose", ["flat"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["turned", "flat"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"]),
        helper.make_node("MatMul", ["weights", "turned"], ["y"]),
    ]
    ports = [("x", [4, "height", "width", 8]), ("y", ["n", 4])]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in ports]
    graph = helper.make_graph(nodes, "pixels", ports[:1], ports[1:], [rows])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    x = numpy.random.default_rng(5).standard_normal((4, 9, 3, 8)).astype("float32")
    flat = x.reshape(4, -1)
    weights = numpy.exp(flat.T @ flat)
    weights /= weights.sum(axis=1, keepdims=True)
    found = opened("pixels", compile_model(model.SerializeToString(), "pixels"))({"x": x})["y"]
    numpy.testing.assert_allclose(found, weights @ flat.T, rtol=1e-4, atol=1e-5)
