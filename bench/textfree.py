"""Named tuples and dataclasses made without a compiler, against CPython's: `python bench/textfree.py [--json]`.

Three columns, in one process and interleaved: `cpython` compiles text when a class is defined; `ahead` uses that text
compiled in advance by the cloud compiler; `assembled` is for classes that exist only at run time. Medians over the
rounds, in nanoseconds; a ratio above 1 means faster than CPython; the spread is the interquartile range. It needs no
VM, since only the methods' bytecode differs.
"""

import argparse
import collections
import dataclasses
import importlib.util
import json
import marshal
import statistics
import sys
import timeit
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
guest = sys.modules["vmhost.guest"] = types.ModuleType("vmhost.guest")  # the package imports what only VMs have
guest.__path__ = [str(ROOT / "vmhost" / "guest")]

from vmhost.bytecode.texts import collect_texts  # noqa: E402
from vmhost.guest import texts  # noqa: E402
from vmhost.isolation import vm as isolation  # noqa: E402
from vmhost.stdlib import patches  # noqa: E402

DEFINITIONS = """
def define_namedtuple():
    return namedtuple("Point", "x y z")

def define_dataclass():
    @dataclass
    class Item:
        key: int
        name: str = "none"
        values: list = field(default_factory=list)
    return Item

def define_ordered():
    @dataclass(order=True, frozen=True, slots=True)
    class Version:
        major: int
        minor: int = 0
        patch: int = 0
    return Version
"""

# name -> (setup of the operand, the statement)
CALLS = {
    "namedtuple(1, 2, 3)": ("c = define_namedtuple()", "c(1, 2, 3)"),
    "namedtuple(x=1, y=2, z=3)": ("c = define_namedtuple()", "c(x=1, y=2, z=3)"),
    "namedtuple._replace": ("p = define_namedtuple()(1, 2, 3)", "p._replace(x=5)"),
    "dataclass(1)": ("c = define_dataclass()", "c(1)"),
    "dataclass(1, name, values)": ("c = define_dataclass(); v = []", "c(1, name='n', values=v)"),
    "dataclass repr": ("o = define_dataclass()(1)", "repr(o)"),
    "dataclass ==": ("c = define_dataclass(); a, b = c(1), c(1)", "a == b"),
    "frozen dataclass(1, 2, 3)": ("c = define_ordered()", "c(1, 2, 3)"),
    "frozen hash": ("o = define_ordered()(1, 2, 3)", "hash(o)"),
    "ordered <": ("c = define_ordered(); a, b = c(1, 2, 3), c(1, 2, 4)", "a < b"),
    "define namedtuple": ("", "define_namedtuple()"),
    "define dataclass": ("", "define_dataclass()"),
    "define ordered, frozen, slots": ("", "define_ordered()"),
}

SLICE_S = 0.001  # short, so that most slices are not interrupted


def patched(name):
    """A copy of a standard-library module as VMs have it."""
    specification = importlib.util.find_spec(name)
    module = types.ModuleType(name)
    module.__spec__ = specification
    module.__package__ = name if specification.submodule_search_locations else ""
    source = patches.patch(name, Path(specification.origin).read_text(encoding="utf-8"))
    exec(compile(source, specification.origin, "exec"), module.__dict__)
    return module


def namespace(tuples, classes):
    # dataclasses looks up its own name in sys.modules, where a VM has the patched module
    names = {
        "__name__": "definitions",
        "namedtuple": tuples.namedtuple,
        "dataclass": classes.dataclass,
        "field": classes.field,
    }
    exec(compile(DEFINITIONS, "definitions.py", "exec"), names)
    return names


def measure(rounds):
    """{case: {column: [seconds per call of each round]}}"""
    codes = {digest: marshal.loads(code) for digest, code in collect_texts(DEFINITIONS.encode()).items()}
    edited = patched("collections"), patched("dataclasses")
    finders = {"cpython": None, "ahead": codes.get, "assembled": lambda digest: None}
    columns = {"cpython": (collections, dataclasses), "ahead": edited, "assembled": edited}
    found = {}
    for case, (setup, statement) in CALLS.items():
        timers = {}
        for column, modules in columns.items():
            enter(column, modules, finders)
            names = namespace(*modules)
            exec(setup, names)
            timers[column] = timeit.Timer(statement, globals=names)
        enter("cpython", columns["cpython"], finders)
        number = max(1, int(SLICE_S * 100 / timers["cpython"].timeit(100)))
        found[case] = {column: [] for column in columns}
        order = list(timers.items())
        for _ in range(rounds):
            order.append(order.pop(0))
            for column, timer in order:
                enter(column, columns[column], finders)
                found[case][column].append(timer.timeit(number) / number)
        enter("cpython", columns["cpython"], finders)
    return found


def enter(column, modules, finders):
    sys.modules["dataclasses"] = modules[1]
    texts.install(finders[column], isolation.core())


def spread(values):
    """The interquartile range, relative to the median."""
    first, middle, third = statistics.quantiles(values, n=4)
    return (third - first) / middle


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--rounds", type=int, default=201)
    arguments = parser.parse_args()
    rows = []
    for case, columns in measure(arguments.rounds).items():
        medians = {column: statistics.median(values) * 1e9 for column, values in columns.items()}
        spreads = {column: spread(values) for column, values in columns.items()}
        rows.append(
            {
                "case": case,
                "median_ns": medians,
                "spread": spreads,
                "ratio_ahead": medians["cpython"] / medians["ahead"],
                "ratio_assembled": medians["cpython"] / medians["assembled"],
            }
        )
    if arguments.json:
        print(json.dumps({"python": sys.version, "rounds": arguments.rounds, "rows": rows}, indent=1))
        return
    print(f"{'':32}{'cpython':>12}{'ahead':>12}{'assembled':>12}{'ratios':>16}{'spread':>9}")
    for row in rows:
        medians = "".join(f"{value:>9,.0f} ns" for value in row["median_ns"].values())
        print(
            f"{row['case']:32}{medians}{row['ratio_ahead']:>10.2f}{row['ratio_assembled']:>6.2f}"
            f"{max(row['spread'].values()):>8.0%}"
        )


if __name__ == "__main__":
    main()
