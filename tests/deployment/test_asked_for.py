"""The table of what users of other systems ask for: each test that it names is there."""

import re
from pathlib import Path

HERE = Path(__file__).resolve().parent


def test_each_line_names_a_test_that_is_there():
    page = (HERE.parents[1] / "docs" / "deployment.md").read_text()
    text = page.partition("## Features requested in other systems")[2]
    lines = [line for line in text.partition("\n## ")[0].splitlines() if line.startswith("| ")][2:]
    assert len(lines) >= 13
    for line in lines:
        named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", line)
        assert named, line
        for file, name in named:
            assert f"def {name}(" in (HERE / file).read_text(), line
