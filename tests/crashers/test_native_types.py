"""Objects of native types that were made by `__new__` alone, or with each combination of flags: CPython 3.14 crashes
over many of these, or lets the process be killed; a VM refuses them or reads what it should. One process runs them
all."""

from tests.hosts import in_a_process

TASK = '''
import _asyncio, _pickle, asyncio, io, itertools, mmap, pickle, sqlite3
import vmhost.engine.numpy as np


def outcome(function, *arguments, **named):
    """What it gave, or the name of its exception."""
    try:
        return function(*arguments, **named)
    except Exception as error:
        return type(error).__name__


def buffers(value):
    """Every request of the buffer protocol, of arrays that lie in each way."""
    arrays = {
        "plain": np.arange(6.).reshape(2, 3), "fortran": np.arange(6.).reshape(2, 3).T, "one row": np.arange(6.),
        "a number": np.array(7.), "nothing": np.zeros((0, 3)), "turned": np.arange(6.)[::-1],
        "steps": np.arange(12.)[::2], "spread": np.broadcast_to(np.ones(1), (2, 3)), "ones": np.ones((1,) * 20),
        "short": np.arange(6, dtype="i2").reshape(2, 3),
    }
    answers = {}
    for (name, array), flags in itertools.product(arrays.items(), range(1024)):
        try:
            view = array.__buffer__(flags)
        except (ValueError, BufferError):
            continue
        assert view.nbytes == array.nbytes, (name, flags)
        if flags & 8:                   # PyBUF_ND: with a shape
            assert view.shape == array.shape, (name, flags)
            if flags & 4:               # PyBUF_FORMAT
                assert view.tolist() == array.tolist(), (name, flags)
        else:
            assert (view.ndim, view.shape, view.format) == (1, (array.nbytes,), "B"), (name, flags)
            assert view.tolist() == list(array.tobytes()), (name, flags)
        answers[name] = answers.get(name, 0) + 1
    return answers


def maps(value):
    """What every map that a task gets answers to being read; how many there are, and who is refused."""
    made, refused = 0, set()
    flags = {0} | {1 << bit for bit in range(31)}
    for prot, flag, kind, access in itertools.product(range(8), flags, (0, 1, 2, 3), range(5)):
        for named in ({}, {"trackfd": False}, {"trackfd": True, "offset": 4096}):
            try:
                m = mmap.mmap(-1, 4096, flags=flag | kind, prot=prot, access=access, **named)
            except Exception as error:
                refused.add(type(error).__name__)
                continue
            made += 1
            assert (m[0] == 0 and m[:] == bytes(m) == bytes(4096) and m.find(b"x") == m.rfind(b"x") == -1
                    and m.read(3) == bytes(3))
            for change in (lambda: m.write(b"abc"), lambda: m.move(0, 5, 9), lambda: m.__setitem__(0, 5), m.flush,
                           m.size):
                outcome(change)
            for advice in (100, 101, 102, 103, 1 << 30, -1):
                assert outcome(m.madvise, advice) == "PermissionDenied"
            m.close()
    return made, sorted(refused)


def databases(value):
    """Connections and cursors without, or after a failed, __init__."""
    connection, cursor = sqlite3.Connection.__new__(sqlite3.Connection), sqlite3.Cursor.__new__(sqlite3.Cursor)
    row = sqlite3.Row(cursor, ())
    assert cursor.row_factory is None and cursor.description is None
    assert connection.row_factory is None and connection.text_factory is str
    assert row.keys() == [] and outcome(row.__getitem__, "a") == "IndexError"
    assert outcome(sqlite3.Cursor, connection) == "ProgrammingError"
    assert outcome(object.__new__, sqlite3.Cursor) == "TypeError"
    opened = sqlite3.connect(":memory:")
    opened.row_factory = sqlite3.Row
    # a folder is no database: the connection is as if it were new
    assert outcome(opened.__init__, value) == "OperationalError"
    assert (opened.row_factory is None and opened.text_factory is str
            and outcome(sqlite3.Cursor, opened) == "ProgrammingError")
    opened.__init__(":memory:")

    class Own(sqlite3.Cursor):
        def __new__(cls, connection, more):
            return super().__new__(cls)

        def __init__(self, connection, more):
            super().__init__(connection)

    class OwnConnection(sqlite3.Connection):
        def __new__(cls, *arguments, **named):
            return super().__new__(cls)

    both = Own(sqlite3.connect(":memory:", factory=OwnConnection), "more")
    return both.execute("select 1").fetchone() + opened.execute("select 2").fetchone()


def helpers(value):
    """Internal types: not made by anyone but CPython, which still makes them."""
    names = {"FutureIter", "TaskStepMethWrapper", "PicklerMemoProxy", "UnpicklerMemoProxy"}
    types = [kind for kind in object.__subclasses__() if kind.__name__ in names]
    assert {kind.__name__ for kind in types} == names
    for kind in types:
        assert {outcome(kind), outcome(kind.__new__, kind), outcome(object.__new__, kind),
                outcome(type, "Own", (kind,), {})} == {"TypeError"}

    async def wait():
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_result, 4)
        return await future

    half = _pickle.Pickler.__new__(_pickle.Pickler)
    assert half.memo.copy() == {} and half.memo.clear() is None
    half.__init__(io.BytesIO())
    half.dump(["a"])
    assert len(half.memo.copy()) == 2

    loop = asyncio.new_event_loop()
    task = asyncio.Task(wait(), loop=loop)
    assert outcome(task.__init__, wait()) == "RuntimeError"     # no loop runs: from now on the task has none
    del task
    loop.close()
    return (asyncio.run(wait()), len(pickle.Pickler(io.BytesIO()).memo.copy()),
            pickle.Unpickler(io.BytesIO()).memo.copy())


class Releasing(tuple):
    """Calls what it holds as its buffer is released, which may be in the middle of a collection; a tuple is never
    cleared."""

    def __buffer__(self, flags):
        return memoryview(bytearray(9))

    def __release_buffer__(self, view):
        for function in self:
            try:
                function()
            except NameError:
                pass


def collected(value):
    """Functions that the collector has cleared already, called by what it clears after them."""
    import gc
    called = []

    def make():
        def first():
            called.append(1)
            gc.collect(0)
            return len, gc, sorted, box

        def second():
            gc.collect(0)
            return first()

        class Kind:
            def method(self):
                return gc

        one = Kind()
        box = [one, Kind, second]
        both = [first, second]
        box += [memoryview(Releasing((first, second, one.method))), both]
        both.append(box)

    for _ in range(100):
        make()
    gc.collect()
    return len(called) > 0


def unbound(value):
    """super() without its __init__ is unbound, of `object`."""
    class Own(super):
        def __init__(self):
            pass

    class Holder:
        inside = super.__new__(super)

    return [repr(super.__new__(super).__get__(3, int)), repr(Own().__thisclass__), outcome(Own().__get__, 3, int),
            Holder().inside.__self__ is not None]


def halves(value):
    """Every native type that a task reaches, made by __new__ alone, and then used through all that it has."""
    import gc, sys
    seen, kinds = {type}, [object]
    for kind in kinds:
        kinds += [one for one in type.__subclasses__(kind) if one not in seen and not seen.add(one)]
    made = 0
    for kind in kinds:
        if "__firstlineno__" in vars(kind) or issubclass(kind, BaseException):
            continue
        for name in dir(kind):
            try:
                half = kind.__new__(kind)
            except Exception:
                break
            made += 1
            if name in ("__class__", "__init_subclass__", "__subclasshook__", "acquire", "acquire_lock", "__enter__",
                        "poll", "wait", "_acquire_restore"):
                continue
            attribute = outcome(getattr, half, name)
            if callable(attribute):
                for arguments in ((), (None,), (0,), (half,), (half, ()), ((), half), (b"", half), (0, 0, 0)):
                    outcome(attribute, *arguments)
            for junk in (None, -1, "a", half):
                outcome(setattr, half, name, junk)
            outcome(delattr, half, name)
            outcome(getattr, half, name)
        else:
            for use in (repr, hash, len, iter, next, bool, int, float, bytes, memoryview, some, dir, reversed, copying):
                try:
                    outcome(use, kind.__new__(kind))
                except BaseException:
                    pass
    gc.collect()
    return made


def some(half):
    return list(itertools.islice(half, 9))


def copying(half):
    import copy
    return copy.copy(half), copy.deepcopy(half), pickle.dumps(half)
'''

