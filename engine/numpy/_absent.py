"""NumPy's public names that `vmhost.engine.numpy` leaves out by design, and what to use instead.

`vmhost.engine.numpy.__getattr__` appends the advice to its AttributeError; docs/numpy.md is generated from it. Every
name of NumPy is either here or works; tests/engine/test_names.py compares with NumPy's own list. {name: advice}; an
advice is one clause."""


def missing(module, name):
    """The AttributeError for a name that `module` ("": vmhost.engine.numpy itself) lacks, with the advice if there is
    one."""
    advice = ABSENT_IN.get(module, {}).get(name) if module else ABSENT.get(name)
    title = f"vmhost.engine.numpy{'.' * bool(module)}{module}"
    return AttributeError(f"module {title!r} has no attribute {name!r}" + (f"; {advice}" if advice else ""))


def missing_method(name):
    """The same for a name that arrays lack."""
    return AttributeError(f"'vmhost.engine.numpy.ndarray' object has no attribute {name!r}; {ABSENT_METHODS[name]}")


_DATES = (
    "dates and times have no dtype here: keep seconds or days in an int64 or float64 array, and use the module datetime"
    " for calendars"
)
_TEXT = "text has no dtype here: keep strings in a list, and numbers in arrays"
_OBJECTS = "arrays hold numbers only: keep Python objects in a list"
_RECORDS = "structured dtypes are absent: keep an array for each field, in a dict or a dataclass"
_LONG = "the widest dtypes are float64 and complex128: use those"
_MATRIX = "use arrays of two dimensions and the operator @"
_WALKING = "iterate with ndindex, ndenumerate or flat, or write the loop as array operations"
_BUILD = "the engine is built with vmhost: see `vmhost doctor`"
_ERRORS = "the engine gives no floating-point warnings: ask isfinite() of the result"

ABSENT = {
    # dtypes that are absent, and functions that only serve them
    **dict.fromkeys(
        "datetime64 timedelta64 datetime_as_string datetime_data busday_count busday_offset busdaycalendar is_busday"
        " isnat".split(),
        _DATES,
    ),
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
    "fromregex": "use the module re, and array() of what it found",
    "fromfile": "read the bytes and use frombuffer()",
    # iterators and lifted functions
    **dict.fromkeys("nditer nested_iters".split(), _WALKING),
    "frompyfunc": "use vectorize(), whose results are arrays of numbers, or write the function with array operations",
    # polynomials as objects
    "polynomial": (
        "use poly1d, or keep coefficients in an array: polyval, polyadd, polymul, polydiv, polyder, polyint, polyfit"
    ),
    # floating-point errors and buffers
    **dict.fromkeys("geterrcall seterrcall".split(), _ERRORS),
    **dict.fromkeys("getbufsize setbufsize".split(), "operators need no buffer: there is nothing to set"),
    # the build, the C interface, and names for other tools
    **dict.fromkeys("show_config show_runtime get_include info".split(), _BUILD),
    "f2py": "compiled extensions are not loaded into VMs: use array operations",
    "ctypeslib": "foreign functions are not reachable from a VM: arrays cross with the buffer protocol or DLPack",
    "core": "a private name of NumPy: use the names of vmhost.engine.numpy",
    "test": "run the project's tests: `python -m pytest tests/engine`",
    "typing": "annotate with vmhost.engine.numpy.ndarray",
    "sctypeDict": "use dtype(name)",
}

# the same for NumPy's modules
_OWN = "take a Generator of default_rng(seed) and call its method of that name"
_BITS = "Philox is the bit generator here; RandomState(seed) draws from a Mersenne Twister"
_NUMPYS = "a tool of NumPy's own tests: use pytest in the host"
_WARNINGS = "the engine gives no such warnings: use pytest.warns in the host"
ABSENT_IN = {
    "random": {
        **dict.fromkeys(
            "binomial f geometric hypergeometric logseries multinomial negative_binomial noncentral_chisquare"
            " noncentral_f vonmises wald zipf".split(),
            _OWN,
        ),
        **dict.fromkeys("MT19937 PCG64 PCG64DXSM SFC64".split(), _BITS),
    },
    "testing": {
        **dict.fromkeys(
            "BLAS_SUPPORTS_FPE HAS_LAPACK64 HAS_REFCOUNT IS_64BIT IS_EDITABLE IS_INSTALLED IS_MUSL IS_PYPY IS_PYSTON"
            " IS_WASM IgnoreException KnownFailureException NOGIL_BUILD NUMPY_ROOT break_cycles build_err_msg"
            " check_support_sve decorate_methods jiffies measure memusage run_threaded rundocs runstring verbose"
            " assert_no_gc_cycles".split(),
            _NUMPYS,
        ),
        **dict.fromkeys(
            "assert_no_warnings assert_warns clear_and_catch_warnings suppress_warnings".split(), _WARNINGS
        ),
        **dict.fromkeys("SkipTest TestCase".split(), "use unittest's own"),
        **dict.fromkeys(
            "assert_array_almost_equal_nulp assert_array_max_ulp".split(), "compare the distance with spacing()"
        ),
        "print_assert_equal": "use assert_equal",
        **dict.fromkeys("tempdir temppath".split(), "use the module tempfile"),
    },
    "exceptions": {
        **dict.fromkeys(
            "ComplexWarning ModuleDeprecationWarning VisibleDeprecationWarning".split(),
            "the engine gives no such warnings",
        ),
        "DTypePromotionError": "the engine raises TypeError",
    },
}

# the same for methods and attributes of arrays
ABSENT_METHODS = {
    **dict.fromkeys("dump dumps tofile".split(), "arrays are not pickled: use save(), or tobytes()"),
    **dict.fromkeys("getfield setfield".split(), _RECORDS),
    "resize": "use vmhost.engine.numpy.resize(), which returns a new array",
    "base": "ask shares_memory()",
    **dict.fromkeys("ctypes data".split(), "the memory is reached through the buffer protocol: memoryview(array)"),
}
