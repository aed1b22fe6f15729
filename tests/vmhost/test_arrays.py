"""The engine's arrays between a host and its VMs: no copies, frozen while shared, charged, stopped."""

import gc

import numpy
import pytest

import vmhost
import vmhost.engine.numpy as np
from tests.hosts import bundle, until
from vmhost.engine import _array, library

TASK = """
    import vmhost.engine.numpy as np

    kept = []

    def echo(value):
        return value

    def keep(value):
        kept.append(value)
        return len(kept)

    def total(_):
        return sum(float(one.sum()) for one in kept)

    def drop(_):
        kept.clear()

    def kind(value):
        return [type(value).__module__ + "." + type(value).__name__, getattr(value, "dtype", None) and value.dtype.name,
                list(value.shape), bytes(memoryview(value)).hex()]

    def described(value):
        return repr(value)

    def counted(values):
        return {one: int((values == one).sum()) for one in np.unique(values)}

    def number(kind):
        a = np.arange(6).astype(kind) * np.array(1.5).astype(kind)
        return {"sum": a.sum(), "of": [a[3], np.mean(a)], a[2]: {a[1], a[2]}}

    def write(value):
        value[0] = 1

    def ones(count):
        return np.full((count,), 1.0)

    def kept_ones(count):
        kept.append(np.full((count,), 1.0))
        return kept[-1]

    def strided(_):
        return np.reshape(np.asarray([0, 1, 2, 3, 4, 5], dtype="int64"), (2, 3)).T[::-1]

    def multiply_for_ever(size):
        a = np.zeros((size, size))
        while True:
            np.matmul(a, a, out=np.zeros((size, size)))

    def add_for_ever(size):
        a = np.zeros((size,))
        while True:
            a += a

    def timed_product(size):
        import time
        a = np.zeros((size, size))
        began = time.thread_time()
        np.matmul(a, a)
        return time.thread_time() - began

    def one_long_product(size):
        a = np.broadcast_to(np.zeros((64, 1)), (64, size))      # one column, read again and again: long on any machine
        return np.matmul(a, a.T).shape[0]
"""


@pytest.fixture(scope="module")
def host():
    with vmhost.Host(allow_unsigned=True) as host:
        yield host


@pytest.fixture
def load(host, request):
    """A function that loads TASK under the test's own name: a new VM for each test."""
    loaded = []

    def load(**limits):
        loaded.append(
            host.load(
                bundle(TASK, name=f"arrays{len(loaded)}-{abs(hash(request.node.name)) % 10**8}", limits=limits or None)
            )
        )
        return loaded[-1]

    yield load
    for task in loaded:
        host.unload(task)


def address(array):
    return numpy.asarray(array).__array_interface__["data"][0]


def charged(host, task):
    return sum(vm.counters["buffer_bytes"] for vm in host.statistics().vms if vm.task == task.name)


def test_an_array_crosses_both_ways_without_a_copy(load):
    task = load()
    sent = np.ones((1000,), dtype="float32")
    back = task(sent, entry="main:echo")
    assert address(back) == address(sent)
    assert (back.dtype.name, back.shape) == ("float32", (1000,))


def test_views_cross_as_they_are(load):
    task = load()
    sent = np.reshape(np.asarray(list(range(24)), dtype="int64"), (2, 3, 4))
    for view in (sent.T, sent[::-1, 1], sent[:, :, ::2], sent[1, 2, 3], sent[:, :0]):
        back = task(view, entry="main:echo")
        assert numpy.array_equal(numpy.asarray(back), numpy.asarray(view))
        assert back.strides == view.strides
    assert numpy.array_equal(numpy.asarray(task(None, entry="main:strided")), numpy.arange(6).reshape(2, 3).T[::-1])


@pytest.mark.parametrize(
    "dtype",
    [
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
        "complex64",
        "complex128",
    ],
)
def test_numpys_arrays_arrive_as_arrays(load, dtype):
    sent = numpy.arange(6).reshape(2, 3).astype(dtype)
    assert load()(sent, entry="main:kind") == ["vmhost.engine.numpy.ndarray", dtype, [2, 3], sent.tobytes().hex()]


