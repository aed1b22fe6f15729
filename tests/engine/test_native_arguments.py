"""The private functions of vmhost.engine._array check their arguments themselves: a task reaches them without the
Python that calls them."""

import inspect

import numpy
import pytest

import vmhost.engine.numpy as np
from tests.hosts import in_a_process
from vmhost.engine import _array

# Each case ended the process, read or wrote memory of others, or never returned. A case is an expression; its error is
# told, "none" if there was none.
CASES = """
CASES = {
    "a mode that pad does not have": (lambda: _array._pad(np.arange(4.0), (3,), (10,), 5, None), ValueError),
    "a large padding of it": (lambda: _array._pad(np.arange(4.0), (1 << 24,), (1 << 25,), 1 << 40, None), ValueError),
    "a negative mode": (lambda: _array._pad(np.arange(4.0), (3,), (10,), -1, None), ValueError),
    "solve without a right-hand side": (lambda: linear(0, (1, 2, 2, 1), (eye, None), (np.zeros((2, 1)),)), ValueError),
    "no output": (lambda: linear(2, (1, 2, 2, 1), (eye, None), (None, None, None)), ValueError),
    "too few outputs": (lambda: linear(2, (1, 2, 2, 1), (eye,), (np.zeros(1),)), ValueError),
    "vectors on one side only": (lambda: linear(5, (1, 2, 2, 0), (eye,), (np.zeros(2), None, eye * 1)), ValueError),
    "rank without a place": (lambda: linear(8, (1, 2, 2, 1), (eye, eye[0] * 1), (eye[0] * 1, eye[0] * 1)), ValueError),
    "no input": (lambda: linear(1, (1, 2, 2, 0), (None, eye), (eye * 1,)), (TypeError, ValueError)),
    "a batch whose elements wrap": (lambda: linear(1, ((1 << 62) + 1, 2, 2, 0), (eye,), (eye * 1,)), ValueError),
    "columns that wrap": (lambda: linear(0, (1, 2, 2, 1 << 63 - 1), (eye, np.zeros(0)), (np.zeros(0),)), ValueError),
    "an operation that there is not": (lambda: linear(1 << 32, (1, 2, 2, 0), (eye,), (eye * 1,)), ValueError),
    "kernels that wrap": (lambda: _array._patches(images(1 << 10), wide), ValueError),
    "windows that wrap": (lambda: _array._patches(images(0), (1, 1, 1, 1, 1, 1, 1 << 30, 1 << 30)), ValueError),
    "numbers of windows that wrap": (lambda: _array._patches(images(1), (1,) * 6 + (1 << 62,) * 2), ValueError),
    "the images of patches that wrap": (
        lambda: _array._patches_sum(np.zeros((1, 0, 9)), wide, (1, 1 << 10, 1, 1)), ValueError
    ),
    "a number that lengthens its row": (lambda: text_numbers(), TypeError),
    "a key that lengthens its list": (lambda: text_numbers_by_key(), None),
    "a number that clears its list of symbols": (lambda: pieces_of(cleared()), TypeError),
    "a symbol of other numbers": (lambda: pieces_of([(0, -1, 2)]), (TypeError, ValueError)),
    "a number that lengthens its merges": (lambda: _array._bpe_table(growing_merges()), TypeError),
    "a number that clears its vocabulary": (lambda: _array._unigram_table(growing(), [1.0] * 9), TypeError),
    "a score that clears its vocabulary": (lambda: _array._unigram_table({"a": 0}, [Acts(None, 1)]), TypeError),
    "a table of merges of one slot": (lambda: pieces_of("ab", bytes(16)), TypeError),
    "a table of merges without a free slot": (lambda: pieces_of("ab", b"\\xff" * 128), None),
    "a table of tokens without a free slot": (lambda: _array._unigram_pieces(full_tree, "ab", 0, 0.0), None),
    "a gamma of NaN": (lambda: draw(4, nan), ValueError),
    "a float32 gamma of NaN": (lambda: draw(4, nan, dtype=np.float32), ValueError),
    "a beta of -inf": (lambda: draw(5, -inf, 0.5), ValueError),
    "a beta of NaN": (lambda: draw(5, nan, 0.5), ValueError),
    "a Poisson mean of NaN": (lambda: draw(14, nan, dtype=np.int64), ValueError),
    "a binomial of NaN": (lambda: draw(15, 100.0, nan, dtype=np.int64), ValueError),
    "a binomial of NaN trials": (lambda: draw(15, nan, 0.5, dtype=np.int64), ValueError),
    "a negative binomial without a mean": (lambda: np.random.default_rng(1).negative_binomial(1e-308, 0), ValueError),
    "a negative binomial of inf": (lambda: np.random.default_rng(1).negative_binomial(inf, 0.5), ValueError),
    "the same in C": (lambda: draw(17, 1e-308, 0.0, dtype=np.int64), ValueError),
    "zipf of 1": (lambda: draw(19, 1.0, dtype=np.int64), ValueError),
    "zipf of -inf": (lambda: draw(19, -inf, dtype=np.int64), ValueError),
    "zipf of NaN": (lambda: draw(19, nan, dtype=np.int64), ValueError),
    "a range beyond the dtype": (lambda: integers(1 << 20), ValueError),
    "a room that ends its snapshot": (lambda: snapshot_read(_array._embedding_snapshot_read), (TypeError, ValueError)),
    "a room of waiting keys": (lambda: snapshot_read(_array._embedding_snapshot_waiting), (TypeError, ValueError)),
    "a truth that ends its snapshot": (lambda: snapshot_read(_array._embedding_snapshot_end), (TypeError, ValueError)),
}
"""
SETTING = """
import os, struct, sys
import vmhost.engine.numpy as np
from vmhost.engine import _array

class Acts:
    def __init__(self, act, answer):
        self.act, self.answer = act, answer

    def __index__(self):
        if self.act:
            self.act()
        return self.answer

    def __float__(self):
        return float(self.__index__())

    def __bool__(self):
        return bool(self.__index__())

eye, nan, inf = np.eye(2), float("nan"), float("inf")
wide = (1 << 27, 1 << 27, 1, 1, 1, 1, 1 << 27, 1 << 27)
full_tree = struct.pack("<Qqdq", 1, 1, 0.0, -1) + b"\\xff" * 32

def linear(op, sizes, inputs, outputs):
    return _array._linear(op, 0, 0.0, sizes, inputs, outputs)

def draw(kind, *parameters, dtype=np.float64):
    state, parameters = np.zeros(13, np.uint64), tuple(np.full((), value) for value in parameters)
    return _array._random(state, kind, parameters, np.zeros(4, dtype))

def integers(last):
    parameters = tuple(np.full((), value, np.uint64) for value in (0, last))
    return _array._random(np.zeros(13, np.uint64), 20, parameters, np.zeros(64, np.uint8))

def images(channels):
    return np.zeros((1, channels, 1, 1))

def text_numbers():
    rows = [["a"] for _ in range(4)]
    return _array._text_numbers({"a": Acts(lambda: [row.extend(["a"] * 100_000) for row in rows], 7)}, rows)

def text_numbers_by_key():
    class Key(str):
        def __eq__(self, other):
            rows[:] = [["a"] * 100_000]
            return True

        __hash__ = str.__hash__

    rows = [["a"] for _ in range(4)]
    return _array._text_numbers({Key("a"): 7}, rows)

def pieces_of(text, table=bytes(128)):
    return _array._bpe_pieces({"a": 1, "b": 2}, table, text, None, False, None)

def cleared():
    symbols = []
    symbols += [(Acts(symbols.clear, 1), Acts(symbols.clear, 1), 1) for _ in range(10)]
    return symbols

def growing():
    words = {}
    words |= {str(i): Acts(lambda: words.update(dict.fromkeys(map(str, range(9_000)), 1)), 1) for i in range(9)}
    return words

def growing_merges():
    merges = {}
    more = {(i, i): (1, 1) for i in range(90_000)}
    merges |= {(i, 0): (Acts(lambda: merges.update(more), 1), 1) for i in range(9)}
    return merges

def snapshot_read(function):
    table = _array._embedding_new(4, 0, np.zeros((1, 4), np.float32))
    (snapshot,) = _array._embedding_snapshot((table,), False)
    return function(snapshot, Acts(lambda: _array._embedding_snapshot_end(snapshot, False), 4))
"""
SCRIPT = (
    SETTING
    + CASES
    + """
for name, (case, expected) in CASES.items():
    child = os.fork()
    if child == 0:
        import signal
        signal.alarm(60)
        try:
            case()
        except BaseException as error:
            fits = expected is not None and isinstance(error, expected)
            told = "" if fits else f"{type(error).__name__}: {error}"
        else:
            told = "" if expected is None else "no error"
        if told:
            print(f"{name}: {told}", flush=True)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        print(f"{name}: status {status}", flush=True)
print("all cases")
"""
)


