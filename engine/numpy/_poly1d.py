"""poly1d: a polynomial as an object that can be called, added, multiplied and printed."""

import re

from vmhost.engine import _array as _a
from vmhost.engine.numpy import _polynomials
from vmhost.engine.numpy._logic import isscalar
from vmhost.engine.numpy._shapes import atleast_1d, trim_zeros


class poly1d:
    """A polynomial with these coefficients, highest power first, or (with `r`) with these roots; `variable` is its name
    when printed."""

    __hash__ = None

    def __init__(self, c_or_r, r=False, variable=None):
        if isinstance(c_or_r, poly1d):
            self.__dict__.update(c_or_r.__dict__)
            self._variable = variable or self._variable
            return
        coefficients = atleast_1d(_polynomials.poly(c_or_r) if r else c_or_r)
        if coefficients.ndim > 1:
            raise ValueError("Polynomial must be 1d only.")
        coefficients = trim_zeros(coefficients, "f")
        self._coefficients = coefficients if len(coefficients) else _a.zeros(1, coefficients.dtype)
        self._variable = variable or "x"

    @property
    def coeffs(self):
        return self._coefficients

    @coeffs.setter
    def coeffs(self, value):
        if value is not self._coefficients:  # `p.coeffs += 1` assigns the same array
            raise AttributeError("Cannot set attribute")

    c = coef = coefficients = coeffs

    @property
    def variable(self):
        return self._variable

    @property
    def order(self):
        return len(self.coeffs) - 1

    o = order

    @property
    def roots(self):
        return _polynomials.roots(self.coeffs)

    r = roots

    def __repr__(self):
        return f"poly1d({repr(self.coeffs)[6:-1]})"

    def __str__(self):
        terms = []
        for power, coefficient in zip(range(self.order, -1, -1), self.coeffs):
            number = _text(coefficient)
            if number == "0" and self.order:
                continue
            terms.append(
                number + ("" if power == 0 else f" {self.variable}" if power == 1 else f" {self.variable}**{power}")
            )
        return _with_raised_powers(" + ".join(terms).replace("+ -", "- ") if terms else "0")

    def __len__(self):
        return self.order

    def __iter__(self):
        return iter(self.coeffs)

    def __call__(self, val):
        return _polynomials.polyval(self.coeffs, val)

    def __getitem__(self, power):
        return self.coeffs[self.order - power] if 0 <= power <= self.order else _a.zeros((), self.coeffs.dtype)[()]

    def __setitem__(self, power, value):
        if power < 0:
            raise ValueError("Does not support negative powers.")
        if power > self.order:
            self._coefficients = _a.concatenate((_a.zeros(power - self.order, self.coeffs.dtype), self.coeffs))
        self._coefficients[self.order - power] = value

    def __neg__(self):
        return poly1d(-self.coeffs)

    def __pos__(self):
        return self

    def __add__(self, other):
        return poly1d(_polynomials.polyadd(self.coeffs, poly1d(other).coeffs))

    # an array as the left operand is combined with the array of coefficients, as in NumPy
    def __radd__(self, other):
        return other + self.coeffs if isinstance(other, _a.ndarray) else self + other

    def __sub__(self, other):
        return poly1d(_polynomials.polysub(self.coeffs, poly1d(other).coeffs))

    def __rsub__(self, other):
        return (
            other - self.coeffs
            if isinstance(other, _a.ndarray)
            else poly1d(_polynomials.polysub(poly1d(other).coeffs, self.coeffs))
        )

    def __mul__(self, other):
        return poly1d(
            self.coeffs * other if isscalar(other) else _polynomials.polymul(self.coeffs, poly1d(other).coeffs)
        )

    def __rmul__(self, other):
        return other * self.coeffs if isinstance(other, _a.ndarray) else self * other

    def __pow__(self, power):
        if not isscalar(power) or int(power) != power or power < 0:
            raise ValueError("Power to non-negative integers only.")
        coefficients = [1]
        for _ in range(int(power)):
            coefficients = _polynomials.polymul(self.coeffs, coefficients)
        return poly1d(coefficients)

    def __truediv__(self, other):
        return poly1d(self.coeffs / other) if isscalar(other) else _polynomials.polydiv(self, poly1d(other))

    def __rtruediv__(self, other):
        if isinstance(other, _a.ndarray):
            return other / self.coeffs
        return poly1d(other / self.coeffs) if isscalar(other) else _polynomials.polydiv(poly1d(other), self)

    def __eq__(self, other):
        if not isinstance(other, poly1d):
            return NotImplemented
        return self.coeffs.shape == other.coeffs.shape and (self.coeffs == other.coeffs).all()

    def integ(self, m=1, k=0):
        """The `m`-th antiderivative with the constants `k`."""
        return poly1d(_polynomials.polyint(self.coeffs, m, k))

    def deriv(self, m=1):
        """The `m`-th derivative."""
        return poly1d(_polynomials.polyder(self.coeffs, m))


def _text(coefficient):
    value = coefficient.item()
    if not isinstance(value, complex) or value.imag == 0:
        return f"{value.real:.4g}"
    return f"{value.imag:.4g}j" if value.real == 0 else f"({value.real:.4g} + {value.imag:.4g}j)"


def _with_raised_powers(text, max_width=70):
    """Moves the 2 of `x**2` to a line above, in pairs of lines of at most `max_width` characters."""
    above, below, result, end = "", "", " ", 0
    for match in re.finditer(r"\*\*([0-9]*)", text):
        power, before = match[1], text[end : match.start()]
        end = match.end()
        upper, lower = " " * (len(before) - 1) + power, before + " " * (len(power) - 1)
        if len(below) + len(lower) > max_width or len(above) + len(upper) > max_width:
            result += f"{above}\n{below}\n "
            above, below = upper, lower
        else:
            above, below = above + upper, below + lower
    return f"{result}{above}\n{below}{text[end:]}"
