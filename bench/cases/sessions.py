"""Sessions of models, each in fresh processes beside the peers': the time to make one, with the search and with what a
state folder caches; the memory of a process that makes one and runs it; and eight VMs that run one network at the same
time, against one session of ONNX Runtime called from eight threads."""

import os
import statistics
import tempfile
from pathlib import Path

from bench import model_files, networks
from bench.cases.models import installed
from bench.measure import Figure, Result, interleaved
from bench.model_engines import InAVM, InTheHost, KeptInTheHost, ONNXRuntime
from bench.model_process import EngineFailed, Runner

MAX_MAKING_MS, MAX_KEPT_MS = 300, 30  # ResNet50
AT_ONCE = 8
RUNS = 5
MEMORY_ROUNDS = 3


def run(quick, networks_asked=tuple(networks.NETWORKS)):
    rounds, results = 2 if quick else 10, []
    for name in networks_asked:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            folder = Path(folder)
            ports, unwritten = model_files.write(folder, name, networks.NETWORKS[name]())
            peers = [peer for peer in installed() if peer.NAME not in unwritten and _runs(peer, folder, ports)]
            results += _made_and_run(name, folder, ports, peers, rounds)
            if name == "mobilenet_v2" and ONNXRuntime in peers:
                results.append(_at_once(folder, ports, quick))
    return results


def _runs(engine, folder, ports):
    with Runner(engine, folder / "home") as runner:
        try:
            runner.open(folder, 1)
            return bool(runner.run(networks.inputs(ports, 0)))
        except EngineFailed:
            return False


def _made_and_run(name, folder, ports, peers, rounds):
    """Two Results: ms to make a session, MiB of a process that makes one and runs it. Measuring memory takes time, so
    these are separate processes."""
    making, memory, unread, rates, inputs = {}, {}, {}, [], networks.inputs(ports, 0)
    with Runner(KeptInTheHost, folder) as runner:
        runner.open(folder, 1)  # fills the caches for later processes
    for _ in range(rounds):
        for engine in (InTheHost, KeptInTheHost, *peers):
            with Runner(engine, folder / "home") as runner:
                if engine is InTheHost:
                    rates.append(runner.rates())
                ms, about = runner.open(folder, 1)
                making.setdefault(engine.NAME, []).append(ms)
                unread.setdefault(engine.NAME, []).append(ms - about.get("read_ms", 0))

    for engine in (InTheHost, *peers) * min(rounds, MEMORY_ROUNDS):
        with Runner(engine, folder / "home") as runner:

            def work():
                runner.open(folder, 1)
                for _ in range(RUNS):
                    runner.run(inputs)

            memory.setdefault(engine.NAME, []).append(runner.peak_mib(work))
    making = {who: Figure(tuple(values), "ms", "less") for who, values in making.items()}
    memory = {who: Figure(tuple(values), "MiB", "less") for who, values in memory.items()}
    promises = (
        [
            (
                f"{statistics.median(unread[who]):.0f} ms {what}, from a model file that was read (below {limit_ms})",
                statistics.median(unread[who]) < limit_ms,
            )
            for who, what, limit_ms in (
                (InTheHost.NAME, "with the search", MAX_MAKING_MS),
                (KeptInTheHost.NAME, "with what a state folder keeps", MAX_KEPT_MS),
            )
        ]
        if name == "resnet50"
        else []
    )
    measured = Figure(tuple(rates), "ms", "less")
    yield Result(
        f"{name}: making a session",
        making,
        tuple(promises),
        f"measuring the machine before that, once: {measured.median:.0f} ms",
    )
    ours, theirs = memory[InTheHost.NAME], memory.get(ONNXRuntime.NAME)
    yield Result(
        f"{name}: peak memory of a process, one thread",
        memory,
        (
            ()
            if theirs is None
            else (
                (
                    f"{ours.median:.0f} MiB, ONNX Runtime {theirs.median:.0f} (at most that)",
                    ours.median <= theirs.median,
                ),
            )
        ),
    )


def _at_once(folder, ports, quick):
    rounds, seconds = (2, 0.3) if quick else (12, 1.0)
    inputs, vms, memory = [networks.inputs(ports, number) for number in range(AT_ONCE)], [], {}
    with Runner(InAVM) as ours, Runner(ONNXRuntime, folder) as theirs, Runner(InAVM) as one:
        for runner in (ours, theirs, one):
            runner.open(folder, 1)

        def a_second(runner, callers=AT_ONCE):
            runs_per_s, there = runner.together(inputs, callers, seconds)
            if runner is ours:
                vms.append(there)
            return runs_per_s

        figures = interleaved(
            {f"{AT_ONCE} VMs": lambda: a_second(ours), f"{AT_ONCE} ONNX Runtime threads": lambda: a_second(theirs)},
            rounds,
            "runs/s",
            "more",
        )
        one.together(inputs, 1, seconds)
        memory = {
            what: runner.memory_mib() for what, runner in (("VMs", ours), ("ONNX Runtime", theirs), ("one VM", one))
        }
    ratio = figures[f"{AT_ONCE} VMs"].advantage_over(figures[f"{AT_ONCE} ONNX Runtime threads"])
    weights = (folder / "network.vmm").stat().st_size / 2**20
    each = (memory["VMs"] - memory["one VM"]) / (AT_ONCE - 1)
    return Result(
        f"mobilenet_v2: {AT_ONCE} at once, one thread each, {len(os.sched_getaffinity(0))} cores",
        figures,
        (
            (
                f"{ratio:.2f}x ONNX Runtime's throughput (at least 1), with {min(vms)} VMs",
                ratio >= 1 and min(vms) >= AT_ONCE,
            ),
            (f"each further VM takes {each:.1f} MiB, the weights {weights:.1f} (once for all)", each < weights),
        ),
        f"memory: {AT_ONCE} VMs {memory['VMs']:.0f} MiB, one {memory['one VM']:.0f}, ONNX Runtime"
        f" {memory['ONNX Runtime']:.0f}",
    )
