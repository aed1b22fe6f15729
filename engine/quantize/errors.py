"""What stands in the way of quantizing a model."""


class QuantizeError(ValueError):
    """The model or the data cannot be used for it. One sentence: where, what, and what to do."""
