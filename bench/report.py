"""The results as a table, as JSON and as a picture."""

import dataclasses
import json
import os
import platform
import statistics

from rich.console import Console
from rich.table import Table

LISTED_BELOW, LISTED_WHOLE = (
    0.95,
    20,
)  # a class lists its cases below this ratio; all of them if they are few


def machine():
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
    }


def as_dict(results):
    return {
        "machine": machine(),
        "ratios": {result.name: result.ratios for result in results if result.ratios},
        "results": [
            {
                "name": result.name,
                "note": result.note,
                "promises": [{"text": text, "met": met} for text, met in result.promises],
                "grid": [dataclasses.asdict(cell) for cell in result.grid],
                "figures": {
                    name: {
                        "median": figure.median,
                        "low": figure.low,
                        "high": figure.high,
                        "best": figure.best,
                        "unit": figure.unit,
                        "better": figure.better,
                        "values": figure.values,
                    }
                    for name, figure in result.figures.items()
                },
            }
            for result in results
        ],
    }


def _number(value):
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def show(results, console=None):
    console = console or Console()
    if not console.is_terminal:
        console.width = 130  # to a file or a pipe: do not wrap
    about = machine()
    console.print(
        f"Python {about['python']}, {about['cores']} cores, load {about['load']:.1f}; medians, quartiles, "
        "best rounds, and how many times better the first line is"
    )
    table = Table(show_edge=False, pad_edge=False)
    for title, justify in (
        ("what", "left"),
        ("who", "left"),
        ("median", "right"),
        ("quartiles", "right"),
        ("best", "right"),
        ("", "left"),
        ("ours", "right"),
    ):
        table.add_column(title, justify=justify)
    for result in results:
        if result.grid:
            continue
        ours = next(iter(result.figures.values()))
        for number, (name, figure) in enumerate(result.figures.items()):
            ratio = (
                ""
                if number == 0
                else f"{ours.advantage_over(figure):.2f}x"
                if all(figure.values) and all(ours.values)
                else ""
            )
            table.add_row(
                "" if number else result.name,
                name,
                _number(figure.median),
                f"{_number(figure.low)} … {_number(figure.high)}",
                _number(figure.best),
                figure.unit,
                ratio,
            )
        for text, met in result.promises:
            table.add_row(
                "", f"[{'green' if met else 'red'}]{'met' if met else 'missed'}: {text}[/]", "", "", "", "", ""
            )
        if result.note:
            table.add_row("", result.note, "", "", "", "", "")
        table.add_section()
    if table.row_count:
        console.print(table)
    grids = [result for result in results if result.grid]
    if grids:
        _show_grids(grids, console)


def _show_grids(results, console):
    """A line for each class of cases, and its summary; of a large class the cases below 0.95, of a small one all, worst
    first."""
    table = Table(
        title="times faster than NumPy, by class of cases", title_justify="left", show_edge=False, pad_edge=False
    )
    for title in ("", "cases", "at 0.95", "mean", "least", "NumPy against itself"):
        table.add_column(title, justify="right" if title else "left")
    listed = {}
    for result in results:
        ratios = [cell.ratio for cell in result.grid]
        against = sorted(cell.itself for cell in result.grid)
        table.add_row(
            result.name,
            str(len(ratios)),
            f"{sum(ratio >= 0.95 for ratio in ratios) / len(ratios):.0%}",
            f"{statistics.geometric_mean(ratios):.2f}",
            f"{min(ratios):.2f}",
            f"{against[len(against) // 10]:.2f} … {against[-1 - len(against) // 10]:.2f}",
        )
        for text, met in result.promises:
            table.add_row(f"  [{'green' if met else 'red'}]{'met' if met else 'missed'}: {text}[/]")
        if result.note:
            table.add_row(f"  {result.note}")
        for cell in sorted(result.grid, key=lambda cell: cell.ratio):
            if cell.ratio < LISTED_BELOW or len(ratios) <= LISTED_WHOLE:
                listed[cell] = None
    console.print()
    console.print(table)
    table = Table(show_edge=False, pad_edge=False)
    for title in ("case", "", "times faster", "ours, us", "NumPy, us", "NumPy against itself"):
        table.add_column(title, justify="left" if title in ("case", "") else "right")
    for cell in listed:
        colour = "green" if cell.ratio >= LISTED_BELOW else "yellow" if cell.ratio >= 0.8 else "red"
        table.add_row(
            cell.row,
            cell.column,
            f"[{colour}]{cell.ratio:.2f}[/]",
            _number(cell.ours_us),
            _number(cell.numpy_us),
            f"{cell.itself:.2f}",
        )
    console.print()
    console.print(table)


def write_json(results, path):
    path.write_text(json.dumps(as_dict(results), indent=1) + "\n", encoding="utf-8")


def draw(results, path):
    """One panel of horizontal bars per measurement. Needs matplotlib (the extra `bench`)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = 3
    rows = -(-len(results) // columns)
    figure, panels = pyplot.subplots(rows, columns, figsize=(6.2 * columns, 2.1 * rows), squeeze=False)
    for panel in panels.flat[len(results) :]:
        panel.axis("off")
    for result, panel in zip(results, panels.flat):
        names = list(result.figures)
        medians = [entry.median for entry in result.figures.values()]
        colours = [
            "tab:blue" if not number or name.startswith(("task", "two", "submit")) else "lightgray"
            for number, name in enumerate(names)
        ]
        panel.barh(names, medians, color=colours)
        panel.invert_yaxis()
        first = next(iter(result.figures.values()))
        panel.set_title(result.name, fontsize=9, loc="left")
        panel.set_xlabel(f"{first.unit}, {first.better} is better", fontsize=8)
        panel.tick_params(labelsize=8)
        if min(medians) > 0 and max(medians) / min(medians) > 30:
            panel.set_xscale("log")
        for number, median in enumerate(medians):
            panel.annotate(f" {_number(median)}", (max(median, 0), number), va="center", fontsize=8)
        panel.margins(x=0.18)
        panel.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=80)
