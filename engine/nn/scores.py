"""How good predictions of clicks are."""

import vmhost.engine.numpy as np


def auc(labels, scores):
    """The probability that an example of label 1 has a higher score than one of label 0, equals counted half.
    ValueError where one of the labels is not there."""
    labels, scores = np.asarray(labels).ravel() > 0, np.asarray(scores).ravel()
    if labels.shape != scores.shape:
        raise ValueError(f"{labels.size} labels, {scores.size} scores")
    positive = int(np.count_nonzero(labels))
    negative = labels.size - positive
    if not positive or not negative:
        raise ValueError("AUC needs examples of both labels")
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - (counts - 1) / 2)[places]  # from 1 on; equals share the middle of their places
    return (float(np.sum(ranks[labels])) - positive * (positive + 1) / 2) / (positive * negative)


def log_loss(labels, probabilities):
    labels, kept = np.asarray(labels, "float64"), np.clip(np.asarray(probabilities, "float64"), 1e-12, 1 - 1e-12)
    return -float(np.mean(labels * np.log(kept) + (1 - labels) * np.log(1 - kept)))