KINDS = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_arrays_cross_as_numbers(load, kind):
    task = load()
    answer = task(kind, entry="main:number")
    a = numpy.arange(6).astype(kind) * numpy.array(1.5).astype(kind)
    assert answer == {"sum": a.sum(), "of": [a[3], numpy.mean(a)], a[2]: {a[1], a[2]}}  # hashed and compared
    assert answer[a[2].item()] == {a[1].item(), a[2].item()}  # Python's numbers are the same keys
    assert (repr(answer["sum"]), answer["of"][0].dtype.name) == (repr(a.sum()), kind)
    assert task({answer["of"][0]: answer["sum"]}, entry="main:described") == repr({a[3]: a.sum()})


def test_a_count_of_values(load):
    assert load()(numpy.array([3, 1, 3, 3]), entry="main:counted") == {1: 1, 3: 3}


@pytest.mark.parametrize("kind", KINDS)
def test_numpys_numbers_cross_as_numbers(load, host, kind):
    sent = numpy.array(1.5).astype(kind)[()]
    assert load()({sent: [sent]}, entry="main:described") == repr({sent: [sent]})
    plain = host.load(bundle("def run(value):\n    return repr(value)\n", name=f"plain-{kind}"))  # loads no engine
    assert plain({sent: [sent]}) == repr({sent.item(): [sent.item()]})


def test_arrays_without_dimensions_stay_arrays(load):
    task = load()
    assert task(np.array(2.5), entry="main:described") == "array(2.5)"
    sent = np.array(2.5)
    assert address(task(sent, entry="main:echo")) == address(sent)
    assert task(numpy.array(2.5), entry="main:described") == "array(2.5)"


def test_plain_memory_arrives_as_a_buffer(load):
    assert load()(bytearray(b"abc"), entry="main:kind")[0].endswith("Buffer")


def test_who_has_given_an_array_away_writes_again_when_the_others_have_let_go(load):
    task = load()
    sent = np.zeros((3,))
    task(sent, entry="main:keep")
    with pytest.raises(ValueError, match="read-only"):
        sent[0] = 1
    assert task(sent, entry="main:echo").tolist() == [0, 0, 0]
    task(None, entry="main:drop")
    gc.collect()
    sent[0] = 1
    assert sent.tolist() == [1, 0, 0]


def test_a_receiver_cannot_write_what_the_sender_holds(load):
    with pytest.raises(vmhost.TaskError, match="ValueError: assignment destination is read-only"):
        load()(np.zeros((3,)), entry="main:write")
    with pytest.raises(vmhost.TaskError, match="ValueError: assignment destination is read-only"):
        load()(numpy.zeros(3), entry="main:write")


def test_a_result_that_the_task_let_go_of_is_the_callers_to_write(load):
    task = load()
    moved = task(1000, entry="main:ones")
    moved[0] = 5
    assert moved[:2].tolist() == [5, 1]
    shared = task(1000, entry="main:kept_ones")
    with pytest.raises(ValueError, match="read-only"):
        shared[0] = 5


def test_the_maker_pays_for_an_array_as_long_as_it_lives(host, load):
    task = load(memory="64 MiB")
    before = charged(host, task)
    held = task(1_000_000, entry="main:ones")
    assert 8_000_000 <= charged(host, task) - before < 8_100_000
    del held
    gc.collect()
    until(lambda: charged(host, task) - before < 100_000)


def paid(host, task):
    """The bytes charged to its VMs, except for the small buffers that they keep for reuse."""
    return round(charged(host, task), -4)


def ended(host, task):
    """Unloads the task and waits until its VMs have ended."""
    host.unload(task)
    until(lambda: not [vm for vm in host.statistics().vms if vm.task == task.name])


def test_a_holder_pays_when_the_makers_vm_has_ended(host, load):
    maker, holder = host.load(bundle(TASK, name="maker")), load()
    array = maker(1_000_000, entry="main:ones")
    holder(array, entry="main:keep")
    before = paid(host, holder)
    assert (paid(host, maker), before) == (8_000_000, 0)
    del array
    gc.collect()
    assert paid(host, maker) == 8_000_000
    ended(host, maker)
    until(lambda: paid(host, holder) == 8_000_000)
    assert holder(None, entry="main:total") == 1_000_000
    holder(None, entry="main:drop")
    until(lambda: paid(host, holder) == 0)


def test_the_host_pays_when_no_vm_holds(host):
    maker = host.load(bundle(TASK, name="hosts"))
    _array._statistics()
    before = _array._statistics()["live_bytes"]
    array = maker(1_000_000, entry="main:ones")
    assert _array._statistics()["live_bytes"] == before
    ended(host, maker)
    until(lambda: _array._statistics()["live_bytes"] == before + 8_000_000)
    del array
    gc.collect()
    assert _array._statistics()["live_bytes"] == before


