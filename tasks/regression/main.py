"""Multinomial logistic regression, trained in the call: L-BFGS (Liu and Nocedal, 1989) with a line search for Wolfe's
conditions; the penalty is chosen by cross validation over stratified folds, the probabilities are calibrated by a
temperature found with Newton's method (Guo and others, 2017). Reported against the truth: confusion, precision and
recall, log loss, Brier score, areas under ROC curves.
"""

import vmhost.engine.numpy as np

MEMORY = 8  # steps that L-BFGS stores
SUFFICIENT, CURVATURE = 1e-4, 0.9  # Wolfe's constants
PENALTIES = (1e-4, 1e-3, 1e-2)
FOLDS = 3
BINS = 10  # of the reliability diagram


# ---- the model
def softmax(scores):
    """Probabilities from scores, row by row."""
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


class Scale:
    """Columns with mean 0 and standard deviation 1 over the training samples, after a column of ones."""

    def __init__(self, samples):
        self.mean, spread = samples.mean(axis=0), samples.std(axis=0)
        self.spread = np.where(spread > 0, spread, 1.0)

    def __call__(self, samples):
        return np.hstack([np.ones((len(samples), 1)), (samples - self.mean) / self.spread])


def objective(samples, targets, classes, penalty):
    """A function of flat weights that returns the mean cross entropy, with the penalty on all but the bias, and its
    gradient."""
    wanted = np.zeros((len(targets), classes))
    wanted[np.arange(len(targets)), targets] = 1.0

    def loss_and_gradient(flat):
        weights = flat.reshape(-1, classes)
        scores = samples @ weights
        scores -= scores.max(axis=1, keepdims=True)
        logarithms = np.log(np.exp(scores).sum(axis=1))
        loss = (logarithms - (scores * wanted).sum(axis=1)).mean()
        gradient = samples.T @ (np.exp(scores - logarithms[:, np.newaxis]) - wanted) / len(targets)
        gradient[1:] += penalty * weights[1:]
        return float(loss + 0.5 * penalty * np.square(weights[1:]).sum()), gradient.ravel()

    return loss_and_gradient


# ---- minimising
def direction_of(gradient, steps, changes):
    """The quasi-Newton direction, by the two-loop recursion over the stored steps and gradient changes."""
    direction, factors = -gradient, []
    for step, change in zip(reversed(steps), reversed(changes), strict=True):
        factor = (step @ direction) / (change @ step)
        direction = direction - factor * change
        factors.append(factor)
    if steps:
        direction = direction * (steps[-1] @ changes[-1]) / (changes[-1] @ changes[-1])
    for step, change, factor in zip(steps, changes, reversed(factors), strict=True):
        direction = direction + step * (factor - (change @ direction) / (change @ step))
    return direction


def line_search(function, point, loss, gradient, direction, max_steps=25):
    """(step length, point, loss, gradient) under Wolfe's conditions, by halving and doubling; the best one found if
    none meets them."""
    low, high, length = 0.0, np.inf, 1.0
    slope = float(gradient @ direction)
    for _ in range(max_steps):
        there = point + length * direction
        new_loss, new_gradient = function(there)
        if new_loss > loss + SUFFICIENT * length * slope:
            high = length
        elif float(new_gradient @ direction) < CURVATURE * slope:
            low = length
        else:
            break
        length = (low + high) / 2 if np.isfinite(high) else 2 * length
    return length, there, new_loss, new_gradient


def minimise(function, start, rounds=100, tolerance=1e-5):
    """(point, losses) of a minimum: iterates until no entry of the gradient is above `tolerance`."""
    point, steps, changes = start, [], []
    loss, gradient = function(point)
    losses = [loss]
    for _ in range(rounds):
        if np.abs(gradient).max() <= tolerance:
            break
        direction = direction_of(gradient, steps, changes)
        _, new, loss, new_gradient = line_search(function, point, loss, gradient, direction)
        step, change = new - point, new_gradient - gradient
        if step @ change > 1e-12:
            steps, changes = [*steps, step][-MEMORY:], [*changes, change][-MEMORY:]
        point, gradient = new, new_gradient
        losses.append(loss)
    return point, np.array(losses)


def train(samples, targets, classes, penalty, rounds=100):
    """Weights (columns, classes), and the loss after each round."""
    flat, losses = minimise(objective(samples, targets, classes, penalty), np.zeros(samples.shape[1] * classes), rounds)
    return flat.reshape(-1, classes), losses


# ---- choosing the penalty
def folds_of(targets, count, random):
    """A fold's number for each sample; every class is spread evenly over all folds."""
    fold = np.empty(len(targets), dtype=np.int64)
    for kind in np.unique(targets):
        places = random.permutation(np.flatnonzero(targets == kind))
        fold[places] = np.arange(len(places)) % count
    return fold


