"""The command line in this process, keys of the tests' own, a task folder and bundles to try it on."""

import sys
import textwrap

import pytest

from vmhost.cli import keys, main
from vmhost.compiler import compile_folder


@pytest.fixture(autouse=True)
def key_folder(tmp_path, monkeypatch):
    """Keys of the tests' own, and lines that are not folded at 80 columns."""
    monkeypatch.setenv("VMHOST_KEYS", str(tmp_path / "own keys"))
    monkeypatch.delenv("COLUMNS", raising=False)
    return tmp_path / "own keys"


@pytest.fixture
def vmhost(capfd):
    """Runs a command line: gives (exit code, stdout, stderr) of the process: what a task wrote there is seen."""

    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def task_folder(tmp_path):
    folder = tmp_path / "greet"
    folder.mkdir()
    (folder / "task.yaml").write_text(
        'name: greet\nversion: 1.0.0\nentry: main:run\npython: "3.%d"\n'
        "limits: {memory: 32 MiB, wall_time: 2 s}\nfiles: [words.txt]\n" % sys.version_info[1]
    )
    (folder / "words.txt").write_text("hello")
    (folder / "main.py").write_text("import other\n\ndef run(value):\n    return other.greet(value)\n")
    (folder / "other.py").write_text("def greet(value):\n    return 'hello ' + value['name']\n")
    return folder


@pytest.fixture
def bundle(tmp_path):
    """A function that compiles source text as the module `main` of a task and gives the bundle's path."""

    def compile_text(source, sign=None, limits="{memory: 32 MiB, wall_time: 20 s}", name="sample", more="", files=()):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "task.yaml").write_text(
            f'name: {name}\nversion: 1.0.0\nentry: main:run\npython: "3.{sys.version_info[1]}"\nlimits: {limits}\n'
            + more
        )
        for file, text in dict(files).items():
            (folder / file).write_text(text)
        (folder / "main.py").write_text(textwrap.dedent(source))
        path = tmp_path / f"{name}.vmb"
        path.write_bytes(compile_folder(folder).to_bytes(keys.signing_key(sign) if sign else None))
        return path

    return compile_text
