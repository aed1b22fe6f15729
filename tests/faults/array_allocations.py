"""Runs each operation of a list while its n-th allocation fails, for one n after the other, and looks at how it ended.

    LD_PRELOAD=failing.so python -m tests.faults.array_allocations account|engine|python [STEP]

`account`: what the context's account is asked for is refused, that one alone and, in a second round, from it on.
`engine`: what libvme asks of libc. `python`: what CPython's allocators are asked for, by vmhost.engine._array, by
vmhost.engine.numpy and by CPython itself. Every STEP-th n is tried. The operations are those written here and, but for
`python`, all of the op-case table that tests and benchmarks share. Each operation may give its usual result or
MemoryError, and must leave nothing charged. Each is named before it is tried, so a crash is known by its name. Run by
test_array_allocations.py."""

import collections
import contextlib
import copy
import ctypes
import gc
import os
import sys
import threading

import numpy

from tests.engine import op_cases
from tests.engine.library import Account, check, library

CONTEXT_CAPSULE = b"engine.context"
NEVER = 10**9


def charge_arrays_of_this_interpreter(lib):
    """vmhost.engine._array, which must not be imported yet, gets a context whose account is failing.c's."""
    account, handle = ctypes.create_string_buffer(ctypes.sizeof(Account)), ctypes.c_void_p()
    pointers = ctypes.cast(account, ctypes.POINTER(ctypes.c_void_p))  # struct vme_account: owner, charge, release, …
    for number, function in ((1, lib.failing_charge), (2, lib.failing_release)):
        pointers[number] = ctypes.cast(function, ctypes.c_void_p).value
    check(library.vme_context_new(account, 0, ctypes.byref(handle)))
    api = ctypes.pythonapi
    api.PyInterpreterState_Get.restype = api.PyInterpreterState_GetDict.restype = ctypes.c_void_p
    api.PyInterpreterState_GetDict.argtypes = [ctypes.c_void_p]
    api.PyCapsule_New.restype = ctypes.py_object
    api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    api.PyDict_SetItemString.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.py_object]
    capsule = api.PyCapsule_New(handle, CONTEXT_CAPSULE, None)
    assert (
        api.PyDict_SetItemString(api.PyInterpreterState_GetDict(api.PyInterpreterState_Get()), CONTEXT_CAPSULE, capsule)
        == 0
    )


