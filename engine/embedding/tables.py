"""EmbeddingVariable: a table of rows by keys, its options, and how a task gets one of the host's."""

import os
from dataclasses import dataclass
from typing import NamedTuple

from vmhost.engine import _array as _a

KINDS = ("sgd", "adagrad", "adam", "ftrl")  # in the order of vme_embedding.h
_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class CounterFilter:
    """Admits a key when gradient steps have counted it `filter_freq` times; each key that waits takes 16 bytes."""

    filter_freq: int


@dataclass(frozen=True, slots=True)
class CBFFilter:
    """The same by a counting Bloom filter for `max_element_size` keys, which admits some too early: at most this
    share of them. Keys that wait take no memory of their own."""

    filter_freq: int
    max_element_size: int
    false_positive_probability: float = 0.01


@dataclass(frozen=True, slots=True)
class GlobalStepEvict:
    """At a full save, removes keys whose last gradient step is more than `steps_to_live` steps ago."""

    steps_to_live: int


@dataclass(frozen=True, slots=True)
class L2WeightEvict:
    """At a full save, removes keys of which half the squared norm of their weights is below the threshold."""

    l2_weight_threshold: float


@dataclass(frozen=True, slots=True)
class SSDStorage:
    """Rows that do not fit into `memory` bytes lie in a file of at most `quota` bytes.

    folder: where that file is made; the folder too, if need be. The file has no name and ends with its process: what
        survives is what was saved.
    cache: which rows stay in memory: "lru" those that were used last, "lfu" those that are used most."""

    folder: str
    memory: int
    quota: int
    cache: str = "lfu"


CACHES = ("lru", "lfu")  # in the order of vme_embedding.h


class Statistics(NamedTuple):
    """Of a table: keys that have rows, keys that are counted and wait, rows for the next incremental save, bytes of
    memory, the highest global step so far; with SSDStorage also how many of the rows are on disk, bytes of its file,
    and keys that lookups found in memory and on disk."""

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
    """A table of float32 rows of `dim` numbers by int64 keys.

    optimizer: how gradient steps change rows, and so which slots rows have: "sgd", "adagrad", "adam", "ftrl", or an
        optimizer of `vmhost.engine.optim` of that kind (Adagrad's `initial` is what its slots begin with).
    initializer: the rows that keys begin with, [default_value_dim, dim], of which key k gets row k mod
        default_value_dim; or the standard deviation of normal numbers (dim ** -0.5), drawn by `seed`.
    default_value_no_permission: what each number of a key reads that waits to be admitted.
    filter: CounterFilter, CBFFilter, or None: keys are admitted by their first gradient step.
    evict: GlobalStepEvict, L2WeightEvict, a tuple of both, or None.
    quota: the most bytes that the table may take; a gradient step that needs more is a MemoryError. None: no bound,
        which a host refuses.
    storage: SSDStorage, or None: all rows are in memory. It does not go with CBFFilter. OSError: its folder, or the
        disk, also of calls that read or train rows.

    Lookups change nothing; gradient steps count keys, admit them, and make their rows. Any number of threads may do
    both at once. Who makes a table pays for it.
    """

    sharded = False  # see ShardedTable
    natives = _a  # what has the functions of tables; see vmhost.engine.cuda.tables

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
        """One of the host's, in a VM."""
        self = object.__new__(cls)
        self.name, self.quota, self._table = name, None, handle
        self._describe()
        return self

    def _describe(self):
        told = self.natives._embedding_statistics(self._table)
        self.dim, self.optimizer = told["dim"], KINDS[told["optimizer"]]
        self.slots, self.writable = told["slots"], told["trains"]
        # what gradients are asked of: no numbers of its own
        self.anchor = _a.zeros((0, self.dim), "float32")
        self.saved = None  # (folder, name) of the save that it continues, by checkpoints.py

    @property
    def handle(self):
        """What the engine knows the table by."""
        return self._table

    def lookup(self, ids):
        """The rows of `ids`, an array of whole numbers: an array of its shape and `dim` more."""
        return self.natives._embedding_lookup(self._table, _a.asarray(ids))

    def rows_without_keys(self):
        """What keys without a row read, [n, dim]: key k reads row k mod n."""
        initializer, rows, seed = self._first
        if self._unwritten is not None:
            return _a.zeros((1, self.dim), "float32") + self._unwritten
        return _first_rows(self.name, initializer, rows, self.dim, seed)

    def step(self, ids, gradients, optimizer, global_step=None):
        """A gradient step: `gradients[i]` is that of the row of `ids[i]`; those of equal keys are added up.

        optimizer: of `vmhost.engine.optim`, of the table's kind; its learning rate and other numbers count.
        global_step: what a row's version becomes; the optimizer's own count of updates where it is not said.
        PermissionError: the table was granted for reading. MemoryError: its quota is reached."""
        rates = table_rates(self, optimizer, global_step)
        self.natives._embedding_update(self._table, rates, _a.asarray(ids), _a.asarray(gradients))

    def statistics(self):
        told = self.natives._embedding_statistics(self._table)
        return Statistics(*(told[field] for field in Statistics._fields))

    def __len__(self):
        """Keys that have rows."""
        return self.statistics().rows

    def __repr__(self):
        return f"EmbeddingVariable({self.name!r}, dim={self.dim}, optimizer={self.optimizer!r}, rows={len(self)})"


def table(name):
    """The host's table `name`, in a task that names it under permissions.tables (task.yaml). LookupError lists those
    that were granted."""
    granted = _a._embedding_names()
    if granted is None:
        raise LookupError(f"{name!r}: tables are granted to tasks in VMs; outside, make an EmbeddingVariable")
    if not any(one.rpartition(":")[0] == name for one in granted):
        raise LookupError(
            f"this task was granted no table {name!r}, but {', '.join(granted) or 'none'} (task.yaml,"
            " permissions.tables)"
        )
    return EmbeddingVariable._opened(name, _a._embedding_open(name))


def table_rates(of, optimizer, global_step=None):
    """What the engine is told of the optimizer for a step of the table."""
    kind = getattr(optimizer, "table_kind", None)
    if kind != of.optimizer:
        raise ValueError(
            f"{of.name}: its rows have the slots of {of.optimizer}, the optimizer is {type(optimizer).__name__}"
            f"{'' if kind else ', which tables do not know'}"
        )
    step = optimizer.state["step"]
    return optimizer.table_rates() + (max(step, 1), step if global_step is None else global_step)


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
    folder = os.path.abspath(os.fspath(given.folder))
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
