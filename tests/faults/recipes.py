"""Makes code objects from recipes while the n-th allocation fails, for each n, and prints how many there are. Run by
test_recipes.py.

    LD_PRELOAD=failing.so python -m tests.faults.recipes

Each try must end in a MemoryError or in the same code as ever; after the number of tries come how many of them gave the
code, and how many blocks a pass through all of them left behind."""

import ctypes
import gc
import os
import sys
import threading

from vmhost.isolation import vm as isolation

PARAMETERS = ("self", *(f"f{index}" for index in range(20)))
STEPS = (
    ("field", "f0", "given", "f0", "make"),
    ("frozen", "f1", "given", "f1", "make"),
    ("frozen", "f2", "variable", "default"),
    ("field", "f3", "parameter", "f3"),
    ("post_init", PARAMETERS[1:]),
)
FIELDS = PARAMETERS[1:]


def generator(value, *rest):
    yield value, [each for each in rest], lambda: value


def renamed(value_1, *rest):
    def inner_1(each):
        return value_1.inner_1(1000, value_1=each, rest=rest)

    return inner_1


RECIPES = {
    "named tuple": ("namedtuple_code", FIELDS),
    "init": ("method_code", "__init__", 1, 2, PARAMETERS, 2, STEPS),
    "repr": ("method_code", "__repr__", 1, 2, FIELDS, FIELDS),
    "eq": ("method_code", "__eq__", 1, 2, FIELDS),
    "lt": ("method_code", "__lt__", 1, 2, FIELDS),
    "hash": ("method_code", "__hash__", 1, 2, FIELDS),
    "setattr": ("method_code", "__setattr__", 1, 2, FIELDS),
    "coroutine": ("coroutine_code", generator.__code__),
    "renamed": ("renamed_code", renamed.__code__, {"value_1": "value_2", "inner_1": "inner_2", 1000: 2000}),
    "relocated": ("relocated_code", renamed.__code__, "file", "name", "path", 3, True),
}


def try_all(native, failing, name, function, arguments):
    """Fails one allocation after the other, until there are no more. How many there were, how many tries gave the code
    all the same."""
    expected = function(*arguments)
    n = given = 0
    while True:
        n += 1
        failing.failing_arm(n)
        try:
            result = function(*arguments)
        except MemoryError:
            result = None
        try:
            is_beyond = failing.failing_disarm() >= 0
        except MemoryError:
            is_beyond = True  # that call's own
        assert result == expected if result is not None else not is_beyond, (name, n)
        if is_beyond:
            return n - 1, given
        given += result is not None


def main(failing):
    native = isolation.core()
    for name, (function, *arguments) in RECIPES.items():
        try_all(native, failing, name, getattr(native, function), arguments)  # what is kept is kept by now
        left = []
        for _ in range(3):  # what the measuring keeps comes once, what is lost in each pass
            gc.collect()
            before = sys.getallocatedblocks()
            tried, given = try_all(native, failing, name, getattr(native, function), arguments)
            gc.collect()
            left.append(sys.getallocatedblocks() - before)
        left = min(left)
        print(f"{name}: {tried} {given} {left}", flush=True)


if __name__ == "__main__":
    failing = ctypes.PyDLL(os.environ["VMHOST_FAILING"])
    failing.failing_disarm.restype = ctypes.c_long
    failing.failing_python()  # on this thread none fails
    thread = threading.Thread(target=main, args=(failing,))
    thread.start()
    thread.join()
