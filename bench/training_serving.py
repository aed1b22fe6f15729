"""Session groups with two and with four callers: two sessions of one thread each, beside one session of two threads,
one of one thread, and one of ONNX Runtime with two threads for the same exported network; what two threads of pure
compute reach on this machine; the CPU time of a call, beside the time that its lookups and network take alone; and the
effect of swapping weights on the sessions."""

import hashlib
import importlib.util
import statistics
import tempfile
import threading
import time
from pathlib import Path

import numpy

from bench import click_networks
from bench.measure import Figure, Result, per_call_us

CALLERS, SECONDS, SIZES = (2, 4), 0.5, (1, 4, 16, 64, 512)
NAMES = {"deepfm": "DeepFM", "din": "DIN"}
MIN_GAIN = 1.8
PEER = "ONNX Runtime, 1 session of 2 threads"


def run(quick):
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        publishers = {kind: _Publisher(folder / kind, kind) for kind in ("deepfm", "din")}
        rounds = 3 if quick else 7
        two = _two_cores(rounds)
        results = []
        for kind, publisher in publishers.items():
            for size in SIZES:
                results += _group(kind, publisher, size, rounds, two)
        return [*results, _swap(publishers["deepfm"], 3 if quick else 10)]


class _Publisher:
    """Publishes versions of a network of bench/click_networks.py with tables that have all rows."""

    def __init__(self, folder, kind):
        import vmhost.engine.numpy as np
        from vmhost.engine import nn, optim
        from vmhost.engine.features import FeatureSpec

        nn.seed(0)
        self.folder, self.number = folder, 0
        self.model, self.tables = click_networks.ours(kind)
        self.keys = click_networks.TABLES if kind == "deepfm" else click_networks.VISITS + 1
        folder.mkdir()
        self.optimizer = optim.Adagrad(0.01, initial=0.1)
        keys = np.arange(click_networks.ROWS)
        for one in self.tables:
            one.step(keys, np.ones((len(keys), click_networks.DIM), "float32"), self.optimizer, 1)
        features = {f"n{i}": {"kind": "number"} for i in range(click_networks.NUMBERS)}
        names = [one.name for one in self.tables] * (self.keys // len(self.tables))
        features |= {f"k{i}": {"kind": "key", "table": name} for i, name in enumerate(names)}
        self.spec = FeatureSpec({"tables": {one.name: {"dim": one.dim} for one in self.tables}, "features": features})
        self.publish()

    def inputs(self, size, seed):
        import vmhost.engine.numpy as np
        from vmhost.engine.features import Inputs

        [(keys, numbers, _)] = click_networks.batches(1, size, seed)
        ids = {f"k{i}": np.asarray(keys[:, i].copy()) for i in range(self.keys)}
        return Inputs(np.asarray(numbers), ids, {})

    def publish(self):
        """Publishes a version: the first one complete, others after a step on one per cent of the keys."""
        import vmhost.engine.numpy as np
        from vmhost.engine import nn
        from vmhost.engine.embedding import save
        from vmhost.serving.exports import publish

        if self.number:
            keys = np.arange(click_networks.ROWS // 100)
            for one in self.tables:
                one.step(keys, np.ones((len(keys), click_networks.DIM), "float32"), self.optimizer, 2)
            first = self.model.last.layers[0]
            first.bias = first.bias + 0.1
        save(self.tables, self.folder / "saves", incremental=self.number > 0)
        example = self.inputs(4, 0)
        example = {"numbers": example.numbers, "ids": example.ids}
        onnx, lookups = nn.export(self.model, example, ("y",), with_lookups=True)
        self.exported = onnx, lookups
        self.number = publish(self.folder / "served", onnx, lookups, self.spec, self.tables)


class _OnnxRuntime:
    """The last exported network with its tables in one ONNX model, a Gather for each lookup, in one session of two
    threads. It is called with (the network's numbers, ids by feature)."""

    def __init__(self, publisher):
        import onnx
        import onnxruntime

        import vmhost.engine.numpy as np

        onnxruntime.disable_telemetry_events()
        exported, lookups = publisher.exported
        model = onnx.load_from_string(exported)
        given = {one.name: one for one in model.graph.input}
        gathers, int64 = [], onnx.TensorProto.INT64
        for one in lookups:
            ids = f"{one.input} ids"
            gathers.append(onnx.helper.make_node("Gather", [f"table {one.table}", ids], [one.input]))
            model.graph.input.remove(given[one.input])
            model.graph.input.append(onnx.helper.make_tensor_value_info(ids, int64, [None]))
        nodes = [*gathers, *model.graph.node]
        del model.graph.node[:]
        model.graph.node.extend(nodes)
        for one in publisher.tables:
            rows = numpy.asarray(one.lookup(np.arange(click_networks.ROWS)))
            model.graph.initializer.append(onnx.numpy_helper.from_array(rows, f"table {one.name}"))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = 2, 1
        self._run = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        ).run
        self._ids = {f"{one.input} ids": one.ids.removeprefix("ids.") for one in lookups}

    @staticmethod
    def inputs(of):
        """A group's Inputs as NumPy's arrays."""
        return numpy.asarray(of.numbers), {name: numpy.asarray(ids) for name, ids in of.ids.items()}

    def __call__(self, inputs):
        numbers, ids = inputs
        return self._run(None, {"numbers": numbers, **{name: ids[of] for name, of in self._ids.items()}})


def _asked(group, inputs, seconds, callers=4):
    """Milliseconds of each call of that many callers, calls per second, errors, and the microseconds of CPU time that
    the process spent on a call."""
    times, end, errors = [[] for _ in range(callers)], time.perf_counter() + seconds, []

    def ask(own, turn):
        begun = time.perf_counter()
        while begun < end or not own:
            try:
                group(inputs[turn % len(inputs)])
            except Exception as error:
                errors.append(error)
            ended = time.perf_counter()
            own.append((ended - begun) * 1000)
            begun, turn = ended, turn + 1

    threads = [threading.Thread(target=ask, args=(own, number)) for number, own in enumerate(times)]
    begun, cpu = time.perf_counter(), time.process_time()
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    every, cpu = [one for own in times for one in own], time.process_time() - cpu
    return every, len(every) / (time.perf_counter() - begun), errors, cpu / len(every) * 1e6


def _alone_us(group, inputs):
    """Microseconds of the lookups and the network of a call in this thread, without a hand-over or other callers."""
    [answered] = [one._answer for one in group._sessions]

    def rounds():
        for one in inputs:
            answered(one)

    rounds()
    return statistics.median(per_call_us(rounds, 5) for _ in range(3)) / len(inputs)


def _two_cores(rounds):
    """How many times as much two threads compute as one, where both need nothing but a core: the most that two sessions
    can gain over one of one thread."""

    def loop(counts, end):
        count = 0
        while time.perf_counter() < end:
            hashlib.pbkdf2_hmac("sha256", b"", b"", 5000)  # some milliseconds, with the GIL released
            count += 1
        counts.append(count)

    def rate(threads):
        counts, begun = [], time.perf_counter()
        loops = [threading.Thread(target=loop, args=(counts, begun + SECONDS / 2)) for _ in range(threads)]
        for one in loops:
            one.start()
        for one in loops:
            one.join()
        return sum(counts) / (time.perf_counter() - begun)

    rates = {threads: [] for threads in (1, 2)}
    for _ in range(rounds):
        for threads, found in rates.items():
            found.append(rate(threads))
    one, two = (Figure(tuple(found), "loops/s", "more") for found in rates.values())
    return two.advantage_over(one)


def _group(kind, publisher, size, rounds, two_cores):
    from vmhost.serving.sessions import SessionGroup

    inputs = [publisher.inputs(size, seed) for seed in range(1, 9)]
    kinds = {
        "2 sessions of 1 thread": {"sessions": 2},
        "1 session of 2 threads": {"sessions": 1, "threads": 2},
        "1 session of 1 thread": {"sessions": 1},
    }
    groups = {name: SessionGroup(publisher.folder / "served", **options) for name, options in kinds.items()}
    contenders = {name: (group, inputs) for name, group in groups.items()}
    try:
        if importlib.util.find_spec("onnxruntime"):
            runtime = _OnnxRuntime(publisher)
            contenders[PEER] = runtime, [runtime.inputs(one) for one in inputs]
            (ours,), (theirs,) = groups["2 sessions of 1 thread"](inputs[0]).values(), runtime(contenders[PEER][1][0])
            assert numpy.allclose(numpy.asarray(ours), theirs, atol=1e-5)
        alone_us = [_alone_us(groups[name], inputs) for name in ("1 session of 1 thread", "1 session of 2 threads")]
        note = (
            f"its lookups and network alone {alone_us[0]:.0f} us, with two threads {alone_us[1]:.0f} us; two threads of"
            f" pure compute reach {two_cores:.2f}x one here"
        )
        name = f"session group, {NAMES[kind]}, {size} samples a call"
        return [_compared(name, contenders, callers, rounds, note) for callers in CALLERS]
    finally:
        for one in groups.values():
            one.close()


def _compared(name, contenders, callers, rounds, note):
    rates, times, spent = ({name: [] for name in contenders} for _ in range(3))
    for number in range(rounds + 1):
        for of, (call, inputs) in contenders.items():
            found, rate, errors, cpu_us = _asked(call, inputs, SECONDS, callers)
            if errors:  # a call that fails is quick, so it would count as several
                raise errors[0]
            if number:
                rates[of].append(rate)
                times[of] += found
                spent[of].append(cpu_us)
    figures = {of: Figure(tuple(values), "calls/s", "more") for of, values in rates.items()}
    ours, other, alone, *peer = figures.values()
    gain = ours.advantage_over(other)
    late = [Figure(tuple(values), "ms", "less").percentile(99) for values in times.values()]
    beside = "".join(f"; {PEER}: {ours.advantage_over(one):.2f}x its calls" for one in peer)
    return Result(
        f"{name}, {callers} callers",
        figures,
        promises=(
            (f"{gain:.2f}x the calls (at least {MIN_GAIN}x)", gain >= MIN_GAIN),
            (f"p99 {late[0]:.2g} ms (at most {late[1]:.2g})", late[0] <= late[1]),
        ),
        ratios={of: ours.advantage_over(one) for of, one in zip([PEER], peer)},
        note=f"p99 {', '.join(f'{one:.2g}' for one in late)} ms; CPU time of a call"
        f" {', '.join(f'{statistics.median(one):.0f}' for one in spent.values())} us, {note}; beside 1 session of 1"
        f" thread {ours.advantage_over(alone):.2f}x and {other.advantage_over(alone):.2f}x{beside}",
    )


def _swap(publisher, rounds):
    from vmhost.serving.sessions import SessionGroup

    inputs, times = [publisher.inputs(64, seed) for seed in range(1, 9)], []
    with SessionGroup(publisher.folder / "served") as group:
        asked = []
        caller = threading.Thread(target=lambda: asked.append(_asked(group, inputs, rounds)))
        caller.start()
        for _ in range(rounds):
            publisher.publish()
            begun = time.perf_counter()
            assert group.update()
            times.append((time.perf_counter() - begun) * 1000)
        caller.join()
        counts = group.statistics()
    [(found, _, errors, _)] = asked
    lost = len(errors) + sum(counts.calls) - len(found)
    wait = counts.longest_wait_s * 1000
    return Result(
        "swaps of weights under calls",
        {"update": Figure(tuple(times), "ms", "less"), "calls meanwhile": Figure(tuple(found), "ms", "less")},
        promises=((f"{lost} of {len(found):,} calls lost in {counts.updates} swaps (0)", lost == 0),),
        note=f"1 % of 26 x {click_networks.ROWS:,} rows and the network changed; calls waited {wait:.1f} ms at most;"
        f" {counts.kept} of {counts.prepared} networks by choices that were kept",
    )
