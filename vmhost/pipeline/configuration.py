"""The table of `pipeline.yaml`, and its reader: all problems at once, with file, line and key. The schema and the page
in docs are written from it (`vmhost.settings.pages`). Paths in the file are relative to its folder.
"""

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from vmhost import ConfigurationError
from vmhost.bytecode import kinds
from vmhost.bytecode.either import Either, Milliseconds, Raw
from vmhost.bytecode.kinds import Choice, Flag, Items, Named, Refused, Section, Setting, Size, Text, Whole, setting
from vmhost.bytecode.reading import read
from vmhost.pipeline.intake import ENTER_CLOSES, Intake
from vmhost.pipeline.reach.audience import AUDIENCE
from vmhost.pipeline.reach.settings import CHANNEL, LOOPBACK, TASK, kind_of
from vmhost.pipeline.store import DURABILITIES, EventStore
from vmhost.settings.files import SettingsFile, plain_yaml
from vmhost.settings.host import host_settings, read_host_yaml
from vmhost.settings.tokens import CHECKED_MIN, read_token

STDIN = "-"
MAX_BODY_BYTES = 4 << 20  # of one request: some 3,500 events of 1.1 KB


class _Existing(kinds.Path):
    """A path where something is."""

    def located(self, folder, value):
        return existing(folder / value)


class _Token(_Existing):
    """A file with a token, for which the token stands."""

    def located(self, folder, value):
        try:
            return read_token(existing(folder / value), CHECKED_MIN)
        except ConfigurationError as error:
            raise Refused(str(error)) from error


class _Events(_Existing):
    def located(self, folder, value):
        return value if value == STDIN else os.fspath(existing(folder / value))


def _file_or_mapping(words):
    return Either(words, (dict, Raw(words, "object")), (object, _Existing(words)))


_NAME = Text("a name of letters, digits, - and _", re.compile("[A-Za-z0-9_-]{1,64}"), 64)
_COUNT, _TIME = Whole(1, 10**12), Milliseconds()


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """Where events come from: lines of `file` (a path, or "-" for stdin), or HTTP requests to `http` ("host:port").

    `bad_lines`: "stop" or "aside". `when_full`: "wait" until the tasks' queues have room, or "drop", which leaves it to
    their overload rules.
    """

    name: str
    file: str | None = setting(
        _Events("the path of a file or a named pipe, or - for stdin"), "lines of JSON; or `http`", None
    )
    http: str | None = setting(LOOPBACK, "takes requests; port 0 picks a free port", None)
    bad_lines: str = setting(
        Choice("stop", "aside"),
        "a line that is not an event ends the run (over HTTP: the request is refused), or goes to `bad-lines.jsonl` in"
        " the folder",
        "stop",
    )
    when_full: str = setting(
        Choice("wait", "drop"), "while a task's queue is full: wait, or apply the tasks' overload rules", "wait"
    )
    token: str | None = setting(
        _Token("the path of a file that holds a token"),
        "with `http`: the token of at least 16 characters that requests must send",
        None,
        "token_file",
    )
    origins: tuple = setting(
        Items(
            Text("the origin of a web page, such as http://localhost:3000", re.compile(r"https?://[^/\s]+")),
            "a list of origins of web pages, such as http://localhost:3000",
        ),
        "with `http`: web pages that may post from a browser",
        (),
    )
    max_body_bytes: int = setting(Size(), "with `http`: maximum size of a request", MAX_BODY_BYTES, "max_body")


_ONLY_HTTP = {"token": "token_file", "origins": "origins", "max_body_bytes": "max_body"}


@dataclass(frozen=True, slots=True)
class TunnelSettings:
    """Where table rows are sent: `to` is the address of a `vmhost tunnel serve`. `keys` is a folder of certificates and
    `device` names the one that this end shows; or `token_file` has a token. Tasks may use `channels`."""

    to: str = setting(
        Text("an address such as cloud.example:7443", re.compile(r"[^\s\u0000]+")),
        "of a `vmhost tunnel serve`; several with commas between",
    )
    keys: Path | None = setting(
        _Existing("the path of a folder of certificates"), "created by `vmhost tunnel certificates`", None
    )
    device: str | None = setting(
        Text("the name of a certificate in that folder", re.compile("[A-Za-z0-9][A-Za-z0-9._@-]{0,63}"), 64),
        "the device whose certificate is used",
        None,
    )
    token_file: Path | None = setting(
        _Existing("the path of a file with a token"), "the device's token, instead of `device`", None
    )
    channels: tuple = setting(
        Items(
            Text("the name of a channel in letters, digits and _", re.compile(r"\w{1,128}"), 128),
            "a list of channels that tasks may use",
            max_items=64,
        ),
        "see docs/tunnel.md",
        (),
    )
    batch_ms: int = setting(_TIME, "how long rows wait to be sent in one batch", 0, "batch_time")


