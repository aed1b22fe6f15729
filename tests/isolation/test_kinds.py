"""Values of the standard library's classes cross as themselves; forged ones are refused."""

import collections
import datetime
import decimal
import fractions
import pathlib
import zoneinfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

import vmhost
from tests.batches import each
from tests.hosts import bundle

ECHO = "def run(value):\n    return value\n"
# A task that replaces the packing of values on its side of the wall: it sends whatever a test asks for.
FORGER = """
    import vmhost.guest.kinds as kinds

    class Forged:
        pass

    def run(packed):
        kinds._packers[Forged] = lambda value: packed
        return {"a": [1, {2: Forged()}]}

    def keyed(packed):
        kinds._packers[Forged] = lambda value: packed
        return [{Forged(): 1}]

    def member(packed):
        kinds._packers[Forged] = lambda value: packed
        return [{Forged()}]

    def endless(_):
        kinds._packers[Forged] = lambda value: (0, None, Forged())
        return Forged()

    def raising(_):
        def fail(value):
            raise RuntimeError("no such luck")
        kinds._packers[Forged] = fail
        return [Forged()]
"""
ZONES = ["UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Etc/GMT+5"]
OFFSETS = some.timedeltas(datetime.timedelta(hours=-23, minutes=-59), datetime.timedelta(hours=23, minutes=59))
TIMEZONES = OFFSETS.map(datetime.timezone) | some.builds(datetime.timezone, OFFSETS, some.text())
TZINFOS = some.deferred(lambda: some.none() | TIMEZONES | some.sampled_from(ZONES).map(zoneinfo.ZoneInfo))
HASHABLE = some.deferred(
    lambda: (
        some.dates()
        | some.times(timezones=TZINFOS)
        | some.datetimes(timezones=TZINFOS, allow_imaginary=True)
        | some.timedeltas()
        | TIMEZONES
        | some.decimals(allow_nan=False)
        | some.fractions()
        | some.uuids()
        | some.text(some.characters(codec="utf-8", exclude_characters="\0")).map(pathlib.Path)
        | some.text().map(pathlib.PureWindowsPath)
    )
)
KEYS = some.deferred(
    lambda: HASHABLE | some.integers() | some.text() | some.frozensets(HASHABLE) | some.tuples(HASHABLE, HASHABLE)
)


def containers(inner):
    return (
        some.lists(inner)
        | some.dictionaries(KEYS, inner)
        | some.dictionaries(KEYS, inner).map(collections.OrderedDict)
        | some.builds(
            collections.defaultdict, some.sampled_from([None, int, list, frozenset]), some.dictionaries(KEYS, inner)
        )
        | some.dictionaries(KEYS, some.integers()).map(collections.Counter)
        | some.lists(inner).map(collections.deque)
        | some.lists(inner).map(lambda items: collections.deque(items, len(items) + 2))
        | some.frozensets(KEYS)
    )


VALUES = some.recursive(HASHABLE | some.none() | some.integers(), containers, max_leaves=10)


@pytest.fixture(scope="module")
def host():
    with vmhost.Host(allow_unsigned=True) as host:
        yield host


@pytest.fixture(scope="module")
def echo(host):
    return host.load(bundle(ECHO, name="echo", permissions={"read": ["/usr/share/zoneinfo"]}))


@pytest.fixture(scope="module")
def forger(host):
    return host.load(bundle(FORGER, name="forger"))


def types(value):
    inner = []
    if isinstance(value, dict):
        inner = [(types(key), types(item)) for key, item in value.items()]
    elif isinstance(value, (list, tuple, collections.deque)):
        inner = [types(item) for item in value]
    elif isinstance(value, frozenset):
        inner = sorted(repr(types(item)) for item in value)
    more = [getattr(value, name, None) for name in ("tzinfo", "fold", "maxlen", "default_factory", "key")]
    return type(value), None if inner else repr(value), inner, [repr(part) for part in more]


@settings(max_examples=100, deadline=None)
@given(VALUES)
def test_values_come_back_as_they_went(echo, value):
    back = echo(value)
    assert back == value and types(back) == types(value)


@pytest.mark.parametrize("text", ["sNaN", "NaN123", "-Infinity", "-0", "1E+999999999", "0E-7", "1.50"])
def test_each_decimal_keeps_its_digits(echo, text):
    assert str(echo([decimal.Decimal(text)])[0]) == text


def test_a_task_sees_the_classes_and_makes_them(host):
    task = host.load(
        bundle(
            """
            import datetime, decimal, pathlib, collections

            def run(value):
                assert type(value["at"]) is datetime.datetime and value["at"].tzinfo is datetime.timezone.utc
                assert type(value["counts"]) is collections.Counter
                value["counts"]["new"] += 1
                return {"later": value["at"] + value["wait"], "price": value["price"] * 2,
                        "path": value["path"] / "x", "counts": value["counts"]}
            """,
            name="sees",
        )
    )
    at = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    wait, price = datetime.timedelta(days=1), decimal.Decimal("1.10")
    counts = collections.Counter(old=1)
    given = {"at": at, "wait": wait, "price": price, "path": pathlib.PurePosixPath("/a"), "counts": counts}
    assert task(given) == {
        "later": at + wait,
        "price": decimal.Decimal("2.20"),
        "path": pathlib.PurePosixPath("/a/x"),
        "counts": collections.Counter(old=1, new=1),
    }


