"""Which thousandth of all devices a device is in.

A device has one of the cohorts 1 to 1000 for each task, by a hash of both: who is among the first 5 % of a task's
releases is among its first 10 %, and always will be; of another task's, other devices are.
"""

import hashlib

COHORTS = 1000


def cohort_of(task, device):
    """1 to 1000, the same for ever."""
    digest = hashlib.sha256(f"{task}\0{device}".encode()).digest()
    return 1 + int.from_bytes(digest[:8]) % COHORTS
