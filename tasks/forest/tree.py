"""Decision trees for two classes, grown on rows of numbers; each split is the one with the largest drop of Gini
impurity."""

import math
from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class Leaf:
    """Ends a path: `share` is the share of class 1 among the training rows that reached it."""

    share: float


@dataclass(slots=True, frozen=True)
class Split:
    """Sends a row left where `row[column] <= threshold`, else right."""

    column: int
    threshold: float
    left: object
    right: object


def grow(rows, labels, random, depth):
    """A tree over `rows` (equally long lists of numbers) and `labels` (0 or 1), at most `depth` splits deep.

    Each split considers a random choice of columns, as many as the square root of their number.
    """
    ones = sum(labels)
    if depth == 0 or ones in (0, len(labels)):
        return Leaf(ones / len(labels))
    width = len(rows[0])
    best = None
    for column in random.sample(range(width), math.isqrt(width)):
        found = best_threshold([row[column] for row in rows], labels, ones)
        if found is not None and (best is None or found < best[0]):
            best = found, column
    if best is None:
        return Leaf(ones / len(labels))
    (_, threshold), column = best
    left = [number for number, row in enumerate(rows) if row[column] <= threshold]
    right = [number for number, row in enumerate(rows) if row[column] > threshold]
    return Split(
        column,
        threshold,
        grow([rows[number] for number in left], [labels[number] for number in left], random, depth - 1),
        grow([rows[number] for number in right], [labels[number] for number in right], random, depth - 1),
    )


def best_threshold(column, labels, ones):
    """`(impurity, threshold)` of the best cut through one column, or None if all its values are the same."""
    order = sorted(zip(column, labels))
    count = len(order)
    best = None
    left_ones = 0
    for left_count in range(1, count):
        value, label = order[left_count - 1]
        left_ones += label
        following = order[left_count][0]
        if value == following:
            continue
        right_count, right_ones = count - left_count, ones - left_ones
        impurity = (
            left_ones * (left_count - left_ones) / left_count + right_ones * (right_count - right_ones) / right_count
        )
        if best is None or impurity < best[0]:
            best = impurity, (value + following) / 2
    return best


def share(tree, row):
    """The share of class 1 if `row` ends up in `tree`."""
    while isinstance(tree, Split):
        tree = tree.left if row[tree.column] <= tree.threshold else tree.right
    return tree.share
