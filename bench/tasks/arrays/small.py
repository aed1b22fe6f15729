"""Work on arrays so small that call overhead dominates: a leaky integrator over 32 channels."""


def work(np, steps):
    """The same with any module that has NumPy's names."""
    level, gain = np.zeros(32, dtype="float32"), np.full(32, 0.25, dtype="float32")
    signal = np.arange(32, dtype="float32")
    for _ in range(steps):
        level = level + (signal - level) * gain
        signal = signal[::-1]
    return float(level.sum())
