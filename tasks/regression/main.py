"""Digits by logistic regression, trained in the call: softmax, cross entropy with a penalty, gradient descent with momentum."""

import engine.numpy as np

CLASSES, ROUNDS, BATCH, RATE, MOMENTUM, PENALTY = 10, 12, 64, 0.1, 0.9, 1e-4


def standardise(images, mean, spread):
    """Pixels with mean 0 and spread 1, and a column of ones in front for the bias."""
    pixels = (images - mean) / np.where(spread > 0, spread, 1.0)
    return np.hstack([np.ones((len(pixels), 1)), pixels])


def softmax(scores):
    """Chances from scores, row by row."""
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def loss_and_gradient(weights, samples, targets):
    """Mean cross entropy with the penalty, and its gradient."""
    chances = softmax(samples @ weights)
    loss = -np.log(np.clip(chances[np.arange(len(targets)), targets], 1e-300, None)).mean()
    errors = chances.copy()
    errors[np.arange(len(targets)), targets] -= 1.0
    gradient = samples.T @ errors / len(targets)
    gradient[1:] += PENALTY * weights[1:]
    return loss + 0.5 * PENALTY * np.square(weights[1:]).sum(), gradient


def train(samples, targets, random):
    """Weights (pixels + 1, classes), and the loss after each round."""
    weights = 0.01 * random.standard_normal((samples.shape[1], CLASSES))
    speed, losses = np.zeros_like(weights), []
    for _ in range(ROUNDS):
        order = random.permutation(len(samples))
        for first in range(0, len(order), BATCH):
            batch = order[first : first + BATCH]
            _, gradient = loss_and_gradient(weights, samples[batch], targets[batch])
            speed = MOMENTUM * speed - RATE * gradient
            weights += speed
        losses.append(float(loss_and_gradient(weights, samples, targets)[0]))
    return weights, losses


def confusion(targets, answers):
    """How often each class (row) was taken for each (column)."""
    return np.bincount(targets * CLASSES + answers, minlength=CLASSES**2).reshape(CLASSES, CLASSES)


def run(value):
    """{"images", "labels", "asked", "truth", "seed"} -> answers, accuracy, losses, confusion."""
    images, labels = np.asarray(value["images"], dtype=np.float64), np.asarray(value["labels"], dtype=np.int64)
    asked, truth = np.asarray(value["asked"], dtype=np.float64), np.asarray(value["truth"], dtype=np.int64)
    random = np.random.Generator(np.random.Philox(value.get("seed", 0)))
    mean, spread = images.mean(axis=0), images.std(axis=0)
    weights, losses = train(standardise(images, mean, spread), labels, random)
    answers = (standardise(asked, mean, spread) @ weights).argmax(axis=1)
    return {"answers": answers, "accuracy": float((answers == truth).mean()), "losses": losses, "confusion": confusion(truth, answers),
            "weights": weights}
