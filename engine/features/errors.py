"""The error of features."""


class FeatureError(ValueError):
    """A specification that is wrong, or columns that do not fit it: which feature, and what it expects."""
