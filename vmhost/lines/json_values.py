"""Values that cross a VM's wall, as JSON: for a command's --input and its result.

JSON lacks bytes, tuples, sets, complex numbers, infinities, keys that are not text, dates, decimals, fractions, UUIDs
and paths. Each of these is an object with one key that starts with `$`; `$dict` also encodes a dict whose own key could
be mistaken for one. Whole numbers of more than 4,300 decimal digits are `{"$int": "0x…"}`: Python needs more than
linear time for such decimals, and refuses them. Guarantees that `from_plain(to_plain(value))` equals the value, except:
arrays, other buffers and deques become lists of Python numbers, Counter and similar become dict, an exception its type
and args, and paths those of this machine. Reading ends with a value or a ValueError, in time linear in the text's
length."""

import base64
import json
import math
import os
import re
import sys

TAGS = (
    "$bytes",
    "$complex",
    "$date",
    "$datetime",
    "$decimal",
    "$dict",
    "$float",
    "$fraction",
    "$int",
    "$path",
    "$set",
    "$time",
    "$timedelta",
    "$tuple",
    "$uuid",
    "$zone",
)
_TEXTS = {"$bytes", "$date", "$datetime", "$decimal", "$float", "$fraction", "$int", "$path", "$time", "$uuid", "$zone"}
_MAX_CHARS = 100_000  # of a decimal or a fraction: reading longer ones takes more than linear time
_MAX_NUMBERS = 1 << 24  # of an array, and lists around them: an array may repeat one number without taking memory
_MAX_DIGITS = 4300  # of a decimal; Python's default limit
_MIN_DIGITS = 640  # the smallest limit that Python allows
_HEXADECIMAL = re.compile("-?0x[0-9a-fA-F]+")


def read(given):
    """The value of a command's --input: a JSON file, `-` for stdin, JSON text, or None for none. ValueError."""
    if given is None:
        return None
    try:
        if given == "-" and sys.stdin is None:
            raise ValueError("stdin is closed")
        if given == "-":
            where, text = "stdin", sys.stdin.read()
        elif given and os.path.exists(given):
            with open(given, encoding="utf-8") as file:
                where, text = given, file.read()
        else:
            where, text = "--input", given
    except UnicodeDecodeError as error:
        raise ValueError(f"{given}: expected JSON in UTF-8, got a byte {error.object[error.start]:#04x}") from error
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{given[:200]}: cannot read the input: {getattr(error, 'strerror', None) or error}"
        ) from error
    try:
        return loads(text)
    except ValueError as error:
        if where == "--input" and not text.lstrip().startswith(("{", "[", '"')):
            raise ValueError(
                f"{given[:200] or '--input'}: no such file, and not JSON either; give a JSON file, JSON, or - for stdin"
            ) from error
        raise ValueError(f"{where}: not JSON: {error}") from error


def loads(text):
    """The value encoded in JSON text. ValueError, with the line and column of a mistake in the JSON."""
    try:
        return from_plain(parse(text))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse(text):
    """JSON text as JSON's own types, for `from_plain`. ValueError as in `loads`."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError, _NoConstantError:
        raise
    except ValueError as error:  # int() raises no other
        raise ValueError(
            f'a number of too many digits; write one of more than {_max_digits():,} as {{"$int": "0x..."}}'
        ) from error
    except RecursionError:
        raise ValueError("nested too deeply") from None


class _NoConstantError(ValueError):
    """JSON has no NaN and no Infinity."""


def dumps(value):
    """The value as JSON text, in ASCII, on one line. TypeError for values that JSON cannot express, ValueError for too
    deep nesting."""
    try:
        return json.dumps(to_plain(value), allow_nan=False)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def to_plain(value):
    """The value as JSON's own types. TypeError for values that they cannot express, ValueError for too large arrays."""
    return _plain(value, [_MAX_NUMBERS])


