"""Computes one feature of a specification from raw columns."""

import vmhost.engine.numpy as np
from vmhost.engine.embedding import Ragged
from vmhost.engine.features.errors import FeatureError
from vmhost.engine.features.hashing import HASHES, MAX_KEY, crossed, hashed


def length(column):
    """The number of examples."""
    return len(column[1]) - 1 if isinstance(column, tuple) else len(column)


def column_of(columns, one, key="column"):
    """The column named by the feature."""
    try:
        column = columns[one[key]]
        return Ragged(*column) if type(column) is tuple else column  # a Ragged passed to another VM arrives as a pair
    except KeyError:
        raise FeatureError(f"there is no column {one[key]!r}, but {', '.join(map(repr, columns)) or 'none'}") from None


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
        raise FeatureError(f"expected one value an example, got shape {column.shape}")
    column = column.astype(dtype)
    if dtype != "int64" and default is not None:
        column = np.where(np.isnan(column), default, column)
    return column


def numbers_of(one, column):
    """A `number` feature, float32 [examples]."""
    x = _filled(column, one.get("default"), "float64")
    if "clip" in one:
        x = np.clip(x, *one["clip"])
    scale = one.get("scale", "none")
    if scale == "standard":
        x = (x - one["mean"]) / one["deviation"]
    elif scale == "range":
        x = (x - one["low"]) / (one["high"] - one["low"])
    elif scale == "log":
        x = np.sign(x) * np.log1p(np.absolute(x))
    return x.astype("float32")


def ids_of(one, columns, known):
    """The keys of a feature: int64 [examples], [examples, length], or Ragged. `known`: those of features before it."""
    if one["kind"] == "cross":
        return _moved(one, crossed([known[name] for name in one["of"]], one.get("buckets")))
    column = column_of(columns, one)
    if not one.get("sequence"):
        return _keys(one, column)
    values, offsets = _taken_apart(column)
    keys = _keys(one, values)
    if "length" not in one:
        return Ragged(keys, offsets)
    return _padded(keys, offsets, one["length"], -1)


def _padded(values, offsets, length, padding):
    """[examples, length]: the last `length` values of each, followed by `padding` in shorter ones."""
    counts = np.minimum(offsets[1:] - offsets[:-1], length)
    places = np.arange(length).reshape(1, -1)
    there = places < counts.reshape(-1, 1)
    at = (offsets[1:] - counts).reshape(-1, 1) + places
    if len(values) == 0:
        return np.full(there.shape, padding, values.dtype)
    return np.where(there, np.take(values, np.where(there, at, 0)), padding)


def _moved(one, keys):
    """Adds the feature's offset to keys, so that features of one table have rows of their own."""
    return np.where(keys < 0, -1, (keys + one["offset"]) & MAX_KEY) if one.get("offset") else keys


def _keys(one, column):
    """int64 keys of single values."""
    return _moved(one, _keys_from_0(one, column))


def _keys_from_0(one, column):
    kind = one["kind"]
    if kind == "buckets":
        if one.get("default") is None and isinstance(column, list) and None in column:
            return np.where(
                np.asarray([value is None for value in column]),
                -1,
                _keys_from_0(one, [one["boundaries"][0] if value is None else value for value in column]),
            )
        x = _filled(column, one.get("default"), "float64")
        keys = np.searchsorted(np.asarray(one["boundaries"], "float64"), x, side="right")
        return np.where(np.isnan(x), -1, keys).astype("int64")
    if kind == "vocabulary":
        return _words(one, column)
    if kind == "hashed" and not _are_numbers(column):
        default = one.get("default")
        keys = hashed([default if text is None else text for text in column], one.get("hash", "blake2b"))
    else:  # integers are keys: the reader of the samples has hashed the texts
        keys = _filled(column, -1 if one.get("default") is None else one["default"], "int64")
    if "buckets" in one:
        keys = np.where(keys < 0, -1, keys % one["buckets"])
    return keys


def _are_numbers(column):
    if isinstance(column, (list, tuple)):
        return not any(isinstance(value, str) for value in column) and any(value is not None for value in column)
    return np.asarray(column).dtype.kind in "iu"


def _words(one, column):
    words = {word: number for number, word in enumerate(one["words"])}
    unknown, name = one.get("unknown_buckets"), one.get("hash", "blake2b")
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


def weights_of(one, columns, ids):
    """The weights of the feature's ids, of the same shape."""
    values, offsets = _taken_apart(column_of(columns, one, "weights"))
    values = np.asarray(values).astype("float32")
    expected = ids.offsets if isinstance(ids, Ragged) else _taken_apart(column_of(columns, one))[1]
    if len(expected) != len(offsets) or not (expected == offsets).all():
        raise FeatureError(f"weights {one['weights']!r}: expected one for each id")
    if isinstance(ids, Ragged):
        return Ragged(values, offsets)
    return _padded(values, offsets, one["length"], np.asarray(0, "float32"))


def _taken_apart(column):
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
        raise FeatureError(f"expected a sequence an example, got shape {column.shape}")
    return column.reshape(-1), np.arange(len(column) + 1) * column.shape[1]
