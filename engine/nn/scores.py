"""Scores of click predictions."""

from typing import NamedTuple

import vmhost.engine.numpy as np


def auc(labels, scores):
    """The probability that an example with label 1 has a higher score than one with label 0, with ties counted as half.
    ValueError if one of the labels is missing."""
    labels, scores = _pair(labels, scores)
    positive = int(np.count_nonzero(labels))
    negative = labels.size - positive
    if not positive or not negative:
        raise ValueError("AUC needs examples of both labels")
    _, value_of, counts = np.unique(scores, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - (counts - 1) / 2)[value_of]  # ranks from 1 on; tied scores share their mean rank
    return (float(np.sum(ranks[labels])) - positive * (positive + 1) / 2) / (positive * negative)


def gauc(labels, scores, groups):
    """The mean of the AUC within each group (a user, a session), weighted by its examples; groups with one label only
    are skipped (Zhou et al., KDD 2018, section 5.3). ValueError if there are no others."""
    labels, scores = _pair(labels, scores)
    groups = np.asarray(groups).ravel()
    if groups.shape != labels.shape:
        raise ValueError(f"{labels.size} labels, {groups.size} groups")
    _, group = np.unique(groups, return_inverse=True)
    # examples by group, then score: tied scores of a group are adjacent
    order = np.argsort(scores, kind="stable")
    order = order[np.argsort(group[order], kind="stable")]
    group, labels, scores = group[order], labels[order], scores[order]
    new_group = np.concatenate([np.asarray([True]), group[1:] != group[:-1]])
    new_score = np.logical_or(new_group, np.concatenate([np.asarray([True]), scores[1:] != scores[:-1]]))
    begins, groups_of = np.nonzero(new_group)[0], np.cumsum(new_group) - 1
    ties, tie_of = np.nonzero(new_score)[0], np.cumsum(new_score) - 1
    ends = np.concatenate([ties[1:], np.asarray([len(scores)])])
    ranks = (ties + ends + 1)[tie_of] / 2 - begins[groups_of]  # ranks from 1 on within the group
    sizes = np.concatenate([begins[1:], np.asarray([len(scores)])]) - begins
    positive, rank_sums = np.zeros(len(begins)), np.zeros(len(begins))
    np.add.at(positive, groups_of, labels.astype("float64"))
    np.add.at(rank_sums, groups_of, np.where(labels, ranks, 0.0))
    negative = sizes - positive
    both = np.logical_and(positive > 0, negative > 0)
    if not both.any():
        raise ValueError("GAUC needs a group with examples of both labels")
    positive, negative, sizes = positive[both], negative[both], sizes[both]
    each = (rank_sums[both] - positive * (positive + 1) / 2) / (positive * negative)
    return float(np.sum(each * sizes) / np.sum(sizes))


def log_loss(labels, probabilities):
    labels, clipped = np.asarray(labels, "float64"), np.clip(np.asarray(probabilities, "float64"), 1e-12, 1 - 1e-12)
    return -float(np.mean(labels * np.log(clipped) + (1 - labels) * np.log(1 - clipped)))


class Calibration(NamedTuple):
    """The accuracy of probabilities: `ratio`, the sum of probabilities divided by the sum of labels (ideally 1);
    `error`, their mean absolute difference in bins, weighted by examples; `bins`, rows of (examples, mean probability,
    share of label 1), by ascending probability."""

    ratio: float
    error: float
    bins: list


def calibration(labels, probabilities, bins=10):
    """A Calibration with bins of equal numbers of examples. ValueError if no example has label 1."""
    labels, probabilities = _pair(labels, probabilities)
    labels, probabilities = labels.astype("float64"), probabilities.astype("float64")
    if not labels.any():
        raise ValueError("calibration needs examples of label 1")
    order = np.argsort(probabilities, kind="stable")
    count, rows = len(labels), []
    for i in range(min(bins, count)):
        members = order[count * i // min(bins, count) : count * (i + 1) // min(bins, count)]
        rows.append((len(members), float(np.mean(probabilities[members])), float(np.mean(labels[members]))))
    error = sum(size * abs(expected - observed) for size, expected, observed in rows) / count
    return Calibration(float(np.sum(probabilities) / np.sum(labels)), error, rows)


def _pair(labels, scores):
    labels, scores = np.asarray(labels).ravel() > 0, np.asarray(scores).ravel()
    if labels.shape != scores.shape:
        raise ValueError(f"{labels.size} labels, {scores.size} scores")
    if scores.dtype.kind == "f" and np.isnan(scores).any():
        raise ValueError("scores: there are NaNs among them")
    return labels, scores
