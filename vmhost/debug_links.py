"""Links that open a debugging session with one host: signed, short-lived, single use.

ADDRESS/debug#PAYLOAD.SIGNATURE, both parts in base64url. The part after # stays in the browser: no server's log and no
Referer contains it. The payload is msgpack. The signature is the signer's 32-byte public key, then Ed25519 over
`_CONTEXT` and the payload; the context keeps other signatures of that key from being valid for a link.
"""

import base64
import binascii
import secrets
from dataclasses import dataclass

import msgpack

from vmhost.bytecode import ed25519
from vmhost.bytecode.signing import PUBLIC_BYTES, SIGNATURE_BYTES, fingerprint
from vmhost.errors import VMHostError
from vmhost.limits import DEBUG_SCOPES as SCOPES

MAX_CHARACTERS = 2048
MAX_VALID_S = 7 * 86400
_CONTEXT = b"vmhost debug link 1\0"
_NONCE_BYTES = 16
_MAX_NAME = 80  # characters of a host's name, and of the note


class LinkError(VMHostError):
    """A link that is invalid here. The message gives the reason and the remedy."""


@dataclass(frozen=True)
class Link:
    """A link's content. `host`: the host that it opens. `scopes`: the session's maximum rights. `issued_s`,
    `expires_s`: seconds since 1970. `nonce`: identifies the link; `id` is its short form. `note`: its purpose."""

    address: str
    host: str
    scopes: tuple
    issued_s: int
    expires_s: int
    nonce: bytes
    note: str
    payload: bytes
    signature: bytes

    @property
    def id(self):
        return self.nonce.hex()[:12]

    @property
    def text(self):
        """The link as text."""
        return f"{self.address}/debug#{_encoded(self.payload)}.{_encoded(self.signature)}"

    def signed_by(self, keys):
        """The name of the key among `keys` ({public key: name}) that signed it; LinkError."""
        public, signature = self.signature[:PUBLIC_BYTES], self.signature[PUBLIC_BYTES:]
        if public not in keys:
            known = ", ".join(sorted(keys.values())) or "none"
            raise LinkError(
                f"the link is signed with the key {fingerprint(public)}, which {self.host} does not trust (it trusts: "
                f"{known}); have it signed with one of these, or add the signer's .pub line to `keys` of `debugging`"
            )
        if not ed25519.matches(public, signature, _CONTEXT + self.payload):
            raise LinkError("the link was altered, or is not whole; copy it again, from # to its end")
        return keys[public]


def signed(key, address, host, scopes, valid_s, now_s, note=""):
    """A new Link, signed by `key` (a SigningKey). `scopes`: some of SCOPES. ValueError for invalid arguments."""
    scopes = checked_scopes(scopes)
    if not 0 < valid_s <= MAX_VALID_S:
        raise ValueError(f"expected a link that is valid for up to {MAX_VALID_S // 86400} days, got {valid_s:g} s")
    if not address.startswith(("http://", "https://")) or "#" in address:
        raise ValueError(f"{address}: expected an address such as http://127.0.0.1:9464")
    for what in (host, note):
        if len(what) > _MAX_NAME or not what.isprintable():
            raise ValueError(f"{what!r}: expected at most {_MAX_NAME} characters that can be printed")
    nonce = secrets.token_bytes(_NONCE_BYTES)
    issued, expires = int(now_s), int(now_s + valid_s)
    payload = msgpack.packb([1, host, list(scopes), issued, expires, nonce, note])
    address = address.rstrip("/")
    return Link(address, host, scopes, issued, expires, nonce, note, payload, key.sign(_CONTEXT + payload))


def read(text):
    """The Link in a text. LinkError if it is malformed. Does not check the signature; `signed_by` does."""
    if not isinstance(text, str) or len(text) > MAX_CHARACTERS:
        raise LinkError(f"expected a link of at most {MAX_CHARACTERS:,} characters")
    address, mark, rest = text.strip().partition("/debug#")
    payload, dot, signature = rest.partition(".")
    if not mark or not dot or not address.startswith(("http://", "https://")):
        raise LinkError("expected a link such as http://127.0.0.1:9464/debug#...; copy all of it, in quotes")
    payload, signature = _decoded(payload), _decoded(signature)
    if len(signature) != SIGNATURE_BYTES:
        raise LinkError("the link is cut off: its signature is not whole; copy all of it")
    try:
        version, *fields = msgpack.unpackb(payload, strict_map_key=True)
        if version != 1:
            raise LinkError(f"the link has version {version!r:.20}; this vmhost knows version 1: use a newer one")
        host, scopes, issued, expires, nonce, note = fields
        is_whole = isinstance(host, str) and isinstance(note, str) and isinstance(nonce, bytes)
        is_whole = is_whole and len(nonce) == _NONCE_BYTES and len(host) <= _MAX_NAME and len(note) <= _MAX_NAME
        is_whole = is_whole and all(type(each) is int and 0 <= each < 1 << 40 for each in (issued, expires))
        if not is_whole or not (host + note).isprintable():
            raise ValueError("fields")
        link = Link(address, host, checked_scopes(scopes), issued, expires, nonce, note, payload, signature)
    except LinkError:
        raise
    except Exception as error:  # from msgpack, or from fields of other types
        raise LinkError("the link was altered, or is not whole; copy it again, from # to its end") from error
    if not 0 < expires - issued <= MAX_VALID_S:
        raise LinkError(f"the link is said to be valid for longer than {MAX_VALID_S // 86400} days; ask for a new one")
    return link


def checked_scopes(scopes):
    """`scopes`, some of SCOPES, in the order of SCOPES. ValueError."""
    if not isinstance(scopes, (list, tuple)) or not scopes or any(scope not in SCOPES for scope in scopes):
        raise ValueError(f"expected some of the scopes {', '.join(SCOPES)}, got {scopes!r:.100}")
    return tuple(scope for scope in SCOPES if scope in scopes)


def _encoded(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(text):
    """Accepts one encoding per value: refuses set unused bits and other characters."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error) as error:
        raise LinkError("the link was altered, or is not whole; copy it again, from # to its end") from error
    if _encoded(data) != text:
        raise LinkError("the link was altered, or is not whole; copy it again, from # to its end")
    return data
