"""The network of tasks/reranking: a small Deep Interest Network (Zhou et al., KDD '18), and the shoppers that it is
trained on.

There is no data of a real shop: shoppers are generated. Every item has a hidden category and style; a shopper has two
to four interests, each a category and a style in it, and a history of items drawn from them, a fifth of it by
popularity alone. Of the candidates shown to a shopper, half are drawn uniformly, a quarter by popularity, a quarter
from the shopper's categories. One is clicked, more likely the closer its style is to that of an interest in its
category, and the better it sells. So popularity alone says little, the categories of the history say more, and the rest
is in the styles, which the network has to infer from clicks."""

import gzip
import json

import numpy

from .gradients import Adam, Value, cross_entropy, initial, joined, rows, sigmoid, softmax
from .onnx_files import Graph

FILE = "reranking/din.onnx"
SEED = 31
ITEMS, CATEGORIES, STYLES = 600, 20, 3
HISTORY, CANDIDATES = 30, 20  # the model's sizes; shorter lists are padded
SHOPPERS, HELD_OUT = 8000, 300
WIDTH = 12  # of an embedding
HIDDEN = (24, 12)
KEEN = 6  # the weight of a matching style, relative to the logarithm of sales
LEARNING = {"epochs": 6, "batch": 32, "others": 5, "rate": 1e-2, "decay": 1e-3}
PADDING = ITEMS  # the padding item; its category is CATEGORIES


def shop(random):
    """A shop's items: categories (items,), styles (items, 3) of length 1, shares of sales (items,)."""
    categories = random.integers(0, CATEGORIES, ITEMS)
    styles = random.standard_normal((ITEMS, STYLES))
    sales = 1 / (5 + random.permutation(ITEMS)) ** 0.7
    return categories, styles / numpy.linalg.norm(styles, axis=1, keepdims=True), sales / sales.sum()


def shoppers(random, shop, count):
    """`count` times (history, candidates, clicked): lists of items, the history latest first, and one of the
    candidates."""
    categories, styles, sales = shop
    visits = []
    for _ in range(count):
        interests = random.permutation(CATEGORIES)[: random.integers(2, 5)]
        tastes = random.standard_normal((len(interests), STYLES))
        tastes /= numpy.linalg.norm(tastes, axis=1, keepdims=True)
        match = numpy.full(ITEMS, -numpy.inf)  # items outside of the interests
        for interest, taste in zip(interests, tastes):
            match[categories == interest] = styles[categories == interest] @ taste
        related = match > -numpy.inf
        length = random.integers(6, HISTORY + 1)
        history = numpy.where(
            random.random(length) < 0.8,
            _drawn(random, sales * numpy.exp(KEEN * match), length),
            _drawn(random, sales, length),
        )
        shown = random.permutation(
            numpy.unique(
                numpy.concatenate(
                    [random.integers(0, ITEMS, 10), _drawn(random, sales, 5), _drawn(random, sales * related, 5)]
                )
            )
        )
        appeal = numpy.log(sales[shown]) + KEEN * numpy.maximum(match[shown] + 1, 0)
        shares = numpy.exp(appeal - appeal.max())
        visits.append((history.tolist(), shown.tolist(), int(shown[_drawn(random, shares, 1)[0]])))
    return visits


def _drawn(random, weights, count):
    """`count` indices drawn with these weights."""
    bounds = numpy.cumsum(weights)
    return numpy.searchsorted(bounds, random.random(count) * bounds[-1], side="right")


def world(seed=SEED):
    """The shop, the training shoppers, and the held-out ones."""
    random = numpy.random.default_rng(seed)
    stock = shop(random)
    return stock, shoppers(random, stock, SHOPPERS), shoppers(random, stock, HELD_OUT)


def arrays(seen):
    """The network's inputs for shoppers (n): histories (n, 30), their mask, candidates (n, 20), their mask, index of
    the click (n,)."""
    histories, candidates = (numpy.full((len(seen), size), PADDING) for size in (HISTORY, CANDIDATES))
    for number, (history, shown, _) in enumerate(seen):
        histories[number, : len(history)], candidates[number, : len(shown)] = history, shown
    clicks = numpy.asarray([shown.index(click) for _, shown, click in seen])
    return histories, histories != PADDING, candidates, candidates != PADDING, clicks


