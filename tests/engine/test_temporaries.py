"""An expression's intermediate results give their memory to the next operator, but never a value that a program can
still name.

Programs are drawn at random from the ways in which Python holds on to values (locals, cells, globals, defaults,
containers, generators, the walrus, C functions that look at an argument twice, …) and run with NumPy as well: every
name has the same value there."""

import functools
import operator
import random
import subprocess
import sys

import numpy
import pytest

import vmhost.engine.numpy

SIZE = 20_000  # elements: above what is too small to be worth it

PEAKS = """
import sys
import vmhost.engine.numpy as np
from vmhost.engine import _array

def peak(expression, size):
    a, b, row, i = np.full((size // 8, 8), 2.0), np.full((size // 8, 8), 3.0), np.full(8, 1.5), np.full(size, 3)
    before = _array._statistics()["live_bytes"]
    c = eval(expression)
    return (_array._statistics()["peak_bytes"] - before) / (8 * size)

print(*(round(peak(expression, 1 << 15 + number), 2) for number, expression in enumerate(sys.argv[1:])))
"""


@pytest.mark.parametrize(
    "expressions",
    [
        (
            "-(a * b)",
            "a * b + 1",
            "1 - a * b",
            "abs(a - b) ** 2",
            "(a - row) / row",
            "np.sqrt(a * a + 1)",
            "np.exp(-(a * b))",
            "~(i + i) // 7",
        ),
        (
            "a + (b * b)",
            "np.multiply(a + 1, b)",
            "np.maximum(a, a + b)",
            "(a - row) * row",
            "i % 2 + 1",
            "2 ** (a + b)",
        ),
    ],
    ids=["chains", "right operands"],
)
def test_a_chain_takes_the_memory_of_one_result(expressions):
    # sizes double, so that each one's peak stands above those before it
    peaks = subprocess.run(
        [sys.executable, "-c", PEAKS, *expressions], capture_output=True, text=True, check=True
    ).stdout.split()
    assert {expression: float(peak) for expression, peak in zip(expressions, peaks, strict=True)} == dict.fromkeys(
        expressions, 1.0
    )


def test_what_both_halves_of_divmod_need_is_not_taken():
    a = vmhost.engine.numpy.arange(SIZE * 1.0)
    for b in (7.0, 7, a + 7):
        quotient, rest = divmod(a + 0.0, b)
        assert (quotient * b + rest == a).all()
        quotient, rest = divmod(7.0, a + 1.0)
        assert (quotient * (a + 1.0) + rest == 7.0).all()


# ---- programs
NAMES = ["a", "b", "c", "d"]


def expression(draw, depth=3):
    """Of whole numbers, whose operators are exact and wrap around."""
    if depth == 0 or draw.random() < 0.2:
        return draw.choice(NAMES)
    one, other = (expression(draw, depth - 1) for _ in range(2))
    return draw.choice(
        [
            f"({one} + {other})",
            f"({one} - {other})",
            f"({one} * 3)",
            f"(5 - {one})",
            f"(-{one})",
            f"(~{one})",
            f"abs({one})",
            f"({one} ** 2)",
            f"({one} // 7)",
            f"({one} & {other})",
            f"np.add({one}, {other})",
            f"np.negative({one})",
            f"np.maximum({one}, {other})",
            f"np.square({one})",
            f"({one}).__sub__({other})",
            f"operator.xor({one}, {other})",
            f"(lambda x: x + x)({one})",
            f"(lambda x, y={one}: y - x)({other})",
            f"functools.reduce(np.add, [{one}, {other}, {one}])",
            f"sum([{one}, {other}], {one})",
            f"functools.partial(np.subtract, {one})({other})",
            "[x * 2 for x in store][0]",
            f"next(map(np.negative, [{one}]))",
            f"max({one}, {other}, key=total)",
            f"divmod({one}, 9)[1]",
            f"np.where({one} > {other}, {one}, {other})",
            f"({one})[::-1]",
            f"({one} if total({one}) > 0 else {other})",
            f"identity({one})",
            f"twice({one})",
            f"operator.iadd({one} + 0, {other})",
            f"({one} + total({other}))",
            f"({one}).astype('int64', copy=False)",
            f"np.asarray({one})",
            f"({one}).T",
            f"np.positive({one})",
            f"({draw.choice(NAMES)} := {one})",
            f"(({draw.choice(NAMES)} := {one}) + {other})",
            f"({one} + ({draw.choice(NAMES)} := {other}))",
        ]
    )


