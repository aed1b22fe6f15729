"""Training and sparse models, beside torch and pyarrow: networks, gradients, lookups, samples, saves, sessions."""

from bench import training_gradients, training_lookups, training_networks, training_samples, training_serving


def run(quick):
    results = []
    for part in (training_networks, training_gradients, training_lookups, training_samples, training_serving):
        results += part.run(quick)
    return results