def new_weights(random):
    def small(*shape):
        return Value((random.standard_normal(shape) * 0.1).astype("float32"))

    weights, double = {"items": small(ITEMS + 1, WIDTH), "categories": small(CATEGORIES + 1, WIDTH)}, 2 * WIDTH
    for name, inputs in (("attention", 4 * double), ("last", 3 * double)):
        for number, (wide, narrow) in enumerate(zip((inputs, *HIDDEN), (*HIDDEN, 1)), 1):
            weights[f"{name}{number}.weight"] = initial(random, wide, narrow, inputs=wide)
            weights[f"{name}{number}.bias"] = Value(numpy.zeros(narrow, "float32"))
    return weights


def forward(weights, categories, histories, mask, candidates):
    """Scores (n, candidates). `categories` are those of all items, including the padding's."""

    def embedded(items):
        return joined(rows(weights["items"], items), rows(weights["categories"], categories[items]))

    def layers(name, x):
        for number in (1, 2, 3):
            x = x @ weights[f"{name}{number}.weight"] + weights[f"{name}{number}.bias"]
            x = x if number == 3 else sigmoid(x)
        return x

    count, width = candidates.shape
    wanted = embedded(candidates)
    seen = embedded(histories)
    asked = wanted.reshape(count, width, 1, -1)
    past = seen.reshape(count, 1, histories.shape[1], -1)
    scores = layers("attention", joined(asked, past, asked - past, asked * past)).reshape(
        count, width, histories.shape[1]
    )
    weight = softmax(scores + numpy.where(mask, 0, -1e9).astype("float32")[:, None])
    interest = weight @ seen
    return layers("last", joined(interest, wanted, interest * wanted)).reshape(count, width)


