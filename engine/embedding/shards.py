"""Sharded tables: key k belongs to shard k mod count. Each shard is a process (or a VM in one) with a part of each
batch. All shards make the same calls in the same order, and exchange keys, rows and gradients in each."""

from vmhost.engine import _array as _a
from vmhost.engine.embedding.lookups import COMBINERS, TableGradient, keys_of_bags
from vmhost.engine.embedding.tables import EmbeddingVariable, table_rates
from vmhost.engine.grad.rows import RowGradient
from vmhost.engine.grad.trees import leaves, mapped


class Shards:
    """One shard's view of all shards: its `rank`, their `count`, and how they exchange arrays.

    exchange: a function `(what, parts)`, where parts[d] is a list of arrays for shard d. When all shards have called it
        with the same string `what`, it returns a list of what each of them sent to this one, ordered by rank."""

    def __init__(self, rank, count, exchange):
        self.rank, self.count, self.exchange = rank, count, exchange

    @classmethod
    def of(cls, host):
        """The shards of the process that this task's VM is in, by its granted functions `shard` and `exchange`
        (vmhost.training.shards)."""
        shard = host.shard()
        return cls(shard["rank"], shard["count"], lambda what, parts: host.exchange([what, parts]))

    def table(self, own):
        """The sharded table of which the EmbeddingVariable `own` holds this shard's keys."""
        return ShardedTable(own, self)

    def averaged(self, gradients):
        """The gradients of a loss that is the mean over all shards' parts of a batch (of equal size), from each shard's
        gradients for its part: arrays are summed in order of rank and divided by the count, so that all shards get
        identical numbers. Gradients of sharded tables are returned unchanged: `optimizer.update` averages them."""
        dense = [one for _, one in leaves(gradients) if not isinstance(one, (RowGradient, TableGradient))]
        rows = [one.combined() for _, one in leaves(gradients) if isinstance(one, RowGradient)]
        sent = [*dense, *(array for one in rows for array in (one.ids, one.rows))]
        received = self.exchange("averages gradients", [sent] * self.count)
        factor = 1 / self.count
        sums = []
        for i in range(len(dense)):
            total = _a.asarray(received[0][i])
            for arrays_of_shard in received[1:]:
                total = total + _a.asarray(arrays_of_shard[i])
            sums.append(total * factor)
        for i, one in enumerate(rows):
            first = len(dense) + 2 * i
            ids, values = ([_a.asarray(parts[first + k]) for parts in received] for k in (0, 1))
            sums.append(RowGradient(_a.concatenate(ids), _a.concatenate(values) * factor, one.shape))
        arrays, summed_rows = iter(sums[: len(dense)]), iter(sums[len(dense) :])

        def placed(one):
            return (
                one if isinstance(one, TableGradient) else next(summed_rows if isinstance(one, RowGradient) else arrays)
            )

        return mapped(placed, gradients)

    def of_first(self, tree):
        """Shard 0's tree of arrays (e.g. initial parameters), in every shard."""
        own = [one for _, one in leaves(tree)]
        received = self.exchange("takes shard 0's arrays", [own if self.rank == 0 else []] * self.count)[0]
        arrays = iter(received)
        return mapped(lambda _: _a.asarray(next(arrays)).copy(), tree)

    def wait(self, what="waits"):
        """Waits until all shards have called it."""
        self.exchange(what, [[]] * self.count)

    def by_owner(self, keys):
        """(for each shard the positions of its keys, all positions in that order)"""
        import vmhost.engine.numpy as np

        owners = keys % self.count
        positions = [np.nonzero(owners == shard)[0] for shard in range(self.count)]
        return positions, np.concatenate(positions)


