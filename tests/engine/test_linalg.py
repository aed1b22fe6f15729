"""`vmhost.engine.numpy.linalg` against NumPy's: values, dtypes, errors; batches; without LAPACK; stopped in the
middle."""

import subprocess
import sys

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vmhost
import vmhost.engine.numpy as np
from tests.batches import each
from tests.hosts import bundle, stopped_by_its_deadline, until

DTYPES = ["float32", "float64", "complex64", "complex128", "int64"]


def matrix(seed, shape, dtype):
    random = numpy.random.default_rng(seed)
    result = random.normal(size=shape) * 3
    return (result + 1j * random.normal(size=shape) if dtype.startswith("complex") else result).astype(dtype)


def compare(got, wanted, dtype, signs=True):
    """Values to rounding of the dtype; without `signs` only absolute values, where those of vectors are free."""
    tolerance = 1e-3 if dtype in ("float32", "complex64") else 1e-7
    for one, other in zip(*[x if isinstance(x, tuple) else (x,) for x in (got, wanted)], strict=True):
        one, other = numpy.asarray(one), numpy.asarray(other)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        if not signs:
            one, other = abs(one), abs(other)
        scale = max(1.0, abs(other).max(initial=0)) if numpy.isfinite(other).all() else 1.0
        numpy.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * scale)


square = st.tuples(st.lists(st.integers(0, 3), max_size=2), st.integers(1, 7)).map(lambda x: (*x[0], x[1], x[1]))
any_shape = st.tuples(st.lists(st.integers(0, 3), max_size=2), st.integers(1, 7), st.integers(1, 7)).map(
    lambda x: (*x[0], x[1], x[2])
)
seeds, dtypes = st.integers(0, 2**32 - 1), st.sampled_from(DTYPES[:4])


@pytest.mark.usefixtures("backend")
@settings(max_examples=60, deadline=None)
@given(shape=square, seed=seeds, dtype=dtypes, name=st.sampled_from(["inv", "det", "slogdet", "eig", "eigvals"]))
def test_square_matrices(shape, seed, dtype, name):
    a = matrix(seed, shape, dtype) + 9 * numpy.eye(shape[-1], dtype=dtype)
    compare(getattr(np.linalg, name)(np.asarray(a)), getattr(numpy.linalg, name)(a), dtype)


@pytest.mark.usefixtures("backend")
@settings(max_examples=60, deadline=None)
@given(shape=square, seed=seeds, dtype=dtypes, upper=st.booleans())
def test_hermitian_matrices(shape, seed, dtype, upper):
    a = matrix(seed, shape, dtype)
    a = a @ a.conj().swapaxes(-1, -2) + numpy.eye(shape[-1], dtype=dtype)
    compare(np.linalg.cholesky(np.asarray(a), upper=upper), numpy.linalg.cholesky(a, upper=upper), dtype)
    uplo = "U" if upper else "L"
    compare(np.linalg.eigvalsh(np.asarray(a), uplo), numpy.linalg.eigvalsh(a, uplo), dtype)
    w, v = np.linalg.eigh(np.asarray(a), uplo)
    back = numpy.asarray(v) * numpy.asarray(w)[..., None, :] @ numpy.asarray(v).conj().swapaxes(-1, -2)
    numpy.testing.assert_allclose(back, a, rtol=1e-3, atol=1e-3 * max(1, abs(a).max(initial=0)))


@pytest.mark.usefixtures("backend")
@settings(max_examples=60, deadline=None)
@given(shape=any_shape, seed=seeds, dtype=dtypes, mode=st.sampled_from(["reduced", "complete", "r", "raw"]))
def test_any_matrices(shape, seed, dtype, mode):
    a = matrix(seed, shape, dtype)
    compare(np.linalg.qr(np.asarray(a), mode), numpy.linalg.qr(a, mode), dtype)
    compare(np.linalg.svd(np.asarray(a), compute_uv=False), numpy.linalg.svd(a, compute_uv=False), dtype)
    for full in (False, True):
        got, wanted = np.linalg.svd(np.asarray(a), full_matrices=full), numpy.linalg.svd(a, full_matrices=full)
        assert [part.shape for part in got] == [part.shape for part in wanted]
    compare(np.linalg.svd(np.asarray(a), False), numpy.linalg.svd(a, False), dtype, signs=False)
    if a.size:
        compare(np.linalg.pinv(np.asarray(a)), numpy.linalg.pinv(a), dtype)


