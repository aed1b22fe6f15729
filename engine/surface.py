"""`python -m vmhost.engine.surface` writes docs/numpy.md: every public name of NumPy, and whether `vmhost.engine.numpy`
has it.

Needs NumPy, whose names it lists, so it runs in the host during development only. Intended differences are listed in
DIFFERENT here, intended omissions in engine/numpy/_absent.py.
"""

import importlib
import json
import sys
from pathlib import Path

import vmhost.engine.numpy
from vmhost.engine.numpy._absent import ABSENT, ABSENT_IN, ABSENT_METHODS

# NumPy's names that work, with a visible difference
DIFFERENT = {
    "": {
        "errstate": "accepts ignore only: there are no floating-point warnings",
        "seterr": "accepts ignore only: there are no floating-point warnings",
        "geterr": "always ignore",
        "ndarray": (
            "cannot be subclassed; flags.owndata is False also of results that were reshaped; views stay within the"
            " memory"
        ),
        "generic": (
            "scalars are arrays of no dimensions, without numerator, denominator, fromhex; isinstance() looks at their"
            " dtype; equal ones are not one object (`is np.True_`)"
        ),
        "array": "sequences below ndmax are refused, as are integers beyond 64 bits: there are no objects",
        "clip": "no casting",
        "dtype": "the machine's byte order only; types of ctypes name none; longlong is int64 itself",
        "einsum_path": "chooses its own order of equal cost, within no limit of memory, and prints its own table",
        "finfo": "an object for each call",
        "sum": "initial=-0.0 is 0.0",
        "pad": "the result is in C order",
        "repeat": "counts are integers",
        "ufunc": "no signature, types and resolve_dtypes: dtype chooses the loop",
        "load": "no mmap_mode, never pickled objects",
        "save": "never pickled objects",
        "savez": "never pickled objects; the same arrays make the same bytes",
        "savez_compressed": "never pickled objects; the same arrays make the same bytes",
        "frombuffer": "numbers only",
        "std": "real also where dtype is complex",
        "var": "real also where dtype is complex",
        "fromiter": "reads the iterator whole",
        "fromstring": "numbers in text only: sep is needed",
        "genfromtxt": "columns of numbers only: no names=, no usemask=, and dtype=None is float",
        "loadtxt": "columns of numbers only; no warning where there are none",
        "vectorize": "results are numbers",
        "isin": "integers are compared exactly, where NumPy's sorting path takes int64 and uint64 to float64",
        "setdiff1d": "integers are compared exactly, where NumPy's sorting path takes int64 and uint64 to float64",
    },
    "random": {
        "default_rng": (
            "over Philox, so other numbers than NumPy's for a seed; those of"
            " numpy.random.Generator(numpy.random.Philox(seed))"
        ),
        "Generator": (
            "floating numbers agree with NumPy's to rounding; a single one is an array of no dimensions, not a float;"
            " bounds in lists and arrays lie within 64 bits"
        ),
        "RandomState": (
            "takes a seed, no bit generator; without binomial, f, geometric, hypergeometric, logseries, multinomial,"
            " negative_binomial, noncentral_chisquare, noncentral_f, vonmises, wald, zipf; choice() of numbers only"
        ),
        "seed": "the state is shared by all code of a VM, and by nothing outside it",
    },
    "linalg": dict.fromkeys(
        ("cond", "eig", "eigh", "eigvals", "eigvalsh", "lstsq", "matrix_rank", "pinv", "qr", "svd", "svdvals"),
        "needs scipy-openblas32, else NotImplementedError says so",
    ),
    "fft": (
        dict.fromkeys(("fftfreq", "rfftfreq"), "takes dtype too, as the array API standard asks")
        | dict.fromkeys(
            ("ifft", "irfft", "ifft2", "irfft2", "ifftn", "irfftn"),
            "of float16: the factor 1/n is not rounded to float16",
        )
    ),
    "testing": {},
    "exceptions": {},
}
MODULES = ("", "linalg", "fft", "random", "testing", "exceptions")


def public_names(module):
    """NumPy's public names in one module: what its documentation lists, without modules that are imported there by
    chance."""
    numpy = importlib.import_module("numpy" + (f".{module}" if module else ""))
    names = getattr(numpy, "__all__", None) if module else None
    names = dir(numpy) if names is None else names
    return sorted(
        name for name in set(names) if not name.startswith("_") and name not in ("test", "linalg_", "overrides")
    )


