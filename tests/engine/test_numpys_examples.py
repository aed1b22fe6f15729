"""The examples in NumPy's own docstrings, of every name that `vmhost.engine.numpy` has: run with both, they print the
same.

The docstrings are the installed NumPy's, read when the tests run; what an example prints is compared with what it
prints with NumPy, not with the docstring's text, which is of many versions. Digits beyond the rounding of both may
differ. Examples that need what the engine leaves out by design are passed over when the error says so; other
differences stand in DIFFERENT with their reason."""

import ast
import contextlib
import doctest
import importlib
import io
import math
import re
import sys

import numpy
import pytest

import vmhost
import vmhost.engine.numpy
from tests.batches import each
from tests.hosts import bundle
from vmhost.engine import surface
from vmhost.engine.numpy._absent import ABSENT_METHODS

SCALAR = "a number of its own kind of scalar"
NO_WARNINGS = "there are no floating-point warnings to set"
KEPT = "overwrite_input allows to overwrite, and need not"
# examples that print something else on purpose: (the docstring's name, a part of the example): the reason
DIFFERENT = {
    ("common_type", "common_type"): "dtypes are no classes here",
    ("einsum_path", "print("): "the text is our own",
    ("seterr", ""): NO_WARNINGS,
    ("geterr", ""): NO_WARNINGS,
    ("cov", "cov(x)"): SCALAR,
    ("i0", "i0(0.)"): SCALAR,
    ("imag", "imag(1 + 1j)"): SCALAR,
    ("real", "real(1 + 1j)"): SCALAR,
    ("require", "flags"): "no WRITEBACKIFCOPY, and memory of a list's own",
    ("ndarray.setflags", "flags"): "no WRITEBACKIFCOPY, and elements are always aligned",
    ("ndarray.setflags", "uic"): "no WRITEBACKIFCOPY",
    ("ldexp", "np.ldexp(5"): "float64: NumPy's float16 overflows from 2**16 on",
    ("median", "assert not"): KEPT,
    ("percentile", "assert not"): KEPT,
    ("quantile", "assert not"): KEPT,
    ("partition", "p2"): "any order on both sides of the places",
    ("unique_values", ""): "any order",
    ("typename", "typechars"): "text and dates have no dtype",
    ("isreal", "object"): "objects have no dtype",
    ("r_", "'r'"): "matrices are absent",
    ("ndarray", "order='F'"): "shows what memory held",
    ("linalg.eigh", "eigenvectors"): "matrices are absent",
    ("linalg.inv", "ainv"): "matrices are absent",
    ("linalg.inv", "inv(a)"): "of a singular matrix: nothing but rounding",
    ("exceptions.AxisError", "msg_prefix"): "takes a sentence only",
    ("ndarray.astype", "same_value"): "compare with the original instead",
    ("ndarray.byteswap", "newbyteorder"): "one byte order only",
    ("atleast_2d", ".base"): "no base: shares_memory()",
    ("atleast_3d", ".base"): "no base: shares_memory()",
    ("asarray", "is a"): "no subclasses",
    ("asanyarray", "is a"): "no subclasses",
    ("ndarray.view", "dtype=["): "structured dtypes are absent",
}
# examples that are no comparison: pictures, other packages, files, times, chance, addresses, types' names, what memory
# held; and those that take seconds
LEFT_OUT = re.compile(
    r"plt|scipy|matplotlib|\bax\b|\bfig\b|tempfile|TemporaryFile|outfile|\bopen\(|\.np[yz]|/tmp|timeit|t2-t1|entropy|\bid\(|empty|\btype\("
    r"|test\.out|sum\(s|1000000|range\(500\)|logdet|multi_dot|512\*512|36674"
)
# our errors that say so
BY_DESIGN = re.compile(
    r"structured dtypes are absent|has no attribute '\w+'; |cannot make an array element of|not understood|only"
    r" 'ignore' is accepted"
    r"|Cannot interpret '[(\[{]|Cannot interpret .*'[SUOM<>|]|cannot import name"
)
PLAIN = re.compile(
    r"np\.(?:float64|int64|bool)\(([^()]*)\)"
)  # scalars of the generators, which NumPy gives as Python's numbers
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|\.\d+(?:e[-+]?\d+)?)")


def documented():
    """(name, docstring) of everything that both have."""
    found, seen = [], set()
    for module in surface.MODULES:
        theirs = importlib.import_module(f"numpy{'.' * bool(module)}{module}")
        for name in surface.public_names(module):
            if surface.verdict(module, name)[0] != "absent":
                found.append((f"{module}.{name}".strip("."), getattr(theirs, name)))
    for title, theirs, ours in (
        ("ndarray", numpy.ndarray, vmhost.engine.numpy.ndarray),
        ("random.Generator", numpy.random.Generator, vmhost.engine.numpy.random.Generator),
    ):
        found += [
            (f"{title}.{name}", getattr(theirs, name))
            for name in dir(theirs)
            if not name.startswith("_") and hasattr(ours, name) and name not in ABSENT_METHODS
        ]
    for name, thing in found:
        text = getattr(thing, "__doc__", None)
        if isinstance(text, str) and ">>>" in text and text not in seen:
            seen.add(text)
            yield name, text


