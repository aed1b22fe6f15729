"""A stop in the middle of each class of the engine's operations, on arrays that the VM shares with the host: the call
ends, the shared arrays are unchanged and the host's again, and nothing stays charged."""

import gc
import threading
from concurrent.futures import CancelledError

import numpy
import pytest

import vmhost
import vmhost.engine.numpy as np
from tests.hosts import bundle, until
from vmhost.engine import _array, inventory
from vmhost.limits import Policy

# One long call each, compared with the code around it, so that a stop falls into the engine.
LOOPS = {
    "elementwise": "np.power(a.x, 1.7, out=out)",
    "elementwise_of_one": "np.tan(a.x, out=out)",
    "elementwise_of_two_dtypes": "np.arctan2(a.x, a.narrow, out=out)",
    "addition": "np.add(a.x, 1.0, out=out)",
    "where": "np.where(a.mask, a.x, out)",
    "cast": "a.x.astype('float32')",
    "reduction": "np.broadcast_to(a.x, (500, a.x.size)).sum()",
    "reduction_of_rows": "np.broadcast_to(a.x, (500, a.x.size)).max(axis=0)",
    "reduction_of_nothing": "nothing.sum(axis=1, dtype='int8')",
    "places": "np.broadcast_to(a.x, (500, a.x.size)).argmax(axis=1)",
    "scan": "np.cumsum(a.x, out=out)",
    "scan_of_columns": "np.cumsum(a.square, axis=0)",
    "sort": "np.sort(a.x)",
    "argsort": "np.argsort(a.x)",
    "searchsorted": "np.searchsorted(a.ordered, a.x)",
    "transpose": "np.ascontiguousarray(a.square.T)",
    "concatenate": "np.concatenate([a.x, a.x])",
    "pad": "np.pad(a.square, 3, 'reflect')",
    "tile": "np.tile(a.x, 4)",
    "roll": "np.roll(a.square, (5, 7), (0, 1))",
    "patches": "_array._patches(a.image, WINDOWS)",
    "sums_of_patches": "_array._patches_sum(_array._patches(a.image, WINDOWS), WINDOWS, a.image.shape)",
    "largest_of_windows": "_array._max_pool(a.image, POOLS)",
    "gradients_of_these": "_array._pool_gradient(a.image, a.pooled, a.pooled, POOLS)",
    "depthwise": "_array._depthwise(a.image, a.weights, WINDOWS)",
    "depthwise_images": "_array._depthwise_images(a.image, a.weights, WINDOWS, a.image.shape)",
    "depthwise_weights": "_array._depthwise_weights(a.image, a.image, WINDOWS)",
    "normalize": "_array._normalize(a.channels, a.line, a.line, 1e-5)",
    "normalize_gradient": "_array._normalize_gradient(a.channels, a.channels, a.line, a.line, a.line, 1e-5)",
    "gather": "a.x[a.places]",
    "scatter": "put(out, a.places, a.x)",
    "nonzero": "np.nonzero(a.mask)",
    "mask": "a.x[a.mask]",
    "partition": "np.partition(a.x, 100_000)",
    "random": "_array._words((1, 2), (0, 0, 0, 0), 0, 1_000_000)",
    "random_normal": "np.random.default_rng(1).normal(size=1_000_000)",
    "random_order": "np.random.default_rng(1).permutation(1_000_000)",
    "transform": "np.fft.fft(a.x)",
    "transform_of_a_prime_length": "np.fft.rfft(a.x[:249_989])",
    "transform_of_rows": "np.fft.fft2(a.square)",
    "factors_by_lapack": "np.linalg.svd(a.square)",
    "equations_by_lapack": "np.linalg.solve(a.square, a.square)",
    "inverses_of_small_matrices": "np.linalg.inv(a.small)",
    "bits_counted": "np.bitwise_count(a.whole)",
    "bits_packed": "np.packbits(a.mask)",
    "bits_unpacked": "np.unpackbits(a.packed)",
    "floats_taken_apart": "np.frexp(a.x)",
    "counts": "np.bincount(a.places)",
    "lines_between_points": "np.interp(a.x, a.ordered, a.x)",
    "arange": "np.arange(a.x.size)",
    "array_of_a_list": "np.array(numbers)",
    "list_of_an_array": "a.x.tolist()",
    "iteration": "sum(a.x)",
    "product": "np.matmul(a.square, a.square)",
    "product_of_integers": "np.matmul(a.whole, a.whole)",
    "products_with_a_vector": "np.matmul(np.broadcast_to(a.square, (50, *a.square.shape)), a.x[:a.square.shape[1]])",
}
# The loop above that each of the library's operators runs.
LOOP_OF = {
    "raster": "transpose",
    "copy": "cast",
    "unary": "elementwise_of_one",
    "binary": "elementwise",
    "where": "where",
    "reduce": "reduction",
    "matmul": "product",
    "sort": "sort",
    "argsort": "argsort",
    "top": "argsort",  # of models only; test_polls.c looks at its own loop
    "partition": "partition",
    "philox": "random",
    "bits_pack": "bits_packed",
    "bits_unpack": "bits_unpacked",
    "split": "floats_taken_apart",
    "scan": "scan",
    "gather": "gather",
    "scatter": "scatter",
    "nonzero": "nonzero",
    "searchsorted": "searchsorted",
    "arange": "arange",
    "count": "counts",
    "interpolate": "lines_between_points",
    "random": "random_normal",
    "fft": "transform",
    "linear": "factors_by_lapack",
    "concatenate": "concatenate",
    "pad": "pad",
    "tile": "tile",
    "roll": "roll",
    "patches": "patches",
    "patches_sum": "sums_of_patches",
    "max_pool": "largest_of_windows",
    "max_pool_gradient": "gradients_of_these",
    "depthwise_forward": "depthwise",
    "depthwise_images": "depthwise_images",
    "depthwise_weights": "depthwise_weights",
    "normalize": "normalize",
    "normalize_gradient": "normalize_gradient",
}
TASK = """
import vmhost.engine.numpy as np
from vmhost.engine import _array
from vmhost import guest

WINDOWS = (3, 3, 1, 1, 1, 1, 1, 1)  # of images: rows and columns of kernel, stride, dilation, padding
POOLS = (2, 2, 2, 2, 1, 1, 0, 0)

class Arrays:
    def __init__(self, named):
        self.__dict__.update(named)

def put(out, places, values):
    out[places] = values

def run(value):
    return value

""" + "".join(
    f"""
def {name}(named):
    a = Arrays(named)
    out, nothing, numbers = np.zeros_like(a.x), np.zeros((a.x.size, 0), dtype="int8"), [1.5] * a.x.size
    guest.host.begun(None)
    while True:
        {call}
"""
    for name, call in LOOPS.items()
)

