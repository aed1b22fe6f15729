"""Texts that packages compile at run time: recorded in plain Python, found again in a VM."""

import json

import pytest

import vmhost
from vmhost.bytecode import opcodes_3_14, recorder, recording
from vmhost.bytecode.compiler import compile_task
from vmhost.bytecode.errors import CompileError
from vmhost.bytecode.recording import RECORD_NAME, read_record
from vmhost.guest import texts as guest_texts

MAKER = '''
"""Writes functions, as packages do: each with a number of its own."""
import itertools

_count = itertools.count()


def adder(amount, *, name="adder", number=None):
    number = next(_count) if number is None else number
    text = f"""
def {name}_{number}(first_{number}, *rest):
    def inner_{number}():
        return first_{number} + {amount} + len(rest)
    return inner_{number}
"""
    names = {}
    exec(compile(text, f"<made {number}>", "exec"), names)
    return names[f"{name}_{number}"]
'''
MAIN = """
import maker


def run(value):
    for _ in range(value["before"]):
        maker.adder(1000)
    function = maker.adder(value.get("amount", 1000), **value.get("options", {}))
    return [function.__name__, function(1)(), function.__code__.co_varnames[0]]
"""


@pytest.fixture
def recorded(write_task):
    """A task that writes functions, recorded while a script ran; `recorded(script)` returns the result of a call."""

    def made(script="import main\nmain.run({'before': 0})\n", **files):
        folder = write_task({"main.py": MAIN, "maker.py": MAKER, "use.py": script, **files})
        return folder, compile_task(folder, script=folder / "use.py").recorded

    return made


def call(folder, value):
    with vmhost.Host(allow_unsigned=True) as host:
        return host.load(compile_task(folder).to_bytes())(value)


def test_a_recorded_text_runs_also_under_other_generated_names(recorded):
    folder, count = recorded()
    assert count == 1, "what is given to exec is a code object once"
    assert call(folder, {"before": 0}) == ["adder_0", 1001, "first_0"]
    assert call(folder, {"before": 3}) == ["adder_3", 1001, "first_3"]
    assert call(folder, {"before": 12}) == ["adder_12", 1001, "first_12"]
    assert call(folder, {"before": 0, "options": {"number": "0123456789abcdef" * 2}})[0].endswith("abcdef")


@pytest.mark.parametrize("name", ["made_#", "__made_#__"])
def test_generated_names_may_stand_in_strings_too(recorded, name):
    main = """
import uuid

class Made:
    pass

def run(value):
    name = "NAME".replace("#", uuid.uuid4().hex)
    exec(f"def {name}(): return '{name}', 'also {name[:4]}'\\nsetattr(cls, '{name}', {name})", {"cls": Made})
    return getattr(Made, name)() == (name, f"also {name[:4]}")
""".replace("NAME", name)
    folder, _ = recorded("import main\nmain.run(None)\n", **{"main.py": main})
    assert call(folder, None) is True


def test_numbers_are_put_into_constants(recorded):
    folder, _ = recorded()
    assert call(folder, {"before": 1, "amount": 123456}) == ["adder_1", 123457, "first_1"]
    assert call(folder, {"before": 1, "amount": 7}) == ["adder_1", 8, "first_1"]
    assert call(folder, {"before": 1, "amount": -123456}) == ["adder_1", -123455, "first_1"]
    for other in (0, "007", "0x12", 1.5, "9" * 5000):
        with pytest.raises(vmhost.PermissionDenied, match="nobody has recorded this text: .*; compile the task with"):
            call(folder, {"before": 1, "amount": other})


def test_any_other_text_is_refused(recorded):
    folder, _ = recorded()
    for value in (
        {"before": 0, "options": {"name": "subtractor"}},
        {"before": 0, "amount": "(2).__class__"},
        {"before": 0, "options": {"number": "0(x): return x\ndef y_0"}},
    ):
        with pytest.raises(vmhost.PermissionDenied, match="compile: a VM has no compiler, and nobody has recorded"):
            call(folder, value)


def test_exec_and_eval_of_texts_find_them_too(recorded):
    main = """
def run(value):
    names = {"x": value["before"]}
    exec("y = x + 1", names)
    exec(b"z = y * 2", names)
    y = 10
    return [names["y"], names["z"], eval(" x + 1", names), eval("y + 1"), eval(compile("y + 2", "f", mode="eval"))]
"""
    folder, count = recorded(**{"main.py": main})
    assert count == 5
    assert call(folder, {"before": 4}) == [5, 10, 5, 11, 12]


def test_what_a_module_imported_from_the_future_counts(recorded):
    main = """
from __future__ import annotations

def run(value):
    names = {}
    exec("def f(x: what_is_nowhere): return x", names)
    return names["f"].__annotations__
"""
    folder, _ = recorded(**{"main.py": main})
    assert call(folder, {"before": 4}) == {"x": "what_is_nowhere"}


