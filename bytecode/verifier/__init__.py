"""Is a code object one that CPython can run without harm?

`load` reads a marshalled code object after a look at its bytes, `verify` accepts whatever the compiler of the running
Python makes and refuses code objects, damaged or built wrong, that could crash the interpreter or corrupt its memory:
it is the second line of defence, after digests and signatures. What is proved, what is taken for granted and what stays
out is in `docs/verifier.md`.

    marshalled.py     the bytes, before CPython reads them
    layout.py         counts, flags, names, constants, slots
    instructions.py   opcodes, caches, operand domains, jump targets
    tables.py         exception table, source positions
    flow.py           stack, locals and kinds of values along all paths
    rules.py          what single instructions do to them beyond their row in the table
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

    `where` names the bundle and file in messages. With `closure`, `code` may have free variables: whoever runs it makes
    a function of it, which gives it cells for them. `code` must not have run yet: the interpreter rewrites code that
    runs. Code that this returns for may still raise, loop, or ask for much memory, as any Python may.
    """
    instruction_table = table()
    facts = instruction_table.facts
    typed = facts.TYPED_ARGUMENTS.keys() & set(code.co_varnames[: argument_count(code, facts)])
    if typed:  # code that is called with them by the function around it, which is not here
        raise VerifyError(where, code.co_qualname, f"takes {', '.join(typed)} and stands alone")
    if code.co_freevars and not closure:  # a module is run without a closure, and nothing looks whether it has one
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
