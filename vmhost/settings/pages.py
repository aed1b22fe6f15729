"""What is generated from a table of settings: the JSON schema for editors, and the keys as a table in Markdown.

`python -m vmhost.settings.pages` writes those of all TABLES; tests/vmhost/test_settings.py holds them to it."""

import json
import re
from dataclasses import MISSING
from pathlib import Path
from typing import NamedTuple

from vmhost.bytecode import either, kinds, task_table
from vmhost.bytecode.either import Milliseconds, time_text
from vmhost.bytecode.quantities import SIZE_PATTERN, TIME_PATTERN
from vmhost.deployment.cloud.alerts import RULES
from vmhost.deployment.cloud.plan import PLAN
from vmhost.deployment.device.settings import AGENT
from vmhost.pipeline.configuration import AUDIENCE, CHANNEL, MESSAGES, PIPELINE, TASK
from vmhost.pipeline.features.definitions import FEATURES
from vmhost.settings.host import HOST


class Table(NamedTuple):
    """A file's settings, the path of its schema, and that of the page that has its keys. `elsewhere`: sections whose
    keys another page has."""

    section: kinds.Section
    schema: Path | None
    page: Path
    elsewhere: tuple = ()


_ROOT = Path(__file__).parent.parent
_DOCS = _ROOT.parent / "docs"
_CLOUD = _ROOT / "deployment" / "cloud"
TABLES = {
    "task.yaml": Table(task_table.TASK, _ROOT / "bytecode" / "task.schema.json", _DOCS / "task-yaml.md"),
    "host.yaml": Table(HOST, _ROOT / "host.schema.json", _DOCS / "host-yaml.md"),
    "agent.yaml": Table(AGENT, _ROOT / "deployment" / "device" / "agent.schema.json", _DOCS / "deployment.md"),
    "pipeline.yaml": Table(
        PIPELINE,
        _ROOT / "pipeline" / "pipeline.schema.json",
        _DOCS / "pipeline-yaml.md",
        elsewhere=(CHANNEL, AUDIENCE, TASK),
    ),
    "features.yaml": Table(
        FEATURES, _ROOT / "pipeline" / "features" / "features.schema.json", _DOCS / "features-of-events.md"
    ),
    "release.yaml": Table(PLAN, _CLOUD / "release.schema.json", _DOCS / "deployment.md"),
    "alerts": Table(RULES, _CLOUD / "alerts.schema.json", _DOCS / "deployment.md"),
    "messages": Table(MESSAGES, None, _DOCS / "reach.md"),
}
BEGIN, END = "<!-- {}: written by python -m vmhost.settings.pages -->\n", "<!-- end -->\n"
_SIZES = {"TiB": 1 << 40, "GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}
_BELOW = {kinds.Named: ".NAME.", kinds.Items: "[]."}
_BOUNDS = {"gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum", "le": "maximum"}


def schema_text(name):
    """The JSON schema of the file `name`."""
    about = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": name}
    return _written(about | _schema(TABLES[name].section, "#", {})) + "\n"


def page_text(name):
    """The page of the file `name`, with its table of keys."""
    mark = BEGIN.format(name)
    begin, _, rest = TABLES[name].page.read_text(encoding="utf-8").partition(mark)
    rows = [
        "| key | value | default | |",
        "| --- | --- | --- | --- |",
        *_rows(TABLES[name].section, "", dict.fromkeys(TABLES[name].elsewhere)),
    ]
    return "".join([begin, mark, *(f"{row}\n" for row in rows), END, rest.partition(END)[2]])


def default_text(setting):
    """What a setting is when a file does not say it, as the file would."""
    kind, default = setting.kind, setting.default
    if setting.required:
        return "required"
    if default is MISSING or default is None or default in ((), frozenset()):
        return "none"
    if hasattr(kind, "text") and not isinstance(default, str):
        return kind.text(default)
    if isinstance(kind, kinds.Time) and not isinstance(default, str):
        return time_text(default if isinstance(kind, Milliseconds) else default * 1000)
    if isinstance(kind, kinds.Size) and not isinstance(default, str):
        unit = next(unit for unit, size in _SIZES.items() if default % size == 0)
        return f"{int(default) // _SIZES[unit]} {unit}"
    if isinstance(default, (bool, float)):
        return json.dumps(default) if isinstance(default, bool) else f"{default:g}"
    return ", ".join(default) if isinstance(default, tuple) else str(default)


def _rows(section, prefix, seen):
    """A row for each setting in the section, and below. `seen`: kind of a section -> the key that has its rows."""
    for setting in section.settings.values():
        key, kind = f"{prefix}{setting.key}", setting.kind
        if isinstance(kind, either.Either):
            kind = next((option for _, option in kind.options if isinstance(option, kinds.Section)), kind)
        is_several, inner = isinstance(kind, kinds.Named | kinds.Items), getattr(kind, "item", kind)
        has_rows = isinstance(inner, kinds.Section)
        value = "a mapping" if has_rows and not isinstance(kind, kinds.Items) else kind.words
        value = f"as `{seen[inner]}`" if seen.get(inner) else value
        if not is_several and has_rows and kind.short is not None:
            value = f"{', '.join(kind.settings[kind.short].kind.options)}, or a mapping"
        default = "" if has_rows and not isinstance(setting.default, str) else default_text(setting)
        words = re.sub(r"docs/([\w-]+\.md)", r"[\1](\1)", setting.words)
        yield f"| `{key}` | {value} | {default} | {words}{' (R)' if setting.fixed else ''} |"
        if has_rows and inner not in seen:
            seen[inner] = key
            yield from _rows(inner, f"{key}{_BELOW.get(type(kind), '.')}", seen)


def _schema(kind, path, seen):
    """`path`: where in the schema it stands. `seen`: kind of a section -> where that stands."""
    if kind in seen:
        return {"$ref": seen[kind]}
    said = {"description": kind.words}
    if hasattr(kind, "schema"):
        return said | kind.schema
    match kind:
        case kinds.Section():
            seen[kind] = path
            optional = kind.null or getattr(kind, "whole", False)
            types = ["object", *["null"] * optional, *["string"] * (kind.short is not None)]
            said |= {"type": types if len(types) > 1 else "object", "additionalProperties": False}
            if kind.short is not None:
                said["pattern"] = f"^(?:{'|'.join(kind.settings[kind.short].kind.options)})$"
            said["required"] = [key for key, setting in kind.settings.items() if setting.required]
            said["properties"] = {
                key: {"title": setting.words} | _schema(setting.kind, f"{path}/properties/{key}", seen)
                for key, setting in kind.settings.items()
            }
        case kinds.Named():
            said |= {"type": "object", "propertyNames": _schema(kind.name, "", seen)}
            said |= {"minProperties": kind.min_items or None, "maxProperties": kind.max_items}
            said["additionalProperties"] = _schema(kind.item, f"{path}/additionalProperties", seen)
        case kinds.Items():
            said |= {
                "type": "array",
                "uniqueItems": kind.unique or None,
                "minItems": kind.min_items,
                "maxItems": kind.max_items,
            }
            said["items"] = _schema(kind.item, "", seen)
        case Milliseconds():
            said |= {"type": ["string", "number"], "pattern": TIME_PATTERN}
            said |= {name: bound / 1000 for name, bound in _bounds(kind).items() if bound is not None}
        case kinds.Time() | kinds.Size():
            number, pattern = ("number", TIME_PATTERN) if isinstance(kind, kinds.Time) else ("integer", SIZE_PATTERN)
            said |= {"type": ["string", number], "pattern": pattern} | _bounds(kind)
        case kinds.Number():
            said |= {"type": "integer" if isinstance(kind, kinds.Whole) else "number"} | _bounds(kind)
        case either.Either():
            said["anyOf"] = [_schema(option, f"{path}/anyOf/{n}", seen) for n, (_, option) in enumerate(kind.options)]
        case either.Yes():
            said["const"] = True
        case either.Raw():
            said["type"] = list(kind.json_types)
        case kinds.Flag():
            said["type"] = "boolean"
        case kinds.Choice():
            said["enum"] = list(kind.options)
        case kinds.Text():
            others = [text.replace("*", "\\*") for text in kind.others if not kind.pattern.fullmatch(text)]
            pattern = f"^(?:{'|'.join([kind.pattern.pattern, *others])})$"
            said |= {"type": "string", "minLength": 1, "maxLength": kind.max_chars, "pattern": pattern}
        case kinds.Path():
            said |= {"type": "string", "pattern": "^[^\\u0000]+$"}
    return {name: value for name, value in said.items() if value not in (None, [], "")}


def _bounds(kind):
    return {name: getattr(kind, bound) for bound, name in _BOUNDS.items()}


def _written(value, indent=""):
    """`value` as JSON, a mapping that fits on a line on one."""
    line = json.dumps(value)
    if not isinstance(value, dict) or len(indent) + len(line) < 160:
        return line
    rows = (f"{indent}  {json.dumps(key)}: {_written(item, indent + '  ')}" for key, item in value.items())
    return "{\n" + ",\n".join(rows) + f"\n{indent}}}"


if __name__ == "__main__":
    for name, table in TABLES.items():
        if table.schema is not None:
            table.schema.write_text(schema_text(name), encoding="utf-8")
        table.page.write_text(page_text(name), encoding="utf-8")
