"""Object detection, image sampling at computed places, and speech: results whose size depends on values, regions,
grids, frames, and images of any height and width."""

import numpy
from onnx import TensorProto, helper

from bench.other_models.images import Images

MODELS = {}


def _model(function):
    MODELS[function.__name__] = function
    return function


def _ended(net, outputs, given):
    """`outputs`: the model's output names to names in the graph, element types and ranks."""
    for name, (made, kind, rank) in outputs.items():
        net.nodes.append(helper.make_node("Identity", [made], [name]))
        net.outputs.append(helper.make_tensor_value_info(name, kind, [f"{name}{d}" for d in range(rank)]))
    model = net.model()
    model.opset_import[0].version = 20
    return model, given


def _picture(random, *shape):
    return {"x": random.standard_normal(shape).astype("float32")}


def _linear(net, x, inputs, outputs, active="Relu"):
    weights = net.numbers(net.random.standard_normal((inputs, outputs)) / inputs**0.5)
    made = net.do("Gemm", x, weights, net.numbers(net.random.normal(0, 0.1, outputs)))
    return net.do(active, made) if active else made


@_model
def ssd(random, size=256, width=32, classes=8, most=50):
    """One level of a single-shot detector (Liu et al., ECCV '16): boxes and scores of each place, suppression, and the
    remaining boxes with their scores."""
    net = Images(random, 1, 3, size, size)
    x, channels = net.x, 3
    for level in range(4):
        x, channels = net.block(x, channels, width << level, stride=2), width << level
    side, anchors = size // 16, 3
    count = side * side * anchors
    place = net.numbers([1, -1, 4], "int64")
    moves = net.do("Transpose", net.block(x, channels, anchors * 4, active=None, norm=False), perm=[0, 2, 3, 1])
    moves = net.do("Mul", net.do("Tanh", net.do("Reshape", moves, place)), net.numbers(0.02))
    middles = net.random.uniform(0.1, 0.9, (1, count, 2))
    boxes = numpy.concatenate([middles - 0.06, middles + 0.06], 2)
    boxes = net.do("Add", moves, net.numbers(boxes))
    marks = net.do("Transpose", net.block(x, channels, anchors * classes, active=None, norm=False), perm=[0, 2, 3, 1])
    marks = net.do("Softmax", net.do("Reshape", marks, net.numbers([1, -1, classes], "int64")), axis=-1)
    turned = net.do("Transpose", marks, perm=[0, 2, 1])
    bounds = [net.numbers([most], "int64"), net.numbers([0.5]), net.numbers([1.5 / classes])]
    chosen = net.do("NonMaxSuppression", boxes, turned, *bounds)
    column = net.do("Gather", chosen, net.numbers(2, "int64"), axis=1)
    kept = net.do("Gather", net.do("Squeeze", boxes, net.numbers([0], "int64")), column, axis=0)
    scores = net.do("GatherND", turned, chosen)
    outputs = {
        "boxes": (kept, TensorProto.FLOAT, 2),
        "scores": (scores, TensorProto.FLOAT, 1),
        "classes": (net.do("Gather", chosen, net.numbers(1, "int64"), axis=1), TensorProto.INT64, 1),
    }
    return _ended(net, outputs, _picture(random, 1, 3, size, size))


@_model
def region_head(random, channels=256, side=50, regions=100, width=1024):
    """The head of Faster R-CNN (Ren et al., NeurIPS '15) with RoIAlign, for one level of features and its regions."""
    net = Images(random, 1, channels, side, side)
    images = net.numbers(numpy.zeros(regions), "int64")
    corners = random.uniform(0, side * 12, (regions, 2))
    boxes = net.numbers(numpy.concatenate([corners, corners + random.uniform(16, side * 4, (regions, 2))], 1))
    aligned = net.do(
        "RoiAlign", net.x, boxes, images, output_height=7, output_width=7, sampling_ratio=2, spatial_scale=0.0625
    )
    x = _linear(net, net.do("Flatten", aligned), channels * 49, width)
    x = _linear(net, x, width, width)
    scores, moves = net.do("Softmax", _linear(net, x, width, 91, None), axis=-1), _linear(net, x, width, 364, None)
    outputs = {"scores": (scores, TensorProto.FLOAT, 2), "moves": (moves, TensorProto.FLOAT, 2)}
    return _ended(net, outputs, _picture(random, 1, channels, side, side))


