"""Times and sizes as people write them in files: `500 ms`, `30 min`, `64 MiB`."""

import re

UNITS_MS = {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
UNITS_BYTES = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
}
MAX_MS = 1 << 52
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]+)")


def whole(value, units, unit, least=0):
    """The quantity in a text such as "30 min", or a number of `unit`s, as an integer. ValueError if it is none, or
    not from `least` to MAX_MS."""
    found = None
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value)
        if match is not None and match[2] in units:
            found = float(match[1]) * units[match[2]]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        found = value * unit
    if found is None or not least <= found <= MAX_MS:
        raise ValueError(f"got {value!r:.80}")
    return round(found)


def milliseconds(value, least=1):
    """The milliseconds of a text such as "30 min", or of a number of seconds. ValueError."""
    return whole(value, UNITS_MS, 1000, least)
