"""Groups among images: principal components with whitening, then k-means started by k-means++ (Arthur and Vassilvitskii, 2007)."""

import engine.numpy as np

COMPONENTS, ROUNDS, STARTS = 12, 60, 4


def components(samples, count):
    """Mean, directions and spread of the `count` directions in which the samples vary most."""
    mean = samples.mean(axis=0)
    u, s, vh = np.linalg.svd(samples - mean, full_matrices=False)
    # a direction's sign is free: the largest weight is positive
    signs = np.sign(vh[np.arange(len(vh)), np.abs(vh).argmax(axis=1)])
    vh = vh * signs[:, np.newaxis]
    spread = s / np.sqrt(len(samples) - 1)
    return mean, vh[:count], spread[:count]


def whiten(samples, mean, directions, spread):
    """Coordinates along the directions, each with variance 1."""
    return (samples - mean) @ directions.T / spread


def distances(points, centres):
    """Squared distances of every point to every centre."""
    squares = (points**2).sum(axis=1)[:, None] - 2 * points @ centres.T + (centres**2).sum(axis=1)
    return np.maximum(squares, 0)


def first_centres(points, count, random):
    """Centres far from each other: each next one is drawn with chances that grow with the squared distance."""
    centres = points[random.integers(len(points), size=1)]
    while len(centres) < count:
        nearest = distances(points, centres).min(axis=1)
        chosen = random.choice(len(points), p=nearest / nearest.sum())
        centres = np.vstack([centres, points[chosen]])
    return centres


def k_means(points, centres):
    """Moves each centre to the mean of its points until no point changes its group."""
    groups = np.full(len(points), -1)
    for _ in range(ROUNDS):
        squares = distances(points, centres)
        new = squares.argmin(axis=1)
        if np.array_equal(new, groups):
            break
        groups = new
        members = np.equal.outer(np.arange(len(centres)), groups).astype(points.dtype)
        sizes = members.sum(axis=1)
        means = members @ points / np.maximum(sizes, 1)[:, None]
        centres = np.where((sizes > 0)[:, None], means, centres)
    return groups, centres, np.take_along_axis(squares, groups[:, None], axis=1).sum()


def purity(groups, labels):
    """The share of images whose label is the most frequent one of their group."""
    counts = np.zeros((groups.max() + 1, labels.max() + 1), dtype=np.int64)
    np.add.at(counts, (groups, labels), 1)
    return counts.max(axis=1).sum() / len(labels)


def run(value):
    """{"images": (n, 64), "labels": (n,), "groups": k, "seed": s} -> groups, inertia, purity, spread."""
    samples = np.asarray(value["images"], dtype=np.float64)
    labels = np.asarray(value["labels"], dtype=np.int64)
    random = np.random.Generator(np.random.Philox(value.get("seed", 0)))
    mean, directions, spread = components(samples, COMPONENTS)
    points = whiten(samples, mean, directions, spread)
    best = None
    for _ in range(STARTS):
        found = k_means(points, first_centres(points, value.get("groups", 10), random))
        if best is None or found[2] < best[2]:
            best = found
    groups, centres, inertia = best
    return {"groups": groups, "centres": centres, "inertia": float(inertia), "purity": float(purity(groups, labels)), "spread": spread}
