"""Parts of a training run beside its steps: states to resume from, early stopping, and feature importance.
docs/training.md shows how they work together."""

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
