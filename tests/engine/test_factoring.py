"""Products of a concatenation whose parts are computed from each other: their compiled steps, and that sums are the
same."""

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from tests import networks
from vmhost.engine.models import opened
from vmhost.engine.onnx import compile_model

WIDTH, COLUMNS = 64, 5
# Operands by their shape's dimensions before the last: q is one row for all, u one for each of the batch, r one for all
# batches and rows alike.
PARTS = {
    "q": lambda v: v["q"],
    "h": lambda v: v["h"],
    "s": lambda v: v["s"],
    "u": lambda v: v["u"],
    "q-h": lambda v: v["q"] - v["h"],
    "h-q": lambda v: v["h"] - v["q"],
    "h+s": lambda v: v["h"] + v["s"],
    "q*h": lambda v: v["q"] * v["h"],
    "h*u": lambda v: v["h"] * v["u"],
    "h*s": lambda v: v["h"] * v["s"],
    "q-u": lambda v: v["q"] - v["u"],
    "h*q-s": lambda v: v["h"] * v["q"] - v["s"],
    "s+h*q": lambda v: v["s"] + v["h"] * v["q"],
    "h-h": lambda v: v["h"] - v["h"],
    "u-h": lambda v: v["u"] - v["h"],
    "h-s": lambda v: v["h"] - v["s"],
}
OPERATORS = {"-": "Sub", "+": "Add", "*": "Mul"}


def operands(batch, rows, seed=0):
    shapes = {"q": (1, 1, WIDTH), "h": (batch, rows, WIDTH), "s": (batch, rows, WIDTH), "u": (batch, 1, WIDTH)}
    return {name: networks.values(shape, seed + number) for number, (name, shape) in enumerate(shapes.items())}


def network(parts, values, bias=True, seed=9):
    """Each part, expanded to all rows, in a concatenation; its product with a matrix; perhaps a bias; a sigmoid."""
    shape, nodes, weights = values["h"].shape, [], {}

    def expression(text):
        for position in (text.rfind("-"), text.rfind("+"), text.rfind("*")):
            if position > 0:
                name = f"of {text}"
                if name not in weights:
                    weights[name] = helper.make_node(
                        OPERATORS[text[position]],
                        [expression(text[:position]), expression(text[position + 1 :])],
                        [name],
                    )
                    nodes.append(weights[name])
                return name
        return text

    for number, part in enumerate(parts):
        nodes.append(helper.make_node("Expand", [expression(part), "shape"], [f"part{number}"]))
    nodes.append(helper.make_node("Concat", [f"part{number}" for number in range(len(parts))], ["pairs"], axis=-1))
    nodes.append(helper.make_node("MatMul", ["pairs", "weights"], ["product"]))
    nodes.append(
        helper.make_node("Add", ["product", "bias"], ["sum"])
        if bias
        else helper.make_node("Identity", ["product"], ["sum"])
    )
    nodes.append(helper.make_node("Sigmoid", ["sum"], ["y"]))
    constants = {
        "shape": numpy.array([*shape[:-1], WIDTH]),
        "weights": networks.values((len(parts) * WIDTH, COLUMNS), seed) / 8,
        "bias": networks.values((COLUMNS,), seed + 1),
    }
    return networks.graph_of(nodes, values, ["y"], constants)


def expected(parts, values, bias=True, seed=9):
    wide = {name: value.astype("float64") for name, value in values.items()}
    pairs = numpy.concatenate([numpy.broadcast_to(PARTS[part](wide), values["h"].shape) for part in parts], -1)
    sums = pairs @ (networks.values((len(parts) * WIDTH, COLUMNS), seed) / 8).astype("float64") + (
        networks.values((COLUMNS,), seed + 1) if bias else 0
    )
    return 1 / (1 + numpy.exp(-sums))


def answer(data, values):
    return numpy.asarray(opened("net", data, search="fixed")(values)["y"])


def products(model):
    """Millions of products of the compiled model's steps."""
    return sum(step.products for step in opened("net", compile_model(model, "net")).steps)


