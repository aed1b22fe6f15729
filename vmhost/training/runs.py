"""A run whose task trains tables of the host: the host functions that it calls, and the folder of its checkpoints."""

import os

import numpy

from vmhost.engine import runs
from vmhost.training import shards


class Run:
    """Host functions of one training run, and the state to resume it from.

    folder: for checkpoints (vmhost.engine.runs). samples: a function from a position (None: the beginning) to
        ParquetSamples. tables: the host's, still empty; they are restored with the checkpoint. shard: this process's
        (vmhost.training.shards) in a run of several: each has a folder of its own below `folder`, and all resume from
        the same checkpoint. keep: number of checkpoints that stay.

    `functions` are for `Host(functions=…)`; the task's permissions must name them:
    - `batch()`: the next batch, None after the last one (of shards: the last one that all have);
    - `checkpoint(state)`: saves the task's state (`runs.state_of`), the tables and the reader's position as of now;
    - `resume()`: the last saved state, or None;
    - `shard()` and `exchange()`: see Shards.of."""

    def __init__(self, folder, samples, tables, *, keep=2, shard=None):
        self.shard = shards.alone() if shard is None else shard
        self.tables, self.keep = dict(tables), max(keep, 1 if shard is None else 2)
        self.folder = folder if shard is None else shards.part(folder, shard.rank, shard.count)
        if shard is not None:
            self._resume_from_common_checkpoint(folder)
        saved = runs.load(self.folder, tables=self.tables)
        self._state = None if saved is None else saved["task"]
        self.samples = samples(None if saved is None else saved["position"])
        self.checkpoints = 0
        self.functions = self.shard.functions | {
            "batch": self.samples.host_function() if shard is None else self._batch,
            "checkpoint": self._checkpoint,
            "resume": lambda _=None: self._state,
        }

    def _resume_from_common_checkpoint(self, folder):
        """Makes every shard resume from the last checkpoint that all have: a crash may have come between two saves."""
        if others := [name for name in shards.parts(folder) if not name.endswith(f"-of-{self.shard.count}")]:
            raise runs.RunError(f"{folder}: has states of {others[0]}: go on with as many shards")
        own = numpy.asarray(runs.numbers(self.folder), "int64")
        found = self.shard.exchange("looks for checkpoints", [[own]] * self.shard.count)
        common = set.intersection(*(set(one.tolist()) for [one] in found))
        runs.forget_after(self.folder, max(common, default=0))
        self.shard.wait("goes on")

    @property
    def resumed(self):
        """Whether there was a checkpoint to resume from."""
        return self._state is not None

    def _batch(self, _=None):
        batch = next(self.samples, None)
        has = numpy.asarray([batch is not None])
        found = self.shard.exchange("takes a batch", [[has]] * self.shard.count)
        return batch if all(one[0] for [one] in found) else None

    def _checkpoint(self, state):
        saved = {"task": state, "position": self.samples.position}
        path = runs.save(self.folder, saved, tables=self.tables, keep=self.keep)
        self.checkpoints += 1
        self.shard.wait("has a checkpoint")
        return os.fspath(path)

    def close(self):
        """Closes the reader of samples."""
        self.samples.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
