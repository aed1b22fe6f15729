"""Values of standard-library classes that cross between interpreters, and that the native wire does not know.

Each side has its own copy of this module: `pack` turns a value into (kind, detail, payload) of builtin values, `unpack`
checks every part and creates the value. Exact classes only, since a subclass may have unknown state. A VM may send
forged data: `unpack` returns a value of the kind or raises Malformed, calls nothing but the standard library's own
constructors, and imports no module that the other side names.
"""

import sys

(
    COUNTER,
    DEFAULTDICT,
    ORDERED_DICT,
    DEQUE,
    DATE,
    TIME,
    DATETIME,
    TIMEDELTA,
    TIMEZONE,
    ZONE_INFO,
    DECIMAL,
    FRACTION,
    UUID,
    PATH,
) = range(14)

# The classes that a defaultdict's factory may be.
FACTORIES = {kind.__name__: kind for kind in (int, float, complex, str, bytes, bool, list, tuple, dict, set, frozenset)}
_FACTORY_NAMES = {kind: name for name, kind in FACTORIES.items()}
# Larger ones take more than linear time to parse or reduce, and block the other side.
_MAX_DECIMAL_CHARS, _MAX_FRACTION_BITS, _MAX_ZONE_CHARS = 100_000, 65_536, 255
_PATHS = ("PurePosixPath", "PosixPath", "PureWindowsPath", "WindowsPath")


class Malformed(ValueError):
    """The data that crossed is not a value of its kind."""


def pack(value):
    """(kind, detail, payload) of a value of one of the classes here; None for another class. ValueError: why this value
    cannot cross."""
    kind = type(value)
    packer = _packers.get(kind) or _packer_of(kind)
    return packer and packer(value)


def _packer_of(kind):
    """The packer for the class `kind`, cached from now on, or None. Only imported classes can have values."""
    packer = _PACKERS.get((kind.__module__, kind.__qualname__))
    if packer is None or getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is not kind:
        return None
    _packers[kind] = packer
    return packer


def unpack(kind, detail, payload):
    """The value that `pack` encoded. Raises Malformed."""
    try:
        name, make = _UNPACKERS[kind]
    except KeyError:
        raise Malformed(f"a value of kind {kind}, which this side does not know") from None
    try:
        return make(detail, payload)
    except (ValueError, TypeError, ArithmeticError, LookupError, OSError, NotImplementedError) as error:
        message = error.args[0] if isinstance(error, KeyError) and error.args else error  # str() of one is a repr
        raise Malformed(f"not a `{name}`: {message}") from error


def expect(what, value, *kinds):
    """`value`, if its exact class is one of `kinds`; otherwise Malformed, naming `what`."""
    if type(value) not in kinds:
        expected = " or ".join("None" if kind is _NONE else f"`{kind.__name__}`" for kind in kinds)
        raise Malformed(f"{what}: expected {expected}, got `{type(value).__name__}`")
    return value


_NONE = type(None)


def _numbers(payload, names):
    """`payload`, if it is a tuple of exact ints, one for each name; otherwise Malformed."""
    expect("its parts", payload, tuple)
    if len(payload) != len(names):
        raise Malformed(f"expected {len(names)} parts, got {len(payload)}")
    for name, number in zip(names, payload):
        expect(name, number, int)
    return payload


# -- containers


def _pack_counter(value):
    return COUNTER, None, dict(value)


def _counter(detail, payload):
    from collections import Counter

    expect("its detail", detail, _NONE)
    counter = Counter()
    dict.update(counter, expect("its items", payload, dict))
    return counter


def _pack_defaultdict(value):
    factory = value.default_factory
    name = None
    if factory is not None:
        name = _FACTORY_NAMES.get(factory) if type(factory) is type else None
        if name is None:
            raise ValueError(
                f"a `collections.defaultdict` whose factory is {_shown(factory)} cannot cross: factories that can are "
                f"None and the classes {', '.join(FACTORIES)}; send dict(it)"
            )
    return DEFAULTDICT, name, dict(value)


def _shown(factory):
    name = getattr(factory, "__qualname__", None)
    return name[:100] if type(name) is str else f"of class {type(factory).__name__[:100]}"


def _defaultdict(detail, payload):
    from collections import defaultdict

    expect("its factory", detail, str, _NONE)
    if detail is not None and detail not in FACTORIES:
        raise Malformed(f"its factory: expected None or one of {', '.join(FACTORIES)}, got {detail[:100]!r}")
    return defaultdict(FACTORIES.get(detail), expect("its items", payload, dict))


