"""Checks the fields of a code object other than its bytecode: counts, flags, names, constants, and the variables'
slots."""

import marshal
from types import CodeType

from .errors import VerifyError
from .marshalled import check_marshalled

_PLAIN = frozenset({type(None), type(...), bool, int, float, complex, str, bytes})
_MAX_NESTING = 200  # of tuples and frozensets in constants; the compiler's own limit for source is lower
_LOCAL, _CELL, _FREE = 0x20, 0x40, 0x80  # bits of co_localspluskinds
_OF_ARGUMENT = 0x1F  # bits for the kind of argument, and whether the slot is hidden


def check_layout(code, facts, where):
    """Refuses a code object whose fields contradict each other."""

    def refuse(message):
        raise VerifyError(where, code.co_qualname, message)

    for field in ("co_filename", "co_name", "co_qualname"):
        if type(getattr(code, field)) is not str:
            raise VerifyError(
                where, repr(code.co_qualname), f"{field} is {type(getattr(code, field)).__name__}, expected str"
            )
    for field in ("co_names", "co_varnames", "co_cellvars", "co_freevars"):
        names = getattr(code, field)
        for name in names:
            if type(name) is not str:
                refuse(f"{field} holds {name!r:.60}, expected names")
        if field != "co_names" and len(frozenset(names)) != len(names):
            refuse(f"{field} names a variable twice")
    _check_flags(code, facts, refuse)
    _check_constants(code.co_consts, refuse)
    _check_slots(code, facts, refuse)


def check_kinds_of_slots(code, where):
    """Refuses slots whose order is not locals, cells, free variables.

    Distinct names prove the order (`check_layout`). Two slots of one name, a comprehension's variable beside a free
    one, do not; then the marshalled form, which has a byte per slot, decides. Decode the instructions first: CPython
    writes past a buffer when it copies code that ends inside an inline cache.
    """
    expected = slot_names(code)
    if len(frozenset(expected)) != len(expected):
        _check_kinds_of_namesakes(code, where)


def _check_flags(code, facts, refuse):
    flags = code.co_flags
    if flags & ~facts.KNOWN_FLAGS:
        refuse(f"unknown flags {flags & ~facts.KNOWN_FLAGS:#x}")
    kinds = flags & (facts.GENERATOR | facts.COROUTINE | facts.ASYNC_GENERATOR)
    if kinds & kinds - 1:
        refuse(f"flags {flags:#x} make it several of generator, coroutine and asynchronous generator")
    if flags & facts.ITERABLE_COROUTINE and not flags & facts.GENERATOR:
        refuse(f"flags {flags:#x} make it an iterable coroutine that is no generator")
    if flags & facts.HAS_DOCSTRING and (not code.co_consts or type(code.co_consts[0]) is not str):
        refuse(f"flags {flags:#x} promise a docstring, and the first constant is none")


def _check_constants(constants, refuse):
    pending = [(constants, 0)]
    # id of a tuple -> deepest nesting met: no need to repeat it at that depth or less; a cycle gets too deep
    deepest = {}
    while pending:
        items, nesting = pending.pop()
        if nesting > _MAX_NESTING:
            refuse(f"constants nested deeper than {_MAX_NESTING}, or within themselves")
        for item in items:
            kind = type(item)
            if kind in _PLAIN:
                continue
            if kind is CodeType:
                if nesting:
                    refuse("a code object inside a constant tuple")
            elif kind is slice:
                pending.append(((item.start, item.stop, item.step), nesting + 1))
            elif kind is tuple or kind is frozenset:
                if deepest.get(id(item), -1) < nesting:
                    deepest[id(item)] = nesting
                    pending.append((item, nesting + 1))
            else:
                refuse(f"a constant of type {kind.__name__}")


def _check_slots(code, facts, refuse):
    positional, keyword = code.co_argcount, code.co_kwonlyargcount
    if positional < 0 or keyword < 0 or not 0 <= code.co_posonlyargcount <= positional:
        refuse(f"{positional} arguments of which {code.co_posonlyargcount} positional only, and {keyword} keyword only")
    arguments = argument_count(code, facts)
    if arguments > code.co_nlocals or code.co_nlocals != len(code.co_varnames):
        refuse(f"{arguments} arguments, {code.co_nlocals} locals, {len(code.co_varnames)} names of locals")
    expected = slot_names(code)
    slots = []
    try:
        for index in range(len(expected) + 1):
            slots.append(code._varname_from_oparg(index))
    except IndexError:
        pass
    if tuple(slots) != expected:
        refuse(f"its slots are named {slots}, expected {list(expected)}")
    _check_typed_arguments(code, facts, arguments, refuse)


def _check_typed_arguments(code, facts, arguments, refuse):
    """Checks that arguments used without checks are positional, the only ones, and distinct."""
    names = code.co_varnames[:arguments]
    if facts.TYPED_ARGUMENTS.keys().isdisjoint(names):
        return
    if names != tuple(facts.TYPED_ARGUMENTS)[:arguments] or code.co_argcount != arguments:
        refuse(f"takes {', '.join(names)}, and what the compiler names so are positional arguments and the only ones")
    if not facts.TYPED_ARGUMENTS.keys().isdisjoint(code.co_cellvars + code.co_freevars):
        refuse(f"keeps {', '.join(names)} in cells, which others can write")


def slot_names(code):
    """The names of a frame's slots in order: locals, cells that are no locals, free variables."""
    held = frozenset(code.co_varnames)
    return code.co_varnames + tuple(name for name in code.co_cellvars if name not in held) + code.co_freevars


def argument_count(code, facts):
    """The number of slots that the caller fills."""
    return (
        code.co_argcount
        + code.co_kwonlyargcount
        + bool(code.co_flags & facts.VARARGS)
        + bool(code.co_flags & facts.VARKEYWORDS)
    )


def _check_kinds_of_namesakes(code, where):
    held = frozenset(code.co_varnames)
    cells = frozenset(code.co_cellvars)
    expected = [_LOCAL | (_CELL if name in cells else 0) for name in code.co_varnames]
    expected += [_CELL for name in code.co_cellvars if name not in held] + [_FREE for _ in code.co_freevars]
    if [kind & ~_OF_ARGUMENT for kind in check_marshalled(marshal.dumps(code), where)] != expected:
        raise VerifyError(where, code.co_qualname, "its slots are not in the order locals, cells, free variables")