def verdict(module, name):
    """(same, different or absent; the remark)"""
    ours = importlib.import_module("vmhost.engine.numpy" + (f".{module}" if module else ""))
    try:
        getattr(ours, name)
    except AttributeError:
        return "absent", (ABSENT_IN.get(module, {}) if module else ABSENT).get(name, "")
    remark = DIFFERENT[module].get(name)
    return ("different", remark) if remark else ("same", "")


def page():
    """The text of docs/numpy.md."""
    import numpy

    lines = [
        "# NumPy's names in `vmhost.engine.numpy`",
        "",
        "<!-- Made by: python -m vmhost.engine.surface > docs/numpy.md -->",
        "",
        (
            f"Against NumPy {'.'.join(numpy.__version__.split('.')[:2])}. *Same* means NumPy's arguments, values,"
            " dtypes and errors, with these differences everywhere: reductions and"
        ),
        (
            "full indexing give zero-dimensional arrays that hash, compare, format and convert like numbers; there are"
            " no floating-point warnings;"
        ),
        (
            "object, string, datetime and structured dtypes are absent. A name that is absent raises AttributeError"
            " with the advice that stands here."
        ),
        "",
    ]
    for module in MODULES:
        found = {name: verdict(module, name) for name in public_names(module)}
        kinds = [kind for kind, _ in found.values()]
        title = f"`numpy{'.' + module if module else ''}`"
        lines += [
            f"## {title}",
            "",
            ", ".join(f"{kinds.count(kind)} {kind}" for kind in ("same", "different", "absent")) + ".",
            "",
        ]
        same = [f"`{name}`" for name, (kind, _) in found.items() if kind == "same"]
        lines += _wrapped("Same: " + ", ".join(same) + ".") + [""] if same else []
        rest = [(name, *found[name]) for name in found if found[name][0] != "same"]
        if rest:
            lines += ["| name | | how, or what to use |", "| --- | --- | --- |"]
            lines += [f"| `{name}` | {kind} | {remark} |" for name, kind, remark in rest] + [""]
    methods = sorted(name for name in dir(numpy.ndarray) if not name.startswith("_"))
    absent = [name for name in methods if not hasattr(vmhost.engine.numpy.ones((1, 1)), name)]
    lines += [
        "## Methods and attributes of arrays",
        "",
        f"{len(methods) - len(absent)} same, {len(absent)} absent.",
        "",
        "| name | what to use |",
        "| --- | --- |",
    ]
    lines += [f"| `{name}` | {ABSENT_METHODS.get(name, '')} |" for name in absent]
    return "\n".join([*lines, "", *_own_tests()]) + "\n"


def _own_tests():
    """The section on NumPy's own tests, from the figures that `make numpy-tests ARGS=--write` has kept."""
    figures = json.loads((Path(__file__).resolve().parent.parent / "tests/numpys/figures.json").read_text("utf-8"))
    columns = ("run", "pass", "absent", "different", "harness", "open")
    folders = figures["folders"]
    sums = {column: sum(row[column] for row in folders.values()) for column in columns}
    text = (
        f"`make numpy-tests` runs the tests of NumPy {figures['numpy']} with `vmhost.engine.numpy` in its place. Each"
        " test that fails is filed (tests/numpys/filed.txt) under a reason (tests/numpys/reasons.toml): a name, a dtype"
        " or an argument is *absent*; the result is *different*, as this page says; the test reaches into NumPy"
        " (*harness*); or the difference is *open*: not looked into yet. A failure that is not filed fails the run, and"
        " so does a test that passes though it is filed. Files of which the whole subject is absent are left out"
        " (tests/numpys/left_out.toml)."
    )
    rows = [(f"`numpy/{folder}`", row) for folder, row in folders.items()] + [("all", sums)]
    return [
        "## NumPy's own tests",
        "",
        *_wrapped(text),
        "",
        "| tests of | " + " | ".join(columns) + " |",
        "| --- |" + " --- |" * len(columns),
        *(f"| {title} | " + " | ".join(f"{row[column]:,}" for column in columns) + " |" for title, row in rows),
    ]


def _wrapped(text, width=120):
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return [*lines, line]


if __name__ == "__main__":
    sys.stdout.write(page())
