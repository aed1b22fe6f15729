"""Functions that joblib and dask call, in VMs or in threads."""

import sys
import threading

import numpy


def square(x, add=0):
    return x * x + add


def where(_):
    """(its interpreter, its thread)."""
    import vmhost.guest  # in the program, too: it is plain Python there

    return vmhost.guest.__name__, threading.current_thread().name


def fails(x):
    raise LookupError("no", x)


def uses_numpy(x):
    return int(numpy.sum(numpy.arange(x)))


def spins(_):
    while True:
        pass


def nested(x):
    joblib = sys.modules["joblib"]
    return sum(joblib.Parallel(n_jobs=2)(joblib.delayed(square)(i) for i in range(x))) + uses_numpy(0)


class Plain:
    def __init__(self, x):
        self.x = x


def of_plain(plain):
    return plain.x
