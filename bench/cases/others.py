"""Third-party models (bench/other_models), one row each: whether it compiles, runs and answers as ONNX Runtime does,
and the time of a call beside ONNX Runtime's and OpenVINO's, on one thread and two, alternating, with inputs that differ
from call to call: with fixed inputs a CPU predicts a tree's branches too well. The first rows have shares, means and
the slowest; for quantized networks one row compares the distance from float32 with ONNX Runtime's."""

import statistics
import time

import numpy

from bench import other_models
from bench.measure import Figure, Result, interleaved, per_call_us, wait_until_idle
from vmhost.engine import library
from vmhost.engine.models import opened
from vmhost.engine.onnx import OnnxError, compile_model

VARIANTS = 16
ENOUGH_S = 0.1  # measuring time for a figure
RUNS = 3
DISTANCES = 100  # inputs for a quantized network
OURS, RUNTIME, OPENVINO = "in the host", "ONNX Runtime", "OpenVINO"
REACHES = {RUNTIME: (1.3, 0.9), OPENVINO: (1.1, 0.8)}  # geometric mean, and the minimum over all models
_SAME_ANSWER = 0.05  # distance relative to the largest answer, also of quantized networks; above it, no peer
COMPILING = 3  # promised multiple of the time that ONNX Runtime needs for a session


def run(quick, families=None):
    results, refused, wrong, compiling, far = [], {}, {}, {}, []
    names = [name for family in families or [None] for name in other_models.names(family)]
    compile_model(other_models.make(names[0])[0].SerializeToString(), "imports")  # imports do not count as compiling
    for name in names:
        model, given = other_models.make(name)
        data = model.SerializeToString()
        try:
            began = time.perf_counter()
            compiled = compile_model(data, name)
            took = time.perf_counter() - began
            inputs = [_varied(given, number) for number in range(VARIANTS)]
            plain = [{key: _plain(value) for key, value in some.items()} for some in inputs]
            began = time.perf_counter()
            theirs = _onnx_runtime(data, 1)
            compiling[name] = took / (time.perf_counter() - began)
            library.set_threads(1)
            ours = opened(name, compiled)
            difference = max(_difference(ours(some), theirs(other)) for some, other in zip(plain, inputs))
        except (OnnxError, ValueError, MemoryError) as error:
            refused[name] = str(error).splitlines()[0]
            continue
        if difference > other_models.tolerance(name):
            wrong[name] = difference
        figures, ratios = {}, {}
        for threads in (1, 2):
            some = _measured(name, data, compiled, inputs, plain, threads, quick)
            label = "" if threads == 1 else f", {threads} threads"
            figures |= {who + label: figure for who, figure in some.items()}
            ratios |= {who + label: some[OURS].advantage_over(some[who]) for who in some if who != OURS}
        results.append(Result(name, figures, note=f"{difference:.0e} apart", ratios=ratios))
        if name.startswith("quantized/"):
            far.append(_distances(name, model, ours, theirs, given, quick))
    return [*_shares(names, results, refused, wrong, compiling), *far, *results]


def _measured(name, data, compiled, inputs, plain, threads, quick):
    """Figures of all engines with this number of threads."""
    library.set_threads(threads)
    runners = {OURS: (opened(name, compiled), plain), RUNTIME: (_onnx_runtime(data, threads), inputs)}
    openvino = _openvino(data, threads, inputs[0])
    # OpenVINO's answers to some models are wrong: SpeechT5's have no rows
    if openvino is not None and _is_right(openvino, runners[RUNTIME][0], inputs[0]):
        runners[OPENVINO] = openvino, inputs
    began = time.perf_counter()
    runners[OURS][0](plain[0])
    runners[OURS][0](plain[1])
    each = (time.perf_counter() - began) / 2
    count = max(1, min(16 if quick else 256, int(ENOUGH_S / each)))
    turns = {who: _turns(model, given, count) for who, (model, given) in runners.items()}
    return interleaved(turns, 1 if quick else RUNS, "us", "less")


def _shares(names, results, refused, wrong, compiling):
    share = 100 * len(results) / len(names)
    notes = [*(f"{name} is refused: {why}" for name, why in refused.items())]
    notes += [f"{name} is wrong by {difference:.0e}" for name, difference in wrong.items()]
    promises = [
        (f"{share:.0f} % compile and run (95)", share >= 95),
        (f"{len(results) - len(wrong)} of {len(results)} are right (float32: to {other_models.TOLERANCE})", not wrong),
    ]
    rows = [
        Result(
            f"models of others, {len(names)}", {OURS: Figure((share,), "%", "more")}, tuple(promises), "; ".join(notes)
        )
    ]
    for peer, (reach, bound) in REACHES.items():
        for label in (peer, f"{peer}, 2 threads"):
            ratios = {result.name: result.ratios[label] for result in results if label in result.ratios}
            if not ratios:
                continue
            mean = statistics.geometric_mean(ratios.values())
            under = sorted((ratio, name) for name, ratio in ratios.items() if ratio < bound)
            rows.append(
                Result(
                    f"{len(ratios)} of them against {label}",
                    {OURS: Figure((mean,), "x", "more")},
                    (
                        (f"geometric mean {mean:.2f} times its speed ({reach})", mean >= reach),
                        (f"{len(under)} under {bound}", not under),
                    ),
                    ", ".join(f"{name} {ratio:.2f}" for ratio, name in under),
                )
            )
    times = sorted(compiling.items(), key=lambda item: -item[1])
    if times:
        mean = statistics.geometric_mean(ratio for _, ratio in times)
        slow = ", ".join(f"{name} {ratio:.1f}" for name, ratio in times[:5])
        rows.append(
            Result(
                "compiling them against ONNX Runtime's sessions",
                {OURS: Figure((mean,), "x", "less")},
                ((f"{mean:.1f} times its time ({COMPILING})", mean <= COMPILING),),
                slow,
            )
        )
    return rows


