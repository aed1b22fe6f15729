"""Errors of training, on the host's side."""


class SamplesError(ValueError):
    """A file or an option that does not fit: which, and what is expected."""


class ShardError(RuntimeError):
    """A run in several processes that ended, and why: the shard that was first, and what it said."""
