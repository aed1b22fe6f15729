"""`vmhost.engine.numpy.random` against numpy.random.Generator(Philox): the same streams for the same seed, every
distribution; in a sealed VM."""

import numpy
import pytest

import vmhost
import vmhost.engine.numpy as np
from tests.batches import each
from tests.hosts import bundle

pytestmark = pytest.mark.usefixtures("backend")  # every test on each backend

SIZE = 3000


def both(seed=12345):
    return np.random.default_rng(seed), numpy.random.Generator(numpy.random.Philox(seed))


def same(got, wanted, tolerance=1e-11):
    got, wanted = numpy.asarray(got), numpy.asarray(wanted)
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    if wanted.dtype.kind == "f":
        numpy.testing.assert_allclose(
            got, wanted, rtol=1e-4 if wanted.dtype == numpy.float32 else tolerance, atol=1e-12
        )
    else:
        numpy.testing.assert_array_equal(got, wanted)


CASES = {
    "random": ((), {}),
    "random float32": ((), {"dtype": "float32"}),
    "uniform": ((-2.0, 5.0), {}),
    "standard_normal": ((), {}),
    "standard_normal float32": ((), {"dtype": "float32"}),
    "normal": ((3.0, 0.5), {}),
    "lognormal": ((0.1, 0.7), {}),
    "standard_exponential": ((), {}),
    "standard_exponential float32": ((), {"dtype": "float32"}),
    "standard_exponential inverse": ((), {"method": "inv"}),
    "exponential": ((2.5,), {}),
    "standard_gamma": ((2.3,), {}),
    "standard_gamma small": ((0.3,), {}),
    "standard_gamma float32": ((2.5,), {"dtype": "float32"}),
    "gamma": ((1.5, 2.0), {}),
    "beta": ((0.5, 0.7), {}),
    "beta large": ((2.0, 3.0), {}),
    "chisquare": ((3.0,), {}),
    "f": ((3.0, 5.0), {}),
    "standard_t": ((4.0,), {}),
    "standard_cauchy": ((), {}),
    "pareto": ((3.0,), {}),
    "weibull": ((1.5,), {}),
    "power": ((2.5,), {}),
    "rayleigh": ((2.0,), {}),
    "laplace": ((1.0, 2.0), {}),
    "gumbel": ((1.0, 2.0), {}),
    "logistic": ((1.0, 2.0), {}),
    "wald": ((1.0, 2.0), {}),
    "vonmises": ((0.5, 2.0), {}),
    "vonmises wide": ((0.5, 1e-6), {}),
    "vonmises narrow": ((0.5, 1e7), {}),
    "triangular": ((-1.0, 0.5, 2.0), {}),
    "noncentral_chisquare": ((3.0, 2.0), {}),
    "noncentral_chisquare small": ((0.5, 2.0), {}),
    "poisson": ((3.0,), {}),
    "poisson large": ((300.0,), {}),
    "binomial": ((10, 0.3), {}),
    "binomial large": ((1000, 0.4), {}),
    "binomial likely": ((1000, 0.9), {}),
    "geometric": ((0.5,), {}),
    "geometric rare": ((0.01,), {}),
    "negative_binomial": ((5.0, 0.4), {}),
    "logseries": ((0.7,), {}),
    "zipf": ((2.5,), {}),
    **{
        f"integers {dtype}": ((0, high), {"dtype": dtype})
        for dtype, high in (
            ("int8", 100),
            ("uint8", 7),
            ("int16", 1000),
            ("uint16", 65536),
            ("int32", 10**6),
            ("uint32", 2**32),
            ("int64", 10),
            ("int64", 2**40),
            ("bool", 2),
        )
    },
    "integers wide": ((-(2**63), 2**63 - 1), {"endpoint": True}),
    "integers half": ((0, 2**32), {}),
    "integers one": ((4, 5), {}),
    "choice": ((50,), {}),
    "choice weighted": ((4,), {"p": [0.1, 0.2, 0.3, 0.4]}),
    "dirichlet": (([0.5, 2.0, 3.0],), {}),
    **{
        f"hypergeometric {n}": (counts, {})
        for n, counts in enumerate(
            [
                (5, 4, 3),
                (5, 4, 8),
                (15, 4, 9),
                (100, 50, 30),
                (50, 100, 120),
                (7000, 20, 500),
                (0, 5, 3),
                (5, 0, 3),
                (20, 20, 0),
            ]
        )
    },
    "multivariate_hypergeometric": (([16, 8, 4], 6), {}),
    "multivariate_hypergeometric most": (([160, 80, 40, 0], 250), {}),
    "multivariate_hypergeometric count": (([16, 8, 4], 6), {"method": "count"}),
    "multivariate_hypergeometric count most": (([16, 0, 4], 17), {"method": "count"}),
    "noncentral_f": ((3.0, 5.0, 2.0), {}),
    "noncentral_f central": ((3.0, 5.0, 0.0), {}),
    "dirichlet small": (([0.01, 0.02, 0.03],), {}),
}


