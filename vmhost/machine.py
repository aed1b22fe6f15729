"""What the host asks of the machine that it runs on. A device image has another file in this one's place (`vmhost/image/device`)."""

import psutil


def memory_bytes():
    """How much memory the machine has."""
    return psutil.virtual_memory().total


def memory_used_percent():
    """How much of it is taken, in percent."""
    return psutil.virtual_memory().percent
