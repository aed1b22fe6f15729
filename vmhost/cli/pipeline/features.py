"""`vmhost pipeline features`: the features in a file, and their values for a key."""

import math
import time
from pathlib import Path

import click

from vmhost.cli import failures, quantities
from vmhost.cli.pipeline import stores


@click.command(short_help="List features, their operators, and their values for a key.")
@click.argument("path", required=False, type=click.Path(path_type=Path), metavar="[FEATURES.YAML]")
@click.option("--operators", is_flag=True, help="List the operators.")
@click.option("--folder", type=click.Path(path_type=Path, exists=True, file_okay=False), help="A pipeline's folder.")
@click.option("--key", help="Read this key's features from the events in --folder.")
@click.option("--view", default="*", show_default=True, help="The view; a star means all features.")
@click.option(
    "--at", "at_ms", type=quantities.Moment(), help="As of that time, such as 2026-11-25T10:30. [default: now]"
)
@failures.command
def features(output, path, operators, folder, key, view, at_ms):
    """List the features that FEATURES.YAML declares; with --folder and --key, their values for a key."""
    from vmhost.pipeline.features import DERIVED, OPERATORS, Features, read_feature_file

    if operators:
        rows = [
            (name, ", ".join(key for key in ("parameter", "other") if getattr(each, key)), each.cost, each.says)
            for name, each in OPERATORS.items()
        ]
        rows += [(name, "[a, b]", "", says) for name, says in DERIVED.items()]
        output.document([dict(zip(("operator", "wants", "cost", "says"), row, strict=True)) for row in rows])
        output.table("", ("operator", "wants", "cost", "of the window's events"), rows)
        return failures.DONE
    if path is None:
        raise failures.Failure("expected a file of features, or --operators")
    declared = read_feature_file(path)
    if key is None:
        rows = [
            (
                each.name,
                each.operator if not each.of else f"{each.operator} of {', '.join(each.of)}",
                "" if each.of else ", ".join(each.source),
                each.field or "",
                "" if each.of else f"{each.window_ms / 3_600_000:g} h",
                "" if math.isnan(each.default) else f"{each.default:g}",
            )
            for each in declared.features.values()
        ]
        output.document(
            {"features": [row[0] for row in rows], "views": {n: list(v) for n, v in declared.views.items()}}
        )
        output.table("", ("feature", "operator", "source", "field", "window>", "default>"), rows)
        return failures.DONE
    if folder is None:
        raise failures.Failure("--key: expected --folder, where the events are")
    if view != "*" and view not in declared.views:
        raise failures.Failure(f"--view: there is no view {view} in {path}")
    at_ms = round(time.time() * 1000) if at_ms is None else at_ms
    stores.flushed(folder)
    with stores.stored(folder) as found:
        vector = Features(declared, store=found.events).computed(view, key, at_ms)
    values = dict(zip(declared.names(view), vector, strict=True))
    output.document(
        {"key": key, "at_ms": at_ms, "values": {n: None if math.isnan(v) else v for n, v in values.items()}}
    )
    output.table("", ("feature", "value>"), [(name, f"{value:.6g}") for name, value in values.items()])
    return failures.DONE
