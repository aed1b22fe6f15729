"""Elementwise operators against NumPy: special values, every dtype, any strides and broadcasts, casts,
overlaps, stops, refused memory; each backend in turn."""

import ctypes
import itertools
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.batches import each
from tests.engine.arrays import arrays, shapes, stretched
from tests.engine.library import DTYPES, NUMBER, Context, EngineError, Status, check, library, names, tensor
from tests.engine.op_cases import ALL, BINARY, COMPLEX, FLOATS, INTEGERS, UNARY
from tests.engine.test_types import types

RELAXED = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
# every test on each backend
pytestmark = [
    pytest.mark.usefixtures("backend"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::numpy.exceptions.ComplexWarning"),
]
UNARY_NUMBER, BINARY_NUMBER = names("unary"), names("binary")

TRANSCENDENTAL = {
    "cbrt",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sin",
    "cos",
    "tan",
    "arcsin",
    "arccos",
    "arctan",
    "sinh",
    "cosh",
    "tanh",
    "arcsinh",
    "arccosh",
    "arctanh",
    "power",
    "arctan2",
    "hypot",
    "logaddexp",
}
EITHER_ZERO = {"maximum", "minimum", "fmax", "fmin"}  # of 0.0 and -0.0 each is right


def unary(context, name, a, out=None, loop=None):
    chosen, result = types(library.vme_unary_types, UNARY_NUMBER[name], a.dtype)
    out = np.zeros(a.shape, result) if out is None else out
    check(
        library.vme_unary(context.handle, UNARY_NUMBER[name], NUMBER[np.dtype(loop or chosen)], tensor(a), tensor(out))
    )
    return out


def binary(context, name, a, b, out=None, loop=None):
    chosen, result = types(library.vme_binary_types, BINARY_NUMBER[name], a.dtype, b.dtype)
    if out is None:
        out = np.zeros(a.shape if a.shape == b.shape else np.broadcast_shapes(a.shape, b.shape), result)
    check(
        library.vme_binary(
            context.handle, BINARY_NUMBER[name], NUMBER[np.dtype(loop or chosen)], tensor(a), tensor(b), tensor(out)
        )
    )
    return out


def same(a, b):
    """Equal to the last bit; all NaNs are equal."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.kind == "c":
        return same(a.real.copy(), b.real.copy()) and same(a.imag.copy(), b.imag.copy())
    if a.dtype.kind != "f":
        return bool((a == b).all())
    nan = np.isnan(a)
    return bool(
        (nan == np.isnan(b)).all() and ((a == b) | nan).all() and ((np.signbit(a) == np.signbit(b)) | nan).all()
    )


def ulps(found, exact):
    """The greatest distance of `found` from `exact` (of a wider dtype), in units of the last place of found's dtype."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(found.dtype)
        wide = np.isfinite(rounded) & np.isfinite(found)
        step = np.maximum(np.spacing(np.abs(rounded[wide])), np.finfo(found.dtype).smallest_subnormal)
        apart = np.abs(found[wide].astype(exact.dtype) - exact[wide]) / step.astype(exact.dtype)
    return float(apart.max(initial=0))


def close(name, found, plain, exact):
    """Whether `found` is right: the same special values as NumPy's `plain`, the others within 4 ulp of `exact`."""
    assert found.dtype == plain.dtype and found.shape == plain.shape
    if found.dtype.kind == "c":  # libm's, which NumPy calls as well; products there may use fused operations
        size = np.maximum(np.abs(plain), np.finfo(plain.dtype).tiny)
        good = np.isfinite(plain.real) & np.isfinite(plain.imag) & np.isfinite(size)
        assert (np.isfinite(found.real) & np.isfinite(found.imag))[good].all()
        assert (np.abs(found - plain)[good] <= 8 * np.finfo(plain.dtype).eps * size[good]).all(), name
        return
    # at the edge of overflow two good functions may disagree: a neighbour of infinity is right there
    edge = np.abs(exact) > 0.999999 * np.finfo(found.dtype).max.astype(exact.dtype)
    for test in (np.isnan, np.isinf):
        wrong = (test(found) != test(plain)) & ~edge
        assert not wrong.any(), (name, test.__name__, np.flatnonzero(wrong)[:5], found[wrong][:5], plain[wrong][:5])
    infinite = np.isinf(plain) & ~edge
    assert (found[infinite] == plain[infinite]).all()
    assert ulps(found, exact) <= 4, name
    zero = (plain == 0) & (found == 0)
    assert (np.signbit(found) == np.signbit(plain))[zero].all(), name


def hard_values(dtype):
    """Values of a dtype at which functions change their algorithm, and ordinary ones."""
    dtype = np.dtype(dtype)
    random = np.random.default_rng(7)
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        near = [
            limits.min,
            limits.min + 1,
            limits.max,
            limits.max - 1,
            *range(max(limits.min, -9), 10),
            limits.max // 2,
            limits.bits,
            limits.bits - 1,
        ]
        return np.concatenate(
            [np.array(near, dtype), random.integers(limits.min, limits.max, 30, dtype, endpoint=True)]
        )
    if dtype.kind == "c":
        part = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, 3.0, -2.5], dtype.type(0).real.dtype)
        grid = np.array([complex(x, y) for x in part for y in part], dtype)  # the parts as they are: no inf * 1j
        return np.concatenate([grid, (random.normal(size=40) * 3 + 1j * random.normal(size=40)).astype(dtype)])
    limits = np.finfo(dtype)
    base = [
        0.0,
        1.0,
        0.5,
        1.5,
        2.0,
        2.5,
        3.0,
        10.0,
        0.1,
        1e-3,
        20.5,
        88.0,
        100.0,
        np.pi,
        np.pi / 2,
        np.inf,
        limits.max,
        limits.tiny,
        limits.smallest_subnormal,
        limits.smallest_subnormal * 5,
        limits.eps,
        limits.max / 2,
        1 + limits.eps,
        1 - limits.epsneg,
    ]
    base = np.array(base, dtype)
    return np.concatenate(
        [
            base,
            -base,
            [dtype.type(np.nan)],
            (random.normal(size=40) * 10).astype(dtype),
            (10.0 ** random.uniform(-4, 4, 40)).astype(dtype),
        ]
    )