DOCUMENTED = dict(documented())


def printed(source, names):
    """(what the example prints, the error or None)."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "displayhook", lambda value: value is None or print(repr(value)))
        try:
            exec(compile(source, "example", "single"), names)
        except Exception as error:
            return shown.getvalue(), error
    return shown.getvalue(), None


def alike(got, wanted):
    """The same text, but for spaces and for digits beyond rounding."""
    if got.split() == wanted.split():
        return True
    if NUMBER.sub("#", "".join(got.split())) != NUMBER.sub("#", "".join(wanted.split())):
        return False
    return all(
        math.isclose(float(one), float(other), rel_tol=1e-6, abs_tol=1e-12)
        for one, other in zip(
            NUMBER.findall("".join(got.split())), NUMBER.findall("".join(wanted.split())), strict=True
        )
    )


def names_of(source):
    """(names that it reads, names that it binds or changes)."""
    read, bound = set(), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            (bound if isinstance(node.ctx, ast.Store) else read).add(node.id)
        elif isinstance(node, ast.alias):
            bound.add(node.asname or node.name)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            bound.add(node.name)
    return read, bound


def differences(name, text):
    """(example, NumPy's output, ours) of those that are not alike."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (numpy, vmhost.engine.numpy):  # one stream of random numbers for both
            generator = module.random.Generator
            bits = module.random.Philox
            module.random.seed(1)
            patch.setattr(
                module.random, "default_rng", lambda seed=0, generator=generator, bits=bits: generator(bits(seed))
            )
        theirs, ours = ({"np": module, "__name__": "example"} for module in (numpy, vmhost.engine.numpy))
        unknown = set()  # names that examples passed over would have bound
        for example in doctest.DocTestParser().get_examples(text):
            read, bound = names_of(example.source)
            if (
                LEFT_OUT.search(example.source)
                or read & unknown
                or any(of == name and part in example.source for of, part in DIFFERENT)
            ):
                unknown |= bound
                continue
            wanted, their_error = printed(example.source, theirs)
            got, our_error = printed(
                re.sub(r"\b(from|import) numpy\b", r"\1 vmhost.engine.numpy", example.source), ours
            )
            if our_error is not None and BY_DESIGN.search(str(our_error)):
                unknown |= bound
                continue
            unknown -= bound
            if name.startswith("random"):
                wanted, got = PLAIN.sub(r"\1", wanted), PLAIN.sub(r"\1", got)
            if type(their_error).__name__ != type(our_error).__name__ or not alike(got, wanted):
                yield example.source.strip(), wanted + repr(their_error or ""), got + repr(our_error or "")


@pytest.fixture(autouse=True)
def printing_as_it_was():
    with numpy.printoptions(), vmhost.engine.numpy.printoptions(), numpy.errstate(all="ignore"):
        yield


@pytest.mark.filterwarnings("ignore")
@each("name", DOCUMENTED)
def test_an_example_prints_what_numpy_prints(name):
    left = list(differences(name, DOCUMENTED[name]))
    assert not left, "\n".join(f">>> {source}\nNumPy: {wanted}\nours:  {got}" for source, wanted, got in left)


# ---- in a sealed VM
def as_a_function(number, text):
    """A function of `np` that runs the examples that need nothing else and returns what they show, a line for each."""
    lines = [f"def example_{number}(np):", "    shown = []"]
    for example in doctest.DocTestParser().get_examples(text):
        tree = ast.parse(example.source)
        if LEFT_OUT.search(example.source) or any(
            isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)) for node in ast.walk(tree)
        ):
            continue
        lines.append("    try:")
        for statement in tree.body:
            source = ast.unparse(statement)
            source = f"shown.append(repr({source}))" if isinstance(statement, ast.Expr) else source
            lines += [f"        {line}" for line in source.splitlines()]
        lines += ["    except Exception as error:", "        shown.append(type(error).__name__)"]
    return "\n".join([*lines, "    return shown", ""])


def without_addresses(shown):
    return [re.sub(r"0x[0-9a-f]+", "0x", line) for line in shown]


@pytest.mark.filterwarnings("ignore")
def test_the_examples_show_the_same_in_a_sealed_vm():
    chosen = [
        text for name, text in DOCUMENTED.items() if not name.startswith("random")
    ]  # chance has seeds of its own there
    source = "\n".join(
        [
            "import vmhost.engine.numpy as np",
            *(as_a_function(number, text) for number, text in enumerate(chosen)),
            "def run(number):",
            "    with np.printoptions():",
            f"        return ({', '.join(f'example_{number}' for number in range(len(chosen)))})[number](np)",
        ]
    )
    names = {}
    exec(compile(source, "examples", "exec"), names)
    with vmhost.Host(allow_unsigned=True) as host:
        task = host.load(bundle(source, name="examples", limits={"memory": "256 MiB", "wall_time": "60 s"}))
        for number, text in enumerate(chosen):
            assert without_addresses(task(number)) == without_addresses(names["run"](number)), text
