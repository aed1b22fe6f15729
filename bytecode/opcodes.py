"""The instruction table of the running Python, indexed by opcode number.

`bytecode/opcodes_3_14.py` has the facts of one Python version. Another version gets its own file beside it and a line
in `_MODULES`; nothing else here knows version numbers.
"""

import importlib
import opcode
import sys
from functools import cache

from .errors import BundleError

_MODULES = {(3, 14): "opcodes_3_14"}


class Table:
    """Facts about opcodes, in lists indexed by opcode: `name_of`, `caches` (code units of inline cache, -1: not emitted
    by the compiler), `domain_of`, `effect_of` (text), `rule_of`, `raises`, `inlines_calls`. `facts` is the version's
    module."""

    def __init__(self, facts):
        self.facts = facts
        self.extended_arg = opcode.EXTENDED_ARG
        self.name_of = [name if not name.startswith("<") else None for name in opcode.opname[:256]]
        self.caches = [-1] * 256
        self.domain_of, self.effect_of, self.rule_of = [None] * 256, [None] * 256, [""] * 256
        self.raises, self.inlines_calls = [True] * 256, [False] * 256
        for name, row in facts.ROWS.items():
            number = opcode.opmap[name]
            self.caches[number] = sum(opcode._cache_format.get(name, {}).values())
            self.domain_of[number], self.effect_of[number], self.rule_of[number] = row.operand, row.effect, row.rule
            self.raises[number] = row.raises
            self.inlines_calls[number] = name in facts.INLINES_CALLS

    def number(self, name):
        """The opcode called `name`."""
        return opcode.opmap[name]


@cache
def table():
    """The Table of this Python; BundleError where there is none."""
    version = sys.version_info[:2]
    if version not in _MODULES:
        known = ", ".join(".".join(map(str, each)) for each in _MODULES)
        raise BundleError(
            f"no verifier table for Python {version[0]}.{version[1]}, only for {known}: "
            f"run the host on one of these, or add bytecode/opcodes_{version[0]}_{version[1]}.py"
        )
    return Table(importlib.import_module("." + _MODULES[version], __package__))
