"""The problems of a model, which are collected while its graph is read and reported one line per operator and cause;
the error that carries them."""

import re
from typing import NamedTuple

_TASK = "end the model before it and compute it in the task with vmhost.engine.numpy"
# Remedies, by kind of problem.
OTHERS_OPERATOR = f"export without operators of your own (functions defined in the model are supported), or {_TASK}"
OPERATOR = f"export with operators of docs/onnx-operators.md, perhaps with another opset, or {_TASK}"
SHAPE = "export with fixed sizes, or with named ones (dynamic_shapes) that determine all others"
TEXTS = "process texts in the task, for example with vmhost.engine.tokenizers, and give the model numbers"
ELEMENTS = "export it with tensors of floats, integers or bool, cast at the model's edges"
SETTING = f"export the layer with the settings that the message expects, or {_TASK}"

WHATEVER_SIZES = (OTHERS_OPERATOR, OPERATOR, TEXTS, ELEMENTS)  # of problems that no sizes would solve

_SHOWN = 3  # nodes or tensors named in a line


class OnnxError(Exception):
    """An ONNX model cannot be compiled. `file` names the model, `messages` are all problems."""

    def __init__(self, file, *messages):
        self.file, self.messages = file, messages
        super().__init__("\n".join(f"{file}: {message}" for message in messages))


class Problem(NamedTuple):
    """`name` is a node's label or a tensor's name; `operator` is the node's, or None for a tensor; `remedy` says what
    to do."""

    operator: str | None
    name: str
    cause: str
    remedy: str | None = None


class Sentence(str):
    """A sentence about problems; its remedy is a sentence too, or None."""

    remedy = None


def as_sentences(problems):
    """The problems as sentences, in order of first occurrence; problems that differ only in names share a sentence."""
    groups = {}
    for problem in dict.fromkeys(problems):
        groups.setdefault((problem.operator, re.sub(r"'[^']*'", "''", problem.cause)), []).append(problem)
    sentences = []
    for group in groups.values():
        sentences.append(Sentence(_sentence(group)))
        sentences[-1].remedy = group[0].remedy
    return sentences


def _sentence(group):
    first, several = group[0], len(group) > 1
    more = f" and {len(group) - _SHOWN} more" if len(group) > _SHOWN else ""
    if first.operator is None:
        return f"{', '.join(problem.name for problem in group[:_SHOWN])}{more}: {first.cause}"
    names = ", ".join(repr(problem.name) for problem in group[:_SHOWN])
    nodes = f"{len(group)} nodes, {names}{more}" if several else f"node {names}"
    return f"operator {first.operator} ({nodes}) {first.cause}"