def test_lines_files_and_names_are_those_that_were_asked_for(recorded):
    """As in template engines: empty lines before a text, and another name for its code."""
    main = """
import sys
import traceback


def run(value):
    code = compile("\\n" * value + "raise ValueError", "page.html", "exec")
    code = code.replace(co_name="block 'body'", co_firstlineno=code.co_firstlineno + 10)
    try:
        exec(code, {})
    except ValueError as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return [frame.filename, frame.lineno, frame.name, "a-b".replace("-", "+")]
"""
    folder, count = recorded("import main\nmain.run(3)\n", **{"main.py": main})
    assert count == 1
    assert not any("code.replace" in str(warning) for warning in compile_task(folder).warnings)
    for lines in (3, 0, 40):
        expected = ["page.html", lines + 11, "block 'body'", "a+b"]
        assert call(folder, lines) == expected


def test_code_replace_of_anything_else_stays_refused(recorded):
    main = """
class Mine:
    def replace(self, **changes):
        return changes


def run(value):
    assert Mine().replace(co_name="a") == {"co_name": "a"}
    code = run.__code__
    for change in ({"co_consts": ()}, {"co_name": "a", "co_flags": 0}):
        try:
            code.replace(**change)
        except PermissionError as error:
            found = str(error)
        else:
            return "done"
    try:
        code.replace(co_name="a", co_code=b"")
    except PermissionError as error:
        return found
"""
    folder, _ = recorded("", **{"main.py": main})
    assert "code.__new__" in call(folder, None)


def test_all_sides_mask_the_same_parts():
    assert recording.GENERATED.pattern == guest_texts._GENERATED
    assert recording.FUTURES == recorder._FUTURES == guest_texts._FUTURES == opcodes_3_14.FUTURES


def test_the_same_record_gives_the_same_bytes(recorded):
    folder, _ = recorded()
    first, text = compile_task(folder).to_bytes(), (folder / RECORD_NAME).read_text()
    compile_task(folder, script=folder / "use.py")
    assert (folder / RECORD_NAME).read_text() == text
    assert compile_task(folder).to_bytes() == first


def test_a_script_that_fails_is_told(recorded):
    message = r"use\.py: failed in plain Python while it was recorded: "
    with pytest.raises(CompileError, match=rf"{message}ValueError: no \(/.*/use\.py:1\)$"):
        recorded("raise ValueError('no')\n")
    with pytest.raises(CompileError, match=rf"{message}KeyError: 'before' \(/.*/main\.py:6\)$"):
        recorded("import main\nmain.run({})\n")
    with pytest.raises(CompileError, match="failed in plain Python"):
        recorded("import os\nos._exit(3)\n")


@pytest.mark.parametrize(
    "junk",
    ["", "{}", "[]", '{"texts": 3}', '{"texts": [{}]}', '{"texts": [{"mode": "exec", "futures": "0", "text": "x"}]}'],
)
def test_a_damaged_record_is_told(recorded, junk):
    folder, _ = recorded()
    (folder / RECORD_NAME).write_text(junk)
    with pytest.raises(CompileError, match=r"recorded\.json: can't be read: .*make it again with"):
        compile_task(folder)


def test_texts_that_are_no_python_are_left_out(recorded):
    folder, _ = recorded()
    texts = json.loads((folder / RECORD_NAME).read_text())
    texts["texts"].append({"mode": "exec", "futures": 0, "text": "no python at all"})
    texts["texts"].append({"mode": "eval", "futures": 0, "text": "\0"})
    before = read_record(folder / RECORD_NAME)
    (folder / RECORD_NAME).write_text(json.dumps(texts))
    assert read_record(folder / RECORD_NAME) == before


def test_a_guest_cannot_forge_what_recorded_gives(recorded):
    """The guest's own function looks texts up; whatever it returns, exec runs code objects only."""
    main = """
def run(value):
    from vmhost.guest import texts
    ends = []
    for forged in (lambda *given: "x = 1", lambda *given: None, lambda *given: 1 / 0, lambda *given: b""):
        texts.recorded = forged
        try:
            exec("anything")
            ends.append("ran")
        except Exception as error:
            ends.append(type(error).__name__)
    import sys
    sys.modules["vmhost.guest.texts"] = None
    try:
        exec("anything")
    except Exception as error:
        ends.append(type(error).__name__)
    return ends
"""
    folder, _ = recorded("", **{"main.py": main})
    assert call(folder, {}) == [
        "PermissionDenied",
        "PermissionDenied",
        "ZeroDivisionError",
        "PermissionDenied",
        "ModuleNotFoundError",
    ]
