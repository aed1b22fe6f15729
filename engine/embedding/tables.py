"""EmbeddingVariable: a table of rows by keys, its options, and access to the host's tables from a task."""

import os
import weakref
from dataclasses import dataclass
from typing import NamedTuple

from vmhost.engine import _array as _a
from vmhost.engine.embedding import save_folders

KINDS = ("sgd", "adagrad", "adam", "ftrl")  # in the order of vme_embedding.h
_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class CounterFilter:
    """Admits a key when gradient steps have counted it `filter_freq` times; each waiting key takes 16 bytes."""

    filter_freq: int


@dataclass(frozen=True, slots=True)
class CBFFilter:
    """The same with a counting Bloom filter for `max_element_size` keys, which admits some keys too early: at most this
    share of them. Waiting keys take no memory of their own."""

    filter_freq: int
    max_element_size: int
    false_positive_probability: float = 0.01


@dataclass(frozen=True, slots=True)
class GlobalStepEvict:
    """In a full save, removes keys whose last gradient step is more than `steps_to_live` steps ago."""

    steps_to_live: int


@dataclass(frozen=True, slots=True)
class L2WeightEvict:
    """In a full save, removes keys for which half the squared norm of their weights is below the threshold."""

    l2_weight_threshold: float


@dataclass(frozen=True, slots=True)
class SSDStorage:
    """Keeps rows that do not fit in `memory` bytes in a file of at most `quota` bytes.

    folder: where the file is created; it is created too if needed. The file is unnamed and disappears with its process;
        only saves persist.
    cache: which rows stay in memory: "lru" the most recently used, "lfu" the most frequently used."""

    folder: str
    memory: int
    quota: int
    cache: str = "lfu"


CACHES = ("lru", "lfu")  # in the order of vme_embedding.h


class Statistics(NamedTuple):
    """Of a table: keys with rows, waiting keys, rows for the next incremental save, bytes of memory, the highest global
    step so far; with SSDStorage also the number of rows on disk, bytes of its file, and the numbers of keys that
    lookups found in memory and on disk."""

    rows: int
    waiting: int
    changed: int
    bytes: int
    step: int
    disk_rows: int = 0
    disk_bytes: int = 0
    memory_hits: int = 0
    disk_hits: int = 0


class EmbeddingVariable:
    """A table of float32 rows by int64 keys.

    dim: numbers of a row.
    default_value_dim: number of initial rows.
    optimizer: how gradient steps change rows, which determines the slots of rows: "sgd", "adagrad", "adam", "ftrl", or
        an optimizer of `vmhost.engine.optim` of that kind (Adagrad's `initial` is the initial value of its slots).
    initializer: the initial rows, [default_value_dim, dim], of which key k gets row k mod default_value_dim; or the
        standard deviation of normally distributed numbers (by default dim ** -0.5), drawn with `seed`.
    default_value_no_permission: the value of each number of a key that waits for admission.
    filter: CounterFilter, CBFFilter, or None: keys are admitted by their first gradient step.
    evict: GlobalStepEvict, L2WeightEvict, a tuple of both, or None.
    quota: maximum bytes of the table; a gradient step that needs more raises MemoryError. None: no limit, which a host
        refuses.
    storage: SSDStorage, or None: all rows are in memory. It cannot be combined with CBFFilter. OSError: a problem with
        its folder or the disk, also in calls that read or train rows.
    seed: of initial rows.
    name: in statistics, saves, and messages.

    Lookups change nothing; gradient steps count keys, admit them, and create their rows. Any number of threads may do
    both at once. The table is charged to its creator.
    """

    sharded = False  # see ShardedTable
    natives = _a  # the implementation of table functions; see vmhost.engine.cuda.tables

    def __init__(
        self,
        dim,
        *,
        optimizer="adagrad",
        initializer=None,
        default_value_dim=4096,
        default_value_no_permission=0.0,
        filter=None,
        evict=None,
        quota=None,
        storage=None,
        seed=0,
        name="table",
    ):
        self.name, self.quota = name, quota
        self._unwritten = None if filter is None else default_value_no_permission
        self._first = initializer, default_value_dim, seed
        kind = optimizer if isinstance(optimizer, str) else getattr(optimizer, "table_kind", None)
        if kind not in KINDS:
            raise ValueError(f"{name}: optimizer: expected one of {', '.join(KINDS)}, got {optimizer!r}")
        options = {"slot_initial": getattr(optimizer, "initial", 0.0)} if kind == "adagrad" else {}
        options |= _filter_options(name, filter) | _evict_options(name, evict) | _storage_options(name, storage)
        for what, number in (("dim", dim), ("default_value_dim", default_value_dim), ("quota", quota or 0)):
            if type(number) is not int or not (what == "quota" or number > 0) or not 0 <= number <= _INT64_MAX:
                raise ValueError(f"{name}: {what}: expected a whole number above 0, got {number!r}")
        try:
            self._table = self.natives._embedding_new(
                dim,
                KINDS.index(kind),
                _first_rows(name, initializer, default_value_dim, dim, seed),
                no_permission=default_value_no_permission,
                quota=quota or 0,
                **options,
            )
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        self._describe()

    @classmethod
    def _opened(cls, name, handle):
        """One of the host's tables, in a VM."""
        self = object.__new__(cls)
        self.name, self.quota, self._table = name, None, handle
        self._describe()
        return self

    def _describe(self):
        found = self.natives._embedding_statistics(self._table)
        self.dim, self.optimizer = found["dim"], KINDS[found["optimizer"]]
        self.slots, self.writable = found["slots"], found["trains"]
        # gradients are taken with respect to it; it has no elements
        self.anchor = _a.zeros((0, self.dim), "float32")
        self.saved = None  # (folder, name) of the save that the next increment follows; set by checkpoints.py

    @property
    def handle(self):
        """The engine's handle of the table."""
        return self._table

    def lookup(self, ids):
        """The rows of `ids`, an array of integers: an array of its shape followed by `dim`."""
        return self.natives._embedding_lookup(self._table, _a.asarray(ids))

    def rows_without_keys(self):
        """The rows read for keys without a row, [n, dim]: key k reads row k mod n."""
        initializer, rows, seed = self._first
        if self._unwritten is not None:
            return _a.zeros((1, self.dim), "float32") + self._unwritten
        return _first_rows(self.name, initializer, rows, self.dim, seed)

    def step(self, ids, gradients, optimizer, global_step=None):
        """A gradient step: `gradients[i]` is the gradient of the row of `ids[i]`; gradients of equal keys are summed.

        optimizer: of `vmhost.engine.optim`, of the table's kind; its learning rate and other parameters apply.
        global_step: the new version of the rows; by default the optimizer's count of updates.
        PermissionError: the table was granted for reading. MemoryError: its quota is reached."""
        rates = table_rates(self, optimizer, global_step)
        self.natives._embedding_update(self._table, rates, _a.asarray(ids), _a.asarray(gradients))

    def statistics(self):
        found = self.natives._embedding_statistics(self._table)
        return Statistics(*(found[field] for field in Statistics._fields))

    def __len__(self):
        """Number of keys with rows."""
        return self.statistics().rows

    def __repr__(self):
        return f"EmbeddingVariable({self.name!r}, dim={self.dim}, optimizer={self.optimizer!r}, rows={len(self)})"


