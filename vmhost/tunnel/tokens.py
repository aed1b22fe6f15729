"""Authentication of devices by token: a file with a device and its token on each line."""

import hashlib
import os
import stat
from pathlib import Path

from vmhost.tunnel.errors import TunnelConfigurationError

SHORTEST = 16


class Tokens:
    """`Tokens(path)(token)` returns the device's name, or None. The file is read again when it changes."""

    def __init__(self, path):
        self._path = Path(path)
        self._stamp = None
        self._devices = {}
        self._read()

    def _read(self):
        try:
            with open(self._path, encoding="utf-8") as file:
                info = os.fstat(file.fileno())
                lines = file.read().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise TunnelConfigurationError(f"{self._path}: the tokens cannot be read: {why}") from error
        if info.st_mode & (stat.S_IRWXO | stat.S_IWGRP):
            raise TunnelConfigurationError(f"{self._path}: others can read the tokens; chmod 600 {self._path}")
        devices = {}
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.startswith("#"):
                continue
            device, _, token = line.strip().partition(" ")
            token = token.strip()
            if len(token) < SHORTEST or " " in token:
                raise TunnelConfigurationError(
                    f"{self._path}:{number}: expected a device, a space, and a token of {SHORTEST} characters or more"
                )
            devices[_digest(token)] = device
        self._devices = devices
        self._stamp = (info.st_mtime_ns, info.st_size, info.st_ino)

    def __call__(self, token):
        info = self._path.stat()
        if (info.st_mtime_ns, info.st_size, info.st_ino) != self._stamp:
            self._read()
        return self._devices.get(_digest(token))


def _digest(token):
    """Lookup by digest, so that timing reveals nothing about a partly right token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
