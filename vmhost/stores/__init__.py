"""On-disk stores for several rooms: SQLite databases with one writer, schema versions and damage checks."""

from vmhost.stores.database import Database
from vmhost.stores.epochs import Epochs, reached
from vmhost.stores.errors import (
    StoreAccessError,
    StoreClosedError,
    StoreDamagedError,
    StoreError,
    StoreForeignError,
    StoreFullError,
    StoreInUseError,
    StoreVersionError,
    is_of_store,
)
from vmhost.stores.group_commit import GroupCommit
from vmhost.stores.outbox import Entry, Outbox
from vmhost.stores.rows import write_rows

__all__ = [
    "Database",
    "Entry",
    "Epochs",
    "GroupCommit",
    "Outbox",
    "StoreAccessError",
    "StoreClosedError",
    "StoreDamagedError",
    "StoreError",
    "StoreForeignError",
    "StoreFullError",
    "StoreInUseError",
    "StoreVersionError",
    "is_of_store",
    "reached",
    "write_rows",
]
