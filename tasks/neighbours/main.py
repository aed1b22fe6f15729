"""Which digit an 8x8 image shows, by its nearest neighbours among 1,297 known images.

Takes `{"image": [64 numbers, 0..16, row by row], "count": 3}` (`count` may be left out) and returns the digit, 0..9.
The image is also compared when shifted by half a pixel and by one in each direction, 25 images in all, which is more
accurate.
"""

import heapq
from collections import Counter

from images import SIDE, read_references, shifts

import vmhost.engine.numpy as np

STEPS = (-1.0, -0.5, 0.0, 0.5, 1.0)

_known = {}


def setup():
    with open("references.txt", encoding="ascii") as file:
        pixels, _known["digits"] = read_references(file)
    _known["pixels"], _known["lengths"] = pixels.T, (pixels * pixels).sum(axis=1)
    _known["shifts"] = shifts(STEPS)


def run(value):
    image, count = value["image"], value.get("count", 3)
    if len(image) != SIDE * SIDE:
        raise ValueError(f"image: expected {SIDE * SIDE} numbers, row by row, got {len(image)}")
    if count < 1:
        raise ValueError(f"count: expected at least 1 neighbour, got {count}")
    moved = np.reshape(_known["shifts"] @ np.asarray(image, dtype="float64"), (-1, SIDE * SIDE))
    # |a - b|^2 = |a|^2 - 2ab + |b|^2: exact here, as integers shifted by half pixels are multiples of a quarter
    distances = (moved * moved).sum(axis=1)[:, None] - 2 * (moved @ _known["pixels"])
    nearest = heapq.nsmallest(count, zip((distances.min(axis=0) + _known["lengths"]).tolist(), _known["digits"]))
    return Counter(digit for _, digit in nearest).most_common(1)[0][0]  # on a tie the nearer one wins
