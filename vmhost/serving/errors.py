"""Errors of serving."""


class ExportError(ValueError):
    """A version that cannot be published or served: what is missing, altered or does not fit, and where."""
