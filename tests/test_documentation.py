"""The examples of docs/engine.md and docs/writing-tasks.md run as they stand there: in the host, and as tasks in sealed VMs."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

import vmhost
from bytecode.compiler import compile_task
from engine import library
from tests.hosts import bundle

ROOT = Path(__file__).resolve().parents[1]


def blocks(page):
    """(language, text) of each block of code."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.M | re.S)


def block(page, language, part):
    """The text of the only block that has `part` in it."""
    found = [text for of, text in blocks(page) if of == language and part in text]
    assert len(found) == 1, f"docs/{page}: {len(found)} blocks of {language or 'commands'} have {part!r}"
    return found[0]


def bundled(folder):
    """The path of the folder's task as a bundle."""
    path = folder / "task.vmb"
    path.write_bytes(compile_task(folder).to_bytes())
    return path


def test_every_block_of_python_is_run_here():
    assert {page: sum(language == "python" for language, _ in blocks(page)) for page in ("engine.md", "writing-tasks.md")} == {
        "engine.md": 2, "writing-tasks.md": 3}


def test_the_engines_task():
    source = block("engine.md", "python", "def run(samples)")
    samples = numpy.random.default_rng(1).normal(size=(50, 3)).astype("f4")
    wanted = (samples - samples.mean(axis=0)) / samples.std(axis=0)
    names = {}
    exec(compile(source, "main.py", "exec"), names)
    with vmhost.Host(allow_unsigned=True) as host:
        for run in (names["run"], host.load(bundle(source, name="mean"))):
            numpy.testing.assert_allclose(numpy.asarray(run(samples)), wanted, 1e-5, 1e-6)


def test_the_engines_administration(capsys):
    source = block("engine.md", "python", "library.backends()")
    threads = library.threads()
    if not next(backend.available for backend in library.backends() if backend.name == "avx2"):
        source = source.replace("avx2", "portable")
    names = {}
    try:
        exec(compile(source, "host.py", "exec"), names)
        assert library.threads() == 1 and [backend.name for backend in library.backends() if backend.current] in (["avx2"], ["portable"])
    finally:
        library.set_threads(threads)
        library.force_backend(None)
    assert library.primitives() and library.lowered()


def test_the_least_task_from_folder_to_answer(tmp_path):
    folder = tmp_path / "hello"
    folder.mkdir()
    (folder / "task.yaml").write_text(block("writing-tasks.md", "yaml", "hello/task.yaml"))
    (folder / "main.py").write_text(block("writing-tasks.md", "python", "hello/main.py"))
    (tmp_path / "build").mkdir()
    for command in block("writing-tasks.md", "", "vmhost compile hello").splitlines():
        name, *arguments = shlex.split(command)
        assert name == "vmhost"
        done = subprocess.run([sys.executable, "-c", "import sys; from vmhost.cli import main; sys.exit(main())", *arguments], cwd=tmp_path,
                              env={"PYTHONPATH": str(ROOT), "PATH": ""}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert "Hello, Ada" in done.stdout


def test_what_setup_reads_is_there_when_a_call_comes(tmp_path):
    (tmp_path / "task.yaml").write_text("name: labels\nversion: 1.0.0\nentry: main:run\npython: '3.14'\nfiles: [labels.json]\n")
    (tmp_path / "main.py").write_text(block("writing-tasks.md", "python", "def setup()") + "\n\ndef run(value):\n    return labels[value]\n")
    (tmp_path / "labels.json").write_text(json.dumps(["benign", "malignant"]))
    with vmhost.Host(allow_unsigned=True) as host:
        assert host.load(bundled(tmp_path))(1) == "malignant"


def test_what_a_task_asks_of_its_host(tmp_path, caplog):
    limits = block("writing-tasks.md", "yaml", "limits:").replace("files: [labels.json, data/*.csv]", "files: [table.csv]")
    limits = re.sub(r"permissions: .*", "permissions: {host: [lookup]}", limits)
    (tmp_path / "task.yaml").write_text("name: asks\nversion: 1.0.0\nentry: main:run\npython: '3.14'\n" + limits)
    (tmp_path / "main.py").write_text(block("writing-tasks.md", "python", "from vmhost.guest import"))
    (tmp_path / "table.csv").write_text("1,2\n")
    with vmhost.Host(allow_unsigned=True, functions={"lookup": lambda value: sum(value)}) as host, caplog.at_level("INFO"):
        assert host.load(bundled(tmp_path))([1, 2, 3]) == 6
    assert "3 images to go" in caplog.text


def test_a_task_is_ordinary_python():
    text = (ROOT / "docs" / "writing-tasks.md").read_text(encoding="utf-8")
    folder, command = re.search(r"`cd (\S+) && python -c \"(.*?)\"`", text, re.S).groups()
    done = subprocess.run([sys.executable, "-c", " ".join(command.split())], cwd=ROOT / folder, env={"PYTHONPATH": str(ROOT)},
                          capture_output=True, text=True, check=True)
    assert 0 <= int(done.stdout) <= 9


@pytest.mark.parametrize("page", ["engine.md", "writing-tasks.md"])
def test_the_pages_that_it_names_are_there(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / "docs" / page).read_text(encoding="utf-8")):
        assert (ROOT / "docs" / target).exists(), target
