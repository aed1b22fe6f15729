"""Task folders to bundles: their contents, tracebacks, and the mistakes that are errors."""

import dis
import marshal
import traceback
import types
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from vmhost.bytecode.compiler import compile_sources, compile_task
from vmhost.bytecode.errors import CompileError, Diagnostic, TaskSpecError
from vmhost.bytecode.format import TARGET, read_bundle
from vmhost.bytecode.signing import TrustStore, generate_key
from vmhost.bytecode.source import compile_source

SPEC = f"""\
name: sample
version: 1.2.0
entry: main:run
python: "{TARGET}"
limits: {{memory: 32 MiB, concurrency: 2}}
permissions: {{env: [LANG]}}
files: [data/labels.json]
priority: -2
"""
FILES = {
    "main.py": '"""Doc."""\nfrom pkg import part\n\n'
    'def run(value):\n    """Doc."""\n    assert value\n    return part.go(value)\n',
    "pkg/__init__.py": "",
    "pkg/part.py": "def go(value):\n    return 1 / value\n",
    "data/labels.json": "[1]",
    "not_named.txt": "x",
}


def test_a_task_folder_becomes_a_bundle(write_task):
    key = generate_key()
    compiled = compile_task(write_task(FILES, spec=SPEC))
    bundle = read_bundle(compiled.to_bytes(key), TrustStore.of(ours=key.public))
    assert (bundle.manifest.name, bundle.manifest.version, bundle.manifest.entry) == ("sample", "1.2.0", "main:run")
    assert {name: module.is_package for name, module in bundle.modules.items()} == {
        "main": False,
        "pkg": True,
        "pkg.part": False,
    }
    assert bundle.files == {"data/labels.json": b"[1]"}
    assert dict(bundle.manifest.limits) == {"memory_bytes": 32 << 20, "concurrency": 2}
    assert bundle.manifest.permissions["env"] == ("LANG",)
    assert (bundle.manifest.models, bundle.manifest.priority, bundle.manifest.fresh) == ((), -2, False)
    assert compiled.warnings == ()
    assert compile_task(write_task(FILES, spec=SPEC, name="elsewhere")).to_bytes(key) == compiled.to_bytes(key)


def test_tracebacks_name_task_version_path_and_line(write_task):
    compiled = compile_task(write_task(FILES, spec=SPEC))
    codes = {name: marshal.loads(module.code) for name, module in compiled.modules.items()}
    space = {}
    exec(codes["pkg.part"], space)
    with pytest.raises(ZeroDivisionError) as caught:
        space["go"](0)
    frame = traceback.extract_tb(caught.tb)[-1]
    assert (frame.filename, frame.lineno, frame.name) == ("sample@1.2.0/pkg/part.py", 2, "go")
    assert codes["pkg"].co_filename == "sample@1.2.0/pkg/__init__.py"


@pytest.mark.parametrize(("optimize", "asserts", "docstrings"), [(0, True, True), (1, False, True), (2, False, False)])
def test_optimize_means_what_cpython_means(write_task, optimize, asserts, docstrings):
    compiled = compile_task(write_task(FILES, spec=SPEC), optimize=optimize)
    code = marshal.loads(compiled.modules["main"].code)
    run = next(const for const in code.co_consts if hasattr(const, "co_code"))
    assert (run.co_consts[0] == "Doc.") == docstrings
    assert ("AssertionError" in {item.argrepr for item in dis.get_instructions(run)}) == asserts
    assert read_bundle(compiled.to_bytes(), allow_unsigned=True).manifest.optimize == optimize


def test_no_source_and_no_place_of_this_machine_in_the_bundle(write_task):
    folder = write_task(FILES, spec=SPEC)
    data = compile_task(folder).to_bytes()
    assert str(folder).encode() not in data
    assert b"return part.go" not in data
    assert b"not_named" not in data


