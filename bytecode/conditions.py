"""Static knowledge about a program's source: conditions whose result in a VM is known, and imports that the program
expects to fail."""

import ast
import operator
import os
import sys

_COMPARISONS = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_CAUGHT = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


def known_test(test):
    """The result of a test in a VM if it is known: a constant, `TYPE_CHECKING`, `__name__`, a comparison of Python's
    version or the platform with a constant, or these under `not`, `and` and `or`. None for other tests."""
    if isinstance(test, ast.Constant):
        return bool(test.value)
    if plain_name(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING") or _is_main_guard(test):
        return False
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        known = known_test(test.operand)
        return None if known is None else not known
    if isinstance(test, ast.BoolOp):
        decides = isinstance(test.op, ast.Or)  # the operand value that settles the result
        known = [known_test(value) for value in test.values]
        return decides if decides in known else None if None in known else not decides
    if isinstance(test, ast.Call) and plain_name(test.func) == "sys.platform.startswith" and len(test.args) == 1:
        prefix = test.args[0]
        return sys.platform.startswith(prefix.value) if _is_text(prefix) else None
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1):
        return None
    left = test.left
    try:
        if isinstance(left, ast.Subscript) and plain_name(left.value) == "sys.version_info":
            part = left.slice
            if isinstance(part, ast.Slice) and part.lower is None and part.step is None:
                here = sys.version_info[: ast.literal_eval(part.upper)]
            else:
                here = sys.version_info[ast.literal_eval(part)]
        else:
            here = _known_values().get(plain_name(left))
        compare = _COMPARISONS.get(type(test.ops[0]))
        return None if here is None or compare is None else compare(here, ast.literal_eval(test.comparators[0]))
    except ValueError, TypeError, IndexError:
        return None


def catches_import_error(kind):
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return kind is None or any((plain_name(item) or "").rpartition(".")[2] in _CAUGHT for item in kinds)


def suppresses_import_error(call):
    return (
        isinstance(call, ast.Call)
        and plain_name(call.func) in ("suppress", "contextlib.suppress")
        and any(plain_name(argument) in _CAUGHT for argument in call.args)
    )


def plain_name(node):
    """`a.b.c` as written; None for any other expression."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def _is_main_guard(test):
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)):
        return False
    sides = [
        side.value if isinstance(side, ast.Constant) else plain_name(side) for side in (test.left, *test.comparators)
    ]
    return sides in (["__name__", "__main__"], ["__main__", "__name__"])


def _known_values():
    return {
        "sys.version_info": sys.version_info,
        "sys.version_info.major": sys.version_info.major,
        "sys.version_info.minor": sys.version_info.minor,
        "sys.hexversion": sys.hexversion,
        "sys.platform": sys.platform,
        "sys.implementation.name": sys.implementation.name,
        "os.name": os.name,
    }


def _is_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
