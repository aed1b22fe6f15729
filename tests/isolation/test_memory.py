"""Memory: what a limit stops, what a single request gets, that others are not affected, and that an ended VM has
released all of it."""

import pytest

import vmhost
from tests.hosts import bundle, until
from vmhost.host import system_code_store
from vmhost.isolation import vm as isolation
from vmhost.limits import BreakerPolicy, Policy, TaskPolicy

MIB = 1 << 20

TASK = f"""
import collections, io, sqlite3, sys, zlib

MIB = {MIB}

def run(value):
    return value

def many_small(value):
    kept = []
    while True:
        kept.append(object())

def numbers(value):
    kept = []
    while True:
        kept.append(float(len(kept)))

def strings(value):
    kept = []
    while True:
        kept.append("x" * 1000 + str(len(kept)))

def one_string(value):
    text = "x"
    while True:
        text += text

def growing_bytearray(value):
    data = bytearray()
    while True:
        data.extend(b"x" * 4096)

def doubling_list(value):
    items = [0]
    while True:
        items.extend(items)

def dictionary(value):
    kept = {{}}
    while True:
        kept[len(kept)] = None

def deque(value):
    kept = collections.deque()
    while True:
        kept.append(None)

def nested(value):
    inner = None
    while True:
        inner = [inner]

def cycles(value):
    import gc
    gc.disable()
    while True:
        ring = []
        ring.append(ring)

def integers(value):
    number = 1
    while True:
        number <<= 1 << 20

def text_stream(value):
    stream = io.StringIO()
    while True:
        stream.write("x" * 10_000)

def byte_stream(value):
    stream = io.BytesIO()
    while True:
        stream.write(b"x" * 10_000)

def database(value):
    db = sqlite3.connect(":memory:")
    db.execute("create table t(x)")
    while True:
        db.executemany("insert into t values (?)", [(b"x" * 10_000,)] * 100)

def inflate(value):
    zeros = zlib.compress(bytes(64 * MIB), 9)
    return len(zlib.decompress(zeros))

def compressors(value):
    kept = []
    while True:
        kept.append(zlib.compressobj(9))

def anonymous_maps(value):
    import mmap
    kept = []
    while True:
        kept.append(mmap.mmap(-1, MIB))

def frames(value):
    generators = []
    def sleepy():
        local = [0] * 100
        yield local
    while True:
        generator = sleepy()
        next(generator)
        generators.append(generator)

def catches(value):
    kept = []
    while True:
        try:
            while True:
                kept.append(bytearray(64 * 1024))
        except MemoryError:
            pass

def single(value):
    try:
        return len(bytearray(value))
    except MemoryError:
        return "refused"

def single_map(value):
    import mmap
    return len(mmap.mmap(-1, value))

class Index:
    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value

class Int(int):
    pass

def scrypt(value):
    import hashlib
    n, r = value
    said = []
    for kind in (int, Int, Index):
        try:
            said.append(len(hashlib.scrypt(b"password", salt=b"salt", n=kind(n), r=kind(r), p=kind(1),
                                           maxmem=2**31 - 1)))
        except MemoryError:
            said.append("refused")
        except (TypeError, ValueError) as error:
            said.append(type(error).__name__)
    return said

def product(value):
    return [None] * value

def text_product(value):
    return len("x" * value)
"""

GREEDY = [
    "many_small",
    "numbers",
    "strings",
    "one_string",
    "growing_bytearray",
    "doubling_list",
    "dictionary",
    "deque",
    "nested",
    "cycles",
    "integers",
    "text_stream",
    "byte_stream",
    "database",
    "inflate",
    "compressors",
    "anonymous_maps",
    "frames",
    "catches",
]


@pytest.fixture(scope="module")
def host():
    calm = TaskPolicy(breaker=BreakerPolicy(enabled=False))
    with vmhost.Host(allow_unsigned=True, policy=Policy(task=calm, grace_s=3)) as host:
        yield host


@pytest.fixture(scope="module")
def greedy(host):
    return host.load(bundle(TASK, "greedy", limits={"memory_bytes": 24 * MIB, "concurrency": 1}))


@pytest.fixture(scope="module")
def witness(host):
    return host.load(bundle(TASK, "witness", limits={"memory_bytes": 24 * MIB, "concurrency": 1}))