def test_warnings_are_reported_and_errors_when_strict(write_task, recwarn):
    folder = write_task({"main.py": "def run(value):\n    return eval(value) is 1\nx = '\\d namedtuple'\n"})
    compiled = compile_task(folder)
    shown = [str(found).removeprefix(f"{folder}/") for found in compiled.warnings]
    assert shown[0] == """main.py:2: "is" with 'int' literal. Did you mean "=="?"""
    assert shown[1].startswith("main.py:2: eval: a VM has no compiler")
    assert shown[2].startswith(r'main.py:3: "\d" is an invalid escape sequence')
    assert recwarn.list == []
    with pytest.raises(CompileError) as caught:
        compile_task(folder, strict=True)
    assert len(caught.value.diagnostics) == 3


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import numpy\ndef run(value): pass", "main.py:1: import numpy: a VM can't load it"),
        ("def run(value):\n    retrun value", "main.py:2: SyntaxError: invalid syntax"),
        ("def run(value):\n    return 1\nreturn 2", "main.py:3: SyntaxError: 'return' outside function"),
        ("def run(value):\n    nonlocal x", "main.py:2: SyntaxError: no binding for nonlocal 'x' found"),
    ],
)
def test_source_errors_stop_the_compilation(write_task, source, message):
    folder = write_task({"main.py": source})
    with pytest.raises(CompileError) as caught:
        compile_task(folder)
    assert [str(found).removeprefix(f"{folder}/") for found in caught.value.diagnostics][0].startswith(message)
    assert len(caught.value.diagnostics) == 1


MODELS = {"a.onnx": b"a", "b.onnx": b"b"}
SPEC_WITH_MODELS = SPEC.partition("files")[0] + "models: {net: a.onnx, other: b.onnx}\n"


def test_models_are_compiled_by_what_the_caller_gives(write_task):
    def compile_model(path):
        return SimpleNamespace(data=b"compiled " + path.read_bytes(), savings=f"saved in {path.name}")

    compiled = compile_task(write_task(MODELS, SPEC_WITH_MODELS), compile_model=compile_model)
    assert compiled.savings == {"net": "saved in a.onnx", "other": "saved in b.onnx"}
    bundle = read_bundle(compiled.to_bytes(), allow_unsigned=True)
    assert bundle.models == {"net": b"compiled a", "other": b"compiled b"}
    assert bundle.manifest.models == ("net", "other")


def test_mistakes_in_sources_and_in_all_models_are_told_at_once(write_task):
    def compile_model(path):
        raise CompileError([Diagnostic(path.name, 0, "is no model")])

    files = MODELS | {"main.py": "import numpy\ndef run(value): pass"}
    with pytest.raises(CompileError) as caught:
        compile_task(write_task(files, SPEC_WITH_MODELS), compile_model=compile_model)
    source, *models = map(str, caught.value.diagnostics)
    assert "import numpy: a VM can't load it" in source and models == ["a.onnx: is no model", "b.onnx: is no model"]


def test_without_a_compiler_of_models_one_error_says_what_to_call(write_task):
    folder = write_task(MODELS, SPEC_WITH_MODELS)
    with pytest.raises(CompileError) as caught:
        compile_task(folder)
    assert str(caught.value) == (
        f"{folder}/task.yaml:7: models: no compiler of models was given; call vmhost.compiler.compile_folder, or pass"
        " compile_model"
    )


def test_other_python_than_the_running_one(write_task):
    folder = write_task(spec=SPEC.partition("files")[0].replace(f'"{TARGET}"', '"3.19"'))
    with pytest.raises(
        TaskSpecError, match=rf"task.yaml:4: python: expected Python {TARGET}, the one that compiles, got 3.19"
    ):
        compile_task(folder)
    assert compile_task(folder, target=TARGET).manifest.target == TARGET
    with pytest.raises(CompileError, match=f"--target: expected Python {TARGET}, the one that compiles, got 3.19; run"):
        compile_task(folder, target="3.19")
    old = write_task(spec=SPEC.partition("files")[0].replace(f'"{TARGET}"', '"3.12"'))
    with pytest.raises(TaskSpecError, match=f"got 3.12; give it --target {TARGET} if the task works there too"):
        compile_task(old)  # no compiler of ours runs in 3.12


def test_sources_in_memory_become_a_bundle():
    bundle = compile_sources(
        {"m": ("import n\ndef go(x): return n.y + x", "/srv/m.py", False), "n": (b"y = 1", "/srv/n.py", False)},
        entry="m:go",
        name="m",
        version="0",
        permissions={"net": ("*:1",)},
        limits={"concurrency": 1},
    )
    assert (bundle.manifest.entry, bundle.signed_by, bundle.where) == ("m:go", None, "m@0")
    assert bundle.manifest.permissions["net"] == ("*:1",)
    assert marshal.loads(bundle.modules["m"].code).co_filename == "/srv/m.py"
    space = {}
    exec(marshal.loads(bundle.modules["n"].code), space)
    assert space["y"] == 1
    with pytest.raises(CompileError, match="/srv/m.py:1: SyntaxError"):
        compile_sources({"m": ("x =", "/srv/m.py", False)}, entry="m:go", name="m", version="0")