def wide(array):
    return array.astype({"e": "f4", "f": "f8", "d": "g"}[array.dtype.char]) if array.dtype.kind == "f" else array


@each("name", UNARY)
def test_unary_values(backend, context, name):
    ufunc = getattr(np, name)
    for dtype in ALL:
        a = hard_values(dtype)
        try:
            plain = ufunc(a)
        except TypeError:
            continue
        found = unary(context, name, a)
        loop = types(library.vme_unary_types, UNARY_NUMBER[name], a.dtype)[0]
        if name in TRANSCENDENTAL or (
            loop.kind == "c" and name in ("sqrt", "absolute", "sign", "reciprocal", "square")
        ):
            exact = ufunc(wide(a.astype(loop)))
            close((name, dtype), found, plain, exact)
        else:
            assert same(found, plain), (
                name,
                dtype,
                [(x, f, p) for x, f, p in zip(a, found, plain) if not same(np.array(f), np.array(p))][:6],
            )


@each("name", BINARY)
def test_binary_values(backend, context, name):
    ufunc = getattr(np, name)
    for dtype in ALL:
        a = hard_values(dtype)
        b = a[:, None] if np.dtype(dtype).kind != "c" else a[::3, None]
        if name == "power" and np.dtype(dtype).kind == "i":
            b = b[b[:, 0] >= 0]
        try:
            plain = ufunc(a, b)
        except TypeError:
            continue
        found = binary(context, name, a, b)
        loop = types(library.vme_binary_types, BINARY_NUMBER[name], a.dtype, b.dtype)[0]
        if (name in TRANSCENDENTAL and loop.kind in "fc") or (loop.kind == "c" and name in ("multiply", "divide")):
            exact = (
                wide(plain) if name == "logaddexp" else ufunc(wide(a.astype(loop)), wide(b.astype(loop)))
            )  # it cancels
            close((name, dtype), found, plain, exact)
        elif name in EITHER_ZERO and loop.kind == "f":
            assert same(found + loop.type(0), plain + loop.type(0)), (name, dtype)
        else:
            wrong = (
                []
                if same(found, plain)
                else [
                    (x, y, f, p)
                    for (x, y, f, p) in zip(*(v.ravel() for v in (*np.broadcast_arrays(a, b), found, plain)))
                    if not same(np.array(f), np.array(p))
                ]
            )
            assert not wrong, (name, dtype, wrong[:6])


