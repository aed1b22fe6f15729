"""Addresses as people write them: `host:port`, `[::1]:port`, or several separated by commas."""

from vmhost.tunnel.errors import TunnelConfigurationError

PORT = 7443


def parse(text, default_host=None):
    """[(host, port)] of "host:port,host:port"; the default port is 7443."""
    found = []
    for part in str(text).split(","):
        part = part.strip()
        if part.startswith("["):
            host, _, rest = part[1:].partition("]")
            port = rest[1:] if rest.startswith(":") else rest
        else:
            host, _, port = part.partition(":")
        host = host or default_host or ""
        if not host or (port and not port.isdecimal()) or not 0 <= int(port or PORT) < 65536:
            raise TunnelConfigurationError(
                f"address {part!r}: expected HOST:PORT, [IPv6]:PORT, or several with commas between"
            )
        found.append((host, int(port or PORT)))
    return found


def shown(host, port):
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