def _plain(value, room):
    """`room` holds how many more numbers of arrays there may be."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        bits = value.bit_length()  # 10**n has more than 3 n bits
        return value if bits < 3 * _MIN_DIGITS or bits <= 3 * _max_digits() else {"$int": hex(value)}
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, complex):
        return {"$complex": [_plain(value.real, room), _plain(value.imag, room)]}
    if isinstance(value, (bytes, bytearray)):
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, list):
        return [_plain(item, room) for item in value]
    if isinstance(value, tuple):
        return {"$tuple": [_plain(item, room) for item in value]}
    if isinstance(value, (set, frozenset)):
        return {
            "$set": sorted((_plain(item, room) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
        }
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value) and not (len(value) == 1 and next(iter(value)).startswith("$")):
            return {key: _plain(item, room) for key, item in value.items()}
        return {"$dict": [[_plain(key, room), _plain(item, room)] for key, item in value.items()]}
    if isinstance(value, BaseException):
        return {"type": type(value).__name__, "args": _plain(value.args, room)}
    named = _of_the_library(value, room)
    if named is not None:
        return named
    try:
        view = memoryview(value)
    except TypeError:
        raise TypeError(f"cannot write a {type(value).__name__} as JSON") from None
    _spend(room, view.shape)
    return _plain(getattr(value, "tolist", view.tolist)(), room)  # arrays support complex numbers, memoryviews do not


def _spend(room, shape):
    """Takes the numbers of an array of `shape`, and the lists around them, from `room`. ValueError beyond it."""
    count = 1
    for size in shape:
        count *= size
        room[0] -= count
    if room[0] < 0:
        raise ValueError(
            f"more than {_MAX_NUMBERS:,} numbers of arrays are too many for JSON (one has the shape {tuple(shape)}): "
            "return a part of them, or their bytes"
        )


def _of_the_library(value, room):
    """The tagged object, or list, for a value of a class of the standard library; None for others."""
    kinds = {base.__name__: base for base in type(value).__mro__ if base.__module__ in _LIBRARY}
    if "deque" in kinds:
        return [_plain(item, room) for item in value]
    if "datetime" in kinds or "time" in kinds:
        tag = "$datetime" if "datetime" in kinds else "$time"
        key = getattr(value.tzinfo, "key", None)
        return {tag: value.isoformat() + (f"[{key}]" if key else "")}
    if "date" in kinds:
        return {"$date": value.isoformat()}
    if "timedelta" in kinds:
        seconds = value.total_seconds()
        if kinds["timedelta"](seconds=seconds) != value:
            return {"$timedelta": [value.days, value.seconds, value.microseconds]}
        return {"$timedelta": int(seconds) if seconds.is_integer() else seconds}
    if "ZoneInfo" in kinds or "timezone" in kinds:
        return {"$zone": getattr(value, "key", None) or _fixed_zone(value)}
    tag = next((tag for name, tag in _AS_TEXT.items() if name in kinds), None)
    return tag and {tag: str(value)}


_LIBRARY = {"collections", "datetime", "decimal", "fractions", "pathlib", "pathlib._local", "uuid", "zoneinfo"}
_AS_TEXT = {"Decimal": "$decimal", "Fraction": "$fraction", "UUID": "$uuid", "PurePath": "$path"}


def from_plain(plain):
    """The value that plain JSON data encodes."""
    if isinstance(plain, list):
        return [from_plain(item) for item in plain]
    if not isinstance(plain, dict):
        return plain
    if len(plain) == 1:
        ((tag, content),) = plain.items()
        if tag.startswith("$"):
            return _tagged(tag, content)
    return {key: from_plain(item) for key, item in plain.items()}


def _tagged(tag, content):
    if tag not in TAGS:
        raise ValueError(
            f"unknown object {{{json.dumps(tag)}: ...}}; a key that starts with $ is one of {', '.join(TAGS)}"
        )
    problem = ValueError(f"{{{json.dumps(tag)}: ...}}: {_shortened(content)} is not what it can hold")
    wanted = str if tag in _TEXTS else (list, int, float) if tag == "$timedelta" else list
    if not isinstance(content, wanted) or isinstance(content, bool):
        raise problem
    inner = [from_plain(item) for item in content] if wanted is list else None  # outside `try`: has its own messages
    try:
        match tag:
            case "$bytes":
                return base64.b64decode(content, validate=True)
            case "$complex":
                real, imaginary = map(_real, inner)
                return complex(real, imaginary)
            case "$dict":
                return dict(map(_pair, inner))
            case "$float":
                return float({"nan": "nan", "inf": "inf", "-inf": "-inf"}[content])
            case "$int":
                return int(_HEXADECIMAL.fullmatch(content)[0], 16)
            case "$set":
                return set(inner)
            case "$tuple":
                return tuple(inner)
            case _:
                return _library_value(tag, content)
    except (ValueError, TypeError, LookupError, ArithmeticError, OSError) as error:
        raise problem from error


def _library_value(tag, content):
    """The value that `_of_the_library` encoded. ValueError and similar for other content."""
    if isinstance(content, str) and len(content) > _MAX_CHARS:
        raise ValueError("it is too long")
    match tag:
        case "$date" | "$datetime" | "$time":
            import datetime

            text, bracket, key = content.partition("[")
            value = getattr(datetime, tag[1:]).fromisoformat(text)
            return _in_zone(value, key.removesuffix("]")) if bracket and tag != "$date" else value
        case "$timedelta":
            from datetime import timedelta

            if isinstance(content, list):
                days, seconds, microseconds = map(_whole, content)
                return timedelta(days, seconds, microseconds)
            return timedelta(seconds=content)
        case "$decimal":
            from decimal import Decimal

            return Decimal(content)
        case "$fraction":
            from fractions import Fraction

            if re.fullmatch(r"-?\d{1,4300}(/\d{1,4300})?", content) is None:
                raise ValueError("it is none")
            return Fraction(content)
        case "$uuid":
            from uuid import UUID

            return UUID(content)
        case "$path":
            from pathlib import Path

            return Path(content)
        case "$zone":
            return _zone(content)


def _in_zone(value, key):
    """The date or time `value` in the zone called `key`. ValueError if the zone has another offset then."""
    offset, value = value.utcoffset(), value.replace(tzinfo=_zone(key))
    if offset is not None and value.utcoffset() != offset:
        value = value.replace(fold=1)
        if value.utcoffset() != offset:
            raise ValueError("the zone has another offset then")
    return value


def _fixed_zone(zone):
    """A timezone's offset as text, whatever its name: "UTC" alone, and names such as "CET", are keys of ZoneInfo."""
    from datetime import datetime

    midnight = datetime(2000, 1, 1, tzinfo=zone).isoformat()
    return f"UTC{midnight.removeprefix('2000-01-01T00:00:00')}"


