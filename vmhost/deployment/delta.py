"""Deltas between files: zstd with the old file as its dictionary.

The window covers old and new file, and long-distance matching is on: without either, zstd silently finds almost nothing
in a large old file. Bundles are compared in a form without what can be computed (bundle_form.py): such a delta begins
with a mark, the length of the new bundle's name, and that name.
"""

from vmhost.deployment.bundle_form import NotABundleError, fold, renamed, unfold
from vmhost.deployment.errors import DamagedError

MAX_BYTES = 256 << 20  # of old and new file together: bounds the window, and with it the memory of a device
_OF_BUNDLES = b"vmd1"  # no zstd frame begins with it
_LEVEL = 19
_MIN_WINDOW_LOG, _MAX_WINDOW_LOG = 10, 31
_MIN_DICTIONARY = 8


def can_apply():
    """Whether this Python has zstd, which a device image may lack."""
    try:
        import compression.zstd  # noqa: F401
    except ImportError:
        return False
    return True


def _window_log(size):
    return min(_MAX_WINDOW_LOG, max(_MIN_WINDOW_LOG, (size - 1).bit_length() + 1))


def make(old, new, level=_LEVEL):
    """The delta from `old` to `new`; if `old` is empty, `new` compressed. None beyond MAX_BYTES."""
    if len(old) + len(new) > MAX_BYTES:
        return None
    try:
        (old_name, old_form), (new_name, new_form) = unfold(old), unfold(new)
        if fold(new_form) == new and len(new_name) < 256:
            head = _OF_BUNDLES + bytes([len(new_name)]) + new_name
            return head + _compress(renamed(old_form, old_name, new_name), new_form, level)
    except NotABundleError:
        pass
    return _compress(old, new, level)


def _compress(old, new, level):
    from compression import zstd

    of = zstd.CompressionParameter
    options = {
        of.compression_level: level,
        of.window_log: _window_log(len(old) + len(new)),
        of.enable_long_distance_matching: 1,
        of.checksum_flag: 0,  # the file's SHA-256 is checked instead
    }
    if len(old) < _MIN_DICTIONARY:
        return zstd.compress(new, options=options)
    # Thorough strategies cut long matches into many short ones, at 1,000 bytes for each 1.4 MB of unchanged data. The
    # fastest one, with fine long-distance matching, does not, but is worse where much has changed.
    fine = {of.strategy: zstd.Strategy.fast, of.ldm_min_match: 16, of.ldm_hash_rate_log: 1, of.ldm_hash_log: 22}
    dictionary = zstd.ZstdDict(old, is_raw=True).as_prefix
    return min((zstd.compress(new, options=each, zstd_dict=dictionary) for each in (options, options | fine)), key=len)


def apply(old, delta, size):
    """The new file, of `size` bytes; DamagedError if the delta does not fit or gives another size."""
    if len(old) + size > MAX_BYTES:
        raise DamagedError(f"a delta to {size:,} bytes: expected at most {MAX_BYTES - len(old):,}")
    if not delta.startswith(_OF_BUNDLES):
        data = _decompress(old, delta, size)
    else:
        end = len(_OF_BUNDLES) + 1 + delta[len(_OF_BUNDLES)] if len(delta) > len(_OF_BUNDLES) else len(delta)
        try:
            old_name, old_form = unfold(old)
            old_form = renamed(old_form, old_name, delta[len(_OF_BUNDLES) + 1 : end])
            data = fold(_decompress(old_form, delta[end:], size))  # a form is smaller than its bundle
        except NotABundleError as error:
            raise DamagedError(f"the delta does not fit the old bundle, or is damaged: {error}") from error
    if len(data) != size:
        raise DamagedError(f"the delta does not make a file of {size:,} bytes")
    return data


def _decompress(old, delta, max_bytes):
    """Decompresses to at most `most` bytes."""
    from compression import zstd

    options = {zstd.DecompressionParameter.window_log_max: _window_log(len(old) + max_bytes)}
    dictionary = zstd.ZstdDict(old, is_raw=True).as_prefix if len(old) >= _MIN_DICTIONARY else None
    try:
        decompressor = zstd.ZstdDecompressor(zstd_dict=dictionary, options=options)
        data = decompressor.decompress(delta, max_length=max_bytes + 1)
    except zstd.ZstdError as error:
        raise DamagedError(f"the delta does not fit the old file, or is damaged: {error}") from error
    if len(data) > max_bytes or not decompressor.eof:
        raise DamagedError(f"the delta makes more than {max_bytes:,} bytes, or is cut off")
    return data
