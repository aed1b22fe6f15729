"""Which of NumPy's names are here: each either works or is absent with advice."""

import numpy
import pytest

import vmhost.engine.numpy
from vmhost.engine.numpy._absent import ABSENT, ABSENT_IN, ABSENT_METHODS


def test_an_absent_name_says_what_to_use():
    for name, advice in ABSENT.items():
        with pytest.raises(AttributeError) as caught:
            getattr(vmhost.engine.numpy, name)
        assert str(caught.value) == f"module 'vmhost.engine.numpy' has no attribute {name!r}; {advice}"


@pytest.mark.parametrize("title", ABSENT_IN)
def test_so_does_one_of_a_module(title):
    ours, theirs = getattr(vmhost.engine.numpy, title), getattr(numpy, title)
    for name, advice in ABSENT_IN[title].items():
        assert hasattr(theirs, name)
        with pytest.raises(AttributeError) as caught:
            getattr(ours, name)
        assert str(caught.value) == f"module 'vmhost.engine.numpy.{title}' has no attribute {name!r}; {advice}"


def test_a_name_that_nobody_knows_has_no_advice():
    with pytest.raises(AttributeError, match=r"^module 'vmhost.engine.numpy' has no attribute 'no_such_name'$"):
        vmhost.engine.numpy.no_such_name


def test_absent_names_are_numpys_and_are_not_listed():
    assert set(ABSENT) <= set(dir(numpy)) | set(numpy.__all__)
    assert not set(ABSENT) & set(dir(vmhost.engine.numpy))
    assert set(ABSENT_METHODS) <= set(dir(numpy.ndarray))


@pytest.mark.parametrize("name", ABSENT_METHODS)
def test_a_method_that_arrays_lack_says_what_to_use(name):
    with pytest.raises(AttributeError) as caught:
        getattr(vmhost.engine.numpy.ones(1), name)
    assert (
        str(caught.value) == f"'vmhost.engine.numpy.ndarray' object has no attribute {name!r}; {ABSENT_METHODS[name]}"
    )


def test_every_listed_name_can_be_had():
    for name in dir(vmhost.engine.numpy):
        getattr(vmhost.engine.numpy, name)
