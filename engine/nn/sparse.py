"""A layer over a growing embedding table (vmhost.engine.embedding)."""

from vmhost.engine.embedding.lookups import safe_embedding_lookup_sparse
from vmhost.engine.nn.module import Module


class SparseEmbedding(Module):
    """The combined rows of bags of keys of an EmbeddingVariable: [bags, dim].

    Its gradient is a TableGradient, which `optimizer.update` applies to the table. Weights and slots belong to the
    table, and are saved with it (`embedding.save`), not with the model."""

    def __init__(self, table, combiner="mean", default_id=None):
        super().__init__()
        self.anchor = table.anchor  # has no elements; gradients are taken with respect to it
        self._variable, self._combiner, self._default_id = table, combiner, default_id

    @property
    def combiner(self):
        return self._combiner

    @property
    def default_id(self):
        return self._default_id

    def __call__(self, ids, weights=None):
        """ids: a Ragged, an array [bags, n], or [bags] of single keys."""
        return safe_embedding_lookup_sparse(self, ids, weights, self._combiner, self._default_id)