def test_a_matrix_that_is_not_finite_is_refused_before_lapack_iterates_on_it():
    """LAPACK may never return, so this is a process of its own; what it refuses itself it writes to the output."""
    done = in_a_process(
        """
        import contextlib
        import vmhost.engine.numpy as np
        from vmhost.engine import _array
        for value in (np.inf, -np.inf, np.nan):
            matrix = np.eye(6)
            matrix[2, 3] = matrix[3, 2] = value
            functions = [np.linalg.svd, np.linalg.pinv, lambda a: np.linalg.lstsq(a, np.ones(6)), np.linalg.eig]
            for function in functions:
                try:
                    print(function(matrix))
                except np.linalg.LinAlgError:
                    pass
            outputs = np.zeros(6, complex), np.zeros((6, 6), complex)
            assert _array._linear(6, 0, 0.0, (1, 6, 6, 0), (matrix,), outputs)  # eig, which looks first
            if value != value:
                vector = np.ones(6)
                vector[0] = value
                for function in (np.linalg.eigh, np.linalg.qr, np.linalg.inv, np.linalg.det, np.linalg.cholesky):
                    with contextlib.suppress(np.linalg.LinAlgError):
                        function(matrix)
                with contextlib.suppress(np.linalg.LinAlgError):
                    np.linalg.lstsq(np.eye(6), vector)
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("value", [numpy.inf, -numpy.inf])
def test_normal_vectors_of_an_infinite_covariance_end(value):
    covariance = np.eye(6)
    covariance[2, 3] = covariance[3, 2] = value
    draw = np.random.default_rng(1).multivariate_normal
    for method in ("svd", "cholesky"):
        with pytest.raises(np.linalg.LinAlgError):
            draw(np.zeros(6), covariance, method=method)
    assert np.isnan(draw(np.zeros(6), covariance, method="eigh")).any()


def test_more_balls_than_a_list_of_them_may_have_are_refused():
    for colors in ([2**63 - 101, 101], [2**62, 101]):
        for method in ("count", "marginals"):
            told = []
            for module in (np, numpy):
                with pytest.raises(ValueError, match="sum") as caught:
                    module.random.default_rng(1).multivariate_hypergeometric(colors, 5, 1, method)
                told.append(str(caught.value))
            assert told[0] == told[1]


class Acts:
    """A number that does something when it is asked for."""

    def __init__(self, act, number):
        self.act, self.number = act, number

    def __index__(self):
        self.act()
        return self.number

    def __float__(self):
        return float(self.__index__())


def test_arguments_are_made_exact_before_any_is_checked():
    out = np.zeros((2, 6), "c16")
    rows = np.ones((2, 6), "c16")
    with pytest.raises(ValueError, match="read-only"):
        _array._fft(0, Acts(lambda: out.setflags(write=False), 6), 1.0, rows, out)
    assert not out.any()
    table = _array._embedding_new(4, 0, np.zeros((1, 4), "f4"))
    (snapshot,) = _array._embedding_snapshot((table,), False)
    with pytest.raises(ValueError, match="the snapshot has ended"):
        _array._embedding_snapshot_read(snapshot, Acts(lambda: _array._embedding_snapshot_end(snapshot, False), 4))
    sizes = [2, 3]
    sizes[1] = Acts(sizes.clear, 3)
    assert _array._tile(np.ones((2, 3)), sizes).shape == (2, 3)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: _array._pad(np.ones(2), (1,), (4,), 5), ValueError, r"_pad\(\): mode: expected 0 to 4, got 5"),
        (lambda: _array._pad(np.ones(2), (1,), (4,), 2**70), OverflowError, "too large|64 bits|fit"),
        (lambda: _array._pad(np.ones(2), "ab", (4,), 0), TypeError, "integer"),
        (lambda: _array._pad(np.ones(2), (1,)), TypeError, r"_pad\(\) missing required argument 'shape'"),
        (lambda: _array._pad(np.ones(2), (1,), (4,), 0, None, 1), TypeError, "positional arguments"),
        (lambda: _array._fft(0, 2, "a", np.ones(2), np.ones(2)), TypeError, "must be real number"),
        (lambda: _array._fft(0, 2, 1.0, [1, 2], np.ones(2)), TypeError, r"_fft\(\): rows: expected an array, got list"),
        (lambda: _array._linear(9, 0, 0.0, (1, 1, 1, 0), (), ()), ValueError, r"op: expected 0 to 8, got 9"),
        (lambda: _array._linear(0, 0, 0.0, (1, 1, 1, 0), (1,), ()), TypeError, "inputs: expected a tuple of arrays"),
        (lambda: _array._model_run(1, ()), TypeError, r"session: expected a session of a model, got int"),
        (lambda: _array._embedding_bags([("a",)]), TypeError, "sets: expected a list of tuples of a table"),
        (lambda: _array._bincount(np.arange(3), 5, 0), TypeError, "weights: expected an array or None, got int"),
        (lambda: _array._embedding_snapshot_read(1, 0), TypeError, "snapshot: expected a snapshot"),
    ],
)
def test_each_kind_of_argument_has_its_error(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_the_kinds_of_parameters_are_told_beside_their_signature():
    assert _array._kinds()["_pad"] == (
        ("a", "like", False, None, False),
        ("before", "sizes", False, None, False),
        ("shape", "sizes", False, None, False),
        ("mode", "integer", False, (0, 4), False),
        ("value", "number", True, None, True),
    )
    for name, parameters in _array._kinds().items():
        signature = inspect.signature(getattr(_array, name)).parameters.values()
        assert [(one.name, one.default is not one.empty) for one in signature] == [
            (one[0], one[4]) for one in parameters
        ]


@pytest.mark.parametrize("indices", [[0, 2**62], [0, 6], [0, -1], [6, 0]])
def test_reduceat_reads_no_further_than_its_array(indices):
    with pytest.raises(IndexError, match="out-of-bounds in add.reduceat"):
        np.add.reduceat(np.arange(6.0), indices)


def test_least_squares_of_infinite_vectors_end_as_numpys_do():
    matrix = np.eye(6) + np.ones((6, 6))
    for value in (np.inf, -np.inf, np.nan):
        vector = np.ones(6)
        vector[1] = value
        ours = np.linalg.lstsq(matrix, vector)
        theirs = numpy.linalg.lstsq(numpy.asarray(matrix), numpy.asarray(vector))
        assert numpy.array_equal(ours[0], theirs[0], equal_nan=True) and ours[2] == theirs[2]


class Endless:
    """A sequence without an end that anyone should look for, whose length is `length()`."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length()

    def __getitem__(self, at):
        assert at < 1000
        return 1


def test_a_sequence_without_an_end_makes_no_array():
    with pytest.raises(ZeroDivisionError):
        np.array([[np.array(2), Endless(lambda: 1 // 0)]])
    with pytest.raises(ValueError, match="expected 3 items, as its length says, got more"):
        np.array(Endless(lambda: 3))


def test_distinct_numbers_are_no_more_than_there_are():
    for population, count in ((5, 6), (2**64 - 1, 2)):
        with pytest.raises(ValueError, match="distinct"):
            _array._random(np.zeros(13, "u8"), 23, (np.full((), population, "u8"),), np.zeros(count, "i8"))
    with pytest.raises(ValueError, match="do not fit"):
        _array._random(np.zeros(13, "u8"), 23, (np.zeros(0, "u8"),), np.zeros(0, "i8"))


def test_what_private_functions_are_given_is_checked_by_themselves():
    done = in_a_process(SCRIPT)
    assert done.stdout == "all cases\n", done.stdout + done.stderr
