"""A form of bundles without redundant parts, between which deltas are made.

A bundle has the SHA-256 of each file in its manifest, and a checksum and an offset of it twice in the zip: numbers that
no delta can predict, some 1,400 bytes where 40 files move. `unfold` leaves them out, `fold` computes them again. Each
code object has the task's version in its file name, so a new version changes every file: `renamed` replaces the old
name by the new one.

    MessagePack of [manifest without `files`, signature or nil, [[path, size], ...]], then the files
"""

import hashlib

import msgpack

from vmhost.bytecode.archive import read_archive, write_archive
from vmhost.bytecode.errors import BundleError

_MANIFEST, _SIGNATURE = "manifest.msgpack", "signature"
_SHORT_TEXTS = frozenset(b"zZ")  # marshal's types of text with a one-byte length (0x80: a flag)


class NotABundleError(Exception):
    """The bytes are not a bundle, or a bundle without such a form."""


def unfold(data):
    """(the name of the bundle in its code objects, its other form); NotABundleError."""
    try:
        entries = {path: bytes(view) for path, view in read_archive(data, "bundle").items()}
        manifest = msgpack.unpackb(entries.pop(_MANIFEST))
        signature = entries.pop(_SIGNATURE, None)
        manifest["files"] = None
        name = f"{manifest['name']}@{manifest['version']}/".encode()
        head = msgpack.packb([manifest, signature, [[path, len(content)] for path, content in entries.items()]])
    except (BundleError, msgpack.UnpackException, KeyError, TypeError, ValueError, OverflowError) as error:
        raise NotABundleError(str(error)) from error
    return name, b"".join([head, *entries.values()])


def fold(form):
    """The bundle's bytes; NotABundleError if the form is invalid. The caller checks the digest."""
    try:
        unpacker = msgpack.Unpacker(max_buffer_size=max(1, len(form)))
        unpacker.feed(form)
        manifest, signature, sizes = unpacker.unpack()
        at, entries, records = unpacker.tell(), {}, {}
        for path, size in sizes:
            content = form[at : at + size]
            if size < 0 or len(content) != size or path in entries:
                raise ValueError(f"{path!r}: {size} bytes are not there")
            entries[path] = content
            records[path] = [hashlib.sha256(content).digest(), size]
            at += size
        if at != len(form):
            raise ValueError("bytes that belong to no file")
        manifest["files"] = records
        entries[_MANIFEST] = msgpack.packb(manifest)
        if signature is not None:
            entries[_SIGNATURE] = signature
        return write_archive(entries)
    except (msgpack.UnpackException, AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise NotABundleError(str(error) or type(error).__name__) from error


def renamed(form, old, new):
    """The form with `new` in place of `old`, and with the lengths that marshal puts before such texts corrected."""
    if old == new:
        return form
    parts, at, longer = [], 0, len(new) - len(old)
    while (found := form.find(old, at)) >= 0:
        before = bytearray(form[at:found])
        if len(before) >= 2 and before[-2] & 0x7F in _SHORT_TEXTS and 0 <= before[-1] + longer < 256:
            before[-1] += longer
        parts += [bytes(before), new]
        at = found + len(old)
    return b"".join([*parts, form[at:]])
