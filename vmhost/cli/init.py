"""`vmhost init`: a folder with an example task, which compiles, runs and passes its test as it is."""

import json
import re
import shlex
import sys
from pathlib import Path

import click

import vmhost.bytecode
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
    numbers = value["numbers"]
    if not numbers:
        raise ValueError("numbers: expected at least one, got none")
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
        with self.assertRaises(ValueError):
            run({{"numbers": []}})


if __name__ == "__main__":
    unittest.main()
''',
}


@click.command(short_help="Make a folder with a task that compiles and runs.")
@click.argument("folder", type=click.Path(path_type=Path), metavar="NAME")
@failures.command
def command(output, folder):
    """Create the folder NAME with a task of that name: task.yaml, main.py, an input and a test. Overwrites nothing."""
    name = folder.resolve().name
    rule = _rule_for_names()
    if not re.fullmatch(rule["pattern"], name):
        raise failures.Failure(f"{name!r} cannot name a task; expected {rule['description']}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise failures.Failure(
            f"{folder}: is there already; nothing was written. Give another name, or remove it first"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in FILES.items():
            with open(folder / path, "x", encoding="utf-8") as file:
                file.write(text.format(name=name, python="{}.{}".format(*sys.version_info)))
    except OSError as error:
        raise failures.Failure(f"{error.filename or folder}: cannot be written: {error.strerror}") from error
    bundle = f"{name}.vmb"
    commands = [
        shlex.join(["vmhost", "compile", str(folder), "-o", bundle]),
        shlex.join(["vmhost", "run", bundle, "--allow-unsigned", "--input", str(folder / "input.json")]),
    ]
    output.document({"folder": str(folder), "files": list(FILES), "next": commands})
    output.line(f"{folder}: a task with {', '.join(FILES)}. Next:")
    for line in commands:
        output.line(f"  {line}")
    return failures.DONE


def _rule_for_names():
    """The rule for names in task.yaml's schema: its "pattern" and "description"."""
    schema = Path(vmhost.bytecode.__file__).with_name("task.schema.json")
    return json.loads(schema.read_text(encoding="utf-8"))["properties"]["name"]