def train(world, seed=SEED, log=print, epochs=LEARNING["epochs"]):
    """Weights, names to arrays. The loss is that of distinguishing the click from `others` of the shopper's candidates,
    drawn anew in each step."""
    shop, learned, _ = world
    categories = numpy.append(shop[0], CATEGORIES)
    random = numpy.random.default_rng(seed)
    histories, mask, candidates, shown, clicks = arrays(learned)
    weights, batch = new_weights(random), LEARNING["batch"]
    optimizer, steps, done = Adam(weights, LEARNING["decay"]), epochs * (len(learned) // batch), 0
    every = numpy.arange(len(learned))
    for epoch in range(epochs):
        order, total = random.permutation(len(learned)), 0.0
        lots = random.random(candidates.shape) + ~shown  # the smallest are drawn: the click first, padding last
        lots[every, clicks] = -1
        drawn = numpy.take_along_axis(candidates, numpy.argsort(lots, axis=1)[:, : 1 + LEARNING["others"]], axis=1)
        for first in range(0, len(learned) - batch + 1, batch):
            chosen = order[first : first + batch]
            longest = mask[chosen].sum(axis=1).max()
            scores = forward(weights, categories, histories[chosen, :longest], mask[chosen, :longest], drawn[chosen])
            loss = cross_entropy(scores, numpy.zeros(batch, int))
            optimizer.step(loss, LEARNING["rate"] * 0.5 * (1 + numpy.cos(numpy.pi * done / steps)))
            total, done = total + float(loss.data), done + 1
        log(f"epoch {epoch + 1} of {epochs}: loss {total / (len(learned) // batch):.4f}")
    return {name: weight.data for name, weight in weights.items()}


def scores(weights, shop, seen):
    """The forward pass in plain NumPy, for shoppers (n): (n, 20), including padding."""
    histories, mask, candidates, _, _ = arrays(seen)
    values = {name: Value(array) for name, array in weights.items()}
    return forward(values, numpy.append(shop[0], CATEGORIES), histories, mask, candidates).data


def area(found, seen):
    """The area under the curve (AUC), averaged over shoppers: the share of candidates that score below the one clicked,
    ties counting half."""
    return sum(
        float(numpy.mean([(one < own) + (one == own) / 2 for item, one in zip(shown, ours) if item != click]))
        for ours, (_, shown, click) in zip(found, seen)
        for own in [ours[shown.index(click)]]
    ) / len(seen)


def to_onnx(weights, remark):
    """The network for one shopper: int64 "history", "history_categories" (1, 30), bool "bought" (1, 30) (False:
    padding), "items", "categories" (20,); output "scores" (20,), higher for likelier clicks."""
    graph, double = Graph("din", weights), 2 * WIDTH
    histories = [graph.input(name, [1, HISTORY], "int64") for name in ("history", "history_categories")]
    bought = graph.input("bought", [1, HISTORY], "bool")
    candidates = [graph.input(name, [CANDIDATES], "int64") for name in ("items", "categories")]

    def embedded(name, indices):
        return graph.add(
            "Concat",
            name,
            *(
                graph.add("Gather", f"{name}.{table}", table, index, axis=0)
                for table, index in zip(("items.table", "categories.table"), indices)
            ),
            axis=-1,
        )

    def layers(name, x):
        for number in (1, 2, 3):
            x = graph.add("MatMul", f"{name}{number}.product", x, f"{name}{number}.weight")
            x = graph.add("Add", f"{name}{number}", x, f"{name}{number}.bias")
            x = x if number == 3 else graph.add("Sigmoid", f"{name}{number}.active", x)
        return x

    wanted, seen = embedded("wanted", candidates), embedded("seen", histories)
    shape = graph.constant("pairs.shape", [CANDIDATES, HISTORY, double], "int64")
    asked = graph.add(
        "Expand",
        "asked",
        graph.add("Unsqueeze", "asked.row", wanted, graph.constant("asked.axes", [1], "int64")),
        shape,
    )
    past = graph.add("Expand", "past", seen, shape)
    pairs = graph.add(
        "Concat",
        "pairs",
        asked,
        past,
        graph.add("Sub", "differences", asked, past),
        graph.add("Mul", "products", asked, past),
        axis=-1,
    )
    scores = graph.add(
        "Squeeze", "attention", layers("attention", pairs), graph.constant("attention.axes", [2], "int64")
    )
    lowest = graph.constant("attention.least", -1e9, "float32")
    weight = graph.add(
        "Softmax", "attention.weights", graph.add("Where", "attention.bought", bought, scores, lowest), axis=-1
    )
    past = graph.add("Squeeze", "seen.rows", seen, graph.constant("seen.axes", [0], "int64"))
    interest = graph.add("MatMul", "interest", weight, past)
    features = graph.add("Concat", "features", interest, wanted, graph.add("Mul", "matches", interest, wanted), axis=-1)
    graph.add("Squeeze", "scores", layers("last", features), graph.constant("scores.axes", [1], "int64"))
    graph.output("scores", [CANDIDATES])
    return graph.to_bytes(remark)


def prepare(log=print):
    """Files below tasks/ (names to bytes), and a sentence on their quality."""
    everything = world()
    shop, _, held_out = everything
    categories, _, sales = shop
    weights = train(everything, log=log)
    by_sales = area([[sales[item] for item in shown] for _, shown, _ in held_out], held_out)
    summary = (
        f"seed {SEED}, {LEARNING['epochs']} epochs: {area(scores(weights, shop, held_out), held_out):.3f} AUC on"
        f" {HELD_OUT} held-out shoppers; by sales {by_sales:.3f}"
    )
    catalogue = {"categories": categories.tolist(), "sales": (sales / sales.max()).round(4).tolist()}
    lines = "".join(
        ";".join((" ".join(map(str, history)), " ".join(map(str, shown)), str(click))) + "\n"
        for history, shown, click in held_out
    )
    return {
        FILE: to_onnx(
            {f"{name}.table" if name in ("items", "categories") else name: values for name, values in weights.items()},
            summary,
        ),
        "reranking/catalogue.json": (json.dumps(catalogue) + "\n").encode(),
        "data/shoppers.csv.gz": gzip.compress(lines.encode(), mtime=0),
    }, summary
