"""Integers that depend on a model's open sizes. A Size is an int, its value in the current reading, that also carries
its polynomial in the open sizes; sums, differences, products and quotients of Sizes are Sizes. An operation that loses
the polynomial (to a float or a NumPy array) gives an ordinary number, which open_sizes.py detects.

Two numbers are equal (==) only if they are equal at all open sizes: 128 does not equal a length that happens to be 128
in this reading, and a length clipped to 128 does not equal the length. Order (<, >) is that of the current reading."""

import itertools
import math
from typing import NamedTuple

import numpy

_INTEGERS = (int, numpy.integer)


class Unequal(Exception):
    """`one` and `other` must be equal and are not; at least one is a Size."""

    def __init__(self, one, other):
        super().__init__(f"{one} and {other} have to be equal")
        self.one, self.other = one, other


class Counted(str):
    """The name of a size that a call counts (parts.py)."""


class Size(int):
    """`terms`: {variables: factor}; variables is a sorted tuple, with repetition for powers. A variable is the name of
    an open size, or a floor quotient ("//", terms, terms) of sorted tuples."""

    __array_ufunc__ = None  # NumPy's integers defer arithmetic with a Size to it

    def __new__(cls, value, terms):
        self = super().__new__(cls, value)
        self.terms = terms
        return self

    def __eq__(self, other):
        if isinstance(other, Size):
            return self is other or self.terms == other.terms
        return False if isinstance(other, _INTEGERS) else NotImplemented

    def __ne__(self, other):
        same = self.__eq__(other)
        return same if same is NotImplemented else not same

    def __hash__(self):
        return hash(frozenset(self.terms.items()))

    @classmethod
    def open(cls, name, value):
        """The open size with that name."""
        return cls(value, {(name,): 1})

    def __add__(self, other):
        if not isinstance(other, _INTEGERS):
            return NotImplemented
        return _number(int(self) + int(other), _sum(self.terms, terms_of(other)))

    __radd__ = __add__

    def __mul__(self, other):
        if not isinstance(other, Size):
            if not isinstance(other, _INTEGERS):
                return NotImplemented
            other = int(other)
            if other in (0, 1):
                return self if other else 0
            return Size(int(self) * other, {monomial: factor * other for monomial, factor in self.terms.items()})
        return _number(int(self) * int(other), _product(self.terms, other.terms))

    __rmul__ = __mul__

    def __neg__(self):
        return self * -1

    def __pos__(self):
        return self

    def __sub__(self, other):
        return self + -other if isinstance(other, _INTEGERS) else NotImplemented

    def __rsub__(self, other):
        return -self + other if isinstance(other, _INTEGERS) else NotImplemented

    def __floordiv__(self, other):
        return _quotient(self, other) if isinstance(other, _INTEGERS) else NotImplemented

    def __rfloordiv__(self, other):
        return _quotient(other, self) if isinstance(other, _INTEGERS) else NotImplemented

    def __mod__(self, other):
        return self - self // other * other if isinstance(other, _INTEGERS) else NotImplemented

    def __rmod__(self, other):
        return other - other // self * self if isinstance(other, _INTEGERS) else NotImplemented

    def __pow__(self, exponent, modulus=None):
        if modulus is None and isinstance(exponent, int) and not isinstance(exponent, Size) and 0 <= exponent <= 8:
            return math.prod([self] * exponent)
        return NotImplemented

    def __reduce__(self):
        return Size, (int(self), self.terms)


def terms_of(number):
    """The number's polynomial."""
    return number.terms if isinstance(number, Size) else {(): int(number)} if number else {}


def is_open(number):
    """Whether the number (an int or an object array) depends on open sizes."""
    if isinstance(number, numpy.ndarray):
        return number.dtype == object and any(isinstance(item, Size) for item in number.flat)
    return isinstance(number, Size)


def is_zero(number):
    """Whether it is 0 at all sizes."""
    return not is_open(number) and number == 0


def evaluated(terms, values):
    """The polynomial's value at these `values` of the open sizes."""
    return sum(
        factor * math.prod(_value(variable, values) for variable in monomial) for monomial, factor in terms.items()
    )