def test_the_heir_with_room_is_asked_first_and_one_without_fails_at_its_next_allocation(host, load):
    maker, small, large = (
        host.load(bundle(TASK, name="giver", limits={"memory": "256 MiB"})),
        load(memory="48 MiB"),
        load(memory="256 MiB"),
    )
    for holder in (small, large):
        holder(maker(8_000_000, entry="main:ones"), entry="main:keep")  # 64 MB
    shared = maker(8_000_000, entry="main:ones")
    for holder in (large, small):
        holder(shared, entry="main:keep")
    del shared
    gc.collect()
    ended(host, maker)
    until(lambda: (paid(host, small), paid(host, large)) == (64_000_000, 128_000_000))
    with pytest.raises(vmhost.MemoryLimitError):
        small(100_000, entry="main:ones")
    assert small(3, entry="main:ones").tolist() == [1, 1, 1]  # a new VM, which holds nothing
    assert large(None, entry="main:total") == 16_000_000


def test_an_array_outlives_its_vm(host):
    task = host.load(bundle(TASK, name="outlived"))
    held = task(1000, entry="main:kept_ones")
    host.unload(task)
    until(lambda: not [vm for vm in host.statistics().vms if vm.task == "outlived"])
    held[0] = 2
    assert held[:2].tolist() == [2, 1]


def test_more_than_the_memory_limit_ends_the_call_and_hurts_no_other(load):
    task, other = load(memory="64 MiB"), load()
    for size in (10_000_000, 10**12):
        with pytest.raises(vmhost.MemoryLimitError):
            task(size, entry="main:ones")
    assert other(3, entry="main:ones").tolist() == [1, 1, 1]
    assert task(3, entry="main:ones").tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("entry", "size"), [("multiply_for_ever", 400), ("add_for_ever", 200_000), ("one_long_product", 10**9)]
)
def test_a_stop_reaches_the_engine_in_the_middle(load, entry, size):
    task = load(wall_time="60 s")
    task(3, entry="main:ones")
    with pytest.raises(vmhost.TimeLimitError):
        task(size, entry=f"main:{entry}", timeout_s=0.05)
    assert task(3, entry="main:ones").tolist() == [1, 1, 1]


def test_the_engine_works_on_the_smallest_stack(host):
    """An operator takes at most 16 KiB of a VM's stack (tests/engine/test_stack.py), so it works in the guest's deep
    calls, too."""
    task = host.load(
        bundle(
            """
        import vmhost.engine.numpy as np

        def work():
            a = np.reshape(np.arange(6400, dtype="float32"), (80, 80))
            products = [np.matmul(a.astype(name), a.T.astype(name))
                        for name in ("float32", "float64", "complex64", "float16", "int16")]
            moved = np.concatenate([np.pad(a, 3), np.roll(np.zeros((86, 86)), 5)])
            order = np.sort(a[::-1, ::2], axis=0) + np.cumsum(a, axis=1)[:, ::2]
            powers = np.power(np.asarray([2, 3, 4], dtype="float16"), np.asarray([[2], [3]], dtype="int64"))
            found = a[np.asarray([3, 1])][:, a[0] > 4]
            return [float(np.sum(products[0][0])), moved.shape[0], float(order[0, 0]), powers.tolist(),
                    float(np.max(found)), float(np.std(a))]

        def deep(depth):
            return deep(depth - 1) if depth else work()

        def run(depths):
            return [deep(depth) for depth in depths]
    """,
            name="small-stack",
            limits={"stack": "96 KiB", "memory": "256 MiB"},
        )
    )
    shallow, deep = task([0, 60])
    assert shallow == deep
    assert shallow[1:] == [172, 0.0, [[4, 9, 16], [8, 27, 64]], 319.0, pytest.approx(numpy.std(numpy.arange(6400)))]
    host.unload(task)


@pytest.mark.skipif(library.threads() == 1, reason="one core: the engine has no helper threads")
def test_the_cpu_time_of_helper_threads_is_the_callers(host, load):
    task = load(wall_time="60 s", memory="256 MiB")
    task(3, entry="main:ones")
    for _ in range(100):  # helpers join when cores are free
        [vm] = [vm for vm in host.statistics().vms if vm.task == task.name]
        used = vm.cpu_s
        own = task(1000, entry="main:timed_product")
        [vm] = [vm for vm in host.statistics().vms if vm.task == task.name]
        if vm.cpu_s - used > 1.3 * own:
            return
    pytest.fail(f"the VM used {vm.cpu_s - used} s, its own thread {own} s")