@each("case", CASES)
def test_the_stream_is_numpys(case):
    name, (args, kwargs) = case.split()[0], CASES[case]
    ours, theirs = both()
    sizes = (
        (SIZE, (3, 5), 7) if "float32" in case else (SIZE, (3, 5), None, 7)
    )  # NumPy has Python floats for single numbers
    for size in sizes:
        same(
            getattr(ours, name)(*args, size=size, **kwargs),
            getattr(theirs, name)(*args, size=size, **kwargs),
            1e-6 if "dirichlet" in case else 1e-9,
        )
    assert ours.integers(0, 1 << 60) == theirs.integers(0, 1 << 60)  # both have taken the same words


def test_words_and_state():
    ours, theirs = np.random.Philox(key=2**70 + 3, counter=5), numpy.random.Philox(key=2**70 + 3, counter=5)
    for count in (1, 3, 4, 5, 31, 32, 33, 1000):
        same(ours.random_raw(count), theirs.random_raw(count))
        mine, numpys = ours.state, theirs.state
        assert (
            int(mine["buffer_pos"]) == numpys["buffer_pos"]
            and mine["state"]["counter"].tolist() == numpys["state"]["counter"].tolist()
        )
    saved = ours.state
    first = ours.random_raw(10)
    ours.state = saved
    same(ours.random_raw(10), numpy.asarray(first))
    for seed in (0, 1, 2**100, [1, 2, 3]):
        same(np.random.Philox(seed).random_raw(5), numpy.random.Philox(seed).random_raw(5))
        same(
            np.random.SeedSequence(seed).spawn(2)[1].generate_state(5),
            numpy.random.SeedSequence(seed).spawn(2)[1].generate_state(5),
        )
    same(np.random.Philox(9).jumped(2).random_raw(3), numpy.random.Philox(9).jumped(2).random_raw(3))


def test_parameters_broadcast():
    ours, theirs = both()
    means, widths = numpy.arange(4.0), numpy.array([[0.5], [2.0]])
    same(ours.normal(means, np.asarray(widths)), theirs.normal(means, widths), 1e-9)
    same(ours.normal(0, np.asarray(widths), (3, 2, 4)), theirs.normal(0, widths, (3, 2, 4)), 1e-9)
    same(ours.poisson(np.asarray(means) + 1), theirs.poisson(means + 1))
    same(ours.gamma(np.asarray(widths), means + 1.0), theirs.gamma(widths, means + 1.0), 1e-9)
    same(ours.integers(np.asarray([0, 5, 10]), [3, 100, 10**12]), theirs.integers([0, 5, 10], [3, 100, 10**12]))
    same(ours.uniform([0, 10], [1, 20]), theirs.uniform([0, 10], [1, 20]))


@pytest.mark.parametrize("wrong", [(-1, 2, 1), (1, -2, 1), (1, 2, -1), (1, 2, 4), (10**9, 1, 1)])
def test_urns_that_cannot_be(wrong):
    for generator in both():
        with pytest.raises(ValueError):
            generator.hypergeometric(*wrong)
        with pytest.raises(ValueError):
            generator.multivariate_hypergeometric(wrong[:2], wrong[2])