def test_host_functions_take_and_give_them():
    asked = []

    def lookup(day):
        asked.append(day)
        return {day: decimal.Decimal("0.5")}

    source = "from vmhost.guest import host\ndef run(day):\n    return host.lookup(day)\n"
    with vmhost.Host(allow_unsigned=True, functions={"lookup": lookup}) as host:
        task = host.load(bundle(source, permissions={"host": ["lookup"]}))
        day = datetime.date(2026, 1, 2)
        assert task(day) == {day: decimal.Decimal("0.5")} and asked == [day]


class Zone(datetime.tzinfo):
    pass


class Day(datetime.date):
    pass


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (collections.defaultdict(lambda: 1), "$.x[0]: a `collections.defaultdict` whose factory is <lambda> cannot"),
        (collections.defaultdict(Day), "$.x[0]: a `collections.defaultdict` whose factory is Day cannot"),
        (collections.Counter({1: object()}), "$.x[0][1]: a `object` cannot cross"),
        (collections.deque([1, {2: object()}]), "$.x[0][1][2]: a `object` cannot cross"),
        (datetime.datetime(2026, 1, 1, tzinfo=Zone()), "$.x[0]: a `datetime` in a `Zone` cannot cross; its zone can"),
        (Day(2026, 1, 1), "$.x[0]: a `Day` cannot cross"),
        (decimal.Decimal("1" * 100_001), "$.x[0]: a `decimal.Decimal` of more than 100,000 characters cannot cross"),
        (fractions.Fraction(1, 1 << 65_536), "$.x[0]: a `fractions.Fraction` of numbers with more than 65,536 bits"),
        (type("Counter", (dict,), {"__module__": "collections"})(), "$.x[0]: a `Counter` cannot cross"),
    ],
)
def test_what_is_not_exactly_one_of_them_is_refused_with_its_place(echo, value, message):
    with pytest.raises(vmhost.CrossingError) as caught:
        echo({"x": [value]})
    assert f"argument: {message}" in str(caught.value)
    assert echo(1) == 1


def test_a_zone_that_a_vm_may_not_read_is_told(host):
    task = host.load(bundle(ECHO, name="nozone"))
    with pytest.raises(vmhost.CrossingError, match=r"argument: \$\[0\]: not a `ZoneInfo`: .*grants it"):
        task([zoneinfo.ZoneInfo("Europe/Berlin")])
    assert host.statistics().tasks["nozone"].counters["excused"][vmhost.errors.Kind.VALUE] == 1
    assert task(1) == 1


FORGED = [
    ((6, None, (2026, 13, 1, 0, 0, 0, 0, 0)), "month must be in 1..12"),
    ((6, None, (0, 1, 1, 0, 0, 0, 0, 0)), "year"),
    ((6, None, (2026, 1, 1, 24, 0, 0, 0, 0)), "hour"),
    ((6, None, (2026, 1, 1, 0, 0, 0, 1_000_000, 0)), "microsecond"),
    ((6, None, (2026, 1, 1, 0, 0, 0, 0, 2)), "fold"),
    ((6, None, (2026, 1, 1, 0, 0, 0, 0)), "expected 8 parts, got 7"),
    ((6, None, (2026.0, 1, 1, 0, 0, 0, 0, 0)), "year: expected `int`, got `float`"),
    ((6, None, (True, 1, 1, 0, 0, 0, 0, 0)), "year: expected `int`, got `bool`"),
    ((6, None, (1 << 80,) * 8), "too large"),
    ((6, "UTC", (2026, 1, 1, 0, 0, 0, 0, 0)), "its tzinfo: expected"),
    ((6, None, 5), "its parts: expected `tuple`, got `int`"),
    ((4, None, b"\x07\xea\x01\x01"), "its parts: expected `tuple`, got `bytes`"),
    ((4, 1, (2026, 1, 1)), "its detail"),
    ((5, None, (1, 60, 0, 0, 0)), "minute"),
    ((7, None, (1_000_000_000, 0, 0)), "must have magnitude"),
    ((7, None, (0, 86400, 0)), "less than a day"),
    ((8, None, (1, 0, 0)), "strictly between"),
    ((8, 5, (0, 1, 0)), "its name"),
    ((9, None, "../../etc/passwd"), "its key: expected a name"),
    ((9, None, "/etc/passwd"), "its key: expected a name"),
    ((9, None, "Europe//Berlin"), "its key: expected a name"),
    ((9, None, "__init__"), "its key: expected a name"),
    ((9, None, "a" * 300), "its key: expected a name"),
    ((9, None, "No/Where"), "No time zone found"),
    ((10, None, "junk"), "its text: expected what str() gives"),
    ((10, None, "1_000"), "its text: expected what str() gives"),
    ((10, None, "\u0663"), "characters of ASCII"),
    ((10, None, "1" * 100_001), "1 to 100,000 characters"),
    ((10, None, "1E+99999999999999999999999"), "its text: expected what str() gives"),
    ((10, None, ""), "1 to 100,000 characters"),
    ((10, None, 5), "its text: expected `str`"),
    ((11, None, (1, 0)), "a denominator above zero"),
    ((11, None, (1, -1)), "a denominator above zero"),
    ((11, None, (1, 1 << 65_536)), "at most 65,536 bits"),
    ((11, None, (1.0, 1)), "numerator: expected `int`"),
    ((12, None, b"x" * 15), "its bytes: expected 16, got 15"),
    ((12, None, "x" * 16), "its bytes: expected `bytes`"),
    ((13, "PosixPath", b"/"), "its text: expected `str`"),
    ((13, "system", "/"), "its class: expected one of"),
    ((13, "WindowsPath", "/"), "cannot instantiate"),
    ((0, None, [("a", 1)]), "its items: expected `dict`"),
    ((0, 1, {}), "its detail"),
    ((1, "eval", {}), "its factory: expected None or one of"),
    ((1, 5, {}), "its factory: expected `str` or None"),
    ((1, "list", []), "its items: expected `dict`"),
    ((2, None, [1]), "its items: expected `dict`"),
    ((3, -1, []), "maxlen"),
    ((3, 1 << 80, []), "too large"),
    ((3, 1, [1, 2]), "2 items where its maxlen is 1"),
    ((3, None, {1: 2}), "its items: expected `list`"),
    ((99, None, None), "kind 99"),
    ((255, None, None), "kind 255"),
]


