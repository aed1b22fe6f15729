"""Packages that a task requires: locked, installed aside, and which of their files are in its bundle.

The packages are wheels that the tests write; uv finds them in a folder, and no index is asked.
"""

import importlib.metadata
import os
import shutil
import threading

import pytest

import vmhost
from tests.wheels import folder_of_wheels, write_wheel
from vmhost.bytecode import recording
from vmhost.bytecode.compiler import compile_task
from vmhost.bytecode.errors import CompileError, TaskSpecError
from vmhost.bytecode.packages import LOCK_NAME, WITH_LOCK_NAME, Package, Requirements, files_of, lock, lock_of
from vmhost.bytecode.spec import read_task


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """A folder of wheels, the only place where packages are found; a cache of its own."""
    return folder_of_wheels(tmp_path, monkeypatch)


@pytest.fixture
def task(tmp_path):
    """Writes a task's folder: its main module, the packages that it requires, and other files."""
    folder = tmp_path / "task"

    def write(main, requirements, others=()):
        folder.mkdir(exist_ok=True)
        listed = ", ".join(f'"{each}"' for each in requirements)
        (folder / "task.yaml").write_text(
            f'name: sample\nversion: "1.0"\nentry: main:run\npython: "3.14"\nrequirements: [{listed}]\n'
        )
        (folder / "main.py").write_text(main)
        for path, text in dict(others).items():
            (folder / path).write_text(text)
        return folder

    return write


def required(folder, more=()):
    return Requirements.of_task(read_task(folder), more)


def call(compiled, value=None):
    with vmhost.Host(allow_unsigned=True) as host:
        return host.load(compiled.to_bytes())(value)


def test_a_package_and_what_it_needs_come_along(wheels, task):
    write_wheel(
        wheels,
        "tall-tales",
        "1.2",
        {
            "tales/__init__.py": "from .told import tell\n",
            "tales/told.py": "import words\nfrom importlib import resources\n"
            "def tell():\n    return words.FIRST + (resources.files('tales') / 'end.txt').read_text()\n",
            "tales/end.txt": "end",
            "tales/tests/test_told.py": "raise SystemExit\n",
            "tales/unused.py": "x = 1\n",
        },
        requires=["words>=2"],
        licence="Apache-2.0",
    )
    write_wheel(wheels, "words", "2.0", {"words.py": "FIRST = 'begin '\n"})
    write_wheel(wheels, "words", "1.0", {"words.py": "FIRST = 'old '\n"})
    folder = task(
        "import tales\nfrom importlib.metadata import version, distributions, PackageNotFoundError\n"
        "def run(value):\n"
        "    try:\n        version('absent')\n"
        "    except PackageNotFoundError as error:\n        missing = error.name\n"
        "    return [tales.tell(), version('Tall.Tales'), sorted(each.name for each in distributions()), missing]\n",
        ["tall-tales"],
    )
    compiled = compile_task(folder)
    assert call(compiled) == ["begin end", "1.2", ["tall-tales", "words"], "absent"]
    assert set(compiled.modules) == {"main", "tales", "tales.told", "words"}
    assert set(compiled.files) == {
        "tales/end.txt",
        *(f"{name}.dist-info/{file}" for name in ("tall_tales-1.2", "words-2.0") for file in ("METADATA", "RECORD")),
    }
    assert b"A long description" not in compiled.files["words-2.0.dist-info/METADATA"]
    assert [
        (each.package.name, each.package.version, each.package.licence, each.modules) for each in compiled.included
    ] == [
        ("tall-tales", "1.2", "Apache-2.0", 2),
        ("words", "2.0", "MIT", 1),
    ]


