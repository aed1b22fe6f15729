"""JSON in and out of the command line: every value that crosses a wall survives, and mistakes are named."""

import array
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import vmhost.engine.numpy as np
from vmhost.lines import json_values as values

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False)
)
hashable = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4)
crossing = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.sets(hashable, max_size=4)
        | st.dictionaries(st.text() | st.sampled_from(values.TAGS) | hashable, inner, max_size=4)
    ),
    max_leaves=12,
)


def dumps(value):
    return json.dumps(values.to_plain(value), ensure_ascii=False, allow_nan=False)


def same(one, other):
    """Equal, and of the same types throughout: 1, 1.0 and True are three values."""
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return len(one) == len(other) and all(
            same(key, other_key) and same(one[key], other[other_key]) for key, other_key in zip(one, other)
        )
    return one == other


@given(crossing)
def test_every_value_survives(value):
    text = dumps(value)
    json.loads(text, parse_constant=pytest.fail)
    assert same(values.loads(text), value)


def test_what_json_cannot_say_is_tagged():
    assert dumps(b"hi") == '{"$bytes": "aGk="}'
    assert dumps((1, {2})) == '{"$tuple": [1, {"$set": [2]}]}'
    assert dumps({"$bytes": 1}) == '{"$dict": [["$bytes", 1]]}'
    assert math.isnan(values.loads(dumps(math.nan)))
    assert dumps(array.array("i", [1, 2])) == "[1, 2]"
    assert dumps(np.array([[1.5, np.nan]])) == '[[1.5, {"$float": "nan"}]]'
    assert dumps(np.array([1 + 2j])) == '[{"$complex": [1.0, 2.0]}]'
    assert dumps({"sum": np.arange(4).sum()}) == '{"sum": 6}'
    with pytest.raises(TypeError, match="cannot write a object"):
        dumps([object()])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "line 1 column 2"),
        ("NaN", r'NaN is not JSON; write \{"\$float": "nan"\}'),
        ("[-Infinity]", r'write \{"\$float": "-inf"\}'),
        ('{"$byte": ""}', r"unknown object .*\$bytes, \$complex"),
        ('{"$bytes": "?"}', "is not what it can hold"),
        ('{"$bytes": 3}', "is not what it can hold"),
        ('{"$float": "1"}', "is not what it can hold"),
        ('{"$set": [[]]}', "is not what it can hold"),
        ('{"$dict": [1]}', "is not what it can hold"),
        ('{"$complex": [1]}', "is not what it can hold"),
    ],
)
def test_mistakes_are_named(text, says):
    with pytest.raises(ValueError, match=says):
        values.loads(text)


def test_numbers_of_any_size_go_both_ways():
    for value in (10**4299, -(10**4299), 10**4300, -(10**4300), 2**1_000_000, [{"a": 10**5000}], {10**5000: 1}):
        text = values.dumps(value)
        assert values.loads(text) == value
        assert json.loads(text) is not None  # no decimal that Python refuses to read


@pytest.mark.parametrize(
    ("text", "says"),
    ids=range(14),
    argvalues=[
        ('{"$complex": [' + "9" * 400 + ", 0]}", r"\$complex.* is not what it can hold"),
        ('{"$complex": [true, 0]}', r"\$complex.* is not what it can hold"),
        ('{"$complex": ["1", 0]}', r"\$complex.* is not what it can hold"),
        ("9" * 4301, r'too many digits; write one of more than 4,300 as \{"\$int"'),
        ("-" + "9" * 100_000, "too many digits"),
        ('{"$int": "12"}', r"\$int.* is not what it can hold"),
        ('{"$int": 12}', r"\$int.* is not what it can hold"),
        ('{"$tuple": "ab"}', r"\$tuple.*\"ab\" is not what it can hold"),
        ('{"$tuple": {"a": 1}}', r"\$tuple.* a dict of 1 is not what it can hold"),
        ('{"$dict": ["ab"]}', r"\$dict.* is not what it can hold"),
        ('{"$tuple": [{"$set": [{"$float": "1"}]}]}', r'\{"\$float": \.\.\.\}: "1" is not what it can hold'),
        ("[" * 100_000, "nested too deeply"),
        ('{"$tuple": [' * 5000 + "]}" * 5000, "nested too deeply"),
        ('{"$float": "' + "x" * 1000 + '"}', "is not what it can hold"),
    ],
)
def test_every_text_is_a_value_or_one_short_error(text, says):
    with pytest.raises(ValueError, match=says) as caught:
        values.loads(text)
    assert type(caught.value) is not UnicodeError and len(str(caught.value)) < 300


def test_a_value_too_deep_to_write_says_so():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ValueError, match="nested too deeply"):
        values.dumps(deep)
    while deep:  # let it go level by level
        deep = deep[0]
