"""Classes with type parameters. CPython 3.14 crashes if what it calls for a `class C[*Ts]` raises; VMs make
such a class generic in Python."""

import pytest

import vmhost
from tests.hosts import bundle, in_a_process

PROGRAM = """
import typing

class Base:
    pass

def classes():
    class One[T]: pass
    class Many[*Ts](Base): pass
    class All[T: int, *Ts, **P](Base, dict[str, int]): pass
    class Outer[T]:
        class Inner[*Us]: pass
    return One, Many, All, Outer, Outer.Inner

def told(cls):
    return (cls.__name__, repr(cls.__orig_bases__), repr(cls.__parameters__), repr(cls.__type_params__),
            [base.__name__ for base in cls.__mro__], repr(cls[int, str, float]) if cls.__name__ == "Many" else "")

def run(_):
    return [told(cls) for cls in classes()]
"""


def test_they_are_made_as_in_plain_python():
    here = {"__name__": "main"}
    exec(PROGRAM, here)
    with vmhost.Host(allow_unsigned=True) as host:
        assert host.load(bundle(PROGRAM))(None) == here["run"](None)


WRONG = """
import builtins
import sys
import typing
import _vmhost

class Raises:
    def __getitem__(self, key):
        raise KeyError(key)

    def __call__(self, *arguments, **named):
        raise KeyError(arguments)

class Loops:
    def __getitem__(self, key):
        while True:
            pass

def make():
    class C[*Ts]: pass

def no_import(*arguments):
    raise ImportError(arguments)

WAYS = {
    "a wrong Unpack": lambda: setattr(typing, "Unpack", Raises()),
    "no Unpack": lambda: delattr(typing, "Unpack"),
    "a wrong alias": lambda: setattr(typing, "_GenericAlias", Raises()),
    "no typing": lambda: sys.modules.__setitem__("typing", None),
    "no import": lambda: setattr(builtins, "__import__", no_import),
    "a wrong hook": lambda: setattr(sys, "displayhook", Raises()),
    "no hook": lambda: delattr(sys, "displayhook"),
    "another name": lambda: (make.__setattr__("__code__", _vmhost.renamed_code(make.__code__, {"C": "D"})),
                             setattr(typing, "Unpack", Raises())),
    "an endless one": lambda: setattr(typing, "Unpack", Loops()),
}

def run(name):
    WAYS[name]()
    make()
"""
SCRIPT = f"WRONG = {WRONG!r}\n" + (
    """
from tests.guest.test_generics import ways

for name in ways():
    with vmhost.Host(allow_unsigned=True) as host:
        try:
            host.load(bundle(WRONG))(name, timeout_s=2 if name == "an endless one" else 60)
        except vmhost.VMHostError as error:
            print(f"{name}: {getattr(error, 'type_name', type(error).__name__)}")
"""
)


def ways():
    return [line.split('"')[1] for line in WRONG.splitlines() if line.startswith('    "')]


def test_what_goes_wrong_meanwhile_is_an_exception():
    done = in_a_process(SCRIPT)
    told = dict(line.split(": ") for line in done.stdout.splitlines())
    assert list(told) == ways(), done.stderr
    assert told.pop("an endless one") == "TimeLimitError"
    assert set(told.values()) <= {
        "KeyError",
        "TypeError",
        "AttributeError",
        "ModuleNotFoundError",
        "ImportError",
        "RuntimeError",
    }, told


@pytest.mark.parametrize("value", [(), (1, 2), "text"])
def test_the_hook_shows_everything_else(value):
    source = "import builtins, sys\ndef run(value):\n    sys.displayhook(value)\n    return builtins._\n"
    with vmhost.Host(allow_unsigned=True) as host:
        assert host.load(bundle(source))(value) == value
