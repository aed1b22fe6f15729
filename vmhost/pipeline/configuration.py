"""`pipeline.yaml`: read, and checked against `pipeline.schema.json`. All problems are reported at once, with file, line
and key. docs/pipeline-yaml.md describes the keys. Paths in it are relative to the file's folder.
"""

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from vmhost.bytecode.fields import shown
from vmhost.bytecode.schema import validator
from vmhost.pipeline.quantities import byte_count, milliseconds
from vmhost.settings.files import SettingsFile, near
from vmhost.settings.host import host_settings, read_host_yaml

_SCHEMA = Path(__file__).with_name("pipeline.schema.json")
STDIN = "-"
# key -> argument of Pipeline, or of Intake
_RETENTION = {"age": "max_age_ms", "count": "max_count", "size": "max_bytes"}
_INTAKE = {
    "lateness": "lateness_ms",
    "visit_timeout": "visit_timeout_ms",
    "idle_time": "idle_ms",
    "ahead": "ahead_ms",
    "ids_time": "ids_ms",
    "enter_closes": "enter_closes",
}
_LIMITS = {"open_visits": "max_visits", "known_ids": "max_ids", "late_events": "max_late"}
_MAY_BE_ZERO = {"lateness", "ahead"}
MAX_BODY_BYTES = 4 << 20  # of one request: some 3,500 events of 1.1 KB
_ONLY_HTTP = ("token_file", "origins", "max_body")


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """Where events come from: lines of `file` (a path, or "-" for stdin), or HTTP requests to `http` ("host:port").

    `bad_lines`: "stop" or "aside". `when_full`: "wait" until the tasks' queues have room, or "drop", which leaves it to
    their overload rules.
    """

    name: str
    file: str | None = None
    http: str | None = None
    bad_lines: str = "stop"
    when_full: str = "wait"
    token: str | None = None
    origins: tuple = ()
    max_body_bytes: int = MAX_BODY_BYTES


@dataclass(frozen=True, slots=True)
class TunnelSettings:
    """Where table rows are sent: `to` is the address of a `vmhost tunnel serve`. `keys` is a folder of certificates and
    `device` names the one that this end shows; or `token_file` has a token. Tasks may use `channels`."""

    to: str
    keys: Path | None = None
    device: str | None = None
    token_file: Path | None = None
    channels: tuple = ()
    batch_ms: int = 0


@dataclass(frozen=True, slots=True)
class Configuration:
    """The contents of a pipeline.yaml: `options` are further arguments of Pipeline, `sources` are SourceSettings,
    `tunnel` is TunnelSettings or None."""

    path: Path
    folder: Path
    bundles: tuple
    options: dict
    sources: tuple
    keep_visits: bool
    tunnel: TunnelSettings | None = None


def read_pipeline_yaml(path):
    """The Configuration in the file at `path`. ConfigurationError lists everything that is wrong with it."""
    file = SettingsFile(path)
    values, problems, here = file.values, file.problems, file.folder
    for error in validator(_SCHEMA).iter_errors(values):
        _add_schema_error(problems, error)
    problems.stop()
    bundles = tuple(
        _existing(here, bundle, ("bundles", number), problems) for number, bundle in enumerate(values["bundles"])
    )
    options = {}
    for name in ("allow_unsigned", "durability"):
        if name in values:
            options[name] = values[name]
    if "trust" in values:
        options["trust"] = _existing(here, values["trust"], ("trust",), problems)
    if "batch_time" in values:
        options["batch_ms"] = _lowered("batch_time", values["batch_time"], ("batch_time",), problems)
    options |= _renamed(values, "retention", _RETENTION, problems)
    intake = _renamed(values, "intake", _INTAKE, problems) | _renamed(values, "limits", _LIMITS, problems)
    for name in ("lateness_ms", "visit_timeout_ms"):  # Pipeline takes them as arguments of its own
        if name in intake:
            options[name] = intake.pop(name)
    options["intake"] = intake
    sources = [_source(name, one, here, problems) for name, one in values.get("sources", {}).items()]
    readers = [one.name for one in sources if one.file == STDIN]
    for name in readers[1:]:
        problems.add(("sources", name, "file"), f"stdin is read by {readers[0]} already; name a file")
    options = _host_options(values, here, problems) | options
    if "rules" in values:
        paths = enumerate(values["rules"])
        options["rules"] = [_existing(here, path, ("rules", number), problems) for number, path in paths]
    if "features" in values:
        paths = enumerate(values["features"])
        options["features"] = [_existing(here, path, ("features", number), problems) for number, path in paths]
    if "signed_files" in values:
        options["signed_files"] = values["signed_files"]
    if "channels" in values:
        options["channels"] = {
            name: _channel(one, here, ("channels", name), problems) for name, one in values["channels"].items()
        }
    for name in ("audiences", "reach"):
        if name in values:
            options[name] = values[name]
    if "profile" in values:
        options["profile"] = _profile(values["profile"], here, problems)
    tunnel = _tunnel(values["tunnel"], here, problems) if "tunnel" in values else None
    problems.stop()
    return Configuration(
        path=file.path,
        folder=here / values["folder"],
        bundles=bundles,
        options=options,
        sources=tuple(sources),
        keep_visits=values.get("keep_visits", False),
        tunnel=tunnel,
    )


def _add_schema_error(problems, error):
    where = list(error.absolute_path)
    if error.validator == "additionalProperties":
        known = error.schema["properties"]
        for key in error.instance.keys() - known.keys():
            problems.add([*where, key], f"unknown key; {near(key, known)}")
    elif error.validator == "required":
        for key in error.validator_value:
            if key not in error.instance:
                expected = error.schema["properties"][key].get("description", "a value")
                problems.add(where, f"{key} is missing; expected {expected}")
    else:
        expected = error.schema.get("description", error.validator_value)
        problems.add(where, f"expected {expected}, got {shown(error.instance)}")


