"""The same programs in real VMs: a sealed VM prints the same as CPython.

The standard library of a VM carries no docstrings, so CPython runs with -OO here; the program itself keeps its own.
"""

import subprocess
import sys
from pathlib import Path

import pytest

import vmhost
from vmhost.bytecode.compiler import compile_sources

PROGRAMS = Path(__file__).parent / "programs"

MAIN = """
import io, sys
import {name} as program

def run(part):
    out, sys.stdout = sys.stdout, io.StringIO()
    try:
        getattr(program, part)()
        return sys.stdout.getvalue()
    finally:
        sys.stdout = out

def counts(value):
    return sys.modules["vmhost.guest.texts"].counts
"""

PLAIN = """
import sys
name, path, part = sys.argv[1:]
module = sys.modules[name] = type(sys)(name)
with open(path, encoding="utf-8") as file:
    exec(compile(file.read(), path, "exec", optimize=0), module.__dict__)
getattr(module, part)()
"""


@pytest.fixture(scope="module")
def host():
    with vmhost.Host(allow_unsigned=True) as host:
        yield host


@pytest.fixture(scope="module")
def task(host):
    loaded = {}

    def load(name):
        if name not in loaded:
            source = (PROGRAMS / f"{name}.py").read_bytes()
            loaded[name] = host.load(
                compile_sources(
                    {name: (source, f"{name}.py", False), "main": (MAIN.format(name=name), "main.py", False)},
                    entry="main:run",
                    name=name,
                    version="1",
                    limits={
                        "memory_bytes": 512 << 20,
                        "wall_time_s": 120.0,
                        "cpu_time_s": 120.0,
                        "stack_bytes": 2 << 20,
                    },
                )
            )
        return loaded[name]

    return load


def in_cpython(name, part):
    done = subprocess.run(
        [sys.executable, "-OO", "-s", "-P", "-S", "-c", PLAIN, name, PROGRAMS / f"{name}.py", part],
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
    )
    return done.stdout


CASES = [
    ("classes", part)
    for part in ("all_switches", "field_options", "shapes", "special_names", "written_classes", "named_tuples")
] + [
    ("library", part)
    for part in (
        "mocks",
        "annotations",
        "dispatch",
        "literals",
        "signatures",
        "plurals",
        "logs",
        "coroutines",
        "others",
    )
]


@pytest.mark.parametrize(("name", "part"), CASES)
def test_a_sealed_vm_prints_what_cpython_prints(task, name, part):
    expected = in_cpython(name, part)
    assert expected
    assert task(name)(part).splitlines() == expected.splitlines()
