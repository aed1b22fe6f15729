"""Reads a receive-pack request: its commands, and a check of its pack before git code reads that.

A pack of a few kilobytes can unpack to gigabytes. `check_pack` reads it object by object, inflates into a bounded
buffer that it discards, and refuses what exceeds the bounds. Other defects of a pack are found later by dulwich, which
gets exactly the bytes that were checked: nothing else parses the lines before them.
"""

import re
import zlib
from dataclasses import dataclass

from vmhost.deployment.errors import RefusedError

MAX_COMMANDS = 1000
MAX_SHALLOW = 10_000
_READ = 1 << 16
_OFS_DELTA, _REF_DELTA = 6, 7
_CHECKSUM = 20  # bytes after the last object
_LENGTH = re.compile(rb"[0-9a-fA-F]{4}")
_COMMAND = re.compile(rb"([0-9a-f]{40}) ([0-9a-f]{40}) ([^\x00-\x20\x7f]{1,1000})")
_SHALLOW = re.compile(rb"shallow ([0-9a-f]{40})")


@dataclass(frozen=True)
class Request:
    """The lines of a receive-pack request before the pack: `commands`, pairs of (old, new, ref); the client's
    `capabilities`; `shallow`: commits whose parents the client lacks."""

    commands: tuple
    capabilities: frozenset
    shallow: frozenset


class _Stream:
    def __init__(self, file):
        self._file, self._rest = file, b""

    def take(self, size):
        while len(self._rest) < size:
            more = self._file.read(_READ)
            if not more:
                raise RefusedError("the pack ends too early")
            self._rest += more
        taken, self._rest = self._rest[:size], self._rest[size:]
        return taken

    def ended(self):
        self._rest = self._rest or self._file.read(_READ)
        return not self._rest

    def number(self, first, shift):
        """The rest of a number of 7 bits per byte, least significant first."""
        value = 0
        while first & 0x80:
            [first] = self.take(1)
            value |= (first & 0x7F) << shift
            shift += 7
            if shift > 63:
                raise RefusedError("an object in the pack has an impossible size")
        return value

    def inflate(self, size):
        """Inflates one object of at most `size` bytes; returns its first bytes."""
        inflater, total, head = zlib.decompressobj(), 0, b""
        data = self._rest or self._file.read(_READ)
        while not inflater.eof:
            if not data:
                data = self._file.read(_READ)
                if not data:
                    raise RefusedError("the pack ends too early")
            try:
                out = inflater.decompress(data, _READ)
            except zlib.error as error:
                raise RefusedError(f"the pack is damaged: {error}") from None
            total += len(out)
            head = (head + out)[:32] if len(head) < 32 else head
            if total > size:
                raise RefusedError("an object in the pack is larger than it says")
            data = inflater.unconsumed_tail
        self._rest = inflater.unused_data
        return head


def read_request(file):
    """The Request in `file`, from its beginning; the file's position is then the pack's. RefusedError."""
    commands, shallow, capabilities = [], set(), frozenset()
    file.seek(0)
    while (line := _read_line(file)) is not None:
        if not commands and (found := _SHALLOW.fullmatch(line.rstrip(b"\n"))):
            shallow.add(found[1])
            if len(shallow) > MAX_SHALLOW:
                raise RefusedError(f"the request names more than {MAX_SHALLOW:,} shallow commits; fetch more history")
            continue
        if not commands:
            line, _, listed = line.partition(b"\0")
            capabilities = frozenset(listed.split())
        found = _COMMAND.fullmatch(line.rstrip(b"\n"))
        if not found:
            raise RefusedError("the request is not git's")
        if any(ref == found[3] for _, _, ref in commands):
            raise RefusedError(f"{found[3].decode(errors='replace'):.200}: the request names it twice")
        commands.append(found.groups())
        if len(commands) > MAX_COMMANDS:
            raise RefusedError(f"the push has more than {MAX_COMMANDS:,} branches and tags; push in parts")
    return Request(tuple(commands), capabilities, frozenset(shallow))


def _read_line(file):
    """The next pkt-line; None for the flush that ends them."""
    length = file.read(4)
    if len(length) < 4:
        raise RefusedError("the request ends too early")
    size = int(length, 16) if _LENGTH.fullmatch(length) else 1
    if size == 0:
        return None
    if size < 4:  # other special lines are not part of this request
        raise RefusedError("the request is not git's")
    line = file.read(size - 4)
    if len(line) < size - 4:
        raise RefusedError("the request ends too early")
    return line


def check_pack(file, max_objects, max_object_bytes, max_total_bytes):
    """Checks the pack from the file's position to its end, and returns to that position. RefusedError."""
    begins = file.tell()
    stream = _Stream(file)
    _check_pack(stream, max_objects, max_object_bytes, max_total_bytes)
    stream.take(_CHECKSUM)
    if not stream.ended():
        raise RefusedError("the pack is damaged: something follows it")
    file.seek(begins)


def _check_pack(stream, max_objects, max_object_bytes, max_total_bytes):
    if stream.take(4) != b"PACK":
        raise RefusedError("the request has no git pack")
    stream.take(4)
    count = int.from_bytes(stream.take(4))
    if count > max_objects:
        raise RefusedError(f"the push has {count:,} objects; expected at most {max_objects:,}: push in parts")
    total = 0
    for _ in range(count):
        [first] = stream.take(1)
        kind, size = first >> 4 & 7, first & 15
        size |= stream.number(first, 4)
        if kind == _OFS_DELTA:
            while stream.take(1)[0] & 0x80:
                pass
        elif kind == _REF_DELTA:
            stream.take(20)
        _must_fit(size, max_object_bytes)
        head = stream.inflate(size)
        if kind in (_OFS_DELTA, _REF_DELTA):
            unfolds = _second_number(head)
            _must_fit(unfolds, max_object_bytes)
            size = max(size, unfolds)
        total += size
        if total > max_total_bytes:
            raise RefusedError(f"the push unpacks to more than {max_total_bytes:,} bytes; keep large files elsewhere")


def _must_fit(size, max_bytes):
    if size > max_bytes:
        raise RefusedError(f"a file in the push has {size:,} bytes; expected at most {max_bytes:,}")


def _second_number(head):
    """The second of the two sizes at the begin of a delta: that of its base, and that of its result."""
    value, shift, seen = 0, 0, 0
    for byte in head:
        if seen == 1:
            value |= (byte & 0x7F) << shift
            shift += 7
        if not byte & 0x80:
            seen += 1
            if seen == 2:
                return value
    raise RefusedError("the pack is damaged: a delta without sizes")
