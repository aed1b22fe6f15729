"""Bundle contents, writing and reading.

A bundle is a canonical zip (`archive.py`) of

    manifest.msgpack        name, permissions, limits, and the SHA-256 and size of every other file
    code/<target>/….pyc     16 bytes of header (magic, flags 1: unchecked hash, 8 zero bytes), then marshalled code
    files/…                 the task's resources
    texts/<hex digest>      marshalled code of texts that CPython would compile at run time (`texts.py`)
    models/<name>           the engine's model files
    signature               the signature of the manifest (`signing.py`); absent in an unsigned bundle

Reading checks shape, manifest, signature, target and digests, in that order, and unmarshals nothing. The whole file is
read into memory: a mapped file that someone truncates would kill the process.
"""

import hashlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import msgpack

from . import fields, signing
from .archive import MAX_BYTES, read_archive, write_archive
from .errors import BundleError
from .kinds import Items, Whole
from .stream_task import FieldError, Table, Trigger
from .task_kinds import (
    ARCHITECTURE,
    ENTRY,
    EXACT_PYTHON,
    LIMITS,
    MODELS,
    PERMISSIONS,
    PRIORITY,
    PYTHON,
    TASK_NAME,
    VERSION,
)

FORMAT_VERSION = 1
TARGET = f"{sys.version_info.major}.{sys.version_info.minor}"
MAGIC = importlib.util.MAGIC_NUMBER
ANY_ARCHITECTURE = "any"
KINDS = ("task", "stdlib")

MAX_MANIFEST_BYTES = 16 << 20  # 65,534 files of 200 bytes each

_MANIFEST, _SIGNATURE = "manifest.msgpack", "signature"
_PIECE_BYTES = 1 << 20  # of what is read at once from a file that has no size
_HEADER = MAGIC + (1).to_bytes(4, "little") + bytes(8)
_MARK = "vmhost-bundle"
_OPTIMIZE = Whole(0, 2)
# Of stream tasks only: other manifests leave them out.
_STREAM_FIELDS = {"trigger": Trigger, "table": Table}


@dataclass(frozen=True)
class Module:
    """One module of a bundle: `code` is its marshalled code object, without the .pyc header."""

    is_package: bool
    code: bytes


@dataclass(frozen=True)
class FileRecord:
    """The manifest's entry for one file."""

    sha256: bytes
    size: int


@dataclass(frozen=True)
class Manifest:
    """A bundle's identity and requests.

    `entry` is `module:function`, None in a standard-library bundle. `target` is the Python it was compiled for
    ("3.14"), `magic` that Python's .pyc magic, `exact_python` the one version it works with ("3.14.8"), or None for all
    of the target. `limits` has any of LIMITS (bytes as int, seconds as float), `permissions` all of
    PERMISSIONS (tuples of str). `priority` is an int (0 by default, higher first). `fresh` asks for a new VM for
    each call. A stream task has a `trigger` or a `table` (`stream_task.py`), or both. `files` maps each path in the
    bundle to its FileRecord.
    """

    name: str
    version: str
    entry: str | None = None
    kind: str = "task"
    target: str = TARGET
    magic: bytes = MAGIC
    exact_python: str | None = None
    architecture: str = ANY_ARCHITECTURE
    optimize: int = 0
    limits: Mapping = field(default_factory=dict)
    permissions: Mapping = field(default_factory=dict)
    models: tuple = ()
    priority: int = 0
    fresh: bool = False
    trigger: Trigger | None = None
    table: Table | None = None
    files: Mapping = field(default_factory=dict)

    def __post_init__(self):
        unknown = self.permissions.keys() - PERMISSIONS.keys()
        if unknown:
            raise BundleError(
                f"{self.name}: permissions: expected {', '.join(PERMISSIONS)}, got"
                f" {', '.join(sorted(map(repr, unknown)))}"
            )
        permissions = {name: tuple(self.permissions.get(name, ())) for name in PERMISSIONS}
        object.__setattr__(self, "limits", MappingProxyType(dict(self.limits)))
        object.__setattr__(self, "permissions", MappingProxyType(permissions))
        object.__setattr__(self, "files", MappingProxyType(dict(self.files)))


