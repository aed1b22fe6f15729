"""The task of the array benchmarks in VMs."""

import time

_kept = []


def run(value):
    return value


def small(steps):
    from small import work

    import vmhost.engine.numpy as np

    return work(np, steps)


def products(work):
    """`work`: the number and size of products of square matrices. Returns their seconds."""
    import vmhost.engine.numpy as np

    count, size = work
    a = np.full((size, size), 0.5, dtype="float32")
    began = time.perf_counter()
    for _ in range(count):
        np.matmul(a, a)
    return time.perf_counter() - began


def keep(array):
    """Keeps the array, and keeps its VM busy, so that a concurrent call goes to another one."""
    _kept.append(array)
    time.sleep(0.3)


def imported(_):
    """Milliseconds of the first import of vmhost.engine.numpy in this VM."""
    began = time.perf_counter()
    import vmhost.engine.numpy  # noqa: F401 - the import is what is measured

    return (time.perf_counter() - began) * 1000