def _pack_ordered_dict(value):
    return ORDERED_DICT, None, dict(value)


def _ordered_dict(detail, payload):
    from collections import OrderedDict

    expect("its detail", detail, _NONE)
    return OrderedDict(expect("its items", payload, dict))


def _pack_deque(value):
    return DEQUE, value.maxlen, list(value)


def _deque(detail, payload):
    from collections import deque

    expect("its maxlen", detail, int, _NONE)
    expect("its items", payload, list)
    if detail is not None and len(payload) > detail:
        raise Malformed(f"{len(payload)} items where its maxlen is {str(detail)[:30]}")
    return deque(payload, detail)


# -- times

_DATE_PARTS = ("year", "month", "day")
_TIME_PARTS = ("hour", "minute", "second", "microsecond", "fold")
_DELTA_PARTS = ("days", "seconds", "microseconds")


def _pack_date(value):
    return DATE, None, (value.year, value.month, value.day)


def _date(detail, payload):
    from datetime import date

    expect("its detail", detail, _NONE)
    return date(*_numbers(payload, _DATE_PARTS))


def _pack_time(value):
    return TIME, _zone_of(value), (value.hour, value.minute, value.second, value.microsecond, value.fold)


def _time(detail, payload):
    from datetime import time

    *parts, fold = _numbers(payload, _TIME_PARTS)
    return time(*parts, _zone(detail), fold=fold)


def _pack_datetime(value):
    return (
        DATETIME,
        _zone_of(value),
        (value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond, value.fold),
    )


def _datetime(detail, payload):
    from datetime import datetime

    *parts, fold = _numbers(payload, _DATE_PARTS + _TIME_PARTS)
    return datetime(*parts, _zone(detail), fold=fold)


def _zone_of(value):
    """Its tzinfo. ValueError for a class that does not cross, such as those of dateutil and pytz."""
    try:
        return _zone(value.tzinfo)
    except Malformed:
        raise ValueError(
            f"a `{type(value).__name__}` in a `{type(value.tzinfo).__name__}` cannot cross; its zone can be a "
            "datetime.timezone or a zoneinfo.ZoneInfo, as in value.astimezone(datetime.UTC)"
        ) from None


def _zone(detail):
    """A tzinfo of a class that crosses, or None."""
    if detail is None:
        return None
    known = tuple(getattr(sys.modules.get(module), name, None) for module, name in _ZONES)
    if type(detail) not in known:
        raise Malformed(f"its tzinfo: expected `timezone`, `ZoneInfo` or None, got `{type(detail).__name__}`")
    return detail


_ZONES = (("datetime", "timezone"), ("zoneinfo", "ZoneInfo"))


def _pack_timedelta(value):
    return TIMEDELTA, None, (value.days, value.seconds, value.microseconds)


def _timedelta(detail, payload):
    from datetime import timedelta

    expect("its detail", detail, _NONE)
    days, seconds, microseconds = _numbers(payload, _DELTA_PARTS)
    if not (0 <= seconds < 86400 and 0 <= microseconds < 1_000_000):
        raise Malformed("seconds and microseconds: expected less than a day, and less than a second")
    return timedelta(days, seconds, microseconds)


def _pack_timezone(value):
    offset, *name = value.__getinitargs__()
    return TIMEZONE, name[0] if name else None, (offset.days, offset.seconds, offset.microseconds)


def _timezone(detail, payload):
    from datetime import timezone

    offset = _timedelta(None, payload)
    expect("its name", detail, str, _NONE)
    return timezone(offset) if detail is None else timezone(offset, detail)


def _pack_zone_info(value):
    key = value.key
    if type(key) is not str:
        raise ValueError("a `zoneinfo.ZoneInfo` without a key cannot cross; make it with ZoneInfo(key)")
    return ZONE_INFO, None, key


def _zone_info(detail, payload):
    from zoneinfo import ZoneInfo

    expect("its detail", detail, _NONE)
    expect("its key", payload, str)
    parts = payload.split("/")
    if len(payload) > _MAX_ZONE_CHARS or not all(map(_is_zone_part, parts)):
        raise Malformed(f"its key: expected a name such as Europe/Paris, got {payload[:100]!r}")
    return ZoneInfo(payload)