def test_order_and_choice():
    ours, theirs = both()
    a = numpy.arange(24).reshape(4, 6)
    same(ours.permutation(10), theirs.permutation(10))
    same(ours.permutation(np.asarray(a), axis=1), theirs.permutation(a, axis=1))
    for axis in (None, 0, 1):
        same(ours.permuted(np.asarray(a), axis=axis), theirs.permuted(a, axis=axis))
    mine, numpys = np.asarray(a.copy()), a.copy()
    ours.shuffle(mine, axis=1)
    theirs.shuffle(numpys, axis=1)
    same(mine, numpys)
    listed, other = list("abcdefg"), list("abcdefg")
    ours.shuffle(listed)
    theirs.shuffle(other)
    assert listed == other
    same(ours.choice(20, 5, replace=False), theirs.choice(20, 5, replace=False))
    same(ours.choice(20000, 1000, replace=False), theirs.choice(20000, 1000, replace=False))
    same(ours.choice(30, 8, replace=False, shuffle=False), theirs.choice(30, 8, replace=False, shuffle=False))
    chances = numpy.arange(1.0, 11) / 55
    same(ours.choice(10, 6, replace=False, p=chances), theirs.choice(10, 6, replace=False, p=chances))
    same(ours.choice(np.asarray(a), 3, axis=1), theirs.choice(a, 3, axis=1))
    assert ours.bytes(9) == theirs.bytes(9)


def test_vectors():
    ours, theirs = both()
    mean, cov = [1.0, 2.0, 3.0], [[2.0, 0.3, 0.1], [0.3, 1.0, 0.2], [0.1, 0.2, 0.5]]
    for method in ("cholesky", "eigh", "svd"):
        got, wanted = (
            ours.multivariate_normal(mean, cov, 5, method=method),
            theirs.multivariate_normal(mean, cov, 5, method=method),
        )
        same(got, wanted, 1e-7)
    same(ours.multinomial(20, [0.2, 0.3, 0.5], 4), theirs.multinomial(20, [0.2, 0.3, 0.5], 4))
    same(
        ours.multinomial([[5], [50]], [[0.2, 0.3, 0.5], [0.1, 0.1, 0.8]]),
        theirs.multinomial([[5], [50]], [[0.2, 0.3, 0.5], [0.1, 0.1, 0.8]]),
    )
    same(ours.multinomial([5, 50], [0.2, 0.8], (3, 2)), theirs.multinomial([5, 50], [0.2, 0.8], (3, 2)))


@each(
    "wrong",
    [
        lambda r: r.normal(0, -1),
        lambda r: r.integers(5, 5),
        lambda r: r.integers(0, 300, dtype="uint8"),
        lambda r: r.choice(3, 4, replace=False),
        lambda r: r.choice(3, p=[0.5, 0.5]),
        lambda r: r.binomial(3, 1.5),
        lambda r: r.gamma(-1),
        lambda r: r.uniform(2, 1),
        lambda r: r.choice(0, 1),
        lambda r: r.beta(0, 1),
    ],
)
def test_errors_are_valueerrors(wrong):
    for generator in both():
        with pytest.raises(ValueError):
            wrong(generator)


def test_in_a_sealed_vm():
    with vmhost.Host(allow_unsigned=True) as host:
        task = host.load(
            bundle(
                """
            import vmhost.engine.numpy as np

            def run(seed):
                random = np.random.default_rng(seed)
                return [random.normal(size=5), random.integers(0, 10, 5), random.permutation(6),
                        np.random.default_rng().random() < 1]
        """,
                name="random",
            )
        )
        normals, integers, order, below = task(7)
    theirs = both(7)[1]
    same(normals, theirs.normal(size=5), 1e-9)
    same(integers, theirs.integers(0, 10, 5))
    same(order, theirs.permutation(6))
    assert below


DRAWS = [
    lambda g, n: g.random(n),
    lambda g, n: g.random(n, dtype="float32"),
    lambda g, n: g.standard_normal(n),
    lambda g, n: g.standard_normal(n, dtype="float32"),
    lambda g, n: g.standard_exponential(n),
    lambda g, n: g.standard_exponential(n, dtype="float32"),
    lambda g, n: g.integers(0, 1000, n),
    lambda g, n: g.integers(0, 3 * 10**9, n),
    lambda g, n: g.integers(0, 2**40, n),
    lambda g, n: g.integers(-5, 100, n, dtype="int32"),
    lambda g, n: g.integers(0, 200, n, dtype="uint8"),
    lambda g, n: g.integers(0, 2**32, n, dtype="uint32"),
    lambda g, n: g.integers(-100, 2000, n, dtype="int16"),
    lambda g, n: g.poisson(3, n),
    lambda g, n: g.binomial(10, 0.3, n),
    lambda g, n: g.permutation(n),
]