@pytest.mark.usefixtures("backend")
@settings(max_examples=60, deadline=None)
@given(shape=square, seed=seeds, dtype=st.sampled_from(DTYPES), columns=st.one_of(st.none(), st.integers(0, 4)))
def test_equations(shape, seed, dtype, columns):
    a = (matrix(seed, shape, dtype) + 60 * numpy.eye(shape[-1])).astype(dtype)
    b = matrix(seed + 1, shape[-1:] if columns is None else (*shape[:-1], columns), "float64")
    compare(
        np.linalg.solve(np.asarray(a), np.asarray(b)),
        numpy.linalg.solve(a, b),
        dtype if dtype == "complex64" else "float64",
    )


@pytest.mark.usefixtures("backend")
@each("shape", [(5, 3), (3, 5), (4, 4), (1, 1), (80, 10)])
@each("dtype", DTYPES[:4])
def test_least_squares(shape, dtype):
    a, b = matrix(1, shape, dtype), matrix(2, (shape[0], 2), dtype)
    compare(tuple(np.linalg.lstsq(np.asarray(a), np.asarray(b))), numpy.linalg.lstsq(a, b), dtype)
    compare(np.linalg.lstsq(np.asarray(a), np.asarray(b[:, 0]))[0], numpy.linalg.lstsq(a, b[:, 0])[0], dtype)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("size", [65, 130])
@pytest.mark.parametrize("name", ["inv", "slogdet", "cholesky"])
def test_large_matrices_go_to_lapack_and_agree_with_small_ones(name, size):
    a = matrix(3, (size, size), "float64")
    a = a @ a.T + numpy.eye(size)
    compare(getattr(np.linalg, name)(np.asarray(a)), getattr(numpy.linalg, name)(a), "float64")


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("order", [None, "fro", "nuc", 1, -1, 2, -2, float("inf"), -float("inf")])
def test_matrix_norms(order):
    a = matrix(4, (3, 4, 5), "float64")
    for keep in (False, True):
        compare(
            np.linalg.norm(np.asarray(a), order, (0, 2), keep), numpy.linalg.norm(a, order, (0, 2), keep), "float64"
        )
    compare(
        np.linalg.matrix_norm(np.asarray(a), ord=order or "fro"),
        numpy.linalg.matrix_norm(a, ord=order or "fro"),
        "float64",
    )
    if order not in ("fro", "nuc"):
        compare(np.linalg.norm(np.asarray(a[0]), order), numpy.linalg.norm(a[0], order), "float64")
        square = a[:, :, :4]
        compare(
            np.linalg.cond(np.asarray(square[:, :4, :][:, :4]), order) if square.shape[1] == 4 else 0,
            numpy.linalg.cond(square[:, :4], order) if square.shape[1] == 4 else 0,
            "float64",
        )


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("order", [None, 0, 1, -1, 2, 3, 0.5, float("inf"), -float("inf")])
def test_vector_norms(order):
    for dtype in ("float32", "float64", "complex128", "int64"):
        a = matrix(5, (3, 4), dtype)
        a[a == 0] = 1
        compare(np.linalg.norm(np.asarray(a), order, 1), numpy.linalg.norm(a, order, 1), dtype)
        compare(np.linalg.norm(np.asarray(a[0]), order), numpy.linalg.norm(a[0], order), dtype)
        if order is not None:
            compare(np.linalg.vector_norm(np.asarray(a), ord=order), numpy.linalg.vector_norm(a, ord=order), dtype)


