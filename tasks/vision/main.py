"""Vision: classifies a picture of any size, with a small network like MobileNetV2 in the bundle.

Takes `{"picture": array (height, width, 3), uint8, "count": 3}` (`count` is optional) and returns the `count` likeliest
answers, best first: `[{"label": "seven", "share": 0.97}, ...]`. `pictures.py` prepares the picture; softmax and the
selection of the best are here."""

import json

from pictures import prepare

import vmhost.engine.numpy as np
from vmhost import engine

LEAST, MOST = 8, 4096  # pixels of a side

_known = {}


def setup():
    with open("labels.json", encoding="ascii") as file:
        _known["labels"] = json.load(file)
    _known["model"] = engine.load("mobile")


def run(value):
    picture, count = np.asarray(value["picture"]), value.get("count", 3)
    if (
        picture.dtype != "uint8"
        or picture.ndim != 3
        or picture.shape[2] != 3
        or not all(LEAST <= side <= MOST for side in picture.shape[:2])
    ):
        raise ValueError(
            f"picture: expected uint8 of shape (height, width, 3), sides from {LEAST} to {MOST}, got {picture.dtype} of"
            f" {picture.shape}"
        )
    if not 1 <= count <= len(_known["labels"]):
        raise ValueError(f"count: expected 1 to {len(_known['labels'])}, got {count}")
    scores = _known["model"]({"picture": prepare(picture)})["scores"][0]
    shares = softmax(scores)
    best = np.argsort(-shares, kind="stable")[:count]
    return [
        {"label": _known["labels"][number], "share": share}
        for number, share in zip(best.tolist(), shares[best].tolist())
    ]


def softmax(scores):
    """Positive shares that sum to 1; larger scores give larger shares."""
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()
