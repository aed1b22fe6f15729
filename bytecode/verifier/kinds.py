"""What can lie in one slot of a frame's stack, as bits, and the effects of instructions written with them.

A slot is an int: the low bits say which kinds it may be (several after paths met), the bits above carry sizes of tuples
and which locals a borrowed reference depends on. Two paths meet by `|`; a slot fits a place when it has no kind that
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
OBJECTS = KINDS & ~(NULL | LASTI | BARE_FUNC)  # what any code may take for an ordinary object

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
# what a pushed name means: one kind, where as an input it allows several
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
    """The kinds of a slot, for people."""
    return " or ".join(word for bits, word in _WORDS if slot & bits) or "nothing"


def size(count):
    """The bit of a tuple with `count` items."""
    return 1 << (_BITS + 2 * count)


def borrow(local):
    """The bit of a reference that lives only as long as local number `local` is left alone."""
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
    """A slot whose object others may hold, too: what they put into a list of exceptions shows here, and a callee that
    is given a dict of arguments counts on nobody else to change it."""
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
    """An effect as `inputs -- outputs` made ready for use.

    `forbidden`: for each input, deepest first, the kinds that it must not have. `outputs`: kinds, or ~index of the
    input that stays. `kept`: those inputs. `popped`: how many slots are gone, at most, when the instruction raises.
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
