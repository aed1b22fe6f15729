"""Middle task: which digit an 8x8 image shows, by its nearest neighbours among 1,297 known images.

Takes `{"image": [64 numbers, 0..16, row by row], "count": 3}` (`count` may be left out) and returns the digit, 0..9.
The image is also compared moved by half a pixel and by one each way: that makes it slow, and right more often.
"""

import heapq
import math
from collections import Counter

from images import SIDE, read_references, shifted

STEPS = (-1.0, -0.5, 0.0, 0.5, 1.0)

_references = []


def setup():
    with open("references.txt", encoding="ascii") as file:
        _references[:] = read_references(file)


def run(value):
    image, count = value["image"], value.get("count", 3)
    if len(image) != SIDE * SIDE:
        raise ValueError(f"image: expected {SIDE * SIDE} numbers, row by row, got {len(image)}")
    if count < 1:
        raise ValueError(f"count: expected at least 1 neighbour, got {count}")
    moved = [shifted(image, down, right) for down in STEPS for right in STEPS]
    nearest = heapq.nsmallest(
        count, ((min(math.dist(one, pixels) for one in moved), digit) for pixels, digit in _references)
    )
    return Counter(digit for _, digit in nearest).most_common(1)[0][0]  # a draw goes to the nearer one
