"""Feature specifications: what columns become, the same for arrays,
lists and Ragged; what is refused; exported lookups."""

import json

import numpy
import onnxruntime
import pytest

import vmhost.engine.numpy as np
from vmhost.engine import nn
from vmhost.engine.embedding import EmbeddingVariable, Ragged, safe_embedding_lookup_sparse
from vmhost.engine.features import FeatureEmbedding, FeatureError, FeatureSpec, hashed

TOLD = {
    "tables": {"items": {"dim": 8}, "small": {"dim": 4}},
    "features": {
        "price": {"kind": "number", "scale": "standard", "mean": 3, "deviation": 2, "default": 3, "clip": [0, 100]},
        "width": {"kind": "number", "scale": "range", "low": 10, "high": 20},
        "views": {"kind": "number", "scale": "log"},
        "item": {"kind": "hashed", "table": "items"},
        "clicked": {"kind": "hashed", "table": "items", "sequence": True, "combiner": "sum", "weights": "times"},
        "last": {"kind": "hashed", "column": "clicked", "table": "items", "sequence": True, "length": 2},
        "city": {"kind": "vocabulary", "words": ["a", "b"], "unknown_buckets": 3, "table": "small"},
        "age": {"kind": "buckets", "boundaries": [18, 30], "table": "small", "offset": 100},
        "hour": {"kind": "key", "table": "small", "offset": 200, "default": 7},
        "city_age": {"kind": "cross", "of": ["city", "age"], "buckets": 50, "table": "small", "offset": 1000},
    },
}
COLUMNS = {
    "price": [1, None, 505.0],
    "width": [10, 15, 20],
    "views": [0, 1, -1],
    "item": ["x", None, "z"],
    "clicked": [["x", "y", "z"], None, ["w"]],
    "times": [[1, 2, 0], None, [1.5]],
    "city": ["a", "elsewhere", None],
    "age": [17, None, 30],
    "hour": [0, None, 23],
}


def test_columns_become_what_the_specification_says():
    inputs = FeatureSpec(TOLD).transform(COLUMNS)
    assert numpy.allclose(inputs.numbers[:, 0], [-1, 0, 48.5])
    assert numpy.allclose(inputs.numbers[:, 1], [0, 0.5, 1])
    assert numpy.allclose(inputs.numbers[:, 2], [0, numpy.log(2), -numpy.log(2)])
    x, y, z, w = hashed(["x", "y", "z", "w"]).tolist()
    assert inputs.ids["item"].tolist() == [x, -1, z]
    assert inputs.ids["clicked"].values.tolist() == [x, y, z, w] and inputs.ids["clicked"].offsets.tolist() == [
        0,
        3,
        3,
        4,
    ]
    assert inputs.weights["clicked"].values.tolist() == [1, 2, 0, 1.5]
    assert inputs.ids["last"].tolist() == [[y, z], [-1, -1], [w, -1]]
    known, unknown, missing = inputs.ids["city"].tolist()
    assert (known, missing) == (0, -1) and 2 <= unknown < 5
    assert inputs.ids["age"].tolist() == [100, -1, 102]
    assert inputs.ids["hour"].tolist() == [200, 207, 223]
    crosses = inputs.ids["city_age"].tolist()
    assert 1000 <= crosses[0] < 1050 and crosses[1:] == [-1, -1]


def test_arrays_and_ragged_give_what_lists_give():
    """The reader's columns: hashed texts, values and offsets, also as pairs, the form that crosses a wall."""
    spec, offsets = FeatureSpec(TOLD), numpy.array([0, 3, 3, 4])
    arrays = dict(
        COLUMNS,
        price=numpy.array([1, numpy.nan, 505.0]),
        item=numpy.asarray(hashed(COLUMNS["item"])),
        clicked=(numpy.asarray(hashed(["x", "y", "z", "w"])), offsets),
        times=Ragged(numpy.array([1, 2, 0, 1.5]), offsets),
        age=numpy.array([17, numpy.nan, 30]),
    )
    one, other = spec.transform(COLUMNS), spec.transform(arrays)
    assert (one.numbers == other.numbers).all()
    for name, ids in one.ids.items():
        pairs = zip(ids, other.ids[name]) if isinstance(ids, Ragged) else [(ids, other.ids[name])]
        assert all((a == b).all() for a, b in pairs), name


def test_hashes_are_the_same_everywhere_and_crosses_look_at_each_part():
    assert hashed(["user-1", "", None, "ü"]).tolist() == [
        640050051772230810,
        3797230976420062948,
        -1,
        3976460501203677525,
    ]
    assert hashed(["user-1"], "crc32").tolist() == [2116437524]
    spec = FeatureSpec(
        {"features": {name: {"kind": "key"} for name in "ab"} | {"c": {"kind": "cross", "of": ["a", "b"]}}}
    )
    from vmhost.engine.features.hashing import crossed

    a, b = np.repeat(np.arange(300), 300), np.tile(np.arange(300), 300)
    assert len(set(crossed([a, b]).tolist())) == 90_000  # no two pairs fall together
    assert len(set(crossed([a, b], 100).tolist())) == 100
    assert spec.transform({"a": [1], "b": [2]}).ids == {}  # of no table


def test_a_specification_is_text_that_comes_back_the_same():
    spec = FeatureSpec(TOLD)
    again = FeatureSpec.read(spec.to_bytes())
    assert again.to_bytes() == spec.to_bytes() and again.digest == spec.digest
    other = json.loads(json.dumps(TOLD))
    other["features"]["age"]["boundaries"] = [18, 31]
    assert FeatureSpec(other).digest != spec.digest


