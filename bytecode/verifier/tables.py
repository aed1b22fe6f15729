"""Reads the two packed tables of a code object: exception handlers and source positions.

CPython walks both without bounds checks, while it raises an exception, so every byte is checked here. Formats:
InternalDocs/exception_handling.md and InternalDocs/code_objects.md of CPython.
"""

import re
from collections import namedtuple

from .errors import VerifyError

_VARINT = rb"[\x40-\x7f]{0,4}[\x00-\x3f]"
_LOCATIONS = re.compile(
    rb"(?:[\x80-\xcf][\x00-\x7f]"  # short: columns in one byte
    rb"|[\xd0-\xe7][\x00-\x7f]{2}"  # one line: two columns
    rb"|[\xe8-\xef]"
    + _VARINT  # line only
    + rb"|[\xf0-\xf7](?:"
    + _VARINT
    + rb"){4}"  # long: line, end line, two columns
    rb"|[\xf8-\xff])*+"  # no location
)
_ENTRY = re.compile(
    rb"([\x80-\xbf]|[\xc0-\xff][\x40-\x7f]{0,3}[\x00-\x3f])(" + _VARINT + rb")(" + _VARINT + rb")(" + _VARINT + rb")"
)
_LENGTHS = bytes((head & 7) + 1 for head in range(256))
_CONTINUATIONS = bytes(range(128))


class Handler(namedtuple("Handler", ("first", "past", "target", "depth", "lasti"))):
    """Instructions from `first` up to but without `past` go to instruction `target` when they raise.

    `depth` slots stay on the stack; if `lasti`, the offset of the raising instruction is pushed before the exception.
    """

    __slots__ = ()


def check_locations(code, units, where):
    """Refuses a line table that is not well formed or does not cover exactly `units` code units."""
    table = code.co_linetable
    if not _LOCATIONS.fullmatch(table):
        raise VerifyError(where, code.co_qualname, "its table of source positions is not well formed")
    covered = sum(table.translate(_LENGTHS, _CONTINUATIONS))
    if covered != units:
        raise VerifyError(
            where, code.co_qualname, f"its table of source positions covers {covered} code units, and there are {units}"
        )


def _number(packed):
    value = 0
    for byte in packed:
        value = value << 6 | byte & 0x3F
    return value


def handlers(code, instructions):
    """The exception table as Handlers in order; VerifyError if it is damaged or points between instructions."""
    table, found, offset = code.co_exceptiontable, [], 0
    units = instructions.end[-1]

    def refuse(message):
        raise VerifyError(instructions.where, code.co_qualname, f"exception table, byte {offset}: {message}")

    def index(unit):
        if unit == units:
            return len(instructions.ops)
        if unit not in instructions.index_at:
            refuse(f"no instruction starts at offset {2 * unit}")
        return instructions.index_at[unit]

    past_before = 0
    while offset < len(table):
        match = _ENTRY.match(table, offset)
        if not match:
            refuse("not a well-formed entry")
        start, length, target, depth = map(_number, match.groups())
        if not length:
            refuse("an empty range")
        if start < past_before:
            refuse(f"range from offset {2 * start} begins before the one before it ends")
        if target < start + length:
            # A handler within or before its range could loop without checking the eval breaker, so no stop would
            # reach it.
            refuse(f"range from offset {2 * start} has its handler at {2 * target}, expected one after the range")
        if target >= units:
            refuse(f"handler at offset {2 * target}, and the code has {2 * units} bytes")
        past_before = start + length
        found.append(Handler(index(start), index(past_before), index(target), depth >> 1, bool(depth & 1)))
        offset = match.end()
    return found
