"""Functions for the processes of test_shards.py. Each imports this module anew, so it imports little: pytest alone
would take as long as all else that such a process does."""

import os
import signal

import numpy

import vmhost
import vmhost.engine.numpy as np
from vmhost.engine import nn, optim
from vmhost.engine.embedding import CheckpointError, CounterFilter, EmbeddingVariable, Ragged

DIM, BATCH, STEPS, KEYS = 4, 32, 6, 200


def new_table(name="items", **options):
    return EmbeddingVariable(DIM, optimizer="adagrad", initializer=0.1, seed=5, name=name, **options)


def batches(rank=0, count=1):
    """The same examples for one process and for parts of several: single keys, ragged bags with weights, labels."""
    random = numpy.random.default_rng(2)
    for _ in range(STEPS):
        single = random.integers(0, KEYS, BATCH) - 3  # some are left out
        bags = [list(random.integers(-1, 12, random.integers(0, 5))) for _ in range(BATCH)]
        weights = random.random(sum(map(len, bags))).astype("float32")
        labels = random.integers(0, 2, BATCH).astype("float32")
        ends = numpy.cumsum([0, *map(len, bags)])
        first, last = BATCH * rank // count, BATCH * (rank + 1) // count
        some = weights[ends[first] : ends[last]]
        yield (
            np.asarray(single[first:last]),
            Ragged.of(bags[first:last]),
            np.asarray(some),
            np.asarray(labels[first:last]),
        )


class Linear(nn.Module):
    """Rows alone: gradients of a loss depend on nothing that several processes would add up."""

    def __init__(self, items, users):
        super().__init__()
        self.items, self.users = nn.SparseEmbedding(items, "sum"), nn.SparseEmbedding(users, "mean", default_id=7)

    def __call__(self, single, bags, weights):
        return np.sum(self.items(single) + self.users(bags, weights), axis=1)


class Deep(Linear):
    def __init__(self, items, users):
        super().__init__(items, users)
        nn.seed(1)
        self.deep = nn.Sequential(nn.Linear(DIM, 8), nn.ReLU(), nn.Linear(8, 1))

    def __call__(self, single, bags, weights):
        return self.deep(self.items(single) + self.users(bags, weights))[:, 0]


def trained(kind, shard, folder=None, tables=None):
    """Losses, all rows, and the network's arrays after some steps, of one process (shard None) or of a shard."""
    own = tables or [new_table(), new_table("users", filter=CounterFilter(2))]
    used = own if shard is None else [shard.table(one) for one in own]
    model, optimizer, losses = kind(*used), optim.Adagrad(0.1, initial=0.1), []
    own_part = () if shard is None else (shard.rank, shard.count)
    step = nn.value_and_grad(model, lambda s, b, w, y: nn.binary_cross_entropy(model(s, b, w), y))
    for single, bags, weights, labels in batches(*own_part):
        loss, gradients = step(single, bags, weights, labels)
        optimizer.update(model, gradients if shard is None else shard.averaged(gradients))
        losses.append(float(loss))
    if folder is not None:
        shard.save(used, folder)
    rows = [numpy.asarray(one.lookup(np.arange(-5, KEYS))) for one in used]
    arrays = [numpy.asarray(one) for one in ([] if kind is Linear else [model.deep.layers[0].weight])]
    return losses, rows, arrays, [len(one) for one in used]


def trained_shard(shard, kind, folder=None):
    return trained(kind, shard, folder)


def restored(shard, folder):
    own = [new_table(), new_table("users", filter=CounterFilter(2))]
    step = shard.restore(own, folder)
    used = [shard.table(one) for one in own]
    rows = [numpy.asarray(one.lookup(np.arange(-5, KEYS))) for one in used]
    incremental = None
    try:
        shard.save(used, folder, incremental=True)
        incremental = True
    except CheckpointError:
        incremental = False
    return step, rows, [len(one) for one in own], incremental


def ends_badly(shard, how):
    table = shard.table(new_table())
    table.lookup(np.arange(10))
    if shard.rank == 1:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "raises":
            raise KeyError("no such column")
        if how == "exits":
            os._exit(3)
        if how == "returns":
            return 1
        if how == "differs":
            table.step(np.arange(3), np.zeros((3, DIM), "float32"), optim.Adagrad(0.1))
    table.lookup(np.arange(10))
    table.lookup(np.arange(10))
    return 0


def waits_for_ever(shard):
    table = shard.table(new_table())
    table.lookup(np.arange(10))
    os.write(1, b"here\n")  # in one piece: two processes write
    while True:
        table.lookup(np.arange(10))


def exchanges(shard, sizes):
    for size in sizes:
        sent = [[numpy.arange(size) * (to + 1) + shard.rank, numpy.zeros((2, 0)), numpy.float32(3)] for to in range(3)]
        for by, (numbers, empty, one) in enumerate(shard.exchange("sends", sent)):
            assert (numbers == numpy.arange(size) * (shard.rank + 1) + by).all()
            assert empty.shape == (2, 0) and one.shape == () and one == 3
    return True


TASK = """
import vmhost.engine.numpy as np
from vmhost.engine import embedding, optim
from vmhost.guest import host

def run(keys):
    shards = embedding.Shards.of(host)
    items = shards.table(embedding.table("items"))
    items.step(keys, np.ones((len(keys), items.dim), "float32"), optim.Adagrad(1.0), 1)
    return items.lookup(np.arange(100))
"""


def in_a_vm(shard):
    from tests.hosts import bundle  # with the compiler of bundles: of no use to the others

    own = EmbeddingVariable(DIM, initializer=np.zeros((1, DIM), "float32"), quota=1 << 26, name="items")
    with vmhost.Host(allow_unsigned=True, tables={"items": own}, functions=shard.functions) as host:
        permissions = {"tables": ["items:write"], "host": ["shard", "exchange"]}
        task = host.load(bundle(TASK, permissions=permissions))
        keys = numpy.arange(50 * shard.rank, 50 * shard.rank + 50)
        return numpy.asarray(task(keys)), len(own)
