"""`vmhost replay`: runs a recorded baseline in another version of its task, and reports differences."""

from pathlib import Path

import click

from vmhost.cli import failures, inspect, keys


class _Statuses(click.ParamType):
    """Statuses with commas between, as a tuple; nothing: none."""

    name = "status"

    def get_metavar(self, param, ctx):
        return f"[{'|'.join(self._choices())}],..."

    def convert(self, value, parameter, context):
        if not isinstance(value, str):
            return value
        found, choices = [part.strip() for part in value.split(",") if part.strip()], self._choices()
        for status in found:
            if status not in choices:
                self.fail(f"expected any of {', '.join(choices)}, got {status!r:.80}", parameter, context)
        return tuple(status for status in found if status != "nothing")

    def _choices(self):
        from vmhost.operations.replay import STATUSES

        return (*(status for status in STATUSES if status != "same"), "nothing")


@click.command(short_help="Run recorded calls in a new version, and compare.")
@click.argument("baseline", type=click.Path(path_type=Path), metavar="BASELINE")
@click.option("--bundle", required=True, type=click.Path(path_type=Path), help="The version to run, NEW.vmb.")
@click.option("--tolerance", type=float, default=1e-9, show_default=True, help="Of numbers, relative to the larger.")
@click.option("--slower", type=float, default=2.0, show_default=True, help="Time factor that counts as slower.")
@click.option("--larger", type=float, default=2.0, show_default=True, help="Size factor that counts as larger.")
@click.option("--ignore-functions", is_flag=True, help="Calls of host functions may differ.")
@click.option(
    "--fail-on",
    default="different,error",
    show_default=True,
    type=_Statuses(),
    help="What makes the command fail.",
)
@click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="RULE",
    help="An injected fault: price=fails, price=fails:TEXT, price=slow:200ms, memory=32MiB; a star means all; "
    "price/3=fails: every third time that a call uses it. May be repeated.",
)
@click.option("--junit", type=click.Path(path_type=Path, dir_okay=False), help="Write JUnit XML there.")
@click.option("--html", "page", type=click.Path(path_type=Path, dir_okay=False), help="Write an HTML page there.")
@click.option(
    "--trust", multiple=True, type=click.Path(path_type=Path), help="Public keys to trust. [default: vmhost keys trust]"
)
@click.option("--allow-unsigned", is_flag=True, help="Also run an unsigned bundle.")
@failures.command
def command(
    output,
    baseline,
    bundle,
    tolerance,
    slower,
    larger,
    ignore_functions,
    fail_on,
    faults,
    junit,
    page,
    trust,
    allow_unsigned,
):
    """Run the calls recorded in BASELINE in another version of the task.

    Clocks, randomness and host functions answer from the record. Fails (status 1) if a call has another result, or an
    error where it had a result. See docs/operations.md.
    """
    from vmhost.baseline import Baseline
    from vmhost.operations import comparison, replay, replay_reports

    inspect.existing(bundle)
    rules = replay.Rules(
        tolerance=comparison.Tolerance(relative=_at_least(tolerance, 0.0, "--tolerance")),
        slower=_at_least(slower, 1.0, "--slower"),
        larger=_at_least(larger, 1.0, "--larger"),
        functions=not ignore_functions,
    )
    injected = _faults(faults)
    recorded = Baseline.read(baseline)
    with output.progress() as progress:
        bar = progress.add_task(f"{recorded.header.task} {recorded.header.version}", total=len(recorded))
        report = replay.replay(
            recorded,
            bundle,
            rules=rules,
            faults=injected,
            trust=keys.trust_store(trust),
            allow_unsigned=allow_unsigned,
            progress=lambda done: progress.update(bar, completed=done),
        )
    for path, text in ((junit, replay_reports.as_junit(report, fail_on)), (page, replay_reports.as_html(report))):
        if path is not None:
            _write(path, text)
    if output.as_json:
        output.document(replay_reports.as_plain(report))
    else:
        _print_report(report)
    return failures.TASK_FAILED if report.failed(fail_on) else failures.DONE


def _print_report(report):
    header = report.baseline.header
    click.echo(f"{header.task} {header.version} -> {report.version}: {len(report.outcomes)} calls")
    if report.baseline.torn:
        click.echo(f"  the baseline ends in {report.baseline.torn} bytes of a call that was not written to its end")
    for status, count in report.counts.items():
        if count or status == "same":
            click.echo(f"  {status:<10}{count:>7}")
    then, now = report.medians()
    click.echo(f"  median    {then * 1e3:.2f} ms -> {now * 1e3:.2f} ms")
    counts = [outcome for outcome in report.outcomes if outcome.status not in ("same", "skipped")]
    for outcome in counts[:20]:
        click.echo(f"call {outcome.recorded.number}: {outcome.status}: {outcome.why}")
        for one in outcome.differences[1:5]:
            click.echo(f"    {one}")
    if len(counts) > 20:
        click.echo(f"... and {len(counts) - 20} more; --html FILE lists them")


def _at_least(value, least, option):
    if not value >= least:
        raise click.UsageError(f"{option}: expected a number of at least {least:g}, got {value:g}")
    return value


def _faults(texts):
    from vmhost import limits
    from vmhost.operations.replay import Faults

    functions, memory = [], None
    for text in texts:
        name, found, what = text.partition("=")
        kind, _, detail = what.partition(":")
        name, _, every = name.partition("/")
        rule = {"function": name, "every": _every(every, text)}
        if found and name == "memory" and what:
            memory = limits.byte_count(what, "--fault memory")
        elif found and name and kind == "fails":
            functions.append({**rule, "fails": detail or "a fault that the replay injected"})
        elif found and name and kind == "slow" and detail:
            functions.append({**rule, "slow_s": limits.seconds(detail, f"--fault {name}")})
        else:
            raise click.UsageError(
                f"--fault: expected such as price=fails, price=slow:200ms or memory=32MiB, got {text!r}"
            )
    return Faults(tuple(functions), memory)


def _every(text, whole):
    if not text:
        return 1
    if not text.isdecimal() or not 1 <= int(text) <= 1_000_000:
        raise click.UsageError(f"--fault: expected a whole number after the /, got {whole!r}")
    return int(text)


def _write(path, text):
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise failures.Failure(f"{path}: cannot be written: {error.strerror or error}") from error
