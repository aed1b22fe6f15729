"""Checks marshalled code objects before CPython reads them.

`marshal.loads` trusts its input: a tuple that refers to itself overflows the C stack when the code object around it is
made, and it allocates for a count of 2**31 items before one of them is there. Format: Python/marshal.c of CPython 3.14,
version 5, the part that code objects use.
"""

import marshal

from .errors import VerifyError

_MAX_DEPTH = 500  # nested containers; the parser stops at 200 parentheses and 100 indentations
_MAX_UNFOLDED = 1 << 26  # objects, where an object's contents count again at each reference to it
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
_SLOTS_MISSING = 4  # of a code object's eight objects, when the kinds of its slots come next
_SLOT_KINDS = frozenset({0x20, 0x40, 0x60, 0x80})  # local, cell, local in a cell, free variable
_SLOT_KIND_MASK = 0xE0  # the bits below give the kind of argument, and whether it is hidden
_BYTES = b"s"[0]
_SINGLETONS = frozenset(b"NFT.")
_FLAG = 0x80  # the object is referred to later


def check_marshalled(data, where=""):
    """Refuses bytes that are not exactly one well-formed marshalled code object. Builds nothing.

    Returns the kinds of that code object's slots, one byte each.
    """

    def refuse(message):
        raise VerifyError(where, None, f"not marshalled code: byte {offset}: {message}")

    offset, total = 0, len(data)
    unfolded = []  # for each flagged object, in order: its number of objects; 0: incomplete, can't be referred to yet
    flagged_bytes = {}  # number among the flagged -> offset of its length
    # one entry for each open container: [objects missing, its number among the flagged or -1, a code object whose
    # tables are still to come?, objects within]
    open_containers = []
    outermost_kinds = b""
    if not data or data[0] & ~_FLAG != _CODE:
        refuse("no code object begins here")
    while True:
        if offset >= total:
            refuse("the data ends too early")
        kind = data[offset]
        offset += 1
        number = -1
        if kind & _FLAG:
            kind &= ~_FLAG
            if kind in _SINGLETONS:  # CPython does not number them: all later numbers would be off
                refuse(f"type {kind:#x} is never referred to")
            number = len(unfolded)
            unfolded.append(1)
        count, weight = -1, 1
        of_slots = open_containers and open_containers[-1][2] and open_containers[-1][0] == _SLOTS_MISSING
        begin = offset if kind == _BYTES else -1
        if begin >= 0 and number >= 0:
            flagged_bytes[number] = begin
        if kind in _ATOMS:
            offset += _ATOMS[kind]
        elif kind in _SHORT_STRINGS:
            offset += 1 + (data[offset] if offset < total else 0)
        elif kind == _REFERENCE:
            target = int.from_bytes(data[offset : offset + 4], "little")
            offset += 4
            if number >= 0 or target >= len(unfolded) or not unfolded[target]:
                refuse(f"refers to object {target}, which is not there yet")
            weight = unfolded[target]
            begin = flagged_bytes.get(target, -1)
        elif kind in _LONG_STRINGS:
            offset += 4 + int.from_bytes(data[offset : offset + 4], "little")
        elif kind == _SMALL_TUPLE:
            count = data[offset] if offset < total else 0
            offset += 1
        elif kind in _COUNTED:
            count = int.from_bytes(data[offset : offset + 4], "little")
            offset += 4
        elif kind == _INTEGER:
            offset += 4 + 2 * abs(int.from_bytes(data[offset : offset + 4], "little", signed=True))
        elif kind == _CODE:
            count = _CODE_OBJECTS
            offset += _CODE_NUMBERS
        elif kind == _SLICE:
            count = 3
        else:
            refuse(f"type {kind:#x} is none that code objects hold")
        if offset > total or count > total - offset:
            refuse("an object reaches beyond the end of the data")
        if of_slots:
            kinds = data[begin + 4 : begin + 4 + int.from_bytes(data[begin : begin + 4], "little")]
            if begin < 0 or any(each & _SLOT_KIND_MASK not in _SLOT_KINDS for each in kinds):
                refuse("the kinds of a code object's slots are not local, cell or free")
            if len(open_containers) == 1:
                outermost_kinds = kinds
        if count > 0:
            if len(open_containers) == _MAX_DEPTH:
                refuse(f"objects nested deeper than {_MAX_DEPTH}")
            if number >= 0:
                unfolded[number] = 0
            open_containers.append([count, number, kind == _CODE, 1])
            continue
        while open_containers:
            innermost = open_containers[-1]
            innermost[0] -= 1
            innermost[3] += weight
            if innermost[3] > _MAX_UNFOLDED:
                refuse(f"tuples that refer to tuples come to more than {_MAX_UNFOLDED} objects")
            if innermost[0]:
                break
            if innermost[2]:
                offset += _LINE_NUMBER
                innermost[0], innermost[2] = _CODE_TABLES, False
                break
            weight = innermost[3]
            if innermost[1] >= 0:
                unfolded[innermost[1]] = weight
            open_containers.pop()
        if not open_containers:
            if offset != total:
                refuse(f"{total - offset} bytes follow the code object")
            return outermost_kinds


def load(data, *, where=""):
    """The code object that `data` is the marshalled form of; VerifyError if that is damaged. Its structure is not yet
    verified."""
    check_marshalled(data, where)
    try:
        return marshal.loads(data)
    except (ValueError, TypeError, EOFError, SystemError, OverflowError, RecursionError) as error:
        raise VerifyError(where, None, f"not marshalled code: CPython can't read it: {error}") from error
