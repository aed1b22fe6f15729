"""Decoders with weights of 16, 8 and 4 bits, and recommenders."""

import numpy
from onnx import TensorProto, helper, numpy_helper

TOLERANCE = 1e-2  # of float16
MODELS = {}


def _model(function):
    MODELS[function.__name__] = function
    return function


class Graph:
    def __init__(self, random):
        self.random, self.nodes, self.constants = random, [], []

    def do(self, op, *inputs, **attributes):
        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        return name

    def constant(self, values, dtype):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(numpy.asarray(values, dtype), name))
        return name

    def done(self, given, result, dtype):
        self.nodes[-1].output[0] = "y"
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in given.items()
        ]
        output = helper.make_tensor_value_info("y", dtype, result)
        graph = helper.make_graph(self.nodes, "texts", inputs, [output], self.constants)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8), given


def _decoder(random, tokens, layers, width, heads, dtype, product, kind):
    """Layers of a decoder without a mask, on `tokens` vectors; `product(graph, x, inputs, outputs)` multiplies."""
    net, each = Graph(random), width // heads
    x = "x"
    for _ in range(layers):

        def normal(source):
            scale = net.do("Mul", source, source)
            scale = net.do("ReduceMean", scale, axes=[-1])
            scale = net.do("Sqrt", net.do("Add", scale, net.constant(1e-3, dtype)))
            return net.do("Mul", net.do("Div", source, scale), net.constant(numpy.ones(width), dtype))

        def head(source, order):
            parts = product(net, source, width, width)
            parts = net.do("Reshape", parts, net.constant([1, tokens, heads, each], "int64"))
            return net.do("Transpose", parts, perm=order)

        y = normal(x)
        scores = net.do("MatMul", head(y, [0, 2, 1, 3]), head(y, [0, 2, 3, 1]))
        scores = net.do("Softmax", net.do("Mul", scores, net.constant(each**-0.5, dtype)), axis=-1)
        mixed = net.do("Transpose", net.do("MatMul", scores, head(y, [0, 2, 1, 3])), perm=[0, 2, 1, 3])
        mixed = net.do("Reshape", mixed, net.constant([1, tokens, width], "int64"))
        x = net.do("Add", x, product(net, mixed, width, width))
        y = normal(x)
        gate = product(net, y, width, 3 * width)
        gate = net.do("Mul", gate, net.do("Sigmoid", gate))
        y = product(net, net.do("Mul", gate, product(net, y, width, 3 * width)), 3 * width, width)
        x = net.do("Add", x, y)
    given = {"x": random.standard_normal((1, tokens, width)).astype(dtype)}
    return net.done(given, [1, tokens, width], kind)


def _half(net, x, inputs, outputs):
    return net.do("MatMul", x, net.constant(net.random.standard_normal((inputs, outputs)) / inputs**0.5, "float16"))


@_model
def decoder_float16(random, tokens=32, layers=2, width=512):
    return _decoder(random, tokens, layers, width, 8, "float16", _half, TensorProto.FLOAT16)


@_model
def decoder_float16_token(random, layers=2, width=512):
    return decoder_float16(random, 1, layers, width)


def _few_bits(bits, block=32):
    def product(net, x, inputs, outputs):
        blocks = inputs // block
        packed = net.random.integers(0, 256, (outputs, blocks, block * bits // 8))
        scales = net.random.uniform(0.5, 1.0, outputs * blocks) / inputs**0.5 / 2 ** (bits - 2)
        return net.do(
            "MatMulNBits",
            x,
            net.constant(packed, "uint8"),
            net.constant(scales, "float32"),
            domain="com.microsoft",
            K=inputs,
            N=outputs,
            bits=bits,
            block_size=block,
        )

    return product


@_model
def decoder_4_bits(random, tokens=1, layers=2, width=1024):
    return _decoder(random, tokens, layers, width, 8, "float32", _few_bits(4), TensorProto.FLOAT)


@_model
def decoder_8_bits(random, tokens=1, layers=2, width=1024):
    return _decoder(random, tokens, layers, width, 8, "float32", _few_bits(8), TensorProto.FLOAT)


@_model
def decoder_4_bits_prompt(random, tokens=32, layers=2, width=1024):
    return decoder_4_bits(random, tokens, layers, width)


@_model
def xdeepfm(random, rows=32, fields=26, width=16, maps=(64, 64)):
    """The interactions of xDeepFM (Lian et al., KDD '18), as einsum."""
    net = Graph(random)
    x, channels, parts = "x", fields, []
    for count in maps:
        products = net.do("Einsum", x, "x", equation="bhd,bmd->bhmd") if x != "x" else None
        products = products or net.do("Einsum", "x", "x", equation="bhd,bmd->bhmd")
        weights = random.standard_normal((count, channels, fields)) / (channels * fields) ** 0.5
        x = net.do("Relu", net.do("Einsum", products, net.constant(weights, "float32"), equation="bhmd,ohm->bod"))
        parts.append(net.do("ReduceSum", x, net.constant([2], "int64"), keepdims=0))
        channels = count
    joined = net.do("Concat", *parts, axis=1)
    net.do("MatMul", joined, net.constant(random.standard_normal((sum(maps), 1)), "float32"))
    return net.done({"x": random.standard_normal((rows, fields, width), "float32")}, [rows, 1], TensorProto.FLOAT)


SMALL = {
    "decoder_float16": {"tokens": 5, "layers": 1, "width": 64},
    "decoder_float16_token": {"layers": 1, "width": 64},
    "decoder_4_bits": {"layers": 1, "width": 64},
    "decoder_8_bits": {"layers": 1, "width": 64},
    "decoder_4_bits_prompt": {"tokens": 5, "layers": 1, "width": 64},
    "xdeepfm": {"rows": 3, "fields": 5, "maps": (6, 4)},
}
