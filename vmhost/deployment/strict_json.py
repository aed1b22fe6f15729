"""JSON as messages of devices and people may have it: RFC 8259, narrowed as by RFC 7493 (I-JSON) and in depth.

Refused: NaN, infinities, numbers that no double holds, whole numbers of more than 64 bits, halves of surrogate pairs, a
key twice in one object, more than MAX_DEPTH levels, bytes that are not UTF-8.
"""

import json
import math

MAX_DEPTH = 32
_MIN_WHOLE, _MAX_WHOLE = -(2**63), 2**63 - 1


def read(data):
    """The value in `data` (bytes). ValueError says what is wrong."""
    text = data.decode()
    try:
        value = json.loads(
            text, parse_constant=_constant, parse_float=_real, parse_int=_whole, object_pairs_hook=_object
        )
    except RecursionError:
        raise ValueError(f"more than {MAX_DEPTH} levels") from None
    for level, each in _walk(value):
        if level > MAX_DEPTH:
            raise ValueError(f"more than {MAX_DEPTH} levels")
        if "\\" in text and isinstance(each, str):  # only an escape can name half of a surrogate pair
            _must_be_text(each)
    return value


def written(value):
    """The bytes of a value in JSON. What JSON cannot express is written as a text that says so: it may be stored since
    before it was checked, and one bad value must not hide the others."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except ValueError, RecursionError:  # includes UnicodeEncodeError
        return json.dumps(_shown(value), ensure_ascii=False, separators=(",", ":")).encode()


def _shown(value, level=0):
    if level > 4 * MAX_DEPTH:
        return "(too deep)"
    if isinstance(value, float) and not math.isfinite(value):
        return f"({value})"
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_shown(str(key)): _shown(each, level + 1) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_shown(each, level + 1) for each in value]
    return value


def _walk(value):
    """(level, value) of all values and keys."""
    todo = [(1, value)]
    while todo:
        level, each = todo.pop()
        yield level, each
        if isinstance(each, dict):
            todo += [(level, key) for key in each]
            todo += [(level + 1, inner) for inner in each.values()]
        elif isinstance(each, list):
            todo += [(level + 1, inner) for inner in each]


def _must_be_text(text):
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair, such as \\ud800 alone, is no text") from None


def _constant(name):
    raise ValueError(f"{name} is no number in JSON")


def _real(text):
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text:.40} is more than a double holds")
    return number


def _whole(text):
    if len(text) > 20 or not _MIN_WHOLE <= (number := int(text)) <= _MAX_WHOLE:
        raise ValueError(f"{text:.40} has more than 64 bits")
    return number


def _object(pairs):
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r:.60} is there twice")
    return found