@each("name", sorted(TRANSCENDENTAL & set(UNARY)))
@each("dtype", ["float32", "float64"])
def test_accuracy(backend, context, name, dtype):
    """Within 4 units of the last place of the true value, over all magnitudes, also at the end of a run and with
    steps."""
    random = np.random.default_rng(3)
    a = np.concatenate(
        [random.normal(size=2000), random.uniform(-100, 100, 2000), 10 ** random.uniform(-30, 30, 2001)]
    ).astype(dtype)
    ufunc = getattr(np, name)
    exact = ufunc(wide(a))
    found = unary(context, name, a)
    keep = np.abs(exact) < np.finfo(dtype).max
    assert ulps(found[keep], exact[keep]) <= 4
    stepping = unary(context, name, np.repeat(a, 3)[::3])
    assert same(found, stepping)  # a value does not depend on where it lies
    assert same(unary(context, name, a[5:18].copy()), found[5:18])


def test_erf_and_parts(backend, context):
    import math

    for dtype in FLOATS:
        a = hard_values(dtype)
        exact = np.array([math.erf(x) for x in a])
        found = unary(context, "erf", a)
        good = np.isfinite(exact)
        assert (np.isnan(found) == np.isnan(a)).all() and ulps(found[good], exact[good]) <= 4
    for dtype in ALL:
        a = hard_values(dtype)
        assert same(unary(context, "real", a), a.real.copy())
        assert same(unary(context, "imag", a), a.imag.copy())


@RELAXED
@given(data=st.data())
def test_any_views(backend, context, data):
    """Any dtypes, strides, broadcasts and outputs of another dtype."""
    name = data.draw(
        st.sampled_from(["add", "multiply", "subtract", "less", "equal", "maximum", "logical_and", "bitwise_xor"])
    )
    shape = data.draw(shapes())
    operands = []
    for _ in range(2):
        kept = tuple(size if data.draw(st.booleans()) else 1 for size in shape)[data.draw(st.integers(0, len(shape))) :]
        operands.append(data.draw(arrays(DTYPES, shape=kept)))
    try:
        plain = getattr(np, name)(*operands)
    except TypeError:
        with pytest.raises(EngineError):
            binary(context, name, *operands)
        return
    full = np.broadcast_shapes(shape, plain.shape)
    if data.draw(st.booleans()) and all(size != 0 for size in full):
        out = stretched(
            np.zeros(full, data.draw(st.sampled_from([plain.dtype, np.result_type(plain.dtype, np.float32)]))), 5
        )
        getattr(np, name)(*operands, out=(expected := np.zeros(full, out.dtype)))
    else:
        out, expected = np.zeros(plain.shape, plain.dtype), plain
    found = binary(context, name, *operands, out=out)
    if plain.dtype.kind == "c" or name == "maximum":  # fused products; either zero
        np.testing.assert_allclose(found, expected, rtol=1e-3 if plain.dtype == "c8" else 1e-12)
    else:
        assert same(found, np.asarray(expected))


