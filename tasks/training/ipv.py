"""The networks of tasks/ipv and tasks/ipv_recommend, trained together: an encoder that turns one visit of an item's
page into 32 numbers, and a recommender that turns a shopper's latest encodings into a score for each item of the shop.

The shoppers are generated (tasks/ipv/sessions.py); there is no data of a real shop. The target is the item that a
shopper looks at next, so an encoding keeps what reveals the shopper's taste."""

import json
import sys
from pathlib import Path

import numpy

from tasks.ipv import sessions

from .gradients import Adam, Value, cross_entropy, initial, joined, relu, rows, softmax
from .onnx_files import Graph

FILE, RECOMMENDER = "ipv/encoder.onnx", "ipv_recommend/recommender.onnx"
SEED = 41
VISITS, HELD_OUT = 40_000, 4000
RECENT = 20  # encodings that the recommender uses
HIDDEN, CODE = 64, 32
WIDTHS = {"id": 12, "category": 8, "brand": 4, "shop": 4}
LEARNING = {"epochs": 8, "batch": 24, "rate": 4e-3, "decay": 1e-3}
TOP = 10

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "ipv"))  # the task's own modules, importable as in a VM
try:
    import encoder
    import features
finally:
    del sys.path[0]


def shoppers(seed, visits):
    """Per shopper the visits in order: (numbers (n, WIDTH), places (n, 4), items (n,)); items are indices into the
    catalogue."""
    order = {item["id"]: number for number, item in enumerate(sessions.catalogue())}
    by_visit = {}
    for event in sessions.events(sessions.Options(seed=seed, visits=visits, **sessions.CLEAN)):
        if event["page"] == "item":
            by_visit.setdefault((event["key"], event["visit"]), []).append(event)
    by_shopper = {}
    for (key, _), events in by_visit.items():
        by_shopper.setdefault(key, []).append(features.feature(events))
    return [
        (
            numpy.asarray([encoder.numbers(one) for one in seen], "float32"),
            numpy.asarray([encoder.places(one["item"]) for one in seen]),
            numpy.asarray([order[one["item"]["id"]] for one in seen]),
        )
        for seen in by_shopper.values()
        if len(seen) > 1
    ]


def batch(some):
    """The inputs of both networks for some shoppers: numbers and places of all their visits (n, …); for each visit
    except a shopper's first, the RECENT visits before it, latest first, as row indices (m, RECENT), n where there is
    none; and the items (m,)."""
    figures, places, items = (numpy.concatenate(column) for column in zip(*some))
    histories, wanted, start = [], [], 0
    for _, _, own in some:
        for number in range(1, len(own)):
            before = [start + number - back for back in range(1, min(number, RECENT) + 1)]
            histories.append(before + [len(figures)] * (RECENT - len(before)))
            wanted.append(start + number)
        start += len(own)
    return figures, places, numpy.asarray(histories), items[wanted]


def new_weights(random, figures, sales):
    def small(*shape):
        return Value((random.standard_normal(shape) * 0.1).astype("float32"))

    weights = {f"{name}.table": small(size, WIDTHS[name]) for name, size in encoder.PLACES.items()}
    wide = encoder.WIDTH + sum(WIDTHS.values())
    for name, inputs, outputs in (("hidden", wide, HIDDEN), ("code", HIDDEN, CODE), ("taste", CODE, CODE)):
        weights[f"{name}.weight"] = initial(random, inputs, outputs, inputs=inputs)
        weights[f"{name}.bias"] = Value(numpy.zeros(outputs, "float32"))
    weights["worth.weight"] = small(CODE, 1)
    weights["recency"] = Value(numpy.zeros(RECENT, "float32"))
    weights["items.weight"] = small(CODE, len(sales))
    weights["items.bias"] = Value(numpy.log(sales).astype("float32"))
    fixed = {"numbers.mean": figures.mean(axis=0), "numbers.scale": 1 / (figures.std(axis=0) + 0.1)}
    return weights, {name: values.astype("float32") for name, values in fixed.items()}


def encodings(weights, fixed, figures, places):
    """(n, CODE)"""
    known = Value((figures - fixed["numbers.mean"]) * fixed["numbers.scale"])
    seen = joined(
        known, *(rows(weights[f"{name}.table"], places[:, place]) for place, name in enumerate(encoder.PLACES))
    )
    hidden = relu(seen @ weights["hidden.weight"] + weights["hidden.bias"])
    return hidden @ weights["code.weight"] + weights["code.bias"]


def scores(weights, recent, there):
    """Scores (m, items) from encodings (m, RECENT, CODE), latest first; `there` (m, RECENT): which of them exist."""
    worth = (recent @ weights["worth.weight"]).reshape(len(there), RECENT) + weights["recency"]
    share = softmax(worth + numpy.where(there, 0, -1e9).astype("float32"))
    taste = (share.reshape(len(there), 1, RECENT) @ recent).reshape(len(there), CODE)
    taste = relu(taste @ weights["taste.weight"] + weights["taste.bias"])
    return taste @ weights["items.weight"] + weights["items.bias"]


def forward(weights, fixed, figures, places, histories):
    codes = encodings(weights, fixed, figures, places)
    with_none = rows(codes, numpy.minimum(histories, len(figures) - 1))
    return scores(weights, with_none, histories < len(figures))


