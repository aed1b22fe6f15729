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
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(arguments)
        except BaseException:
            code = traceback.format_exc()
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
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


def paths(command, path=()):
    yield [*path]
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from paths(command.get_command(context, name), (*path, name))


def test_each_command_has_its_help(tmp_path):
    # The measurements are a program of the checkout's, with its own help.
    asked = [[*path, "--help"] for path in paths(vmhost_command) if path[-1:] != ["bench"]]
    assert len(asked) > 80
    for arguments, (code, out, err) in zip(asked, bare(tmp_path, *asked)):
        assert code == 0 and out.startswith("Usage: ") and not err, (arguments, code, err)


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
def test_a_wrong_command_line_is_one_error_everywhere(tmp_path, place):
    leaves = [path for path in paths(vmhost_command) if path and path[-1] not in ("bench", "record")]
    asked = [[*path, "--no-such-option", *json_too] for path in leaves for json_too in ((), ("--json",))]
    for arguments, (code, out, err) in zip(asked, bare(tmp_path, *asked, environment=PLACES[place])):
        if "--json" in arguments:
            error = json.loads(out)["error"]
            assert code == error["exit_code"] == WRONG_INPUT and "No such option" in error["message"], arguments
            assert not err, (arguments, err)
        else:
            assert code == WRONG_INPUT and not out, (arguments, code, out)
            assert err.startswith("Usage: ") and err.count("Error: ") == 1 and "Traceback" not in err, (arguments, err)
    assert not list(tmp_path.iterdir())
