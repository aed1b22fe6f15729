"""Verification of Ed25519 signatures (RFC 8032), by LibSodium. Replaces bytecode/ed25519.py in a device image."""

import _vmrun


def matches(public, signature, message):
    """True if `signature` (64 bytes) over the bytes `message` is by the key whose public half is `public` (32
    bytes)."""
    return _vmrun.ed25519_matches(public, message, signature)
