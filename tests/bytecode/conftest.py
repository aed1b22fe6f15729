"""Task folders on disk, made from text."""

import textwrap

import pytest

from vmhost.bytecode.format import TARGET

SPEC = f"""\
name: sample
version: 1.2.0
entry: main:run
python: "{TARGET}"
"""


@pytest.fixture
def write_task(tmp_path):
    """write_task({"main.py": text, ...}, spec=...) writes a task folder and returns it; texts are dedented."""

    def write(files=None, spec=SPEC, name="sample"):
        folder = tmp_path / name
        usual = {"task.yaml": spec, "main.py": "def run(value):\n    return value\n"}
        for path, text in {**usual, **(files or {})}.items():
            if text is None:
                continue
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(text, bytes):
                target.write_bytes(text)
            else:
                target.write_text(textwrap.dedent(text), encoding="utf-8")
        return folder

    return write