@pytest.mark.parametrize(
    "written", ["own @ file:our%20wheels/{}", "own[more]@file:./our%20wheels/{} ; os_name == 'posix'"]
)
def test_a_file_below_the_task_s_folder_is_a_package(wheels, task, tmp_path, written):
    """The lock names it as task.yaml does, so that the task can be moved."""
    folder = task("import own, words\ndef run(value):\n    return own.double(value) + words.ONE\n", [])
    (folder / "our wheels").mkdir()
    write_wheel(wheels, "words", "1.0", {"words.py": "ONE = 1\n"})
    file = "own-1.0-py3-none-any.whl"
    write_wheel(folder / "our wheels", "own", "1.0", {"own.py": "def double(x):\n    return 2 * x\n"}, ["words"])
    text = (folder / "task.yaml").read_text()
    (folder / "task.yaml").write_text(text.replace("[]", f'["{written.format(file)}"]'))
    assert call(compile_task(folder), 4) == 9
    locked = (folder / LOCK_NAME).read_text()
    assert str(tmp_path) not in locked and file in lock_of(required(folder))["own"]
    moved = folder.rename(tmp_path / "moved")
    shutil.rmtree(tmp_path / "cache")
    assert call(compile_task(moved), 4) == 9
    assert (moved / LOCK_NAME).read_text() == locked
    shutil.rmtree(tmp_path / "cache")
    write_wheel(moved / "our wheels", "own", "1.0", {"own.py": "def double(x):\n    return 3 * x\n"}, ["words"])
    with pytest.raises(TaskSpecError, match="(?i)hash"):
        compile_task(moved)
    lock(required(moved))
    assert call(compile_task(moved), 4) == 13
    lock(required(moved), upgrade=True)


def test_a_file_of_this_machine_is_a_package(wheels, task):
    write_wheel(wheels, "own", "1.0", {"own.py": "ONE = 1\n"})
    path = wheels / "own-1.0-py3-none-any.whl"
    folder = task("import own\ndef run(value):\n    return own.ONE\n", [f"own @ file://{path}"])
    assert call(compile_task(folder)) == 1
    assert lock_of(required(folder)) == {"own": f"file://{path}"}


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("own @ file:wheels/nowhere.whl", "own: .*nowhere.whl is not there"),
        ("own @ file:.", "own: .* is a folder, which has no hash; build a wheel of it"),
        ("own @ file:main.py", "own: expected a wheel or an archive of a source, got .*main.py"),
        ("own @ file://host/x.whl", "expected a package with versions in pip's syntax"),
        ("own @ https://host/x.whl", "expected a package with versions in pip's syntax"),
        ("own @ file:a b.whl", "expected a package with versions in pip's syntax"),
        ("own @ file:", "expected a package with versions in pip's syntax"),
    ],
)
def test_files_that_are_no_packages_are_told(wheels, task, written, message):
    folder = task("def run(value):\n    pass\n", [written])
    with pytest.raises(TaskSpecError, match=message):
        compile_task(folder)


def test_packages_of_the_command_line_have_a_lock_of_their_own(wheels, task):
    write_wheel(wheels, "words", "1.0", {"words.py": "FIRST = 'one'\n"})
    write_wheel(wheels, "more", "1.0", {"more.py": "import words\nLAST = words.FIRST + ' more'\n"}, requires=["words"])
    main = "import words\ndef run(value):\n    import more\n    return more.LAST\n"
    folder = task(main, ["words"])
    compile_task(folder)
    own = (folder / LOCK_NAME).read_bytes()
    write_wheel(wheels, "words", "2.0", {"words.py": "FIRST = 'two'\n"})
    first = compile_task(folder, with_packages=["more"])
    assert call(first) == "one more", "the versions of the task's own lock are kept"
    kept = (folder / WITH_LOCK_NAME).read_bytes()
    write_wheel(wheels, "more", "2.0", {"more.py": "LAST = 'newer'\n"})
    assert compile_task(folder, with_packages=["more"]).to_bytes() == first.to_bytes()
    assert (folder / WITH_LOCK_NAME).read_bytes() == kept
    assert call(compile_task(folder, with_packages=["more>=2"])) == "newer", "other packages, another lock"
    assert (folder / LOCK_NAME).read_bytes() == own
    with pytest.raises(TaskSpecError, match=r"^--with: expected a package .*, got '-r x'$"):
        compile_task(folder, with_packages=["-r x"])
    with pytest.raises(TaskSpecError, match=r"task\.yaml: requirements and --with: .*nowhere"):
        compile_task(folder, with_packages=["nowhere"])