def operations():
    """{name: function of no arguments}; what each returns is compared."""
    import vmhost.engine.numpy as np

    a, b, square = np.arange(2000.0), np.arange(2000.0) + 0.5, np.arange(900.0).reshape(30, 30)
    whole, mask, indices = np.arange(2000), np.arange(2000) % 3 == 0, np.arange(1999, -1, -3)
    lent = numpy.arange(24.0).reshape(4, 6)

    def changed(change, source=a):
        copy = source.copy()
        change(copy)
        return copy

    def add_in_place(x):
        x += b

    def set_slice(x):
        x[3:400:2] = 7

    def set_places(x):
        x[indices] = 1.5

    def set_mask(x):
        x[mask] = b[mask]

    def set_overlapping(x):
        x[1:] = x[:-1]

    return {
        "zeros": lambda: np.zeros((20, 30)),
        "array": lambda: np.array([[1, 2.5], [3, 4]]),
        "asarray": lambda: np.asarray(range(30)),
        "of_arrays": lambda: np.array([a, b]),
        "full": lambda: np.full((3, 4, 5, 6, 1, 1), 2.0),
        "arange": lambda: np.arange(0, 9, 0.25),
        "linspace": lambda: np.linspace(0, 1, 50),
        "eye": lambda: np.eye(5),
        "frombuffer": lambda: np.frombuffer(b"12345678" * 20, "i2"),
        "astype": lambda: a.astype("float32"),
        "casting": lambda: whole.astype("complex128"),
        "copy": lambda: a.copy("F"),
        "item": lambda: [a[3], a[-1].item(), square[2, 3]],
        "views": lambda: [a[3:], square[1], square[:, None, ..., ::2], square.T],
        "gather": lambda: a[indices],
        "mask": lambda: a[mask],
        "mixed_index": lambda: square[indices[:5] % 30, 1:4],
        "take": lambda: np.take(square, [1, 2, 3], 1),
        "set_slice": lambda: changed(set_slice),
        "set_places": lambda: changed(set_places),
        "set_mask": lambda: changed(set_mask),
        "set_overlapping": lambda: changed(set_overlapping),
        "add": lambda: a + b,
        "add_small": lambda: a[:4] + 1,
        "broadcast": lambda: square + square[0],
        "strided": lambda: square.T * square,
        "mixed": lambda: a + whole,
        "chain": lambda: -(a * b + 1) / 2,
        "compare": lambda: a < b,
        "power": lambda: a**2.5,
        "in_place": lambda: changed(add_in_place),
        "out": lambda: changed(lambda x: np.multiply(a, b, out=x)),
        "out_overlapping": lambda: changed(lambda x: np.add(x[:-1], 1, out=x[1:])),
        "where_argument": lambda: np.add(a, 1, where=mask, out=b.copy()),
        "exp": lambda: np.exp(square / 900),
        "where": lambda: np.where(mask, a, b),
        "clip": lambda: a.clip(3, 9),
        "sum": lambda: a.sum(),
        "mean": lambda: square.mean(axis=0),
        "max": lambda: square.max(axis=(0, 1), keepdims=True),
        "argmax": lambda: square.argmax(axis=1),
        "var": lambda: square.var(axis=1),
        "overlapping_reduction": lambda: changed(lambda x: x.sum(keepdims=True, out=x[:1])),
        "cumsum": lambda: square.cumsum(axis=0),
        "any": lambda: mask.any(),
        "reduce": lambda: np.add.reduce(square, 1),
        "accumulate": lambda: np.add.accumulate(a),
        "outer": lambda: np.multiply.outer(a[:9], b[:9]),
        "sort": lambda: np.sort(b[::-1]),
        "sort_in_place": lambda: changed(lambda x: x.sort(), b),
        "argsort": lambda: np.argsort(square, axis=0),
        "searchsorted": lambda: np.searchsorted(a, b),
        "unique": lambda: np.unique(whole % 7),
        "nonzero": lambda: mask.nonzero(),
        "matmul": lambda: square @ square,
        "batched": lambda: np.stack([square, square]) @ square,
        "dot": lambda: a.dot(b),
        "matmul_out": lambda: changed(lambda x: np.matmul(x, square, out=x), square),
        "integers": lambda: square.astype(int) @ square.astype(int),
        "concatenate": lambda: np.concatenate([a, b, whole]),
        "stack": lambda: np.stack([a, b], 1),
        "pad": lambda: np.pad(square, 2, "reflect"),
        "tile": lambda: np.tile(square, (2, 3)),
        "roll": lambda: np.roll(square, 3),
        "reshape": lambda: square.T.reshape(-1),
        "repeat": lambda: np.repeat(a[:20], 3),
        "split": lambda: np.array_split(a, 3),
        "padding": lambda: np.pad(square, 2, "mean"),
        "repr": lambda: repr(square),
        "str": lambda: str(a[:9]),
        "text_of_one": lambda: f"{a[3]:.3f} {a[4]}",
        "tolist": lambda: square.tolist(),
        "tobytes": lambda: a.tobytes(),
        "memoryview": lambda: bytes(memoryview(square)[3:5].tobytes()),
        "of_a_buffer": lambda: np.asarray(lent) * 2,
        "dlpack_out": lambda: numpy.from_dlpack(square).sum(),
        "dlpack_in": lambda: np.from_dlpack(lent) + 1,
        "copied": lambda: copy.copy(square),
        "deepcopied": lambda: copy.deepcopy({"a": a, "b": [a]})["b"][0],
        "words": lambda: np.asarray(np._array._words((1, 2), (0, 0, 0, 0), 0, 50)),
        "high_rank": lambda: np.zeros((1,) * 20) + np.zeros((1,) * 20),
        "iteration": lambda: [float(row.sum()) for row in square],
        "errors": lambda: failing(np, a, square),
        "complex": lambda: (a[:50] * 1j).conj(),
        "equal": lambda: np.array_equal(a, a),
        **linear_algebra(np),
        **transforms(np, a),
        **draws(np),
        **tokens(np._array),
    }