def train(learned, sales, seed=SEED, log=print, epochs=LEARNING["epochs"]):
    """Weights and fixed values, names to arrays."""
    random = numpy.random.default_rng(seed)
    weights, fixed = new_weights(random, numpy.concatenate([figures for figures, _, _ in learned]), sales)
    optimizer, size, done = Adam(weights, LEARNING["decay"]), LEARNING["batch"], 0
    steps = epochs * (len(learned) // size)
    for epoch in range(epochs):
        order, total = random.permutation(len(learned)), 0.0
        for first in range(0, len(order) - size + 1, size):
            *known, items = batch([learned[one] for one in order[first : first + size]])
            loss = cross_entropy(forward(weights, fixed, *known), items)
            optimizer.step(loss, LEARNING["rate"] * 0.5 * (1 + numpy.cos(numpy.pi * done / steps)))
            total, done = total + float(loss.data), done + 1
        log(f"epoch {epoch + 1} of {epochs}: loss {total / (len(learned) // size):.4f}")
    return {name: weight.data for name, weight in weights.items()}, fixed


def hits(found, items):
    """The share of rows whose item is among the TOP highest scores."""
    best = numpy.argsort(-found, axis=1, kind="stable")[:, :TOP]
    return float((best == items[:, None]).any(axis=1).mean())


def encoder_onnx(weights, fixed, remark):
    """Inputs: float32 "numbers" (1, WIDTH), int64 "places" (1, 4); output: "encoding" (1, CODE)."""
    names = [f"{name}.table" for name in encoder.PLACES]
    kept = {name: weights[name] for name in (*names, "hidden.weight", "hidden.bias", "code.weight", "code.bias")}
    graph = Graph("encoder", {**kept, **fixed})
    figures, places = graph.input("numbers", [1, encoder.WIDTH]), graph.input("places", [1, len(names)], "int64")
    known = graph.add("Mul", "scaled", graph.add("Sub", "centred", figures, "numbers.mean"), "numbers.scale")
    found = [
        graph.add(
            "Gather",
            f"{name}.row",
            name,
            graph.add("Gather", f"{name}.place", places, graph.constant(f"{name}.number", number, "int64"), axis=1),
            axis=0,
        )
        for number, name in enumerate(names)
    ]
    seen = graph.add("Concat", "seen", known, *found, axis=-1)
    hidden = graph.add("Add", "hidden", graph.add("MatMul", "hidden.product", seen, "hidden.weight"), "hidden.bias")
    active = graph.add("Relu", "hidden.active", hidden)
    graph.add("Add", "encoding", graph.add("MatMul", "code.product", active, "code.weight"), "code.bias")
    graph.output("encoding", [1, CODE])
    return graph.to_bytes(remark)


def recommender_onnx(weights, remark):
    """Inputs: float32 "encodings" (RECENT, CODE), latest first, bool "there" (1, RECENT); output: "scores" (1,
    items)."""
    kept = ("worth.weight", "recency", "taste.weight", "taste.bias", "items.weight", "items.bias")
    graph = Graph("recommender", {name: weights[name] for name in kept})
    recent, there = graph.input("encodings", [RECENT, CODE]), graph.input("there", [1, RECENT], "bool")
    worth = graph.add("MatMul", "worth.column", recent, "worth.weight")
    worth = graph.add("Add", "worth", graph.add("Transpose", "worth.row", worth, perm=[1, 0]), "recency")
    worth = graph.add("Where", "worth.there", there, worth, graph.constant("none", -1e9, "float32"))
    taste = graph.add("MatMul", "taste.mean", graph.add("Softmax", "share", worth, axis=-1), recent)
    taste = graph.add("Add", "taste", graph.add("MatMul", "taste.product", taste, "taste.weight"), "taste.bias")
    active = graph.add("Relu", "taste.active", taste)
    graph.add("Add", "scores", graph.add("MatMul", "items.product", active, "items.weight"), "items.bias")
    graph.output("scores", [1, len(weights["items.bias"])])
    return graph.to_bytes(remark)


def prepare(log=print):
    """Files below tasks/ (names to bytes), and a sentence on their quality."""
    shop = sessions.catalogue()
    sales = numpy.asarray([item["sales"] for item in shop])
    weights, fixed = train(shoppers(SEED, VISITS), sales, log=log)
    *known, items = batch(shoppers(SEED + 1, HELD_OUT))
    found = forward({name: Value(values) for name, values in weights.items()}, fixed, *known).data
    summary = (
        f"seed {SEED}, {LEARNING['epochs']} epochs: {hits(found, items):.3f} of the items that held-out shoppers look"
        f" at next are among the {TOP} recommended; by sales {hits(numpy.tile(sales, (len(items), 1)), items):.3f}"
    )
    brief = [{name: item[name] for name in ("id", "category", "price_cents")} for item in shop]
    return {
        FILE: encoder_onnx(weights, fixed, summary),
        RECOMMENDER: recommender_onnx(weights, summary),
        "ipv_recommend/catalogue.json": (json.dumps(brief, separators=(",", ":")) + "\n").encode(),
    }, summary
