"""FeatureSpec: a specification of features. It is checked once, and applied to columns."""

import hashlib
import json
from typing import NamedTuple

import vmhost.engine.numpy as np
from vmhost.engine.features.checks import FORMAT, checked
from vmhost.engine.features.columns import column_of, ids_of, length, numbers_of, weights_of
from vmhost.engine.features.errors import FeatureError


class Inputs(NamedTuple):
    """A network's inputs: `numbers` float32 [examples, numbers]; `ids` by name for each feature with a table: int64
    [examples], [examples, length], or Ragged; `weights` for those that have some, float32, of the same shape."""

    numbers: object
    ids: dict
    weights: dict

    def __len__(self):
        return len(self.numbers)


class FeatureSpec:
    """`specification` is a dict of JSON values: {"tables": {name: options}, "features": {name: {"kind": …}}}.

    FeatureError lists everything that is wrong with it."""

    def __init__(self, specification):
        problems = []
        self.features, self.tables = checked(specification, problems)
        if problems:
            raise FeatureError("features: " + "; ".join(problems))
        self.numbers = tuple(name for name, one in self.features.items() if one["kind"] == "number")
        self.of_tables = tuple(name for name, one in self.features.items() if "table" in one)

    @classmethod
    def read(cls, data):
        """From JSON text, or its bytes."""
        try:
            return cls(json.loads(data))
        except ValueError as error:
            if isinstance(error, FeatureError):
                raise
            raise FeatureError(f"features: expected JSON: {error}") from error

    def as_dict(self):
        """The specification as plain data, which FeatureSpec takes."""
        return {"format": FORMAT, "tables": self.tables, "features": self.features}

    def to_bytes(self):
        """Canonical JSON: equal for equal specifications. The order of features is part of the specification: it is the
        order of the numbers that a network reads."""
        values = self.as_dict()
        features = {name: dict(sorted(one.items())) for name, one in values.pop("features").items()}
        text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        features = json.dumps(features, separators=(",", ":"), ensure_ascii=False)
        return f'{text[:-1]},"features":{features}}}'.encode()

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
        """The Inputs for columns by name: arrays, or lists in which None is a missing value; for lists of values a
        Ragged (or such a pair), or a list of lists. All must have the same number of examples. FeatureError names the
        feature that they do not fit."""
        counts = {name: length(columns[name]) for name in self.columns() if name in columns}
        if len(set(counts.values())) > 1:
            raise FeatureError(f"columns: expected as many examples in each, got {counts}")
        count = next(iter(counts.values()), 0)
        ids, weights = {}, {}
        numbers = np.zeros((count, len(self.numbers)), "float32")
        known = {}  # ids of features, including those without a table
        for name, one in self.features.items():
            try:
                if one["kind"] == "number":
                    numbers[:, self.numbers.index(name)] = numbers_of(one, column_of(columns, one))
                    continue
                known[name] = ids_of(one, columns, known)
                if "weights" in one:
                    weights[name] = weights_of(one, columns, known[name])
            except FeatureError as error:
                raise FeatureError(f"{name}: {error}") from error.__cause__
            except (TypeError, ValueError) as error:
                raise FeatureError(f"{name}: {error}") from error
            if "table" in one:
                ids[name] = known[name]
        return Inputs(numbers, ids, weights)
