"""What packages parse, the trees that they compile, and the sources that they read: recorded, and found in a VM."""

import ast
import base64
import json
import zlib

import pytest

import vmhost
from vmhost.bytecode.compiler import compile_task
from vmhost.bytecode.recording import RECORD_NAME, read_record
from vmhost.bytecode.trees import packed, text_of, unpacked

HEAD = 'name: sample\nversion: "1.0"\nentry: main:run\npython: "3.14"\n'


@pytest.fixture
def task(tmp_path):
    """task(main, files of packages, script="") compiles a task that has the package, and gives the CompiledTask."""

    def made(main, packages, script=""):
        folder, site = tmp_path / "task", tmp_path / "site-packages"
        for where, files in ((folder, {"task.yaml": HEAD, "main.py": main, "use.py": script}), (site, packages)):
            for path, text in files.items():
                (where / path).parent.mkdir(parents=True, exist_ok=True)
                (where / path).write_text(text)
        return compile_task(folder, packages=site, script=folder / "use.py" if script else None)

    return made


def call(compiled, value=None):
    with vmhost.Host(allow_unsigned=True) as host:
        return host.load(compiled.to_bytes())(value)


PARSING = r"""
from __future__ import annotations
import ast
from ast import parse

TREES = {
    "exec": ast.parse("def f(a, *b):\n    return [a + each for each in b] or f'{a!r:>4}'\n\nx: int = 1\n"),
    "bytes": parse("x = 'ü'; y = b'1', 2.5, 1e400, 3j, ...".encode()),
    "single": ast.parse("x = 1", mode="single"),
    "eval": ast.parse("lambda a: (a := 1)", mode="eval"),
    "plain": ast.parse("a + b.c(1)", mode="eval"),
    "comments": ast.parse("x = []  # type: list", type_comments=True),
    "compile": compile("while x:\n    break", "<it>", "exec", ast.PyCF_ONLY_AST),
    "compile without": compile("del x", "<it>", "exec", ast.PyCF_ONLY_AST, True),
    "empty": ast.parse(""),
}
TREES["tree"] = ast.parse(TREES["empty"])
LITERAL = ast.literal_eval("[1, (2, {'a': None})]")
SHOWN = {name: ast.dump(tree, include_attributes=True) for name, tree in TREES.items()}
TREES["empty"].body.append("changed")
AGAIN = ast.dump(ast.parse(""))
"""


def test_texts_that_a_package_parses_at_import_are_trees_in_a_vm(task):
    main = "import parsing\ndef run(value):\n    return [parsing.SHOWN, parsing.LITERAL, parsing.AGAIN]\n"
    compiled = task(main, {"parsing.py": PARSING})
    plain = {}
    exec(compile(PARSING, "parsing.py", "exec", dont_inherit=True), plain)
    assert call(compiled) == [plain["SHOWN"], [1, (2, {"a": None})], "Module()"]
    assert compiled.warnings == ()


COMPILING = r"""
import ast

def adder(amount, name="made", line=7):
    tree = ast.parse("def f(x):\n    return x + AMOUNT")
    [function] = tree.body
    function.name = name
    function.body[0].value.right = ast.Constant(amount)
    for node in ast.walk(tree):
        if "lineno" in node._attributes:
            node.lineno, node.end_lineno, node.col_offset, node.end_col_offset = line, line, 0, 1
    names = {}
    exec(compile(tree, "<made here>", "exec"), names)
    return names[name]

ADD = adder(1000)
VALUE = eval(compile(ast.Expression(ast.Constant((1, b"2", 2j), lineno=1, col_offset=0)), "", "eval"))
"""


