"""The network of tasks/vision: a small MobileNetV2 (Sandler et al., CVPR '18), trained on pictures of real handwriting
drawn by `tasks/scenes.py`.

Every epoch draws new pictures of the 1,297 training digits. The task's own `pictures.py` prepares them. Pictures of the
held-out 500 are used once, at the end."""

import numpy

import vmhost.engine.numpy as np
from tasks import cases, scenes
from tasks.vision import pictures

from .gradients import EPSILON, Adam, Value, clipped, convolution, cross_entropy, depthwise, initial, mean, normalized
from .onnx_files import Graph

FILE = "vision/mobile.onnx"
SEED = 43
EPOCHS = 16
BATCH = 32
RATE = 6e-3
DECAY = 1e-2
SMOOTHING = 0.05
STEM, LAST, EXPANSION = 8, 64, 3
BLOCKS = ((8, 1), (16, 2), (16, 1), (24, 2), (24, 1))  # channels and stride of each inverted residual
CLASSES = 10


def layers():
    """The convolutions in order: name, kernel shape, stride, whether it is depthwise, whether ReLU6 follows, whether
    the block's input is added."""
    yield "stem", (STEM, 3, 3, 3), 2, False, True, False
    channels = STEM
    for number, (outputs, stride) in enumerate(BLOCKS, 1):
        inner = EXPANSION * channels
        yield f"block{number}.wide", (inner, channels, 1, 1), 1, False, True, False
        yield f"block{number}.deep", (inner, 1, 3, 3), stride, True, True, False
        yield f"block{number}.narrow", (outputs, inner, 1, 1), 1, False, False, stride == 1 and outputs == channels
        channels = outputs
    yield "last", (LAST, channels, 1, 1), 1, False, True, False


def new_weights(random):
    """Weights, and the running statistics of each normalization: names to pairs of mean and variance."""
    weights, running = {}, {}
    for name, shape, *_ in layers():
        weights[f"{name}.weight"] = initial(random, *shape, inputs=shape[1] * shape[2] * shape[3])
        weights[f"{name}.scale"] = Value(numpy.ones(shape[0], "float32"))
        weights[f"{name}.bias"] = Value(numpy.zeros(shape[0], "float32"))
        running[name] = (numpy.zeros(shape[0], "float32"), numpy.ones(shape[0], "float32"))
    weights["classes.weight"] = initial(random, LAST, CLASSES, inputs=LAST)
    weights["classes.bias"] = Value(numpy.zeros(CLASSES, "float32"))
    return weights, running


def forward(weights, running, images, learning=False):
    """Scores (n, 10) of images (n, 32, 32, 3), normalized. `weights`: names to Values."""
    x = images
    for name, _, stride, deep, active, added in layers():
        if name.endswith("wide"):
            before = x
        x = (depthwise if deep else convolution)(x, weights[f"{name}.weight"], stride)
        x = normalized(x, weights[f"{name}.scale"], weights[f"{name}.bias"], running[name], learning)
        x = clipped(x, 6) if active else x + before if added else x
    return mean(x, (1, 2)) @ weights["classes.weight"] + weights["classes.bias"]


def drawn(rows, random):
    """Pictures of the digits `rows`, prepared: (n, 32, 32, 3)."""
    images = numpy.concatenate([numpy.asarray(pictures.prepare(scenes.picture(image, random))) for image, _ in rows])
    return numpy.ascontiguousarray(images.transpose(0, 2, 3, 1))


def train(seed=SEED, epochs=EPOCHS, log=print):
    """Weights, names to arrays; mean and variance of the normalizations among them."""
    random, scenery = numpy.random.default_rng(seed), np.random.default_rng(seed)
    rows = cases.read_digits()[: cases.DIGITS_FOR_TRAINING]
    digits = numpy.asarray([digit for _, digit in rows])
    weights, running = new_weights(random)
    optimizer, steps, done = Adam(weights, DECAY), epochs * (len(rows) // BATCH), 0
    for epoch in range(epochs):
        images, order, total = drawn(rows, scenery), random.permutation(len(rows)), 0.0
        for first in range(0, len(rows) - BATCH + 1, BATCH):
            chosen = order[first : first + BATCH]
            loss = cross_entropy(forward(weights, running, Value(images[chosen]), True), digits[chosen], SMOOTHING)
            optimizer.step(loss, RATE * 0.5 * (1 + numpy.cos(numpy.pi * done / steps)))
            total, done = total + float(loss.data), done + 1
        log(f"epoch {epoch + 1} of {epochs}: loss {total / (len(rows) // BATCH):.4f}")
    arrays = {name: weight.data for name, weight in weights.items()}
    for name, (average, variance) in running.items():
        arrays[f"{name}.mean"], arrays[f"{name}.variance"] = average, variance
    return arrays


def scores(weights, images):
    """The forward pass in plain NumPy, for images (n, 32, 32, 3); `weights` are arrays."""
    running = {name: (weights[f"{name}.mean"], weights[f"{name}.variance"]) for name, *_ in layers()}
    return forward({name: Value(array) for name, array in weights.items()}, running, Value(images)).data


def accuracy(weights):
    """The share of the 500 pictures of held-out digits in `cases.py` classified correctly."""
    asked = cases.pictures(500)
    images = numpy.concatenate([numpy.asarray(pictures.prepare(value["picture"])) for value, _ in asked]).transpose(
        0, 2, 3, 1
    )
    found = scores(weights, images).argmax(axis=1)
    return float(numpy.mean([cases.LABELS[answer] == label for answer, (_, label) in zip(found, asked)]))


def to_onnx(weights, remark):
    """The network for one picture: input "picture" (1, 3, 32, 32), normalized, output "scores" (1, 10)."""
    graph = Graph("mobile", weights)
    x = graph.input("picture", [1, 3, pictures.SIDE, pictures.SIDE])
    bounds = graph.constant("zero", 0, "float32"), graph.constant("six", 6, "float32")
    for name, shape, stride, deep, active, added in layers():
        if name.endswith("wide"):
            before = x
        x = graph.add(
            "Conv",
            name,
            x,
            f"{name}.weight",
            kernel_shape=shape[2:],
            strides=[stride, stride],
            pads=[shape[2] // 2] * 4,
            group=shape[0] if deep else 1,
        )
        x = graph.add(
            "BatchNormalization",
            f"{name}.norm",
            x,
            *(f"{name}.{part}" for part in ("scale", "bias", "mean", "variance")),
            epsilon=EPSILON,
        )
        if active:
            x = graph.add("Clip", f"{name}.active", x, *bounds)
        elif added:
            x = graph.add("Add", f"{name}.sum", x, before)
    x = graph.add("Flatten", "flat", graph.add("GlobalAveragePool", "pool", x))
    graph.add("Gemm", "scores", x, "classes.weight", "classes.bias")
    graph.output("scores", [1, CLASSES])
    return graph.to_bytes(remark)


def prepare(log=print):
    """Files below tasks/ (names to bytes), and a sentence on their quality."""
    weights = train(log=log)
    summary = f"seed {SEED}, {EPOCHS} epochs: {accuracy(weights):.1%} of 500 pictures of held-out digits right"
    return {FILE: to_onnx(weights, summary)}, summary