def _paths(what):
    return Items(_Existing(f"the path of a {what}"), f"a list of paths of {what.replace('file', 'files')}")


def _argument(key, kind, words, default=None):
    return Setting(key, kind, words, (key,), default)


def _options(of, *rows):
    """Settings that are arguments of `of`, which has their defaults. A row: key, kind, words, argument."""
    usual = of.__init__.__kwdefaults__
    return [Setting(key, kind, words, (name,), usual[name]) for key, kind, words, name in rows]


def _beside(key, words, settings):
    return Setting(key, Section(settings), words, (), ())


@dataclass(frozen=True, slots=True)
class Configuration:
    """The contents of a pipeline.yaml: `options` are further arguments of Pipeline, `sources` are SourceSettings,
    `tunnel` is TunnelSettings or None."""

    path: Path
    folder: Path = setting(kinds.Path("the path of the folder for the store"), "the store; created if missing")
    bundles: tuple = setting(
        Items(_Existing("the path of a bundle"), "a list of paths of bundles"), "with stream tasks"
    )
    options: dict
    sources: tuple = setting(
        Named(Section(kinds.settings_of(SourceSettings)), "a mapping of names to sources", _NAME),
        "of events; `--events` and `--listen` on the command line replace them",
        (),
        unset="stdin",
    )
    keep_visits: bool = setting(Flag(), "visits without exit stay open for the next run", False)
    tunnel: TunnelSettings | None = setting(
        Section(kinds.settings_of(TunnelSettings)),
        "the server for columns that leave the device, and the channels for tasks (docs/tunnel.md)",
        None,
    )


MESSAGES = Section(
    [
        _argument(
            "channels", Named(CHANNEL, "a mapping of names to channels", _NAME), "for matches and rows (docs/reach.md)"
        ),
        _argument(
            "audiences", Named(AUDIENCE, "a mapping of names to audiences", _NAME), "of messages (docs/reach.md)"
        ),
        _argument(
            "profile",
            _file_or_mapping("a mapping of what the device says of itself, or the path of a file with one"),
            "for audiences",
        ),
        _argument(
            "reach",
            Named(TASK, "a mapping of names of tasks to what becomes of their results"),
            "messages with rows of tasks (docs/reach.md)",
        ),
    ]
)
PIPELINE = Section(
    [
        *kinds.settings_of(Configuration),
        _argument(
            "trust",
            _Existing("the path of a file or folder of public keys"),
            "keys of trusted signers",
            "those of `vmhost keys trust`, for the command",
        ),
        _argument("allow_unsigned", Flag(), "load unsigned bundles", False),
        _argument(
            "host",
            _file_or_mapping("the path of a host.yaml, or a mapping with keys of one"),
            "VMs, limits, permissions, functions (docs/host-yaml.md); not its `load`",
        ),
        _argument("rules", _paths("file of rules"), "patterns, whose matches become events (docs/patterns.md)", ()),
        _argument("features", _paths("file of features"), "which tasks read by key (docs/features-of-events.md)", ()),
        _argument(
            "signed_files",
            Flag(),
            "files of rules and features must be signed by a trusted key: `vmhost keys sign FILE --key NAME` writes"
            " FILE.sig beside it",
            False,
        ),
        *MESSAGES.settings.values(),
        *_options(
            EventStore,
            (
                "durability",
                Choice(*DURABILITIES),
                "`each`: an event is on the disk when intake returns (docs/pipeline-events.md)",
                "durability",
            ),
            ("batch_time", _TIME, "maximum time that events and rows stay only in memory", "batch_ms"),
        ),
        _beside(
            "retention",
            "of stored events; the oldest are deleted first",
            _options(
                EventStore,
                ("age", _TIME, "their age", "max_age_ms"),
                ("count", _COUNT, "their number", "max_count"),
                ("size", Size(le=1 << 52), "their size", "max_bytes"),
            ),
        ),
        _beside(
            "intake",
            "what is taken and when visits end (docs/pipeline-events.md)",
            _options(
                Intake,
                ("lateness", Milliseconds(0), "how late an event may come", "lateness_ms"),
                ("visit_timeout", _TIME, "a visit without events ends after it", "visit_timeout_ms"),
                ("idle_time", _TIME, "without events, after which the clock moves event time on", "idle_ms"),
                ("ahead", Milliseconds(0), "events further ahead of the clock do not move event time", "ahead_ms"),
                ("ids_time", _TIME, "how long the ids of events are remembered", "ids_ms"),
                ("enter_closes", Choice(*ENTER_CLOSES), "visits of the key that an enter closes", "enter_closes"),
            ),
        ),
        _beside(
            "limits",
            "of what intake remembers",
            _options(
                Intake,
                ("open_visits", _COUNT, "beyond, visits are closed", "max_visits"),
                ("known_ids", _COUNT, "beyond, the oldest are forgotten", "max_ids"),
                ("late_events", _COUNT, "beyond, the oldest are deleted", "max_late"),
            ),
        ),
    ]
)
_OF_INTAKE = Intake.__init__.__kwdefaults__.keys() - {"lateness_ms", "visit_timeout_ms"}  # those are Pipeline's, too