class ShardedTable:
    """A table with rows in all shards. Layers, lookups and optimizers use it like an EmbeddingVariable; all shards must
    make each call, with their parts of a batch.

    Rows and steps are those of one process with the whole batch, the shards' parts one after the other. They are
    bit-identical if the gradients are equal and the number of shards, by which each gradient is divided, is a power of
    two."""

    sharded = writable = True

    def __init__(self, own, shards):
        self.own, self.shards = own, shards
        self.name, self.dim, self.optimizer, self.slots = own.name, own.dim, own.optimizer, own.slots
        self.anchor, self.quota = own.anchor, own.quota

    def lookup(self, ids):
        """The rows of `ids`: see EmbeddingVariable."""
        import vmhost.engine.numpy as np

        ids = _a.asarray(ids)
        return _fetch(self.shards, [self], [np.unique(_a.reshape(ids, (-1,)))])[0].lookup(ids)

    def step(self, ids, gradients, optimizer, global_step=None):
        """A gradient step for this shard's part of the ids: see EmbeddingVariable. Gradients are divided by the number
        of shards, like those of layers."""
        ids = _a.asarray(ids)
        rows = _a.asarray(gradients, "float32").reshape(len(ids), self.dim)
        weights = _a.zeros(len(ids), "float32") + 1
        _step(self.shards, [self], [(ids, weights, rows)], table_rates(self, optimizer, global_step))

    def rows_without_keys(self):
        return self.own.rows_without_keys()

    def statistics(self):
        """Of this shard's part."""
        return self.own.statistics()

    def __len__(self):
        """Number of keys with rows, in all shards."""
        counts = self.shards.exchange("counts rows", [[_a.asarray([len(self.own)])]] * self.shards.count)
        return sum(int(one[0][0]) for one in counts)

    def __repr__(self):
        return f"ShardedTable({self.name!r}, shard {self.shards.rank} of {self.shards.count})"

    @staticmethod
    def read(sets):
        """Tables that the engine can read the sets of bags from: sharded tables become small tables of the rows that
        are read."""
        import vmhost.engine.numpy as np

        tables, wanted = [], []
        for bags in sets:
            if not isinstance(bags.table, ShardedTable):
                continue
            keys = bags.ids if bags.weights is None else bags.ids[bags.weights > 0]
            keys = keys[keys >= 0]
            if bags.default_id >= 0:
                keys = np.concatenate([keys, np.asarray([bags.default_id])])
            tables.append(bags.table)
            wanted.append(np.unique(keys))
        found = iter(_fetch(tables[0].shards, tables, wanted))
        return [next(found) if isinstance(bags.table, ShardedTable) else bags.table for bags in sets]

    @staticmethod
    def update(gradients, rates):
        """A gradient step of sharded tables, given TableGradients of each."""
        tables, parts = [], []
        for one in gradients:
            for bags, dense in one.parts:
                keys, factors, bag_numbers = keys_of_bags(bags)
                order = _a.argsort(bag_numbers, -1, "stable")  # a bag's default takes the bag's position
                tables.append(one.table)
                parts.append((keys[order], factors[order], dense[bag_numbers[order]]))
        if tables:
            _step(tables[0].shards, tables, parts, rates)


def _fetch(shards, tables, wanted):
    """For each table a local one with the rows of the wanted keys, each key once."""
    import vmhost.engine.numpy as np

    names = ", ".join(one.name for one in tables)
    positions = [shards.by_owner(keys) for keys in wanted]
    requests = shards.exchange(
        f"looks up {names}",
        [[keys[own[shard]] for keys, (own, _) in zip(wanted, positions)] for shard in range(shards.count)],
    )
    replies = [[] for _ in range(shards.count)]
    for i, one in enumerate(tables):
        keys = [_a.asarray(request[i]) for request in requests]
        rows, begin = one.own.lookup(np.concatenate(keys)), 0
        for reply, asked in zip(replies, keys):
            reply.append(rows[begin : begin + len(asked)])
            begin += len(asked)
    received = shards.exchange(f"reads rows of {names}", replies)
    found = []
    for i, (one, keys, (_, order)) in enumerate(zip(tables, wanted, positions)):
        local = EmbeddingVariable(
            one.dim, optimizer="sgd", initializer=_a.zeros((1, one.dim), "float32"), name=one.name
        )
        keys, zeros = keys[order], _a.zeros(len(keys), "int64")
        rows = np.concatenate([_a.asarray(arrays[i]) for arrays in received])
        _a._embedding_put(local.handle, keys, zeros, zeros, rows, _a.zeros((len(keys), 0), "float32"))
        found.append(local)
    return found


def _step(shards, tables, parts, rates):
    """parts: for each table ids, the factor of each gradient, and gradients, one for each id."""
    factor = 1 / shards.count
    sent = [[] for _ in range(shards.count)]
    for ids, factors, rows in parts:
        rows = rows * factor
        for message, positions in zip(sent, shards.by_owner(ids)[0]):
            message += [ids[positions], factors[positions], rows[positions]]
    received = shards.exchange(f"makes a step of {', '.join(one.name for one in tables)}", sent)
    sets = []
    for i, one in enumerate(tables):
        for message in received:
            ids, factors, rows = (_a.asarray(array) for array in message[3 * i : 3 * i + 3])
            if len(ids):
                ends = _a.arange(len(ids) + 1)
                sets.append((one.own.handle, ids, ends, factors, -1, COMBINERS.index("sum"), rows))
    if sets:
        _a._embedding_update_bags(sets, rates)
