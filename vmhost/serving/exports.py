"""Published versions: a network, its feature specification and its tables under one manifest, signed as bundles are.

A folder of exports has `version-000001`, `version-000002`, … with `manifest.json`, `signature`, `network.onnx`,
`network.vmm` and `features.json`, and `tables/` with the saves that they name, each once: a version whose tables
continue those of the version before has that one's saves and an increment. Versions and saves are written next to their
final places and then renamed. The manifest has the SHA-256 of every file."""

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from vmhost.bytecode.errors import BundleError
from vmhost.bytecode.signing import TrustStore
from vmhost.engine.embedding import CheckpointError, EmbeddingVariable, put_rows, save_chain, save_folders
from vmhost.engine.features import FeatureError, FeatureSpec
from vmhost.engine.nn.export import Lookup
from vmhost.engine.nn.weights import load_arrays, save_arrays
from vmhost.serving.errors import ExportError

FORMAT = 1
_FILES = ("network.onnx", "network.vmm", "features.json")
_FIRST = "first_rows.safetensors"
_PIECE = 1 << 20  # bytes


@dataclass(frozen=True)
class Export:
    """A checked version: its `number`, `name`, `lookups` (engine.nn.export), `spec`, the bytes of its compiled
    `network` and their digest, the digest of its `graph` (everything but the weights), `first`: by table, the value of
    keys without a row; its `saves` of tables in order, as paths, and who `signed` it (None: nobody)."""

    number: int
    name: str
    lookups: tuple
    spec: FeatureSpec
    network: bytes
    digest: str
    graph: str
    first: dict
    saves: tuple
    signed: str | None

    def tables(self, quota=None, gpu=None):
        """Tables by name with the rows of this version, for lookups only (without optimizer slots). `gpu`: a Gpu of
        vmhost.engine.cuda whose memory holds them."""
        made, kind = {}, EmbeddingVariable
        for name, rows in self.first.items():
            options = {"optimizer": "sgd", "initializer": rows, "default_value_dim": len(rows), "quota": quota}
            if gpu is not None:
                from vmhost.engine.cuda import CudaTable as kind

                options["device"] = gpu
            made[name] = kind(rows.shape[1], name=name, **options)
        self.fill(made)
        return made

    def fill(self, tables, begin=0):
        """Puts the rows of the saves, starting with save number `begin`, into such tables."""
        try:
            for path in self.saves[begin:]:
                put_rows(tables.values(), path)
        except CheckpointError as error:
            raise ExportError(f"version {self.number}: {error}") from error


# ---- publishing
def publish(folder, onnx, lookups, spec, tables, *, name="model", key=None, keep=2):
    """Publishes the next version and returns its number.

    folder: of exports; made if missing. onnx, lookups: from `nn.export(…, with_lookups=True)`. spec: the FeatureSpec.
    tables: EmbeddingVariables, or a dict of them, as last saved (runs.save, embedding.save): unsaved rows are an
    ExportError. name: the model's. key: a SigningKey; None: not signed. keep: number of versions that stay.

    Files of saves are hard-linked where the file system allows it. Needs the extra `models`."""
    from vmhost.engine.onnx import compile_model

    folder, tables = Path(folder).absolute(), list(tables.values() if isinstance(tables, dict) else tables)
    by_name = {one.name: one for one in tables}
    lookups = tuple(Lookup(*one) for one in lookups)
    chain = _saves_of(tables)
    numbers = [number for number, _ in _versions(folder)]
    number = max(numbers, default=0) + 1
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    known = _manifest(folder, max(numbers))["saves"] if numbers else []
    saves = [_linked(path, folder / "tables", known) for path in chain]
    _check_features(number, spec, lookups, by_name)
    beside = Path(save_folders.unfinished(folder, "version"))
    save_folders.remove_unfinished(folder)
    beside.mkdir()
    save_arrays(beside / _FIRST, {table: one.rows_without_keys() for table, one in by_name.items()})
    contents = dict(zip(_FILES, (onnx, compile_model(onnx, f"{name}.onnx"), spec.to_bytes())))
    manifest = {
        "format": FORMAT,
        "name": name,
        "number": number,
        "files": {file: hashlib.sha256(data).hexdigest() for file, data in contents.items()}
        | {_FIRST: _digest(beside / _FIRST)},
        "graph": graph_digest(onnx),
        "lookups": [list(one) for one in lookups],
        "saves": saves,
    }
    manifest_bytes = json.dumps(manifest, sort_keys=True).encode()
    contents["manifest.json"] = manifest_bytes
    if key is not None:
        contents["signature"] = key.sign(manifest_bytes)
    for file, data in contents.items():
        save_folders.write(beside / file, data)
    save_folders.flush(beside)
    beside.rename(folder / f"version-{number:06}")
    save_folders.flush(folder)
    _remove_old(folder, keep)
    return number


def graph_digest(onnx):
    """The SHA-256 of an ONNX model without the values of its float weights; unchanged when a network was only trained
    further."""
    import onnx as library

    model = library.load_from_string(onnx)
    for one in model.graph.initializer:
        if one.data_type in (library.TensorProto.FLOAT, library.TensorProto.DOUBLE, library.TensorProto.FLOAT16):
            for field in ("raw_data", "float_data", "double_data", "int32_data"):
                one.ClearField(field)
    return hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()