def test_the_lock_decides_and_gives_the_same_bytes(wheels, task, tmp_path, monkeypatch):
    write_wheel(wheels, "words", "1.0", {"words.py": "FIRST = 'one'\n"})
    folder = task("import words\ndef run(value):\n    return words.FIRST\n", ["words"])
    first = compile_task(folder).to_bytes()
    assert lock_of(required(folder)) == {"words": "1.0"}
    write_wheel(wheels, "words", "2.0", {"words.py": "FIRST = 'two'\n"})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    assert compile_task(folder).to_bytes() == first
    lock(required(folder))
    assert lock_of(required(folder)) == {"words": "1.0"}, "what fits is kept"
    lock(required(folder), upgrade=True)
    assert lock_of(required(folder)) == {"words": "2.0"}
    assert call(compile_task(folder)) == "two"


def test_a_package_that_was_altered_is_refused(wheels, task, tmp_path, monkeypatch):
    write_wheel(wheels, "words", "1.0", {"words.py": "FIRST = 'one'\n"})
    folder = task("import words\ndef run(value):\n    return words.FIRST\n", ["words"])
    lock(required(folder))
    write_wheel(wheels, "words", "1.0", {"words.py": "FIRST = 'evil'\n"})
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "other-uv-cache"))
    with pytest.raises(TaskSpecError, match=r"task\.yaml:5: requirements: .*[Hh]ash"):
        compile_task(folder)
    assert not list((tmp_path / "cache").glob("vmhost/packages/*/site-packages")), "nothing half made is left"


def test_other_requirements_than_the_lock_s_are_told(wheels, task):
    write_wheel(wheels, "words", "1.0", {"words.py": ""})
    write_wheel(wheels, "tales", "1.0", {"tales.py": ""})
    folder = task("import words\ndef run(value):\n    return 1\n", ["words"])
    lock(required(folder))
    task("import words\ndef run(value):\n    return 1\n", ["words", "tales"])
    with pytest.raises(TaskSpecError) as caught:
        compile_task(folder)
    assert str(caught.value) == (
        f'{folder}/task.yaml:5: requirements: requirements.lock is for ["words"], Python 3.14, expected '
        f'["words", "tales"], Python 3.14; run `vmhost lock {folder}`'
    )
    (folder / LOCK_NAME).write_bytes(b"\xff\xfe")
    with pytest.raises(TaskSpecError, match=r"requirements\.lock: can't be read: it is no text"):
        compile_task(folder)


def test_what_is_not_there_is_told_with_the_line(wheels, task):
    folder = task("def run(value):\n    return 1\n", ["no-such-package"])
    with pytest.raises(TaskSpecError, match=r"task\.yaml:5: requirements: .*no-such-package"):
        compile_task(folder)
    assert not (folder / LOCK_NAME).exists()


@pytest.mark.parametrize(
    "message",
    [
        "error: client error (Connect)\n  Caused by: invalid peer certificate: UnknownIssuer",
        "SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed'))",
    ],
)
def test_an_unknown_signer_of_the_index_comes_with_advice(wheels, task, tmp_path, monkeypatch, message):
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{message}\nEND\nexit 2\n")
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", f"{uv.parent}{os.pathsep}{os.environ['PATH']}")
    folder = task("def run(value):\n    return 1\n", ["words"])
    with pytest.raises(
        TaskSpecError,
        match=r"certificate.*; no known authority has signed the index's certificate, .* set UV_SYSTEM_CERTS=true",
    ):
        compile_task(folder)


@pytest.mark.parametrize(
    "bad", ["../here", "words @ https://example.org/words.whl", "-r other.txt", "", "words\\n-e ."]
)
def test_only_names_and_versions_are_requirements(wheels, task, bad):
    folder = task("def run(value):\n    return 1\n", [bad])
    with pytest.raises(TaskSpecError, match=r"requirements\[0\]"):
        read_task(folder)


