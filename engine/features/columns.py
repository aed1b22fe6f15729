"""Computes one feature of a specification from raw columns."""

import vmhost.engine.numpy as np
from vmhost.engine.embedding import Ragged
from vmhost.engine.features.errors import FeatureError
from vmhost.engine.features.hashing import HASHES, MAX_KEY, crossed, hashed


def length(column):
    """The number of examples."""
    return len(column[1]) - 1 if isinstance(column, tuple) else len(column)


def column_of(columns, feature, key="column"):
    """The column named by the feature."""
    try:
        column = columns[feature[key]]
        return Ragged(*column) if type(column) is tuple else column  # a Ragged passed to another VM arrives as a pair
    except KeyError:
        raise FeatureError(
            f"there is no column {feature[key]!r}, but {', '.join(map(repr, columns)) or 'none'}"
        ) from None


def _filled(column, default, dtype):
    """The column as an array, with `default` for missing values."""
    if isinstance(column, list) and None in column:
        if default is None:
            raise FeatureError("a value is missing, and the feature has no `default`")
        column = [default if value is None else value for value in column]
    column = np.asarray(column)
    if column.dtype.kind not in "iufb" or (dtype == "int64" and column.dtype.kind == "f"):
        raise FeatureError(f"expected {'whole numbers' if dtype == 'int64' else 'numbers'}, got {column.dtype}")
    if column.ndim != 1:
        raise FeatureError(f"expected one value per example, got shape {column.shape}")
    column = column.astype(dtype)
    if dtype != "int64" and default is not None:
        column = np.where(np.isnan(column), default, column)
    return column


def numbers_of(feature, column):
    """A `number` feature, float32 [examples]."""
    x = _filled(column, feature.get("default"), "float64")
    if "clip" in feature:
        x = np.clip(x, *feature["clip"])
    scale = feature.get("scale", "none")
    if scale == "standard":
        x = (x - feature["mean"]) / feature["deviation"]
    elif scale == "range":
        x = (x - feature["low"]) / (feature["high"] - feature["low"])
    elif scale == "log":
        x = np.sign(x) * np.log1p(np.absolute(x))
    return x.astype("float32")


def ids_of(feature, columns, known):
    """The keys of a feature: int64 [examples], [examples, length], or Ragged. `known`: those of features before it."""
    if feature["kind"] == "cross":
        return _with_offset(feature, crossed([known[name] for name in feature["of"]], feature.get("buckets")))
    column = column_of(columns, feature)
    if not feature.get("sequence"):
        return _keys(feature, column)
    values, offsets = _values_and_offsets(column)
    keys = _keys(feature, values)
    if "length" not in feature:
        return Ragged(keys, offsets)
    return _padded(keys, offsets, feature["length"], -1)


def _padded(values, offsets, length, padding):
    """[examples, length]: the last `length` values of each, followed by `padding` in shorter ones."""
    counts = np.minimum(offsets[1:] - offsets[:-1], length)
    positions = np.arange(length).reshape(1, -1)
    present = positions < counts.reshape(-1, 1)
    indices = (offsets[1:] - counts).reshape(-1, 1) + positions
    if len(values) == 0:
        return np.full(present.shape, padding, values.dtype)
    return np.where(present, np.take(values, np.where(present, indices, 0)), padding)


def _with_offset(feature, keys):
    """Adds the feature's offset to keys, so that features of one table have rows of their own."""
    return np.where(keys < 0, -1, (keys + feature["offset"]) & MAX_KEY) if feature.get("offset") else keys


def _keys(feature, column):
    """int64 keys of single values."""
    return _with_offset(feature, _keys_without_offset(feature, column))


def _keys_without_offset(feature, column):
    kind = feature["kind"]
    if kind == "buckets":
        if feature.get("default") is None and isinstance(column, list) and None in column:
            return np.where(
                np.asarray([value is None for value in column]),
                -1,
                _keys_without_offset(
                    feature, [feature["boundaries"][0] if value is None else value for value in column]
                ),
            )
        x = _filled(column, feature.get("default"), "float64")
        keys = np.searchsorted(np.asarray(feature["boundaries"], "float64"), x, side="right")
        return np.where(np.isnan(x), -1, keys).astype("int64")
    if kind == "vocabulary":
        return _words(feature, column)
    if kind == "hashed" and not _are_numbers(column):
        default = feature.get("default")
        keys = hashed([default if text is None else text for text in column], feature.get("hash", "blake2b"))
    else:  # integers are keys: the reader of the samples has hashed the texts
        keys = _filled(column, -1 if feature.get("default") is None else feature["default"], "int64")
    if "buckets" in feature:
        keys = np.where(keys < 0, -1, keys % feature["buckets"])
    return keys


def _are_numbers(column):
    if isinstance(column, (list, tuple)):
        return not any(isinstance(value, str) for value in column) and any(value is not None for value in column)
    return np.asarray(column).dtype.kind in "iu"


def _words(feature, column):
    words = {word: number for number, word in enumerate(feature["words"])}
    unknown, name = feature.get("unknown_buckets"), feature.get("hash", "blake2b")
    values = column if isinstance(column, (list, tuple)) else column.tolist()
    keys = []
    for value in values:
        key = words.get(value)
        if key is None:
            if value is not None and unknown is not None:
                key = len(words) + HASHES[name](str(value).encode()) % unknown
            else:
                key = -1
        keys.append(key)
    return np.asarray(keys, "int64")


def weights_of(feature, columns, ids):
    """The weights of the feature's ids, of the same shape."""
    values, offsets = _values_and_offsets(column_of(columns, feature, "weights"))
    values = np.asarray(values).astype("float32")
    expected = ids.offsets if isinstance(ids, Ragged) else _values_and_offsets(column_of(columns, feature))[1]
    if len(expected) != len(offsets) or not (expected == offsets).all():
        raise FeatureError(f"weights {feature['weights']!r}: expected one for each id")
    if isinstance(ids, Ragged):
        return Ragged(values, offsets)
    return _padded(values, offsets, feature["length"], np.asarray(0, "float32"))


def _values_and_offsets(column):
    """(values, int64 offsets) of sequences: a Ragged, lists of values (None: no values), or an array [examples, n]."""
    if isinstance(column, Ragged):
        return column.values, np.asarray(column.offsets, "int64")
    if isinstance(column, list):
        values, offsets = [], [0]
        for each in column:
            values += each or ()
            offsets.append(len(values))
        return values, np.asarray(offsets, "int64")
    column = np.asarray(column)
    if column.ndim != 2:
        raise FeatureError(f"expected one sequence per example, got shape {column.shape}")
    return column.reshape(-1), np.arange(len(column) + 1) * column.shape[1]
