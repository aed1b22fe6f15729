"""Light task: which digit an 8x8 image shows, by a small convolutional network that the bundle carries.

Takes `{"image": 64 numbers from 0 to 16, row by row, or an array of them}` and returns the digit, 0..9.
"""

import vmhost.engine.numpy as np
from vmhost import engine

SIDE = 8
INK = 16

_known = {}


def setup():
    _known["model"] = engine.load("digits")


def run(value):
    image = np.asarray(value["image"], dtype="float32")
    if image.size != SIDE * SIDE or not ((image >= 0) & (image <= INK)).all():
        raise ValueError(
            f"image: expected {SIDE * SIDE} numbers from 0 to {INK}, row by row, got {image.size}"
            + (f" from {float(image.min())} to {float(image.max())}" if image.size else "")
        )
    scores = _known["model"]({"image": np.reshape(image, (1, 1, SIDE, SIDE)) / INK})["scores"]
    return int(np.argmax(scores))
