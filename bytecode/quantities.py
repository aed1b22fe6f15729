"""Times and sizes as people write them in files and on the command line: `500 ms`, `30 min`, `64 MiB`.

One syntax everywhere: a number, spaces or none, a unit in upper or lower case. What a plain number means says the file.
"""

import math
import re

MICROSECONDS = {"us": 1, "ms": 10**3, "s": 10**6, "min": 60 * 10**6, "h": 3600 * 10**6, "d": 86_400 * 10**6}
_BYTES = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_BYTES |= {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_QUANTITY = re.compile(r" *([0-9]{1,1000})(?:\.([0-9]{1,1000}))? *([A-Za-z]+) *")


def seconds(text):
    """The seconds of a text such as "500 ms" as a float, or None."""
    number, parts = _read(text, MICROSECONDS)
    try:
        return None if number is None else number / (parts * 10**6)
    except OverflowError:
        return math.inf


def milliseconds(text):
    """The milliseconds of a text such as "30 min" as an int, or None. ValueError if they are not whole."""
    number, parts = _read(text, MICROSECONDS)
    if number is None:
        return None
    whole, rest = divmod(number, parts * 1000)
    if rest:
        raise ValueError(f"expected whole milliseconds, got {text!r:.80}")
    return whole


def byte_count(text):
    """The bytes of a text such as "64 MiB" as an int, rounded down, or None."""
    number, parts = _read(text, _BYTES)
    return None if number is None else number // parts


def _read(text, units):
    """(number, parts): the quantity is number/parts of the smallest unit, exactly. (None, None) if `text` is none."""
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    if match is None or match[3].lower() not in units:
        return None, None
    digits = match[2] or ""
    return int(match[1] + digits) * units[match[3].lower()], 10 ** len(digits)


def _any_case(units):
    return "|".join("".join(f"[{letter}{letter.upper()}]" for letter in unit) for unit in units)


# The syntax as the schemas of files have it; JSON Schema knows no "any case".
TIME_PATTERN = rf"^ *[0-9]{{1,1000}}(\.[0-9]{{1,1000}})? *({_any_case(MICROSECONDS)}) *$"
SIZE_PATTERN = rf"^ *[0-9]{{1,1000}}(\.[0-9]{{1,1000}})? *({_any_case(_BYTES)}) *$"
