"""Errors of training, on the host's side."""


class SamplesError(ValueError):
    """A file or an option that does not fit: which, and what is expected."""
