"""Lists of numbers in attributes, read from their encoding: the numbers that protobuf itself gives."""

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from vmhost.engine.onnx.lists import array_of_list

LONG = [number % 20000 for number in range(10000)]  # of one to three bytes each, in several chunks


@pytest.mark.parametrize(
    "values",
    [[0], [0x40, 0x3D, 0x40], [127, 128, 16383, 16384, -1, 5], [2**63 - 1, -(2**63)], [0] * 4096, [-7] * 4097, LONG],
)
def test_integers(values):
    attribute = helper.make_attribute("x" * (len(values) % 300), values)
    for change in ({}, {"doc_string": "text"}, {"i": 64}):  # behind the list, and between name and list
        for name, value in change.items():
            setattr(attribute, name, value)
        found = array_of_list(attribute, "int64")
        assert found.dtype == "int64" and found.tolist() == values
        found[:] = 0  # it is the caller's own


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=50))
def test_any_integers(values):
    assert array_of_list(helper.make_attribute("nodes", values), "int64").tolist() == values


@given(st.lists(st.floats(width=32), min_size=1, max_size=50), st.sampled_from([None, 1.0]))
def test_any_floats(values, before):
    attribute = helper.make_attribute("nodes", values)
    if before is not None:
        attribute.f = before
    found = array_of_list(attribute, "float32")
    numpy.testing.assert_array_equal(found.view("uint32"), numpy.array(values, "float32").view("uint32"))


def test_an_empty_list():
    attribute = helper.make_attribute("nodes", [], attr_type=7)
    assert array_of_list(attribute, "int64").shape == (0,)
