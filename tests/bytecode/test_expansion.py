"""Instructions that are expanded to several: jumps, handlers and source positions of the others stay right."""

import dis
import os
from pathlib import Path
from types import CodeType

import pytest

from vmhost.bytecode.corrections import compile_corrected
from vmhost.bytecode.expansion import expanded
from vmhost.bytecode.opcodes import table
from vmhost.bytecode.verifier import VerifyError, verify
from vmhost.bytecode.verifier.instructions import Instructions
from vmhost.bytecode.verifier.tables import handlers

LIBRARY = Path(os.__file__).parent
NAMES = ("argparse.py", "asyncio/streams.py", "json/decoder.py", "tarfile.py", "typing.py")
TWO_LOADS = ("LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW")


def code_objects(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from code_objects(constant)


def split_loads(code):
    """`code` with every load of two locals split into two loads, and the places of these."""
    found, load = Instructions(code, table(), ""), table().number("LOAD_FAST")
    replaced = {
        index: [(load, operand >> 4), (load, operand & 15)]
        for index, (op, operand) in enumerate(zip(found.ops, found.operands))
        if table().name_of[op] in TWO_LOADS
    }
    return expanded(code, found, replaced), replaced


def described(code, twice=()):
    """Each instruction's opcode, its jump's target, its handler and its position; those in `twice` are listed twice."""
    found = Instructions(code, table(), "")
    positions = list(code.co_positions())
    number, label = 0, []
    for index in range(len(found.ops) + 1):
        label.append(number)
        number += 2 if index in twice else 1
    caught = {}
    for handler in handlers(code, found):
        for index in range(label[handler.first], label[handler.past]):
            caught[index] = label[handler.target], handler.depth, handler.lasti
    rows = []
    for index, op in enumerate(found.ops):
        target = label[found.target[index]] if found.target[index] >= 0 else None
        for _ in range(2 if index in twice else 1):
            name = "LOAD_FAST" if index in twice else table().name_of[op]
            rows.append((name, target, caught.get(len(rows)), positions[found.unit[index]]))
    return rows


@pytest.mark.parametrize("name", NAMES)
def test_the_rest_says_what_it_said(name):
    seen = 0
    for code in code_objects(compile((LIBRARY / name).read_bytes(), name, "exec", dont_inherit=True)):
        same = expanded(code, Instructions(code, table(), ""), {})
        for field in ("co_code", "co_exceptiontable", "co_linetable"):
            assert getattr(same, field) == getattr(code, field)
        split, replaced = split_loads(code)
        assert described(split) == described(code, replaced)
        seen += len(replaced)
    assert seen > 10


def test_jumps_that_become_long_get_a_prefix():
    body = "\n".join(["  b = a, b"] * 75)
    code = compile(f"def f(a, b):\n while a:\n{body}\n return b", "sample.py", "exec").co_consts[0]
    split, replaced = split_loads(code)
    assert len(replaced) == 75
    assert dis.Bytecode(code).dis().count("EXTENDED_ARG") < dis.Bytecode(split).dis().count("EXTENDED_ARG")
    assert described(split) == described(code, replaced)
    verify(split)


SUMS = """
def f(text, more, pieces):
    try:
        for piece in pieces: text += piece
        {statement}
    except MemoryError:
        return {used}
"""


@pytest.mark.parametrize(
    ("statement", "used"),
    [
        ("pass", "text"),
        ("pass", "text, more"),
        ("pass", "more, text"),
        ("text = text + more", "text.upper()"),
        ("more = text; more += text; more = text", "[more, text]"),
        ("more += text; f(more)", "more, text"),
    ],
)
def test_loads_of_locals_that_an_addition_may_empty_are_checked(statement, used):
    """CPython's code is refused; code compiled here is accepted, and adds and runs as CPython's does."""
    source = SUMS.format(statement=statement, used=used)
    with pytest.raises(VerifyError, match="may be unassigned here"):
        verify(compile(source, "sample.py", "exec", dont_inherit=True))
    corrected = compile_corrected(source, "sample.py")
    verify(corrected)
    namespace = {}
    exec(corrected, namespace)

    class Refuses(str):
        def __radd__(self, text):
            raise MemoryError

    assert namespace["f"]("a", "b", ["c", Refuses("d")]) == eval(used, {"text": "ac", "more": "b"})
    operations = [each.opname for each in dis.get_instructions(corrected.co_consts[0])]
    assert operations[operations.index("BINARY_OP") + 1] == "STORE_FAST"


def test_a_store_that_was_one_with_a_load_is_looked_at_again():
    """Split from its load, it follows the addition directly, which may then be specialised and clear its local too."""
    source = "def f(a, b, c):\n try:\n  while c: b += c; a = b + c; f(b)\n except MemoryError: return a"
    verify(compile_corrected(source, "sample.py"))


def test_code_without_a_handler_that_loads_the_local_is_as_compiled():
    source = "def f(a, b):\n a += b\n try: b()\n except MemoryError: return a\n"
    source += "def g(a, b):\n try: a += b\n except MemoryError: return b"
    assert compile_corrected(source, "sample.py") == compile(source, "sample.py", "exec", dont_inherit=True)
