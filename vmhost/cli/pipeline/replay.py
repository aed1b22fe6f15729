"""`vmhost pipeline replay`: feeds stored events to a new pipeline, at any speed."""

import contextlib
import threading
import time
from pathlib import Path

import click

from vmhost.cli import failures
from vmhost.cli.pipeline import opening, stores
from vmhost.cli.pipeline.live import Live
from vmhost.cli.pipeline.status import TASK_COLUMNS, task_rows

_POLL_S = 0.1


class _Speed(click.ParamType):
    name = "speed"

    def convert(self, value, parameter, context):
        if value in (None, "max"):
            return None
        try:
            speed = float(str(value).removesuffix("x"))
        except ValueError:
            speed = 0.0
        if not 0 < speed < 1e9:
            self.fail(f"expected max, or a number above 0 such as 60, got {value!r}", parameter, context)
        return speed


@click.command(short_help="Feed stored events to a new pipeline, at any speed.")
@click.argument("recording", type=click.Path(path_type=Path))
@click.argument("places", metavar="FOLDER BUNDLE... | PIPELINE.YAML", nargs=-1, type=click.Path(path_type=Path))
@opening.options
@click.option(
    "--speed", type=_Speed(), default="max", show_default=True, help="60: an hour in a minute; max: no waiting."
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="Where to make the new store, instead of the pipeline.yaml's folder.",
)
@click.option("--day", metavar="DATE", help="Only the events of this day, such as 2026-11-25, local time.")
@click.option("--since", metavar="MOMENT", help="Only events at this time or later, such as 2026-11-25T10:30.")
@click.option("--until", metavar="MOMENT", help="Only events before this time.")
@click.option("--continue", "going_on", is_flag=True, help="Go on with a replay into FOLDER that was cut off.")
@failures.command
def replay(output, recording, places, config, trust, allow_unsigned, speed, folder, day, since, until, going_on):
    """Feed the events of RECORDING, a pipeline's folder or a file of JSON lines, to the stream tasks in BUNDLES, with a
    new store in FOLDER. The pipeline's clock is that of the events. Replays at one speed give the same rows."""
    from vmhost.pipeline.replay import Recording, ReplayClock

    plan = opening.plan(places, config, trust, allow_unsigned)
    if folder is not None:
        plan.folder = folder
    span = _span(day, since, until)
    if not going_on:
        _must_be_new(plan.folder, recording)
    with stores.errors():
        if recording.is_dir():
            with stores.stored(recording):
                pass
            stores.flushed(recording)
            found = Recording.stored(recording, *span)
        elif not recording.exists():
            raise failures.Failure(f"{recording}: no such file or folder{failures.did_you_mean(recording)}")
        else:
            found = Recording.lines(recording, *span)
        figures, code = _run(output, plan, found, ReplayClock(speed))
    output.document(figures)
    output.table("", TASK_COLUMNS, task_rows(figures["tasks"]))
    about = figures["replay"]
    output.line(
        f"{about['events']:,} events in {about['elapsed_s']:.1f} s, {about['speed']:,.0f} times as fast as they came; "
        f"rows: vmhost pipeline table {plan.folder} NAME"
    )
    if code == failures.DONE and any(task["dead_letters"] for task in figures["tasks"].values()):
        return failures.TASK_FAILED
    return code


def _span(day, since, until):
    from datetime import date, datetime, timedelta

    from vmhost.pipeline.stored import moment_ms

    if day is not None and (since or until):
        raise failures.Failure("--day sets both ends; leave --since and --until out")
    if day is not None:
        try:
            first = date.fromisoformat(day)
        except ValueError as error:
            raise failures.Failure(f"--day: expected a date such as 2026-11-25, got {day!r:.40}") from error
        return tuple(
            int(datetime.combine(one, datetime.min.time()).timestamp() * 1000)
            for one in (first, first + timedelta(days=1))
        )
    found = []
    for text, option in ((since, "--since"), (until, "--until")):
        try:
            found.append(None if text is None else moment_ms(text))
        except ValueError as error:
            raise failures.Failure(f"{option}: {error}") from error
    return tuple(found)


def _must_be_new(folder, recording):
    """Refuses a used folder: events of another time would all be late, or make later ones late."""
    from vmhost.pipeline.pipeline import STORE_NAME

    if folder.exists() and recording.exists() and folder.samefile(recording):
        raise failures.Failure(f"{folder}: expected a new folder, got the one whose events are replayed (--folder)")
    if (folder / STORE_NAME).exists():
        with stores.stored(folder) as stored:
            if stored.status()["events"]["position"]:
                raise failures.Failure(
                    f"{folder}: holds events of a pipeline already, with which those that are replayed would mix; name "
                    "a new folder, or go on with a replay that was cut off (--continue)"
                )


def _run(output, plan, recording, clock):
    from vmhost.cli.run import guest_log
    from vmhost.pipeline.control import Control
    from vmhost.pipeline.feed import BadLineError, Feed
    from vmhost.pipeline.replay import Replay

    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(opening.Interrupts())
        pipeline = plan.open(clock=clock)
        stack.enter_context(opening.ended(pipeline))
        feed = Feed(pipeline, recording.name)
        work = Replay(recording, feed, clock)
        ended = []
        thread = threading.Thread(target=_replayed, args=(work, ended), name="vmhost-replay", daemon=True)
        began_s = time.monotonic()
        bar = _bar(output, recording)
        with Live(output, pipeline, above=bar) as live, guest_log(output), Control(pipeline):
            thread.start()
            try:
                while thread.is_alive():
                    thread.join(_POLL_S)
                    bar.update(bar.task_ids[0], completed=work.done)
                    live.show()
                    if signals.asked:
                        live.note = "ending: nothing more is replayed"
                        feed.stop.set()
            finally:
                feed.stop.set()
                thread.join()
            opening.drain(output, pipeline, signals, live)
            failed = ended[0] if ended else None
            if failed is not None and not isinstance(failed, BadLineError):
                raise failed
            pipeline.end(plan.keep_visits or bool(signals.asked) or failed is not None)
            opening.drain(output, pipeline, signals, live)
        opening.close(pipeline)
        if failed is not None:
            raise failures.Failure(f"{failed}; the events before it were replayed")
        elapsed_s = time.monotonic() - began_s
        spanned_s = (work.latest_ms - clock.began_ms) / 1000 if work.events else 0.0
        about = {"events": work.events, "elapsed_s": elapsed_s, "speed": spanned_s / elapsed_s}
        return pipeline.final | {"replay": about}, signals.exit_code


def _replayed(work, ended):
    try:
        work.run()
    except ValueError as error:
        from vmhost.pipeline.feed import BadLineError

        is_bad = isinstance(error, BadLineError)
        ended.append(error if is_bad else failures.Failure(f"{work.recording.name}: {error}"))
    except BaseException as error:
        ended.append(error)


def _bar(output, recording):
    """A progress bar, for the top of the live table."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=output.remarks,
    )
    bar.add_task(f"replaying {recording.name}", total=recording.total or None)
    return bar
