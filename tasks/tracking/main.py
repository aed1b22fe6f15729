"""Position and velocity from noisy observations, some missing and some wrong: a Kalman filter with a gate, the smoother
of Rauch, Tung and Striebel (1965), and the noise of motion and observations learned by expectation maximization
(Shumway and Stoffer, 1982).

A state is (x, speed in x, y, speed in y); its velocity is a random walk. An observation is (x, y), NaN if it is
missing.
"""

import vmhost.engine.numpy as np

DT = 0.1  # seconds between observations
# squared Mahalanobis distance that one valid observation in a thousand exceeds (two dimensions)
GATE = 13.815510557964274
WATCH = ((1.0, 0.0, 0.0, 0.0), (0.0, 0.0, 1.0, 0.0))  # observation matrix


# ---- the model
def transition(dt):
    """The state transition over `dt` seconds, (4, 4)."""
    return np.kron(np.eye(2), np.array([[1.0, dt], [0.0, 1.0]]))


def wandering(dt, jerk):
    """Process noise covariance (4, 4): acceleration is white noise of density `jerk`."""
    return jerk * np.kron(np.eye(2), np.array([[dt**3 / 3, dt**2 / 2], [dt**2 / 2, dt]]))


def simulate(count, dt, jerk, blur, random):
    """A path of `count` states and its observations: one in twenty missing, one in fifty an outlier."""
    forward, root = transition(dt), np.linalg.cholesky(wandering(dt, jerk))
    states = np.empty((count, 4))
    state = np.array([0.0, 1.0, 0.0, 0.5])
    for i in range(count):
        state = forward @ state + root @ random.standard_normal(4)
        states[i] = state
    seen = states[:, ::2] + blur * random.standard_normal((count, 2))
    wrong = random.random(count) < 0.02
    seen[wrong] += random.uniform(-1, 1, (count, 2))[wrong] * 20 * blur
    seen[random.random(count) < 0.05] = np.nan
    return states, seen, wrong


# ---- filter and smoother
class Filtered:
    """The filter's results by step: `means` and `covs` after each observation, `ahead_means` and `ahead_covs` before
    it, `surprises` (innovations; NaN without an observation), `oddness` (their squared Mahalanobis distances), `used`
    observations, and the log likelihood."""

    def __init__(self, count, size):
        self.means, self.covs = np.empty((count, size)), np.empty((count, size, size))
        self.ahead_means, self.ahead_covs = np.empty_like(self.means), np.empty_like(self.covs)
        self.surprises, self.oddness = np.full((count, 2), np.nan), np.full(count, np.nan)
        self.used = np.zeros(count, dtype=bool)
        self.likelihood = 0.0


def kalman(seen, forward, noise, blurred, gate=np.inf):
    """Filters the observations; those further off than `gate` are ignored."""
    watch, size = np.array(WATCH), len(forward)
    found, identity = Filtered(len(seen), size), np.eye(size)
    mean, cov = np.zeros(size), 100.0 * identity
    for i, sighting in enumerate(seen):
        mean, cov = forward @ mean, forward @ cov @ forward.T + noise
        found.ahead_means[i], found.ahead_covs[i] = mean, cov
        if not np.isnan(sighting).any():
            surprise = sighting - watch @ mean
            spread = watch @ cov @ watch.T + blurred
            oddness = surprise @ np.linalg.solve(spread, surprise)
            found.surprises[i], found.oddness[i] = surprise, oddness
            if oddness <= gate:
                gain = np.linalg.solve(spread, watch @ cov).T
                mean = mean + gain @ surprise
                keep = identity - gain @ watch  # Joseph form: keeps the covariance symmetric and positive
                cov = keep @ cov @ keep.T + gain @ blurred @ gain.T
                found.likelihood -= 0.5 * float(np.linalg.slogdet(2 * np.pi * spread)[1] + oddness)
                found.used[i] = True
        found.means[i], found.covs[i] = mean, cov
    return found


def smooth(found, forward):
    """(means, covs, lagged): the states given all observations; `lagged[i]` is the covariance of states i and i - 1."""
    means, covs = found.means.copy(), found.covs.copy()
    lagged = np.zeros_like(covs)
    for i in range(len(means) - 2, -1, -1):
        gain = np.linalg.solve(found.ahead_covs[i + 1], forward @ found.covs[i]).T
        means[i] += gain @ (means[i + 1] - found.ahead_means[i + 1])
        covs[i] += gain @ (covs[i + 1] - found.ahead_covs[i + 1]) @ gain.T
        lagged[i + 1] = covs[i + 1] @ gain.T
    return means, covs, lagged


# ---- learning the noise
def expected_noise(seen, used, forward, means, covs, lagged):
    """The maximum likelihood covariances of motion and observations, given the smoothed states."""
    watch = np.array(WATCH)
    now = covs[1:] + np.einsum("ti,tj->tij", means[1:], means[1:])
    then = covs[:-1] + np.einsum("ti,tj->tij", means[:-1], means[:-1])
    across = (lagged[1:] + np.einsum("ti,tj->tij", means[1:], means[:-1])) @ forward.T
    motion = (now - across - across.transpose(0, 2, 1) + forward @ then @ forward.T).mean(axis=0)
    rest = seen[used] - means[used] @ watch.T
    sightings = (np.einsum("ti,tj->ij", rest, rest) + (watch @ covs[used] @ watch.T).sum(axis=0)) / used.sum()
    return (motion + motion.T) / 2, (sightings + sightings.T) / 2


