"""Tables in files: full and incremental saves, and restoring.

A folder holds saves, each a folder of its own, in order: `000001-full`, `000002-incremental`, ... A save has a file for
each table in the safetensors format: keys, freqs, versions (int64), values and slots (float32); a full one also the
keys that wait for admission (`keys_filtered`, ...) and the counters of a Bloom filter. `save.json` describes the save
and names the one it follows. A save is written beside its place and renamed when complete; the next save removes the
remains of an incomplete one."""

import json
import os
import zlib

from vmhost.engine import _array as _a
from vmhost.engine.embedding import save_folders

_HEADER = 8192  # bytes before a file's arrays; the rest of them is blank
_PIECE = 4 << 20  # bytes of rows processed at a time
_SLACK = 1024  # minimum room for waiting keys: a segment of the engine's table


class CheckpointError(ValueError):
    """A save that cannot be written or read: what is wrong, and where."""


# ---- saving
def save(tables, folder, *, incremental=False, step=None):
    """Saves tables as they are at one moment, while training continues; returns the save's path.

    tables: EmbeddingVariables with different names.
    incremental: only rows that changed since the previous save, which must be in the same folder.
    step: the global step for eviction before a full save; by default the tables' highest one.
    CheckpointError: an increment without a full save. OSError, MemoryError: nothing was saved; the next save includes
        the rows."""
    tables = list(tables.values() if isinstance(tables, dict) else tables)
    names = [one.name for one in tables]
    if len(set(names)) != len(names) or not all(_is_file_name(name) for name in names):
        raise CheckpointError(f"tables: expected different names that files can have, got {', '.join(names)}")
    folder = save_folders.absolute(folder)
    os.makedirs(folder, exist_ok=True)
    saves = _saves(folder)
    previous = _previous_save(tables, folder, saves) if incremental else None
    if step is None:
        step = max((one.statistics().step for one in tables), default=0)
    if not incremental:
        for one in tables:
            one.natives._embedding_evict(one._table, step)
    name = f"{max((number for number, _ in saves), default=0) + 1:06}-{'incremental' if incremental else 'full'}"
    temporary = save_folders.unfinished(folder, name)
    save_folders.remove_unfinished(folder)
    natives = _natives(tables)
    snapshots = natives._embedding_snapshot(tuple(one._table for one in tables), incremental)
    saved = False
    try:
        os.mkdir(temporary)
        for one, snapshot in zip(tables, snapshots):
            _write_table(os.path.join(temporary, f"{one.name}.safetensors"), one, snapshot, incremental)
        meta = {"incremental": incremental, "step": step, "previous": previous, "tables": names}
        save_folders.write(os.path.join(temporary, "save.json"), json.dumps(meta).encode())
        save_folders.flush(temporary)
        os.rename(temporary, os.path.join(folder, name))
        saved = True
    finally:
        for snapshot in snapshots:
            natives._embedding_snapshot_end(snapshot, saved)
    save_folders.flush(folder)
    for one in tables:
        one.saved = (folder, name)
    return os.path.join(folder, name)


def _natives(tables):
    """The implementation of these tables' functions; tables saved together must be in the same memory."""
    kinds = {type(one.natives): one.natives for one in tables}
    if len(kinds) > 1:
        raise CheckpointError("tables: those in a GPU's memory and those in the host's are saved apart")
    return next(iter(kinds.values()), _a)


def _is_file_name(name):
    return (
        bool(name) and not name.startswith(".") and "/" not in name and "\0" not in name and len(name.encode()) <= 200
    )


def _previous_save(tables, folder, saves):
    """The name of the save that all tables continue."""
    follows = {one.saved for one in tables}
    last = saves[-1][1] if saves else None
    if follows != {(folder, last)}:
        raise CheckpointError(
            f"{folder}: an incremental save follows the last save there ({last or 'none yet'}), and all tables must"
            " have been in that one or restored from it; make a full save first"
        )
    return last


def _saves(folder):
    """(number, name) of each save, in order."""
    found = []
    for name in os.listdir(folder):
        number, _, kind = name.partition("-")
        if number.isdecimal() and kind in ("full", "incremental"):
            found.append((int(number), name))
    return sorted(found)