# A single call each that goes over a thousand million elements: where nothing looks at the stop flag in the middle, the
# VM is wedged.
LONG = """
import vmhost.engine.numpy as np

def run(value):
    return value

def array_of_lists(_):
    return np.array([[1] * 20_000] * 50_000).shape

def iteration(_):
    return sum(np.broadcast_to(np.ones(1), (1_000_000_000,)))
"""


class Running:
    """A host whose task reports when its loop begins."""

    def __init__(self):
        self.begun = threading.Event()
        # the machine may be busy: that a stopped thread gets no CPU for a while is no failure
        self.host = vmhost.Host(
            allow_unsigned=True, policy=Policy(grace_s=10), functions={"begun": lambda _: self.begun.set()}
        )
        self.task = self.host.load(
            bundle(TASK, limits={"memory": "256 MiB", "wall_time": "300 s"}, permissions={"host": ["begun"]})
        )

    def vms(self):
        return [vm for vm in self.host.statistics().vms if vm.state != "ended"]

    def cpu_s(self):
        return sum(vm.cpu_s for vm in self.vms())


@pytest.fixture(scope="module")
def running():
    running = Running()
    yield running
    running.host.close()


@pytest.fixture(scope="module")
def arrays():
    x = numpy.random.default_rng(7).random(500 * 500)
    table = {
        "x": x,
        "square": x.reshape(500, 500),
        "image": x.reshape(1, 1, 500, 500),
        "channels": x.reshape(1, 500, 500),
        "line": x[:500],
        "weights": x[:9].reshape(1, 1, 3, 3),
        "pooled": x[: 250 * 250].reshape(1, 1, 250, 250),
        "narrow": x.astype("float32"),
        "mask": x > 0.5,
        "places": numpy.argsort(x),
        "ordered": numpy.sort(x),
        "packed": numpy.packbits(x > 0.5),
        "small": x.reshape(1000, 10, 25)[:, :, :10].copy(),
        "whole": (x.reshape(500, 500) * 100).astype("int64"),
    }
    return {name: np.array(value) for name, value in table.items()}


