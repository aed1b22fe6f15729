"""NumPy's public names that `engine.numpy` leaves out by design, and what to use instead.

Read by `engine.numpy.__getattr__`, whose AttributeError ends with the advice, and by what writes docs/numpy.md. A name is here or it
works; tests/engine/test_names.py holds the two against NumPy's own list. Plain data: {name: advice}, an advice is one clause.
"""

_DATES = "dates and times have no dtype here: keep seconds or days in an int64 or float64 array, and use the module datetime for calendars"
_TEXT = "text has no dtype here: keep strings in a list, and numbers in arrays"
_OBJECTS = "arrays hold numbers only: keep Python objects in a list"
_RECORDS = "structured dtypes are absent: keep an array for each field, in a dict or a dataclass"
_LONG = "the widest dtypes are float64 and complex128: use those"
_MATRIX = "use arrays of two dimensions and the operator @"
_FILES = "a VM reads files through the bundle's resources: use load and save (npy, npz), or the modules csv and json and then array()"
_WALKING = "iterate with ndindex, ndenumerate or flat, or write the loop as array operations"
_BUILD = "the engine is built with vmhost: see `vmhost doctor`"
_ERRORS = "the engine gives no floating-point warnings: ask isfinite() of the result"
_PYTHON = "functions of one element are not lifted here: write them with array operations, or use a list comprehension and array()"

ABSENT = {
    # dtypes that are absent, and what serves only them
    **dict.fromkeys(
        "datetime64 timedelta64 datetime_as_string datetime_data busday_count busday_offset busdaycalendar is_busday isnat".split(), _DATES),
    **dict.fromkeys("str_ bytes_ character char strings".split(), _TEXT),
    "object_": _OBJECTS,
    **dict.fromkeys("void record recarray rec flexible".split(), _RECORDS),
    "dtypes": "compare dtype objects themselves, or ask isdtype() and issubdtype()",
    **dict.fromkeys("longdouble clongdouble float128 complex256".split(), _LONG),
    # subclasses of arrays
    **dict.fromkeys("matrix asmatrix bmat".split(), _MATRIX),
    "memmap": "map a file with the module mmap and read it with frombuffer()",
    "ma": "keep a boolean array of what is valid beside the values: where=, nanmean() and their like, or x[valid]",
    # text files and raw files
    **dict.fromkeys("genfromtxt loadtxt savetxt fromregex".split(), _FILES),
    "fromfile": "read the bytes and use frombuffer()",
    "fromstring": "use frombuffer() for bytes, and array([float(word) for word in text.split()]) for text",
    # iterators and lifted functions
    **dict.fromkeys("nditer nested_iters".split(), _WALKING),
    **dict.fromkeys("vectorize frompyfunc".split(), _PYTHON),
    # polynomials as objects
    **dict.fromkeys("poly1d polynomial".split(), "keep coefficients in an array: polyval, polyadd, polymul, polydiv, polyder, polyint, polyfit"),
    # floating-point errors and buffers
    **dict.fromkeys("geterrcall seterrcall".split(), _ERRORS),
    **dict.fromkeys("getbufsize setbufsize".split(), "operators need no buffer: there is nothing to set"),
    # the build, the C interface, and what serves other tools
    **dict.fromkeys("show_config show_runtime get_include info".split(), _BUILD),
    "f2py": "compiled extensions are not loaded into VMs: use array operations",
    "ctypeslib": "foreign functions are not reachable from a VM: arrays cross with the buffer protocol or DLPack",
    "core": "a private name of NumPy: use the names of engine.numpy",
    "test": "run the project's tests: `python -m pytest tests/engine`",
    "typing": "annotate with engine.numpy.ndarray",
    "sctypeDict": "use dtype(name)",
}

# the same for methods and attributes of arrays
ABSENT_METHODS = {
    **dict.fromkeys("dump dumps tofile".split(), "arrays are not pickled: use save(), or tobytes()"),
    **dict.fromkeys("getfield setfield".split(), _RECORDS),
    "resize": "use engine.numpy.resize(), which returns a new array",
    "base": "ask shares_memory()",
    **dict.fromkeys("ctypes data".split(), "the memory is reached through the buffer protocol: memoryview(array)"),
}
