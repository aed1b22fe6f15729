"""The command line where only the packages are installed that `pip install vmhost` brings: each command tells about
itself, and what needs an extra says in one line which."""

import json
import os
import subprocess
import sys

import click
import numpy
import pytest
from onnx import helper

from tests.networks import graph
from vmhost.cli import vmhost_command
from vmhost.lines.exit_codes import DONE, HOST_FAILED, REFUSED, WRONG_INPUT

# Hides what the extras bring, then runs the command line once for each list of arguments on stdin.
BARE = """
import contextlib, importlib.machinery, importlib.metadata, io, json, re, sys, traceback

def name_of(requirement):
    return re.match(r"[\\w.-]+", requirement)[0].lower().replace("_", "-")

brought, asked = set(), ["vmhost"]
while asked:
    name = asked.pop()
    if name not in brought:
        brought.add(name)
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            asked += [name_of(one) for one in importlib.metadata.requires(name) or () if "extra ==" not in one]
hidden = {
    module
    for module, packages in importlib.metadata.packages_distributions().items()
    if not brought & {name_of(package) for package in packages}
}

class Installed(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Installed
sys.path_importer_cache.clear()
from vmhost.cli import main

for arguments in json.load(sys.stdin):
    # of the encoding that the real ones have here: what cannot be printed shows
    out, err = (io.TextIOWrapper(io.BytesIO(), one.encoding, one.errors) for one in (sys.stdout, sys.stderr))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(arguments)
        except BaseException:
            code = traceback.format_exc()
    for one in (out, err):
        one.flush()
    print(json.dumps([code, *(one.buffer.getvalue().decode("utf-8", "replace") for one in (out, err))]))
"""


def bare(folder, *commands, environment=None):
    """What each of the command lines gave: exit code (or the traceback), stdout and stderr."""
    done = subprocess.run(
        [sys.executable, "-c", BARE],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == len(commands)
    return results


def commands(command=vmhost_command, path=()):
    """(path, click's object) of each command and group."""
    yield [*path], command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), (*path, name))


# The measurements are a program of the checkout's, and `record` runs one; others make something under any name.
ASKED = [(path, each) for path, each in commands() if path[-1:] not in (["bench"], ["record"])]
MAKE = ("image", "tunnel certificates", "tunnel serve", "keys new", "completion")


def with_missing(path, command):
    """The command line with a name that nothing has for each thing that the command must be given; None without."""
    needed = [each for each in command.params if each.required]
    if not needed or " ".join(path) in MAKE:
        return None
    values = [("7" if each.type is click.INT else "missing.xyz") for each in needed]
    named = ([each.opts[0]] if isinstance(each, click.Option) else [] for each in needed)
    return [*path, *(part for name, value in zip(named, values) for part in (*name, value))]


def test_what_needs_an_extra_names_it_in_one_line(tmp_path):
    network = graph([helper.make_node("Relu", ["x"], ["y"])], {"x": [2]}, {"y": [2]})
    (tmp_path / "net.onnx").write_bytes(network)
    numpy.save(tmp_path / "x.npy", numpy.zeros((4, 2), "float32"))
    task = tmp_path / "task"
    task.mkdir()
    (task / "task.yaml").write_text(
        "name: task\nversion: '1'\npython: '3.14'\nentry: main:run\nmodels: {net: net.onnx}\n"
    )
    (task / "main.py").write_text("def run(value):\n    return value\n")
    (task / "net.onnx").write_bytes(network)
    wanted = {
        ("compile", "task", "-o", "task.vmb"): "models",
        ("explain", "net.onnx"): "models",
        ("quantize", "net.onnx", "--calibrate", "x.npy", "-o", "small.onnx"): "models",
        ("cloud", "init", "platform"): "cloud",
        ("cloud", "serve", "platform"): "cloud",
        ("dashboard",): "operations",
    }
    for (arguments, extra), (code, out, err) in zip(wanted.items(), bare(tmp_path, *map(list, wanted))):
        assert code in (REFUSED, HOST_FAILED), (arguments, code, out, err)
        assert f"pip install 'vmhost[{extra}]'" in err.strip().splitlines()[-1], (arguments, err)


def test_the_doctor_finds_nothing_wrong(tmp_path):
    [[code, out, err]] = bare(tmp_path, ["doctor", "--all"])
    assert "WRONG" not in out and code == DONE, out + err


HERE = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "LANG": "C.UTF-8"}
PLACES = {
    "as usual": HERE,
    "no home": {name: value for name, value in HERE.items() if name != "HOME"},
    "another language": HERE | {"LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "60 columns": HERE | {"COLUMNS": "60"},
}


@pytest.mark.parametrize("place", PLACES)
def test_all_commands_everywhere(tmp_path, place):
    helps = [[*path, "--help"] for path, _ in ASKED]
    leaves = [(path, each) for path, each in ASKED if not isinstance(each, click.Group)]
    wrong = [[*path, "--no-such-option"] for path, _ in leaves]
    missing = list(filter(None, (with_missing(*leaf) for leaf in leaves)))
    assert len(helps) > 80 and len(missing) > 60
    failing = [*wrong, *missing]
    told = bare(tmp_path, *helps, *failing, *([*each, "--json"] for each in failing), environment=PLACES[place])
    for arguments, (code, out, err) in zip(helps, told):
        assert code == DONE and out.startswith("Usage: ") and not err, (arguments, code, err)
    told = told[len(helps) :]
    for arguments, (code, out, err) in zip(failing, told):
        lines = err.strip().splitlines()
        assert code not in (0, 1) and isinstance(code, int) and not out, (arguments, code, out)
        assert lines[-1].startswith(("Error: ", "error: ")), (arguments, err)
        assert len(lines) == 1 or lines[0].startswith("Usage: "), (arguments, err)
        assert code == WRONG_INPUT or "--no-such-option" not in arguments, (arguments, code)
    for arguments, (code, out, err) in zip(failing, told[len(failing) :]):
        assert out.startswith("{"), (arguments, code, out, err)
        error = json.loads(out)["error"]
        assert code == error["exit_code"] and error["message"] and not err, (arguments, code, out, err)
    assert not list(tmp_path.iterdir())
