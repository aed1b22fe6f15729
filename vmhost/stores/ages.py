"""The age of stored data, by which it is dropped: a count of the time that the machine ran, which no clock moves.

The time of day may jump by years: a device without a battery for its clock starts in 1970. The count is that of
CLOCK_BOOTTIME, which includes suspended time. After a reboot it goes on from where the store last had it: time while
the machine is off does not count.
"""

import functools
import time
from pathlib import Path

_STEPS = (
    "CREATE TABLE store_age (one INTEGER PRIMARY KEY CHECK (one = 1), boot TEXT, boot_ms INTEGER, age_ms INTEGER)",
)
_WRITTEN_MS = 1000  # how much the stored count may lag behind


@functools.cache
def _boot():
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def machine_time():
    """(which start of the machine this is, ms since then)."""
    return _boot(), time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class Ages:
    """The count of `database`. `running`: as `machine_time`. Thread-safe."""

    def __init__(self, database, running=machine_time):
        self._running = running
        database.migrate("ages", _STEPS)

    def now_ms(self, connection):
        """The count; `connection`: of a transaction or a reader."""
        boot, boot_ms = self._running()
        row = connection.execute("SELECT boot, boot_ms, age_ms FROM store_age").fetchone()
        if row is None:
            return 0
        was_boot, was_ms, age_ms = row
        return age_ms + max(0, boot_ms - was_ms) if boot == was_boot else age_ms

    def advance(self, connection):
        """As `now_ms`, in a transaction: stores the count too."""
        age_ms = self.now_ms(connection)
        boot, boot_ms = self._running()
        row = connection.execute("SELECT boot, age_ms FROM store_age").fetchone()
        if row is None or row[0] != boot or age_ms - row[1] >= _WRITTEN_MS:
            connection.execute("INSERT OR REPLACE INTO store_age VALUES (1, ?, ?, ?)", (boot, boot_ms, age_ms))
        return age_ms
