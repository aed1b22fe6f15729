"""Readers of ai.onnx.ml's ensembles of decision trees: one operator of the engine for all trees, whose nodes use one
kind of comparison (engine/src/models/trees.c).

Numbers are mapped to integers in the same order, so that `x < t` is `key(x) <= key(t) - 1` and every comparison is one
"above", or two of them. The path of a missing number (NaN) depends on the key that a node uses: a feature has a key in
which NaN is above all numbers, one in which it is below, or both."""

from typing import NamedTuple

import numpy

from .classifiers import binary_outputs, label_output, labels_of, score_output, transformed
from .lowering import Lowering
from .readers import Unsupported, reads

_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER", "LEAF")
_LEQ, _LT, _GTE, _GT, _EQ, _NEQ, _MEMBER, _LEAF = range(len(_MODES))
_MAX_COUNTING_RANGE = 1 << 22  # largest range for counting instead of sorting
_MAX_TABLE = 1 << 26  # elements of a leaf table
_MAX_SURE_LEVELS = (1 << 12) - 1  # limit in engine/src/models/trees.c
_COMBINES = {"SUM": 0, "AVERAGE": 0, "MIN": 1, "MAX": 2}
_HIGH, _LOW = 0, 1  # position of NaN in the order of keys
_MISSING_NODES = "has nodes that refer to nodes that do not exist"
_NO_TREES = "has nodes that form no trees: cycles, or children that several trees share"


class _Ensemble(NamedTuple):
    """Nodes, including leaves, as parallel arrays: a node leads to `true` if the feature's value is in the relation
    `modes` to the threshold, else to `false`. `members` maps nodes of mode _MEMBER to their set of values. `leaves`
    (nodes), `targets` and `weights` are parallel arrays of leaf values; `roots` are nodes."""

    modes: numpy.ndarray
    features: numpy.ndarray
    thresholds: numpy.ndarray
    true: numpy.ndarray
    false: numpy.ndarray
    missing_is_true: numpy.ndarray
    members: dict
    leaves: numpy.ndarray
    targets: numpy.ndarray
    weights: numpy.ndarray
    roots: numpy.ndarray


def _array(node, name):
    """An attribute as an array: a list of floats, or a tensor under another name; None if there is neither."""
    from onnx import numpy_helper

    tensor = node.get(f"{name}_as_tensor")
    if tensor is not None and not isinstance(tensor, list | tuple):
        return numpy_helper.to_array(tensor)
    return node.attributes.array(name, "float32")


def _integers(node, name, count=None):
    values = node.attributes.array(name, "int64")
    return numpy.zeros(count or 0, "int64") if values is None or not values.size else values


def _classic(node, kind):
    """The ensemble of TreeEnsembleClassifier ("class") or TreeEnsembleRegressor ("target")."""
    thresholds, weights = _array(node, "nodes_values"), _array(node, f"{kind}_weights")
    trees, numbers = _integers(node, "nodes_treeids"), _integers(node, "nodes_nodeids")
    mode_numbers = {mode.encode(): number for number, mode in enumerate(_MODES) if number != _MEMBER}
    names = node.attributes.texts("nodes_modes")
    if not mode_numbers.keys() >= set(names):
        unknown = next(mode for mode in names if mode not in mode_numbers)
        raise Unsupported(f"has nodes of the unknown mode {unknown.decode(errors='replace')!r}")
    columns = [_integers(node, f"nodes_{name}") for name in ("featureids", "truenodeids", "falsenodeids")]
    missing = _integers(node, "nodes_missing_value_tracks_true", len(trees)).astype(bool)
    leaf_columns = [_integers(node, f"{kind}_{name}") for name in ("treeids", "nodeids", "ids")]
    if (
        thresholds is None
        or weights is None
        or {len(trees)} != {*(len(values) for values in (numbers, names, thresholds, missing, *columns))}
    ):
        raise Unsupported("has lists of nodes that differ in length")
    if {len(weights)} != {*map(len, leaf_columns)} or not len(trees):
        raise Unsupported("has lists of leaves that differ in length")
    modes = numpy.fromiter(map(mode_numbers.__getitem__, names), "int64", len(names))
    width = int(max(numbers.max(initial=0), columns[1].max(initial=0), columns[2].max(initial=0))) + 1
    if min(trees.min(), numbers.min(), *(values.min() for values in columns)) < 0 or width > 1 << 31:
        raise Unsupported(_MISSING_NODES)
    keys = trees * width + numbers
    order = numpy.argsort(keys, kind="stable")

    def nodes_of(tree, number, required):
        node_keys = tree * width + number
        nodes = order[numpy.minimum(numpy.searchsorted(keys[order], node_keys), len(keys) - 1)]
        if (required & (keys[nodes] != node_keys)).any():
            raise Unsupported(_MISSING_NODES)
        return nodes

    branches = modes != _LEAF
    _, roots = numpy.unique(trees, return_index=True)  # a tree's first node is its root
    leaves = nodes_of(leaf_columns[0], leaf_columns[1], numpy.True_)
    at_leaves = ~branches[leaves]
    return _Ensemble(
        modes,
        columns[0],
        thresholds,
        nodes_of(trees, columns[1], branches),
        nodes_of(trees, columns[2], branches),
        missing,
        {},
        leaves[at_leaves],
        leaf_columns[2][at_leaves],
        weights[at_leaves],
        roots,
    )


