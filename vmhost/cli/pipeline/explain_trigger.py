"""`vmhost pipeline explain-trigger`: a stream task's condition, and its matches."""

from pathlib import Path

import click

from vmhost.bytecode.either import time_text
from vmhost.cli import failures
from vmhost.cli.pipeline import stores


@click.command(short_help="Show what triggers a stream task, and matches under way.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("task", metavar="NAME|BUNDLE")
@click.option("--visit", help="Show how the events of this visit move through the condition.")
@failures.command
def explain_trigger(output, folder, task, visit):
    """Show what triggers a stream task. NAME: a task of the pipeline running in FOLDER; matches under way are shown.
    BUNDLE: the path of any stream task; its condition is tested on all events stored in FOLDER."""
    path = Path(task)
    if path.is_file() or path.suffix == ".vmb":
        found = _of_bundle(path)
        live = None
    else:
        live = _trigger_of_running(folder, task)
        found = {"task": task, "version": live["version"], **_condition(live["trigger"])}
    stores.flushed(folder)
    with stores.stored(folder) as stored:
        if visit is not None:
            steps = _through_visit(stored, found, visit)
            output.document({**found, "visit": visit, "events": steps})
            _print_condition(output, found)
            _print_visit(output, visit, steps)
            return failures.DONE
        if live is None:
            seen, fired, last, trigger = _through_all(stored, found)
            output.document({**found, "events": seen, "triggered": fired, "last": last, "trigger": trigger})
            _print_condition(output, found)
            _print_steps(output, trigger)
            when = f", last by the event at {last['position']}, {stores.moment(last['time_ms'])}" if last else ""
            output.line(f"{seen:,} stored events would trigger it {fired:,} times{when}")
            return failures.DONE
    output.document(live)
    _print_condition(output, found)
    _print_steps(output, live["trigger"])
    counts = live["counts"]
    output.line(
        f"triggered {counts['triggered']:,} times; {live['waiting']:,} calls wait, {live['running']:,} run; "
        f"all calls for events up to {live['position']:,} have ended"
        + (f"; {live['behind']:,} stored events are still to be looked at" if live["behind"] else "")
    )
    return failures.DONE


def _of_bundle(path):
    from vmhost.bytecode.format import read_bundle
    from vmhost.cli import inspect

    inspect.existing(path)
    manifest = read_bundle(path, allow_unsigned=True).manifest
    if manifest.trigger is None:
        raise failures.Failure(f"{path}: {manifest.name} is no stream task: its task.yaml has no `trigger`")
    trigger = manifest.trigger
    return {
        "task": manifest.name,
        "version": manifest.version,
        "on": [list(ids) for ids in trigger.on],
        "level": trigger.level,
        "within_ms": trigger.within_ms,
    }


def _trigger_of_running(folder, name):
    from vmhost.pipeline.control import NotRunningError, ask

    with stores.errors():
        try:
            return ask(folder, "explain", name=name)
        except NotRunningError:
            near = failures.did_you_mean(Path(name)) if "/" in name else ""
            raise failures.Failure(
                f"{folder}: no pipeline is running there that could be asked about {name!r}; give the path of the "
                f"task's bundle{near}"
            ) from None


def _condition(trigger):
    """`on`, `level` and `within_ms` as in task.yaml, from the explanation of a TriggerEngine."""
    on = []
    for steps in trigger["sequences"]:
        on.append([])
        for step in steps:
            on[-1] += ["*", step["id"]] if step["after_any_run"] else [step["id"]]
    return {"on": on, "level": trigger["level"], "within_ms": trigger["within_ms"]}


def _engine(found):
    from vmhost.pipeline.triggers import TriggerEngine

    engine = TriggerEngine()
    engine.add(found["task"], found["on"], level=found["level"], within_ms=found["within_ms"])
    return engine


def _engine_fed(engine, stored):
    event = stored.event
    fired = engine.feed(event.name, event.page, event.visit, event.time_ms, stored.position)
    return fired[0][1] if fired else None  # the position of the match's first event


def _through_all(stored, found):
    """(number of events, how often they triggered, the last one that did, the final state of the condition)."""
    from vmhost.pipeline.events import PAGE_EXIT

    engine, seen, fired, last = _engine(found), 0, 0, None
    for one in stored.find():
        seen += 1
        if _engine_fed(engine, one) is not None:
            fired += 1
            last = {"position": one.position, "time_ms": one.event.time_ms, "visit": one.event.visit}
        if one.event.visit and one.event.name == PAGE_EXIT:
            engine.end_visit(one.event.visit)
    return seen, fired, last, engine.explain(found["task"])


def _through_visit(stored, found, visit):
    """A dict for each event of the visit: what it triggers, and the ids of the condition that matches have reached."""
    engine, steps = _engine(found), []
    for one in stored.find(visit=visit):
        start = _engine_fed(engine, one)
        waiting = [
            [number for number, step in enumerate(sequence) if step["waiting"]]
            for sequence in engine.explain(found["task"])["sequences"]
        ]
        event = one.event
        steps.append(
            {
                "position": one.position,
                "time_ms": event.time_ms,
                "name": event.name,
                "page": event.page,
                "triggers_from": start,
                "come_to": waiting,
            }
        )
    if not steps:
        raise failures.Failure(f"{stored.folder}: no events of the visit {visit!r}; see vmhost pipeline events")
    return steps


def _print_condition(output, found):
    within = f", within {time_text(found['within_ms'])}" if found["within_ms"] else ""
    level = "in the events of one visit" if found["level"] == "page" else "in the sequence of all events"
    output.line(f"{found['task']} {found['version']}: {level}{within}", style="bold")
    for ids in found["on"]:
        output.line(f"  {' -> '.join(ids)}")


def _print_steps(output, trigger):
    rows = [
        (
            str(number),
            ("* -> " if step["after_any_run"] else "") + step["id"],
            f"{step['waiting']:,}",
            "yes" if step["ends"] else "",
        )
        for number, sequence in enumerate(trigger["sequences"], 1)
        for step in sequence
    ]
    output.table("", ("sequence>", "id", "matches here>", "triggers"), rows)


def _print_visit(output, visit, steps):
    rows = []
    for step in steps:
        come = "; ".join(", ".join(str(number + 1) for number in numbers) for numbers in step["come_to"] if numbers)
        why = "" if step["triggers_from"] is None else f"triggers, from {step['triggers_from']}"
        rows.append(
            (
                str(step["position"]),
                stores.moment(step["time_ms"]),
                stores.shown(step["name"]),
                stores.shown(step["page"]),
                come,
                why,
            )
        )
    output.table(f"visit {stores.printable(visit)}", ("position>", "time", "name", "page", "matched up to", ""), rows)
