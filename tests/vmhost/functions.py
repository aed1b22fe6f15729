"""Functions that the executor's tests send to VMs: a module like a user's, which imports the standard library."""

import concurrent.futures
import functools
import os
import socket
import threading
import time
from pathlib import Path

OFFSET = 100
seen = []


def add(x, y=0, *more, scale=1):
    return (x + y + sum(more)) * scale


def echo(value=None):
    return value


def shifted(x):
    return x + OFFSET


def inverse(x):
    return 1 / x


def nap(seconds):
    time.sleep(seconds)
    return seconds


def wait_for_file(path):
    """Give `path` once it exists."""
    while not os.path.exists(path):
        time.sleep(0.001)
    return path


def meet(folder, number, others):
    """Return once all of the `others` are in a call of this function as well."""
    Path(folder, str(number)).touch()
    while len(os.listdir(folder)) < others:
        time.sleep(0.001)
    return number


def append_line(path, line):
    with open(path, "a") as file:
        file.write(f"{line}\n")


def named_pool(x, make=concurrent.futures.ProcessPoolExecutor):
    return make(1) if x else "not used"


def environment(name):
    return os.environ.get(name)


def connect(host, port):
    with socket.create_connection((host, port)):
        return True


def listen(host):
    with socket.create_server((host, 0)) as server:
        return server.getsockname()[1]


def raise_error(error, *args):
    raise getattr(__import__("builtins"), error)(*args)


def raise_noted():
    error = ValueError("noted")
    error.add_note("a note")
    raise error


class Unheard(Exception):
    """An exception class of this module only."""


def raise_unheard():
    raise Unheard("of")


def raise_from_cause():
    try:
        inverse(0)
    except ZeroDivisionError as error:
        raise KeyError("outer") from error


def raise_with_object():
    raise ValueError(object())


def return_object():
    return object()


def remember(value):
    seen.append(value)


def recall():
    return list(seen)


def recall_slowly(seconds):
    time.sleep(seconds)
    return list(seen)


def fail_once_there(path, text):
    wait_for_file(path)
    raise RuntimeError(text)


def name():
    return __name__


def thread_name():
    return threading.current_thread().name


def doubled(function):
    @functools.wraps(function)
    def twice(*args):
        return 2 * function(*args)

    return twice


@doubled
def decorated(x):
    return x + 1


@functools.lru_cache
def cached(x):
    return x * 3


async def later(x):
    return x * 5


triple = lambda x: x * 3  # noqa: E731  lambdas that have a name travel


def make_closure(y):
    def inner(x):
        return x + y

    return inner


class Shop:
    """Functions that are attributes of a class."""

    rate = 7

    def __init__(self, name="shop"):
        self.name = name

    @staticmethod
    def price(x):
        return x * Shop.rate

    @classmethod
    def rated(cls, x):
        return x + cls.rate

    def greet(self):
        return self.name

    def __call__(self):
        return self.name

    class Till:
        @staticmethod
        def count(items):
            return len(items)


shop = Shop()


def spin():
    """Never ends by itself."""
    while True:
        pass


def note_and_spin(path):
    """Make the file `path`, and never end by itself."""
    open(path, "w").close()
    spin()


def note_and_wait(path, other):
    """Make the file `path`, and give `other` once it exists."""
    open(path, "w").close()
    return wait_for_file(other)
