"""How people read figures of tasks: the rankings, and numbers, sizes and times as text."""

import time

RANKS = {  # ranking of tasks: title, and the row's value
    "cpu": ("CPU", lambda row: row["cpu"]),
    "memory": ("memory", lambda row: row["memory"]),
    "errors": ("errors", lambda row: (row["errors"], row["failures"])),
    "p99": ("p99", lambda row: row["p99"] or 0),
    "calls": ("calls", lambda row: (row["rate"], row["calls"])),
    "waiting": ("waiting", lambda row: (row["queued"], row["running"])),
    "name": ("name", None),
}


def duration(seconds):
    if seconds is None:
        return "–"
    for unit, length in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= length or unit == "µs":
            return f"{seconds / length:.3g} {unit}"


def size(size_bytes):
    for unit, length in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= length:
            return f"{size_bytes / length:.1f} {unit}"
    return f"{size_bytes} B"


def count(number):
    return f"{number:,}"


def rate(number):
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def share(number):
    return f"{number:.1%}"


def clock(time_s):
    return time.strftime("%H:%M:%S", time.localtime(time_s))


def moment(time_s):
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_s))
