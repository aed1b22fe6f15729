"""Requirements that scripts declare (PEP 723)."""

import pytest

from vmhost.bytecode.errors import TaskSpecError
from vmhost.bytecode.script_block import read_script_block

START, END = "# /// script\n", "# ///\n"


def test_dependencies_are_read_wherever_the_block_stands():
    text = f'#!/usr/bin/env python\n"""Doc."""\n{START}# requires-python = ">=3.14"\n#\n# dependencies = [\n'
    text += (
        f'#   "A_b>=2",  # why\n#   "c; python_version < \'3\'",\n# ]\n# [tool.uv]\n# x = 1\n{END}# more\nimport a_b\n'
    )
    block = read_script_block(text.replace("\n", "\r\n"), "app.py")
    assert block.dependencies == ("A_b>=2", "c; python_version < '3'")
    assert block.names() == ("a-b",)
    assert block.line == 6


@pytest.mark.parametrize("text", ["", "# /// other\n# x\n# ///\n", "  # /// script\n", "# ///script\n# ///\n"])
def test_other_comments_are_no_block(text):
    assert read_script_block(text, "app.py") is None


def test_a_block_may_require_nothing():
    assert read_script_block(f'{START}# requires-python = ">=3.14"\n{END}', "app.py").dependencies == ()


@pytest.mark.parametrize(
    "text, message",
    [
        (f"x = 1\n{START}# dependencies = []\nimport a\n{END}", r"app\.py:2: the block `# /// script` has no end"),
        (f"{START}# dependencies = [\n{END}", r"app\.py:[23]: the block `# /// script` is no TOML: "),
        (f"{START}# x = 1\n# dependencies = 'a'\n{END}", r"app\.py:3: dependencies: expected a list of texts"),
        (f"{START}# dependencies = [1]\n{END}", r"app\.py:2: dependencies: expected a list of texts"),
        (f"{START}# dependencies = ['a', '>=1']\n{END}", r"app\.py:2: dependencies: expected a package, got '>=1'"),
        (f"{START}{END}\n{START}{END}", r"app\.py:4: a second block `# /// script`; the first is at line 1"),
    ],
)
def test_a_broken_block_is_told_with_its_line(text, message):
    with pytest.raises(TaskSpecError, match=message):
        read_script_block(text, "app.py")