def test_trees_that_a_package_compiles_at_import_are_code_in_a_vm(task):
    main = (
        "import compiling\ndef run(amount):\n"
        "    made = compiling.adder(amount, 'late', 9) if amount else compiling.ADD\n    code = made.__code__\n"
        "    return [made(1), code.co_name, code.co_filename, code.co_firstlineno, compiling.VALUE]\n"
    )
    told = [(1, b"2", 2j)]
    packages = {"compiling.py": COMPILING}
    compiled = task(main, packages)
    assert (call(compiled), compiled.warnings) == ([1001, "made", "<made here>", 7, *told], ())
    recorded = task(main, packages, "import main\nmain.run(5)\n")
    assert call(recorded, 5) == [6, "late", "<made here>", 9, *told]
    with pytest.raises(vmhost.PermissionDenied, match="nobody has recorded this tree: .Module.body="):
        call(recorded, 6)


SOURCES = r'''
import functools
import inspect

def traced(function):
    """Keeps the source of what it decorates, as typeguard does."""
    SEEN.append(inspect.getsource(function))
    return function

SEEN = []
from .used import double
MODULE = inspect.getsource(inspect.getmodule(double))
'''
USED = "from sources import traced\r\n\r\n@traced\r\ndef double(x):\f\r\n    return 2 * x  # ü"


def test_sources_that_a_package_reads_at_import_are_in_the_bundle(task):
    main = "import sources, inspect\ndef run(value):\n    return [sources.SEEN, sources.MODULE]\n"
    packages = {"sources/__init__.py": SOURCES, "sources/used.py": USED, "sources/other.py": "x = 1\n"}
    compiled = task(main, packages)
    text = USED.replace("\r\n", "\n") + "\n"
    assert call(compiled) == [[text[text.index("@") :]], text]
    assert [name for name in compiled.files if name.endswith(".py")] == ["sources/used.py"]
    assert compiled.warnings == ()


def test_the_same_record_gives_the_same_bundle(task, tmp_path):
    main = "import parsing, compiling\ndef run(value):\n    pass\n"
    packages = {"parsing.py": PARSING, "compiling.py": COMPILING}
    first = task(main, packages)
    record = (tmp_path / "task" / RECORD_NAME).read_bytes()
    second = task(main, packages)
    assert (tmp_path / "task" / RECORD_NAME).read_bytes() == record
    assert first.to_bytes() == second.to_bytes()


def test_a_tree_stays_what_it_is_when_it_is_packed():
    text = "x = -1, 1e400, 2.5, 'a\\ud800', b'\\xff', 3j, ..., None, True, 10**5\n@a\nclass B[T]: x: int = f'{x!r}'\n"
    tree = ast.parse(text, type_comments=True)
    assert text_of(unpacked(packed(tree))) == text_of(tree)
    tree.body[0].value.elts[0] = ast.Constant(10**40)
    assert text_of(unpacked(packed(tree))) == text_of(tree)


@pytest.mark.parametrize(
    "value",
    [
        [],
        None,
        {},
        {"parse": {}},
        {"PyCF_ONLY_AST": {}},
        {"NodeVisitor": {}},
        {"Name": {"id": {"": "open('x')"}}},
        {"Name": 1},
        {"Name": {}, "Load": {}},
        {"Module": {"body": [{"Expr": {"value": "x"}}]}},
        {"Module": {"body": {"Pass": {}}}},
    ],
)
def test_a_record_of_junk_is_left_out(tmp_path, value):
    path = tmp_path / RECORD_NAME
    data = json.dumps(value).encode()
    texts = ["junk", base64.b64encode(data).decode(), base64.b64encode(zlib.compress(data)).decode()]
    texts.append(base64.b64encode(zlib.compress(b"[" * 100_000)).decode())
    rows = [{"mode": "tree exec", "futures": 0, "text": text} for text in texts]
    rows += [{"mode": "parse exec", "futures": -1, "text": "x ="}, {"mode": "source", "futures": 0, "text": "../x"}]
    path.write_text(json.dumps({"texts": rows}))
    record = read_record(path)
    assert (record.texts, record.files({})) == ({}, {})
