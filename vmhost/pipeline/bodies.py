"""Bodies of blocks: the contents of their events, as msgpack's array, compressed with zstd where that pays.

A body says itself which it is: a frame of zstd begins with a byte that begins no array. Python may have been built
without zstd; then nothing is compressed, and bodies that are cannot be read.
"""

from vmhost.pipeline.values import joined, unpack_some
from vmhost.stores import StoreError

try:
    from compression import zstd
except ImportError:
    zstd = None

_LEVEL = 1  # the higher ones take more time than the disk gives back
_FRAME = b"\x28\xb5\x2f\xfd"
_MIN_BYTES = 4096
_GAIN = 0.8  # a compressed body is so much smaller at least, or it stays as it is
_RESTS = 15  # bodies that are not tried after one that did not get smaller


class Bodies:
    """Makes bodies, one after the other. One thread at a time."""

    def __init__(self):
        self._rests = 0

    def make(self, packed, compress=True):
        """The body of the contents whose bytes these are."""
        body = joined(packed)
        if not compress or zstd is None or len(body) < _MIN_BYTES:
            return body
        if self._rests:
            self._rests -= 1
            return body
        smaller = zstd.compress(body, _LEVEL)
        if len(smaller) <= len(body) * _GAIN:
            return smaller
        self._rests = _RESTS
        return body


def contents_of(body, indexes):
    """The contents at `indexes`, which ascend, of a body. ValueError for a damaged one."""
    if not indexes:
        return []
    if body[: len(_FRAME)] == _FRAME:
        if zstd is None:
            raise StoreError("events are compressed with zstd, which this Python was built without; use one with it")
        try:
            body = zstd.decompress(body)
        except zstd.ZstdError as error:
            raise ValueError(f"no compressed contents: {error}") from error
    return unpack_some(body, indexes)