SCRIPT = """
    from tests.crashers.test_native_types import TASK
    import tempfile
    calm = TaskPolicy(breaker=BreakerPolicy(enabled=False))
    folder = tempfile.mkdtemp()
    with vmhost.Host(allow_unsigned=True, policy=Policy(grace_s=20, task=calm)) as host:
        task = host.load(bundle(TASK, limits={"memory_bytes": 512 << 20},
                                permissions={"read": [folder], "write": [folder]}))
        for entry in ("buffers", "maps", "databases", "helpers", "collected", "unbound", "halves"):
            print(entry, flush=True)
            print(task(folder, entry=f"main:{entry}", timeout_s=60), flush=True)
    os.rmdir(folder)
"""


def test_each_is_refused_or_answers():
    done = in_a_process(SCRIPT)
    assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-2000:])
    output = done.stdout.splitlines()
    answers = dict(zip(output[::2], map(eval, output[1::2])))
    assert len(answers["buffers"]) == 10 and min(answers["buffers"].values()) > 10
    mapped, refused = answers["maps"]
    assert mapped > 100 and "PermissionDenied" in refused and "SystemError" not in refused
    assert answers["databases"] == (1, 2)
    assert answers["helpers"] == (4, 0, {})
    assert answers["collected"]
    assert answers["unbound"] == ["<super: <class 'object'>, <int object>>", "<class 'object'>", "TypeError", True]
    assert answers["halves"] > 1000
