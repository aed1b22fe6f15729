"""Training in several processes: equal to one process, saves of all, shards that end, tasks in VMs."""

import os
import signal
import subprocess
import sys

import numpy
import pytest

import vmhost
import vmhost.engine.numpy as np
from tests.hosts import bundle
from vmhost.engine import nn, optim
from vmhost.engine.embedding import CheckpointError, CounterFilter, EmbeddingVariable, Ragged
from vmhost.training import shards
from vmhost.training.errors import ShardError
from vmhost.training.exchange import BOX

DIM, BATCH, STEPS, KEYS = 4, 32, 6, 200


def made(name="items", **options):
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
    own = tables or [made(), made("users", filter=CounterFilter(2))]
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


def sharded(shard, kind, folder=None):
    return trained(kind, shard, folder)


@pytest.mark.parametrize("count", [2, 4])
def test_rows_are_those_of_one_process_bit_by_bit(count):
    one, several = trained(Linear, None), shards.run(sharded, count, Linear)
    for losses, rows, _, counts in several:
        assert counts == one[3]
        assert all((mine == other).all() for mine, other in zip(rows, one[1]))
    assert numpy.mean([losses for losses, *_ in several], axis=0) == pytest.approx(one[0], rel=1e-6)


def test_networks_are_equal_in_all_shards_and_near_that_of_one_process():
    one, several = trained(Deep, None), shards.run(sharded, 2, Deep)
    assert (several[0][2][0] == several[1][2][0]).all()
    assert several[0][2][0] == pytest.approx(one[2][0], rel=1e-5, abs=1e-7)
    for mine, other in zip(several[0][1], one[1]):
        assert mine == pytest.approx(other, rel=1e-4, abs=1e-6)


def restored(shard, folder):
    own = [made(), made("users", filter=CounterFilter(2))]
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


def test_a_save_of_shards_is_read_by_any_count_of_them(tmp_path):
    _, rows, _, _ = shards.run(sharded, 2, Linear, tmp_path)[0]
    for count in (3, 1, 2):
        found = shards.run(restored, count, tmp_path)
        assert all(step == STEPS and incremental == (count == 2) for step, _, _, incremental in found)
        for _, mine, _, _ in found:
            assert all((one == other).all() for one, other in zip(mine, rows))
    alone = [made(), made("users", filter=CounterFilter(2))]
    assert shards.restore(alone, tmp_path) == STEPS
    assert all((numpy.asarray(one.lookup(np.arange(-5, KEYS))) == other).all() for one, other in zip(alone, rows))
    with pytest.raises(CheckpointError, match="there is no save of shards"):
        shards.restore([made()], tmp_path / "none")


def ends_badly(shard, how):
    table = shard.table(made())
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


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("killed", "^shard 1 of 3 was killed by SIGKILL$"),
        ("raises", "(?s)^shard 1 of 3: Traceback.*KeyError: 'no such column'$"),
        ("exits", "^shard 1 of 3 ended with exit code 3$"),
        ("returns", "^shard 1 of 3 returned while shard [02] waits for it: all shards make the same calls"),
        ("differs", "^shard [012] of 3: shard .* makes another call: all shards make the same calls in the same order"),
    ],
)
def test_a_shard_that_ends_ends_the_others_with_one_error(how, said):
    with pytest.raises(ShardError, match=said):
        shards.run(ends_badly, 3, how)


def waits_for_ever(shard):
    table = shard.table(made())
    table.lookup(np.arange(10))
    os.write(1, b"here\n")  # in one piece: two processes write
    while True:
        table.lookup(np.arange(10))


def test_shards_end_with_the_process_that_began_them(tmp_path):
    script = tmp_path / "begin.py"
    script.write_text("""
from tests.training import test_shards
from vmhost.training import shards
if __name__ == "__main__":
    shards.run(test_shards.waits_for_ever, 2)
""")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen([sys.executable, script], env=environment, stdout=subprocess.PIPE, text=True)
    with process.stdout:
        assert [process.stdout.readline() for _ in range(2)] == ["here\n"] * 2
        process.kill()
        process.wait()
        assert process.stdout.read() == "", "its end comes when all that could write there are gone"


def exchanges(shard, sizes):
    for size in sizes:
        sent = [[numpy.arange(size) * (to + 1) + shard.rank, numpy.zeros((2, 0)), numpy.float32(3)] for to in range(3)]
        for by, (numbers, empty, one) in enumerate(shard.exchange("sends", sent)):
            assert (numbers == numpy.arange(size) * (shard.rank + 1) + by).all()
            assert empty.shape == (2, 0) and one.shape == () and one == 3
    return True


def test_arrays_of_any_size_and_shape_are_exchanged():
    assert shards.run(exchanges, 3, [0, 1, BOX // 8 - 20, BOX // 8, 3 * BOX // 8 + 1]) == [True] * 3


@pytest.mark.parametrize("count", [0, 65, "2"])
def test_counts_that_are_none_are_refused(count):
    with pytest.raises(ValueError, match="count: expected 1 to 64 shards"):
        shards.run(ends_badly, count, "")


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
    own = EmbeddingVariable(DIM, initializer=np.zeros((1, DIM), "float32"), quota=1 << 26, name="items")
    with vmhost.Host(allow_unsigned=True, tables={"items": own}, functions=shard.functions) as host:
        permissions = {"tables": ["items:write"], "host": ["shard", "exchange"]}
        task = host.load(bundle(TASK, permissions=permissions))
        keys = numpy.arange(50 * shard.rank, 50 * shard.rank + 50)
        return numpy.asarray(task(keys)), len(own)


def test_a_task_in_a_vm_of_each_shard_trains_one_table():
    for rows, own in shards.run(in_a_vm, 2):
        assert own == 50
        assert (rows == -1).all()
