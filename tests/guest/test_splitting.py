"""Modules that were split: a task sees the same as in CPython, and they cost an idle VM no memory."""

import collections
import importlib
import re
import subprocess
import sys
import types

import pytest

import vmhost
from vmhost.bytecode.compiler import compile_sources
from vmhost.stdlib import splitting

CUT = [*splitting.PARTS, *splitting.FACADES]

SOURCE = """
import sys

def described(value):
    if isinstance(value, type(sys)):
        return ["module", value.__name__]
    if isinstance(value, (type, type(described))):
        return [type(value).__qualname__, value.__module__, value.__qualname__]
    return [type(value).__qualname__]

def names(value):
    module, wanted = value
    module = __import__(module, fromlist=["x"])
    listed = set(dir(module))
    return [{name: described(getattr(module, name)) for name in wanted if hasattr(module, name)},
            [name for name in wanted if name not in listed]]

def star(module):
    return sorted(name for name in vars(__import__("all_of_" + module)) if not name.startswith("__"))

def loaded(module):
    __import__(module)
    return sorted(sys.modules)

def from_two_threads(value):
    import collections, threading
    barrier = threading.Barrier(8)
    found = []
    def ask():
        barrier.wait()
        found.append((collections.UserString, collections.UserString("a") + "b"))
    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    return [len({id(cls) for cls, _ in found}), collections.UserString is found[0][0], len(found)]

def unknown(module):
    module = __import__(module)
    try:
        module.no_such_name
    except AttributeError as error:
        return str(error)

def changed(value):
    import collections
    collections.UserDict = 5
    return [collections.UserDict, collections.UserList.__name__]

def patterns(value):
    import fractions, re
    before = "re._compiler" in sys.modules
    pattern = fractions._RATIONAL_FORMAT
    again = re.compile(pattern.pattern, pattern.flags & ~re.UNICODE)
    return [before, pattern == again, "re._compiler" in sys.modules, pattern.match("12.5e3").groups(),
            {name: int(flag) for name, flag in re.RegexFlag.__members__.items()}, issubclass(re.error, Exception),
            re.PatternError is re.error, type(pattern) is re.Pattern, type(pattern.match("1")) is re.Match]

def debugging(value):
    import asyncio
    early = "traceback" in sys.modules
    async def main():
        future = asyncio.get_running_loop().create_future()
        future.set_result(1)
        return [frame.name for frame in future._source_traceback]
    return [early, asyncio.run(main(), debug=True), sys.modules["traceback"].__spec__.name]

def deprecated(value):
    import asyncio, warnings
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        return [asyncio.DefaultEventLoopPolicy.__name__, asyncio.AbstractEventLoopPolicy.__name__,
                sorted({w.category.__name__ for w in caught})]

def run(value):
    return value
"""


@pytest.fixture(scope="module")
def task():
    sources = {"main": (SOURCE, "main.py", False)}
    for module in CUT:
        sources[f"all_of_{module}"] = (f"from {module} import *\n", f"all_of_{module}.py", False)
    with vmhost.Host(allow_unsigned=True) as host:
        yield host.load(compile_sources(sources, entry="main:run", name="asks", version="1"))


@pytest.fixture
def fresh():
    """A task whose VM has imported nothing yet."""
    with vmhost.Host(allow_unsigned=True) as host:
        yield host.load(
            compile_sources({"main": (SOURCE, "main.py", False)}, entry="main:run", name="fresh", version="1")
        )


def described(value):
    if isinstance(value, types.ModuleType):
        return ["module", value.__name__]
    if isinstance(value, (type, types.FunctionType)):
        return [type(value).__qualname__, value.__module__, value.__qualname__]
    return [type(value).__qualname__]


# modules loaded later, behind a stand-in or at an import, and those that `patches/` replaces
ELSEWHERE = {
    "ast",
    "copy",
    "inspect",
    "_casefix",
    "_compiler",
    "_constants",
    "_parser",
    "sslproto",
    "_ExtraNameFixer",
    "_lazy_annotationlib",
    "__getattr__",
    "__builtins__",
    "__cached__",
    "__doc__",
    "__file__",
    "__path__",
    "__loader__",
    "__spec__",
}


