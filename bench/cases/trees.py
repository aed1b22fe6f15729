"""Gradient-boosted trees, 500 of up to 64 leaves, which LightGBM trains on seeded data: rows of 28 numbers, 1 and 1,000
at a time, on one thread, beside LightGBM's own predictor, treelite (C code of tl2cgen, compiled) and ONNX Runtime. All
have the same trees; their predictions are compared first.

Peers that are missing are left out; without LightGBM there are no trees: pip install lightgbm treelite tl2cgen."""

import sys
import tempfile
from pathlib import Path

import numpy
from onnx import TensorProto, helper

from bench.cases.others import _onnx_runtime
from bench.measure import Result, interleaved, per_call_us
from vmhost.engine import library
from vmhost.engine.models import opened
from vmhost.engine.onnx import compile_model

TREES, LEAVES, FEATURES = 500, 64, 28
REACH = 1.2  # promised multiple of the fastest peer's speed
VARIANTS = 16  # inputs that a contender sees in turn


def run(quick):
    try:
        import lightgbm
    except ImportError:
        print("trees: LightGBM is not installed; pip install lightgbm treelite tl2cgen", file=sys.stderr)
        return []
    booster = _trained(lightgbm, quick)
    data = as_onnx(booster.dump_model()).SerializeToString()
    library.set_threads(1)
    contenders = {"in the host": opened("trees", compile_model(data, "trees"))}
    contenders["ONNX Runtime"] = _onnx_runtime(data, 1)
    contenders["LightGBM"] = lambda given: {"y": booster.predict(given["x"], num_threads=1)[:, None]}
    results = []
    with tempfile.TemporaryDirectory() as folder:
        compiled = _treelite(booster, Path(folder))
        if compiled is not None:
            contenders["treelite"] = compiled
        for count in (1, 1000):
            inputs = [
                {"x": numpy.random.default_rng(number).standard_normal((count, FEATURES), "float32")}
                for number in range(VARIANTS)
            ]
            expected = contenders["LightGBM"](inputs[0])["y"]
            for name, contender in contenders.items():
                numpy.testing.assert_allclose(contender(inputs[0])["y"], expected, rtol=1e-4, atol=1e-4, err_msg=name)
            turns = {
                name: _turns(contender, inputs, 20 if quick else 20_000 // count)
                for name, contender in contenders.items()
            }
            figures = interleaved(turns, 1 if quick else 5, "us", "less")
            ours = figures["in the host"]
            ratios = {name: ours.advantage_over(figure) for name, figure in figures.items() if name != "in the host"}
            fastest = min(ratios, key=ratios.get)
            results.append(
                Result(
                    f"{TREES} trees of {LEAVES} leaves, {count:,} {'row' if count == 1 else 'rows'}",
                    figures,
                    ((f"{ratios[fastest]:.2f} times the speed of {fastest} ({REACH})", ratios[fastest] >= REACH),),
                    ratios=ratios,
                )
            )
    return results


def _turns(contender, inputs, count):
    def call(number=iter(range(10**9))):
        contender(inputs[next(number) % VARIANTS])

    return lambda: per_call_us(call, count)


def _trained(lightgbm, quick):
    random = numpy.random.default_rng(0)
    x = random.standard_normal((4_000 if quick else 40_000, FEATURES))
    y = numpy.sin(x[:, :4]).sum(1) + x[:, 4] * x[:, 5] + 0.1 * random.standard_normal(len(x))
    options = {"num_leaves": LEAVES, "learning_rate": 0.05, "verbose": -1, "num_threads": 1, "seed": 0}
    return lightgbm.train(options, lightgbm.Dataset(x, y), TREES)


def as_onnx(model):
    """The ModelProto of LightGBM's dump of a regression."""
    names = "treeids nodeids featureids modes values truenodeids falsenodeids missing_value_tracks_true"
    nodes = {f"nodes_{name}": [] for name in names.split()}
    leaves = {f"target_{name}": [] for name in ("treeids", "nodeids", "ids", "weights")}

    def add(tree, node, numbers):
        own = next(numbers)
        at = len(nodes["nodes_treeids"])
        for values in nodes.values():
            values.append(0)
        nodes["nodes_treeids"][at], nodes["nodes_nodeids"][at] = tree, own
        if "leaf_value" in node:
            nodes["nodes_modes"][at], nodes["nodes_values"][at] = "LEAF", 0.0
            for values, value in zip(leaves.values(), (tree, own, 0, node["leaf_value"])):
                values.append(value)
            return own
        # thresholds are float64, rows float32: the largest float32 that is not above a threshold decides alike
        threshold = numpy.float32(node["threshold"])
        if threshold > node["threshold"]:
            threshold = numpy.nextafter(threshold, numpy.float32(-numpy.inf))
        nodes["nodes_modes"][at], nodes["nodes_values"][at] = "BRANCH_LEQ", float(threshold)
        nodes["nodes_featureids"][at] = node["split_feature"]
        nodes["nodes_truenodeids"][at] = add(tree, node["left_child"], numbers)
        nodes["nodes_falsenodeids"][at] = add(tree, node["right_child"], numbers)
        return own

    for number, tree in enumerate(model["tree_info"]):
        add(number, tree["tree_structure"], iter(range(10**6)))
    node = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1, **nodes, **leaves)
    graph = helper.make_graph(
        [node],
        "trees",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", FEATURES])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1])],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _treelite(booster, folder):
    """treelite's predictor in compiled C; None if it is not installed, or no compiler is."""
    try:
        import tl2cgen
        import treelite
    except ImportError:
        return None
    model = treelite.frontend.from_lightgbm(booster)
    tl2cgen.export_lib(
        model, toolchain="gcc", libpath=str(folder / "trees.so"), params={"parallel_comp": 2}, verbose=False
    )
    predictor = tl2cgen.Predictor(str(folder / "trees.so"), nthread=1, verbose=False)
    return lambda given: {"y": predictor.predict(tl2cgen.DMatrix(given["x"], dtype="float32")).reshape(-1, 1)}
