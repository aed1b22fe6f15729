"""Networks on images: generators, segmentation, a photograph downscaled by the model itself, dense blocks."""

import numpy
from onnx import TensorProto, helper

from bench.networks import Network

MODELS = {}


def _model(function):
    MODELS[function.__name__] = function
    return function


class Images(Network):
    """A network with one input and one output."""

    def __init__(self, random, *shape, dtype="float32"):
        super().__init__("images", 1)
        self.random, self.shape, self.count = random, shape, 0
        self.x = self.input("x", shape, dtype)
        self.dtype = dtype

    def do(self, operator, *sources, **attributes):
        self.count += 1
        return self.add(operator, f"n{self.count}", *sources, **attributes)

    def numbers(self, values, dtype="float32"):
        self.count += 1
        return self.constant(f"c{self.count}", values, dtype)

    def block(self, x, channels, outputs, kernel=3, stride=1, dilation=1, active="Relu", norm=True):
        """A convolution, batch normalization and an activation."""
        weights = self.random.standard_normal((outputs, channels, kernel, kernel)) * (2 / channels / kernel**2) ** 0.5
        x = self.do(
            "Conv",
            x,
            self.numbers(weights),
            kernel_shape=[kernel] * 2,
            strides=[stride] * 2,
            dilations=[dilation] * 2,
            pads=[kernel // 2 * dilation] * 4,
        )
        return self.ended(x, outputs, active, norm)

    def transposed(self, x, channels, outputs, kernel=4, stride=2, pad=1, more=0, active="Relu"):
        weights = self.random.standard_normal((channels, outputs, kernel, kernel))
        weights *= (2 * stride**2 / channels / kernel**2) ** 0.5
        sizes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4}
        x = self.do("ConvTranspose", x, self.numbers(weights), output_padding=[more] * 2, **sizes)
        return self.ended(x, outputs, active, active == "Relu")

    def ended(self, x, channels, active="Relu", norm=True):
        if norm:
            self.count += 1
            x = self.normalization(f"n{self.count}", x, channels)
        return self.do(active, x) if active else x

    def resized(self, x, scale=None, sizes=None, how="linear", where="half_pixel"):
        target = [self.numbers([1, 1, scale, scale])] if scale else ["", self.numbers([1, 3, *sizes], "int64")]
        return self.do("Resize", x, "", *target, mode=how, coordinate_transformation_mode=where)

    def done(self, x):
        self.nodes[-1].output[0] = "y"
        self.outputs.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, list("nchw")))
        if self.dtype == "uint8":
            given = self.random.integers(0, 256, self.shape).astype("uint8")
        else:
            given = self.random.standard_normal(self.shape).astype(self.dtype)
        return self.model(), {"x": given}


@_model
def dcgan(random, width=64):
    """The generator of DCGAN (Radford et al., 2016), 64x64."""
    net = Images(random, 1, 100, 1, 1)
    x = net.transposed(net.x, 100, 8 * width, stride=1, pad=0)
    for channels in (8 * width, 4 * width, 2 * width):
        x = net.transposed(x, channels, channels // 2)
    return net.done(net.transposed(x, width, 3, active="Tanh"))


@_model
def autoencoder(random, size=128):
    net = Images(random, 1, 3, size, size)
    x, widths = net.x, (3, 32, 64, 128)
    for channels, outputs in zip(widths, widths[1:]):
        x = net.block(x, channels, outputs, stride=2)
    for channels, outputs in zip(widths[:1:-1], widths[-2:0:-1]):
        x = net.transposed(x, channels, outputs, 3, 2, 1, 1)
    return net.done(net.transposed(x, widths[1], 3, 3, 2, 1, 1, active="Sigmoid"))


@_model
def deeplab_head(random, channels=512, width=256, size=16):
    """The head of DeepLabV3 (Chen et al., 2017) on a backbone's features: dilations up to 36."""
    net = Images(random, 1, channels, size, size)
    parts = [net.block(net.x, channels, width, 1)]
    parts += [net.block(net.x, channels, width, dilation=dilation) for dilation in (12, 24, 36)]
    pooled = net.block(net.do("GlobalAveragePool", net.x), channels, width, 1)
    parts.append(net.do("Resize", pooled, "", net.numbers([1, 1, size, size]), mode="nearest"))
    x = net.block(net.do("Concat", *parts, axis=1), 5 * width, width, 1)
    x = net.block(net.block(x, width, width), width, 21, 1, active=None, norm=False)
    return net.done(net.resized(x, 8))


@_model
def unet(random, size=128, width=32):
    """With bilinear resizing, as the common PyTorch version."""
    net = Images(random, 1, 3, size, size)
    x, kept, channels = net.x, [], 3
    for level in range(4):
        outputs = min(width << level, 4 * width)
        x = net.block(net.block(x, channels, outputs), outputs, outputs)
        kept.append((x, outputs))
        x, channels = net.do("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), outputs
    x = net.block(x, channels, channels)
    for other, outputs in reversed(kept):
        x = net.do("Concat", other, net.resized(x, 2, where="align_corners"), axis=1)
        x = net.block(net.block(x, channels + outputs, outputs), outputs, max(outputs // 2, width))
        channels = max(outputs // 2, width)
    return net.done(net.block(x, channels, 2, 1, active=None, norm=False))


@_model
def photograph(random, height=480, width=640, size=224):
    """Camera bytes, resized and normalized by the model, and a few layers."""
    net = Images(random, 1, height, width, 3, dtype="uint8")
    x = net.do("Transpose", net.do("Cast", net.x, to=TensorProto.FLOAT), perm=[0, 3, 1, 2])
    x = net.resized(x, sizes=(size, size))
    x = net.do("Div", net.do("Sub", x, net.numbers(numpy.full((3, 1, 1), 120))), net.numbers(numpy.full((3, 1, 1), 58)))
    x = net.block(net.block(x, 3, 16, stride=2), 16, 32, stride=2)
    return net.done(net.do("GlobalAveragePool", net.block(x, 32, 64, stride=2)))


@_model
def densenet(random, size=112, blocks=(6, 12, 24), growth=32):
    """DenseNet (Huang et al., CVPR '17) without its last block."""
    net = Images(random, 1, 3, size, size)
    x, channels = net.do("MaxPool", net.block(net.x, 3, 64, 7, 2), kernel_shape=[2, 2], strides=[2, 2]), 64
    for count in blocks:
        parts = [x]
        for _ in range(count):
            y = net.do("Concat", *parts, axis=1) if len(parts) > 1 else x
            y = net.block(net.ended(y, channels), channels, 4 * growth, 1)
            parts.append(net.block(y, 4 * growth, growth, active=None, norm=False))
            channels += growth
        x = net.block(
            net.ended(net.do("Concat", *parts, axis=1), channels), channels, channels // 2, 1, 1, 1, None, False
        )
        x, channels = net.do("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2]), channels // 2
    return net.done(net.do("GlobalAveragePool", x))


SMALL = {
    "dcgan": {"width": 4},
    "autoencoder": {"size": 24},
    "deeplab_head": {"channels": 16, "width": 8},
    "unet": {"size": 32, "width": 4},
    "photograph": {"height": 48, "width": 64, "size": 30},
    "densenet": {"size": 32, "blocks": (2, 3), "growth": 4},
}
