"""Random programs on arrays that share memory give the same in `vmhost.engine.numpy`, in the host and in a VM, as in
NumPy: see programs.py."""

import warnings

import numpy
from hypothesis import given, settings
from hypothesis import strategies as st

import vmhost
from tests.batches import each
from tests.engine.programs import Program, difference, exact_part
from tests.hosts import bundle


@settings(max_examples=150, deadline=None, derandomize=True)  # others: python -m tests.engine.programs SECONDS
@given(seed=st.integers(0, 2**63))
def test_any_program(seed):
    assert difference(Program(seed).statements) is None


# found by programs, each once: statements and the array that differed
@each(
    "statements",
    [
        ["a = np.asarray(3.0)", "b = np.repeat(a, 2, axis=0)", "b[0] = 1", "c = np.repeat(a, 1)", "c += 1"],
        ["a = np.zeros((0, 3))", "b = np.repeat(a, 2, axis=1)", "b += 1"],
        ["a = np.arange(6.0).reshape(2, 3)", "b = np.repeat(a, 1, axis=1)", "b += 1"],
        ["a = np.arange(6).reshape(3, 1, 2).astype('f8', order='F')", "b = a.ravel()", "a += 1"],
        ["a = np.arange(6).reshape(2, 3).T.astype('f4')", "b = a.ravel('K') if 0 else a.T.reshape(-1)", "a += 1"],
        ["a = np.arange(3.0)", "np.add(a, 1j, out=a, where=a > 1)"],
        ["a = np.zeros(2)", "np.add(np.ones((1, 1)), np.ones(1), out=a, casting='unsafe')"],
        [
            "a = np.zeros(())",
            "np.add(np.ones(1), 1, out=a, where=True)",
            "np.add(np.ones(1), 1, out=a, where=np.ones(1, bool))",
        ],
        ["a = np.asarray(1.0)", "a.argmax(axis=1)"],
        ["a = np.asarray(1.0)", "b = a.argmin(axis=-1, keepdims=True)"],
        ["a = np.asarray(1.0)", "a.cumsum(axis=1)"],
        ["a = np.asarray(1.0)", "a.take([0], axis=-2)"],
        ["a = np.asarray(1.0)", "b = a.take([0, 0], axis=-1)"],
        ["a = np.zeros((2, 0, 2))", "a.take([0], axis=1)"],
        ["a = np.zeros((0, 0))", "b = a.take([0], axis=1)"],
        ["a = np.arange(3)", "np.put(a, [0, 9], [])"],
        ["a = np.zeros(0)", "np.put(a, [0], [])"],
        ["a = np.asarray(0, 'u2')", "np.asarray([70000, 1]).sum(out=a)"],
        ["a = np.asarray(0)", "np.asarray([0.6, 0.6]).sum(out=a)"],
        ["a = np.zeros(3, 'f2')", "np.add.at(a, [0, 0, 2], 1)"],
        ["a = np.arange(8)", "b = a[::2].ravel()", "b[0] = 9"],
        ["a = np.broadcast_to(np.arange(1), (2, 1))", "b = a.ravel()", "b += 1"],
        ["a = np.arange(8)", "b = a[::-1].ravel('K')", "b += 1"],
        ["a = np.arange(2, dtype='u8')", "b = np.logical_or(a, -1)"],
        ["a = np.arange(2, dtype='i1')", "b = np.logical_xor(300, a)"],
    ],
    ids=lambda statements: statements[-1],
)
def test_what_differed_once(statements):
    assert difference(statements) is None


def test_programs_in_a_vm():
    lines = []
    for seed in range(60):
        program = Program(seed)
        lines += [f"def program{seed}(_):", "    results = []"]
        for statement in exact_part(program.statements):
            lines += ["    try:", f"        {statement}", "    except Exception:", "        pass"]
        for name in program.names:  # one whose statement was refused is unbound
            lines += [
                "    try:",
                f"        results.append({name})",
                "    except NameError:",
                "        results.append(None)",
            ]
        lines += ["    return results", ""]
    wanted = {"np": numpy}
    exec("\n".join(lines), wanted)
    with (
        vmhost.Host(allow_unsigned=True) as host,
        numpy.errstate(all="ignore"),
        warnings.catch_warnings(action="ignore"),
    ):
        task = host.load(bundle("\n".join(["import vmhost.engine.numpy as np", *lines]), name="programs"))
        for seed in range(60):
            for got, value in zip(task(None, entry=f"main:program{seed}"), wanted[f"program{seed}"](None), strict=True):
                same = (got is None) == (value is None)
                if value is not None:
                    same = same and str(got.dtype) == str(value.dtype) and numpy.array_equal(numpy.asarray(got), value)
                assert same, (seed, Program(seed).statements, got, value)