class _Columns:
    """Arrays of a file that is being written, each filled from its start."""

    def __init__(self, file):
        self.file, self.end, self.columns = file, _HEADER, {}

    def add(self, name, code, size, shape):
        """A column with items of `size` bytes; the first of `shape`'s dimensions is the number of items."""
        for one in shape[1:]:
            size *= one
        self.columns[name] = [code, shape, self.end, size, 0, 0]  # start, bytes of an item, items so far, checksum
        self.end += size * shape[0]

    def append(self, name, array):
        column = self.columns[name]
        data = array.tobytes()
        self.file.seek(column[2] + column[3] * column[4])
        self.file.write(data)
        column[4] += len(array)
        column[5] = zlib.crc32(data, column[5])

    def finish(self, meta):
        header = {"__metadata__": meta | {"crc32": json.dumps({name: one[5] for name, one in self.columns.items()})}}
        for name, (code, shape, begin, size, items, _) in self.columns.items():
            if items != shape[0]:
                raise CheckpointError(f"{name}: {items} of {shape[0]} rows were read")
            start = begin - _HEADER
            header[name] = {"dtype": code, "shape": shape, "data_offsets": [start, start + size * items]}
        text = json.dumps(header, separators=(",", ":")).encode()
        if len(text) > _HEADER - 8:
            raise CheckpointError("the names of the tables are too long for a file's header")
        self.file.truncate(self.end)
        self.file.seek(0)
        self.file.write((_HEADER - 8).to_bytes(8, "little") + text.ljust(_HEADER - 8))


