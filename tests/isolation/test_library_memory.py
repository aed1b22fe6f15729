"""Memory that OpenSSL and libzstd take from the C library counts against the limit of the VM that uses them, and is
released."""

import subprocess
import sys

import pytest

import vmhost
from tests.hosts import bundle, until
from vmhost.isolation import vm as isolation
from vmhost.limits import BreakerPolicy, Policy, TaskPolicy

MIB = 1 << 20

TASK = """
import hashlib, hmac, ssl, threading
from compression import zstd

kept = []
P = zstd.CompressionParameter

def warm(value):
    # what the libraries keep for the whole process is there
    with_everything(None)
    kept.clear()

def with_everything(value):
    zstd.decompress(zstd.compress(b"x" * 100_000))
    hashlib.new("sha256", b"x").digest()
    hmac.new(b"key", b"x", "sha512").digest()
    hashlib.scrypt(b"password", salt=b"salt", n=1024, r=8, p=1)
    context = ssl.create_default_context()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    connection = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    try:
        connection.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.pending

def compressor(value):
    made = zstd.ZstdCompressor(level=value)
    made.compress(b"x" * 1000)
    kept.append(made)

def decompressor(value):
    small = zstd.ZstdCompressor(options={P.window_log: value, P.hash_log: 6, P.chain_log: 6})
    # of a length not known yet, so its window stays as asked for
    frame = small.compress(b"x" * 1000, small.FLUSH_BLOCK)
    made = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: 27})
    made.decompress(frame)
    kept.append(made)

def workers(value):
    made = zstd.ZstdCompressor(options={P.nb_workers: 2, P.compression_level: 3, P.job_size: 1 << 20})
    for _ in range(value):
        made.compress(b"x" * (1 << 20))
    kept.append(made)

def bio(value):
    made = ssl.MemoryBIO()
    for _ in range(value):
        made.write(b"x" * (1 << 20))
    kept.append(made)

def hashes(value):
    kept.extend(hashlib.new("sha512", b"") for _ in range(value))

def contexts(value):
    kept.extend(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) for _ in range(value))

def lets_go(value):
    kept.clear()

def without_end(entry):
    while True:
        globals()[entry](22 if entry == "compressor" else 27 if entry == "decompressor" else 40)

def one_compressor(value):
    compressor(22)

def catches(value):
    try:
        compressor(22)
    except (MemoryError, zstd.ZstdError) as error:
        return type(error).__name__

def in_a_thread(value):
    thread = threading.Thread(target=compressor, args=(19,))
    thread.start()
    thread.join()
"""


@pytest.fixture(scope="module")
def host():
    calm = TaskPolicy(breaker=BreakerPolicy(enabled=False))
    with vmhost.Host(allow_unsigned=True, policy=Policy(task=calm, grace_s=10)) as host:
        yield host


@pytest.fixture
def task(host, request):
    loaded = host.load(bundle(TASK, "libraries", limits={"memory_bytes": 2048 * MIB, "concurrency": 1}))
    loaded(None, entry="main:warm")
    yield loaded
    host.unload("libraries")
    until(
        lambda: not any(vm.task == "libraries" for vm in host.statistics().vms)
    )  # a VM that is still ending would be read instead of the next


def live(host, name="libraries"):
    return next(vm.live_bytes for vm in host.statistics().vms if vm.task == name)


# The least that each takes from the C library; the bytes of Python's own objects are far fewer.
TAKES = {
    "compressor": (19, 60 * MIB),
    "decompressor": (26, 60 * MIB),
    "workers": (16, 4 * MIB),
    "bio": (16, 16 * MIB),
    "hashes": (10_000, 10_000 * 250),
    "contexts": (100, 100 * 10_000),
    "in_a_thread": (None, 60 * MIB),
}


def test_this_python_has_no_library_that_is_not_counted():
    """The tests below assume that neither library is linked into the interpreter."""
    assert isolation.core().libraries_uncounted() == []


@pytest.mark.parametrize("entry", TAKES)
def test_what_a_library_takes_is_charged_and_given_back(host, task, entry):
    value, min_bytes = TAKES[entry]
    task(value, entry=f"main:{entry}")
    task(None, entry="main:lets_go")
    before = live(host)
    task(value, entry=f"main:{entry}")
    assert live(host) - before > min_bytes
    task(None, entry="main:lets_go")
    assert abs(live(host) - before) < 400_000


def test_it_does_not_drift(host, task):
    for _ in range(20):
        task(None, entry="main:with_everything")
    before = live(host)
    for _ in range(200):
        task(None, entry="main:with_everything")
    assert abs(live(host) - before) < 400_000


@pytest.mark.parametrize("entry", ["compressor", "decompressor", "workers", "bio", "hashes", "contexts"])
def test_a_limit_ends_it(host, entry):
    task = host.load(bundle(TASK, "greedy", limits={"memory_bytes": 48 * MIB, "concurrency": 1}))
    with pytest.raises(vmhost.MemoryLimitError):
        task(entry, entry="main:without_end", timeout_s=300)
    assert task(None, entry="main:with_everything") > 0
    host.unload("greedy")


def test_one_request_beyond_the_limit_may_be_caught_and_ends_the_call_if_it_is_not(host):
    task = host.load(bundle(TASK, "greedy", limits={"memory_bytes": 48 * MIB, "concurrency": 1}))
    assert task(None, entry="main:catches") in ("MemoryError", "ZstdError")
    with pytest.raises(vmhost.MemoryLimitError):
        task(None, entry="main:one_compressor")
    host.unload("greedy")


PROGRAM = """
import vmhost
from tests.hosts import bundle, until
from vmhost.host import system_code_store
from vmhost.isolation import vm as isolation
from tests.isolation.test_library_memory import TASK
BEFORE
core = isolation.core()
events = core.Events()
for name in ("compressor", "bio", "hashes", "contexts", "workers", "with_everything"):
    lane = core.Lane(name, "1", isolation.code_store_of(bundle(TASK), core), f"main:{name}", events)
    vm = core.VM(system_code_store(core), events)
    vm.attach(lane)
    lane.call(3)
    during = vm.statistics()["live_bytes"]
    vm.retire()
    assert during > 0
    # OpenSSL gives back what it keeps for a thread when that exits, a moment after its VM has ended
    until(lambda: vm.state == "ended" and vm.statistics()["live_bytes"] == 0)
import hashlib, ssl
from compression import zstd
ssl.create_default_context()
assert zstd.decompress(zstd.compress(b"x" * 10_000_000)) == b"x" * 10_000_000
print(hashlib.new("sha256", b"").hexdigest()[:8])
"""


@pytest.mark.parametrize(
    "before",
    ["", "import ssl, hashlib, compression.zstd; mine = hashlib.new('sha256', b'x'); ssl.create_default_context()"],
)
def test_a_vm_that_ends_leaves_nothing_and_the_host_goes_on(before):
    """In a process of its own: the first use of OpenSSL, which leaves what it keeps for the whole process, is the VM's
    or the host's."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", PROGRAM.replace("BEFORE", before)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "e3b0c442\n"


def test_vms_side_by_side(host):
    """They share the libraries' tables and locks; each one's bytes are its own."""
    task = host.load(bundle(TASK, "beside", limits={"memory_bytes": 256 * MIB, "concurrency": 4}))
    futures = [task.submit(None, entry="main:with_everything") for _ in range(200)]
    assert all(future.result(timeout=300) > 0 for future in futures)
    host.unload("beside")
