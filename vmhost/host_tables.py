"""Checks `tables` of Host. A device image has no tables, so it lacks this module and that part of the engine."""

from collections.abc import Mapping

from vmhost.bytecode.fields import MAX_GRANT_CHARS, TABLE, matches, shown
from vmhost.engine.embedding import EmbeddingVariable
from vmhost.errors import ConfigurationError


def checked_tables(tables):
    """The tables by name, as a dict; ConfigurationError for invalid ones."""
    if not isinstance(tables, Mapping):
        raise ConfigurationError(f"tables: expected a mapping of names to EmbeddingVariables, got {shown(tables)}")
    for name, table in tables.items():
        if not matches(TABLE, f"{name}:read", MAX_GRANT_CHARS):
            raise ConfigurationError(f"tables: expected a name of letters, digits, - and _, got {shown(name)}")
        if not isinstance(table, EmbeddingVariable):
            raise ConfigurationError(f"tables: {name}: expected an EmbeddingVariable, got {type(table).__name__}")
        if not table.quota:
            raise ConfigurationError(
                f"tables: {name}: has no quota, so tasks that train it could fill all memory; make it with quota=bytes"
            )
    return dict(tables)
