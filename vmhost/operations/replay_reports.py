"""A replay's Report as JUnit XML, as one HTML page, and as plain values for JSON."""

import html
import re
import xml.etree.ElementTree as ElementTree

from vmhost.operations.comparison import shown
from vmhost.operations.replay import FAILING, STATUSES, Outcome, Report

_MAX_ROWS = 2000  # calls listed on the page; those that differ come first


def as_plain(report: Report) -> dict[str, object]:
    """Counts, medians, and each call that differs."""
    then, now = report.medians()
    header = report.baseline.header
    return {
        "task": header.task,
        "baseline": {"path": report.baseline.path, "version": header.version, "calls": len(report.baseline)},
        "version": report.version,
        "counts": report.counts,
        "median_s": {"baseline": then, "replay": now},
        "elapsed_s": report.elapsed_s,
        "torn_bytes": report.baseline.torn,
        "calls": [
            {
                "call": outcome.recorded.number,
                "status": outcome.status,
                "why": outcome.why,
                "differences": [
                    {"path": one.path, "before": one.before, "after": one.after} for one in outcome.differences
                ],
                "wall_s": outcome.wall_s,
                "beyond": outcome.beyond,
            }
            for outcome in report.outcomes
            if outcome.status != "same"
        ],
    }


def as_junit(report: Report, failing: tuple[str, ...] = FAILING) -> str:
    """Each call is a test case; statuses in `failing` are failures, new errors are errors, others pass with their text
    as output."""
    header = report.baseline.header
    counts = report.counts
    suite = ElementTree.Element(
        "testsuite",
        name=f"{header.task} {header.version} -> {report.version}",
        tests=str(len(report.outcomes)),
        failures=str(sum(counts[status] for status in failing if status != "error")),
        errors=str(counts["error"] if "error" in failing else 0),
        skipped=str(counts["skipped"]),
        time=f"{report.elapsed_s:.3f}",
    )
    for outcome in report.outcomes:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=f"{header.task}.{(outcome.recorded.entry or header.entry).replace(':', '.')}",
            name=f"call {outcome.recorded.number}",
            time=f"{outcome.wall_s:.6f}",
        )
        text = _printable("\n".join(map(str, outcome.differences)) or outcome.why)
        if outcome.status == "skipped":
            ElementTree.SubElement(case, "skipped", message=_printable(outcome.why))
        elif outcome.status in failing:
            kind = "error" if outcome.status == "error" else "failure"
            ElementTree.SubElement(case, kind, type=outcome.status, message=_printable(outcome.why)).text = text
        elif outcome.status != "same":
            ElementTree.SubElement(case, "system-out").text = f"{outcome.status}: {text}"
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, "unicode") + "\n"


def _printable(text):
    """The text without characters that XML cannot have."""
    return re.sub("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text)


def as_html(report: Report) -> str:
    """One self-contained page."""
    header = report.baseline.header
    then, now = report.medians()
    title = f"{header.task}: {header.version} → {report.version}"
    rank = {status: at for at, status in enumerate(("error", "different", "slower", "larger", "skipped", "same"))}
    rows = sorted(report.outcomes, key=lambda outcome: (rank[outcome.status], outcome.recorded.number))
    tiles = "".join(f"<div class='tile {status}'><b>{report.counts[status]:,}</b>{status}</div>" for status in STATUSES)
    listed = "".join(map(_row, rows[:_MAX_ROWS]))
    more = f"<p>{len(rows) - _MAX_ROWS:,} more calls are not listed.</p>" if len(rows) > _MAX_ROWS else ""
    torn = (
        f"<p>The baseline ends in {report.baseline.torn:,} bytes of a call that was not written to its end.</p>"
        if report.baseline.torn
        else ""
    )
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{html.escape(title)}</title>"
        f"<meta name='viewport' content='width=device-width'><style>{_STYLE}</style>"
        f"<h1>{html.escape(title)}</h1><p>{len(report.baseline):,} recorded calls, replayed in "
        f"{report.elapsed_s:.2f} s; a call took {then * 1e3:.2f} ms in the middle, and takes {now * 1e3:.2f} ms.</p>"
        f"{torn}<div class='tiles'>{tiles}</div>"
        "<table><tr><th>call<th>status<th>before<th>now<th>what</tr>"
        f"{listed}</table>{more}</html>\n"
    )


def _row(outcome: Outcome) -> str:
    found = "".join(
        f"<tr><td><code>{html.escape(one.path)}</code><td><del>{html.escape(one.before)}</del>"
        f"<td><ins>{html.escape(one.after)}</ins></tr>"
        for one in outcome.differences
    )
    detail = (
        f"<details><summary>{html.escape(outcome.why[:300])}</summary><table>{found}</table>"
        f"<p>value: <code>{html.escape(shown(outcome.recorded.value))}</code></p></details>"
        if found
        else html.escape(outcome.why[:1000])
    )
    beyond = ", ".join(f"{name} {count}x" for name, count in outcome.beyond.items())
    if beyond:
        detail += f"<p class='note'>asked for more than was recorded: {html.escape(beyond)}</p>"
    return (
        f"<tr class='{outcome.status}'><td>{outcome.recorded.number}<td>{outcome.status}"
        f"<td>{outcome.recorded.wall_s * 1e3:.2f} ms<td>{outcome.wall_s * 1e3:.2f} ms<td>{detail}</tr>"
    )


_STYLE = """
:root { color-scheme: light dark; font: 15px/1.45 system-ui, sans-serif }
body { margin: 2rem auto; max-width: 70rem; padding: 0 1rem }
table { border-collapse: collapse; width: 100% } th, td { text-align: left; padding: .3rem .6rem; vertical-align: top }
tr { border-bottom: 1px solid #8884 } .tiles { display: flex; flex-wrap: wrap; gap: .6rem; margin: 1rem 0 }
.tile { border: 1px solid #8886; border-radius: .4rem; padding: .5rem .9rem; display: flex; flex-direction: column }
.tile b { font-size: 1.5rem } .error td:nth-child(2), .different td:nth-child(2) { color: #c22; font-weight: 600 }
.slower td:nth-child(2), .larger td:nth-child(2) { color: #a60 } .skipped { opacity: .7 } code { font-size: .9em }
del { color: #c22 } ins { color: #282; text-decoration: none } .note { font-size: .9em; opacity: .8; margin: 0 }
"""
