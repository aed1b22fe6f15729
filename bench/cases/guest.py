"""Pure Python in a sealed VM against the main interpreter, and the compiler's replacement there against CPython's
compiler.

Both sides run the same functions of one module and measure their own CPU time, in alternating slices of a few
milliseconds on one core: two cores may differ in clock rate for seconds, which once showed as 0.66x. Clock changes and
other load only add time, so a promise is read from the best slice of each side; the median of the ratios per round is
shown beside it."""

import types

from bench import contenders
from bench.measure import Result, interleaved
from vmhost.bytecode.compiler import compile_sources

PROGRAM = '''
import json
import re
import sys
import time
from collections import namedtuple
from dataclasses import dataclass, field

text = " ".join(f"word{number} = {number * 7};" for number in range(120))
pattern = re.compile(r"(\\w+) = (\\d+);")


class Body:
    def __init__(self, x, speed):
        self.x, self.speed = x, speed

    def move(self, step):
        self.x += self.speed * step


def loops():
    total = 0
    for number in range(20_000):
        if number & 3:
            total += number * 2 % 7
    return total


def calls(depth=17):
    return depth if depth < 2 else calls(depth - 1) + calls(depth - 2)


def containers():
    counts = {}
    for word in text.split():
        counts[word] = counts.get(word, 0) + 1
    return sorted([(len(key), key) for key in counts] * 3)[:5]


def objects():
    bodies = [Body(number, number / 2) for number in range(60)]
    for step in range(25):
        for body in bodies:
            body.move(step)
    return sum(body.x for body in bodies)


def library():
    return json.loads(json.dumps([match.groups() for match in pattern.finditer(text)]))[-1]


def define_namedtuple():
    return [namedtuple("Point", "x y z") for _ in range(5)]


def define_dataclass():
    @dataclass
    class Item:
        key: int
        name: str = "none"
        values: list = field(default_factory=list)
    return Item


Point, Item = define_namedtuple()[0], define_dataclass()


def use_namedtuple():
    point = Point(1, 2, 3)
    for number in range(300):
        point = Point(point.x, y=number, z=point.z)._replace(x=number)
    return point


def use_dataclass():
    return [Item(number, "name") == Item(number) for number in range(300)][-1]


def anew(name):
    there = sys.modules.pop(name)
    try:
        __import__(name)
    finally:
        sys.modules[name] = there


def import_collections():
    anew("collections")


def import_dataclasses():
    anew("dataclasses")


def run(request):
    """Microseconds of CPU time that one call of a function takes."""
    name, count = request
    function = globals()[name]
    began = time.thread_time_ns()
    for _ in range(count):
        function()
    return (time.thread_time_ns() - began) / 1000 / count
'''

PURE = ("loops", "calls", "containers", "objects", "library")
REPLACED = {
    "import_collections": "import of collections",
    "import_dataclasses": "import of dataclasses",
    "define_namedtuple": "five named tuples defined",
    "define_dataclass": "a dataclass defined",
    "use_namedtuple": "named tuples made and replaced",
    "use_dataclass": "dataclasses made and compared",
}
_SLICE_US = 4000


def _result(title, name, task, here, rounds, reach):
    """`reach`: the promised speed of the VM, relative to the main interpreter."""
    count = max(1, int(_SLICE_US / here((name, 3))))
    task((name, count))  # warms up
    figures = interleaved(
        {"sealed VM": lambda: task((name, count)), "main interpreter": lambda: here((name, count))},
        rounds,
        "us",
        "less",
    )
    vm, main = figures["sealed VM"], figures["main interpreter"]
    return Result(
        title,
        figures,
        promises=(
            (
                (
                    f"{main.best / vm.best:.3f}x the main interpreter (reach {reach}x); median of rounds"
                    f" {vm.advantage_over(main):.3f}x"
                ),
                vm.best <= main.best / reach,
            ),
        ),
    )


def run(quick):
    module = types.ModuleType("program")
    exec(compile(PROGRAM, "program.py", "exec"), module.__dict__)
    rounds = 5 if quick else 101
    with contenders.one_core(), contenders.host(max_vms=1) as host:
        task = host.load(
            compile_sources({"main": (PROGRAM, "main.py", False)}, entry="main:run", name="program", version="1")
        )
        return [
            *(_result(f"pure Python, {name}", name, task, module.run, rounds, 0.98) for name in PURE),
            *(
                _result(f"without a compiler, {title}", name, task, module.run, rounds, 0.98)
                for name, title in REPLACED.items()
            ),
        ]