def cases(np):
    """Of the op-case table: every operator on each layout, every reduction and cast, and every expression of the
    surface."""
    functions = {}
    for table in (op_cases.UNARY, op_cases.BINARY):
        for name, domain in table.items():
            function = getattr(np, name)
            for number, layout in enumerate(op_cases.LAYOUTS):
                dtype = ("float64", "int64", "float32", "int8", "float16")[number]
                operands = [
                    np.asarray(op_cases.operand(layout, number, 900, dtype, domain))
                    for number in range(1 if table is op_cases.UNARY else 2)
                ]
                with contextlib.suppress(TypeError):  # no loop for this dtype
                    function(*operands)
                    functions[f"{name} {layout} {dtype}"] = lambda function=function, operands=operands: function(
                        *operands
                    )
    for name, dtypes in op_cases.REDUCED.items():
        for dtype in dtypes:
            for layout in ("contiguous", "broadcast", "transposed"):
                operand = np.array(op_cases.operand(layout, 0, 900, dtype, "unit"))
                axes = (None,) if operand.ndim == 1 else (0, 1)
                for axis in axes:
                    functions[f"{name} {layout} {dtype} {axis}"] = (
                        lambda function=getattr(np, name), operand=operand, axis=axis: function(operand, axis)
                    )
    for source, target in op_cases.CASTS:
        operand = np.array(op_cases.operand("contiguous", 0, 900, source, "small"))
        functions[f"{source} to {target}"] = lambda operand=operand, target=target: operand.astype(target)
    for expression, _, function, operands in op_cases.surface_cases(1000):
        operands = tuple(np.asarray(operand.copy()) for operand in operands)
        functions[expression] = lambda function=function, operands=operands: function(np, *operands)
    return functions


def linear_algebra(np):
    """Matrices of 8 are the engine's own, of 70 LAPACK's, which works on a thread of its own."""
    table = {}
    for size in (8, 70):
        a = np.eye(size) * 9 * size + np.arange(float(size * size)).reshape(size, size) % 7
        symmetric, b = a + a.T, np.arange(float(size))
        linalg = {
            "solve": lambda a=a, b=b: np.linalg.solve(a, b),
            "inv": lambda a=a: np.linalg.inv(a),
            "det": lambda a=a: np.linalg.det(a),
            "cholesky": lambda a=symmetric: np.linalg.cholesky(a),
            "qr": lambda a=a: np.linalg.qr(a),
            "qr_complete": lambda a=a[:, :5]: np.linalg.qr(a, "complete"),
            "svd": lambda a=a: np.linalg.svd(a),
            "eig": lambda a=a: np.linalg.eigvals(a),
            "eigh": lambda a=symmetric: np.linalg.eigvalsh(a),
            "lstsq": lambda a=a[:, :5], b=b: np.linalg.lstsq(a, b)[0],
            "of_float32": lambda a=a.astype("float32"): np.linalg.inv(a),
            "batch": lambda a=np.stack([a, symmetric]): np.linalg.inv(a),
            "singular": lambda a=a * 0: singular(np, a),
        }
        table.update({f"linalg_{name}_{size}": function for name, function in linalg.items()})
    return table


def singular(np, a):
    try:
        np.linalg.inv(a)
    except np.linalg.LinAlgError as error:
        return str(error)


