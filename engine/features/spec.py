"""FeatureSpec: what each feature is made of, checked once and applied to columns."""

import hashlib
import json
from typing import NamedTuple

import vmhost.engine.numpy as np
from vmhost.engine.embedding import Ragged
from vmhost.engine.embedding.lookups import COMBINERS
from vmhost.engine.features.hashing import HASHES, crossed, hashed

FORMAT = 1
_MASK = 2**63 - 1
_SCALES = {"none": (), "standard": ("mean", "deviation"), "range": ("low", "high"), "log": ()}
_TABLE_OPTIONS = {
    "dim",
    "optimizer",
    "initial",
    "initializer",
    "seed",
    "default_value_dim",
    "default_value_no_permission",
    "filter",
    "evict",
    "quota",
}
# what features of each kind may say beside `kind`; those but numbers also `table`, `combiner`, `default_id`, `offset`
_OPTIONS = {
    "number": {"column", "scale", "mean", "deviation", "low", "high", "clip", "default"},
    "key": {"column", "default"},
    "hashed": {"column", "hash", "buckets", "default"},
    "vocabulary": {"column", "words", "unknown_buckets", "hash"},
    "buckets": {"column", "boundaries", "default"},
    "cross": {"of", "buckets"},
}
_LISTS = {"sequence", "length", "weights"}  # of keys, hashed and vocabulary


class FeatureError(ValueError):
    """A specification that is wrong, or columns that do not fit it: which feature, and what it expects."""


class Inputs(NamedTuple):
    """What a network reads: `numbers` float32 [examples, numbers]; `ids` of each feature of a table, by its name: int64
    [examples], [examples, length], or Ragged; `weights` of those that have some, float32, of the same shape."""

    numbers: object
    ids: dict
    weights: dict

    def __len__(self):
        return len(self.numbers)


