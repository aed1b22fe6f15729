"""The command line that the TUF conformance suite (tuf-conformance) tests a client by, over vmhost.deployment.trust.

    python tests/deployment/tuf_client.py --metadata-dir DIR init ROOT
    ... --metadata-url URL --metadata-dir DIR refresh
    ... --target-name NAME... --target-base-url URL --target-dir DIR download

Devices know Ed25519 alone; the suite's keys are ECDSA and RSA, too, which are checked with cryptography here. The
variable TUF_CLIENT_TIME stands for the clock: `make tuf-conformance` puts it in the place of the program faketime.
"""

import argparse
import os
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from datetime import datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding

from vmhost.deployment import trust
from vmhost.deployment.errors import DeploymentError, TransferError

_PSS = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.AUTO)


def matches(key, signature, message):
    """As trust.ed25519_matches, for all kinds of keys that the suite has."""
    if key.get("keytype") == "ed25519":
        return trust.ed25519_matches(key, signature, message)
    try:
        public = serialization.load_pem_public_key(key["keyval"]["public"].encode())
        signed = bytes.fromhex(signature)
        kind, scheme = key["keytype"], key["scheme"]
        if kind in ("ecdsa", "ecdsa-sha2-nistp256") and scheme == "ecdsa-sha2-nistp256":
            public.verify(signed, message, ec.ECDSA(hashes.SHA256()))
        elif kind == "rsa" and scheme == "rsassa-pss-sha256":
            public.verify(signed, message, _PSS, hashes.SHA256())
        elif kind == "rsa" and scheme == "rsa-pkcs1v15-sha256":
            public.verify(signed, message, padding.PKCS1v15(), hashes.SHA256())
        else:
            return False
    except ValueError, KeyError, TypeError, AttributeError, InvalidSignature:
        return False
    return True


def fetch_from(base, safe=""):
    def fetch(name, max_bytes):
        try:
            with urllib.request.urlopen(f"{base}/{urllib.parse.quote(name, safe=safe)}", timeout=30) as response:
                data = response.read(max_bytes + 1)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in (403, 404):
                return None
            raise TransferError(f"{name}: HTTP {error.code}") from error
        except OSError as error:
            raise TransferError(f"{name}: {error}") from error
        if len(data) > max_bytes:
            raise TransferError(f"{name}: more than {max_bytes} bytes")
        return data

    return fetch


def clock():
    fake = os.environ.get("TUF_CLIENT_TIME")
    return datetime.fromisoformat(fake).timestamp() if fake else time.time()


def main():
    parser = argparse.ArgumentParser()
    for name in ("--metadata-dir", "--metadata-url", "--target-base-url", "--target-dir"):
        parser.add_argument(name)
    parser.add_argument("--target-name", action="append", default=[])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("init").add_argument("root")
    commands.add_parser("refresh")
    commands.add_parser("download")
    given = parser.parse_args()
    folder = Path(given.metadata_dir)
    if given.command == "init":
        (folder / "root.json").write_bytes(Path(given.root).read_bytes())
        return
    metadata = trust.Metadata(folder, fetch_from(given.metadata_url.rstrip("/")), clock, matches)
    metadata.refresh()
    for name in given.target_name:
        found = metadata.target(name)
        if found is None:
            raise trust.TrustError(f"{name}: no role lists it")
        local = Path(given.target_dir) / urllib.parse.quote(name, safe="")
        if local.exists() and trust.is_target(local.read_bytes(), found):
            continue
        data = fetch_from(given.target_base_url.rstrip("/"), "/")(metadata.target_file(name, found), found["length"])
        if data is None or not trust.is_target(data, found):
            raise trust.TrustError(f"{name}: not the file that the metadata lists")
        local.write_bytes(data)


if __name__ == "__main__":
    try:
        main()
    except DeploymentError as error:
        sys.exit(f"{type(error).__name__}: {error}")
