"""Which thousandth of all devices, or of all people, one is in.

Each has one of the cohorts 1 to 1000 for each task, or other salt, by a hash of both: who is among the first 5 % of a
salt is among its first 10 %, and always will be; of another salt, others are.
"""

import hashlib

COHORTS = 1000


def cohort_of(salt: str, name: str) -> int:
    """1 to 1000, the same for ever."""
    digest = hashlib.sha256(f"{salt}\0{name}".encode(errors="surrogatepass")).digest()
    return 1 + int.from_bytes(digest[:8]) % COHORTS
