"""Growing embedding tables: rows by int64 keys, like DeepRec's EmbeddingVariable, the same in the host and in every VM.
docs/embedding.md describes them."""

from vmhost.engine.embedding.checkpoints import CheckpointError, put_rows, restore, save, save_chain
from vmhost.engine.embedding.lookups import (
    Ragged,
    TableGradient,
    group_embedding_lookup_sparse,
    safe_embedding_lookup_sparse,
)
from vmhost.engine.embedding.shards import ShardedTable, Shards
from vmhost.engine.embedding.tables import (
    CBFFilter,
    CounterFilter,
    EmbeddingVariable,
    GlobalStepEvict,
    L2WeightEvict,
    SSDStorage,
    table,
)

__all__ = [
    "CBFFilter",
    "CheckpointError",
    "CounterFilter",
    "EmbeddingVariable",
    "GlobalStepEvict",
    "L2WeightEvict",
    "Ragged",
    "SSDStorage",
    "ShardedTable",
    "Shards",
    "TableGradient",
    "group_embedding_lookup_sparse",
    "put_rows",
    "restore",
    "safe_embedding_lookup_sparse",
    "save",
    "save_chain",
    "table",
]