def _write_table(path, table, snapshot, incremental):
    natives = table.natives
    count, dim, slots = natives._embedding_snapshot_rows(snapshot), table.dim, table.dim * table.slots
    room = max(min(_PIECE // (4 * (dim + slots)), 65536), 256)
    with open(path, "wb") as file:
        columns = _Columns(file)
        for name in ("keys", "freqs", "versions"):
            columns.add(name, "I64", 8, [count])
        columns.add("values", "F32", 4, [count, dim])
        columns.add("slots", "F32", 4, [count, slots])
        while True:
            read, *parts = natives._embedding_snapshot_read(snapshot, room)
            if read == 0:
                break
            for name, part in zip(("keys", "freqs", "versions", "values", "slots"), parts):
                columns.append(name, part[:read])
        if not incremental:
            _write_waiting(columns, snapshot, natives)
            counters = natives._embedding_snapshot_bloom(snapshot)
            if len(counters):
                columns.add("bloom", "U16", 2, [len(counters)])
                columns.append("bloom", counters)
        columns.finish({"table": table.name, "dim": str(dim), "optimizer": table.optimizer})
        file.flush()
        os.fsync(file.fileno())


def _write_waiting(columns, snapshot, natives):
    names, found = ("keys_filtered", "freqs_filtered", "versions_filtered"), []
    while True:  # their number is known when all were read
        read, *parts = natives._embedding_snapshot_waiting(snapshot, 16 * _SLACK)
        if read == 0:
            break
        found.append([part[:read].copy() for part in parts])
    for i, name in enumerate(names):
        columns.add(name, "I64", 8, [sum(len(one[i]) for one in found)])
        for one in found:
            columns.append(name, one[i])


# ---- restoring
def restore(tables, folder, *, upto=None):
    """Reads the last full save of a folder and the increments after it into tables without keys; returns the global
    step.

    upto: the name of the last save to read.
    CheckpointError says what is missing or damaged, or which table was made with other options; tables may then hold a
    part of their rows."""
    tables = list(tables.values() if isinstance(tables, dict) else tables)
    folder = save_folders.absolute(folder)
    chain = _chain(folder, upto)
    for one in tables:
        statistics = one.statistics()
        if statistics.rows or statistics.waiting:
            raise CheckpointError(
                f"{one.name}: expected a table without keys, it has {statistics.rows + statistics.waiting}"
            )
    files = []
    for name, meta in chain:
        for one in tables:
            if one.name not in meta["tables"]:
                raise CheckpointError(f"{folder}/{name}: has no table {one.name!r}, but {', '.join(meta['tables'])}")
            files.append((one, *_header(os.path.join(folder, name, f"{one.name}.safetensors"), one)))
    for one, path, header in files:
        _read_table(path, header, one)
    for one in tables:
        one.saved = (folder, chain[-1][0])
    return chain[-1][1]["step"]


def restore_some(tables, folder, upto, wanted):
    """The same for the keys for which `wanted(keys)` is true, into tables that may have other keys; an incremental save
    cannot follow."""
    chain = _chain(save_folders.absolute(folder), upto)
    files = [
        (one, *_header(os.path.join(folder, name, f"{one.name}.safetensors"), one))
        for name, _ in chain
        for one in tables
    ]
    for one, path, header in files:
        _read_table(path, header, one, wanted=wanted)
    return chain[-1][1]["step"]


def save_chain(folder, upto=None):
    """Names of the saves that `restore` reads: the last full one before `upto`, and the increments after it."""
    return [name for name, _ in _chain(save_folders.absolute(folder), upto)]


def put_rows(tables, path):
    """Puts the weights of one save's rows into tables that are not trained (optimizer "sgd", which has no slots, and no
    filter), over existing rows."""
    files = [(one, *_header(os.path.join(path, f"{one.name}.safetensors"), one, trained=False)) for one in tables]
    for one, file, header in files:
        _read_table(file, header, one, trained=False)


def _chain(folder, upto=None):
    """(name, contents of save.json) of the last full save and of the increments that follow it, up to `upto`."""
    try:
        saves = _saves(folder)
    except FileNotFoundError:
        saves = []
    if upto is not None:
        if upto not in (names := [name for _, name in saves]):
            raise CheckpointError(f"{folder}: there is no save {upto}")
        saves = saves[: names.index(upto) + 1]
    full = max((i for i, (_, name) in enumerate(saves) if name.endswith("-full")), default=None)
    if full is None:
        raise CheckpointError(f"{folder}: there is no full save")
    chain = []
    for _, name in saves[full:]:
        path = os.path.join(folder, name, "save.json")
        try:
            with open(path, "rb") as file:
                meta = json.loads(file.read())
            if not (isinstance(meta["tables"], list) and type(meta["step"]) is int):
                raise ValueError("unexpected types")
            previous = meta["previous"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path}: cannot be read: {error}") from error
        if chain and previous != chain[-1][0]:
            raise CheckpointError(f"{folder}/{name}: follows {previous}, which is missing")
        chain.append((name, meta))
    return chain


def _header(path, table, trained=True):
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            header = json.loads(file.read(_HEADER)[8:])
        meta, columns = header.pop("__metadata__"), header
        checks = json.loads(meta["crc32"])
        for name, column in columns.items():
            begin, end = column["data_offsets"]
            count = 1
            for one in column["shape"]:
                count *= one
            if count * {"I64": 8, "F32": 4, "U16": 2}[column["dtype"]] != end - begin or not 0 <= begin <= end:
                raise ValueError(f"{name}: {end - begin} bytes do not hold {column['shape']}")
            if _HEADER + end > size:
                raise ValueError(f"{name}: the file is cut off")
            column["crc32"] = checks[name]
        shapes = {name: columns[name]["shape"][1:] for name in ("keys", "freqs", "versions", "values", "slots")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: is damaged: {error}") from error
    slots = [table.dim * table.slots] if trained else shapes["slots"]
    if (trained and meta.get("optimizer") != table.optimizer) or [shapes["values"], shapes["slots"]] != [
        [table.dim],
        slots,
    ]:
        raise CheckpointError(
            f"{path}: a table of {meta.get('dim')} numbers trained by {meta.get('optimizer')}, {table.name} has"
            f" {table.dim} and {table.optimizer}"
        )
    return path, columns


def _read_table(path, columns, table, trained=True, wanted=None):
    with open(path, "rb") as file:

        def pieces(names, room):
            count, sums = columns[names[0]]["shape"][0], dict.fromkeys(names, 0)
            for begin in range(0, count, room):
                rows, parts = min(room, count - begin), []
                for name in names:
                    column = columns[name]
                    first, last = column["data_offsets"]
                    size = (last - first) // count
                    file.seek(_HEADER + first + begin * size)
                    data = file.read(rows * size)
                    sums[name] = zlib.crc32(data, sums[name])
                    dtype = {"I64": "int64", "F32": "float32", "U16": "uint16"}[column["dtype"]]
                    parts.append(_a.frombuffer(data, dtype).reshape(rows, *column["shape"][1:]))
                yield parts
            for name in names:
                if sums[name] != columns[name]["crc32"]:
                    raise CheckpointError(f"{path}: {name} is damaged: its checksum is another one")

        room = max(_PIECE // (4 * table.dim * (1 + table.slots)), 256)
        if not trained:
            for keys, freqs, versions, values in pieces(("keys", "freqs", "versions", "values"), room):
                table.natives._embedding_put(
                    table._table, keys, freqs, versions, values, _a.zeros((len(keys), 0), "float32")
                )
            return
        for parts in pieces(("keys", "freqs", "versions", "values", "slots"), room):
            table.natives._embedding_put(table._table, *_filtered(parts, wanted))
        if "keys_filtered" in columns:
            for parts in pieces(("keys_filtered", "freqs_filtered", "versions_filtered"), room):
                table.natives._embedding_put(table._table, *_filtered(parts, wanted), None, None)
        if "bloom" in columns and wanted is not None:
            raise CheckpointError(
                f"{path}: the counts of a Bloom filter belong to its shard: restore them with as many shards"
            )
        if "bloom" in columns:
            for (counters,) in pieces(("bloom",), max(columns["bloom"]["shape"][0], 1)):
                table.natives._embedding_put(table._table, None, counters, None, None, None)


def _filtered(parts, wanted):
    """The rows whose keys, the first part, are wanted."""
    if wanted is None:
        return parts
    kept = wanted(parts[0])
    return [part[kept] for part in parts]