def test_many_vms_share_one_array(host):
    task = host.load(bundle(TASK, name="sharing", limits={"concurrency": 4}))
    shared = np.ones((100_000,))
    futures = [task.submit(shared, entry="main:echo") for _ in range(64)]
    assert {address(future.result()) for future in futures} == {address(shared)}
    host.unload(task)


def test_the_numpy_surface_works_in_a_sealed_vm(host):
    """The same expressions in a VM and in NumPy; every file of vmhost.engine.numpy is opened on the way."""
    expressions = [
        "np.arange(12.0).reshape(3, 4).mean(axis=0)",
        "np.linspace(0, 1, 5)",
        "np.eye(3) @ np.arange(3.0)",
        "np.sqrt(np.arange(3.0)).sum()",
        "np.concatenate([np.zeros(2), np.ones(3)])",
        "np.unique(np.asarray([3, 1, 3]))",
        "np.stack([np.arange(3), np.arange(3)], axis=1)",
        "np.where(np.arange(5) > 2, 1, 0)",
        "np.argsort(np.asarray([3, 1, 2]))",
        "np.cumsum(np.arange(5))",
        "np.pad(np.ones(3), 1)",
        "np.percentile(np.arange(11.0), 30)",
        "np.std(np.arange(5.0))",
        "np.outer(np.arange(3), np.arange(3))",
        "np.arange(10)[::-2]",
        "np.arange(10)[np.asarray([1, -1])]",
        "np.isnan(np.asarray([1.0, float('nan')]))",
        "np.tile(np.arange(2), 3)",
        "np.float32(1.5) * np.ones(2, dtype='float32')",
        "np.clip(np.arange(5), 1, 3)",
        "np.dot(np.arange(3.0), np.arange(3.0))",
    ]
    task = host.load(
        bundle(
            "\n".join(
                [
                    "import vmhost.engine.numpy as np",
                    "def values(_):",
                    f"    return [np.asarray(v) for v in ({', '.join(expressions)},)]",
                    "def texts(_):",
                    f"    return [repr(v) for v in ({', '.join(expressions)},)]",
                    "run = values",
                ]
            ),
            name="surface",
        )
    )
    values, texts = task(None), task(None, entry="main:texts")
    for expression, value, text in zip(expressions, values, texts, strict=True):
        expected = eval(expression, {"np": numpy})
        numpy.testing.assert_allclose(numpy.asarray(value), expected, rtol=1e-12, err_msg=expression)
        assert (str(numpy.asarray(value).dtype), text) == (str(expected.dtype), repr(expected)), expression
    host.unload(task)


SHAPES = """
    from vmhost.guest import Buffer

    class Shape(list):
        def __len__(self):
            raise self.error

    class Grows:
        def __index__(self):
            grown.extend([1] * 100)
            return 2

    grown = [Grows(), 3]

    def run(_):
        told = []
        for error in (KeyError("length"), TypeError("length")):
            shape = Shape([2, 3])
            shape.error = error
            try:
                told.append(list(Buffer(shape).shape))
            except Exception as found:
                told.append(repr(found))
        return [*told, list(Buffer(grown).shape)]
"""


def test_the_shape_of_a_buffer_is_read_once():
    with vmhost.Host(allow_unsigned=True) as host:
        assert host.load(bundle(SHAPES))(None) == [[2, 3]] * 3


EMPTY = """
    from vmhost.guest import Buffer

    def run(shapes):
        told = []
        for shape in shapes:
            try:
                buffer = Buffer(shape, "H")
                told.append([list(memoryview(buffer).strides), buffer.nbytes])
            except ValueError as error:
                told.append(str(error))
        return told
"""


def test_the_shape_of_an_empty_buffer_has_sizes_whose_product_fits():
    """Its strides overflowed: the undefined-behaviour sanitizer saw that under random arguments."""
    with vmhost.Host(allow_unsigned=True) as host:
        fits, too_large = [(0, 2, 3), (2, 0, 3), (2, 3, 0)], [(0, 1, 2**62), (2**62, 2, 0), (2**61, 0, 2)]
        assert host.load(bundle(EMPTY))([*fits, *too_large]) == [
            [[12, 6, 2], 0], [[0, 6, 2], 0], [[0, 0, 2], 0], *["the shape is too large for memory"] * 3,
        ]  # fmt: skip
