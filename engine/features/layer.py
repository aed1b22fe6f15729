"""The features of a specification as the first layer of a network."""

from vmhost.engine.embedding import group_embedding_lookup_sparse
from vmhost.engine.nn.module import Module
from vmhost.engine.nn.sparse import SparseEmbedding


class FeatureEmbedding(Module):
    """Looks up the rows of all features with tables (or of those named) in one call: side by side, [examples, sum of
    dims]. `tables`: EmbeddingVariables by the specification's names; features of one table share its rows."""

    def __init__(self, spec, tables, features=None):
        super().__init__()
        self._names = tuple(spec.of_tables if features is None else features)
        self.lookups, self.width = [], 0
        for name in self._names:
            feature = spec.features[name]
            table = tables[feature["table"]]
            dim = spec.tables[feature["table"]]["dim"]
            if table.dim != dim:
                raise ValueError(
                    f"{name}: table {feature['table']!r} of the specification has {dim} numbers, this one {table.dim}"
                )
            self.lookups.append(SparseEmbedding(table, feature.get("combiner", "mean"), feature.get("default_id")))
            self.width += table.dim

    def __call__(self, ids, weights=None):
        """`ids` and `weights` as FeatureSpec.transform returns them."""
        weights = weights or {}
        return group_embedding_lookup_sparse(
            self.lookups,
            [ids[name] for name in self._names],
            [weights.get(name) for name in self._names],
            [one.combiner for one in self.lookups],
            [one.default_id for one in self.lookups],
            together=True,
        )
