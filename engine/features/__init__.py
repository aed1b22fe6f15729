"""Features of click models: one specification that turns raw columns into a network's inputs, in training and in
serving alike. docs/features.md lists the kinds of features."""

from vmhost.engine.features.errors import FeatureError
from vmhost.engine.features.hashing import HASHES, hashed
from vmhost.engine.features.layer import FeatureEmbedding
from vmhost.engine.features.spec import FeatureSpec, Inputs

__all__ = ["HASHES", "FeatureEmbedding", "FeatureError", "FeatureSpec", "Inputs", "hashed"]
