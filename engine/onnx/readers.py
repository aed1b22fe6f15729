"""The table of readers of ONNX operators, and the exception they raise."""

from .problems import SETTING

READERS = {}  # operator to its reader; names in ONNX's domain have no prefix


def reads(*operators):
    """Registers a function of (reader, node) for these operators. It adds layers to the reader's network, or raises
    Unsupported."""

    def enter(function):
        READERS.update(dict.fromkeys(operators, function))
        return function

    return enter


WHOLE = set()  # operators read before constants are evaluated and sizes are followed


def reads_whole(*operators):
    """`reads` for operators whose attributes, inputs or outputs are graphs, sequences or optionals."""

    def enter(function):
        WHOLE.update(operators)
        return reads(*operators)(function)

    return enter


EARLY = {}  # operator to the function tried before its constants are evaluated


def reads_early(*operators):
    """Registers a function of (reader, node) that returns whether it has read the node."""

    def enter(function):
        EARLY.update(dict.fromkeys(operators, function))
        return function

    return enter


BY_VALUE = {}  # operator to the reader for computed numbers (shape_values.NUMBERS)


def reads_by_value(*operators):
    """Registers a reader for nodes of these operators whose result sizes depend on values."""

    def enter(function):
        BY_VALUE.update(dict.fromkeys(operators, function))
        return function

    return enter


class Unsupported(Exception):
    """A node cannot be read. `cause` ends a sentence that begins with the node ("has group 2, expected 1"); `remedy` is
    one of problems.py's."""

    def __init__(self, cause, remedy=SETTING):
        super().__init__(cause)
        self.remedy = remedy
