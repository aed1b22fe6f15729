"""Waiting for Ctrl-C."""

import math
import time

_LOOK_S = 0.25


def sleep(seconds=None):
    """Sleeps that long, or until Ctrl-C. Python handles a signal on the main thread, but one that arrives between its
    last check and its sleep, or on another thread, does not end the sleep: so it wakes up to check again."""
    end = math.inf if seconds is None else time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, _LOOK_S))
