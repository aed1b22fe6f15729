"""What the host asks of the machine that it runs on. A device image has another file in this one's place
(`vmhost/image/device`)."""

import os


def memory_bytes():
    """How much memory the machine has."""
    import psutil  # late: a third of what importing a host takes

    try:
        return psutil.virtual_memory().total
    except OSError:  # no /proc
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def memory_used_percent():
    """How much of it is taken, in percent; 0 where no /proc tells."""
    import psutil

    try:
        return psutil.virtual_memory().percent
    except OSError:
        return 0.0
