"""`vmhost pipeline explain-rule`: a rule's automaton, and the effect of each event on it. `compile-rule`: the rule with
its conditions compiled."""

import json
from pathlib import Path

import click

from vmhost.cli import failures
from vmhost.cli.pipeline import stores

_COLUMNS = ("event", "time_ms", "name", "key", "under_way")


@click.command(short_help="Show a rule's automaton, and the effect of each event.")
@click.argument("rule", type=click.Path(path_type=Path))
@click.option(
    "--events", type=click.Path(allow_dash=True), help="A file of events, one JSON object a line; - is stdin."
)
@click.option("--name", help="Which rule, where the file holds several.")
@click.option("--dot", is_flag=True, help="Print the automaton alone, for Graphviz: … --dot | dot -Tsvg > rule.svg")
@failures.command
def explain_rule(output, rule, events, name, dot):
    """Show the automaton of the RULE in a file, and with --events a table: each event, the matches under way by the
    step they wait in, and the result."""
    from vmhost.pipeline.patterns import PatternEngine, PatternError, RuleError

    settings = _settings(rule, name)
    engine = PatternEngine()
    try:
        lowered = engine.add("rule", settings.data, settings.by)
    except (RuleError, PatternError) as error:
        raise failures.Failure(f"{rule}: rule {settings.name}: {error}") from error
    if dot:
        output.document({"dot": _dot(lowered)})
        output.line(_dot(lowered))
        return failures.DONE
    rows = [] if events is None else list(_rows(engine, lowered, events))
    output.document(
        {
            "rule": settings.name,
            "given": settings.data,
            "states": _states(lowered),
            "within_ms": lowered.automaton.within_ms,
            "events": rows,
        }
    )
    output.table("", ("given for", "key", "value"), list(_given("rule", settings.data)))
    output.table(
        f"{settings.name}, within {lowered.automaton.within_ms:,} ms, by {settings.by}",
        ("state", "step", "kind", "edges"),
        [list(state.values()) for state in _states(lowered)],
    )
    if events is not None:
        columns = ("event>", "time_ms>", "name", "key", "under way", "came of it")
        shown = [[*(stores.shown(row[key]) for key in _COLUMNS), "; ".join(map(_said, row["results"]))] for row in rows]
        output.table("", columns, shown)
    return failures.DONE


@click.command(short_help="Compile the conditions of rules, for devices.")
@click.argument("rule", type=click.Path(path_type=Path))
@click.option("-o", "--output", "to", type=click.Path(path_type=Path), required=True, help="The file to write, JSON.")
@failures.command
def compile_rule(output, rule, to):
    """Write the rules in the file RULE with compiled programs in place of CEL conditions, for machines without the
    compiler. All rules are checked."""
    from vmhost.pipeline.complex_events import read_rule_file
    from vmhost.pipeline.patterns import PatternEngine, RuleError, cel, event_path

    found = []
    for one in read_rule_file(rule):
        try:
            compiled = cel.compiled(one.data, event_path)
            PatternEngine().add(one.name, compiled, one.by)
        except RuleError as error:
            raise failures.Failure(f"{rule}: rule {one.name}: {error}") from error
        found.append(compiled)
    try:
        to.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise failures.Failure(f"{to}: {error.strerror}") from error
    output.document({"rules": [one["name"] for one in found], "path": str(to)})
    output.line(f"{to}: {', '.join(one['name'] for one in found)}")
    return failures.DONE


def _settings(path, name):
    from vmhost.pipeline.complex_events import read_rule_file

    rules = read_rule_file(path)
    chosen = [one for one in rules if name in (None, one.name)]
    if len(chosen) != 1:
        there = ", ".join(one.name for one in rules)
        raise failures.Failure(f"{path}: choose a rule with --name: {there}")
    return chosen[0]


def _given(place, data):
    """(place, key, value) of each field that was given for a rule and its steps."""
    listed = "pattern" if place == "rule" else "group"
    for key, value in data.items():
        if key != listed and not (place != "rule" and key == "name"):
            yield place, key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    for number, step in enumerate(data.get(listed) or ()):
        yield from _given(f"{listed}[{number}] ({step.get('name') or 'group'})", step)


def _states(lowered):
    return [
        {
            "state": state.name,
            "step": state.step,
            "kind": ("start, " if state.start else "") + state.kind,
            "edges": "; ".join(
                f"{edge.action} -> {edge.target.name} if {_text(edge.condition)}" for edge in state.edges
            ),
        }
        for state in reversed(lowered.automaton.states)
    ]


def _text(condition):
    kind = condition[0]
    if kind == "true":
        return "any"
    if kind == "leaf":
        return _leaf(condition[1])
    if kind == "not":
        return f"not ({_text(condition[1])})"
    return f"({_text(condition[1])} {kind} {_text(condition[2])})"


def _leaf(leaf):
    from vmhost.pipeline.patterns.conditions import Compared, Gathered, Named

    if isinstance(leaf, Named):
        return leaf.name
    if isinstance(leaf, Compared):
        return f"{'.'.join(map(str, leaf.field[1:])) or 'attribute'} {leaf.op} {leaf.value!r}"
    if isinstance(leaf, Gathered):
        return f"{leaf.kind}({leaf.step}) {leaf.op} {leaf.value!r}"
    return leaf.text


def _dot(lowered):
    shapes = {"normal": "ellipse", "final": "doublecircle", "stop": "octagon", "pending": "diamond"}
    lines = ["digraph rule {", "  rankdir=LR;"]
    for state in lowered.automaton.states:
        bold = ", style=bold" if state.start else ""
        lines.append(f"  {json.dumps(state.name)} [shape={shapes[state.kind]}{bold}];")
        for edge in state.edges:
            style = {"take": "solid", "ignore": "dotted", "proceed": "dashed"}[edge.action]
            label = json.dumps(f"{edge.action} {_text(edge.condition)}", ensure_ascii=False)
            lines.append(
                f"  {json.dumps(state.name)} -> {json.dumps(edge.target.name)} [label={label}, style={style}];"
            )
    return "\n".join([*lines, "}"])


def _rows(engine, lowered, events):
    from vmhost.pipeline.feed import decoded

    with click.open_file(events, "rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                event = decoded(line)
            except ValueError as error:
                raise failures.Failure(f"{events}:{number}: not an event: {error}") from error
            results = [*engine.advance(event.time_ms - 1), *engine.feed(event, number)]  # time moves on for all keys
            waiting = {}
            for state, *_ in engine.matches("rule"):
                name = lowered.states[state][0].partition(":")[0]
                waiting[name] = waiting.get(name, 0) + 1
            yield {
                "event": number,
                "time_ms": event.time_ms,
                "name": event.name,
                "key": event.key,
                "under_way": ", ".join(f"{count} at {name}" for name, count in sorted(waiting.items())),
                "results": [
                    {
                        "timed_out": one.timed_out,
                        "at_ms": one.at_ms or event.time_ms,
                        "steps": {step: list(positions) for step, positions in one.steps},
                    }
                    for one in results
                ],
            }


def _said(result):
    steps = ", ".join(f"{step} {' '.join(map(str, positions))}" for step, positions in result["steps"].items())
    return f"{'time-out' if result['timed_out'] else 'match'}: {steps}"
