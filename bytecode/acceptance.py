"""Remembers which standard-library bundles are verified. Every VM unmarshals that bundle, so its code must be checked
once per file, not per boot or process.

A bundle that this Python has just compiled is accepted without the verifier (`docs/verifier.md`): its builder notes
the digest beside it. Any other file, such as a copy, a restored backup or one damaged before its digests were made,
goes through the verifier when it is first used: about five seconds."""

import contextlib
import os
import tempfile
from pathlib import Path

from .errors import BundleError


def accept(bundle, path):
    """Raises BundleError unless `bundle`, read from `path`, is a standard library that was built here or passes the
    verifier."""
    if bundle.manifest.kind != "stdlib":
        raise BundleError(
            f"{bundle.where}: expected the standard-library bundle, got the bundle of a "
            f"{bundle.manifest.kind}; build it again with `python -m vmhost.stdlib`"
        )
    if not is_accepted(bundle, path):
        bundle.verify()
        note(bundle, path)


def is_accepted(bundle, path):
    """Does the note beside `path` hold this bundle's digest?"""
    try:
        return _note(path).read_text() == bundle.digest.hex()
    except OSError, UnicodeDecodeError:
        return False


def note(bundle, path):
    """Notes beside `path` that `bundle` need not be verified again; silently not where that cannot be written."""
    with contextlib.suppress(OSError):
        descriptor, unfinished = tempfile.mkstemp(dir=Path(path).parent)
        os.fchmod(descriptor, 0o644)  # a digest: other users of the same installation may read it
        with open(descriptor, "w") as file:
            file.write(bundle.digest.hex())
        os.replace(unfinished, _note(path))


def _note(path):
    return Path(f"{path}.accepted")
