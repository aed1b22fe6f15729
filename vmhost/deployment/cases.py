"""Cases: an input of a task and what its call shall give. The platform's simulation and a device's self-test run them.

A case is an object with `input`, and `expect` (the result) or `raises` (the name of an exception in the task) where the
result is to be compared. Values are written as vmhost.lines.json_values says.
"""

import json
import time

from vmhost import TaskError, VMHostError
from vmhost.lines import json_values

_CALL_S = 60.0


class CaseError(Exception):
    """A file that holds no case, or a call that did not end as its case says."""


def host_functions(names):
    """What stands for the functions of a device's own application where a task is tried without it: they give None."""
    return dict.fromkeys(names, lambda *values: None)


def import_module(task, module, timeout_s=_CALL_S):
    """Imports the task's module in a VM and runs its setup(), as the first call would. CaseError."""
    try:
        # Looks up a name that no module has, which calls nothing of the task's beyond that.
        task("", timeout_s=timeout_s, entry=f"{module}:__dict__.get")
    except VMHostError as error:
        traceback = getattr(error, "guest_traceback", None)
        raise CaseError(f"import of {module}: {error}\n{traceback or ''}".rstrip()) from error


def run_case(task, name, case, timeout_s=_CALL_S):
    """Calls the task; (seconds it took, the result as plain data). CaseError where it does not end as the case says."""
    began = time.perf_counter()
    try:
        result = task(json_values.from_plain(case["input"]), timeout_s=timeout_s, entry=case.get("entry"))
    except TaskError as error:
        if case.get("raises") == error.type_name:
            return time.perf_counter() - began, None
        raise CaseError(f"{name}: {error}\n{error.guest_traceback or ''}".rstrip()) from error
    except VMHostError as error:
        raise CaseError(f"{name}: {type(error).__name__}: {error}") from error
    took_s = time.perf_counter() - began
    found = json_values.to_plain(result)
    if "raises" in case:
        raise CaseError(f"{name}: expected {case['raises']}, got {json.dumps(found)[:500]}")
    if "expect" in case and found != case["expect"]:
        raise CaseError(f"{name}: expected {json.dumps(case['expect'])[:500]}, got {json.dumps(found)[:500]}")
    return took_s, found
