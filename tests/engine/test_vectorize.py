"""vectorize: a Python function of numbers as one of arrays; compared with NumPy, in the host and in a VM."""

import pytest

import vmhost.engine.numpy as np
from tests.batches import each
from tests.engine.cases import again_in_a_vm, check, host_of_cases  # noqa: F401 - two are fixtures

pytestmark = pytest.mark.usefixtures("again_in_a_vm")


@each(
    "expression",
    [
        "np.vectorize(lambda a, b: a + b if a > b else a - b)([1, 2, 3], 2)",
        "np.vectorize(lambda a, b: a + b)([[1], [2]], [1.5, 2])",
        "np.vectorize(lambda a: a)(3)",
        "np.vectorize(lambda a, k=2: a * k)([1, 2], k=3)",
        "np.vectorize(lambda a, k: a * k)([1, 2], k=[3, 4])",
        "np.vectorize(lambda: 4)()",
        "np.vectorize(lambda a: (a, a * .5))([1, 2])",
        "np.vectorize(lambda a: a > 1)([[1, 2], [3, 0]])",
        "np.vectorize(lambda a: 1 if a > 0 else 0.5)([1, -1])",
        "np.vectorize(lambda a: a.real)([1j])",
        "np.vectorize(int)([1.5, 2.5])",
        "np.vectorize(lambda a: a, otypes=[int])([1.7, 2.2])",
        "np.vectorize(lambda a: a, otypes='d')([])",
        "np.vectorize(lambda a: a)([])",
        "np.vectorize(lambda a: a, otypes='9')",
        "np.vectorize(lambda a: a, otypes=[complex, 'nonsense'])",
        "np.vectorize(lambda p, x: p[0] * x + p[1], excluded=['p'])(p=[1, 2], x=[0, 1])",
        "np.vectorize(lambda p, x: p[0] * x + p[1], excluded={0})([1, 2], [0, 1])",
        "np.vectorize(abs, doc='text').__doc__",
        "np.vectorize(abs).__name__",
        "np.vectorize(otypes=[float])(lambda a: a * 2)([1, 2])",
        "np.vectorize(np.convolve, signature='(n),(m)->(k)')(np.eye(4), [1, 2, 1])",
        "np.vectorize(lambda x: x.sum(), signature='(n)->()')([[1, 2], [3, 4]])",
        "np.vectorize(lambda x, y: (x @ y, x + y), signature='(n),(n)->(),(n)')([[1, 2], [3, 4]], [1, 1])",
        "np.vectorize(lambda x: x.sum(), signature='(n)->()')(3)",
        "np.vectorize(lambda x, y: x, signature='(n),(n)->()')([1, 2], [1, 2, 3])",
        "np.vectorize(lambda x: x, signature='a->b')",
        "np.vectorize(lambda x: x, signature='(n)->()')([1, 2], [3])",
        "np.vectorize(lambda x: (x, x), signature='(n)->(n)')([1, 2])",
        "np.vectorize(lambda x: x, signature='(n)->()')(np.zeros((0, 2)))",
        "np.vectorize(lambda x: x[0], signature='(n)->()', otypes='d')(np.zeros((0, 2)))",
        "np.vectorize(lambda x: x, signature='(n)->(k)', otypes='d')(np.zeros((0, 2)))",
    ],
)
def test_vectorize(expression):
    check(expression)


def test_results_are_numbers():
    with pytest.raises(TypeError, match="cannot make an array element of 'str'"):
        np.vectorize(str)([1, 2])
