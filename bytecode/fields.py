"""Kinds of permissions, and what checks of values and their messages need. Patterns match a whole text."""

import math
import re

END_OF_TIME_S = 1e9  # all times are below
MAX_PERMISSIONS = 1024  # of one kind
MAX_GRANT_CHARS = 4095

PATH = re.compile(r"/[^\u0000*]*|(/[^\u0000*]*)?/\*\*")
_PORT = r"([0-9]{1,4}|[0-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]|\*)"
ADDRESS = re.compile(rf"[^\s:/\u0000]+:{_PORT}|\[[0-9a-fA-F:.]+\]:{_PORT}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*:(read|write)")
# Kind of permission -> (pattern of a grant, its description).
GRANTS = {
    "read": (PATH, "an absolute path, such as /var/data/**"),
    "write": (PATH, "an absolute path, such as /var/data/**"),
    "net": (ADDRESS, 'an address such as "example.org:443" or "10.0.0.7:*"'),
    "listen": (ADDRESS, 'an address such as "example.org:443" or "10.0.0.7:*"'),
    "env": (VARIABLE, "the name of an environment variable, such as LANG"),
    "host": (FUNCTION, "the name of a host function, such as lookup"),
    "tables": (TABLE, 'an embedding table of the host\'s, such as "items:read" or "items:write"'),
}
# The entries that grant all of a kind; host functions and tables are named one by one.
EVERYTHING = {"read": ("/",), "write": ("/",), "net": ("*:*",), "listen": ("*:*",), "env": ("*",)}
# Kinds that were added to bundle format 1 later. A manifest names them only where a task asks for some, so that hosts
# that do not know them still load all other bundles.
LATER_GRANTS = frozenset({"listen", "tables"})


def matches(pattern, value, max_chars):
    """Is `value` a str of at most `max_chars` characters that UTF-8 can encode and that `pattern` matches as a
    whole?"""
    return type(value) is str and len(value) <= max_chars and pattern.fullmatch(value) is not None and is_unicode(value)


def is_unicode(text):
    """Can UTF-8 encode `text`? It cannot encode lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(value, max_chars=80):
    """`value` for a message, shortened to `max_chars`."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**max_chars:
        # str() has a limit on digits, and nobody reads that many
        return f"a number of about {int(value.bit_length() * math.log10(2)) + 1} digits"
    try:
        text = repr(value)
    except ValueError, RecursionError:  # it contains such a number, or nests too deep
        return f"a {type(value).__name__}"
    return text if len(text) <= max_chars else text[: max_chars - 3] + "..."
