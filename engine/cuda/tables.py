"""Embedding tables in GPU memory, with the same rows and results as EmbeddingVariables in host memory."""

import itertools
import secrets

import vmhost.engine.numpy as np
from vmhost.engine.cuda.library import check, gpu, library
from vmhost.engine.cuda.network import write_bags
from vmhost.engine.embedding.tables import EmbeddingVariable

__all__ = ["CudaTable"]
_RATES = ("learning_rate", "eps", "beta1", "beta2", "l1", "l2", "beta", "updates", "step")  # as table_rates gives them


class CudaTable(EmbeddingVariable):
    """An EmbeddingVariable with its keys, rows and slots in GPU memory.

    dim, storage, filter: as for an EmbeddingVariable, as are the other arguments.
    device: "cuda", "cuda:NUMBER", or a Gpu (vmhost.engine.cuda.gpu).

    Lookups, gradient steps, saves and restores give the results of the host's tables; gradient steps to the bit. A
    counting Bloom filter and SSDStorage are refused, and a VM cannot be granted such a table. All tables of one lookup
    call must be on one GPU. A snapshot is copied to host memory when it begins; training waits for that copy.
    DeviceError: no GPU, or no library. MemoryError: the quota, or the GPU's memory, is exhausted."""

    def __init__(self, dim, *, device="cuda", storage=None, filter=None, **options):
        from vmhost.engine.embedding.tables import CBFFilter

        name = options.get("name", "table")
        if storage is not None:
            raise ValueError(f"{name}: storage: tables in a GPU's memory have no SSDStorage; leave device= out")
        if isinstance(filter, CBFFilter):
            raise ValueError(f"{name}: filter: tables in a GPU's memory count exactly: CounterFilter, or leave device=")
        self.device = device if hasattr(device, "handle") else gpu(device)
        self.natives = _Natives(self.device)
        super().__init__(dim, filter=filter, **options)


class _Table:
    """A vme_cuda_table, its options and its GPU."""

    def __init__(self, device, dim, optimizer, defaults, *, no_permission=0.0, quota=0, filter_freq=0, slot_initial=0.0,
                 steps_to_live=0, l2_weight_threshold=0.0):  # fmt: skip
        ffi, lib = library()
        self.device, self.dim, self.optimizer = device, dim, optimizer
        defaults = np.ascontiguousarray(defaults)
        if not 1 <= dim <= 65536:
            raise ValueError(f"dim: expected 1 to 65536, got {dim}")
        rows = ffi.from_buffer("float[]", defaults)
        options = ffi.new("vme_cuda_table_options *")
        options.dim, options.optimizer = dim, optimizer
        options.filter_freq, options.steps_to_live = filter_freq, steps_to_live
        options.no_permission, options.slot_initial = no_permission, slot_initial
        options.l2_weight_threshold, options.quota_bytes = l2_weight_threshold, quota
        options.default_rows, options.defaults = len(defaults), rows
        options.seed = secrets.randbits(64)
        out = ffi.new("vme_cuda_table **")
        check(lib.vme_cuda_table_new(device.handle, options, out))
        self.handle = ffi.gc(out[0], lib.vme_cuda_table_unref)

    @property
    def slots(self):
        return (0, 1, 2, 2)[self.optimizer]


class _Snapshot:
    def __init__(self, table, handle):
        self.table, self.handle = table, handle


