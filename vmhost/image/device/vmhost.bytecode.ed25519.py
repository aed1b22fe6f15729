"""Whether an Ed25519 signature (RFC 8032) matches, by LibSodium. Stands in the place of bytecode/ed25519.py in a device
image."""

import _vmrun


def matches(public, signature, message):
    """True if `signature` (64 bytes) over the bytes `message` was made with the key whose public half is `public` (32
    bytes)."""
    return _vmrun.ed25519_matches(public, message, signature)
