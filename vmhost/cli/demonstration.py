"""The demonstration: the shipped tasks, compiled, signed, run side by side in VMs, checked against the truth, timed.

It has four stages and prints nothing; `vmhost.cli.demo` shows the report.

1. compile: every task folder becomes a bundle, signed with a key made for this run; the host trusts only that key.
2. together: callers of all tasks at once, while a runaway and a memory hog are stopped beside them.
3. check: every answer against the ground truth, which is in no bundle.
4. compare: task by task, the same work in its VMs, then in a ThreadPoolExecutor of this interpreter, under one GIL.

Assumes the folder of the shipped tasks, `tasks/` in the checkout. It leaves nothing behind: bundles and key are in a
temporary folder."""

import contextlib
import functools
import importlib
import importlib.util
import itertools
import math
import os
import shutil
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import vmhost

# (task, cost of a call, calls in stage 2, calls of each kind in each round of stage 4)
WORK = (
    ("digits", "light", 1500, 1000),
    ("digits_cnn", "light", 600, 400),
    ("neighbours", "light", 600, 400),
    ("reranking", "light", 300, 200),
    ("vision", "light", 300, 200),
    ("strokes", "middle", 90, 30),
    ("forest", "heavy", 4, 2),
)
ROUNDS = 2  # of stage 4; the quicker one counts, as other load only slows down
MISBEHAVING = (
    ("runaway", {"swallow": 1}, vmhost.TimeLimitError),
    ("hog", {}, vmhost.MemoryLimitError),
)
CALLERS = 2  # threads per task in stage 2, each with one call at a time
SAMPLE_S = 0.05
GRACE_S = 5.0  # time for a stopped call to unwind: on a busy machine it may not run for a while
VMS, THREADS = "in VMs", "in GIL threads"


@dataclass(frozen=True)
class TaskReport:
    """One task. `right`: share of right answers (0..1); `p50_s`, `p99_s`: latencies of callers in stage 2.

    `cpu_s` (sum) and `peak_bytes` (maximum) are over all its VMs. `vms_s` and `threads_s` are the wall times of stage
    4.
    """

    name: str
    version: str
    cost: str
    calls: int
    errors: int
    right: float
    p50_s: float
    p99_s: float
    cpu_s: float
    peak_bytes: int
    vms: int
    vms_s: float
    threads_s: float

    @property
    def speed_up(self):
        """Speed of the VMs relative to GIL threads."""
        return self.threads_s / self.vms_s


@dataclass(frozen=True)
class StopReport:
    """A misbehaving task: the expected error, the actual one (None: it returned), and the time until it ended."""

    name: str
    expected: str
    got: str | None
    after_s: float
    message: str


@dataclass(frozen=True)
class Report:
    """The whole run. `wrong`: a sentence for everything that was not as expected; empty if all was well.

    `load_before`: the machine's load average before the run. `left_out`: tasks with models, if the package onnx, which
    compiles them, is missing."""

    tasks: tuple
    stops: tuple
    vms: tuple
    workers: int
    load_before: float
    compile_s: float
    together_s: float
    booted: int
    quarantined: int
    left_out: tuple
    wrong: tuple


@dataclass
class Progress:
    """The progress of the run, for a display: the stage, calls done and to be done, by task."""

    stage: str = "compile"
    done: dict = field(default_factory=dict)
    wanted: dict = field(default_factory=dict)

    def begin(self, stage, wanted):
        self.stage, self.wanted, self.done = stage, wanted, dict.fromkeys(wanted, 0)


def run(tasks_folder, progress=None):
    """Runs the demonstration on the tasks in `tasks_folder` and returns a Report. `progress` is kept up to date."""
    progress = progress or Progress()
    cases = _load_cases(tasks_folder)
    left_out = _left_out(Path(tasks_folder))
    work = [task for task in WORK if task[0] not in left_out]
    asked = {name: cases.cases(name) for name, *_ in work}
    names = [name for name, *_ in work] + [name for name, *_ in MISBEHAVING]
    workers = max(2, len(os.sched_getaffinity(0)))
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="vmhost-demo-") as folder:
        progress.begin("compile", dict.fromkeys(names, 1))
        started = time.perf_counter()
        trust, models = _compile_all(Path(tasks_folder), names, Path(folder), progress)
        compile_s = time.perf_counter() - started
        with vmhost.Host(trust=trust, policy=vmhost.Policy(grace_s=GRACE_S)) as host:
            tasks = {name: host.load(Path(folder) / f"{name}.vmb") for name in names}
            watch = _Watch(host)
            with watch:
                progress.begin(
                    "together", {name: calls for name, _, calls, _ in work} | {name: 1 for name, *_ in MISBEHAVING}
                )
                started = time.perf_counter()
                callers, stops = _together(host, work, tasks, asked, watch, progress)
                together_s = time.perf_counter() - started
                compared_s = _compare(work, tasks, Path(tasks_folder), models, asked, workers, progress)
            statistics = host.statistics()
    reports = tuple(
        TaskReport(
            name=name,
            version=tasks[name].version,
            cost=cost,
            calls=len(callers[name].seconds),
            errors=len(callers[name].errors),
            right=_share_right(callers[name].answers, cases),
            p50_s=percentile(callers[name].seconds, 50),
            p99_s=percentile(callers[name].seconds, 99),
            cpu_s=sum(vm.cpu_s for vm in watch.of(name)),
            peak_bytes=max((vm.peak_bytes for vm in watch.of(name)), default=0),
            vms=len(watch.of(name)),
            vms_s=compared_s[name, VMS],
            threads_s=compared_s[name, THREADS],
        )
        for name, cost, _, _ in work
    )
    return Report(
        tasks=reports,
        stops=stops,
        vms=tuple(sorted(watch.seen.values(), key=lambda vm: vm.id)),
        workers=workers,
        load_before=load_before,
        compile_s=compile_s,
        together_s=together_s,
        booted=statistics.booted,
        quarantined=len(statistics.quarantined),
        left_out=left_out,
        wrong=tuple(_wrong(reports, stops, callers)),
    )


