"""Models of others (bench/other_models), a row for each: whether it compiles, runs and answers as ONNX Runtime does,
and the time of a call beside ONNX Runtime's, on one thread, in turns, for inputs that differ from call to call:
branches that a CPU has learnt by heart would be no measure of trees. The first row has the shares."""

import statistics
import time

import numpy

from bench import other_models
from bench.measure import Figure, Result, interleaved, per_call_us
from vmhost.engine import library
from vmhost.engine.models import opened
from vmhost.engine.onnx import OnnxError, compile_model

VARIANTS = 16
ENOUGH_S = 0.25  # of turns, for a figure
OURS, THEIRS = "in the host", "ONNX Runtime"


def run(quick, names=None):
    results, refused, wrong = [], {}, {}
    names = names or other_models.names()
    library.set_threads(1)
    for name in names:
        model, given = other_models.make(name)
        data = model.SerializeToString()
        try:
            ours = opened(name, compile_model(data, name))
        except (OnnxError, ValueError) as error:
            refused[name] = str(error).splitlines()[0]
            continue
        theirs = _onnx_runtime(data)
        inputs = [_varied(given, number) for number in range(VARIANTS)]
        plain = [{key: _plain(value) for key, value in some.items()} for some in inputs]
        difference = max(_difference(ours(some), theirs(other)) for some, other in zip(plain, inputs))
        if difference > other_models.tolerance(name):
            wrong[name] = difference
        began = time.perf_counter()
        ours(plain[0])
        count = max(1, min(16 if quick else 256, int(ENOUGH_S / (time.perf_counter() - began))))
        figures = interleaved(
            {OURS: _turns(ours, plain, count), THEIRS: _turns(theirs, inputs, count)}, 3 if quick else 7, "us", "less"
        )
        ratio = figures[OURS].advantage_over(figures[THEIRS])
        results.append(Result(name, figures, note=f"{difference:.0e} apart", ratios={THEIRS: ratio}))
    return [_shares(names, results, refused, wrong), *results]


def _shares(names, results, refused, wrong):
    ratios = {result.name: result.ratios[THEIRS] for result in results}
    share, mean = 100 * len(results) / len(names), statistics.geometric_mean(ratios.values())
    least = min(ratios, key=ratios.get)
    told = [*(f"{name} is refused: {why}" for name, why in refused.items())]
    told += [f"{name} is wrong by {difference:.0e}" for name, difference in wrong.items()]
    return Result(
        f"models of others, {len(names)}",
        {OURS: Figure((share,), "%", "more")},
        (
            (f"{share:.0f} % compile and run (95)", share >= 95),
            (
                f"{len(results) - len(wrong)} of {len(results)} are right (float32: to {other_models.TOLERANCE})",
                not wrong,
            ),
            (f"geometric mean {mean:.2f} times ONNX Runtime's speed (1.3)", mean >= 1.3),
            (f"none under 0.9: {least} has {ratios[least]:.2f}", ratios[least] >= 0.9),
        ),
        note="; ".join(told),
    )


def _onnx_runtime(data):
    import onnxruntime

    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = [port.name for port in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, inputs)))


def _varied(given, number):
    """Other numbers of the same kind: rows of floats begin elsewhere, integers and texts stand in other rows."""
    return {
        name: numpy.ascontiguousarray(numpy.roll(value, number, -1 if value.dtype.kind == "f" else 0))
        for name, value in given.items()
    }


def _plain(value):
    return value.tolist() if value.dtype == object else value


def _turns(model, inputs, count):
    place = iter(range(1 << 62))
    return lambda: per_call_us(lambda: model(inputs[next(place) % len(inputs)]), count)


def _difference(ours, theirs):
    """The largest difference of numbers over the largest of theirs; infinite where texts or labels differ."""
    worst = 0.0
    for name, other in theirs.items():
        own = ours[name]
        if isinstance(other, list):
            own, other = (numpy.array([[row[key] for key in sorted(row)] for row in rows]) for rows in (own, other))
        elif other.dtype == object:
            worst = max(worst, 0.0 if own == other.tolist() else numpy.inf)
            continue
        own = numpy.asarray(own)
        if own.shape != other.shape or own.dtype != other.dtype:
            return numpy.inf
        finite = numpy.isfinite(other)
        if not numpy.array_equal(own[~finite], other[~finite], equal_nan=True):
            return numpy.inf
        apart = numpy.abs(own[finite].astype("float64") - other[finite].astype("float64")).max(initial=0)
        worst = max(worst, apart / max(numpy.abs(other[finite].astype("float64")).max(initial=0), 1e-30))
    return worst
