"""The table of ONNX operators that there are readers for, and what a reader may say."""

from .problems import SETTING

READERS = {}  # operator of ONNX's own domain to its reader


def reads(*operators):
    """Enters a function of (reader, node) for these operators: it adds layers to the reader's network, or raises
    Unsupported."""

    def enter(function):
        READERS.update(dict.fromkeys(operators, function))
        return function

    return enter


WHOLE = set()  # operators whose nodes are read as they stand, before anything is computed or followed


def reads_whole(*operators):
    """The same, for operators with graphs, sequences or optionals among what they read or make."""

    def enter(function):
        WHOLE.update(operators)
        return reads(*operators)(function)

    return enter


EARLY = {}  # operator to what is tried before its constants are computed


def reads_early(*operators):
    """Enters a function of (reader, node) that says whether it has read the node."""

    def enter(function):
        EARLY.update(dict.fromkeys(operators, function))
        return function

    return enter


BY_VALUE = {}  # operator to the reader of nodes whose numbers (shape_values.NUMBERS) are computed


def reads_by_value(*operators):
    """Enters a reader for these operators, for nodes that say by values how large their results are."""

    def enter(function):
        BY_VALUE.update(dict.fromkeys(operators, function))
        return function

    return enter


class Unsupported(Exception):
    """Why a node cannot be read, as the end of a sentence that begins with the node: "has group 2, expected 1"; and
    what to do about it, one of problems.py."""

    def __init__(self, cause, remedy=SETTING):
        super().__init__(cause)
        self.remedy = remedy
