"""Which functions travel to a VM, from where, and the errors for those that cannot."""

import functools
import importlib
import math
import operator
import os
import random
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import vmhost
from tests.vmhost import functions

ROOT = Path(__file__).parents[2]
LONG_S = 60


@pytest.fixture(scope="module")
def pool():
    with vmhost.VMExecutor(1) as executor:
        yield executor


@pytest.fixture
def write_module(tmp_path, monkeypatch):
    """write_module(name, text) writes a module, imports it, and forgets it in the end."""
    monkeypatch.syspath_prepend(str(tmp_path))
    names = set()

    def write(name, text, load=True):
        path = tmp_path / (name.replace(".", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        names.add(name)
        importlib.invalidate_caches()
        return importlib.import_module(name) if load else None

    yield write
    for name in names:
        sys.modules.pop(name, None)


def run_python(tmp_path, *arguments, text=None):
    """Run Python in a process of its own; gives what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        capture_output=True,
        text=True,
        timeout=LONG_S,
        input=text,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHON_COLORS": "0", "TERM": "dumb"},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# -- what travels ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function, arguments, result",
    [
        (pow, (2, 5), 32),
        (math.sqrt, (9,), 3.0),
        (str.upper, ("a",), "A"),
        (operator.add, (1, 2), 3),
        (int, ("7",), 7),
        (dict.fromkeys, ("ab",), {"a": None, "b": None}),
        (len, ("abc",), 3),
        (sorted, ([3, 1],), [1, 3]),
        (re.escape, ("*",), r"\*"),
        (time.sleep, (0,), None),
        (bytes.fromhex, ("ff",), b"\xff"),
        (random.randint, (4, 4), 4),
        (object.__eq__, (1, 1), True),
    ],
)
def test_functions_of_the_standard_library(pool, function, arguments, result):
    assert pool.submit(function, *arguments).result() == result


def test_static_and_class_methods_and_classes_inside_classes(pool):
    assert pool.submit(functions.Shop.price, 2).result() == 14
    assert pool.submit(functions.Shop.rated, 2).result() == 9
    assert pool.submit(functions.Shop.Till.count, [1, 2]).result() == 2


def test_decorated_functions_and_named_lambdas(pool):
    assert pool.submit(functions.decorated, 1).result() == 4
    assert pool.submit(functions.cached, 2).result() == 6
    assert pool.submit(functions.triple, 2).result() == 6


def test_partials_of_what_travels(pool):
    assert pool.submit(functools.partial(functions.add, 1), 2).result() == 3
    assert pool.submit(functools.partial(functools.partial(functions.add, 1, scale=2), 5), scale=3).result() == 18
    gap = functools.partial(pow, functools.Placeholder, 3)
    assert pool.submit(gap, 2).result() == 8
    with pytest.raises(TypeError, match="missing positional"):
        pool.submit(gap)


def test_a_function_named_setup_is_not_taken_for_a_tasks(pool, write_module):
    module = write_module(
        "with_setup",
        """
        ran = []
        def setup(): ran.append("setup")
        def teardown(): ran.append("teardown")
        def get(): return ran
    """,
    )
    assert pool.submit(module.get).result() == []


def test_modules_come_with_what_they_import(pool, write_module):
    write_module("shop.__init__", "", load=False)
    write_module("shop.rates", "RATE = 3\n", load=False)
    module = write_module(
        "shop.prices",
        """
        from . import rates
        import shop.rates as again
        def price(x):
            import late_helper
            return x * rates.RATE * again.RATE * late_helper.one
    """,
        load=False,
    )
    write_module("late_helper", "one = 1\n", load=False)
    module = importlib.import_module("shop.prices")
    assert pool.submit(module.price, 2).result() == 18


def test_a_module_that_imports_vmhost(pool, write_module):
    module = write_module(
        "program",
        """
        import vmhost
        from vmhost import VMExecutor

        def work(x):
            return x + 1

        def run():
            with VMExecutor(1) as executor:
                return executor.submit(work, 1).result()
    """,
    )
    assert module.run() == 2
    with pytest.raises(RuntimeError, match="on the host"):
        pool.submit(module.run).result()


def test_imports_inside_functions_that_are_not_called_do_no_harm(pool, write_module):
    module = write_module(
        "plots",
        """
        def plot():
            import numpy
            return numpy.zeros(1)

        def light(x):
            return x
    """,
    )
    assert pool.submit(module.light, 1).result() == 1
    with pytest.raises(vmhost.CrossingError, match=r"plots.py:3: import numpy: a VM can't load it"):
        pool.submit(module.plot)


def in_this_very_module(x):
    return x, LONG_S, Path(__file__).name


def test_functions_of_a_module_that_pytest_has_rewritten(pool):
    assert pool.submit(in_this_very_module, 1).result() == (1, 60, "test_executor_travel.py")


GAPS = """
    import os, subprocess  # two at once
    from concurrent.futures import (ThreadPoolExecutor,
        ProcessPoolExecutor)
    import pytest
    import sys
    if sys.version_info < (3, 10):
        import numpy

    @pytest.fixture
    def fixture():
        return 1

    @pytest.mark.parametrize("x", [1])
    class TestCase(pytest.Item if hasattr(pytest, "Nothing") else object):
        pass

    def separator():
        return os.sep, ThreadPoolExecutor.__name__

    def run():
        return [subprocess.run(["true"]) for _ in range(1)]

    def helper():
        return ProcessPoolExecutor(1)

    def indirect():
        return helper()

    def by_name(name):
        return globals()[name]()

    def line():
        return 1 / 0
"""


@pytest.fixture(scope="module")
def gaps(tmp_path_factory):
    """The module GAPS, one for all tests: pytest travels with it, which takes seconds to compile and verify."""
    folder = tmp_path_factory.mktemp("gaps")
    (folder / "gaps.py").write_text(textwrap.dedent(GAPS))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        importlib.invalidate_caches()
        yield importlib.import_module("gaps")
    del sys.modules["gaps"]


def test_a_module_may_import_what_a_vm_has_not_as_long_as_it_is_not_used(pool, gaps):
    assert pool.submit(gaps.separator).result() == ("/", "ThreadPoolExecutor")
    error = pool.submit(gaps.line).exception()
    number = gaps.line.__code__.co_firstlineno + 1
    assert f'File "{gaps.__file__}", line {number}, in line' in error.__cause__.guest_traceback


def test_using_what_a_vm_has_not_is_refused_or_raises_with_the_line_of_the_import(pool, gaps):
    assert f"it uses subprocess:\n{gaps.__file__}:2: import subprocess" in refusal(pool, gaps.run)
    line = f"{gaps.__file__}:3: from concurrent.futures import ProcessPoolExecutor: "
    assert f"it uses helper, which uses ProcessPoolExecutor:\n{line}" in refusal(pool, gaps.indirect)
    with pytest.raises(ImportError) as caught:
        pool.submit(gaps.by_name, "helper").result()
    assert str(caught.value).startswith(line)
    assert pool.submit(gaps.separator).result() == ("/", "ThreadPoolExecutor")


def test_a_pool_of_processes_in_a_default_is_refused_where_it_is_used(pool):
    assert pool.submit(functions.named_pool, 0).result() == "not used"
    with pytest.raises(ImportError, match="concurrent.futures.ProcessPoolExecutor: a VM starts no processes"):
        pool.submit(functions.named_pool, 1).result()


def test_installed_packages_travel_when_they_are_pure_python(pool, write_module):
    module = write_module("uses_pluggy", "import pluggy\ndef name(): return pluggy.HookspecMarker('x').project_name\n")
    assert pool.submit(module.name).result() == "x"


def test_a_module_that_is_loaded_again_travels_again(write_module, tmp_path):
    module = write_module(
        "changing",
        """
        import os
        def version(): return 1
        def slow(path):
            while not os.path.exists(path): pass
            return version()
    """,
    )
    gate = tmp_path / "gate"
    with vmhost.VMExecutor(2) as executor:
        before = executor.submit(module.slow, str(gate))
        assert executor.submit(module.version).result() == 1
        old = module.version
        Path(module.__file__).write_text("def version(): return 2 # the second\n")
        importlib.invalidate_caches()
        importlib.reload(module)
        assert executor.submit(module.version).result() == 2
        assert executor.submit(functions.add, 1, 1).result() == 2
        with pytest.raises(vmhost.CrossingError, match="defined again"):
            executor.submit(old)
        gate.touch()
        assert before.result() == 1  # a submitted call runs the code as it was


def test_two_executors_have_vms_of_their_own(pool):
    with vmhost.VMExecutor(1) as other:
        other.submit(functions.remember, 1).result()
        assert pool.submit(functions.recall).result() == []


# -- what does not ---------------------------------------------------------------------------------------------------


def refusal(pool, function):
    with pytest.raises(vmhost.CrossingError) as caught:
        pool.submit(function)
    with pytest.raises(vmhost.CrossingError):
        pool.map(function, [])
    return str(caught.value)


def test_bound_methods_and_callable_objects(pool):
    assert "bound to an object of class Shop" in refusal(pool, functions.shop.greet)
    assert "an object of class Shop" in refusal(pool, functions.shop)
    assert "bound to an object of class list" in refusal(pool, [].append)
    assert "an object of class itemgetter" in refusal(pool, operator.itemgetter(1))
    assert "an object of class int" in refusal(pool, 3)
    assert "unhashable" in refusal(pool, {})


def test_what_has_been_replaced_under_its_name(pool):
    assert pool.submit(functions.decorated.__wrapped__, 1).result() == 2  # its own code


def test_functions_of_native_and_refused_modules(pool):
    import numpy

    assert "numpy" in refusal(pool, numpy.linalg.norm)
    assert "subprocess" in refusal(pool, subprocess.run)


def test_a_module_with_the_name_of_a_library_module(pool, write_module, monkeypatch):
    monkeypatch.delitem(sys.modules, "antigravity", raising=False)
    module = write_module("antigravity", "def up(x): return x\n")
    assert "rename it" in refusal(pool, module.up)


NEEDS_NUMPY = """import math

import numpy as np
TABLE = np.arange(8) * np.pi
PAIR, SIZE = 1, 2

def total(x):
    return float(np.sum(x))

def helper(x):
    return total([x])

def indirect(x):
    return [helper(item) for item in x]

def lookup(i):
    return TABLE[i]

class Net(np.ndarray):
    def run(self):
        return SIZE

def predict():
    return Net().run()

def light(x):
    return math.floor(x) + SIZE
"""


def test_a_function_that_needs_a_native_module_is_refused_with_file_and_line(pool, write_module):
    module = write_module("needs_numpy", NEEDS_NUMPY)
    line = f"{module.__file__}:3: import numpy: a VM can't load it"
    assert f"total ({module.__file__}:7) cannot travel to a VM: it uses np:\n{line}" in refusal(pool, module.total)
    assert f"it uses total, which uses np:\n{line}" in refusal(pool, module.indirect)
    assert f"it uses TABLE:\n{line}" in refusal(pool, module.lookup)
    assert f"it uses Net:\n{line}" in refusal(pool, module.predict)


def test_other_functions_of_a_module_that_imports_a_native_one_travel(pool, write_module):
    module = write_module("needs_numpy", NEEDS_NUMPY)
    assert pool.submit(module.light, 1.5).result() == 3
    with pytest.raises(vmhost.CrossingError):
        pool.submit(module.total, [1])
    assert list(pool.map(module.light, [2, 3])) == [4, 5]


def test_a_helpers_native_module_is_named_with_the_helpers_line(pool, write_module, tmp_path):
    write_module("native_helper", "x = 1\nfrom yaml import safe_load\ndef load(): return safe_load('1')\n", load=False)
    module = write_module(
        "needs_helper",
        "import native_helper\ndef run(name): return getattr(native_helper, name)\n"
        "def load(): return native_helper.load()\n",
    )
    assert pool.submit(module.run, "x").result() == 1
    with pytest.raises(ImportError) as caught:
        pool.submit(module.load).result()
    assert str(caught.value).startswith(f"{tmp_path / 'native_helper.py'}:2: from yaml import safe_load: a VM can't")


def test_a_program_may_prepare_for_what_a_vm_has_not(pool, write_module):
    module = write_module(
        "prepared",
        """
        try:
            import numpy
        except ImportError:
            numpy = None
        def has_numpy(): return numpy is not None
    """,
    )
    assert module.has_numpy() is True
    assert pool.submit(module.has_numpy).result() is False


def test_an_error_at_import_is_the_functions_error(pool, write_module, monkeypatch):
    monkeypatch.setenv("ON_THE_HOST", "1")
    module = write_module(
        "fails_in_vm",
        """
        import sys
        if not sys.executable:
            raise ValueError("not here")
        def run(): return 1
    """,
    )
    future = pool.submit(module.run)
    with pytest.raises(ValueError, match="not here") as caught:
        future.result()
    assert "could not be loaded" in str(caught.value.__cause__)
    with pytest.raises(ValueError, match="not here"):
        pool.submit(module.run).result()


# -- the program's own module ----------------------------------------------------------------------------------------

SCRIPT = """
from vmhost import VMExecutor

def square(x):
    return x * x

def name():
    return __name__

if __name__ == "__main__":
    with VMExecutor(2) as pool:
        print(list(pool.map(square, range(4))), pool.submit(name).result())
"""


def test_functions_of_a_script(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    assert run_python(tmp_path, "script.py") == "[0, 1, 4, 9] __mp_main__\n"


def test_functions_of_a_module_run_with_m(tmp_path):
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__init__.py").write_text("")
    (tmp_path / "app" / "base.py").write_text("def square(x): return x * x\n")
    text = SCRIPT.replace("def square(x):\n    return x * x", "from .base import square")
    (tmp_path / "app" / "tool.py").write_text(text)
    assert run_python(tmp_path, "-m", "app.tool") == "[0, 1, 4, 9] app.tool\n"


def test_functions_of_a_package_run_with_m(tmp_path):
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__init__.py").write_text("")
    (tmp_path / "app" / "__main__.py").write_text(SCRIPT)
    assert run_python(tmp_path, "-m", "app") == "[0, 1, 4, 9] app.__main__\n"


def test_functions_of_a_folder_and_of_a_zip(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__main__.py").write_text(SCRIPT)
    assert run_python(tmp_path, "folder") == "[0, 1, 4, 9] __mp_main__\n"
    import zipapp

    zipapp.create_archive(tmp_path / "folder", tmp_path / "app.pyz")
    assert run_python(tmp_path, "app.pyz") == "[0, 1, 4, 9] __mp_main__\n"


def test_a_script_without_a_main_guard_is_told_of_it(tmp_path):
    (tmp_path / "script.py").write_text(
        "from vmhost import VMExecutor\ndef f(): return 1\npool = VMExecutor(1)\n"
        "print(pool.submit(f).exception().__notes__)\n"
    )
    assert "__name__ ==" in run_python(tmp_path, "script.py")


TYPED = """
import math
import vmhost
from collections import Counter
SCALE = {"by": [2.5]}
def helper(x):
    return math.floor(x * SCALE["by"][0])

class Point:
    def __init__(self, x):
        self.x = x

    @classmethod
    def double(cls, x):
        return cls(x).x * 2

def work(x, by=SCALE):
    return helper(x) + len(Counter("aab")) + Point.double(x)

lazy = lambda x: helper(x)
pool = vmhost.VMExecutor(1)
print(pool.submit(work, 3).result(), pool.submit(Point.double, 4).result(), pool.submit(lazy, 2).result())
print(list(pool.map(work, [1, 2])))
"""


def test_functions_of_a_command(tmp_path):
    assert run_python(tmp_path, "-c", TYPED) == "15 8 5\n[6, 11]\n"


def test_functions_typed_at_the_prompt(tmp_path):
    out = run_python(
        tmp_path,
        "-i",
        "-q",
        text=TYPED.replace("\nlazy", "\n\nlazy")
        .replace("\nclass", "\n\nclass")
        .replace("self.x = x\n\n", "self.x = x\n")
        + "\npool.shutdown()\n",
    )
    assert "15 8 5" in out and "[6, 11]" in out


CELLS = """
import sys, types, linecache, itertools
main = sys.modules["__main__"] = types.ModuleType("__main__")
numbers = itertools.count(1)

def run_cell(text):
    # as ipykernel does it
    name = f"/tmp/ipykernel_{next(numbers)}/cell.py"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    exec(compile(text, name, "exec"), vars(main))
"""


def test_functions_of_cells_that_are_run_again(tmp_path):
    (tmp_path / "notebook.py").write_text(
        CELLS
        + textwrap.dedent('''
        run_cell("import vmhost\\npool = vmhost.VMExecutor(1)\\n")
        run_cell("N = 1\\n\\ndef add(x):\\n    return x + N\\n")
        run_cell("print(pool.submit(add, 1).result())")
        run_cell("N = 2\\n\\ndef add(x):\\n    return x + N\\n")
        run_cell("print(pool.submit(add, 1).result())")
        run_cell("""
        from dataclasses import dataclass

        @dataclass
        class Point:
            x: int

        def norm(x):
            return abs(Point(x).x)

        def fail(x):

            return x / 0
        """.replace("\\n        ", "\\n"))
        run_cell("print(pool.submit(norm, -7).result())")
        run_cell("e = pool.submit(fail, 1).exception(); print(type(e).__name__, e.__cause__.guest_traceback)")
        run_cell("model = object()\\ndef use(): return model\\n")
        run_cell("try: pool.submit(use)\\nexcept vmhost.CrossingError as e: print(e)")
        run_cell("pool.shutdown()")
    ''')
    )
    out = run_python(tmp_path, "notebook.py").splitlines()
    assert out[:4] == ["2", "3", "7", "ZeroDivisionError Traceback (most recent call last):"]
    assert re.fullmatch(r'  File "/tmp/ipykernel_\d+/cell.py", line 13, in fail', out[4])
    assert "use cannot travel to a VM: it uses the global model, an object of class object" in out[-1]


def test_functions_from_a_pipe_are_refused_with_the_reason(tmp_path):
    out = run_python(
        tmp_path,
        "-",
        text=textwrap.dedent("""
        import vmhost
        def f(): pass

        with vmhost.VMExecutor(1) as pool:
            try:
                pool.submit(f)
            except vmhost.CrossingError as error:
                print(error)
    """),
    )
    assert "the source of f is not to be had" in out


def test_a_function_that_begins_with_an_import_that_a_vm_has_not_is_refused_with_its_line(pool, write_module):
    write_module("deferred_help", "def double(x): return 2 * x\n")
    module = write_module(
        "deferred",
        """
        import contextlib

        def first(x):
            import numpy.linalg
            return numpy.linalg.norm(x)

        def second(x):
            y = x + 1
            from numpy import abs
            return abs(y)

        def prepared(x):
            try:
                import numpy
            except ImportError:
                return x

        def suppressed(x):
            with contextlib.suppress(ImportError):
                import numpy
            return x

        def seldom(x):
            if x is None:
                import numpy
            return x

        def later(x):
            for _ in range(2):
                import numpy

        def never(x):
            def inner():
                import numpy
            return x

        def ours(x):
            import json
            import deferred_help
            from vmhost.engine import numpy
            return deferred_help.double(json.loads(x))

        async def coroutine(x):
            try:
                import numpy
            except ImportError:
                return x
    """,
    )
    for function, line, name in ((module.first, 5, "numpy.linalg"), (module.second, 10, "numpy")):
        with pytest.raises(
            vmhost.CrossingError, match=rf"deferred.py:{line}: import {name}: a VM (can.t load|does not)"
        ):
            pool.submit(function, 1)
    for function in (module.prepared, module.suppressed, module.seldom, module.never, module.coroutine):
        assert pool.submit(function, 1).result() == 1
    assert pool.submit(module.ours, "21").result() == 42
    with pytest.raises(ModuleNotFoundError, match="numpy"):
        pool.submit(module.later, 1).result()
