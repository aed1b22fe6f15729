"""Packages of the running program in its VMs: installed ones, those of a script's block, and the texts they compile."""

import json
import os
import re
import textwrap
import zipfile
from pathlib import Path

import pytest

from tests import warm
from tests.wheels import folder_of_wheels, write_wheel

ROOT = Path(__file__).parents[2]
LONG_S = 120
TALES = {
    "tales/__init__.py": "from importlib import metadata, resources\n"
    "def tell():\n    return metadata.version('tales') + (resources.files('tales') / 'end.txt').read_text()\n",
    "tales/end.txt": " end",
}
TELLER = """
# /// script
# dependencies = ["vmhost", "tales>=1"]
# ///
import vmhost

def tell():
    import tales
    return tales.tell()

if __name__ == "__main__":
    with vmhost.VMExecutor(1) as pool:
        print(pool.submit(tell).result())
"""
WRITER = {
    "writer.py": "def function(name):\n    names = {}\n"
    "    exec(compile(f'def {name}(): return {name!r}', '<made>', 'exec'), names)\n    return names[name]\n"
    "at_import = function('at_import')\n",
}
WRITING = """
import vmhost
import writer

FIRST = writer.function("first")

def at_import():
    return FIRST(), writer.at_import()

def in_a_call(name):
    return writer.function(name)()

if __name__ == "__main__":
    import sys
    with vmhost.VMExecutor(1) as pool:
        for name in sys.argv[1:]:
            print(pool.submit(in_a_call, name).result())
        print(*pool.submit(at_import).result())
"""


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """A folder of wheels, the only place where packages are found; a cache of its own."""
    return folder_of_wheels(tmp_path, monkeypatch)


@pytest.fixture
def program(tmp_path):
    """`program(text, *arguments)` writes app.py and runs it; gives (exit status, stdout, stderr)."""
    folder = tmp_path / "program"
    folder.mkdir()

    def run(text, *arguments, command=("app.py",), packages=None, **environment):
        (folder / "app.py").write_text(textwrap.dedent(text))
        path = os.pathsep.join(filter(None, (str(ROOT), packages and str(packages))))
        environment = os.environ | {"PYTHONPATH": path, "PYTHON_COLORS": "0"} | environment
        done = warm.run("-W", "error", *command, *arguments, timeout=LONG_S, env=environment, cwd=folder)
        return done.returncode, done.stdout, done.stderr

    run.folder = folder
    return run


def install(tmp_path, wheel):
    """Unpacks a wheel into a folder called site-packages, as an environment has one; returns it."""
    folder = tmp_path / "environment" / "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def last_line(stderr):
    return stderr.strip().splitlines()[-1]


def test_what_a_script_requires_is_locked_where_it_is_not_installed(wheels, program):
    write_wheel(wheels, "tales", "1.0", TALES)
    assert program(TELLER)[:2] == (0, "1.0 end\n")
    lock = (program.folder / "app.requirements.lock").read_text()
    assert "tales==1.0" in lock and "--hash=sha256:" in lock and "vmhost==" not in lock
    write_wheel(wheels, "tales", "2.0", TALES)
    assert program(TELLER)[:2] == (0, "1.0 end\n"), "the lock decides"
    assert (program.folder / "app.requirements.lock").read_text() == lock
    vmhost = ("-m", "vmhost", "lock", "app.py", "--upgrade")
    assert program(TELLER, command=vmhost)[:2] == (0, "tales 2.0 (was 1.0)\n")
    assert program(TELLER)[:2] == (0, "2.0 end\n")


def test_installed_packages_travel_with_their_files_and_a_lock_comes_before_them(wheels, program, tmp_path):
    write_wheel(wheels, "tales", "1.0", TALES)
    site = install(tmp_path, wheels / "tales-1.0-py3-none-any.whl")
    assert program(TELLER, packages=site)[:2] == (0, "1.0 end\n")
    assert not (program.folder / "app.requirements.lock").exists()
    write_wheel(wheels, "tales", "2.0", TALES)
    program(TELLER, command=("-m", "vmhost", "lock", "app.py"))
    assert program(TELLER, packages=site)[:2] == (0, "2.0 end\n")


@pytest.mark.parametrize(
    "old, new, expected",
    [
        ("tales>=1", "nowhere", r"app\.py:3: dependencies: .*nowhere"),
        (
            "tales>=1",
            "tales @ https://x/y",
            r"app\.py:3: dependencies: expected a package with versions in pip's syntax",
        ),
        ("tales>=1", "tales @ file:///x", r"app\.py:3: dependencies: tales: /x is not there"),
        ('1"]', '1"', r"app\.py:\d: the block `# /// script` is no TOML"),
        ("import tales", "import numpy", r"import numpy: a VM can't load it: .*import vmhost\.engine\.numpy"),
        ("import tales", "import tails", r"import tails: neither beside the program, .* `# /// script` block names"),
    ],
)
def test_what_can_not_come_along_is_told_by_submit(wheels, program, old, new, expected):
    write_wheel(wheels, "tales", "1.0", TALES)
    status, _, stderr = program(TELLER.replace(old, new))
    assert status == 1
    assert "vmhost.errors.CrossingError: tell" in last_line(stderr)
    assert re.search(expected, last_line(stderr)), stderr


def test_without_uv_and_pip_a_block_can_not_be_resolved(wheels, program, tmp_path):
    (tmp_path / "uv.py").write_text("raise SystemExit(1)\n")
    (tmp_path / "pip.py").write_text("raise SystemExit(1)\n")
    status, _, stderr = program(TELLER, packages=tmp_path, PATH="/nowhere")
    assert status == 1
    assert "app.py:3: dependencies: neither uv nor pip is there to find packages; install" in last_line(stderr)


