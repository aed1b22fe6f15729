"""The range of each tensor over the calibration data, from runs of the model in our engine."""

import numpy
import onnx
from onnx import helper

from vmhost.engine.models import opened
from vmhost.engine.onnx import OnnxError, compile_model
from vmhost.engine.quantize.errors import QuantizeError

_BINS = 2048
_ROW = "/as_a_row"
_LEVELS = 128  # levels of one sign, for entropy


def ranges(graph, names, feeds, method="min-max", percentile=99.99):
    """(min, max) of each tensor of `names`, extended to include 0.

    "percentile" excludes the numbers beyond it on both sides; "entropy" clips where that changes the distribution least
    (Kullback-Leibler divergence, as TensorRT's calibrator)."""
    model = _with_outputs(graph, names)
    lows, highs = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    for found in _runs(model, names, feeds):
        for name, values in found.items():
            low, high = float(values.min()), float(values.max())
            if not (numpy.isfinite(low) and numpy.isfinite(high)):
                raise QuantizeError(
                    f"tensor {name!r}: is NaN or infinite for some of the data; leave these examples out"
                )
            lows[name], highs[name] = min(lows[name], low), max(highs[name], high)
    if method == "min-max":
        return {name: (lows[name], highs[name]) for name in names}
    counts = {name: numpy.zeros(_BINS, "int64") for name in names}
    for found in _runs(model, names, feeds):
        for name, values in found.items():
            if method == "percentile":
                counts[name] += numpy.histogram(values, _BINS, (lows[name], highs[name] or 1.0))[0]
            else:
                top = max(-lows[name], highs[name]) or 1.0
                counts[name] += numpy.histogram(numpy.abs(values), _BINS, (0.0, top))[0]
    found_ranges = {}
    for name in names:
        low, high = lows[name], highs[name]
        if method == "percentile":
            found_ranges[name] = _percentile_range(counts[name], low, high, percentile)
        else:
            top = (max(-low, high) or 1.0) * _min_divergence_share(counts[name])
            found_ranges[name] = max(low, -top), min(high, top)
    return found_ranges


def _percentile_range(counts, low, high, percentile):
    edges = numpy.linspace(low, high or 1.0, len(counts) + 1)
    cumulated = numpy.cumsum(counts) / max(1, counts.sum())
    share = (100.0 - percentile) / 100.0
    first = int(numpy.searchsorted(cumulated, share, "right"))
    last = int(numpy.searchsorted(cumulated, 1.0 - share))
    return min(0.0, float(edges[first])), max(0.0, float(edges[min(last, len(counts) - 1) + 1]))


def _min_divergence_share(counts):
    """The share of the bins that is kept."""
    best, kept = numpy.inf, len(counts)
    counts = counts.astype("float64")
    counts[0] = counts[1] if len(counts) > 1 else counts[0]  # zeros of ReLU are exact with every scale
    for size in range(_LEVELS, len(counts) + 1, 16):
        wanted = counts[:size].copy()
        wanted[-1] += counts[size:].sum()
        if not wanted.any():
            continue
        level = numpy.arange(size) * _LEVELS // size
        inside = counts[:size]
        sums = numpy.bincount(level, inside, _LEVELS)
        filled = numpy.bincount(level, inside > 0, _LEVELS)
        spread = numpy.where(inside > 0, (sums / numpy.maximum(filled, 1))[level], 0.0)
        p, q = wanted / wanted.sum(), spread / max(spread.sum(), 1e-300)
        nonzero = p > 0
        divergence = float((p[nonzero] * numpy.log(p[nonzero] / numpy.maximum(q[nonzero], 1e-10))).sum())
        if divergence < best:
            best, kept = divergence, size
    return kept / len(counts)


def _with_outputs(graph, names):
    """The model with these tensors, except inputs, as outputs."""
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    del model.graph.output[:]
    for name in names:
        if name in graph.inputs:
            continue
        shape = None
        if name not in graph.ranks:  # after operators unknown to ONNX: flattened to one row, which has a rank
            if not any(each.name == _ROW for each in model.graph.initializer):
                model.graph.initializer.append(onnx.numpy_helper.from_array(numpy.array([-1]), _ROW))
            model.graph.node.append(helper.make_node("Reshape", [name, _ROW], [name + _ROW]))
            name, shape = name + _ROW, [f"count of {name}"]
        model.graph.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape))
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    try:
        return opened("model", compile_model(inferred.SerializeToString(), "model")) if model.graph.output else None
    except OnnxError as error:
        raise QuantizeError(f"the model does not compile: {error.messages[0]}; see vmhost compile --check") from error


def _runs(model, names, feeds):
    for feed in feeds:
        found = (
            {}
            if model is None
            else {name.removesuffix(_ROW): numpy.asarray(values) for name, values in model(feed).items()}
        )
        yield {**{name: feed[name] for name in names if name in feed}, **found}
