"""No byte of one VM reaches another: a VM marks each kind of memory and ends, and the next one looks for the mark."""

import subprocess
import sys
import textwrap

import pytest

from tests.hosts import ROOT

# One malloc arena, so that what one thread frees is the next thread's first choice.
_ENVIRONMENT = {"MALLOC_ARENA_MAX": "1", "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}

_GUESTS = '''
import mmap, random, sqlite3
from compression import zstd
import vmhost.engine.numpy as np

SIZES = [8, 9, 33, 100, 400, 512, 1000, 8000, 16000, 20000, 60000, 131072, 600000]

def marks_arrays(value):
    """Arrays of all sizes, dead and alive at the end."""
    kept = [np.full(n, value, np.uint64) for n in SIZES for _ in range(40 if n < 50000 else 3)]
    return len(kept)

def marks_scratch(value):
    """What operators and libraries of the engine write into while they compute."""
    for n in (6, 30, 90):
        a = np.full((n, n), value, np.uint64).view(np.float64)
        np.linalg.solve(a + np.eye(n), a)
        np.linalg.svd(np.eye(n) * a[0, 0])
    for n in SIZES:
        np.sort(np.full(n, value, np.uint64), kind="stable")
        np.fft.fft(np.full(min(n, 5000), value, np.uint64).view(np.float64))
        np.full((n, 2), value, np.uint64)[:, ::-1].copy()

def marks_objects(value):
    """Blocks of Python's raw allocator, of SQLite, of libzstd, and pages that the task mapped."""
    word = value.to_bytes(8, "little")
    kept = [word * n for n in SIZES if n < 200000 for _ in range(20)]
    kept.append([[value] * n for n in SIZES if n < 200000])
    db = sqlite3.connect(":memory:")
    db.execute("create table t(x)")
    for n in SIZES:
        db.execute("insert into t values (?)", (word * min(n, 60000),))
    pages = mmap.mmap(-1, 1 << 20)
    pages.write(word * (1 << 17))
    kept.append((db, pages, zstd.compress(word * 5000)))
    return len(kept)

def looks(value):
    """What new arrays hold, without zeros: {size: numbers}."""
    found, kept = {}, []
    for n in SIZES:
        for _ in range(40 if n < 50000 else 3):
            new = np.empty(n, np.uint64)
            kept.append(new)
            if new.any():
                found.setdefault(n, []).extend(int(number) for number in new[new != 0][:3])
    for n in (3, 5, 40, 100):
        try:
            results = np.linalg.svd(np.full((n, n), np.nan))
        except np.linalg.LinAlgError:
            continue
        for result in results:
            if (result.view(np.uint64) == value).any():
                found[f"svd of {n}"] = value
    return found
'''

_PROGRAM = """
import sys
import vmhost
from vmhost.bytecode.compiler import compile_sources

MARK = 0x3E57AB1E5EC2E7A9

def in_a_vm_of_its_own(entry):
    bundle = compile_sources({{"main": (GUESTS, "main.py", False)}}, entry="main:" + entry, name=entry, version="1")
    with vmhost.Host(allow_unsigned=True) as host:
        return host.load(bundle)(MARK)

GUESTS = {guests!r}
in_a_vm_of_its_own("{entry}")
print(in_a_vm_of_its_own("looks"))
"""


def _run(program):
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, env=_ENVIRONMENT, cwd=ROOT
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("entry", ["marks_arrays", "marks_scratch", "marks_objects"])
def test_new_arrays_show_nothing_of_the_vm_before(entry):
    assert _run(_PROGRAM.format(guests=_GUESTS, entry=entry)) == "{}\n"


# Small objects, and what is left on the stack of a thread, cannot be read by a guest. So the host looks for them in all
# memory of the process: the mark is in neither kind of memory that only arenas and stacks pass on.
_SCAN = '''
import sys
import vmhost
from tests.hosts import bundle

GUEST = """
MARK = "".join(chr(c - 1) for c in map(ord, {shifted!r}))

def deep(depth):
    # The UTF-8 encoder writes to a buffer on the stack first.
    text = (MARK + chr(200 + depth)).encode()
    return [text] if depth == 0 else max([depth], key=lambda depth: len(deep(depth - 1))) and [text]

def run(value):
    global kept
    if value == "arena":
        kept = [(MARK + chr(200 + i % 50)).encode() for i in range(30_000)]
    elif value == "stack":
        deep(50)
"""

def count():
    """The copies of the mark in the writable memory of this process; those in `inside` aside."""
    found = 0
    # Never whole in this process, but for the moment in which find() has it.
    first, rest = bytes.fromhex({first!r}), bytes.fromhex({rest!r})
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", buffering=0) as memory:
        for line in maps:
            span, rights, *_ = line.split()
            if not rights.startswith("rw") or "[v" in line:
                continue
            low, high = (int(part, 16) for part in span.split("-"))
            memory.seek(low)
            try:
                held = memory.read(high - low)
            except OSError:
                continue
            at = held.find(first)
            while at >= 0:
                found += held.startswith(rest, at + len(first))
                at = held.find(first, at + 1)
            del held
    return found

for value in ({kind!r}, "nothing"):
    with vmhost.Host(allow_unsigned=True) as host:
        host.load(bundle(GUEST))(value)
print(count())
'''


@pytest.mark.parametrize("kind", ["arena", "stack"])
def test_small_objects_and_stacks_leave_nothing_to_the_next_vm(kind):
    mark = "vm’s own ŵörds \u2588\u2588 of its stæck"
    encoded = mark.encode()
    program = _SCAN.format(
        shifted="".join(chr(ord(c) + 1) for c in mark),
        first=encoded[: len(encoded) // 2].hex(),
        rest=encoded[len(encoded) // 2 :].hex(),
        kind=kind,
    )
    assert _run(textwrap.dedent(program)) == "0\n"