def _is_zone_part(part):
    return part[:1].isalpha() and part.isascii() and part.replace("_", "").replace("-", "").replace("+", "").isalnum()


# -- numbers, names


def _pack_decimal(value):
    text = str(value)
    if len(text) > _MAX_DECIMAL_CHARS:
        raise ValueError(
            f"a `decimal.Decimal` of more than {_MAX_DECIMAL_CHARS:,} characters cannot cross; send str(it)"
        )
    return DECIMAL, None, text


def _decimal(detail, payload):
    from decimal import Decimal

    expect("its detail", detail, _NONE)
    expect("its text", payload, str)
    if not 0 < len(payload) <= _MAX_DECIMAL_CHARS or not payload.isascii():
        raise Malformed(f"its text: expected 1 to {_MAX_DECIMAL_CHARS:,} characters of ASCII, got {len(payload)}")
    try:
        number = Decimal(payload)
    except ArithmeticError:
        number = None
    if str(number) != payload:
        raise Malformed(f"its text: expected what str() gives, got {payload[:100]!r}")
    return number


def _pack_fraction(value):
    numerator, denominator = value.as_integer_ratio()
    if max(numerator.bit_length(), denominator.bit_length()) > _MAX_FRACTION_BITS:
        raise ValueError(
            f"a `fractions.Fraction` of numbers with more than {_MAX_FRACTION_BITS:,} bits cannot cross; send its parts"
        )
    return FRACTION, None, (numerator, denominator)


def _fraction(detail, payload):
    from fractions import Fraction

    expect("its detail", detail, _NONE)
    numerator, denominator = _numbers(payload, ("numerator", "denominator"))
    if max(numerator.bit_length(), denominator.bit_length()) > _MAX_FRACTION_BITS or denominator < 1:
        raise Malformed(f"expected numbers of at most {_MAX_FRACTION_BITS:,} bits and a denominator above zero")
    return Fraction(numerator, denominator)


def _pack_uuid(value):
    return UUID, None, value.bytes


def _uuid(detail, payload):
    from uuid import UUID as Identifier

    expect("its detail", detail, _NONE)
    expect("its bytes", payload, bytes)
    if len(payload) != 16:
        raise Malformed(f"its bytes: expected 16, got {len(payload)}")
    return Identifier(bytes=payload)


def _pack_path(value):
    return PATH, type(value).__name__, str(value)


def _path(detail, payload):
    import pathlib

    expect("its class", detail, str)
    if detail not in _PATHS:
        raise Malformed(f"its class: expected one of {', '.join(_PATHS)}, got {detail[:100]!r}")
    return getattr(pathlib, detail)(expect("its text", payload, str))


# (module, class) -> packer
_PACKERS = {
    ("collections", "Counter"): _pack_counter,
    ("collections", "defaultdict"): _pack_defaultdict,
    ("collections", "OrderedDict"): _pack_ordered_dict,
    ("collections", "deque"): _pack_deque,
    ("datetime", "date"): _pack_date,
    ("datetime", "time"): _pack_time,
    ("datetime", "datetime"): _pack_datetime,
    ("datetime", "timedelta"): _pack_timedelta,
    ("datetime", "timezone"): _pack_timezone,
    ("zoneinfo", "ZoneInfo"): _pack_zone_info,
    ("decimal", "Decimal"): _pack_decimal,
    ("fractions", "Fraction"): _pack_fraction,
    ("uuid", "UUID"): _pack_uuid,
    **{("pathlib", name): _pack_path for name in _PATHS},
}
_packers = {}  # class -> packer, of classes seen so far
# kind -> (name in messages, function that creates the value)
_UNPACKERS = {
    COUNTER: ("Counter", _counter),
    DEFAULTDICT: ("defaultdict", _defaultdict),
    ORDERED_DICT: ("OrderedDict", _ordered_dict),
    DEQUE: ("deque", _deque),
    DATE: ("date", _date),
    TIME: ("time", _time),
    DATETIME: ("datetime", _datetime),
    TIMEDELTA: ("timedelta", _timedelta),
    TIMEZONE: ("timezone", _timezone),
    ZONE_INFO: ("ZoneInfo", _zone_info),
    DECIMAL: ("Decimal", _decimal),
    FRACTION: ("Fraction", _fraction),
    UUID: ("UUID", _uuid),
    PATH: ("path", _path),
}
