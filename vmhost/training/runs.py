"""A run whose task trains tables of the host: the host functions that it calls, and the folder of its states."""

from vmhost.engine import runs


class Run:
    """Host functions of one training run, and what resumes it.

    folder: of states (vmhost.engine.runs); samples: a function of a position (None: the beginning) that gives the
    ParquetSamples; tables: the host's, without keys yet, which are restored with the state.

    `functions` are for `Host(functions=…)`; the task's permissions name them:
    - `batch()`: the next batch, None after the last one;
    - `checkpoint(state)`: saves what the task needs (`runs.state_of`), the tables and the reader's position as of now;
    - `resume()`: the last state that was saved, or None."""

    def __init__(self, folder, samples, tables, *, keep=2):
        self.folder, self.tables, self.keep = folder, dict(tables), keep
        saved = runs.load(folder, tables=self.tables)
        self._state = None if saved is None else saved["task"]
        self.samples = samples(None if saved is None else saved["position"])
        self.checkpoints = 0
        self.functions = {
            "batch": self.samples.host_function(),
            "checkpoint": self._checkpoint,
            "resume": lambda _=None: self._state,
        }

    @property
    def resumed(self):
        """Whether there was a state to go on from."""
        return self._state is not None

    def _checkpoint(self, state):
        saved = {"task": state, "position": self.samples.position}
        path = runs.save(self.folder, saved, tables=self.tables, keep=self.keep)
        self.checkpoints += 1
        return str(path)

    def close(self):
        self.samples.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