def _newest(node):
    """The ensemble of TreeEnsemble (version 5), whose leaves are a separate list; they are appended to the branches
    here."""
    from onnx import numpy_helper

    thresholds, weights, modes = (
        numpy_helper.to_array(node.get(name)) for name in ("nodes_splits", "leaf_weights", "nodes_modes")
    )
    branches, leaves = len(modes), len(weights)
    if (modes > _MEMBER).any():
        raise Unsupported(f"has nodes of the unknown mode {modes.max()}")
    sides = []
    for side in ("true", "false"):
        children, is_leaf = _integers(node, f"nodes_{side}nodeids"), _integers(node, f"nodes_{side}leafs").astype(bool)
        if (
            len(children) != branches
            or len(is_leaf) != branches
            or (children < 0).any()
            or (children >= numpy.where(is_leaf, leaves, branches)).any()
        ):
            raise Unsupported(_MISSING_NODES)
        sides.append(
            numpy.concatenate([numpy.where(is_leaf, branches + children, children), numpy.zeros(leaves, "int64")])
        )
    members, groups = node.get("membership_values"), [[]]
    if members is not None:
        for value in numpy_helper.to_array(members).tolist():
            if value != value:  # noqa: PLR0124 - NaN ends a group
                groups.append([])
            else:
                groups[-1].append(value)
    roots, targets, features = (_integers(node, name) for name in ("tree_roots", "leaf_targetids", "nodes_featureids"))
    if (roots < 0).any() or (roots >= branches).any() or len(targets) != leaves or len(features) != branches:
        raise Unsupported(_MISSING_NODES)
    return _Ensemble(
        numpy.concatenate([modes.astype("int64"), numpy.full(leaves, _LEAF)]),
        numpy.concatenate([features, numpy.zeros(leaves, "int64")]),
        numpy.concatenate([thresholds, numpy.zeros(leaves, thresholds.dtype)]),
        *sides,
        numpy.concatenate(
            [_integers(node, "nodes_missing_value_tracks_true", branches).astype(bool), numpy.zeros(leaves, bool)]
        ),
        dict(zip(numpy.flatnonzero(modes == _MEMBER).tolist(), groups)),
        numpy.arange(branches, branches + leaves),
        targets,
        weights,
        roots,
    )


def _keys(numbers, dtype):
    """Integers in the order of the numbers; NaN is below all."""
    numbers = numpy.asarray(numbers, f"f{dtype.itemsize}") + 0  # -0 becomes 0
    bits, limits = numbers.view(dtype), numpy.iinfo(dtype)
    return numpy.where(numpy.isnan(numbers), limits.min, numpy.where(bits >= 0, bits, bits ^ limits.max))


def _next_lower(keys):
    """The next lower keys; the lowest key stays."""
    limits = numpy.iinfo(keys.dtype)
    return numpy.where(keys == limits.min, limits.min, keys - (keys != limits.min))


class _Walks(NamedTuple):
    """Nodes with one kind of comparison: to `right` if the feature's key is above theirs, else to `left`. The
    ensemble's nodes come first; `branch` marks branches; `nan` chooses the key."""

    keys: numpy.ndarray
    features: numpy.ndarray
    nan: numpy.ndarray
    left: numpy.ndarray
    right: numpy.ndarray
    branch: numpy.ndarray


