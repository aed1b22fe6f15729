"""Lookups of bags of keys, for many tables at once, and their gradients."""

from typing import NamedTuple

from vmhost.engine import _array as _a
from vmhost.engine.embedding.tables import EmbeddingVariable, table_rates
from vmhost.engine.grad.rows import RowGradient
from vmhost.engine.grad.rules import OF_LISTS, RULES
from vmhost.engine.grad.traced import PRIMITIVES, Traced, highest

COMBINERS = ("sum", "mean", "sqrtn")  # in the order of vme_embedding.h


class Ragged(NamedTuple):
    """Bags of different lengths: bag b is values[offsets[b] : offsets[b + 1]]; `offsets` has one more item than there
    are bags."""

    values: object
    offsets: object

    @classmethod
    def of(cls, bags):
        """From a list of lists of integers."""
        offsets = [0]
        for bag in bags:
            offsets.append(offsets[-1] + len(bag))
        return cls(_a.asarray([one for bag in bags for one in bag], "int64"), _a.asarray(offsets, "int64"))


class _Bags(NamedTuple):
    """The bags looked up in one table."""

    table: object
    ids: object
    offsets: object
    weights: object
    default_id: int
    combiner: int

    def native(self):
        return (self.table._table, *self[1:])


class PlainTable:
    """An array [rows, dim] used as a table whose keys are row indices."""

    __slots__ = ("anchor", "dim", "name")
    sharded = False

    def __init__(self, rows):
        self.anchor = getattr(rows, "weight", rows)  # gradients are taken with respect to it: the array itself
        if type(self.anchor) is not Traced:
            self.anchor = _a.asarray(self.anchor)
        if self.anchor.ndim != 2 or self.anchor.dtype != _a.float32:
            raise ValueError(
                f"tables: expected EmbeddingVariables, layers of them, or float32 of shape [rows, dim], "
                f"got {self.anchor.dtype} of shape {self.anchor.shape}"
            )
        self.dim, self.name = self.anchor.shape[1], "table"


def _table_of(one):
    """(the table, the anchor for gradients)."""
    variable = getattr(one, "_variable", one)
    if isinstance(variable, EmbeddingVariable) or getattr(variable, "sharded", False):
        return variable, one.anchor
    plain = PlainTable(one)
    return plain, plain.anchor


class TableGradient:
    """The gradient of a table in which bags were looked up: `parts` are pairs of bags and their gradient."""

    __slots__ = ("parts", "table")

    def __init__(self, table, parts):
        self.table, self.parts = table, parts

    @property
    def dtype(self):
        return _a.float32

    @property
    def shape(self):
        return (0, self.table.dim)

    def __add__(self, other):
        if isinstance(other, TableGradient):
            return TableGradient(self.table, self.parts + other.parts)
        return self  # an anchor used in another way: it has no elements

    __radd__ = __add__

    def __mul__(self, number):
        return TableGradient(self.table, [(bags, dense * number) for bags, dense in self.parts])

    __rmul__ = __mul__

    def __truediv__(self, number):
        return self * (1 / number)

    def combined(self):
        """The same as a RowGradient: unique keys, with the sums of their gradients."""
        ids, rows = [], []
        for bags, dense in self.parts:
            keys, factors, bag_numbers = keys_of_bags(bags)
            ids.append(keys)
            rows.append(dense[bag_numbers] * _a.reshape(factors, (-1, 1)))
        return RowGradient(_a.concatenate(ids), _a.concatenate(rows), self.shape).combined()

    def __repr__(self):
        return f"TableGradient({self.table.name!r}, {len(self.parts)} lookups)"


def keys_of_bags(bags):
    """(keys, factor of each, its bag) of what the bags read."""
    import vmhost.engine.numpy as np

    counts = bags.offsets[1:] - bags.offsets[:-1]
    bag_numbers = np.repeat(np.arange(len(counts)), counts)
    weights = np.ones(len(bags.ids), "float32") if bags.weights is None else bags.weights
    read = np.logical_and(bags.ids >= 0, weights > 0)
    keys, weights, bag_numbers = bags.ids[read], weights[read], bag_numbers[read]
    sums = np.zeros(len(counts))
    _a._scatter_add(sums, bag_numbers, weights.astype("float64") ** (2 if COMBINERS[bags.combiner] == "sqrtn" else 1))
    if COMBINERS[bags.combiner] != "sum":
        divisors = np.sqrt(sums) if COMBINERS[bags.combiner] == "sqrtn" else sums
        weights = weights * (1 / np.where(divisors > 0, divisors, 1)).astype("float32")[bag_numbers]
    if bags.default_id >= 0:
        empty = np.nonzero(sums == 0)[0]
        keys = np.concatenate([keys, np.full(len(empty), bags.default_id, "int64")])
        weights = np.concatenate([weights, np.ones(len(empty), "float32")])
        bag_numbers = np.concatenate([bag_numbers, empty])
    return keys, weights, bag_numbers