def table(name):
    """The host's table `name`, in a task that lists it under permissions.tables (task.yaml). LookupError lists the
    granted tables."""
    granted = _a._embedding_names()
    if granted is None:
        raise LookupError(f"{name!r}: tables are granted to tasks in VMs; outside, make an EmbeddingVariable")
    if not any(one.rpartition(":")[0] == name for one in granted):
        raise LookupError(
            f"this task was granted no table {name!r}, but {', '.join(granted) or 'none'} (task.yaml,"
            " permissions.tables)"
        )
    return EmbeddingVariable._opened(name, _a._embedding_open(name))


def table_rates(variable, optimizer, global_step=None):
    """The optimizer's parameters in the engine's form, for a step of the table."""
    kind = getattr(optimizer, "table_kind", None)
    if kind != variable.optimizer:
        raise ValueError(
            f"{variable.name}: its rows have the slots of {variable.optimizer}, the optimizer is"
            f" {type(optimizer).__name__}{'' if kind else ', which tables do not support'}"
        )
    step = optimizer.state["step"]
    version = _version(variable, optimizer) if global_step is None else global_step
    return optimizer.table_rates() + (max(step, 1), version)


_ahead = weakref.WeakKeyDictionary()  # by optimizer: of each table that it trains, how far the table was ahead of it


def _version(variable, optimizer):
    """The optimizer's count of updates. If a table is further, as one that an earlier optimizer has trained, versions
    go on from there."""
    step, ahead = optimizer.state["step"], _ahead.setdefault(optimizer, weakref.WeakKeyDictionary())
    if variable not in ahead:
        ahead[variable] = variable.statistics().step - (step - 1)
    return step + max(0, *ahead.values())


def _filter_options(name, given):
    if given is None:
        return {}
    if isinstance(given, CounterFilter):
        return {"filter_freq": given.filter_freq}
    if isinstance(given, CBFFilter):
        if given.max_element_size < 1:
            raise ValueError(f"{name}: max_element_size: expected 1 or more, got {given.max_element_size}")
        return {
            "filter_freq": given.filter_freq,
            "bloom_elements": given.max_element_size,
            "bloom_error": given.false_positive_probability,
        }
    raise ValueError(f"{name}: filter: expected CounterFilter, CBFFilter or None, got {given!r}")


def _evict_options(name, given):
    options = {}
    for one in given if isinstance(given, (tuple, list)) else () if given is None else (given,):
        if isinstance(one, GlobalStepEvict):
            options["steps_to_live"] = one.steps_to_live
        elif isinstance(one, L2WeightEvict):
            options["l2_weight_threshold"] = one.l2_weight_threshold
        else:
            raise ValueError(f"{name}: evict: expected GlobalStepEvict, L2WeightEvict or both, got {one!r}")
    return options


def _storage_options(name, given):
    if given is None:
        return {}
    if not isinstance(given, SSDStorage):
        raise ValueError(f"{name}: storage: expected SSDStorage or None, got {given!r}")
    if given.cache not in CACHES:
        raise ValueError(f"{name}: storage: cache: expected one of {', '.join(CACHES)}, got {given.cache!r}")
    for what in ("memory", "quota"):
        number = getattr(given, what)
        if type(number) is not int or not 0 < number <= _INT64_MAX:
            raise ValueError(f"{name}: storage: {what}: expected a whole number above 0, got {number!r}")
    folder = save_folders.absolute(given.folder)
    if not os.path.isdir(folder):
        os.makedirs(folder)
    return {
        "folder": folder,
        "memory": given.memory,
        "disk_quota": given.quota,
        "cache": CACHES.index(given.cache),
    }


def _first_rows(name, given, rows, dim, seed):
    if given is None or isinstance(given, (int, float)):
        from vmhost.engine.numpy.random import default_rng

        scale = dim**-0.5 if given is None else given
        return (default_rng(seed).standard_normal((rows, dim)) * scale).astype("float32")
    given = _a.asarray(given)
    if given.ndim != 2 or given.shape[1] != dim or len(given) < 1:
        raise ValueError(f"{name}: initializer: expected rows of {dim} numbers, got shape {given.shape}")
    return given.astype("float32")
