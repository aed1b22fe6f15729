"""What stands in the way of a model, gathered while its graph is read and told in few lines: one for each operator and
cause; and the error that tells them."""

import re
from typing import NamedTuple

_SHOWN = 3  # nodes, or tensors, that a line names


class OnnxError(Exception):
    """An ONNX model cannot become a model file. `file` names the model, `messages` holds all that stands in the way."""

    def __init__(self, file, *messages):
        self.file, self.messages = file, messages
        super().__init__("\n".join(f"{file}: {message}" for message in messages))


class Problem(NamedTuple):
    """`name` is a node's label or a tensor's name; `operator` that of the node, None where a tensor is what is
    wrong."""

    operator: str | None
    name: str
    cause: str


def told(problems):
    """The problems as sentences, in the order of their first occurrence; those that differ only in names are one
    sentence."""
    groups = {}
    for problem in dict.fromkeys(problems):
        groups.setdefault((problem.operator, re.sub(r"'[^']*'", "''", problem.cause)), []).append(problem)
    return [_sentence(group) for group in groups.values()]


def _sentence(group):
    first, several = group[0], len(group) > 1
    more = f" and {len(group) - _SHOWN} more" if len(group) > _SHOWN else ""
    if first.operator is None:
        return f"{', '.join(problem.name for problem in group[:_SHOWN])}{more}: {first.cause}"
    names = ", ".join(repr(problem.name) for problem in group[:_SHOWN])
    nodes = f"{len(group)} nodes, {names}{more}" if several else f"node {names}"
    return f"operator {first.operator} ({nodes}) {first.cause}"
