"""Deaths at durable writes: a process that ends, as by kill -9, at its n-th commit, sync, rename or append to a file.

die_at(7)            # in the child, before it opens a store: it ends before its 7th durable write
die_at(7, True)      # right after it
"""

import os
import sqlite3

STATUS = 99  # exit status of a process that died here
_KINDS = ("fsync", "fdatasync", "replace", "rename", "write")


def die_at(number, after=False):
    """Counts from now on; `number` 0 never dies. Returns a function that says how many writes there were."""
    counted = [0]

    def passed(act):
        counted[0] += 1
        here = counted[0] == number
        if here and not after:
            os._exit(STATUS)
        result = act()
        if here:
            os._exit(STATUS)
        return result

    class Connection(sqlite3.Connection):
        def execute(self, sql, *parameters):
            durable = sql == "COMMIT" or sql.startswith(("VACUUM", "PRAGMA wal_checkpoint"))
            run = super().execute
            return passed(lambda: run(sql, *parameters)) if durable else run(sql, *parameters)

    connect = sqlite3.connect
    sqlite3.connect = lambda *arguments, **options: connect(*arguments, **options, factory=Connection)

    def counting(function):
        return lambda *arguments, **options: passed(lambda: function(*arguments, **options))

    for kind in _KINDS:
        setattr(os, kind, counting(getattr(os, kind)))
    return lambda: counted[0]