def test_draws_of_any_kind_after_any_other(backend):
    """Each leaves the same state as NumPy, with half words and begun blocks."""
    ours, theirs = both()
    order = numpy.random.default_rng(7)
    for _ in range(300):
        draw, n = DRAWS[order.integers(len(DRAWS))], int(order.choice([1, 2, 3, 5, 63, 64, 65, 300]))
        same(draw(ours, n), draw(theirs, n))
        here, there = ours.bit_generator.state, theirs.bit_generator.state
        assert (here["has_uint32"], here["uinteger"], here["buffer_pos"]) == (
            there["has_uint32"],
            there["uinteger"],
            there["buffer_pos"],
        )
        numpy.testing.assert_array_equal(here["state"]["counter"], there["state"]["counter"])


NAN = float("nan")
# Distribution -> parameters, each of which may be NaN.
MAYBE_NAN = {
    "beta": (2.0, 3.0),
    "chisquare": (2.0,),
    "exponential": (2.0,),
    "f": (2.0, 3.0),
    "gamma": (2.0, 3.0),
    "gumbel": (0.0, 1.0),
    "laplace": (0.0, 1.0),
    "logistic": (0.0, 1.0),
    "lognormal": (0.0, 1.0),
    "noncentral_chisquare": (2.0, 3.0),
    "noncentral_f": (2.0, 3.0, 4.0),
    "normal": (0.0, 1.0),
    "pareto": (2.0,),
    "power": (2.0,),
    "rayleigh": (2.0,),
    "standard_gamma": (2.0,),
    "standard_t": (2.0,),
    "triangular": (0.0, 1.0, 2.0),
    "vonmises": (0.0, 1.0),
    "wald": (1.0, 2.0),
    "weibull": (2.0,),
}


@each("name", MAYBE_NAN)
def test_a_parameter_that_is_nan_makes_nan(name):
    values = MAYBE_NAN[name]
    for at in range(len(values)):
        one = [NAN if i == at else value for i, value in enumerate(values)]
        some = [[value, NAN, value] if i == at else value for i, value in enumerate(values)]
        for draw in (getattr(np.random.default_rng(3), name), getattr(np.random.RandomState(3), name, None)):
            if draw is None:
                continue
            assert numpy.isnan(numpy.asarray(draw(*one))).all()
            assert numpy.isnan(numpy.asarray(draw(*one, size=(2, 2)))).tolist() == [[True] * 2] * 2
            assert numpy.isnan(numpy.asarray(draw(*some))).tolist() == [False, True, False]
    out = np.zeros(2, "f4")
    assert np.isnan(np.random.default_rng(3).standard_gamma(NAN, dtype="f4", out=out)).all() and np.isnan(out).all()


def test_counts_that_are_nan_are_refused_and_shares_are_nan():
    for make in (np.random.default_rng, np.random.RandomState):
        assert numpy.isnan(numpy.asarray(make(3).dirichlet([NAN, 1.0], 2))).tolist() == [[True] * 2] * 2
        for wrong in (lambda rng: rng.poisson(NAN), lambda rng: rng.poisson([1, NAN])):
            with pytest.raises(ValueError, match="lam"):
                wrong(make(3))
    rng = np.random.default_rng(3)
    for wrong in (
        lambda: rng.binomial(NAN, 0.5),
        lambda: rng.binomial(5, NAN),
        lambda: rng.negative_binomial(NAN, 0.5),
        lambda: rng.geometric(NAN),
        lambda: rng.zipf(NAN),
        lambda: rng.multinomial(5, [NAN, 0.5]),
        lambda: rng.choice(2, p=[NAN, 0.5]),
    ):
        with pytest.raises(ValueError):
            wrong()