@dataclass(frozen=True)
class Bundle:
    """A bundle with checked signature and digests. Nothing in it has been unmarshalled.

    `modules` maps dotted names to Module, `files` the task's own paths to bytes, `texts` 32-byte digests to marshalled
    code, `models` names to the engine's model files, as views of the bundle's bytes. `digest` is the SHA-256 of the
    manifest, which covers everything else. `signed_by` is the trusted key's name, None if unsigned or signed by a key
    that isn't trusted. `where` names the bundle in messages."""

    manifest: Manifest
    modules: Mapping
    files: Mapping
    texts: Mapping
    digest: bytes
    signed_by: str | None
    where: str
    models: Mapping = field(default_factory=lambda: MappingProxyType({}))

    def verify(self):
        """Checks the manifest, unmarshals every code object and checks its structure (`verifier`). BundleError at the
        first wrong one."""
        from .verifier import load, verify  # imports opcode tables, which mere inspection doesn't need

        check_manifest(self.manifest, self.where)
        codes = [(f"module {name}", module.code) for name, module in self.modules.items()]
        codes += [(f"text {digest.hex()[:12]}", code) for digest, code in self.texts.items()]
        for what, data in codes:
            where = f"{self.where}: {what}"
            verify(load(data, where=where), where=where)


def write_bundle(manifest, modules, files=None, texts=None, key=None, models=None):
    """The bytes of a bundle; the same arguments always give the same bytes.

    `modules` maps dotted names to Module, `files` paths to bytes, `texts` 32-byte digests to marshalled code. The
    manifest's `files` are filled in here; `models` has one model file for each of its models. `key` is a SigningKey, or
    None for an unsigned bundle. BundleError for names and sizes that a bundle can't hold, and for an invalid
    manifest."""
    _, encoded, entries = _lay_out(manifest, modules, files or {}, texts or {}, models or {})
    entries[_MANIFEST] = encoded
    if key is not None:
        entries[_SIGNATURE] = key.sign(encoded)
    try:
        return write_archive(entries)
    except ValueError as error:
        raise BundleError(f"{manifest.name}: {error}") from error


def bundle_in_memory(manifest, modules, files=None, texts=None, models=None):
    """The same Bundle, unsigned, as from writing and reading these arguments, without a zip in between."""
    files, texts, models = files or {}, texts or {}, models or {}
    manifest, encoded, _ = _lay_out(manifest, modules, files, texts, models)
    return Bundle(
        manifest,
        MappingProxyType(dict(modules)),
        MappingProxyType(dict(files)),
        MappingProxyType(dict(texts)),
        hashlib.sha256(encoded).digest(),
        None,
        f"{manifest.name}@{manifest.version}",
        MappingProxyType(dict(models)),
    )


def read_bundle(source, trust=None, allow_unsigned=False):
    """The Bundle in `source`, a path or the bytes themselves.

    `trust` is a TrustStore. Unless `allow_unsigned`, only bundles signed with one of its keys are read. BundleError
    gives the reason. Nothing is unmarshalled.
    """
    data, where = _read_source(source)
    entries = read_archive(data, where)
    for name in (_MANIFEST, _SIGNATURE):
        if len(entries.get(name, b"")) > MAX_MANIFEST_BYTES:
            raise BundleError(
                f"{where}: {name}: expected at most {MAX_MANIFEST_BYTES:,} bytes, got {len(entries[name]):,}; compile"
                " it again"
            )
    encoded, signature = (
        None if (view := entries.pop(name, None)) is None else bytes(view) for name in (_MANIFEST, _SIGNATURE)
    )
    if encoded is None:
        raise BundleError(f"{where}: not a bundle: it has no {_MANIFEST}")
    decoded = _decode_manifest(encoded, where)
    signed_by = _check_signature(encoded, signature, where, trust, allow_unsigned)
    manifest = _manifest_from(decoded, where)
    _check_target(manifest, where)
    _check_files(manifest, entries, where)

    modules, files, texts, models = {}, {}, {}, {}
    prefix = f"code/{manifest.target}/"
    for path, view in entries.items():
        if path.startswith("models/"):  # large: not copied
            models[path.removeprefix("models/")] = view
            continue
        if path.startswith(prefix) and path.endswith(".pyc"):
            name, is_package = _module_name(path, prefix, where)
            if name in modules:
                raise BundleError(
                    f"{where}: module {name} is there twice, as a module and as a package; compile it again"
                )
            header = bytes(view[: len(_HEADER)])
            if header != _HEADER:
                raise BundleError(
                    f"{where}: {path}: expected the header of a .pyc for Python {TARGET} with an unchecked hash, got "
                    f"{header.hex()}; compile it again"
                )
            modules[name] = Module(is_package, bytes(view[len(_HEADER) :]))
        elif path.startswith("files/"):
            files[path.removeprefix("files/")] = bytes(view)
        elif path.startswith("texts/"):
            texts[_text_digest(path, where)] = bytes(view)
        else:
            raise BundleError(
                f"{where}: {path}: expected {prefix}….pyc, files/…, texts/… or models/…; compile it again"
            )
    if models.keys() != set(manifest.models):
        raise BundleError(
            f"{where}: the manifest names the models {sorted(manifest.models)}, the bundle has {sorted(models)}; "
            "compile it again"
        )
    if manifest.kind == "task" and manifest.entry.partition(":")[0] not in modules:
        raise BundleError(f"{where}: entry {manifest.entry}: the bundle has no such module; compile it again")
    return Bundle(
        manifest,
        MappingProxyType(modules),
        MappingProxyType(files),
        MappingProxyType(texts),
        hashlib.sha256(encoded).digest(),
        signed_by,
        where,
        MappingProxyType(models),
    )