def at_least(number, open_size=0, counted=0):
    """A lower bound of the number; None if there is no simple one. Open sizes are at least `open_size`, counted ones at
    least `counted`: 0 or 1."""
    terms = terms_of(number)
    if any(factor < 0 for monomial, factor in terms.items() if monomial) or not all(
        isinstance(variable, str) or _is_above(variable, open_size, counted)
        for monomial in terms
        for variable in monomial
    ):
        return None
    return sum(
        factor
        for monomial, factor in terms.items()
        if not any(
            isinstance(variable, tuple) or not (counted if isinstance(variable, Counted) else open_size)
            for variable in monomial
        )
    )


def _is_above(quotient, open_size, counted):
    """Whether the quotient is known to be non-negative."""
    numerator, denominator = (at_least(Size(0, dict(terms)), open_size, counted) for terms in quotient[1:])
    return numerator is not None and numerator >= 0 and denominator is not None and denominator >= 1


class Need(NamedTuple):
    """A condition on a call's sizes: the polynomial `terms` is 0 if `equal`, else non-negative. `text` describes the
    problem and the remedy."""

    terms: dict
    equal: bool
    text: str


def variables(terms):
    """The names of the open sizes in the polynomial, including quotients."""
    names = set()
    for variable in itertools.chain.from_iterable(terms):
        names |= (
            {variable} if isinstance(variable, str) else variables(dict(variable[1])) | variables(dict(variable[2]))
        )
    return names


def _value(variable, values):
    if isinstance(variable, str):
        return values[variable]
    return evaluated(dict(variable[1]), values) // evaluated(dict(variable[2]), values)


def _number(value, terms):
    """A Size, or an int if nothing depends on an open size."""
    return Size(value, terms) if any(terms) else value


def _sum(one, other):
    total = dict(one)
    for monomial, factor in other.items():
        total[monomial] = total.get(monomial, 0) + factor
        if not total[monomial]:
            del total[monomial]
    return total


def _product(one, other):
    total = {}
    for (a, x), (b, y) in itertools.product(one.items(), other.items()):
        monomial = tuple(sorted(a + b, key=repr)) if a and b else a + b
        total[monomial] = total.get(monomial, 0) + x * y
        if not total[monomial]:
            del total[monomial]
    return total


