"""Which modules a task's bundle includes, and the errors about those that a VM cannot have."""

import textwrap

import pytest

from tests.batches import each
from vmhost.bytecode.closure import close_over_folder, closure_of_module
from vmhost.bytecode.errors import CompileError


@pytest.fixture
def close(write_task):
    """close(main, other files) gives the names of the closure, its errors and its warnings, without the folder."""

    def run(main, files=None, entry="main"):
        folder = write_task({"main.py": main, **(files or {})})
        closure = close_over_folder(folder, entry)
        shown = [
            [str(found).removeprefix(f"{folder}/") for found in kind] for kind in (closure.errors, closure.warnings)
        ]
        return set(closure.sources), *shown

    return run


def test_every_way_to_import_within_the_folder(close):
    names, errors, warnings = close(
        """
        import alpha, beta.one
        import beta.two as two
        from beta import three, value
        from beta.deep import thing
        def run(value):
            import lazy
            return importlib.import_module("named")
        import importlib
        """,
        {
            "alpha.py": "",
            "unused.py": "",
            "lazy.py": "",
            "named.py": "",
            "beta/__init__.py": "value = 1",
            "beta/one.py": "",
            "beta/two.py": "from . import sibling",
            "beta/three.py": "from .deep.other import x",
            "beta/sibling.py": "",
            "beta/unused.py": "",
            "beta/deep/__init__.py": "from .. import parent",
            "beta/parent.py": "",
            "beta/deep/other.py": "from ..cousin import y",
            "beta/cousin.py": "y = 1",
        },
    )
    assert (errors, warnings) == ([], [])
    assert names == {
        "main",
        "alpha",
        "lazy",
        "named",
        "beta",
        "beta.one",
        "beta.two",
        "beta.three",
        "beta.sibling",
        "beta.deep",
        "beta.parent",
        "beta.deep.other",
        "beta.cousin",
    }


def test_star_import_takes_the_modules_listed(close):
    names, errors, _ = close(
        "from pkg import *", {"pkg/__init__.py": "__all__ = ['one', 'name']", "pkg/one.py": "", "pkg/two.py": ""}
    )
    assert (names, errors) == ({"main", "pkg", "pkg.one"}, [])


def test_folder_without_init_is_an_empty_package(close):
    names, errors, _ = close("import space.inner", {"space/inner.py": ""})
    assert (names, errors) == ({"main", "space", "space.inner"}, [])


@pytest.mark.parametrize(
    "source",
    [
        "x = " + " + ".join(["'a'"] * 2000),
        "import json\nif x: pass\n" + "elif x: pass\n" * 1000,
        "x" + ".y" * 2000,
    ],
)
def test_what_the_compiler_takes_is_not_too_deep_to_read(close, source):
    assert close(source) == ({"main"}, [], [])


def test_circular_imports_end(close):
    assert close("import a", {"a.py": "import b", "b.py": "import a, main"}) == ({"main", "a", "b"}, [], [])


def test_entry_inside_a_package_takes_the_package(close):
    names, errors, _ = close("", {"app/__init__.py": "import shared", "app/go.py": "", "shared.py": ""}, entry="app.go")
    assert (names, errors) == ({"app", "app.go", "shared"}, [])


def test_standard_library_of_a_vm(close):
    names, errors, warnings = close("""
        import json, re, os.path, collections.abc, asyncio, sqlite3, xml.etree.ElementTree
        import math, array, _thread, unicodedata
        from concurrent.futures import ThreadPoolExecutor
        from importlib import resources
        import signal, os
        from vmhost import guest
        from vmhost.guest import log
        print(signal.SIGTERM, os.getcwd())
        """)
    assert (names, errors, warnings) == ({"main"}, [], [])


