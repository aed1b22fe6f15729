"""docs/numpy.md is the output of its command, and no name of NumPy is missing without advice."""

from pathlib import Path

import pytest

from vmhost.engine import surface

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "numpy.md"
WRITTEN = surface.page()  # here, since modules that it loads keep arrays for as long as they live


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == WRITTEN, "write it anew: python -m vmhost.engine.surface > docs/numpy.md"


@pytest.mark.parametrize("module", surface.MODULES)
def test_every_name_is_there_or_has_advice(module):
    silent = [name for name in surface.public_names(module) if surface.verdict(module, name) == ("absent", "")]
    assert not silent


def test_differences_are_of_names_that_are_there():
    for module, names in surface.DIFFERENT.items():
        assert not [name for name in names if surface.verdict(module, name)[0] != "different"]
