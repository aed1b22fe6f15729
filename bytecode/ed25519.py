"""Checks Ed25519 signatures (RFC 8032). A device image replaces this file by another (`vmhost/image/device`)."""


def matches(public, signature, message):
    """True if `signature` (64 bytes) over the bytes `message` was made with the key whose public half is `public` (32
    bytes)."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except InvalidSignature, ValueError:
        return False
    return True
