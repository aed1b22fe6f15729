"""Bodies of blocks: the contents of their events as a msgpack array, compressed with zstd where that saves space.

The first byte tells the two forms apart: a zstd frame begins with a byte that no msgpack array begins with. Where
Python was built without zstd, bodies are stored uncompressed, and compressed ones cannot be read.
"""

from vmhost.pipeline.values import joined, unpack_some
from vmhost.stores import StoreError

try:
    from compression import zstd
except ImportError:
    zstd = None

_LEVEL = 1  # higher levels cost more time than the smaller writes save
_FRAME = b"\x28\xb5\x2f\xfd"
_MIN_BYTES = 4096
_GAIN = 0.8  # a body is compressed only where that brings it below this fraction of its size
_RESTS = 15  # bodies stored without a try after one that did not compress


class Bodies:
    """Makes bodies, one after the other. Not thread-safe."""

    def __init__(self):
        self._rests = 0

    def make(self, packed, compress=True):
        """The body for the packed contents."""
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
    """The contents at the ascending `indexes` of a body. ValueError for a damaged body."""
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
