"""The facts that a device states about itself, for audiences."""

import os
import platform
import shutil
import sys

from vmhost import __version__
from vmhost.deployment import stated_facts

_ISA = ("sse4_2", "avx2", "avx512f", "avx512_vnni", "amx_int8", "asimd", "sve")


def facts(folder, stated):
    """Plain data. `stated` (from agent.yaml) adds to the detected facts, and overrides them. Facts that no device may
    state become the fact `problem`."""
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
    good, bad = stated_facts.divided(stated)
    if bad:
        good = {"problem": "facts: " + "; ".join(f"{name}: {why}" for name, why in bad.items())[:500]} | good
    # The platform selects bundles by `python`, so it cannot be overridden.
    return found | good | {"python": found["python"]}


def coarse(size):
    """`size` in bytes, rounded down to its three leading binary digits (in steps of a quarter to a seventh).

    Free space changes all the time, but the profile should not: a device with an unchanged profile asks by its digest
    only.
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
