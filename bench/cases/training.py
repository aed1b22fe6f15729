"""Training and sparse models, beside torch and pyarrow: networks, gradients, lookups, samples, saves, sessions."""

from bench import (
    training_accuracy,
    training_gradients,
    training_lookups,
    training_networks,
    training_samples,
    training_serving,
    training_tiers,
)


def run(quick):
    results = []
    parts = (
        training_networks,
        training_accuracy,
        training_gradients,
        training_lookups,
        training_tiers,
        training_samples,
        training_serving,
    )
    for part in parts:
        results += part.run(quick)
    return results
