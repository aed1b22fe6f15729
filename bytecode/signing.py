"""Ed25519 keys, signatures over manifests, and the store of keys that a host trusts.

A private key is a PKCS#8 PEM file with mode 0600. A public key is one line, `ed25519 <base64> <name>`; a trust store is
a file of such lines, or a folder of `*.pub` files. A bundle's signature is the signer's 32-byte public key followed by
64 bytes of Ed25519 over the manifest; the public key only selects the trusted key. Another file, such as one of rules,
has its signature beside it in FILE.sig, over `_FILE` and the file's bytes.
"""

import base64
import binascii
import hashlib
import os
import stat
from dataclasses import dataclass

from . import ed25519
from .errors import BundleError, SigningError

PUBLIC_BYTES = 32
SIGNATURE_BYTES = PUBLIC_BYTES + 64
_FILE = b"vmhost file 1\0"  # domain separation: no file's signature is valid for a manifest


def fingerprint(public):
    """The readable name of the public key `public` (32 bytes): `SHA256:` and base64, as in ssh."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(public).digest()).decode().rstrip("=")


class SigningKey:
    """An Ed25519 private key. `public` is its 32-byte public key."""

    def __init__(self, private):
        self._private = private
        self.public = private.public_key().public_bytes_raw()

    def __repr__(self):
        return f"<SigningKey {fingerprint(self.public)}>"

    def sign(self, manifest):
        """The content of a bundle's `signature` for the bytes `manifest`."""
        return self.public + self._private.sign(manifest)

    def sign_file(self, content):
        """The content of FILE.sig for a file with the bytes `content`."""
        return self.sign(_FILE + content)

    def save(self, path, name=None):
        """Writes the private key to `path` (0600, never over an existing file) and the public one to `path` + `.pub`.

        Each is whole and on the disk, or not there; the private one comes first. `name` is the key's name in trust
        stores; the file's stem if None. SigningError if either file exists.
        """
        from pathlib import Path  # here, because devices only check signatures

        from cryptography.hazmat.primitives import serialization

        path = Path(path)
        public = path.with_name(path.name + ".pub")
        pem = self._private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        line = format_public_key(name or path.stem, self.public)
        if public.exists():  # of another key
            raise SigningError(f"{public}: is there already; choose another name, or remove it")
        for target, content, mode in ((path, pem, 0o600), (public, line.encode(), 0o644)):
            try:
                _write_new(target, content, mode)
            except FileExistsError as error:
                raise SigningError(f"{target}: is there already; choose another name, or remove it") from error
            except OSError as error:
                raise SigningError(f"{target}: can't write the key: {error.strerror}") from error


def _write_new(path, content, mode):
    """Writes a file that does not exist: it is whole and on the disk, or not there."""
    import tempfile  # here, because devices only check signatures

    descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=".partial-")
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.link(partial, path)  # unlike a rename, this replaces nothing
    finally:
        os.unlink(partial)


def generate_key():
    """A new SigningKey from the system's random source."""
    # cryptography takes tens of milliseconds to import; a host that reads only unsigned bundles avoids that.
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return SigningKey(Ed25519PrivateKey.generate())


def load_key(path):
    """The SigningKey in the file `path`; SigningError if it isn't one, or if others than its owner may read it."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        with open(path, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            pem = file.read(1 << 16)
    except OSError as error:
        raise SigningError(
            f"{path}: can't read the signing key: {error.strerror}; make one with `vmhost keys new NAME`"
        ) from error
    if mode & 0o077:
        raise SigningError(
            f"{path}: expected a key that only its owner can read, got mode {mode:04o}; run `chmod 600 {path}`"
        )
    try:
        private = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SigningError(f"{path}: expected an unencrypted Ed25519 private key in PEM, got something else") from error
    if not isinstance(private, Ed25519PrivateKey):
        raise SigningError(
            f"{path}: expected an Ed25519 key, got {type(private).__name__}; make one with `vmhost keys`"
        )
    return SigningKey(private)


@dataclass(frozen=True)
class TrustStore:
    """The public keys a host trusts: `keys` maps 32 raw bytes to the key's name."""

    keys: dict

    @classmethod
    def load(cls, path):
        """Reads a file of public keys, or a folder of `*.pub` files. SigningError names file and line of a mistake."""
        path = os.fspath(path)
        try:
            files = [path]
            if os.path.isdir(path):
                files = [os.path.join(path, name) for name in sorted(os.listdir(path)) if name.endswith(".pub")]
            texts = [(file, _text_of(file)) for file in files]
        except OSError as error:
            raise SigningError(f"{error.filename or path}: can't read the trust store: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise SigningError(f"{path}: expected public keys as text, got bytes that are not UTF-8") from error
        keys = {}
        for file, text in texts:
            for number, line in enumerate(text.splitlines(), 1):
                if line.strip() and not line.lstrip().startswith("#"):
                    public, name = _parse_public_key(line, f"{file}:{number}")
                    keys[public] = name
        return cls(keys)

    @classmethod
    def of(cls, **names):
        """A store of the given keys: `TrustStore.of(alice=key.public)`."""
        return cls({public: name for name, public in names.items()})

    def verify(self, manifest, signature, where):
        """The name of the trusted key that signed the bytes `manifest`; BundleError, naming `where`, if none did."""
        return self._name_of(check_signature(manifest, signature, where), where)

    def verify_file(self, content, signature, where):
        """The same for the bytes of a file, and those of FILE.sig."""
        return self._name_of(check_signature(_FILE + content, signature, where, "file"), where)

    def _name_of(self, public, where):
        if public not in self.keys:
            known = ", ".join(sorted(self.keys.values())) or "none"
            raise BundleError(
                f"{where}: signed with the key {fingerprint(public)}, which this host does not trust (it trusts: "
                f"{known}); add the signer's .pub line to the trust store, or sign with a trusted key"
            )
        return self.keys[public]


def _text_of(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def check_signature(manifest, signature, where, what="manifest"):
    """The public key (32 bytes) whose signature over `manifest` this is; BundleError if the signature doesn't match.
    `what`: the word for `manifest` in the message."""
    if len(signature) != SIGNATURE_BYTES:
        raise BundleError(f"{where}: signature: expected {SIGNATURE_BYTES} bytes, got {len(signature)}; sign it again")
    public = signature[:PUBLIC_BYTES]
    if not ed25519.matches(public, signature[PUBLIC_BYTES:], manifest):
        raise BundleError(
            f"{where}: the signature does not belong to this {what}: altered after signing, or the signature is of "
            f"another one; get it again from who signed it"
        )
    return public


def format_public_key(name, public):
    """The line for a `.pub` file or a trust store."""
    return f"ed25519 {base64.b64encode(public).decode()} {name}\n"


def _parse_public_key(line, where):
    fields = line.split(None, 2)
    try:
        kind, text, name = fields
        public = base64.b64decode(text, validate=True)
    except ValueError, binascii.Error:
        kind, public, name = None, b"", ""
    if kind != "ed25519" or len(public) != PUBLIC_BYTES:
        raise SigningError(f"{where}: expected `ed25519 <base64 of 32 bytes> <name>`, got {line.strip()[:60]!r}")
    return public, name.strip()
