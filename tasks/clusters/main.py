"""Unsupervised groups of images: principal components with whitening, k-means, and measures of the groups' quality.

Samples are projected onto the directions of largest variance, as many as carry a given share of it, and scaled to
variance 1 along each. k-means starts from distant centres (k-means++ of Arthur and Vassilvitskii, 2007, with several
candidates for each centre), several times, and the tightest grouping is kept. The number of groups is chosen by the
silhouette (Rousseeuw, 1987). Where labels are known, groups are compared with them: purity, adjusted Rand index,
normalized mutual information.
"""

import vmhost.engine.numpy as np

SHARE = 0.6  # of the variance, carried by the kept components
ROUNDS, TOLERANCE = 100, 1e-6
BLOCK = 256  # rows whose distances to all others are in memory at once


# ---- principal components
class Components:
    """The directions of largest variance. `mean` (d,), `directions` (k, d) of unit length, `spread` (k,) standard
    deviations, `shares` (k,) of the variance."""

    def __init__(self, samples, share):
        self.mean = samples.mean(axis=0)
        _, singular, turned = np.linalg.svd(samples - self.mean, full_matrices=False)
        # the sign of a direction is arbitrary: make the largest weight positive
        signs = np.sign(turned[np.arange(len(turned)), np.abs(turned).argmax(axis=1)])
        turned = turned * signs[:, np.newaxis]
        variances = singular**2 / (len(samples) - 1)
        shares = variances / variances.sum()
        count = int(np.searchsorted(np.cumsum(shares), share)) + 1
        self.directions, self.spread, self.shares = turned[:count], np.sqrt(variances[:count]), shares[:count]

    def whiten(self, samples):
        """Coordinates along the directions, each with variance 1."""
        return (samples - self.mean) @ self.directions.T / self.spread

    def restore(self, points):
        """The samples with these coordinates, without the omitted directions."""
        return (points * self.spread) @ self.directions + self.mean

    def left_out(self, samples):
        """Root mean square of what the directions omit of each sample."""
        return np.sqrt(np.mean((self.restore(self.whiten(samples)) - samples) ** 2, axis=1))


# ---- k-means
def distances(points, centres):
    """Squared distances of every point to every centre, (n, k)."""
    squares = (points**2).sum(axis=1)[:, np.newaxis] - 2 * points @ centres.T + (centres**2).sum(axis=1)
    return np.maximum(squares, 0)


def first_centres(points, count, random):
    """Distant centres: each next one is the best of some candidates, drawn with probability proportional to the squared
    distance."""
    tries = 2 + int(np.log(count))
    chosen = np.empty(count, dtype=np.int64)
    chosen[0] = random.integers(len(points))
    nearest = distances(points, points[chosen[:1]])[:, 0]
    for i in range(1, count):
        drawn = random.choice(len(points), size=tries, p=nearest / nearest.sum())
        candidates = np.minimum(nearest[:, np.newaxis], distances(points, points[drawn]))
        best = candidates.sum(axis=0).argmin()
        chosen[i], nearest = drawn[best], candidates[:, best]
    return points[chosen]


def moved(points, groups, squares, count):
    """The mean of each group's points; an empty group takes the worst fitting point of another."""
    sizes = np.bincount(groups, minlength=count)
    sums = np.zeros((count, points.shape[1]))
    np.add.at(sums, groups, points)
    centres = sums / np.maximum(sizes, 1)[:, np.newaxis]
    empty = np.flatnonzero(sizes == 0)
    if empty.size:
        own = np.take_along_axis(squares, groups[:, np.newaxis], axis=1)[:, 0]
        centres[empty] = points[np.argsort(own)[::-1][: empty.size]]
    return centres


def k_means(points, centres):
    """(groups, centres, sum of squared distances, rounds): moves centres until they are stable."""
    scale = points.var(axis=0).mean()
    for rounds in range(1, ROUNDS + 1):
        squares = distances(points, centres)
        groups = squares.argmin(axis=1)
        new = moved(points, groups, squares, len(centres))
        shift = ((new - centres) ** 2).sum()
        centres = new
        if shift <= TOLERANCE * scale:
            break
    squares = distances(points, centres)
    groups = squares.argmin(axis=1)
    return groups, centres, float(np.take_along_axis(squares, groups[:, np.newaxis], axis=1).sum()), rounds


