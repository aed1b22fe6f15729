"""An array that has crossed is not written any more, neither through a window (memoryview, DLPack) nor by an
operation under way."""

import numpy
import pytest

import vmhost
import vmhost.engine.numpy as np
from tests.hosts import bundle

TASK = '''
import threading

import vmhost.engine.numpy as np
from vmhost.guest import Buffer, host

kept = []


def fresh():
    return np.arange(12, dtype="float64").reshape(3, 4)

def keep(*things):
    kept[:] = things

def window(writes):
    """Keeps what `writes(value)` needs; the next call, of again(), writes through it."""
    keep(writes)

def again(value):
    try:
        kept[0](value)
    except (ValueError, TypeError, BufferError) as error:
        return f"{type(error).__name__}: {error}"


def through_memoryview(a):
    m = memoryview(a).cast("B").cast("d")
    return lambda value: m.__setitem__(1, value)

def through_memoryview_of_a_part(a):
    m = memoryview(a[1:])
    return lambda value: m.__setitem__((0, 1), value)

def through_memoryview_with_steps(a):
    m = memoryview(a.reshape(-1)[::2])
    return lambda value: m.__setitem__(1, value)

def through_memoryview_of_transposed(a):
    m = memoryview(a.T)
    return lambda value: m.__setitem__((1, 1), value)

def through_part_of_a_released_memoryview(a):
    m = memoryview(a)
    part = m[1:]
    m.release()
    return lambda value: part.__setitem__((0, 1), value)

def through_frombuffer(a):
    b = np.frombuffer(a)
    return lambda value: b.__setitem__(1, value)

def through_frombuffer_of_memoryview(a):
    b = np.frombuffer(memoryview(a))[1:]
    return lambda value: b.__setitem__(1, value)

def through_dlpack(a):
    b = np.from_dlpack(a)
    return lambda value: b.__setitem__((0, 1), value)

def through_dlpack_capsule(a):
    class Producer:
        def __dlpack_device__(self):
            return 1, 0
        def __dlpack__(self, **options):
            return capsule
    capsule = a.__dlpack__(max_version=(1, 0))
    return lambda value: np.from_dlpack(Producer()).__setitem__((0, 1), value)

def through_old_dlpack_capsule(a):
    capsule = a.__dlpack__()
    return lambda value: capsule and a.__setitem__((0, 1), value)

def through_parts(a):
    c = a.astype("complex128")
    m = memoryview(c.real)
    return c, lambda value: m.__setitem__((0, 1), value)

def through_dtype_view(a):
    m = memoryview(a.view("int64"))
    return lambda value: m.__setitem__((0, 1), int(value))

def through_itself(a):
    return lambda value: a.__setitem__((0, 1), value)

def through_flat(a):
    flat = a.flat
    return lambda value: flat.__setitem__(1, value)

def through_out(a):
    return lambda value: np.add(1.0, value, out=a)

WAYS = {name[8:]: value for name, value in list(globals().items()) if name.startswith("through_")}


def run(way):
    a = fresh()
    writes = WAYS[way](a)
    if isinstance(writes, tuple):
        a, writes = writes
    window(writes)
    return a

def view(way):
    a = fresh()
    window(WAYS[way](a))
    return {"view": a[:, 1:], "row": [a[0]]}

def to_the_host(way):
    a = fresh()
    writes = WAYS[way](a)
    host.take(a)
    return writes(666.0)

def of_a_bytearray(_):
    memory = bytearray(fresh().tobytes())
    window(lambda value: memory.__setitem__(slice(8, 16), b"\\x7f" * 8))
    return np.frombuffer(memory).reshape(3, 4)

def of_a_buffer(_):
    buffer = Buffer(96)
    a = np.frombuffer(buffer, "float64")
    a[:] = np.arange(12)
    window(lambda value: a.__setitem__(1, value))
    return a.reshape(3, 4)

def a_buffer(_):
    buffer = Buffer(96)
    a = np.frombuffer(buffer, "float64")
    window(lambda value: a.__setitem__(1, value))
    return buffer


class Sends:
    """Has the array cross, in the midst of an operation that writes into it."""

    def __init__(self, a, then=666.0):
        self.a, self.then = a, then

    def __float__(self):
        host.take(self.a)
        return self.then

    def __index__(self):
        host.take(self.a)
        return 1

    def __len__(self):
        return 1

    def __getitem__(self, index):
        if index:
            raise IndexError
        host.take(self.a)
        return self.then

def writes_element(a):
    a[0, 1] = Sends(a)

def writes_row(a):
    a[0] = [1, Sends(a), 2, 3]

def writes_flat_element(a):
    a.reshape(-1)[1] = Sends(a)

def writes_at_index(a):
    a[0, Sends(a)] = 666

def writes_many(a):
    a[[0, 1]] = [Sends(a), 2, 3, 4]

def writes_masked(a):
    a[a >= 0] = [Sends(a)]

def fills(a):
    a.fill(Sends(a))

def adds_in_place(a):
    a += Sends(a)

def adds_at(a):
    np.add.at(a, [0, 1], Sends(a))

def adds_into(a):
    np.add(1, [[1, 2, 3, Sends(a)]] * 3, out=a)

def sums_into(a):
    np.sum([[1, 2, 3, Sends(a)]] * 3, axis=0, out=a[0])

def takes_into(a):
    np.take([1.0, 2.0, 3.0, 4.0], [0, Sends(a), 2, 3], out=a[0])

def joins_into(a):
    np.concatenate([[1, 2], [3, Sends(a)]], out=a[0])

def multiplies_into(a):
    np.matmul([[Sends(a)]], [[1.0, 2.0, 3.0, 4.0]], out=a[:1])

def clips_into(a):
    np.clip([1, 2, 3, Sends(a)], 5, 6, out=a[0])

def sets_real(a):
    a.real = [1, 2, 3, Sends(a)]

def puts(a):
    np.put(a, [0, 1], [Sends(a), 5])

def copies_to(a):
    np.copyto(a, [1, 2, 3, Sends(a)])

MIDST = [writes_element, writes_row, writes_flat_element, writes_at_index, writes_many, writes_masked, fills,
         adds_in_place, adds_at, adds_into, sums_into, takes_into, joins_into, multiplies_into, clips_into, sets_real,
         puts, copies_to]

def in_the_midst(name):
    a = fresh()
    try:
        globals()[name](a)
    except (ValueError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return "written"


def on_another_thread(_):
    """Returns an array while a thread writes it without the GIL."""
    a = np.zeros((400, 400))
    b = np.ones((400, 400))
    stop = []
    def write():
        while not stop:
            np.matmul(b, b, out=a)
            np.multiply(a, 0.0, out=a)
    thread = threading.Thread(target=write)
    def end(value):
        stop.append(1)
        thread.join()
    window(end)
    thread.start()
    return a

def new_views_are_read_only(_):
    a = fresh()
    host.take(a)
    m = memoryview(a)
    return [m.readonly, a.flags.writeable, np.from_dlpack(a).flags.writeable, np.frombuffer(a).flags.writeable,
            memoryview(a[1:].T).readonly]

def new_echo(value):
    return value
'''

