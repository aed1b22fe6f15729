"""The engine's models against ONNX Runtime, OpenVINO, MNN and, if installed, torch, on the same networks and inputs: in
the host and in a VM, with one thread and with two.

Every engine is in a process of its own; they take turns run by run, every run has a fresh input, and every output is
compared with ONNX Runtime's. Peers get the same number of threads, float32 and their best graph options, which are in
the results. Each run is preceded by a pause, since peers' threads spin after a run. A ratio is the best peer's time
over ours. Without ONNX Runtime and OpenVINO a comparison is reported as invalid."""

import contextlib
import importlib.util
import os
import tempfile
import time
from pathlib import Path

from bench import model_files, networks
from bench.measure import Figure, Result
from bench.model_engines import NEEDED, OURS, PEERS
from bench.model_process import EngineFailed, Runner

REST_S = 0.02
WARM_UP = 3
NEAR, FAR = (
    1e-4,
    1e-2,
)  # largest distance of outputs from ONNX Runtime's: ours; a peer's, to count as the same computation
REACH = {
    "resnet18": 1.25,
    "resnet50": 1.1,
    "mobilenet_v2": 1.1,
    "squeezenet1_1": 1.25,
    "shufflenet_v2": 1.25,
    "bert": 1.1,
    "din": 2,
}
GET_PEERS = "make bench-peers"


def installed():
    """The installed peers."""
    return [peer for peer in PEERS if importlib.util.find_spec(peer.MODULES[0]) is not None]


def run(quick, networks_asked=tuple(networks.NETWORKS)):
    rounds, results = 5 if quick else 60, []
    for name in networks_asked:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            folder = Path(folder)
            ports, unwritten = model_files.write(folder, name, networks.NETWORKS[name]())
            for threads in sorted({1, min(2, len(os.sched_getaffinity(0)))}):
                results.append(_measured(name, folder, ports, unwritten, threads, rounds))
    return results


def _measured(name, folder, ports, unwritten, threads, rounds):
    left_out = {
        peer.NAME: f"not installed ({getattr(peer, 'INSTALL', GET_PEERS)})" for peer in PEERS if peer not in installed()
    }
    times, worst, agree, about = {}, {}, True, {}
    with contextlib.ExitStack() as stack:
        runners = []
        for engine in (*OURS, *installed()):
            runner = stack.enter_context(Runner(engine, None if engine in OURS else folder / "home"))
            try:
                if engine.NAME in unwritten:
                    raise EngineFailed(unwritten[engine.NAME])
                _, about[engine.NAME] = runner.open(folder, threads)
                runner.run(networks.inputs(ports, 0))
                runners.append(runner)
                times[engine.NAME], worst[engine.NAME] = [], 0.0
            except EngineFailed as error:
                if engine in OURS:
                    raise
                left_out[engine.NAME] = str(error)
        judge = next((runner.engine.NAME for runner in runners if runner.engine is NEEDED[0]), OURS[0].NAME)
        for number in range(rounds + WARM_UP):
            inputs, outputs_of = networks.inputs(ports, number), {}
            for runner in runners:
                time.sleep(REST_S)
                ms, outputs_of[runner.engine.NAME] = runner.run(inputs)
                if number >= WARM_UP:
                    times[runner.engine.NAME].append(ms)
            for who, outputs in outputs_of.items():
                for port, theirs in outputs_of[judge].items():
                    worst[who] = max(worst[who], float(abs(outputs[port] - theirs).max() / abs(theirs).max()))
                    agree = agree and (who not in _names(OURS) or outputs[port].argmax() == theirs.argmax())
    for who in [who for who in times if who not in _names(OURS) and worst[who] > FAR]:
        left_out[who] = f"its outputs lie {worst[who]:.1e} from {judge}'s: not the same computation"
    figures = {who: Figure(tuple(values), "ms", "less") for who, values in times.items()}
    return _judged(name, threads, figures, worst, agree, left_out, about)


def _names(engines):
    return [engine.NAME for engine in engines]


def _judged(name, threads, figures, worst, agree, left_out, about):
    title = f"{name}, {threads} thread{'s' * (threads > 1)}"
    note = "; ".join(f"without {who}: {why}" for who, why in left_out.items())
    ratios = {"network": name, "threads": threads, "engines": about, "outputs_differ": worst, "left_out": left_out}
    missing = [who for who in _names(NEEDED) if who in left_out]
    if missing:
        return Result(
            title,
            figures,
            ((f"INVALID: compared without {' and '.join(missing)}", False),),
            note,
            ratios={"valid": False, **ratios},
        )
    peers = {who: figure for who, figure in figures.items() if who in _names(PEERS) and who not in left_out}
    advantages = {}
    for ours in _names(OURS):
        for how, time_of in (("minimum", lambda figure: figure.best), ("median", lambda figure: figure.median)):
            best = min(peers, key=lambda who: time_of(peers[who]))
            advantages[ours, how] = time_of(peers[best]) / time_of(figures[ours]), best
    first, second = _names(OURS)
    (by_minimum, minimum_peer), (by_median, median_peer) = advantages[first, "minimum"], advantages[first, "median"]
    off = max(worst[who] for who in _names(OURS))
    ratios = {
        "valid": True,
        "minimum": by_minimum,
        "median": by_median,
        "best_peer": {"minimum": minimum_peer, "median": median_peer},
        second: {how: advantages[second, how][0] for how in ("minimum", "median")},
        **ratios,
    }
    return Result(
        title,
        figures,
        (
            (
                (
                    f"{by_median:.2f}x {median_peer} by medians, {by_minimum:.2f}x {minimum_peer} by least times (reach"
                    f" {REACH[name]})"
                ),
                min(by_median, by_minimum) >= REACH[name],
            ),
            (f"outputs differ by at most {off:.1e} ({NEAR}), same first class", agree and off <= NEAR),
        ),
        note,
        ratios=ratios,
    )