def _walks(ensemble, dtype):
    modes, missing, keys = ensemble.modes, ensemble.missing_is_true, _keys(ensemble.thresholds, dtype)
    swapped = (modes == _GT) | (modes == _GTE)
    left = numpy.where(swapped, ensemble.false, ensemble.true)
    right = numpy.where(swapped, ensemble.true, ensemble.false)
    keys = numpy.where((modes == _LT) | (modes == _GTE), _next_lower(keys), keys)
    nan = numpy.where(missing != swapped, _LOW, _HIGH)
    walks = _Walks(keys, ensemble.features, nan, left, right, modes != _LEAF)
    equals = numpy.flatnonzero((modes == _EQ) | (modes == _NEQ) | (modes == _MEMBER)).tolist()
    return _with_equals(ensemble, walks, equals, dtype) if equals else walks


def _with_equals(ensemble, walks, equals, dtype):
    """Replaces each comparison for equality by two comparisons for each value. `x > t` and `x < t` lead to the same
    node, so these nodes have two parents."""
    lists = [values.tolist() for values in walks]
    keys, features, nan, left, right, branch = lists
    for node in equals:
        mode, missing = ensemble.modes[node], bool(ensemble.missing_is_true[node])
        numbers = _keys(ensemble.members[node], dtype).tolist() if mode == _MEMBER else [keys[node]]
        equal, other = (ensemble.false, ensemble.true) if mode == _NEQ else (ensemble.true, ensemble.false)
        equal, other, missing = int(equal[node]), int(other[node]), missing and mode != _NEQ  # NaN equals nothing
        numbers = numbers or [int(numpy.iinfo(dtype).max)]  # equals nothing
        above = node
        for index, number in enumerate(numbers):
            last, below = index == len(numbers) - 1, len(keys)
            following = other if last else below + 1
            keys.append(int(_next_lower(numpy.array(number, dtype))))
            for values, value in ((features, features[node]), (nan, _HIGH), (left, following), (right, equal)):
                values.append(value)
            branch.append(True)
            keys[above], nan[above] = number, _LOW if missing else _HIGH
            left[above], right[above] = below, following
            if not last:  # the next value's comparison, reached from both of this one's
                for values, value in zip(lists, (0, features[node], _HIGH, 0, 0, True)):
                    values.append(value)
                above = following
    kinds = [values.dtype for values in walks]
    return _Walks(*(numpy.array(values, kind) for values, kind in zip(lists, kinds)))


def _levels(walks, roots):
    """Each node's tree and level, the length of the longest path to it; -1 if unreachable. Branches of a tree may lead
    to one node, as converters write sets of values."""
    children, trees, frontier = numpy.stack([walks.left, walks.right], 1), numpy.full(len(walks.keys), -1), roots
    trees[roots] = numpy.arange(len(roots))
    if (trees[roots] != numpy.arange(len(roots))).any():
        raise Unsupported(_NO_TREES)
    while len(frontier):
        inner = frontier[walks.branch[frontier]]
        below, tree_of = children[inner].reshape(-1), numpy.repeat(trees[inner], 2)
        new = trees[below] < 0
        trees[below[new]] = tree_of[new]
        if (trees[below] != tree_of).any():
            raise Unsupported(_NO_TREES)
        frontier = numpy.unique(below[new])
    parents = numpy.bincount(children[walks.branch & (trees >= 0)].reshape(-1), minlength=len(trees))
    levels, frontier, level = numpy.full(len(trees), -1), roots[parents[roots] == 0], 0
    while len(frontier):  # nodes all of whose parents have levels
        levels[frontier] = level
        below = children[frontier[walks.branch[frontier]]].reshape(-1)
        numpy.subtract.at(parents, below, 1)
        below = numpy.unique(below)
        frontier, level = below[parents[below] == 0], level + 1
    if ((trees >= 0) & (levels < 0)).any():
        raise Unsupported(_NO_TREES)
    return trees, levels


