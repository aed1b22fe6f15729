"""Compares a quantized model with its source: differences of outputs, and run times."""

import statistics
import time

import numpy


def outputs_of(model, feeds):
    """For each feed a dict of arrays by output; numeric outputs only."""
    outputs = []
    for feed in feeds:
        found = {name: numpy.asarray(value) for name, value in model(feed).items() if not isinstance(value, list)}
        outputs.append({name: value.copy() for name, value in found.items() if value.dtype.kind in "fiu"})
    return outputs


def agreement(before, after, labels=None):
    """A dict for each output.

    `max_abs` is the largest difference; `relative` the root of the sum of squared differences divided by the sum of
    squares; `cosine`; `top1` the share of rows with the same argmax, None if rows have one number. With `labels` also
    `right_before` and `right_after`: shares of rows whose argmax is the label."""
    result = {}
    for name in before[0]:
        after_arrays = [feed[name].astype("float64") for feed in after]
        before_arrays = [feed[name].astype("float64") for feed in before]
        a, b = (numpy.concatenate([each.reshape(-1) for each in group]) for group in (before_arrays, after_arrays))
        size = float(numpy.sqrt((a * a).sum()))
        both = size * float(numpy.sqrt((b * b).sum()))
        row = {
            "max_abs": float(numpy.abs(a - b).max(initial=0.0)),
            "relative": float(numpy.sqrt(((a - b) ** 2).sum())) / size if size else float((a != b).any()),
            "cosine": float((a * b).sum()) / both if both else float((a == b).all()),
            "top1": None,
        }
        if before_arrays[0].ndim >= 2 and before_arrays[0].shape[-1] > 1:
            classes = [[each.argmax(-1).reshape(-1) for each in group] for group in (before_arrays, after_arrays)]
            row["top1"] = float(numpy.mean(numpy.concatenate(classes[0]) == numpy.concatenate(classes[1])))
            if labels is not None and sum(map(len, labels)) == sum(map(len, classes[0])):
                right = numpy.concatenate(labels)
                for key, group in zip(("right_before", "right_after"), classes):
                    row[key] = float(numpy.mean(numpy.concatenate(group) == right))
        result[name] = row
    return result


def durations(models, feed, seconds=1.0):
    """Median times of runs on one feed, in milliseconds; the models alternate until `seconds` have passed."""
    times = [[] for _ in models]
    for model in models:
        model(feed)
    end = time.perf_counter() + seconds
    while not times[0] or (time.perf_counter() < end and len(times[0]) < 100):
        for model, own_times in zip(models, times):
            start = time.perf_counter()
            model(feed)
            own_times.append((time.perf_counter() - start) * 1e3)
    return [statistics.median(own_times) for own_times in times]
