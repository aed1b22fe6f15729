"""Valid names of repositories, tasks, versions and devices, and codes of devices that ask to join."""

import hashlib
import re

from vmhost.deployment.errors import RefusedError

KINDS = {  # of a name: its pattern, and that in words
    "repository": (re.compile(r"[a-z0-9][a-z0-9_-]{0,62}"), "a-z, 0-9, _ and -, at most 63"),
    "branch": (re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}"), "letters, digits, _ and -, at most 63"),
    "version": (re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}"), "letters, digits and .+_-, at most 64"),
    "device": (re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}"), "letters, digits and _.:-, at most 128"),
    "cohort": (re.compile(r"[a-z0-9][a-z0-9_-]{0,62}"), "a-z, 0-9, _ and -, at most 63"),
}


def check(kind, name):
    """Returns `name` if it is valid for such a thing; RefusedError."""
    pattern, expected = KINDS[kind]
    if not isinstance(name, str) or not pattern.fullmatch(name):
        shown = name[:80] if isinstance(name, str) else name
        raise RefusedError(f"{kind} {shown!r}: expected a name of {expected} characters")
    return name


def check_task(name):
    """`repository/branch`; RefusedError."""
    repository, slash, branch = name.partition("/") if isinstance(name, str) else ("", "", "")
    if not slash:
        raise RefusedError(f"task {name!r}: expected repository/branch, as in shop/rank")
    check("repository", repository)
    check("branch", branch)
    return name


def join_code(secret):
    """The code by which an admin knows a device that asks to join, as in 3f2a-9c01-77be-0d44; both ends derive it from
    the device's secret."""
    digest = hashlib.sha256(b"join " + secret.encode(errors="surrogatepass")).hexdigest()
    return "-".join(digest[at : at + 4] for at in range(0, 16, 4))
