"""Linear discriminant analysis: classes distinguished by their means and a shared covariance."""

import vmhost.engine.numpy as np

RIDGE = 0.1  # of the mean variance, added to the diagonal: regularizes a covariance from few examples


def fit(rows, labels, classes):
    """Weights (width, classes) and biases (classes,) such that `rows @ weights + biases` is largest for a row's class.

    `rows` is (n, width), `labels` (n,) with integers below `classes`, each at least once.
    """
    rows = rows.astype("float64")
    members = (labels[:, None] == np.arange(classes)).astype("float64")
    means = (members.T @ rows) / members.sum(axis=0)[:, None]
    apart = rows - means[labels]
    covariance = (apart.T @ apart) / len(rows)
    width = covariance.shape[0]
    variances = covariance[np.arange(width), np.arange(width)]
    ridge = np.where(np.arange(width)[:, None] == np.arange(width), RIDGE * variances.mean(), 0.0)
    weights = solve(covariance + ridge, means.T)
    return weights.astype("float32"), (-0.5 * (means.T * weights).sum(axis=0)).astype("float32")


def solve(matrix, right):
    """`x` with `matrix @ x == right`, for a symmetric positive definite matrix (n, n) and right sides (n, m), by
    Gauss-Jordan elimination.

    Such a matrix needs no pivoting.
    """
    left, right = np.copy(matrix), np.copy(right)
    for number in range(left.shape[0]):
        factors = left[:, number] / left[number, number]
        factors[number] = 0
        right -= factors[:, None] * right[number]
        left -= factors[:, None] * left[number]
    diagonal = np.arange(left.shape[0])
    return right / left[diagonal, diagonal][:, None]
