"""Ensembles of trees as LightGBM's converter writes categorical features: a set of values is a chain of comparisons for
equality, all of which lead to one node."""

import random

import numpy
import pytest
from onnx import TensorProto, helper

from tests import networks
from tests.engine.library import backends, on_backend
from vmhost.engine.models import opened
from vmhost.engine.onnx import OnnxError, compile_model

FEATURES = 3


class Trees:
    """The lists of a TreeEnsembleRegressor; `add` returns the node's number within its tree."""

    def __init__(self):
        self.nodes, self.leaves = [], []

    def add(self, tree, mode, feature=0, value=0.0, true=0, false=0, missing=0):
        number = sum(node[0] == tree for node in self.nodes)
        self.nodes.append([tree, number, mode, feature, value, true, false, missing])
        return number

    def model(self):
        trees, numbers, modes, features, values, true, false, missing = map(list, zip(*self.nodes))
        node = helper.make_node(
            "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1, nodes_treeids=trees,
            nodes_nodeids=numbers, nodes_modes=modes, nodes_featureids=features, nodes_values=values,
            nodes_truenodeids=true, nodes_falsenodeids=false, nodes_missing_value_tracks_true=missing,
            target_treeids=[leaf[0] for leaf in self.leaves], target_nodeids=[leaf[1] for leaf in self.leaves],
            target_ids=[0] * len(self.leaves), target_weights=[leaf[2] for leaf in self.leaves],
        )  # fmt: skip
        graph = helper.make_graph(
            [node], "trees", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", FEATURES])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1])],
        )  # fmt: skip
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


def drawn(seed, count=5, depth=4):
    """Trees with chains of comparisons for equality that share their true node. The false node is the next one, as ONNX
    Runtime expects of shared nodes."""
    draw, trees = random.Random(seed), Trees()

    def grow(tree, level):
        if level == depth or (level and draw.random() < 0.2):
            number = trees.add(tree, "LEAF")
            trees.leaves.append((tree, number, draw.uniform(-1, 1)))
            return number
        feature = draw.randrange(FEATURES)
        if draw.random() < 0.6:
            values = draw.sample(range(8), draw.choice([1, 2, 4]))
            missing = draw.randrange(2)
            chain = [trees.add(tree, "BRANCH_EQ", feature, float(value), missing=missing) for value in values]
            last, shared = grow(tree, level + 1), grow(tree, level + 1)
            for number, following in zip(chain, [*chain[1:], last]):
                set_children(tree, number, shared, following)
            return chain[0]
        number = trees.add(tree, draw.choice(["BRANCH_LEQ", "BRANCH_GT"]), feature, draw.uniform(0, 8))
        last, first = grow(tree, level + 1), grow(tree, level + 1)
        set_children(tree, number, first, last)
        return number

    def set_children(tree, number, true, false):
        [node] = [node for node in trees.nodes if node[:2] == [tree, number]]
        node[5:7] = true, false

    for tree in range(count):
        grow(tree, 0)
    return trees.model()


@pytest.mark.parametrize("seed", range(6))
def test_sets_of_values_lead_to_one_node(seed):
    data, random_numbers = drawn(seed), numpy.random.default_rng(seed)
    x = random_numbers.integers(-1, 9, (200, FEATURES)).astype("float32")
    x[::7, 0], x[1::5, 1], x[2::9, 2] = numpy.nan, 2.5, numpy.inf
    [[theirs]] = networks.all_by_onnx_runtime(data, [{"x": x}])
    compiled = compile_model(data, "trees")
    for number in backends():
        with on_backend(number):
            networks.assert_close(opened("trees", compiled)({"x": x})["y"], theirs, 1e-6)


@pytest.mark.parametrize("children", [(0, 1), (2, 2)], ids=["itself", "a cycle"])
def test_nodes_that_never_end_are_refused(children):
    trees = Trees()
    trees.add(0, "BRANCH_EQ", true=children[0], false=children[1])
    trees.leaves.append((0, trees.add(0, "LEAF"), 1.0))
    trees.add(0, "BRANCH_EQ", true=0, false=1)
    with pytest.raises(OnnxError, match="has nodes that form no trees: cycles, or children that several trees share"):
        compile_model(trees.model(), "trees")