def statements(draw):
    """Lines that bind names, each in a way of its own."""
    name, other, text = draw.choice(NAMES), draw.choice(NAMES), expression(draw)
    return draw.choice(
        [
            [f"{name} = {text}"],
            [f"{name} = {other} = {text}"],
            [f"{name} += {text}"],
            [f"{name}, kept = {text}, {expression(draw)}", "store.append(kept)"],
            [f"store.append({text})", f"{name} = store[-1] + store[0]"],
            [f"table['k'] = {text}", f"{name} = table['k'] * 2 - table['k']"],
            [f"holder.x = {text}", f"{name} = -holder.x + holder.x.T"],
            [f"for item in ({text}, {other}):", f"    {name} = item - 1", "    store.append(item)"],
            [
                f"def inner(value, early={text}):",
                "    return value + early - later",
                f"later = {other}",
                f"{name} = inner({other}) + inner({other} + 1)",
            ],
            [
                "def produce():",
                f"    mine = {other}",
                "    got = yield mine + 1",
                "    yield got - mine",
                "source = produce()",
                "first = next(source)",
                f"{name} = source.send(first) + first",
            ],
            ["try:", f"    {name} = ({text}) + fails()", "except ValueError:", f"    {name} = {other} + 1"],
            [f"match ({text}, {other}):", f"    case (x, y): {name} = x + y - x"],
            [f"view = ({text})[1:]", "store.append(view * 2)", "store.append(view)"],
            [f"head, *rest = [{text}, {other}, {name}]", f"{name} = (head + rest[0]) * 1 + head"],
            [f"{name} = (lambda *args, **options: args[0] + options['x'])({text}, x={other})"],
            [f"with entered({text}) as held:", f"    {name} = held + (held * 2)", "store.append(held)"],
        ]
    )


def program(seed):
    draw = random.Random(seed)
    body = [line for _ in range(12) for line in statements(draw)]
    return "\n".join(
        [
            "def run(a, b, c, d):",
            *("    " + line for line in body),
            "    return a, b, c, d, store, table.get('k'), holder.x",
        ]
    )


class Holder:
    x = 0


class entered:
    def __init__(self, value):
        self.value = value

    def __enter__(self):
        return self.value

    def __exit__(self, *error):
        return None


def fails():
    raise ValueError


def results(module, source):
    names = {
        "np": module,
        "operator": operator,
        "functools": functools,
        "store": [],
        "table": {},
        "holder": Holder(),
        "fails": fails,
        "entered": entered,
        "identity": lambda x: x,
        "twice": lambda x: x + x,
        "total": lambda x: int(x.sum()) % 97,
    }
    names["store"].append(module.arange(SIZE))
    exec(compile(source, "drawn", "exec"), names)
    given = [module.arange(SIZE) * step + step for step in (1, 3, 5, 7)]
    before = [array.copy() for array in given]
    found = names["run"](*given)
    # what was passed in changes by += only, which both modules do
    return [
        numpy.asarray(array)
        for part in (given, before, found)
        for array in (part if isinstance(part, (list, tuple)) else [part])
        for array in (array if isinstance(array, list) else [array])
        if array is not None
    ]


@pytest.mark.parametrize(
    "seeds",
    [range(first, first + 25) for first in range(0, 150, 25)],
    ids=lambda seeds: f"seeds {seeds[0]}-{seeds[-1]}",
)
def test_nothing_that_has_a_name_is_overwritten(seeds):
    for seed in seeds:
        source = program(seed)
        wanted = outcome(numpy, source)
        got = outcome(vmhost.engine.numpy, source)
        assert len(wanted) == len(got), (seed, wanted, got)
        for one, other in zip(wanted, got):
            assert numpy.array_equal(one, other), f"seed {seed}\n{source}"


def outcome(module, source):
    try:
        return results(module, source)
    except (ValueError, TypeError) as error:  # views of other lengths do not add up: in both
        return [type(error).__name__]
