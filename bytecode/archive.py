"""A bundle's container: a zip in one canonical form, which any zip tool can list.

A set of names and contents has exactly one encoding: entries sorted by name, stored without compression, dated
1980-01-01, mode 0644, no comments, no extra fields, no gaps. The reader accepts only that form, so two readers cannot
disagree about a bundle's contents, nothing hides between entries, and nothing decompresses to more than its size.
`zipfile` isn't used: its output may change with Python, and it accepts too much.
"""

import re
import struct
import zlib

from .errors import BundleError

MAX_BYTES = 1 << 30
MAX_ENTRIES = 65_534  # 65,535 would mean zip64
MAX_NAME_BYTES = 1024

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_VERSION_NEEDED = 20
_MADE_BY = 3 << 8 | 20  # Unix, zip 2.0
_DATE = 1 << 5 | 1  # 1980-01-01, zip's first day
_MODE = 0o100644 << 16
_UTF8 = 1 << 11
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\:]")
_AGAIN = "copy or compile it again"


def write_archive(entries):
    """The canonical zip of `entries` (path to bytes). ValueError for a path or size that does not fit it."""
    if len(entries) > MAX_ENTRIES:
        raise ValueError(f"expected at most {MAX_ENTRIES} files in a bundle, got {len(entries)}")
    body, directory, offset = [], [], 0
    for name, data in sorted((path.encode(), data) for path, data in entries.items()):
        problem = path_problem(name)
        if problem:
            raise ValueError(f"{name.decode()!r}: {problem}")
        if offset + len(data) > MAX_BYTES:
            raise ValueError(f"expected at most {MAX_BYTES} bytes in a bundle, got more; leave large files out")
        crc = zlib.crc32(data)
        local = _local_header(name, crc, len(data))
        directory.append(_central_header(name, crc, len(data), offset))
        body += (local, data)
        offset += len(local) + len(data)
    central = b"".join(directory)
    return b"".join(body) + central + _end(len(entries), len(central), offset)


def read_archive(data, where):
    """The entries of the zip `data` (bytes or bytearray): path to a memoryview of it. BundleError, naming `where`,
    unless the zip is canonical."""
    if data and not data.startswith((b"PK\3\4", b"PK\5\6")):
        told = f"expected a zip file that `vmhost compile` made, got one that begins with {bytes(data[:4])!r}"
        raise BundleError(f"{where}: not a bundle: {told}")
    if len(data) < _END.size:
        raise BundleError(f"{where}: truncated: expected at least {_END.size} bytes, got {len(data)}; {_AGAIN}")
    signature, _, _, _, count, central_size, central_at, _ = _END.unpack_from(data, len(data) - _END.size)
    if signature != b"PK\5\6":
        raise BundleError(f"{where}: truncated, or something was added: expected a zip directory at the end; {_AGAIN}")
    end_at = len(data) - _END.size
    if central_at + central_size != end_at or data[end_at:] != _end(count, central_size, central_at):
        raise BundleError(f"{where}: damaged: the end of its zip directory is not as the compiler writes it; {_AGAIN}")
    if count > MAX_ENTRIES or count * _CENTRAL.size > central_size:
        raise BundleError(f"{where}: damaged: its zip directory says {count} entries in {central_size} bytes; {_AGAIN}")

    entries, at, offset, previous, view = {}, central_at, 0, b"", memoryview(data)
    for number in range(count):
        name, crc, size = _read_central(data, at, end_at, number, where)
        label = name.decode(errors="backslashreplace")
        problem = path_problem(name)
        if problem:
            raise BundleError(f"{where}: entry {label!r}: {problem}; {_AGAIN}")
        if name == previous:
            raise BundleError(f"{where}: entry {label!r} is there twice; {_AGAIN}")
        if name < previous:
            raise BundleError(f"{where}: entry {label!r} is out of order: expected entries sorted by name; {_AGAIN}")
        header, local = _central_header(name, crc, size, offset), _local_header(name, crc, size)
        if data[at : at + len(header)] != header:
            raise BundleError(
                f"{where}: entry {label!r}: its directory record is not as the compiler writes it; {_AGAIN}"
            )
        if data[offset : offset + len(local)] != local:
            raise BundleError(f"{where}: entry {label!r}: its header does not agree with the directory; {_AGAIN}")
        start = offset + len(local)
        offset = start + size
        if offset > central_at:
            raise BundleError(f"{where}: entry {label!r}: expected {size} bytes, got {central_at - start}; {_AGAIN}")
        content = view[start:offset]
        if zlib.crc32(content) != crc:
            raise BundleError(f"{where}: entry {label!r}: altered or damaged: its checksum does not match; {_AGAIN}")
        entries[name.decode()] = content
        previous = name
        at += len(header)
    if at != end_at or offset != central_at:
        raise BundleError(f"{where}: damaged: bytes that belong to no entry; {_AGAIN}")
    return entries


def path_problem(name):
    """What is wrong with `name` (bytes) as a path in a bundle, in words; None if nothing is."""
    if not name or len(name) > MAX_NAME_BYTES:
        return f"expected a path of 1 to {MAX_NAME_BYTES} bytes, got {len(name)}"
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return "expected a path in UTF-8"
    if _UNSAFE.search(text):
        return "expected a path without backslashes, colons and control characters"
    if any(part in ("", ".", "..") for part in text.split("/")):
        return "expected a relative path without empty, '.' and '..' parts"
    return None


def _read_central(data, at, end, number, where):
    if at + _CENTRAL.size > end:
        raise BundleError(f"{where}: damaged: its zip directory ends before entry {number}; {_AGAIN}")
    fields = _CENTRAL.unpack_from(data, at)
    if fields[0] != b"PK\1\2":
        raise BundleError(f"{where}: damaged: expected a zip directory record for entry {number}; {_AGAIN}")
    method, crc, size, name_bytes = fields[4], fields[7], fields[9], fields[10]
    name = bytes(data[at + _CENTRAL.size : min(at + _CENTRAL.size + name_bytes, end)])
    if len(name) != name_bytes:
        raise BundleError(f"{where}: damaged: the name of entry {number} is cut off; {_AGAIN}")
    if method:
        raise BundleError(
            f"{where}: entry {name.decode(errors='backslashreplace')!r}: expected an entry without compression, got "
            f"method {method}; another tool packed this file: compile it again"
        )
    return name, crc, size


def _flags(name):
    return 0 if name.isascii() else _UTF8


def _local_header(name, crc, size):
    return _LOCAL.pack(b"PK\3\4", _VERSION_NEEDED, _flags(name), 0, 0, _DATE, crc, size, size, len(name), 0) + name


def _central_header(name, crc, size, offset):
    return (
        _CENTRAL.pack(
            b"PK\1\2",
            _MADE_BY,
            _VERSION_NEEDED,
            _flags(name),
            0,
            0,
            _DATE,
            crc,
            size,
            size,
            len(name),
            0,
            0,
            0,
            0,
            _MODE,
            offset,
        )
        + name
    )


def _end(count, size, offset):
    return _END.pack(b"PK\5\6", 0, 0, count, count, size, offset, 0)