@pytest.mark.parametrize("name", CUT)
def test_every_name_is_there_and_is_what_it_is_in_cpython(task, name, monkeypatch):
    monkeypatch.setattr(
        collections, "heapq", None
    )  # as imported: Counter.most_common() fills it, in whatever test that was
    ours = importlib.import_module(name)
    listed = subprocess.run(
        [sys.executable, "-c", f"import {name}\nprint(*dir({name}))"], capture_output=True, check=True
    )
    wanted = sorted(set(listed.stdout.decode().split()) - ELSEWHERE - set(splitting.NO_PART_OF_FACADES))
    there, unlisted = task([name, wanted], entry="main:names")
    assert sorted(there) == wanted
    assert unlisted == []
    expected = {one: described(getattr(ours, one)) for one in wanted}
    assert {one: found for one, found in there.items() if found != expected[one]} == {}


@pytest.mark.parametrize("name", [name for name in CUT if "." not in name])
def test_an_import_of_all_names_gives_all_names(task, name):
    space = {}
    exec(f"from {name} import *", space)
    assert task(name, entry="main:star") == sorted(one for one in space if not one.startswith("__"))


def test_a_name_that_is_not_there_is_refused_in_the_usual_words(task):
    for name in ("typing", "collections", "asyncio"):
        assert task(name, entry="main:unknown") == f"module {name!r} has no attribute 'no_such_name'"


def test_threads_that_ask_at_once_get_the_same_class(fresh):
    assert fresh(entry="main:from_two_threads") == [1, True, 8]


def test_what_a_task_puts_in_the_place_of_a_deferred_name_stays(fresh):
    assert fresh(entry="main:changed") == [5, "UserList"]


def test_an_import_brings_no_more_than_it_needs(fresh):
    loaded = set(fresh("asyncio", entry="main:loaded"))
    assert not {name for name in loaded if name.startswith("asyncio.")} and "socket" not in loaded
    loaded = set(fresh("dataclasses", entry="main:loaded"))
    assert not {"copy", "weakref", "re._compiler", "ast", "inspect"} & loaded


def test_regular_expressions_of_the_library_are_compiled_already(fresh):
    before, same, after, groups, flags, is_error, alias, pattern, match = fresh(entry="main:patterns")
    assert (before, same, after, groups) == (False, True, True, ("", "12", None, None, None, "5", None, "3", None))
    assert flags == {name: int(flag) for name, flag in re.RegexFlag.__members__.items()}
    assert is_error and alias and pattern and match


def test_asyncio_finds_traceback_when_it_debugs(fresh):
    early, names, module = fresh(entry="main:debugging")
    assert early is False and "main" in names and module == "traceback"


def test_deprecated_names_of_asyncio_still_warn(fresh):
    assert fresh(entry="main:deprecated") == [
        "_UnixDefaultEventLoopPolicy",
        "_AbstractEventLoopPolicy",
        ["DeprecationWarning"],
    ]


def test_patterns_are_those_that_re_compiles():
    for arguments in [("a+(?P<x>b)|c",), (b"a[^b]", re.I), ("é\\w+", re.I | re.A), ("(?x) a b # c",), ("", 0)]:
        ours, theirs = eval(splitting._pattern(*arguments)), re.compile(*arguments)
        assert ours == theirs
        assert (ours.flags, ours.groups, ours.groupindex) == (theirs.flags, theirs.groups, theirs.groupindex)


@pytest.mark.parametrize(
    "source, message",
    [
        ("import sys\ndef b(): pass\n", "binds a; this Python differs"),
        ("import sys\ndef a(): pass\nb = a()\n", "line 3: a is needed while the module is imported"),
        ("import sys\ndef a(): pass\ndef b(a): pass\n", "line 3: hides the deferred name a"),
    ],
)
def test_what_cannot_be_cut_fails_the_build(source, message, monkeypatch):
    monkeypatch.setitem(splitting.PARTS, "cut", ["a"])
    with pytest.raises(splitting.SplitError, match=message):
        splitting.split("cut", source)


def test_lines_stay_where_they_were(monkeypatch):
    monkeypatch.setitem(splitting.PARTS, "cut", ["a", "*"])
    source = "import sys\n\n@sys.intern\ndef a():\n    return b(a)\ndef b(x):\n    return x\nc = (1,\n     2)\nd = 1\n"
    kept, parts = splitting.split("cut", source)
    assert kept.splitlines()[9] == "d = 1" and kept.splitlines()[1:7] == [""] * 6
    assert sorted(parts) == ["vmhost.parts.cut__a", "vmhost.parts.cut__b"]
    assert parts["vmhost.parts.cut__a"].splitlines()[2:5] == [
        "@sys.intern",
        "def a():",
        "    return _deferred_('b')(a)",
    ]
