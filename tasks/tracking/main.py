"""Where something is and how fast it goes, from noisy sightings: a Kalman filter and the smoother of Rauch, Tung and Striebel, 1965."""

import engine.numpy as np


def motion(dt, jerk):
    """The model of a body in the plane whose velocity wanders: transition, and the covariance of what it leaves out."""
    step = np.array([[1.0, dt], [0.0, 1.0]])
    noise = jerk * np.array([[dt**3 / 3, dt**2 / 2], [dt**2 / 2, dt]])
    return np.kron(np.eye(2), step), np.kron(np.eye(2), noise)


def simulate(count, dt, jerk, blur, random):
    """A path of `count` steps and its sightings; one in twenty is missing."""
    transition, noise = motion(dt, jerk)
    root = np.linalg.cholesky(noise)
    states = np.empty((count, 4))
    state = np.array([0.0, 1.0, 0.0, 0.5])
    for i in range(count):
        state = transition @ state + root @ random.standard_normal(4)
        states[i] = state
    seen = states[:, ::2] + blur * random.standard_normal((count, 2))
    seen[random.random(count) < 0.05] = np.nan
    return states, seen


def kalman(seen, transition, noise, blur):
    """Means and covariances of the states, each from the sightings up to it; and the log likelihood of all sightings."""
    count, size = len(seen), len(transition)
    watch = np.zeros((2, size))
    watch[0, 0] = watch[1, 2] = 1.0
    blurred = blur**2 * np.eye(2)
    mean, cov = np.zeros(size), 100.0 * np.eye(size)
    means, covs = np.empty((count, size)), np.empty((count, size, size))
    ahead_means, ahead_covs = np.empty_like(means), np.empty_like(covs)
    likelihood = 0.0
    for i, sighting in enumerate(seen):
        mean, cov = transition @ mean, transition @ cov @ transition.T + noise
        ahead_means[i], ahead_covs[i] = mean, cov
        if not np.isnan(sighting).any():
            surprise = sighting - watch @ mean
            spread = watch @ cov @ watch.T + blurred
            gain = np.linalg.solve(spread, watch @ cov).T
            mean = mean + gain @ surprise
            keep = np.eye(size) - gain @ watch
            cov = keep @ cov @ keep.T + gain @ blurred @ gain.T
            sign, logarithm = np.linalg.slogdet(2 * np.pi * spread)
            likelihood -= 0.5 * (logarithm + surprise @ np.linalg.solve(spread, surprise))
        means[i], covs[i] = mean, cov
    return means, covs, ahead_means, ahead_covs, likelihood


def smooth(means, covs, ahead_means, ahead_covs, transition):
    """The same states from all sightings, before and after."""
    means, covs = means.copy(), covs.copy()
    for i in range(len(means) - 2, -1, -1):
        gain = np.linalg.solve(ahead_covs[i + 1], transition @ covs[i]).T
        means[i] += gain @ (means[i + 1] - ahead_means[i + 1])
        covs[i] += gain @ (covs[i + 1] - ahead_covs[i + 1]) @ gain.T
    return means, covs


def run(value):
    """{"count": n, "seed": s} -> errors of sightings, filter and smoother (root mean squares), and the paths."""
    count, dt, jerk, blur = value.get("count", 400), 0.1, 0.5, 0.8
    random = np.random.Generator(np.random.Philox(value.get("seed", 0)))
    states, seen = simulate(count, dt, jerk, blur, random)
    transition, noise = motion(dt, jerk)
    means, covs, ahead_means, ahead_covs, likelihood = kalman(seen, transition, noise, blur)
    smoothed, smoothed_covs = smooth(means, covs, ahead_means, ahead_covs, transition)
    truth = states[:, ::2]

    def error(found):
        return float(np.sqrt(np.nanmean(((found - truth) ** 2).sum(axis=1))))

    within = np.abs(smoothed[:, ::2] - truth) <= 2 * np.sqrt(np.diagonal(smoothed_covs, axis1=1, axis2=2)[:, ::2])
    return {"seen": error(seen), "filtered": error(means[:, ::2]), "smoothed": error(smoothed[:, ::2]), "within": float(within.mean()),
            "likelihood": float(likelihood), "path": smoothed}
