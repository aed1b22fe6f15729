"""Can CPython run a code object safely?

`load` checks the bytes of a marshalled code object and reads it. `verify` accepts whatever the compiler of the running
Python generates, and refuses damaged or forged code objects that could crash the interpreter or corrupt its memory. It
is the second line of defence, after digests and signatures. `docs/verifier.md` says what is proved, what is assumed and
what is out of scope.

    marshalled.py     the bytes, before CPython reads them
    layout.py         counts, flags, names, constants, slots
    instructions.py   opcodes, caches, operand domains, jump targets
    tables.py         exception table, source positions
    flow.py           stack, locals and kinds of values along all paths
    rules.py          effects of single instructions beyond their row in the table
    ../opcodes.py     the table of instructions, one file per Python version
"""

from types import CodeType

from ..opcodes import table
from .errors import VerifyError
from .flow import check_flow
from .instructions import Instructions
from .layout import argument_count, check_kinds_of_slots, check_layout
from .marshalled import load
from .tables import check_locations, handlers

__all__ = ["VerifyError", "load", "verify"]


def verify(code: CodeType, *, where: str = "", closure: bool = False) -> None:
    """Raises VerifyError if `code`, or a code object among its constants, could harm the interpreter when it runs.

    `where` names the bundle and file in messages. With `closure`, `code` may have free variables: the caller makes it a
    function with cells for them. `code` must not have run yet: the interpreter rewrites code that runs. Accepted code
    may still raise, loop, or ask for much memory, as any Python may.
    """
    instruction_table = table()
    facts = instruction_table.facts
    typed = facts.TYPED_ARGUMENTS.keys() & set(code.co_varnames[: argument_count(code, facts)])
    if typed:  # only the enclosing function may call such code, and there is none
        raise VerifyError(where, code.co_qualname, f"takes {', '.join(typed)} and stands alone")
    if code.co_freevars and not closure:  # a module runs without a closure, and CPython does not check that
        raise VerifyError(where, code.co_qualname, f"has free variables {', '.join(code.co_freevars)} and stands alone")
    pending = [code]
    seen = set()
    while pending:
        one = pending.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        check_layout(one, facts, where)
        instructions = Instructions(one, instruction_table, where)
        check_kinds_of_slots(one, where)
        check_locations(one, instructions.end[-1], where)
        check_flow(instructions, handlers(one, instructions))
        pending.extend(constant for constant in one.co_consts if type(constant) is CodeType)
