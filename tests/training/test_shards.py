"""Training in several processes: equal to one process, saves of all, shards that end, tasks in VMs."""

import os
import signal
import subprocess
import sys

import numpy
import pytest

import vmhost.engine.numpy as np
from tests.training import sharded
from vmhost.engine.embedding import CheckpointError, CounterFilter
from vmhost.training import shards
from vmhost.training.errors import ShardError
from vmhost.training.exchange import BOX


@pytest.mark.parametrize("count", [2, 4])
def test_rows_are_those_of_one_process_bit_by_bit(count):
    one, several = sharded.trained(sharded.Linear, None), shards.run(sharded.trained_shard, count, sharded.Linear)
    for losses, rows, _, counts in several:
        assert counts == one[3]
        assert all((mine == other).all() for mine, other in zip(rows, one[1]))
    assert numpy.mean([losses for losses, *_ in several], axis=0) == pytest.approx(one[0], rel=1e-6)


def test_networks_are_equal_in_all_shards_and_near_that_of_one_process():
    one, several = sharded.trained(sharded.Deep, None), shards.run(sharded.trained_shard, 2, sharded.Deep)
    assert (several[0][2][0] == several[1][2][0]).all()
    assert several[0][2][0] == pytest.approx(one[2][0], rel=1e-5, abs=1e-7)
    for mine, other in zip(several[0][1], one[1]):
        assert mine == pytest.approx(other, rel=1e-4, abs=1e-6)


def test_a_save_of_shards_is_read_by_any_count_of_them(tmp_path):
    _, rows, _, _ = shards.run(sharded.trained_shard, 2, sharded.Linear, tmp_path)[0]
    for count in (3, 1, 2):
        found = shards.run(sharded.restored, count, tmp_path)
        assert all(step == sharded.STEPS and incremental == (count == 2) for step, _, _, incremental in found)
        for _, mine, _, _ in found:
            assert all((one == other).all() for one, other in zip(mine, rows))
    alone = [sharded.new_table(), sharded.new_table("users", filter=CounterFilter(2))]
    assert shards.restore(alone, tmp_path) == sharded.STEPS
    assert all(
        (numpy.asarray(one.lookup(np.arange(-5, sharded.KEYS))) == other).all() for one, other in zip(alone, rows)
    )
    with pytest.raises(CheckpointError, match="there is no save of shards"):
        shards.restore([sharded.new_table()], tmp_path / "none")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("killed", "^shard 1 of 3 was killed by SIGKILL$"),
        ("raises", "(?s)^shard 1 of 3: Traceback.*KeyError: 'no such column'$"),
        ("exits", "^shard 1 of 3 ended with exit code 3$"),
        ("returns", "^shard 1 of 3 returned while shard [02] waits for it: all shards make the same calls"),
        ("differs", "^shard [012] of 3: shard .* makes another call: all shards make the same calls in the same order"),
    ],
)
def test_a_shard_that_ends_ends_the_others_with_one_error(how, message):
    with pytest.raises(ShardError, match=message):
        shards.run(sharded.ends_badly, 3, how)


def test_the_shard_that_ended_is_named_also_where_another_tells_first_that_it_lost_it():
    class Ended:
        def recv(self):
            raise EOFError

        def wait(self):
            return -signal.SIGKILL

    message = shards._failure_message(0, [None, Ended()], [None, Ended()], [("lost", 1), None])
    assert message == "shard 1 of 2 was killed by SIGKILL"


def test_shards_end_with_the_process_that_began_them(tmp_path):
    script = tmp_path / "begin.py"
    script.write_text("""
from tests.training import sharded
from vmhost.training import shards
if __name__ == "__main__":
    shards.run(sharded.waits_for_ever, 2)
""")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen([sys.executable, script], env=environment, stdout=subprocess.PIPE, text=True)
    with process.stdout:
        assert [process.stdout.readline() for _ in range(2)] == ["here\n"] * 2
        process.kill()
        process.wait()
        assert process.stdout.read() == "", "its end comes when all that could write there are gone"


def test_arrays_of_any_size_and_shape_are_exchanged():
    assert shards.run(sharded.exchanges, 3, [0, 1, BOX // 8 - 20, BOX // 8, 3 * BOX // 8 + 1]) == [True] * 3


@pytest.mark.parametrize("count", [0, 65, "2"])
def test_counts_that_are_none_are_refused(count):
    with pytest.raises(ValueError, match="count: expected 1 to 64 shards"):
        shards.run(sharded.ends_badly, count, "")


def test_a_task_in_a_vm_of_each_shard_trains_one_table():
    for rows, own in shards.run(sharded.in_a_vm, 2):
        assert own == 50
        assert (rows == -1).all()
