"""`vmhost crashes`: crashes recorded in a state folder, by cause and by task; or one report."""

import time
from dataclasses import asdict
from pathlib import Path

import click

from vmhost.cli import failures


@click.command(short_help="List the crashes recorded in STATE, or show one.")
@click.argument("state", type=click.Path(path_type=Path), metavar="STATE")
@click.argument("report", required=False)
@failures.command
def command(output, state, report):
    """List the crashes of hosts with the state folder STATE by cause, most frequent first; or show the REPORT with this
    id, or the beginning of one."""
    from vmhost.operations.crash_reports import CrashFolder

    if not state.is_dir():
        raise failures.Failure(f"{state}: no such state folder{failures.did_you_mean(state)}")
    folder = CrashFolder(state)
    folder.collect()
    if report is not None:
        found = folder.report(report)
        if found is None:
            raise failures.Failure(f"{state}: has no report {report!r}; `vmhost crashes {state}` lists them")
        output.document({"title": found.title, **asdict(found)})
        _show(output, found)
        return failures.DONE
    groups, ranking = folder.groups(), folder.ranking()
    output.document(
        {
            "groups": [asdict(group) for group in groups],
            "tasks": [{"task": task, "version": version, "crashes": count} for task, version, count in ranking],
        }
    )
    if not groups:
        output.line("no crash is known here")
        return failures.DONE
    output.table(
        "Causes",
        ("what", "crashes>", "versions", "last", "report"),
        [
            (
                group.title,
                str(group.count),
                ", ".join(f"{version or '-'} ({count})" for version, count in group.versions.items()),
                _moment(group.last),
                group.latest,
            )
            for group in groups
        ],
    )
    output.table(
        "Tasks",
        ("task", "version", "crashes>"),
        [(task or "the host", version or "-", str(count)) for task, version, count in ranking],
    )
    return failures.DONE


def _show(output, report):
    output.line(report.title, style="bold")
    output.line(f"{_moment(report.time)}, process {report.pid}, cause {report.fingerprint}")
    if report.call:
        output.line(f"call of {report.call['entry']}, for {report.call['running_s']:.3f} s")
    for title, lines in (("Python", report.python), ("Native", report.native), ("Last lines", report.log)):
        output.line(title, style="bold")
        for line in lines or ("(none)",):
            output.line(f"  {line}")
    for vm in report.vms:
        output.line(f"VM {vm.vm}: {vm.task or 'no task'} {vm.version} ({vm.phase})", style="bold")
        for thread in vm.threads:
            for line in thread or ("(runs no Python)",):
                output.line(f"  {line}")


def _moment(time_s):
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_s))
