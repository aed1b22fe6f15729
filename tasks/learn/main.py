"""Trains a small convolutional network on handwritten digits, in a VM."""

import csv
import gzip

import vmhost.engine.numpy as np
from vmhost.engine import nn, optim

BATCH, HELD_OUT = 32, 500


class Digits(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 32, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.scores = nn.Linear(32 * 2 * 2, 10)

    def __call__(self, images):
        x = self.pool(nn.relu(self.first(images)))
        x = self.pool(nn.relu(self.second(x)))
        return self.scores(x.reshape(len(x), 128))


def read(path="digits.csv.gz"):
    """(images, labels): float32 (n, 1, 8, 8) from 0 to 1, int64 (n,)."""
    with gzip.open(path, "rt") as file:
        rows = np.array([[float(cell) for cell in row] for row in csv.reader(file)], dtype="float32")
    return rows[:, :64].reshape(-1, 1, 8, 8) / 16, rows[:, 64].astype("int64")


def run(value):
    """`epochs`: how often all images are seen. Returns how many of the held-out images are read right; with
    `onnx: true` the network too, as the bytes of an ONNX file."""
    images, labels = read()
    nn.seed(1)
    net, optimizer = Digits(), optim.Adam(0.003)
    step = nn.value_and_grad(net, lambda x, y: nn.cross_entropy(net(x), y))
    order = np.random.default_rng(1)
    for epoch in range(value["epochs"]):
        shuffled = order.permutation(len(images) - HELD_OUT)
        for begin in range(0, len(shuffled) - BATCH + 1, BATCH):
            rows = shuffled[begin : begin + BATCH]
            loss, gradients = step(images[rows], labels[rows])
            optimizer.update(net, gradients)
        print(f"epoch {epoch + 1}: loss {float(loss):.3f}")
    answers = np.argmax(net(images[-HELD_OUT:]), axis=1)
    result = {"right": int((answers == labels[-HELD_OUT:]).sum()), "of": HELD_OUT}
    if value.get("onnx"):
        result["onnx"] = nn.export(net, {"images": images[:2]}, ("scores",))
    return result
