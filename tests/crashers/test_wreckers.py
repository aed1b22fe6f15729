"""Tasks that wreck their own interpreter, or lean on the corners of CPython that crashed before: the process, the
caller and the next task get through. One process runs them all, so what one breaks shows in the next."""

from tests.hosts import in_a_process

WRECKERS = {
    "empties sys.modules": "import sys; sys.modules.clear()",
    "empties the builtins": "import builtins; builtins.__dict__.clear()",
    "empties sys": "import sys; sys.__dict__.clear()",
    "empties the runtime's native module": "import _vmhost; _vmhost.__dict__.clear()",
    "empties the runtime": (
        "import sys\n    for m in list(sys.modules.values()):\n        if m and m.__name__.startswith('vmhost'):"
        " m.__dict__.clear()"
    ),
    "empties threading": "import threading; threading.__dict__.clear()",
    "removes every way to import": "import sys; sys.meta_path.clear()",
    "breaks its output": (
        "import sys\n    class Broken:\n        def write(self, text): raise SystemExit\n        flush = None\n   "
        " sys.stdout = sys.stderr = Broken()"
    ),
    "replaces its hooks": "import sys, threading; sys.excepthook = sys.unraisablehook = threading.excepthook = None",
    "imports itself again": "import sys; m = sys.modules['main']; m.__spec__.loader.exec_module(m)",
    "makes native modules again": (
        "import _vmhost\n    for n in ('posix', '_thread', '_socket', '_sqlite3'): _vmhost.create(n)"
    ),
    "an exit handler without end": "import atexit\n    def again(): atexit.register(again)\n    atexit.register(again)",
    "a finaliser that starts a thread": (
        "import sys, threading\n    class A:\n        def __del__(self): threading.Thread(target=len,"
        " args=('',)).start()\n    sys.kept = A()"
    ),
    "a finaliser that collects": (
        "import gc\n    class A:\n        def __del__(self): gc.collect()\n    a = A(); a.a = a"
    ),
    "objects that come back": (
        "import gc\n    kept = []\n    class A:\n        def __del__(self): kept.append(self)\n    a = A(); a.a = a;"
        " del a; gc.collect()"
    ),
    "a deep tuple": "v = ()\n    for _ in range(10**6): v = (v,)",
    "deep objects": "class A: pass\n    v = None\n    for _ in range(10**6):\n        a = A(); a.v = v; v = a",
    "deep generators": "def g(x): yield x\n    v = None\n    for _ in range(10**5):\n        v = g(v); next(v)",
    "deep JSON": "import json; json.loads('[' * 10**6)",
    "a deep pickle": "import pickle; pickle.loads(b'(' * 10**6 + b'l' * 10**6 + b'.')",
    "a deep exception": (
        "e = None\n    for _ in range(10**5):\n        n = ValueError(); n.__context__ = e; e = n\n    raise e"
    ),
    "a deep exception group": "e = ValueError()\n    for _ in range(10**4): e = ExceptionGroup('x', [e])\n    raise e",
    "deep pattern": "import re; re.compile('(' * 5000 + ')' * 5000)",
    "recursion in threads": (
        "import threading\n    def f(): f()\n    t = [threading.Thread(target=f) for _ in range(20)]\n    [x.start()"
        " for x in t]; [x.join() for x in t]"
    ),
    "too many threads": (
        "import threading\n    e = threading.Event()\n    for _ in range(200): threading.Thread(target=e.wait).start()"
    ),
    "one connection in many threads": (
        "import sqlite3, threading\n    c = sqlite3.connect(':memory:', check_same_thread=False)\n    t ="
        " [threading.Thread(target=lambda: [c.execute('select 1').fetchall() for _ in range(200)]) for _ in range(8)]\n"
        "    [x.start() for x in t]; [x.join() for x in t]"
    ),
    "defaults of a generic function, written in the frame that makes it": (
        "import gc, sys\n    gc.set_threshold(1, 1, 1)\n    class Trap:\n        def __init__(self): self.me = self\n  "
        "      def __del__(self):\n            there = sys._getframe(1).f_locals\n            if '.defaults' in there:"
        " there['.defaults'] = 17\n    for _ in range(300):\n        Trap()\n        def f[T](a=1, b=2): return a\n    "
        "    f()"
    ),
    "super() in a comprehension over what a closure holds": (
        "class A:\n        def f(self):\n            kept = lambda: self\n            return [super().__thisclass__ for"
        " self in [self]] + [s() for self in [self] for s in [super]]\n    assert A().f()[0] is A\n    class B(super):"
        " pass\n    class C:\n        def f(self):\n            kept = lambda: self\n            return [B() for self"
        " in [self]], [super.__init__(B(C)) for self in [self]]\n    C().f()"
    ),
    "a StopIteration without a value": (
        "class I:\n        def __iter__(self): return self\n        def __next__(self): raise made()\n    def g():"
        " return (yield from I())\n    def deleted():\n        e = StopIteration(1); del e.value; return e\n    class"
        " S(StopIteration):\n        def __init__(self): pass\n    for made in (lambda:"
        " StopIteration.__new__(StopIteration), deleted, S): list(g())"
    ),
    "a generic class in a class whose namespace has its parameters": (
        "class M(type):\n        __prepare__ = classmethod(lambda *a, **k: {'.type_params': 5})\n    class"
        " A(metaclass=M):\n        class B[T]: pass\n    assert A.B[int].__origin__ is A.B\n    class C:\n       "
        " locals()['.type_params'] = 5\n        class D[T](list): pass"
    ),
    "a class's type parameters, written through the cell": (
        "import builtins\n    real = builtins.__build_class__\n    def build(body, *a, **k):\n        for cell in"
        " body.__closure__ or (): cell.cell_contents = 5\n        return real(body, *a, **k)\n   "
        " builtins.__build_class__ = build\n    class A[T]:\n        class B[S]: pass"
    ),
    "hidden code, called by all ways": (
        "import types\n    def outer():\n        def f[T](a=1, *, k=2): return a\n        return f\n    code = next(c"
        " for c in outer.__code__.co_consts if isinstance(c, types.CodeType))\n    done = 0\n    for way in (lambda:"
        " types.FunctionType(code, {})(5, 5), lambda: setattr(outer, '__code__', code), lambda: exec(code),\n          "
        "      lambda: types.FunctionType(code, {})(**{'.defaults': 5, '.kwdefaults': 5})):\n        try: way()\n      "
        "  except PermissionError: done += 1\n    assert done == 4, done"
    ),
    "free variables of any kind": (
        "import types\n    def outer():\n        class A[T]: x: T\n        return A\n    codes = [outer.__code__]\n   "
        " for code in codes: codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]\n    for code in"
        " codes:\n        cells = tuple(types.CellType(5) for _ in code.co_freevars)\n        for call in (lambda:"
        " types.FunctionType(code, globals(), closure=cells)(), lambda: exec(code, globals(), closure=cells)):\n       "
        "     try: call()\n            except Exception: pass"
    ),
    "a dict changed while compared": (
        "class K:\n        __hash__ = lambda s: 1\n        def __eq__(s, o): d.clear(); return False\n"
        "    d = {}\n    for _ in range(100): d[K()] = 1"
    ),
}

