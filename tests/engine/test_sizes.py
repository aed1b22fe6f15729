"""Numbers computed from open sizes: at all sizes each result is the value of its polynomial."""

import math
import random

import numpy
import pytest

from tests.batches import each
from vmhost.engine.onnx import sizes
from vmhost.engine.onnx.sizes import Size, Unequal, evaluated, is_open, terms_of


def computed(names, choices):
    """A random number, by the same steps for all values; no divisor may be 0."""
    seed = random.Random(choices)
    numbers = [*names, 1, 3, 7]
    for _ in range(6):
        a, b = seed.choice(numbers), seed.choice(numbers)
        operation = seed.choice("+-*/%")
        numbers.append(
            {"+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "/": lambda: a // (b * b + 1),
             "%": lambda: a % seed.choice((2, 3, 8))}[operation]()
        )  # fmt: skip
    return numbers[-1]


@each("choices", range(200))
def test_a_polynomial_is_right_at_sizes_that_it_was_not_made_at(choices):
    made = computed([Size.open("n", 11), Size.open("m", 17)], choices)
    for n, m in ((1, 1), (2, 5), (30, 7)):
        assert evaluated(terms_of(made), {"n": n, "m": m}) == computed([n, m], choices)


def test_numpys_integers_and_builtins_keep_the_polynomial():
    n = Size.open("n", 11)
    for made in (numpy.int64(2) * n, n * numpy.int64(2), math.prod((2, n)), sum((n, n)), 2 * n // 1, 4 * n // 2):
        assert int(made) == 22 and terms_of(made) == {("n",): 2}
    assert not is_open(n - n) and not is_open(n // n) and int((6 * n * n) // (3 * n)) == 22


def test_shapes_broadcast_and_sizes_that_differ_are_named():
    n, m = Size.open("n", 11), Size.open("m", 17)
    assert sizes.broadcast((n, 1), (m,)) == (n, m)
    assert not any(map(is_open, sizes.broadcast((11,), (n,))))  # where one is fixed both are
    with pytest.raises(Unequal):
        sizes.broadcast((n, 2), (m, 2))
    with pytest.raises(ValueError, match="2 and 3"):
        sizes.broadcast((2,), (3,))


@each("choices", range(100))
def test_strides_of_a_reshaped_view_are_numpys(choices):
    seed = random.Random(choices)
    shape = [seed.choice((1, 2, 3, 4, 6)) for _ in range(seed.randrange(1, 5))]
    order = seed.sample(range(len(shape)), len(shape))
    whole = numpy.arange(math.prod(shape)).reshape([shape[d] for d in order]).transpose(numpy.argsort(order))
    assert list(whole.shape) == shape
    wanted, left = [], whole.size
    while left > 1:
        size = seed.choice([d for d in range(1, left + 1) if left % d == 0])
        wanted.append(size)
        left //= size
    strides = sizes.reshaped_strides(shape, [stride // 8 for stride in whole.strides], wanted)
    try:
        theirs = numpy.reshape(whole, wanted, copy=False)
    except ValueError:
        assert strides is None
    else:
        seen = numpy.lib.stride_tricks.as_strided(whole, wanted, [8 * stride for stride in strides])
        assert numpy.array_equal(seen, theirs)


@each("choices", range(100))
def test_slices_are_pythons(choices):
    seed = random.Random(choices)
    size, step = seed.randrange(1, 9), seed.choice((1, 2, -1, -3))
    start, stop = (seed.choice((None, *range(-12, 12))) for _ in range(2))
    expected = range(size)[start:stop:step]
    first, count = sizes.sliced(size, start, stop, step)
    assert count == len(expected) and (not count or first == expected.start)
