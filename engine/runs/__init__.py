"""What a training run needs beside the steps: states that resume it, stopping early, and what each feature is worth.
docs/training.md tells how they go together."""

from vmhost.engine.runs.importance import permutation_importance
from vmhost.engine.runs.states import RunError, forget_after, load, numbers, put_state, save, state_of
from vmhost.engine.runs.stopping import EarlyStopping

__all__ = [
    "EarlyStopping",
    "RunError",
    "forget_after",
    "load",
    "numbers",
    "permutation_importance",
    "put_state",
    "save",
    "state_of",
]
