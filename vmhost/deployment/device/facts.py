"""What a device states of itself, so that audiences can be asked about it."""

import os
import platform
import shutil
import sys

from vmhost import __version__

_ISA = ("sse4_2", "avx2", "avx512f", "avx512_vnni", "amx_int8", "asimd", "sve")


def facts(folder, stated):
    """Plain data; `stated` (from agent.yaml) adds to what is found out, and stands before it."""
    found = {
        "os": sys.platform,
        "machine": platform.machine(),
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "host": __version__,
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "free_disk": coarse(shutil.disk_usage(folder).free),
        "isa": _instruction_sets(),
    }
    # The platform chooses bundles by this one; nobody may state another.
    return found | stated | {"python": found["python"]}


def coarse(size):
    """`size` in bytes, rounded down to its three leading binary digits (steps of a quarter to a seventh of it).

    Free space changes all the time. The profile should not: a device with the same profile asks by its digest alone.
    """
    low_bits = max(size.bit_length() - 3, 0)
    return size >> low_bits << low_bits


def _instruction_sets():
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith(("flags", "Features")):
                    flags = set(line.split())
                    return [name for name in _ISA if name in flags]
    except OSError:
        pass
    return []
