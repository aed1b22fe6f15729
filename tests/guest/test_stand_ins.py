"""Modules of terminals, processes and signals that packages import at their top: they can be imported, and behave as
if there were no terminal."""

import random
import subprocess
import termios

import pytest

import vmhost
from tests.wheels import folder_of_wheels, write_wheel
from vmhost.bytecode.compiler import compile_task
from vmhost.bytecode.errors import CompileError

ASKER = """
import faulthandler, getpass, io, os, subprocess, termios, timeit, tty

def numbers():
    return {name: value for name, value in vars(termios).items() if name.isupper() and type(value) is int}

def asked(what):
    try:
        if what == "tty":
            read, write = os.pipe()
            try:
                return tty.setraw(read)
            finally:
                os.close(read), os.close(write)
        if what == "closed":
            return termios.tcgetattr(99)
        if what == "wrong":
            return termios.tcgetattr("0")
        if what == "user":
            return getpass.getuser()
        if what == "password":
            return getpass.getpass()
        if what == "time":
            return timeit.timeit("1 + 1")
        if type(what) is list:
            return subprocess.list2cmdline(what)
        if what == "enable":
            return faulthandler.enable()
    except Exception as error:
        return type(error).__name__, *error.args
    if what == "dump":
        file = io.StringIO()
        faulthandler.dump_traceback(file)
        return file.getvalue()
    return faulthandler.is_enabled(), faulthandler.disable(), faulthandler.cancel_dump_traceback_later()
"""
MAIN = "import asker\n\ndef run(what):\n    return asker.asked(what) if what else asker.numbers()\n"


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stand-ins")
    with pytest.MonkeyPatch.context() as patched:
        write_wheel(folder_of_wheels(folder, patched), "asker", "1.0", {"asker.py": ASKER})
        (folder / "task.yaml").write_text(
            'name: asks\nversion: 1.0.0\nentry: main:run\npython: "3.14"\nrequirements: [asker]\n'
        )
        (folder / "main.py").write_text(MAIN)
        compiled = compile_task(folder)
    with vmhost.Host(allow_unsigned=True) as host:
        yield host.load(compiled.to_bytes())


def test_termios_has_the_numbers_of_the_machine(task):
    numbers = task(None)
    assert {"ECHO", "ICANON", "TCSADRAIN", "VMIN", "TIOCGWINSZ", "IXON", "CS8"} <= numbers.keys()
    assert {name: value for name, value in numbers.items() if value != getattr(termios, name, value)} == {}


def test_what_is_no_terminal_says_so_as_a_file_does(task):
    with pytest.raises(termios.error) as caught, open("/dev/null") as file:
        termios.tcgetattr(file)
    assert task("tty") == ("error", *caught.value.args)
    assert task("closed")[0] in ("OSError", "PermissionDenied")
    assert task("wrong")[0] == "TypeError"


def test_faulthandler_is_never_enabled_and_shows_this_vm(task):
    assert task("state") == (False, False, None)
    assert task("enable")[0] == "PermissionDenied" and "signals belong to the whole process" in task("enable")[2]
    assert [line.rpartition(" in ")[2] for line in task("dump").splitlines()[1:3]] == ["asked", "run"]


def test_what_asks_for_users_and_measures_texts_is_there_to_be_imported(task):
    assert task("user")[0] == "OSError" and task("time")[0] in ("NoCompilerError", "PermissionDenied")
    assert task("password")[0] in ("PermissionDenied", "EOFError", "AttributeError")


def test_arguments_of_processes_are_quoted_as_everywhere(task):
    chance = random.Random(7)
    for count in range(200):
        arguments = ["".join(chance.choices('a\\" \t', k=chance.randint(0, 7))) for _ in range(count % 5)]
        assert task(arguments or ["x"]) == subprocess.list2cmdline(arguments or ["x"])


@pytest.mark.parametrize("name", ["termios", "tty", "faulthandler", "getpass", "timeit"])
def test_a_task_s_own_import_of_them_is_refused(tmp_path, name):
    (tmp_path / "task.yaml").write_text('name: asks\nversion: 1.0.0\nentry: main:run\npython: "3.14"\n')
    (tmp_path / "main.py").write_text(f"import {name}\n\ndef run(what):\n    return what\n")
    with pytest.raises(CompileError, match=rf"main\.py:1: import {name}: a VM does not have it: "):
        compile_task(tmp_path)
