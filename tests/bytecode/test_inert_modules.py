"""Modules that a VM lacks, imported by packages that never use them: importable but inert."""

import json
import subprocess
import sys

import pytest

import vmhost
from vmhost.bytecode import inert
from vmhost.bytecode.compiler import compile_task
from vmhost.bytecode.errors import CompileError
from vmhost.bytecode.offered import REFUSED, left_out, offered_modules


@pytest.fixture
def run(tmp_path):
    """run(expression, files of packages) compiles a task that imports the package `used`, and gives (the value of the
    expression or the text of its error, the CompiledTask)."""

    def made(expression, packages):
        folder, site = tmp_path / "task", tmp_path / "site-packages"
        main = (
            f"import used\ndef run(value):\n    try:\n        return {expression}\n"
            "    except Exception as error:\n        return f'{type(error).__name__}: {error}'\n"
        )
        head = 'name: sample\nversion: "1.0"\nentry: main:run\npython: "3.14"\n'
        for where, files in ((folder, {"task.yaml": head, "main.py": main}), (site, packages)):
            for path, text in files.items():
                (where / path).parent.mkdir(parents=True, exist_ok=True)
                (where / path).write_text(text)
        compiled = compile_task(folder, packages=site)
        with vmhost.Host(allow_unsigned=True) as host:
            return host.load(compiled.to_bytes())(None), compiled

    return made


def test_each_inert_module_is_one_that_a_vm_lacks_and_has_its_names():
    assert not inert.INERT & offered_modules()
    there = {name: names for name, names in inert.names().items() if names}
    assert {"ctypes", "multiprocessing", "concurrent.interpreters", "runpy", "readline", "fcntl"} <= there.keys()
    assert all(left_out(name) or REFUSED[name] for name in there)
    listing = "import ctypes, json; print(json.dumps([each for each in dir(ctypes) if each[:2] != '__']))"
    done = subprocess.run([sys.executable, "-I", "-c", listing], capture_output=True, check=True)
    missing = set(json.loads(done.stdout)) - set(there["ctypes"])
    assert all(isinstance(vars(__import__("ctypes"))[name], type(sys)) for name in missing)


IMPORTS = """
import ctypes, json
import ctypes.util
import multiprocessing as mp
import multiprocessing.pool
import concurrent.interpreters
from concurrent import interpreters
from concurrent.interpreters import Interpreter, create as make
from multiprocessing import (
    Pool,
    pool,
    TimeoutError,
)
import abc, cmd, copy
import runpy, readline, fcntl, pwd

LONG = 8 * ctypes.sizeof(ctypes.c_long)

class Point(ctypes.Structure):
    _fields_ = [("x", ctypes.c_int * 4), ("next", ctypes.POINTER(ctypes.c_char))]

class Worker(mp.Process):
    def run(self):
        pass

class Task(mp.Process, abc.ABC):
    @abc.abstractmethod
    def work(self): ...

class Named(type):
    pass

class Shell(cmd.Cmd, metaclass=Named):
    pass

def add(a: mp.Queue, b: "Pool | None" = None) -> Interpreter:
    return isinstance(a, (Worker, Interpreter))

def caught():
    try:
        raise TimeoutError("late")
    except mp.TimeoutError as error:
        return str(error)
"""
USES = {
    "used.LONG": 8 * __import__("struct").calcsize("l"),
    "used.add(1)": False,
    "used.caught()": "late",
    "[used.interpreters is used.concurrent.interpreters, used.pool is used.multiprocessing.pool]": [True, True],
    "hasattr(used.ctypes, 'windll')": False,
    "sorted(used.json.loads('[1]'))": [1],
    "issubclass(used.Worker, used.mp.Process)": True,
    "[isinstance(1, used.Task), type(used.Shell) is used.Named]": [False, True],
    "type(used.copy.copy(used.ctypes.cdll)) is type(used.copy.deepcopy([used.ctypes.cdll])[0])": True,
    "used.fcntl.LOCK_EX": __import__("fcntl").LOCK_EX,
    "'ctypes' in __import__('sys').modules": False,
}
REFUSALS = {
    "used.ctypes.CDLL(None)": "ctypes.CDLL: a VM does not have it: it reaches what all VMs of the process share",
    "used.ctypes.string_at(0)": "ctypes.string_at: a VM does not have it: it reaches what",
    "used.Point()": "ctypes.Structure: a VM does not have it: it reaches what",
    "used.Worker()": "multiprocessing.Process: a VM does not have it: a VM starts no processes",
    "used.Shell()": "cmd.Cmd: a VM does not have it: a VM has no terminal",
    "used.copy.copy(used.ctypes.cdll)()": "ctypes.cdll: a VM does not have it: it reaches what",
    "used.Pool()": "multiprocessing.Pool: a VM does not have it: a VM starts no processes",
    "used.make()": "concurrent.interpreters.create: a VM does not have it: a VM makes no interpreters",
    "used.runpy.run_path('x')": "runpy.run_path: a VM does not have it: a VM has no compiler",
    "used.fcntl.flock(0, 1)": "fcntl.flock: a VM does not have it: it reaches what",
    "used.pwd.getpwuid(0)": "pwd.getpwuid: a VM does not have it: it reaches what",
}


