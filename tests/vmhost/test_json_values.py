"""JSON in and out of the command line: every value that crosses a wall survives, and mistakes are named."""

import array
import json
import math
from collections import Counter, OrderedDict, deque
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
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


zones = st.none() | st.timezones() | st.integers(-1439, 1439).map(lambda n: timezone(timedelta(minutes=n)))
library = (
    st.dates()
    | st.datetimes(timezones=zones).filter(lambda value: value.utcoffset() is None or not _is_imaginary(value))
    | st.times()
    | st.timedeltas()
    | st.decimals()
    | st.fractions()
    | st.uuids()
    | st.timezones()
    | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1).map(Path)
)


def _is_imaginary(value):
    """Is the time one that the clocks of its zone skip?"""
    return value.astimezone(UTC).astimezone(value.tzinfo).replace(fold=0) != value.replace(fold=0)


@settings(max_examples=60)
@given(library)
def test_values_of_the_standard_library_survive(value):
    again = values.loads(dumps([value]))[0]
    if isinstance(value, Decimal):
        assert str(again) == str(value) and type(again) is Decimal
    elif isinstance(value, datetime) and value.tzinfo is not None:
        assert again == value and again.utcoffset() == value.utcoffset()
        assert getattr(again.tzinfo, "key", None) == getattr(value.tzinfo, "key", None)
    else:
        assert again == value and type(again) is type(value)


def test_values_of_the_standard_library_as_people_write_them():
    assert dumps(Decimal("1.50")) == '{"$decimal": "1.50"}'
    assert dumps(date(2024, 5, 3)) == '{"$date": "2024-05-03"}'
    when = datetime(2024, 5, 3, 10, tzinfo=ZoneInfo("Europe/Berlin"))
    assert dumps(when) == '{"$datetime": "2024-05-03T10:00:00+02:00[Europe/Berlin]"}'
    assert dumps(time(10, 30)) == '{"$time": "10:30:00"}'
    assert dumps(timedelta(hours=1)) == '{"$timedelta": 3600}'
    assert dumps(UUID(int=1)) == '{"$uuid": "00000000-0000-0000-0000-000000000001"}'
    assert dumps(Fraction(1, 3)) == '{"$fraction": "1/3"}'
    assert dumps(Path("a/b")) == '{"$path": "a/b"}'
    assert dumps(timezone(timedelta(hours=-2))) == '{"$zone": "UTC-02:00"}'
    assert dumps(timezone(timedelta(hours=1), "CET")) == '{"$zone": "UTC+01:00"}'
    assert dumps(UTC) == '{"$zone": "UTC+00:00"}' and dumps(ZoneInfo("UTC")) == '{"$zone": "UTC"}'
    assert dumps([deque([1]), Counter("a"), OrderedDict(a=1), frozenset([1])]) == (
        '[[1], {"a": 1}, {"a": 1}, {"$set": [1]}]'
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
    ("text", "message"),
    [
        ("{", "line 1 column 2"),
        ("NaN", r'NaN is not JSON; write \{"\$float": "nan"\}'),
        ("[-Infinity]", r'write \{"\$float": "-inf"\}'),
        ('{"$byte": ""}', r"unknown object .*\$bytes, \$complex"),
        ('{"$bytes": "?"}', "is not what it can hold"),
        ('{"$decimal": 1.5}', "is not what it can hold"),
        ('{"$decimal": "x"}', "is not what it can hold"),
        ('{"$date": "2024-13-01"}', "is not what it can hold"),
        ('{"$datetime": "2024-05-03T10:00:00+05:00[Europe/Berlin]"}', "is not what it can hold"),
        ('{"$datetime": "2024-05-03T10:00:00[../x]"}', "is not what it can hold"),
        ('{"$timedelta": true}', "is not what it can hold"),
        ('{"$timedelta": 1e300}', "is not what it can hold"),
        ('{"$timedelta": [1, 2]}', "is not what it can hold"),
        ('{"$fraction": "1/0"}', "is not what it can hold"),
        ('{"$fraction": "1e999999999"}', "is not what it can hold"),
        ('{"$uuid": "x"}', "is not what it can hold"),
        ('{"$zone": "Nowhere/At_all"}', "is not what it can hold"),
        ('{"$bytes": 3}', "is not what it can hold"),
        ('{"$float": "1"}', "is not what it can hold"),
        ('{"$set": [[]]}', "is not what it can hold"),
        ('{"$dict": [1]}', "is not what it can hold"),
        ('{"$complex": [1]}', "is not what it can hold"),
    ],
)
def test_mistakes_are_named(text, message):
    with pytest.raises(ValueError, match=message):
        values.loads(text)


def test_numbers_of_any_size_go_both_ways():
    for value in (10**4299, -(10**4299), 10**4300, -(10**4300), 2**1_000_000, [{"a": 10**5000}], {10**5000: 1}):
        text = values.dumps(value)
        assert values.loads(text) == value
        assert json.loads(text) is not None  # no decimal that Python refuses to read


@pytest.mark.parametrize(
    ("text", "message"),
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
def test_every_text_is_a_value_or_one_short_error(text, message):
    with pytest.raises(ValueError, match=message) as caught:
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


@pytest.mark.parametrize(
    "value",
    [
        np.broadcast_to(np.zeros(1), (1 << 40,)),
        np.zeros((1 << 40, 0)),
        {"a": (np.zeros((1 << 25, 0)),)},
    ],
    ids=["repeated", "empty", "within"],
)
def test_arrays_of_more_numbers_than_they_have_memory_are_refused_before_they_are_listed(value):
    with pytest.raises(ValueError, match="too many for JSON"):
        values.dumps(value)


def test_arrays_count_together(monkeypatch):
    monkeypatch.setattr(values, "_MAX_NUMBERS", 1 << 12)
    values.dumps([np.broadcast_to(np.zeros(1), (1 << 11,))] * 2)
    with pytest.raises(ValueError, match="more than 4,096 numbers of arrays are too many for JSON"):
        values.dumps([np.broadcast_to(np.zeros(1), (1 << 11,))] * 3)


def test_arrays_of_few_numbers_are_written_however_they_lie_in_memory():
    assert values.dumps([np.broadcast_to(np.float32(2), (2, 3)), np.zeros((2, 0))]) == (
        "[[[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]], [[], []]]"
    )