@RELAXED
@given(data=st.data())
def test_in_place_and_overlaps(backend, context, data):
    base = data.draw(arrays(["float32", "int64", "uint8", "float16"], shape=(40,), nan=False)).copy()
    views = {
        "same": slice(0, 20),
        "behind": slice(0, 20),
        "before": slice(1, 21),
        "stepping": slice(0, 40, 2),
        "backwards": slice(19, None, -1),
    }
    a, b, out = (views[data.draw(st.sampled_from(list(views)))] for _ in range(3))
    mine, theirs = base.copy(), base.copy()
    np.add(theirs[a], theirs[b], out=theirs[out])
    binary(context, "add", mine[a], mine[b], out=mine[out])
    assert same(mine, theirs)


def test_casts(backend, context):
    """Every pair of dtypes, values that both hold."""
    for source, target in itertools.product(ALL, ALL):
        a = hard_values(source)
        kinds = np.dtype(source).kind, np.dtype(target).kind
        if kinds[0] in "fc" and kinds[1] in "iu":  # what an integer cannot hold is undefined
            limits = np.iinfo(target)
            wide_enough = a.real.astype("g")
            a = a[np.isfinite(a.real) & (wide_enough > max(limits.min, -(2**31)) - 1) & (wide_enough < limits.max)]
        out = np.zeros(a.shape, target)
        check(library.vme_copy(context.handle, tensor(a), tensor(out)))
        assert same(out, a.astype(target)), (
            source,
            target,
            a[out != a.astype(target)][:5],
            out[out != a.astype(target)][:5],
        )


def test_every_half(backend, context):
    halves = np.arange(2**16, dtype="uint16").view("float16")
    for dtype in ("float32", "float64"):
        out = np.zeros(halves.shape, dtype)
        check(library.vme_copy(context.handle, tensor(halves), tensor(out)))
        assert same(out, halves.astype(dtype))
        between = np.concatenate(
            [np.nextafter(out, np.inf), out, np.nextafter(out, -np.inf), (out[1:] + out[:-1]) / 2]
        ).astype(dtype)
        between = np.concatenate([between, np.nextafter(between, np.inf), np.nextafter(between, -np.inf)])
        back = np.zeros(between.shape, "float16")
        check(library.vme_copy(context.handle, tensor(between), tensor(back)))
        assert same(back, between.astype("float16"))


