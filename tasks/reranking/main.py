"""Re-ranking: the order in which to show items to a shopper, by a small Deep Interest Network in the bundle.

Takes `{"history": items bought, latest first, "candidates": items}`, where items are numbers from 0 to 599, and returns
`{"items": the candidates, best first, "scores": theirs}`. The latest 30 items of the history are used; candidates go
through the network 20 at a time. Without a history the order is by sales."""

import json

import vmhost.engine.numpy as np
from vmhost import engine

_known = {}


def setup():
    with open("catalogue.json", encoding="ascii") as file:
        catalogue = json.load(file)
    _known["sales"] = np.asarray(catalogue["sales"], dtype="float32")
    _known["categories"] = np.asarray(
        [*catalogue["categories"], max(catalogue["categories"]) + 1]
    )  # the last one is padding
    _known["model"] = model = engine.load("din")
    sizes = {port.name: port.shape for port in model.inputs}
    _known["longest"], _known["batch"] = sizes["history"][1], sizes["items"][0]


def run(value):
    history, candidates = (_items(value, name) for name in ("history", "candidates"))
    if not candidates.size:
        raise ValueError("candidates: expected at least one item, got none")
    scores = _scores(history, candidates) if history.size else _known["sales"][candidates]
    order = np.argsort(-scores, kind="stable")
    return {"items": candidates[order].tolist(), "scores": scores[order].tolist()}


def _items(value, name):
    """`value[name]` as an array of valid items."""
    items, count = np.asarray(value[name], dtype="int64"), len(_known["sales"])
    if items.ndim != 1 or not ((items >= 0) & (items < count)).all():
        raise ValueError(f"{name}: expected a list of items from 0 to {count - 1}, got {value[name]!r}")
    return items


def _scores(history, candidates):
    """The network's score for each candidate."""
    model, categories, batch = _known["model"], _known["categories"], _known["batch"]
    history = history[: _known["longest"]]
    past = np.full(_known["longest"], len(_known["sales"]))
    past[: history.size] = history
    inputs = {
        "history": past[None],
        "history_categories": categories[past][None],
        "bought": (np.arange(past.size) < history.size)[None],
    }
    scores = []
    for first in range(0, candidates.size, batch):
        some = candidates[first : first + batch]
        asked = np.full(batch, len(_known["sales"]))
        asked[: some.size] = some
        scores.append(model({**inputs, "items": asked, "categories": categories[asked]})["scores"][: some.size])
    return np.concatenate(scores)
