"""A task's API in a VM: files, log, deadline, setup and teardown, async entry points, reports of its errors."""

import logging

import pytest

import vmhost
from vmhost.bytecode.compiler import compile_sources

SOURCE = '''
"""A task that asks its VM for everything."""
import atexit
import logging
import os
import sys

import vmhost.guest
from vmhost.guest import deadline, log, resources

steps = []

def setup():
    steps.append("setup")

def teardown():
    log.info("teardown after %d calls", len(steps) - 1)

def run(name, *args):
    steps.append(name)
    return globals()[name]()

def order():
    return list(steps)

def files():
    import importlib.resources
    import io
    import pathlib
    here = os.path.dirname(__file__)
    with open("data/lines.txt") as file:
        lines = list(file)
    with open(os.path.join(here, "data", "lines.txt"), "rb") as file:
        binary = file.read()
    return [lines, binary, resources.names(), resources.read_text("data/lines.txt"), resources.read_bytes("other.bin"),
            pathlib.Path(__file__).parent.joinpath("other.bin").read_bytes(),
            io.open("./data/../other.bin", "rb").read()]

def package_files():
    import importlib.resources
    root = importlib.resources.files("pack")
    return [root.joinpath("inside.txt").read_text(), sorted(entry.name for entry in root.iterdir()),
            (root / "inside.txt").is_file(), root.is_dir(), importlib.resources.read_text("pack", "inside.txt"),
            importlib.resources.is_resource("pack", "nothing")]

def names_with_a_nul():
    found = []
    for ask in (lambda: __import__("string\\0"), lambda: __import__("main\\0x"), lambda: __import__("zlib\\0"),
                lambda: open("data/lines.txt\\0")):
        try:
            found.append(str(ask()))
        except (ModuleNotFoundError, OSError, ValueError) as error:
            found.append(type(error).__name__)
    return found

def module_files():
    import importlib.resources
    roots = [importlib.resources.files(anchor) for anchor in ("main", sys.modules["main"], "pack.part")]
    with importlib.resources.as_file(roots[0] / "data" / "lines.txt") as path:
        copied = [type(path).__module__.partition(".")[0], path.read_text(), open(path, "rb").read()]
    return [[sorted(entry.name for entry in root.iterdir() if entry.is_file()) for root in roots],
            roots[0].joinpath("data", "lines.txt").read_text(),
            importlib.resources.read_text("main", "data", "lines.txt", encoding="utf-8"),
            importlib.resources.is_resource("main", "other.bin"),
            importlib.resources.files().joinpath("other.bin").is_file(), (roots[0] / "none").is_file(), copied]

def missing_file():
    open("data/none.txt")

def time_left():
    return deadline()

def talk():
    print("printed", 1, 2)
    print("two\\nlines")
    print("no end", end="")
    sys.stderr.write("to stderr\\n")
    sys.stdout.buffer.write("bytes é\\n".encode())
    os.write(1, b"descriptor\\n")
    log.warning("%s at %d", "warned", 3)
    logging.getLogger("part").error("failed: %s", "x")
    logging.info("root")
    logging.basicConfig(level=logging.DEBUG)
    logging.debug("not shown twice")
    print("é" * 3, sys.stdout.isatty(), sys.stdin)

def system():
    return [sys.argv, sys.executable, sys.path, sys.orig_argv, __file__, __name__, type(sys.meta_path[0]).__name__]

def chained():
    try:
        {}["key"]
    except KeyError as error:
        wrapped = RuntimeError("outer", 2)
        wrapped.add_note("a note")
        raise wrapped from error

def recursion():
    return recursion()

def deep_text():
    class Odd(Exception):
        def __str__(self):
            raise ValueError("no text")
    raise Odd()

def grouped():
    raise ExceptionGroup("several", [ValueError("one"), TypeError("two")])

async def waits(value):
    import asyncio
    await asyncio.sleep(0)
    return [value, id(asyncio.get_running_loop())]

class Entry:
    async def __call__(self, value):
        return ["object", value]

    async def method(self, value):
        return ["method", value]

entry = Entry()

def at_exit():
    atexit.register(log.info, "exit handler")

class Finalised:
    def __del__(self):
        log.info("finaliser of %s", self.name)

def finalise():
    kept = Finalised()
    kept.name, kept.itself = "a cycle", kept
    globals()["kept"] = Finalised()
    globals()["kept"].name = "a global"

number = 5
'''

PACK = '"""A package with files."""\n'
SETUP_FAILS = "def setup():\n    raise ValueError('no data')\ndef run(value):\n    return value\n"
ASYNC_SETUP = "state = []\nasync def setup():\n    state.append('ready')\nasync def run(value):\n    return state\n"
FILES = {"data/lines.txt": b"one\ntwo\n", "other.bin": b"\x00\xff", "pack/inside.txt": b"packed"}


def load(host, source=SOURCE, name="asks", **limits):
    sources = {
        "main": (source, f"{name}@1/main.py", False),
        "pack": (PACK, f"{name}@1/pack/__init__.py", True),
        "pack.part": (PACK, f"{name}@1/pack/part.py", False),
        "pack.broken": ("table = {}\nfirst = table['x']\n", f"{name}@1/pack/broken.py", False),
    }
    return host.load(
        compile_sources(
            sources, entry="main:run", name=name, version="1", files=FILES, limits={"concurrency": 1, **limits}
        )
    )


@pytest.fixture
def host():
    with vmhost.Host(allow_unsigned=True) as host:
        yield host


@pytest.fixture(scope="module")
def task():
    with vmhost.Host(allow_unsigned=True) as host:
        yield load(host)