def test_every_operator_of_the_library_is_stopped():
    assert LOOP_OF.keys() == {name for name, _ in inventory.listed()}
    assert set(LOOP_OF.values()) <= LOOPS.keys()


@pytest.mark.parametrize("name", LOOPS)
def test_a_stop_in_the_middle(running, arrays, name):
    before = {name: numpy.array(value) for name, value in arrays.items()}
    live = _array._statistics()["live_bytes"]
    running.begun.clear()
    future = running.task.submit(arrays, entry=f"main:{name}")
    assert running.begun.wait(60)
    begun_s = running.cpu_s()
    until(lambda: running.cpu_s() > begun_s + 0.005)
    assert not arrays["x"].flags.writeable
    future.stop()
    with pytest.raises(CancelledError):
        future.result(60)
    until(lambda: not any(vm.counters["buffer_bytes"] for vm in running.vms()))
    assert not [vm for vm in running.vms() if vm.state == "quarantined"]
    gc.collect()
    for name, value in arrays.items():
        assert numpy.array_equal(numpy.asarray(value), before[name]), name
        until(lambda value=value: value.flags.writeable)  # the VM has released it
    # no more than before: what a test before this one left to be collected may have gone meanwhile
    until(lambda: _array._statistics()["live_bytes"] <= live)
    assert running.task(3) == 3


# Each takes minutes over one plane of an image.
PLANES = {
    "maxima": "_array._max_pool(image, AT_1)",
    "gradient_of_maxima": "_array._pool_gradient(image, windows, windows, AT_1)",
    "convolution": "_array._depthwise(image, weights, AT_1)",
    "gradient_of_its_image": "_array._depthwise_images(windows, weights, AT_1, image.shape)",
    "gradient_of_its_weights": "_array._depthwise_weights(image, windows, AT_1)",
    "convolution_with_steps": "_array._depthwise(image, weights, AT_2)",
}
IN_A_PLANE = (
    """
import vmhost.engine.numpy as np
from vmhost.engine import _array

SIDE, KERNEL = 1601, 800
AT_1, AT_2 = (KERNEL, KERNEL, 1, 1, 1, 1, 0, 0), (KERNEL, KERNEL, 2, 2, 1, 1, 0, 0)

def run(name):
    image, weights = np.ones((1, 1, SIDE, SIDE)), np.ones((1, 1, KERNEL, KERNEL))
    windows = np.ones((1, 1, SIDE - KERNEL + 1, SIDE - KERNEL + 1))
    return name and eval_of[name](image, weights, windows)

eval_of = {
"""
    + "".join(f"    {name!r}: lambda image, weights, windows: {call},\n" for name, call in PLANES.items())
    + "}\n"
)


@pytest.fixture(scope="module")
def in_a_plane():
    with vmhost.Host(allow_unsigned=True, policy=Policy(grace_s=10)) as host:
        yield host, host.load(bundle(IN_A_PLANE, limits={"memory": "256 MiB"}))


@pytest.mark.parametrize("name", PLANES)
def test_a_stop_within_one_plane(in_a_plane, name):
    host, task = in_a_plane
    assert task("") == ""
    with pytest.raises(vmhost.TimeLimitError):
        task(name, timeout_s=0.3)
    assert not host.statistics().quarantined


@pytest.mark.parametrize("name", ["array_of_lists", "iteration"])
def test_the_time_limit_in_the_middle_of_one_call(name):
    with vmhost.Host(allow_unsigned=True, policy=Policy(grace_s=10)) as host:
        task = host.load(bundle(LONG, limits={"memory": "64 MiB"}))
        assert task(3) == 3  # a VM that has imported everything: the stop meets the call
        with pytest.raises(vmhost.TimeLimitError):
            task(None, entry=f"main:{name}", timeout_s=0.2)
        assert not [vm for vm in host.statistics().vms if vm.state == "quarantined"]
        assert task(3) == 3