def _zone(text):
    from datetime import datetime

    if text.startswith("UTC") and text != "UTC":
        return datetime.fromisoformat(f"2000-01-01T00:00:00{text.removeprefix('UTC')}").tzinfo
    from zoneinfo import ZoneInfo

    return ZoneInfo(text)


def _whole(value):
    if type(value) is not int:
        raise TypeError("a part of a timedelta is an int")
    return value


def _real(value):
    if type(value) not in (int, float):
        raise TypeError("a part of a complex number is an int or a float")
    return value


def _pair(value):
    if type(value) is not list or len(value) != 2:
        raise TypeError("a dict has pairs of a key and an item")
    return value


def _max_digits():
    """The most digits of a decimal that Python converts here, at most _MAX_DIGITS."""
    return min(sys.get_int_max_str_digits() or _MAX_DIGITS, _MAX_DIGITS)


def _shortened(content):
    """The beginning of plain data, for a message; does not serialise large data."""
    if isinstance(content, (list, dict)):
        return f"a {'list' if isinstance(content, list) else 'dict'} of {len(content)}"
    return json.dumps(content[:60] if isinstance(content, str) else content)[:60]


def _refuse_constant(name):
    raise _NoConstantError(f'{name} is not JSON; write {{"$float": "{name.lower().replace("infinity", "inf")}"}}')
