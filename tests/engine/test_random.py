"""Philox words against NumPy's bit generator."""

import ctypes

import numpy as np
import pytest

from tests.engine.library import EngineError, Status, check, library, tensor

pytestmark = pytest.mark.usefixtures("backend")  # every test on each backend


def words(context, key, counter, first, count):
    out = np.zeros(count, "uint64")
    check(
        library.vme_philox(
            context.handle,
            (ctypes.c_uint64 * 2)(*key),
            (ctypes.c_uint64 * 4)(*counter),
            ctypes.c_uint64(first),
            tensor(out),
        )
    )
    return out


@pytest.mark.parametrize("key", [(0, 0), (1, 2**63 + 5), (2**64 - 1, 2**64 - 1)])
@pytest.mark.parametrize("counter", [(0, 0, 0, 0), (2**64 - 3, 2**64 - 1, 7, 9), (2**64 - 1,) * 4])
def test_words(context, key, counter):
    expected = np.random.Philox(key=np.array(key, "uint64"), counter=np.array(counter, "uint64")).random_raw(50_003)
    assert np.array_equal(words(context, key, counter, 0, 50_003), expected)
    for first, count in [(1, 7), (3, 1), (4, 100), (31, 40_000), (49_999, 4), (5, 0)]:
        assert np.array_equal(words(context, key, counter, first, count), expected[first : first + count])


def test_any_number_of_threads(context):
    threads = library.vme_threads()
    one = []
    try:
        for number in range(1, threads + 1):
            check(library.vme_threads_set(number))
            one.append(words(context, (3, 4), (0,) * 4, 0, 300_000))
    finally:
        check(library.vme_threads_set(threads))
    assert all(np.array_equal(one[0], other) for other in one)


def test_refuses_strides(context):
    with pytest.raises(EngineError) as caught:
        check(
            library.vme_philox(
                context.handle,
                (ctypes.c_uint64 * 2)(),
                (ctypes.c_uint64 * 4)(),
                ctypes.c_uint64(0),
                tensor(np.zeros(10, "uint64")[::2]),
            )
        )
    assert caught.value.status is Status.BAD_VALUE