EXPECTED = numpy.arange(12.0).reshape(3, 4)


class Taken(list):
    """The host function `take`: keeps the arrays, and copies of their contents at that time."""

    def __call__(self, value):
        value = numpy.asarray(value)
        self.append((value, value.copy()))

    def unchanged(self):
        assert self
        for value, before in self:
            assert (value == before).all()
        self.clear()
        return True


taken = Taken()


@pytest.fixture(scope="module")
def task():
    with vmhost.Host(allow_unsigned=True, functions={"take": taken}) as host:
        yield host.load(
            bundle(TASK, permissions={"host": ["take"]}, limits={"memory_bytes": 64 << 20, "concurrency": 1})
        )


def names_in(text, prefix):
    return [
        line.partition("(")[0].removeprefix("def ") for line in text.splitlines() if line.startswith(f"def {prefix}")
    ]


WAYS = [name.removeprefix("through_") for name in names_in(TASK, "through_")]


@pytest.mark.parametrize("write", WAYS)
def test_a_returned_array_is_not_written(task, write):
    result = task(write)
    shown = numpy.asarray(result)
    assert (shown == EXPECTED).all()
    task(666.0, entry="main:again")
    assert (shown == EXPECTED).all()


@pytest.mark.parametrize("write", [write for write in WAYS if write != "parts"])
def test_nor_is_a_view_of_it(task, write):
    result = task(write, entry="main:view")
    view, row = numpy.asarray(result["view"]), numpy.asarray(result["row"][0])
    task(666.0, entry="main:again")
    assert (view == EXPECTED[:, 1:]).all() and (row == EXPECTED[0]).all()


@pytest.mark.parametrize(
    "write", [write for write in WAYS if write not in ("parts", "itself", "flat", "out", "old_dlpack_capsule")]
)
def test_nor_is_what_a_host_function_was_given(task, write):
    task(write, entry="main:to_the_host")
    assert taken.unchanged()


@pytest.mark.parametrize("entry", ["of_a_bytearray", "of_a_buffer"])
def test_nor_is_an_array_on_memory_of_the_task(task, entry):
    shown = numpy.asarray(task(None, entry=f"main:{entry}"))
    task(666.0, entry="main:again")
    assert (shown == EXPECTED).all()


def test_a_buffer_with_a_window_does_not_cross(task):
    with pytest.raises(vmhost.CrossingError, match="still open"):
        task(None, entry="main:a_buffer")


@pytest.mark.parametrize(
    "name", TASK.partition("MIDST = [")[2].partition("]")[0].replace("\n", " ").replace(",", " ").split()
)
def test_what_crosses_in_the_midst_of_an_operation_is_not_written_by_it(task, name):
    answer = task(name, entry="main:in_the_midst")
    assert answer == "written" or "Error" in answer
    if taken or answer == "written":
        assert taken.unchanged()


def test_what_a_thread_writes_without_the_gil_crosses_as_a_copy(task):
    for _ in range(10):
        shown = numpy.asarray(task(None, entry="main:on_another_thread"))
        before = shown.copy()
        task(None, entry="main:again")
        assert (shown == before).all()


def test_what_has_crossed_is_shown_read_only(task):
    assert task(None, entry="main:new_views_are_read_only") == [True, False, False, False, True]
    assert taken.unchanged()


def test_the_hosts_own_arrays_likewise(task):
    mine = np.arange(5.0)
    window = memoryview(mine)
    back = numpy.asarray(task(mine, entry="main:new_echo"))
    window[1] = 666.0
    assert back.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0] and mine[1] == 666.0