def read_pipeline_yaml(path):
    """The Configuration in the file at `path`. ConfigurationError lists everything that is wrong with it."""
    file = SettingsFile(path)
    values, problems = file.values, file.problems
    options = read(PIPELINE, values, problems) or {}
    sources = [_source(name, one or {}, problems) for name, one in (options.pop("sources", None) or {}).items()]
    readers = [one.name for one in sources if one.file == STDIN]
    for name in readers[1:]:
        problems.add(("sources", name, "file"), f"stdin is read by {readers[0]} already; name a file")
    tunnel = _tunnel(options.pop("tunnel", None), problems)
    for name in options.get("channels") or {}:
        kind_of(values["channels"][name], problems.part("channels", name))
        options["channels"][name] = _channel(values["channels"][name], file.folder, name, problems)
    options |= {name: values[name] for name in ("audiences", "reach") if name in options}
    if "profile" in options:
        options["profile"] = _profile(options["profile"], problems)
    options = _host_options(options.pop("host", None), problems) | options
    problems.stop()
    options["intake"] = {name: options.pop(name) for name in _OF_INTAKE & options.keys()}
    own = {name: options.pop(name) for name in ("folder", "keep_visits") if name in options}
    bundles = tuple(options.pop("bundles"))
    return Configuration(path=file.path, bundles=bundles, options=options, sources=tuple(sources), tunnel=tunnel, **own)


def _host_options(host, problems):
    """The arguments of Pipeline that the section `host` sets."""
    if host is None:
        return {}
    if isinstance(host, dict):
        settings = host_settings(host, problems.part("host"))
    else:
        problems.stop()
        settings = read_host_yaml(host)
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


def _channel(values, folder, name, problems):
    """A channel, its paths made relative to the file's folder."""
    found = dict(values)
    for key in ("walle_task", "token_file"):
        if isinstance(found.get(key), str):
            try:
                found[key] = os.fspath(existing(folder / found[key]))
            except Refused as error:
                problems.add(("channels", name, key), str(error))
    return found


def _profile(value, problems):
    """The device's profile: a mapping, or the path of a YAML or JSON file with one."""
    if not isinstance(value, Path):
        return value
    import yaml

    try:
        found = plain_yaml(value.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        problems.add(("profile",), f"{value}: {getattr(error, 'strerror', None) or error}")
        return {}
    if not isinstance(found, dict):
        problems.add(("profile",), f"{value}: expected a mapping, got {type(found).__name__}")
    return found


def _tunnel(given, problems):
    if given is None:
        return None
    if "device" not in given and "token_file" not in given:
        problems.add(("tunnel",), "expected device or token_file: the cloud authenticates devices")
    if "device" in given and "keys" not in given:
        problems.add(("tunnel", "device"), "names a certificate in the folder `keys`, which is missing")
    return TunnelSettings(**{"to": None} | given)


def _source(name, given, problems):
    at = problems.part("sources", name)
    if ("file" in given) == ("http" in given):
        at.add((), "expected one of file and http")
    elif "file" in given:
        for field, key in _ONLY_HTTP.items():
            if field in given:
                at.add((key,), "belongs to sources with http")
    return SourceSettings(name, **given)


def http_address(text):
    """The text, where it is a loopback address of this machine. ValueError."""
    if not LOOPBACK.accepts(text):
        raise ValueError(
            f"expected {LOOPBACK.words}, got {text!r:.80}; for other machines, put a server with TLS before it"
        )
    return text


def existing(path):
    """The path. Refused where it does not exist."""
    if path.exists():
        return path
    try:
        near = difflib.get_close_matches(path.name, os.listdir(path.parent), 1)
    except OSError:
        near = []
    raise Refused(f"{path}: no such file{f'; did you mean {path.parent / near[0]}?' if near else ''}")
