"""Keys on disk, trust stores, and which keys a host trusts."""

import stat

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

from vmhost.bytecode.errors import BundleError, SigningError
from vmhost.bytecode.signing import TrustStore, fingerprint, format_public_key, generate_key, load_key


def test_saved_key_is_private_and_loads_as_the_same_key(tmp_path):
    key = generate_key()
    key.save(tmp_path / "ci.key")
    assert stat.S_IMODE((tmp_path / "ci.key").stat().st_mode) == 0o600
    assert load_key(tmp_path / "ci.key").public == key.public
    assert (tmp_path / "ci.key.pub").read_text() == format_public_key("ci", key.public)
    assert TrustStore.load(tmp_path).keys == {key.public: "ci"}


def test_save_never_overwrites(tmp_path):
    generate_key().save(tmp_path / "k")
    before = (tmp_path / "k").read_bytes()
    with pytest.raises(SigningError, match="is there already"):
        generate_key().save(tmp_path / "k")
    assert (tmp_path / "k").read_bytes() == before


def test_key_that_others_can_read_is_refused(tmp_path):
    generate_key().save(tmp_path / "k")
    (tmp_path / "k").chmod(0o644)
    with pytest.raises(SigningError, match="got mode 0644; run `chmod 600"):
        load_key(tmp_path / "k")


def test_what_is_no_ed25519_key_is_refused(tmp_path):
    path = tmp_path / "k"
    path.touch(0o600)
    path.write_bytes(b"hello")
    with pytest.raises(SigningError, match="expected an unencrypted Ed25519 private key in PEM"):
        load_key(path)
    path.write_bytes(
        generate_private_key(SECP256R1()).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    with pytest.raises(SigningError, match="expected an Ed25519 key, got .*EC"):
        load_key(path)
    with pytest.raises(SigningError, match="nothing: can't read the signing key"):
        load_key(tmp_path / "nothing")


def test_trust_store_from_a_file_with_comments(tmp_path):
    one, two = generate_key(), generate_key()
    store = tmp_path / "trusted"
    store.write_text(f"# ours\n\n{format_public_key('one', one.public)}{format_public_key('build server', two.public)}")
    assert TrustStore.load(store).keys == {one.public: "one", two.public: "build server"}


@pytest.mark.parametrize("line", ["ed25519", "rsa AAAA x", "ed25519 AAAA short", "ed25519 ?? x", "ed25519 " + "A" * 44])
def test_trust_store_names_file_and_line(tmp_path, line):
    store = tmp_path / "trusted"
    store.write_text(f"# ours\n{line}\n")
    with pytest.raises(SigningError, match=r"trusted:2: expected `ed25519 <base64 of 32 bytes> <name>`"):
        TrustStore.load(store)


def test_trust_store_that_is_not_there(tmp_path):
    with pytest.raises(SigningError, match="can't read the trust store"):
        TrustStore.load(tmp_path / "nothing")


def test_verify_names_the_signer_and_refuses_others():
    ours, theirs = generate_key(), generate_key()
    store = TrustStore.of(ours=ours.public)
    assert store.verify(b"manifest", ours.sign(b"manifest"), "x") == "ours"
    with pytest.raises(BundleError, match="does not trust .it trusts: ours."):
        store.verify(b"manifest", theirs.sign(b"manifest"), "x")
    with pytest.raises(BundleError, match="the signature does not belong to this manifest"):
        store.verify(b"another", ours.sign(b"manifest"), "x")
    with pytest.raises(BundleError, match="the signature does not belong to this manifest"):
        store.verify(b"manifest", ours.public + theirs.sign(b"manifest")[32:], "x")  # another's, under our name
    with pytest.raises(BundleError, match="expected 96 bytes, got 0"):
        store.verify(b"manifest", b"", "x")


def test_fingerprint_looks_like_sshs():
    assert fingerprint(bytes(32)) == "SHA256:Zmh6rfhivXdsj8GLjp+OIAiXFIVu4jOzkCpZHQ1fKSU"
