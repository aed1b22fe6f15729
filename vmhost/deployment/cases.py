"""Cases: an input of a task and the expected outcome. The platform's simulation and a device's self-test run them.

A case is an object with `input`, and `expect` (the result) or `raises` (the name of an exception in the task) where the
result is to be compared. Values are written as described in vmhost.lines.json_values.
"""

import json
import time

from vmhost import TaskError, VMHostError
from vmhost.lines import json_values

_CALL_S = 60.0


class CaseError(Exception):
    """A file that is not a case, or a call whose outcome differs from its case."""


def host_functions(names):
    """Stand-ins, returning None, for the host functions of the device's application, which is absent in a trial."""
    return dict.fromkeys(names, lambda *values: None)


def import_module(task, module, timeout_s=_CALL_S):
    """Imports the task's module in a VM and runs its setup(), as the first call would. CaseError."""
    try:
        # This looks up a name that no module has, so nothing of the task is called beyond setup().
        task("", timeout_s=timeout_s, entry=f"{module}:__dict__.get")
    except VMHostError as error:
        traceback = getattr(error, "guest_traceback", None)
        raise CaseError(f"import of {module}: {error}\n{traceback or ''}".rstrip()) from error


def run_case(task, name, case, timeout_s=_CALL_S):
    """Calls the task; (seconds, the result as plain data). CaseError if the outcome differs from the case."""
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
