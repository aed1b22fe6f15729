"""Waiting for Ctrl-C."""

import math
import time

_CHECK_S = 0.25  # the longest time for which a signal stays unseen


def sleep(seconds=None):
    """Sleeps for `seconds`, None: forever. Ctrl-C ends it with KeyboardInterrupt.

    Python checks for signals on the main thread. A signal does not wake that thread if it arrives just before the sleep
    begins, or on another thread. So the sleep is divided into short ones, with a check after each."""
    end = math.inf if seconds is None else time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, _CHECK_S))
