"""Deltas between files: zstd with the old file as its dictionary.

The window covers old and new file, and long-distance matching is on: without either, zstd silently finds next to
nothing of a large old file.
"""

from vmhost.deployment.errors import DamagedError

MAX_BYTES = 256 << 20  # of old and new file together: what the window, and so the memory of a device, is bounded by
_LEVEL = 19
_MIN_WINDOW_LOG, _MAX_WINDOW_LOG = 10, 31


def can_apply():
    """Whether this Python has zstd; a device image may lack it."""
    try:
        import compression.zstd  # noqa: F401
    except ImportError:
        return False
    return True


def _window_log(size):
    return min(_MAX_WINDOW_LOG, max(_MIN_WINDOW_LOG, (size - 1).bit_length() + 1))


def make(old, new, level=_LEVEL):
    """What makes `new` of `old`; where `old` is empty, that is `new`, compressed. None beyond MAX_BYTES."""
    from compression import zstd

    if len(old) + len(new) > MAX_BYTES:
        return None
    options = {
        zstd.CompressionParameter.compression_level: level,
        zstd.CompressionParameter.window_log: _window_log(len(old) + len(new)),
        zstd.CompressionParameter.enable_long_distance_matching: 1,
        zstd.CompressionParameter.checksum_flag: 1,
    }
    dictionary = zstd.ZstdDict(old, is_raw=True).as_prefix if len(old) >= 8 else None
    return zstd.compress(new, options=options, zstd_dict=dictionary)


def apply(old, delta, size):
    """The new file, of `size` bytes; DamagedError where old file and delta do not give such a one."""
    from compression import zstd

    if len(old) + size > MAX_BYTES:
        raise DamagedError(f"a delta to {size:,} bytes: expected at most {MAX_BYTES - len(old):,}")
    options = {zstd.DecompressionParameter.window_log_max: _window_log(len(old) + size)}
    dictionary = zstd.ZstdDict(old, is_raw=True).as_prefix if len(old) >= 8 else None
    try:
        decompressor = zstd.ZstdDecompressor(zstd_dict=dictionary, options=options)
        data = decompressor.decompress(delta, max_length=size + 1)
    except zstd.ZstdError as error:
        raise DamagedError(f"the delta does not fit the old file, or is damaged: {error}") from error
    if len(data) != size or not decompressor.eof:
        raise DamagedError(f"the delta does not make a file of {size:,} bytes")
    return data
