"""Files that hold a token."""

import re

from vmhost.errors import ConfigurationError

_MAX_BYTES = 8192  # with the white space around it
_TOKEN = re.compile(r"[!-~]{16,4096}")  # it goes into HTTP headers


def read_token(path):
    """The token in the file at `path`, without white space around it. ConfigurationError, which does not show it."""
    try:
        with open(path, "rb") as file:
            token = file.read(_MAX_BYTES).decode("latin-1").strip()
    except OSError as error:
        raise ConfigurationError(f"{path}: the token cannot be read: {error.strerror}") from error
    if not _TOKEN.fullmatch(token):
        raise ConfigurationError(f"{path}: expected one token, 16 to 4096 visible ASCII characters")
    return token
