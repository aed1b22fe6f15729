"""Stops of loops over elements with the GIL held, without an operator that would check the flag.

They run in a process of their own, whose interpreter gets a context that can be stopped, as a VM's has one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SETTING = """
import ctypes, json, sys
from tests.engine.library import check, library

context = ctypes.c_void_p()
check(library.vme_context_new(None, 0, ctypes.byref(context)))
python = ctypes.pythonapi
for function, result, arguments in (
        (python.PyInterpreterState_Get, ctypes.c_void_p, []),
        (python.PyInterpreterState_GetDict, ctypes.c_void_p, [ctypes.c_void_p]),
        (python.PyCapsule_New, ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p])):
    function.restype, function.argtypes = result, arguments
name = ctypes.c_char_p(b"engine.context")       # outlives the capsule
# a borrowed reference
own = ctypes.cast(python.PyInterpreterState_GetDict(python.PyInterpreterState_Get()), ctypes.py_object).value
own["engine.context"] = python.PyCapsule_New(context, name, None)

import vmhost.engine.numpy as np
from vmhost.engine import _array

def stop(wanted=True):
    library.vme_context_stop(context, ctypes.c_bool(wanted))

class Stopping:
    '''The last item of a walk over it stops the context: what comes after it is walked stopped.'''

    def __len__(self):
        return len(numbers)

    def __getitem__(self, i):
        if i == len(numbers):
            stop()
            raise IndexError
        return 1.0

def refused(call, *arguments):
    try:
        call(*arguments)
    except RuntimeError as error:
        assert str(error) == "the array's computation was stopped", error
        stop(False)
    else:
        raise AssertionError("not stopped")

numbers = [1.5] * 5000
whole = list(range(5000))
a, floats = np.arange(5000), np.arange(5000.0)
few = np.arange(100)
outcomes = {}
for name, walk in json.loads(sys.argv[1]).items():
    try:
        exec(walk)
        assert np.array(numbers).tolist() == numbers and list(a) == whole       # it goes on after that
        stop()
        assert few.tolist() == list(range(100))         # what takes microseconds does not look
        outcomes[name] = "stopped"
    except BaseException as error:
        outcomes[name] = repr(error)
    stop(False)
print(json.dumps(outcomes))
"""
WALKS = {
    "a list of floats": "stop(); refused(np.array, numbers)",
    "a list of ints": "stop(); refused(np.array, whole, 'int8')",
    "a list of short lists": "stop(); refused(np.array, [[1]] * 5000)",
    "the list, once its shape is known": "refused(np.array, [numbers, Stopping()])",
    "a range": "stop(); refused(np.asarray, range(5000))",
    "tolist": "stop(); refused(a.tolist)",
    "tolist of empty rows": "b = np.zeros((5000, 0)); stop(); refused(b.tolist)",
    "tolist of columns": "b = a.reshape(-1, 2); stop(); refused(b.tolist)",
    "iteration": "stop(); refused(list, a)",
    "iteration over rows": "b = a.reshape(-1, 1); stop(); refused(sum, b)",
    "shortest digits": "stop(); refused(_array._shortest, floats)",
}


@pytest.fixture(scope="module")
def outcomes():
    result = subprocess.run(
        [sys.executable, "-c", SETTING, json.dumps(WALKS)],
        cwd=Path(__file__).resolve().parents[2],
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(result.stdout)


@pytest.mark.parametrize("name", WALKS)
def test_a_stop_reaches(outcomes, name):
    assert outcomes[name] == "stopped"
