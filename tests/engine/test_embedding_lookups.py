"""Lookups of bags, of many tables at once, and their gradients, against plain Python and NumPy."""

import math
import threading

import numpy
import pytest

import vmhost.engine.numpy as np
from tests.batches import each
from vmhost.engine import library, nn, optim
from vmhost.engine.embedding import (
    CounterFilter,
    EmbeddingVariable,
    Ragged,
    group_embedding_lookup_sparse,
    safe_embedding_lookup_sparse,
)
from vmhost.engine.grad import value_and_grad
from vmhost.engine.grad.rows import RowGradient

pytestmark = pytest.mark.usefixtures("backend")


def made(dim, seed=0, rows=50, **options):
    first = np.random.default_rng(seed).standard_normal((rows, dim)).astype("float32")
    return EmbeddingVariable(dim, initializer=first, **{"optimizer": "sgd"} | options), first


def drawn(generator, bags, longest, keys=50):
    """Bags with ids below 0, empty ones, and weights that are 0 and less."""
    lengths = generator.integers(0, longest + 1, bags).tolist()
    ids = [generator.integers(-3, keys, n).tolist() for n in lengths]
    weights = [generator.integers(-1, 4, n).tolist() for n in lengths]
    return ids, weights


def expected(first, ids, weights, combiner, default_id):
    """In float64, by NumPy."""
    first, result = numpy.asarray(first.tolist()), []
    for bag, factors in zip(ids, weights if weights is not None else [[1.0] * len(bag) for bag in ids]):
        kept = [(key, w) for key, w in zip(bag, factors) if key >= 0 and w > 0]
        row = numpy.zeros(first.shape[1])
        if kept:
            keys, w = map(numpy.asarray, zip(*kept))
            by = {"sum": 1.0, "mean": w.sum(), "sqrtn": math.sqrt((w * w).sum())}[combiner]
            row = w @ first[keys % len(first)] / by
        elif default_id is not None:
            row = first[default_id]
        result.append(row.tolist())
    return np.asarray(result, "float32").reshape(len(ids), first.shape[1])


def expected_of_rows(first, ids, combiner):
    """Of bags of one length, in float64."""
    kept = ids >= 0
    rows = numpy.asarray(first, "float64")[numpy.where(kept, ids, 0)]
    by = 1.0 if combiner == "sum" else numpy.maximum(kept.sum(axis=1, keepdims=True), 1)
    return numpy.where(kept[..., None], rows, 0.0).sum(axis=1) / by


@each("dim", [1, 3, 16, 64, 100])
@each("combiner", ["sum", "mean", "sqrtn"])
def test_bags_of_many_tables(dim, combiner):
    generator = np.random.default_rng(dim)
    pairs = [made(dim, seed) for seed in range(3)] + [made(7, 9)]
    asked = [drawn(generator, 90, longest) for longest in (1, 6, 40, 700)]  # the last are longer than a piece
    for weighted in (False, True):
        for default_id in (None, 11):
            results = group_embedding_lookup_sparse(
                [table for table, _ in pairs],
                [Ragged.of(ids) for ids, _ in asked],
                [np.asarray(sum(weights, []), "float32") for _, weights in asked] if weighted else None,
                combiner,
                default_id,
            )
            for result, (_, first), (ids, weights) in zip(results, pairs, asked):
                wanted = expected(first, ids, weights if weighted else None, combiner, default_id)
                assert np.allclose(result, wanted, 1e-4, 1e-4)