WRONG = [
    ({"kind": "text"}, "x: kind: expected one of number, key"),
    ({"kind": "number", "scale": "standard", "mean": 1}, "x: deviation: expected a number"),
    ({"kind": "number", "table": "items"}, "x: 'table' is unknown to number"),
    ({"kind": "number", "clip": [3, 1]}, "clip: expected two ascending numbers"),
    ({"kind": "key", "table": "others"}, "table 'others': expected one of items"),
    ({"kind": "key", "combiner": "sum"}, "combiner: goes with a table"),
    ({"kind": "key", "table": "items", "combiner": "max"}, "combiner: expected one of sum, mean, sqrtn"),
    ({"kind": "hashed", "hash": "md5"}, "hash: expected one of blake2b, crc32"),
    ({"kind": "hashed", "length": 3}, "length: goes with `sequence: true`"),
    ({"kind": "key", "offset": -1}, "offset: expected a whole number from 0 on"),
    ({"kind": "vocabulary", "words": ["a", "a"]}, "words: expected different ones"),
    ({"kind": "buckets", "boundaries": [2, 1]}, "boundaries: expected ascending numbers"),
    ({"kind": "cross", "of": ["x", "y"]}, "of: 'x': expected a feature defined earlier"),
]


def test_what_is_wrong_with_a_specification_is_told_at_once():
    for told, said in WRONG:
        with pytest.raises(FeatureError, match=said.replace("(", r"\(")):
            FeatureSpec({"tables": {"items": {"dim": 2}}, "features": {"x": told}})
    with pytest.raises(FeatureError, match="tables.t: expected `dim`.*unknown key 'more'|unknown key 'more'.*tables.t"):
        FeatureSpec({"tables": {"t": {}}, "features": {}, "more": 1})
    with pytest.raises(FeatureError, match="expected JSON"):
        FeatureSpec.read(b"{")


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("width", [1, None, 2], "width: a value is missing, and the feature has no `default`"),
        ("width", ["a", "b", "c"], "width: .*elements are bool, int, float"),
        ("width", [[1], [2], [3]], "width: expected one value per example"),
        ("hour", [1.5, 2, 3], "hour: expected whole numbers"),
        ("hour", [1, 2], "columns: expected as many examples in each"),
        ("item", [b"x", "y", "z"], "item: expected texts, got bytes"),
        ("times", [[1], None, [1]], "clicked: weights 'times': expected one for each id"),
    ],
)
def test_columns_that_do_not_fit_are_refused_by_name(column, value, said):
    with pytest.raises(FeatureError, match=said):
        FeatureSpec(TOLD).transform(COLUMNS | {column: value})
    with pytest.raises(FeatureError, match=f"there is no column '{column}'"):
        FeatureSpec(TOLD).transform({name: one for name, one in COLUMNS.items() if name != column})


class Net(nn.Module):
    def __init__(self, spec, tables):
        super().__init__()
        self.features = FeatureEmbedding(spec, tables)
        self.out = nn.Linear(self.features.width + len(spec.numbers), 1)

    def __call__(self, numbers, ids, weights=None):
        return nn.sigmoid(self.out(np.concatenate([self.features(ids, weights), numbers], axis=1)))[:, 0]


def made(names=("items", "small")):
    return {key: EmbeddingVariable(TOLD["tables"][key]["dim"], name=name) for key, name in zip(TOLD["tables"], names)}


def test_tables_stay_outside_of_an_exported_network():
    spec, tables = FeatureSpec(TOLD), made()
    net = Net(spec, tables)
    inputs = spec.transform(COLUMNS)
    onnx, lookups = nn.export(net, inputs._asdict(), ("click",), with_lookups=True)
    assert [one.input for one in lookups][:2] == ["ids.item@items", "ids.clicked@items"]
    assert lookups[1].weights == "weights.clicked" and lookups[1].combiner == "sum"
    session = onnxruntime.InferenceSession(onnx)
    assert [one.name for one in session.get_inputs()] == ["numbers", *(one.input for one in lookups)]
    fed = {"numbers": numpy.asarray(inputs.numbers)}
    for one in lookups:
        ids, weights = (
            None if path is None else getattr(inputs, path.partition(".")[0])[path.partition(".")[2]]
            for path in (one.ids, one.weights)
        )
        fed[one.input] = numpy.asarray(
            safe_embedding_lookup_sparse(tables[one.table], ids, weights, one.combiner, one.default_id)
        )
    assert numpy.allclose(session.run(None, fed)[0], net(*inputs), atol=1e-6)


def test_exports_that_would_be_ambiguous_are_refused():
    spec, inputs = FeatureSpec(TOLD), FeatureSpec(TOLD).transform(COLUMNS)
    with pytest.raises(nn.ExportError, match="there are two tables of this name"):
        nn.export(Net(spec, made(("one", "one"))), inputs._asdict())
    with pytest.raises(ValueError, match="table 'small' of the specification has 4 numbers, this one 8"):
        FeatureEmbedding(spec, {name: EmbeddingVariable(8) for name in ("items", "small")})

    class Sums(nn.Module):
        def __call__(self, ids):
            return ids.values + 1

    with pytest.raises(nn.ExportError, match="Ragged ids are for embedding tables only"):
        nn.export(Sums(), {"ids": inputs.ids["clicked"]})