def test_attention_over_a_history_multiplies_a_quarter():
    parts, values = ("q", "h", "q-h", "q*h"), operands(1, 20)
    model = network(parts, values)
    assert products(model) == (20 + 1) * WIDTH * COLUMNS  # h by weights that q is in, and q once
    numpy.testing.assert_allclose(answer(compile_model(model, "net"), values), expected(parts, values), atol=2e-6)


@pytest.mark.parametrize(
    ("parts", "batch", "rows", "count"),
    [
        (("q", "h"), 1, 20, 20 + 1),
        (("q", "h"), 3, 20, 60 + 3),
        (("u", "h", "u-h"), 3, 20, 60 + 3),
        (("q", "h", "q-h", "q*h"), 3, 20, 120 + 3),
        (("q", "h", "q-h", "q*h"), 1, 7, 14 + 1),
        (("h", "s", "h-s", "h*s"), 1, 20, 60),
        (("h", "s"), 1, 20, 40),
        (("q", "u"), 3, 20, 120),
        (("h", "h"), 1, 20, 20),
    ],
)
def test_what_is_left_to_multiply(parts, batch, rows, count):
    values = operands(batch, rows)
    model = network(parts, values)
    assert products(model) == count * WIDTH * COLUMNS
    numpy.testing.assert_allclose(answer(compile_model(model, "net"), values), expected(parts, values), atol=2e-6)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(sorted(PARTS)), min_size=2, max_size=5),
    st.sampled_from([1, 2]),
    st.sampled_from([3, 8, 19]),
    st.booleans(),
)
def test_any_parts_are_the_same_sums(parts, batch, rows, bias):
    values = operands(batch, rows, seed=rows)
    numpy.testing.assert_allclose(
        answer(compile_model(network(parts, values, bias), "net"), values), expected(parts, values, bias), atol=5e-6
    )


def test_what_else_reads_the_parts_stays():
    """The concatenation is an output, too, and is complete."""
    values = operands(1, 20)
    nodes = [
        helper.make_node("Sub", ["q", "h"], ["d"]),
        helper.make_node("Concat", ["h", "d"], ["pairs"], axis=-1),
        helper.make_node("MatMul", ["pairs", "weights"], ["y"]),
    ]
    model = networks.graph_of(
        nodes,
        {name: values[name] for name in "qh"},
        ["y", "pairs"],
        {"weights": networks.values((2 * WIDTH, COLUMNS), 3)},
    )
    outputs = opened("net", compile_model(model, "net"), search="fixed")({name: values[name] for name in "qh"})
    pairs = numpy.concatenate([values["h"], values["q"] - values["h"]], -1)
    assert numpy.asarray(outputs["pairs"]).tobytes() == pairs.tobytes()
    numpy.testing.assert_allclose(
        numpy.asarray(outputs["y"]), pairs.astype("float64") @ networks.values((2 * WIDTH, COLUMNS), 3), atol=2e-4
    )


def test_any_number_of_rows():
    """A history of open length: at each one the same steps."""
    nodes = [
        helper.make_node("Sub", ["q", "h"], ["d"]),
        helper.make_node("Mul", ["q", "h"], ["m"]),
        helper.make_node("Concat", ["h", "d", "m"], ["pairs"], axis=-1),
        helper.make_node("MatMul", ["pairs", "weights"], ["y"]),
    ]
    weights = networks.values((3 * WIDTH, COLUMNS), 3) / 8
    model = networks.graph(
        nodes, {"q": (1, 1, WIDTH), "h": (1, "past", WIDTH)}, {"y": (1, "past", COLUMNS)}, {"weights": weights}
    )
    session = opened("net", compile_model(model, "net"), search="fixed")
    for rows in (1, 5, 12, 40):
        values = operands(1, rows, seed=rows)
        output = numpy.asarray(session({name: values[name] for name in "qh"})["y"])
        pairs = numpy.concatenate([values["h"], values["q"] - values["h"], values["q"] * values["h"]], -1).astype(
            "float64"
        )
        numpy.testing.assert_allclose(output, pairs @ weights, atol=2e-5)
