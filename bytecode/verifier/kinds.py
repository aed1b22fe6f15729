"""The kinds of values in a stack slot, as bits, and instructions' effects in terms of them.

A slot is an int: the low bits are its possible kinds (several after paths met), the bits above give sizes of tuples and
the locals that a borrowed reference depends on. `|` merges the slots of two paths; a slot fits if it has no kind that
the place forbids.
"""

from functools import cache

(
    OBJ,
    NULL,
    LASTI,
    EXC,
    EXC_OR_NONE,
    BOOL,
    LIST,
    EXCEPTIONS,
    SET,
    DICT,
    TUPLE,
    SIZED,
    STRINGS,
    CELLS,
    INTERPOLATIONS,
    ALIAS,
    STR,
    CODE,
    FUNC,
    BARE_FUNC,
    CELL,
    INTERPOLATION,
    NONE,
    COMPARED,
) = (1 << bit for bit in range(24))
_BITS = 24
KINDS = (1 << _BITS) - 1
SIZED_TUPLES = SIZED | STRINGS | CELLS | INTERPOLATIONS | ALIAS
OBJECTS = KINDS & ~(NULL | LASTI | BARE_FUNC)  # safe to use as an ordinary object

NAMES = {
    "obj": OBJECTS,
    "null": NULL,
    "any": KINDS & ~BARE_FUNC,
    "poppable": OBJECTS | NULL | LASTI,
    "lasti": LASTI,
    "exc": EXC,
    "exc_or_none": EXC_OR_NONE,
    "bool": BOOL,
    "list": LIST | EXCEPTIONS,
    "exceptions": EXCEPTIONS,
    "set": SET,
    "dict": DICT,
    "tuple": TUPLE | SIZED_TUPLES,
    "sized": SIZED_TUPLES,
    "alias": ALIAS,
    "str": STR,
    "code": CODE,
    "func": FUNC,
    "none": NONE,
    "compared": COMPARED,
    "bare_func": BARE_FUNC,
    "interpolation": INTERPOLATION,
}
# The meaning of a pushed name: one kind, where as an input it allows several.
PUSHED = NAMES | {"obj": OBJ, "any": OBJ | NULL | CELL, "list": LIST, "tuple": TUPLE}

_WORDS = (
    (NULL, "NULL marker"),
    (LASTI, "saved instruction offset"),
    (BARE_FUNC, "function that lacks its closure or its arguments"),
    (EXC, "exception"),
    (EXC_OR_NONE, "exception or None"),
    (BOOL, "bool"),
    (LIST, "list"),
    (EXCEPTIONS, "list of exceptions"),
    (SET, "set"),
    (DICT, "dict"),
    (TUPLE | SIZED_TUPLES, "tuple"),
    (STR, "str"),
    (CODE, "code object"),
    (FUNC, "function"),
    (CELL, "cell"),
    (INTERPOLATION, "interpolation"),
    (NONE, "None"),
    (OBJ | COMPARED, "some object"),
)


def words(slot):
    """The kinds of a slot, for messages."""
    return " or ".join(word for bits, word in _WORDS if slot & bits) or "nothing"


def size(count):
    """The bit of a tuple with `count` items."""
    return 1 << (_BITS + 2 * count)


def borrow(local):
    """The bit of a reference that is valid only until local number `local` changes."""
    return 1 << (_BITS + 1 + 2 * local)


@cache
def all_borrows(count):
    """The bits of references borrowed from any of `count` locals."""
    return sum(borrow(local) for local in range(count))


def sizes(slot):
    """The sizes that a slot's tuple may have."""
    bits = slot >> _BITS
    return [bit // 2 for bit in range(0, bits.bit_length(), 2) if bits >> bit & 1]


def shared(slot):
    """The slot of an object to which others may now hold references: they may add anything to a list of exceptions, and
    a callee relies on being the only owner of its dict of arguments."""
    if slot & EXCEPTIONS:
        slot = slot & ~EXCEPTIONS | LIST
    if slot & DICT:
        slot = slot & ~DICT | OBJ
    return slot


def _count(expression, operand):
    if expression == "":
        return 1
    if expression == "unpack":
        return 1 + (operand & 0xFF) + (operand >> 8)
    return {"oparg": operand, "2*oparg": 2 * operand, "oparg&1": operand & 1}[expression]


class Effect:
    """A parsed effect, `inputs -- outputs`.

    `forbidden`: for each input, deepest first, the kinds that it must not have. `outputs`: kinds, or ~index of an input
    that stays. `kept`: those inputs. `popped`: how many slots at most are gone when the instruction raises.
    """

    __slots__ = ("forbidden", "kept", "outputs", "popped")

    def __init__(self, text, operand):
        inputs, _, outputs = text.partition("--")
        self.forbidden = []
        for token in inputs.split():
            name, _, count = token.partition("*")
            allowed = 0
            for alternative in name.split("|"):
                allowed |= NAMES[alternative]
            self.forbidden += [KINDS & ~allowed] * _count(count, operand)
        self.outputs = []
        for token in outputs.split():
            if token.startswith("="):
                self.outputs.append(~int(token[1:]))
                continue
            name, _, count = token.partition("*")
            pushed = 0
            for alternative in name.split("|"):
                pushed |= PUSHED[alternative]
            self.outputs += [pushed] * _count(count, operand)
        self.kept = [~output for output in self.outputs if output < 0]
        self.popped = len(self.forbidden)
        for index, output in enumerate(self.outputs):
            if output != ~index:
                break
            self.popped -= 1