@pytest.mark.usefixtures("backend")
def test_products_and_powers():
    a, b, c = (matrix(seed, shape, "float64") for seed, shape in ((6, (3, 3)), (7, (3, 8)), (8, (8, 2))))
    e, f, g = map(np.asarray, (a, b, c))
    for n in (-3, -1, 0, 1, 2, 3, 5, 8):
        compare(np.linalg.matrix_power(e, n), numpy.linalg.matrix_power(a, n), "float64")
    compare(np.linalg.multi_dot([e, f, g]), numpy.linalg.multi_dot([a, b, c]), "float64")
    compare(np.linalg.multi_dot([e[0], f, g, g[0]]), numpy.linalg.multi_dot([a[0], b, c, c[0]]), "float64")
    compare(np.linalg.matrix_rank(np.outer(e[0], e[1])), numpy.linalg.matrix_rank(numpy.outer(a[0], a[1])), "float64")
    compare(np.linalg.outer(e[0], f[0]), numpy.linalg.outer(a[0], b[0]), "float64")
    compare(np.linalg.cross(e, e[::-1]), numpy.linalg.cross(a, a[::-1]), "float64")
    compare(np.linalg.diagonal(f, offset=1), numpy.linalg.diagonal(b, offset=1), "float64")
    compare(np.linalg.trace(f), numpy.linalg.trace(b), "float64")
    t = matrix(9, (2, 3, 6), "float64")
    compare(np.linalg.tensorinv(np.asarray(t)), numpy.linalg.tensorinv(t), "float64")
    compare(
        np.linalg.tensorsolve(np.asarray(t), np.asarray(t[:, :, 0])), numpy.linalg.tensorsolve(t, t[:, :, 0]), "float64"
    )


@pytest.mark.parametrize(
    "wrong",
    [
        lambda m: m.linalg.inv(m.zeros((3, 3))),
        lambda m: m.linalg.inv(m.zeros((70, 70))),
        lambda m: m.linalg.cholesky(-m.eye(3)),
        lambda m: m.linalg.solve(m.eye(3), m.ones(4)),
        lambda m: m.linalg.solve(m.eye(3), m.ones((4, 1))),
        lambda m: m.linalg.inv(m.ones((2, 3))),
        lambda m: m.linalg.eig(m.asarray([[float("nan"), 1], [1, 1]])),
        lambda m: m.linalg.det(m.asarray(3.0)),
        lambda m: m.linalg.inv(m.ones((2, 2), dtype="float16")),
        lambda m: m.linalg.qr(m.eye(2), "fast"),
        lambda m: m.linalg.lstsq(m.eye(2), m.ones(3)),
        lambda m: m.linalg.matrix_power(m.eye(2), 1.5),
        lambda m: m.linalg.svd(m.ones(3)),
    ],
)
def test_errors_are_numpys(wrong):
    said = []
    for module in (np, numpy):
        with pytest.raises((ValueError, TypeError)) as caught:
            wrong(module)
        said.append((type(caught.value).__name__, str(caught.value)))
    assert said[0] == said[1]


def test_without_lapack_it_says_what_to_install_and_solves_equations_all_the_same():
    program = """if True:
        import importlib.util, sys
        found = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *more: None if name == "scipy_openblas32" else found(name, *more)
        import vmhost.engine.numpy as np
        a = np.eye(100) * 4
        assert np.linalg.solve(a, np.ones(100))[99] == 0.25 and abs(np.linalg.det(a[:3, :3]) - 64) < 1e-9
        try:
            np.linalg.svd(a)
        except NotImplementedError as error:
            print(error)
    """
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "pip install scipy-openblas32" in told


TASK = """
    import vmhost.engine.numpy as np

    def factors(a):
        a = np.asarray(a)
        u, s, vh = np.linalg.svd(a)
        return [np.linalg.solve(a, np.ones(len(a))), s, np.linalg.eigvals(a), np.linalg.qr(a)[1]]

    def for_ever(size):
        while True:
            np.linalg.svd(np.ones((size, size)) + np.eye(size))
"""


