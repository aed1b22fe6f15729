"""Imports at the top of a program's module that wait in VMs until something uses them."""

import asyncio
import importlib
import sys
import textwrap
import threading

import numpy  # noqa: F401 - it starts threads, before a test counts them
import pytest

import vmhost
from vmhost.bytecode.postponing import LAZY, postpone
from vmhost.runtime import packing, travel

PACKAGES = {
    "heavy/__init__.py": "import heavy_below\nVALUE = heavy_below.VALUE\nclass Shape: pass\n",
    "heavy/part.py": "NAME = __name__\n",
    "heavy_below.py": "VALUE = 7\n",
    "other.py": "class Thing: pass\nTHINGS = []\n",
    "early.py": "LIMIT = 3\ndef mark(function):\n    return function\n",
    "broken.py": "import numpy\nX = 1\n",
    "slow.py": "import time\ntime.sleep(0.05)\nX = 3\n",
    "unnamed.py": "X = 1\n",
    "deep/__init__.py": """
import importlib, importlib.util
NAMED = {"style": "deep.styles.plain:Style"}

def within():
    import deep_below
    from deep.parts import one
    from . import parts
    return deep_below.VALUE, one.NAME, parts.one is one

def further():
    from deep.parts import one
    return one.more()

def named(name):
    module, _, attribute = NAMED[name].partition(":")
    return getattr(importlib.import_module(module), attribute)

def is_there(name):
    return importlib.util.find_spec(name) is not None

def fails():
    import broken

def chooses():
    try:
        import broken
    except ImportError:
        return "the other way"
""",
    "deep/parts/__init__.py": "",
    "deep/parts/one.py": "NAME = __name__\ndef more():\n    from deep.parts import two\n    return two.NAME\n",
    "deep/parts/two.py": "NAME = __name__\n",
    "deep/styles/__init__.py": "",
    "deep/styles/plain.py": "class Style: pass\n",
    "deep_below.py": "import collections\nVALUE = collections.namedtuple('Pair', 'a b')(1, 2).b\n",
}
DEEP = """
    import deep

    def within():
        return deep.within()

    def further():
        return deep.further()

    def named(name):
        return deep.named(name).__name__

    def is_there(name):
        return deep.is_there(name)

    def fails():
        return deep.fails()

    def chooses():
        return deep.chooses()
"""
PROGRAM = """
    import sys
    import heavy, heavy.part
    import early as first
    import broken
    from other import (Thing,
        THINGS as things)  # noqa
    import slow

    LIMIT = first.LIMIT

    @first.mark
    def plus_one(x):
        return x + 1

    def uses():
        return heavy.VALUE, heavy.part.NAME, heavy is sys.modules["heavy"]

    def uses_broken():
        return broken.X

    def by_name(name, attribute):
        found = globals()[name]
        return sys.modules[name] is found, getattr(found, attribute), found.__name__, found.__spec__.name

    def isolated(name):
        return isinstance(globals()[name], type(sys)), name in sys.modules

    def re_exported():
        me = sys.modules[__name__]
        from_there = me.Thing, me.things
        other = sys.modules["other"]
        return from_there == (other.Thing, other.THINGS), "Thing" in globals(), getattr(me, "missing", None)

    def at_once(count):
        import threading
        found = []
        threads = [threading.Thread(target=lambda: found.append(globals()["slow"].X)) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    def asks(name):
        from vmhost.guest import lazy
        return lazy.module(name, "here").X
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    site = tmp_path / "site-packages"
    for name, text in PACKAGES.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    name = f"program_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(PROGRAM))
    for folder in site, tmp_path:
        monkeypatch.syspath_prepend(str(folder))
    yield importlib.import_module(name)
    for each in [*(path.partition(".")[0].partition("/")[0] for path in PACKAGES), name, "heavy.part"]:
        sys.modules.pop(each, None)


@pytest.fixture
def deep(program, tmp_path):
    name = f"deep_program_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(DEEP))
    yield importlib.import_module(name)
    for each in [each for each in sys.modules if each == name or each.partition(".")[0] == "deep"]:
        del sys.modules[each]


def code_store(pool):
    return {name for name in pool._workers._modules if not name.startswith("program_")}


def test_an_import_that_nothing_uses_is_not_compiled(program):
    with vmhost.VMExecutor(1) as pool:
        assert pool.submit(program.plus_one, 1).result() == 2
        assert code_store(pool) == {"early"}
        assert pool.submit(program.isolated, "heavy").result() == (True, True)
        assert code_store(pool) == {"early"}
        assert pool.submit(program.uses).result() == (7, "heavy.part", True)
        assert code_store(pool) == {"early", "heavy", "heavy.part", "heavy_below"}


def test_a_use_that_the_source_does_not_show_asks_for_the_code(program):
    with vmhost.VMExecutor(1) as pool:
        assert pool.submit(program.by_name, "heavy", "VALUE").result() == (True, 7, "heavy", "heavy")
        assert pool.submit(program.re_exported).result() == (True, True, None)
        with pytest.raises(ImportError, match=r"here: import unnamed: no import of this program waits for it"):
            pool.submit(program.asks, "unnamed").result()
        assert "unnamed" not in code_store(pool)


def of_deep(pool):
    return {name for name in code_store(pool) if not name.startswith("deep_program_")}


def test_what_a_package_imports_in_a_function_is_compiled_when_a_vm_imports_it(deep):
    with vmhost.VMExecutor(1) as pool:
        assert pool.submit(deep.is_there, "deep.missing").result() is False
        assert of_deep(pool) == {"deep"}
        assert pool.submit(deep.within).result() == (2, "deep.parts.one", True)
        assert of_deep(pool) == {"deep", "deep_below", "deep.parts", "deep.parts.one"}
        assert pool.submit(deep.named, "style").result() == "Style"
        assert of_deep(pool) >= {"deep.styles.plain"} and "deep.parts.two" not in of_deep(pool)
        assert pool.submit(deep.further).result() == "deep.parts.two"
        assert pool._workers._edition == 1  # no other VMs were needed
        there = {name: pool.submit(deep.is_there, name).result() for name in ("deep.parts", "deep.missing", "broken")}
        assert there == {"deep.parts": True, "deep.missing": False, "broken": False}


def test_a_module_that_no_vm_can_load_is_refused_as_one_at_the_top_is(deep, monkeypatch):
    from vmhost import executor

    asked, later_luggage = [], executor.later_luggage

    def counted(name, roots):
        asked.append(name)
        return later_luggage(name, roots)

    monkeypatch.setattr(executor, "later_luggage", counted)
    with vmhost.VMExecutor(1) as pool:
        for _ in range(2):
            with pytest.raises(
                ModuleNotFoundError, match=r"No module named 'broken': a VM can't import it: .*broken.py:1"
            ):
                pool.submit(deep.fails).result()
            assert pool.submit(deep.chooses).result() == "the other way"
    assert asked == ["broken"]


def test_threads_that_use_it_at_once_wait_for_it(program):
    with vmhost.VMExecutor(1) as pool:
        assert pool.submit(program.at_once, 8).result() == [3] * 8


def test_a_package_that_no_vm_can_load_is_told_when_it_is_used(program):
    reason = r"program_.*\.py:5: import broken: a VM can't import it: .*broken.py:1: import numpy"
    with vmhost.VMExecutor(1) as pool:
        with pytest.raises(vmhost.CrossingError, match=rf"uses_broken .*: it uses broken:\n.*{reason}"):
            pool.submit(program.uses_broken)
        for _ in range(2):  # and stays so
            with pytest.raises(ImportError, match=reason):
                pool.submit(program.by_name, "broken", "X").result()
        assert pool.submit(program.plus_one, 1).result() == 2


def test_an_event_loop_does_not_wait_for_the_compiler(program, monkeypatch):
    compiled, compile_module = [], travel.compile_module

    def watched(*arguments):
        compiled.append(threading.current_thread())
        return compile_module(*arguments)

    monkeypatch.setattr(travel, "compile_module", watched)

    async def main(pool):
        loop = asyncio.get_running_loop()
        assert await pool.run(program.plus_one, 1) == 2
        with pytest.raises(vmhost.CrossingError, match="uses broken"):
            await pool.run(program.uses_broken)
        return await asyncio.gather(*(loop.run_in_executor(pool, program.plus_one, i) for i in range(5)))

    with vmhost.VMExecutor(1) as pool:
        assert asyncio.run(main(pool)) == [1, 2, 3, 4, 5]

    async def first(pool):
        loop = asyncio.get_running_loop()
        calls = [loop.run_in_executor(pool, function) for function in (program.uses, program.uses_broken)]
        pool.submit(program.plus_one, 1).cancel()
        return await asyncio.gather(*calls, return_exceptions=True)

    with vmhost.VMExecutor(1) as pool:
        result, error = asyncio.run(first(pool))
        assert result == (7, "heavy.part", True) and type(error) is vmhost.CrossingError
    assert compiled and threading.current_thread() not in compiled


@pytest.mark.parametrize(
    "text, expected",
    [
        ("import pk\n", f"pk = {LAZY}.module('pk', 'm.py:1')\n"),
        ("import pk; x = 1\n", f"pk = {LAZY}.module('pk', 'm.py:1'); x = 1\n"),
        (
            "import pk as p, pk.q  # why\nx = 1\n",
            f"p = {LAZY}.module('pk', 'm.py:1'); pk = {LAZY}.module('pk.q', 'm.py:1')  # why\nx = 1\n",
        ),
        (
            "from pk import (a,\n  b as c)\nx = 1",
            f"{LAZY}.names(globals(), 'pk', {{'a': 'a', 'c': 'b'}}, 'm.py:1')\n\nx = 1",
        ),
        *(
            (text, text)
            for text in (
                "import pk, os\n",
                "import pk.q as q\n",
                "from pk import *\n",
                "from . import pk\n",
                "from pk import a\ndef f(): return a\n",
                "from pk import a\ndef __getattr__(name): return 1\n",
                "try:\n    import pk\nexcept ImportError:\n    pk = None\n",
                "import pk\nclass A(pk.B): pass\n",
                "import pk\n@pk.mark\ndef f(): pass\n",
                "import pk\ndef f(x=pk.y): pass\n",
                "import pk\ndef f(): return g()\ndef g(): return pk.x\nX = f()\n",
                "import pk\nclass A:\n    def f(self): return pk.x\nX = A()\n",
                "import pk\npk = 1\n",
                "import pk\nkey = lambda: pk.x\n",
                "import pk\ndef f(\n",
            )
        ),
        *(
            (text, text.replace("import pk\n", f"pk = {LAZY}.module('pk', 'm.py:1')\n"))
            for text in (
                "import pk\ndef f() -> pk.T: return pk.x\n",
                "import pk\nx: pk.T\n",
                "import pk\nif __name__ == '__main__':\n    pk.main()\n",
                "import pk\nclass A:\n    def f(self): return pk.x\n",
            )
        ),
    ],
)
def test_which_imports_wait(text, expected):
    new, found = postpone(text.encode(), "m.py", {"pk"}.__contains__)
    assert new.decode() == expected and bool(found) == (text != expected)


def test_a_slow_compilation_names_the_packages(program, monkeypatch, caplog):
    monkeypatch.setattr(packing, "_SLOW_S", 0)
    with vmhost.VMExecutor(1) as pool:
        pool.submit(program.uses).result()
    told = [record.getMessage() for record in caplog.records if "compiling it for VMs took" in record.getMessage()]
    assert len(told) == 2 and "program_" in told[0] and "early (0 KiB)" in told[0] and "heavy" in told[1]
