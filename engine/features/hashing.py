"""Hashing of texts to keys: named functions with the same results on every machine and in every version."""

import hashlib
import zlib

import vmhost.engine.numpy as np

MAX_KEY = 2**63 - 1  # lookups use keys from 0 on
_MIX = 0xD6E8FEB86659FD93


def _blake2b(text):
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") & MAX_KEY


HASHES = {"blake2b": _blake2b, "crc32": zlib.crc32}  # results have 63 and 32 bits


def hashed(texts, function="blake2b"):
    """int64 keys of texts (UTF-8), -1 for None. TypeError for anything else."""
    hash_function, known = HASHES[function], {None: -1}
    keys = []
    for text in texts:
        key = known.get(text)
        if key is None:
            if not isinstance(text, str):
                raise TypeError(f"expected texts, got {type(text).__name__}")
            key = known[text] = hash_function(text.encode())
        keys.append(key)
    return np.asarray(keys, "int64")


def crossed(columns, buckets=None):
    """One int64 key for the keys of each example, in [0, buckets); -1 if one of them is negative."""
    mixed = np.zeros(len(columns[0]), "uint64")
    factor, shift = np.asarray(_MIX, "uint64"), np.asarray(32, "uint64")
    missing = columns[0] < 0
    for keys in columns:
        missing = np.logical_or(missing, keys < 0)
        mixed = (mixed ^ keys.astype("uint64")) * factor
        mixed = (mixed ^ (mixed >> shift)) * factor
    keys = (mixed >> np.asarray(1, "uint64")).astype("int64")
    if buckets is not None:
        keys = keys % buckets
    return np.where(missing, -1, keys)
