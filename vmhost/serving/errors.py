"""Errors of serving."""


class ExportError(ValueError):
    """A version that cannot be published or served; the message says what is missing, altered or does not fit."""