def read_manifest(encoded, where):
    """The Manifest of an encoded one, of any target. BundleError."""
    return _manifest_from(_decode_manifest(encoded, where), where)


def is_module_name(name):
    """Is this a valid dotted module name? Some modules of packages have `-` in theirs; programs import them by
    text."""
    first, *others = name.split(".")
    return first.isidentifier() and all(f"_{part.replace('-', '_')}".isidentifier() and part for part in others)


def module_path(name, is_package):
    """The path of the module `name` below `code/<target>/`, without suffix: `a.b` -> `a/b`, or `a/b/__init__`."""
    return name.replace(".", "/") + ("/__init__" if is_package else "")


def _lay_out(manifest, modules, files, texts, models):
    entries = {}
    for name, module in modules.items():
        if not is_module_name(name):
            raise BundleError(f"{manifest.name}: module {name!r}: expected a dotted name; rename the file")
        entries[f"code/{manifest.target}/{module_path(name, module.is_package)}.pyc"] = _HEADER + module.code
    entries.update((f"files/{path}", content) for path, content in files.items())
    entries.update((f"texts/{digest.hex()}", code) for digest, code in texts.items())
    entries.update((f"models/{name}", content) for name, content in models.items())
    records = {path: FileRecord(hashlib.sha256(content).digest(), len(content)) for path, content in entries.items()}
    manifest = replace(manifest, files=records)
    check_manifest(manifest, fields.shown(manifest.name).strip("'"))
    encoded = msgpack.packb(_fields_of(manifest))
    if len(encoded) > MAX_MANIFEST_BYTES:
        raise BundleError(
            f"{manifest.name}: its manifest would have {len(encoded):,} bytes, expected at most {MAX_MANIFEST_BYTES:,};"
            " leave files out"
        )
    return manifest, encoded, entries


def check_manifest(manifest, where):
    """Raises BundleError, naming `where`, for an invalid Manifest. Those from `read_bundle` are already checked."""
    _manifest_from(_fields_of(manifest), where)


def _fields_of(manifest):
    return {
        "format": _MARK,
        "format_version": FORMAT_VERSION,
        "kind": manifest.kind,
        "name": manifest.name,
        "version": manifest.version,
        "entry": manifest.entry,
        "python": {"target": manifest.target, "magic": manifest.magic, "exact": manifest.exact_python},
        "architecture": manifest.architecture,
        "optimize": manifest.optimize,
        "limits": {
            name: manifest.limits[name]
            for name in (*LIMITS, *(manifest.limits.keys() - LIMITS.keys()))
            if name in manifest.limits
        },
        "permissions": {
            name: list(manifest.permissions[name])
            for name in PERMISSIONS
            if manifest.permissions[name] or name not in fields.LATER_GRANTS
        },
        "models": list(manifest.models),
        "priority": manifest.priority,
        "fresh": manifest.fresh,
        **{name: getattr(manifest, name).fields() for name in _STREAM_FIELDS if getattr(manifest, name) is not None},
        "files": {path: [record.sha256, record.size] for path, record in sorted(manifest.files.items())},
    }