def test_in_a_sealed_vm():
    a = matrix(10, (9, 9), "float64") + 9 * numpy.eye(9)
    with vmhost.Host(allow_unsigned=True) as host:
        got = host.load(bundle(TASK, name="linalg"))(a, entry="main:factors")
    wanted = [
        numpy.linalg.solve(a, numpy.ones(9)),
        numpy.linalg.svd(a)[1],
        numpy.linalg.eigvals(a),
        numpy.linalg.qr(a)[1],
    ]
    for one, other in zip(got, wanted, strict=True):
        compare(one, other, "float64")


def test_a_stop_abandons_lapack():
    """A factorization cannot be interrupted: the VM still ends by itself, nothing is lost or quarantined, and its
    thread is counted until it ends."""
    host = vmhost.Host(allow_unsigned=True)
    try:
        task = host.load(bundle(TASK, name="linalg-stop", limits={"memory": "1 GiB"}))
        task(numpy.eye(3), entry="main:factors")  # a VM that has imported everything: the stop meets the factorization
        stopped_by_its_deadline(task, 1200, "for_ever", lambda error: host.statistics().abandoned_threads == 1)
        assert task(numpy.eye(3), entry="main:factors") is not None
        assert until(lambda: host.statistics().abandoned_threads == 0)
    finally:
        assert not host.close()


SLOW_END = """
#include <unistd.h>
__attribute__((destructor)) static void end(void) { usleep(300000); }
"""
EXIT = """
import ctypes, psutil, sys, threading
import vmhost.engine.numpy as np
np.linalg.svd(np.eye(3))
ctypes.CDLL(sys.argv[1])
def others():
    return sum(thread.user_time for thread in psutil.Process().threads() if thread.id != threading.get_native_id())
before = others()
def work():
    while True:         # one may be through before the other thread has seen it
        np.linalg.svd(np.ones((SIZE, SIZE)) + np.eye(SIZE))
threading.Thread(target=work, daemon=True).start()
while others() < before + 0.1:
    pass
print("leaves")
sys.exit(3)
"""


