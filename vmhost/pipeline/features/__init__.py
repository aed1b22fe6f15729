"""Features of keys (people, devices): numbers computed from their events in a time window, declared once for all users.

definitions.py  what a feature is, as data and in Python
serving.py      keeps histories of keys up to date, and reads vectors of them
core/, python/  the operators, in C
shop.yaml       thirty features of a shop's customers
"""

from pathlib import Path

from vmhost.pipeline.features.definitions import (
    DERIVED,
    OPERATORS,
    Feature,
    FeatureSet,
    Window,
    feature,
    read_feature_file,
)
from vmhost.pipeline.features.serving import Features

SHOP = Path(__file__).parent / "shop.yaml"  # features of a shop's customers, as a starting point

__all__ = [
    "SHOP",
    "DERIVED",
    "OPERATORS",
    "Feature",
    "FeatureSet",
    "Features",
    "Window",
    "feature",
    "read_feature_file",
]
