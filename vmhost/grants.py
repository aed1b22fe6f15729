"""Caps on grants: `permissions` of host.yaml and of policies, applied to a bundle's requests.

A path covers itself and everything below it, both as resolved when the bundle is loaded, symbolic links and `..`
included. An address covers names and numbers as the VM compares them (vmhost/isolation/seal/addresses.c): `*` any,
`*.example.org` each name below it, a number in any notation; a name never covers a number, nor a number a name. Names
are encoded in ASCII (IDNA) here, in the host: a VM's own codecs may be the task's.
"""

import ipaddress
import os
from collections.abc import Mapping

from vmhost.bytecode.fields import ADDRESS, EVERYTHING, GRANTS, MAX_GRANT_CHARS, MAX_PERMISSIONS, PATH, TABLE, shown
from vmhost.bytecode.kinds import Items, Refused, Section, Setting, Text, refused
from vmhost.errors import ConfigurationError

_ALL = EVERYTHING | {"host": ("*",), "tables": ("*",)}  # names that cover all of a kind


class Permissions(Section):
    """Kinds of permissions with lists of names: caps on what a bundle may ask for."""

    def __init__(self):
        names = {kind: Text(words, pattern, MAX_GRANT_CHARS, _ALL[kind]) for kind, (pattern, words) in GRANTS.items()}
        lists = {kind: Items(name, max_items=MAX_PERMISSIONS) for kind, name in names.items()}
        super().__init__(Setting(kind, names, f"names of the kind {kind}", (kind,)) for kind, names in lists.items())

    def check(self, value):
        if not isinstance(value, Mapping):
            raise refused("a mapping such as {'read': ['/data']}", value)
        caps = {}
        for kind, names in value.items():
            if kind not in GRANTS:
                raise Refused(f"unknown kind {shown(kind)}; expected one of {', '.join(GRANTS)}")
            items = self.settings[kind].kind
            try:
                if not items.fits(names):
                    raise refused("a list of names", names)
                caps[kind] = tuple(map(items.item.check, names))
            except Refused as error:
                raise Refused(f"{kind}: {error}") from None
        return caps


def settle(asked, caps):
    """(grants for VMs, violations) for `asked`, the permissions of a manifest, under the `caps`, none of them None.

    The grants have resolved paths, and a mark that tells the VM not to follow links in them again. A violation is
    (kind, name as requested, resolved name, the cap's names).
    """
    given, outside = {"settled": ["paths"]}, []
    caps = [{kind: [_checked(kind, name) for name in cap.get(kind, ())] for kind in GRANTS} for cap in caps]
    for kind, names in asked.items():
        given[kind] = [_checked(kind, name) for name in names]
        for name, checked in zip(names, given[kind]):
            cap = next((cap for cap in caps if not any(_covers(kind, allowed, checked) for allowed in cap[kind])), None)
            if cap is not None:
                outside.append((kind, name, checked, tuple(cap[kind])))
    return given, outside


def in_ascii(asked):
    """`asked`, the permissions of a manifest, with host names in ASCII. ConfigurationError for a name that has no such
    form."""
    return {
        kind: [_encoded(kind, name) for name in names] if GRANTS[kind][0] is ADDRESS else names
        for kind, names in asked.items()
    }


def _checked(kind, name):
    if GRANTS[kind][0] is ADDRESS:
        return _encoded(kind, name)
    if GRANTS[kind][0] is not PATH:
        return name
    return os.path.realpath(name.removesuffix("/**") or "/")


def _encoded(kind, address):
    if address.isascii():
        return address
    host, _, port = address.rpartition(":")
    below = "*." if host.startswith("*.") else ""
    try:
        return f"{below}{host.removeprefix(below).encode('idna').decode()}:{port}"
    except UnicodeError as error:
        raise ConfigurationError(f"permissions.{kind}: {shown(address)} is not a host name: {error}") from error


def _covers(kind, allowed, name):
    if allowed in _ALL[kind] or allowed == name:
        return True
    pattern = GRANTS[kind][0]
    if pattern is PATH:
        return name.startswith(f"{allowed}/")
    if pattern is TABLE:  # permission to write includes reading
        return allowed == name.removesuffix(":read") + ":write"
    return pattern is ADDRESS and _covers_address(allowed, name)


def _covers_address(allowed, name):
    allowed_host, _, allowed_port = allowed.rpartition(":")
    host, _, port = name.rpartition(":")
    if allowed_port != "*" and (port == "*" or int(port) != int(allowed_port)):
        return False
    allowed_host, host = _lower(allowed_host), _lower(host)
    if allowed_host in ("*", host):
        return True
    if len(allowed_host) > 2 and allowed_host.startswith("*."):
        return host.endswith(allowed_host[1:]) and len(host) >= len(allowed_host)
    number = _number(host)
    return number is not None and number == _number(allowed_host)


def _lower(host):
    """Lower-cases ASCII letters only, as the VM does."""
    return host.encode().lower().decode()


def _number(host):
    try:
        return ipaddress.ip_address(host[1:-1] if host.startswith("[") else host)
    except ValueError:
        return None
