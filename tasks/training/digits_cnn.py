"""The network of tasks/digits_cnn: three convolutions and a matrix product, trained on the 1,297 training images of
tasks/data.

In each step images are rotated, sheared, scaled and shifted a little, by random amounts. The held-out 500 images are
used once, at the end."""

import numpy

from tasks import cases

from .gradients import Adam, Value, convolution, cross_entropy, initial, pooled, relu, turned
from .onnx_files import Graph

FILE = "digits_cnn/digits.onnx"
SEED = 20
EPOCHS = 60
BATCH = 64
RATE = 4e-3
DECAY = 1e-2
SMOOTHING = 0.05
INK = 16
CHANNELS = (12, 24, 36)


def new_weights(random):
    shapes = {"conv1": (CHANNELS[0], 1), "conv2": (CHANNELS[1], CHANNELS[0]), "conv3": (CHANNELS[2], CHANNELS[1])}
    weights = {}
    for name, (outputs, inputs) in shapes.items():
        weights[f"{name}.weight"] = initial(random, outputs, inputs, 3, 3, inputs=9 * inputs)
        weights[f"{name}.bias"] = Value(numpy.zeros(outputs, "float32"))
    weights["classes.weight"] = initial(random, CHANNELS[2] * 16, 10, inputs=CHANNELS[2] * 16)
    weights["classes.bias"] = Value(numpy.zeros(10, "float32"))
    return weights


def forward(weights, images):
    """Scores (n, 10) of images (n, 8, 8, 1) of ink from 0 to 1. `weights`: names to Values."""
    x = images
    for name in ("conv1", "conv2", "conv3"):
        if name == "conv3":
            x = pooled(x)
        x = relu(convolution(x, weights[f"{name}.weight"]) + weights[f"{name}.bias"])
    x = turned(x, (0, 3, 1, 2))  # ONNX's order
    return x.reshape(x.shape[0], -1) @ weights["classes.weight"] + weights["classes.bias"]


def moved(images, random):
    """Images (n, 8, 8), each rotated, sheared, scaled and shifted by random amounts, with bilinear sampling."""
    count = len(images)
    turn, shear = random.normal(0, 0.12, count), random.normal(0, 0.12, count)
    scale = random.normal(1, 0.06, (2, count))
    shift = random.normal(0, 0.35, (2, count))
    down, right = numpy.mgrid[0:8, 0:8] - 3.5
    rows = (
        (numpy.cos(turn) / scale[0])[:, None, None] * down
        - numpy.sin(turn)[:, None, None] * right
        + shift[0][:, None, None]
    )
    columns = (
        (numpy.sin(turn) + shear)[:, None, None] * down
        + (numpy.cos(turn) / scale[1])[:, None, None] * right
        + shift[1][:, None, None]
    )
    framed = numpy.pad(images, ((0, 0), (1, 2), (1, 2)))
    rows, columns = (numpy.clip(places + 4.5, 0, 9) for places in (rows, columns))
    above, before = rows.astype(int), columns.astype(int)
    low, late = rows - above, columns - before
    every = numpy.arange(count)[:, None, None]
    warped = (framed[every, above, before] * (1 - late) + framed[every, above, before + 1] * late) * (1 - low) + (
        framed[every, above + 1, before] * (1 - late) + framed[every, above + 1, before + 1] * late
    ) * low
    return warped.astype("float32")


def examples(rows):
    """Images (n, 8, 8) of ink from 0 to 1, and their digits."""
    images, digits = zip(*rows)
    return numpy.asarray(images, "float32").reshape(-1, 8, 8) / INK, numpy.asarray(digits)


def train(seed=SEED, epochs=EPOCHS, log=print):
    """Weights, names to arrays, after `epochs` passes over all training images."""
    random = numpy.random.default_rng(seed)
    images, digits = examples(cases.read_digits()[: cases.DIGITS_FOR_TRAINING])
    weights = new_weights(random)
    optimizer, steps = Adam(weights, DECAY), epochs * (len(images) // BATCH)
    done = 0
    for epoch in range(epochs):
        order, total = random.permutation(len(images)), 0.0
        for first in range(0, len(images) - BATCH + 1, BATCH):
            chosen = order[first : first + BATCH]
            loss = cross_entropy(
                forward(weights, Value(moved(images[chosen], random)[..., None])), digits[chosen], SMOOTHING
            )
            optimizer.step(loss, RATE * 0.5 * (1 + numpy.cos(numpy.pi * done / steps)))
            total, done = total + float(loss.data), done + 1
        log(f"epoch {epoch + 1} of {epochs}: loss {total / (len(images) // BATCH):.4f}")
    return {name: weight.data for name, weight in weights.items()}


def scores(weights, images):
    """The forward pass in plain NumPy; `weights` are arrays."""
    return forward({name: Value(array) for name, array in weights.items()}, Value(images[..., None])).data


def accuracy(weights):
    """The share of held-out images classified correctly."""
    images, digits = examples(cases.read_digits()[cases.DIGITS_FOR_TRAINING :])
    return float((scores(weights, images).argmax(axis=1) == digits).mean())


def to_onnx(weights, remark):
    """The network for one image: input "image" (1, 1, 8, 8) of ink from 0 to 1, output "scores" (1, 10)."""
    graph = Graph("digits_cnn", weights)
    x = graph.input("image", [1, 1, 8, 8])
    for name in ("conv1", "conv2", "conv3"):
        if name == "conv3":
            x = graph.add("MaxPool", "pool", x, kernel_shape=[2, 2], strides=[2, 2])
        x = graph.add("Conv", name, x, f"{name}.weight", f"{name}.bias", kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        x = graph.add("Relu", f"{name}.relu", x)
    x = graph.add("Flatten", "flat", x)
    graph.add("Gemm", "scores", x, "classes.weight", "classes.bias")
    graph.output("scores", [1, 10])
    return graph.to_bytes(remark)


def prepare(log=print):
    """Files below tasks/ (names to bytes), and a sentence on their quality."""
    weights = train(log=log)
    summary = f"seed {SEED}, {EPOCHS} epochs: {accuracy(weights):.1%} of 500 held-out images right"
    return {FILE: to_onnx(weights, summary)}, summary