@pytest.mark.parametrize("name", ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"])
def test_signed_with_unsigned(backend, context, name):
    a = np.array([-1, 0, 2**63 - 1, -(2**63), 5], "int64")
    b = np.array([2**64 - 1, 0, 2**63 - 1, 2**63, 5], "uint64")
    for x, y in ((a, b[:, None]), (b, a[:, None]), (a.astype("int8"), b[:, None])):
        assert same(binary(context, name, x, y), getattr(np, name)(x, y))


def test_negative_powers(backend, context):
    a = np.arange(40, dtype="int64")
    for exponent in (np.array(-1), np.where(a == 33, -2, 2)):
        with pytest.raises(EngineError, match="^Integers to negative integer powers are not allowed.$") as caught:
            binary(context, "power", a, exponent)
        assert caught.value.status == Status.BAD_VALUE
    assert same(binary(context, "power", a, a.astype("uint8")), np.power(a, a.astype("uint8")))


def test_where(backend, context):
    random = np.random.default_rng(1)
    condition = random.random((30, 40)) > 0.5
    for dtype in ALL:
        a, b = (np.resize(hard_values(dtype), (30, 40)), np.resize(hard_values(dtype)[::-1], (40,)))
        for x, y in ((a, b), (b, a), (a, b[3:4].reshape(())), (a[:, ::-1], a)):
            for out in (
                np.zeros((30, 40), dtype),
                np.zeros((40, 30), dtype).T,
                np.zeros((30, 40), np.result_type(dtype, "c16")),
            ):
                check(library.vme_where(context.handle, tensor(condition), tensor(x), tensor(y), tensor(out)))
                assert same(out.copy(), np.where(condition, x, y).astype(out.dtype)), dtype
    with pytest.raises(EngineError, match="bool"):
        check(library.vme_where(context.handle, tensor(a), tensor(a), tensor(a), tensor(out)))


def arange(context, start, step, count, dtype):
    out = np.zeros(count, dtype)
    check(
        library.vme_arange(
            context.handle,
            ctypes.c_double(start),
            ctypes.c_double(step),
            ctypes.c_int64(int(start)),
            ctypes.c_int64(int(step)),
            tensor(out),
        )
    )
    return out


@each("dtype", [*INTEGERS, *FLOATS, *COMPLEX])
def test_arange(backend, context, dtype):
    whole = np.dtype(dtype).kind in "iu"
    for start, step, count in (
        (0, 1, 100),
        (3, 2, 50),
        (100, -1, 50),
        *(() if whole else ((0.1, 0.1, 50), (1e-3, 1 / 3, 300))),
    ):
        assert same(
            arange(context, start, step, count, dtype), np.arange(start, start + step * (count - 0.5), step, dtype)
        ), (start, step)


def test_read_only_is_refused(context):
    a = np.zeros(3, "float32")
    buffer = ctypes.c_void_p()
    check(library.vme_buffer_new(context.handle, ctypes.c_size_t(12), True, ctypes.byref(buffer)))
    library.vme_buffer_ref(buffer)  # held elsewhere too: frozen for all holders
    library.vme_buffer_freeze(buffer)
    out = tensor(a)
    out._obj.buffer = buffer
    for call in (
        lambda: library.vme_binary(context.handle, 0, NUMBER[a.dtype], tensor(a), tensor(a), out),
        lambda: library.vme_unary(context.handle, 0, NUMBER[a.dtype], tensor(a), out),
        lambda: library.vme_arange(context.handle, ctypes.c_double(0), ctypes.c_double(1), 0, 1, out),
    ):
        with pytest.raises(EngineError, match="read-only") as caught:
            check(call())
        assert caught.value.status == Status.READ_ONLY
    library.vme_buffer_unref(buffer)
    library.vme_buffer_unref(buffer)


def test_shapes_that_do_not_fit(context):
    with pytest.raises(EngineError, match="could not broadcast") as caught:
        binary(context, "add", np.zeros(3), np.zeros((2, 3)), out=np.zeros((2, 2)))
    assert caught.value.status == Status.BAD_SHAPE


@pytest.mark.parametrize("size", [50_000, 3_000_000])
def test_stops(backend, context, size):
    a = np.ones(size, "float64")
    context.stop()
    for call in (
        lambda: binary(context, "power", a, a),
        lambda: unary(context, "exp", a),
        lambda: binary(context, "add", a, a),
        lambda: binary(context, "add", a, a.astype("float32")),
    ):
        with pytest.raises(EngineError) as caught:
            call()
        assert caught.value.status == Status.STOPPED
    context.stop(False)
    assert binary(context, "add", a, a)[-1] == 2


def test_refused_memory(backend):
    context = Context(refuse=0)
    a = np.arange(20.0)
    with pytest.raises(EngineError) as caught:  # an overlap needs a copy
        binary(context, "add", a[:10], a[:10], out=a[1:11])
    assert caught.value.status == Status.NO_MEMORY
    assert context.charged == 0 and (a == np.arange(20.0)).all()
    context.close()


def test_long_runs_from_any_place(backend, context):
    """The first elements up to a cache line are computed separately: none is skipped, computed twice, or written beyond
    the end."""
    a, b = np.arange(40_100.0), np.arange(40_100.0)[::-1].copy()
    for first, second, third in ((0, 0, 0), (1, 1, 0), (2, 2, 2), (3, 5, 1), (0, 0, 7), (4, 0, 4), (7, 6, 5)):
        for n in (4096, 40_000):
            x, y, out = a[first : first + n], b[second : second + n], np.full(40_100, -1.0)
            binary(context, "subtract", x, y, out[third : third + n])
            np.testing.assert_array_equal(out[third : third + n], x - y)
            binary(context, "add", out[third : third + n], y, out[third : third + n])
            np.testing.assert_array_equal(out[third : third + n], x)
            truth = np.full(40_100, 7, dtype="uint8").view(bool)
            binary(context, "less", x, y, truth[third : third + n])
            np.testing.assert_array_equal(truth[third : third + n], x < y)
            for written in (out, truth.view("uint8")):
                assert len(set(written[:third]) | set(written[third + n :])) == 1
            unary(context, "negative", x, out[third : third + n])
            np.testing.assert_array_equal(out[third : third + n], -x)
    wide = np.frombuffer(bytes(3) + a.tobytes(), dtype="uint8")[3:].view(
        "float64"
    )  # no element begins at a multiple of its size
    np.testing.assert_array_equal(unary(context, "negative", wide), -a)


def test_large(backend, context):
    """Divided work, also with casts, broadcasts and steps."""
    a = np.arange(1_300_000, dtype="int64").reshape(1000, 1300)
    row = np.arange(1300, dtype="float32")
    assert same(binary(context, "add", a, a), a + a)
    assert same(binary(context, "multiply", a, row), a * row)
    assert same(binary(context, "less", a[::-1, ::2], a[:, ::2]), a[::-1, ::2] < a[:, ::2])
    assert same(unary(context, "sqrt", a.T), np.sqrt(a.T))


def with_room(*shape):
    """A view of whole numbers whose rows have others after them."""
    whole = np.arange(math.prod(shape[:-1]) * (shape[-1] + 3), dtype="float32") % 1009 + 1
    return whole.reshape(*shape[:-1], -1)[..., : shape[-1]]


@pytest.mark.parametrize("outer", [(4100,), (61, 67), (5, 820, 1), (1366, 3)])
@pytest.mark.parametrize("width", [2, 3, 16, 17, 26])
def test_short_rows(backend, context, outer, width):
    """Many rows apart from one another: pieces of the work begin and end within rows and within the loops around them,
    and nothing between the rows is written."""
    a, b, each = with_room(*outer, width), with_room(*outer, width)[..., ::-1], with_room(*outer, 1)
    column, row = with_room(*outer[:-1], 1, 1), with_room(*outer[:-1], 1, width)
    for x, y in ((a, b), (a, each), (each, a), (a, column), (row, each), (row, a)):
        out = np.full((*outer, width + 2), -1, "float32")
        binary(context, "multiply", x, y, out=out[..., :width])
        np.testing.assert_array_equal(out[..., :width], x * y)
        assert (out[..., width:] == -1).all()
    np.testing.assert_array_equal(unary(context, "negative", a), -a)
    truth, out = a > b, np.zeros(a.shape, "float32")
    check(library.vme_where(context.handle, tensor(truth), tensor(a), tensor(each), tensor(out)))
    np.testing.assert_array_equal(out, np.where(truth, a, each))
    here = a.base.copy().reshape(*outer, -1)
    expected = here.copy()
    expected[..., :width] -= each
    binary(context, "subtract", here[..., :width], each, out=here[..., :width])
    np.testing.assert_array_equal(here, expected)
    powers = a.astype("int64")[..., :width] % 5
    bases = np.full((*outer, width + 1), 3)[..., :width]
    np.testing.assert_array_equal(binary(context, "power", bases, powers), bases**powers)
    powers[(-1,) * powers.ndim] = -1
    with pytest.raises(EngineError, match="negative integer powers"):
        binary(context, "power", bases, powers)


def test_rank_64(backend, context):
    a = np.arange(2**6, dtype="int32").reshape([1, 2] * 6 + [1] * 52)
    b = a.transpose(range(63, -1, -1)).reshape(a.shape)
    assert same(binary(context, "add", a, b), a + b)