def transforms(np, a):
    """Of lengths that are factored, that are prime (Bluestein's way), along other axes, and of reals."""
    image = a[:1980].reshape(44, 45)
    return {
        "fft": lambda: np.fft.fft(a[:1000]),
        "fft_prime": lambda: np.fft.fft(a[:1009]),
        "ifft": lambda: np.fft.ifft(image + 0j, axis=0),
        "rfft": lambda: np.fft.rfft(a[:1001]),
        "irfft": lambda: np.fft.irfft(a[:300] + 0j),
        "fft2": lambda: np.fft.fft2(image),
        "rfftn": lambda: np.fft.rfftn(image, (50, 30)),
        "fft_of_float32": lambda: np.fft.fft(image.astype("float32")),
        "hfft": lambda: np.fft.hfft(a[:64] + 0j),
        "fftshift": lambda: np.fft.fftshift(image),
    }


def draws(np):
    def drawn(draw):
        return lambda: draw(np.random.default_rng(7))

    pool = np.arange(20)
    return {
        f"random_{name}": drawn(draw)
        for name, draw in {
            "words": lambda r: r.integers(0, 9, 50),
            "bounds": lambda r: r.integers(0, pool + 1, 20),
            "uniform": lambda r: r.random((30, 30)),
            "float32": lambda r: r.random(90, dtype="float32"),
            "normal": lambda r: r.normal(0, 1, 200),
            "of_arrays": lambda r: r.normal(pool, pool + 1),
            "exponential": lambda r: r.exponential(2, 50),
            "gamma": lambda r: r.gamma(2, 1, 50),
            "poisson": lambda r: r.poisson(3, 50),
            "binomial": lambda r: r.binomial(9, 0.3, 50),
            "permutation": lambda r: r.permutation(pool),
            "choice": lambda r: r.choice(pool, 5, replace=False),
            "chances": lambda r: r.choice(pool, 5, p=np.full(20, 0.05)),
            "multinomial": lambda r: r.multinomial(20, [0.2, 0.3, 0.5], 4),
            "multivariate_normal": lambda r: r.multivariate_normal([0, 1], [[2, 0.5], [0.5, 1]], 5),
            "dirichlet": lambda r: r.dirichlet([1, 2, 3], 4),
            "state": lambda r: [r.bit_generator.state["state"]["key"], r.bit_generator.jumped().random_raw(3)],
            "bytes": lambda r: list(r.bytes(9)),
            "spawn": lambda r: [child.random(3) for child in r.spawn(2)],
        }.items()
    }


def tokens(native):
    """Tables of tokenizers, and texts by them, also what they do not know."""
    ids = {character: number for number, character in enumerate("abcdefghijklmnopqrstuvwxyz")}
    merges = {(first, first + 1): (first, 100 + first) for first in range(24)} | {(100, 102): (30, 200)}
    pieces = {**ids, "ab": 26, "abc": 27, "cd": 28, "東": 29}
    scores = [-float(10 - len(piece)) for piece in pieces]
    of_bytes = tuple(range(300, 556))
    text, strange = "abcdefghijabcdxyz" * 3, "abc東京cd"
    table, tree = native._bpe_table(merges), native._unigram_table(pieces, scores)
    symbols = [(number, at, at + 1) for at, number in enumerate((0, 1, 2, 3, 20))]
    return {
        "bpe_table": lambda: native._bpe_table(merges),
        "bpe": lambda: native._bpe_pieces(ids, table, text, None, False, None),
        "bpe_of_bytes": lambda: native._bpe_pieces(ids, table, strange, None, False, of_bytes),
        "bpe_unknown": lambda: native._bpe_pieces(ids, table, strange, 99, True, None),
        "bpe_of_symbols": lambda: native._bpe_pieces(ids, table, symbols, None, False, None),
        "unigram_table": lambda: native._unigram_table(pieces, scores),
        "unigram": lambda: native._unigram_pieces(tree, text, None, -20.0),
        "unigram_unknown": lambda: native._unigram_pieces(tree, strange, 25, -20.0),
        "unigram_none": lambda: [native._unigram_pieces(tree, "京", None, -20.0) is None],
    }


