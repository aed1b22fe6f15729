"""Files that hold a token."""

import re

from vmhost.errors import ConfigurationError

CHECKED_MIN = 16  # characters of a token that this process checks, so that nobody guesses it
_MAX = 4096
_MAX_BYTES = 8192  # with the white space around it


def read_token(path, least=1):
    """The token in the file at `path`, of at least `least` characters, without white space around it.
    ConfigurationError, which does not show it."""
    try:
        with open(path, "rb") as file:
            token = file.read(_MAX_BYTES).decode("latin-1").strip()
    except OSError as error:
        raise ConfigurationError(f"{path}: the token cannot be read: {error.strerror}") from error
    if not (least <= len(token) <= _MAX and re.fullmatch("[!-~]+", token)):  # it goes into an HTTP header
        raise ConfigurationError(f"{path}: expected one token, {least} to {_MAX} visible ASCII characters")
    return token
