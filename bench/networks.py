"""The networks of the model benchmarks: real architectures, random weights, always the same for a seed. Needs `onnx`.

    python -m bench.networks resnet18 OUT.onnx

Weights are drawn so that values neither vanish nor grow from layer to layer; batch normalization has non-trivial
statistics, so that folding it is real work."""

import sys

import numpy
from onnx import TensorProto, helper, numpy_helper, save

OPSET = 17


class Network:
    """An ONNX graph, built layer by layer; each method returns the name of the layer's output."""

    def __init__(self, name, seed):
        self.name, self.random = name, numpy.random.default_rng(seed)
        self.nodes, self.constants, self.inputs, self.outputs = [], [], [], []

    def input(self, name, shape, dtype="float32"):
        self.inputs.append(
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(numpy.dtype(dtype)), shape)
        )
        return name

    def output(self, source, name, shape):
        """Renames `source`, the output of the last node, to `name`."""
        self.nodes[-1].output[0] = name
        self.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def add(self, operator, name, *sources, **attributes):
        self.nodes.append(helper.make_node(operator, sources, [name], name, **attributes))
        return name

    def constant(self, name, values, dtype="float32"):
        self.constants.append(numpy_helper.from_array(numpy.asarray(values, dtype), name))
        return name

    def dense(self, name, source, inputs, outputs):
        """A matrix product and a bias, as PyTorch exports a linear layer on rank 3 tensors."""
        weights = self.random.standard_normal((inputs, outputs)) / inputs**0.5
        product = self.add("MatMul", f"{name}.matmul", source, self.constant(f"{name}.weight", weights))
        return self.add("Add", name, self.constant(f"{name}.bias", self.random.normal(0, 0.1, outputs)), product)

    def reshape(self, name, source, shape):
        return self.add("Reshape", name, source, self.constant(f"{name}.shape", shape, "int64"))

    def convolution(self, name, source, channels, outputs, kernel, stride=1, groups=1, bias=False, pad=None):
        weights = self.random.standard_normal((outputs, channels // groups, kernel, kernel))
        weights *= (2 / (channels // groups * kernel * kernel)) ** 0.5
        sources = [source, self.constant(f"{name}.weight", weights)]
        if bias:
            sources.append(self.constant(f"{name}.bias", self.random.normal(0, 0.1, outputs)))
        return self.add(
            "Conv",
            name,
            *sources,
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[kernel // 2 if pad is None else pad] * 4,
            group=groups,
        )

    def normalization(self, name, source, channels):
        parameters = {
            "weight": self.random.uniform(0.5, 1.0, channels),
            "bias": self.random.normal(0, 0.1, channels),
            "mean": self.random.normal(0, 0.1, channels),
            "variance": self.random.uniform(0.8, 1.2, channels),
        }
        return self.add(
            "BatchNormalization",
            name,
            source,
            *(self.constant(f"{name}.{key}", value) for key, value in parameters.items()),
        )

    def normalized(self, name, source, channels, outputs, kernel, stride=1, groups=1):
        """A convolution and its batch normalization."""
        y = self.convolution(name, source, channels, outputs, kernel, stride, groups)
        return self.normalization(f"{name}.norm", y, outputs)

    def relu(self, name, source):
        return self.add("Relu", name, source)

    def classifier(self, source, channels, classes, mean=False):
        """Logits of the pooled image; `mean`: pooled by ReduceMean over height and width."""
        if mean:
            flat = self.add("ReduceMean", "pool", source, axes=[2, 3], keepdims=0)
        else:
            flat = self.add("Flatten", "flatten", self.add("GlobalAveragePool", "pool", source), axis=1)
        weights = self.random.standard_normal((classes, channels)) / channels**0.5
        return self.add(
            "Gemm",
            "classifier",
            flat,
            self.constant("classifier.weight", weights),
            self.constant("classifier.bias", self.random.normal(0, 0.1, classes)),
            transB=1,
        )

    def model(self):
        graph = helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, self.constants)
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8, producer_name="vmhost"
        )


def resnet18(size=224, width=64, classes=1000, seed=1):
    """ResNet18 (He et al., CVPR '16) on a 1x3x`size`x`size` image; tests use smaller ones of the same form."""
    net = Network("resnet18", seed)

    x = net.relu("stem.relu", net.normalized("stem", net.input("input", [1, 3, size, size]), 3, width, 7, 2))
    x = net.add("MaxPool", "stem.pool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = width
    for stage in range(4):
        for block in range(2):
            outputs, stride = width << stage, 2 if stage > 0 and block == 0 else 1
            name = f"stage{stage + 1}.block{block + 1}"
            y = net.relu(f"{name}.relu1", net.normalized(f"{name}.conv1", x, channels, outputs, 3, stride))
            y = net.normalized(f"{name}.conv2", y, outputs, outputs, 3)
            if stride != 1 or channels != outputs:
                x = net.normalized(f"{name}.shortcut", x, channels, outputs, 1, stride)
            x = net.relu(f"{name}.relu2", net.add("Add", f"{name}.add", y, x))
            channels = outputs
    net.output(net.classifier(x, channels, classes), "output", [1, classes])
    return net.model()


def bert(tokens=256, layers=12, width=768, heads=12, hidden=3072, vocabulary=30522, seed=2, fused=True):
    """BERT for questions about a text (Devlin et al., NAACL '19; SQuAD's two logits per token): base with these
    defaults, as PyTorch exports it; `fused` False: layer normalization as separate operators, as before opset 17."""
    net = Network("bert", seed)
    ids, mask, segments = (
        net.input(name, [1, tokens], "int64") for name in ("input_ids", "attention_mask", "token_type_ids")
    )

    def normalized(name, source):
        scale = net.constant(f"{name}.scale", net.random.uniform(0.8, 1.2, width))
        bias = net.constant(f"{name}.bias", net.random.normal(0, 0.1, width))
        if fused:
            return net.add("LayerNormalization", name, source, scale, bias, axis=-1, epsilon=1e-12)
        below = net.add("Sub", f"{name}.below", source, net.add("ReduceMean", f"{name}.mean", source, axes=[-1]))
        squares = net.add("Pow", f"{name}.squares", below, net.constant(f"{name}.two", 2.0))
        variance = net.add(
            "Add",
            f"{name}.variance",
            net.add("ReduceMean", f"{name}.squares.mean", squares, axes=[-1]),
            net.constant(f"{name}.epsilon", 1e-12),
        )
        scaled = net.add("Div", f"{name}.scaled", below, net.add("Sqrt", f"{name}.deviation", variance))
        return net.add("Add", name, net.add("Mul", f"{name}.weighted", scaled, scale), bias)

    def embedded(name, indices, rows):
        return net.add(
            "Gather", name, net.constant(f"{name}.table", net.random.normal(0, 0.5, (rows, width))), indices, axis=0
        )

    x = net.add("Add", "embeddings.typed", embedded("words", ids, vocabulary), embedded("segments", segments, 2))
    x = normalized(
        "embeddings",
        net.add("Add", "embeddings.sum", x, net.constant("positions", net.random.normal(0, 0.5, (1, tokens, width)))),
    )
    open_mask = net.add(
        "Cast",
        "mask.float",
        net.add("Unsqueeze", "mask.wide", mask, net.constant("mask.axes", [1, 2], "int64")),
        to=TensorProto.FLOAT,
    )
    hidden_places = net.add("Sub", "mask.closed", net.constant("mask.one", 1.0), open_mask)
    penalty = net.add("Mul", "mask.penalty", hidden_places, net.constant("mask.least", -10000.0))
    for layer in range(layers):
        name = f"layer{layer}"

        def split(part, order, source=x, name=name):
            heads_of = net.reshape(
                f"{name}.{part}.heads",
                net.dense(f"{name}.{part}", source, width, width),
                [1, tokens, heads, width // heads],
            )
            return net.add("Transpose", f"{name}.{part}.turned", heads_of, perm=order)

        scores = net.add("MatMul", f"{name}.products", split("query", [0, 2, 1, 3]), split("key", [0, 2, 3, 1]))
        scores = net.add("Div", f"{name}.scaled", scores, net.constant(f"{name}.root", (width // heads) ** 0.5))
        weights = net.add("Softmax", f"{name}.weights", net.add("Add", f"{name}.scores", scores, penalty), axis=-1)
        context = net.add("MatMul", f"{name}.context", weights, split("value", [0, 2, 1, 3]))
        context = net.reshape(
            f"{name}.joined", net.add("Transpose", f"{name}.back", context, perm=[0, 2, 1, 3]), [1, tokens, width]
        )
        x = normalized(
            f"{name}.attended",
            net.add("Add", f"{name}.residual1", net.dense(f"{name}.attention", context, width, width), x),
        )
        y = net.dense(f"{name}.wide", x, width, hidden)
        part = net.add(
            "Erf", f"{name}.erf", net.add("Div", f"{name}.gelu.scaled", y, net.constant(f"{name}.gelu.root", 2**0.5))
        )
        part = net.add(
            "Mul",
            f"{name}.gelu.part",
            y,
            net.add("Add", f"{name}.gelu.sum", part, net.constant(f"{name}.gelu.one", 1.0)),
        )
        y = net.dense(
            f"{name}.narrow",
            net.add("Mul", f"{name}.gelu", part, net.constant(f"{name}.gelu.half", 0.5)),
            hidden,
            width,
        )
        x = normalized(f"{name}.out", net.add("Add", f"{name}.residual2", y, x))
    logits = net.dense("logits", x, width, 2)
    net.nodes.append(
        helper.make_node(
            "Split", [logits, net.constant("split", [1, 1], "int64")], ["first", "second"], "split", axis=-1
        )
    )
    for name, half in (("start_logits", "first"), ("end_logits", "second")):
        net.add("Squeeze", name, half, net.constant(f"{name}.axes", [-1], "int64"))
        net.output(name, name, [1, tokens])
    return net.model()


def din(history=100, items=63001, categories=801, width=64, seed=3):
    """Deep Interest Network (Zhou et al., KDD '18), sized as its authors' for Amazon's electronics: the probability
    that a user with this history wants the item. Attention over the history uses [q, h, q-h, q*h]; the sums go through
    a network of 80 and 40."""
    net, double = Network("din", seed), 2 * width
    item, category = net.input("item", [1], "int64"), net.input("category", [1], "int64")
    past = [net.input(name, [1, history], "int64") for name in ("history_items", "history_categories")]
    mask = net.input("mask", [1, history], "bool")
    tables = [
        net.constant(f"{name}.table", net.random.normal(0, 0.3, (rows, width)))
        for name, rows in (("items", items), ("categories", categories))
    ]

    def embedded(name, indices):
        return net.add(
            "Concat",
            name,
            *(
                net.add("Gather", f"{name}.{number}", table, index)
                for number, (table, index) in enumerate(zip(tables, indices))
            ),
            axis=-1,
        )

    wanted, seen = embedded("wanted", [item, category]), embedded("seen", past)
    query = net.add(
        "Expand",
        "query",
        net.add("Unsqueeze", "query.row", wanted, net.constant("query.axes", [1], "int64")),
        net.constant("query.shape", [1, history, double], "int64"),
    )
    x = net.add(
        "Concat",
        "pairs",
        query,
        seen,
        net.add("Sub", "difference", query, seen),
        net.add("Mul", "product", query, seen),
        axis=-1,
    )
    x = net.add("Sigmoid", "attention1.active", net.dense("attention1", x, 4 * double, 80))
    x = net.add("Sigmoid", "attention2.active", net.dense("attention2", x, 80, 40))
    scores = net.add("Transpose", "scores", net.dense("attention3", x, 40, 1), perm=[0, 2, 1])
    open_scores = net.add(
        "Where",
        "scores.open",
        net.add("Unsqueeze", "mask.row", mask, net.constant("mask.axes", [1], "int64")),
        scores,
        net.constant("scores.least", -4294967295.0),
    )
    scaled = net.add("Div", "scores.scaled", open_scores, net.constant("scores.root", double**0.5))
    interest = net.add("MatMul", "interest", net.add("Softmax", "weights", scaled, axis=-1), seen)
    interest = net.reshape("interest.row", interest, [1, double])
    x = net.add("Concat", "features", interest, wanted, net.add("Mul", "match", interest, wanted), axis=-1)
    for number, (inputs, outputs) in enumerate(((3 * double, 80), (80, 40))):
        x = net.add("Sigmoid", f"layer{number}.active", net.dense(f"layer{number}", x, inputs, outputs))
    net.output(net.add("Sigmoid", "likely", net.dense("last", x, 40, 1)), "output", [1, 1])
    return net.model()


LIMITS = {
    "input_ids": 30522,
    "token_type_ids": 2,
    "item": 63001,
    "category": 801,
    "history_items": 63001,
    "history_categories": 801,
}


def inputs(ports, seed, limits=LIMITS):
    """{name: array} for ports with a name, dtype and shape: normally distributed numbers, indices below LIMITS, and
    masks with an end."""
    random, arrays = numpy.random.default_rng(seed), {}
    for port in ports:
        dtype = numpy.dtype(str(port.dtype))
        if "mask" in port.name:
            arrays[port.name] = (
                (numpy.arange(port.shape[-1]) < random.integers(port.shape[-1] // 2, port.shape[-1] + 1))
                .astype(dtype)
                .reshape(port.shape)
            )
        elif dtype.kind == "i":
            arrays[port.name] = random.integers(0, limits[port.name], port.shape).astype(dtype)
        else:
            arrays[port.name] = random.standard_normal(port.shape, dtype="float32").astype(dtype)
    return arrays


def resnet50(size=224, width=64, classes=1000, blocks=(3, 4, 6, 3), seed=2):
    """ResNet50 (the same paper; strides in the blocks' 3x3 convolutions, as torchvision has them)."""
    net = Network("resnet50", seed)

    x = net.relu("stem.relu", net.normalized("stem", net.input("input", [1, 3, size, size]), 3, width, 7, 2))
    x = net.add("MaxPool", "stem.pool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = width
    for stage, count in enumerate(blocks):
        for block in range(count):
            inner, stride = width << stage, 2 if stage > 0 and block == 0 else 1
            outputs, name = 4 * inner, f"stage{stage + 1}.block{block + 1}"
            y = net.relu(f"{name}.relu1", net.normalized(f"{name}.conv1", x, channels, inner, 1))
            y = net.relu(f"{name}.relu2", net.normalized(f"{name}.conv2", y, inner, inner, 3, stride))
            y = net.normalized(f"{name}.conv3", y, inner, outputs, 1)
            if block == 0:
                x = net.normalized(f"{name}.shortcut", x, channels, outputs, 1, stride)
            x = net.relu(f"{name}.relu3", net.add("Add", f"{name}.add", y, x))
            channels = outputs
    net.output(net.classifier(x, channels, classes), "output", [1, classes])
    return net.model()


MOBILENET_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def mobilenet_v2(size=224, width=1.0, classes=1000, stages=MOBILENET_STAGES, seed=3):
    """MobileNetV2 (Sandler et al., CVPR '18): inverted residuals with linear ends; each stage is expansion, channels,
    blocks, stride."""
    net = Network("mobilenet_v2", seed)
    zero, six = net.constant("zero", 0), net.constant("six", 6)

    def normalized(name, source, channels, outputs, kernel, stride=1, groups=1, clip=True):
        y = net.normalized(name, source, channels, outputs, kernel, stride, groups)
        return net.add("Clip", f"{name}.clip", y, zero, six) if clip else y

    channels = max(8, int(32 * width))
    x = normalized("stem", net.input("input", [1, 3, size, size]), 3, channels, 3, 2)
    for stage, (expansion, outputs, count, first_stride) in enumerate(stages):
        for block in range(count):
            name, stride, inner = (
                f"stage{stage + 1}.block{block + 1}",
                first_stride if block == 0 else 1,
                channels * expansion,
            )
            width_out = int(outputs * width)
            y = x if expansion == 1 else normalized(f"{name}.expand", x, channels, inner, 1)
            y = normalized(f"{name}.depthwise", y, inner, inner, 3, stride, inner)
            y = normalized(f"{name}.project", y, inner, width_out, 1, clip=False)
            x = net.add("Add", f"{name}.add", x, y) if stride == 1 and channels == width_out else y
            channels = width_out
    last = int(1280 * width)
    x = normalized("last", x, channels, last, 1)
    net.output(net.classifier(x, last, classes), "output", [1, classes])
    return net.model()


def squeezenet1_1(size=224, width=16, classes=1000, seed=4):
    """SqueezeNet 1.1 (Iandola et al., 2016): fire modules, which squeeze to few channels and expand to 1x1 and 3x3 side
    by side."""
    net = Network("squeezenet1_1", seed)

    def convolution(name, source, channels, outputs, kernel, stride=1, pad=None):
        return net.relu(
            f"{name}.relu", net.convolution(name, source, channels, outputs, kernel, stride, bias=True, pad=pad)
        )

    def pool(name, source):
        return net.add("MaxPool", name, source, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)

    channels = 4 * width
    x = pool("pool1", convolution("stem", net.input("input", [1, 3, size, size]), 3, channels, 3, 2, 0))
    for number, squeeze in enumerate((width, width, 2 * width, 2 * width, 3 * width, 3 * width, 4 * width, 4 * width)):
        name = f"fire{number + 2}"
        if number in (2, 4):
            x = pool(f"{name}.pool", x)
        y = convolution(f"{name}.squeeze", x, channels, squeeze, 1)
        x = net.add(
            "Concat",
            f"{name}.concat",
            convolution(f"{name}.expand1", y, squeeze, 4 * squeeze, 1),
            convolution(f"{name}.expand3", y, squeeze, 4 * squeeze, 3),
            axis=1,
        )
        channels = 8 * squeeze
    x = net.add("Dropout", "dropout", x)
    x = convolution("classifier", x, channels, classes, 1)
    net.add("Flatten", "flatten", net.add("GlobalAveragePool", "pool", x), axis=1)
    net.output("flatten", "output", [1, classes])
    return net.model()


def shufflenet_v2(size=224, channels=(24, 116, 232, 464, 1024), blocks=(4, 8, 4), classes=1000, seed=5):
    """ShuffleNetV2 1x (Ma et al., ECCV '18): half of the channels pass each unit by, and then both halves are
    shuffled."""
    net = Network("shufflenet_v2", seed)

    def normalized(name, source, inputs, outputs, kernel, stride=1, groups=1, relu=True):
        y = net.normalized(name, source, inputs, outputs, kernel, stride, groups)
        return net.relu(f"{name}.relu", y) if relu else y

    x = normalized("stem", net.input("input", [1, 3, size, size]), 3, channels[0], 3, 2)
    x = net.add("MaxPool", "stem.pool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    side, inputs = ((size + 1) // 2 + 1) // 2, channels[0]
    for stage, (outputs, count) in enumerate(zip(channels[1:], blocks)):
        half = outputs // 2
        for unit in range(count):
            name, stride = f"stage{stage + 2}.unit{unit + 1}", 2 if unit == 0 else 1
            if unit == 0:
                left = normalized(f"{name}.left.depthwise", x, inputs, inputs, 3, 2, inputs, relu=False)
                left, right = normalized(f"{name}.left", left, inputs, half, 1), x
                side = (side + 1) // 2
            else:
                left, right = f"{name}.split.left", f"{name}.split.right"
                net.nodes.append(
                    helper.make_node(
                        "Split",
                        [x, net.constant(f"{name}.halves", [half, half], "int64")],
                        [left, right],
                        f"{name}.split",
                        axis=1,
                    )
                )
            right = normalized(f"{name}.right1", right, inputs if unit == 0 else half, half, 1)
            right = normalized(f"{name}.right.depthwise", right, half, half, 3, stride, half, relu=False)
            right = normalized(f"{name}.right2", right, half, half, 1)
            x = net.add("Concat", f"{name}.concat", left, right, axis=1)
            x = net.reshape(f"{name}.groups", x, [1, 2, half, side, side])
            x = net.add("Transpose", f"{name}.turn", x, perm=[0, 2, 1, 3, 4])
            x = net.reshape(f"{name}.shuffle", x, [1, outputs, side, side])
        inputs = outputs
    x = normalized("last", x, inputs, channels[-1], 1)
    net.output(net.classifier(x, channels[-1], classes, mean=True), "output", [1, classes])
    return net.model()


NETWORKS = {
    "resnet18": resnet18,
    "resnet50": resnet50,
    "mobilenet_v2": mobilenet_v2,
    "squeezenet1_1": squeezenet1_1,
    "shufflenet_v2": shufflenet_v2,
    "bert": bert,
    "din": din,
}


if __name__ == "__main__":
    save(NETWORKS[sys.argv[1]](), sys.argv[2])
