"""The public API's type hints: they can be read at run time, and mypy agrees with them (tools/lint.sh has it read
tests/vmhost/typed_program.py and typed_task.py)."""

import ast
import importlib
import inspect

import pytest

import vmhost
from tests import warm
from tests.hosts import ROOT
from vmhost.engine import models
from vmhost.future import TaskFuture
from vmhost.statistics import HostStatistics, TaskStatistics, VMStatistics

CLASSES = [*(getattr(vmhost, name) for name in vmhost.__all__), TaskFuture]
FUNCTIONS = [
    (f"{cls.__name__}.{name}", function)
    for cls in CLASSES
    for name, one in vars(cls).items()
    if inspect.isfunction(function := getattr(one, "fget", None) or getattr(one, "__func__", one))
    and cls.__module__.startswith("vmhost.")
    and (name != "__init__" or cls not in (vmhost.Task, TaskFuture))  # made by hosts only
    and (not name.startswith("_") or name in ("__init__", "__call__", "__enter__", "__exit__"))
]


def test_every_public_function_has_hints_that_can_be_inspected():
    bare = []
    for name, function in FUNCTIONS:
        signature = inspect.signature(function)  # NameError for a name that only type checkers import
        parameters = [one for one in signature.parameters.values() if one.name != "self" and one.name != "cls"]
        if signature.return_annotation is inspect.Signature.empty or any(
            one.annotation is inspect.Parameter.empty for one in parameters
        ):
            bare.append(name)
    assert bare == [] and len(FUNCTIONS) > 50


def test_help_shows_the_parameters_of_an_executor():
    assert [*inspect.signature(vmhost.VMExecutor).parameters][:2] == ["max_workers", "thread_name_prefix"]


@pytest.mark.parametrize(
    "cls",
    [
        vmhost.Limits,
        vmhost.Policy,
        vmhost.TaskPolicy,
        vmhost.BreakerPolicy,
        HostStatistics,
        TaskStatistics,
        VMStatistics,
    ],
)
def test_fields_have_hints(cls):
    assert all(hint is not dict and hint is not tuple for hint in inspect.get_annotations(cls).values())


def test_the_package_says_that_it_is_typed():
    from importlib.resources import files

    assert files("vmhost").joinpath("py.typed").is_file()


STUBS = sorted(path for room in ("engine", "vmhost") for path in (ROOT / room).rglob("*.pyi"))


def shape(parameters):
    """Names, kinds and whether there is a default."""
    return [(one.name, one.kind.name, one.default is not one.empty) for one in parameters if one.name != "self"]


def written_shape(function):
    """The same of a function in a stub."""
    arguments, found = function.args, []
    positional = [*arguments.posonlyargs, *arguments.args]
    for number, one in enumerate(positional):
        kind = "POSITIONAL_ONLY" if one in arguments.posonlyargs else "POSITIONAL_OR_KEYWORD"
        found.append((one.arg, kind, number >= len(positional) - len(arguments.defaults)))
    if arguments.vararg:
        found.append((arguments.vararg.arg, "VAR_POSITIONAL", False))
    found += [
        (one.arg, "KEYWORD_ONLY", bool(default)) for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults)
    ]
    if arguments.kwarg:
        found.append((arguments.kwarg.arg, "VAR_KEYWORD", False))
    return [one for one in found if one[0] != "self"]


def functions(tree, home):
    """(name, the function in the stub, the function itself) of a module and its classes; overloads are left out."""
    for one in tree.body:
        if isinstance(one, ast.ClassDef) and not one.name.startswith("_"):
            yield from ((f"{one.name}.{name}", *both) for name, *both in functions(one, getattr(home, one.name)))
        elif isinstance(one, ast.FunctionDef) and one.name != "__getattr__":
            if not any(ast.unparse(mark) == "overload" for mark in one.decorator_list):
                real = (inspect.getattr_static if inspect.isclass(home) else getattr)(home, one.name)
                yield one.name, one, getattr(real, "fget", real)


def check_stub(path):
    """AssertionError if the stub has other names or parameters than its module."""
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    home = importlib.import_module(name if name.startswith("vmhost") else f"vmhost.{name}")
    tree = ast.parse(path.read_text())
    written = {getattr(one, "name", None) for one in tree.body}
    written |= {one.target.id for one in tree.body if isinstance(one, ast.AnnAssign)}
    if "__getattr__" not in written:
        assert set(getattr(home, "__all__", ())) <= written
    for name, stub, function in functions(tree, home):
        if name == "load" and home.__name__ == "vmhost.engine":
            function = models.load  # which it calls
        found = shape(inspect.signature(function).parameters.values())
        if [kind for _, kind, _ in found] != ["VAR_POSITIONAL", "VAR_KEYWORD"]:  # a wrapper
            assert written_shape(stub) == found, name


@pytest.mark.parametrize("path", STUBS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_stub_has_the_names_and_parameters_of_its_module(path):
    # In a process of its own: tests of the guest replace modules of it.
    call = f"from pathlib import Path\nfrom tests.vmhost.test_type_hints import *\ncheck_stub(Path({str(path)!r}))"
    done = warm.run("-c", call, cwd=ROOT)
    assert done.returncode == 0, done.stderr