@_model
def spatial_transformer(random, size=96, width=32):
    """A network that rotates its image first (Jaderberg et al., NeurIPS '15)."""
    net = Images(random, 4, 3, size, size)
    x = net.block(net.block(net.x, 3, width, 5, 2), width, width, stride=2)
    flat = net.do("Flatten", net.do("GlobalAveragePool", x))
    theta = net.do("Tanh", _linear(net, _linear(net, flat, width, 32), 32, 6, None))
    theta = net.do("Add", net.do("Mul", theta, net.numbers(0.3)), net.numbers([1, 0, 0, 0, 1, 0]))
    theta = net.do("Reshape", theta, net.numbers([4, 2, 3], "int64"))
    grid = net.do("AffineGrid", theta, net.numbers([4, 3, size, size], "int64"), align_corners=0)
    x = net.do("GridSample", net.x, grid, mode="linear", padding_mode="border")
    x = net.block(net.block(x, 3, width, stride=2), width, width, stride=2)
    x = net.do("GridSample", x, net.do("AffineGrid", theta, net.numbers([4, width, 12, 12], "int64")), mode="linear")
    outputs = {"y": (net.do("GlobalAveragePool", x), TensorProto.FLOAT, 4)}
    return _ended(net, outputs, _picture(random, 4, 3, size, size))


@_model
def speech_features(random, length=16000, frame=400, step=160, bins=80):
    """A second of sound to log-Mel bands, as at the start of speech recognizers, and a convolution."""
    net = Images(random, 1, length, 1)
    window = net.numbers(numpy.hanning(frame))
    spectrum = net.do("STFT", net.x, net.numbers(step, "int64"), window)
    power = net.do("ReduceSumSquare", spectrum, net.numbers([-1], "int64"), keepdims=0)
    numbers = [net.numbers(n, kind) for n, kind in ((bins, "int64"), (frame, "int64"), (16000, "int64"))]
    edges = [net.numbers(20.0), net.numbers(7600.0)]
    bands = net.do("MatMul", power, net.do("MelWeightMatrix", *numbers, *edges))
    logarithms = net.do("Log", net.do("Max", bands, net.numbers(1e-6)))
    turned = net.do("Transpose", logarithms, perm=[0, 2, 1])
    weights = net.numbers(random.standard_normal((64, bins, 3)) / (3 * bins) ** 0.5)
    x = net.do("Relu", net.do("Conv", turned, weights, strides=[2], pads=[1, 1]))
    return _ended(net, {"y": (x, TensorProto.FLOAT, 3)}, _picture(random, 1, length, 1))


@_model
def any_size(random, height=200, width=304, channels=24):
    """A segmentation network with open height and width: strides, and upsampling to the image's own size."""
    net = Images(random, 1, 3, "height", "width")
    x, wide = net.x, 3
    for level in range(4):
        x, wide = net.block(x, wide, channels << level, stride=2), channels << level
    x = net.do("Add", x, net.block(x, wide, wide))
    x = net.block(x, wide, 5, 1, active=None, norm=False)
    shape = net.do("Shape", net.x)
    sides = net.do("Slice", shape, net.numbers([2], "int64"), net.numbers([4], "int64"))
    sizes = net.do("Concat", net.numbers([1, 5], "int64"), sides, axis=0)
    x = net.do("Resize", x, "", "", sizes, mode="linear", coordinate_transformation_mode="half_pixel")
    return _ended(net, {"y": (x, TensorProto.FLOAT, 4)}, _picture(random, 1, 3, height, width))


@_model
def super_resolution(random, height=128, width=96):
    """ESPCN (Shi et al., CVPR '16) of any height and width."""
    net = Images(random, 1, 3, "height", "width")
    x = net.block(net.block(net.x, 3, 64, 5, active="Tanh", norm=False), 64, 32, active="Tanh", norm=False)
    x = net.block(x, 32, 27, active=None, norm=False)
    x = net.do("DepthToSpace", x, blocksize=3, mode="CRD")
    return _ended(net, {"y": (x, TensorProto.FLOAT, 4)}, _picture(random, 1, 3, height, width))


SMALL = {
    "ssd": {"size": 64, "width": 4, "classes": 3, "most": 5},
    "region_head": {"channels": 8, "side": 12, "regions": 6, "width": 16},
    "spatial_transformer": {"size": 32, "width": 4},
    "speech_features": {"length": 2000, "bins": 12},
    "any_size": {"height": 50, "width": 39, "channels": 4},
    "super_resolution": {"height": 20, "width": 33},
}
