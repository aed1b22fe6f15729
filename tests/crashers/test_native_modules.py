"""Tasks that reach into the making of native modules: half-made ones, and Python of theirs that runs while one is made.
One process runs them all."""

from tests.hosts import in_a_process

# Except functions that wait, or read and write their arguments.
NAMES = """
    _asyncio _bisect _blake2 _bz2 _collections _csv _datetime _decimal _elementtree _functools _heapq _json _lzma _md5
    _opcode _operator _pickle _random _sha1 _sha2 _sha3 _sqlite3 _ssl _statistics _struct _uuid _zoneinfo _zstd array
    binascii cmath itertools math mmap pyexpat unicodedata zlib
"""
TASKS = {
    # CPython crashes over functions of a module that was not executed
    "every function of every module, just created": (
        """
        import _vmhost
        called = 0
        for name in NAMES.split():
            try:
                module = _vmhost.create(name)
            except ImportError:
                continue
            for function in vars(module).values():
                if type(function).__name__ == "builtin_function_or_method":
                    for arguments in ((), (1,), ("a",), (b"a",), ([],), (1, 2), ("a", "b")):
                        try:
                            function(*arguments)
                        except Exception:
                            pass
                        called += 1
        assert called > 500, called
    """
    ),
    "a module made by its spec alone": (
        """
        import importlib.util
        for name in ("_csv", "_struct", "_pickle", "_json"):
            module = importlib.util.module_from_spec(importlib.util.find_spec(name))
            for function in vars(module).values():
                if callable(function):
                    try:
                        function([])
                    except Exception:
                        pass
    """
    ),
    # Python that runs while _sqlite3 is made would find its types before they are gated, and take the originals of
    # their methods
    "functools that looks at what is being made": (
        """
        import functools, sys
        class Spy:
            def __getattr__(self, name):
                spied.extend(kind for kind in object.__subclasses__() if kind.__name__ == "Connection"
                             and "setlimit" in vars(kind))
                return getattr(functools, name)
        spied = []
        sys.modules["functools"] = Spy()
        try:
            import _sqlite3
        finally:
            sys.modules["functools"] = functools
        assert not spied, spied
        assert _sqlite3.connect(":memory:").execute("select 1").fetchone() == (1,)
        assert sys.modules["functools"] is functools
    """
    ),
    "an import function that looks at what is being made": (
        """
        import builtins, sys, _vmhost
        spied = []
        real = builtins.__import__
        def spy(*arguments):
            spied.extend(kind for kind in object.__subclasses__() if kind.__name__ == wanted)
            return real(*arguments)
        builtins.__import__ = spy
        try:
            for name, wanted in {"_sqlite3": "Connection", "_ssl": "_SSLContext"}.items():
                eval(call, {"__builtins__": {"__import__": spy}, "create": _vmhost.create, "name": name})
        finally:
            builtins.__import__ = real
        assert not spied, spied
    """
    ),
    "a key of sys.modules that runs Python when it is compared": (
        """
        import sys, _vmhost
        class Key(str):
            __hash__ = lambda self: hash("functools")
            def __eq__(self, other):
                spied.extend(kind for kind in object.__subclasses__() if kind.__name__ == "Connection")
                return False
        spied = []
        there = sys.modules.pop("functools", None)
        sys.modules[Key("x")] = sys
        try:
            _vmhost.create("_sqlite3")
        except ImportError as error:
            assert "keys that are no str" in str(error)
        else:
            raise AssertionError("made")
        finally:
            keep = {key: value for key, value in sys.modules.items() if type(key) is str}
            sys.modules.clear()
            sys.modules.update(keep)
        assert not spied, spied
    """
    ),
    # sqlite takes the cache's objects for statements, without a check
    "a cache of statements that gives something else": (
        """
        import functools
        functools.lru_cache = lambda size: lambda connection: lambda text: 5
        import sqlite3
        connection = sqlite3.connect(":memory:", cached_statements=2)
        for number in range(5):
            assert connection.execute(f"select {number}").fetchone() == (number,)
        assert connection.execute("select 4").fetchall() == [(4,)]
    """
    ),
    # the objects that `_decimal` exposes are not complete yet
    "a kind of numbers that uses what it is shown": (
        """
        import numbers, sys
        class Number:
            @staticmethod
            def register(kind):
                shown.append(kind)
                value = kind(1)
                for name in dir(value):
                    if name != "__class__":
                        for arguments in ((), (value,), (1,)):
                            try:
                                getattr(value, name)(*arguments)
                            except Exception:
                                pass
        shown = []
        real, numbers.Number = numbers.Number, Number
        import decimal
        numbers.Number = real
        assert shown == [decimal.Decimal], shown
        assert (decimal.Decimal("1.5") + 1 == decimal.Decimal("2.5")
                and str(decimal.Decimal(1).as_tuple()).startswith("DecimalTuple"))
        assert sys.modules["numbers"] is numbers
    """
    ),
    "decimals are numbers": (
        """
        import decimal, numbers
        assert isinstance(decimal.Decimal(1), numbers.Number) and decimal.getcontext().prec == 28
    """
    ),
    # types that are being made are not reported
    "an import function that uses what is being made": (
        """
        import builtins, _vmhost
        real, depth = builtins.__import__, 0
        before = set(object.__subclasses__())
        def spy(asked, *rest):
            nonlocal depth
            if depth == 0:
                depth = 1
                for kind in [kind for kind in object.__subclasses__() if kind not in before
                             and kind.__module__ in about]:
                    for arguments in ((), (1,), ("a",), ([],)):
                        try:
                            made = kind(*arguments)
                        except Exception:
                            continue
                        for name in dir(made):
                            for given in ((), (1,), ("a",), ([1],)):
                                try:
                                    getattr(made, name)(*given)
                                except Exception:
                                    pass
                depth = 0
            return real(asked, *rest)
        about = ("_pickle", "_asyncio", "decimal", "zoneinfo", "xml.etree.ElementTree")
        builtins.__import__ = spy
        try:
            for name in ("_pickle", "_asyncio", "_decimal", "_elementtree", "_zoneinfo"):
                eval(call, {"__builtins__": dict(vars(builtins)), "create": _vmhost.create, "name": name})
        finally:
            builtins.__import__ = real
        import pickle, decimal
        assert pickle.loads(pickle.dumps(decimal.Decimal("1.5"))) == 1.5
    """
    ),
    "a type in the place of one that is gated": (
        """
        import _sqlite3, sys
        class Connection:
            pass
        _sqlite3.Connection = Connection
        spec = _sqlite3.__spec__
        spec.loader.exec_module(_sqlite3)
        assert _sqlite3.Connection is Connection and Connection.__init__ is object.__init__
    """
    ),
    "_asyncio before asyncio": (
        """
        import _asyncio, sys
        import asyncio
        assert sys.modules["_asyncio"] is _asyncio and asyncio.Future is _asyncio.Future
        async def nothing():
            await asyncio.sleep(0)
            return 5
        assert asyncio.run(nothing()) == 5
    """
    ),
    "tls, which is made of sockets": (
        """
        import sys
        import _ssl, _socket, ssl
        assert isinstance(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), _ssl._SSLContext)
    """
    ),
}

SCRIPT = """
    import textwrap
    from tests.crashers.test_native_modules import NAMES, TASKS
    with vmhost.Host(allow_unsigned=True) as host:
        for number, (name, body) in enumerate(TASKS.items()):
            print(name, flush=True)
            source = ("def caller():\\n    return create(name)\\ncall = caller.__code__\\n"
                      "def run(value):\\n    global NAMES\\n    NAMES = value\\n"
                      + textwrap.indent(textwrap.dedent(body), "    ") + "\\n    return 'through'\\n")
            task = host.load(bundle(source, f"task{number}", limits={"memory_bytes": 256 << 20}))
            try:
                print(task(NAMES, timeout_s=60), flush=True)
            except vmhost.VMHostError as error:
                print(error, flush=True)
            host.unload(task)
"""


def test_native_modules_are_whole_and_gated_before_a_task_sees_them():
    done = in_a_process(SCRIPT, timeout_s=120)
    assert done.returncode == 0, (done.stdout[-500:], done.stderr)
    assert done.stdout.splitlines() == [line for name in TASKS for line in (name, "through")], done.stdout
