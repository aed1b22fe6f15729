"""The standard-library bundle is unmarshalled in every VM, so its code is verified once per file, not per boot or
process.

What this Python has compiled a moment ago is right as far as the verifier could tell (`docs/verifier.md`), so who
builds the bundle only notes its digest beside it. Any other file, copied from elsewhere, restored from a backup or
damaged before its digests were made, goes through the verifier the first time that it is used: some five seconds."""

import contextlib
import os
import tempfile
from pathlib import Path

from .errors import BundleError


def accept(bundle, path):
    """Raises BundleError unless `bundle`, read from `path`, is a standard library that was made here or passes the
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
    """Does the note beside `path` name this very bundle?"""
    try:
        return _note(path).read_text() == bundle.digest.hex()
    except OSError, UnicodeDecodeError:
        return False


def note(bundle, path):
    """Leaves the note that `bundle`, which lies at `path`, need not be verified again; none where that can't be
    written."""
    with contextlib.suppress(OSError):
        descriptor, unfinished = tempfile.mkstemp(dir=Path(path).parent)
        with open(descriptor, "w") as file:
            file.write(bundle.digest.hex())
        os.replace(unfinished, _note(path))


def _note(path):
    return Path(f"{path}.accepted")