def learn(seen, forward, dt, rounds):
    """(jerk, blur, log likelihoods): both noises from the observations alone, improved in every round. They keep their
    form: one density of the acceleration and one deviation of observations, the same in x and y."""
    shape = wandering(dt, 1.0)
    inverse = np.linalg.inv(shape)
    jerk, blur, likelihoods = 1.0, 1.0, []
    for _ in range(rounds):
        found = kalman(seen, forward, jerk * shape, blur**2 * np.eye(2), GATE)
        motion, sightings = expected_noise(seen, found.used, forward, *smooth(found, forward))
        jerk, blur = float(np.trace(inverse @ motion)) / len(shape), float(np.sqrt(np.trace(sightings) / 2))
        likelihoods.append(found.likelihood)
    return jerk, blur, np.array(likelihoods)


# ---- quality
def settled_gain(forward, noise, blurred, max_rounds=1000):
    """The steady-state gain of the filter, by iterating Riccati's equation to convergence, and the number of rounds."""
    watch, cov = np.array(WATCH), noise.copy()
    for rounds in range(1, max_rounds + 1):
        ahead = forward @ cov @ forward.T + noise
        gain = np.linalg.solve(watch @ ahead @ watch.T + blurred, watch @ ahead).T
        new = ahead - gain @ watch @ ahead
        if np.allclose(new, cov, rtol=1e-12, atol=1e-14):
            break
        cov = new
    return gain, rounds


def whiteness(surprises, lags):
    """Autocorrelations (lags,) of the innovations in x and y; near 0 if the model is right."""
    rows = surprises[~np.isnan(surprises).any(axis=1)]
    rows = rows - rows.mean(axis=0)
    whole = (rows**2).sum()
    return np.array([(rows[lag:] * rows[:-lag]).sum() / whole for lag in range(1, lags + 1)])


def foresee(mean, cov, forward, noise, steps):
    """Means (steps, 2) and standard deviations (steps, 2) of future positions."""
    watch = np.array(WATCH)
    places, deviations = np.empty((steps, 2)), np.empty((steps, 2))
    for i in range(steps):
        mean, cov = forward @ mean, forward @ cov @ forward.T + noise
        places[i], deviations[i] = watch @ mean, np.sqrt(np.diagonal(watch @ cov @ watch.T))
    return places, deviations


def between(means, times):
    """Positions (len(times), 2) at any times, in seconds from the first state: cubics that fit positions and speeds at
    both ends."""
    before = np.clip((times / DT).astype(np.int64), 0, len(means) - 2)
    part = (times / DT - before)[:, np.newaxis]
    start, stop = means[before], means[before + 1]
    places = (start[:, ::2], stop[:, ::2])
    speeds = (start[:, 1::2] * DT, stop[:, 1::2] * DT)
    return (
        (1 + 2 * part) * (1 - part) ** 2 * places[0]
        + part * (1 - part) ** 2 * speeds[0]
        + part**2 * (3 - 2 * part) * places[1]
        - part**2 * (1 - part) * speeds[1]
    )


def error(found, truth):
    """Root mean square distance of positions."""
    return float(np.sqrt(np.nanmean(((found - truth) ** 2).sum(axis=1))))


def turns(states):
    """Speeds along the path, and the total angle that it turned through."""
    speeds = np.hypot(states[:, 1], states[:, 3])
    angles = np.unwrap(np.arctan2(states[:, 3], states[:, 1]))
    return speeds, float(np.abs(np.diff(angles)).sum())


def run(value):
    """{"count": n, "seed": s, "rounds": r, "ahead": k} simulates a path and tracks it; {"seen": (n, 2), …} tracks the
    given observations.

    Returns the smoothed states (n, 4), the learned noise, consistency figures, predicted positions, and errors where
    the path is known."""
    random = np.random.Generator(np.random.Philox(value.get("seed", 0)))
    states = wrong = None
    if value.get("seen") is not None:
        seen = np.asarray(value["seen"], dtype=np.float64)
    else:
        states, seen, wrong = simulate(value.get("count", 400), DT, 0.5, 0.8, random)
    forward = transition(DT)
    jerk, blur, likelihoods = learn(seen, forward, DT, value.get("rounds", 4))
    noise, blurred = wandering(DT, jerk), blur**2 * np.eye(2)
    found = kalman(seen, forward, noise, blurred, GATE)
    means, covs, _ = smooth(found, forward)
    gain, rounds = settled_gain(forward, noise, blurred)
    places, deviations = foresee(found.means[-1], found.covs[-1], forward, noise, value.get("ahead", 10))
    speeds, turned = turns(means)
    fine = between(means, np.linspace(0, (len(seen) - 1) * DT, 10 * len(seen)))
    answer = {
        "path": means,
        "jerk": jerk,
        "blur": blur,
        "likelihoods": likelihoods,
        "likelihood": found.likelihood,
        "consistency": float(np.nanmean(found.oddness[found.used]) / 2),
        "left_out": int((~found.used & ~np.isnan(found.oddness)).sum()),
        "whiteness": whiteness(found.surprises[found.used], 5),
        "gain": gain,
        "rounds": rounds,
        "ahead": places,
        "ahead_deviations": deviations,
        "fastest": float(speeds.max()),
        "turned": turned,
        "travelled": float(np.hypot(*np.diff(fine, axis=0).T).sum()),
    }
    if states is not None:
        truth = states[:, ::2]
        within = np.abs(means[:, ::2] - truth) <= 2 * np.sqrt(np.diagonal(covs, axis1=1, axis2=2)[:, ::2])
        answer.update(
            seen=error(seen, truth),
            filtered=error(found.means[:, ::2], truth),
            smoothed=error(means[:, ::2], truth),
            within=float(within.mean()),
            caught=float((~found.used)[wrong & ~np.isnan(seen[:, 0])].mean()),
        )
    return answer