def best_of(points, count, starts, random):
    """The tightest of several runs; groups are numbered by decreasing size."""
    runs = [k_means(points, first_centres(points, count, random)) for _ in range(starts)]
    groups, centres, inertia, rounds = min(runs, key=lambda run: run[2])
    order = np.argsort(-np.bincount(groups, minlength=count), kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(count)
    return rank[groups], centres[order], inertia, rounds


# ---- internal quality of groups
def silhouettes(points, groups):
    """For each point, from -1 to 1: how much closer its own group is than the nearest other one."""
    count, sizes = groups.max() + 1, np.bincount(groups)
    members = (groups[:, np.newaxis] == np.arange(count)).astype(points.dtype)
    values = np.zeros(len(points))
    for first in range(0, len(points), BLOCK):
        part = slice(first, first + BLOCK)
        sums = np.sqrt(distances(points[part], points)) @ members
        own = groups[part]
        rows = np.arange(len(own))
        within = sums[rows, own] / np.maximum(sizes[own] - 1, 1)
        means = sums / np.maximum(sizes, 1)
        means[rows, own] = np.inf
        means[:, sizes == 0] = np.inf
        beyond = means.min(axis=1)
        values[part] = np.where(sizes[own] > 1, (beyond - within) / np.maximum(beyond, within), 0.0)
    return values


def calinski_harabasz(points, groups, centres, inertia):
    """Variance between groups over variance within groups, each divided by its degrees of freedom."""
    sizes = np.bincount(groups, minlength=len(centres))
    between = (sizes * ((centres - points.mean(axis=0)) ** 2).sum(axis=1)).sum()
    return float(between / (len(centres) - 1) / (inertia / (len(points) - len(centres))))


def davies_bouldin(points, groups, centres):
    """Mean similarity of each group to its most similar other one: spreads over distance; lower is better."""
    own = np.sqrt(((points - centres[groups]) ** 2).sum(axis=1))
    spreads = np.bincount(groups, weights=own, minlength=len(centres)) / np.maximum(
        np.bincount(groups, minlength=len(centres)), 1
    )
    apart = np.sqrt(distances(centres, centres))
    np.fill_diagonal(apart, np.inf)
    return float(((spreads[:, np.newaxis] + spreads) / apart).max(axis=1).mean())


def exemplars(points, groups, centres):
    """For each group the sample nearest to its centre; -1 for an empty group."""
    squares = distances(points, centres)
    squares[groups[:, np.newaxis] != np.arange(len(centres))] = np.inf
    return np.where(np.isfinite(squares.min(axis=0)), squares.argmin(axis=0), -1)


# ---- comparison with labels
def contingency(groups, labels):
    """The number of samples by group (rows) and label (columns)."""
    table = np.zeros((groups.max() + 1, labels.max() + 1), dtype=np.int64)
    np.add.at(table, (groups, labels), 1)
    return table


def purity(table):
    """The share of samples that have the most frequent label of their group."""
    return float(table.max(axis=1).sum() / table.sum())


def adjusted_rand(table):
    """Agreement over pairs of samples: 0 is chance level, 1 is perfect (Hubert and Arabie, 1985)."""

    def pairs(counts):
        return float((counts * (counts - 1) // 2).sum())

    both, rows, columns = pairs(table), pairs(table.sum(axis=1)), pairs(table.sum(axis=0))
    expected = rows * columns / pairs(table.sum())
    return (both - expected) / ((rows + columns) / 2 - expected)


def mutual_information(table):
    """The mutual information of groups and labels, over the mean of both entropies."""
    joint = table / table.sum()
    rows, columns = joint.sum(axis=1), joint.sum(axis=0)

    def entropy(chances):
        return -np.sum(chances[chances > 0] * np.log(chances[chances > 0]))

    seen = joint > 0
    information = np.sum(joint[seen] * np.log(joint[seen] / np.outer(rows, columns)[seen]))
    return float(information / ((entropy(rows) + entropy(columns)) / 2))


def run(value):
    """{"images": (n, d), "labels": (n,) or absent, "groups": k or a list to choose from, "starts": s, "seed": s}.

    Returns groups (n,), centres as images (k, d), exemplars (k,), inertia, the silhouette for each number of groups,
    and other figures."""
    samples = np.asarray(value["images"], dtype=np.float64)
    random = np.random.Generator(np.random.Philox(value.get("seed", 0)))
    found = Components(samples, value.get("share", SHARE))
    points = found.whiten(samples)
    tried = {}
    for count in np.atleast_1d(value.get("groups", [8, 10, 12])).tolist():
        groups, centres, inertia, rounds = best_of(points, count, value.get("starts", 4), random)
        tried[count] = (groups, centres, inertia, rounds, silhouettes(points, groups))
    best = max(tried, key=lambda count: float(tried[count][4].mean()))
    groups, centres, inertia, rounds, silhouette = tried[best]
    answer = {
        "groups": groups,
        "centres": found.restore(centres),
        "exemplars": exemplars(points, groups, centres),
        "inertia": inertia,
        "rounds": rounds,
        "silhouettes": np.array([tried[count][4].mean() for count in tried]),
        "silhouette": silhouette,
        "calinski_harabasz": calinski_harabasz(points, groups, centres, inertia),
        "davies_bouldin": davies_bouldin(points, groups, centres),
        "spread": found.spread,
        "shares": found.shares,
        "left_out": float(found.left_out(samples).mean()),
    }
    if value.get("labels") is not None:
        table = contingency(groups, np.asarray(value["labels"], dtype=np.int64))
        answer.update(
            table=table, purity=purity(table), adjusted_rand=adjusted_rand(table), information=mutual_information(table)
        )
    return answer
