"""Classes of the program in `initargs` and `types`; a subclass's own submit."""

import calendar
import dataclasses
import decimal
import difflib
import http
import re
import signal
import socket
import subprocess
import sys
import textwrap
import urllib.parse

import pytest

import vmhost
from tests.vmhost import carried, functions


class Counting(vmhost.VMExecutor):
    """Counts what it submits."""

    submitted = 0

    def submit(self, fn, /, *args, **kwargs):
        self.submitted += 1
        return super().submit(fn, *args, **kwargs)


class Plain:
    ran = []

    def __init__(self, x):
        Plain.ran.append(x)
        self.x = x


class Slotted:
    __slots__ = ("left", "right")


class Elsewhere:
    pass


def doubled(plain):
    plain.x *= 2
    plain.more = [plain.x]
    return plain


def swapped(slotted):
    slotted.left, slotted.right = slotted.right, slotted.left
    return slotted


def with_attribute(plain, name):
    setattr(plain, name, 1)
    return plain


def test_a_subclass_uses_its_own_submit_in_map():
    with Counting(1) as pool:
        assert list(pool.map(abs, [1, -2, 3])) == [1, 2, 3]
        assert list(pool.map(pow, [1, 2], [2, 3], chunksize=2, timeout=60)) == [1, 8]
        assert pool.submitted == 5


def test_plain_classes_of_types_cross_without_their_code():
    with vmhost.VMExecutor(1, types=[Plain, Slotted]) as pool:
        plain, slotted = Plain(3), Slotted()
        slotted.left, slotted.right = 1, "r"
        Plain.ran.clear()
        back = pool.submit(doubled, plain).result()
        assert type(back) is Plain and vars(back) == {"x": 6, "more": [6]} and plain.x == 3
        back = pool.submit(swapped, slotted).result()
        assert type(back) is Slotted and (back.left, back.right) == ("r", 1)
        assert Plain.ran == []
        with pytest.raises(vmhost.CrossingError, match="do not begin with two underscores"):
            pool.submit(with_attribute, plain, "__hidden").result()


def test_plain_classes_that_are_not_in_types_are_refused():
    with vmhost.VMExecutor(1) as pool, pytest.raises(vmhost.CrossingError, match="`Plain` cannot cross"):
        pool.submit(doubled, Plain(1))
    with pytest.raises(vmhost.ConfigurationError, match="derives from `int`"):
        vmhost.VMExecutor(1, types=[type("Number", (int,), {})])


@pytest.mark.parametrize("value", [object(), [Elsewhere()], lambda: 1])
def test_initargs_that_cannot_cross_are_an_error_at_once(value):
    with pytest.raises(vmhost.CrossingError, match=r"^initargs: \$\[0\]"):
        vmhost.VMExecutor(1, initializer=functions.remember, initargs=(value,))


def test_initargs_may_be_of_classes_of_the_initializers_module():
    with vmhost.VMExecutor(1, initializer=carried.keep, initargs=(carried.Order(3),)) as pool:
        assert pool.submit(carried.kept).result() == carried.Order(3)


def test_initargs_may_be_of_classes_of_the_script(tmp_path):
    script = tmp_path / "app.py"
    script.write_text(
        textwrap.dedent("""
            import dataclasses, enum, vmhost

            @dataclasses.dataclass
            class Config:
                size: int

            class Pool(vmhost.VMExecutor):
                pass

            kept = []

            def keep(config, *, other):
                assert type(config) is Config and type(other) is Config
                kept.append(config)

            def give():
                return kept[0]

            if __name__ == "__main__":
                import functools
                with Pool(1, initializer=functools.partial(keep, other=Config(4)), initargs=(Config(3),)) as pool:
                    print(pool.submit(give).result())
        """)
    )
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100, check=False)
    assert (ran.stdout, ran.stderr) == ("Config(size=3)\n", "")


def test_a_class_that_is_replaced_in_its_module_loses_its_layout(monkeypatch):
    with vmhost.VMExecutor(1) as pool:
        for _ in range(2):  # the second time from what is kept of the class
            assert pool.submit(carried.echo, carried.Order(1)).result() == (carried.Order(1),)
        old = carried.Order

        @dataclasses.dataclass
        class Order:
            number: int
            lines: list
            more: int = 0

        Order.__module__, Order.__qualname__ = old.__module__, old.__qualname__
        monkeypatch.setattr(carried, "Order", Order)
        with pytest.raises(vmhost.CrossingError, match="`tests.vmhost.carried:Order` cannot cross"):
            pool.submit(carried.echo, old(1))
        with pytest.raises(vmhost.CrossingError, match="missing fields: more"):
            pool.submit(carried.order).result()


def test_classes_of_the_standard_library_cross(monkeypatch):
    values = [calendar.MONDAY, http.HTTPStatus.OK, re.IGNORECASE, socket.AF_INET, {signal.SIGTERM: 1}]
    values += [urllib.parse.urlparse("http://a.b/c?d#e"), decimal.Decimal("1.5").as_tuple(), difflib.Match(1, 2, 3)]
    with vmhost.VMExecutor(1) as pool:
        back = pool.submit(functions.echo, values).result()
        assert back == values and [type(each) for each in back] == [type(each) for each in values]
        weekday = calendar.weekday
        assert pool.submit(weekday, 2026, 11, 29).result() is calendar.SUNDAY
        with pytest.raises(vmhost.CrossingError, match="`RegexFlag` that is no member by name cannot cross"):
            pool.submit(str, re.IGNORECASE | re.MULTILINE).result()
        monkeypatch.delitem(sys.modules, "calendar")
        with pytest.raises(vmhost.CrossingError, match="the enum `calendar:Day` is not known here"):
            pool.submit(weekday, 2026, 11, 29).result()
        assert "calendar" not in sys.modules
