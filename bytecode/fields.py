"""Valid values for a task's fields and kinds of permissions: one definition for task.yaml, manifests, and a host's
limits.

`task.schema.json` repeats them for editors; tests/bytecode/test_fields.py compares the two. Patterns match a whole
text."""

import math
import re

MIN_MEMORY_BYTES = 4 << 20  # a bare VM takes 1.7 MB
MAX_MEMORY_BYTES = 1 << 48
MIN_STACK_BYTES = 96 << 10  # below, calls fail with errors other than RecursionError
MAX_STACK_BYTES = 256 << 20
END_OF_TIME_S = 1e9  # all times are below
MAX_CONCURRENCY = 1024
MAX_DESCRIPTORS = 1 << 20
MIN_OUTPUT_BYTES, MAX_OUTPUT_BYTES = 1 << 10, 1 << 40
MIN_PRIORITY, MAX_PRIORITY = -100, 100
MAX_MODELS = 1024
MAX_PERMISSIONS = 1024  # of one kind

MAX_VERSION_CHARS, MAX_ENTRY_CHARS, MAX_MODEL_CHARS, MAX_GRANT_CHARS = 64, 255, 64, 4095

NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
VERSION = re.compile(r"[0-9]+(\.[0-9]+){0,3}([-+.][0-9A-Za-z.+-]{1,40})?")
ENTRY = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
TARGET = re.compile(r"3\.[1-9][0-9]")
MODEL = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
ARCHITECTURE = re.compile(r"[A-Za-z0-9_]{1,64}")
EXACT_PYTHON = re.compile(
    r"[0-9][0-9A-Za-z.+_-]{0,63}"
)  # CPython's own version string, also of a standard library: "3.15.0a1+"
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
# `permissions.tunnel` of task.yaml names channels; each stands for a host function with this prefix (vmhost/tunnel).
TUNNEL_FUNCTION = "tunnel_"
# The entries that grant all of a kind; host functions and tables are named one by one.
EVERYTHING = {"read": ("/",), "write": ("/",), "net": ("*:*",), "listen": ("*:*",), "env": ("*",)}
# Kinds that were added to bundle format 1 later. A manifest names them only where a task asks for some, so that hosts
# that do not know them still load all other bundles.
LATER_GRANTS = frozenset({"listen", "tables"})

# Name of a limit in a manifest -> its least and greatest value; times have none.
LIMIT_RANGES = {
    "memory_bytes": (MIN_MEMORY_BYTES, MAX_MEMORY_BYTES),
    "stack_bytes": (MIN_STACK_BYTES, MAX_STACK_BYTES),
    "concurrency": (1, MAX_CONCURRENCY),
    "descriptors": (1, MAX_DESCRIPTORS),
    "output_bytes": (MIN_OUTPUT_BYTES, MAX_OUTPUT_BYTES),
}
# Name of a limit in a manifest -> its range, in words.
EXPECTED_LIMITS = {
    "memory_bytes": "4 MiB to 256 TiB",
    "wall_time_s": "a time above 0 and below 1e9 s",
    "cpu_time_s": "a time above 0 and below 1e9 s",
    "stack_bytes": "96 KiB to 256 MiB",
    "concurrency": f"a whole number from 1 to {MAX_CONCURRENCY}",
    "descriptors": f"a whole number from 1 to {MAX_DESCRIPTORS}",
    "output_bytes": "1 KiB to 1 TiB",
}


def limit_is_right(name, value):
    """Is `value` valid for the limit `name` of a manifest? A value of the wrong type is not."""
    if name.endswith("_s"):
        return type(value) in (int, float) and 0 < value < END_OF_TIME_S
    minimum, maximum = LIMIT_RANGES[name]
    return type(value) is int and minimum <= value <= maximum


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