def compiled(tasks_folder, folder):
    """Compiles and signs all tasks of the demonstration that can be compiled here, as bundles NAME.vmb in `folder`.

    Returns the trust store for the signing key, the names, and the inputs of each: name -> [(value, truth)], those of
    the misbehaving tasks too."""
    cases = _load_cases(tasks_folder)
    left_out = _left_out(tasks_folder)
    asked = {name: cases.cases(name) for name, *_ in WORK if name not in left_out}
    asked |= {name: [(value, None)] for name, value, _ in MISBEHAVING}
    progress = Progress()
    progress.begin("compile", dict.fromkeys(asked, 1))
    trust, _ = _compile_all(tasks_folder, list(asked), folder, progress)
    return trust, list(asked), asked


@contextlib.contextmanager
def steady_load(host, asked):
    """Within the block, a thread for each task calls it repeatedly, with a rest after each call."""
    ended = threading.Event()
    misbehaving = {name for name, *_ in MISBEHAVING}

    def call(name):
        task, rest_s = host.task(name), 5.0 if name in misbehaving else 0.02
        for value, _ in itertools.cycle(asked[name]):
            with contextlib.suppress(vmhost.VMHostError):
                task(value)
            if ended.wait(rest_s):
                return

    threads = [threading.Thread(target=call, args=(name,), name=f"vmhost-load-{name}", daemon=True) for name in asked]
    try:
        for thread in threads:
            thread.start()
        yield
    finally:
        ended.set()
        host.close(drain=False)  # else the threads would wait for their last calls
        for thread in threads:
            if thread.is_alive():  # Ctrl-C may come before all have started
                thread.join()


def percentile(seconds, percent):
    """The smallest of `seconds` that at least `percent` per cent of them do not exceed; NaN if there are none."""
    ordered = sorted(seconds)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)] if ordered else math.nan


@dataclass
class _Calls:
    """The results of one task's callers. Appending to a list is thread-safe."""

    seconds: list = field(default_factory=list)
    answers: list = field(default_factory=list)  # (answer, truth)
    errors: list = field(default_factory=list)


class _Watch:
    """Samples a host's VMs, as ended VMs are no longer in its statistics."""

    def __init__(self, host):
        self.seen = {}  # VM id -> the last statistics of it that had a task
        self._host = host
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="vmhost-demo-watch")

    def of(self, task):
        return [vm for vm in self.seen.values() if vm.task == task]

    def _look(self):
        while not self._ended.wait(SAMPLE_S):
            self.sample()

    def sample(self):
        self.seen.update({vm.id: vm for vm in self._host.statistics().vms if vm.task is not None})

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()
        self.sample()


