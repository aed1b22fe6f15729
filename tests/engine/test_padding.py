"""numpy.pad in all its modes against NumPy."""

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vmhost.engine.numpy
from tests.batches import each
from tests.engine.test_arrays_against_numpy import check

pytestmark = pytest.mark.usefixtures("backend")  # every test on each backend

DTYPES = ["bool", "int8", "uint16", "int64", "float32", "float64", "complex128"]
COMPUTED = ["linear_ramp", "maximum", "mean", "median", "minimum"]


@st.composite
def cases(draw):
    """(an array of small integers, widths)."""
    shape = draw(st.lists(st.integers(0, 5), min_size=1, max_size=3))
    widths = [(draw(st.integers(0, 9)), draw(st.integers(0, 9))) for _ in shape]
    values = numpy.random.default_rng(draw(st.integers(0, 99))).integers(0, 40, shape)
    return values.astype(draw(st.sampled_from(DTYPES))), widths


@settings(max_examples=150, deadline=None)
@given(case=cases(), mode=st.sampled_from(["constant", "edge", "reflect", "symmetric", "wrap"]))
def test_what_is_moved(case, mode):
    array, widths = case
    check(lambda np, a: np.pad(a, widths, mode), array)


@settings(max_examples=150, deadline=None)
@given(case=cases(), mode=st.sampled_from(["reflect", "symmetric"]))
def test_odd_reflections(case, mode):
    array, widths = case
    check(lambda np, a: np.pad(a, widths, mode, reflect_type="odd"), array)


@settings(max_examples=200, deadline=None)
@given(case=cases(), mode=st.sampled_from(COMPUTED), option=st.sampled_from([None, 1, 2, (3, 1)]))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_is_computed(case, mode, option):
    array, widths = case
    if array.dtype == "bool" or mode == "median" and array.dtype.kind == "c":
        return  # NumPy's own errors on the way
    name = "end_values" if mode == "linear_ramp" else "stat_length"
    options = {} if option is None else {name: option}
    wanted = numpy.pad(array, widths, mode, **options) if not (array.size == 0 and any(map(any, widths))) else None
    if wanted is None:
        check(lambda np, a: np.pad(a, widths, mode, **options), array)
        return
    got = vmhost.engine.numpy.pad(vmhost.engine.numpy.asarray(array), widths, mode, **options)
    assert (got.dtype.name, got.shape) == (wanted.dtype.name, wanted.shape)
    # means are summed in another order; where the result is an integer that may show at a half
    numpy.testing.assert_allclose(numpy.asarray(got), wanted, rtol=1e-5, atol=1 if array.dtype.kind in "iu" else 1e-5)


def test_the_grown_array_is_a_new_one():
    for mode in ("mean", "edge", "constant", "empty"):
        kept = vmhost.engine.numpy.ones((2, 2))
        grown = vmhost.engine.numpy.pad(kept, 0, mode)
        grown[0, 0] = 5
        assert kept[0, 0] == 1 and grown.shape == (2, 2)


def test_a_function_fills_the_edges():
    def fill(vector, widths, axis, options):
        vector[: widths[0]] = options["value"] + axis
        vector[len(vector) - widths[1] :] = -1

    check(lambda np, a: np.pad(a, ((1, 2), (0, 1)), fill, value=7), numpy.arange(6).reshape(2, 3))


@each(
    "expression",
    [
        "np.pad(x, 1, 'x')",
        "np.pad(x, 1, 'edge', constant_values=2)",
        "np.pad(x, 1, 'constant', stat_length=2)",
        "np.pad(x, -1)",
        "np.pad(x, 1.5)",
        "np.pad(x, ((1, 2), (3, 4), (5, 6)))",
        "np.pad(x, 1, 'maximum', stat_length=0)",
        "np.pad(x, 1, 'mean', stat_length=-1)",
        "np.pad(x[:0], 1, 'mean')",
        "np.pad(x[:0], ((0, 0), (1, 2)), 'mean')",
        "np.pad(x, {0: 1})",
        "np.pad(x, {-1: (2, 1)}, 'edge')",
        "np.pad(x, 1, constant_values=((1, 2), (3, 4)))",
        "np.pad(x, ((2, 1), (1, 0)), 'linear_ramp', end_values=((1, 2), (3, 4)))",
        "np.pad(np.array(5), [])",
        "np.pad(np.array(5), ())",
        "np.pad(x, 0, 'mean')",
    ],
)
def test_arguments(expression):
    check(
        lambda np, x: eval(expression, {"np": np, "x": x}),
        numpy.arange(6.0).reshape(2, 3),
        sentences="broadcast" not in expression,
    )
