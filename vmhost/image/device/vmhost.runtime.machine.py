"""Facts about the machine for the host, from /proc. Replaces vmhost/runtime/machine.py in a device image."""

import os


def memory_bytes():
    """The memory of the machine, in bytes."""
    try:
        return _kibibytes("MemTotal") << 10
    except OSError:  # no /proc
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def memory_used_percent():
    """The memory in use, in percent; 0 without /proc."""
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
