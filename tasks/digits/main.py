"""Light task: which digit an 8x8 image shows, by multinomial logistic regression with integer weights.

Takes `{"image": [64 integers, 0..16, row by row]}` and returns the digit, 0..9. The weights come from `../prepare.py`.
"""

import json
import math

SIDE = 8
INK = 16

_model = {}


def setup():
    with open("model.json", encoding="utf-8") as file:
        _model.update(json.load(file))


def run(value):
    image = value.get("image") if isinstance(value, dict) else None
    if not isinstance(image, list):
        raise ValueError('expected {"image": [64 integers from 0 to 16, row by row]}')
    if len(image) != SIDE * SIDE or not all(isinstance(ink, int) and 0 <= ink <= INK for ink in image):
        raise ValueError(f"image: expected {SIDE * SIDE} integers from 0 to {INK}, row by row, got {len(image)} items")
    scores = [math.sumprod(weights, image) + bias for weights, bias in zip(_model["weights"], _model["biases"])]
    return scores.index(max(scores))
