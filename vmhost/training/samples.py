"""Samples from Parquet files, batch by batch, for tasks that pull them through a host function. Needs pyarrow (extra
`parquet`).

The order of rows depends only on the seed, the epoch and the window, so a position (epoch, window, row) is enough to
resume."""

import queue
import threading
import time
from pathlib import Path

import numpy

from vmhost.training.columns import from_arrow, joined, part, taken
from vmhost.training.errors import SamplesError

_END = object()


class ParquetSamples:
    """An iterator over batches. A batch is a dict of columns by name.

    A column of integers is int64, of floats float32, of booleans uint8; of texts int64 keys, or a list of str; of lists
    a Ragged (values, offsets).

    paths: a file, a folder of *.parquet files, or a list of these.
    fields: the columns to read; None: all. A dict maps each field to the value that replaces nulls; None refuses them.
        A null list becomes an empty list; the value also replaces nulls in lists. A null text becomes the key -1.
    spec: a FeatureSpec, instead of `fields`: its columns and `labels` are read. Texts read only by `hashed` features
        become keys.
    labels: columns beside those of `spec`.
    texts: columns whose texts stay texts.
    hash: how others become keys, a name in vmhost.engine.features.HASHES.
    batch_size: examples.
    drop_remainder: drops the last batch of an epoch if it is smaller.
    partition: (number, count): takes every count-th row group, beginning with this number.
    shuffle_window: rows. Row groups come in random order; those that fit into a window are shuffled together. 0: no
        shuffling.
    seed: for shuffling.
    epochs: number of passes over all rows; None: without end.
    prefetch: batches that a thread reads ahead; 0: no thread.
    start: a `position` to resume from.

    `position` is that after the last batch returned, `waited_s` the time that callers waited for batches. Close it, or
    use it in a `with` block. SamplesError."""

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
                f"{self._files[0]}: partition {partition}: there are no rows, in {len(groups)} row groups of all files"
            )
        if epochs is None and drop_remainder and self.rows < batch_size:
            raise SamplesError(
                f"batch_size: {batch_size} is more than the {self.rows} rows, so no batch would ever come"
            )
        self.position = {"epoch": 0, "window": 0, "row": 0} if start is None else dict(start)
        self.waited_s = 0.0
        self._open = {}
        self._source = self._batches(dict(self.position))
        self._ahead = _Prefetch(self._source, prefetch) if prefetch else None

    # ---- iterating
    def __iter__(self):
        return self

    def __next__(self):
        begun = time.perf_counter()
        found = next(self._source, _END) if self._ahead is None else self._ahead.next()
        self.waited_s += time.perf_counter() - begun
        if found is _END:
            raise StopIteration
        batch, self.position = found
        return batch

    def host_function(self, end=None):
        """For a Host's `functions`: each call returns the next batch, `end` after the last one."""
        lock = threading.Lock()

        def batch(_=None):
            with lock:
                return next(self, end)

        return batch

    def close(self):
        """Ends the reading thread and closes the files."""
        if self._ahead is not None:
            self._ahead.close()
        self._source.close()
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
        """Yields (batch, the position after it), from the position `at` on."""
        parts, held = [], 0
        while self.epochs is None or at["epoch"] < self.epochs:
            windows = self._order(at["epoch"])
            while at["window"] < len(windows):
                columns, rows = self._window(windows[at["window"]], at)
                while at["row"] < rows:
                    take = min(self.batch_size - held, rows - at["row"])
                    parts.append([part(column, at["row"], at["row"] + take) for column in columns])
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
        columns = parts[0] if len(parts) == 1 else [joined(some) for some in zip(*parts)]
        return dict(zip(self._names, columns))

    def _window(self, groups, at):
        tables = [self._file(file).read_row_group(group, self._names, use_threads=False) for file, group, _ in groups]
        columns = []
        for i, name in enumerate(self._names):
            where = f"{groups[0][0]}: {name}"
            found = [from_arrow(table.column(i), where, self._defaults[name], self._hashes[name]) for table in tables]
            columns.append(found[0] if len(found) == 1 else joined(found))
        rows = sum(rows for _, _, rows in groups)
        if self.shuffle_window:
            order = numpy.random.default_rng([self.seed, at["epoch"], at["window"]]).permutation(rows)
            columns = [taken(column, order) for column in columns]
        return columns, rows

    def _file(self, path):
        from pyarrow import parquet

        if path not in self._open:
            while len(self._open) >= 16:
                self._open.pop(next(iter(self._open))).close()
            self._open[path] = parquet.ParquetFile(path, pre_buffer=False)
        return self._open[path]


class _Prefetch:
    """A thread that reads up to `count` items of an iterator ahead."""

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
        except BaseException as error:  # raised by the next call
            self._queue.put((None, error))
        else:
            self._queue.put((_END, None))

    def next(self):
        if self._closed.is_set():
            return _END
        found, error = self._queue.get()
        if error is not None or found is _END:
            self._queue.put((found, error))  # for the next call
        if error is not None:
            raise error
        return found

    def close(self):
        self._closed.set()
        while self._thread.is_alive():  # it may be waiting for room
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