def _onnx_runtime(data, threads):
    import onnxruntime

    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 3
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = [port.name for port in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, inputs)))


def _openvino(data, threads, given):
    """None if it is not installed, or refuses the model."""
    try:
        import openvino
    except ImportError:
        return None
    options = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    options["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = "0"  # activations stay float32, as in ours
    try:
        core = openvino.Core()
        model = core.compile_model(core.read_model(data, b""), "CPU", options)
        request = model.create_infer_request()

        def run(inputs):
            return request.infer(inputs, share_inputs=True, share_outputs=True)

        run(given)
    except Exception:  # any failure: not a peer for this model
        return None
    return run


def _is_right(openvino, runtime, given):
    """Whether OpenVINO's answer is near ONNX Runtime's."""
    expected = runtime(given)
    answers = {
        name: numpy.array(value).astype(getattr(expected[name], "dtype", None), copy=False)
        for name, value in zip(expected, openvino(given).values())
    }
    return _difference(answers, expected) <= _SAME_ANSWER


def _distances(name, model, ours, theirs, given, quick):
    """How far the quantized network is from the same one without quantization, ours over ONNX Runtime's, over many
    inputs."""
    exact = _onnx_runtime(_without_steps(model).SerializeToString(), 1)
    random, [(port, shape)] = numpy.random.default_rng(1), [(key, value.shape) for key, value in given.items()]
    own = other = 0.0
    for _ in range(8 if quick else DISTANCES):
        inputs = {port: random.standard_normal(shape, "float32")}
        [right], [one], [two] = exact(inputs).values(), ours(inputs).values(), theirs(inputs).values()
        own += float(((numpy.asarray(one) - right) ** 2).mean())
        other += float(((two - right) ** 2).mean())
    ratio = (own / other) ** 0.5
    return Result(
        f"{name}, distance from float32",
        {OURS: Figure((ratio,), "x", "less")},
        ((f"{ratio:.2f} times as far as ONNX Runtime's (1.1)", ratio <= 1.1),),
    )


def _without_steps(model):
    """The network with unquantized activations; weights stay 8-bit numbers."""
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    constants, same, kept = {item.name for item in copy.graph.initializer}, {}, []
    for node in copy.graph.node:
        node.input[:] = [same.get(name, name) for name in node.input]
        if node.op_type == "QuantizeLinear":
            same[node.output[0]] = node.input[0]
        elif node.op_type == "DequantizeLinear" and node.input[0] not in constants:
            same[node.output[0]] = node.input[0]
        else:
            kept.append(node)
    del copy.graph.node[:]
    copy.graph.node.extend(kept)
    return copy


def _varied(given, number):
    """Other inputs of the same kind: float rows start elsewhere, integers and texts are in other rows."""
    return {
        name: numpy.ascontiguousarray(numpy.roll(value, number, -1 if value.dtype.kind == "f" else 0))
        for name, value in given.items()
    }


def _plain(value):
    return value.tolist() if value.dtype == object else value


def _turns(model, inputs, count):
    place = iter(range(1 << 62))

    def turn():
        wait_until_idle()
        return per_call_us(lambda: model(inputs[next(place) % len(inputs)]), count)

    return turn


def _in_their_order(ours, theirs):
    """Ours with rows in their order, if all outputs are ordered by one of them, sorted scores: engines order scores
    that differ only in the last digits differently."""
    arrays = {name: numpy.asarray(value) for name, value in ours.items()}
    count = next((len(value) for value in theirs.values() if isinstance(value, numpy.ndarray) and value.ndim), 0)
    of_rows = all(
        isinstance(value, numpy.ndarray)
        and value.dtype != object
        and value.shape == arrays[name].shape
        and value.shape[:1] == (count,)
        for name, value in theirs.items()
    )
    scores = (
        [
            name
            for name, value in theirs.items()
            if value.ndim == 1 and value.dtype.kind == "f" and (value[1:] <= value[:-1]).all()
        ]
        if of_rows and count and len(theirs) > 1
        else []
    )
    if len(scores) != 1:
        return ours
    rows, others = (
        numpy.concatenate(
            [
                some[name].reshape(count, -1).astype("float64") / max(numpy.abs(value).max(), 1e-30)
                for name, value in theirs.items()
            ],
            1,
        )
        for some in (arrays, theirs)
    )
    order = []
    for other in others:
        apart = numpy.abs(rows - other).max(1)
        apart[order] = numpy.inf
        order.append(int(apart.argmin()))
    return {name: value[order] for name, value in arrays.items()}


def _difference(ours, theirs):
    """The largest difference of numbers, relative to their largest one; infinite where texts or labels differ."""
    worst, ours = 0.0, _in_their_order(ours, theirs)
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
