"""The public API's type hints: they can be read at run time, and mypy agrees with them (tools/lint.sh has it read
tests/vmhost/typed_program.py)."""

import inspect

import pytest

import vmhost
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