def _check_features(number, spec, lookups, tables):
    for one in lookups:
        feature = one.ids.removeprefix("ids.")
        settings = spec.features.get(feature)
        if settings is None or "table" not in settings or one.table not in tables:
            raise ExportError(
                f"version {number}: the network looks up {one.ids!r} in the table {one.table!r}; the specification has"
                f" {', '.join(spec.of_tables)} and there are the tables {', '.join(tables)}"
            )
    if unread := set(spec.of_tables) - {one.ids.removeprefix("ids.") for one in lookups}:
        raise ExportError(f"version {number}: the network reads no {', '.join(sorted(unread))} of the specification")


def _saves_of(tables):
    """Paths of the saves that hold the present state of the tables."""
    saved = {one.saved for one in tables}
    if len(saved) != 1 or None in saved or any(one.statistics().changed for one in tables):
        raise ExportError(
            "tables: some have rows that no save has, or they were not saved together; save them first (runs.save,"
            " embedding.save)"
        )
    folder, last = saved.pop()
    return [Path(folder) / name for name in save_chain(folder, last)]


def _linked(path, folder, known):
    """The manifest's entry for the save at `path`, which is put into `folder` unless it is there."""
    for one in known:
        place = folder / one["save"]
        if one["save"].startswith(path.name) and all(
            (path / file).is_file() and os.path.samefile(path / file, place / file) for file in one["files"]
        ):
            return one
    files = {one.name: _digest(one) for one in sorted(path.iterdir())}
    whole = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
    place = folder / f"{path.name}-{whole[:16]}"
    if not place.exists():
        beside = Path(save_folders.unfinished(folder, path.name))
        save_folders.remove_unfinished(folder)
        beside.mkdir()
        for file in files:
            try:
                os.link(path / file, beside / file)
            except OSError:
                shutil.copyfile(path / file, beside / file)
        save_folders.flush(beside)
        beside.rename(place)
        save_folders.flush(folder)
    return {"save": place.name, "files": files}


def _digest(path):
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            found.update(piece)
    return found.hexdigest()


def _remove_old(folder, keep):
    for _, name in _versions(folder)[:-keep]:
        save_folders.remove(folder / name)
    needed = {one["save"] for number, _ in _versions(folder) for one in _manifest(folder, number)["saves"]}
    for path in (folder / "tables").iterdir():
        if path.name not in needed:
            save_folders.remove(path)


# ---- reading
def _versions(folder):
    """(number, name) of each version, in order."""
    found = []
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        kind, _, number = name.partition("-")
        if kind == "version" and number.isdecimal():
            found.append((int(number), name))
    return sorted(found)


def _manifest(folder, number):
    return json.loads((folder / f"version-{number:06}" / "manifest.json").read_bytes())


def latest(folder):
    """The number of the last version; None if there is none."""
    return max((number for number, _ in _versions(folder)), default=None)


def read(folder, number=None, *, trust=None, checked=()):
    """The Export of a version (None: the last one). Every file is checked against the manifest, and the manifest
    against the signature.

    trust: the trusted keys, as a TrustStore or its path; None: no signature is needed. checked: saves (paths) that need
        not be read again, as an earlier Export had them.
    ExportError: it does not exist, is not signed by a trusted key, or is incomplete: a file is missing or altered."""
    folder = Path(folder).absolute()
    if number is None and (number := latest(folder)) is None:
        raise ExportError(f"{folder}: there is no version")
    path = folder / f"version-{number:06}"
    try:
        manifest_bytes = (path / "manifest.json").read_bytes()
        signed = None
        if trust is not None:
            store = trust if isinstance(trust, TrustStore) else TrustStore.load(trust)
            try:
                signature = (path / "signature").read_bytes()
            except FileNotFoundError:
                raise ExportError(f"{path}: is not signed; publish it with key=, by a key that is trusted") from None
            signed = store.verify(manifest_bytes, signature, path)
        manifest = json.loads(manifest_bytes)
        if manifest["format"] != FORMAT:
            raise ExportError(f"{path}: format {manifest['format']}: this vmhost reads {FORMAT}")
        if manifest["number"] != number:
            raise ExportError(f"{path}: its manifest is that of version {manifest['number']}")
        contents = {file: (path / file).read_bytes() for file in manifest["files"]}
        for file, data in contents.items():
            _same(hashlib.sha256(data).hexdigest(), manifest["files"][file], path / file)
        saves = []
        for one in manifest["saves"]:
            place = folder / "tables" / one["save"]
            saves.append(place)
            for file, digest in {} if place in checked else one["files"].items():
                _same(_digest(place / file), digest, place / file)
        return Export(
            number=number,
            name=manifest["name"],
            lookups=tuple(Lookup(*one) for one in manifest["lookups"]),
            spec=FeatureSpec.read(contents["features.json"]),
            network=contents["network.vmm"],
            digest=manifest["files"]["network.vmm"],
            graph=manifest["graph"],
            first=load_arrays(path / _FIRST),
            saves=tuple(saves),
            signed=signed,
        )
    except BundleError as error:
        raise ExportError(str(error)) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, FeatureError) as error:
        if isinstance(error, ExportError):
            raise
        raise ExportError(f"{path}: cannot be read: {error}") from error


def _same(found, wanted, path):
    if found != wanted:
        raise ExportError(f"{path}: is not the file of this version's manifest: altered, or of another version")