def test_imports_of_packages_that_never_run_are_no_errors(wheels, task):
    write_wheel(
        wheels,
        "words",
        "1.0",
        {
            "words/__init__.py": "import sys\n"
            "if sys.hexversion < 0x3000000:\n    import Tkinter\n"
            "try:\n    from .win import FIRST\nexcept ImportError:\n    FIRST = 'plain'\n"
            "def plot():\n    import pylab\n    return pylab\n"
            "if FIRST == 'impossible':\n    import tornado\n"
            "def later():\n    from . import old\n",
            "words/win.py": "import winreg\nFIRST = 'windows'\n",
            "words/old.py": "print 'Python 2'\n",
        },
    )
    folder = task(
        "import words\nimport importlib.util\n"
        "def run(value):\n"
        "    said = []\n"
        "    for attempt in (words.plot, words.later):\n"
        "        try:\n            attempt()\n"
        "        except ImportError as error:\n            said.append((error.name, str(error)))\n"
        "    return [words.FIRST, said, importlib.util.find_spec('pylab') is None]\n",
        ["words"],
    )
    compiled = compile_task(folder)
    assert compiled.warnings == ()
    first, reason, found_none = call(compiled)
    assert first == "plain"
    assert found_none, "who asks whether it is there is told that it is not"
    assert reason[0][0] == "pylab"
    assert reason[0][1].startswith("No module named 'pylab': neither in the task's folder, nor among its requirements")
    assert {each.name for each in compiled.absent} == {"pylab", "winreg", "tornado", "words.old"}
    by_name = {each.name: each for each in compiled.absent}
    assert by_name["winreg"].certain and not by_name["pylab"].certain
    assert by_name["pylab"].where == "site-packages/words/__init__.py:9"


def test_modules_that_a_package_makes_by_itself_are_found(wheels, task):
    """Packages put modules into `sys.modules` themselves, as `six` does with `six.moves`."""
    write_wheel(
        wheels,
        "seven",
        "1.0",
        {
            "seven.py": "import sys, types\nfrom importlib.util import spec_from_loader\n"
            "class Finder:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            "        return spec_from_loader(name, self) if name == 'seven.moves' else None\n"
            "    def create_module(self, spec):\n"
            "        module = types.ModuleType(spec.name)\n        module.zip = zip\n        return module\n"
            "    def exec_module(self, module):\n        pass\n"
            "__path__ = []\nsys.meta_path.append(Finder())\n",
            "eight/__init__.py": "import sys, types\nmade = types.ModuleType('vendored')\n"
            "sys.modules[__name__ + '.vendored'] = made\n",
            "user.py": "from seven.moves import zip\nfrom eight.vendored import __name__ as NAME\n",
        },
    )
    folder = task(
        "from seven.moves import zip\nimport eight.vendored as one, user\n"
        "def run(value):\n    return [list(zip('ab', 'cd')), one.__name__, user.NAME]\n",
        ["seven"],
    )
    compiled = compile_task(folder)
    assert call(compiled) == [[("a", "c"), ("b", "d")], "vendored", "vendored"]
    assert not compiled.absent and not compiled.warnings


def test_a_package_may_import_the_debugger_and_replace_its_methods(wheels, task):
    write_wheel(
        wheels,
        "tested",
        "1.0",
        {
            "tested.py": "import pdb\n"
            "class Own(pdb.Pdb):\n    pass\n"
            "old = pdb.Pdb.__init__\n"
            "def replaced(self):\n    old(self, stdin=None)\n"
            "pdb.Pdb.__init__ = replaced\n"
            "def debug():\n    Own()\n",
        },
    )
    folder = task(
        "import tested\n"
        "def run(value):\n"
        "    try:\n        tested.debug()\n"
        "    except PermissionError as error:\n        return str(error)\n",
        ["tested"],
    )
    compiled = compile_task(folder)
    assert not compiled.warnings
    assert "pdb.Pdb: a VM has no terminal" in call(compiled)


