"""The table of `task.yaml`: its reader (`spec.py`), the schema for editors and the keys in docs are made from it."""

import copy
import re

from . import stream_task as stream
from .either import Either, Milliseconds, section
from .kinds import Choice, Flag, Items, Named, Refused, Size, Text, Time, Whole, refused
from .task_kinds import ENTRY, LIMITS, MODELS, PERMISSIONS, PRIORITY, PYTHON, TASK_NAME, VERSION


class _Quantity:
    """A plain number above zero, or a text with a unit; `words` say the range."""

    def given(self, value):
        is_number = isinstance(value, self.types) and not isinstance(value, bool) and value > 0
        number = value if is_number else self.in_unit(value)
        if number is None:
            raise refused(self.example, value)
        if not self.accepts(number):
            raise refused(self.words, value)
        return self.kept(number)


class _Size(_Quantity, Size):
    example = 'a size such as "64 MiB"'


class _Time(_Quantity, Time):
    example, kept = 'a time such as "2 s" or "500 ms"', staticmethod(float)


class _Span(Milliseconds):
    example = 'a time such as "30 min" or "30 d"'


class _List(Items):
    def once(self, values):
        if self.fits(values) and len(set(map(repr, values))) != len(values):
            raise Refused("expected each item once")


class _Sequences(Either):
    """A list of ids, or a list of such lists."""

    def of(self, value):
        is_nested = isinstance(value, list) and any(isinstance(ids, list) for ids in value)
        return self.options[is_nested][1]


def _worded(kind, words):
    """The same kind, in other words."""
    kind = copy.copy(kind)
    kind.words = words
    return kind


def _size(name):
    return _Size(LIMITS[name].ge, LIMITS[name].le, LIMITS[name].words)


def _grants(kind, words):
    return _List(PERMISSIONS[kind].item, words, 0, PERMISSIONS[kind].max_items)


_LIMIT_TIME = _Time(lt=LIMITS["wall_time_s"].lt, words=LIMITS["wall_time_s"].words)
_LIMITS = section(
    ("memory", _size("memory_bytes"), "live memory of one VM", None),
    ("wall_time", _LIMIT_TIME, "from submission to result", None),
    ("cpu_time", _LIMIT_TIME, "CPU time of one call", None),
    ("stack", _size("stack_bytes"), "the stack of the VM's thread", None),
    ("concurrency", LIMITS["concurrency"], "VMs that run this task at the same time", None),
    ("descriptors", LIMITS["descriptors"], "files, folders, sockets and pipes that one VM may have open", 64),
    ("output", _size("output_bytes"), "bytes that one VM may print and log in a second, 100 more a line", 1 << 20),
    fields={name.removesuffix("_bytes").removesuffix("_s"): name for name in LIMITS},
)
_PATHS = "a list of absolute paths"
_ADDRESSES = 'a list of addresses, such as ["example.org:443"]'
_CHANNEL = Text("the name of a channel in letters, digits and _, such as features", re.compile(r"\w+"), 128)
_CHANNELS = _List(_CHANNEL, "a list of names of channels of the tunnel", 0, 1024)
_PERMISSIONS = section(
    ("read", _grants("read", _PATHS), "files, and folders with everything below", ()),
    ("write", _grants("write", _PATHS), "the same", ()),
    ("net", _grants("net", _ADDRESSES), "addresses to connect and send to: `host:port`, `[::1]:443`, `10.0.0.7:*`", ()),
    ("listen", _grants("listen", _ADDRESSES), "addresses to receive on (servers; datagrams at a fixed port)", ()),
    ("env", _grants("env", "a list of names of environment variables"), "which the task sees", ()),
    ("host", _grants("host", "a list of names of host functions"), "which the task calls", ()),
    (
        "tables",
        _grants("tables", "a list of embedding tables"),
        "`write` also allows training ([embedding.md](embedding.md))",
        (),
    ),
    ("tunnel", _CHANNELS, "each is the host function `tunnel_CHANNEL` ([tunnel.md](tunnel.md#tasks))", ()),
)
_FILE = Text("a file in the task's folder, such as labels.json or data/*.csv", re.compile(r"[^/\u0000][^\u0000]*"))
_MODEL = Text("an ONNX file in the task's folder, such as digits.onnx", re.compile(r"[^/\u0000*?\[][^\u0000*?\[]*"))
_ENTRY = _worded(ENTRY, f"{ENTRY.words}, such as main:run")
_WEIGHT = Text("the name of a weight in the ONNX file; * stands for any part of it", max_chars=1024)
REQUIREMENT = Text(
    'a package with versions in pip\'s syntax, such as "networkx>=3", or its file,'
    ' "pkg @ file:wheels/pkg-1.0-py3-none-any.whl"',
    re.compile(
        r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])? ?(\[[A-Za-z0-9,. _-]*\])? ?(([<>=!~]=?=? ?[A-Za-z0-9.*+!_-]+ ?,? ?)*"
        r"|@ ?file:(///)?[^\u0000- ;/\\][^\u0000- ;\\]* ?)(; ?[^\u0000-\u001f]+)?"
    ),
    255,
)
_DOTTED = re.compile(r"[^\W\d]\w*(\.\w+)*(\.\*)?")
_IMPORT = Text("a module such as plugins.one, or plugins.* for all below a package", _DOTTED, 255)

