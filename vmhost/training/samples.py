"""Samples from Parquet files, batch by batch, for tasks that pull them by a host function. Needs pyarrow (extra
`parquet`).

Rows come in an order that the seed, the epoch and the window decide alone, so a position (epoch, window, row) is all
that resuming needs."""

import queue
import threading
import time
from pathlib import Path

import numpy

from vmhost.engine.embedding import Ragged
from vmhost.engine.features import hashed

_END = object()


class SamplesError(ValueError):
    """A file or an option that does not fit: which, and what is expected."""


class ParquetSamples:
    """An iterator over batches: dicts of a column's name to a NumPy array; of lists to a Ragged (values, offsets).
    Whole numbers are int64, floats float32, flags uint8; texts are int64 keys by a named hash, or lists of str.

    paths: a file, a folder of *.parquet files, or a list of such.
    fields: columns to read, all where it is None; a dict gives each one's value for nulls (None: nulls are refused).
        Of lists, null is the empty list, and the value stands for nulls within. Null texts are the key -1, or None.
    spec: a FeatureSpec instead: its columns and `labels`; texts that only `hashed` features read are hashed here.
    texts: columns whose texts are not hashed. hash: the hash of the others (vmhost.engine.features.HASHES).
    batch_size; drop_remainder: whether an epoch's last batch is left out if it is smaller.
    partition: (number, of how many): every so many-th row group.
    shuffle_window: rows that are shuffled together, in whole row groups, which come in a drawn order; 0: as they lie.
    seed: of that order. epochs: how often all is read; None: for ever.
    prefetch: batches that a thread reads ahead; 0: none does.

    `position` is that behind the batch given last; `start=position` goes on there. `waited_s`: how long batches were
    waited for. Close it, or use it in a `with` block."""

    def __init__(
        self,
        paths,
        batch_size,
        *,
        fields=None,
        spec=None,
        labels=(),
        texts=(),
        hash="blake2b",
        drop_remainder=False,
        partition=(0, 1),
        shuffle_window=0,
        seed=0,
        epochs=1,
        prefetch=2,
        start=None,
    ):
        if batch_size < 1:
            raise SamplesError(f"batch_size: expected 1 or more, got {batch_size}")
        number, count = partition
        if not 0 <= number < count:
            raise SamplesError(f"partition: expected (number, count) with 0 <= number < count, got {partition}")
        self.batch_size, self.drop_remainder, self.seed, self.epochs = batch_size, drop_remainder, seed, epochs
        self.shuffle_window = shuffle_window
        self._files = _files(paths)
        self._defaults, self._hashes = _fields(fields, spec, labels, texts, hash, self._files[0])
        self._names = list(self._defaults)
        groups = [
            (file, group, rows) for file in self._files for group, rows in enumerate(_row_groups(file, self._names))
        ]
        self._groups = groups[number::count]
        self.rows = sum(rows for _, _, rows in self._groups)
        if not self.rows:
            raise SamplesError(
                f"{self._files[0]}: partition {partition}: there are no rows in {len(groups)} row groups"
            )
        self.position = {"epoch": 0, "window": 0, "row": 0} if start is None else dict(start)
        self.waited_s = 0.0
        self._open = {}
        batches = self._batches(dict(self.position))
        self._ahead = _Ahead(batches, prefetch) if prefetch else None
        self._batches_here = batches

    # ---- iterating
    def __iter__(self):
        return self

    def __next__(self):
        begun = time.perf_counter()
        found = next(self._batches_here, _END) if self._ahead is None else self._ahead.next()
        self.waited_s += time.perf_counter() - begun
        if found is _END:
            raise StopIteration
        batch, self.position = found
        return batch

    def host_function(self, end=None):
        """For a Host's `functions`: each call gives the next batch, `end` after the last one."""
        lock = threading.Lock()

        def batch(_=None):
            with lock:
                return next(self, end)

        return batch

    def close(self):
        if self._ahead is not None:
            self._ahead.close()
        self._batches_here.close()
        while self._open:
            self._open.popitem()[1].close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # ---- order
    def _order(self, epoch):
        """Windows of an epoch: lists of row groups."""
        groups = list(self._groups)
        if self.shuffle_window:
            numpy.random.default_rng([self.seed, epoch]).shuffle(groups)
        windows, rows = [[]], 0
        for group in groups:
            if windows[-1] and rows + group[2] > self.shuffle_window:
                windows.append([])
                rows = 0
            windows[-1].append(group)
            rows += group[2]
        return windows

    def _batches(self, at):
        """(batch, the position behind it) from the position `at` on."""
        parts, held = [], 0
        while self.epochs is None or at["epoch"] < self.epochs:
            windows = self._order(at["epoch"])
            while at["window"] < len(windows):
                columns, rows = self._window(windows[at["window"]], at)
                while at["row"] < rows:
                    take = min(self.batch_size - held, rows - at["row"])
                    parts.append([_part(column, at["row"], at["row"] + take) for column in columns])
                    held += take
                    at["row"] += take
                    if held == self.batch_size:
                        yield self._batch(parts), dict(at)
                        parts, held = [], 0
                at["window"], at["row"] = at["window"] + 1, 0
            at["epoch"], at["window"] = at["epoch"] + 1, 0
            if held and not self.drop_remainder:
                yield self._batch(parts), dict(at)
            parts, held = [], 0

    def _batch(self, parts):
        columns = parts[0] if len(parts) == 1 else [_joined(some) for some in zip(*parts)]
        return dict(zip(self._names, columns))

    def _window(self, groups, at):
        tables = [self._file(file).read_row_group(group, self._names, use_threads=False) for file, group, _ in groups]
        columns = []
        for i, name in enumerate(self._names):
            where = f"{groups[0][0]}: {name}"
            found = [_column(table.column(i), where, self._defaults[name], self._hashes[name]) for table in tables]
            columns.append(found[0] if len(found) == 1 else _joined(found))
        rows = sum(rows for _, _, rows in groups)
        if self.shuffle_window:
            order = numpy.random.default_rng([self.seed, at["epoch"], at["window"]]).permutation(rows)
            columns = [_taken(column, order) for column in columns]
        return columns, rows

    def _file(self, path):
        from pyarrow import parquet

        if path not in self._open:
            while len(self._open) >= 16:
                self._open.pop(next(iter(self._open))).close()
            self._open[path] = parquet.ParquetFile(path, pre_buffer=False)
        return self._open[path]