def _host_options(values, here, problems):
    """The arguments of Pipeline that the section `host` sets."""
    if "host" not in values:
        return {}
    if isinstance(values["host"], str):
        path = _existing(here, values["host"], ("host",), problems)
        problems.stop()
        settings = read_host_yaml(path)
    else:
        settings = host_settings(values["host"], problems.part("host"))
    if settings.load:
        problems.add(("host",), "load: a pipeline loads stream tasks only; name them in `bundles` of this file")
    options = {
        "host": {
            "policy": settings.policy,
            "state": settings.state,
            "functions": settings.functions,
            "tables": settings.tables,
        },
        "allow_unsigned": settings.allow_unsigned,
    }
    if settings.trust is not None:
        options["trust"] = settings.trust
    return options


def _channel(values, here, where, problems):
    """A channel, its paths made relative to the file's folder."""
    found = dict(values)
    for key in ("walle_task", "token_file"):
        if isinstance(found.get(key), str):
            found[key] = os.fspath(_existing(here, found[key], (*where, key), problems))
    return found


def _profile(value, here, problems):
    """The device's profile: a mapping, or the path of a YAML or JSON file with one."""
    if not isinstance(value, str):
        return value
    import yaml

    path = _existing(here, value, ("profile",), problems)
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}  # reported by _existing
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        problems.add(("profile",), f"{path}: {getattr(error, 'strerror', None) or error}")
        return {}
    if not isinstance(found, dict):
        problems.add(("profile",), f"{path}: expected a mapping, got {type(found).__name__}")
        return {}
    return found


def _tunnel(values, here, problems):
    paths = {
        name: Path(_existing(here, values[name], ("tunnel", name), problems))
        for name in ("keys", "token_file")
        if name in values
    }
    if "device" not in values and "token_file" not in values:
        problems.add(("tunnel",), "expected device or token_file: the cloud authenticates devices")
    if "device" in values and "keys" not in values:
        problems.add(("tunnel", "device"), "names a certificate in the folder `keys`, which is missing")
    batch = {}
    if "batch_time" in values:
        batch["batch_ms"] = _lowered("batch_time", values["batch_time"], ("tunnel", "batch_time"), problems)
    return TunnelSettings(
        values["to"], device=values.get("device"), channels=tuple(values.get("channels", ())), **paths, **batch
    )


def _renamed(values, key, names, problems):
    found = values.get(key, {})
    return {names[name]: _lowered(name, value, (key, name), problems) for name, value in found.items()}


def _lowered(name, value, where, problems):
    """A time in whole milliseconds, a size in bytes, any other value unchanged."""
    if name in ("enter_closes", "count", "open_visits", "known_ids", "late_events"):
        return value
    read, least = (byte_count, 1) if name in ("size", "max_body") else (milliseconds, int(name not in _MAY_BE_ZERO))
    try:
        return read(value, least)
    except ValueError as error:
        problems.add(where, str(error))
        return least


def _source(name, values, here, problems):
    where = ("sources", name)
    if ("file" in values) == ("http" in values):
        problems.add(where, "expected one of file and http")
        return SourceSettings(name)
    settings = {key: values[key] for key in ("bad_lines", "when_full") if key in values}
    if "file" in values:
        for key in _ONLY_HTTP:
            if key in values:
                problems.add((*where, key), "belongs to sources with http")
        file = values["file"]
        if file != STDIN:
            file = os.fspath(_existing(here, file, (*where, "file"), problems))
        return SourceSettings(name, file=file, **settings)
    if int(values["http"].rpartition(":")[2]) > 65535:
        problems.add((*where, "http"), f"expected a port from 0 to 65535, got {values['http']!r}")
    if "token_file" in values:
        settings["token"] = _token(here, values["token_file"], (*where, "token_file"), problems)
    if "max_body" in values:
        settings["max_body_bytes"] = _lowered("max_body", values["max_body"], (*where, "max_body"), problems)
    return SourceSettings(name, http=values["http"], origins=tuple(values.get("origins", ())), **settings)


_ADDRESS = re.compile(r"(127\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}|localhost|\[::1\]):([0-9]{1,5})")


def http_address(text):
    """The text, where it is a loopback address of this machine. ValueError."""
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found[2]) > 65535:
        raise ValueError(
            f"expected an address of this machine's loopback, such as 127.0.0.1:8400, got {text!r:.80}; for other "
            "machines, put a server with TLS before it"
        )
    return text


def read_token(path):
    """The token in the file at `path`: its text without white space around it. ValueError, OSError."""
    text = Path(path).read_text(encoding="utf-8").strip()
    if not re.fullmatch(r"[\x21-\x7e]{16,4096}", text):
        raise ValueError("expected a token of at least 16 visible ASCII characters on one line")
    return text


def _token(here, name, where, problems):
    path = _existing(here, name, where, problems)
    try:
        return read_token(path)
    except (OSError, ValueError) as error:
        if path.exists():
            problems.add(where, f"{path}: {getattr(error, 'strerror', None) or error}")
        return None


def _existing(here, name, where, problems):
    """The path; a problem is added where it does not exist."""
    path = here / name
    if not path.exists():
        try:
            near = difflib.get_close_matches(path.name, os.listdir(path.parent), 1)
        except OSError:
            near = []
        advice = f"; did you mean {path.parent / near[0]}?" if near else ""
        problems.add(where, f"{path}: no such file{advice}")
    return path
