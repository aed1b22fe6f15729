"""Validation of feature specifications."""

from vmhost.engine.embedding.lookups import COMBINERS
from vmhost.engine.features.hashing import HASHES, MAX_KEY

FORMAT = 1
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
# options of each kind beside `kind`; all kinds but number also have `table`, `combiner`, `default_id`, `offset`
_OPTIONS = {
    "number": {"column", "scale", "mean", "deviation", "low", "high", "clip", "default"},
    "key": {"column", "default"},
    "hashed": {"column", "hash", "buckets", "default"},
    "vocabulary": {"column", "words", "unknown_buckets", "hash"},
    "buckets": {"column", "boundaries", "default"},
    "cross": {"of", "buckets"},
}
_LISTS = {"sequence", "length", "weights"}  # options of the kinds keys, hashed and vocabulary


def checked(specification, problems):
    """(features, tables) of a specification; adds all errors to `problems`."""
    if not isinstance(specification, dict) or not isinstance(specification.get("features"), dict):
        problems.append("expected an object with `features`")
        return {}, {}
    for key in specification.keys() - {"format", "tables", "features"}:
        problems.append(f"unknown key {key!r}")
    if specification.get("format", FORMAT) != FORMAT:
        problems.append(f"format {specification['format']!r}: this vmhost reads {FORMAT}")
    tables = specification.get("tables", {})
    if not isinstance(tables, dict):
        problems.append("tables: expected an object")
        tables = {}
    for name, options in tables.items():
        if not isinstance(options, dict) or type(options.get("dim")) is not int or options["dim"] < 1:
            problems.append(f"tables.{name}: expected `dim`, a whole number above 0")
        elif unknown := options.keys() - _TABLE_OPTIONS:
            problems.append(f"tables.{name}: unknown {', '.join(sorted(unknown))}")
    features = {}
    for name, feature in specification["features"].items():
        features[name] = _checked_feature(name, feature, tables, features, problems)
    return features, tables


def _checked_feature(name, feature, tables, earlier, problems):
    def wrong(text):
        problems.append(f"{name}: {text}")

    kind = feature.get("kind") if isinstance(feature, dict) else None
    if kind not in _OPTIONS:
        wrong(f"kind: expected one of {', '.join(_OPTIONS)}, got {kind!r}")
        return {"kind": "key", "column": name}
    feature = dict(feature)
    if kind != "cross":
        feature.setdefault("column", name)
    allowed = _OPTIONS[kind] | {"kind"} | ({"table", "combiner", "default_id", "offset"} if kind != "number" else set())
    if kind in ("key", "hashed", "vocabulary"):
        allowed = allowed | _LISTS
    for key in sorted(feature.keys() - allowed):
        wrong(f"{key!r} is unknown to {kind}; it has {', '.join(sorted(allowed))}")
    if "table" in feature and feature["table"] not in tables:
        wrong(f"table {feature['table']!r}: expected one of {', '.join(tables) or 'none: there are no tables'}")
    for key in ("combiner", "default_id", "weights"):
        if key in feature and "table" not in feature:
            wrong(f"{key}: goes with a table")
    if feature.get("combiner", "mean") not in COMBINERS:
        wrong(f"combiner: expected one of {', '.join(COMBINERS)}")
    if "hash" in feature and feature["hash"] not in HASHES:
        wrong(f"hash: expected one of {', '.join(HASHES)}, got {feature['hash']!r}")
    for key in ("buckets", "unknown_buckets", "length"):
        if key in feature and not (type(feature[key]) is int and feature[key] > 0):
            wrong(f"{key}: expected a whole number above 0, got {feature[key]!r}")
    if "offset" in feature and not (type(feature["offset"]) is int and 0 <= feature["offset"] <= MAX_KEY):
        wrong(f"offset: expected a whole number from 0 on, got {feature['offset']!r}")
    for key in ("length", "weights"):
        if key in feature and not feature.get("sequence"):
            wrong(f"{key}: goes with `sequence: true`")
    if kind == "number":
        _check_number(feature, wrong)
    if kind == "buckets" and not _ascending(feature.get("boundaries")):
        wrong("boundaries: expected ascending numbers")
    if kind == "vocabulary":
        words = feature.get("words")
        if not isinstance(words, list) or not words or len({type(word) for word in words} & {str, int}) != 1:
            wrong("words: expected a list of texts, or of whole numbers")
        elif len(set(words)) != len(words) or len({type(word) for word in words}) != 1:
            wrong("words: expected different ones, of one type")
    if kind == "cross":
        names = feature.get("of")
        if not isinstance(names, list) or len(names) < 2:
            wrong("of: expected the names of two features or more")
        else:
            for other in names:
                if other not in earlier or earlier[other]["kind"] == "number" or earlier[other].get("sequence"):
                    wrong(f"of: {other!r}: expected a feature defined earlier, with one key per example")
    return feature


def _check_number(feature, wrong):
    scale = feature.get("scale", "none")
    if scale not in _SCALES:
        wrong(f"scale: expected one of {', '.join(_SCALES)}, got {scale!r}")
        return
    for key in _SCALES[scale]:
        if not isinstance(feature.get(key), (int, float)):
            wrong(f"{key}: expected a number, which scale {scale} needs")
            return
    if scale == "standard" and not feature["deviation"] > 0:
        wrong("deviation: expected a number above 0")
    if scale == "range" and not feature["high"] > feature["low"]:
        wrong("high: expected more than low")
    if "clip" in feature and not (_ascending(feature["clip"]) and len(feature["clip"]) == 2):
        wrong("clip: expected two ascending numbers")


def _ascending(numbers):
    return (
        isinstance(numbers, list)
        and len(numbers) > 0
        and all(type(one) in (int, float) for one in numbers)
        and all(a < b for a, b in zip(numbers, numbers[1:]))
    )