class _Ahead:
    """A thread that takes items ahead of who asks."""

    def __init__(self, items, count):
        self._queue, self._closed = queue.Queue(count), threading.Event()
        self._thread = threading.Thread(target=self._run, args=(items,), name="vmhost-samples", daemon=True)
        self._thread.start()

    def _run(self, items):
        try:
            for one in items:
                self._queue.put((one, None))
                if self._closed.is_set():
                    return
        except BaseException as error:  # whoever asks next gets it
            self._queue.put((None, error))
        else:
            self._queue.put((_END, None))

    def next(self):
        if self._closed.is_set():
            return _END
        found, error = self._queue.get()
        if error is not None or found is _END:
            self._queue.put((found, error))  # for the next one who asks
        if error is not None:
            raise error
        return found

    def close(self):
        self._closed.set()
        while self._thread.is_alive():  # it may wait for room
            try:
                self._queue.get(timeout=0.05)
            except queue.Empty:
                pass
        self._thread.join()


# ---- files and fields
def _files(paths):
    files = []
    for path in [paths] if isinstance(paths, (str, Path)) else paths:
        path = Path(path)
        found = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        files += found
    if not files:
        raise SamplesError(f"{paths}: there are no Parquet files")
    for path in files:
        if not path.is_file():
            raise SamplesError(f"{path}: there is no such file")
    return [str(path) for path in files]


def _row_groups(path, names):
    from pyarrow import ArrowException, parquet

    try:
        with parquet.ParquetFile(path, pre_buffer=False) as file:
            known = file.schema_arrow.names
            sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    except (ArrowException, OSError) as error:
        raise SamplesError(f"{path}: cannot be read as Parquet: {error}") from error
    for name in names:
        if name not in known:
            raise SamplesError(f"{path}: there is no column {name!r}, but {', '.join(known)}")
    return sizes


