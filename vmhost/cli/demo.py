"""`vmhost demo`: runs `vmhost.cli.demonstration` and shows its progress: a live table on a terminal, lines elsewhere,
or JSON."""

import dataclasses
import math
import threading
from pathlib import Path

import click

from vmhost.cli import failures
from vmhost.cli.inspect import size_text

STAGES = {
    "compile": "Compiling and signing the tasks",
    "together": "All tasks at once, with a runaway and a memory hog among them",
    "compare": "The same work through VMs and through GIL threads",
}
REDRAW_S = 0.1


@click.command(short_help="Run the shipped tasks side by side, and check them.")
@click.option(
    "--tasks",
    "folder",
    type=click.Path(path_type=Path),
    help="The folder with the shipped tasks. [default: the checkout's, or those that were installed]",
)
@failures.command
def command(output, folder):
    """Run the shipped tasks side by side in VMs, stop two that misbehave, and check every answer."""
    from vmhost.cli import demonstration as demo

    folder = tasks_folder(folder)
    progress = demo.Progress()
    with _shown(output, progress):
        report = demo.run(folder, progress)
    if output.as_json:
        output.document(_document(report))
    else:
        _show(output, report)
    return failures.TASK_FAILED if report.wrong else failures.DONE


def tasks_folder(given):
    """The folder of the shipped tasks: `given`, or the installed one, or that of the checkout."""
    package = Path(__file__).resolve().parents[1]
    candidates = [given] if given else [package / "tasks", package.parent / "tasks", Path("tasks")]
    for folder in candidates:
        if (folder / "cases.py").is_file():
            return folder
    if given:
        raise failures.Failure(
            f"{given}: expected the folder of the shipped tasks, with cases.py in it; it is tasks/ in the checkout"
        )
    raise failures.Failure(
        "the tasks that the demo runs were not installed with vmhost; go to the project's checkout, or give --tasks"
        " FOLDER"
    )


class _shown:
    """Shows the progress while the block runs: a live table where stderr is a terminal, else a line for each stage."""

    def __init__(self, output, progress):
        self._output, self._progress = output, progress
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._show, name="vmhost-demo-display")

    def __enter__(self):
        if not self._output.as_json:
            self._thread.start()

    def __exit__(self, *_):
        if not self._output.as_json:
            self._ended.set()
            self._thread.join()

    def _show(self):
        console = self._output.remarks
        if not console.is_terminal:
            shown = None
            while True:
                ended = self._ended.wait(REDRAW_S)
                if self._progress.stage != shown:
                    shown = self._progress.stage
                    self._output.remark(STAGES[shown])
                if ended:
                    return
        from rich.live import Live

        with Live(console=console, auto_refresh=False, transient=True) as live:
            while not self._ended.wait(REDRAW_S):
                live.update(self._table(console), refresh=True)

    def _table(self, console):
        done, wanted = self._progress.done, self._progress.wanted
        rows = [[name, f"{done.get(name, 0)}", f"{count}"] for name, count in wanted.items()]
        from vmhost.cli.terminal import fitting

        return fitting(console, STAGES[self._progress.stage], ["task", "done>", "of>"], rows)


def _show(output, report):
    calls = sum(task.calls for task in report.tasks)
    output.table(
        f"{calls} calls in {report.together_s:.1f} s, all tasks at once",
        ["task", "calls>", "errors>", "right>", "p50>", "p99>", "CPU>", "memory>", "speed-up>"],
        [
            [
                task.name,
                f"{task.calls}",
                f"{task.errors}",
                f"{task.right:.1%}",
                duration_text(task.p50_s),
                duration_text(task.p99_s),
                duration_text(task.cpu_s),
                size_text(task.peak_bytes),
                f"{task.speed_up:.2f} x",
            ]
            for task in report.tasks
        ],
    )
    output.line()
    output.table(
        "Stopped",
        ["task", "ended with", "after>"],
        [[stop.name, stop.got or "a result", duration_text(stop.after_s)] for stop in report.stops],
    )
    output.line()
    output.table(
        f"Speed-up: the same work in VMs and in GIL threads, {report.workers} cores",
        ["task", "cost", "in VMs>", "in GIL threads>", "speed-up>"],
        [
            [task.name, task.cost, duration_text(task.vms_s), duration_text(task.threads_s), f"{task.speed_up:.2f} x"]
            for task in report.tasks
        ],
    )
    if report.load_before > report.workers / 2:
        output.line(
            f"The machine was busy before the run (load {report.load_before:.1f}): it does better when it is quiet.",
            style="yellow",
        )
    output.line()
    output.table(
        f"VMs: {report.booted} booted, {report.quarantined} quarantined",
        ["VM", "task", "state", "calls>", "errors>", "stops>", "CPU>", "peak memory>"],
        [
            [
                f"{vm.id}",
                f"{vm.task} {vm.version}",
                vm.state,
                f"{vm.calls}",
                f"{vm.errors}",
                f"{vm.stops}",
                duration_text(vm.cpu_s),
                size_text(vm.peak_bytes),
            ]
            for vm in report.vms
        ],
    )
    output.line()
    if report.left_out:
        output.line(
            f"Left out: {', '.join(report.left_out)}; models need the package onnx: pip install 'vmhost[models]'",
            style="yellow",
        )
    for sentence in report.wrong:
        output.error(sentence)
    if not report.wrong:
        output.line(
            "Every answer was checked against the data's truth, and both misbehaving tasks were stopped "
            "while the others ran on.",
            style="green",
        )


def duration_text(seconds):
    """A time with three digits."""
    if math.isnan(seconds):
        return "-"
    for unit, length in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


def _document(report):
    document = dataclasses.asdict(report)
    for task, plain in zip(report.tasks, document["tasks"]):
        plain["speed_up"] = task.speed_up
        # JSON has no NaN: a task without answered calls has no share of right answers.
        plain.update({name: None for name, value in plain.items() if isinstance(value, float) and math.isnan(value)})
    return document