class _Natives:
    """The functions of `vmhost.engine._array` for tables, on a GPU."""

    def __init__(self, device):
        self._device = device
        self._ffi, self._lib = library()

    def _embedding_new(self, dim, kind, defaults, **options):
        return _Table(self._device, dim, kind, defaults, **options)

    def _embedding_statistics(self, table):
        raw = self._ffi.new("vme_cuda_table_facts *")
        self._lib.vme_cuda_table_facts_of(table.handle, raw)
        return {
            "dim": table.dim,
            "optimizer": table.optimizer,
            "slots": table.slots,
            "trains": True,
            "rows": raw.rows,
            "waiting": raw.waiting,
            "changed": raw.changed,
            "bytes": raw.bytes,
            "step": raw.step,
            "disk_rows": 0,
            "disk_bytes": 0,
            "memory_hits": 0,
            "disk_hits": 0,
        }

    def _embedding_lookup(self, table, ids):
        if ids.dtype.kind not in "iu":
            raise TypeError(f"ids: expected whole numbers, got {ids.dtype}")
        ids = np.ascontiguousarray(ids.astype("int64"))
        out = np.empty((*ids.shape, table.dim), "float32")
        check(self._lib.vme_cuda_table_lookup(table.handle, ids.size, self._int64(ids), self._float(out)))
        return out

    def _embedding_update(self, table, rates, ids, gradients):
        ids = np.ascontiguousarray(ids.astype("int64"))
        gradients = np.ascontiguousarray(gradients)
        if gradients.dtype != np.float32 or gradients.shape != (*ids.shape, table.dim):
            raise ValueError(
                f"gradients: expected float32 of shape {(*ids.shape, table.dim)}, got {gradients.dtype} of"
                f" {gradients.shape}"
            )
        check(
            self._lib.vme_cuda_table_update(
                table.handle, self._rates(rates), ids.size, self._int64(ids), self._float(gradients)
            )
        )

    def _sets(self, sets):
        """(vme_cuda_bags of each, number of bags, objects that must stay alive)."""
        records, held, counts, known = self._ffi.new("vme_cuda_bags[]", max(len(sets), 1)), [], set(), {}
        for one, to in zip(sets, records):
            table, ids, offsets, weights, default_id, combiner = one[:6]
            if not isinstance(table, _Table):
                raise ValueError("tables: all tables of one lookup lie on the same GPU, or all in the host's memory")
            ids = ids if ids.dtype == np.int64 else ids.astype("int64")
            offsets = offsets if offsets.dtype == np.int64 else offsets.astype("int64")
            write_bags(self._ffi, to, table.handle, ids, offsets, weights, held, known)
            to.default_id, to.combiner = default_id, combiner
            counts.add(len(offsets) - 1)
        if len(counts) != 1 or min(counts) < 0:
            raise ValueError("offsets: expected as many bags of each table, and one offset more than bags")
        return records, counts.pop(), held

    def _embedding_bags(self, sets, apart=False):
        records, bags, held = self._sets(sets)
        out = np.empty((bags, sum(one[0].dim for one in sets)), "float32")
        numbers, column = self._float(out), 0
        for one, to in zip(sets, records):
            to.dense, to.step = numbers + column, out.shape[1]
            column += one[0].dim
        check(self._lib.vme_cuda_lookup_bags(len(sets), bags, records))
        if not apart:
            return out
        ends = list(itertools.accumulate(one[0].dim for one in sets))
        return [out[:, end - one[0].dim : end] for one, end in zip(sets, ends)]

    def _embedding_update_bags(self, sets, rates):
        records, bags, held = self._sets(sets)
        for one, to in zip(sets, records):
            gradient = np.ascontiguousarray(one[6])
            if gradient.dtype != np.float32 or gradient.shape != (bags, one[0].dim):
                raise ValueError(
                    f"gradient: expected float32 of shape {(bags, one[0].dim)}, got {gradient.dtype} of"
                    f" {gradient.shape}"
                )
            held.append(gradient)
            to.dense, to.step = self._float(gradient), one[0].dim
        check(self._lib.vme_cuda_update_bags(len(sets), bags, records, self._rates(rates)))

    def _embedding_evict(self, table, step):
        count = self._ffi.new("int64_t *")
        check(self._lib.vme_cuda_table_evict(table.handle, step, count))
        return count[0]

    def _embedding_snapshot(self, tables, incremental):
        handles = self._ffi.new("vme_cuda_table *[]", [one.handle for one in tables])
        out = self._ffi.new("vme_cuda_snapshot *[]", max(len(tables), 1))
        check(self._lib.vme_cuda_snapshot_new(len(tables), handles, incremental, out))
        return [_Snapshot(table, handle) for table, handle in zip(tables, out)]

    def _embedding_snapshot_end(self, snapshot, saved):
        handle, snapshot.handle = snapshot.handle, self._ffi.NULL
        self._lib.vme_cuda_snapshot_end(handle, saved)

    def _embedding_snapshot_rows(self, snapshot):
        return self._lib.vme_cuda_snapshot_rows(snapshot.handle)

    def _embedding_snapshot_read(self, snapshot, room):
        table = snapshot.table
        notes = [np.empty((room,), "int64") for _ in range(3)]
        values = np.empty((room, table.dim), "float32")
        slots = np.empty((room, table.dim * table.slots), "float32")
        read = self._ffi.new("int64_t *")
        slots_pointer = self._float(slots) if table.slots else self._ffi.NULL
        columns = [self._int64(one) for one in notes]
        check(
            self._lib.vme_cuda_snapshot_read(snapshot.handle, room, *columns, self._float(values), slots_pointer, read)
        )
        return read[0], *notes, values, slots

    def _embedding_snapshot_waiting(self, snapshot, room):
        notes = [np.empty((room,), "int64") for _ in range(3)]
        read = self._ffi.new("int64_t *")
        check(self._lib.vme_cuda_snapshot_waiting(snapshot.handle, room, *map(self._int64, notes), read))
        return read[0], *notes

    def _embedding_snapshot_bloom(self, snapshot):
        return np.zeros((0,), "uint16")

    def _embedding_put(self, table, keys, freqs, versions, values, slots):
        if keys is None:
            raise ValueError("the save has the counts of a Bloom filter: restore it to a table in the host's memory")
        notes = [np.ascontiguousarray(one.astype("int64")) for one in (keys, freqs, versions)]
        columns = [self._int64(one) for one in notes]
        if values is None:
            check(self._lib.vme_cuda_table_put_waiting(table.handle, len(keys), *columns))
            return
        values, slots = np.ascontiguousarray(values), np.ascontiguousarray(slots)
        if values.shape != (len(keys), table.dim) or slots.shape != (len(keys), table.dim * table.slots):
            raise ValueError(
                f"values and slots: expected {len(keys)} rows of {table.dim} and {table.dim * table.slots} numbers, got"
                f" {values.shape} and {slots.shape}"
            )
        slots_pointer = self._float(slots) if table.slots else self._ffi.NULL
        check(self._lib.vme_cuda_table_put(table.handle, len(keys), *columns, self._float(values), slots_pointer))

    def _rates(self, rates):
        record = self._ffi.new("vme_cuda_rates *")
        for name, number in zip(_RATES, rates):
            setattr(record, name, int(number) if name in ("updates", "step") else float(number))
        return record

    def _int64(self, array):
        """A pointer to the elements; empty arrays have none."""
        return self._ffi.from_buffer("int64_t[]", array) if array.size else self._ffi.new("int64_t[]", 1)

    def _float(self, array):
        return self._ffi.from_buffer("float[]", array) if array.size else self._ffi.new("float[]", 1)