def _ensemble_layer(add, x, ensemble, targets, aggregate, base):
    """Adds the layer: [rows, targets] for rows `x`. `base`: initial value of the sums, or None."""
    x_shape = add.shape(x)
    if len(x_shape) == 1:
        x, x_shape = add.reshape(x, (1, *x_shape)), (1, *x_shape)
    if len(x_shape) != 2:
        raise Unsupported(f"works on {len(x_shape)} dimensions, expected rows of features")
    if add.dtype(x) not in (numpy.float32, numpy.float64):
        x = add.cast(x, numpy.float32)
    features, branches = int(x_shape[1]), ensemble.modes != _LEAF
    used_features = ensemble.features[branches]
    if used_features.min(initial=0) < 0 or used_features.max(initial=0) >= features:
        raise Unsupported(f"asks for feature {used_features.max(initial=0)} of {features}")
    if ensemble.targets.min(initial=0) < 0 or ensemble.targets.max(initial=0) >= targets:
        raise Unsupported(f"has a leaf for target {ensemble.targets.max(initial=0)} of {targets}")
    floats = numpy.result_type(ensemble.thresholds, ensemble.weights)
    narrow = add.dtype(x) == floats == numpy.float32 and 2 * features < 1 << 16

    def laid_out():
        layer = _laid_out(ensemble, features, numpy.dtype("int32"), targets, aggregate) if narrow else None
        if layer is None:  # 32 bits do not suffice: children are too far from their parents
            layer = _laid_out(ensemble, features, numpy.dtype("int64"), targets, aggregate)
        return layer

    key = "trees", add.node.output, features, narrow, targets, aggregate
    nodes, trees, values, variants = add.reader.once(key, laid_out)
    names = [
        x,
        add.constant(nodes, nodes.dtype),
        add.constant(trees, "int32"),
        None if values is None else add.constant(values, values.dtype),
        None if base is None else add.constant(base, add.dtype(x)),
    ]
    divisor = len(ensemble.roots) if aggregate == "AVERAGE" else 0
    return add.reader.add_layer(
        "Trees",
        add.node,
        names,
        (x_shape[0], targets),
        add.dtype(x),
        add.fresh("trees"),
        parameters=(_COMBINES[aggregate], divisor, variants),
    )


def _laid_out(ensemble, features, dtype, targets, aggregate):
    """Returns (nodes [count, 2], trees [count, 3], leaf values or None, variants of keys); None if 32-bit nodes do not
    suffice. A tree's nodes are ordered by level, with siblings adjacent."""
    walks, count = _walks(ensemble, dtype), len(ensemble.roots)
    trees, levels = _levels(walks, ensemble.roots)
    inner = numpy.flatnonzero(walks.branch & (levels >= 0))
    inner = inner[numpy.lexsort((levels[inner], trees[inner]))]
    child_positions = numpy.full(len(walks.keys), -1)  # positions of the children
    child_positions[inner] = 2 * numpy.arange(len(inner)) + trees[inner] + 1  # each tree begins with its root
    root_positions = numpy.arange(count) + 2 * numpy.searchsorted(trees[inner], numpy.arange(count))
    node_at = numpy.empty(count + 2 * len(inner), "int64")  # the node at each position
    node_at[root_positions], node_at[child_positions[inner]], node_at[child_positions[inner] + 1] = (
        ensemble.roots,
        walks.left[inner],
        walks.right[inner],
    )
    variants = sum(1 << nan for nan in numpy.flatnonzero(numpy.bincount(walks.nan[inner])).tolist()) or 1
    leaf_slot = features * variants.bit_count()
    feature_slots = walks.features[node_at] + features * ((walks.nan[node_at] == _LOW) & (variants == 3))
    at_branch = walks.branch[node_at]
    child_distances = numpy.where(at_branch, child_positions[node_at] - numpy.arange(len(node_at)), 0)
    bits = 16 if dtype.itemsize == 4 else 32
    if bits == 16 and child_distances.max(initial=0) >= 1 << 16:
        return None
    links = child_distances << bits | numpy.where(at_branch, feature_slots, leaf_slot)
    values, leaf_contents, tree_targets = _leaf_values(ensemble, trees, targets, aggregate, dtype)
    keys = numpy.where(at_branch, walks.keys[node_at], leaf_contents[numpy.minimum(node_at, len(leaf_contents) - 1)])
    nodes = numpy.stack([keys.astype(dtype), links.astype(f"u{dtype.itemsize}").view(dtype)], 1)
    reached_leaves = numpy.flatnonzero(~walks.branch & (levels >= 0))
    min_levels, max_levels = numpy.full(count, _MAX_SURE_LEVELS), numpy.zeros(count, "int64")
    numpy.minimum.at(min_levels, trees[reached_leaves], levels[reached_leaves])
    numpy.maximum.at(max_levels, trees[reached_leaves], levels[reached_leaves])
    order = numpy.lexsort((min_levels, max_levels))  # neighbouring walks have similar lengths
    return nodes, numpy.stack([root_positions, tree_targets, min_levels], 1)[order].astype("int32"), values, variants


