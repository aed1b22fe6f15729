"""Paths below the process's working folder, which may have been removed."""

import os

from vmhost.errors import ConfigurationError


def absolute(path="."):
    """os.path.abspath(path). ConfigurationError if that needs the working folder, and it was removed."""
    try:
        return os.path.abspath(path)
    except FileNotFoundError:
        raise ConfigurationError(
            "the working folder of this process was removed: change to another one (os.chdir), or give absolute paths"
        ) from None
