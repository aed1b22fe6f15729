"""Operators, comparisons, in-place operators, numeric loops, globals."""

TOTAL = 0


def operators(a, b):
    out = []
    for op in (
        lambda: a + b,
        lambda: a - b,
        lambda: a * 2,
        lambda: a / b,
        lambda: a // b,
        lambda: a % b,
        lambda: a & b,
        lambda: a | b,
        lambda: a ^ b,
        lambda: ~a,
        lambda: -a,
        lambda: +a,
        lambda: not a,
        lambda: a @ b,
        lambda: a < b,
        lambda: a <= b,
        lambda: a == b,
        lambda: a != b,
        lambda: a >= b,
        lambda: a > b,
        lambda: a is b,
    ):
        try:
            out.append(op())
        except TypeError, ZeroDivisionError:
            out.append(None)
    return out


def in_place(x, y):
    x += y
    x -= y
    x *= 2
    x //= 1
    x %= 97
    x <<= 1
    x >>= 1
    x &= 0xFF
    x |= 1
    x ^= 3
    return x


def numbers():
    return operators(7, 2), in_place(5, 3), operators(1.5, 0)


def collatz():
    global TOTAL
    n, steps = 27, 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    TOTAL += steps
    return steps


def primes(limit):
    sieve = [True] * 60
    for i in range(2, 8):
        if sieve[i]:
            for j in range(i * i, 60, i):
                sieve[j] = False
    return [i for i, prime in enumerate(sieve) if prime and i > 1]


def many(a, b, c):
    d = e = f = g = h = i = j = k = l = m = n = o = p = q = r = s = a
    if b:
        d, e, f = e, f, d
        g, h = h, g
        del i
    else:
        i = c
    try:
        return (d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s)
    except UnboundLocalError:
        return None


def module_like():
    import math
    from math import floor, pi as ratio

    return math.sqrt(4), floor(ratio)