def _leaf_values(ensemble, trees, targets, aggregate, dtype):
    """Returns (table [leaves, targets] or None, contents of the leaf nodes, target of each tree). A leaf contains its
    value if each tree has a single target, else its row in the table."""
    filler = {"MIN": numpy.inf, "MAX": -numpy.inf}.get(aggregate, 0)
    combine = {"MIN": numpy.minimum, "MAX": numpy.maximum}.get(aggregate, numpy.add)
    reached = trees[ensemble.leaves] >= 0
    leaves, leaf_targets, weights = (
        values[reached] for values in (ensemble.leaves, ensemble.targets, ensemble.weights)
    )
    pairs, tree_targets = trees[leaves] * targets + leaf_targets, numpy.zeros(len(ensemble.roots), "int64")
    countable = len(tree_targets) * targets <= _MAX_COUNTING_RANGE
    pairs = numpy.flatnonzero(numpy.bincount(pairs)) if countable else numpy.unique(pairs)
    if (numpy.diff(pairs // targets) > 0).all():
        tree_targets[pairs // targets] = pairs % targets
        values = numpy.full(len(ensemble.modes), filler, f"f{dtype.itemsize}")
        combine.at(values, leaves, weights)
        return None, values.view(dtype), tree_targets
    rows = numpy.cumsum(ensemble.modes == _LEAF) - 1
    count = int(rows[-1]) + 1
    if count * targets > _MAX_TABLE:
        raise Unsupported(f"has {count:,} leaves for {targets:,} targets: more than the engine takes")
    values = numpy.full((count, targets), filler, ensemble.weights.dtype)
    combine.at(values, (rows[leaves], leaf_targets), weights)
    return values, rows, tree_targets


@reads("ai.onnx.ml.TreeEnsembleRegressor")
def regressor(reader, node):
    add, targets = Lowering(reader, node), node.get("n_targets", 1)
    ensemble = reader.once(("ensemble", node.output), lambda: _classic(node, "target"))
    if targets == 1:  # like ONNX Runtime, which uses only the first number of a leaf
        _, firsts = numpy.unique(ensemble.leaves, return_index=True)
        firsts.sort()
        parts = (ensemble.leaves[firsts], ensemble.targets[firsts], ensemble.weights[firsts])
        ensemble = ensemble._replace(leaves=parts[0], targets=parts[1], weights=parts[2])
    base = _array(node, "base_values")
    if base is not None and len(base) == 1:
        base = numpy.broadcast_to(base, (targets,))
    scores = _ensemble_layer(add, node.inputs[0], ensemble, targets, node.get("aggregate_function", "SUM"), base)
    add.done(transformed(add, add.cast(scores, numpy.float32), node.get("post_transform", "NONE")))


@reads("ai.onnx.ml.TreeEnsemble")
def newest(reader, node):
    add, ensemble = Lowering(reader, node), reader.once(("ensemble", node.output), lambda: _newest(node))
    aggregate = ("AVERAGE", "SUM", "MIN", "MAX")[node.get("aggregate_function", 1)]
    transform = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")[node.get("post_transform", 0)]
    dtype = add.dtype(node.inputs[0])
    scores = _ensemble_layer(add, node.inputs[0], ensemble, node.get("n_targets"), aggregate, None)
    add.done(transformed(add, add.cast(scores, dtype), transform))


@reads("ai.onnx.ml.TreeEnsembleClassifier")
def classifier(reader, node):
    add, labels = Lowering(reader, node), labels_of(node)
    ensemble = reader.once(("ensemble", node.output), lambda: _classic(node, "class"))
    base, transform = _array(node, "base_values"), node.get("post_transform", "NONE")
    ids, positive = set(ensemble.targets.tolist()), bool((ensemble.weights >= 0).all())
    if len(labels) == 2 and ids == {0} and (base is None or len(base) == 1):  # a single score, that of the second class
        score = add.cast(_ensemble_layer(add, node.inputs[0], ensemble, 1, "SUM", base), numpy.float32)
        binary_outputs(add, labels, score, transform, positive)
        return
    if base is not None and len(base) != len(labels):
        raise Unsupported(f"has {len(base)} base values for {len(labels)} classes")
    scores = add.cast(_ensemble_layer(add, node.inputs[0], ensemble, len(labels), "SUM", base), numpy.float32)
    if len(labels) == 2 and ids == {1} and base is None:  # the first class's score is 0, but is not the threshold
        class_index = add.cast(add.do("greater", add.part(scores, 1, 1, 2), 0.5 if positive else 0), numpy.int64)
    elif base is None and len(ids) < len(labels):  # classes without leaves are never chosen
        offsets = numpy.array([0 if number in ids else -numpy.inf for number in range(len(labels))], "float32")
        class_index = add.reduce("argmax", add.do("add", scores, offsets), [1])
    else:
        class_index = add.reduce("argmax", scores, [1])
    label_output(add, labels, class_index)
    score_output(add, transformed(add, scores, transform))
