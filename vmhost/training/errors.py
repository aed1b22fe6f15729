"""Errors of training, on the host's side."""


class SamplesError(ValueError):
    """A file or an option that does not fit; the message says which, and what is expected."""


class ShardError(RuntimeError):
    """A run in several processes ended early; the message names the first shard that failed, and its error."""