def test_a_package_that_is_certain_to_fail_is_a_warning_where_the_task_imports_it(wheels, task):
    write_wheel(wheels, "words", "1.0", {"words.py": "import numpy\n"})
    folder = task("import words\ndef run(value):\n    return 1\n", ["words"])
    compiled = compile_task(folder)
    [warning] = (each for each in compiled.warnings if "import words: " in str(each))
    assert str(warning).startswith(
        f"{folder}/main.py:1: import words: it will fail in a VM: "
        "site-packages/words.py:1: import numpy: a VM can't load"
    )
    with pytest.raises(vmhost.TaskError, match="No module named 'numpy': a VM can't load it"):
        call(compiled)


def test_native_parts_stay_behind_and_say_so(wheels, task):
    suffix = "cpython-314-x86_64-linux-gnu.so"
    write_wheel(
        wheels,
        "fast",
        "1.0",
        {
            "fast/__init__.py": "try:\n    from ._speedups import twice\nexcept ImportError as error:\n"
            "    why = str(error)\n    def twice(x):\n        return 2 * x\n",
            f"fast/_speedups.{suffix}": "not really",
        },
    )
    write_wheel(wheels, "solid", "1.0", {f"solid.{suffix}": "not really"})
    folder = task("import fast\ndef run(value):\n    return [fast.twice(value), fast.why]\n", ["fast", "solid"])
    compiled = compile_task(folder)
    twice, why = call(compiled, 21)
    assert twice == 42
    assert why.startswith(
        "No module named 'fast._speedups': a VM can't load it: "
        f"it is not pure Python (site-packages/fast/_speedups.{suffix})"
    )
    assert not any(path.endswith(".so") for path in compiled.files)
    task("import solid\ndef run(value):\n    return 1\n", ["fast", "solid"])
    with pytest.raises(CompileError, match=r"main\.py:1: import solid: a VM can't load it: it is not pure Python"):
        compile_task(folder)


def test_packages_of_files_come_along_unasked(wheels, task):
    write_wheel(
        wheels,
        "atlas-data",
        "1.0",
        {"atlas/__init__.py": "", "atlas/maps/__init__.py": "", "atlas/maps/north.txt": "ice", "atlas/README": "x"},
    )
    folder = task(
        "import importlib.resources\n"
        "def run(value):\n    return importlib.resources.files('atlas.maps').joinpath('north.txt').read_text()\n",
        ["atlas-data"],
    )
    assert call(compile_task(folder)) == "ice"


def test_the_task_s_own_modules_come_first(wheels, task):
    write_wheel(wheels, "words", "1.0", {"words.py": "FIRST = 'theirs'\n", "json.py": "FIRST = 'not json'\n"})
    folder = task(
        "import words, json\ndef run(value):\n    return [words.FIRST, json.loads('1')]\n",
        ["words"],
        {"words.py": "FIRST = 'ours'\n"},
    )
    assert call(compile_task(folder)) == ["ours", 1]