def _fields(fields, spec, labels, texts, hash, first):
    """(value for nulls, hash of texts or None) of each field, by name."""
    if spec is not None:
        defaults = dict.fromkeys([*spec.columns(), *labels])
        hashes = {name: set() for name in defaults}
        for one in spec.features.values():
            name, default = one.get("column"), one.get("default")
            if name is None:
                continue
            if one["kind"] == "hashed" and not isinstance(default, str):
                hashes[name].add(one.get("hash", "blake2b"))
            elif one["kind"] in ("hashed", "vocabulary"):
                hashes[name].add(None)
            if one["kind"] in ("key", "hashed") and not isinstance(default, int):
                default = -1
            defaults[name] = default if defaults[name] is None else defaults[name]
        return defaults, {name: some.pop() if len(some) == 1 else None for name, some in hashes.items()}
    if fields is None:
        from pyarrow import parquet

        with parquet.ParquetFile(first, pre_buffer=False) as file:
            fields = file.schema_arrow.names
    defaults = dict(fields) if isinstance(fields, dict) else dict.fromkeys(fields)
    return defaults, {name: None if name in texts else hash for name in defaults}


# ---- columns
def _column(column, where, default, hash):
    """A NumPy array, a list of texts, or a Ragged of an Arrow column."""
    import pyarrow as pa
    from pyarrow import types

    column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    kind = column.type
    if types.is_list(kind) or types.is_large_list(kind):
        if column.null_count:
            import pyarrow.compute as pc

            column = pc.fill_null(column, pa.scalar([], kind))
        offsets = column.offsets.to_numpy().astype("int64")
        values = _column(pa.chunked_array([column.values]), where, default, hash)
        return Ragged(_part(values, int(offsets[0]), int(offsets[-1])), offsets - offsets[0])
    if types.is_string(kind) or types.is_large_string(kind) or types.is_dictionary(kind):
        if hash is None:
            return column.to_pylist()
        coded = column if types.is_dictionary(kind) else column.dictionary_encode()
        if not (types.is_string(coded.dictionary.type) or types.is_large_string(coded.dictionary.type)):
            raise SamplesError(f"{where}: expected texts in a dictionary, got {coded.dictionary.type}")
        keys = numpy.append(numpy.asarray(hashed(coded.dictionary.to_pylist(), hash)), -1)
        places = coded.indices.fill_null(len(keys) - 1) if coded.null_count else coded.indices
        return keys[places.to_numpy()]
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise SamplesError(f"{where}: expected numbers, texts or lists of them, got {kind}")
    if column.null_count:
        if default is None:
            raise SamplesError(
                f"{where}: {column.null_count} values are null, and the field has no value that stands for them"
            )
        column = column.fill_null(pa.scalar(default, kind) if not types.is_boolean(kind) else bool(default))
    array = column.to_numpy(zero_copy_only=False)
    dtype = "float32" if types.is_floating(kind) else "uint8" if types.is_boolean(kind) else "int64"
    return array.astype(dtype, copy=False)


def _part(column, begin, end):
    if not isinstance(column, Ragged):
        return column[begin:end]
    offsets = column.offsets[begin : end + 1]
    return Ragged(column.values[offsets[0] : offsets[-1]], offsets - offsets[0])


def _joined(parts):
    if isinstance(parts[0], list):
        return [one for part in parts for one in part]
    if not isinstance(parts[0], Ragged):
        return numpy.concatenate(parts)
    ends = numpy.cumsum([0, *(part.offsets[-1] for part in parts)])
    offsets = [part.offsets[1:] + end for part, end in zip(parts, ends)]
    return Ragged(_joined([part.values for part in parts]), numpy.concatenate([[0], *offsets]))


def _taken(column, order):
    if isinstance(column, list):
        return [column[i] for i in order.tolist()]
    if not isinstance(column, Ragged):
        return column[order]
    counts = numpy.diff(column.offsets)[order]
    offsets = numpy.concatenate([[0], numpy.cumsum(counts)])
    at = numpy.arange(offsets[-1]) - numpy.repeat(offsets[:-1] - column.offsets[:-1][order], counts)
    return Ragged(_taken(column.values, at), offsets)
