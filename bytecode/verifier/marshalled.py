"""Marshalled code objects, looked through before CPython reads them.

`marshal.loads` takes on trust what a damaged file can break: a tuple that refers to itself overflows the C stack when
the code object around it is made, and a count of 2**31 items is believed before one of them is there. Format:
Python/marshal.c of CPython 3.14, version 5, as far as code objects use it.
"""

import marshal

from .errors import VerifyError

_MAX_DEPTH = 500  # containers in one another; the parser stops at 200 parentheses and 100 indentations
_ATOMS = {ord(letter): size for letter, size in {"N": 0, "F": 0, "T": 0, ".": 0, "i": 4, "g": 8, "y": 16}.items()}
_LONG_STRINGS = frozenset(b"stuaA")  # four bytes of length
_SHORT_STRINGS = frozenset(b"zZ")  # one byte of length
_INTEGER, _REFERENCE, _CODE, _SLICE = b"lrc:"
_COUNTED, _SMALL_TUPLE = frozenset(b"(>"), b")"[0]
_CODE_NUMBERS, _CODE_OBJECTS, _LINE_NUMBER, _CODE_TABLES = (
    20,
    8,
    4,
    2,
)  # bytes, objects, bytes, objects of a code object
_FLAG = 0x80  # the object is referred to later


def check_marshalled(data, where=""):
    """Refuses bytes that are not exactly one well-formed marshalled code object. Builds nothing."""

    def refuse(message):
        raise VerifyError(where, None, f"not marshalled code: byte {place}: {message}")

    place, total = 0, len(data)
    complete = []  # for each flagged object, in order: may it be referred to?
    # one entry for each container that is open: [objects missing, its number among the flagged or -1, is it a code
    # object?]
    open_containers = []
    if not data or data[0] & ~_FLAG != _CODE:
        refuse("no code object begins here")
    while True:
        if place >= total:
            refuse("the data ends too early")
        kind = data[place]
        place += 1
        number = -1
        if kind & _FLAG:
            kind &= ~_FLAG
            number = len(complete)
            complete.append(True)
        count = -1
        if kind in _ATOMS:
            place += _ATOMS[kind]
        elif kind in _SHORT_STRINGS:
            place += 1 + (data[place] if place < total else 0)
        elif kind == _REFERENCE:
            target = int.from_bytes(data[place : place + 4], "little")
            place += 4
            if number >= 0 or target >= len(complete) or not complete[target]:
                refuse(f"refers to object {target}, which is not there yet")
        elif kind in _LONG_STRINGS:
            place += 4 + int.from_bytes(data[place : place + 4], "little")
        elif kind == _SMALL_TUPLE:
            count = data[place] if place < total else 0
            place += 1
        elif kind in _COUNTED:
            count = int.from_bytes(data[place : place + 4], "little")
            place += 4
        elif kind == _INTEGER:
            place += 4 + 2 * abs(int.from_bytes(data[place : place + 4], "little", signed=True))
        elif kind == _CODE:
            count = _CODE_OBJECTS
            place += _CODE_NUMBERS
        elif kind == _SLICE:
            count = 3
        else:
            refuse(f"type {kind:#x} is none that code objects hold")
        if place > total or count > total - place:
            refuse("an object reaches beyond the end of the data")
        if count > 0:
            if len(open_containers) == _MAX_DEPTH:
                refuse(f"objects nested deeper than {_MAX_DEPTH}")
            if number >= 0:
                complete[number] = False
            open_containers.append([count, number, kind == _CODE])
            continue
        while open_containers:
            innermost = open_containers[-1]
            innermost[0] -= 1
            if innermost[0]:
                break
            if innermost[2]:
                place += _LINE_NUMBER
                innermost[0], innermost[2] = _CODE_TABLES, False
                break
            if innermost[1] >= 0:
                complete[innermost[1]] = True
            open_containers.pop()
        if not open_containers:
            if place != total:
                refuse(f"{total - place} bytes follow the code object")
            return


def load(data, *, where=""):
    """The code object that `data`, marshalled, is; VerifyError where it is damaged. Its structure is not verified
    yet."""
    check_marshalled(data, where)
    try:
        return marshal.loads(data)
    except (ValueError, TypeError, EOFError, SystemError, OverflowError, RecursionError) as error:
        raise VerifyError(where, None, f"not marshalled code: CPython can't read it: {error}") from error
