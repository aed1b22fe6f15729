"""Addresses to serve on, as people write them: 127.0.0.1:8470, [::1]:0."""

from vmhost import ConfigurationError


def parsed(address: object) -> tuple[str, int]:
    """(host, port) of an address such as 127.0.0.1:8470 or [::1]:0. ConfigurationError."""
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigurationError(f"expected an address and a port such as 127.0.0.1:8470, got {address!r:.80}")
    return host, int(port)
