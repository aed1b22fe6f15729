"""Queries about the machine. A device image replaces this file (`vmhost/image/device`)."""

import os


def memory_bytes():
    """The machine's memory size."""
    import psutil  # imported late: a third of the import time of a host

    try:
        return psutil.virtual_memory().total
    except OSError:  # no /proc
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def memory_used_percent():
    """The share of memory in use, in percent; 0 if there is no /proc."""
    import psutil

    try:
        return psutil.virtual_memory().percent
    except OSError:
        return 0.0
