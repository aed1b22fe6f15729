"""The networks that models are measured with: true architectures, random weights, the same ones for the same seed. Needs `onnx`.

    python -m bench.networks resnet18 OUT.onnx

Weights are drawn so that values neither vanish nor grow from layer to layer; batch normalization has statistics of its own, not the
neutral ones, so that folding it is work.
"""

import sys

import numpy
from onnx import TensorProto, helper, numpy_helper, save

OPSET = 17


class Network:
    """An ONNX graph that grows by one layer at a time; each method gives the name of what the layer makes."""

    def __init__(self, name, seed):
        self.name, self.random = name, numpy.random.default_rng(seed)
        self.nodes, self.constants, self.inputs, self.outputs = [], [], [], []

    def input(self, name, shape):
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        return name

    def output(self, source, name, shape):
        self.nodes[-1].output[0] = name
        self.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def add(self, operator, name, *sources, **attributes):
        self.nodes.append(helper.make_node(operator, sources, [name], name, **attributes))
        return name

    def constant(self, name, values):
        self.constants.append(numpy_helper.from_array(values.astype("float32"), name))
        return name

    def convolution(self, name, source, channels, outputs, kernel, stride=1, groups=1):
        weights = self.random.standard_normal((outputs, channels // groups, kernel, kernel))
        weights *= (2 / (channels // groups * kernel * kernel)) ** 0.5
        return self.add("Conv", name, source, self.constant(f"{name}.weight", weights), kernel_shape=[kernel, kernel],
                        strides=[stride, stride], pads=[kernel // 2] * 4, group=groups)

    def normalization(self, name, source, channels):
        parameters = {
            "weight": self.random.uniform(0.5, 1.0, channels), "bias": self.random.normal(0, 0.1, channels),
            "mean": self.random.normal(0, 0.1, channels), "variance": self.random.uniform(0.8, 1.2, channels),
        }
        return self.add("BatchNormalization", name, source, *(self.constant(f"{name}.{key}", value) for key, value in parameters.items()))

    def relu(self, name, source):
        return self.add("Relu", name, source)

    def classifier(self, source, channels, classes):
        pooled = self.add("GlobalAveragePool", "pool", source)
        flat = self.add("Flatten", "flatten", pooled, axis=1)
        weights = self.random.standard_normal((classes, channels)) / channels ** 0.5
        return self.add("Gemm", "classifier", flat, self.constant("classifier.weight", weights),
                        self.constant("classifier.bias", self.random.normal(0, 0.1, classes)), transB=1)

    def model(self):
        graph = helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8, producer_name="vmhost")


def resnet18(size=224, width=64, classes=1000, seed=1):
    """ResNet18 (He et al., CVPR '16) on a 1x3x`size`x`size` image; smaller ones of the same form for tests."""
    net = Network("resnet18", seed)

    def normalized(name, source, channels, outputs, kernel, stride=1):
        return net.normalization(f"{name}.norm", net.convolution(name, source, channels, outputs, kernel, stride), outputs)

    x = net.relu("stem.relu", normalized("stem", net.input("input", [1, 3, size, size]), 3, width, 7, 2))
    x = net.add("MaxPool", "stem.pool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = width
    for stage in range(4):
        for block in range(2):
            outputs, stride = width << stage, 2 if stage > 0 and block == 0 else 1
            name = f"stage{stage + 1}.block{block + 1}"
            y = net.relu(f"{name}.relu1", normalized(f"{name}.conv1", x, channels, outputs, 3, stride))
            y = normalized(f"{name}.conv2", y, outputs, outputs, 3)
            if stride != 1 or channels != outputs:
                x = normalized(f"{name}.shortcut", x, channels, outputs, 1, stride)
            x = net.relu(f"{name}.relu2", net.add("Add", f"{name}.add", y, x))
            channels = outputs
    net.output(net.classifier(x, channels, classes), "output", [1, classes])
    return net.model()


NETWORKS = {"resnet18": resnet18}


if __name__ == "__main__":
    save(NETWORKS[sys.argv[1]](), sys.argv[2])