def test_a_lock_for_other_packages_is_told(wheels, program):
    write_wheel(wheels, "tales", "1.0", TALES)
    program(TELLER)
    status, _, stderr = program(TELLER.replace("tales>=1", "tales>=1.0"))
    assert status == 1
    assert "app.requirements.lock is for" in last_line(stderr) and "run `vmhost lock " in last_line(stderr)


def test_texts_of_imports_travel_and_those_of_calls_once_recorded(wheels, program, tmp_path):
    write_wheel(wheels, "writer", "1.0", WRITER)
    site = install(tmp_path, wheels / "writer-1.0-py3-none-any.whl")
    assert program(WRITING, packages=site)[:2] == (0, "first at_import\n")
    status, stdout, stderr = program(WRITING, "some", packages=site)
    assert (status, stdout) == (1, "")
    assert "nobody has recorded this text" in stderr and "`vmhost record PROGRAM`" in stderr
    record = ("-m", "vmhost", "record", "app.py")
    assert program(WRITING, "some", "more", command=record, packages=site)[:2] == (0, "some\nmore\nfirst at_import\n")
    path = program.folder / "app.recorded.json"
    first = path.read_bytes()
    assert {row["text"] for row in json.loads(first)["texts"]} == {
        f"def {name}(): return {name!r}" for name in ("some", "more")
    }
    assert program(WRITING, "some", packages=site)[:2] == (0, "some\nfirst at_import\n")
    program(WRITING, "more", "some", packages=site, VMHOST_RECORD="1")
    assert path.read_bytes() == first, "the same texts give the same bytes"
    status, _, stderr = program(WRITING.replace("writer.function(name)()", "1 / 0"), "x", command=record, packages=site)
    assert status == 1 and "not written, since the program failed" in stderr
    assert path.read_bytes() == first
    path.write_text("{")
    status, _, stderr = program(WRITING, packages=site)
    assert status == 1 and "app.recorded.json: can't be read" in last_line(stderr)


READER = """
import ast, inspect

def traced(function):
    tree = ast.parse(inspect.getsource(inspect.getmodule(function)))
    [found] = [each for each in tree.body if getattr(each, "name", "") == "double"]
    found.decorator_list, found.name = [], "again"
    names = {}
    exec(compile(ast.Module([found], []), __file__, "exec"), names)
    return names["again"]

@traced
def double(x):
    return 2 * x

def late(text):
    return ast.unparse(ast.parse(text))
"""
READING = """
import sys, vmhost, reader

def call(text):
    return reader.double(21), reader.double.__name__, reader.late(text)

if __name__ == "__main__":
    with vmhost.VMExecutor(1) as pool:
        print(*pool.submit(call, sys.argv[1]).result())
"""


def test_trees_and_sources_travel_as_texts(wheels, program, tmp_path):
    write_wheel(wheels, "reader", "1.0", {"reader.py": READER})
    site = install(tmp_path, wheels / "reader-1.0-py3-none-any.whl")
    status, _, stderr = program(READING, "pass", packages=site)
    assert status == 1 and "NoCompilerError: ast.parse: there is no compiler in a VM to read 'pass'" in stderr
    assert program(READING, "pass", command=("-m", "vmhost", "record", "app.py"), packages=site)[0] == 0
    assert program(READING, "pass", packages=site)[:2] == (0, "42 again pass\n")


def test_a_program_without_a_guard_makes_no_executor_while_it_is_recorded(wheels, program, tmp_path):
    write_wheel(wheels, "writer", "1.0", WRITER)
    site = install(tmp_path, wheels / "writer-1.0-py3-none-any.whl")
    status, _, stderr = program(WRITING.replace('if __name__ == "__main__":', "if True:"), packages=site)
    assert status == 1
    assert '`if __name__ == "__main__":`' in stderr


def test_packages_of_a_block_are_there_while_texts_are_recorded(wheels, program):
    write_wheel(wheels, "writer", "1.0", WRITER)
    text = '# /// script\n# dependencies = ["writer"]\n# ///\n' + WRITING.replace(
        'import writer\n\nFIRST = writer.function("first")', "writer = FIRST = None"
    ).replace("return writer.function", "import writer; return writer.function").replace(
        "        print(*pool.submit(at_import).result())\n", ""
    )
    assert program(text, "some", command=("-m", "vmhost", "record", "app.py"))[:2] == (0, "some\n")
    assert program(text, "some")[:2] == (0, "some\n")


def test_record_needs_a_program(program):
    for argument, message in (("ap.py", "no such program; did you mean app.py?"), (".", "is no file")):
        status, _, stderr = program("", command=("-m", "vmhost", "record", argument))
        assert status == 2 and message in stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("print('no pool')\n", r"^Error: app\.recorded\.json: was not written; did app\.py make no VMExecutor"),
        ("import os\nos.kill(os.getpid(), 9)\n", r"^Error: app\.py: ended by signal 9; app\.recorded\.json was not"),
    ],
)
def test_a_program_that_leaves_no_record_is_told(program, text, message):
    status, _, stderr = program(text, command=("-m", "vmhost", "record", "app.py"))
    assert status == 2 and re.match(message, last_line(stderr))


def test_a_record_that_cannot_be_written_is_an_error(program):
    (program.folder / "app.recorded.json").mkdir()
    text = "import vmhost\nif __name__ == '__main__':\n    vmhost.VMExecutor().shutdown()\n"
    status, _, stderr = program(text, command=("-m", "vmhost", "record", "app.py"))
    assert status == 2 and "app.recorded.json: can't be written: " in stderr