def failing(np, a, square):
    """The messages of errors are made, too."""
    sentences = []
    for wrong in (
        lambda: a + square,
        lambda: a[5000],
        lambda: a.reshape(7, 7),
        lambda: np.zeros(-1),
        lambda: square @ a,
        lambda: a["x"],
        lambda: np.dtype("foo"),
        lambda: square.sum(axis=9),
    ):
        try:
            wrong()
        except (ValueError, IndexError, TypeError) as error:
            sentences.append(str(error))
    return sentences


def same(one, other):
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    one, other = numpy.asarray(one), numpy.asarray(other)
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


class Refused:
    """The n-th request to the account fails, alone or with all after it."""

    def __init__(self, lib, alone):
        self.lib, self.alone = lib, alone

    def arm(self, number):
        self.lib.failing_refuse(number - 1, number if self.alone else NEVER)

    def disarm(self):
        """Whether one failed."""
        failed = self.lib.failing_refused()
        self.lib.failing_refuse(NEVER, NEVER)
        return failed


class Failing:
    """The n-th allocation fails."""

    def __init__(self, lib, mode):
        self.arm, self.disarm_it = lib.failing_arm, lib.failing_disarm
        if mode == "engine":
            lines = [line.split() for line in open("/proc/self/maps") if line.rstrip().endswith("/libvme.so")]
            [code] = [line[0].split("-") for line in lines if line[1] == "r-xp"]
            lib.failing_core(int(lines[0][0].split("-")[0], 16), int(code[0], 16), int(code[1], 16))

    def disarm(self):
        return self.disarm_it() < 0


def try_all(operations, failures, charged, ends, step):
    from vmhost.engine import _array

    gc.collect()
    gc.freeze()  # of what is there now nothing becomes garbage
    for name, function in operations.items():
        expected = function()
        for _ in range(3):  # what is made once is made
            assert same(function(), expected), name
        gc.collect()
        _array._statistics()
        before, number = charged(), 1
        while True:
            print(name, number, flush=True)
            result = error = None
            try:
                failures.arm(number)
                result = function()
            except MemoryError:
                error = True
            finally:
                failed = failures.disarm()
            assert error or same(result, expected), (name, number, result)
            result = None
            if not failed:
                assert not error, (name, number)
                break
            ends["MemoryError" if error else "result"] += 1
            _array._statistics()
            if charged() != before:  # what a cycle of the error's traceback holds
                gc.collect()
                _array._statistics()
            assert charged() == before, f"{name}, {number}: {charged() - before} bytes left"
            number += step
        assert same(function(), expected), name
        ends["operations"] += 1


def main(mode, step="1"):
    lib = ctypes.PyDLL(os.environ["VMHOST_FAILING"])
    lib.failing_disarm.restype = ctypes.c_long
    lib.failing_charged.restype = ctypes.c_longlong
    lib.failing_refused.restype = ctypes.c_bool
    lib.failing_core.argtypes = [ctypes.c_size_t] * 3
    lib.failing_refuse.argtypes = [ctypes.c_long] * 2
    lib.failing_refuse(NEVER, NEVER)
    charge_arrays_of_this_interpreter(lib)
    if mode == "python":
        lib.failing_python()
    ends, wrong = collections.Counter(), []

    def run():
        try:
            import vmhost.engine.numpy as np  # so that libvme is there

            tried = operations() | (cases(np) if mode != "python" else {})
            allocators = [Refused(lib, True), Refused(lib, False)] if mode == "account" else [Failing(lib, mode)]
            for allocator in allocators:
                try_all(tried, allocator, lib.failing_charged, ends, int(step))
        except BaseException as error:
            wrong.append(error)

    # CPython's allocations fail on threads other than the main one
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if wrong:
        raise wrong[0]
    print("ends", dict(ends), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