@pytest.mark.parametrize("size", [600, 3000], ids=["ends within a second", "does not"])
def test_a_process_exits_while_lapack_works(size, tmp_path):
    """OpenBLAS unmaps its buffers at exit; a factorization that went on died of it, in the time that the ends of
    libraries opened later take."""
    slow = tmp_path / "slow.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-xc", "-", "-o", str(slow)], input=SLOW_END, text=True, check=True)
    done = subprocess.run(
        [sys.executable, "-c", EXIT.replace("SIZE", str(size)), str(slow)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "leaves\n", "")


OF_NAN = {
    "svdvals": lambda m, x: m.linalg.svdvals(x),
    "svd": lambda m, x: m.linalg.svd(x),
    "svd, full": lambda m, x: m.linalg.svd(x, full_matrices=False),
    "svd, hermitian": lambda m, x: m.linalg.svd(x, hermitian=True),
    "norm 2": lambda m, x: m.linalg.norm(x, 2, axis=(-2, -1)),
    "norm -2": lambda m, x: m.linalg.norm(x, -2, axis=(-2, -1)),
    "norm nuc": lambda m, x: m.linalg.norm(x, "nuc", axis=(-2, -1)),
    "matrix_norm": lambda m, x: m.linalg.matrix_norm(x, ord=2),
    "matrix_rank": lambda m, x: m.linalg.matrix_rank(x),
    "pinv": lambda m, x: m.linalg.pinv(x),
    "cond": lambda m, x: m.linalg.cond(x),
    "cond -2": lambda m, x: m.linalg.cond(x, -2),
    "cond 1": lambda m, x: m.linalg.cond(x, 1),
    "cond nuc": lambda m, x: m.linalg.cond(x, "nuc"),
    "eig": lambda m, x: m.linalg.eig(x),
    "eigvals": lambda m, x: m.linalg.eigvals(x),
    "eigh": lambda m, x: m.linalg.eigh(x),
    "eigvalsh": lambda m, x: m.linalg.eigvalsh(x),
    "qr": lambda m, x: m.linalg.qr(x),
    "qr, complete": lambda m, x: m.linalg.qr(x, mode="complete"),
    "qr, raw": lambda m, x: m.linalg.qr(x, mode="raw"),
    "inv": lambda m, x: m.linalg.inv(x),
    "det": lambda m, x: m.linalg.det(x),
    "slogdet": lambda m, x: m.linalg.slogdet(x),
    "cholesky": lambda m, x: m.linalg.cholesky(x),
    "solve": lambda m, x: m.linalg.solve(x, x),
    "lstsq": lambda m, x: m.linalg.lstsq(x, m.ones((x.shape[0], 2))),
}


@each("name, shape", [(name, shape) for name in OF_NAN for shape in [(2, 2), (3, 2), (2, 3), (70, 70), (3, 2, 2)]])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_nan_gives_numpys_error_or_its_nan(name, shape):
    """The first matrices hold old numbers, so that outputs which nobody writes are not NaN by chance."""
    call = OF_NAN[name]
    for dtype in DTYPES[:4]:
        x = matrix(3, shape, dtype)
        x[..., 1, 1] = numpy.nan
        with_nan = [x]
        if len(shape) == 3:  # one of the batch only
            with_nan.append(matrix(3, shape, dtype))
            with_nan[1][1, 1, 1] = numpy.nan
        for x in with_nan:
            results = []
            for m in (numpy, np):
                try:
                    result = call(m, m.asarray(x))
                except ValueError as error:  # LinAlgError
                    result = f"{type(error).__name__}: {error}"
                results.append(result)
            wanted, got = results
            if isinstance(wanted, str) or isinstance(got, str):
                assert got == wanted, (name, shape, dtype)
            elif name.startswith(("eig", "svd")):  # NumPy's are NaN or values that rounding decides
                for one, other in zip(*[r if isinstance(r, tuple) else (r,) for r in (got, wanted)], strict=True):
                    one = numpy.asarray(one)
                    assert (numpy.isnan(one) == numpy.isnan(other)).all(), (name, shape, dtype)
            else:
                compare(got, wanted, dtype)


@each("dtype", ["float32", "complex64"])
def test_determinants_are_rounded_once(dtype):
    """They are computed in double precision: a logarithm rounded to float32 costs digits."""
    a = matrix(5, (30, 30), dtype)
    wanted = numpy.linalg.det(a)
    assert abs(np.linalg.det(np.asarray(a)) - wanted) <= abs(wanted) * 2 * numpy.finfo(dtype).eps


def test_condition_of_singular_matrices():
    for x in (numpy.zeros((2, 2)), numpy.ones((3, 3)), numpy.stack([numpy.eye(2), numpy.zeros((2, 2))])):
        for p in (None, 2, -2, 1, "fro", "nuc", numpy.inf):
            got, wanted = np.linalg.cond(np.asarray(x), p), numpy.linalg.cond(x, p)
            numpy.testing.assert_allclose(
                numpy.where(numpy.asarray(got) > 1e15, numpy.inf, got), numpy.where(wanted > 1e15, numpy.inf, wanted)
            )


def test_hermitian_singular_values_keep_their_rows():
    got = np.linalg.svd(np.asarray([[1.0, 0], [0, 0]]), hermitian=True)
    compare(got, tuple(numpy.linalg.svd(numpy.array([[1.0, 0], [0, 0]]), hermitian=True)), "float64")
    u, s, vt = (numpy.asarray(part) for part in got)
    numpy.testing.assert_allclose(vt @ vt.T, numpy.eye(2), atol=1e-12)
