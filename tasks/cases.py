"""The inputs of the shipped tasks, and the ground truth for their answers.

Reads `data/` next to this file, which is in no bundle. A case is `(value, truth)`: the input of the call, and the right
answer. Rows are split in the same way for training (`prepare.py`) and for these cases, so no task has seen its
inputs.
"""

import csv
import gzip
import runpy
from pathlib import Path

import vmhost.engine.numpy as np

DATA = Path(__file__).resolve().parent / "data"
DIGITS_FOR_TRAINING = 1297
TUMOURS_FOR_TRAINING = 400
BATCH = 100  # images in one call of strokes
LABELS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SCENERY = 7  # the seed of vision's pictures


def read_digits():
    """1,797 pairs of an image (64 integers, 0..16, row by row) and the digit it shows."""
    with gzip.open(DATA / "digits.csv.gz", "rt", encoding="ascii", newline="") as file:
        rows = [[int(number) for number in row] for row in csv.reader(file)]
    return [(row[:-1], row[-1]) for row in rows]


def read_tumours():
    """569 pairs of 30 measurements and a label: 1 benign, 0 malignant. Measurements stay text, as in the file."""
    with open(DATA / "breast_cancer.csv", encoding="ascii", newline="") as file:
        reader = csv.reader(file)
        next(reader)
        return [(row[:-1], int(row[-1])) for row in reader]


def read_shoppers():
    """300 generated shoppers: a history of items, latest first, candidates, and the candidate that was clicked."""
    with gzip.open(DATA / "shoppers.csv.gz", "rt", encoding="ascii", newline="") as file:
        rows = [[[int(item) for item in column.split()] for column in row] for row in csv.reader(file, delimiter=";")]
    return [(history, candidates, clicked) for history, candidates, [clicked] in rows]


def pictures(count):
    """The first `count` cases of vision: pictures of held-out digits drawn by `scenes.py`, and their labels."""
    draw, random = runpy.run_path(str(DATA.parent / "scenes.py"))["picture"], np.random.default_rng(SCENERY)
    held_out = read_digits()[DIGITS_FOR_TRAINING:][:count]
    return [({"picture": draw(image, random)}, LABELS[digit]) for image, digit in held_out]


def cases(name):
    """The cases of the task `name`.

    500 images for digits, digits_cnn and neighbours, the same in arrays of 100 for strokes, 169 tumours under eight
    seeds for forest, 300 shoppers for reranking, 100 pictures for vision."""
    if name in ("digits", "digits_cnn", "neighbours"):
        return [({"image": image}, digit) for image, digit in read_digits()[DIGITS_FOR_TRAINING:]]
    if name == "strokes":
        held_out = read_digits()[DIGITS_FOR_TRAINING:]
        batches = [held_out[first : first + BATCH] for first in range(0, len(held_out), BATCH)]
        return [
            ({"images": np.asarray([image for image, _ in batch], dtype="uint8")}, [digit for _, digit in batch])
            for batch in batches
        ]
    if name == "forest":
        held_out = read_tumours()[TUMOURS_FOR_TRAINING:]
        rows = [[float(number) for number in row] for row, _ in held_out]
        return [({"rows": rows, "seed": seed}, [label for _, label in held_out]) for seed in range(8)]
    if name == "reranking":
        return [
            ({"history": history, "candidates": candidates}, {"clicked": clicked})
            for history, candidates, clicked in read_shoppers()
        ]
    if name == "vision":
        return pictures(100)
    raise KeyError(
        f"{name}: no cases; there are some for digits, digits_cnn, neighbours, strokes, forest, reranking and vision"
    )


def share_right(answer, truth):
    """The share of `answer` that is right, 0..1: a label against a label, or lists of them; for a ranking, the share of
    items ranked below the one clicked (the area under the curve, AUC); for class probabilities, whether the first class
    is right."""
    if isinstance(truth, str):
        return float(answer[0]["label"] == truth)
    if isinstance(truth, dict):
        ranked = answer["items"]
        return 1 - ranked.index(truth["clicked"]) / (len(ranked) - 1)
    if not isinstance(truth, list):
        return float(answer == truth)
    if len(answer) != len(truth):
        return 0.0
    return sum(got == right for got, right in zip(answer, truth)) / len(truth)