SCRIPT = """
    from tests.crashers.test_wreckers import WRECKERS
    calm = TaskPolicy(breaker=BreakerPolicy(enabled=False))
    with vmhost.Host(allow_unsigned=True, policy=Policy(grace_s=20, task=calm)) as host:
        good = host.load(bundle("def run(value):\\n    return value\\n", "good"))
        for number, (name, body) in enumerate(WRECKERS.items()):
            print(name, flush=True)
            task = host.load(bundle(f"def run(value):\\n    {body}\\n", f"task{number}",
                                    limits={"memory_bytes": 256 << 20}))
            try:
                task(number, timeout_s=60)
            except vmhost.VMHostError as error:
                assert "AssertionError" not in str(error), error
            assert good(number) == number
            host.unload(task)
        lost = host.close()
        assert not lost, lost
    print("all", flush=True)
"""


def test_the_process_gets_through_all_of_them():
    done = in_a_process(SCRIPT, timeout_s=600)
    assert done.returncode == 0, (done.stdout[-200:], done.stderr)
    assert done.stdout.splitlines() == [*WRECKERS, "all"]


def test_a_stop_in_the_middle_of_a_generic_class_is_put_off_a_moment():
    """CPython 3.14 crashes over any exception of the function that it calls for the `*Ts`."""
    done = in_a_process("""
        source = "def run(value):\\n    while True:\\n        class Made[*Ts]: pass\\n"
        calm = TaskPolicy(breaker=BreakerPolicy(enabled=False))
        with vmhost.Host(allow_unsigned=True, policy=Policy(grace_s=5, task=calm)) as host:
            task = host.load(bundle(source, limits={"concurrency": 1}))
            for _ in range(20):
                try:
                    task(None, timeout_s=0.05)
                except vmhost.TimeLimitError:
                    print("stopped", flush=True)
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["stopped"] * 20
