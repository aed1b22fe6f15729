"""Cohorts: stable random samples of devices or people, in thousandths.

For each salt, such as a task, a hash of salt and name gives each of them a cohort from 1 to 1000. Whoever is in the
first 5 % of a salt is also in its first 10 %, for ever; other salts give independent samples.
"""

import hashlib

COHORTS = 1000


def cohort_of(salt: str, name: str) -> int:
    """1 to 1000; never changes."""
    digest = hashlib.sha256(f"{salt}\0{name}".encode(errors="surrogatepass")).digest()
    return 1 + int.from_bytes(digest[:8]) % COHORTS
