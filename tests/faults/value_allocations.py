"""Sends values of every kind to a VM and back while the n-th allocation of CPython fails, on either side, for
one n after the other, and looks at how it ended.

    LD_PRELOAD=failing.so python -m tests.faults.value_allocations [STEP]

Each call may give the value or an error of vmhost's or MemoryError, and nothing else; afterwards the task answers as
ever. Run by test_value_allocations.py."""

import collections
import ctypes
import datetime
import decimal
import fractions
import os
import pathlib
import sys
import threading
import uuid

import vmhost
from tests.faults import own_classes
from tests.faults.own_classes import BadOrder, Colour, Order, Point
from tests.hosts import bundle, until
from vmhost.errors import from_core
from vmhost.host import system_code_store
from vmhost.isolation import vm as isolation
from vmhost.runtime.codec import Codec

SOURCE = (
    pathlib.Path(own_classes.__file__).read_text()
    + """
def run(value):
    return value

def fail(value):
    raise BadOrder(value)

def keyed(value):
    return {Order(1, (value,)): value}
"""
)

ZONE = datetime.timezone(datetime.timedelta(hours=1), "X")
VALUES = [
    frozenset({1, (2, "x")}),
    collections.Counter("aab"),
    collections.defaultdict(list, {1: [2]}),
    collections.OrderedDict(b=1, a=[2]),
    collections.deque([1, [2]], 5),
    datetime.datetime(2026, 1, 2, 3, 4, 5, 6, ZONE),
    [datetime.datetime(2026, 1, day, tzinfo=ZONE) for day in (1, 2, 3)],
    {ValueError(1, "x"): [ValueError(2), ValueError(3)]},
    {datetime.date(2026, 1, 2): [datetime.time(1, 2), datetime.timedelta(3)]},
    [decimal.Decimal("1.5"), fractions.Fraction(1, 3), uuid.UUID(int=5), pathlib.PurePosixPath("/a")],
    {Order(1, (Order(2),)): [Colour.RED, Point(3)]},
]
REFUSED = [object(), [{"a": (1, object())}], collections.defaultdict(object)]
ERRORS = (vmhost.VMHostError, MemoryError)


def same(one, other):
    return one == other or repr(one) == repr(other)  # exceptions equal only themselves


class Task:
    """Calls of one task in one VM at a time, without a service, so that its threads' allocations do not fail."""

    def __init__(self, core):
        types = {f"main:{cls.__name__}": cls for cls in (Order, Colour, Point, BadOrder)}
        self._core, self._codec, self._events = core, Codec(types), core.Events()
        self._system, self._store = system_code_store(core), isolation.code_store_of(bundle(SOURCE), core)
        self._vm = None

    def ready(self):
        """There is a VM."""
        if self._vm is not None:
            return
        self._lane = self._core.Lane(
            "work", "1", self._store, "main:run", self._events, pack=self._codec.pack, unpack=self._codec.unpack
        )
        self._vm = self._core.VM(self._system, self._events)
        until(lambda: self._vm.state == "ready")
        self._vm.attach(self._lane)
        assert self._lane.call(1, 20) == 1

    def __call__(self, value, entry=None):
        return self._lane.call(value, 20, 0, entry)

    def end(self):
        self._vm.retire()
        until(lambda: self._vm.state == "ended")
        self._vm = None


def cases(task):
    """(name, function, value expected; None: an error)"""
    for number, value in enumerate(VALUES):
        yield f"value {number}", lambda value=value: task(value), value
    for number, value in enumerate(REFUSED):
        yield f"refused {number}", lambda value=value: task(value), None
    yield "raised", lambda: task(1, entry="main:fail"), None
    yield "keyed", lambda: task(1, entry="main:keyed"), {Order(1, (1,)): 1}
    yield "unhashable", lambda: task([1], entry="main:keyed"), None


def try_all(task, lib, ends, step):
    for name, function, expected in cases(task):
        number, failed = 1, True
        while failed:
            task.ready()
            for _ in range(2):  # what is imported and cached once is there
                result = outcome(function)
                assert (isinstance(result, ERRORS) and expected is None) or same(result, expected), (name, result)
            print(name, number, flush=True)
            result, failed = armed(lib, number, function)
            assert isinstance(result, ERRORS) or same(result, expected), (name, number, result)
            ends["error" if isinstance(result, ERRORS) else "result"] += 1
            if isinstance(result, (vmhost.MemoryLimitError, vmhost.VMLostError)):
                task.end()  # it goes anyway
            number += step
        ends["operations"] += 1


def armed(lib, number, function):
    """(how `function` ended while the `number`-th allocation failed, whether one did)"""
    result, ended = MemoryError(), 0
    lib.failing_arm(number)
    try:
        result = outcome(function)
        ended = lib.failing_disarm()
    except MemoryError:  # the one that failed was this function's own
        lib.failing_disarm()
        return result, True
    return result, ended < 0


def outcome(function):
    try:
        return function()
    except ERRORS as error:
        return error


def main(step="1"):
    lib = ctypes.PyDLL(os.environ["VMHOST_FAILING"])
    lib.failing_disarm.restype = ctypes.c_long
    lib.failing_python()
    ends, wrong, core = collections.Counter(), [], isolation.core()
    core.set_error_factory(from_core)
    task = Task(core)

    def run():
        try:
            try_all(task, lib, ends, int(step))
        except BaseException as error:
            wrong.append(error)

    # CPython's allocations fail on threads other than the main one
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if wrong:
        raise wrong[0]
    task.ready()
    task.end()
    print("ends", dict(ends), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
