"""`vmhost pipeline run`: stores events from files, pipes and HTTP, and runs the stream tasks that they trigger."""

import contextlib
import dataclasses
import sys
import time
from pathlib import Path

import click

from vmhost import ConfigurationError
from vmhost.cli import failures
from vmhost.cli.pipeline import opening, stores
from vmhost.cli.pipeline.live import Live
from vmhost.cli.pipeline.status import TASK_COLUMNS, task_rows


@click.command(short_help="Take events, and run the stream tasks that they trigger.")
@click.argument("places", metavar="FOLDER BUNDLE... | PIPELINE.YAML", nargs=-1, type=click.Path(path_type=Path))
@opening.options
@click.option(
    "--events", "files", multiple=True, help="A file of events, one JSON object a line; - is stdin. [default: -]"
)
@click.option(
    "--listen",
    "http",
    metavar="ADDRESS:PORT",
    help="Also take events by POST to http://ADDRESS/events: 127.0.0.1:8400.",
)
@click.option("--token-file", type=click.Path(path_type=Path), help="Requests must have the token in this file.")
@click.option(
    "--bad-lines",
    type=click.Choice(["stop", "aside"]),
    help="At a line that is not an event: stop, or set it aside and go on. [default: stop]",
)
@click.option(
    "--when-full",
    type=click.Choice(["wait", "drop"]),
    help="While the tasks' queues are full: wait, or let their overload rules drop calls. [default: wait]",
)
@click.option(
    "--tunnel", "to", metavar="ADDRESS:PORT", help="Send columns with `leaves` to this `vmhost tunnel serve`."
)
@click.option("--tunnel-keys", type=click.Path(path_type=Path), help="A folder of `vmhost tunnel certificates`.")
@click.option("--device", help="The device whose certificate in it is used.")
@click.option("--keep-visits", is_flag=True, help="At the end, leave visits without an exit open for the next run.")
@failures.command
def run(
    output, places, config, trust, allow_unsigned, files, http, token_file, bad_lines, when_full, to, tunnel_keys,
    device, keep_visits,
):  # fmt: skip
    """Take events into the store in FOLDER, and run the stream tasks in BUNDLES that they trigger; or do so as
    configured in a PIPELINE.YAML.

    Events are lines of JSON: {"name": "click", "time_ms": 1790000000000, "page": "item", "visit": "v1"}, and any of
    contents, id, key. The command ends after the last event, when all calls have ended; with HTTP it ends at Ctrl-C: it
    takes no more events, and calls run to their end. A second Ctrl-C leaves them to the next run."""
    plan = opening.plan(places, config, trust, allow_unsigned)
    plan.sources = _sources(plan, files, http, token_file, bad_lines, when_full)
    plan.keep_visits = plan.keep_visits or keep_visits
    if to is not None:
        from vmhost.pipeline.configuration import TunnelSettings

        if tunnel_keys is None or device is None:
            raise failures.Failure("--tunnel needs --tunnel-keys and --device: the cloud authenticates devices")
        plan.tunnel = TunnelSettings(to, tunnel_keys, device)
    elif tunnel_keys is not None or device is not None:
        raise failures.Failure("--tunnel-keys and --device go with --tunnel")
    with stores.errors():
        figures, code = _run(output, plan)
    output.document(figures)
    output.table("", TASK_COLUMNS, task_rows(figures["tasks"]))
    intake = figures["intake"]
    aside = sum(one["aside"] for one in figures["sources"].values())
    output.line(
        f"{figures['position']:,} events in {plan.folder}; {intake['late'] + intake['after_close']:,} late, "
        f"{intake['duplicates']:,} duplicates"
        + (f", {aside:,} bad lines put aside (vmhost pipeline events {plan.folder} --bad)" if aside else "")
        + f"; rows: vmhost pipeline table {plan.folder} NAME"
    )
    if code == failures.DONE and any(task["dead_letters"] for task in figures["tasks"].values()):
        return failures.TASK_FAILED
    return code


