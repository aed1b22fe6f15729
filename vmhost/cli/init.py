"""`vmhost init`: a folder with an example task, which compiles, runs and passes its test as it is."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import click

from vmhost.bytecode.task_kinds import TASK_NAME
from vmhost.cli import failures

FILES = {
    "task.yaml": """\
# What each key means: docs/task-yaml.md
name: {name}
version: 0.1.0
entry: main:run
python: "{python}"
limits: {{memory: 64 MiB, wall_time: 2 s}}
permissions: {{read: [], write: [], net: [], env: []}}  # nothing is granted unless named
files: []
""",
    "main.py": '''\
"""The entry function takes the caller's one value and returns one value. Both are plain values or arrays."""


def run(value):
    """Mean, minimum and maximum of value["numbers"]."""
    numbers = value.get("numbers") if isinstance(value, dict) else None
    if not numbers:
        raise ValueError('expected {{"numbers": [1, 2, 3]}}, with at least one number')
    return {{"mean": sum(numbers) / len(numbers), "min": min(numbers), "max": max(numbers)}}
''',
    "input.json": '{{"numbers": [1, 2, 3, 6]}}\n',
    "test_main.py": '''\
"""The task in plain Python, without a VM: `vmhost test FOLDER`, or `python -m unittest` in it."""

import json
import unittest
from pathlib import Path

from main import run


class Run(unittest.TestCase):
    def test_the_example(self):
        value = json.loads(Path(__file__).with_name("input.json").read_text())
        self.assertEqual(run(value), {{"mean": 3.0, "min": 1, "max": 6}})

    def test_no_numbers(self):
        for value in ({{"numbers": []}}, {{}}, None):
            with self.assertRaises(ValueError):
                run(value)


if __name__ == "__main__":
    unittest.main()
''',
}


@dataclass(frozen=True)
class Example:
    """A shipped task that may be copied: its files, those of the folder of tasks that come along, and the commands to
    go on with."""

    task: str
    says: str
    files: tuple
    next: tuple
    data: tuple = ()


COMPILE, RUN = "vmhost compile {folder} -o {bundle}", "vmhost run {bundle} --allow-unsigned --input {folder}/"
EXAMPLES = {
    "digits": Example(
        "digits",
        "which digit does an image show?",
        ("task.yaml", "main.py", "model.json", "README.md", "image.json"),
        (COMPILE, RUN + "image.json"),
        ("data/digits.csv.gz",),
    ),
    "stream": Example(
        "visits",
        "events of visits become rows of a table",
        ("task.yaml", "main.py", "test_main.py", "README.md", "events.jsonl"),
        (
            COMPILE,
            "vmhost pipeline run {name}-data {bundle} --allow-unsigned --events {folder}/events.jsonl",
            "vmhost pipeline table {name}-data {name}",
        ),
    ),
    "train": Example(
        "learn",
        "a network learns to read digits",
        ("task.yaml", "main.py", "keep.py", "README.md", "input.json", "digits.csv.gz"),
        (COMPILE, RUN + "input.json", "python {folder}/keep.py {bundle} {name}.onnx"),
    ),
}


@click.command(short_help="Make a folder with a task that compiles and runs.")
@click.argument("folder", type=click.Path(path_type=Path), metavar="NAME")
@click.option(
    "--example",
    type=click.Choice(list(EXAMPLES)),
    help="Copy this shipped task with its data. " + "; ".join(f"{name}: {one.says}" for name, one in EXAMPLES.items()),
)
@failures.command
def command(output, folder, example):
    """Create the folder NAME with a task of that name: task.yaml, main.py, an input and a test. Overwrites nothing."""
    name = folder.resolve().name
    if not TASK_NAME.accepts(name):
        raise failures.Failure(f"{name!r} cannot name a task; expected {TASK_NAME.words}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise failures.Failure(
            f"{folder}: is there already; nothing was written. Give another name, or remove it first"
        )
    files = _copied(EXAMPLES[example], name) if example else _made(name)
    commands = EXAMPLES[example].next if example else (COMPILE, RUN + "input.json")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, data in files.items():
            with open(folder / path, "xb") as file:
                file.write(data)
    except OSError as error:
        raise failures.Failure(f"{error.filename or folder}: cannot be written: {error.strerror}") from error
    names = {"folder": folder, "bundle": f"{name}.vmb", "name": name}
    commands = [shlex.join(part.format(**names) for part in command.split()) for command in commands]
    output.document({"folder": str(folder), "files": list(files), "next": commands})
    output.line(f"{folder}: a task with {', '.join(files)}. Next:")
    for line in commands:
        output.line(f"  {line}")
    return failures.DONE


def _made(name):
    """{path: bytes} of the task that is made where no example is asked for."""
    python = "{}.{}".format(*sys.version_info)
    return {path: text.format(name=name, python=python).encode() for path, text in FILES.items()}


def _copied(example, name):
    """{path: bytes} of the shipped task, called `name`."""
    from vmhost.cli.demo import tasks_folder

    tasks = tasks_folder(None)
    found = {path: (tasks / example.task / path).read_bytes() for path in example.files}
    found |= {Path(path).name: (tasks / path).read_bytes() for path in example.data}
    found["task.yaml"] = found["task.yaml"].replace(f"name: {example.task}\n".encode(), f"name: {name}\n".encode())
    return found