def cross_validated(samples, targets, classes, penalties, random):
    """Mean log loss (penalties,) on held-out folds, and the scores (n, classes) with the best penalty, each sample's
    from weights that did not see it."""
    fold = folds_of(targets, FOLDS, random)
    scores = np.zeros((len(penalties), len(targets), classes))
    for number in range(FOLDS):
        held = fold == number
        for i, penalty in enumerate(penalties):
            weights, _ = train(samples[~held], targets[~held], classes, penalty, rounds=30)
            scores[i, held] = samples[held] @ weights
    losses = np.array([log_loss(softmax(each), targets) for each in scores])
    return losses, scores[losses.argmin()]


def temperature_of(scores, targets, rounds=30):
    """The divisor of scores for which probabilities match frequencies, by Newton's method on the log loss of its
    inverse."""
    inverse, rows = 1.0, np.arange(len(targets))
    for _ in range(rounds):
        chances = softmax(scores * inverse)
        mean = (chances * scores).sum(axis=1)
        slope = (mean - scores[rows, targets]).mean()
        bend = ((chances * scores**2).sum(axis=1) - mean**2).mean()
        step = slope / bend
        inverse = max(inverse - step, inverse / 4)
        if abs(step) < 1e-10:
            break
    return float(1 / inverse)


# ---- quality
def log_loss(chances, targets):
    return float(-np.log(np.clip(chances[np.arange(len(targets)), targets], 1e-300, None)).mean())


def confusion(targets, answers, classes):
    """How often each class (row) was predicted as each (column)."""
    return np.bincount(targets * classes + answers, minlength=classes**2).reshape(classes, classes)


def precision_recall(table):
    """Precision, recall and their harmonic mean for each class, (3, classes); 0 if undefined."""
    right = np.diagonal(table).astype(np.float64)
    precision, recall = (right / np.maximum(table.sum(axis=axis), 1) for axis in (0, 1))
    both = precision + recall
    return np.stack(
        [precision, recall, np.where(both > 0, 2 * precision * recall / np.where(both > 0, both, 1.0), 0.0)]
    )


def reliability(chances, targets):
    """(bins, 3): the number of answers in each confidence bin, their confidence, and the share of right ones; and the
    expected calibration error."""
    sure, right = chances.max(axis=1), chances.argmax(axis=1) == targets
    places = np.clip(np.digitize(sure, np.linspace(0, 1, BINS + 1)) - 1, 0, BINS - 1)
    counts = np.bincount(places, minlength=BINS)
    sums = [np.bincount(places, weights=values, minlength=BINS) for values in (sure, right.astype(np.float64))]
    means = np.stack(sums) / np.maximum(counts, 1)
    return np.column_stack([counts, *means]), float((counts * np.abs(means[0] - means[1])).sum() / len(targets))


def brier(chances, targets):
    """Mean squared distance of the probabilities from the truth."""
    wanted = np.eye(chances.shape[1])[targets]
    return float(((chances - wanted) ** 2).sum(axis=1).mean())


def ranks(values):
    """Ranks from 1; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return ((last - counts + 1 + last) / 2)[inverse]


def areas(chances, targets):
    """For each class the probability that one of its samples scores above one of another: the area under its ROC
    curve."""
    found = np.empty(chances.shape[1])
    for kind in range(len(found)):
        own = targets == kind
        inside, outside = int(own.sum()), int((~own).sum())
        found[kind] = (ranks(chances[:, kind])[own].sum() - inside * (inside + 1) / 2) / max(inside * outside, 1)
    return found


def run(value):
    """{"images": (n, d), "labels": (n,), "asked": (m, d), "truth": (m,), "seed": s, "penalties": list} -> answers (m,)
    and figures.

    Images are any samples; labels are 0, 1, …"""
    images, labels = np.asarray(value["images"], dtype=np.float64), np.asarray(value["labels"], dtype=np.int64)
    asked, truth = np.asarray(value["asked"], dtype=np.float64), np.asarray(value["truth"], dtype=np.int64)
    random = np.random.Generator(np.random.Philox(value.get("seed", 0)))
    penalties, classes = list(value.get("penalties", PENALTIES)), int(labels.max()) + 1
    scale = Scale(images)
    samples = scale(images)
    validation, held_out = cross_validated(samples, labels, classes, penalties, random)
    penalty, temperature = penalties[int(validation.argmin())], temperature_of(held_out, labels)
    weights, losses = train(samples, labels, classes, penalty)
    scores = scale(asked) @ weights
    chances = softmax(scores / temperature)
    answers = chances.argmax(axis=1)
    table = confusion(truth, answers, classes)
    diagram, error = reliability(chances, truth)
    second = np.argsort(chances, axis=1)[:, -2:]
    return {
        "answers": answers,
        "accuracy": float((answers == truth).mean()),
        "among_two": float((second == truth[:, np.newaxis]).any(axis=1).mean()),
        "losses": losses,
        "validation": validation,
        "penalty": penalty,
        "temperature": temperature,
        "confusion": table,
        "precision_recall": precision_recall(table),
        "reliability": diagram,
        "calibration_error": error,
        "log_loss": log_loss(chances, truth),
        "uncalibrated": log_loss(softmax(scores), truth),
        "brier": brier(chances, truth),
        "areas": areas(chances, truth),
    }