def _sources(plan, files, http, token_file, bad_lines, when_full):
    """The SourceSettings: those of the pipeline.yaml, unless the command line names others."""
    from vmhost.pipeline.configuration import STDIN, SourceSettings, http_address
    from vmhost.settings.tokens import CHECKED_MIN, read_token

    found = list(plan.sources)
    if files or http:
        found = [SourceSettings("stdin" if file == STDIN else file, file=file) for file in files]
    elif not found:
        found = [SourceSettings("stdin", file=STDIN)]
    for file in files:
        if file != STDIN and not Path(file).exists():
            raise failures.Failure(f"{file}: no such file{failures.did_you_mean(Path(file))}")
    if list(files).count(STDIN) > 1:
        raise failures.Failure("--events -: stdin can be read once")
    if http:
        try:
            http = http_address(http)
        except ValueError as error:
            raise failures.Failure(f"--listen: {error}") from error
        found.append(SourceSettings("http", http=http))
    if token_file is not None:
        if not any(one.http for one in found):
            raise failures.Failure("--token-file goes with --listen")
        with failures.converted(ConfigurationError):
            token = read_token(token_file, CHECKED_MIN)
        found = [dataclasses.replace(one, token=token) if one.http else one for one in found]
    chosen = {"bad_lines": bad_lines, "when_full": when_full}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    return tuple(dataclasses.replace(one, **chosen) for one in found)


def _run(output, plan):
    """(statistics at the end, exit code)"""
    from vmhost.cli.run import guest_log
    from vmhost.pipeline.configuration import STDIN
    from vmhost.pipeline.control import Control
    from vmhost.pipeline.feed import BadLineError
    from vmhost.pipeline.sources import Sources

    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(opening.Interrupts())
        pipeline = plan.open(tunnel=plan.tunnel)
        stack.enter_context(opening.ended(pipeline))
        sending = _Sending(pipeline) if plan.tunnel is not None else None
        sources = Sources(pipeline, plan.sources)
        pipeline.live = sources.live
        failed = None
        typed = any(one.file == STDIN for one in plan.sources) and sys.stdin is not None and sys.stdin.isatty()
        if typed:
            output.remark("events are read from this terminal, one on each line; Ctrl-D ends them")
        live = Live(output, pipeline, sources.statistics, shown=not typed)
        with live, guest_log(output), Control(pipeline, sources.statistics):
            with sources:
                _announce(output, sources)
                try:
                    while not sources.wait(opening.LOOK_S):
                        live.show()
                        if signals.asked and not live.note:
                            live.note = "ending: nothing more is taken"
                            sources.stop()
                except BadLineError as error:
                    failed = error
                at_end = sources.statistics()
            opening.drain(output, pipeline, signals, live)
            pipeline.end(plan.keep_visits or bool(signals.asked) or failed is not None)
            opening.drain(output, pipeline, signals, live)
        if sending is not None:
            sending.end(output, pipeline, signals)
        opening.close(pipeline)
        if failed is not None:
            raise failures.Failure(f"{failed}; the events before it were taken (--bad-lines aside continues)")
        sent = {} if sending is None else {"tunnel": sending.figures}
        return pipeline.final | {"sources": at_end} | sent, signals.exit_code


class _Sending:
    """The end of a run's tunnel."""

    def __init__(self, pipeline):
        self.device = pipeline.tunnel
        self.figures = None

    def end(self, output, pipeline, signals):
        """Sends the rest of the outbox, if the cloud is reachable."""
        pipeline.flush()
        end = time.monotonic() + _SEND_S
        while not (sent := self.device.wait_sent(opening.LOOK_S)):
            if time.monotonic() > end or (self.device.last_error and not self.device.connected):
                break
        figures = self.device.statistics()
        self.figures = {"sent": figures["counts"]["acknowledged"], "left": len(self.device.store.outbox)}
        if not sent:
            why = f": {figures['last_error']}" if figures["last_error"] else ""
            output.remark(f"{self.figures['left']:,} rows wait in the outbox for the next run{why}")
        self.device.close()


_SEND_S = 30.0  # how long the end of a run waits for the outbox, while there is a connection


def _announce(output, sources):
    for source in sources.sources.values():
        if getattr(source, "url", None):
            output.remark(f"events are taken by POST {source.url}")
