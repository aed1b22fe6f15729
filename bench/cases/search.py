"""Quality of the engine's choice of algorithms: for every convolution, matrix product and attention of the networks
with a choice, each algorithm is forced, and compared with the one chosen. One thread; the networks are run as a whole,
so that each step finds realistic caches; minimum times of interleaved runs."""

import tempfile
from pathlib import Path

from bench import networks
from bench.measure import Figure, Result
from vmhost import engine
from vmhost.engine import library
from vmhost.engine.onnx import compile_model

NEAR, FAR, SHARE = 1.05, 1.3, 0.9


def run(quick):
    rounds = 3 if quick else 25
    found, fixed = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for name, make in networks.NETWORKS.items():
            path = Path(folder) / f"{name}.vmm"
            path.write_bytes(compile_model(make().SerializeToString(), name))
            times, chosen = _times(path, rounds)
            for search, ratios in (("measured", found), ("fixed", fixed)):
                for number, times_of in times.items():
                    ratios[f"{name}: {number} {chosen[search][number].name}"] = (
                        times_of[chosen[search][number].algorithm] / min(times_of.values()),
                        times_of,
                        chosen[search][number].algorithm,
                    )
            path.unlink()
    return [
        _result(f"search, {search}", ratios) for search, ratios in (("measured", found), ("fixed", fixed)) if ratios
    ]


def _times(path, rounds):
    """{number of a step: {algorithm: minimum ms}} for steps with several algorithms, and the search's expectations for
    all steps, by their two names."""
    chosen = {search: engine.load(path, search=search, threads=1).steps for search in ("measured", "fixed")}
    models = {}
    try:
        for algorithm in library.algorithms():
            library.force_algorithm(algorithm)
            models[algorithm] = engine.load(path, threads=1)
    finally:
        library.force_algorithm(None)
    several = [
        number
        for number in range(len(chosen["fixed"]))
        if len({model.steps[number].algorithm for model in models.values()}) > 1
    ]
    times = {number: {} for number in several}
    for number in range(rounds if several else 0):
        inputs = networks.inputs(models["direct"].inputs, number)
        for model in models.values():
            _, profile = model.run(inputs, profile=True)
            for index in several:
                step = profile[index]
                times[index][step.algorithm] = min(step.ms, times[index].get(step.algorithm, step.ms))
    return times, chosen


def _result(name, ratios):
    values = sorted(ratio for ratio, _, _ in ratios.values())
    share = sum(ratio <= NEAR for ratio in values) / len(values)
    worst = max(ratios, key=lambda case: ratios[case][0])
    ratio, times_of, chosen = ratios[worst]
    times = ", ".join(f"{algorithm} {ms:.3f}" for algorithm, ms in times_of.items())
    return Result(
        name,
        {"chosen over the fastest": Figure(tuple(values), "times", "less")},
        (
            (f"within 5 % of the fastest on {share:.0%} of {len(values)} (reach {SHARE:.0%})", share >= SHARE),
            (f"at worst {ratio:.2f}x the fastest (reach {FAR}): {worst}: {times} ms, chosen {chosen}", ratio <= FAR),
        ),
    )