def _quotient(a, b):
    """a // b: a polynomial if the division is exact; otherwise the remainder becomes a quotient variable."""
    numerator, denominator = terms_of(a), terms_of(b)
    if int(b) == 0:
        raise ZeroDivisionError("division of a size by 0")
    numerator, denominator = _without_common(numerator, denominator)
    exact, remainder = {}, dict(numerator)
    lead = max(denominator, key=_order)
    while remainder:  # polynomial division: exact terms move out of the floor
        divisible = next(
            (
                monomial
                for monomial in sorted(remainder, key=_order, reverse=True)
                if _without(monomial, lead) is not None
            ),
            None,
        )
        if (
            divisible is None
            or (divisible == () and lead == () and remainder[divisible] % denominator[lead])
            or remainder[divisible] % denominator[lead]
        ):
            break
        term = {_without(divisible, lead): remainder[divisible] // denominator[lead]}
        exact, remainder = _sum(exact, term), _sum(remainder, _product({(): -1}, _product(term, denominator)))
        if len(exact) > 64:
            break
    if remainder and set(denominator) == {()} and denominator[()] > 0:  # and so do integer parts of the other factors
        divisor = denominator[()]
        for monomial, factor in list(remainder.items()):
            exact, remainder = (
                _sum(exact, {monomial: factor // divisor}),
                _sum(remainder, {monomial: -(factor // divisor) * divisor}),
            )
        inner = next(
            (monomial[0] for monomial, factor in remainder.items() if factor == 1 and _is_divided(monomial)), None
        )
        if inner is not None and set(remainder) <= {
            (inner,),
            (),
        }:  # merge nested quotients: (a // b) // c = a // (b * c)
            [(_, inner_divisor)] = inner[2]
            numerator = _sum(dict(inner[1]), {(): remainder.get((), 0) * inner_divisor} if remainder.get((), 0) else {})
            quotient = _quotient(Size(0, numerator), inner_divisor * divisor)
            return _number(
                int(a) // int(b), _sum({monomial: f for monomial, f in exact.items() if f}, terms_of(quotient))
            )
    if set(remainder) <= {()} and set(denominator) == {()}:
        exact = _sum(exact, {(): remainder.get((), 0) // denominator[()]})
    elif remainder:
        sort_by = dict(key=lambda item: repr(item[0]))
        variable = ("//", tuple(sorted(remainder.items(), **sort_by)), tuple(sorted(denominator.items(), **sort_by)))
        exact = _sum(exact, {(variable,): 1})
    return _number(int(a) // int(b), {monomial: factor for monomial, factor in exact.items() if factor})


def _without_common(numerator, denominator):
    """Both polynomials divided by the open sizes common to all their terms."""
    monomials = list(itertools.chain(numerator, denominator))
    common = [
        variable
        for variable in set(monomials[0])
        if isinstance(variable, str) and all(variable in monomial for monomial in monomials)
    ]
    if not numerator or not common:
        return numerator, denominator
    divisor = tuple(common)
    return _without_common(
        *(
            {_without(monomial, divisor): factor for monomial, factor in terms.items()}
            for terms in (numerator, denominator)
        )
    )


def _is_divided(monomial):
    """Whether the variables are a single quotient by a positive number."""
    return (
        len(monomial) == 1
        and isinstance(monomial[0], tuple)
        and set(dict(monomial[0][2])) == {()}
        and monomial[0][2][0][1] > 0
    )


def _order(monomial):
    return len(monomial), repr(monomial)


def _without(monomial, divisor):
    """The variables without those of the divisor; None if some are missing."""
    left = list(monomial)
    for variable in divisor:
        if variable not in left:
            return None
        left.remove(variable)
    return tuple(left)


# ---- text
def label(terms, names=()):
    """The polynomial as text, with these sizes first: "2*batch + 1", "(height + 1) // 2"."""
    texts = []

    def position(item):  # by position of the sizes in `names`; constants last
        return [-item[0].count(name) for name in names], -len(item[0]), repr(item[0])

    for monomial, factor in sorted(terms.items(), key=position):
        powers = [_power(variable, monomial.count(variable), names) for variable in dict.fromkeys(monomial)]
        texts.append("*".join([str(abs(factor))] * (abs(factor) != 1 or not powers) + powers))
        texts[-1] = f"{'-' if factor < 0 else '+'} {texts[-1]}"
    text = " ".join(texts).removeprefix("+ ") or "0"
    return text[1:-1] if list(map(len, terms)) == [1] and text.startswith("((") else text


def _power(variable, exponent, names):
    if isinstance(variable, tuple):
        numerator, denominator = (label(dict(part), names) for part in variable[1:])
        variable = f"({_within(numerator)} // {_within(denominator)})"
    return variable if exponent == 1 else f"{variable}^{exponent}"


def _within(text):
    return f"({text})" if " " in text else text


def size_text(number):
    return label(terms_of(number)) if is_open(number) else str(number)


def shape_text(shape):
    return f"[{', '.join(map(size_text, shape))}]"


# ---- shapes
def broadcast(*shapes):
    """numpy.broadcast_shapes for Sizes. Unequal if sizes differ and one is a Size."""
    rank, result = max(map(len, shapes), default=0), []
    for axis in range(-rank, 0):
        size = 1
        for operand_size in (shape[axis] for shape in shapes if -axis <= len(shape)):
            if size == 1:
                size = operand_size
            elif operand_size != 1:
                size = same(size, operand_size)
        result.append(size)
    return tuple(result)


def same(one, other):
    """The common value of two sizes that must be equal in each call: the plain number if one is. Unequal if they differ
    in the current reading and one is open."""
    if int(one) != int(other):
        if is_open(one) or is_open(other):
            raise Unequal(one, other)
        raise ValueError(f"sizes {one} and {other} do not fit")
    return other if is_open(one) else one


def reshaped(shape, target):
    """The shape of numpy.reshape, with -1 resolved. ValueError if the shape is impossible."""
    target, count = list(target), math.prod(shape)
    if target.count(-1) > 1 or any(size < -1 for size in target):
        raise ValueError("there is no such shape")
    if -1 in target:
        inferred = target.index(-1)
        known_count = math.prod(size for d, size in enumerate(target) if d != inferred)
        if int(known_count) == 0 or int(count) % int(known_count):
            _differ(shape, target)
        target[inferred] = count // known_count
    if int(math.prod(target)) != int(count):
        _differ(shape, target)
    return tuple(target)


def _differ(shape, target):
    """Raises Unequal for the two sizes that must be equal for both shapes to have as many elements."""
    counts = math.prod(shape), math.prod(target)
    for one, other in (counts, counts[::-1]):
        number = math.gcd(*terms_of(other).values())
        if not is_open(one) or number < 1:
            continue
        rest = other // number
        quotient = one // rest  # `one` without the factors of `other`
        if is_open(quotient) and quotient * rest == one:
            common = math.gcd(number, *quotient.terms.values())
            raise Unequal(quotient // common, number // common)
    for old_size, other in zip(shape, target):
        if int(old_size) != int(other) and is_open(old_size) and is_open(other):
            raise Unequal(old_size, other)
    raise ValueError("the numbers of elements differ")


def reshaped_strides(shape, strides, target):
    """The strides of a view of `shape` in the shape `target`, of as many elements; None if elements would have to
    move."""
    old = [(size, stride) for size, stride in zip(shape, strides) if size != 1]
    new, old_begin, result = list(target), 0, []
    new_begin = 0
    while new_begin < len(new) and old_begin < len(old):
        if new[new_begin] == 1:
            result.append(0)
            new_begin += 1
            continue
        new_end, old_end = new_begin + 1, old_begin + 1
        new_count, old_count = new[new_begin], old[old_begin][0]
        while new_count != old_count:
            if new_count < old_count:
                if new_end == len(new):
                    return None
                new_count, new_end = new_count * new[new_end], new_end + 1
            else:
                if old_end == len(old):
                    return None
                old_count, old_end = old_count * old[old_end][0], old_end + 1
        if any(old[e][1] != old[e + 1][1] * old[e + 1][0] for e in range(old_begin, old_end - 1)):
            return None
        stride, part_strides = old[old_end - 1][1], []
        for size in reversed(new[new_begin:new_end]):
            part_strides.insert(0, stride)
            stride = stride * size
        result += part_strides
        new_begin, old_begin = new_end, old_end
    return (*result, *(0,) * (len(new) - len(result)))


ENDLESS = 1 << 30  # larger than any size
_SMALL = 10  # sizes are assumed to be larger


def at_most(size, bound):
    """min(size, bound) for a plain number `bound`, by a quotient that is 1 if size <= bound, else 0."""
    if not is_open(size) or is_open(bound) or bound >= ENDLESS or bound < 1:
        return size
    within = 1 // (1 + size // (bound + 1))  # all divisors are at least 1, even for size 0
    return bound + (size - bound) * within


def sliced(size, start, stop, step=1, need=None, small=_SMALL):
    """Returns (first index, number of elements) of `range(size)[start:stop:step]`. `need(one, other)` is called for
    pairs with one >= other in each call. The current reading decides whether ends up to `small` are
    clipped; larger ends are clipped to each call's size."""
    low, high = (0, size) if step > 0 else (-1, size - 1)
    need = need or (lambda one, other: None)

    def end(index):
        if index < 0:
            need(-1, index)
            index = index + size
        else:
            need(index, 0)
        if index >= high or (is_open(high) and not is_open(index) and index > small):
            bounded = at_most(high, index)
            if bounded is high:
                need(index, high)
            return bounded
        need(high, index)
        if index < low:
            need(low, index)
            return low
        need(index, low)
        return index

    first = end(start) if start is not None else low if step > 0 else high
    last = end(stop) if stop is not None else high if step > 0 else low
    span = last - first if step > 0 else first - last
    if span > 0:
        return first, -(-span // abs(step))
    need(0, span)
    return first, 0
