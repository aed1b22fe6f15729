"""Replaces files in one step, so that no reader sees a partial one."""

import os


def replace_file(path, data):
    """Writes the bytes `data` to the Path `path`; readers of an existing file see the old one or the new one.

    On OSError, nothing has changed."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_bytes(data)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