def test_modules_that_a_package_imports_at_its_top_are_inert(run):
    said, compiled = run(f"[{', '.join(USES)}]", {"used/__init__.py": IMPORTS})
    assert said == list(USES.values())
    told = {each.name: each.reason for each in compiled.absent}
    assert told["ctypes"].endswith("; here it can be imported, and refuses when it is used")
    assert {"multiprocessing", "concurrent.interpreters", "runpy"} <= told.keys()
    assert "".join(map(str, compiled.warnings)) == ""


def test_each_name_refuses_with_its_reason(run):
    calls = ", ".join(f"lambda: {use}" for use in REFUSALS)
    package = IMPORTS + "def errors(calls):\n    return [error(call) for call in calls]\n"
    package += "def error(call):\n    try:\n        return ['worked', repr(call())]\n"
    package += "    except PermissionError as refused:\n        return [type(refused).__name__, refused.strerror]\n"
    said, _ = run(f"used.errors([{calls}])", {"used/__init__.py": package})
    for (kind, text), expected in zip(said, REFUSALS.values(), strict=True):
        assert (kind, text[: len(expected)]) == ("PermissionDenied", expected)


def test_who_expects_the_import_to_fail_gets_the_error_as_before(run):
    package = (
        "import ctypes\nfrom .other import way\n",
        "try:\n    import ctypes\n    way = 'C'\nexcept ImportError:\n    way = 'Python'\n",
        "def late():\n    import multiprocessing\n",
    )
    files = dict(zip(("used/__init__.py", "used/other.py", "used/third.py"), package, strict=True))
    files["used/__init__.py"] += "from . import third\n"
    assert run("used.way", files)[0] == "Python"
    assert run("used.third.late()", files)[0].startswith("ModuleNotFoundError: No module named 'multiprocessing': a VM")


def test_an_import_that_may_run_with_its_module_is_inert_too(run):
    """Beneath a test, in a loop, in a handler, in a class: what a VM runs of it must not end the import."""
    package = (
        "import os, sys\n"
        "if os.environ.get('PATH') is None or sys.maxsize:\n    import ctypes\nelse:\n    import runpy\n"
        "for _ in range(1): import pwd, json; from multiprocessing import Pool\n"
        "try:\n    os.nothing\nexcept AttributeError:\n    import fcntl\n"
        "match sys.byteorder:\n    case 'little' | 'big':\n        import readline as lines\n"
        "class Holder:\n    if os.sep:\n        import webbrowser\n"
        "def late():\n    if os.sep:\n        import ctypes\n"
    )
    expression = (
        "[used.ctypes.__name__, hasattr(used, 'runpy'), used.Pool.__name__, used.json.loads('1'), used.fcntl.LOCK_EX,"
        " used.lines.__name__, used.Holder.webbrowser.__name__]"
    )
    said, compiled = run(expression, {"used/__init__.py": package})
    lock = __import__("fcntl").LOCK_EX
    assert said == ["ctypes", False, "Pool", 1, lock, "readline", "webbrowser"]
    told = {each.name: each for each in compiled.absent}
    assert told["ctypes"].reason.endswith("refuses when it is used") and not told["ctypes"].certain
    assert run("used.late()", {"used/__init__.py": package})[0].startswith(
        "ModuleNotFoundError: No module named 'ctypes'"
    )


def test_a_task_s_own_import_is_refused_as_before(tmp_path):
    (tmp_path / "task.yaml").write_text('name: sample\nversion: "1.0"\nentry: main:run\npython: "3.14"\n')
    (tmp_path / "main.py").write_text("import ctypes\ndef run(value):\n    pass\n")
    with pytest.raises(CompileError, match=r"main\.py:1: import ctypes: a VM does not have it"):
        compile_task(tmp_path)


def test_texts_are_recorded_past_inert_imports(run):
    package = "import multiprocessing\nexec('made = ' + repr(multiprocessing.__name__))\n"
    said, compiled = run("used.made", {"used/__init__.py": package})
    assert (said, compiled.warnings) == ("multiprocessing", ())


def test_the_home_directory_is_one_that_does_not_exist(run):
    package = "import os, pathlib\nHOME = pathlib.Path('~/.cache').expanduser()\n"
    expression = "[str(used.HOME), str(used.pathlib.Path.home()), used.os.path.exists(used.HOME)]"
    expression += " + [used.os.path.expanduser('~other/x'), used.os.path.expanduser(b'~')]"
    said, _ = run(expression, {"used/__init__.py": package})
    assert said == ["/nonexistent/.cache", "/nonexistent", False, "~other/x", b"/nonexistent"]


@pytest.mark.parametrize("fast", ["import ctypes", "from . import deeper"])
def test_a_module_that_fails_where_its_importer_has_another_way_is_not_replaced(run, fast):
    packages = {
        "used/__init__.py": "try:\n    from .fast import way\nexcept ImportError:\n    from .slow import way\n",
        "used/fast.py": f"{fast}\ndef way():\n    return 'fast'\n",
        "used/deeper.py": "import ctypes\n",
        "used/slow.py": "import ctypes\ndef way():\n    return 'slow'\n",
    }
    assert run("used.way()", packages)[0] == "slow"
    packages["used/__init__.py"] += "from . import fast\n"  # without another way
    assert run("used.fast.way()", packages)[0] == "fast"
