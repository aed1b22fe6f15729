"""RandomState and the functions of numpy.random's old interface draw NumPy's numbers for a seed, in the host and in a
VM."""

import numpy
import pytest

import vmhost
import vmhost.engine.numpy as np
from tests.batches import each
from tests.engine.cases import again_in_a_vm, check, host_of_cases, outcomes  # noqa: F401 - two are fixtures
from tests.engine.test_array_expressions import assert_near
from tests.hosts import bundle

pytestmark = pytest.mark.usefixtures("again_in_a_vm")

DRAWS = """
    rand(); rand(3); rand(2, 2); random_sample((2, 0)); random_sample(()); random((2, 3)); uniform(-1, 1, 5);
    uniform([0, 10], 20, (3, 2)); uniform(5); standard_normal(); standard_normal(4); randn(3); randn(1, 2);
    normal(5, 2, (2, 2)); normal([1, 2], [.1, .2]); normal(size=3); lognormal(1, .5, 3); standard_cauchy(3);
    exponential(2, 4); standard_exponential(); laplace(0, 1, 6); gumbel(1, 2, 3); logistic(1, 2, 3); rayleigh(2, 3);
    weibull(1.5, 3); weibull(0); weibull([0, 1, 2]); pareto(2, 3); power(3, 3); triangular(0, 1, 3, 5);
    standard_gamma(.5, 9); standard_gamma([0, 1]); gamma(3, 2, 5); gamma([1, .3], 2); chisquare(3, 2); standard_t(5, 3);
    beta(2, 3, 3); beta(.5, .4, 3); beta(1e-200, 1e-200); dirichlet([1, 2, 3], 2); dirichlet([1, 2, 3]); poisson(3, 6);
    poisson(30, 20); poisson([1, 50]); poisson(0); randint(5); randint(0, 1000, (3, 3)); randint(-5, 5, 4, dtype='i1');
    randint(0, 256, 9, dtype='u1'); randint(0, 70, 9, dtype='u1'); randint(0, 7000, 9, dtype='i2');
    randint(0, 2, 40, dtype=bool); randint(0, 1, 3, dtype=bool); randint(0, 2**40, 5); randint(0, 2**32, 5);
    randint(0, 2**33-5, 5); randint(-2**63, 2**63, 3); randint(0, 2**64, 3, dtype='u8'); randint(0, [5, 10, 20]);
    randint([1, 2], [[10], [20]]); randint([1, 3, 9], [[10], [20]], dtype='u1');
    randint([1, 3], [4, 900], (5, 2), dtype='i2'); randint([0, 1], 2, (9, 2), dtype=bool); randint(3, 4, 3);
    randint(5, dtype='i4'); randint(0, 77, 5001); random_integers(6, size=3); tomaxint(2); bytes(7); permutation(7);
    permutation([1, 2, 3]); permutation([[1, 2], [3, 4], [5, 6]]); choice(5); choice(5, 3); choice([3., 4, 5], 4);
    choice(5, (2, 2)); choice(9, 4, False); choice(5, p=[.1, .2, .3, .2, .2]);
    choice(5, 3, False, [.1, .2, .3, .2, .2]); choice([7, 8]); get_state()[2:4]; get_state(legacy=False)['gauss'];
    randint(5, 5); randint(0, 300, dtype='u1'); randint(-1, 5, dtype='u4'); randint(0, 5, dtype=float); normal(0, -1);
    normal([1, 2], size=3); uniform(0, np.inf); choice(0); choice([[1]]); choice(3, 5, False); choice(3, p=[1, 0]);
    choice(3, p=[.5, .5, .5]); choice(3, p=[-1, 1, 1]); choice(2, 2, False, [1, 0]); seed(-1); seed(2**32); seed([]);
    seed(1.5); seed([[1]]); poisson(-1); gamma(-1); exponential(-1); triangular(0, 5, 3); beta(0, 1); rand(-1);
    set_state(3); set_state(('PCG64', [], 0))"""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@each("draw", [draw.strip() for draw in DRAWS.split(";")])
def test_a_draw_and_the_next(draw):
    """The number after a draw shows whether it took as many words as NumPy's, and whether it kept a normal number."""
    wanted, got = outcomes(
        f"(lambda r: [r.randn(1), r.{draw}, r.rand(), r.randn(2)])(np.random.RandomState(len({draw!r})))"
    )
    if isinstance(wanted, Exception):
        assert type(got).__name__ == type(wanted).__name__, (wanted, got)
        if "broadcast" not in str(wanted):
            assert str(got) == str(wanted)
        return
    assert [type(value) is float for value in got] == [type(value) is float for value in wanted]
    for one, other in zip(got, wanted, strict=True):
        assert_near(
            *(
                module.asarray(value) if isinstance(other, float) else value
                for module, value in ((np, one), (numpy, other))
            )
        )


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1, [1, 2, 3], [0], list(range(700))], ids=str)
def test_seeds(seed):
    check("np.random.RandomState(seed).randint(0, 2**31, 700)", seed=seed)
    check("np.random.RandomState(np.asarray(seed)).get_state()[1]", seed=seed)


def test_shuffles():
    check("[(x := [*range(9)]), np.random.RandomState(1).shuffle(x)]")
    check("[(x := np.arange(9)), np.random.RandomState(1).shuffle(x)]")
    check("[(x := np.arange(12).reshape(6, 2)), np.random.RandomState(1).shuffle(x)]")


def test_a_state_comes_back():
    for module in (numpy, np):
        state = module.random.RandomState(3)
        state.randn(1)
        kept = state.get_state()
        assert [state.randn(3).tolist(), state.set_state(kept), state.randn(3).tolist()][::2] == [
            state.set_state(kept),
            [state.randn(3).tolist()] * 2,
        ][1]
    other = np.random.RandomState(9)
    other.set_state(numpy.random.RandomState(3).get_state())
    assert other.rand() == numpy.random.RandomState(3).rand()


def test_the_functions_share_a_state_which_ends_with_the_vm():
    np.random.seed(5), numpy.random.seed(5)
    assert [np.random.rand(), np.random.randint(9), np.random.ranf()] == [
        numpy.random.rand(),
        numpy.random.randint(9),
        numpy.random.ranf(),
    ]
    source = """
        import vmhost.engine.numpy as np

        def run(seed):
            if seed is not None:
                np.random.seed(seed)
            return np.random.rand()
    """
    with vmhost.Host(allow_unsigned=True) as host:
        task = host.load(bundle(source))
        first = np.random.RandomState(5)
        assert task(5) == first.rand()
        assert task(None) != task(None)
        assert np.random.rand() == numpy.random.rand()  # of no VM's doing


def test_no_seed_is_another_state_each_time():
    assert np.random.RandomState().rand() != np.random.RandomState().rand()