@each(
    ("statement", "expected"),
    [
        (
            "import numpy as np",
            "import numpy: a VM can't load it: its C part refuses interpreters with a GIL of their "
            "own; import vmhost.engine.numpy",
        ),
        ("from numpy.linalg import norm", "from numpy.linalg import norm: a VM can't load it: "),
        ("import torch", "import torch: a VM can't load it: "),
        (
            "import requests",
            "import requests: neither in the task's folder, nor among its requirements, nor in a VM's standard library;"
            " name it",
        ),
        ("import jsn", "did you mean 'json'?"),
        ("import ctypes", "import ctypes: a VM does not have it: it reaches what all VMs of the process share"),
        ("import subprocess", "import subprocess: a VM does not have it: a VM starts no processes"),
        ("import pdb", "import pdb: a VM does not have it: it is a tool for development"),
        ("import multiprocessing.pool", "import multiprocessing.pool: a VM does not have it: a VM starts no processes"),
        (
            "from multiprocessing import Pool",
            "from multiprocessing import Pool: a VM does not have it: a VM starts no processes",
        ),
        ("from concurrent.futures import ProcessPoolExecutor", "ProcessPoolExecutor: a VM does not have it"),
        (
            "from concurrent import interpreters",
            "from concurrent import interpreters: a VM does not have it: a VM makes no",
        ),
        ("import _interpreters", "import _interpreters: a VM does not have it"),
        (
            "from signal import signal, SIGTERM",
            "from signal import signal: a VM does not have it: signals belong to the whole",
        ),
        ("from os import fork", "from os import fork: a VM does not have it: a VM starts no processes"),
        ("import doctest", "import doctest: a VM does not have it: a VM has no compiler"),
        ("import tkinter.ttk", "import tkinter.ttk: a VM does not have it: a VM has no display"),
        ("import marshal", "import marshal: a VM does not have it: only the importer of a VM may unmarshal code"),
        ("import json.nothing", "import json.nothing: the standard library has no such module in Python 3."),
        ("from vmhost import Host", "from vmhost import Host: a VM has vmhost.guest and vmhost.engine only"),
        ("import vmhost.host", "import vmhost.host: a VM has vmhost.guest and vmhost.engine only"),
        ("import pkg.gone", "import pkg.gone: the task's folder has no module pkg.gone"),
        ("import pkg.leaf.x", "leaf.py is a module, not a package"),
        ("from . import x", "a relative import that leads out of the task's folder; write `import x`"),
        ("__import__('ctypes')", "__import__('ctypes'): a VM does not have it"),
    ],
)
def test_what_a_vm_cannot_import_is_refused_with_file_and_line(close, statement, expected):
    _, errors, _ = close(f"x = 1\n\n{statement}\n", {"pkg/__init__.py": "", "pkg/leaf.py": ""})
    assert len(errors) == 1, errors
    assert errors[0].startswith("main.py:3: ")
    assert expected in errors[0]


def test_names_that_are_no_names_lead_nowhere(close, tmp_path):
    (tmp_path / "outside.py").write_text("")
    for name in ("../outside", f"{tmp_path}/outside", ""):
        names, errors, _ = close(f"import importlib\nimportlib.import_module({name!r})")
        assert names == {"main"}
        assert len(errors) <= 1


def test_all_refusals_at_once_in_order(close):
    _, errors, _ = close("import other\nimport numpy\nimport ctypes", {"other.py": "\nimport torch"})
    assert [error.split(": a VM")[0] for error in errors] == [
        "main.py:2: import numpy",
        "main.py:3: import ctypes",
        "other.py:2: import torch",
    ]


@pytest.mark.parametrize(
    "source",
    [
        "try:\n    import numpy\nexcept ImportError:\n    numpy = None",
        "try:\n    import numpy\nexcept (KeyError, ModuleNotFoundError):\n    numpy = None",
        "try:\n    import numpy\nexcept:\n    pass",
        "try:\n    import numpy\nexcept Exception:\n    pass\nelse:\n    import numpy.linalg",
        "import contextlib\nwith contextlib.suppress(ImportError):\n    import numpy",
        "try:\n    import tomllib\nexcept ImportError:\n    import tomli as tomllib",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pandas",
        "import typing\nif typing.TYPE_CHECKING:\n    import pandas",
        "if __name__ == '__main__':\n    import doctest, numpy\n    eval('1')",
        "if False:\n    import torch",
        "if 1:\n    pass\nelse:\n    import torch",
    ],
)
def test_imports_that_the_program_can_do_without(close, source):
    assert close(source) == ({"main"}, [], [])


@pytest.mark.parametrize(
    "source",
    [
        "try:\n    import numpy\nexcept KeyError:\n    pass",
        "try:\n    pass\nfinally:\n    import numpy",
        "try:\n    import missing\nexcept ImportError:\n    import numpy",
        "if not TYPE_CHECKING:\n    import numpy",
        "if TYPE_CHECKING:\n    pass\nelse:\n    import numpy",
        "if __name__ == '__main__':\n    pass\nelse:\n    import numpy",
        "if True:\n    import numpy",
    ],
)
def test_imports_that_it_cannot_do_without(close, source):
    _, errors, _ = close(source)
    assert len(errors) == 1
    assert "import numpy" in errors[0]


