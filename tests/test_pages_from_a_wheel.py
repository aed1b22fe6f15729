"""README.md and the pages of docs/ and docs/guides/, followed by somebody who has a wheel and the page
(tests/pages.py): in an empty folder, in an environment with what the wheel requires and the extras that the page names,
with a home folder of their own, and with no variable set that the page does not set.

`make pages` follows all of them, which takes minutes; the tests that always run, a few."""

import re
from pathlib import Path

import pytest

from tests import installed, pages

ROOT = Path(__file__).resolve().parent.parent
ALWAYS = ("README.md", "docs/cli.md", "docs/writing-tasks.md", "docs/guides/process-pool.md")
NAMES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))]
NAMES += sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "guides").glob("*.md"))


def runs(name):
    """Has the page a block that is more than shown?"""
    return any(pages.is_followed(*block) for block in pages.blocks((ROOT / name).read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return installed.wheel(tmp_path_factory)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """The cache folder of all pages' readers."""
    return installed.cache(tmp_path_factory)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ALWAYS else pytest.mark.stress) for name in NAMES if runs(name)]
)
def test_a_page_can_be_followed_from_a_wheel(name, wheel, cache, tmp_path, tmp_path_factory):
    text = (ROOT / name).read_text(encoding="utf-8")
    extras = re.findall(r"pip install 'vmhost\[([\w-]+)\]'", text)
    programs = installed.environment(tmp_path_factory, wheel, extras)
    folder, home = tmp_path / "empty", tmp_path / "home"
    folder.mkdir()
    environment = installed.environ(programs, home)
    (home / ".cache").symlink_to(cache)
    pages.follow(text, folder, pages.run_in(folder, environment | {"COLUMNS": "200"}))
