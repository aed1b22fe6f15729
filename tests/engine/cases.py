"""Cases: an expression of `np` and of named values, evaluated by NumPy and by `vmhost.engine.numpy` in the host, and
then again in a sealed VM.

    check("np.roll(x, n, axis=axis)", x=x, n=3, axis=0)

compares NumPy's outcome with the engine's at once. A test that asks for the fixture `again_in_a_vm` has its cases kept;
when it is over, one bundle whose functions are the expressions gets all of them in one call, arrays with the strides
that they had, and every outcome there must be the host's to the bit."""

import binascii
import inspect

import numpy
import pytest

import vmhost
import vmhost.engine.numpy
from tests.engine.test_arrays_against_numpy import assert_same
from tests.hosts import bundle

_kept = None  # [(expression, values, the host's outcome)] while a test's cases are kept
_functions = {}


def viewed(np, memory, shape, strides, first):
    """The array of that shape and of these strides in bytes whose first element is `memory[first]`."""
    return np.lib.stride_tricks.as_strided(memory[first:], shape, strides)


def tellable(value):
    """The key that identifies an outcome, without the elements of arrays, which may be many."""
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, [tellable(item) for item in value]]
    if hasattr(value, "tobytes"):
        return [value.dtype.name, list(value.shape), binascii.crc32(value.tobytes())]
    if isinstance(value, Exception):
        return [type(value).__name__, str(value)]
    return repr(value)


def _function(expression, names):
    """The expression as a function of `np` and of these names, and its source."""
    source = f"lambda {', '.join(['np', *names])}: {expression}"
    if source not in _functions:
        _functions[source] = eval(source, {})
    return _functions[source], source


def _packed(array):
    """(memory, shape, strides, place of the first element) of a NumPy array: the arguments of `viewed`."""
    if array.size == 0:
        return numpy.empty(0, array.dtype), array.shape, numpy.empty(array.shape, array.dtype).strides, 0
    low, high = numpy.lib.array_utils.byte_bounds(array)
    first = array.__array_interface__["data"][0]
    start = array[tuple(slice(-1, None) if step < 0 else slice(0, 1) for step in array.strides)]
    memory = numpy.lib.stride_tricks.as_strided(start, ((high - low) // array.itemsize,), (array.itemsize,))
    return memory.copy(), array.shape, array.strides, (first - low) // array.itemsize


def _in_the_engine(value):
    if not isinstance(value, numpy.ndarray):
        return value
    memory, *rest = _packed(value)
    return viewed(vmhost.engine.numpy, vmhost.engine.numpy.asarray(memory), *rest)


def _outcome(function, np, values):
    try:
        with numpy.errstate(all="ignore"):
            return function(np, *values)
    except Exception as error:
        return error


def outcomes(expression, **values):
    """(NumPy's outcome, the engine's), each a value or an exception. Arrays among the values are NumPy's."""
    function, _ = _function(expression, values)
    wanted = _outcome(function, numpy, values.values())
    got = _outcome(function, vmhost.engine.numpy, map(_in_the_engine, values.values()))
    if _kept is not None:
        _kept.append((expression, values, tellable(got)))
    return wanted, got


def check(expression, **values):
    """AssertionError if values, dtypes, shapes, exceptions or their messages differ from NumPy's."""
    wanted, got = outcomes(expression, **values)
    if isinstance(wanted, Exception) or isinstance(got, Exception):
        assert isinstance(got, Exception), f"NumPy raised {wanted!r}"
        assert isinstance(wanted, Exception), f"raised {got!r}, NumPy returned {wanted!r}"
        # NumPy's own subclasses of TypeError and of IndexError are their parents here
        assert isinstance(wanted, type(got)) or type(wanted).__name__ == type(got).__name__, (wanted, got)
        assert str(got) == str(wanted)
    else:
        assert_same(got, wanted)


# ---- in a sealed VM


def run(batch):
    """The entry: of (memories, cases), what tells the outcome of each case (number of its expression, values; an array
    is "array", number of its memory, shape, strides, first element)."""
    import vmhost.engine.numpy as np

    (memories, cases), told = batch, []
    for number, values in cases:
        try:
            own = [
                viewed(np, memories[value[1]], *value[2:])
                if isinstance(value, tuple) and value[:1] == ("array",)
                else value
                for value in values
            ]
            outcome = EXPRESSIONS[number](np, *own)
        except Exception as error:
            outcome = error
        told.append(tellable(outcome))
        outcome = None  # an exception and this frame, which its traceback has, would keep each other and the arrays
    return told


def in_a_vm(host, cases):
    """AssertionError if the outcome of a kept case differs in a VM of `host`."""
    sources, memories, sent = {}, [], []
    places = {}  # a memory that many cases use is sent once
    for expression, values, _ in cases:
        own = []
        for value in values.values():
            if isinstance(value, numpy.ndarray):
                memory, *rest = _packed(value)
                key = memory.dtype.str, memory.tobytes()
                if key not in places:
                    places[key] = len(memories)
                    memories.append(vmhost.engine.numpy.asarray(memory))
                value = ("array", places[key], *rest)
            own.append(value)
        _, source = _function(expression, values)
        sent.append((sources.setdefault(source, len(sources)), own))
    text = "\n".join(
        [
            "import binascii",
            *map(inspect.getsource, (viewed, tellable, run)),
            "EXPRESSIONS = [",
            *(f"    {source}," for source in sources),
            "]",
        ]
    )
    task = host.load(bundle(text, name="cases", limits={"memory": "256 MiB", "wall_time": "60 s"}))
    for (expression, values, wanted), got in zip(cases, task((memories, sent)), strict=True):
        assert got == wanted, (expression, values, got, wanted)


@pytest.fixture(scope="module")
def host_of_cases():
    with vmhost.Host(allow_unsigned=True) as host:
        yield host


@pytest.fixture
def again_in_a_vm(host_of_cases):
    """Keeps the cases of a test and runs all of them in a sealed VM when it is over."""
    global _kept
    _kept = cases = []
    yield
    _kept = None
    if cases:
        in_a_vm(host_of_cases, cases)