@pytest.mark.parametrize(
    "source",
    [
        "class A:\n    def f(self):\n        import numpy",
        "async def f():\n    from numpy import linalg",
        "match 1:\n    case 1:\n        import numpy",
        "import random\nif random.random() > 2:\n    import numpy",
        "for each in ():\n    import numpy",
        "try:\n    open('/x')\nexcept OSError:\n    import numpy",
    ],
)
def test_imports_that_may_never_run_are_warnings(close, source):
    _, errors, warnings = close(source)
    assert errors == []
    assert len(warnings) == 1
    assert "numpy" in warnings[0] and "raises ImportError if the task gets there" in warnings[0]


def test_a_link_out_of_the_folder_is_not_followed(close, tmp_path):
    (tmp_path / "elsewhere.py").write_text("secret = 1\n")
    (tmp_path / "sample").mkdir()
    (tmp_path / "sample" / "shared.py").symlink_to(tmp_path / "elsewhere.py")
    (tmp_path / "sample" / "inner.py").symlink_to("main.py")
    names, errors, _ = close("import shared, inner")
    assert errors == ["shared.py: is a link that leads out of the task's folder; copy the file there"]
    assert "inner" in names


def test_optional_module_of_the_task_is_taken_along(close):
    names, errors, _ = close("try:\n    import extra\nexcept ImportError:\n    pass", {"extra.py": "import gone"})
    assert names == {"main", "extra"}
    assert len(errors) == 1  # inside extra, nothing prepares for the failure


@pytest.mark.parametrize("name", ["random", "json", "vmhost", "turtle"])
def test_names_of_the_standard_library_are_not_taken(close, name):
    _, errors, _ = close(f"import {name}", {f"{name}.py": ""})
    assert len(errors) == 1
    assert errors[0].startswith(f"{name}.py: has the name of ")


@each(
    ("source", "expected"),
    [
        ("def run(value):\n    return eval(value)", "main.py:2: eval: a VM has no compiler; use json.loads for data"),
        ("exec('x = 1')", "main.py:1: exec: a VM has no compiler"),
        (
            "def run(value):\n    return list(map(eval, value))",
            "main.py:2: eval: a VM has no compiler; use json.loads for data",
        ),
        ("import builtins\nevaluate = builtins.eval", "main.py:2: eval: a VM has no compiler"),
        ("compile('1', '', 'eval')", "main.py:1: compile: a VM has no compiler"),
        ("import builtins\nbuiltins.eval('1')", "main.py:2: eval: a VM has no compiler"),
        ("from builtins import exec as e\ne('1')", "main.py:2: exec: a VM has no compiler"),
        (
            "def f(): pass\ng = f.__code__.replace(co_consts=())",
            "main.py:2: code.replace: a VM makes no new code objects",
        ),
        (
            "import copy\ndef f(): pass\ng = copy.replace(f.__code__, co_name='g')",
            "main.py:3: code.replace: a VM makes no new",
        ),
        (
            "def f(): pass\nc = f.__code__\nd = c.replace(co_consts=())",
            "main.py:3: code.replace: a VM makes no new code objects",
        ),
        (
            "import types\ntypes.FunctionType(make(), {})",
            "main.py:2: types.FunctionType: a VM makes no new code objects; write",
        ),
        (
            "from types import LambdaType\nLambdaType(make(), {})",
            "main.py:2: types.LambdaType: a VM makes no new code objects",
        ),
        (
            "import pickle\npickle.dumps(lambda: 1)",
            "main.py:2: pickle.dumps: a function is pickled as a name, which only VMs of",
        ),
        (
            "from pickle import dump\ndef f(): pass\ndump(f, None)",
            "main.py:3: pickle.dump: a function is pickled as a name",
        ),
        ("import ast\nast.parse('1', mode='exec')", "main.py:2: ast.parse: a VM has no compiler; parse on the host"),
        ("import types\ntypes.CodeType()", "main.py:2: types.CodeType: a VM has no compiler"),
        ("from types import CodeType\nCodeType()", "main.py:2: types.CodeType: a VM has no compiler"),
        ("import ast\nast.parse('1')", "main.py:2: ast.parse: a VM has no compiler"),
        ("import inspect\ninspect.getsource(inspect)", "main.py:2: inspect.getsource: a bundle holds no source"),
        (
            "import importlib\nimportlib.import_module(input())",
            "main.py:2: importlib.import_module: the compiler can't see",
        ),
        ("import signal\nsignal.signal(2, None)", "main.py:2: signal.signal: a VM does not have it: signals belong"),
        ("import os\nos.fork()", "main.py:2: os.fork: a VM does not have it: a VM starts no processes"),
        (
            "import concurrent.futures\nconcurrent.futures.ProcessPoolExecutor()",
            "main.py:2: concurrent.futures.ProcessPoolExec",
        ),
    ],
)
def test_what_needs_a_compiler_or_a_name_that_is_gone_is_a_warning(close, source, expected):
    names, errors, warnings = close(source)
    assert (names, errors, len(warnings)) == ({"main"}, [], 1), warnings
    assert warnings[0].startswith(expected)