def _load_cases(tasks_folder):
    """The module `cases.py` of the tasks folder, which is not in this package."""
    spec = importlib.util.spec_from_file_location("vmhost_demo_cases", Path(tasks_folder) / "cases.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _left_out(tasks_folder):
    """The names of tasks that cannot be compiled here."""
    from vmhost.bytecode.spec import read_task

    if importlib.util.find_spec("onnx"):
        return ()
    return tuple(name for name, *_ in WORK if read_task(tasks_folder / name).models)


def _compile_all(tasks_folder, names, folder, progress):
    """Writes NAME.vmb for every name into `folder`; returns the trust store for the signing key, and each task's
    compiled models."""
    from vmhost.bytecode import signing
    from vmhost.bytecode.format import TARGET
    from vmhost.compiler import compile_folder

    key, models = signing.generate_key(), {}
    for name in names:
        compiled = compile_folder(tasks_folder / name, target=TARGET)
        (folder / f"{name}.vmb").write_bytes(compiled.to_bytes(key))
        models[name] = compiled.models
        progress.done[name] += 1
    return signing.TrustStore.of(demo=key.public), models


def _work(cases, calls):
    """As many values as calls, the cases over and over."""
    return [cases[number % len(cases)] for number in range(calls)]


def _together(host, work, tasks, asked, watch, progress):
    """Stage 2: all callers at once. Returns their results by task, and the StopReports."""
    calls = {name: _Calls() for name, *_ in work}
    with ThreadPoolExecutor(len(work) * CALLERS + len(MISBEHAVING), "vmhost-demo-caller") as threads:
        try:
            futures = []
            for name, _, count, _ in work:
                values = iter(_work(asked[name], count))  # shared by callers: next() is atomic under the GIL
                futures += [
                    threads.submit(_call_all, tasks[name], values, calls[name], progress) for _ in range(CALLERS)
                ]
            stops = [
                threads.submit(_stop, tasks[name], value, expected, watch, progress)
                for name, value, expected in MISBEHAVING
            ]
            for future in futures:
                future.result()
            return calls, tuple(stop.result() for stop in stops)
        except BaseException:
            host.close(drain=False)  # else the callers would go on to the end of their work, and be waited for
            raise


def _call_all(task, work, calls, progress):
    for value, truth in work:
        started = time.perf_counter()
        try:
            answer = task(value)
        except vmhost.ClosedError:
            return
        except vmhost.VMHostError as error:
            calls.errors.append(error)
        else:
            calls.answers.append((answer, truth))
        calls.seconds.append(time.perf_counter() - started)
        progress.done[task.name] = len(calls.seconds)


def _stop(task, value, expected, watch, progress):
    started = time.perf_counter()
    try:
        task(value)
    except vmhost.VMHostError as error:
        got, message = type(error).__name__, str(error)
    else:
        got, message = None, "it returned"
    after_s = time.perf_counter() - started
    watch.sample()  # a stopped VM ends soon, and its statistics with it
    progress.done[task.name] += 1
    return StopReport(task.name, expected.__name__, got, after_s, message)


def _compare(work, tasks, tasks_folder, models, asked, workers, progress):
    """Stage 4. The wall time of each task's work by (name, runner); the best of the rounds."""
    progress.begin(
        "compare", {f"{name} {runner}": ROUNDS * calls for name, _, _, calls in work for runner in (VMS, THREADS)}
    )
    seconds = {}
    for name, _, _, calls in work:
        values = [value for value, _ in _work(asked[name], calls)]
        function = plain_function(tasks_folder / name, models[name])
        with ThreadPoolExecutor(min(workers, tasks[name].limits.concurrency)) as threads:
            runners = {VMS: tasks[name].map, THREADS: functools.partial(threads.map, function)}
            for _ in range(ROUNDS):
                for runner, run_all in runners.items():
                    started = time.perf_counter()
                    for _ in run_all(values):
                        progress.done[f"{name} {runner}"] += 1
                    took_s = time.perf_counter() - started
                    seconds[name, runner] = min(took_s, seconds.get((name, runner), math.inf))
    return seconds


def plain_function(folder, models):
    """The entry function `main:run` of the task in `folder`, imported into this interpreter, after its `setup()`.

    `setup()` runs in a copy of the folder, which has its `models` (names to bytes, as in a CompiledTask) as files for
    `engine.load`. Neither the folder stays on sys.path nor its modules in sys.modules, where the next task would find
    them."""
    path = list(sys.path)
    own = [file.stem for file in folder.glob("*.py")]
    others = {name: sys.modules.pop(name) for name in own if name in sys.modules}
    try:
        sys.path.insert(0, str(folder.resolve()))
        with tempfile.TemporaryDirectory(prefix="vmhost-demo-") as copy, contextlib.chdir(copy):
            shutil.copytree(sys.path[0], copy, dirs_exist_ok=True)
            for name, data in models.items():
                Path(name).write_bytes(data)
            module = importlib.import_module("main")
            if hasattr(module, "setup"):
                module.setup()
        return module.run
    finally:
        sys.path[:] = path
        for name in own:
            sys.modules.pop(name, None)
        sys.modules.update(others)


def _share_right(answers, cases):
    return sum(cases.share_right(answer, truth) for answer, truth in answers) / len(answers) if answers else math.nan


def _wrong(reports, stops, callers):
    """A sentence for each thing that was not as expected."""
    for report in reports:
        if report.errors:
            first = callers[report.name].errors[0]
            yield f"{report.name}: {report.errors} of {report.calls} calls failed; the first: {first}"
        elif not report.right > 0.9:
            yield f"{report.name}: expected more than 90 % right answers, got {report.right:.1%}"
    for stop in stops:
        if stop.got != stop.expected:
            yield f"{stop.name}: expected {stop.expected}, got {stop.got or 'a result'}: {stop.message}"