def _read_source(source):
    """The bytes and their name for messages; a file's bytes come as a bytearray that nobody else holds."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source), "<bundle in memory>"
    try:
        where = os.fsdecode(source)
        if "\0" in where:
            raise ValueError
        os.fsencode(where)
    except TypeError, ValueError:  # ValueError: a name that no file can have
        raise BundleError(f"expected a path or the bytes of a bundle, got {fields.shown(source)}") from None
    try:
        with open(source, "rb", buffering=0) as file:
            data = bytearray(min(os.fstat(file.fileno()).st_size, MAX_BYTES + 1))
            read = 0
            with memoryview(data) as room:
                while more := file.readinto(room[read:]):
                    read += more
            del data[read:]
            # a pipe has no size; pieces, since a read reserves memory for all that it may get
            while more := file.read(min(_PIECE_BYTES, MAX_BYTES + 1 - len(data))):
                data += more
    except FileNotFoundError:
        advice = "a relative path begins at the working folder; `vmhost compile FOLDER -o FILE` makes a bundle"
        raise BundleError(f"{where}: no such bundle; {advice}") from None
    except OSError as error:
        raise BundleError(f"{where}: can't read the bundle: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise BundleError(f"{where}: expected at most {MAX_BYTES} bytes, got more; this is not a bundle")
    return data, where


def _decode_manifest(encoded, where):
    try:
        found = msgpack.unpackb(encoded, raw=False, strict_map_key=True)
        canonical = msgpack.packb(found)
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise BundleError(f"{where}: {_MANIFEST}: not MessagePack: {error}; compile it again") from error
    if not isinstance(found, dict) or found.get("format") != _MARK:
        raise BundleError(f"{where}: {_MANIFEST}: not a bundle's manifest: expected `format` to be {_MARK!r}")
    version = found.get("format_version")
    if type(version) is not int or version != FORMAT_VERSION:
        raise BundleError(
            f"{where}: bundle format {fields.shown(version)}, this host reads format {FORMAT_VERSION}; compile it again"
            " with this host's tools/compile_cloud.py"
        )
    if canonical != encoded:
        raise BundleError(f"{where}: {_MANIFEST}: not as the compiler writes it (a key twice?); compile it again")
    return found


def _check_signature(encoded, signature, where, trust, allow_unsigned):
    if signature is None:
        if allow_unsigned:
            return None
        raise BundleError(
            f"{where}: not signed; compile it with --sign KEY, or, while developing, allow unsigned bundles "
            "(--allow-unsigned; allow_unsigned in Host and host.yaml)"
        )
    public = signing.check_signature(encoded, signature, where)
    if trust is not None and (not allow_unsigned or public in trust.keys):
        return trust.verify(encoded, signature, where)
    if allow_unsigned:
        return None
    raise BundleError(
        f"{where}: signed with the key {signing.fingerprint(public)}, but this host has no trust store; give it one "
        "with the signer's .pub line in it"
    )


def _manifest_from(found, where):
    """The Manifest of the decoded fields `found`. Each may be any value that MessagePack can encode."""
    check = _Fields(found, where, known=["format", "format_version"])
    python, limits, permissions = (check.below(name) for name in ("python", "limits", "permissions"))
    kind = check.get("kind", str)
    if kind not in KINDS:
        check.refuse("kind", f"one of {', '.join(KINDS)}", kind)
    task = kind == "task"
    magic = python.get("magic", bytes)
    if len(magic) != len(MAGIC):
        python.refuse("magic", f"{len(MAGIC)} bytes", magic)
    manifest = Manifest(
        name=check.value("name", TASK_NAME),
        version=check.value("version", VERSION if task else EXACT_PYTHON),
        entry=check.value("entry", ENTRY) if task else check.get("entry", type(None)),
        kind=kind,
        target=python.value("target", PYTHON),
        magic=magic,
        exact_python=python.get("exact", str, type(None)) and python.value("exact", EXACT_PYTHON),
        architecture=check.value("architecture", ARCHITECTURE),
        optimize=check.value("optimize", _OPTIMIZE),
        limits=limits.values(LIMITS, optional=LIMITS),
        permissions=permissions.values(PERMISSIONS, optional=fields.LATER_GRANTS),
        models=check.value("models", MODELS),
        priority=check.value("priority", PRIORITY),
        fresh=check.get("fresh", bool),
        **{name: check.described(name, kind) for name, kind in _STREAM_FIELDS.items() if name in found},
        files={path: _file_record(record, path, where) for path, record in check.get("files", dict).items()},
    )
    check.known += _STREAM_FIELDS
    for each in (limits, permissions, python, check):
        each.only_known()
    return manifest


class _Fields:
    """Typed access to one map of a manifest. `known`: the names that were asked for."""

    def __init__(self, found, where, prefix="", known=()):
        self.fields, self._where, self._prefix, self.known = found, where, prefix, [*known]

    def below(self, name):
        return _Fields(self.get(name, dict), self._where, f"{name}.")

    def refuse(self, name, expected, got):
        raise BundleError(
            f"{self._where}: {_MANIFEST}: {self._prefix}{name}: expected {expected}, got {fields.shown(got)}; compile"
            " it again"
        )

    def get(self, name, *kinds):
        self.known.append(name)
        value = self.fields.get(name)
        if type(value) not in kinds:
            self.refuse(name, " or ".join(kind.__name__ for kind in kinds), value)
        return value

    def value(self, name, kind):
        """The value of this kind; a list as a tuple."""
        value = self.get(name, *kind.types)
        if isinstance(kind, Items):
            if len(value) > kind.max_items:
                self.refuse(name, f"at most {kind.max_items} items", len(value))
            for index, item in enumerate(value):
                if not kind.item.accepts(item):
                    self.refuse(f"{name}[{index}]", kind.item.words, item)
            if len(set(value)) != len(value):
                self.refuse(name, "each item once", value)
            return tuple(value)
        if not kind.accepts(value):
            self.refuse(name, kind.words, value)
        return value

    def values(self, kinds, optional):
        """Those of these kinds, by name, that are there or not `optional`."""
        self.known += kinds
        return {
            name: self.value(name, kind) for name, kind in kinds.items() if name in self.fields or name not in optional
        }

    def described(self, name, kind):
        """The `kind` (Trigger, Table) that the map `name` holds in plain form."""
        try:
            return kind.from_fields(self.get(name, dict))
        except FieldError as error:
            raise BundleError(
                f"{self._where}: {_MANIFEST}: {self._prefix}{name}.{error.key}: {error}; compile it again"
            ) from None

    def only_known(self):
        for name in self.fields:
            if name not in self.known:
                known = ", ".join(dict.fromkeys(self.known))
                self.refuse(fields.shown(name).strip("'"), f"one of {known}", name)


def _file_record(record, path, where):
    if (
        type(path) is not str
        or type(record) is not list
        or len(record) != 2
        or type(record[0]) is not bytes
        or len(record[0]) != 32
        or type(record[1]) is not int
    ):
        raise BundleError(
            f"{where}: {_MANIFEST}: files: {fields.shown(path)}: expected a SHA-256 and a size; compile it again"
        )
    return FileRecord(*record)


def _check_target(manifest, where):
    if manifest.target != TARGET:
        raise BundleError(
            f"{where}: compiled for Python {manifest.target}, this host runs {TARGET}; compile again with --target "
            f"{TARGET}"
        )
    if manifest.magic != MAGIC:
        raise BundleError(
            f"{where}: compiled by a Python {manifest.target} with bytecode magic {manifest.magic.hex()}, this "
            f"host's is {MAGIC.hex()}; compile again with the host's Python"
        )
    running = sys.version.split()[0]
    if manifest.exact_python not in (None, running):
        raise BundleError(
            f"{where}: made for exactly Python {manifest.exact_python}, this host runs {running}; build it again with "
            "`python -m vmhost.stdlib`"
        )
    if manifest.architecture not in (ANY_ARCHITECTURE, os.uname().machine):
        raise BundleError(
            f"{where}: compiled for {manifest.architecture}, this host is {os.uname().machine}; compile it again for "
            "this architecture"
        )


def _check_files(manifest, entries, where):
    for path, content in entries.items():
        record = manifest.files.get(path)
        if record is None:
            raise BundleError(
                f"{where}: {path}: in the bundle but not in its manifest; it was added later: get it again"
            )
        if len(content) != record.size:
            raise BundleError(
                f"{where}: {path}: altered: expected {record.size} bytes, got {len(content)}; compile it or get it "
                "again"
            )
        found = hashlib.sha256(content).digest()
        if found != record.sha256:
            raise BundleError(
                f"{where}: {path}: altered: expected SHA-256 {record.sha256.hex()[:16]}…, got {found.hex()[:16]}…; "
                "compile it or get it again"
            )
    missing = manifest.files.keys() - entries.keys()
    if missing:
        raise BundleError(f"{where}: {min(missing)}: in the manifest but not in the bundle; compile it or get it again")


def _module_name(path, prefix, where):
    parts = path.removeprefix(prefix).removesuffix(".pyc").split("/")
    is_package = parts[-1] == "__init__" and len(parts) > 1
    if is_package:
        parts.pop()
    if not is_module_name(".".join(parts)):
        raise BundleError(f"{where}: {path}: not the path of a module; compile it again")
    return ".".join(parts), is_package


def _text_digest(path, where):
    digest = path.removeprefix("texts/")
    if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise BundleError(f"{where}: {path}: expected texts/ and 64 hex digits; compile it again")
    return bytes.fromhex(digest)