@pytest.mark.parametrize("dim", [1, 16, 64, 1024])
def test_rows_of_a_table_that_has_grown(dim):
    """Many chunks of rows, keys outside of their own buckets, and missing keys."""
    count, optimizer = 9000, optim.SGD(1.0)
    table = EmbeddingVariable(dim, optimizer="sgd", initializer=np.zeros((1, dim), "float32"))
    generator = np.random.default_rng(dim)
    keys = np.arange(count, dtype="int64") * 7919
    rows = np.concatenate([generator.integers(-99, 99, (count, dim)).astype("float32"), np.zeros((1, dim), "float32")])
    optimizer.state["step"] = 1
    table.step(keys, -rows[:count], optimizer)
    for each in (1, 3, 20, 256, 300, 5000):
        places = generator.integers(0, count + 1, (max(2, 2000 // each), each))
        asked = np.where(places == count, 5, keys[np.minimum(places, count - 1)])
        read = safe_embedding_lookup_sparse(table, asked, combiner="sum")
        assert np.array_equal(read, np.sum(rows[places], axis=1)), each
    assert np.array_equal(table.lookup(keys[::-1]), rows[:count][::-1])


def test_ids_may_be_arrays_of_one_and_two_dimensions():
    table, first = made(4)
    ids = np.asarray([[1, 2, -1], [3, 3, 3]])
    assert np.allclose(safe_embedding_lookup_sparse(table, ids, combiner="sum")[0], first[1] + first[2])
    assert np.allclose(safe_embedding_lookup_sparse(table, ids)[1], first[3])
    assert (safe_embedding_lookup_sparse(table, ids[:, 0]) == first[np.asarray([1, 3])]).all()
    assert safe_embedding_lookup_sparse(table, np.zeros((0, 3), "int64")).shape == (0, 4)
    assert (safe_embedding_lookup_sparse(table, np.zeros((2, 0), "int64")) == 0).all()


@each("dim", [16, 20, 64])
@each("combiner", ["sum", "mean"])
@each("plain", [False, True])
def test_one_id_below_0_late_among_many_single_keys(dim, combiner, plain):
    table, first = made(dim)
    ids = numpy.random.default_rng(dim).integers(0, 50, 5000)
    for left_out in ([], [4900], [7, 3000]):
        ids[left_out] = -1
        for shape in ((5000,), (1000, 5)):
            asked = ids.reshape(shape)
            [found] = group_embedding_lookup_sparse([first if plain else table], [np.asarray(asked)], None, combiner)
            wanted = expected_of_rows(first, asked.reshape(shape[0], -1), combiner)
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_as_many_ids_as_bags_need_not_be_one_each():
    table, first = made(16)
    bags = [[1, 2], [], [3], [4, 5, 6], [], []]
    found = safe_embedding_lookup_sparse(table, Ragged.of(bags), combiner="sum")
    np.testing.assert_allclose(found, expected(first, bags, None, "sum", None), rtol=1e-5, atol=1e-5)


def test_a_key_that_waits_reads_no_permission_in_bags_too():
    table, first = made(4, filter=CounterFilter(2), default_value_no_permission=0.5)
    assert (safe_embedding_lookup_sparse(table, Ragged.of([[1, 2]]), combiner="sum") == 1.0).all()


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_a_gradient_step_is_that_of_a_dense_table(combiner):
    """The rows after one step of SGD give their gradients: equal to those of the dense table by engine.grad."""
    generator = np.random.default_rng(4)
    ids, weights = drawn(generator, 40, 9)
    given = np.asarray(sum(weights, []), "float32")
    bags, target = Ragged.of(ids), generator.standard_normal((40, 6)).astype("float32")
    table, first = made(6)
    layer, optimizer = nn.SparseEmbedding(table, combiner, default_id=5), optim.SGD(0.5)
    value, gradients = nn.value_and_grad(layer, lambda: ((layer(bags, given) - target) ** 2).sum())()

    def dense(weights_of_table):
        total = 0.0
        for bag, factors, wanted in zip(ids, weights, target):
            kept = [(key, w) for key, w in zip(bag, factors) if key >= 0 and w > 0] or [(5, 1)]
            by = {"sum": 1, "mean": sum(w for _, w in kept), "sqrtn": sum(w * w for _, w in kept) ** 0.5}[combiner]
            by = by if any(key >= 0 and w > 0 for key, w in zip(bag, factors)) else 1
            row = sum(weights_of_table[key] * (w / by) for key, w in kept)
            total = total + ((row - wanted) ** 2).sum()
        return total

    other, of_rows = value_and_grad(dense)(first)
    assert float(value) == pytest.approx(float(other), rel=1e-5)
    combined = gradients["anchor"].combined()
    for key, row in zip(combined.ids.tolist(), combined.rows):
        assert np.allclose(row, of_rows[key], 1e-4, 1e-4)
    optimizer.update(layer, gradients)
    touched = sorted(set(combined.ids.tolist()))
    assert len(table) == len(touched)
    after = table.lookup(np.asarray(touched))
    assert np.allclose(after, (first - 0.5 * of_rows)[np.asarray(touched)], 1e-4, 1e-4)


def test_tables_that_are_read_twice_make_one_step():
    """Adagrad's step of a sum is not the sum of two steps."""
    table, first = made(2, optimizer=optim.Adagrad(1.0))
    a, b = nn.SparseEmbedding(table, "sum"), nn.SparseEmbedding(table, "sum")
    both, optimizer = nn.Sequential(a, b), optim.Adagrad(1.0)

    def loss():
        x, y = group_embedding_lookup_sparse([a, b], [np.asarray([[1, 1]]), np.asarray([[1]])], combiners="sum")
        return (x + y).sum()

    _, gradients = nn.value_and_grad(both, loss)()
    optimizer.update(both, gradients)
    assert np.allclose(table.lookup(np.asarray([1])), first[1] - 3 / 3.0, 1e-5)


def test_clipping_scales_what_tables_get():
    table, first = made(1)
    layer = nn.SparseEmbedding(table, "sum")
    _, gradients = nn.value_and_grad(layer, lambda: layer(np.asarray([[1, 1, 1], [2, 2, 2]])).sum() * 4)()
    clipped, norm = optim.clip_grad_norm(gradients, 1.0)
    assert norm == pytest.approx(12 * 2**0.5)
    optim.SGD(1.0).update(layer, clipped)
    assert np.allclose(table.lookup(np.asarray([1, 2]))[:, 0], first[1:3, 0] - 2**-0.5, 1e-4)


def test_a_frozen_layer_is_not_trained():
    table, _ = made(2)
    layer = nn.SparseEmbedding(table).freeze()
    _, gradients = nn.value_and_grad(layer, lambda: layer(np.asarray([[1]])).sum())()
    optim.SGD(1.0).update(layer, gradients)
    assert len(table) == 0


def test_results_are_the_same_on_any_number_of_threads():
    generator = np.random.default_rng(2)
    tables = [made(16, seed)[0] for seed in range(8)]
    ids = [Ragged.of(drawn(generator, 3000, 5)[0]) for _ in tables]
    before = library.threads()
    results = []
    try:
        for threads in (1, before):
            library.set_threads(threads)
            results.append(group_embedding_lookup_sparse(tables, ids, together=True))
    finally:
        library.set_threads(before)
    assert (results[0] == results[1]).all()


def test_offsets_that_another_thread_writes_meanwhile_harm_nobody():
    table, _ = made(8)
    bags, stop = Ragged.of([[1, 2, 3]] * 20000), threading.Event()

    def disturb():
        while not stop.is_set():
            for number in (-5, 2**40, 7):
                bags.offsets[1:-1] = number
                bags.values[:] = number

    thread = threading.Thread(target=disturb)
    thread.start()
    refused = 0
    try:
        for _ in range(30):
            try:
                safe_embedding_lookup_sparse(table, bags)
            except ValueError:
                refused += 1
    finally:
        stop.set()
        thread.join()
    assert refused > 0


@pytest.mark.parametrize(
    ("ids", "weights", "said"),
    [
        (([1, 2], [0, 3]), None, "the number of ids, 2, last, got 0 and 3"),
        (([1, 2], [1, 2]), None, "expected 0 first"),
        (([1, 2, 3], [0, 3, 1, 3]), None, "they decrease from 3 to 1 after bag 1"),
        (([1, 2], []), None, "one offset more than bags"),
        (([1, 2], [0, 2]), [1.0], "weights: expected 2"),
    ],
)
def test_bags_that_are_none_are_refused(ids, weights, said):
    table, _ = made(2)
    bags = Ragged(np.asarray(ids[0], "int64"), np.asarray(ids[1], "int64"))
    with pytest.raises(ValueError, match=said):
        safe_embedding_lookup_sparse(table, bags, weights)


def test_what_does_not_belong_together_is_refused():
    table, _ = made(2)
    with pytest.raises(ValueError, match="expected one of sum, mean, sqrtn, got 'max'"):
        safe_embedding_lookup_sparse(table, np.asarray([1]), combiner="max")
    with pytest.raises(ValueError, match="expected one for each of 2 tables, got 1"):
        group_embedding_lookup_sparse([table, table], [np.asarray([1])])
    with pytest.raises(ValueError, match="as many bags of each table"):
        group_embedding_lookup_sparse([table, table], [np.asarray([1]), np.asarray([1, 2])])
    with pytest.raises(ValueError, match="default_id: expected a key from 0 on"):
        safe_embedding_lookup_sparse(table, np.asarray([1]), default_id=-4)


@each("dim", [1, 3, 16, 64, 100])
@each("combiner", ["sum", "mean", "sqrtn"])
def test_bags_of_plain_tables(dim, combiner):
    """Arrays as tables give the same as a growing table beside them."""
    generator = np.random.default_rng(dim)
    table, first = made(dim)
    wide = np.zeros((50, dim + 5), "float32")
    wide[:, 2 : dim + 2] = first
    asked = [drawn(generator, 90, longest) for longest in (1, 40, 700)]
    for weighted in (False, True):
        for default_id in (None, 11):
            for ids, weights in asked:
                weights = [np.asarray(sum(weights, []), "float32")] * 4 if weighted else None
                tables = [table, first, wide[:, 2 : dim + 2], first[::-1][::-1]]
                results = group_embedding_lookup_sparse(tables, [Ragged.of(ids)] * 4, weights, combiner, default_id)
                for result in results[1:]:
                    assert np.array_equal(result, results[0])


def test_single_keys_of_plain_tables():
    rows = np.random.default_rng(0).standard_normal((5000, 16)).astype("float32")
    ids = np.random.default_rng(1).integers(0, 5000, 20_000)
    assert np.array_equal(safe_embedding_lookup_sparse(rows, ids, combiner="sum"), rows[ids])
    assert np.array_equal(safe_embedding_lookup_sparse(nn.Embedding(9, 4), np.asarray([-1])), [[0] * 4])


@pytest.mark.parametrize("shape", [(300,), (300, 2), (1, 5000)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("number", [10, 2**40, 2**63 - 1])
@each("dim", [16, 64])
def test_ids_without_a_row_in_a_plain_table(shape, weighted, number, dim):
    rows, ids = np.ones((10, dim), "float32"), np.zeros(shape, "int64")
    weights = np.ones(ids.shape, "float32") if weighted else None
    ids[-1:] = number
    with pytest.raises(ValueError, match=f"rows 0 to 9, got {number}"):
        safe_embedding_lookup_sparse(rows, ids, weights, "sum")
    with pytest.raises(ValueError, match=f"rows 0 to 9, got {number}"):
        safe_embedding_lookup_sparse(rows, Ragged.of([[], [-1]]), combiner="sum", default_id=number)


@pytest.mark.parametrize("rows", [np.ones(3, "float32"), np.ones((3, 2)), np.ones((3, 2), "int64"), [[1.0], [2.0]], 7])
def test_what_is_no_plain_table(rows):
    with pytest.raises(ValueError, match=r"float32 of shape \[rows, dim\]"):
        safe_embedding_lookup_sparse(rows, np.asarray([0]))


@pytest.mark.parametrize("rows", [np.ones((4, 6), "float32")[:, ::2], np.ones((4, 0), "float32")])
def test_rows_that_are_not_contiguous(rows):
    with pytest.raises(ValueError, match="contiguous rows"):
        safe_embedding_lookup_sparse(rows, np.asarray([0]))


def test_an_empty_plain_table():
    rows = np.zeros((0, 3), "float32")
    assert np.array_equal(safe_embedding_lookup_sparse(rows, np.asarray([[-1], [-2]])), np.zeros((2, 3)))
    with pytest.raises(ValueError, match="got 0"):
        safe_embedding_lookup_sparse(rows, np.asarray([0]))


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_gradients_of_plain_tables(combiner):
    """Those of the same made of other operators; they have the rows that were read only."""
    generator = np.random.default_rng(3)
    rows = generator.standard_normal((12, 5)).astype("float32")
    ids = generator.integers(0, 12, (7, 4))
    scale = {"sum": 1.0, "mean": 0.25, "sqrtn": 0.5}[combiner]
    targets = generator.standard_normal((7, 5)).astype("float32")

    def ours(rows):
        return np.sum((safe_embedding_lookup_sparse(rows, ids, None, combiner) - targets) ** 2)

    def other(rows):
        return np.sum((np.sum(np.take(rows, ids, 0), 1) * scale - targets) ** 2)

    (value, gradient), (wanted, dense) = value_and_grad(ours)(rows), value_and_grad(other)(rows)
    assert np.allclose(value, wanted, 1e-5)
    assert isinstance(gradient, RowGradient)
    assert np.allclose(gradient.dense(), dense.dense(), 1e-4, 1e-5)


def test_a_layer_of_a_plain_table_learns_beside_one_that_grows():
    """The optimizer steps the rows that were read, and no others, as it does for nn.Embedding."""
    nn.seed(0)
    plain, (table, _) = nn.Embedding(20, 4), made(4)
    net = nn.Sequential(plain, nn.SparseEmbedding(table, "sum"))
    before = plain.weight.copy()
    ids = np.asarray([[1, 2], [2, 5]])

    def loss():
        a, b = group_embedding_lookup_sparse([plain, net.layers[1]], [ids, ids], combiners="sum")
        return np.sum(a * a) + np.sum(b * b)

    first, gradients = nn.value_and_grad(net, loss)()
    optim.SGD(0.1).update(net, gradients)
    assert nn.value_and_grad(net, loss)()[0] < first
    changed = np.any(plain.weight != before, axis=1)
    assert np.nonzero(changed)[0].tolist() == [1, 2, 5]


def test_an_export_of_bags_of_a_plain_table_says_what_can_be_exported():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows = nn.Embedding(9, 2)

        def __call__(self, ids):
            return safe_embedding_lookup_sparse(self.rows, ids)

    with pytest.raises(nn.ExportError, match=r"nn\.Embedding, called, can"):
        nn.export(Net(), {"ids": np.asarray([1, 2])})