def bags_of(table, ids, weights, combiner, default_id, ends):
    """The arguments in the engine's form; ids may be Ragged, [bags, n] or [bags]. `ends`: a dict that caches offsets
    for other tables' bags of the same shape."""
    if combiner not in COMBINERS:
        raise ValueError(f"{table.name}: combiner: expected one of {', '.join(COMBINERS)}, got {combiner!r}")
    if isinstance(ids, Ragged):
        values, offsets = ids.values, _a.asarray(ids.offsets)
        if type(values) is not Traced:
            values = _a.asarray(values)
        if isinstance(weights, Ragged):
            weights = weights.values
    else:
        if type(ids) is not Traced:
            ids = _a.asarray(ids)
        if ids.ndim not in (1, 2):
            raise ValueError(f"{table.name}: ids: expected Ragged, or 1 or 2 dimensions, got shape {ids.shape}")
        shape = len(ids), 1 if ids.ndim == 1 else ids.shape[1]
        if shape not in ends:
            ends[shape] = _a.arange(shape[0] + 1) * shape[1]
        values, offsets = _flat(ids), ends[shape]
    if weights is not None:
        weights = _flat(weights if type(weights) is Traced else _a.asarray(weights, "float32"))
    if default_id is None:
        default_id = -1
    elif not 0 <= default_id < 2**63:
        raise ValueError(f"{table.name}: default_id: expected a key from 0 on, got {default_id}")
    return _Bags(table, values, offsets, weights, int(default_id), COMBINERS.index(combiner))


def _flat(array):
    """As one dimension. An input of an export is returned unchanged: the exported network refers to it by name."""
    if type(array) is not Traced:
        return _a.reshape(array, (-1,))
    flat = Traced(_a.reshape(array.value, (-1,)), array.tape)
    flat.gradient = array.gradient
    return flat


def embedding_bags(anchors, sets):
    """The results of the sets of bags, side by side. The anchors are those of their tables."""
    tape = highest([*anchors, *(bags.ids for bags in sets)])
    if tape is not None:
        return tape.apply("embedding_bags", (anchors, sets), {})
    return read_bags(anchors, sets)


def _natives(tables):
    """The implementation of these tables' functions: a GPU's if one of them is on it; it refuses the others."""
    return next((one.natives for one in tables if getattr(one, "natives", _a) is not _a), _a)


def read_bags(anchors, sets, apart=False):
    """The results of the sets of bags, side by side, without a tape; `apart`: a list of arrays, one for each set."""
    sharded = next((bags.table for bags in sets if bags.table.sharded), None)
    tables = [bags.table for bags in sets] if sharded is None else sharded.read(sets)
    return _natives(tables)._embedding_bags(
        [
            (rows if type(table) is PlainTable else table._table, *bags[1:])
            for rows, table, bags in zip(anchors, tables, sets)
        ],
        apart,
    )


def _embedding_bags_rule(anchors, sets):
    pulls, column = [], 0
    for rows, bags in zip(anchors, sets):

        def pull(g, rows=rows, bags=bags, begin=column, end=column + bags.table.dim):
            if type(bags.table) is not PlainTable:
                return TableGradient(bags.table, [(bags, g[:, begin:end])])
            keys, factors, bag_numbers = keys_of_bags(bags)
            return RowGradient(keys, g[:, begin:end][bag_numbers] * _a.reshape(factors, (-1, 1)), rows.shape)

        pulls.append(pull)
        column += bags.table.dim
    if any(type(one) is Traced for one in anchors):  # a gradient of a gradient
        return embedding_bags(anchors, sets), pulls
    return read_bags(anchors, sets), pulls


PRIMITIVES["embedding_bags"] = embedding_bags
RULES["embedding_bags"] = _embedding_bags_rule
OF_LISTS.add("embedding_bags")


