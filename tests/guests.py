"""Functions that tests run in VMs: some return, some are slow, fail, take too much memory or never end.

`GUESTS` is the source of a task's module; tests append what else they need.
"""

GUESTS = """
import re
import threading
import time


def run(value):
    return value


def fail(value):
    return inner(value)


def inner(value):
    raise ValueError(f"no such pixel: {value}")


def work(value):
    total = 0
    for number in range(value):
        total += number
    return total


def sleep(value):
    time.sleep(60 if value is None else value)
    return "slept"


def forever(value):
    while True:
        pass


def stubborn(value):
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass


def regex(value):
    re.match(r"(a+)+$", "a" * 40 + "b")


def hog(value):
    taken = []
    while True:
        taken.append(bytearray(1 << 20))


def leave_threads(value):
    for _ in range(value or 1):
        threading.Thread(target=stubborn, args=(None,)).start()
    return "left"
"""