@each(("packed", "message"), FORGED, ids=[f"{packed[0]}-{number}" for number, (packed, _) in enumerate(FORGED)])
def test_what_a_task_makes_up_is_one_error_with_its_place(forger, packed, message):
    with pytest.raises(vmhost.CrossingError) as caught:
        forger(packed)
    assert "result: $.a[1][2]: " in str(caught.value) and message in str(caught.value)


@pytest.mark.parametrize(
    "packed", [1, (1, None), (-1, None, None), (256, None, None), (1 << 70, None, None), (True, 0, 0)]
)
def test_what_a_task_packs_wrongly_is_refused_in_its_vm(forger, packed):
    with pytest.raises(vmhost.CrossingError, match=r"result: \$\.a\[1\]\[2\]: packed as a"):
        forger(packed)


@pytest.mark.parametrize("entry", ["main:keyed", "main:member"])
@pytest.mark.parametrize("packed", [(10, None, "sNaN"), (0, None, {}), (3, None, []), (1, None, {})])
def test_what_cannot_be_a_key_is_no_key(forger, entry, packed):
    with pytest.raises(vmhost.CrossingError, match=r"result: \$\[0\]: .*(cannot use|Cannot hash|unhashable)"):
        forger(packed, entry=entry)


def test_packing_without_end_is_refused(forger):
    with pytest.raises(vmhost.CrossingError, match="nested deeper than 200 levels"):
        forger(None, entry="main:endless")
    with pytest.raises(vmhost.CrossingError, match=r"result: \$\[0\]: no such luck"):
        forger(None, entry="main:raising")
    assert forger((7, None, (1, 2, 3))) == {"a": [1, {2: datetime.timedelta(1, 2, 3)}]}


def test_a_report_that_is_made_up_is_still_the_tasks_error(host):
    task = host.load(
        bundle(
            """
            import vmhost.guest.kinds as kinds
            import vmhost.guest.boot as boot

            class Forged:
                pass

            def run(_):
                kinds._packers[Forged] = lambda value: (12, None, b"short")
                boot._message = lambda error: Forged()
                raise ValueError(1)
            """,
            name="reports",
        )
    )
    with pytest.raises(vmhost.TaskError, match="reports 1.0.0: ValueError"):
        task(None)


def test_an_argument_that_a_host_function_cannot_take_is_told_to_its_guest():
    source = """
        import vmhost.guest.kinds as kinds
        from vmhost.guest import host, HostFunctionError

        class Forged:
            pass

        def run(packed):
            kinds._packers[Forged] = lambda value: packed
            try:
                return host.echo([Forged()])
            except HostFunctionError as error:
                return str(error)
    """
    with vmhost.Host(allow_unsigned=True, functions={"echo": lambda value: value}) as host:
        task = host.load(bundle(source, permissions={"host": ["echo"]}))
        assert "argument: $[0]: not a `UUID`" in task((12, None, b""))
        assert task((7, None, (1, 2, 3))) == [datetime.timedelta(1, 2, 3)]
