"""Feature importance."""

import vmhost.engine.numpy as np
from vmhost.engine.embedding import Ragged


def permutation_importance(score, columns, names=None, *, repeats=3, seed=0):
    """How much worse `score(columns)` gets when the values of one column are shuffled among the examples (Breiman
    2001): a dict of names to means over `repeats` shuffles, most important first. A useless column is near 0.

    score: a function of columns by name (as FeatureSpec.transform takes them) that returns a number, higher being
        better.
    columns: by name.
    names: of columns; or a dict of names to tuples of columns that are shuffled together (a sequence and its weights).
        None: all columns.
    repeats: number of shuffles.
    seed: of them.
    """
    names = list(columns) if names is None else names
    groups = names if isinstance(names, dict) else {name: (name,) for name in names}
    whole, generator, lost = float(score(columns)), np.random.default_rng(seed), {}
    for name, members in groups.items():
        total = 0.0
        for _ in range(repeats):
            order = generator.permutation(_length(columns[members[0]]))
            shuffled = dict(columns) | {one: _taken(columns[one], order) for one in members}
            total += whole - float(score(shuffled))
        lost[name] = total / repeats
    return dict(sorted(lost.items(), key=lambda one: -one[1]))


def _length(column):
    return len(column.offsets) - 1 if isinstance(column, Ragged) else len(column)


def _taken(column, order):
    if isinstance(column, list):
        return [column[i] for i in order.tolist()]
    if not isinstance(column, Ragged):
        return np.asarray(column)[order]
    values, offsets = np.asarray(column.values), np.asarray(column.offsets, "int64")
    counts = (offsets[1:] - offsets[:-1])[order]
    ends = np.concatenate([np.zeros(1, "int64"), np.cumsum(counts)])
    at = np.arange(int(ends[-1])) - np.repeat(ends[:-1] - offsets[:-1][order], counts)
    return Ragged(values[at], ends)
