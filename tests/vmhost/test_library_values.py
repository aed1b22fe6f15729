"""Values of datetime and decimal, and plain exceptions, cross without Python code (vmhost/isolation/wire/) as they do
with it."""

import datetime as dt
import decimal
import zoneinfo

import pytest

import vmhost
from vmhost.guest import kinds
from vmhost.runtime.codec import Foreign

FIXED = dt.timezone(dt.timedelta(hours=-3, microseconds=1))
VALUES = [
    dt.datetime(2024, 2, 29, 23, 59, 58, 999_999),
    dt.datetime(2024, 2, 29, 1, 2, 3, 4, dt.UTC),
    dt.datetime(2024, 10, 27, 2, 30, fold=1),
    dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=dt.UTC),
    dt.datetime.min,
    dt.datetime.max.replace(tzinfo=dt.UTC),
    dt.date.min,
    dt.date.max,
    dt.time.min,
    dt.time(1, 2, 3, 4, fold=1),
    dt.time(1, 2, 3, 4, dt.UTC),
    dt.timedelta.min,
    dt.timedelta.max,
    dt.timedelta(-1, 1, 1),
    dt.UTC,
    *map(decimal.Decimal, ("0", "-0", "1E+400", "-0.10", "NaN", "-sNaN12", "Infinity", "9" * 100, "1e-9999")),
]
BY_CODEC = [
    dt.datetime(2024, 1, 1, tzinfo=FIXED),
    dt.datetime(2024, 7, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Paris")),
    dt.time(1, tzinfo=FIXED),
    FIXED,
    dt.timezone(dt.timedelta(0), "Z"),
    dt.timezone.min,
]


class Day(dt.date):
    pass


def echo(value):
    return value


def echo_counted(value):
    """The value; kinds that Python code packs and unpacks from now on in this VM are counted."""
    from vmhost.guest import codec

    counts = codec.__dict__.setdefault("counts", [])
    if not counts:
        pack = codec.kinds.pack

        def counted(value):
            counts.append(type(value).__name__)
            return pack(value)

        codec.kinds.pack = counted
        counts.append("begin")
    return value


def counted():
    from vmhost.guest import codec

    return codec.counts


@pytest.fixture(scope="module")
def pool():
    with vmhost.VMExecutor(1) as pool:
        yield pool


def same(one, other):
    fold = getattr(one, "fold", None) == getattr(other, "fold", None)
    return type(one) is type(other) and repr(one) == repr(other) and fold


@pytest.mark.parametrize("value", VALUES + BY_CODEC, ids=repr)
def test_values_arrive_as_they_were(pool, value):
    assert same(pool.submit(echo, value).result(), value)
    again, third = pool.submit(echo, [[value, 1], {"key": value}]).result()
    assert same(again[0], value) and same(third["key"], value)
    if not (isinstance(value, decimal.Decimal) and value.is_nan()):  # which equal nothing
        assert pool.submit(echo, {value: {value}}).result() == {value: {value}}


def test_no_python_code_of_the_codec_runs_for_them(pool, monkeypatch):
    def refuse(*_):
        raise AssertionError("packed or unpacked by Python code")

    sent = VALUES * 3
    pool.submit(echo_counted, 0).result()
    monkeypatch.setattr(kinds, "pack", refuse)
    monkeypatch.setattr(kinds, "unpack", refuse)
    assert all(map(same, pool.submit(echo_counted, sent).result(), sent))
    assert pool.submit(counted).result() == ["begin"]


def test_utc_is_the_same_object(pool):
    value = pool.submit(echo, [dt.UTC, dt.datetime.now(dt.UTC)]).result()
    assert value[0] is dt.UTC and value[1].tzinfo is dt.UTC


def noted(text):
    error = ValueError(text)
    error.add_note("a note")
    return error


def attributed():
    error = RuntimeError(1)
    error.code = 7
    return error


class Name(str):
    pass


def test_zones_and_exceptions_run_python_code_once_each(pool, monkeypatch):
    packed, pack = [], kinds.pack
    monkeypatch.setattr(kinds, "pack", lambda value: packed.append(type(value).__name__) or pack(value))
    paris = zoneinfo.ZoneInfo("Europe/Paris")
    zoned = [dt.datetime(2024, month, 1, tzinfo=zone) for month in range(1, 9) for zone in (FIXED, paris)]
    back = pool.submit(echo, [*zoned, dt.time(1, tzinfo=FIXED), FIXED, {paris: {FIXED}}]).result()
    assert sorted(packed) == ["ZoneInfo", "datetime", "datetime", "timezone"]
    assert list(map(repr, back)) == list(map(repr, [*zoned, dt.time(1, tzinfo=FIXED), FIXED, {paris: {FIXED}}]))
    assert len({id(value.tzinfo) for value in back[:16]}) == 2 and back[17] is back[0].tzinfo
    packed.clear()
    errors = [kind(number, "text") for number in range(5) for kind in (ValueError, KeyError)]
    back = pool.submit(echo, errors).result()
    assert packed == ["ValueError", "KeyError"] and list(map(repr, back)) == list(map(repr, errors))


def test_exceptions_with_more_than_arguments_arrive_whole_behind_plain_ones(pool):
    plain = [ValueError("first"), RuntimeError("first")]
    sent = [*plain, noted("second"), attributed(), ValueError(Name("third")), ValueError([1, (2, None)]), ValueError()]
    back = pool.submit(echo, [sent, {ValueError("key"): 1, ValueError("key 2"): 2}]).result()
    assert list(map(repr, back[0])) == list(map(repr, sent)) and type(back[0][4].args[0]) is str
    assert back[0][2].__notes__ == ["a note"] and back[0][3].code == 7
    assert [(key.args, number) for key, number in back[1].items()] == [(("key",), 1), (("key 2",), 2)]


def test_more_zones_than_a_message_keeps_leave_room_for_classes(pool):
    zones = [dt.timezone(dt.timedelta(minutes=minute)) for minute in range(40)]
    sent = [dt.datetime(2024, 1, 1, tzinfo=zone) for zone in zones] * 2
    back = pool.submit(echo, [sent, [ValueError(1), ValueError(2)]]).result()
    assert all(map(same, back[0], sent)) and list(map(repr, back[1])) == ["ValueError(1)", "ValueError(2)"]


@pytest.mark.parametrize(
    "kind, detail, payload",
    [
        (kinds.DATE, None, (2024, 2, 30)),
        (kinds.DATE, None, (2024, 2)),
        (kinds.DATE, None, [2024, 2, 3]),
        (kinds.DATE, None, (2024, 2, True)),
        (kinds.DATE, None, (2024, 2, 1 << 32)),
        (kinds.DATE, None, (2024, 2, 1 << 70)),
        (kinds.DATE, "detail", (2024, 2, 3)),
        (kinds.TIME, None, (24, 0, 0, 0, 0)),
        (kinds.TIME, None, (0, 0, 0, 0, 2)),
        (kinds.TIME, dt.timedelta(0), (0, 0, 0, 0, 0)),
        (kinds.DATETIME, None, (2024, 2, 3, 4, 5, 6, -1, 0)),
        (kinds.DATETIME, 5, (2024, 2, 3, 4, 5, 6, 7, 0)),
        (kinds.DATETIME, None, (2024, 2, 3, 4, 5, 6, 7, 1.0)),
        (kinds.TIMEDELTA, None, (0, 86400, 0)),
        (kinds.TIMEDELTA, None, (0, 0, -1)),
        (kinds.TIMEDELTA, None, (1_000_000_000, 0, 0)),
        (kinds.TIMEZONE, None, (1, 0, 0)),
        (kinds.TIMEZONE, 5, (0, 0, 0)),
        (kinds.DECIMAL, None, "1_000"),
        (kinds.DECIMAL, None, " 1"),
        (kinds.DECIMAL, None, "\u0661"),
        (kinds.DECIMAL, None, "one"),
        (kinds.DECIMAL, None, b"1"),
        (kinds.DECIMAL, "detail", "1"),
        (kinds.DECIMAL, None, "1" * 100_001),
    ],
)
def test_forged_parts_are_refused_with_the_reason(pool, kind, detail, payload):
    with pytest.raises(vmhost.VMHostError, match=r"not a `[A-Za-z]+`: |expected"):
        pool.submit(echo, [Foreign(kind, detail, payload)]).result()
    with pytest.raises(kinds.Malformed):
        kinds.unpack(kind, detail, payload)


def test_what_is_none_of_these_is_refused_as_before(pool):
    with pytest.raises(TypeError, match="a `Day` cannot cross"):
        pool.submit(echo, Day(2024, 1, 2))
    with pytest.raises(TypeError, match=r"more than 100,000 characters cannot cross; send str\(it\)"):
        pool.submit(echo, decimal.Decimal("1" * 100_001))