@pytest.mark.parametrize("entry", GREEDY)
def test_a_limit_ends_it_and_other_vms_do_not_notice(host, greedy, witness, entry):
    witness(0)
    before = [(vm.id, vm.counters["refused"]) for vm in host.statistics().vms if vm.task == "witness"]
    greedy(0)
    with pytest.raises(vmhost.MemoryLimitError):
        greedy(None, entry=f"main:{entry}", timeout_s=120)
    assert [(vm.id, vm.counters["refused"]) for vm in host.statistics().vms if vm.task == "witness"] == before
    assert witness(15 * MIB, entry="main:single") == 15 * MIB
    assert greedy("again") == "again"


def test_a_request_beyond_the_hard_limit_fails_at_once_and_may_be_caught(host, greedy):
    assert greedy(1 << 40, entry="main:single") == "refused"
    assert greedy(31 * MIB, entry="main:single") == "refused"
    assert greedy(1 << 62, entry="main:single") == "refused"
    for entry, size in (("product", 1 << 40), ("text_product", 1 << 45)):
        with pytest.raises(vmhost.MemoryLimitError):
            greedy(size, entry=f"main:{entry}")
    with pytest.raises(vmhost.TaskError, match="MemoryError"):  # refused by list itself, so no limit was met
        greedy((1 << 63) - 1, entry="main:product")
    with pytest.raises((vmhost.MemoryLimitError, vmhost.TaskError)):
        greedy(1 << 40, entry="main:single_map")


def test_a_setup_that_the_hard_limit_refuses_ends_as_a_memory_limit(host):
    task = host.load(bundle("def setup():\n    bytearray(1 << 40)\n\ndef run(value):\n    return value\n", "heavy"))
    for _ in range(2):  # each time in a new VM
        with pytest.raises(vmhost.MemoryLimitError):
            task(1)


def test_scrypt_pays_for_the_memory_that_openssl_takes(greedy):
    assert greedy([2**14, 8], entry="main:scrypt")[:2] == [64, 64]  # 16 MiB
    answer = greedy([2**15, 8], entry="main:scrypt")  # 32 MiB: the hard limit is 30
    assert answer[:2] == ["refused"] * 2 and answer[2] in ("refused", "TypeError")
    assert greedy([2**62, 2**40], entry="main:scrypt")[0] == "ValueError"
    assert greedy([-1, 8], entry="main:scrypt")[0] == "ValueError"
    assert greedy("good") == "good"


def test_an_argument_or_result_beyond_the_limit_is_the_tasks_to_pay(greedy):
    with pytest.raises((vmhost.MemoryLimitError, vmhost.CrossingError)):
        greedy(b"x" * (64 * MIB))
    with pytest.raises((vmhost.MemoryLimitError, vmhost.CrossingError)):
        greedy(["x" * 1000 + str(number) for number in range(64_000)])
    assert greedy("small") == "small"


# Groups of modules whose import leaves something behind in the interpreter: each gets a VM of its own.
GROUPS = [
    "json re functools dataclasses typing enum collections abc contextlib copy itertools operator",
    "datetime decimal fractions statistics random math cmath numbers zoneinfo calendar time",
    "asyncio selectors socket ssl select",
    "sqlite3 csv configparser tomllib plistlib",
    "logging logging.handlers warnings traceback inspect ast tokenize dis",
    (
        "urllib.parse urllib.request http.client http.cookies email email.mime.text html html.parser mimetypes"
        " ipaddress uuid"
    ),
    "zlib gzip bz2 lzma zipfile tarfile hashlib hmac secrets base64 binascii struct array compression.zstd",
    "threading queue concurrent.futures contextvars weakref sched",
    "xml.etree.ElementTree xml.dom.minidom xml.sax pyexpat",
    "pathlib os shutil tempfile glob fnmatch io mmap pickle copyreg",
    (
        "string textwrap difflib pprint reprlib unicodedata codecs encodings.idna stringprep locale gettext shlex"
        " argparse optparse getopt"
    ),
    "heapq bisect graphlib types importlib importlib.resources importlib.metadata pkgutil unittest unittest.mock",
]

IMPORTS = """
import importlib, sys

def run(names):
    missing = []
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            missing.append(name)
    return missing
"""

