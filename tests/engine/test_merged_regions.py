"""Operators that only move elements (reshapes, transposes, slices, concatenations) work in place: with a
copy for each of these instead, any network of them gives the same bytes, and NumPy's."""

import numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from tests import networks
from vmhost.engine.models import opened
from vmhost.engine.onnx import compile_model, passes
from vmhost.engine.onnx.network import Layer

MOST = 4096  # elements of a tensor


def _apart(network):
    """In the place of make_in_place: every view that is read is copied first, and every copy stays."""
    kept, network.layers = network.layers, []
    for layer in kept:
        for position, name in enumerate(layer.inputs):
            if name in network.views:
                copy = network.declare(network.fresh(f"{name}/apart"), network.shape(name), network.dtype(name))
                network.layers.append(Layer("Copy", layer.name, [name], copy))
                layer.inputs[position] = copy
        network.layers.append(layer)


def _nodes(draw, first):
    """Nodes over growing tensors, constants, and NumPy's values of all."""
    values, nodes, constants = {"x": first}, [], {}

    def add(op, result, inputs, extra=(), **attributes):
        name = f"t{len(nodes)}"
        constants.update({f"{name}/{position}": numpy.array(numbers) for position, numbers in enumerate(extra)})
        nodes.append(
            helper.make_node(
                op, [*inputs, *(f"{name}/{position}" for position in range(len(extra)))], [name], **attributes
            )
        )
        values[name] = result

    for _ in range(draw(st.integers(2, 9))):
        source = draw(st.sampled_from(list(values)))
        x = values[source]
        axis = draw(st.integers(0, x.ndim - 1))
        match draw(st.sampled_from(["transpose", "reshape", "slice", "concat", "negative", "add"])):
            case "transpose":
                order = draw(st.permutations(range(x.ndim)))
                add("Transpose", x.transpose(order), [source], perm=order)
            case "reshape":
                shape = draw(st.sampled_from([(-1,), (x.shape[0], -1), (*x.shape, 1), (-1, x.shape[-1])]))
                add("Reshape", x.reshape(shape), [source], [shape])
            case "slice":
                start = draw(st.integers(0, x.shape[axis] - 1))
                step = draw(st.sampled_from([1, 2]))
                add(
                    "Slice",
                    x.take(range(start, x.shape[axis], step), axis),
                    [source],
                    [[start], [x.shape[axis]], [axis], [step]],
                )
            case "concat" if 2 * x.size <= MOST:
                other = draw(
                    st.sampled_from(
                        [
                            name
                            for name in values
                            if values[name].ndim == x.ndim
                            and values[name].size <= MOST - x.size
                            and all(a == b for d, (a, b) in enumerate(zip(values[name].shape, x.shape)) if d != axis)
                        ]
                    )
                )
                add("Concat", numpy.concatenate([x, values[other]], axis), [source, other], axis=axis)
            case "add":
                other = draw(st.sampled_from([name for name in values if values[name].shape == x.shape]))
                add("Add", x + values[other], [source, other])
            case _:
                add("Neg", -x, [source])
    return nodes, constants, values


@given(st.data())
@settings(deadline=None, max_examples=40)
def test_merged_and_unmerged_regions_give_the_same_bytes(data):
    shape = data.draw(st.sampled_from([(2, 3, 4), (1, 4, 3, 5), (6, 5), (2, 1, 3, 2, 2)]))
    x = networks.values(shape)
    nodes, constants, values = _nodes(data.draw, x)
    names = [nodes[-1].output[0], nodes[len(nodes) // 2].output[0]]
    model = networks.graph_of(nodes, {"x": x}, tuple(dict.fromkeys(names)), constants)
    merged = compile_model(model, "merged")
    in_place = passes.make_in_place
    try:
        passes.make_in_place = _apart
        unmerged = compile_model(model, "unmerged")
    finally:
        passes.make_in_place = in_place
    one, other = opened("merged", merged)({"x": x}), opened("unmerged", unmerged)({"x": x})
    for name in names:
        assert one[name].tobytes() == other[name].tobytes() == numpy.ascontiguousarray(values[name]).tobytes()


def test_unmerged_is_more_steps():
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
        helper.make_node("Concat", ["t", "t"], ["c"], axis=0),
        helper.make_node("Neg", ["c"], ["y"]),
    ]
    model, in_place = networks.graph(nodes, {"x": (3, 4)}, {"y": (8, 3)}), passes.make_in_place
    merged = opened("merged", compile_model(model, "merged"))
    try:
        passes.make_in_place = _apart
        unmerged = opened("unmerged", compile_model(model, "unmerged"))
    finally:
        passes.make_in_place = in_place
    assert len(unmerged.steps) > len(merged.steps)
