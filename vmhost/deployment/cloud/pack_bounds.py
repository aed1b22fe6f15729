"""Checks a pushed pack before git code reads it: the number of objects, and their unpacked sizes.

A pack of a few kilobytes can unpack to gigabytes. This reads it object by object, inflates into a bounded buffer that
it discards, and refuses what exceeds the bounds. Other defects of a pack are found later by dulwich.
"""

import zlib

from vmhost.deployment.errors import RefusedError

_READ = 1 << 16
_OFS_DELTA, _REF_DELTA = 6, 7


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


def check(file, max_objects, max_object_bytes, max_total_bytes):
    """Checks the receive-pack request in `file` from its beginning, and rewinds the file. RefusedError."""
    stream = _Stream(file)
    while (length := stream.take(4)) != b"0000":
        try:
            stream.take(int(length, 16) - 4)
        except ValueError:
            raise RefusedError("the request is not git's") from None
    if not stream.ended():
        _check_pack(stream, max_objects, max_object_bytes, max_total_bytes)
    file.seek(0)


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