def test_precompiled_texts_travel_in_the_bundle(write_task):
    folder = write_task(
        {"main.py": "from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef run(v): return P(1, v)\n"}
    )
    bundle = read_bundle(compile_task(folder).to_bytes(), allow_unsigned=True)
    (code,) = map(marshal.loads, bundle.texts.values())
    assert eval(code, {"_tuple_new": tuple.__new__})(tuple, 1, 2) == (1, 2)


def test_threads_of_a_host_may_compile_at_the_same_time():
    sources = {
        f"m{index}": (
            "from dataclasses import dataclass\n"
            + "".join(f"@dataclass\nclass C{number}:\n    f{index}_{number}: int\n" for number in range(5)),
            f"m{index}.py",
            False,
        )
        for index in range(8)
    }

    def digest(name):
        return compile_sources({name: sources[name]}, entry=f"{name}:C0", name="m", version="0").digest

    alone = [digest(name) for name in sources]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(digest, list(sources) * 4)) == alone * 4


UNDOCUMENTED = """
'''the module'''
"and a second string"
from __future__ import annotations
class Documented:
    "a class"
    "twice"
    def method(self): "a method"
    class Only: "nothing else"
class Named:
    __doc__ = "kept, as it is a value"
async def later():
    "a coroutine function"
    return 1
def checked(value):
    "a function"
    assert value, "no value"
    return __debug__
"""


def test_docstrings_go_without_the_asserts():
    source = UNDOCUMENTED.replace('"and a second string"\n', "").encode()  # only one may stand before __future__
    for text in (source, UNDOCUMENTED.replace("from __future__ import annotations\n", "").encode()):
        space = {"__name__": "sample"}
        exec(marshal.loads(compile_source(text, "sample.py", "sample.py", docstrings=False)), space)
        found = [space[name] for name in ("Documented", "later", "checked")]
        found += [space["Documented"].method, space["Documented"].Only]
        assert [each.__doc__ for each in found] == [None] * 5 and "__doc__" not in space
        assert space["Named"].__doc__.startswith("kept") and space["checked"](1) is True
        assert [each.__code__.co_firstlineno for each in (space["later"], space["checked"])] == [
            text.decode()[: text.decode().index(word)].count("\n") + 1 for word in ("async def", "def checked")
        ]
        with pytest.raises(AssertionError, match="no value"):
            space["checked"](0)
        exec(marshal.loads(compile_source(text, "sample.py", "sample.py")), space)
        assert space["checked"].__doc__ == "a function" and space["__doc__"] == "the module"


NESTED = """
import sys
found = []
def here(function):
    found.append(function.__doc__)
if sys:
    @here
    def f(): "in an if"
else:
    pass
if not sys:
    pass
elif sys:
    @here
    def f(): "in an elif"
for _ in [1]:
    @here
    def f(): "in a loop"
else:
    @here
    def f(): "behind a loop"
while True:
    with open("/dev/null"):
        @here
        def f(): "in a with"
    break
try:
    @here
    def f(): "in a try"
    raise ValueError
except ValueError:
    @here
    def f(): "in a handler"
finally:
    @here
    def f(): "in the end"
match 1:
    case 1:
        @here
        def f(): "in a case"
def outer():
    class Inner:
        @here
        def f(self): "in a class of a function"
outer()
"""


def test_docstrings_go_wherever_a_statement_stands():
    space = {}
    exec(marshal.loads(compile_source(NESTED.encode(), "sample.py", "sample.py", docstrings=False)), space)
    assert space["found"] == [None] * 10
    exec(marshal.loads(compile_source(NESTED.encode(), "sample.py", "sample.py")), space)
    assert len(space["found"]) == 10 and all(text.startswith(("in ", "behind ")) for text in space["found"])


def test_code_is_given_another_place_with_docstrings_and_without():
    source = b"def run(code):\n    return code.replace(co_name='other')\n"
    for docstrings in (True, False):
        [run] = [
            each
            for each in marshal.loads(compile_source(source, "a.py", "a.py", docstrings=docstrings)).co_consts
            if isinstance(each, types.CodeType)
        ]
        assert "replaced" in run.co_names and "replace" not in run.co_names
