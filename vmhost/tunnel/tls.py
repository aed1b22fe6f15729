"""TLS 1.3 for both ends, and a small certificate authority for users without one.

A server's context is made before its processes are forked, so they share the keys of session tickets and a device can
resume its session at any of them. After a restart of the server all handshakes are full.
"""

import datetime
import ipaddress
import os
import re
import ssl
from pathlib import Path

from vmhost.tunnel.errors import TunnelConfigurationError
from vmhost.tunnel.limits import NAME_CHARACTERS

CA, SERVER = "ca", "server"  # names of files by `make_certificates`, without .pem and .key
_DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]*")


def _context(purpose, certificate, key, post_quantum):
    context = ssl.SSLContext(purpose)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.options |= ssl.OP_NO_COMPRESSION
    if not post_quantum:  # OpenSSL's default would use it: 2.3 KB more per handshake, and 11 KiB of memory meanwhile
        context.set_ecdh_curve("X25519")
    if certificate is not None:
        try:
            context.load_cert_chain(certificate, key)
        except OSError as error:  # includes ssl.SSLError
            why = error.strerror or getattr(error, "reason", None) or str(error)
            raise TunnelConfigurationError(
                f"{certificate}: the certificate and its key{f' {key}' if key else ''} cannot be used: {why}; "
                "`vmhost tunnel certificates FOLDER` makes some"
            ) from error
    return context


def _trust(context, ca):
    try:
        context.load_verify_locations(ca)
    except OSError as error:
        why = error.strerror or getattr(error, "reason", None) or str(error)
        raise TunnelConfigurationError(f"{ca}: no certificate of a CA can be read from it: {why}") from error


def server_context(certificate, key, client_ca=None, post_quantum=False):
    """`client_ca`: accept device certificates signed by it; None: devices authenticate by token. `post_quantum`: key
    agreement as this machine's OpenSSL prefers, with ML-KEM if it is new enough; otherwise X25519."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, certificate, key, post_quantum)
    context.num_tickets = 1
    if client_ca is not None:
        _trust(context, client_ca)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def device_context(ca=None, certificate=None, key=None, post_quantum=False):
    """`ca`: the CA of trusted server certificates; None: the system's. `post_quantum`: see `server_context`; both ends
    have to enable it."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, certificate, key, post_quantum)
    if ca is None:
        context.load_default_certs()
    else:
        _trust(context, ca)
    return context


def certified_device(certificate, now):
    """The device named by a verified certificate (`SSLObject.getpeercert()`); None without a certificate.

    A resumed session has the certificate of the first handshake, which may have expired: ValueError."""
    if not certificate:
        return None
    if ssl.cert_time_to_seconds(certificate["notAfter"]) < now:
        raise ValueError(f"the device's certificate expired on {certificate['notAfter']}")
    names = [value for part in certificate.get("subject", ()) for name, value in part if name == "commonName"]
    if len(names) != 1 or not 1 <= len(names[0]) <= NAME_CHARACTERS or not names[0].isprintable():
        raise ValueError("the device's certificate has no usable common name")
    return names[0]


def make_certificates(folder, devices=(), hosts=("localhost", "127.0.0.1"), days=825, now=None):
    """Writes a CA, a certificate for the server, and one for each device into `folder`, each as NAME.pem and NAME.key.
    Existing files stay, and an existing CA signs. Returns the names of those made."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    folder = Path(folder)
    now = now or datetime.datetime.now(datetime.UTC)
    made = []
    for name in devices:
        if not _DEVICE.fullmatch(name) or len(name) > 64 or name in (CA, SERVER):
            raise TunnelConfigurationError(
                f"device {name[:64]!r}: expected up to 64 letters, digits, '.', '_', '@' and '-', other than ca, server"
            )

    def named(name):
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    def written(name, certificate, key):
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        handle = os.open(folder / f"{name}.key", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(private)
        (folder / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        made.append(name)

    def signed(name, common, key, issuer, issuer_key, extensions):
        builder = (
            x509.CertificateBuilder()
            .subject_name(named(common))
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), False)
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        certificate = builder.sign(issuer_key, hashes.SHA256())
        written(name, certificate, key)
        return certificate

    def usage(sign):
        return x509.KeyUsage(not sign, False, False, False, False, sign, sign, False, False), True

    try:
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / f"{CA}.pem").exists():
            authority = x509.load_pem_x509_certificate((folder / f"{CA}.pem").read_bytes())
            authority_key = serialization.load_pem_private_key((folder / f"{CA}.key").read_bytes(), None)
        else:
            authority_key = ec.generate_private_key(ec.SECP256R1())
            basic = x509.BasicConstraints(ca=True, path_length=0), True
            common = "vmhost tunnel"
            authority = signed(CA, common, authority_key, named(common), authority_key, [basic, usage(True)])
        basic = x509.BasicConstraints(ca=False, path_length=None), True
        if not (folder / f"{SERVER}.pem").exists():
            names = [_general_name(x509, host) for host in hosts]
            purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False
            extensions = [basic, usage(False), purpose, (x509.SubjectAlternativeName(names), False)]
            key = ec.generate_private_key(ec.SECP256R1())
            signed(SERVER, hosts[0], key, authority.subject, authority_key, extensions)
        for name in devices:
            if not (folder / f"{name}.pem").exists():
                purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), False
                key = ec.generate_private_key(ec.SECP256R1())
                signed(name, name, key, authority.subject, authority_key, [basic, usage(False), purpose])
    except (OSError, ValueError, TypeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TunnelConfigurationError(f"{folder}: the certificates cannot be made: {reason}") from error
    return made


def _general_name(x509, host):
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
