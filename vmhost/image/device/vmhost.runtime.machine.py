"""What the host asks of the machine that it runs on, from /proc. Stands in the place of vmhost/runtime/machine.py in a
device image."""

import os


def memory_bytes():
    """How much memory the machine has."""
    try:
        return _kibibytes("MemTotal") << 10
    except OSError:  # no /proc
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def memory_used_percent():
    """How much of it is taken, in percent; 0 where no /proc tells."""
    try:
        total = _kibibytes("MemTotal")
        return 100.0 * (total - _kibibytes("MemAvailable")) / total
    except OSError:
        return 0.0


def _kibibytes(name):
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            key, _, value = line.partition(":")
            if key == name:
                return int(value.split()[0])
    raise OSError(f"/proc/meminfo has no line {name}")
