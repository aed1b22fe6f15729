"""poly1d: coefficients, text and errors of every expression against NumPy's, in the host and in a VM."""

import pytest

import vmhost.engine.numpy as np
from tests.batches import each
from tests.engine.cases import again_in_a_vm, check, host_of_cases  # noqa: F401 - two are fixtures

pytestmark = pytest.mark.usefixtures("again_in_a_vm")

POLYNOMIALS = """
    np.poly1d([1, -3, 2]); np.poly1d([1, 2], True); np.poly1d([0, 0, 1, 2]); np.poly1d([]); np.poly1d([0]);
    np.poly1d(3); np.poly1d([[1]]); np.poly1d([1, 2, 3], variable='z'); np.poly1d(p); np.poly1d(p, variable='y'); p + q;
    p - q; p * q; p * 2; 2 * p; p / 2; p + 1; 1 - p; [1, 2] + p; p ** 2; p ** 0; p ** -1; p ** 1.5; -p; +p; p.deriv();
    p.deriv(2); p.integ(); p.integ(2, [1, 2]); p(q); np.polyval([1, 2], q); np.polyadd(p, [1]); np.polymul(p, q);
    np.polyder(p); np.polyint(p); np.polysub([1], p); np.poly1d([1j, 2, 1 + 1j]); np.poly1d([1.5, 0, -2.25, 0, 1e-5]);
    np.poly1d(list(range(1, 30))); np.poly1d([-1, -2, -3]); np.poly1d([1, 0]); p * np.array([1, 2]);
    1 / np.poly1d([2.]); (p / q)[0]; (p / q)[1]; np.polydiv(p, q)[0];
    np.poly1d(np.polyfit([0, 1, 2, 3], [1, 3, 7, 13], 2).round(6))"""
VALUES = """
    np.array([1, 2]) * p; np.array([1, 2, 3]) * p; np.float64(2) * p; np.array([1, 2, 3]) + p; np.float64(1) - p;
    np.float64(1) / p; p(3); p([1, 2.5]); p.order; p.o; np.sort(p.roots); np.sort(p.r); p.variable; len(p); list(p);
    p[0]; p[2]; p[9]; p[-1]; p == q; p == p; p != q; p == 3; np.polyval(p, 2); np.sort(np.roots(p)); hash(p);
    p.__setitem__(-1, 2); setattr(p, 'coeffs', [1]); [p.__setitem__(3, 5), p.c]; [p.__setitem__(0, 5), p.c]
"""


@each("expression", [expression.strip() for expression in POLYNOMIALS.split(";")])
def test_polynomials(expression):
    check(
        f"(lambda p, q: [(made := {expression}).coeffs, str(made), repr(made), made.variable])(np.poly1d([1., -3, 2]),"
        " np.poly1d([1, 4]))"
    )


@each("expression", [expression.strip() for expression in VALUES.split(";")])
def test_their_values(expression):
    check(f"(lambda p, q: {expression})(np.poly1d([1., -3, 2]), np.poly1d([1, 4]))")


def test_coefficients_change_in_place():
    p = np.poly1d([1.0, 2])
    p.coeffs += 1
    assert p.c.tolist() == [2.0, 3.0]