_FILES = _List(_FILE, "a list of files in the task's folder")
_MAPPING_OF_MODELS = f"a mapping of at most {MODELS.max_items} names to ONNX files in the task's folder"
_MODELS = Named(_MODEL, _MAPPING_OF_MODELS, MODELS.item, 0, MODELS.max_items)
_WEIGHTS = _List(_WEIGHT, "a list of names of weights, such as fc.weight or block5.*", 1, 1024)
_TRAINABLE = Named(_WEIGHTS, "a mapping of names under models to lists of their weights that are trained")
_PACKAGES = _List(REQUIREMENT, 'a list of at most 256 packages, such as [python-dateutil, "networkx>=3"]', 0, 256)
_IMPORTS = _List(_IMPORT, "a list of at most 1024 modules, such as [plugins.*, unidecode.x04e]", 0, 1024)
_PRIORITY = _worded(PRIORITY, f"{PRIORITY.words}; higher goes first")
_VERSION = _worded(VERSION, "a version in quotes or with two dots, such as 1.2.0")

_SPAN = _Span(le=stream.MAX_SPAN_MS, expected=stream.EXPECTED_SPAN)
_ON = 'a list of ids such as ["page:item", "*", page_exit], or a list of such lists'
_ID = Text("an event's name, page: and a page's id, or \"*\"", stream.EVENT_ID, stream.MAX_ID_CHARS)
_IDS = Items(_ID, _ON, 1, stream.MAX_IDS, unique=False)
_SEQUENCES = _Sequences(_ON, (str, _IDS), (list, Items(_IDS, _ON, 1, stream.MAX_SEQUENCES, unique=False)))
_EVENTS = _worded(Choice(*stream.GIVEN_EVENTS), "visit, match or none")
_STATE = _worded(Flag(), "true (calls of a key get what the last one returned) or false")
_OVERLOAD = _worded(Choice(*stream.OVERLOAD_RULES), "newest, oldest or coalesce")
_TRIGGER = section(
    ("on", _SEQUENCES, "sequences of events, any of which calls the task"),
    ("level", Choice(*stream.LEVELS), "when: as a page ends, or at once", "page"),
    ("within", _SPAN, "from the first event of a match to its last", None),
    ("events", _EVENTS, "which a call gets", "visit; level time: match"),
    ("state", _STATE, "a key's calls are one after the other", False),
    ("overload", _OVERLOAD, "which of too many calls stay; coalesce: the newest of each key", "newest"),
    ("queue", Whole(1, stream.MAX_QUEUE), "calls that wait", 64),
    ("retries", Whole(0, stream.MAX_RETRIES), "of a failed call", 1),
    fields={"within": "within_ms"},
)
_TYPES = "text, integer, real, bytes, json or array"
_TYPE = _worded(Choice(*stream.COLUMN_TYPES), _TYPES)
_COLUMN = section(
    ("type", _TYPE, "of its values"),
    ("index", Flag(), "true: faster searches by it", False),
    ("leaves", _worded(Flag(), "true (may leave the device) or false"), "with messages to the cloud", False),
)
_TYPE_OR_MORE = Either(f"{_TYPES}, or {_COLUMN.words}", (str, _TYPE), (dict, _COLUMN))
_COLUMN_NAME = Text("a column's name of letters, digits and '_', such as dwell_ms", stream.COLUMN)
_MAPPING = f"a mapping of 1 to {stream.MAX_COLUMNS} names of columns to types"
_COLUMNS = Named(_TYPE_OR_MORE, _MAPPING, _COLUMN_NAME, 1, stream.MAX_COLUMNS)
_TABLE = section(
    ("columns", _COLUMNS, "of its rows; `index`: for searches; `leaves`: may leave the device"),
    ("key", Text("the name of one of the columns"), "the column of a row's subject", None),
    ("retention", _SPAN, "after which rows are removed", "never"),
    fields={"retention": "retention_ms"},
)

TASK = section(
    ("name", TASK_NAME, "of the task"),
    ("version", _VERSION, "YAML reads one with a single dot as a number, unless in quotes"),
    ("entry", _ENTRY, "a module of the task's folder and a top-level function that takes the caller's value"),
    ("python", _worded(PYTHON, 'a Python version in quotes, such as "3.14"'), "which it is compiled for"),
    ("limits", _LIMITS, "limits of a call; the host decides those not given", ()),
    ("permissions", _PERMISSIONS, "requested permissions; nothing else is granted", ()),
    ("files", _FILES, "resources to bundle; in patterns, `*`, `**` and `?`", ()),
    ("requirements", _PACKAGES, "packages to bundle, in pip's syntax ([below](#packages))", ()),
    ("import", _IMPORTS, "modules to bundle that no import names ([below](#packages))", ()),
    ("models", _MODELS, "compiled for `engine.load(NAME)` ([engine.md](engine.md))", ()),
    ("trainable", _TRAINABLE, 'such as `{digits: ["fc.*"]}` ([training.md](training.md#fine-tuning))', ()),
    ("priority", _PRIORITY, "when VMs are scarce, tasks with a higher priority get VMs first", 0),
    ("fresh", _worded(Flag(), "true (a new VM for each call) or false"), "no VM serves two calls", False),
    ("trigger", _TRIGGER, "of a stream task: the events that call it ([pipeline.md](pipeline.md))", None),
    ("table", _TABLE, "of a stream task: the table for its results ([pipeline.md](pipeline.md))", None),
    fields={"import": "imports"},
    words="a mapping of keys to values",
)
