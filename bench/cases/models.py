"""The engine's models against ONNX Runtime, on the same networks and inputs: in the host and in a VM, with one thread and with two.

Every run has a fresh input, and every output is compared with the peer's. ONNX Runtime gets the same number of threads and all its graph
optimizations. Before each run nobody works for a while, since its threads spin after a run. Without ONNX Runtime the run says that it is invalid.
"""

import os
import tempfile
import time
from pathlib import Path

import numpy

import engine
import vmhost
from bench import networks
from bench.measure import Figure, Result
from bytecode.compiler import compile_task
from engine import library

REST_S = 0.02
MAIN = """
import engine

model = None

def setup():
    global model
    model = engine.load("network")

def run(inputs):
    return model(inputs)
"""


def _runtime(home):
    """ONNX Runtime, or None. It keeps a file with an id of the machine in the user's home, so it gets another one."""
    before, os.environ["HOME"] = os.environ.get("HOME"), home
    try:
        import onnxruntime
    except ImportError:
        return None
    finally:
        if before is None:
            del os.environ["HOME"]
        else:
            os.environ["HOME"] = before
    onnxruntime.disable_telemetry_events()
    return onnxruntime


def _session(runtime, data, threads):
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
    return runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def run(quick):
    rounds = 5 if quick else 60
    results, threads_before = [], library.threads()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        runtime = _runtime(folder)
        try:
            for name, make in networks.NETWORKS.items():
                data = make().SerializeToString()
                for threads in sorted({1, min(2, threads_before)}):
                    library.set_threads(threads)
                    results.append(_measured(name, data, threads, rounds, runtime, Path(folder)))
        finally:
            library.set_threads(threads_before)
    return results


def _measured(name, data, threads, rounds, runtime, folder):
    (folder / "network.onnx").write_bytes(data)
    (folder / "main.py").write_text(MAIN)
    (folder / "task.yaml").write_text(f'name: {name}\nversion: "1.0.0"\nentry: main:run\npython: "3.14"\nmodels: {{network: network.onnx}}\n')
    bundle = compile_task(folder)
    (folder / "network.vmm").write_bytes(bundle.models["network"])
    model = engine.load(folder / "network.vmm")
    with vmhost.Host(allow_unsigned=True) as host:
        task = host.load(bundle.to_bytes())
        ways = {"in the host": model, "in a VM": task}
        if runtime is not None:
            session = _session(runtime, data, threads)
            names = [port.name for port in model.outputs]
            ways["ONNX Runtime"] = lambda inputs: dict(zip(names, session.run(names, inputs)))
        times, worst, agree = {way: [] for way in ways}, 0.0, True
        for number in range(rounds + 1):
            inputs = networks.inputs(model.inputs, number)
            made = {}
            for way, call in ways.items():
                time.sleep(REST_S)
                began = time.perf_counter()
                made[way] = call(inputs)
                if number:
                    times[way].append(1000 * (time.perf_counter() - began))
            truth = made["ONNX Runtime" if runtime is not None else "in the host"]
            for outputs in made.values():
                for port, array in outputs.items():
                    ours, theirs = numpy.asarray(array), numpy.asarray(truth[port])
                    worst = max(worst, float(abs(ours - theirs).max() / abs(theirs).max()))
                    agree = agree and ours.argmax() == theirs.argmax()
    figures = {way: Figure(tuple(values), "ms", "less") for way, values in times.items()}
    if runtime is None:
        return Result(f"{name}, {threads} threads", figures, (("INVALID: ONNX Runtime is not installed (pip install 'vmhost[bench]')", False),))
    ours, theirs = figures["in the host"], figures["ONNX Runtime"]
    ratios = {"minimum": theirs.best / ours.best, "median": theirs.median / ours.median, "versions": {"onnxruntime": runtime.__version__}}
    return Result(f"{name}, {threads} threads", figures, (
        (f"{ratios['median']:.2f}x ONNX Runtime by medians, {ratios['minimum']:.2f}x by least times (reach 1)", min(ratios["median"], ratios["minimum"]) >= 1),
        (f"outputs differ by at most {worst:.1e} (1e-4), same first class", agree and worst <= 1e-4)), ratios=ratios)
