"""Makes the files of the shipped tasks from `data/`; run once, the results are committed.

    python tasks/prepare.py

Writes digits/model.json, digits/image.json, neighbours/references.txt, strokes/references.txt, strokes/images.json,
forest/training.csv and forest/rows.json. Needs numpy. Uses only the rows that `cases.py` reserves for training, except
for the two example inputs, which are held-out rows."""

import json
import sys
from pathlib import Path

import numpy

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import cases  # noqa: E402  (found beside this file, whatever the current folder is)

DIGITS = 10
STEPS = 600
RATE = 2.0
DECAY = 1e-3
SCALE = 4096  # weights become integers: the same answers on every machine, and a readable file


def train(images, labels):
    """Weights (10, 64) and biases (10,) of a multinomial logistic regression, by gradient descent over all images."""
    inputs = numpy.asarray(images, float) / 16
    wanted = numpy.eye(DIGITS)[labels]
    weights, biases = numpy.zeros((DIGITS, inputs.shape[1])), numpy.zeros(DIGITS)
    for _ in range(STEPS):
        scores = inputs @ weights.T + biases
        shares = numpy.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        error = (shares - wanted) / len(inputs)
        weights -= RATE * (error.T @ inputs + DECAY * weights)
        biases -= RATE * error.sum(axis=0)
    return weights / 16, biases


def model():
    """The contents of digits/model.json."""
    images, labels = zip(*cases.read_digits()[: cases.DIGITS_FOR_TRAINING])
    weights, biases = train(images, list(labels))
    return {
        "weights": numpy.rint(weights * SCALE).astype(int).tolist(),
        "biases": numpy.rint(biases * SCALE).astype(int).tolist(),
    }


def files():
    """Every file as `{path below tasks/: text}`."""
    digits, tumours = cases.read_digits(), cases.read_tumours()
    pixel = "0123456789abcdefg"
    references = "".join(
        "".join(pixel[ink] for ink in image) + f" {digit}\n" for image, digit in digits[: cases.DIGITS_FOR_TRAINING]
    )
    trained = model()
    rows = ",\n".join(f"  {json.dumps(row)}" for row in trained["weights"])
    return {
        "digits/model.json": f'{{"biases": {json.dumps(trained["biases"])},\n "weights": [\n{rows}]}}\n',
        "digits/image.json": json.dumps({"image": digits[cases.DIGITS_FOR_TRAINING][0]}) + "\n",
        "neighbours/references.txt": references,
        "strokes/references.txt": references,
        "strokes/images.json": json.dumps({"images": [image for image, _ in digits[cases.DIGITS_FOR_TRAINING :][:3]]})
        + "\n",
        "forest/training.csv": "".join(
            ",".join([*row, str(label)]) + "\n" for row, label in tumours[: cases.TUMOURS_FOR_TRAINING]
        ),
        "forest/rows.json": json.dumps(
            {"rows": [[float(number) for number in row] for row, _ in tumours[cases.TUMOURS_FOR_TRAINING :][:3]]}
        )
        + "\n",
    }


if __name__ == "__main__":
    for path, text in files().items():
        (HERE / path).write_text(text, encoding="ascii")
        print(f"{path}: {len(text)} bytes")