def test_two_compilers_at_once_install_once(wheels, task):
    write_wheel(wheels, "words", "1.0", {"words.py": "FIRST = 'one'\n"})
    folder = task("import words\ndef run(value):\n    return words.FIRST\n", ["words"])
    lock(required(folder))
    bundles, start = [], threading.Barrier(4)

    def compile_it():
        start.wait()
        bundles.append(compile_task(folder).to_bytes())

    threads = [threading.Thread(target=compile_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(bundles) == 4 and len(set(bundles)) == 1


WRITER = """
import importlib.metadata
import os
if "SEEN" in os.environ:
    with open(os.environ["SEEN"], "a") as seen:
        seen.write("x")
def define(body):
    names = {}
    exec(f"def made(): return {body}", names)
    return names["made"]
two = define("1 + 1")
try:
    import numpy as arrays
except ImportError:
    arrays = None
try:
    import ctypes
except ImportError:
    ctypes = None
kind = define(f"'arrays {arrays is None}, ctypes {ctypes is None}'")
"""
USES_WRITER = """
import writer
three = writer.define("1 + 2")
def run(value):
    return [writer.two(), three(), writer.kind()]
"""


@pytest.fixture
def seen(tmp_path, monkeypatch):
    """How often the module `writer` was imported while texts were recorded."""
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    (tmp_path / "seen").touch()
    return lambda: len((tmp_path / "seen").read_text())


def test_texts_of_imports_are_recorded_unasked_and_once(wheels, task, seen):
    write_wheel(wheels, "writer", "1.0", {"writer.py": WRITER})
    folder = task(USES_WRITER, ["writer"])
    first = compile_task(folder)
    assert (folder / "recorded.json").exists() and not first.warnings
    assert call(first) == [2, 3, "arrays True, ctypes True"]
    assert seen() == 1
    assert compile_task(folder).to_bytes() == first.to_bytes()
    assert seen() == 1
    (folder / "recorded.json").unlink()
    assert compile_task(folder).to_bytes() == first.to_bytes()
    assert seen() == 2


def test_a_record_of_imports_follows_the_sources_and_a_script_s_stays(wheels, task, seen):
    write_wheel(wheels, "writer", "1.0", {"writer.py": WRITER})
    folder = task(USES_WRITER, ["writer"])
    compile_task(folder)
    (folder / "main.py").write_text(USES_WRITER.replace("1 + 2", "3 + 4"))
    assert call(compile_task(folder))[1] == 7
    assert seen() == 2
    (folder / "use.py").write_text("import main\n")
    compile_task(folder, script=folder / "use.py")
    assert seen() == 3
    (folder / "main.py").write_text(USES_WRITER)
    text = (folder / "recorded.json").read_text()
    with pytest.raises(vmhost.VMHostError, match="nobody has recorded this text"):
        call(compile_task(folder))
    assert (seen(), (folder / "recorded.json").read_text()) == (3, text)


def test_imports_that_fail_while_they_are_recorded_are_a_warning(wheels, task):
    write_wheel(wheels, "writer", "1.0", {"writer.py": WRITER})
    folder = task(USES_WRITER + "if True: raise ValueError('not here')\n", ["writer"])
    [warning] = compile_task(folder).warnings
    assert "import main: fails with what a VM has" in str(warning) and "ValueError: not here" in str(warning)
    assert not (folder / "recorded.json").exists()
    (folder / "main.py").write_text("import os\nimport writer\nos._exit(3)\ndef run(value): pass\n")
    assert any("it ended with status 3" in str(warning) for warning in compile_task(folder).warnings)


def test_a_folder_that_can_not_be_written_has_its_texts_all_the_same(wheels, task, seen, monkeypatch):
    write_wheel(wheels, "writer", "1.0", {"writer.py": WRITER})
    folder = task(USES_WRITER, ["writer"])
    lock(required(folder))

    def refuse(path, data):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(recording, "replace_file", refuse)
    compiled = compile_task(folder)
    [warning] = compiled.warnings
    assert "recorded.json: can't be written: Read-only file system" in str(warning)
    assert call(compiled) == [2, 3, "arrays True, ctypes True"]


def test_what_is_installed_is_listed_as_in_plain_python(wheels, task):
    write_wheel(
        wheels,
        "tall-tales",
        "1.0",
        {"tales/__init__.py": "", "tales/told.py": "", "tales/end.txt": "end", "tellers.py": ""},
    )
    main = (
        "import tales\n"
        "from importlib.metadata import distribution, packages_distributions\n"
        "def run(value):\n"
        "    files = distribution('tall-tales').files\n"
        "    end = next(each for each in files if each.name == 'end.txt')\n"
        "    rows = [[str(each), each.size, each.hash and each.hash.value] for each in files]\n"
        "    return [rows, end.read_text(), end.locate().read_bytes(), packages_distributions()]\n"
    )
    folder = task(main, ["tall-tales"])
    compiled = compile_task(folder)
    rows, end, data, packages = call(compiled)
    [site] = (folder.parent / "cache").glob("vmhost/packages/*/site-packages")
    [there] = importlib.metadata.distributions(path=[str(site)])
    notes = {"INSTALLER", "REQUESTED", "uv_cache.json"}
    plain = [[str(each), each.size, each.hash and each.hash.value] for each in there.files if each.name not in notes]
    assert rows == sorted(plain)
    assert {"tales/told.py", "tellers.py"} < {path for path, _, _ in rows}, "sources are listed, though compiled"
    assert (end, data) == ("end", b"end")
    assert packages == {"tales": ["tall-tales"], "tellers": ["tall-tales"]}


def test_a_record_is_the_same_whoever_installed(tmp_path):
    rows = "pkg/__init__.py,sha256=abc,3\n../../bin/tool,sha256=x,9\nbin/tool,sha256=x,9\n"
    rows += "pkg-1.0.dist-info/INSTALLER,sha256=x,2\npkg/__pycache__/__init__.cpython-314.pyc,,\n"
    rows += 'pkg-1.0.dist-info/RECORD,,\n"pkg/a,b.txt",sha256=abc,3\n'
    folder = tmp_path / "pkg-1.0.dist-info"
    folder.mkdir()
    (folder / "RECORD").write_text(rows)
    package = Package("pkg", "1.0", "MIT", ("pkg",), ("pkg-1.0.dist-info/RECORD",), ())
    assert files_of(package, tmp_path)["pkg-1.0.dist-info/RECORD"].decode() == (
        'pkg-1.0.dist-info/RECORD,,\npkg/__init__.py,sha256=abc,3\n"pkg/a,b.txt",sha256=abc,3\n'
    )


def test_files_of_packages_are_paths(wheels, task):
    """pycountry gives `open` the text of a path, networkx gives the path itself to gzip."""
    write_wheel(
        wheels,
        "atlas",
        "1.0",
        {"atlas/__init__.py": "", "atlas/north.txt": "ice", **{f"atlas/maps/{n}.txt": str(n) for n in range(99)}},
    )
    main = (
        "import importlib.resources, os\n"
        "def run(value):\n"
        "    folder = importlib.resources.files('atlas')\n"
        "    path = folder / 'north.txt'\n"
        "    said = [open(str(path)).read(), open(path, 'rb').read(), os.path.exists(path)]\n"
        "    said.append(os.path.getsize(str(path)))\n"
        "    said += [open(os.path.join(str(folder), 'north.txt')).read(), path.read_text(), folder.is_dir()]\n"
        "    said += [sorted(each.name for each in folder.iterdir())]\n"
        "    said.append((folder / 'maps' / '7.txt').read_text())\n"
        "    with importlib.resources.as_file(path) as there:\n        said.append(there.suffix)\n"
        "    with importlib.resources.path('atlas', 'north.txt') as there:\n        said.append(str(there))\n"
        "    for gone in ('atlas/south.txt', 'atlas/maps/100.txt'):\n"
        "        try:\n            open(gone)\n"
        "        except FileNotFoundError as error:\n            said.append(str(error))\n"
        "    return said\n"
    )
    said = call(compile_task(task(main, ["atlas"])))
    advice = "for a file of this machine, give its absolute path"
    assert said == [
        *("ice", b"ice", True, 3, "ice", "ice", True, ["maps", "north.txt"], "7", ".txt", "atlas/north.txt"),
        f"[Errno 2] no such file in the bundle (atlas has atlas/north.txt); {advice}: 'atlas/south.txt'",
        "[Errno 2] no such file in the bundle (atlas/maps has atlas/maps/0.txt, atlas/maps/1.txt, atlas/maps/10.txt,"
        f" atlas/maps/11.txt, atlas/maps/12.txt and 94 more files); {advice}: 'atlas/maps/100.txt'",
    ]