class FeatureSpec:
    """`told` is a dict of JSON values: {"tables": {name: options}, "features": {name: {"kind": …}}}.

    FeatureError lists all that is wrong with it."""

    def __init__(self, told):
        problems = []
        self.features, self.tables = _checked(told, problems)
        if problems:
            raise FeatureError("features: " + "; ".join(problems))
        self.numbers = tuple(name for name, one in self.features.items() if one["kind"] == "number")
        self.of_tables = tuple(name for name, one in self.features.items() if "table" in one)

    @classmethod
    def read(cls, data):
        """Of JSON text, or its bytes."""
        try:
            return cls(json.loads(data))
        except ValueError as error:
            if isinstance(error, FeatureError):
                raise
            raise FeatureError(f"features: expected JSON: {error}") from error

    def told(self):
        return {"format": FORMAT, "tables": self.tables, "features": self.features}

    def to_bytes(self):
        """JSON that is the same for the same specification."""
        return json.dumps(self.told(), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

    @property
    def digest(self):
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def columns(self):
        """Names of the columns that it reads."""
        names = {}
        for one in self.features.values():
            names |= dict.fromkeys(one[key] for key in ("column", "weights") if key in one)
        return list(names)

    def transform(self, columns):
        """The Inputs of columns by name: arrays, or lists in which None stands for what is missing; of lists of values
        a Ragged (or such a pair), or a list of lists. All have as many examples. FeatureError names the feature that
        they do not fit."""
        counts = {name: _length(columns[name]) for name in self.columns() if name in columns}
        if len(set(counts.values())) > 1:
            raise FeatureError(f"columns: expected as many examples in each, got {counts}")
        count = next(iter(counts.values()), 0)
        ids, weights = {}, {}
        numbers = np.zeros((count, len(self.numbers)), "float32")
        known = {}  # ids of features, of no table too
        for name, one in self.features.items():
            try:
                if one["kind"] == "number":
                    numbers[:, self.numbers.index(name)] = _number(one, _column(columns, one))
                    continue
                known[name] = _ids(one, columns, known)
                if "weights" in one:
                    weights[name] = _weights(one, columns, known[name])
            except FeatureError as error:
                raise FeatureError(f"{name}: {error}") from error.__cause__
            except (TypeError, ValueError) as error:
                raise FeatureError(f"{name}: {error}") from error
            if "table" in one:
                ids[name] = known[name]
        return Inputs(numbers, ids, weights)


# ---- the specification
def _checked(told, problems):
    if not isinstance(told, dict) or not isinstance(told.get("features"), dict):
        problems.append("expected an object with `features`")
        return {}, {}
    for key in told.keys() - {"format", "tables", "features"}:
        problems.append(f"unknown key {key!r}")
    if told.get("format", FORMAT) != FORMAT:
        problems.append(f"format {told['format']!r}: this vmhost reads {FORMAT}")
    tables = told.get("tables", {})
    if not isinstance(tables, dict):
        problems.append("tables: expected an object")
        tables = {}
    for name, options in tables.items():
        if not isinstance(options, dict) or type(options.get("dim")) is not int or options["dim"] < 1:
            problems.append(f"tables.{name}: expected `dim`, a whole number above 0")
        elif unknown := options.keys() - _TABLE_OPTIONS:
            problems.append(f"tables.{name}: unknown {', '.join(sorted(unknown))}")
    features = {}
    for name, one in told["features"].items():
        features[name] = _checked_feature(name, one, tables, features, problems)
    return features, tables


def _checked_feature(name, one, tables, before, problems):
    def wrong(text):
        problems.append(f"{name}: {text}")

    kind = one.get("kind") if isinstance(one, dict) else None
    if kind not in _OPTIONS:
        wrong(f"kind: expected one of {', '.join(_OPTIONS)}, got {kind!r}")
        return {"kind": "key", "column": name}
    one = dict(one)
    if kind != "cross":
        one.setdefault("column", name)
    allowed = _OPTIONS[kind] | {"kind"} | ({"table", "combiner", "default_id", "offset"} if kind != "number" else set())
    if kind in ("key", "hashed", "vocabulary"):
        allowed = allowed | _LISTS
    for key in sorted(one.keys() - allowed):
        wrong(f"{key!r} is unknown to {kind}; it has {', '.join(sorted(allowed))}")
    if "table" in one and one["table"] not in tables:
        wrong(f"table {one['table']!r}: expected one of {', '.join(tables) or 'none: there are no tables'}")
    for key in ("combiner", "default_id", "weights"):
        if key in one and "table" not in one:
            wrong(f"{key}: goes with a table")
    if one.get("combiner", "mean") not in COMBINERS:
        wrong(f"combiner: expected one of {', '.join(COMBINERS)}")
    if "hash" in one and one["hash"] not in HASHES:
        wrong(f"hash: expected one of {', '.join(HASHES)}, got {one['hash']!r}")
    for key in ("buckets", "unknown_buckets", "length"):
        if key in one and not (type(one[key]) is int and one[key] > 0):
            wrong(f"{key}: expected a whole number above 0, got {one[key]!r}")
    if "offset" in one and not (type(one["offset"]) is int and 0 <= one["offset"] <= _MASK):
        wrong(f"offset: expected a whole number from 0 on, got {one['offset']!r}")
    for key in ("length", "weights"):
        if key in one and not one.get("sequence"):
            wrong(f"{key}: goes with `sequence: true`")
    if kind == "number":
        _check_number(one, wrong)
    if kind == "buckets" and not _rising(one.get("boundaries")):
        wrong("boundaries: expected rising numbers")
    if kind == "vocabulary":
        words = one.get("words")
        if not isinstance(words, list) or not words or len({type(word) for word in words} & {str, int}) != 1:
            wrong("words: expected a list of texts, or of whole numbers")
        elif len(set(words)) != len(words) or len({type(word) for word in words}) != 1:
            wrong("words: expected different ones, of one type")
    if kind == "cross":
        of = one.get("of")
        if not isinstance(of, list) or len(of) < 2:
            wrong("of: expected the names of two features or more")
        else:
            for other in of:
                if other not in before or before[other]["kind"] == "number" or before[other].get("sequence"):
                    wrong(f"of: {other!r} is no feature before this one that has one key an example")
    return one


def _check_number(one, wrong):
    scale = one.get("scale", "none")
    if scale not in _SCALES:
        wrong(f"scale: expected one of {', '.join(_SCALES)}, got {scale!r}")
        return
    for key in _SCALES[scale]:
        if not isinstance(one.get(key), (int, float)):
            wrong(f"{key}: expected a number, which scale {scale} needs")
            return
    if scale == "standard" and not one["deviation"] > 0:
        wrong("deviation: expected a number above 0")
    if scale == "range" and not one["high"] > one["low"]:
        wrong("high: expected more than low")
    if "clip" in one and not (_rising(one["clip"]) and len(one["clip"]) == 2):
        wrong("clip: expected two rising numbers")


def _rising(numbers):
    return (
        isinstance(numbers, list)
        and len(numbers) > 0
        and all(type(one) in (int, float) for one in numbers)
        and all(a < b for a, b in zip(numbers, numbers[1:]))
    )


# ---- columns
def _length(column):
    return len(column[1]) - 1 if isinstance(column, tuple) else len(column)


def _column(columns, one, key="column"):
    try:
        column = columns[one[key]]
        return Ragged(*column) if type(column) is tuple else column  # a Ragged that has crossed a wall is a pair
    except KeyError:
        raise FeatureError(f"there is no column {one[key]!r}, but {', '.join(map(repr, columns)) or 'none'}") from None


def _filled(column, default, dtype):
    """The column as an array, `default` where values are missing."""
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


def _number(one, column):
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


def _ids(one, columns, known):
    if one["kind"] == "cross":
        return _moved(one, crossed([known[name] for name in one["of"]], one.get("buckets")))
    column = _column(columns, one)
    if not one.get("sequence"):
        return _keys(one, column)
    if isinstance(column, Ragged):
        values, offsets = column
    elif isinstance(column, list):
        values, offsets = [], [0]
        for values_of in column:
            values += values_of or ()  # None: no list
            offsets.append(len(values))
    else:
        column = np.asarray(column)
        if column.ndim != 2:
            raise FeatureError(f"expected a sequence an example, got shape {column.shape}")
        values, offsets = column.reshape(-1), np.arange(len(column) + 1) * column.shape[1]
    keys, offsets = _keys(one, values), np.asarray(offsets, "int64")
    if "length" not in one:
        return Ragged(keys, offsets)
    return keys_padded(keys, offsets, one["length"], -1)


def keys_padded(values, offsets, length, padding):
    """[examples, length]: the last `length` values of each, `padding` behind those of shorter ones."""
    counts = np.minimum(offsets[1:] - offsets[:-1], length)
    places = np.arange(length).reshape(1, -1)
    there = places < counts.reshape(-1, 1)
    at = (offsets[1:] - counts).reshape(-1, 1) + places
    if len(values) == 0:
        return np.full(there.shape, padding, values.dtype)
    return np.where(there, np.take(values, np.where(there, at, 0)), padding)


def _moved(one, keys):
    """Keys from the feature's offset on, so that features of one table have rows of their own."""
    return np.where(keys < 0, -1, (keys + one["offset"]) & _MASK) if one.get("offset") else keys


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
    else:  # whole numbers are keys already: who read them has hashed them
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


def _weights(one, columns, ids):
    column = _column(columns, one, "weights")
    if isinstance(column, Ragged):
        values, offsets = np.asarray(column.values), np.asarray(column.offsets, "int64")
    elif isinstance(column, list):
        values, offsets = [], [0]
        for values_of in column:
            values += values_of or ()
            offsets.append(len(values))
        values, offsets = np.asarray(values), np.asarray(offsets, "int64")
    else:
        column = np.asarray(column)
        values, offsets = column.reshape(-1), np.arange(len(column) + 1) * column.shape[1]
    values = values.astype("float32")
    if isinstance(ids, Ragged):
        if len(ids.offsets) != len(offsets) or not (ids.offsets == offsets).all():
            raise FeatureError(f"weights {one['weights']!r}: expected one for each id")
        return Ragged(values, offsets)
    counts = _sequence_counts(one, columns)
    if len(counts) != len(offsets) - 1 or not (counts == offsets[1:] - offsets[:-1]).all():
        raise FeatureError(f"weights {one['weights']!r}: expected one for each id")
    return keys_padded(values, offsets, one["length"], np.asarray(0, "float32"))


def _sequence_counts(one, columns):
    column = _column(columns, one)
    if isinstance(column, Ragged):
        offsets = np.asarray(column.offsets, "int64")
        return offsets[1:] - offsets[:-1]
    if isinstance(column, list):
        return np.asarray([len(values or ()) for values in column], "int64")
    column = np.asarray(column)
    return np.full(len(column), column.shape[1], "int64")