USES = {
    "nothing": "pass",
    "json": "import json; json.loads(json.dumps({'a': [1, 2.5, None]}))",
    "regular expressions": "import re; re.sub('a(b+)', r'\\\\1', 'abbb')",
    "dataclasses": "import dataclasses; dataclasses.make_dataclass('Point', ['x', 'y'])(1, 2)",
    "named tuples": "import collections; collections.namedtuple('Point', 'x y')(1, 2)",
    "dates": "import datetime; datetime.datetime.now(datetime.UTC).strftime('%c')",
    "decimals": "import decimal; decimal.Decimal(1) / 3",
    "an event loop": "import asyncio; asyncio.run(asyncio.sleep(0))",
    "a thread": "import threading; t = threading.Thread(target=len, args=('',)); t.start(); t.join()",
    "an executor": "from concurrent.futures import ThreadPoolExecutor as E; E(1).submit(len, '').result()",
    "a database": "import sqlite3; sqlite3.connect(':memory:').execute('create table t(x)')",
    "an exception": "int('x') if value else None",
    "enums": "import enum; enum.Enum('Color', 'red green').red",
    "logging": "import logging; logging.getLogger('x').warning('said')",
    "random": "import random; random.Random(1).random(); random.random()",
    "hashes": "import hashlib; hashlib.sha256(b'').hexdigest(); hashlib.new('md5', b'')",
    "compression": "import zlib, bz2, lzma; [m.decompress(m.compress(b'x')) for m in (zlib, bz2, lzma)]",
    "pickle": "import pickle; pickle.loads(pickle.dumps([1, {2: 3}]))",
    "xml": "import xml.etree.ElementTree as e; e.fromstring('<a><b/></a>').find('b')",
    "generics": "import typing; typing.Optional[int]; list[int]; typing.get_type_hints(run)",
    "a cycle": "ring = []; ring.append(ring)",
    "a context variable": "import contextvars; contextvars.ContextVar('v').set(1)",
    "weak references": "import weakref; kept.append(weakref.WeakValueDictionary())",
    "globals kept": "kept.extend(range(10_000)); kept.append({str(n): n for n in range(1000)})",
}


def run_and_end(source, value):
    """The result of `source` for `value`, and the statistics of its VM after its end."""
    core = isolation.core()
    events = core.Events()
    loaded = bundle(source)
    lane = core.Lane("task", "1", isolation.code_store_of(loaded, core), "main:run", events)
    vm = core.VM(system_code_store(core), events)
    vm.attach(lane)
    try:
        result = lane.call(value)
    except Exception as error:
        result = error
    vm.retire()
    until(lambda: vm.state == "ended")
    return result, vm.statistics()


@pytest.mark.parametrize("group", GROUPS)
def test_an_ended_vm_has_given_all_its_memory_back_whatever_it_imported(group):
    missing, after = run_and_end(IMPORTS, group.split())
    assert missing == []
    assert (after["arenas"], after["live_bytes"]) == (0, 0)


@pytest.mark.parametrize("use", USES)
def test_an_ended_vm_has_given_all_its_memory_back_whatever_it_did(use):
    result, after = run_and_end(f"kept = []\ndef run(value):\n    {USES[use]}\n", 1)
    assert not isinstance(result, Exception) or use == "an exception", result
    assert (after["arenas"], after["live_bytes"]) == (0, 0)


@pytest.mark.parametrize("limit", [4 * MIB, 6 * MIB])
def test_a_task_that_needs_more_to_be_loaded_than_its_limit_is_answered_at_once(host, limit):
    """Without a deadline: VMs must not be booted over and over while the call waits."""
    source = "import asyncio.unix_events, decimal, logging, sqlite3, unittest.mock\ndef run(value):\n    return value\n"
    task = host.load(bundle(source, "heavy", limits={"memory_bytes": limit}))
    booted = host.statistics().booted
    with pytest.raises(vmhost.MemoryLimitError):
        task.submit(1).result(timeout=60)
    assert host.statistics().booted <= booted + 3
    host.unload("heavy")


def test_counters_return_to_what_they_were_when_a_call_lets_go(host):
    task = host.load(
        bundle(
            "def run(value):\n    return len([bytes(100_000) for _ in range(value)])\n",
            "breather",
            limits={"memory_bytes": 128 * MIB, "concurrency": 1},
        )
    )

    def live():
        return next(vm.live_bytes for vm in host.statistics().vms if vm.task == "breather")

    task(1)
    before = live()
    for _ in range(20):
        task(300)
    assert live() < before + 2 * MIB
