"""Errors of quantization."""


class QuantizeError(ValueError):
    """The model or the data cannot be used for quantization. The message says where, what, and what to do."""
