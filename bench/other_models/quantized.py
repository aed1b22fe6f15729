"""8-bit networks, as written by ONNX Runtime's tool (QDQ): activations uint8, weights int8 with a scale per output.
Scales follow from the distribution of the weights: a layer's output has a variance of about 1."""

import numpy
from onnx import TensorProto, helper, numpy_helper

TOLERANCE = 0.05  # of answers: rounding steps differ where sums are between two numbers
REACH = 4.0  # range of an activation's numbers, in standard deviations
MODELS = {}


def _model(function):
    MODELS[function.__name__] = function
    return function


class Bytes:
    """A network, built layer by layer. Tensors are (name, mean square, scale, zero point)."""

    def __init__(self, random, shape):
        self.random, self.nodes, self.constants = random, [], []
        self.input = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
        self.first = self._quantized("x", 1.0, -REACH, REACH)

    def _constant(self, name, values, dtype):
        self.constants.append(numpy_helper.from_array(numpy.asarray(values, dtype), name))
        return name

    def _node(self, op, inputs, **attributes):
        name = f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def _quantized(self, name, squares, low, high):
        scale = numpy.float32((high - low) / 255)
        zero = numpy.uint8(round(-low / scale))
        numbers = [self._constant(f"{name}.scale", scale, "float32"), self._constant(f"{name}.zero", zero, "uint8")]
        made = self._node("QuantizeLinear", [name, *numbers])
        return self._node("DequantizeLinear", [made, *numbers]), squares

    def _ended(self, name, squares, bound):
        """An activation up to `bound` (None: no activation), quantized."""
        reach = REACH * squares**0.5
        if bound is None:
            return self._quantized(name, squares, -reach, reach)
        if bound == 6:
            limits = [self._constant(f"{name}.{end}", value, "float32") for end, value in (("low", 0), ("high", 6))]
            made = self._node("Clip", [name, *limits])
        else:
            made = self._node("Relu", [name])
        return self._quantized(made, squares / 2, 0.0, min(bound, reach))

    def _weights(self, shape, squares):
        name, inputs = f"w{len(self.nodes)}", int(numpy.prod(shape[1:]))
        scales = numpy.full(shape[0], REACH / 127 / (inputs * squares) ** 0.5, "float32")
        whole = numpy.clip(numpy.rint(self.random.standard_normal(shape) * 127 / REACH), -127, 127)
        numbers = [
            self._constant(f"{name}.scale", scales, "float32"),
            self._constant(f"{name}.zero", numpy.zeros(shape[0]), "int8"),
        ]
        return self._node("DequantizeLinear", [self._constant(name, whole, "int8"), *numbers], axis=0)

    def convolution(self, x, channels, outputs, kernel, stride=1, groups=1, bound=numpy.inf):
        name, squares = x
        weights = self._weights((outputs, channels // groups, kernel, kernel), squares)
        bias = self._constant(f"{weights}.bias", self.random.normal(0, 0.1, outputs), "float32")
        sizes = {"strides": [stride] * 2, "pads": [kernel // 2] * 4, "kernel_shape": [kernel] * 2, "group": groups}
        return self._ended(self._node("Conv", [name, weights, bias], **sizes), 1.0, bound)

    def add(self, x, y, bound=None):
        return self._ended(self._node("Add", [x[0], y[0]]), x[1] + y[1], bound)

    def pool(self, x):
        name = self._node("MaxPool", [x[0]], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
        return self._quantized(name, x[1] * 2, 0.0, REACH)

    def classified(self, x, channels, classes=1000):
        mean = self._quantized(self._node("GlobalAveragePool", [x[0]]), x[1], 0.0, REACH)
        flat = self._node("Flatten", [mean[0]])
        weights = self._weights((classes, channels), mean[1])
        bias = self._constant("classes.bias", self.random.normal(0, 0.1, classes), "float32")
        self.nodes.append(helper.make_node("Gemm", [flat, weights, bias], ["y"], transB=1))
        output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, classes])
        graph = helper.make_graph(self.nodes, "bytes", [self.input], [output], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _image(random, size):
    return {"x": random.standard_normal((1, 3, size, size), "float32")}


@_model
def resnet50(random, size=224, blocks=(3, 4, 6, 3), width=64):
    net = Bytes(random, [1, 3, size, size])
    x = net.pool(net.convolution(net.first, 3, width, 7, 2))
    channels = width
    for stage, count in enumerate(blocks):
        inner = width << stage
        for block in range(count):
            stride = 2 if stage > 0 and block == 0 else 1
            y = net.convolution(x, channels, inner, 1)
            y = net.convolution(y, inner, inner, 3, stride)
            y = net.convolution(y, inner, 4 * inner, 1, bound=None)
            if block == 0:
                x = net.convolution(x, channels, 4 * inner, 1, stride, bound=None)
            x, channels = net.add(x, y, bound=numpy.inf), 4 * inner
    return net.classified(x, channels), _image(random, size)


# For each stage: expansion, channels, blocks, stride.
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


@_model
def mobilenet_v2(random, size=224, stages=STAGES, last=1280):
    net = Bytes(random, [1, 3, size, size])
    x, channels = net.convolution(net.first, 3, 32, 3, 2, bound=6), 32
    for expansion, outputs, count, first in stages:
        for block in range(count):
            stride, inner = first if block == 0 else 1, channels * expansion
            y = x if expansion == 1 else net.convolution(x, channels, inner, 1, bound=6)
            y = net.convolution(y, inner, inner, 3, stride, inner, bound=6)
            y = net.convolution(y, inner, outputs, 1, bound=None)
            x = net.add(x, y) if stride == 1 and channels == outputs else y
            channels = outputs
    return net.classified(net.convolution(x, channels, last, 1, bound=6), last), _image(random, size)


SMALL = {
    "resnet50": {"size": 32, "blocks": (1, 1), "width": 16},
    "mobilenet_v2": {"size": 40, "stages": STAGES[:3], "last": 40},
}