@pytest.mark.parametrize(
    "source",
    [
        "import re\nre.compile('x')",
        "from re import compile\ncompile('x')",
        "def eval(x): pass\neval('1')",
        "def f(g): return g is eval",
        "class A:\n    def exec(self): pass\nA().exec()",
        "'a'.replace('a', 'b')",
        "import types\ntypes.FunctionType",
        "import signal\ndef f(signal):\n    return signal.signal",
        "import ast\nast.literal_eval('1')",
        "def f(): pass\nexec(f.__code__)",
        "import types\ndef f(): pass\ntypes.FunctionType(f.__code__, {})",
        "import ast\nast.parse('1', mode='eval')",
        "import pickle\nclass A: pass\npickle.dumps(A())",
        "import pickle\ndef f(): pass\ndef g(f):\n    return pickle.dumps(f)",
    ],
)
def test_no_false_alarm(close, source):
    assert close(source) == ({"main"}, [], [])


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = (", "main.py:1: SyntaxError: '(' was never closed"),
        ("x = 1\n\n  y = 1", "main.py:3: IndentationError: unexpected indent"),
        (b"# coding: nothing\n", "main.py: SyntaxError: unknown encoding: nothing"),
        (b"x = '\xff'\n", "main.py:"),
        ("y = 1\nx = '\0'", "main.py:2: SyntaxError: source code string cannot contain null bytes"),
        ("x = " + "(" * 1000, "main.py:1: SyntaxError: too many nested parentheses"),
        ("x = " + "-" * 100_000 + "1", "main.py: nested too deeply for the compiler"),
    ],
)
def test_syntax_errors_have_file_and_line(close, source, expected):
    _, errors, _ = close(source)
    assert len(errors) == 1
    assert errors[0].startswith(expected), errors


def test_closure_of_a_module_of_the_running_program(tmp_path):
    (tmp_path / "helper.py").write_text("from package import part")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "part.py").write_text("import json")
    (tmp_path / "random.py").write_text("not python")  # the standard library's comes first here
    text = "import helper, random\nfrom . import main"
    closure = closure_of_module("app.main", text, [tmp_path], filename="main.py")
    sources = {name: (each.text, each.path, each.is_package) for name, each in closure.sources.items()}
    assert sources["app.main"] == (b"import helper, random\nfrom . import main", "main.py", False)
    assert sources["app"] == (b"", "<app>", True)
    assert sources["helper"] == (b"from package import part", str(tmp_path / "helper.py"), False)
    assert sources.keys() == {"app", "app.main", "helper", "package", "package.part"}


def test_closure_of_a_module_says_what_can_not_travel(tmp_path):
    with pytest.raises(CompileError) as caught:
        closure_of_module(
            "m",
            textwrap.dedent("""
            import numpy
            import pytest
            """),
            [tmp_path],
            filename="m.py",
        )
    assert [str(found).split(": ")[:2] for found in caught.value.diagnostics] == [
        ["m.py:2", "import numpy"],
        ["m.py:3", "import pytest"],
    ]


def test_module_written_for_both_sides_may_name_the_host_side(tmp_path):
    """A program that makes a VMExecutor also defines the functions that travel."""
    source = "from vmhost import VMExecutor\nimport vmhost\ndef double(x): return 2 * x\n"
    assert closure_of_module("program", source, [tmp_path]).sources.keys() == {"program"}