def _native_sets(tables, ids, combiner):
    """The sets as the engine takes them, of EmbeddingVariables in the host's memory and arrays of ids while no gradient
    is taken; else None. It takes a third of the time of `bags_of`, which counts where bags are few."""
    ends, sets = {}, []
    for table, own in zip(tables, ids):
        if type(table) is not EmbeddingVariable or type(table.anchor) is Traced or type(own) is not _a.ndarray:
            return None
        shape = own.shape
        if len(shape) == 2:
            own = _a.reshape(own, (-1,))
        elif len(shape) != 1:
            return None
        if shape not in ends:
            each = shape[1] if len(shape) == 2 else 1
            ends[shape] = _a.arange(shape[0] + 1) * each if each != 1 else _a.arange(shape[0] + 1)
        sets.append((table._table, own, ends[shape], None, -1, combiner))
    return sets


def group_embedding_lookup_sparse(tables, ids, weights=None, combiners="mean", default_ids=None, *, together=False):
    """For each table the combined rows of its bags: a list of arrays [bags, dim], or with `together` one array of them
    side by side.

    tables: EmbeddingVariables, or layers `nn.SparseEmbedding` if gradients are needed; or plain tables: float32 of
        shape [rows, dim] or layers `nn.Embedding`, with row indices as ids and RowGradients as gradients. A table may
        occur several times.
    ids: for each a Ragged, or an array [bags, n], or [bags] of single keys.
    weights: of the ids, of the same shapes; None: all are 1.
    combiners: "sum", "mean" or "sqrtn", one for all tables or a list with one for each.
    default_ids: of bags without ids, one for all tables or a list with one for each; None: their rows are zeros.
    together: return one array.

    Ids below 0 and ids whose weight is not above 0 are skipped; a bag without ids reads the row of its default id, or
    zeros. All tables must have the same number of bags.
    """
    count = len(tables)
    if len(ids) != count:
        raise ValueError(f"ids: expected one for each of {count} tables, got {len(ids)}")
    if weights is None and default_ids is None and combiners in COMBINERS:
        sets = _native_sets(tables, ids, COMBINERS.index(combiners))
        if sets is not None:
            return _a._embedding_bags(sets, not together)
    weights = [None] * count if weights is None else weights
    combiners = [combiners] * count if isinstance(combiners, str) else combiners
    default_ids = [default_ids] * count if default_ids is None or isinstance(default_ids, int) else default_ids
    for what, given in (("weights", weights), ("combiners", combiners), ("default_ids", default_ids)):
        if len(given) != count:
            raise ValueError(f"{what}: expected one for each of {count} tables, got {len(given)}")
    variables, anchors = zip(*map(_table_of, tables)) if tables else ((), ())
    ends = {}
    sets = tuple(bags_of(*one, ends) for one in zip(variables, ids, weights, combiners, default_ids))
    tape = highest([*anchors, *(bags.ids for bags in sets)])
    if tape is None:
        return read_bags(anchors, sets, not together)
    joined = tape.apply("embedding_bags", (list(anchors), sets), {})
    if together:
        return joined
    parts, column = [], 0
    for one in variables:
        parts.append(joined[:, column : column + one.dim])
        column += one.dim
    return parts


def safe_embedding_lookup_sparse(table, ids, weights=None, combiner="mean", default_id=None):
    """The combined rows of each bag of one table, an array [bags, dim].

    table, ids, weights, combiner, default_id: as of one table in group_embedding_lookup_sparse."""
    weights = None if weights is None else [weights]
    return group_embedding_lookup_sparse([table], [ids], weights, [combiner], [default_id], together=True)


def apply_gradients(gradients, optimizer, global_step=None):
    """A gradient step for all tables of these TableGradients, in one call of the engine. `optimizer.state` already
    counts this update."""
    rates = [table_rates(one.table, optimizer, global_step) for one in gradients][-1:]  # their version is the highest
    sharded = [one for one in gradients if one.table.sharded]
    sets = [(*bags.native(), dense) for one in gradients if not one.table.sharded for bags, dense in one.parts]
    if sets:
        natives = _natives([one.table for one in gradients if not one.table.sharded])
        natives._embedding_update_bags(sets, rates[0])
    if sharded:
        sharded[0].table.update(sharded, rates[0])
