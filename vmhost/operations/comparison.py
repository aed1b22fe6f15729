"""Differences between two values: paths and both sides; numbers by tolerance, arrays element by element."""

import math
import re
from dataclasses import dataclass

from vmhost.baseline import Foreign

_MAX_DIFFERENCES = 20  # reported by one comparison
_SHOWN = 120  # characters of a value
MISSING = object()


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Two numbers are equal if they differ by at most `relative` of the larger, or by `absolute`."""

    relative: float = 1e-9
    absolute: float = 1e-12

    def same(self, a: float, b: float) -> bool:
        if a == b or (a != a and b != b):
            return True
        return math.isclose(a, b, rel_tol=self.relative, abs_tol=self.absolute)


@dataclass(frozen=True, slots=True)
class Difference:
    """At `path` ("$.prices[3]") `before` became `after`; both are short texts, "" where there is no value."""

    path: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.path}: {self.before or 'nothing'} -> {self.after or 'nothing'}"


def differences(before: object, after: object, tolerance: Tolerance, path: str = "$") -> list[Difference]:
    """The first 20 differences; empty: equal."""
    found: list[Difference] = []
    _compare(before, after, tolerance, path, found)
    return found[:_MAX_DIFFERENCES]


def shown(value: object) -> str:
    """A value in at most 120 characters."""
    if value is MISSING:
        return ""
    array = _array(value)
    if array is not None:
        return f"array of {'x'.join(map(str, array.shape)) or 'one'} {array.format}"
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _array(value):
    if isinstance(value, (bytes, str, int, float, list, dict, tuple)):
        return None
    try:
        return memoryview(value)
    except TypeError:
        return None


def _compare(before, after, tolerance, path, found):
    if len(found) >= _MAX_DIFFERENCES:
        return
    a, b = _array(before), _array(after)
    if a is not None and b is not None:
        _compare_arrays(a, b, tolerance, path, found)
    elif _is_number(before) and _is_number(after):
        if not _same_number(before, after, tolerance):
            _add(found, path, before, after)
    elif type(before) is not type(after):
        _add(found, path, before, after)
    elif isinstance(before, dict):
        for key in (*before, *(key for key in after if key not in before)):
            place = f"{path}.{key}" if isinstance(key, str) and key.isidentifier() else f"{path}[{key!r}]"
            _compare(before.get(key, MISSING), after.get(key, MISSING), tolerance, place, found)
    elif isinstance(before, (list, tuple)):
        for at in range(max(len(before), len(after))):
            _compare(
                before[at] if at < len(before) else MISSING,
                after[at] if at < len(after) else MISSING,
                tolerance,
                f"{path}[{at}]",
                found,
            )
    elif isinstance(before, (set, frozenset)):
        for item in sorted(before - after, key=repr):
            _add(found, f"{path}{{}}", item, MISSING)
        for item in sorted(after - before, key=repr):
            _add(found, f"{path}{{}}", MISSING, item)
    elif isinstance(before, Foreign):
        if before.detail != after.detail:
            _add(found, path, before.detail, after.detail)
        else:
            _compare(before.payload, after.payload, tolerance, path, found)
    elif isinstance(before, complex):
        if not (tolerance.same(before.real, after.real) and tolerance.same(before.imag, after.imag)):
            _add(found, path, before, after)
    elif before != after and not (type(before) is str and _fits(before, after)):
        _add(found, path, before, after)


def _fits(before, after):
    """Whether `after` matches `before` if its pseudonyms (vmhost.masking) stand for any text."""
    parts = re.split("masked-[0-9a-f]{12}", before)
    return len(parts) > 1 and re.fullmatch(".*".join(map(re.escape, parts)), after, re.DOTALL) is not None


def _add(found, path, before, after):
    found.append(Difference(path, shown(before), shown(after)))


def _is_number(value):
    return type(value) in (int, float)


def _same_number(a, b, tolerance):
    if type(a) is int and type(b) is int:
        return a == b
    try:
        return tolerance.same(float(a), float(b))
    except OverflowError:
        return a == b


def _compare_arrays(a, b, tolerance, path, found):
    if a.format != b.format or a.shape != b.shape:
        _add(found, path, a, b)
        return
    left, right = a.tobytes(), b.tobytes()
    if left == right:
        return
    try:
        left, right = memoryview(left).cast(a.format), memoryview(right).cast(a.format)
    except ValueError, TypeError:  # a format that Python does not read, such as complex numbers
        _add(found, path, f"other bytes of {shown(a)}", f"{shown(b)}")
        return
    shape, worst = a.shape, 0
    for at, (values, other_values) in enumerate(zip(left, right)):
        if _same_number(values, other_values, tolerance) if _is_number(values) else values == other_values:
            continue
        worst += 1
        if worst <= 3:
            _add(found, f"{path}{_place(at, shape)}", values, other_values)
    if worst > 3:
        found.append(Difference(path, f"{worst} of {len(left)} elements differ", ""))


def _place(at, shape):
    places = []
    for size in reversed(shape):
        at, indices = divmod(at, size)
        places.append(indices)
    return f"[{', '.join(map(str, reversed(places)))}]"