@pytest.fixture
def lines(caplog):
    """The records of the host's logger for the task: (level, text)."""
    caplog.set_level(logging.DEBUG, "vmhost.task.asks")
    return lambda: [
        (record.levelno, record.getMessage()) for record in caplog.records if record.name == "vmhost.task.asks"
    ]


def test_setup_runs_once_and_first(task):
    assert task("order")[0] == "setup"
    assert task("order").count("setup") == 1


def test_files_of_the_bundle(task):
    lines, binary, names, text, other, beside, roundabout = task("files")
    assert lines == ["one\n", "two\n"] and binary == b"one\ntwo\n" and text == "one\ntwo\n"
    assert names == ["data/lines.txt", "other.bin", "pack/inside.txt"]
    assert other == beside == roundabout == b"\x00\xff"


def test_files_through_importlib(task):
    assert task("package_files") == ["packed", ["inside.txt"], True, True, "packed", False]


def test_files_beside_a_module_that_is_no_package(task):
    names, text, same, resource, unnamed, missing, copied = task("module_files")
    assert names == [["other.bin"], ["other.bin"], ["inside.txt"]]
    assert text == same == "one\ntwo\n" and resource and unnamed and not missing
    assert copied == ["pathlib", "one\ntwo\n", b"one\ntwo\n"]


def test_a_name_with_a_nul_is_no_name(task):
    assert task("names_with_a_nul")[:3] == ["ModuleNotFoundError"] * 3
    assert task("names_with_a_nul")[3] in ("ValueError", "FileNotFoundError")


def test_a_missing_file_says_what_there_is(task):
    with pytest.raises(vmhost.TaskError, match="FileNotFoundError.*data has data/lines.txt.*data/none.txt"):
        task("missing_file")


def test_the_deadline(task):
    assert 0 < task("time_left", timeout_s=60) <= 60


def test_output_and_logs_reach_the_host_as_lines(host, lines, capfd):
    task = load(host)
    task("talk")
    task("at_exit")
    task("finalise")
    host.close()
    out, err = capfd.readouterr()
    assert "printed" not in out + err
    got = lines()
    for line in [
        (20, "printed 1 2"),
        (20, "two"),
        (20, "lines"),
        (30, "to stderr"),
        (20, "no endbytes é"),
        (20, "descriptor"),
        (30, "warned at 3"),
        (40, "part: failed: x"),
        (20, "root"),
        (20, "teardown after 3 calls"),
        (20, "exit handler"),
        (20, "finaliser of a cycle"),
        (20, "finaliser of a global"),
    ]:
        assert [text for text in got if text[1].endswith(line[1]) and text[0] == line[0]], (line, got)
    assert sum("not shown twice" in text for _, text in got) <= 1


def test_the_system_module_tells_nothing_of_the_host(task):
    argv, executable, path, orig_argv, file, name, importer = task("system")
    assert (argv, executable, path, orig_argv) == ([""], "", [], [])
    assert file == "asks@1/main.py" and name == "main" and importer == "Importer"


def test_errors_are_reported_as_cpython_prints_them(task):
    with pytest.raises(vmhost.TaskError, match=r"RuntimeError: \('outer', 2\)") as caught:
        task("chained")
    text = caught.value.guest_traceback
    cause, _, rest = text.partition("\nThe above exception was the direct cause of the following exception:\n\n")
    assert cause.startswith("Traceback (most recent call last):\n") and cause.rstrip().endswith("KeyError: 'key'")
    number = SOURCE.splitlines().index("        raise wrapped from error") + 1
    assert f'  File "asks@1/main.py", line {number}, in chained\n' in rest
    assert rest.rstrip().endswith("RuntimeError: ('outer', 2)\na note")


def test_an_error_while_importing_is_reported_without_the_frames_of_the_import_system(host):
    task = load(host, "def run(value):\n    import pack.broken\n", "asks")
    with pytest.raises(vmhost.TaskError, match="KeyError: 'x'") as caught:
        task(1)
    assert (
        caught.value.guest_traceback == "Traceback (most recent call last):\n"
        '  File "asks@1/main.py", line 2, in run\n'
        '  File "asks@1/pack/broken.py", line 2, in <module>\n'
        "KeyError: 'x'\n"
    )


def test_odd_errors_are_reported_too(task):
    with pytest.raises(vmhost.TaskError, match="Odd"):
        task("deep_text")
    with pytest.raises(vmhost.TaskError, match="RecursionError") as caught:
        task("recursion")
    assert len(caught.value.guest_traceback.splitlines()) < 100
    with pytest.raises(vmhost.TaskError) as caught:
        task("grouped")
    assert "ValueError: one" in caught.value.guest_traceback and "TypeError: two" in caught.value.guest_traceback


def test_async_entry_points_share_one_loop(task):
    first, loop = task(1, entry="main:waits")
    second, again = task(2, entry="main:waits")
    assert (first, second) == (1, 2) and loop == again
    assert task(3, entry="main:entry") == ["object", 3]
    assert task(4, entry="main:entry.method") == ["method", 4]


def test_wrong_entry_points(task):
    for entry, text in [("main:nothing", "nothing"), ("none:run", "none"), ("main:number", "expected a function")]:
        with pytest.raises(vmhost.TaskError, match=text):
            task(1, entry=entry)


def test_a_setup_that_fails(host):
    with pytest.raises(vmhost.TaskError, match="ValueError: no data"):
        load(host, SETUP_FAILS, "fails")(1)


def test_an_async_setup(host):
    task = load(host, ASYNC_SETUP, "ready")
    assert [task(1), task(2)] == [["ready"], ["ready"]]
