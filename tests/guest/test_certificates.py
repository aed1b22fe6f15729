"""TLS contexts in a VM read certificates from granted files only: OpenSSL's default files, folders and links
included."""

import os

import pytest

import vmhost
from tests.guest.test_library import certificate_in
from tests.hosts import bundle

GUEST = """
import os, ssl, vmhost.guest

def run(asked):
    name, *args = asked
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        return globals()[name](context, *args)
    except vmhost.guest.PermissionDenied as error:
        return error.args[1]
    except OSError as error:
        return type(error).__name__, error.errno, error.filename

def authorities(context, **where):
    context.load_verify_locations(**where)
    return context.cert_store_stats()["x509"]

def positional(context, *where):
    context.load_verify_locations(*where)
    return context.cert_store_stats()["x509"]

def text(context, path, cafile=None):
    with open(path) as file:
        context.load_verify_locations(cafile, cadata=file.read())
    return context.cert_store_stats()["x509"]

def where(context, name, path):
    return authorities(context, **{name: path})

def defaults(context, **variables):
    context.set_default_verify_paths()
    return context.cert_store_stats()["x509"], ssl.create_default_context().cert_store_stats()["x509"]

def defaults_of(context, name, path):
    os.environ[name] = path
    try:
        return defaults(context)
    finally:
        del os.environ[name]

def chain(context, certificate, key=None, password=None):
    context.load_cert_chain(certificate, key, password)

def chain_with_password(context, certificate):
    asked = []
    context.load_cert_chain(certificate, password=lambda: asked.append(1) or "unneeded")
    return asked

def exchange(context, path):
    context.load_dh_params(path)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("in", "in/hashed", "outside", "outside/hashed"):
        (folder / name).mkdir()
    pem = folder / "outside" / "pem"
    os.rename(certificate_in(folder / "outside"), pem)
    text = pem.read_bytes()
    (folder / "in" / "pem").write_bytes(text)
    (folder / "in" / "link").symlink_to(pem)
    (folder / "in" / "junk").write_text("no certificate")
    (folder / "in" / "hashed" / "0123abcd.0").symlink_to("../pem")  # as in the systems' folders
    (folder / "in" / "hashed" / "0123abcd.r1").write_text("no revocation list")
    (folder / "in" / "hashed" / "readme").write_bytes(text)
    (folder / "outside" / "hashed" / "0123abcd.0").write_bytes(text)
    return folder


@pytest.fixture(scope="module")
def task(folder):
    with vmhost.Host(allow_unsigned=True) as host:
        yield host.load(bundle(GUEST, permissions={"read": [str(folder / "in")]}, limits={"concurrency": 1}))


def test_authorities_are_read_where_that_is_granted(task, folder):
    inside, outside = folder / "in", folder / "outside"
    for name, path in (("cafile", inside / "pem"), ("capath", inside / "hashed")):
        assert task(("where", name, str(path))) == 1, (name, path)
    assert task(("positional", str(inside / "pem"), str(inside / "hashed"))) == 1
    assert task(("positional", None, f"{inside / 'hashed'}:{inside / 'missing'}")) == 1
    assert task(("text", str(inside / "pem"))) == 1
    for name, path in (
        ("cafile", outside / "pem"),
        ("cafile", inside / "link"),
        ("capath", outside / "hashed"),
        ("capath", outside / "missing"),
        ("capath", f"{inside / 'hashed'}:{outside / 'hashed'}"),
    ):
        assert "permissions: {read: [...]}" in task(("where", name, str(path))), (name, path)
    assert task(("where", "cafile", str(inside / "missing"))) == ("FileNotFoundError", 2, str(inside / "missing"))
    assert task(("where", "cafile", str(inside / "junk")))[0] == "SSLError"


def test_the_default_files_are_read_where_that_is_granted(task, folder, monkeypatch):
    assert task(("defaults",)) == (0, 0)
    monkeypatch.setenv(
        "SSL_CERT_FILE", str(folder / "outside" / "pem")
    )  # OpenSSL asks the process's environment itself
    assert task(("defaults",)) == (0, 0)
    for name, path, count in (
        ("SSL_CERT_FILE", "in/pem", 1),
        ("SSL_CERT_DIR", "in/hashed", 1),
        ("SSL_CERT_FILE", "outside/pem", 0),
        ("SSL_CERT_FILE", "in/link", 0),
        ("SSL_CERT_DIR", "outside/hashed", 0),
        ("SSL_CERT_FILE", "in/junk", 0),
    ):
        assert task(("defaults_of", name, str(folder / path))) == (count, count), (name, path)


def test_a_folder_of_certificates_has_no_links_out_of_what_is_granted(task, folder):
    linked = folder / "in" / "linked"
    linked.mkdir()
    (linked / "0123abcd.0").symlink_to(folder / "outside" / "pem")
    assert task(("where", "capath", str(linked))) == 0


def test_own_certificates_and_keys_are_read_where_that_is_granted(task, folder):
    inside, outside = str(folder / "in" / "pem"), str(folder / "outside" / "pem")
    assert task(("chain", inside)) is None and task(("chain", inside, inside)) is None
    assert task(("chain_with_password", inside)) == []
    for paths in ((outside,), (inside, outside), (outside, inside), (str(folder / "in" / "link"),)):
        assert "permissions: {read: [...]}" in task(("chain", *paths)), paths
    assert "permissions: {read: [...]}" in task(("exchange", outside))
    assert task(("exchange", inside))[0] == "SSLError"
    assert task(("exchange", f"{inside}.missing")) == ("FileNotFoundError", 2, f"{inside}.missing")
